//! Jobs that are ahead of others, and by how much.

use std::time::Duration;

use flowgate_core::commit::{Commit, JobChange};
use flowgate_core::flow::Flow;
use flowgate_core::ids::RunId;

use super::Harness;
use super::world::{LEASE, World, flaky, later, queued, single};
use crate::control::PRIORITY_HEAD_START;

const MOMENT: Duration = Duration::from_secs(5);

/// The same commit with this priority for the jobs that it adds.
fn at(priority: u8, mut commit: Commit) -> Commit {
    for change in &mut commit.jobs {
        if let JobChange::Add { job, .. } = change {
            job.priority = priority;
        }
    }
    commit
}

/// Starts a run whose first job has this priority, and lets a moment pass.
async fn started<H: Harness>(world: &World<'_, H>, flow: &Flow, priority: u8) -> RunId {
    let commit = at(priority, world.start(flow, "1"));
    let run_id = commit.run_id;
    world.apply(commit).await;
    world.harness.advance(MOMENT).await;
    run_id
}

/// The runs whose jobs are due, in the order in which they are claimed.
async fn order<H: Harness>(world: &World<'_, H>) -> Vec<RunId> {
    world.claim(100).await.iter().map(|claimed| claimed.job.job_id.run_id).collect()
}

pub async fn a_job_of_high_priority_overtakes_those_that_are_due(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let flow = single("one");
    let mut runs = Vec::new();
    for priority in [0, 3, 0, 9, 3, 1] {
        runs.push(started(&world, &flow, priority).await);
    }
    world.reopen_if_it_can().await;
    let first = world.claim(2).await;
    let first: Vec<(u8, RunId)> =
        first.iter().map(|claimed| (claimed.job.priority, claimed.job.job_id.run_id)).collect();
    assert_eq!(first, [(9, runs[3]), (3, runs[1])], "the priority comes along");
    assert_eq!(order(&world).await, [runs[4], runs[5], runs[0], runs[2]]);
}

pub async fn nobody_is_overtaken_from_farther_than_a_head_start(harness: &mut impl Harness) {
    let world = World::new(harness);
    for priority in [1, 9] {
        let head_start = PRIORITY_HEAD_START * u32::from(priority);
        let (a_little_less, queue) =
            (head_start.checked_sub(MOMENT * 3).unwrap(), format!("q{priority}"));
        for (waited, is_overtaken) in [(head_start, false), (a_little_less, true)] {
            let flow = queued(&format!("{queue}-{is_overtaken}"));
            let first = started(&world, &flow, 0).await;
            world.harness.advance(waited).await;
            let second = started(&world, &flow, priority).await;
            let claimant = world.claimant_of(&format!("{queue}-{is_overtaken}"), 10);
            let claimed = world.store().claim(&claimant).await.unwrap();
            let order: Vec<RunId> = claimed.iter().map(|c| c.job.job_id.run_id).collect();
            let expected = if is_overtaken { [second, first] } else { [first, second] };
            assert_eq!(order, expected, "priority {priority} after {waited:?}");
        }
    }
}

pub async fn a_priority_counts_over_all_queues_of_a_claim(harness: &mut impl Harness) {
    let world = World::new(harness);
    let a = started(&world, &queued("a"), 0).await;
    let b = started(&world, &queued("b"), 2).await;
    let c = started(&world, &queued("c"), 1).await;
    let d = started(&world, &queued("a"), 2).await;
    assert_eq!(order(&world).await, [b, d, c, a]);
}

pub async fn the_due_time_stays_true_whatever_the_priority(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let flow = single("one");
    let before = world.store().now().await.unwrap();
    let first = started(&world, &flow, 0).await;
    let urgent = started(&world, &flow, 9).await;
    let after = world.store().now().await.unwrap();
    world.reopen_if_it_can().await;
    let mut due = Vec::new();
    for run_id in [first, urgent] {
        let job = world.run(run_id).await.jobs.remove(0);
        assert!(before <= job.due_at && job.due_at <= after, "{}", job.due_at);
        due.push(job.due_at);
    }
    let oldest = async || world.store().queue_stats().await.unwrap()[0].oldest_due_at;
    assert_eq!(oldest().await, Some(due[0]), "the longest due, though it is not the next");
    assert_eq!(world.claim(1).await[0].job.job_id.run_id, urgent);
    assert_eq!(oldest().await, Some(due[0]));
    assert_eq!(world.claim(1).await[0].job.job_id.run_id, first);
    world.harness.advance(LEASE).await;
    started(&world, &flow, 9).await;
    assert_eq!(oldest().await, Some(due[0]));
    assert_eq!(world.store().queue_stats().await.unwrap()[0].due, 3);
}

pub async fn a_delayed_job_gets_no_head_start(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let flow = single("one");
    let delayed = started(&world, &later(), 9).await;
    world.harness.advance(Duration::from_hours(1).checked_sub(MOMENT * 3).unwrap()).await;
    let first = started(&world, &flow, 0).await;
    world.harness.advance(MOMENT).await;
    let last = started(&world, &flow, 0).await;
    world.reopen_if_it_can().await;
    let counted = world.store().queue_stats().await.unwrap();
    assert_eq!((counted[0].due, counted[0].later), (3, 0));
    assert_eq!(order(&world).await, [first, delayed, last]);
}

pub async fn a_job_that_is_due_again_at_once_has_its_head_start(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = flaky();
    let urgent = started(&world, &flow, 9).await;
    let claimed = world.claim_one().await;
    let waiting = started(&world, &flow, 0).await;
    world.apply(world.release(&flow, &claimed)).await;
    assert_eq!(order(&world).await, [urgent, waiting], "it was handed back");
    world.harness.advance(LEASE).await;
    let expired = world.claim(1).await.remove(0);
    assert_eq!(expired.job.job_id.run_id, urgent, "its lease was over");
    world.apply(world.fail(&flow, &expired)).await;
    assert_eq!(order(&world).await, [waiting], "its retry is due later");
    world.harness.advance(LEASE).await;
    let job_id = expired.job.job_id;
    assert_eq!(order(&world).await, [waiting, urgent], "a retry has no head start");
    world.harness.advance(LEASE).await;
    let again = world.claim(2).await.remove(1);
    world.apply(world.fail(&flow, &again)).await;
    assert_eq!(world.store().wake_jobs(&[job_id]).await.unwrap(), [job_id]);
    world.harness.advance(LEASE).await;
    assert_eq!(order(&world).await, [urgent, waiting], "it was woken");
}
