//! What waits in the queues, and making it due.

use std::time::Duration;

use flowgate_core::ids::{JobId, RunId, StepIndex};
use uuid::Uuid;

use super::Harness;
use super::waking::{ends_soon, waiting};
use super::world::{LEASE, World, flaky, later, nothing, only, queued, single};
use crate::control::QueueStats;
use crate::{JobDetail, Queues};

const HOUR: Duration = Duration::from_hours(1);

async fn job<H: Harness>(world: &World<'_, H>, run_id: RunId) -> JobDetail {
    let mut jobs = world.run(run_id).await.jobs;
    assert_eq!(jobs.len(), 1, "the run has one open job");
    jobs.remove(0)
}

async fn wake<H: Harness>(world: &World<'_, H>, jobs: &[JobId]) -> Vec<JobId> {
    world.store().wake_jobs(jobs).await.expect("waking")
}

pub async fn a_woken_job_is_due_at_once(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let run_id = world.started(&later(), "1").await;
    let before = job(&world, run_id).await;
    assert_eq!(world.claim(10).await.len(), 0);
    let now = world.store().now().await.unwrap();
    let job_id = before.job.job_id;
    assert_eq!(wake(&world, &[job_id]).await, [job_id]);
    let after = job(&world, run_id).await;
    assert!(now <= after.due_at && after.due_at < before.due_at.minus(HOUR / 2));
    assert_eq!(after, JobDetail { due_at: after.due_at, ..before });
    world.reopen_if_it_can().await;
    assert_eq!(job(&world, run_id).await, after, "it stays so");
    let claimed = world.claim_one().await;
    assert_eq!((claimed.job.job_id, claimed.job.attempt), (job_id, 1));
}

pub async fn a_woken_job_wakes_a_waiting_claimer(harness: &mut impl Harness) {
    let world = World::new(harness);
    let run_id = world.started(&later(), "1").await;
    let job = job(&world, run_id).await.job;
    let all = waiting(world.store(), Queues::All).await;
    let own = waiting(world.store(), only(&job.queue)).await;
    wake(&world, &[job.job_id]).await;
    ends_soon(all).await;
    ends_soon(own).await;
}

pub async fn a_woken_job_comes_after_those_that_were_due_before(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = single("one");
    let sleeping = world.started(&later(), "1").await;
    let first = world.started(&flow, "1").await;
    world.harness.advance(Duration::from_secs(1)).await;
    let job_id = job(&world, sleeping).await.job.job_id;
    wake(&world, &[job_id]).await;
    world.harness.advance(Duration::from_secs(1)).await;
    let last = world.started(&flow, "1").await;
    let order: Vec<RunId> = world.claim(10).await.iter().map(|c| c.job.job_id.run_id).collect();
    assert_eq!(order, [first, sleeping, last]);
}

pub async fn waking_a_leased_job_changes_nothing(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = flaky();
    let claimed = world.started_and_claimed(&flow).await;
    let job_id = claimed.job.job_id;
    let before = job(&world, job_id.run_id).await;
    assert_eq!(wake(&world, &[job_id]).await, [job_id]);
    assert_eq!(job(&world, job_id.run_id).await, before);
    assert_eq!(world.claim(10).await.len(), 0);
    world.apply(world.fail(&flow, &claimed)).await;
    assert_eq!(world.claim(10).await.len(), 0, "its retry waits as if nobody had called");
    assert_eq!(wake(&world, &[job_id]).await, [job_id]);
    assert_eq!(world.claim_one().await.job.attempt, 2);
}

pub async fn waking_a_job_that_is_due_changes_nothing(harness: &mut impl Harness) {
    let world = World::new(harness);
    let ready = world.started(&single("one"), "1").await;
    let other = world.started_and_claimed_of(&queued("other"), "other").await;
    world.harness.advance(LEASE).await;
    let (ready, other) = (job(&world, ready).await, job(&world, other.job.job_id.run_id).await);
    let job_ids = [ready.job.job_id, other.job.job_id];
    assert_eq!(wake(&world, &job_ids).await, job_ids);
    for before in [ready, other] {
        assert_eq!(job(&world, before.job.job_id.run_id).await, before);
    }
    assert_eq!(world.claim(10).await.len(), 2);
}

pub async fn only_jobs_that_are_there_are_woken(harness: &mut impl Harness) {
    let world = World::new(harness);
    let (one, other) =
        (world.started(&later(), "1").await, world.started(&single("one"), "1").await);
    let (one, other) = (job(&world, one).await.job.job_id, job(&world, other).await.job.job_id);
    let ended = world.started(&nothing(), "1").await;
    let gone = JobId { run_id: ended, step: StepIndex(0) };
    let no_step = JobId { step: StepIndex(7), ..one };
    let no_run = JobId { run_id: RunId(Uuid::now_v7()), step: StepIndex(0) };
    let asked = [no_run, other, no_step, one];
    assert_eq!(wake(&world, &asked).await, [other, one]);
    assert_eq!(wake(&world, &[]).await, []);
    assert_eq!(wake(&world, &[gone]).await, []);
}

pub async fn queues_are_counted_by_what_is_due_and_what_is_later(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    assert_eq!(world.store().queue_stats().await.unwrap(), []);
    let mut first = None;
    for _ in 0..3 {
        let run_id = world.started(&queued("other"), "1").await;
        let due_at = job(&world, run_id).await.due_at;
        first = first.or(Some(due_at));
        world.harness.advance(Duration::from_secs(1)).await;
    }
    for _ in 0..2 {
        world.started(&later(), "1").await;
    }
    world.reopen_if_it_can().await;
    let stats = world.store().queue_stats().await.unwrap();
    let row = |queue: &str, due, later, oldest_due_at| QueueStats {
        queue: queue.into(),
        due,
        later,
        oldest_due_at,
    };
    assert_eq!(stats, [row("default", 0, 2, None), row("other", 3, 0, first)]);
    world.harness.advance(HOUR).await;
    let stats = world.store().queue_stats().await.unwrap();
    assert_eq!((stats[0].due, stats[0].later), (2, 0), "their time has come");
    assert!(stats[0].oldest_due_at.is_some());
    assert_eq!(stats[1], row("other", 3, 0, first));
}

pub async fn only_what_nobody_has_is_counted(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = flaky();
    world.started(&queued("other"), "1").await;
    let claimed = world.started_and_claimed_of(&flow, "default").await;
    let count = async || -> Vec<(String, u64, u64)> {
        let stats = world.store().queue_stats().await.unwrap();
        stats.iter().map(|queue| (queue.queue.to_string(), queue.due, queue.later)).collect()
    };
    let row = |queue: &str, due, later| (queue.to_owned(), due, later);
    assert_eq!(count().await, [row("other", 1, 0)], "the other one is leased");
    let due_at = job(&world, claimed.job.job_id.run_id).await.due_at;
    world.harness.advance(LEASE).await;
    assert_eq!(count().await, [row("default", 1, 0), row("other", 1, 0)], "its lease is over");
    let stats = world.store().queue_stats().await.unwrap();
    assert_eq!(stats[0].oldest_due_at, Some(due_at), "it has been due all the time");
    let again = world.store().claim(&world.claimant_of("default", 1)).await.unwrap().remove(0);
    world.apply(world.fail(&flow, &again)).await;
    assert_eq!(count().await, [row("default", 0, 1), row("other", 1, 0)]);
    wake(&world, &[again.job.job_id]).await;
    assert_eq!(count().await, [row("default", 1, 0), row("other", 1, 0)]);
    let run = world.run(again.job.job_id.run_id).await.row.run;
    world.apply(world.cancel(&flow, &run)).await;
    assert_eq!(count().await, [row("other", 1, 0)]);
}
