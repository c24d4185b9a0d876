//! K3: limits by key, with a line of those who wait.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::ids::{JobId, RunId, StepIndex};
use flowgate_core::time::Timestamp;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::Harness;
use super::world::{LEASE, World};
use crate::control::{
    Limit, PERMIT_PLACE_KEPT, PermitAsk, PermitGrant, PermitOutcome, PermitRelease, PermitState,
};
use crate::{Retention, Store};

const KEY: &str = "step/flow/step/concurrency/tenant=é";
const MINUTE: Duration = Duration::from_mins(1);
/// One in ten minutes.
const RATE: Limit = Limit::Rate { count: 6, per_ms: 3_600_000 };
const SHARE: Duration = Duration::from_mins(10);

use PermitOutcome::{Granted, InLine, NotBefore};

fn jobs(count: usize) -> Vec<JobId> {
    let job = |_| JobId { run_id: RunId(Uuid::now_v7()), step: StepIndex(3) };
    (0..count).map(job).collect()
}

fn ask(limit: Limit, job_id: JobId) -> PermitAsk {
    PermitAsk { key: KEY.into(), limit, job_id }
}

async fn take(store: &Arc<dyn Store>, limit: Limit, job_id: JobId) -> PermitOutcome {
    let outcomes = store.take_permits(&[ask(limit, job_id)], LEASE).await.expect("asking");
    assert_eq!(outcomes.len(), 1, "each ask has an outcome");
    outcomes[0]
}

/// The first of these gets the one permit that there is, the others stand in line.
async fn line_up(store: &Arc<dyn Store>, jobs: &[JobId]) {
    for (place, job_id) in (0..).zip(jobs) {
        let expected = if place == 0 { Granted } else { InLine(place) };
        assert_eq!(take(store, Limit::AtOnce(1), *job_id).await, expected);
    }
}

async fn release(store: &Arc<dyn Store>, limit: Limit, jobs: &[JobId]) -> Vec<JobId> {
    let release = |job_id: &JobId| PermitRelease { key: KEY.into(), limit, job_id: Some(*job_id) };
    let releases: Vec<_> = jobs.iter().map(release).collect();
    served(store.release_permits(&releases, LEASE).await.expect("releasing"))
}

/// Looks for what has expired.
async fn look(store: &Arc<dyn Store>, limit: Limit) -> Vec<JobId> {
    let release = PermitRelease { key: KEY.into(), limit, job_id: None };
    served(store.release_permits(&[release], LEASE).await.expect("releasing"))
}

fn served(grants: Vec<PermitGrant>) -> Vec<JobId> {
    assert!(grants.iter().all(|grant| *grant.key == *KEY), "each grant names its key");
    grants.into_iter().map(|grant| grant.job_id).collect()
}

async fn state(store: &Arc<dyn Store>) -> PermitState {
    store.read_permits(KEY).await.expect("reading")
}

/// Who holds a permit, and how many wait.
async fn standing(store: &Arc<dyn Store>) -> (Vec<JobId>, u64) {
    let PermitState { holders, in_line } = state(store).await;
    let mut holders: Vec<JobId> = holders.into_iter().map(|(job_id, _)| job_id).collect();
    holders.sort_unstable();
    (holders, in_line)
}

/// When a place is that a job was told.
fn place(outcome: PermitOutcome) -> Timestamp {
    match outcome {
        NotBefore(at) => at,
        Granted | InLine(_) => panic!("it has no place: {outcome:?}"),
    }
}

pub async fn never_more_than_the_limit_hold_a_permit(harness: &mut impl Harness) {
    let world = World::new(harness);
    let limit = Limit::AtOnce(3);
    let mut askers = JoinSet::new();
    for job_id in jobs(30) {
        let store = world.store();
        askers.spawn(async move { (take(&store, limit, job_id).await, job_id) });
    }
    let outcomes = askers.join_all().await;
    let granted = outcomes.iter().filter(|(outcome, _)| *outcome == Granted).count();
    assert_eq!(granted, 3);
    let mut places: Vec<u64> = Vec::new();
    for (outcome, _) in &outcomes {
        if let InLine(place) = outcome {
            places.push(*place);
        }
    }
    places.sort_unstable();
    assert_eq!(places, (1..=27).collect::<Vec<_>>(), "each has a place of its own");
    // Many release at once, and nobody is served twice.
    let mut holders: Vec<JobId> =
        outcomes.iter().filter(|(outcome, _)| *outcome == Granted).map(|(_, job)| *job).collect();
    let mut seen = holders.clone();
    for left in (0..9).map(|round| 24 - 3 * round) {
        let mut releases = JoinSet::new();
        for job_id in holders {
            let store = world.store();
            releases.spawn(async move { release(&store, limit, &[job_id]).await });
        }
        holders = releases.join_all().await.into_iter().flatten().collect();
        assert_eq!(holders.len(), 3);
        seen.extend(&holders);
        let (standing, in_line) = standing(&world.store()).await;
        assert_eq!((standing.len(), in_line), (3, left));
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 30, "everybody had one, once");
}

pub async fn those_who_wait_are_served_in_their_order(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let (limit, jobs) = (Limit::AtOnce(2), jobs(6));
    let asks: Vec<_> = jobs.iter().map(|job_id| ask(limit, *job_id)).collect();
    let outcomes = store.take_permits(&asks, LEASE).await.unwrap();
    assert_eq!(outcomes, [Granted, Granted, InLine(1), InLine(2), InLine(3), InLine(4)]);
    assert_eq!(standing(&store).await, (jobs[..2].to_vec(), 4));
    assert_eq!(release(&store, limit, &[jobs[1]]).await, [jobs[2]]);
    assert_eq!(release(&store, limit, &[jobs[0], jobs[2]]).await, [jobs[3], jobs[4]]);
    assert_eq!(take(&store, limit, jobs[5]).await, InLine(1));
    assert_eq!(release(&store, limit, &[jobs[4]]).await, [jobs[5]]);
    assert_eq!(release(&store, limit, &[jobs[3], jobs[5]]).await, []);
    assert_eq!(state(&store).await, PermitState::default());
}

pub async fn a_holder_that_asks_again_keeps_its_one_permit(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let (limit, jobs) = (Limit::AtOnce(2), jobs(3));
    for _ in 0..3 {
        assert_eq!(take(&store, limit, jobs[0]).await, Granted);
    }
    assert_eq!(standing(&store).await, (vec![jobs[0]], 0));
    assert_eq!(take(&store, limit, jobs[1]).await, Granted);
    assert_eq!(take(&store, limit, jobs[2]).await, InLine(1));
    assert_eq!(release(&store, limit, &[jobs[0]]).await, [jobs[2]]);
    assert_eq!(release(&store, limit, &[jobs[0]]).await, [], "it had one only");
    assert_eq!(take(&store, limit, jobs[2]).await, Granted, "it was served meanwhile");
}

pub async fn a_place_in_line_is_kept_when_asking_again(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let (limit, jobs) = (Limit::AtOnce(1), jobs(4));
    for (job_id, expected) in jobs.iter().zip([Granted, InLine(1), InLine(2), InLine(3)]) {
        assert_eq!(take(&store, limit, *job_id).await, expected);
    }
    for (at, expected) in [(2, InLine(2)), (1, InLine(1)), (3, InLine(3)), (1, InLine(1))] {
        assert_eq!(take(&store, limit, jobs[at]).await, expected);
    }
    assert_eq!(release(&store, limit, &[jobs[2]]).await, [], "it leaves the line");
    assert_eq!(take(&store, limit, jobs[3]).await, InLine(2));
    assert_eq!(take(&store, limit, jobs[2]).await, InLine(3), "and comes back at its end");
    assert_eq!(release(&store, limit, &[jobs[0]]).await, [jobs[1]]);
    assert_eq!(take(&store, limit, jobs[3]).await, InLine(1));
}

pub async fn an_expired_permit_goes_to_who_waits_longest(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let (limit, jobs) = (Limit::AtOnce(1), jobs(4));
    line_up(&store, &jobs[..3]).await;
    assert_eq!(look(&store, limit).await, []);
    world.harness.advance(LEASE).await;
    assert_eq!(state(&store).await.holders, [], "it is over, whoever looks");
    assert_eq!(take(&store, limit, jobs[3]).await, InLine(3), "what is free is for those ahead");
    assert_eq!(take(&store, limit, jobs[2]).await, InLine(2));
    assert_eq!(take(&store, limit, jobs[1]).await, Granted);
    world.harness.advance(LEASE).await;
    assert_eq!(look(&store, limit).await, [jobs[2]]);
    assert_eq!(look(&store, limit).await, []);
    world.harness.advance(LEASE).await;
    assert_eq!(release(&store, limit, &[jobs[0]]).await, [jobs[3]], "its release comes late");
}

pub async fn a_renewed_permit_outlives_its_first_span(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let (limit, jobs) = (Limit::AtOnce(1), jobs(2));
    assert_eq!(take(&store, limit, jobs[0]).await, Granted);
    assert_eq!(take(&store, limit, jobs[1]).await, InLine(1));
    let before = state(&store).await.holders[0].1;
    world.harness.advance(LEASE / 2).await;
    assert_eq!(take(&store, limit, jobs[0]).await, Granted);
    let (holder, until) = state(&store).await.holders[0];
    assert_eq!(holder, jobs[0]);
    assert!(until >= before.plus(LEASE / 2));
    world.harness.advance(LEASE * 3 / 4).await;
    assert_eq!(look(&store, limit).await, []);
    world.harness.advance(LEASE / 4).await;
    assert_eq!(look(&store, limit).await, [jobs[1]]);
    let now = store.now().await.unwrap();
    assert!(state(&store).await.holders[0].1 <= now.plus(LEASE), "it has a lease of its own");
    world.harness.advance(LEASE).await;
    assert_eq!(state(&store).await, PermitState::default());
}

pub async fn a_limit_may_change_between_calls(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let jobs = jobs(8);
    for job_id in &jobs[..3] {
        assert_eq!(take(&store, Limit::AtOnce(3), *job_id).await, Granted);
    }
    // Lower: nobody loses a permit, and nobody gets one until there are fewer.
    let low = Limit::AtOnce(1);
    assert_eq!(take(&store, low, jobs[0]).await, Granted);
    for (at, place) in (3..8).zip(1..) {
        assert_eq!(take(&store, low, jobs[at]).await, InLine(place));
    }
    assert_eq!(release(&store, low, &jobs[..2]).await, []);
    assert_eq!(standing(&store).await, (vec![jobs[2]], 5));
    assert_eq!(release(&store, low, &[jobs[2]]).await, [jobs[3]]);
    // Higher: the next in line get in.
    let high = Limit::AtOnce(3);
    assert_eq!(take(&store, high, jobs[6]).await, InLine(3));
    assert_eq!(take(&store, high, jobs[5]).await, Granted, "two are free, and it is the second");
    assert_eq!(look(&store, high).await, [jobs[4]]);
    // None at all.
    let none = Limit::AtOnce(0);
    assert_eq!(release(&store, none, &jobs[3..6]).await, []);
    assert_eq!(standing(&store).await, (Vec::new(), 2));
    assert_eq!(take(&store, none, jobs[6]).await, InLine(1));
    assert_eq!(look(&store, Limit::AtOnce(1)).await, [jobs[6]]);
}

pub async fn all_is_given_back_before_anybody_is_served(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let (limit, jobs) = (Limit::AtOnce(1), jobs(4));
    line_up(&store, &jobs).await;
    assert_eq!(release(&store, limit, &jobs[..2]).await, [jobs[2]], "the second gave up its place");
    assert_eq!(release(&store, limit, &jobs[..2]).await, [], "its reply was lost");
    assert_eq!(standing(&store).await, (vec![jobs[2]], 1));
}

pub async fn the_permits_of_each_key_are_apart(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let jobs = jobs(3);
    let (one, other): (Arc<str>, Arc<str>) = ("queue/a".into(), "queue/b".into());
    let limit = Limit::AtOnce(1);
    let ask = |key: &Arc<str>, job_id| PermitAsk { key: Arc::clone(key), limit, job_id };
    let asks = [
        ask(&one, jobs[0]),
        ask(&other, jobs[0]),
        ask(&one, jobs[1]),
        ask(&other, jobs[2]),
        ask(&one, jobs[2]),
    ];
    let outcomes = store.take_permits(&asks, LEASE).await.unwrap();
    assert_eq!(outcomes, [Granted, Granted, InLine(1), InLine(1), InLine(2)]);
    let back = |key: &Arc<str>| {
        let key = Arc::clone(key);
        PermitRelease { key, limit, job_id: Some(jobs[0]) }
    };
    let grants = store.release_permits(&[back(&other), back(&one)], LEASE).await.unwrap();
    let expected = [
        PermitGrant { key: Arc::clone(&other), job_id: jobs[2] },
        PermitGrant { key: Arc::clone(&one), job_id: jobs[1] },
    ];
    assert_eq!(grants, expected, "by key, in the order of the releases");
    assert_eq!(store.read_permits("queue/c").await.unwrap(), PermitState::default());
    assert_eq!(store.take_permits(&[], LEASE).await.unwrap(), []);
    assert_eq!(store.release_permits(&[], LEASE).await.unwrap(), []);
}

pub async fn a_rate_spreads_its_places_evenly(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let jobs = jobs(4);
    let before = store.now().await.unwrap();
    assert_eq!(take(&store, RATE, jobs[0]).await, Granted);
    let after = store.now().await.unwrap();
    let second = place(take(&store, RATE, jobs[1]).await);
    assert!(before.plus(SHARE) <= second && second <= after.plus(SHARE), "{second}");
    let third = place(take(&store, RATE, jobs[2]).await);
    assert_eq!(third, second.plus(SHARE));
    assert_eq!(place(take(&store, RATE, jobs[1]).await), second, "asked early");
    assert_eq!(look(&store, RATE).await, [], "a place is not handed on");
    assert_eq!(standing(&store).await, (vec![jobs[0]], 2));
    world.harness.advance(SHARE).await;
    assert_eq!(take(&store, RATE, jobs[1]).await, Granted);
    assert_eq!(place(take(&store, RATE, jobs[2]).await), third);
    assert_eq!(place(take(&store, RATE, jobs[3]).await), third.plus(SHARE));
    world.harness.advance(SHARE * 3).await;
    assert_eq!(take(&store, RATE, jobs[2]).await, Granted, "asked late");
}

pub async fn a_share_of_a_rate_need_not_be_whole(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    // A share of 8,571.428… s.
    let rate = Limit::Rate { count: 7, per_ms: 60_000_000 };
    let jobs = jobs(15);
    assert_eq!(take(&store, rate, jobs[0]).await, Granted);
    let mut places = Vec::new();
    for job_id in &jobs[1..] {
        places.push(place(take(&store, rate, *job_id).await));
    }
    let first = places[0].minus(Duration::from_millis(8_571_429));
    for (number, at) in (1_i64..).zip(&places) {
        let exact = first.0 + number * 60_000_000 / 7;
        assert!((exact..=exact + 2).contains(&at.0), "{number}: {at} is not {exact} ms");
    }
}

pub async fn a_rate_saves_nothing_up(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let jobs = jobs(3);
    assert_eq!(take(&store, RATE, jobs[0]).await, Granted);
    world.harness.advance(SHARE * 20).await;
    let before = store.now().await.unwrap();
    assert_eq!(take(&store, RATE, jobs[1]).await, Granted);
    let after = store.now().await.unwrap();
    let next = place(take(&store, RATE, jobs[2]).await);
    assert!(before.plus(SHARE) <= next && next <= after.plus(SHARE), "{next}");
}

pub async fn a_granted_place_is_held_until_its_release_or_end(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let jobs = jobs(2);
    for _ in 0..2 {
        assert_eq!(take(&store, RATE, jobs[0]).await, Granted, "a lost reply costs no place");
    }
    let second = place(take(&store, RATE, jobs[1]).await);
    assert_eq!(release(&store, RATE, &[jobs[0]]).await, []);
    let third = place(take(&store, RATE, jobs[0]).await);
    assert_eq!(third, second.plus(SHARE), "after a release it is a new place");
    world.harness.advance(SHARE).await;
    assert_eq!(take(&store, RATE, jobs[1]).await, Granted);
    world.harness.advance(LEASE).await;
    assert_eq!(place(take(&store, RATE, jobs[1]).await), third.plus(SHARE));
}

pub async fn a_released_place_is_given_again(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let jobs = jobs(7);
    assert_eq!(take(&store, RATE, jobs[0]).await, Granted);
    let mut places = Vec::new();
    for job_id in &jobs[1..5] {
        places.push(place(take(&store, RATE, *job_id).await));
    }
    // Whatever the order, what is after the last that is left is free.
    assert_eq!(release(&store, RATE, &[jobs[2]]).await, []);
    assert_eq!(place(take(&store, RATE, jobs[5]).await), places[3].plus(SHARE));
    release(&store, RATE, &[jobs[3]]).await;
    release(&store, RATE, &[jobs[5], jobs[4]]).await;
    assert_eq!(place(take(&store, RATE, jobs[6]).await), places[1]);
    release(&store, RATE, &[jobs[1], jobs[6]]).await;
    assert_eq!(place(take(&store, RATE, jobs[6]).await), places[0]);
}

pub async fn a_rate_may_change_between_calls(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let jobs = jobs(5);
    assert_eq!(take(&store, RATE, jobs[0]).await, Granted);
    let second = place(take(&store, RATE, jobs[1]).await);
    let fast = Limit::Rate { count: 60, per_ms: 3_600_000 };
    assert_eq!(place(take(&store, fast, jobs[1]).await), second, "a place is kept");
    assert_eq!(place(take(&store, fast, jobs[2]).await), second.plus(MINUTE));
    let slow = Limit::Rate { count: 1, per_ms: 3_600_000 };
    assert_eq!(place(take(&store, slow, jobs[3]).await), second.plus(MINUTE * 61));
    let free = Limit::Rate { count: 1, per_ms: 0 };
    assert_eq!(place(take(&store, free, jobs[4]).await), second.plus(MINUTE * 61));
}

pub async fn who_does_not_ask_again_for_a_day_is_forgotten(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let (limit, jobs) = (Limit::AtOnce(1), jobs(5));
    line_up(&store, &jobs[..3]).await;
    world.harness.advance(PERMIT_PLACE_KEPT / 2).await;
    assert_eq!(take(&store, limit, jobs[0]).await, InLine(3), "its permit was over");
    assert_eq!(take(&store, limit, jobs[2]).await, InLine(2));
    world.harness.advance(PERMIT_PLACE_KEPT / 2).await;
    assert_eq!(take(&store, limit, jobs[0]).await, InLine(2), "the first in line is gone");
    assert_eq!(take(&store, limit, jobs[2]).await, Granted);
    // A sweep comes by what nobody asks for any more.
    assert_eq!(store.sweep(&Retention::DEFAULT).await.unwrap().records, 0);
    assert_eq!(standing(&store).await, (vec![jobs[2]], 1));
    world.harness.advance(PERMIT_PLACE_KEPT).await;
    assert_eq!(store.sweep(&Retention::DEFAULT).await.unwrap().records, 0);
    assert_eq!(state(&store).await, PermitState::default());
    assert_eq!(take(&store, limit, jobs[3]).await, Granted);
}

pub async fn lines_and_places_survive_a_reopen(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let (limit, jobs) = (Limit::AtOnce(1), jobs(4));
    let rated = |job_id| PermitAsk { key: "rate".into(), limit: RATE, job_id };
    let store = world.store();
    line_up(&store, &jobs).await;
    let asks: Vec<_> = jobs[..2].iter().map(|job_id| rated(*job_id)).collect();
    let outcomes = store.take_permits(&asks, LEASE).await.unwrap();
    drop(store);
    if !world.reopen().await {
        return;
    }
    let store = world.store();
    // Where the owner is gone, so is its hold; then there is nothing to give back.
    assert_eq!(release(&store, limit, &jobs[..1]).await, [jobs[1]]);
    assert_eq!(take(&store, limit, jobs[3]).await, InLine(2));
    assert_eq!(release(&store, limit, &jobs[1..2]).await, [jobs[2]]);
    let again = store.take_permits(&[rated(jobs[1]), rated(jobs[2])], LEASE).await.unwrap();
    assert_eq!(again[0], outcomes[1]);
    assert_eq!(place(again[1]), place(outcomes[1]).plus(SHARE));
}
