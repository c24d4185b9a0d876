//! What an instance does while it is strained.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flowgate_core::flow::Flow;
use flowgate_core::ids::InstanceId;
use flowgate_core::run::RunStatus;
use flowgate_engine::{
    Bounds, Degradation, DegradationConfig, Engine, EngineConfig, EngineError, HandlerError,
    Leadership, RetryOn, SchedulerConfig, StartRequest, StepContext, Workers,
};
use flowgate_store::faulty::{Call, Fault, Faulty};
use flowgate_store::{MemoryStore, Queues, RunQuery, Store};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::recorder::{Counts, Lines};
use crate::world::{World, config, eventually, is, payload, store};

const ONE: &str = "{flow: f, steps: {a: {run: {worker: work}}}}";

fn working() -> Workers {
    let mut workers = Workers::new();
    workers.register("work", |_: Value, _: StepContext| async { Ok::<(), HandlerError>(()) });
    workers
}

/// How long it takes until the level is this, at most two minutes.
async fn becomes(level: &mut watch::Receiver<Degradation>, expected: Degradation) -> Duration {
    let began = Instant::now();
    let changed = timeout(Duration::from_mins(2), level.wait_for(|level| *level == expected)).await;
    drop(changed.expect("it changes").expect("the engine is there"));
    began.elapsed()
}

fn slow_beats(faulty: &Faulty, delay_ms: u64) {
    let times = if delay_ms == 0 { 0 } else { u32::MAX };
    faulty.plan(Call::Beat, Fault::Delayed(Duration::from_millis(delay_ms)), times);
}

#[tokio::test(start_paused = true)]
async fn a_critical_instance_refuses_new_runs_and_finishes_those_that_it_has() {
    let (lines, counts) = (Lines::default(), Counts::default());
    let (_logs, _metrics) = (lines.record(), counts.record());
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begin, end) = (Arc::clone(&begun), Arc::clone(&go_on));
    let mut workers = Workers::new();
    workers.register("work", move |_: Value, _: StepContext| {
        let (begin, end) = (Arc::clone(&begin), Arc::clone(&end));
        async move {
            begin.notify_one();
            end.notified().await;
            Ok::<(), HandlerError>(())
        }
    });
    let faulty = Arc::new(Faulty::new(store()));
    let world = World::with(faulty.clone(), ONE, vec![(workers, config("a"))]).await;
    let engine = world.engine();
    let accepted = world.start(1).await;
    begun.notified().await;
    let mut level = engine.degradation();
    assert_eq!(*level.borrow_and_update(), Degradation::Normal);

    slow_beats(&faulty, 1_200);
    let took = becomes(&mut level, Degradation::Critical).await;
    assert!(took > Duration::from_secs(4), "one slow answer is no strain: {took:?}");
    let refused = engine.start_run(&world.flow, StartRequest::new(payload(1))).await.unwrap_err();
    let EngineError::Overloaded { cause, retry_after } = &refused else { panic!("{refused}") };
    assert_eq!(&**cause, "the store takes 1.2s");
    assert_eq!(*retry_after, Duration::from_secs(30));
    assert!(engine.run_to_end(&world.flow, StartRequest::new(payload(1))).await.is_err());
    eventually("it says so", async || {
        let beat = &world.store.list_instances().await.unwrap()[0].beat;
        beat.strained_by.as_deref() == Some("the store takes 1.2s")
            && beat.degradation == Degradation::Critical
    })
    .await;
    go_on.notify_one();
    is(&world.ended(accepted).await, RunStatus::Completed);
    assert!(
        engine.retry(accepted, Some("a"), &RetryOn::Pinned).await.is_err(),
        "a retry is a new run"
    );

    slow_beats(&faulty, 0);
    let took = becomes(&mut level, Degradation::Normal).await;
    assert!(took >= Duration::from_secs(30), "it falls late: {took:?}");
    go_on.notify_one();
    is(&world.run(2).await, RunStatus::Completed);
    assert_eq!(lines.with(&["WARN", "the instance is strained", "to=\"critical\""]).len(), 1);
    let falls = lines.with(&["INFO", "the instance is less strained", "from=\"critical\""]);
    assert_eq!(falls.len(), 1, "{falls:?}");
    assert_eq!(counts.sum("flowgate_degradation_level"), 0);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_degraded_instance_claims_less_and_takes_new_runs() {
    let faulty = Arc::new(Faulty::new(store()));
    let small = EngineConfig { slots: 16, ..config("a") };
    let world = World::with(faulty.clone(), ONE, vec![(working(), small)]).await;
    let client = EngineConfig { queues: Queues::Only(Vec::new()), ..config("client") };
    let client = Engine::start(faulty.clone(), Workers::new(), client).unwrap();
    let sixteen = async || {
        let began = Instant::now();
        let mut runs = Vec::new();
        for _ in 0..16 {
            let request = StartRequest::new(payload(1));
            runs.push(client.start_run(&world.flow, request).await.unwrap().run_id);
        }
        for run_id in runs {
            is(&world.ended(run_id).await, RunStatus::Completed);
        }
        began.elapsed()
    };
    let quick = sixteen().await;
    slow_beats(&faulty, 300);
    becomes(&mut world.engine().degradation(), Degradation::Degraded).await;
    let slow = sixteen().await;
    // Two at a time, a quarter of a second apart.
    assert!(slow >= quick + Duration::from_millis(1_500), "{quick:?}, {slow:?}");
    is(&world.run(1).await, RunStatus::Completed);
    client.shutdown().await;
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_not_taken_for_a_healthy_one() {
    for fault in [Fault::NotDone, Fault::Delayed(Duration::from_hours(1))] {
        let faulty = Arc::new(Faulty::new(store()));
        let world = World::with(faulty.clone(), ONE, vec![(working(), config("a"))]).await;
        faulty.plan(Call::Beat, fault, u32::MAX);
        becomes(&mut world.engine().degradation(), Degradation::Degraded).await;
        faulty.plan(Call::Beat, Fault::NotDone, 0);
        world.shutdown().await;
    }
}

/// A flow that completes at once, with a schedule.
fn scheduled(schedule: &str) -> Flow {
    Flow::parse(&format!("{{flow: f, steps: {{a: {{}}}}, schedules: {{tick: {schedule}}}}}"))
        .unwrap()
}

async fn runs_of(store: &dyn Store) -> u64 {
    store.count_runs(&RunQuery::default()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn schedules_of_a_critical_leader_pause_unless_it_is_told_otherwise() {
    for pauses_schedules in [true, false] {
        let faulty = Arc::new(Faulty::new(store()));
        let degradation = DegradationConfig { pauses_schedules, ..DegradationConfig::DEFAULT };
        let config = EngineConfig { degradation, ..config("a") };
        let engine = Engine::start(faulty.clone(), Workers::new(), config).unwrap();
        engine.register(&scheduled("{every: 1s}"), None).await.unwrap();
        let mut level = engine.degradation();
        slow_beats(&faulty, 1_200);
        becomes(&mut level, Degradation::Critical).await;
        let before = runs_of(&*faulty).await;
        sleep(Duration::from_secs(20)).await;
        let fired = runs_of(&*faulty).await - before;
        // One may have been on its way.
        assert_eq!(fired <= 1, pauses_schedules, "{fired}");
        slow_beats(&faulty, 0);
        becomes(&mut level, Degradation::Normal).await;
        let before = runs_of(&*faulty).await;
        sleep(Duration::from_secs(20)).await;
        assert!(runs_of(&*faulty).await - before >= 19);
        engine.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_degraded_leader_fires_what_is_due_and_catches_up_later() {
    let store = store();
    let dead = Arc::new(Faulty::new(Arc::clone(&store)));
    let schedules = Some(SchedulerConfig::with_lease(Duration::from_mins(1)));
    let first = EngineConfig { schedules, ..config("a") };
    let first = Engine::start(dead.clone(), Workers::new(), first).unwrap();
    first.register(&scheduled("{every: 5s, catch_up: all}"), None).await.unwrap();
    sleep(Duration::from_secs(6)).await;
    assert_eq!(runs_of(&*store).await, 1);
    // It is gone without a word; the other takes over a lease later, and is degraded by then.
    for call in [Call::Now, Call::Read, Call::Terms, Call::Records, Call::Commit] {
        dead.plan(call, Fault::NotDone, u32::MAX);
    }
    let slow = Arc::new(Faulty::new(Arc::clone(&store)));
    slow_beats(&slow, 300);
    let second = Engine::start(slow.clone(), Workers::new(), config("b")).unwrap();
    let leads = |leadership: &Leadership| matches!(leadership, Leadership::Leading(_));
    drop(second.leadership().wait_for(leads).await.unwrap());
    let mut level = second.degradation();
    assert_eq!(*level.borrow_and_update(), Degradation::Degraded);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(runs_of(&*store).await, 1, "what was missed can wait");
    second.register(&other_flow(), None).await.unwrap();
    sleep(Duration::from_secs(11)).await;
    assert_eq!(runs_of(&*store).await, 3, "what comes due is fired");
    slow_beats(&slow, 0);
    becomes(&mut level, Degradation::Normal).await;
    sleep(Duration::from_secs(5)).await;
    assert!(runs_of(&*store).await > 20, "all that was missed is caught up");
    second.shutdown().await;
}

fn other_flow() -> Flow {
    Flow::parse("{flow: g, steps: {a: {}}, schedules: {tick: {every: 5s}}}").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_block_every_thread_are_noticed_while_they_do() {
    let level: Arc<OnceLock<watch::Receiver<Degradation>>> = Arc::default();
    let seen = Arc::clone(&level);
    let mut workers = Workers::new();
    workers.register("work", move |_: Value, _: StepContext| {
        let seen = Arc::clone(&seen);
        async move {
            // On a thread that can do nothing else.
            std::thread::park_timeout(Duration::from_millis(1_500));
            let level = seen.get().map(|level| level.borrow().as_str());
            Ok::<Option<&str>, HandlerError>(level)
        }
    });
    let loop_delay =
        Bounds { degraded: Duration::from_millis(300), critical: Duration::from_hours(1) };
    let degradation =
        DegradationConfig { loop_delay: Some(loop_delay), ..DegradationConfig::DEFAULT };
    let config = EngineConfig {
        beat_interval: Duration::from_millis(50),
        degradation,
        ..EngineConfig::new(InstanceId("a".into()))
    };
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let world = World::with(store, ONE, vec![(workers, config)]).await;
    level.set(world.engine().degradation()).unwrap();
    let runs = [world.start(1).await, world.start(2).await];
    for run_id in runs {
        is(&world.ended(run_id).await, RunStatus::Completed);
        assert_eq!(world.result(run_id, "a").await, json!("degraded"));
    }
    world.shutdown().await;
}
