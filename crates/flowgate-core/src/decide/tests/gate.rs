//! Runs that are held, released and moved to another revision.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::world::{Applied, RUN, World, ended, success};
use super::super::{
    MovedJob, Rejection, Renames, Report, checkpoint, migrate, place, release, retry,
};
use super::{diamond, flow, retried, worker};
use crate::commit::{Commit, Due, JobChange};
use crate::event::Event;
use crate::flow::Flow;
use crate::run::{Run, StepState};
use crate::time::Timestamp;

fn held(due: Due) -> World {
    let steps =
        json!({ "start": worker(&Value::Null, &["left"]), "a": worker(&json!(["left"]), &[]) });
    let mut world = World::new(flow(&steps));
    world.is_closed = true;
    world.gate = 3;
    world.start_with(None, due);
    world
}

/// Applies a commit that pins the run to `flow`.
pub(super) fn pin(world: &mut World, flow: Flow, commit: &Commit) {
    let before = std::mem::replace(&mut world.flow, flow);
    world.before.push(before);
    assert_eq!(world.apply(commit), Applied::Now);
    world.check();
}

pub(super) fn jobs_of(world: &World) -> Vec<MovedJob> {
    let open = world.jobs.values();
    open.map(|open| MovedJob {
        step: open.job.job_id.step,
        attempt: open.job.attempt,
        due_at: Timestamp(0),
        lease: open.lease().cloned(),
        lost: Vec::new(),
    })
    .collect()
}

/// The commit that moves the run to a revision, for instances of a pool or for any.
pub(super) fn moved(
    world: &mut World,
    (to, pool): (&Flow, Option<&str>),
    renames: &Renames,
) -> Result<Commit, String> {
    let run = world.run.clone().unwrap();
    let mut migrated =
        place((&world.flow, to), renames, &run).map_err(|error| error.to_string())?;
    migrated.pool = pool.map(Into::into);
    let (jobs, id) = (jobs_of(world), world.commit_id());
    Ok(migrate((&world.flow, to), migrated, &run, &jobs, id).unwrap())
}

#[test]
fn a_start_at_a_closed_gate_is_a_run_without_a_job() {
    let mut world = held(Due::Now);
    assert_eq!((world.status(), world.kinds().as_slice()), ("held", &["run.started"][..]));
    assert!(world.jobs.is_empty());
    world.check();
    let data = crate::payload::Payload::null();
    let signal = Report::Signal { signal: "go".into(), data };
    assert_eq!(world.report(&signal), Err(Rejection::RunHeld));
    let version = world.run.as_ref().unwrap().version;
    let reconcile = Report::Reconcile { version, jobs: Vec::new() };
    assert_eq!(world.report(&reconcile), Err(Rejection::NothingToDo));
    assert_eq!(world.report(&Report::Cancel { reason: None }), Ok(Applied::Now));
    world.check_ended();
}

#[test]
fn a_held_run_begins_on_the_revision_that_it_is_released_to() {
    let mut world = held(Due::Now);
    let steps = json!({
        "check": worker(&Value::Null, &["checked"]), "start": worker(&json!(["checked"]), &[]),
    });
    let new = World::new(flow(&steps)).flow;
    let (run, id) = (world.run.clone().unwrap(), world.commit_id());
    let commit = release((&new, None), &run, Timestamp(0), id).unwrap();
    assert_eq!(commit.record.revision, new.revision);
    pin(&mut world, new.clone(), &commit);
    assert_eq!(world.kinds(), ["run.started", "run.released", "step.queued"]);
    let again = release((&new, None), &world.run.clone().unwrap(), Timestamp(0), id).unwrap_err();
    assert_eq!(again.to_string(), "the run is not held: it is running");
    world.succeed("check", &["checked"]);
    world.succeed("start", &[]);
    world.check_ended();
}

#[test]
fn a_delayed_start_that_was_held_is_due_when_it_would_have_been() {
    let due_of = |due: Due| {
        let mut world = held(due);
        let (run, id) = (world.run.clone().unwrap(), world.commit_id());
        let commit = release((&world.flow, None), &run, Timestamp(1_000), id).unwrap();
        let Some(JobChange::Add { due, .. }) = commit.jobs.first().cloned() else {
            panic!("a released run has a job: {:?}", commit.jobs);
        };
        due
    };
    assert_eq!(due_of(Due::Now), Due::Now);
    assert_eq!(due_of(Due::After(Duration::from_secs(5))), Due::At(Timestamp(6_000)));
    assert_eq!(due_of(Due::At(Timestamp(9_000))), Due::At(Timestamp(9_000)));
}

#[test]
fn a_start_that_knows_an_older_gate_is_refused() {
    let mut world = held(Due::Now);
    world.run = None;
    world.gate = 4;
    let run = world.before.len();
    assert_eq!(run, 0);
    let start = super::super::Start {
        run_id: RUN,
        input: crate::payload::Payload::null(),
        key: None,
        tags: BTreeMap::new(),
        priority: None,
        due: Due::Now,
        gate: crate::gate::GateStamp { generation: 3, is_closed: true },
        instance: None,
        pool: None,
    };
    let id = world.commit_id();
    let commit = super::super::start(&world.flow, &start, id);
    assert_eq!(commit.gate(), Some(3));
    assert_eq!(world.apply(&commit), Applied::Refused);
}

#[test]
fn a_moved_run_does_the_open_step_again_and_no_other() {
    let mut world = diamond();
    world.succeed("start", &["left", "right"]);
    world.succeed("b", &["b.done"]);
    let late = world.claim(world.job("a"));
    world.report(&Report::AttemptStarted(late.clone())).unwrap();
    let steps = json!({
        "start": worker(&Value::Null, &["left", "right"]),
        "after": worker(&json!(["joined"]), &[]),
        "alpha": worker(&json!(["left"]), &["a.done"]),
        "b": worker(&json!(["right"]), &["b.done"]),
        "join": worker(&json!(["a.done", "b.done"]), &["joined"]),
    });
    let new = World::new(flow(&steps)).flow;
    let renames = Renames::from([("a".into(), "alpha".into())]);
    let commit = moved(&mut world, (&new, None), &renames).unwrap();
    pin(&mut world, new, &commit);
    assert_eq!(world.state("alpha"), StepState::Queued);
    assert_eq!(world.state("b"), StepState::Succeeded);
    // The attempt that was under way settles nothing.
    let refused = world.report(&ended(late, success(&["a.done"])));
    assert!(!matches!(refused, Ok(Applied::Now)), "{refused:?}");
    world.succeed("alpha", &["a.done"]);
    world.succeed("join", &["joined"]);
    world.succeed("after", &[]);
    world.check_ended();
    let started = |step: &str| {
        let is = |event: &&Event| {
            event.kind() == "step.started" && event.step() == Some(&Arc::from(step))
        };
        world.events().iter().filter(is).count()
    };
    assert_eq!((started("start"), started("b"), started("a"), started("alpha")), (1, 1, 1, 1));
}

#[test]
fn a_retry_of_a_moved_run_keeps_what_succeeded_under_another_name() {
    let mut world = diamond();
    world.succeed("start", &["left", "right"]);
    world.succeed("b", &["b.done"]);
    let steps = |b: &str| {
        json!({
            "start": worker(&Value::Null, &["left", "right"]),
            "a": worker(&json!(["left"]), &["a.done"]),
            b: worker(&json!(["right"]), &["b.done"]),
            "join": worker(&json!(["a.done", "b.done"]), &[]),
        })
    };
    for (old, new) in [("b", "beta"), ("beta", "gamma")] {
        let flow = World::new(flow(&steps(new))).flow;
        let commit =
            moved(&mut world, (&flow, None), &Renames::from([(old.into(), new.into())])).unwrap();
        pin(&mut world, flow, &commit);
    }
    world.fail("a", crate::event::ErrorKind::Final);
    let (flow, old) = (world.flow.clone(), world.run.clone().unwrap());
    let again = |from: Option<&str>| {
        let from = from.map(|step| world.index(step));
        let commit = retry((&flow, &flow), &old, &world.log, from, &retried()).unwrap();
        let folded = Run::fold(retried().run_id, &[&flow], &commit.events).unwrap();
        assert_eq!(folded, *commit.record);
        ["start", "a", "gamma", "join"].map(|step| commit.record.step(world.index(step)).state)
    };
    let (done, queued, pending) = (StepState::Succeeded, StepState::Queued, StepState::Pending);
    assert_eq!(again(None), [done, queued, done, pending]);
    assert_eq!(again(Some("gamma")), [done, queued, queued, pending]);
}

#[test]
fn a_checkpointed_run_does_nothing_until_it_goes_on() {
    let mut world = diamond();
    world.succeed("start", &["left", "right"]);
    let late = world.claim(world.job("a"));
    world.report(&Report::AttemptStarted(late.clone())).unwrap();
    let (run, jobs, id) = (world.run.clone().unwrap(), jobs_of(&world), world.commit_id());
    let until = Timestamp(9_000);
    let commit = checkpoint(&world.flow, &run, &jobs, ("d".into(), until), id).unwrap();
    assert_eq!(world.apply(&commit), Applied::Now);
    world.check();
    assert!(world.jobs.values().all(|open| open.due == Due::At(until) && open.lease().is_none()));
    let refused = world.report(&ended(late, success(&["a.done"])));
    assert_eq!(refused, Ok(Applied::Refused));
    // It goes on where it was, with the attempts that it had.
    world.succeed("a", &["a.done"]);
    world.succeed("b", &["b.done"]);
    world.succeed("join", &[]);
    world.check_ended();
}

#[test]
fn a_run_whose_place_the_revision_does_not_have_is_not_moved() {
    let start = worker(&Value::Null, &["left", "right"]);
    let (a, b) = (worker(&json!(["left"]), &["a.done"]), worker(&json!(["right"]), &["b.done"]));
    let join = worker(&json!(["a.done", "b.done"]), &[]);
    let rows = [
        (
            json!({ "start": start, "b": b, "x": worker(&json!(["left"]), &["a.done"]), "join": join }),
            "its step `a` is queued, and the revision has no such step",
        ),
        (
            json!({ "start": start, "a": { "subscribes": ["left"], "wait": { "delay": "1s" }, "emits": ["a.done"] },
                "b": b, "join": join }),
            "its step `a` is queued, and on the revision that step waits",
        ),
        (
            json!({ "start": start, "more": worker(&json!(["left"]), &["more.done"]),
                "a": worker(&json!(["left", "more.done"]), &["a.done"]), "b": b, "join": join }),
            "its step `a` is queued, and on the revision it needs what has not come",
        ),
        (
            json!({ "start": start, "a": a, "check": worker(&json!(["right"]), &["checked"]),
                "b": worker(&json!({ "any": ["right", "checked"] }), &["b.done"]), "join": join }),
            "`check` would begin now, and `b`, which comes after it, has begun already",
        ),
    ];
    for (steps, expected) in rows {
        let mut world = diamond();
        world.succeed("start", &["left", "right"]);
        world.succeed("b", &["b.done"]);
        let new = World::new(flow(&steps)).flow;
        let found = moved(&mut world, (&new, None), &Renames::new()).unwrap_err();
        assert_eq!(found, expected, "{steps}");
    }
}
