//! Following events, and waiting for runs, that other instances commit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::event::StoredEvent;
use flowgate_core::ids::{Position, RunId};
use flowgate_core::run::RunStatus;
use flowgate_engine::{
    Engine, EngineConfig, EngineError, FollowFrom, Follower, HandlerError, StartRequest,
    StepContext, Workers,
};
use flowgate_store::faulty::{Call, Fault, Faulty};
use flowgate_store::{Instrumented, Queues, Store};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::recorder::Counts;
use crate::world::{World, config, is, payload, store};

const CHAIN: &str = "{flow: chain, steps: {
    one: {run: {worker: work}, emits: [one.done]},
    two: {subscribes: [one.done], run: {worker: work}, emits: [two.done]},
    three: {subscribes: [two.done], run: {worker: work}}}}";

fn workers(span: Duration) -> Workers {
    let mut workers = Workers::new();
    workers.register("work", move |_: Value, ctx: StepContext| async move {
        if !span.is_zero() {
            drop(timeout(span, std::future::pending::<()>()).await);
        }
        match ctx.step() {
            "three" => {}
            step => ctx.emit(&format!("{step}.done"), &())?,
        }
        Ok::<(), HandlerError>(())
    });
    workers
}

/// An instance that starts runs and executes none.
fn starter() -> EngineConfig {
    EngineConfig { queues: Queues::Only(vec!["none".into()]), ..config("starter") }
}

/// A starter on `stores.0`, and an instance that executes on `stores.1`.
async fn pair(stores: (Arc<dyn Store>, Arc<dyn Store>), span: Duration) -> World {
    let mut world = World::with(stores.0, CHAIN, vec![(Workers::new(), starter())]).await;
    world.engines.push(Engine::start(stores.1, workers(span), config("b")).unwrap());
    world
}

async fn next(follower: &mut Follower) -> StoredEvent {
    let next = timeout(Duration::from_mins(5), follower.next()).await;
    next.expect("there is more").expect("the feed can be read")
}

/// The next `count` events by run, each of them the one that is due.
async fn follow(follower: &mut Follower, count: usize) -> BTreeMap<RunId, Vec<StoredEvent>> {
    let mut runs: BTreeMap<RunId, Vec<StoredEvent>> = BTreeMap::new();
    for _ in 0..count {
        let event = next(follower).await;
        let of_run = runs.entry(event.run_id).or_default();
        if let Some(last) = of_run.last() {
            assert_eq!(event.seq, last.seq + 1, "the events of a run come in order");
        }
        of_run.push(event);
    }
    runs
}

#[tokio::test(start_paused = true)]
async fn runs_of_another_instance_are_followed_live_and_in_order() {
    let store = store();
    let world = pair((Arc::clone(&store), Arc::clone(&store)), Duration::ZERO).await;
    is(&world.run(0).await, RunStatus::Completed);
    let mut follower = world.engine().follow(FollowFrom::Now).await.unwrap();
    let began = Instant::now();
    let mut total = 0;
    for number in 0..50 {
        let run_id = world.start(number).await;
        let detail = world.ended(run_id).await;
        let count = usize::try_from(detail.row.run.version).unwrap();
        let followed = follow(&mut follower, count).await.remove(&run_id).unwrap();
        assert_eq!(followed, store.read_events(run_id, 0, 1_000).await.unwrap());
        total += count;
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(timeout(Duration::from_mins(1), follower.next()).await.is_err(), "there is no more");
    // Another one goes on where the first began, and a third has it all.
    let mut all = world.engine().follow(FollowFrom::Start).await.unwrap();
    let first = follow(&mut all, 1).await;
    let positions = all.positions().to_vec();
    assert_eq!(first.values().next().unwrap()[0].position, positions[0]);
    let mut rest = world.engines[1].follow(FollowFrom::Positions(positions)).await.unwrap();
    let before = follow(&mut rest, usize::try_from(next(&mut all).await.seq).unwrap()).await;
    assert_eq!(before.len(), 1);
    assert!(total > 50 * 5);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn faults_lose_and_double_nothing_for_a_follower() {
    for seed in 1..=4 {
        let store = store();
        let mut world = pair((Arc::clone(&store), Arc::clone(&store)), Duration::ZERO).await;
        let faulty: Arc<dyn Store> = Arc::new(Faulty::random(Arc::clone(&store), seed, 0.3));
        world.engines.push(Engine::start(faulty, Workers::new(), starter()).unwrap());
        let mut follower = world.engines[2].follow(FollowFrom::Now).await.unwrap();
        let mut followed: BTreeMap<RunId, Vec<StoredEvent>> = BTreeMap::new();
        for round in 0..10 {
            let starts = (0..10).map(|number| world.start(round * 10 + number));
            let runs = futures_util::future::join_all(starts).await;
            let mut count = 0;
            for run_id in runs {
                count += usize::try_from(world.ended(run_id).await.row.run.version).unwrap();
            }
            followed.append(&mut follow(&mut follower, count).await);
            // Ended anywhere, it goes on there.
            let positions = follower.positions().to_vec();
            let from = FollowFrom::Positions(positions);
            follower = world.engines[2].follow(from).await.unwrap();
        }
        assert_eq!(followed.len(), 100);
        for (run_id, events) in followed {
            assert_eq!(events, store.read_events(run_id, 0, 1_000).await.unwrap());
        }
        world.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_follower_ends_with_its_engine_and_refuses_positions_of_another_store() {
    let world = World::new(CHAIN, workers(Duration::ZERO)).await;
    let wrong = FollowFrom::Positions(vec![Position::START; 2]);
    let refused = world.engine().follow(wrong).await;
    assert!(matches!(refused, Err(EngineError::Invalid(_))), "{refused:?}");
    let mut follower = world.engine().follow(FollowFrom::Start).await.unwrap();
    world.engine().shutdown().await;
    assert!(matches!(follower.next().await, Err(EngineError::Closed)));
    assert!(matches!(world.engine().follow(FollowFrom::Now).await, Err(EngineError::Closed)));
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_nobody_asks_reads_a_bounded_part() {
    let counts = Counts::default();
    let _recorded = counts.record();
    let store: Arc<dyn Store> = Arc::new(Instrumented::new(store()));
    let world = World::with(store, CHAIN, vec![(workers(Duration::ZERO), config("a"))]).await;
    for number in 0..200 {
        is(&world.run(number).await, RunStatus::Completed);
    }
    let before = counts.sum("flowgate_store_calls_total{store=memory,call=read_feed");
    let follower = world.engine().follow(FollowFrom::Start).await.unwrap();
    timeout(Duration::from_mins(1), std::future::pending::<()>()).await.unwrap_err();
    let reads = counts.sum("flowgate_store_calls_total{store=memory,call=read_feed") - before;
    assert!(reads <= 2, "{reads} pages were read for nobody");
    drop(follower);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_run_elsewhere_is_known_at_once() {
    let store = store();
    let span = Duration::from_millis(700);
    let world = pair((Arc::clone(&store), store), span).await;
    for number in 0..10 {
        let began = Instant::now();
        let request = StartRequest::new(payload(number));
        let run = world.engine().run_to_end(&world.flow, request).await.unwrap();
        assert_eq!(run.status, RunStatus::Completed);
        let took = began.elapsed();
        assert!(took < 3 * span + Duration::from_millis(100), "{took:?}");
        let run_id = world.start(number).await;
        let began = Instant::now();
        is(&world.ended(run_id).await, RunStatus::Completed);
        let took = began.elapsed();
        assert!(took < 3 * span + Duration::from_millis(100), "{took:?}");
    }
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_store_is_asked_as_often_for_a_thousand_who_wait_as_for_ten() {
    let mut asked = Vec::new();
    for waiting in [10_u32, 1_000] {
        let counts = Counts::default();
        let _recorded = counts.record();
        let store = store();
        let counted: Arc<dyn Store> = Arc::new(Instrumented::new(Arc::clone(&store)));
        // Nobody executes anything for a minute.
        let world = World::with(counted, CHAIN, vec![(Workers::new(), starter())]).await;
        let calls = || {
            let of =
                |call| counts.sum(&format!("flowgate_store_calls_total{{store=memory,call={call}"));
            of("read_run") + of("read_feed") + of("wait_feed") + of("feed_end")
        };
        let runs = (0..waiting).map(|number| {
            let request = StartRequest::new(payload(number));
            world.engine().run_to_end(&world.flow, request)
        });
        let all = futures_util::future::join_all(runs);
        let meanwhile = async {
            timeout(Duration::from_secs(5), std::future::pending::<()>()).await.unwrap_err();
            let before = calls();
            timeout(Duration::from_secs(9), std::future::pending::<()>()).await.unwrap_err();
            asked.push(calls() - before);
            Engine::start(store, workers(Duration::ZERO), config("b")).unwrap()
        };
        let (runs, other) = tokio::join!(all, meanwhile);
        assert!(runs.into_iter().all(|run| run.unwrap().status == RunStatus::Completed));
        other.shutdown().await;
        world.shutdown().await;
    }
    assert!(asked.iter().all(|asked| *asked < 40), "{asked:?} calls in nine seconds");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_here_is_waited_for_without_a_call() {
    let counts = Counts::default();
    let _recorded = counts.record();
    let store: Arc<dyn Store> = Arc::new(Instrumented::new(store()));
    let engines = vec![(workers(Duration::from_mins(1)), config("a"))];
    let world = World::with(store, CHAIN, engines).await;
    for number in 0..10 {
        let request = StartRequest::new(payload(number));
        world.engine().run_to_end(&world.flow, request).await.unwrap();
    }
    let of = |call| counts.sum(&format!("flowgate_store_calls_total{{store=memory,call={call}"));
    assert_eq!((of("feed_end"), of("read_feed"), of("wait_feed")), (0, 0, 0));
    // The reconciler looks at the one open run, once a minute.
    assert!(of("read_run") <= 60, "{}", of("read_run"));
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_hears_of_an_end_through_faults_and_hand_overs() {
    for seed in 1..=4 {
        let store = store();
        let faulty = |n: u64| -> Arc<dyn Store> {
            Arc::new(Faulty::random(Arc::clone(&store), seed * 10 + n, 0.2))
        };
        let span = Duration::from_millis(20);
        let mut world = pair((faulty(1), faulty(2)), span).await;
        // Small ones, so that runs go to and fro between them.
        for (number, name) in [(3, "c"), (4, "d")] {
            let mut small = config(name);
            small.slots = 1;
            world.engines.push(Engine::start(faulty(number), workers(span), small).unwrap());
        }
        let runs = (0..60_usize).map(|number| {
            let (engine, flow) = (&world.engines[number % 4], &world.flow);
            async move {
                loop {
                    let request = StartRequest::new(payload(number));
                    match engine.run_to_end(flow, request).await {
                        // Nothing was started: its flow could not be read.
                        Err(EngineError::Flow(_)) => tokio::task::yield_now().await,
                        ended => return ended,
                    }
                }
            }
        });
        let all = timeout(Duration::from_mins(10), futures_util::future::join_all(runs));
        for run in all.await.expect("all are heard of") {
            assert_eq!(run.unwrap().status, RunStatus::Completed);
        }
        world.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancel_elsewhere_ends_a_wait_for_a_run_in_flight_here() {
    let store = store();
    let mut workers = Workers::new();
    workers.register("work", |_: Value, _: StepContext| async {
        std::future::pending::<Result<(), HandlerError>>().await
    });
    let engines = vec![(workers, config("a")), (Workers::new(), starter())];
    let world = World::with(store, CHAIN, engines).await;
    let run_id = world.start(json!(null)).await;
    let cancel = async {
        timeout(Duration::from_secs(1), std::future::pending::<()>()).await.unwrap_err();
        world.engines[1].cancel(run_id, None).await.unwrap();
    };
    let began = Instant::now();
    let (ended, ()) = tokio::join!(world.engine().wait(run_id), cancel);
    is(&ended.unwrap(), RunStatus::Cancelled);
    // The next renewal tells it.
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_outlives_a_store_that_is_gone_for_a_while() {
    let faulty = Arc::new(Faulty::new(store()));
    let span = Duration::from_secs(2);
    let world = pair((faulty.clone(), faulty.clone()), span).await;
    let request = StartRequest::new(payload(1));
    let calls = [Call::Commit, Call::Claim, Call::WaitDue, Call::Renew, Call::Read, Call::Beat];
    let outage = async {
        timeout(Duration::from_secs(3), std::future::pending::<()>()).await.unwrap_err();
        for call in calls {
            faulty.plan(call, Fault::NotDone, u32::MAX);
        }
        timeout(Duration::from_secs(20), std::future::pending::<()>()).await.unwrap_err();
        for call in calls {
            faulty.plan(call, Fault::NotDone, 0);
        }
    };
    let (run, ()) = tokio::join!(world.engine().run_to_end(&world.flow, request), outage);
    assert_eq!(run.unwrap().status, RunStatus::Completed);
    world.shutdown().await;
}
