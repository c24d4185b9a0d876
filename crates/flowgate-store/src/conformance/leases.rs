//! S9: who may execute and settle a job.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::commit::{Claimed, Commit, JobChange, JobKind};
use flowgate_core::event::Event;
use flowgate_core::ids::InstanceId;
use flowgate_core::payload::Payload;
use tokio::task::JoinSet;

use super::Harness;
use super::world::{
    LEASE, World, applied, but, chain, fan, flaky, lease_of, nap, only, queued, refused, single,
};
use crate::{Claimant, CommitOutcome, JobDetail, Queues, Refusal, Renewal};

const MOMENT: Duration = Duration::from_millis(1);

pub async fn a_claim_returns_job_record_and_inputs(harness: &mut impl Harness) {
    let world = World::new(harness);
    let run_id = world.started(&chain(), r#"{"order": 7}"#).await;
    let claimed = world.claim_one().await;
    assert_eq!(claimed.job.job_id.run_id, run_id);
    assert_eq!(claimed.job.kind, JobKind::Execute);
    assert_eq!(claimed.job.inputs, [1]);
    assert_eq!(claimed.inputs[0].get(), r#"{"order": 7}"#);
    assert_eq!(claimed.run, world.run(run_id).await.row.run);
    assert!(claimed.lost.is_empty());
    let now = world.store().now().await.unwrap();
    assert!(claimed.expires_at > now && claimed.expires_at <= now.plus(LEASE));
}

pub async fn a_claim_counts_an_attempt(harness: &mut impl Harness) {
    let world = World::new(harness);
    world.started(&chain(), "1").await;
    for attempt in 1..=3 {
        let claimed = world.claim_one().await;
        assert_eq!(claimed.job.attempt, attempt);
        world.harness.advance(LEASE).await;
    }
}

pub async fn a_claimed_job_is_not_claimed_again(harness: &mut impl Harness) {
    let world = World::new(harness);
    let claimed = world.started_and_claimed(&chain()).await;
    assert!(world.claim(10).await.is_empty());
    let detail = world.run(claimed.job.job_id.run_id).await;
    let lease = detail.jobs[0].lease.as_ref().expect("the job is leased");
    assert_eq!(lease.token, claimed.token);
    assert_eq!(lease.instance, world.instance);
    assert_eq!(lease.expires_at, claimed.expires_at);
}

pub async fn claims_take_the_longest_due_first(harness: &mut impl Harness) {
    let world = World::new(harness);
    let mut started = Vec::new();
    for _ in 0..20 {
        started.push(world.started(&single("one"), "1").await);
        world.harness.advance(MOMENT).await;
    }
    let mut claimed = Vec::new();
    for slots in [1, 2, 7, 10] {
        claimed.extend(world.claim(slots).await.iter().map(|c| c.job.job_id.run_id));
    }
    assert_eq!(claimed, started);
}

pub async fn a_claim_takes_no_more_than_its_slots(harness: &mut impl Harness) {
    let world = World::new(harness);
    for _ in 0..5 {
        world.started(&single("one"), "1").await;
    }
    assert_eq!(world.claim(0).await.len(), 0);
    assert_eq!(world.claim(2).await.len(), 2);
    assert_eq!(world.claim(10).await.len(), 3);
}

pub async fn a_claim_takes_only_from_its_queues(harness: &mut impl Harness) {
    let world = World::new(harness);
    for queue in ["a", "b", "c", "a"] {
        world.started(&queued(queue), "1").await;
    }
    let claim = async |queues: Queues| {
        let claimant = Claimant { queues, ..world.claimant(10) };
        let claimed = world.store().claim(&claimant).await.unwrap();
        claimed.iter().map(|c| c.job.queue.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(claim(only("d")).await, [""; 0]);
    assert_eq!(claim(Queues::Only(Vec::new())).await, [""; 0]);
    assert_eq!(claim(only("b")).await, ["b"]);
    assert_eq!(claim(but(&["a", "d", "c", "a"])).await, [""; 0]);
    assert_eq!(claim(Queues::Only(vec!["a".into(), "d".into(), "a".into()])).await, ["a", "a"]);
    world.started(&queued("e"), "1").await;
    assert_eq!(claim(but(&["c"])).await, ["e"]);
    let claimant = Claimant { queues: but(&["c"]), ..world.claimant(10) };
    for (queue, expected) in [("c", 0), ("e", 1)] {
        let start = world.start(&queued(queue), "1");
        let CommitOutcome::Applied { handed_off } = world.send(start, Some(&claimant)).await else {
            panic!("a start applies");
        };
        assert_eq!(handed_off.len(), expected, "{queue}");
    }
    assert_eq!(claim(Queues::All).await, ["c", "c"]);
}

pub async fn a_claim_over_several_queues_merges_them_by_due_time(harness: &mut impl Harness) {
    let world = World::new(harness);
    let mut started = Vec::new();
    for queue in ["a", "b", "c", "c", "b", "a", "a", "b"] {
        started.push(world.started(&queued(queue), "1").await);
        world.harness.advance(MOMENT).await;
    }
    let mut claimed = world.claim(3).await;
    claimed.extend(world.claim(10).await);
    let claimed: Vec<_> = claimed.iter().map(|c| c.job.job_id.run_id).collect();
    assert_eq!(claimed, started);
}

pub async fn concurrent_claims_share_no_job(harness: &mut impl Harness) {
    let world = World::new(harness);
    for _ in 0..100 {
        world.started(&single("one"), "1").await;
    }
    let mut tasks = JoinSet::new();
    for number in 0..10 {
        let instance = InstanceId(format!("host-{number}").into());
        let (store, claimant) = (world.store(), Claimant { instance, ..world.claimant(20) });
        tasks.spawn(async move { store.claim(&claimant).await.unwrap() });
    }
    let claimed: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    assert_eq!(claimed.len(), 100);
    let jobs: HashSet<_> = claimed.iter().map(|c| c.job.job_id).collect();
    let tokens: HashSet<_> = claimed.iter().map(|c| c.token).collect();
    assert_eq!((jobs.len(), tokens.len()), (100, 100));
}

pub async fn tokens_only_grow(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    world.started(&flow, "1").await;
    let first = world.claim_one().await;
    world.harness.advance(LEASE).await;
    let second = world.claim_one().await;
    let handed_off = world.apply_and_take(world.succeed(&flow, &second), 1).await;
    assert!(first.token < second.token);
    assert!(second.token < handed_off[0].token);
}

pub async fn tokens_of_a_job_that_a_batch_adds_twice_grow(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = single("one");
    let start = world.start(&flow, "1");
    let event = Event::SignalReceived { signal: "again".into(), data: Payload::null() };
    let mut record = (*start.record).clone();
    record.version += 1;
    let JobChange::Add { job, .. } = &start.jobs[0] else { panic!("a start adds a job") };
    let again = Commit {
        events: vec![event],
        record: Arc::new(record),
        jobs: vec![JobChange::Remove(job.job_id), start.jobs[0].clone()],
        ..world.cancel(&flow, &start.record)
    };
    let run_id = start.run_id;
    let claimant = world.claimant(2);
    let outcomes = world.store().commit(vec![start, again], Some(&claimant)).await.unwrap();
    let mut leases: Vec<_> = outcomes.into_iter().flat_map(applied).collect();
    // A store may leave the second to be claimed.
    leases.extend(world.claim(2).await);
    let [first, second] = &leases[..] else { panic!("{leases:?}") };
    assert!(first.token < second.token);
    let run = world.run(run_id).await.row.run;
    let of = |claimed: &Claimed| {
        let claimed = Claimed { run: Arc::clone(&run), ..claimed.clone() };
        world.succeed(&flow, &claimed)
    };
    assert_eq!(world.refused(of(first)).await, Refusal::LeaseLost(first.job.job_id));
    world.apply(of(second)).await;
}

pub async fn tokens_grow_over_a_reopen(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let mut last = world.started_and_claimed(&chain()).await.token;
    for _ in 0..3 {
        if !world.reopen_and_lose_leases().await {
            return;
        }
        let next = world.claim_one().await.token;
        assert!(last < next, "{last} came before {next}");
        last = next;
    }
}

pub async fn an_expired_lease_cannot_settle_even_before_another_claim(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    world.harness.advance(LEASE).await;
    let late = world.succeed(&flow, &claimed);
    assert_eq!(world.refused(late).await, Refusal::LeaseLost(claimed.job.job_id));
    assert_eq!(world.claim(10).await.len(), 1, "the job is due again");
}

pub async fn a_lost_lease_cannot_settle(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let slow = world.started_and_claimed(&flow).await;
    world.harness.advance(LEASE).await;
    let fast = world.claim_one().await;
    let late = world.succeed(&flow, &slow);
    assert_eq!(world.refused(late).await, Refusal::LeaseLost(slow.job.job_id));
    world.apply(world.succeed(&flow, &fast)).await;
}

pub async fn a_lease_settles_only_its_own_job(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let one = world.started_and_claimed(&flow).await;
    let mut other = world.started_and_claimed(&flow).await;
    other.token = one.token;
    let stolen = world.succeed(&flow, &other);
    assert_eq!(world.refused(stolen).await, Refusal::LeaseLost(other.job.job_id));
}

pub async fn a_job_that_nobody_leased_cannot_be_settled(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    world.apply(world.release(&flow, &claimed)).await;
    let run = world.run(claimed.job.job_id.run_id).await.row.run;
    let again = Claimed { run, ..claimed };
    let late = world.succeed(&flow, &again);
    assert_eq!(world.refused(late).await, Refusal::LeaseLost(again.job.job_id));
}

/// Sends five commits in a batch, two of which have lost their leases, and of the others each hands
/// off so many jobs.
async fn two_of_five_are_lost<H: Harness>(
    world: &World<'_, H>,
    mut claimed: Vec<Claimed>,
    commit: impl Fn(&Claimed) -> Commit,
    handed_off: usize,
) {
    let lost = [1, 3];
    for at in lost {
        claimed[at].token.0 += 1_000;
    }
    let commits: Vec<_> = claimed.iter().map(commit).collect();
    let outcomes = world.store().commit(commits, Some(&world.claimant(10))).await;
    let outcomes = outcomes.expect("the store answers");
    for (at, (outcome, claimed)) in outcomes.into_iter().zip(&claimed).enumerate() {
        let run = world.run(claimed.run.run_id).await;
        if lost.contains(&at) {
            assert_eq!(refused(&outcome), Refusal::LeaseLost(claimed.job.job_id));
            assert_eq!(run.row.run, claimed.run, "nothing of it is written");
            let is_it = |open: &JobDetail| open.job.job_id == claimed.job.job_id;
            assert!(run.jobs.iter().any(is_it), "whose job it is keeps it");
        } else {
            assert_eq!(applied(outcome).len(), handed_off);
            assert!(run.row.run.version > claimed.run.version);
        }
    }
}

pub async fn a_lost_lease_in_a_batch_refuses_its_own_commit_and_no_other(
    harness: &mut impl Harness,
) {
    let world = World::new(harness);
    let (chain, single, fan, flaky) = (chain(), single("one"), fan(), flaky());
    for (flow, handed_off) in [(&chain, 1), (&single, 0)] {
        let mut claimed = Vec::new();
        for _ in 0..5 {
            claimed.extend(world.apply_and_take(world.start(flow, "1"), 1).await);
        }
        // The job makes room for that of the next step, or goes with its run.
        let commit = |claimed: &Claimed| world.succeed(flow, claimed);
        two_of_five_are_lost(&world, claimed, commit, handed_off).await;
    }
    let (mut branches, mut failing) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let begin = world.apply_and_take(world.start(&fan, "1"), 1).await.remove(0);
        let next = world.apply_and_take(world.succeed(&fan, &begin), 1).await;
        branches.extend(next);
        failing.extend(world.apply_and_take(world.start(&flaky, "1"), 1).await);
    }
    // The job goes, and the run does not; it stays, for later.
    two_of_five_are_lost(&world, branches, |claimed| world.succeed(&fan, claimed), 0).await;
    two_of_five_are_lost(&world, failing, |claimed| world.fail(&flaky, claimed), 0).await;
}

pub async fn a_renewed_lease_outlives_its_first_span(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    for _ in 0..5 {
        world.harness.advance(LEASE * 2 / 3).await;
        let renewals = world.store().renew(&[lease_of(&claimed)], LEASE).await.unwrap();
        let now = world.store().now().await.unwrap();
        let Renewal::Held(expires_at) = renewals[0] else { panic!("the lease was lost") };
        assert!(expires_at > now && expires_at <= now.plus(LEASE));
        let detail = world.run(claimed.job.job_id.run_id).await;
        assert_eq!(detail.jobs[0].lease.as_ref().unwrap().expires_at, expires_at);
    }
    assert!(world.claim(10).await.is_empty());
    world.apply(world.succeed(&flow, &claimed)).await;
}

pub async fn a_renewed_lease_still_ends(harness: &mut impl Harness) {
    let world = World::new(harness);
    let claimed = world.started_and_claimed(&chain()).await;
    world.harness.advance(LEASE / 2).await;
    let renewals = world.store().renew(&[lease_of(&claimed)], LEASE).await.unwrap();
    assert!(matches!(renewals[0], Renewal::Held(_)));
    world.harness.advance(LEASE).await;
    assert_eq!(world.claim_one().await.lost.len(), 1);
}

pub async fn of_the_leases_of_a_run_only_those_end_that_were_not_renewed(
    harness: &mut impl Harness,
) {
    let world = World::new(harness);
    let flow = fan();
    let begin = world.started_and_claimed(&flow).await;
    let four = world.apply_and_take(world.succeed(&flow, &begin), 4).await;
    assert_eq!(four.len(), 4);
    let steps = |jobs: &[Claimed]| jobs.iter().map(|c| c.job.job_id).collect::<HashSet<_>>();
    world.harness.advance(LEASE / 2).await;
    let renewed: Vec<_> = four[..2].iter().map(lease_of).collect();
    for renewal in world.store().renew(&renewed, LEASE).await.unwrap() {
        assert!(matches!(renewal, Renewal::Held(_)));
    }
    assert!(world.claim(10).await.is_empty());
    world.harness.advance(LEASE / 2).await;
    assert_eq!(steps(&world.claim(10).await), steps(&four[2..]));
    world.harness.advance(LEASE / 2).await;
    assert_eq!(steps(&world.claim(10).await), steps(&four[..2]));
    assert!(world.claim(10).await.is_empty());
}

pub async fn a_shorter_lease_after_a_longer_one_ends_when_it_says(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    world.started(&flow, "1").await;
    let patient = Claimant { lease: LEASE * 10, ..world.claimant(1) };
    let first = world.store().claim(&patient).await.unwrap().remove(0);
    let second = world.apply_and_take(world.succeed(&flow, &first), 1).await.remove(0);
    world.harness.advance(LEASE).await;
    let again = world.claim_one().await;
    assert_eq!((again.job.job_id, again.lost.len()), (second.job.job_id, 1));
}

pub async fn an_expired_lease_cannot_be_renewed(harness: &mut impl Harness) {
    let world = World::new(harness);
    let claimed = world.started_and_claimed(&chain()).await;
    world.harness.advance(LEASE).await;
    let renewals = world.store().renew(&[lease_of(&claimed)], LEASE).await.unwrap();
    assert_eq!(renewals, [Renewal::Lost]);
}

pub async fn renewals_have_their_own_outcomes_in_order(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = single("one");
    let settled = world.started_and_claimed(&flow).await;
    let held = world.started_and_claimed(&flow).await;
    world.apply(world.succeed(&flow, &settled)).await;
    let mut wrong = lease_of(&held);
    wrong.token.0 += 1_000;
    let leases = [lease_of(&settled), lease_of(&held), wrong, lease_of(&held)];
    let renewals = world.store().renew(&leases, LEASE).await.unwrap();
    let held: Vec<bool> = renewals.iter().map(|r| matches!(r, Renewal::Held(_))).collect();
    assert_eq!(held, [false, true, false, true]);
}

pub async fn every_lost_lease_is_told_in_order(harness: &mut impl Harness) {
    let world = World::new(harness);
    world.started(&chain(), "1").await;
    let mut expected = Vec::new();
    for _ in 0..4 {
        let claimed = world.claim_one().await;
        assert_eq!(claimed.lost, expected);
        expected.push(claimed.stamp(&world.instance));
        world.harness.advance(LEASE).await;
    }
}

pub async fn a_commit_under_a_later_lease_settles_what_was_lost(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let first = world.started_and_claimed(&flow).await;
    world.harness.advance(LEASE).await;
    let second = world.claim_one().await;
    world.apply(world.begin(&flow, &second)).await;
    let events = world.events(first.job.job_id.run_id).await;
    let lost: Vec<_> =
        events.iter().filter(|e| matches!(e.event, Event::StepLost { .. })).collect();
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].event.lease(), Some(&first.stamp(&world.instance)));
    world.harness.advance(LEASE).await;
    let third = world.claim_one().await;
    assert_eq!(third.lost, [second.stamp(&world.instance)], "the first is in the log");
}

pub async fn leases_of_an_owner_that_is_gone_are_lost_at_once(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    if !world.harness.is_shared() && world.reopen().await {
        let late = world.succeed(&flow, &claimed);
        assert_eq!(world.refused(late).await, Refusal::LeaseLost(claimed.job.job_id));
        assert!(world.run(claimed.job.job_id.run_id).await.jobs[0].lease.is_none());
        let again = world.claim_one().await;
        assert_eq!(again.lost, [claimed.stamp(&world.instance)]);
        assert_eq!(again.job.attempt, 2);
    }
}

pub async fn a_lease_in_a_shared_store_outlives_the_connection(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    if world.harness.is_shared() && world.reopen().await {
        assert!(world.claim(10).await.is_empty(), "nobody infers a death from a start");
        assert_eq!(world.run(claimed.job.job_id.run_id).await.jobs[0].lost, []);
        world.apply(world.succeed(&flow, &claimed)).await;
    }
}

pub async fn lost_leases_survive_a_reopen(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let first = world.started_and_claimed(&chain()).await;
    let mut expected = vec![first.stamp(&world.instance)];
    world.harness.advance(LEASE).await;
    expected.push(world.claim_one().await.stamp(&world.instance));
    if world.reopen_and_lose_leases().await && world.reopen().await {
        let shown = world.run(first.job.job_id.run_id).await.jobs[0].clone();
        let last = shown.lease.map(|lease| lease.token);
        let told = shown.lost.iter().map(|lost| lost.token).chain(last).collect::<Vec<_>>();
        assert_eq!(told, expected.iter().map(|lost| lost.token).collect::<Vec<_>>());
        assert_eq!(world.claim_one().await.lost, expected);
    }
}

pub async fn a_postponed_job_is_due_later_and_keeps_its_inputs(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = flaky();
    let first = world.started_and_claimed(&flow).await;
    world.apply(world.fail(&flow, &first)).await;
    assert!(world.claim(10).await.is_empty());
    let job = &world.run(first.job.job_id.run_id).await.jobs[0];
    assert_eq!((job.job.attempt, &job.lease), (1, &None));
    world.harness.advance(Duration::from_secs(9)).await;
    assert!(world.claim(10).await.is_empty());
    world.harness.advance(Duration::from_secs(1)).await;
    let second = world.claim_one().await;
    assert_eq!((second.job.attempt, second.lost.len()), (2, 0));
    assert_eq!((&second.job.inputs, &second.job.queue), (&first.job.inputs, &first.job.queue));
    assert_eq!(second.inputs, first.inputs);
}

pub async fn a_released_job_is_due_at_once_and_its_attempt_does_not_count(
    harness: &mut impl Harness,
) {
    let world = World::new(harness);
    let flow = chain();
    let first = world.started_and_claimed(&flow).await;
    world.apply(world.release(&flow, &first)).await;
    let second = world.claim_one().await;
    assert_eq!(second.job.attempt, 1);
    assert!(second.token > first.token);
    assert!(second.lost.is_empty(), "the first is in the log");
}

pub async fn a_delayed_job_is_not_claimed_early(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = nap();
    let claimed = world.started_and_claimed(&flow).await;
    world.apply(world.succeed(&flow, &claimed)).await;
    world.harness.advance(Duration::from_secs(3_599)).await;
    assert!(world.claim(10).await.is_empty());
    world.harness.advance(Duration::from_secs(1)).await;
    assert_eq!(world.claim_one().await.job.kind, JobKind::Timer);
}

pub async fn a_delayed_job_survives_a_reopen(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let flow = nap();
    let claimed = world.started_and_claimed(&flow).await;
    world.apply(world.succeed(&flow, &claimed)).await;
    let due_at = world.run(claimed.job.job_id.run_id).await.jobs[0].due_at;
    if world.reopen().await {
        assert_eq!(world.run(claimed.job.job_id.run_id).await.jobs[0].due_at, due_at);
        assert!(world.claim(10).await.is_empty());
        world.harness.advance(Duration::from_hours(1)).await;
        assert_eq!(world.claim_one().await.job.kind, JobKind::Timer);
    }
}

pub async fn a_job_is_handed_off_with_its_inputs(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let taken = world.apply_and_take(world.start(&flow, "[1]"), 1).await;
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].inputs[0].get(), "[1]");
    assert_eq!(taken[0].job.attempt, 1);
    let next = world.apply_and_take(world.succeed_with(&flow, &taken[0], "[2]"), 1).await;
    assert_eq!(next[0].inputs[0].get(), "[2]");
    assert_eq!(next[0].run, world.run(next[0].job.job_id.run_id).await.row.run);
    let detail = world.run(next[0].job.job_id.run_id).await;
    assert_eq!(detail.jobs[0].lease.as_ref().unwrap().token, next[0].token);
    assert!(world.claim(10).await.is_empty());
    world.apply(world.succeed(&flow, &next[0])).await;
}

pub async fn a_hand_off_takes_no_more_than_the_slots_of_the_batch(harness: &mut impl Harness) {
    let world = World::new(harness);
    let batch = (0..5).map(|_| world.start(&single("one"), "1")).collect();
    let outcomes = world.store().commit(batch, Some(&world.claimant(3))).await.unwrap();
    let counts: Vec<usize> = outcomes.into_iter().map(|o| applied(o).len()).collect();
    assert_eq!(counts, [1, 1, 1, 0, 0]);
    assert_eq!(world.claim(10).await.len(), 2, "the rest is due");
}

pub async fn a_hand_off_takes_only_from_the_claimants_queues(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = fan();
    let claimed = world.started_and_claimed(&flow).await;
    let claimant = world.claimant_of("other", 10);
    let taken = applied(world.send(world.succeed(&flow, &claimed), Some(&claimant)).await);
    let queues: Vec<_> = taken.iter().map(|c| &*c.job.queue).collect();
    assert_eq!(queues, ["other", "other"]);
    let rest = world.claim(10).await;
    assert!(rest.iter().all(|c| &*c.job.queue == "default"));
    assert_eq!(rest.len(), 2);
}

pub async fn a_delayed_job_is_not_handed_off(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = nap();
    let claimed = world.started_and_claimed(&flow).await;
    assert!(world.apply_and_take(world.succeed(&flow, &claimed), 10).await.is_empty());
}

pub async fn a_postponed_job_is_not_handed_off(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    assert!(world.apply_and_take(world.release(&flow, &claimed), 10).await.is_empty());
    assert_eq!(world.claim(10).await.len(), 1);
}

pub async fn a_handed_off_lease_expires_like_any_other(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let taken = world.apply_and_take(world.start(&flow, "1"), 1).await;
    world.harness.advance(LEASE).await;
    let late = world.succeed(&flow, &taken[0]);
    assert_eq!(world.refused(late).await, Refusal::LeaseLost(taken[0].job.job_id));
    let again = world.claim_one().await;
    assert_eq!(again.lost, [taken[0].stamp(&world.instance)]);
    assert_eq!(again.job.attempt, 2);
}
