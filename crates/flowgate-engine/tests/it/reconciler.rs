//! What no decision leaves behind, planted by hand.

use std::collections::BTreeMap;
use std::time::Duration;

use flowgate_core::commit::Due;
use flowgate_core::decide::{Start, start};
use flowgate_core::ids::{CommitIds, RunId};
use flowgate_core::run::RunStatus;
use flowgate_engine::{EngineConfig, HandlerError, StepContext, Workers};
use flowgate_store::CommitOutcome;
use serde_json::Value;

use crate::recorder::{Counts, Lines};
use crate::world::{World, config, is, payload, store};

const CHAIN: &str = "{flow: f, steps: {
    a: {run: {worker: work}, emits: [a.done]},
    b: {subscribes: [a.done], run: {worker: work}, emits: [b.done]},
    c: {subscribes: [b.done], run: {worker: work}}}}";

fn workers() -> Workers {
    let mut workers = Workers::new();
    workers.register("work", |_: Value, ctx: StepContext| async move {
        // The other instance gets a chance to claim.
        drop(tokio::time::timeout(Duration::from_millis(1), std::future::pending::<()>()).await);
        match ctx.step() {
            "c" => {}
            step => ctx.emit(&format!("{step}.done"), &())?,
        }
        Ok::<(), HandlerError>(())
    });
    workers
}

/// An instance that looks for runs that are stuck all the time, with little room for hand-offs.
fn eager(name: &str) -> (Workers, EngineConfig) {
    let reconcile_interval = Duration::from_millis(1);
    (workers(), EngineConfig { reconcile_interval, slots: 3, ..config(name) })
}

#[tokio::test(start_paused = true)]
async fn an_open_step_without_a_job_is_repaired_once() {
    let (lines, counts) = (Lines::default(), Counts::default());
    let (_logs, _metrics) = (lines.record(), counts.record());
    let engines = vec![eager("a"), eager("b"), eager("c")];
    let world = World::with(store(), CHAIN, engines).await;
    for number in 0..20 {
        let run_id = RunId::derived("f", &format!("planted {number}"));
        let (input, tags) = (payload(1), BTreeMap::new());
        let (priority, due) = (None, Due::Now);
        let request = Start {
            run_id,
            input,
            key: None,
            tags,
            priority,
            due,
            gate: flowgate_core::gate::GateStamp::default(),
            instance: None,
            pool: None,
        };
        let mut commit = start(&world.flow, &request, CommitIds::new(1).next());
        commit.jobs.clear();
        let outcomes = world.store.commit(vec![commit], None).await.unwrap();
        assert!(matches!(outcomes[..], [CommitOutcome::Applied { .. }]));
        is(&world.ended(run_id).await, RunStatus::Completed);
        let story = world.story(run_id).await;
        assert_eq!(story.iter().filter(|event| *event == "step.repaired a").count(), 1);
    }
    assert_eq!(counts.sum("flowgate_reconciler_repairs_total"), 20);
    assert_eq!(lines.with(&["ERROR", "a run was stuck; it is repaired", "run_id="]).len(), 20);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn runs_that_are_worked_on_by_two_instances_are_never_repaired() {
    let (lines, counts) = (Lines::default(), Counts::default());
    let (_logs, _metrics) = (lines.record(), counts.record());
    let world = World::with(store(), CHAIN, vec![eager("a"), eager("b")]).await;
    let runs = futures_util::future::join_all((0..1_000).map(|number| world.start(number))).await;
    for run_id in runs {
        is(&world.ended(run_id).await, RunStatus::Completed);
    }
    assert_eq!(counts.sum("flowgate_steps_total{outcome=succeeded"), 3_000);
    assert_eq!(counts.sum("flowgate_reconciler_repairs_total"), 0);
    assert!(lines.with(&["ERROR"]).is_empty());
    world.shutdown().await;
}
