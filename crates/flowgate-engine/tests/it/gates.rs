//! Flows whose starts are held, and let go again, on every store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::check;
use flowgate_core::event::Event;
use flowgate_core::flow::Flow;
use flowgate_core::gate::GateState;
use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use flowgate_engine::{
    Engine, EngineConfig, EngineError, HandlerError, HoldRequest, RetryOn, SchedulerConfig,
    StartRequest, StepContext, Workers, instance_id,
};
use flowgate_store::{MemoryStore, Store, whole_log};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::shared::{Place, shut_down};
use crate::world::{eventually, payload};

const OLD: &str = "
flow: orders
steps:
  take: { run: { worker: take } }
";
const NEW: &str = "
flow: orders
steps:
  check: { run: { worker: take }, emits: [checked] }
  ship: { subscribes: [checked], run: { worker: ship } }
";

/// What the steps have done: step, and the number in the input.
#[derive(Clone, Default)]
struct Done(Arc<Mutex<Vec<(&'static str, u64)>>>);

impl Done {
    fn workers(&self) -> Workers {
        let mut workers = Workers::new();
        for name in ["take", "ship"] {
            let done = self.clone();
            workers.register(name, move |input: Value, step: StepContext| {
                let done = done.clone();
                async move {
                    let input = input.get("checked").unwrap_or(&input);
                    done.0.lock().push((name, input["n"].as_u64().unwrap_or(0)));
                    drop(step.emit("checked", input));
                    Ok::<_, HandlerError>(())
                }
            });
        }
        workers
    }

    fn numbers(&self, step: &str) -> Vec<u64> {
        self.0.lock().iter().filter(|(name, _)| *name == step).map(|(_, n)| *n).collect()
    }
}

/// Instances on one store, of which one leads.
struct Scene {
    engines: Vec<Engine>,
    flow: Flow,
    done: Done,
}

impl Scene {
    async fn new(stores: Vec<Arc<dyn Store>>) -> Self {
        let (flow, done) = (Flow::parse(OLD).unwrap(), Done::default());
        let start = |store| {
            let schedules = Some(SchedulerConfig::default());
            let config = EngineConfig { schedules, slots: 1, ..EngineConfig::new(instance_id()) };
            Engine::start(store, done.workers(), config).unwrap()
        };
        let engines: Vec<Engine> = stores.into_iter().map(start).collect();
        engines[0].register(&flow, None).await.unwrap();
        Self { engines, flow, done }
    }

    async fn start(&self, engine: usize, n: u64) -> (RunId, RunStatus) {
        let request = StartRequest::new(payload(json!({ "n": n })));
        let started = self.engines[engine].start_run("orders", request).await.unwrap();
        (started.run_id, started.run.expect("it is new").status)
    }

    async fn standing(&self) -> (GateState, u64) {
        let standing = self.engines[0].gate("orders").await.unwrap();
        (standing.gate.state, standing.held)
    }

    async fn wait_open(&self) {
        let is_open = async || self.standing().await == (GateState::Open, 0);
        eventually("the gate is open", is_open).await;
    }

    async fn check(&self, flows: &[&Flow], run_id: RunId) -> Vec<Event> {
        let store = &**self.engines[0].store();
        self.engines[0].wait(run_id).await.unwrap();
        let (log, detail) = (whole_log(store, run_id).await.unwrap(), store.read_run(run_id).await);
        let run = detail.unwrap().unwrap().row.run;
        assert_eq!(check::check_run(flows, run_id, &log, Some(&run)), []);
        log.into_iter().map(|stored| stored.event).collect()
    }
}

async fn what_starts_at_a_closed_gate_is_held_and_goes_on_in_its_order(
    stores: Vec<Arc<dyn Store>>,
) {
    let scene = Scene::new(stores).await;
    let last = scene.engines.len() - 1;
    assert_eq!(scene.start(last, 0).await.1, RunStatus::Running);
    let request = HoldRequest { reason: Some("a test".into()), ..HoldRequest::default() };
    let gate = scene.engines[0].hold("orders", request).await.unwrap();
    assert_eq!((gate.state, gate.generation), (GateState::Holding, 1));
    let mut runs = Vec::new();
    for n in 1..=40 {
        // Every instance learns of the gate by its first start.
        let engine = usize::try_from(n).unwrap() % scene.engines.len();
        let (run_id, status) = scene.start(engine, n).await;
        assert_eq!(status, RunStatus::Held, "{n}");
        runs.push(run_id);
    }
    assert_eq!(scene.standing().await, (GateState::Holding, 40));
    let refused = scene.engines[last].signal(runs[0], "go", payload(1)).await.unwrap_err();
    assert!(matches!(refused, EngineError::Rejected(_)), "{refused:?}");
    scene.engines[last].cancel(runs[39], None).await.unwrap();
    // They go on with the revision that is active when they are let go.
    let new = Flow::parse(NEW).unwrap();
    scene.engines[0].register(&new, None).await.unwrap();
    assert_eq!(scene.done.numbers("ship"), Vec::<u64>::new());
    scene.engines[last].let_go("orders", None).await.unwrap();
    scene.wait_open().await;
    for run_id in &runs[..39] {
        let story = scene.check(&[&scene.flow, &new], *run_id).await;
        assert!(matches!(story[1], Event::RunReleased { .. }), "{story:?}");
    }
    let mut shipped = scene.done.numbers("ship");
    shipped.sort_unstable();
    assert_eq!(shipped, (1..40).collect::<Vec<u64>>(), "each once");
    let order = accepted_order(&scene, &runs[..39]).await;
    assert!(order.is_sorted(), "released in another order than accepted: {order:?}");
    assert_eq!(scene.start(last, 99).await.1, RunStatus::Running);
    shut_down(scene.engines).await;
}

/// For each run in the order of its start, its place in the order of releases.
async fn accepted_order(scene: &Scene, runs: &[RunId]) -> Vec<usize> {
    let store = scene.engines[0].store();
    let mut released = BTreeMap::new();
    for run_id in runs {
        let log = whole_log(&**store, *run_id).await.unwrap();
        let at = log.iter().find(|stored| stored.event.kind() == "run.released").unwrap();
        released.insert(at.position, *run_id);
    }
    let order: Vec<RunId> = released.into_values().collect();
    runs.iter().map(|run| order.iter().position(|other| other == run).unwrap()).collect()
}

async fn a_full_hold_refuses_with_the_reason(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    let request = HoldRequest { hold_max: Some(3), ..HoldRequest::default() };
    scene.engines[0].hold("orders", request).await.unwrap();
    for n in 0..3 {
        scene.start(0, n).await;
    }
    let request = StartRequest::new(payload(1));
    let refused = scene.engines[0].start_run("orders", request).await.unwrap_err();
    let expected = "`orders` holds 3 runs, and no more until its gate is open; try again later";
    assert_eq!(refused.to_string(), expected);
    assert_eq!(scene.standing().await.1, 3);
    shut_down(scene.engines).await;
}

async fn a_hold_ends_at_its_deadline_and_releases_at_its_rate(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    let (failed, _) = scene.start(0, 7).await;
    scene.engines[0].wait(failed).await.unwrap();
    let deadline = Some(Duration::from_millis(300));
    scene.engines[0]
        .hold("orders", HoldRequest { deadline, ..HoldRequest::default() })
        .await
        .unwrap();
    let (run_id, _) = scene.start(0, 1).await;
    let retried = scene.engines[0].retry(failed, Some("take"), &RetryOn::Pinned).await.unwrap_err();
    assert!(matches!(retried, EngineError::GateClosed { .. }), "{retried:?}");
    scene.wait_open().await;
    scene.check(&[&scene.flow], run_id).await;
    scene.engines[0].retry(failed, Some("take"), &RetryOn::Pinned).await.unwrap();
    shut_down(scene.engines).await;
}

async fn a_hold_that_is_let_go_at_a_rate_ends_although_more_comes(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    scene.engines[0].hold("orders", HoldRequest::default()).await.unwrap();
    for n in 0..10 {
        scene.start(0, n).await;
    }
    let is_over = CancellationToken::new();
    let load = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        let mut started = 0;
        while !is_over.is_cancelled() {
            ticks.tick().await;
            scene.start(0, 99).await;
            started += 1;
        }
        started
    };
    // Five times as many come in a second as the rate lets go of those that were held.
    scene.engines[0].let_go("orders", Some(20)).await.unwrap();
    let opened = async {
        scene.wait_open().await;
        is_over.cancel();
    };
    let (started, ()): (usize, ()) = tokio::join!(load, opened);
    let all = async || scene.done.numbers("take").len() == started + 10;
    eventually("every run has ended, once", all).await;
    let mut first: Vec<u64> = scene.done.numbers("take").into_iter().filter(|n| *n < 10).collect();
    first.sort_unstable();
    assert_eq!(first, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    shut_down(scene.engines).await;
}

/// With one slot they end in the order in which they are let go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_accepted_at_the_same_time_goes_on_in_its_order_at_any_rate() {
    let scene = Scene::new(vec![Arc::new(MemoryStore::new())]).await;
    scene.engines[0].hold("orders", HoldRequest::default()).await.unwrap();
    for n in 0..60 {
        scene.start(0, n).await;
    }
    scene.engines[0].let_go("orders", Some(70)).await.unwrap();
    let all = async || scene.done.numbers("take").len() == 60;
    eventually("every run has ended", all).await;
    assert_eq!(scene.done.numbers("take"), (0..60).collect::<Vec<u64>>());
    shut_down(scene.engines).await;
}

macro_rules! on_every_store {
    ($($case:ident),+) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(vec![std::sync::Arc::new(super::MemoryStore::new())]).await;
            })+
        }
        mod redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let place = super::Place::redis();
                super::$case(vec![place.open().await, place.open().await]).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let place = super::Place::postgres();
                super::$case(vec![place.open().await, place.open().await]).await;
            })+
        }
    };
}

on_every_store!(
    what_starts_at_a_closed_gate_is_held_and_goes_on_in_its_order,
    a_full_hold_refuses_with_the_reason,
    a_hold_ends_at_its_deadline_and_releases_at_its_rate,
    a_hold_that_is_let_go_at_a_rate_ends_although_more_comes
);
