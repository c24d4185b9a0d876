//! S8: waiting for a due job.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Harness;
use super::world::{LEASE, World, but, later, nap, only, queued, single};
use crate::faulty::Faulty;
use crate::{Queues, Store};

/// Longer than any of these waits takes if it is woken, and shorter than anybody waits.
pub(super) const SOON: Duration = Duration::from_secs(20);
pub(super) const LATE: Duration = Duration::from_hours(1);

/// Begins to wait, and returns once the store knows of it.
pub(super) async fn waiting(store: Arc<dyn Store>, queues: Queues) -> JoinSet<()> {
    let mut task = JoinSet::new();
    let (waits, begun) = tokio::sync::oneshot::channel();
    task.spawn(async move {
        let wait = store.wait_due(&queues, LATE);
        tokio::pin!(wait);
        let first = timeout(Duration::from_millis(20), &mut wait).await;
        waits.send(()).ok();
        match first {
            Ok(result) => result.unwrap(),
            Err(_) => wait.await.unwrap(),
        }
    });
    begun.await.unwrap();
    task
}

pub(super) async fn ends_soon(mut task: JoinSet<()>) {
    let ended = timeout(SOON, task.join_next()).await.expect("the wait ends");
    ended.expect("there is one wait").expect("the wait ends well");
}

pub async fn a_wait_returns_at_once_when_a_job_is_ready(harness: &mut impl Harness) {
    let world = World::new(harness);
    world.started(&single("one"), "1").await;
    for queues in [Queues::All, only("default")] {
        let store = world.store();
        timeout(SOON, store.wait_due(&queues, LATE)).await.expect("it is ready").unwrap();
    }
}

pub async fn a_wait_returns_after_its_longest_time(harness: &mut impl Harness) {
    let world = World::new(harness);
    world.started(&queued("other"), "1").await;
    let (store, queues) = (world.store(), only("default"));
    let wait = store.wait_due(&queues, Duration::from_millis(30));
    timeout(SOON, wait).await.expect("it ends by itself").unwrap();
}

pub async fn a_commit_wakes_a_waiting_claimer(harness: &mut impl Harness) {
    let world = World::new(harness);
    let waits = waiting(world.store(), Queues::All).await;
    world.started(&single("one"), "1").await;
    ends_soon(waits).await;
    assert_eq!(world.claim(10).await.len(), 1);
}

pub async fn a_commit_wakes_every_claimer_of_its_queue(harness: &mut impl Harness) {
    let world = World::new(harness);
    let one = waiting(world.store(), only("default")).await;
    let other = waiting(world.store(), Queues::All).await;
    world.started(&single("one"), "1").await;
    ends_soon(one).await;
    ends_soon(other).await;
}

pub async fn a_wait_is_not_ended_by_another_queue(harness: &mut impl Harness) {
    let world = World::new(harness);
    let mut waits = waiting(world.store(), only("mine")).await;
    world.started(&queued("other"), "1").await;
    let early = timeout(Duration::from_millis(50), waits.join_next()).await;
    assert!(early.is_err(), "a job of another queue ends no wait");
    let mut others = waiting(world.store(), but(&["other"])).await;
    let early = timeout(Duration::from_millis(50), others.join_next()).await;
    assert!(early.is_err(), "a job that is due in a queue that is left out ends no wait");
    world.started(&queued("mine"), "1").await;
    ends_soon(waits).await;
    ends_soon(others).await;
}

pub async fn a_wait_ends_when_a_delayed_job_is_due(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = nap();
    let claimed = world.started_and_claimed(&flow).await;
    let waits = waiting(world.store(), Queues::All).await;
    world.apply(world.succeed(&flow, &claimed)).await;
    world.harness.advance(Duration::from_hours(1)).await;
    ends_soon(waits).await;
    assert_eq!(world.claim(10).await.len(), 1);
}

pub async fn a_wait_that_began_before_a_delayed_job_ends_when_it_is_due(
    harness: &mut impl Harness,
) {
    let world = World::new(harness);
    let waits = waiting(world.store(), Queues::All).await;
    world.started(&later(), "1").await;
    world.harness.advance(Duration::from_hours(1)).await;
    ends_soon(waits).await;
    assert_eq!(world.claim(10).await.len(), 1);
}

pub async fn a_wait_ends_when_a_lease_expires(harness: &mut impl Harness) {
    let world = World::new(harness);
    let waits = waiting(world.store(), only("other")).await;
    drop(waits);
    world.started_and_claimed(&single("one")).await;
    let waits = waiting(world.store(), Queues::All).await;
    world.harness.advance(LEASE).await;
    ends_soon(waits).await;
    assert_eq!(world.claim(10).await.len(), 1);
}

pub async fn a_wait_that_began_before_a_lease_ends_when_it_expires(harness: &mut impl Harness) {
    let world = World::new(harness);
    let waits = waiting(world.store(), Queues::All).await;
    let taken = world.apply_and_take(world.start(&single("one"), "1"), 1).await;
    assert_eq!(taken.len(), 1);
    world.harness.advance(LEASE).await;
    ends_soon(waits).await;
}

pub async fn a_released_job_wakes_a_waiting_claimer(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = single("one");
    let claimed = world.started_and_claimed(&flow).await;
    let waits = waiting(world.store(), Queues::All).await;
    world.apply(world.release(&flow, &claimed)).await;
    ends_soon(waits).await;
}

pub async fn no_wake_up_is_lost_between_a_claim_and_a_wait(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = single("one");
    let (store, claimant) = (world.store(), world.claimant(100));
    let mut claimer = JoinSet::new();
    claimer.spawn(async move {
        let mut claimed = 0;
        while claimed < 300 {
            let jobs = store.claim(&claimant).await.unwrap();
            claimed += jobs.len();
            if jobs.is_empty() {
                let wait = store.wait_due(&Queues::All, LATE);
                timeout(SOON, wait).await.expect("a wake-up was lost").unwrap();
            }
        }
    });
    for _ in 0..300 {
        world.started(&flow, "1").await;
        tokio::task::yield_now().await;
    }
    let ended = timeout(SOON * 2, claimer.join_next()).await.expect("all jobs are claimed");
    ended.expect("there is one claimer").expect("it ends well");
}

pub async fn losing_every_wake_up_loses_no_job(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = single("one");
    let faulty = Faulty::new(world.store());
    faulty.drop_wake_ups(true);
    for _ in 0..5 {
        world.started(&flow, "1").await;
    }
    let mut claimed = 0;
    for _ in 0..100 {
        faulty.wait_due(&Queues::All, Duration::from_millis(1)).await.unwrap();
        claimed += faulty.claim(&world.claimant(2)).await.unwrap().len();
        if claimed == 5 {
            return;
        }
    }
    panic!("{claimed} of 5 jobs were claimed");
}
