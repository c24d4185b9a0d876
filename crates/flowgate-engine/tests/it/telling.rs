//! What an instance logs and counts: the names that the guide has.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::run::RunStatus;
use flowgate_engine::{EngineError, HandlerError, StepContext, Workers};
use flowgate_store::Store;
use flowgate_store::faulty::{Call, Fault, Faulty};
use flowgate_store::{Breaker, Instrumented};
use serde_json::{Value, json};

use crate::recorder::{Counts, Lines};
use crate::world::{World, config, eventually, is, payload, store};

const GUIDE: &str = include_str!("../../../../docs/guide/operating.md");
const TWO: &str = "{flow: f, steps: {
    a: {run: {worker: work}, emits: [a.done]},
    b: {subscribes: [a.done], run: {worker: work}}}}";

fn workers() -> Workers {
    let mut workers = Workers::new();
    workers.register("work", |input: Value, ctx: StepContext| async move {
        if input == json!("fail") {
            return Err(HandlerError::fatal("no"));
        }
        if ctx.step() == "a" {
            ctx.emit("a.done", &())?;
        }
        Ok::<(), HandlerError>(())
    });
    workers
}

/// The line that has `text` at `level`, with a value for each of `fields`; the guide has it too.
fn told(lines: &Lines, level: &str, text: &str, fields: &[&str]) {
    let found = lines.with(&[level, text]);
    assert!(!found.is_empty(), "nothing says `{text}`");
    for field in fields {
        assert!(found[0].contains(&format!("{field}=")), "{field} is not in {}", found[0]);
    }
    assert!(GUIDE.contains(&format!("`{text}`")), "the guide does not have `{text}`");
}

#[tokio::test(start_paused = true)]
async fn decisions_and_ends_are_logged_and_counted() {
    let (lines, counts) = (Lines::default(), Counts::default());
    let (_logs, _metrics) = (lines.record(), counts.record());
    let world = World::new(TWO, workers()).await;
    for number in 0..3 {
        is(&world.run(number).await, RunStatus::Completed);
    }
    let failed = world.run("fail").await;
    is(&failed, RunStatus::Failed);
    let late = world.engine().cancel(failed.row.run.run_id, None).await;
    assert!(matches!(late, Err(EngineError::Rejected(_))), "{late:?}");
    told(&lines, "DEBUG", "decided", &["run_id", "flow", "instance", "version"]);
    told(&lines, "DEBUG", "a step is due", &["run_id", "flow", "instance", "step", "inputs"]);
    assert_eq!(lines.with(&["a step is due", "step=b"]).len(), 3, "each `b` was triggered once");
    told(&lines, "INFO", "the run ended", &["run_id", "flow", "instance", "status"]);
    told(&lines, "DEBUG", "the run has ended already", &["run_id", "flow", "instance"]);
    assert_eq!(lines.with(&["the run ended", "status=\"completed\""]).len(), 3);
    assert_eq!(counts.sum("flowgate_runs_started_total"), 4);
    assert_eq!(counts.sum("flowgate_runs_ended_total{status=completed"), 3);
    assert_eq!(counts.sum("flowgate_runs_ended_total{status=failed"), 1);
    assert_eq!(counts.sum("flowgate_reports_after_end_total"), 1);
    // A start, two steps, and for the one that failed one step.
    let applied = counts.sum("flowgate_commits_total{instance=a,outcome=applied");
    assert_eq!(applied, 3 * 3 + 2);
    assert_eq!(counts.sum("flowgate_commits_total"), applied, "none was refused");
    assert!(counts.sum("flowgate_orchestration_seconds{instance=a") > 0);
    assert!(counts.sum("flowgate_commit_wait_seconds") > 0);
    assert!(counts.sum("flowgate_commit_seconds") > 0);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_another_instance_was_first_with_is_logged_and_counted() {
    let (lines, counts) = (Lines::default(), Counts::default());
    let (_logs, _metrics) = (lines.record(), counts.record());
    let mut waiting = Workers::new();
    waiting.register("work", |_: Value, ctx: StepContext| async move {
        let nothing = std::future::pending::<()>();
        drop(tokio::time::timeout(Duration::from_secs(1), nothing).await);
        if ctx.step() == "a" {
            ctx.emit("a.done", &())?;
        }
        Ok::<(), HandlerError>(())
    });
    let yaml = "{flow: f, steps: {
        a: {run: {worker: work}, emits: [a.done]},
        b: {subscribes: [a.done], wait: {signal: go, timeout: 1h, on_timeout: fail}}}}";
    let idle = flowgate_store::Queues::Only(vec!["none".into()]);
    let mut other = config("b");
    other.queues = idle;
    let engines = vec![(waiting, config("a")), (Workers::new(), other)];
    let world = World::with(store(), yaml, engines).await;
    let run_id = world.start(1).await;
    // The second changes the run under the attempt of the first.
    world.engines[1].signal(run_id, "go", payload(1)).await.unwrap();
    is(&world.ended(run_id).await, RunStatus::Completed);
    told(&lines, "DEBUG", "another instance was first", &["run_id", "flow", "instance", "version"]);
    assert!(counts.sum("flowgate_commits_total{instance=a,outcome=run_version") >= 1);
    assert_eq!(counts.sum("flowgate_reconciler_repairs_total"), 0);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn emitted_events_are_counted_until_they_are_stored_or_dropped() {
    let counts = Counts::default();
    let _metrics = counts.record();
    let go = Arc::new(tokio::sync::Notify::new());
    let gate = Arc::clone(&go);
    let mut workers = Workers::new();
    workers.register("work", move |_: Value, ctx: StepContext| {
        let gate = Arc::clone(&gate);
        async move {
            if ctx.step() == "a" {
                gate.notified().await;
                ctx.emit("a.done", &())?;
            }
            Ok::<(), HandlerError>(())
        }
    });
    let faulty = Arc::new(Faulty::new(store()));
    let world = World::with(faulty.clone(), TWO, vec![(workers, config("a"))]).await;
    let pending = || f64::from_bits(counts.sum("flowgate_emits_pending"));
    for (delay, dropped) in [(Duration::from_secs(1), 0), (Duration::from_secs(40), 1)] {
        let run_id = world.start(1).await;
        // One that takes longer than its lease comes too late, and the step is executed again.
        faulty.plan(Call::Commit, Fault::Delayed(delay), 1);
        faulty.plan(Call::Renew, Fault::NotDone, if dropped == 0 { 0 } else { u32::MAX });
        go.notify_one();
        eventually("it is on its way", async || pending() > 0.5).await;
        if dropped > 0 {
            go.notify_one();
        }
        is(&world.ended(run_id).await, RunStatus::Completed);
        eventually("nothing is on its way", async || pending() < 0.5).await;
        assert_eq!(counts.sum("flowgate_emits_dropped_total"), dropped);
    }
    assert!(counts.sum("flowgate_emit_wait_seconds") >= 2);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_takes_long_is_warned_of() {
    let lines = Lines::default();
    let _logs = lines.record();
    let faulty = Arc::new(Faulty::new(store()));
    let world = World::with(faulty.clone(), TWO, vec![(workers(), config("a"))]).await;
    is(&world.run(1).await, RunStatus::Completed);
    assert!(lines.with(&["a commit took long"]).is_empty());
    faulty.plan(Call::Commit, Fault::Delayed(Duration::from_secs(6)), 1);
    is(&world.run(1).await, RunStatus::Completed);
    told(&lines, "WARN", "a commit took long", &["instance", "commits", "took"]);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn everything_that_is_counted_is_in_the_guide() {
    let counts = Counts::default();
    let _metrics = counts.record();
    let store: Arc<dyn Store> = Arc::new(Breaker::new(Arc::new(Instrumented::new(store()))));
    let world = World::with(store, TWO, vec![(workers(), config("a"))]).await;
    is(&world.run(1).await, RunStatus::Completed);
    world.shutdown().await;
    let names = counts.names();
    assert!(names.len() >= 20, "{names:?}");
    for name in names {
        assert!(GUIDE.contains(&format!("`{name}`")), "the guide does not have {name}");
    }
}
