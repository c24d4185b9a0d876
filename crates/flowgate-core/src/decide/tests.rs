//! The rules, as rows.

use std::time::Duration;

use serde_json::{Value, json};

use super::world::{Applied, RUN, World, ended, failure, parked, released, success};
use super::{Output, Rejection, Report, RetryAs, retry};
use crate::commit::Due;
use crate::event::{ErrorKind, Event};
use crate::ids::{CommitId, RunId};
use crate::limits;
use crate::payload::Payload;
use crate::run::{Run, RunStatus, StepState};
use uuid::Uuid;

mod gate;
mod pool;
mod random;

fn worker(subscribes: &Value, emits: &[&str]) -> Value {
    let mut step = json!({ "run": { "worker": "w" }, "emits": emits });
    if !subscribes.is_null() {
        step["subscribes"] = subscribes.clone();
    }
    step
}

fn flow(steps: &Value) -> Value {
    json!({ "flow": "f", "steps": steps })
}

/// What a retry is, in these tests.
fn retried() -> RetryAs {
    let (run_id, commit_id) = (RunId(Uuid::from_u128(8)), CommitId(Uuid::from_u128(99)));
    RetryAs { run_id, commit_id, gate: 0, instance: None, pool: None }
}

fn diamond() -> World {
    let mut world = World::new(flow(&json!({
        "start": worker(&Value::Null, &["left", "right"]),
        "a": worker(&json!(["left"]), &["a.done"]),
        "b": worker(&json!(["right"]), &["b.done"]),
        "join": worker(&json!(["a.done", "b.done"]), &[]),
    })));
    world.start();
    world
}

#[test]
fn a_join_starts_when_its_last_need_is_done() {
    for (first, second) in [("a", "b"), ("b", "a")] {
        let mut world = diamond();
        world.succeed("start", &["left", "right"]);
        world.succeed(first, &[&format!("{first}.done")]);
        assert_eq!(world.state("join"), StepState::Pending);
        world.succeed(second, &[&format!("{second}.done")]);
        assert_eq!(world.state("join"), StepState::Queued);
        world.succeed("join", &[]);
        assert_eq!(world.status(), "completed");
        world.check_ended();
    }
}

#[test]
fn a_join_gets_its_inputs_in_the_order_in_which_it_names_them() {
    let mut world = diamond();
    world.succeed("start", &["left", "right"]);
    world.succeed("b", &["b.done"]);
    world.succeed("a", &["a.done"]);
    let run = world.run.clone().unwrap();
    let job = &world.jobs[&world.job("join")].job;
    let seq = |name| run.slots[world.flow.slot_index(name).unwrap().at()];
    assert_eq!(job.inputs, [seq("a.done"), seq("b.done")]);
}

#[test]
fn any_starts_on_the_first_and_only_once() {
    let mut world = World::new(flow(&json!({
        "start": worker(&Value::Null, &["x", "y"]),
        "either": worker(&json!({ "any": ["x", "y"] }), &[]),
        "late": worker(&json!(["step:either"]), &[]),
    })));
    world.start();
    let attempt = world.claim(world.job("start"));
    let emit =
        Report::EmitNow { attempt: attempt.clone(), event: "x".into(), data: Payload::null() };
    assert_eq!(world.report(&emit), Ok(Applied::Now));
    assert_eq!(world.state("either"), StepState::Queued);
    let mut attempt = attempt;
    attempt.logged = true;
    world.report(&ended(attempt, success(&["y", "x"]))).unwrap();
    world.succeed("either", &[]);
    world.succeed("late", &[]);
    assert!(world.kinds().contains(&"event.repeated"));
    world.check_ended();
}

#[test]
fn a_branch_that_is_not_taken_is_skipped_and_the_run_completes() {
    let mut world = World::new(flow(&json!({
        "start": worker(&Value::Null, &["yes", "no"]),
        "on_yes": worker(&json!(["yes"]), &[]),
        "on_no": worker(&json!(["no"]), &[]),
    })));
    world.start();
    world.succeed("start", &["yes"]);
    world.succeed("on_yes", &[]);
    assert_eq!(world.state("on_no"), StepState::Skipped);
    assert_eq!(world.status(), "completed");
    world.check_ended();
}

#[test]
fn a_failed_step_fails_the_run_once_the_other_branches_are_done() {
    let mut world = diamond();
    world.succeed("start", &["left", "right"]);
    world.fail("a", ErrorKind::Final);
    assert_eq!(world.status(), "running");
    world.succeed("b", &["b.done"]);
    assert_eq!(world.status(), "failed");
    assert_eq!(world.state("join"), StepState::Skipped);
    assert_eq!(&*world.run.as_ref().unwrap().failure.as_ref().unwrap().step, "a");
    world.check_ended();
}

#[test]
fn a_failure_that_a_step_subscribes_to_does_not_fail_the_run() {
    let mut world = World::new(flow(&json!({
        "start": worker(&Value::Null, &[]),
        "refund": worker(&json!(["step.failed:start"]), &[]),
        "ship": worker(&json!(["step:start"]), &[]),
    })));
    world.start();
    world.fail("start", ErrorKind::Final);
    world.succeed("refund", &[]);
    assert_eq!(world.status(), "completed");
    assert_eq!(world.state("ship"), StepState::Skipped);
    world.check_ended();
}

#[test]
fn a_step_without_work_completes_in_the_commit_that_opens_it() {
    let mut world = World::new(flow(&json!({
        "start": worker(&Value::Null, &[]),
        "join": { "subscribes": ["step:start"] },
        "again": { "subscribes": ["step:join"] },
    })));
    world.start();
    world.succeed("start", &[]);
    assert_eq!(world.status(), "completed");
    world.check_ended();
}

#[test]
fn failures_are_tried_again_with_growing_delays_and_then_fail_the_step() {
    let mut step = worker(&Value::Null, &[]);
    step["retry"] = json!({ "attempts": 3, "backoff": { "initial": "100ms", "jitter": 0.0 } });
    let mut world = World::new(flow(&json!({ "start": step })));
    world.start();
    for ms in [100, 200] {
        world.fail("start", ErrorKind::Failed);
        assert_eq!(world.jobs[&world.job("start")].due, Due::After(Duration::from_millis(ms)));
    }
    world.fail("start", ErrorKind::Failed);
    assert_eq!(world.status(), "failed");
    assert_eq!(world.run.as_ref().unwrap().steps[0].attempt, 3);
    world.check_ended();
}

#[test]
fn a_final_error_is_not_tried_again() {
    for kind in [ErrorKind::Final, ErrorKind::Invalid, ErrorKind::Lost] {
        let mut world = World::new(flow(&json!({ "start": worker(&Value::Null, &[]) })));
        world.start();
        world.fail("start", kind);
        assert_eq!(world.status(), "failed", "{kind:?}");
        world.check_ended();
    }
}

#[test]
fn a_step_may_say_when_it_wants_to_be_tried_again() {
    let mut world = World::new(flow(&json!({ "start": worker(&Value::Null, &[]) })));
    world.start();
    let attempt = world.claim(world.job("start"));
    let super::Outcome::Failed { error, .. } = failure(ErrorKind::Failed) else { unreachable!() };
    let retry_after = Some(Duration::from_secs(40));
    let outcome = super::Outcome::Failed { error, retry_after };
    world.report(&ended(attempt, outcome)).unwrap();
    assert_eq!(world.jobs[&world.job("start")].due, Due::After(Duration::from_secs(40)));
}

#[test]
fn a_failed_attempt_leaves_no_events_behind() {
    let mut world = diamond();
    let attempt = world.claim(world.job("start"));
    world.report(&ended(attempt, failure(ErrorKind::Failed))).unwrap();
    assert!(!world.kinds().contains(&"event.emitted"));
    assert_eq!(world.state("a"), StepState::Pending);
    world.check();
}

#[test]
fn an_undeclared_event_fails_the_step_for_good() {
    let mut world = diamond();
    let attempt = world.claim(world.job("start"));
    world.report(&ended(attempt, success(&["left", "elsewhere"]))).unwrap();
    assert_eq!(world.status(), "failed");
    let failure = world.run.as_ref().unwrap().failure.clone().unwrap();
    assert_eq!(failure.error.kind, ErrorKind::Invalid);
    assert!(failure.error.message.contains("`elsewhere`"), "{}", failure.error.message);
    assert!(!world.kinds().contains(&"event.emitted"));
    world.check_ended();
}

#[test]
fn names_with_dots_never_collide() {
    let mut world = World::new(flow(&json!({
        "start": worker(&Value::Null, &["a", "a.b"]),
        "one": worker(&json!(["a"]), &[]),
        "two": worker(&json!(["a.b"]), &[]),
    })));
    world.start();
    world.succeed("start", &["a.b"]);
    assert_eq!((world.state("one"), world.state("two")), (StepState::Pending, StepState::Queued));
}

#[test]
fn the_late_attempt_of_a_lost_lease_changes_nothing() {
    let mut world = diamond();
    let slow = world.claim(world.job("start"));
    world.expire(slow.job_id);
    assert_eq!(world.report(&ended(slow.clone(), success(&["left"]))), Ok(Applied::Refused));
    let fast = world.claim(slow.job_id);
    assert_eq!(fast.lost, std::slice::from_ref(&slow.stamp));
    assert_eq!(world.report(&ended(slow.clone(), success(&["left"]))), Ok(Applied::Refused));
    assert_eq!(world.report(&ended(fast, success(&["left", "right"]))), Ok(Applied::Now));
    assert_eq!(
        world.report(&ended(slow, success(&["left"]))),
        Err(Rejection::StepNotOpen(StepState::Succeeded))
    );
    assert!(world.kinds().contains(&"step.lost"));
    world.check();
}

#[test]
fn a_released_attempt_is_not_counted() {
    let mut world = diamond();
    let first = world.claim(world.job("start"));
    world.report(&released(first.clone())).unwrap();
    let second = world.claim(world.job("start"));
    assert_eq!((first.stamp.attempt, second.stamp.attempt), (1, 1));
    assert!(second.stamp.token > first.stamp.token);
    world.report(&ended(second, success(&["left", "right"]))).unwrap();
    let start = world.index("start");
    assert_eq!(world.run.as_ref().unwrap().step(start).attempt, 1);
    world.check();
}

#[test]
fn an_attempt_that_was_lost_in_its_timeout_fails_by_it_and_the_next_has_its_number() {
    let mut world = diamond();
    let slow = world.claim(world.job("start"));
    world.report(&Report::AttemptStarted(slow.clone())).unwrap();
    world.expire(slow.job_id);
    let next = world.claim(slow.job_id);
    let late = Report::LostTimedOut {
        attempt: next.clone(),
        elapsed: Duration::from_secs(10),
        random: 0.5,
    };
    assert_eq!(world.report(&late), Ok(Applied::Now));
    assert_eq!(world.report(&ended(slow, success(&["left"]))), Ok(Applied::Refused));
    assert_eq!(world.kinds()[2..], ["step.started", "attempt.failed"]);
    let third = world.claim(next.job_id);
    assert_eq!((third.stamp.attempt, third.lost.len()), (2, 0));
    world.report(&ended(third, success(&["left", "right"]))).unwrap();
    let start = world.index("start");
    let record = world.run.as_ref().unwrap().step(start).clone();
    assert_eq!((record.attempt, record.failures, record.lost), (2, 1, 0));
    world.check();
}

#[test]
fn what_was_never_seen_to_run_cannot_have_timed_out() {
    let mut world = diamond();
    let lost = world.claim(world.job("start"));
    world.expire(lost.job_id);
    let attempt = world.claim(lost.job_id);
    let late = Report::LostTimedOut { attempt, elapsed: Duration::from_secs(10), random: 0.5 };
    assert_eq!(world.report(&late), Err(Rejection::StepNotOpen(StepState::Queued)));
}

#[test]
fn a_parked_attempt_is_not_counted_and_waits_as_long_as_it_is_told() {
    let mut world = diamond();
    let first = world.claim(world.job("start"));
    world.report(&parked(first.clone())).unwrap();
    assert_eq!(world.state("start"), StepState::Queued);
    assert_eq!(world.jobs[&first.job_id].due, Due::After(Duration::from_mins(5)));
    assert_eq!(world.kinds(), ["run.started", "step.queued", "step.parked"]);
    let second = world.claim(world.job("start"));
    assert_eq!((first.stamp.attempt, second.stamp.attempt), (1, 1));
    assert_eq!(world.report(&ended(first, success(&["left"]))), Ok(Applied::Refused));
    world.report(&ended(second, success(&["left", "right"]))).unwrap();
    world.check();
}

#[test]
fn a_wait_is_not_parked() {
    let mut world = approval(&json!("fail"));
    world.succeed("start", &[]);
    let timer = world.claim(world.job("approve"));
    assert_eq!(world.report(&parked(timer)), Err(Rejection::StepNotOpen(StepState::Waiting)));
}

#[test]
fn a_job_has_the_priority_of_its_run_else_of_its_step() {
    let steps = json!({
        "start": { "run": { "worker": "w" }, "priority": 3 },
        "next": { "subscribes": ["step:start"], "run": { "worker": "w" } },
    });
    for (of_run, expected) in [(None, [3, 0]), (Some(7), [7, 7])] {
        let mut world = World::new(flow(&steps));
        world.start_with(of_run, Due::Now);
        assert_eq!(world.jobs[&world.job("start")].job.priority, expected[0]);
        world.succeed("start", &[]);
        assert_eq!(world.jobs[&world.job("next")].job.priority, expected[1]);
    }
}

#[test]
fn a_start_may_be_due_later() {
    let mut world = World::new(flow(&json!({ "start": { "run": { "worker": "w" } } })));
    let due = Due::After(Duration::from_mins(5));
    world.start_with(None, due);
    assert_eq!(world.jobs[&world.job("start")].due, due);
    world.check();
}

#[test]
fn a_long_attempt_is_shown_as_running_and_started_once() {
    let mut world = diamond();
    let mut attempt = world.claim(world.job("start"));
    world.report(&Report::AttemptStarted(attempt.clone())).unwrap();
    assert_eq!(world.state("start"), StepState::Running);
    attempt.logged = true;
    world.report(&ended(attempt, success(&["left"]))).unwrap();
    assert_eq!(world.kinds().iter().filter(|kind| **kind == "step.started").count(), 1);
    world.check();
}

fn approval(on_timeout: &Value) -> World {
    let mut world = World::new(flow(&json!({
        "start": worker(&Value::Null, &[]),
        "approve": {
            "subscribes": ["step:start"],
            "wait": {
                "signal": "approval", "match": { "ok": true }, "timeout": "1h",
                "on_timeout": on_timeout,
            },
            "emits": ["approved", "expired"],
        },
        "ship": worker(&json!(["approved"]), &[]),
        "drop": worker(&json!(["expired"]), &[]),
    })));
    world.start();
    world
}

#[test]
fn a_wait_ends_with_a_signal_that_matches_and_passes_its_data_on() {
    let mut world = approval(&json!({ "emit": "expired" }));
    world.succeed("start", &[]);
    assert_eq!(world.status(), "waiting");
    world.signal("approval", r#"{"ok":false}"#).unwrap();
    assert_eq!(world.status(), "waiting");
    world.signal("approval", r#"{"ok":true,"by":"ada"}"#).unwrap();
    let job = world.jobs[&world.job("ship")].job.clone();
    let seq = usize::try_from(job.inputs[0]).unwrap();
    assert_eq!(world.log[seq - 1].event.payload().get(), r#"{"ok":true,"by":"ada"}"#);
    world.succeed("ship", &[]);
    assert_eq!(world.state("drop"), StepState::Skipped);
    world.check_ended();
}

#[test]
fn a_signal_that_comes_before_the_wait_is_kept_for_it() {
    let mut world = approval(&json!("fail"));
    world.signal("approval", r#"{"ok":true}"#).unwrap();
    world.succeed("start", &[]);
    world.succeed("ship", &[]);
    assert_eq!(world.state("approve"), StepState::Succeeded);
    world.succeed("drop", &[]);
    world.check_ended();
}

#[test]
fn a_signal_that_no_step_waits_for_is_rejected() {
    let mut world = approval(&json!("fail"));
    let Err(Rejection::SignalUnknown { known, .. }) = world.signal("aproval", "1") else {
        panic!("an unknown signal was taken");
    };
    assert_eq!(known, "`approval`");
}

#[test]
fn a_wait_that_times_out_does_what_it_says() {
    for (on_timeout, approve, ship, drop) in [
        (json!("fail"), StepState::Failed, StepState::Skipped, StepState::Skipped),
        (json!("continue"), StepState::Succeeded, StepState::Queued, StepState::Queued),
        (json!({ "emit": "expired" }), StepState::Succeeded, StepState::Pending, StepState::Queued),
    ] {
        let mut world = approval(&on_timeout);
        world.succeed("start", &[]);
        assert_eq!(world.jobs[&world.job("approve")].due, Due::After(Duration::from_hours(1)));
        world.timer("approve");
        let states = (world.state("approve"), world.state("ship"), world.state("drop"));
        assert_eq!(states, (approve, ship, drop), "{on_timeout}");
        world.check();
    }
}

#[test]
fn a_signal_after_the_timeout_changes_nothing_that_was_decided() {
    let mut world = approval(&json!("continue"));
    world.succeed("start", &[]);
    let late = world.claim(world.job("approve"));
    world.signal("approval", r#"{"ok":true}"#).unwrap();
    let rejected = world.report(&Report::TimerDue(late));
    assert_eq!(rejected, Err(Rejection::StepNotOpen(StepState::Succeeded)));
    world.check();
}

#[test]
fn a_delay_holds_no_worker_and_then_goes_on() {
    let mut world = World::new(flow(&json!({
        "start": worker(&Value::Null, &[]),
        "pause": { "subscribes": ["step:start"], "wait": { "delay": "2h" }, "emits": ["woke"] },
        "end": worker(&json!(["woke"]), &[]),
    })));
    world.start();
    world.succeed("start", &[]);
    assert_eq!(world.status(), "waiting");
    assert_eq!(world.jobs[&world.job("pause")].due, Due::After(Duration::from_hours(2)));
    world.timer("pause");
    world.succeed("end", &[]);
    world.check_ended();
}

#[test]
fn cancel_removes_every_job_and_is_final() {
    let mut world = diamond();
    world.succeed("start", &["left", "right"]);
    let running = world.claim(world.job("a"));
    world.report(&Report::Cancel { reason: Some("enough".into()) }).unwrap();
    assert_eq!(world.status(), "cancelled");
    assert_eq!(world.state("a"), StepState::Cancelled);
    assert_eq!(world.state("join"), StepState::Skipped);
    let ended_late = world.report(&ended(running, success(&["a.done"])));
    assert_eq!(ended_late, Err(Rejection::RunEnded(RunStatus::Cancelled)));
    let again = world.report(&Report::Cancel { reason: None });
    assert_eq!(again, Err(Rejection::RunEnded(RunStatus::Cancelled)));
    world.check_ended();
}

#[test]
fn a_commit_that_is_sent_again_is_recognised() {
    let mut world = diamond();
    let attempt = world.claim(world.job("start"));
    let commit = world.decide(&ended(attempt, success(&["left", "right"]))).unwrap();
    assert_eq!(world.apply(&commit), Applied::Now);
    assert_eq!(world.apply(&commit), Applied::Before);
    world.succeed("a", &["a.done"]);
    assert_eq!(world.apply(&commit), Applied::Before);
    world.check();
}

#[test]
fn reports_of_one_run_can_be_joined_into_one_commit() {
    let mut world = diamond();
    world.succeed("start", &["left", "right"]);
    let a = world.claim(world.job("a"));
    let b = world.claim(world.job("b"));
    let first = world.decide(&ended(a, success(&["a.done"]))).unwrap();
    let id = world.commit_id();
    let report = ended(b, success(&["b.done"]));
    let second = super::decide(&world.flow, &first.record, &report, id).unwrap();
    assert_eq!(world.apply(&first.then(second)), Applied::Now);
    assert_eq!(world.state("join"), StepState::Queued);
    world.succeed("join", &[]);
    world.check_ended();
}

#[test]
fn state_values_are_kept_by_number_and_bounded() {
    let mut world = diamond();
    let attempt = world.claim(world.job("start"));
    let state = vec![("total".into(), Payload::parse("12").unwrap())];
    let output = Output { state, ..Output::default() };
    world.report(&ended(attempt, super::Outcome::Succeeded(output))).unwrap();
    let seq = world.run.as_ref().unwrap().state["total"];
    assert_eq!(world.log[usize::try_from(seq).unwrap() - 1].event.payload().get(), "12");

    let mut world = diamond();
    let attempt = world.claim(world.job("start"));
    let value = Payload::parse(&"1".repeat(limits::STATE_VALUE_BYTES_MAX + 1)).unwrap();
    let output = Output { state: vec![("big".into(), value)], ..Output::default() };
    world.report(&ended(attempt, super::Outcome::Succeeded(output))).unwrap();
    assert_eq!(world.status(), "failed");
}

#[test]
fn a_retry_is_a_new_run_that_keeps_what_succeeded() {
    let mut world = diamond();
    world.succeed("start", &["left", "right"]);
    world.succeed("b", &["b.done"]);
    world.fail("a", ErrorKind::Final);
    assert_eq!(world.status(), "failed");
    let (flow, old) = (world.flow.clone(), world.run.clone().unwrap());
    let new = retried();
    let states = |from: Option<&str>| {
        let from = from.map(|step| world.index(step));
        let commit = retry((&flow, &flow), &old, &world.log, from, &new).unwrap();
        assert_eq!(commit.record.retry_of, Some(RUN));
        let state = |step| commit.record.step(world.index(step)).state;
        [state("start"), state("a"), state("b"), state("join")]
    };
    let (done, queued, pending) = (StepState::Succeeded, StepState::Queued, StepState::Pending);
    assert_eq!(states(None), [done, queued, done, pending]);
    assert_eq!(states(Some("b")), [done, queued, queued, pending]);
    assert_eq!(states(Some("start")), [queued, pending, pending, pending]);
}

#[test]
fn a_retry_on_another_revision_keeps_what_has_the_same_name() {
    let mut world = diamond();
    world.succeed("start", &["left", "right"]);
    world.succeed("b", &["b.done"]);
    world.fail("a", ErrorKind::Final);
    let (pinned, old) = (world.flow.clone(), world.run.clone().unwrap());
    let as_new = retried();
    let check = |steps: Value, from: Option<&str>, expected: &[(&str, StepState)]| {
        let new = World::new(flow(&steps)).flow;
        let from = from.map(|step| new.step_index(step).unwrap());
        let commit = retry((&pinned, &new), &old, &world.log, from, &as_new).unwrap();
        assert_eq!(commit.record.revision, new.revision);
        let folded = Run::fold(as_new.run_id, &[&new], &commit.events).unwrap();
        assert_eq!(folded, *commit.record);
        for (step, state) in expected {
            let found = commit.record.step(new.step_index(step).unwrap()).state;
            assert_eq!(found, *state, "{step} of {steps}");
        }
    };
    let (done, queued, pending) = (StepState::Succeeded, StepState::Queued, StepState::Pending);
    let start = worker(&Value::Null, &["left", "right"]);
    let (a, b) = (worker(&json!(["left"]), &["a.done"]), worker(&json!(["right"]), &["b.done"]));
    let join = worker(&json!(["a.done", "b.done"]), &[]);
    // A step came in between: what follows it is done again.
    let checked = json!({
        "start": start, "check": worker(&json!(["right"]), &["checked"]), "a": a,
        "b": worker(&json!(["checked"]), &["b.done"]), "join": join,
    });
    let expected = [("start", done), ("check", queued), ("a", queued), ("b", pending)];
    check(checked.clone(), None, &expected);
    check(checked, Some("start"), &[("start", queued), ("check", pending), ("a", pending)]);
    // Steps are in another order, and one is gone.
    let shorter = json!({ "b": b, "start": start, "join": worker(&json!(["b.done"]), &[]) });
    check(shorter, None, &[("start", done), ("b", done), ("join", queued)]);
    // The entry has another name, so nothing is kept.
    let renamed = json!({ "begin": start, "a": a, "b": b, "join": join });
    check(renamed, None, &[("begin", queued), ("a", pending), ("b", pending), ("join", pending)]);
    // An event that its step does not emit any more starts nothing.
    let quiet = json!({
        "start": worker(&Value::Null, &["left", "right"]), "a": a,
        "b": worker(&json!(["right"]), &["other"]),
        "late": worker(&json!(["a.done"]), &["b.done"]), "join": join,
    });
    check(quiet, None, &[("a", queued), ("b", done), ("late", pending), ("join", pending)]);
}

#[test]
fn a_retry_of_what_nothing_asks_for_is_refused() {
    let steps = json!({
        "start": worker(&Value::Null, &["left", "right"]),
        "a": worker(&json!(["left"]), &[]), "b": worker(&json!(["right"]), &[]),
    });
    let mut world = World::new(flow(&steps));
    world.start();
    world.succeed("start", &["left"]);
    world.succeed("a", &[]);
    assert_eq!(world.status(), "completed");
    let run = world.run.clone().unwrap();
    let new = retried();
    let rejected = retry((&world.flow, &world.flow), &run, &world.log, None, &new).unwrap_err();
    assert_eq!(rejected, Rejection::NothingToRetry);
}

#[test]
fn only_a_run_that_ended_can_be_retried() {
    let world = diamond();
    let run = world.run.clone().unwrap();
    let new = retried();
    let rejected = retry((&world.flow, &world.flow), &run, &world.log, None, &new).unwrap_err();
    assert_eq!(rejected, Rejection::RunOpen(RunStatus::Running));

    let mut world = World::new(flow(&json!({ "start": worker(&Value::Null, &[]) })));
    world.start();
    world.succeed("start", &[]);
    let run = world.run.clone().unwrap();
    let rejected = retry((&world.flow, &world.flow), &run, &world.log, None, &new).unwrap_err();
    assert_eq!(rejected, Rejection::NothingToRetry);
    assert!(
        retry((&world.flow, &world.flow), &run, &world.log, Some(world.flow.entry), &new).is_ok()
    );
}

#[test]
fn an_open_step_without_a_job_gets_it_back() {
    let mut world = diamond();
    world.succeed("start", &["left", "right"]);
    world.succeed("a", &["a.done"]);
    let look = |world: &World| Report::Reconcile {
        version: world.run.as_ref().unwrap().version,
        jobs: world.jobs.keys().map(|job| job.step).collect(),
    };
    let seen = look(&world);
    assert_eq!(world.report(&seen), Err(Rejection::NothingToDo));
    let lost = world.jobs.remove(&world.job("b")).unwrap();
    // What was seen of an older version says nothing about this one.
    let Report::Reconcile { version, jobs } = look(&world) else { unreachable!() };
    let stale = Report::Reconcile { version: version - 1, jobs };
    assert_eq!(world.report(&stale), Err(Rejection::NothingToDo));
    let seen = look(&world);
    assert_eq!(world.report(&seen), Ok(Applied::Now));
    assert_eq!(world.jobs[&world.job("b")].job, lost.job);
    world.succeed("b", &["b.done"]);
    world.succeed("join", &[]);
    world.check_ended();
}

#[test]
fn the_checker_finds_what_is_wrong() {
    let good = || {
        let mut world = diamond();
        world.succeed("start", &["left", "right"]);
        world.succeed("a", &["a.done"]);
        world.succeed("b", &["b.done"]);
        world.succeed("join", &[]);
        world
    };
    good().check_ended();
    let find = |break_it: &dyn Fn(&mut World), invariant: u8| {
        let mut world = good();
        break_it(&mut world);
        let found = crate::check::check_run(&world.flows(), RUN, &world.log, world.run.as_deref());
        assert!(found.iter().any(|v| v.invariant == invariant), "{invariant}: {found:?}");
    };
    let at = |world: &World, kind: &str, nth: usize| {
        world.kinds().iter().enumerate().filter(|(_, k)| **k == kind).nth(nth).unwrap().0
    };
    find(&|w| drop(w.log.remove(3)), 2);
    find(&|w| w.log.push(w.log[4].clone()), 2);
    find(&|w| w.log.swap(2, 3), 2);
    find(
        &|w| {
            let twice = w.log[at(w, "step.queued", 3)].event.clone();
            let end = w.log.len() - 1;
            w.log[end].event = twice;
        },
        3,
    );
    find(
        &|w| {
            let (emitted, queued) = (at(w, "event.emitted", 3), at(w, "step.queued", 3));
            let (a, b) = (w.log[emitted].event.clone(), w.log[queued].event.clone());
            w.log[emitted].event = b;
            w.log[queued].event = a;
        },
        4,
    );
    find(
        &|w| {
            let started = at(w, "step.started", 1);
            if let Event::StepStarted { lease, .. } = &mut w.log[started].event {
                lease.token.0 += 100;
            }
        },
        5,
    );
    find(
        &|w| {
            let mut run = (**w.run.as_ref().unwrap()).clone();
            run.steps[0].failures += 1;
            w.run = Some(run.into());
        },
        9,
    );
    let mut world = good();
    world.log.pop();
    assert!(crate::check::check_ended(RUN, &world.log).is_some());
}
