//! Beats, and whether an instance is ready.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::ids::InstanceId;
use flowgate_core::run::RunStatus;
use flowgate_engine::{
    Engine, EngineConfig, HandlerError, Health, StartRequest, StepContext, Workers,
};
use flowgate_store::faulty::{Call, Fault, Faulty};
use flowgate_store::{Breaker, InstanceState, MemoryStore, Queues, Store};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, advance, timeout};

use crate::recorder::{Counts, Lines};
use crate::world::{World, config, is, payload, store};

const ONE: &str = "{flow: f, steps: {a: {run: {worker: work}}}}";
const HOUR: Duration = Duration::from_hours(1);
const ALL: [Call; 9] = [
    Call::Now,
    Call::Commit,
    Call::Claim,
    Call::WaitDue,
    Call::Renew,
    Call::Read,
    Call::AppendLogs,
    Call::Sweep,
    Call::Beat,
];

fn break_down(faulty: &Faulty, fault: Fault) {
    for call in ALL {
        faulty.plan(call, fault, u32::MAX);
    }
}

fn heal(faulty: &Faulty) {
    for call in ALL {
        faulty.plan(call, Fault::NotDone, 0);
    }
}

fn working() -> Workers {
    let mut workers = Workers::new();
    workers.register("work", |_: Value, _: StepContext| async { Ok::<(), HandlerError>(()) });
    workers
}

/// An engine on a store that fails on command, once it is ready.
async fn ready(faulty: &Arc<Faulty>) -> (World, watch::Receiver<Health>) {
    let world = World::with(faulty.clone(), ONE, vec![(working(), config("a"))]).await;
    let mut health = world.engine().health();
    becomes(&mut health, |health| *health == Health::Ready).await;
    (world, health)
}

/// How long it takes until `holds`, at most a minute.
async fn becomes(
    health: &mut watch::Receiver<Health>,
    holds: impl FnMut(&Health) -> bool,
) -> Duration {
    let began = Instant::now();
    let changed = timeout(Duration::from_mins(1), health.wait_for(holds)).await;
    drop(changed.expect("it changes").expect("the engine is there"));
    began.elapsed()
}

fn is_unready(health: &Health) -> bool {
    matches!(health, Health::Unready { .. })
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_listed_with_what_it_does_until_it_leaves() {
    let store = store();
    let (begin, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begun, ending) = (Arc::clone(&begin), Arc::clone(&end));
    let mut workers = Workers::new();
    workers.register("work", move |_: Value, _: StepContext| {
        let (begun, ending) = (Arc::clone(&begun), Arc::clone(&ending));
        async move {
            begun.notify_one();
            ending.notified().await;
            Ok::<(), HandlerError>(())
        }
    });
    let mut small = config("a");
    (small.slots, small.queues) = (7, Queues::Only(vec!["default".into()]));
    let world = World::with(Arc::clone(&store), ONE, vec![(workers, small)]).await;
    assert!(is_unready(&world.engine().health().borrow()), "nothing is known yet");
    becomes(&mut world.engine().health(), |health| *health == Health::Ready).await;
    let run_id = world.start(1).await;
    begin.notified().await;
    advance(Duration::from_secs(2)).await;
    timeout(Duration::from_secs(2), std::future::pending::<()>()).await.unwrap_err();
    let [row] = &store.list_instances().await.unwrap()[..] else { panic!("there is one") };
    let beat = &row.beat;
    assert_eq!(&*beat.version, env!("CARGO_PKG_VERSION"));
    assert_eq!((beat.slots, beat.running, beat.silent_ms_max), (7, 1, 6_000));
    assert_eq!(beat.queues.as_deref(), Some(&["default".into(), "work".into()][..]));
    assert_eq!(beat.workers.join(","), "work");
    assert_eq!((beat.pid, beat.state), (std::process::id(), InstanceState::Ready));
    let watching = async {
        let began = Instant::now();
        while store.list_instances().await.unwrap()[0].beat.state == InstanceState::Ready {
            tokio::task::yield_now().await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO, "it says so at once");
        assert_eq!(*world.engine().health().borrow(), Health::Stopping);
        end.notify_one();
    };
    tokio::join!(world.engine().shutdown(), watching);
    assert!(store.list_instances().await.unwrap().is_empty());
    is(&world.ended(run_id).await, RunStatus::Completed);
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_ready_once_it_knows_its_queues() {
    let (faulty, delay) = (Arc::new(Faulty::new(store())), Duration::from_millis(300));
    faulty.plan(Call::Read, Fault::Delayed(delay), u32::MAX);
    let engine = Engine::start(faulty.clone(), working(), config("a")).unwrap();
    let took = becomes(&mut engine.health(), |health| *health == Health::Ready).await;
    assert!(took >= delay, "before that it takes no jobs: {took:?}");
    engine.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_cannot_read_at_its_start_says_that_it_is_there() {
    let faulty = Arc::new(Faulty::new(store()));
    faulty.plan(Call::Read, Fault::NotDone, u32::MAX);
    let engine = Engine::start(faulty.clone(), working(), config("a")).unwrap();
    let took = becomes(&mut engine.health(), |health| *health == Health::Ready).await;
    assert!(took <= Duration::from_secs(5), "{took:?}");
    faulty.plan(Call::Read, Fault::NotDone, 0);
    assert_eq!(faulty.list_instances().await.unwrap().len(), 1);
    engine.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_instance_is_unready_within_five_seconds_of_a_dead_store_and_recovers() {
    for fault in [Fault::NotDone, Fault::Delayed(HOUR)] {
        let faulty = Arc::new(Faulty::new(store()));
        let (world, mut health) = ready(&faulty).await;
        for _ in 0..5 {
            break_down(&faulty, fault);
            let took = becomes(&mut health, is_unready).await;
            assert!(took <= Duration::from_secs(5), "{fault:?}: {took:?}");
            advance(Duration::from_secs(30)).await;
            assert!(is_unready(&health.borrow()));
            heal(&faulty);
            let took = becomes(&mut health, |health| *health == Health::Ready).await;
            assert!(took <= Duration::from_secs(5), "{fault:?}: {took:?}");
        }
        world.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_behind_a_breaker_recovers_too() {
    let faulty = Arc::new(Faulty::new(store()));
    let breaker = Arc::new(Breaker::new(faulty.clone()));
    let world = World::with(breaker, ONE, vec![(working(), config("a"))]).await;
    let mut health = world.engine().health();
    for outage in [Duration::from_secs(5), Duration::from_mins(1)] {
        becomes(&mut health, |health| *health == Health::Ready).await;
        break_down(&faulty, Fault::NotDone);
        assert!(becomes(&mut health, is_unready).await <= Duration::from_secs(5));
        timeout(outage, std::future::pending::<()>()).await.unwrap_err();
        assert!(is_unready(&health.borrow()));
        heal(&faulty);
        let took = becomes(&mut health, |health| *health == Health::Ready).await;
        assert!(took <= Duration::from_secs(10), "{took:?}");
        is(&world.run(json!(null)).await, RunStatus::Completed);
    }
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_is_cut_off_waits_while_others_work_and_then_rejoins() {
    let store = store();
    let faulty = Arc::new(Faulty::new(Arc::clone(&store)));
    let engines = vec![(working(), config("b"))];
    let mut world = World::with(Arc::clone(&store), ONE, engines).await;
    let cut_off = Engine::start(faulty.clone(), working(), config("a")).unwrap();
    cut_off.register(&world.flow, None).await.unwrap();
    let mut health = cut_off.health();
    becomes(&mut health, |health| *health == Health::Ready).await;
    break_down(&faulty, Fault::NotDone);
    becomes(&mut health, is_unready).await;
    // What it was asked to do it does when it can, and nothing else is held up.
    let (asks, flow) = (cut_off.clone(), world.flow.clone());
    let mut asked = Box::pin(asks.start_run(&flow, StartRequest::new(payload(1))));
    assert!(timeout(Duration::from_secs(10), &mut asked).await.is_err());
    for number in 0..20 {
        let ended = world.run(number).await;
        is(&ended, RunStatus::Completed);
        let events = world.events(ended.row.run.run_id).await;
        assert!(events.iter().filter_map(|e| e.lease()).all(|lease| &*lease.instance.0 == "b"));
    }
    assert_eq!(*world.engine().health().borrow(), Health::Ready);
    heal(&faulty);
    becomes(&mut health, |health| *health == Health::Ready).await;
    let run_id = asked.await.unwrap().run_id;
    is(&world.ended(run_id).await, RunStatus::Completed);
    // It executes again, also alone.
    world.engine().shutdown().await;
    world.engines.insert(0, cut_off);
    is(&world.run(1).await, RunStatus::Completed);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn commits_or_claims_alone_make_it_unready_when_they_fail_for_a_while() {
    for call in [Call::Commit, Call::Claim] {
        let faulty = Arc::new(Faulty::new(store()));
        let (world, mut health) = ready(&faulty).await;
        faulty.plan(call, Fault::NotDone, u32::MAX);
        let (start, healing) = (world.start(1), async {
            assert!(becomes(&mut health, is_unready).await <= Duration::from_secs(5));
            let Health::Unready { reason, .. } = health.borrow().clone() else { panic!("it is") };
            assert!(reason.contains(&format!("{call:?} was not done")), "{reason}");
            heal(&faulty);
            becomes(&mut health, |health| *health == Health::Ready).await;
        });
        let (run_id, ()) = tokio::join!(start, healing);
        is(&world.ended(run_id).await, RunStatus::Completed);
        world.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_fails_once_leaves_it_ready() {
    let faulty = Arc::new(Faulty::new(store()));
    let (world, mut health) = ready(&faulty).await;
    health.mark_unchanged();
    for _ in 0..20 {
        faulty.plan(Call::Commit, Fault::NotDone, 1);
        is(&world.run(json!(null)).await, RunStatus::Completed);
    }
    assert!(!health.has_changed().unwrap());
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_one_line_each_way_and_no_flood() {
    let (lines, counts) = (Lines::default(), Counts::default());
    let (_logs, _metrics) = (lines.record(), counts.record());
    let faulty = Arc::new(Faulty::new(store()));
    let (world, mut health) = ready(&faulty).await;
    assert!(counts.is_one("flowgate_ready"));
    break_down(&faulty, Fault::NotDone);
    let outage = async {
        timeout(Duration::from_mins(1), std::future::pending::<()>()).await.unwrap_err();
        assert!(!counts.is_one("flowgate_ready"));
        heal(&faulty);
    };
    let (run_id, ()) = tokio::join!(world.start(1), outage);
    becomes(&mut health, |health| *health == Health::Ready).await;
    is(&world.ended(run_id).await, RunStatus::Completed);
    assert_eq!(lines.with(&["WARN", "the store does not answer; unready", "reason="]).len(), 1);
    assert_eq!(lines.with(&["INFO", "ready again", "unready_for="]).len(), 1);
    let count = lines.with(&["WARN", "does not take commits"]).len();
    assert!((1..=7).contains(&count), "{count} lines in a minute");
    let claims = lines.with(&["WARN", "hands out no jobs"]).len();
    assert!((1..=7).contains(&claims), "{claims} lines in a minute");
    let settings = lines.with(&["WARN", "the settings of queues cannot be read"]).len();
    assert!((1..=7).contains(&settings), "{settings} lines in a minute");
    // Besides: it is unready and strained, schedules, a sweep and a look at open runs failed, and
    // the commit took long.
    let others = lines.with(&["WARN"]).len() - count - claims - settings;
    assert!(others <= 7, "{:#?}", lines.with(&["WARN"]));
    world.shutdown().await;
    assert!(!counts.is_one("flowgate_ready"));
}

#[tokio::test(start_paused = true)]
async fn a_start_on_a_dead_store_waits_unready_and_falls_back_to_nothing() {
    let faulty = Arc::new(Faulty::new(store()));
    break_down(&faulty, Fault::NotDone);
    let engine = Engine::start(faulty.clone(), working(), config("a")).unwrap();
    let mut health = engine.health();
    timeout(Duration::from_secs(30), std::future::pending::<()>()).await.unwrap_err();
    assert!(is_unready(&health.borrow()));
    let flow = flowgate_core::flow::Flow::parse(ONE).unwrap();
    assert!(engine.register(&flow, None).await.is_err());
    heal(&faulty);
    assert!(engine.register(&flow, None).await.is_ok());
    becomes(&mut health, |health| *health == Health::Ready).await;
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_block_every_thread_do_not_silence_their_instance() {
    let store = Arc::new(MemoryStore::new());
    let seen = Arc::clone(&store);
    let mut workers = Workers::new();
    workers.register("work", move |_: Value, _: StepContext| {
        let seen = Arc::clone(&seen);
        async move {
            // On a thread that can do nothing else.
            std::thread::park_timeout(Duration::from_millis(900));
            let silent = seen.now().await.expect("it is in memory");
            let row = seen.list_instances().await.expect("it is in memory").remove(0);
            let silent_ms = silent.since(row.seen_at).as_millis();
            Ok::<Value, HandlerError>(json!(u64::try_from(silent_ms).unwrap_or(u64::MAX)))
        }
    });
    let beat_interval = Duration::from_millis(50);
    let config = EngineConfig { beat_interval, ..EngineConfig::new(InstanceId("a".into())) };
    let world = World::with(store, ONE, vec![(workers, config)]).await;
    let runs = [world.start(1).await, world.start(2).await];
    for run_id in runs {
        is(&world.ended(run_id).await, RunStatus::Completed);
        let silent_ms = world.result(run_id, "a").await.as_u64().unwrap();
        assert!(silent_ms < 450, "{silent_ms} ms without a beat");
    }
    world.shutdown().await;
}
