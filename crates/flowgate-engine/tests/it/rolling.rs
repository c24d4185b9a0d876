//! Instances come and go while runs go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use flowgate_core::event::Event;
use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use flowgate_engine::{Engine, EngineConfig, HandlerError, StartRequest, StepContext, Workers};
use flowgate_store::{Queues, Store};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::recorder::Counts;
use crate::world::{World, config, eventually, is, payload, store};

const CHAIN: &str = "{flow: f, steps: {
    a: {run: {worker: work}, emits: [a.done], retry: {attempts: 1}},
    b: {subscribes: [a.done], run: {worker: work}, emits: [b.done], retry: {attempts: 1}},
    c: {subscribes: [b.done], run: {worker: work}, retry: {attempts: 1}}}}";

async fn pause(span: Duration) {
    drop(timeout(span, std::future::pending::<()>()).await);
}

/// Handlers that take `span`; how many executions were begun.
fn workers(span: Duration) -> (Workers, Arc<AtomicU32>) {
    let begun = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&begun);
    let mut workers = Workers::new();
    workers.register("work", move |_: Value, ctx: StepContext| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            pause(span).await;
            match ctx.step() {
                "c" => {}
                step => ctx.emit(&format!("{step}.done"), &())?,
            }
            Ok::<(), HandlerError>(())
        }
    });
    (workers, begun)
}

fn starter() -> EngineConfig {
    EngineConfig { queues: Queues::Only(vec!["none".into()]), ..config("starter") }
}

fn instance(store: &Arc<dyn Store>, workers: &Workers, name: &str, grace: Duration) -> Engine {
    let config = EngineConfig { shutdown_grace: grace, slots: 16, ..config(name) };
    Engine::start(Arc::clone(store), workers.clone(), config).unwrap()
}

/// Starts `count` runs, one every 10 ms.
async fn load(world: &World, count: u32) -> Vec<RunId> {
    let mut runs = Vec::new();
    for number in 0..count {
        let request = StartRequest::new(payload(number));
        runs.push(world.engine().start_run(&world.flow, request).await.unwrap().run_id);
        pause(Duration::from_millis(10)).await;
    }
    runs
}

/// Restarts three instances one after the other, three times, under load.
async fn roll(grace: Duration, span: Duration) -> u64 {
    let counts = Counts::default();
    let _metrics = counts.record();
    let store = store();
    let (workers, _) = workers(span);
    let world = World::with(Arc::clone(&store), CHAIN, vec![(Workers::new(), starter())]).await;
    let mut instances: Vec<Engine> = ["i0", "i1", "i2"]
        .into_iter()
        .map(|name| instance(&store, &workers, name, grace))
        .collect();
    let restarts = async {
        for round in 1..=9 {
            pause(Duration::from_millis(400)).await;
            instances.remove(0).shutdown().await;
            instances.push(instance(&store, &workers, &format!("i{}", round + 2), grace));
        }
    };
    let (runs, ()) = tokio::join!(load(&world, 600), restarts);
    for run_id in runs {
        let ended = world.ended(run_id).await;
        is(&ended, RunStatus::Completed);
        for step in &ended.row.run.steps {
            assert_eq!((step.attempt, step.failures, step.lost), (1, 0, 0), "{:#?}", ended.row.run);
        }
    }
    for engine in instances {
        engine.shutdown().await;
    }
    world.shutdown().await;
    assert_eq!(counts.sum("flowgate_leases_lost_total"), 0);
    assert_eq!(counts.sum("flowgate_reconciler_repairs_total"), 0);
    counts.sum("flowgate_steps_total{outcome=released")
}

#[tokio::test(start_paused = true)]
async fn a_rolling_restart_under_load_loses_nothing_and_burns_no_attempt() {
    let released = roll(Duration::from_secs(10), Duration::from_millis(20)).await;
    assert_eq!(released, 0, "all that had begun finished within the grace");
}

#[tokio::test(start_paused = true)]
async fn a_rolling_restart_that_hands_attempts_back_burns_none_either() {
    let released = roll(Duration::from_millis(1), Duration::from_millis(100)).await;
    assert!(released > 0, "some were handed back");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_starts_changes_no_run_of_the_others() {
    let store = store();
    let (go, _) = watch::channel(false);
    let mut workers = Workers::new();
    let waited = go.clone();
    workers.register("work", move |_: Value, ctx: StepContext| {
        let mut gone = waited.subscribe();
        async move {
            gone.wait_for(|go| *go).await.expect("the test lets it go");
            match ctx.step() {
                "c" => {}
                step => ctx.emit(&format!("{step}.done"), &())?,
            }
            Ok::<(), HandlerError>(())
        }
    });
    let grace = Duration::from_secs(10);
    let mut world = World::with(Arc::clone(&store), CHAIN, vec![(Workers::new(), starter())]).await;
    for name in ["a", "b", "c"] {
        let config = EngineConfig { shutdown_grace: grace, slots: 40, ..config(name) };
        world.engines.push(Engine::start(Arc::clone(&store), workers.clone(), config).unwrap());
    }
    let runs = futures_util::future::join_all((0..100).map(|number| world.start(number))).await;
    let is_running = async |run_id: &RunId| {
        let log = world.events(*run_id).await;
        log.iter().any(|event| matches!(event, Event::StepStarted { .. }))
    };
    for run_id in &runs {
        eventually("it runs", || is_running(run_id)).await;
    }
    let mut before = Vec::new();
    for run_id in &runs {
        before.push(world.events(*run_id).await);
    }
    let fourth = instance(&store, &workers, "d", grace);
    pause(Duration::from_mins(3)).await;
    for (run_id, before) in runs.iter().zip(before) {
        assert_eq!(world.events(*run_id).await, before, "nothing happened to it");
    }
    go.send_replace(true);
    for run_id in runs {
        let ended = world.ended(run_id).await;
        is(&ended, RunStatus::Completed);
        assert!(ended.row.run.steps.iter().all(|step| step.attempt == 1 && step.lost == 0));
    }
    fourth.shutdown().await;
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_hundred_runs_over_ten_instances_are_rarely_contended() {
    let counts = Counts::default();
    let _metrics = counts.record();
    let store = store();
    let (workers, begun) = workers(Duration::from_millis(5));
    let mut world = World::with(Arc::clone(&store), CHAIN, vec![(Workers::new(), starter())]).await;
    for number in 0..10 {
        let engine = instance(&store, &workers, &format!("i{number}"), Duration::from_secs(10));
        world.engines.push(engine);
    }
    let starts = (0..100)
        .map(|number| world.engine().run_to_end(&world.flow, StartRequest::new(payload(number))));
    for run in futures_util::future::join_all(starts).await {
        assert_eq!(run.unwrap().status, RunStatus::Completed);
    }
    assert_eq!(begun.load(Ordering::SeqCst), 300, "each step was executed once");
    let refused: u64 = (0..10)
        .map(|n| counts.sum(&format!("flowgate_commits_total{{instance=i{n},outcome=run_version")))
        .sum();
    let total = counts.sum("flowgate_commits_total");
    assert!(refused * 20 < total, "{refused} of {total} commits were refused");
    world.shutdown().await;
}
