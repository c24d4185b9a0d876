//! Leases: kept, lost, handed back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use flowgate_core::ids::InstanceId;
use flowgate_core::run::RunStatus;
use flowgate_engine::{EngineConfig, HandlerError, Health, StepContext, Stop, Workers};
use flowgate_store::MemoryStore;
use flowgate_store::faulty::{Call, Fault, Faulty};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::world::{World, config, eventually, is, store};

const ONE: &str = "{flow: f, steps: {a: {run: {worker: work}}}}";

#[tokio::test(start_paused = true)]
async fn a_lease_is_kept_for_as_long_as_its_attempt_runs() {
    let mut workers = Workers::new();
    workers.register("work", |_: Value, _: StepContext| async {
        let nothing = std::future::pending::<()>();
        drop(tokio::time::timeout(Duration::from_hours(1), nothing).await);
        Ok::<(), HandlerError>(())
    });
    let engines = vec![(workers.clone(), config("a")), (workers, config("b"))];
    let world = World::with(store(), ONE, engines).await;
    let ended = world.run(json!(null)).await;
    is(&ended, RunStatus::Completed);
    assert_eq!(ended.row.run.steps[0].attempt, 1);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_late_result_of_a_lost_lease_changes_nothing() {
    let (release, first) = (Arc::new(Notify::new()), Arc::new(AtomicU32::new(0)));
    let stopped = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut workers = Workers::new();
    let (go, count, stops) = (Arc::clone(&release), Arc::clone(&first), Arc::clone(&stopped));
    workers.register("work", move |_: Value, ctx: StepContext| {
        let (go, stops) = (Arc::clone(&go), Arc::clone(&stops));
        let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if is_first {
                let background = ctx.clone();
                // What the handler left running sees that its attempt is over.
                let watch = async move {
                    let stop = background.cancelled().await;
                    stops.lock().push(stop);
                };
                tokio::join!(watch, async {
                    go.notified().await;
                });
            }
            Ok::<Value, HandlerError>(json!(ctx.attempt()))
        }
    });
    let faulty = Arc::new(Faulty::new(store()));
    let engines = vec![(workers.clone(), config("a")), (workers, config("b"))];
    let world = World::with(faulty.clone(), ONE, engines).await;
    faulty.plan(Call::Renew, Fault::NotDone, u32::MAX);
    let run_id = world.start(json!(null)).await;
    let ended = world.ended(run_id).await;
    is(&ended, RunStatus::Completed);
    release.notify_one();
    assert_eq!(world.result(run_id, "a").await, json!(2));
    assert_eq!(*stopped.lock(), [Stop::LeaseLost]);
    assert_eq!(ended.row.run.steps[0].lost, 1);
    let story = world.story(run_id).await;
    assert_eq!(story.iter().filter(|event| *event == "step.succeeded a").count(), 1);
    world.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_block_every_thread_keep_their_leases() {
    let mut workers = Workers::new();
    workers.register("work", |_: Value, ctx: StepContext| async move {
        // Three leases, on a thread that can do nothing else.
        std::thread::park_timeout(Duration::from_millis(900));
        Ok::<Value, HandlerError>(json!(ctx.attempt()))
    });
    let lease = Duration::from_millis(300);
    let config = |name: &str| EngineConfig { lease, ..EngineConfig::new(InstanceId(name.into())) };
    let store = Arc::new(MemoryStore::new());
    let world = World::with(store, ONE, vec![(workers.clone(), config("a"))]).await;
    let runs = [world.start(1).await, world.start(2).await];
    for run_id in runs {
        let ended = world.ended(run_id).await;
        is(&ended, RunStatus::Completed);
        assert_eq!(world.result(run_id, "a").await, json!(1));
        assert_eq!(ended.row.run.steps[0].lost, 0);
    }
    world.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_spin_on_every_thread_for_three_leases_keep_them() {
    let lease = Duration::from_millis(500);
    let (spinning, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut workers = Workers::new();
    let (now, peak) = (Arc::clone(&spinning), Arc::clone(&most));
    workers.register("work", move |_: Value, ctx: StepContext| {
        let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
        async move {
            peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let began = tokio::time::Instant::now();
            while began.elapsed() < lease * 3 {
                std::hint::spin_loop();
            }
            now.fetch_sub(1, Ordering::SeqCst);
            Ok::<Value, HandlerError>(json!(ctx.attempt()))
        }
    });
    let config = |name: &str| EngineConfig { lease, ..EngineConfig::new(InstanceId(name.into())) };
    let store = Arc::new(MemoryStore::new());
    let world = World::with(store, ONE, vec![(workers, config("a"))]).await;
    // What is started before that is claimed together, and one thread takes both.
    let mut health = world.engine().health();
    drop(health.wait_for(|health| *health == Health::Ready).await.expect("the engine is there"));
    let runs = [world.start(1).await, world.start(2).await];
    for run_id in runs {
        let ended = world.ended(run_id).await;
        is(&ended, RunStatus::Completed);
        assert_eq!(world.result(run_id, "a").await, json!(1));
        assert_eq!((ended.row.run.steps[0].lost, ended.row.run.steps[0].attempt), (0, 1));
    }
    assert_eq!(most.load(Ordering::SeqCst), 2, "both threads were spun on at once");
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_hands_back_without_burning_an_attempt() {
    let mut stuck = Workers::new();
    stuck.register("work", |_: Value, _: StepContext| async {
        std::future::pending::<Result<(), HandlerError>>().await
    });
    let mut quick = Workers::new();
    quick.register("work", |_: Value, ctx: StepContext| async move {
        Ok::<Value, HandlerError>(json!(ctx.attempt()))
    });
    let store = store();
    let world = World::with(Arc::clone(&store), ONE, vec![(stuck, config("a"))]).await;
    let run_id = world.start(json!(null)).await;
    world.engine().shutdown().await;
    assert!(world.story(run_id).await.contains(&"step.released a".to_owned()));
    let next = World::with(store, ONE, vec![(quick, config("b"))]).await;
    let ended = next.ended(run_id).await;
    is(&ended, RunStatus::Completed);
    assert_eq!(next.result(run_id, "a").await, json!(1));
    assert_eq!(ended.row.run.steps[0].failures, 0);
    next.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_lets_attempts_finish_within_the_grace() {
    let mut workers = Workers::new();
    workers.register("work", |_: Value, _: StepContext| async {
        let nothing = std::future::pending::<()>();
        drop(tokio::time::timeout(Duration::from_secs(8), nothing).await);
        Ok::<(), HandlerError>(())
    });
    let world = World::new(ONE, workers).await;
    let run_id = world.start(json!(null)).await;
    world.engine().shutdown().await;
    is(&world.ended(run_id).await, RunStatus::Completed);
}

#[tokio::test(start_paused = true)]
async fn cancel_on_one_instance_reaches_the_attempt_of_another() {
    let mut workers = Workers::new();
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    workers.register("work", move |_: Value, ctx: StepContext| {
        let told = told.clone();
        async move {
            told.send(ctx.cancelled().await).expect("the test listens");
            Err::<(), _>(HandlerError::retryable("told to stop"))
        }
    });
    // The second serves a queue that no job is in.
    let mut idle = config("b");
    idle.queues = flowgate_store::Queues::Only(vec!["other".into()]);
    let engines = vec![(workers, config("a")), (Workers::new(), idle)];
    let world = World::with(store(), ONE, engines).await;
    let run_id = world.start(json!(null)).await;
    world.engines[1].cancel(run_id, None).await.unwrap();
    // It learns of it when it next reports or renews, whichever comes first.
    let stop = heard.recv().await.unwrap();
    assert!(matches!(stop, Stop::Cancelled | Stop::LeaseLost), "{stop:?}");
    is(&world.ended(run_id).await, RunStatus::Cancelled);
    eventually("nothing is left", || async { world.engine().is_idle() }).await;
    world.shutdown().await;
}
