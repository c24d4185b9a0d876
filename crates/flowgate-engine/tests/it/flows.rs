//! What flows do, on one engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use flowgate_core::run::{RunStatus, StepState};
use flowgate_engine::{EngineError, HandlerError, RetryOn, StartRequest, StepContext, Workers};
use flowgate_store::LogLevel;
use serde_json::{Value, json};

use crate::world::{World, eventually, is, payload};

type Done = Result<Value, HandlerError>;

/// A handler that emits everything its step declares and returns its input.
fn echo(workers: &mut Workers, name: &str, emits: &'static [&'static str]) {
    workers.register(name, move |input: Value, ctx: StepContext| async move {
        for event in emits {
            ctx.emit(event, &json!({ "from": ctx.step(), "attempt": ctx.attempt() }))?;
        }
        Done::Ok(input)
    });
}

#[tokio::test(start_paused = true)]
async fn a_chain_hands_payloads_on() {
    let mut workers = Workers::new();
    echo(&mut workers, "first", &["done"]);
    echo(&mut workers, "second", &[]);
    let world = World::new(
        "{flow: chain, steps: {
            a: {run: {worker: first}, emits: [done]},
            b: {subscribes: [done], run: {worker: second}}}}",
        workers,
    )
    .await;
    let ended = world.run(json!({ "n": 1 })).await;
    is(&ended, RunStatus::Completed);
    let run_id = ended.row.run.run_id;
    assert_eq!(world.result(run_id, "a").await, json!({ "n": 1 }));
    let expected = json!({ "done": { "from": "a", "attempt": 1 } });
    assert_eq!(world.result(run_id, "b").await, expected);
    assert!(world.engine().is_idle());
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_diamond_joins_once_and_any_starts_on_the_first() {
    let mut workers = Workers::new();
    echo(&mut workers, "start", &["go"]);
    echo(&mut workers, "left", &["l"]);
    echo(&mut workers, "right", &["r"]);
    echo(&mut workers, "end", &[]);
    let world = World::new(
        "{flow: diamond, steps: {
            start: {run: {worker: start}, emits: [go]},
            left: {subscribes: [go], run: {worker: left}, emits: [l]},
            right: {subscribes: [go], run: {worker: right}, emits: [r]},
            join: {subscribes: [l, r], run: {worker: end}},
            first: {subscribes: {any: [l, r]}, run: {worker: end}},
            pure: {subscribes: ['step:join', 'step:first']}}}",
        workers,
    )
    .await;
    let ended = world.run(json!(null)).await;
    is(&ended, RunStatus::Completed);
    let run_id = ended.row.run.run_id;
    let both = world.result(run_id, "join").await;
    assert_eq!(both["l"]["from"], "left");
    assert_eq!(both["r"]["from"], "right");
    assert!(!world.result(run_id, "first").await.as_object().unwrap().is_empty());
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_is_subscribed_to_does_not_fail_the_run() {
    let mut workers = Workers::new();
    echo(&mut workers, "echo", &[]);
    workers.register("boom", |_: Value, _| async { Done::Err(HandlerError::fatal("no money")) });
    let world = World::new(
        "{flow: f, steps: {
            a: {run: {worker: boom}, emits: [ok]},
            then: {subscribes: [ok], run: {worker: echo}},
            undo: {subscribes: ['step.failed:a'], run: {worker: echo}}}}",
        workers,
    )
    .await;
    let ended = world.run(json!(1)).await;
    is(&ended, RunStatus::Completed);
    let run = &ended.row.run;
    let index = world.flow.step_index("then").unwrap();
    assert_eq!(run.step(index).state, StepState::Skipped);
    let input = world.result(run.run_id, "undo").await;
    assert_eq!(input["step.failed:a"]["message"], "no money");
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn retries_back_off_in_store_time_and_keep_the_key() {
    let mut workers = Workers::new();
    workers.register("flaky", |_: Value, ctx: StepContext| async move {
        if ctx.attempt() < 3 {
            return Err(std::io::Error::other("not yet").into());
        }
        Done::Ok(json!([ctx.attempt(), ctx.key()]))
    });
    let world = World::new(
        "{flow: f, steps: {a: {run: {worker: flaky},
            retry: {attempts: 3, backoff: {initial: 2s, factor: 3, jitter: 0}}}}}",
        workers,
    )
    .await;
    let ended = world.run(json!(null)).await;
    is(&ended, RunStatus::Completed);
    let run_id = ended.row.run.run_id;
    assert_eq!(world.result(run_id, "a").await, json!([3, format!("{run_id}/a/1")]));
    let took = ended.row.ended_at.unwrap().since(ended.row.started_at);
    assert!(took >= Duration::from_secs(8) && took < Duration::from_secs(11), "{took:?}");
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn each_way_to_fail_has_its_kind() {
    let mut workers = Workers::new();
    workers.register("fatal", |_: Value, _| async { Done::Err(HandlerError::fatal("no")) });
    workers.register("panic", |_: Value, _: StepContext| async {
        let bug: fn() -> Done = || panic!("a bug");
        bug()
    });
    workers.register("late_panic", |_: Value, _: StepContext| async {
        tokio::task::yield_now().await;
        let bug: fn() -> Done = || panic!("a late bug");
        bug()
    });
    workers.register("slow", |_: Value, _| async {
        std::future::pending::<()>().await;
        Done::Ok(json!(null))
    });
    workers.register("undeclared", |_: Value, ctx: StepContext| async move {
        ctx.emit("other", &1)?;
        Done::Ok(json!(null))
    });
    workers.register("typed", |_: u32, _| async { Done::Ok(json!(null)) });
    workers.register("anyhow", |_: Value, _| async { Err::<(), _>(anyhow::anyhow!("context")) });
    let rows = [
        ("fatal", "Final", "no", 1),
        ("panic", "Panicked", "the handler panicked: a bug", 2),
        ("late_panic", "Panicked", "a late bug", 2),
        ("slow", "TimedOut", "timeout of 3s", 2),
        ("undeclared", "Invalid", "`other`", 1),
        ("typed", "Invalid", "does not fit", 1),
        ("anyhow", "Failed", "context", 2),
    ];
    for (worker, kind, message, attempts) in rows {
        let yaml = format!(
            "{{flow: f, steps: {{a: {{run: {{worker: {worker}}}, timeout: 3s, emits: [e],
                retry: {{attempts: 2, backoff: {{initial: 10ms}}}}}}}}}}"
        );
        let world = World::new(&yaml, workers.clone()).await;
        let ended = world.run("text").await;
        is(&ended, RunStatus::Failed);
        let failure = world.failure(ended.row.run.run_id).await;
        assert_eq!(failure.0, kind, "{worker}");
        assert!(failure.1.contains(message), "{worker}: {}", failure.1);
        assert_eq!(ended.row.run.steps[0].failures, attempts, "{worker}");
        world.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn emit_now_starts_a_subscriber_while_the_emitter_runs() {
    let mut workers = Workers::new();
    let seen = Arc::new(tokio::sync::Notify::new());
    let other = Arc::clone(&seen);
    workers.register("emitter", move |_: Value, ctx: StepContext| {
        let seen = Arc::clone(&seen);
        async move {
            ctx.emit_now("early", &json!(7)).await?;
            seen.notified().await;
            ctx.emit("early", &json!(8))?;
            Done::Ok(json!(null))
        }
    });
    workers.register("subscriber", move |input: Value, _| {
        other.notify_one();
        async move { Done::Ok(input) }
    });
    let world = World::new(
        "{flow: f, steps: {
            a: {run: {worker: emitter}, emits: [early]},
            b: {subscribes: [early], run: {worker: subscriber}}}}",
        workers,
    )
    .await;
    let ended = world.run(json!(null)).await;
    is(&ended, RunStatus::Completed);
    let run_id = ended.row.run.run_id;
    assert_eq!(world.result(run_id, "b").await, json!({ "early": 7 }));
    assert!(world.story(run_id).await.contains(&"event.repeated a".to_owned()));
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn state_survives_to_later_steps_and_own_sets_come_first() {
    let mut workers = Workers::new();
    workers.register("set", |_: Value, ctx: StepContext| async move {
        ctx.state_set("count", &1)?;
        ctx.state_set("count", &2)?;
        let own: Option<u32> = ctx.state_get("count").await?;
        ctx.emit("set", &own)?;
        Done::Ok(json!(own))
    });
    workers.register("get", |_: Value, ctx: StepContext| async move {
        let (count, none) =
            (ctx.state_get::<u32>("count").await?, ctx.state_get::<u32>("x").await?);
        Done::Ok(json!([count, none]))
    });
    let world = World::new(
        "{flow: f, steps: {
            a: {run: {worker: set}, emits: [set]},
            b: {subscribes: [set], run: {worker: get}}}}",
        workers,
    )
    .await;
    let run_id = world.run(json!(null)).await.row.run.run_id;
    assert_eq!(world.result(run_id, "a").await, json!(2));
    assert_eq!(world.result(run_id, "b").await, json!([2, null]));
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn five_thousand_log_lines_are_kept_in_order() {
    let mut workers = Workers::new();
    workers.register("chatty", |_: Value, ctx: StepContext| async move {
        for number in 0..5_000 {
            ctx.log(LogLevel::Info, &format!("line {number}"));
        }
        ctx.log(LogLevel::Error, &"x".repeat(100_000));
        Done::Ok(json!(null))
    });
    let world = World::new("{flow: f, steps: {a: {run: {worker: chatty}}}}", workers).await;
    let ended = world.run(json!(null)).await;
    is(&ended, RunStatus::Completed);
    world.engine().flush_logs().await;
    let lines = world.store.read_logs(ended.row.run.run_id, 0, 10_000).await.unwrap();
    assert_eq!(lines.len(), 5_001);
    for (number, line) in lines[..5_000].iter().enumerate() {
        assert_eq!(line.line.text, format!("line {number}"));
    }
    assert!(lines[5_000].line.text.len() <= flowgate_core::limits::LOG_LINE_BYTES_MAX);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_long_step_is_shown_while_it_runs_and_a_short_one_is_not() {
    let mut workers = Workers::new();
    let go = Arc::new(tokio::sync::Notify::new());
    let gone = Arc::clone(&go);
    workers.register("long", move |_: Value, _| {
        let gone = Arc::clone(&gone);
        async move {
            gone.notified().await;
            Done::Ok(json!(null))
        }
    });
    let world = World::new("{flow: f, steps: {a: {run: {worker: long}}}}", workers).await;
    let run_id = world.start(json!(null)).await;
    assert!(!world.story(run_id).await.contains(&"step.started a".to_owned()));
    eventually("the step is shown", || async {
        world.story(run_id).await.contains(&"step.started a".to_owned())
    })
    .await;
    go.notify_one();
    let ended = world.ended(run_id).await;
    is(&ended, RunStatus::Completed);
    let story = world.story(run_id).await;
    assert_eq!(story.iter().filter(|event| *event == "step.started a").count(), 1);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_key_gives_one_run_and_refuses_another_input() {
    let mut workers = Workers::new();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    workers.register("count", move |_: Value, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Done::Ok(json!(null)) }
    });
    let world = World::new("{flow: f, steps: {a: {run: {worker: count}}}}", workers).await;
    let request =
        |input| StartRequest { key: Some("order-7".into()), ..StartRequest::new(payload(input)) };
    let starts = (0..20).map(|_| world.engine().start_run("f", request(1)));
    let started = futures_util::future::try_join_all(starts).await.unwrap();
    assert_eq!(started.iter().filter(|started| !started.existing).count(), 1);
    assert!(started.iter().all(|one| one.run_id == started[0].run_id));
    world.ended(started[0].run_id).await;
    let conflict = world.engine().start_run("f", request(2)).await;
    assert!(matches!(conflict, Err(EngineError::KeyConflict { .. })), "{conflict:?}");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_run_is_tried_again_from_where_it_failed() {
    let mut workers = Workers::new();
    echo(&mut workers, "first", &["done"]);
    let broken = Arc::new(AtomicU32::new(1));
    let state = Arc::clone(&broken);
    workers.register("second", move |input: Value, _| {
        let is_broken = state.load(Ordering::SeqCst) == 1;
        async move { if is_broken { Err(HandlerError::fatal("broken")) } else { Done::Ok(input) } }
    });
    let world = World::new(
        "{flow: f, steps: {
            a: {run: {worker: first}, emits: [done]},
            b: {subscribes: [done], run: {worker: second}}}}",
        workers,
    )
    .await;
    let failed = world.run(json!(null)).await;
    is(&failed, RunStatus::Failed);
    broken.store(0, Ordering::SeqCst);
    let again = world.engine().retry(failed.row.run.run_id, None, &RetryOn::Pinned).await.unwrap();
    let ended = world.ended(again.run_id).await;
    is(&ended, RunStatus::Completed);
    assert!(world.story(again.run_id).await.contains(&"step.carried a".to_owned()));
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_committed_can_be_listened_to() {
    let mut workers = Workers::new();
    echo(&mut workers, "first", &["done"]);
    echo(&mut workers, "second", &[]);
    let world = World::new(
        "{flow: chain, steps: {
            a: {run: {worker: first}, emits: [done]},
            b: {subscribes: [done], run: {worker: second}}}}",
        workers,
    )
    .await;
    let mut live = world.engine().events();
    let run_id = world.run(json!(null)).await.row.run.run_id;
    let mut heard = Vec::new();
    while let Ok(applied) = live.try_recv() {
        heard.extend(applied.events.iter().map(|event| event.kind().to_owned()));
    }
    let told: Vec<String> =
        world.events(run_id).await.iter().map(|event| event.kind().to_owned()).collect();
    assert_eq!(heard, told);
    world.shutdown().await;
}
