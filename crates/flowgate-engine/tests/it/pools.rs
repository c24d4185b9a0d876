//! Pools: which instances execute what, and how deployments move a flow from one to another.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use flowgate_core::check;
use flowgate_core::deploy::{Deployment, Phase, RollbackReason};
use flowgate_core::event::Event;
use flowgate_core::flow::Flow;
use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use flowgate_engine::{
    Ask, CheckpointState, Engine, EngineConfig, HandlerError, StartRequest, StepContext, Workers,
    change_queue, checkpoints, find_deployment,
};
use flowgate_store::{Store, whole_log};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::deploys::{config, on_every_store, request};
use crate::shared::shut_down;
use crate::world::{eventually, payload};

/// `TEXT` makes a revision of its own.
const FLOW: &str = "
flow: orders
description: TEXT
steps:
  take: { run: { worker: take }, emits: [taken] }
  ship: { subscribes: [taken], run: { worker: ship } }
";
/// A flow that is for anybody, with a step in the same queue.
const OTHER: &str = "
flow: other
steps:
  take: { run: { worker: take }, emits: [taken] }
";
/// Numbers from here on wait in `ship` until they are let go.
const SLOW: u64 = 1_000;

/// By number and step, the pools of the instances that ended it well.
type Done = BTreeMap<(u64, String), Vec<String>>;

/// Instances of several pools, and which of them did what.
#[derive(Clone, Default)]
struct Yard {
    done: Arc<Mutex<Done>>,
    let_go: Arc<Notify>,
    waiting: Arc<AtomicUsize>,
    is_open: Arc<std::sync::atomic::AtomicBool>,
}

impl Yard {
    fn workers(&self, pool: &'static str) -> Workers {
        let mut workers = Workers::new();
        for name in ["take", "ship", "throws"] {
            let yard = self.clone();
            workers.register(name, move |input: Value, step: StepContext| {
                let yard = yard.clone();
                async move { yard.work((name, pool), &input, &step).await }
            });
        }
        workers
    }

    async fn work(
        &self,
        (name, pool): (&str, &str),
        input: &Value,
        step: &StepContext,
    ) -> Result<Value, HandlerError> {
        let input = input.get("taken").unwrap_or(input);
        let n = input["n"].as_u64().unwrap_or(0);
        match name {
            "take" => step.emit("taken", input)?,
            "throws" => return Err(HandlerError::fatal("it throws")),
            _ if n >= SLOW && !self.is_open.load(Ordering::SeqCst) => {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                self.let_go.notified().await;
            }
            _ => {}
        }
        let mut done = self.done.lock();
        done.entry((n, name.to_owned())).or_default().push(pool.to_owned());
        Ok(json!({ "ok": true }))
    }

    /// An instance of a pool, or of none, that has been heard of.
    async fn instance(&self, store: &Arc<dyn Store>, pool: &'static str) -> Engine {
        let of = (!pool.is_empty()).then(|| pool.into());
        let config = EngineConfig { pool: of, ..config() };
        let engine = Engine::start(Arc::clone(store), self.workers(pool), config).unwrap();
        let id = &engine.config().instance;
        let is_known = async || {
            let rows = store.list_instances().await.unwrap();
            rows.iter().any(|row| row.beat.instance == *id)
        };
        eventually("the instance is known", is_known).await;
        engine
    }

    /// Who did the steps of these runs, each step of each run once.
    fn by(&self, numbers: impl IntoIterator<Item = u64>) -> Vec<String> {
        let done = self.done.lock();
        let mut pools: Vec<String> = Vec::new();
        for n in numbers {
            for step in ["take", "ship"] {
                let by = done.get(&(n, step.to_owned())).cloned().unwrap_or_default();
                assert_eq!(by.len(), 1, "step {step} of {n} was done by {by:?}");
                pools.extend(by);
            }
        }
        pools.sort();
        pools.dedup();
        pools
    }

    fn let_go(&self) {
        self.is_open.store(true, Ordering::SeqCst);
        self.let_go.notify_waiters();
    }

    async fn waits(&self, count: usize) {
        let is_waiting = async || self.waiting.load(Ordering::SeqCst) == count;
        eventually("steps are under way", is_waiting).await;
    }
}

/// The revision of a flow that only its text tells apart.
fn revision(text: &str) -> String {
    FLOW.replace("TEXT", text)
}

async fn start(engine: &Engine, n: u64) -> RunId {
    let request = StartRequest::new(payload(json!({ "n": n })));
    engine.start_run("orders", request).await.unwrap().run_id
}

async fn start_some(engines: &[&Engine], numbers: std::ops::Range<u64>) -> Vec<RunId> {
    let mut runs = Vec::new();
    for (n, engine) in numbers.zip(engines.iter().cycle()) {
        runs.push(start(engine, n).await);
    }
    runs
}

async fn deployed(engine: &Engine, flow: &str, settings: &str) -> Deployment {
    let begun = engine.start_deployment(request(flow, settings)).await.unwrap();
    ended(engine, &begun).await
}

async fn ended(engine: &Engine, deployment: &Deployment) -> Deployment {
    let id = &deployment.deployment_id.0;
    let read = async || {
        let found = find_deployment(&**engine.store(), "orders", Some(id)).await.unwrap();
        found.expect("it has begun")
    };
    eventually("the deployment ends", async || read().await.phase.is_terminal()).await;
    read().await
}

async fn completed(engine: &Engine, runs: &[RunId], flows: &[String]) {
    let flows: Vec<Flow> = flows.iter().map(|text| Flow::parse(text).unwrap()).collect();
    let flows: Vec<&Flow> = flows.iter().collect();
    for run_id in runs {
        let detail = engine.wait(*run_id).await.unwrap();
        assert_eq!(detail.row.run.status, RunStatus::Completed, "{:?}", detail.row.run);
        let log = whole_log(&**engine.store(), *run_id).await.unwrap();
        assert_eq!(check::check_run(&flows, *run_id, &log, Some(&detail.row.run)), []);
    }
}

const TO_GREEN: &str = "
strategy: blue-green
pool: green
migrate: false
drain_timeout: 100ms
verify_timeout: 5s
before_window: 1
replay_rate: unlimited
smoke_tests: [{ name: ships, input: { n: 900 } }]
";

async fn after_a_deployment_to_green_new_runs_are_greens_and_old_ones_blues(
    stores: Vec<Arc<dyn Store>>,
) {
    let yard = Yard::default();
    let blue = yard.instance(&stores[0], "blue").await;
    let green = yard.instance(stores.last().unwrap(), "green").await;
    let both = [&blue, &green];
    let all = ["one", "two", "three", "four"].map(revision);
    blue.register(&Flow::parse(&all[0]).unwrap(), None).await.unwrap();
    let first = deployed(&green, &all[1], "pool: blue\nverify_timeout: 100ms").await;
    assert_eq!(first.phase, Phase::Completed, "{first:?}");
    let mut runs = start_some(&both, 0..20).await;
    runs.extend(start_some(&both, SLOW..SLOW + 3).await);
    yard.waits(3).await;
    completed(&blue, &runs[..20], &all).await;
    assert_eq!(yard.by(0..20), ["blue"]);

    let second = deployed(&blue, &all[2], TO_GREEN).await;
    assert_eq!(second.phase, Phase::Completed, "{second:?}");
    assert_eq!(yard.by([900]), ["green"], "a smoke test is executed where the revision will be");
    runs.extend(start_some(&both, 20..40).await);
    completed(&blue, &runs[23..], &all).await;
    assert_eq!(yard.by(20..40), ["green"]);
    yard.let_go();
    completed(&blue, &runs[20..23], &all).await;
    assert_eq!(yard.by(SLOW..SLOW + 3), ["blue"], "what was open stays where it was");

    let third = deployed(&blue, &all[3], "verify_timeout: 100ms").await;
    assert_eq!(third.phase, Phase::Completed, "{third:?}");
    let anybody = start(&green, 50).await;
    completed(&green, &[anybody], &all).await;
    let run = green.store().read_run(anybody).await.unwrap().unwrap().row.run;
    assert_eq!(run.pool, None, "without a pool it is for anybody again");
    shut_down(vec![blue, green]).await;
}

async fn what_was_held_or_stopped_goes_on_in_the_pool_of_its_revision(stores: Vec<Arc<dyn Store>>) {
    for (smoke, phase, stopped, pool) in [
        ("ship", Phase::Completed, CheckpointState::Resumed, "green"),
        // The old revision goes on with all of it.
        ("throws", Phase::RolledBack, CheckpointState::Pinned, "blue"),
    ] {
        let yard = Yard::default();
        let blue = yard.instance(&stores[0], "blue").await;
        let green = yard.instance(stores.last().unwrap(), "green").await;
        let first = revision(&format!("{smoke}-1"));
        let worker = format!("worker: {smoke}");
        let second = revision(&format!("{smoke}-2")).replace("worker: ship", &worker);
        blue.register(&Flow::parse(&first).unwrap(), None).await.unwrap();
        let third = revision(&format!("{smoke}-3"));
        let begun = deployed(&blue, &third, "pool: blue\nverify_timeout: 100ms").await;
        assert_eq!(begun.phase, Phase::Completed, "{begun:?}");
        let open = start(&blue, SLOW).await;
        yard.waits(1).await;
        let settings = TO_GREEN.replace("migrate: false\n", "").replace("100ms", "2s");
        let begun = blue.start_deployment(request(&second, &settings)).await.unwrap();
        let is_closed = async || blue.gate("orders").await.unwrap().gate.state.is_closed();
        eventually("the gate closes", is_closed).await;
        let mut runs = start_some(&[&blue, &green], 0..10).await;
        yard.is_open.store(true, Ordering::SeqCst);
        let ended = ended(&green, &begun).await;
        assert_eq!((ended.phase, ended.counts.checkpointed), (phase, 1), "{ended:?}");
        runs.push(open);
        completed(&blue, &runs, &[first, second, third]).await;
        assert_eq!(yard.by(0..10), [pool]);
        let found = checkpoints(&**blue.store(), Some("orders")).await.unwrap();
        let state = found.iter().find(|one| one.run_id == open).map(|one| one.state);
        assert_eq!(state, Some(stopped), "{found:?}");
        let by = yard.done.lock().get(&(SLOW, "ship".to_owned())).cloned();
        assert_eq!(by, Some(vec![pool.to_owned()]));
        // The attempt that was given up ends late, and changes nothing.
        yard.let_go();
        shut_down(vec![blue, green]).await;
    }
}

async fn an_instance_of_no_pool_takes_nothing_of_greens(stores: Vec<Arc<dyn Store>>) {
    let yard = Yard::default();
    let none = yard.instance(&stores[0], "").await;
    let green = yard.instance(stores.last().unwrap(), "green").await;
    let all = ["one", "two"].map(revision);
    none.register(&Flow::parse(&all[0]).unwrap(), None).await.unwrap();
    none.register(&Flow::parse(OTHER).unwrap(), None).await.unwrap();
    let done = deployed(&none, &all[1], "pool: green\nverify_timeout: 100ms").await;
    assert_eq!(done.phase, Phase::Completed, "{done:?}");
    green.shutdown().await;
    let runs = start_some(&[&none], 0..5).await;
    // Whoever has done what came after them has passed them by.
    let others = async |n: u64| {
        let request = StartRequest::new(payload(json!({ "n": n })));
        none.run_to_end("other", request).await.unwrap().status
    };
    for n in 100..110 {
        assert_eq!(others(n).await, RunStatus::Completed);
    }
    for run_id in &runs {
        let detail = none.store().read_run(*run_id).await.unwrap().unwrap();
        let [job] = detail.jobs.as_slice() else { panic!("{:?}", detail.jobs) };
        assert_eq!((&*job.job.queue, job.job.attempt), ("take@green", 0), "{job:?}");
    }
    let back = yard.instance(stores.last().unwrap(), "green").await;
    completed(&back, &runs, &all).await;
    assert_eq!(yard.by(0..5), ["green"]);
    // What is for anybody is for those of a pool too.
    none.shutdown().await;
    let request = StartRequest::new(payload(json!({ "n": 200 })));
    back.run_to_end("other", request).await.unwrap();
    assert_eq!(yard.done.lock()[&(200, "take".to_owned())], ["green"]);
    shut_down(vec![back]).await;
}

async fn what_is_set_for_a_queue_holds_for_all_pools_together(stores: Vec<Arc<dyn Store>>) {
    let yard = Yard::default();
    let green = yard.instance(&stores[0], "green").await;
    let store = &**green.store();
    let all = ["one", "two"].map(revision);
    green.register(&Flow::parse(&all[0]).unwrap(), None).await.unwrap();
    green.register(&Flow::parse(&OTHER.replace("take", "ship")).unwrap(), None).await.unwrap();
    let done = deployed(&green, &all[1], "pool: green\nverify_timeout: 100ms").await;
    assert_eq!(done.phase, Phase::Completed, "{done:?}");
    change_queue(store, "ship", |set| set.concurrency = Some(1)).await.unwrap();
    // The step of the other flow is in the same queue, and of no pool.
    let request = StartRequest::new(payload(json!({ "n": SLOW })));
    let other = green.start_run("other", request).await.unwrap().run_id;
    yard.waits(1).await;
    let limited = start(&green, 1).await;
    let is_parked = async || {
        let log = whole_log(store, limited).await.unwrap();
        log.iter().any(|stored| matches!(stored.event, Event::StepParked { .. }))
    };
    eventually("the step waits for its permit", is_parked).await;
    yard.let_go();
    completed(&green, &[limited], &all).await;
    green.wait(other).await.unwrap();
    change_queue(store, "ship", |set| (set.concurrency, set.paused) = (None, true)).await.unwrap();
    let paused = start(&green, 2).await;
    let has_taken = async || yard.done.lock().contains_key(&(2, "take".to_owned()));
    eventually("the first step is done", has_taken).await;
    let waits = async || {
        let jobs = store.read_run(paused).await.unwrap().unwrap().jobs;
        jobs.len() == 1 && &*jobs[0].job.queue == "ship@green" && jobs[0].lease.is_none()
    };
    eventually("the second waits", waits).await;
    change_queue(store, "ship", |set| set.paused = false).await.unwrap();
    completed(&green, &[paused], &all).await;
    shut_down(vec![green]).await;
}

async fn a_dead_pool_is_in_the_plan_and_nothing_is_deployed_to_it(stores: Vec<Arc<dyn Store>>) {
    let yard = Yard::default();
    let blue = yard.instance(&stores[0], "blue").await;
    let all = ["one", "two"].map(revision);
    let old = Flow::parse(&all[0]).unwrap();
    blue.register(&old, None).await.unwrap();
    let alive = blue.plan_deployment(&request(&all[1], "pool: blue")).await.unwrap().plan;
    assert_eq!(alive.warnings, [""; 0]);
    let plan = blue.plan_deployment(&request(&all[1], "pool: green")).await.unwrap().plan;
    assert_eq!(plan.warnings, ["no instance of the pool `green` is alive"]);
    let ended = deployed(&blue, &all[1], "pool: green").await;
    let reason = RollbackReason::PoolDead { pool: "green".to_owned() };
    assert_eq!((ended.phase, ended.rollback), (Phase::RolledBack, Some(reason)));
    let run_id = start(&blue, 1).await;
    completed(&blue, &[run_id], &all).await;
    let run = blue.store().read_run(run_id).await.unwrap().unwrap().row.run;
    assert_eq!((&run.revision, &run.pool), (&old.revision, &None));
    shut_down(vec![blue]).await;
}

async fn a_canarys_share_is_executed_by_its_pool_and_then_all_of_it(stores: Vec<Arc<dyn Store>>) {
    let yard = Yard::default();
    let none = yard.instance(&stores[0], "").await;
    let canary = yard.instance(stores.last().unwrap(), "canary").await;
    let both = [&none, &canary];
    let all = ["one", "two"].map(revision);
    let new = Flow::parse(&all[1]).unwrap();
    none.register(&Flow::parse(&all[0]).unwrap(), None).await.unwrap();
    let settings = "
strategy: canary
pool: canary
verify_timeout: 100ms
canary: { share: 50%, samples_min: 1000000 }
";
    let begun = none.start_deployment(request(&all[1], settings)).await.unwrap();
    let has_canary = async || none.gate("orders").await.unwrap().gate.canary.is_some();
    eventually("starts are shared", has_canary).await;
    let runs = start_some(&both, 0..40).await;
    completed(&none, &runs, &all).await;
    let mut shared = 0;
    for (n, run_id) in (0..).zip(&runs) {
        let run = none.store().read_run(*run_id).await.unwrap().unwrap().row.run;
        let is_new = run.revision == new.revision;
        assert_eq!(run.pool.is_some(), is_new, "{run:?}");
        if is_new {
            assert_eq!(yard.by([n]), ["canary"]);
            shared += 1;
        }
    }
    assert!((5..36).contains(&shared), "{shared} of forty");
    none.ask_deployment("orders", &Ask::Promote {}).await.unwrap();
    assert_eq!(ended(&none, &begun).await.phase, Phase::Completed);
    let runs = start_some(&both, 100..120).await;
    completed(&none, &runs, &all).await;
    assert_eq!(yard.by(100..120), ["canary"]);
    shut_down(vec![none, canary]).await;
}

on_every_store!(
    after_a_deployment_to_green_new_runs_are_greens_and_old_ones_blues,
    what_was_held_or_stopped_goes_on_in_the_pool_of_its_revision,
    an_instance_of_no_pool_takes_nothing_of_greens,
    what_is_set_for_a_queue_holds_for_all_pools_together,
    a_dead_pool_is_in_the_plan_and_nothing_is_deployed_to_it,
    a_canarys_share_is_executed_by_its_pool_and_then_all_of_it,
);
