//! Waits, signals and cancelling.

use std::time::Duration;

use flowgate_core::decide::Rejection;
use flowgate_core::run::RunStatus;
use flowgate_engine::{EngineError, HandlerError, StepContext, Workers};
use serde_json::{Value, json};

use crate::world::{World, eventually, is, payload};

fn workers() -> Workers {
    let mut workers = Workers::new();
    workers.register("echo", |input: Value, _: StepContext| async move {
        Ok::<Value, HandlerError>(input)
    });
    workers
}

async fn approval(rest: &str) -> World {
    let yaml = format!(
        "{{flow: f, steps: {{
            a: {{run: {{worker: echo}}}},
            wait: {{subscribes: ['step:a'], emits: [approved, late],
                wait: {{signal: approval, match: {{ok: true}}{rest}}}}},
            b: {{subscribes: [approved], run: {{worker: echo}}}},
            c: {{subscribes: [late], run: {{worker: echo}}}}}}}}"
    );
    World::new(&yaml, workers()).await
}

#[tokio::test(start_paused = true)]
async fn a_signal_ends_a_wait_that_has_begun() {
    let world = approval("").await;
    let run_id = world.start(json!(null)).await;
    eventually("the run waits", || async {
        let detail = world.store.read_run(run_id).await.unwrap().unwrap();
        detail.row.run.status == RunStatus::Waiting
    })
    .await;
    let engine = world.engine();
    engine.signal(run_id, "approval", payload(json!({ "ok": false }))).await.unwrap();
    engine.signal(run_id, "approval", payload(json!({ "ok": true, "by": "x" }))).await.unwrap();
    is(&world.ended(run_id).await, RunStatus::Completed);
    let expected = json!({ "approved": { "ok": true, "by": "x" } });
    assert_eq!(world.result(run_id, "b").await, expected);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_signal_that_came_first_is_kept() {
    let world = World::new(
        "{flow: f, steps: {
            a: {wait: {delay: 10s}, emits: [x]},
            wait: {subscribes: [x], wait: {signal: approval}, emits: [approved]},
            b: {subscribes: [approved], run: {worker: echo}}}}",
        workers(),
    )
    .await;
    let run_id = world.start(json!(null)).await;
    world.engine().signal(run_id, "approval", payload(1)).await.unwrap();
    let ended = world.ended(run_id).await;
    is(&ended, RunStatus::Completed);
    assert_eq!(world.result(run_id, "b").await, json!({ "approved": 1 }));
    let took = ended.row.ended_at.unwrap().since(ended.row.started_at);
    assert!(took >= Duration::from_secs(10) && took < Duration::from_secs(13), "{took:?}");
    let unknown = world.engine().signal(run_id, "other", payload(1)).await;
    assert!(matches!(unknown, Err(EngineError::Rejected(Rejection::RunEnded(_)))), "{unknown:?}");
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_timeout_fails_continues_or_emits() {
    let rows = [
        (", timeout: 1h, on_timeout: fail", RunStatus::Failed, "run.failed wait"),
        (", timeout: 1h, on_timeout: continue", RunStatus::Completed, "step.succeeded b"),
        (", timeout: 1h, on_timeout: {emit: late}", RunStatus::Completed, "step.succeeded c"),
    ];
    for (rest, status, event) in rows {
        let world = approval(rest).await;
        let ended = world.run(json!(null)).await;
        is(&ended, status);
        let story = world.story(ended.row.run.run_id).await;
        assert!(story.contains(&event.to_owned()), "{rest}: {story:#?}");
        world.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn cancel_ends_what_waits_and_what_runs() {
    let mut workers = workers();
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    workers.register("endless", move |_: Value, ctx: StepContext| {
        let told = told.clone();
        async move {
            let _guard = Told(told, ctx.clone());
            std::future::pending::<Result<(), HandlerError>>().await
        }
    });
    let world = World::new(
        "{flow: f, steps: {
            a: {run: {worker: echo}},
            run: {subscribes: ['step:a'], run: {worker: endless}},
            wait: {subscribes: ['step:a'], wait: {delay: 1h}}}}",
        workers,
    )
    .await;
    let run_id = world.start(json!(null)).await;
    eventually("the step runs", || async {
        world.story(run_id).await.contains(&"step.started run".to_owned())
    })
    .await;
    world.engine().cancel(run_id, Some("enough")).await.unwrap();
    is(&world.ended(run_id).await, RunStatus::Cancelled);
    assert!(heard.recv().await.unwrap(), "the handler was told");
    let again = world.engine().cancel(run_id, None).await;
    assert!(matches!(again, Err(EngineError::Rejected(Rejection::RunEnded(_)))), "{again:?}");
    eventually("nothing is left", || async { world.engine().is_idle() }).await;
    world.shutdown().await;
}

/// Says when its handler is dropped, and whether it was told to stop before.
struct Told(tokio::sync::mpsc::UnboundedSender<bool>, StepContext);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.send(self.1.is_cancelled()).expect("the test listens");
    }
}
