//! Deployments whose driver dies, is cut off or is late.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flowgate_core::deploy::{Deployment, Phase};
use flowgate_core::event::Event;
use flowgate_core::flow::Flow;
use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use flowgate_engine::{CheckpointState, Engine, EngineConfig, Renewals, checkpoints};
use flowgate_store::faulty::{Call, Fault, Faulty};
use flowgate_store::{MemoryStore, RunQuery, Store, whole_log};
use flowgate_testbed::FaultProxy;

use crate::deploys::{FAST, Floor, Leader, NEW, OLD, Scene, config, request, sqlite};
use crate::recorder::Counts;
use crate::shared::{Place, shut_down};
use crate::world::{eventually, store};

/// Whoever drives each deployment dies in another phase; nobody else may lead until then.
async fn a_driver_that_dies_in_any_phase_is_followed_by_another(place: Place) {
    let phases =
        [Phase::Plan, Phase::Drain, Phase::Deploy, Phase::Verify, Phase::Resume, Phase::Audit];
    let floor = Floor::default();
    let mut leader = Leader::start(place.open().await, floor.workers());
    // It executes and starts runs, and never leads.
    let beside = EngineConfig { schedules: None, ..config() };
    let beside = Engine::start(place.open().await, floor.workers(), beside).unwrap();
    let old = Flow::parse(OLD).unwrap();
    beside.register(&old, None).await.unwrap();
    let scene = Scene { engines: vec![beside], floor: floor.clone(), old };
    let (mut runs, mut flows) = (Vec::new(), vec![scene.old.clone()]);
    for (round, phase) in (0_u64..).zip(phases) {
        let text = NEW.replace("attempts: 1", &format!("attempts: {}", 2 + round));
        let settings = FAST.replace("verify_timeout: 5s", "verify_timeout: 9s\nbefore_window: 1");
        let deployment = scene.deploy(&text, &settings).await;
        flows.push(Flow::parse(&text).unwrap());
        scene.reached(&deployment, phase).await;
        leader.kill();
        for n in 0..5 {
            runs.push(scene.start(1_000 + round * 10 + n).await);
        }
        leader = Leader::start(place.open().await, floor.workers());
        let ended = scene.ended(&deployment).await;
        assert_eq!(ended.phase, Phase::Completed, "killed at {phase}: {ended:?}");
        assert!(scene.report(&ended).await.conservation.unwrap().holds(), "killed at {phase}");
    }
    let flows: Vec<&Flow> = flows.iter().collect();
    scene.check(&runs, &flows).await;
    let all = RunQuery { flow: Some("orders".into()), limit: 1_000, ..RunQuery::default() };
    let rows = scene.engine().store().list_runs(&all).await.unwrap();
    assert!(rows.iter().all(|row| row.run.status == RunStatus::Completed), "{rows:?}");
    leader.kill();
    shut_down(scene.engines).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_dies_in_any_phase_is_followed_by_another_on_redis() {
    a_driver_that_dies_in_any_phase_is_followed_by_another(Place::redis()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_dies_in_any_phase_is_followed_by_another_on_postgres() {
    a_driver_that_dies_in_any_phase_is_followed_by_another(Place::postgres()).await;
}

/// The way of the first instance to its store.
enum Link {
    Wire(FaultProxy),
    Call(Arc<Faulty>),
}

impl Link {
    fn set_cut(&self, is_cut: bool) {
        match self {
            Self::Wire(proxy) if is_cut => proxy.cut(),
            Self::Wire(proxy) => proxy.pass(),
            Self::Call(faulty) => {
                let calls = [
                    Call::Now,
                    Call::Commit,
                    Call::Claim,
                    Call::WaitDue,
                    Call::Renew,
                    Call::Read,
                    Call::Beat,
                    Call::Terms,
                    Call::Records,
                    Call::Wake,
                    Call::Tell,
                    Call::WaitTold,
                ];
                for call in calls {
                    faulty.plan(call, Fault::NotDone, if is_cut { u32::MAX } else { 0 });
                }
            }
        }
    }
}

/// The first of `stores` is cut off while its instance drains a flow. If there is another, that one
/// goes on; if not, the first goes on when the store is back.
async fn t9_a_driver_that_is_cut_off_loses_nothing(stores: Vec<Arc<dyn Store>>, link: Link) {
    let (mut stores, floor) = (stores.into_iter(), Floor::default());
    // What the first one executes when it is cut off is executed again when its lease has ended.
    let config = || EngineConfig { lease: Duration::from_secs(4), ..config() };
    let first = Engine::start(stores.next().unwrap(), floor.workers(), config()).unwrap();
    let leads = async || !first.store().list_terms("leader").await.unwrap().is_empty();
    eventually("the first one leads", leads).await;
    let others = stores.map(|store| Engine::start(store, floor.workers(), config()).unwrap());
    let mut engines: Vec<Engine> = others.collect();
    let is_alone = engines.is_empty();
    engines.insert(0, first);
    let old = Flow::parse(OLD).unwrap();
    engines.last().unwrap().register(&old, None).await.unwrap();
    let scene = Scene { engines, floor, old };

    *scene.floor.slow_from.lock() = Some(0);
    let mut runs = vec![scene.engine().start_run("orders", start(0)).await.unwrap().run_id];
    let is_slow = async || scene.floor.waiting.load(Ordering::SeqCst) > 0;
    eventually("a run is under way", is_slow).await;
    let settings = FAST.replace("drain_timeout: 5s", "drain_timeout: 30s");
    let deployment = scene.deploy(NEW, &settings).await;
    let is_closed = async || scene.engine().gate("orders").await.unwrap().gate.state.is_closed();
    eventually("the gate is closed", is_closed).await;
    let driver = scene.read(&deployment.deployment_id.0).await.driver;
    link.set_cut(true);
    if is_alone {
        // Nobody is told that a start was accepted while the store does not answer: it fails, or
        // waits for the store.
        let start = scene.engine().start_run("orders", start(1));
        let told = tokio::time::timeout(Duration::from_secs(1), start).await;
        assert!(!matches!(told, Ok(Ok(_))), "{told:?}");
        link.set_cut(false);
    } else {
        for n in 1..20 {
            runs.push(scene.engine().start_run("orders", start(n)).await.unwrap().run_id);
        }
        let is_taken_over = async || scene.read(&deployment.deployment_id.0).await.driver != driver;
        eventually("another one drives it", is_taken_over).await;
    }
    *scene.floor.slow_from.lock() = None;
    scene.floor.let_go.notify_waiters();
    let ended: Deployment = scene.ended(&deployment).await;
    assert_eq!(ended.phase, Phase::Completed, "{ended:?}");
    link.set_cut(false);
    for n in 20..30 {
        runs.push(scene.engine().start_run("orders", start(n)).await.unwrap().run_id);
    }
    scene.check(&runs, &[&scene.old, &Flow::parse(NEW).unwrap()]).await;
    let report = scene.report(&ended).await;
    assert!(report.conservation.as_ref().unwrap().holds(), "{report:?}");
    shut_down(scene.engines).await;
}

fn start(n: u64) -> flowgate_engine::StartRequest {
    flowgate_engine::StartRequest::new(crate::world::payload(serde_json::json!({ "n": n })))
}

async fn t9_in_one_process(store: Arc<dyn Store>) {
    let faulty = Arc::new(Faulty::new(store));
    let stores: Vec<Arc<dyn Store>> = vec![Arc::clone(&faulty) as Arc<dyn Store>];
    t9_a_driver_that_is_cut_off_loses_nothing(stores, Link::Call(faulty)).await;
}

async fn t9_over_a_wire(place: Place) {
    let (proxy, behind) = place.open_behind_proxy().await;
    let stores = vec![behind, place.open().await];
    t9_a_driver_that_is_cut_off_loses_nothing(stores, Link::Wire(proxy)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t9_a_driver_that_is_cut_off_loses_nothing_on_memory() {
    t9_in_one_process(Arc::new(MemoryStore::new())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t9_a_driver_that_is_cut_off_loses_nothing_on_sqlite() {
    t9_in_one_process(sqlite().await.remove(0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t9_a_driver_that_is_cut_off_loses_nothing_on_redis() {
    t9_over_a_wire(Place::redis()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t9_a_driver_that_is_cut_off_loses_nothing_on_postgres() {
    t9_over_a_wire(Place::postgres()).await;
}

#[tokio::test(start_paused = true)]
async fn the_late_result_of_a_step_of_a_minute_is_refused_and_counted() {
    let counts = Counts::default();
    let _recorded = counts.record();
    let (floor, store) = (Floor::default(), store());
    let config = EngineConfig { renewals: Renewals::OnRuntime, ..config() };
    let engine = Engine::start(Arc::clone(&store), floor.workers(), config).unwrap();
    let old = Flow::parse(OLD).unwrap();
    engine.register(&old, None).await.unwrap();
    let scene = Scene { engines: vec![engine], floor, old };
    *scene.floor.slow_from.lock() = Some(0);
    let run_id: RunId = scene.start(7).await;
    eventually("the step is under way", async || scene.floor.waiting.load(Ordering::SeqCst) == 1)
        .await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let settings = FAST.replace("drain_timeout: 5s", "drain_timeout: 2s");
    let plan = scene.engine().plan_deployment(&request(NEW, &settings)).await.unwrap();
    assert_eq!(plan.plan.resuming, 1);
    let deployment = scene.deploy(NEW, &settings).await;
    let is_stopped = async || !checkpoints(&*store, Some("orders")).await.unwrap().is_empty();
    eventually("it is stopped", is_stopped).await;
    // The attempt ends before it is told that it was given up.
    scene.floor.let_go.notify_waiters();
    let ended = scene.ended(&deployment).await;
    assert_eq!((ended.phase, ended.counts.checkpointed), (Phase::Completed, 1), "{ended:?}");

    let new = Flow::parse(NEW).unwrap();
    scene.check(&[run_id], &[&scene.old, &new]).await;
    let stopped = checkpoints(&*store, Some("orders")).await.unwrap().remove(0);
    assert_eq!((stopped.run_id, stopped.state), (run_id, CheckpointState::Resumed));
    assert_eq!((&*stopped.steps[0].step, &*stopped.steps[0].stage), ("ship", "running"));
    let drained = ended.phases.iter().find(|entered| entered.phase == Phase::Drain).unwrap().at;
    assert!(stopped.created_at.since(drained) >= Duration::from_secs(2), "{stopped:?}");
    // Both attempts did their work; the result of one counts.
    let of = |name| scene.floor.of(name, 7);
    assert_eq!((of("take"), of("ship-old"), of("ship-new")), (1, 1, 1));
    let log = whole_log(&*store, run_id).await.unwrap();
    let succeeded = |stored: &&_| matches!(event_of(stored), Event::StepSucceeded { .. });
    assert_eq!(log.iter().filter(succeeded).count(), 2, "{log:?}");
    assert_eq!(counts.sum("flowgate_leases_lost_total"), 1);
    shut_down(scene.engines).await;
}

fn event_of(stored: &flowgate_core::event::StoredEvent) -> &Event {
    &stored.event
}
