//! The order of queues over partitions, and what is counted of them.

use std::time::Duration;

use flowgate_core::commit::{Claimed, Commit, JobChange};
use flowgate_core::flow::Flow;
use flowgate_core::ids::RunId;
use flowgate_store::conformance::Harness;
use flowgate_store::conformance::world::{LEASE, World, later, single};
use flowgate_store::copy::read_run;
use flowgate_store::{Store, StoreCopy};

use super::RedisHarness;

const SECOND: Duration = Duration::from_secs(1);

/// A start whose jobs have this priority.
fn start(world: &World<'_, RedisHarness>, flow: &Flow, priority: u8) -> Commit {
    let mut commit = world.start(flow, "1");
    for change in &mut commit.jobs {
        if let JobChange::Add { job, .. } = change {
            job.priority = priority;
        }
    }
    commit
}

async fn started(world: &World<'_, RedisHarness>, flow: &Flow, priority: u8) -> RunId {
    let commit = start(world, flow, priority);
    let run_id = commit.run_id;
    world.apply(commit).await;
    run_id
}

fn runs(claimed: &[Claimed]) -> Vec<RunId> {
    claimed.iter().map(|claimed| claimed.job.job_id.run_id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_priority_is_ahead_over_all_partitions_and_starves_nobody() {
    let mut harness = RedisHarness::divided().await;
    let world = World::new(&mut harness);
    let flow = single("one");
    let old = started(&world, &flow, 0).await;
    world.harness.advance(Duration::from_mins(10)).await;
    for _ in 0..20 {
        started(&world, &flow, 0).await;
    }
    let mut urgent = vec![old];
    for _ in 0..5 {
        urgent.push(started(&world, &flow, 9).await);
        world.harness.advance(SECOND).await;
    }
    let claimed = world.claim(6).await;
    assert_eq!(runs(&claimed), urgent, "who waits for longer than the head start is first");
    assert_eq!(claimed[1].job.priority, 9);
    let detail = world.run(urgent[1]).await;
    assert_eq!(detail.jobs[0].job.priority, 9);
    assert!(detail.jobs[0].due_at >= detail.row.started_at, "it is due when it was due");
    world.harness.advance(LEASE).await;
    assert_eq!(runs(&world.claim(6).await), urgent, "a lost lease costs no place");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_woken_job_has_its_head_start_and_a_later_one_has_not() {
    let mut harness = RedisHarness::single().await;
    let world = World::new(&mut harness);
    let sleeping = started(&world, &later(), 2).await;
    let delayed = started(&world, &later(), 9).await;
    world.harness.advance(Duration::from_mins(30)).await;
    let first = started(&world, &single("one"), 0).await;
    world.harness.advance(Duration::from_mins(1)).await;
    let job_id = world.run(sleeping).await.jobs[0].job.job_id;
    assert_eq!(world.store().wake_jobs(&[job_id]).await.unwrap(), [job_id]);
    assert_eq!(runs(&world.claim(1).await), [sleeping], "two minutes ahead of now");
    world.harness.advance(Duration::from_mins(24)).await;
    let last = started(&world, &single("one"), 0).await;
    world.harness.advance(Duration::from_mins(5)).await;
    assert_eq!(runs(&world.claim(4).await), [sleeping, first, last, delayed], "by when it is due");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_of_a_queue_is_found_behind_those_that_are_ahead_of_it() {
    let mut harness = RedisHarness::divided().await;
    let world = World::new(&mut harness);
    let flow = single("one");
    let oldest = started(&world, &flow, 0).await;
    let oldest = world.run(oldest).await.jobs[0].due_at;
    world.harness.advance(SECOND).await;
    let commits: Vec<Commit> = (0..200).map(|_| start(&world, &flow, 9)).collect();
    world.store().commit(commits, None).await.unwrap();
    let stats = world.store().queue_stats().await.unwrap();
    assert_eq!(stats.len(), 1);
    assert_eq!((stats[0].due, stats[0].later, stats[0].oldest_due_at), (201, 0, Some(oldest)));
    let due = world.claim(200).await;
    assert!(due.iter().all(|claimed| claimed.job.priority == 9));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copied_job_keeps_its_priority_and_its_place() {
    let mut harness = RedisHarness::single().await;
    let mut other = RedisHarness::divided().await;
    let world = World::new(&mut harness);
    let (low, high) =
        (started(&world, &single("one"), 0).await, started(&world, &single("one"), 3).await);
    let mut copies = Vec::new();
    for run_id in [low, high] {
        copies.push(read_run(&*world.store(), run_id).await.unwrap().unwrap());
    }
    let copy = StoreCopy { runs: copies, ..StoreCopy::default() };
    other.redis.import(copy).await.unwrap();
    let there = World::new(&mut other);
    let claimed = there.claim(2).await;
    assert_eq!(runs(&claimed), [high, low]);
    assert_eq!(claimed[0].job.priority, 3);
}
