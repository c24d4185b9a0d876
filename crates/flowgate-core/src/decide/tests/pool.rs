//! In which queue the jobs of a run wait that is for a pool.

use serde_json::{Value, json};

use super::super::world::World;
use super::super::{Renames, Report, checkpoint, release};
use super::gate::{jobs_of, moved, pin};
use super::{flow, worker};
use crate::commit::Due;
use crate::time::Timestamp;

/// A flow with a step in a queue of its own, one in that of its worker, and a wait.
fn steps() -> Value {
    json!({
        "start": worker(&Value::Null, &["begun"]),
        "mail": { "subscribes": ["begun"], "queue": "mail", "run": { "worker": "w" } },
        "pause": { "subscribes": ["begun"], "wait": { "delay": "1s" }, "emits": ["over"] },
        "last": worker(&json!(["over"]), &[]),
    })
}

fn started(pool: Option<&str>) -> World {
    let mut world = World::new(flow(&steps()));
    world.pool = pool.map(Into::into);
    world.start();
    world
}

fn queues(world: &World) -> Vec<String> {
    world.jobs.values().map(|open| open.job.queue.to_string()).collect()
}

#[test]
fn every_job_of_a_run_waits_in_the_queue_of_its_pool() {
    for (pool, first, then, last) in [
        (None, ["w"], ["mail", "default"], ["w"]),
        (Some("green"), ["w@green"], ["mail@green", "default@green"], ["w@green"]),
    ] {
        let mut world = started(pool);
        assert_eq!(queues(&world), first);
        world.succeed("start", &["begun"]);
        assert_eq!(queues(&world), then, "waits have jobs too");
        world.succeed("mail", &[]);
        let timer = world.claim(world.job("pause"));
        world.report(&Report::TimerDue(timer)).unwrap();
        assert_eq!(queues(&world), last);
        world.succeed("last", &[]);
        world.check_ended();
    }
}

#[test]
fn a_job_that_is_given_back_or_repaired_stays_in_its_pool() {
    let mut world = started(Some("green"));
    let attempt = world.claim(world.job("start"));
    world.report(&Report::AttemptReleased { attempt, due: Due::Now }).unwrap();
    assert_eq!(queues(&world), ["w@green"]);
    world.jobs.clear();
    let version = world.run.as_ref().unwrap().version;
    world.report(&Report::Reconcile { version, jobs: Vec::new() }).unwrap();
    assert_eq!(queues(&world), ["w@green"]);
}

#[test]
fn a_held_run_is_of_no_pool_until_it_is_released_to_one() {
    for (pool, wanted) in [(None, "w"), (Some("green"), "w@green")] {
        let mut world = World::new(flow(&steps()));
        (world.is_closed, world.gate, world.pool) = (true, 1, Some("blue".into()));
        world.start();
        assert_eq!(world.run.as_ref().unwrap().pool, None);
        let (run, id) = (world.run.clone().unwrap(), world.commit_id());
        let pool = pool.map(Into::into);
        let commit = release((&world.flow, pool.as_ref()), &run, Timestamp(0), id).unwrap();
        world.apply(&commit);
        world.check();
        assert_eq!(queues(&world), [wanted]);
    }
}

#[test]
fn a_moved_run_is_for_the_pool_of_its_new_revision_and_a_checkpoint_keeps_its_own() {
    for (pool, wanted) in [(None, "w"), (Some("green"), "w@green")] {
        let mut world = started(Some("blue"));
        let (run, jobs, id) = (world.run.clone().unwrap(), jobs_of(&world), world.commit_id());
        let by = ("d".into(), Timestamp(9));
        let commit = checkpoint(&world.flow, &run, &jobs, by, id).unwrap();
        world.apply(&commit);
        assert_eq!(queues(&world), ["w@blue"]);
        let mut more = steps();
        more["more"] = worker(&json!(["over"]), &[]);
        let new = World::new(flow(&more)).flow;
        let commit = moved(&mut world, (&new, pool), &Renames::new()).unwrap();
        pin(&mut world, new, &commit);
        assert_eq!(queues(&world), [wanted]);
    }
}
