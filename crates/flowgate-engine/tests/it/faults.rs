//! Several instances, and stores that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use flowgate_core::run::RunStatus;
use flowgate_engine::{Engine, EngineError, HandlerError, StartRequest, StepContext, Workers};
use flowgate_store::faulty::{Call, Fault, Faulty};
use flowgate_store::{Queues, Store};
use serde_json::{Value, json};

use crate::world::{World, config, eventually, is, payload, store};

const DIAMOND: &str = "{flow: diamond, steps: {
    start: {run: {worker: work}, emits: [go]},
    left: {subscribes: [go], run: {worker: work}, emits: [l]},
    right: {subscribes: [go], run: {worker: work}, emits: [r]},
    join: {subscribes: [l, r], run: {worker: work}}}}";

/// Handlers of the diamond; how often the join ran.
fn workers() -> (Workers, Arc<AtomicU32>) {
    let joins = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&joins);
    let mut workers = Workers::new();
    workers.register("work", move |_: Value, ctx: StepContext| {
        let counted = Arc::clone(&counted);
        async move {
            match ctx.step() {
                "start" => ctx.emit("go", &())?,
                "left" => ctx.emit("l", &())?,
                "right" => ctx.emit("r", &())?,
                _ => {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            }
            // The other instance gets a chance to claim.
            tokio::task::yield_now().await;
            Ok::<(), HandlerError>(())
        }
    });
    (workers, joins)
}

#[tokio::test(start_paused = true)]
async fn two_engines_join_each_of_200_diamonds_once() {
    let (workers, joins) = workers();
    // Two slots each: hand-offs rarely find room, so both instances claim jobs of every run.
    let small = |name| {
        let mut config = config(name);
        config.slots = 2;
        (workers.clone(), config)
    };
    let world = World::with(store(), DIAMOND, vec![small("a"), small("b")]).await;
    let runs = futures_util::future::join_all((0..200).map(|number| world.start(number))).await;
    let mut instances = std::collections::BTreeSet::new();
    for run_id in runs {
        is(&world.ended(run_id).await, RunStatus::Completed);
        let events = world.events(run_id).await;
        let leases = events.iter().filter_map(|event| event.lease());
        instances.extend(leases.map(|lease| lease.instance.to_string()));
    }
    assert_eq!(joins.load(Ordering::SeqCst), 200);
    assert_eq!(instances.len(), 2, "both took part");
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn lost_replies_lose_and_double_nothing() {
    let (workers, joins) = workers();
    let faulty = Arc::new(Faulty::new(store()));
    let world = World::with(faulty.clone(), DIAMOND, vec![(workers, config("a"))]).await;
    let mut runs = Vec::new();
    for number in 0..50 {
        faulty.plan(Call::Commit, Fault::ReplyLost, 2);
        runs.push(world.start(number).await);
        // The next one is of a step.
        faulty.plan(Call::Commit, Fault::ReplyLost, 1);
        tokio::task::yield_now().await;
    }
    for run_id in runs {
        let ended = world.ended(run_id).await;
        is(&ended, RunStatus::Completed);
        assert!(ended.row.run.steps.iter().all(|step| step.lost == 0 && step.attempt == 1));
    }
    assert_eq!(joins.load(Ordering::SeqCst), 50);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_pauses_runs_and_they_resume() {
    let (workers, joins) = workers();
    let faulty = Arc::new(Faulty::new(store()));
    let world = World::with(faulty.clone(), DIAMOND, vec![(workers, config("a"))]).await;
    let run_id = world.start(json!(null)).await;
    let calls = [Call::Commit, Call::Claim, Call::WaitDue, Call::Renew, Call::Read];
    for call in calls {
        faulty.plan(call, Fault::NotDone, u32::MAX);
    }
    let request = StartRequest::new(payload(2));
    let start = world.engine().start_run(&world.flow, request);
    let end_outage = async {
        tokio::time::advance(Duration::from_secs(5)).await;
        for call in calls {
            faulty.plan(call, Fault::NotDone, 0);
        }
    };
    let (second, ()) = tokio::join!(start, end_outage);
    is(&world.ended(run_id).await, RunStatus::Completed);
    is(&world.ended(second.unwrap().run_id).await, RunStatus::Completed);
    assert_eq!(joins.load(Ordering::SeqCst), 2);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn faults_at_random_break_no_invariant() {
    for seed in 1..=4 {
        let (workers, joins) = workers();
        let inner = store();
        // The first only starts runs; the others execute them on a store that fails.
        let mut starter = config("starter");
        starter.queues = Queues::Only(vec!["none".into()]);
        let engines = vec![(Workers::new(), starter)];
        let mut world = World::with(Arc::clone(&inner), DIAMOND, engines).await;
        for name in ["a", "b"] {
            let faulty: Arc<dyn Store> = Arc::new(Faulty::random(Arc::clone(&inner), seed, 0.2));
            let mut config = config(name);
            config.slots = 4;
            world.engines.push(Engine::start(faulty, workers.clone(), config).unwrap());
        }
        let runs = futures_util::future::join_all((0..60).map(|n| world.start(n))).await;
        for run_id in runs {
            is(&world.ended(run_id).await, RunStatus::Completed);
        }
        assert!(joins.load(Ordering::SeqCst) >= 60);
        world.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_whose_lease_is_lost_too_often_fails() {
    let mut workers = Workers::new();
    workers.register("work", |_: Value, _: StepContext| async {
        std::future::pending::<Result<(), HandlerError>>().await
    });
    let faulty = Arc::new(Faulty::new(store()));
    let yaml = "{flow: f, steps: {a: {run: {worker: work}}}}";
    let world = World::with(faulty.clone(), yaml, vec![(workers, config("a"))]).await;
    faulty.plan(Call::Renew, Fault::NotDone, u32::MAX);
    let ended = world.run(json!(null)).await;
    is(&ended, RunStatus::Failed);
    let (kind, message) = world.failure(ended.row.run.run_id).await;
    assert_eq!(kind, "Lost");
    assert!(message.contains("25 times"), "{message}");
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn reports_of_one_run_that_come_together_are_joined() {
    let mut workers = Workers::new();
    workers.register("work", |_: Value, ctx: StepContext| async move {
        match ctx.step() {
            "start" => ctx.emit("go", &())?,
            step => ctx.emit(&format!("{step}.done"), &())?,
        }
        Ok::<(), HandlerError>(())
    });
    let fan: Vec<String> = (0..20)
        .map(|n| format!("f{n}: {{subscribes: [go], run: {{worker: work}}, emits: [f{n}.done]}}"))
        .collect();
    let all: Vec<String> = (0..20).map(|n| format!("f{n}.done")).collect();
    let yaml = format!(
        "{{flow: f, steps: {{start: {{run: {{worker: work}}, emits: [go]}}, {},
            join: {{subscribes: [{}]}}}}}}",
        fan.join(", "),
        all.join(", ")
    );
    let world = World::new(&yaml, workers).await;
    let mut commits = world.engine().events();
    is(&world.run(json!(null)).await, RunStatus::Completed);
    // The start, the first step, and all twenty at once: on one thread nothing tears them apart.
    assert_eq!(std::iter::from_fn(|| commits.try_recv().ok()).count(), 3);
    eventually("nothing is left", || async { world.engine().is_idle() }).await;
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_is_told_that_others_are_faster_and_an_attempt_is_tried_on() {
    let faulty = Arc::new(Faulty::new(store()));
    let yaml = "{flow: f, steps: {
        w: {wait: {signal: go, timeout: 1h, on_timeout: fail}, emits: [w.done]},
        a: {subscribes: [w.done], run: {worker: slow}}}}";
    let mut workers = Workers::new();
    workers.register("slow", |_: Value, _: StepContext| async {
        let nothing = std::future::pending::<()>();
        drop(tokio::time::timeout(Duration::from_secs(1), nothing).await);
        Ok::<(), HandlerError>(())
    });
    let engines = vec![(workers, config("a"))];
    let world = World::with(Arc::clone(&faulty) as Arc<dyn Store>, yaml, engines).await;
    let run_id = world.start(1).await;
    let before = world.events(run_id).await;
    faulty.come_second(101);
    let refused = world.engine().signal(run_id, "go", payload(1)).await;
    assert!(matches!(refused, Err(EngineError::Contended)), "{refused:?}");
    assert_eq!(world.events(run_id).await, before, "what was refused left nothing");
    faulty.come_second(100);
    world.engine().signal(run_id, "go", payload(1)).await.unwrap();
    // Nobody waits for the end of an attempt, which is tried until it is applied.
    faulty.come_second(300);
    is(&world.ended(run_id).await, RunStatus::Completed);
    world.shutdown().await;
}
