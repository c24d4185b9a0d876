//! Deployments of a live flow, on every store. Names with a number are the tests of the seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flowgate_core::check;
use flowgate_core::deploy::{Deployment, Fate, Phase, Refusal, Report, Settings, Verdict};
use flowgate_core::flow::Flow;
use flowgate_core::ids::RunId;
use flowgate_core::payload::Payload;
use flowgate_core::run::RunStatus;
use flowgate_engine::{
    Ask, CheckpointState, DeployRequest, Engine, EngineConfig, EngineError, HandlerError,
    SchedulerConfig, StartRequest, StepContext, Workers, checkpoints, deployment_report,
    deployments, find_deployment, instance_id,
};
use flowgate_store::{Queues, SqliteOptions, SqliteStore, Store, whole_log};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::recorder::Counts;
use crate::shared::shut_down;
use crate::world::{eventually, payload};

pub(crate) const OLD: &str = "
flow: orders
steps:
  take: { run: { worker: take }, emits: [taken] }
  ship: { subscribes: [taken], run: { worker: ship-old }, retry: { attempts: 1 } }
";
pub(crate) const NEW: &str = "
flow: orders
steps:
  take: { run: { worker: take }, emits: [taken] }
  ship: { subscribes: [taken], run: { worker: ship-new }, retry: { attempts: 1 } }
";
/// How long the term of a leader lasts in these tests.
const LEASE: Duration = Duration::from_secs(2);

/// What the handlers have done, and what holds them up.
#[derive(Clone, Default)]
pub(crate) struct Floor {
    /// By handler and number, how often it ended well.
    done: Arc<Mutex<BTreeMap<(String, u64), usize>>>,
    /// Whoever ships an order over this number on the old revision waits.
    pub(crate) slow_from: Arc<Mutex<Option<u64>>>,
    pub(crate) let_go: Arc<Notify>,
    pub(crate) waiting: Arc<AtomicUsize>,
}

impl Floor {
    pub(crate) fn workers(&self) -> Workers {
        let mut workers = Workers::new();
        for name in ["take", "ship-old", "ship-new", "throws", "wrong", "hangs"] {
            let floor = self.clone();
            workers.register(name, move |input: Value, step: StepContext| {
                let floor = floor.clone();
                async move { floor.work(name, &input, &step).await }
            });
        }
        workers
    }

    async fn work(
        &self,
        name: &str,
        input: &Value,
        step: &StepContext,
    ) -> Result<Value, HandlerError> {
        let input = input.get("taken").unwrap_or(input);
        let n = input["n"].as_u64().unwrap_or(0);
        match name {
            "take" => step.emit("taken", input)?,
            "throws" => return Err(HandlerError::retryable("it throws")),
            "hangs" => std::future::pending().await,
            "ship-old" if self.slow_from.lock().is_some_and(|from| n >= from) => {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                self.let_go.notified().await;
            }
            _ => {}
        }
        *self.done.lock().entry((name.to_owned(), n)).or_default() += 1;
        Ok(if name == "wrong" { json!({ "ok": false }) } else { json!({ "ok": true }) })
    }

    /// How often a handler ended well, for all numbers.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.done.lock().iter().filter(|((by, _), _)| by == name).map(|(_, count)| count).sum()
    }

    pub(crate) fn of(&self, name: &str, n: u64) -> usize {
        self.done.lock().get(&(name.to_owned(), n)).copied().unwrap_or(0)
    }
}

pub(crate) struct Scene {
    pub(crate) engines: Vec<Engine>,
    pub(crate) floor: Floor,
    pub(crate) old: Flow,
}

pub(crate) fn config() -> EngineConfig {
    let schedules = Some(SchedulerConfig::with_lease(LEASE));
    EngineConfig { schedules, slots: 8, ..EngineConfig::new(instance_id()) }
}

impl Scene {
    pub(crate) async fn new(stores: Vec<Arc<dyn Store>>) -> Self {
        let (floor, old) = (Floor::default(), Flow::parse(OLD).unwrap());
        let start = |store| Engine::start(store, floor.workers(), config()).unwrap();
        let engines: Vec<Engine> = stores.into_iter().map(start).collect();
        engines[0].register(&old, None).await.unwrap();
        Self { engines, floor, old }
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.engines.last().unwrap()
    }

    pub(crate) async fn start(&self, n: u64) -> RunId {
        let engine = usize::try_from(n).unwrap() % self.engines.len();
        let request = StartRequest::new(payload(json!({ "n": n })));
        self.engines[engine].start_run("orders", request).await.unwrap().run_id
    }

    pub(crate) async fn deploy(&self, flow: &str, settings: &str) -> Deployment {
        self.engine().start_deployment(request(flow, settings)).await.unwrap()
    }

    /// The deployment when it has ended.
    pub(crate) async fn ended(&self, deployment: &Deployment) -> Deployment {
        let id = &deployment.deployment_id.0;
        let read = async || self.read(id).await;
        let is_over = async || read().await.phase.is_terminal();
        eventually("the deployment ends", is_over).await;
        read().await
    }

    pub(crate) async fn read(&self, id: &str) -> Deployment {
        let store = &**self.engine().store();
        find_deployment(store, "orders", Some(id)).await.unwrap().expect("it has begun")
    }

    pub(crate) async fn report(&self, deployment: &Deployment) -> Report {
        deployment_report(&**self.engine().store(), deployment).await.unwrap()
    }

    pub(crate) async fn reached(&self, deployment: &Deployment, phase: Phase) {
        let id = &deployment.deployment_id.0;
        let is_there =
            async || self.read(id).await.phases.iter().any(|entered| entered.phase == phase);
        eventually(phase.as_str(), is_there).await;
    }

    /// Waits for the ends of runs, and checks their logs.
    pub(crate) async fn check(&self, runs: &[RunId], flows: &[&Flow]) {
        let store = &**self.engine().store();
        for run_id in runs {
            let detail = self.engine().wait(*run_id).await.unwrap();
            let log = whole_log(store, *run_id).await.unwrap();
            assert_eq!(check::check_run(flows, *run_id, &log, Some(&detail.row.run)), []);
        }
    }

    pub(crate) async fn kinds(&self, run_id: RunId) -> Vec<&'static str> {
        let log = whole_log(&**self.engine().store(), run_id).await.unwrap();
        log.iter().map(|stored| stored.event.kind()).collect()
    }

    pub(crate) async fn active(&self) -> String {
        let revisions = self.engine().store().list_revisions(Some("orders")).await.unwrap();
        revisions.iter().find(|stored| stored.active).unwrap().revision.revision.to_string()
    }
}

pub(crate) fn request(flow: &str, settings: &str) -> DeployRequest {
    DeployRequest {
        flow: Flow::parse(flow).unwrap(),
        folder: None,
        settings: Settings::parse(settings).unwrap(),
        author: Some("ann".into()),
        note: None,
        is_forced: false,
    }
}

pub(crate) const FAST: &str = "
strategy: blue-green
drain_timeout: 5s
verify_timeout: 5s
replay_rate: unlimited
smoke_tests: [{name: ships, input: {n: 1000000}, expect: {result: {ship: {equals: {ok: true}}}}}]
";

async fn t2_a_hundred_messages_with_a_drain_after_fifty_all_come_out(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    *scene.floor.slow_from.lock() = Some(49);
    let mut runs = Vec::new();
    for n in 0..50 {
        runs.push(scene.start(n).await);
    }
    let deployment = scene.deploy(NEW, FAST).await;
    scene.reached(&deployment, Phase::Drain).await;
    let is_closed = async || scene.engine().gate("orders").await.unwrap().gate.state.is_closed();
    eventually("the gate is closed", is_closed).await;
    for n in 50..100 {
        runs.push(scene.start(n).await);
    }
    assert_eq!(scene.engine().gate("orders").await.unwrap().held, 50);
    scene.floor.let_go.notify_waiters();
    let ended = scene.ended(&deployment).await;
    assert_eq!((ended.phase, ended.verdict), (Phase::Completed, Some(Verdict::Good)), "{ended:?}");
    let new = Flow::parse(NEW).unwrap();
    scene.check(&runs, &[&scene.old, &new]).await;
    assert_eq!((scene.floor.count("ship-old"), scene.floor.count("ship-new")), (50, 51));
    assert_eq!((ended.counts.held, ended.counts.released), (50, 50));
    let report = scene.report(&ended).await;
    assert!(report.conservation.as_ref().unwrap().holds(), "{report:?}");
    shut_down(scene.engines).await;
}

async fn t3_a_slow_step_is_checkpointed_and_resumes_where_it_was(stores: Vec<Arc<dyn Store>>) {
    let counts = Counts::default();
    let recorded = counts.record();
    let scene = Scene::new(stores).await;
    drop(recorded);
    *scene.floor.slow_from.lock() = Some(0);
    let run_id = scene.start(7).await;
    let waits = async || scene.floor.waiting.load(Ordering::SeqCst) == 1;
    eventually("the step is under way", waits).await;
    let settings = format!("{FAST}\n").replace("drain_timeout: 5s", "drain_timeout: 200ms");
    let plan = scene.engine().plan_deployment(&request(NEW, &settings)).await.unwrap().plan;
    assert_eq!(plan.resuming, 1, "{plan:?}");
    let expected = Fate::Resumes { steps: vec!["ship".into()], starts: Vec::new() };
    assert_eq!(plan.runs[0].fate, expected);
    let deployment = scene.deploy(NEW, &settings).await;
    let ended = scene.ended(&deployment).await;
    assert_eq!((ended.phase, ended.counts.checkpointed), (Phase::Completed, 1), "{ended:?}");
    let new = Flow::parse(NEW).unwrap();
    scene.check(&[run_id], &[&scene.old, &new]).await;
    let checkpoints = checkpoints(&**scene.engine().store(), Some("orders")).await.unwrap();
    let [checkpoint] = checkpoints.as_slice() else { panic!("{checkpoints:?}") };
    assert_eq!((checkpoint.run_id, checkpoint.state), (run_id, CheckpointState::Resumed));
    assert_eq!(&*checkpoint.steps[0].step, "ship");
    // The late result of the attempt that was given up changes nothing, and is counted.
    scene.floor.let_go.notify_waiters();
    let is_counted = async || counts.sum("flowgate_leases_lost_total") == 1;
    eventually("the lost attempt is counted", is_counted).await;
    assert_eq!((scene.floor.of("take", 7), scene.floor.of("ship-new", 7)), (1, 1));
    let run = scene.engine().store().read_run(run_id).await.unwrap().unwrap().row.run;
    assert_eq!((run.status, &run.revision), (RunStatus::Completed, &new.revision));
    let kinds = scene.kinds(run_id).await;
    assert!(kinds.contains(&"run.checkpointed") && kinds.contains(&"run.migrated"), "{kinds:?}");
    shut_down(scene.engines).await;
}

async fn a_run_that_was_moved_while_its_attempt_is_held_up_follows_the_new_revision(
    stores: Vec<Arc<dyn Store>>,
) {
    let longer = format!("{}  tell: {{ subscribes: ['step:ship'] }}\n", NEW.trim_start());
    let scene = Scene::new(stores).await;
    *scene.floor.slow_from.lock() = Some(0);
    let mut runs = Vec::new();
    for n in 0..4 {
        runs.push(scene.start(n).await);
    }
    let wait = async || scene.floor.waiting.load(Ordering::SeqCst) == 4;
    eventually("the steps are under way", wait).await;
    let settings = FAST.replace("drain_timeout: 5s", "drain_timeout: 100ms");
    let deployment = scene.deploy(&longer, &settings).await;
    let ended = scene.ended(&deployment).await;
    assert_eq!((ended.phase, ended.counts.checkpointed), (Phase::Completed, 4), "{ended:?}");
    // The attempts that were given up are still there: their instances know the old revision too.
    scene.check(&runs, &[&scene.old, &Flow::parse(&longer).unwrap()]).await;
    for run_id in &runs {
        let log = whole_log(&**scene.engine().store(), *run_id).await.unwrap();
        let told = log
            .iter()
            .filter(|stored| stored.event.step().is_some_and(|step| **step == *"tell"))
            .count();
        assert!(told > 0, "`tell` is a step of the new revision: {log:#?}");
    }
    scene.floor.let_go.notify_waiters();
    shut_down(scene.engines).await;
}

async fn t4_the_new_revision_takes_over_without_an_error(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    let new = Flow::parse(NEW).unwrap();
    let mut runs = Vec::new();
    for n in 0..20 {
        runs.push(scene.start(n).await);
    }
    scene.check(&runs, &[&scene.old]).await;
    let deployment = scene.deploy(NEW, "strategy: rolling\nverify_timeout: 500ms\n").await;
    let ended = scene.ended(&deployment).await;
    assert_eq!((ended.phase, ended.author.as_deref()), (Phase::Completed, Some("ann")));
    assert_eq!(scene.active().await, new.revision.to_string());
    for n in 20..40 {
        // Also on the instance that did not drive it, and at once.
        runs.push(scene.start(n).await);
    }
    scene.check(&runs, &[&scene.old, &new]).await;
    assert_eq!((scene.floor.count("ship-old"), scene.floor.count("ship-new")), (20, 20));
    shut_down(scene.engines).await;
}

async fn t5_a_broken_revision_is_found_and_the_old_one_goes_on(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    let mut runs = Vec::new();
    let rows = [("throws", "failed"), ("wrong", "failed"), ("hangs", "did not end in time")];
    for (round, (worker, why)) in (0..).zip(rows) {
        let broken = NEW.replace("ship-new", worker);
        let settings = FAST.replace("verify_timeout: 5s", "verify_timeout: 800ms");
        let deployment = scene.deploy(&broken, &settings).await;
        scene.reached(&deployment, Phase::Drain).await;
        for n in 0..10 {
            runs.push(scene.start(round * 100 + n).await);
        }
        let ended = scene.ended(&deployment).await;
        assert_eq!(ended.phase, Phase::RolledBack, "{worker}");
        let reason = ended.rollback.as_ref().unwrap().to_string();
        assert!(reason.contains(why), "{worker}: {reason}");
        assert_eq!(scene.active().await, scene.old.revision.to_string());
        let report = scene.report(&ended).await;
        assert!(!report.is_good() && report.conservation.as_ref().unwrap().holds(), "{report:?}");
    }
    scene.check(&runs, &[&scene.old]).await;
    assert_eq!(scene.floor.count("ship-old"), 30);
    shut_down(scene.engines).await;
}

async fn t10_messages_over_a_megabyte_pass_the_hold_unchanged(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    *scene.floor.slow_from.lock() = Some(0);
    let first = scene.start(0).await;
    eventually("it is under way", async || scene.floor.waiting.load(Ordering::SeqCst) == 1).await;
    let deployment = scene.deploy(NEW, FAST).await;
    let is_closed = async || scene.engine().gate("orders").await.unwrap().gate.state.is_closed();
    eventually("the gate is closed", is_closed).await;
    let mut runs = vec![first];
    let refused = Payload::of(&json!({ "text": "x".repeat(1_500_000) })).unwrap_err();
    assert!(refused.to_string().contains("1048576"), "{refused}");
    let input = payload(json!({ "n": 1, "text": "x".repeat(1_040_000) }));
    for _ in 0..3 {
        let request = StartRequest::new(input.clone());
        let started = scene.engine().start_run("orders", request).await.unwrap();
        assert_eq!(started.run.unwrap().status, RunStatus::Held);
        runs.push(started.run_id);
    }
    *scene.floor.slow_from.lock() = None;
    scene.floor.let_go.notify_waiters();
    assert_eq!(scene.ended(&deployment).await.phase, Phase::Completed);
    scene.check(&runs, &[&scene.old, &Flow::parse(NEW).unwrap()]).await;
    for run_id in &runs[1..] {
        let first = scene.engine().store().read_events(*run_id, 0, 1).await.unwrap();
        assert_eq!(first[0].event.payload(), input);
    }
    shut_down(scene.engines).await;
}

async fn t11_a_thousand_messages_a_second_are_all_accepted(stores: Vec<Arc<dyn Store>>) {
    const MESSAGES: u64 = 2_000;
    let scene = Arc::new(Scene::new(stores).await);
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    let mut deployment = None;
    let mut starts = tokio::task::JoinSet::new();
    for n in 0..MESSAGES {
        if n % 10 == 0 {
            ticks.tick().await;
        }
        if n == MESSAGES / 4 {
            deployment = Some(scene.deploy(NEW, FAST).await);
        }
        let scene = Arc::clone(&scene);
        starts.spawn(async move { scene.start(n).await });
    }
    let mut runs = Vec::new();
    while let Some(run_id) = starts.join_next().await {
        runs.push(run_id.unwrap());
    }
    let ended = scene.ended(&deployment.unwrap()).await;
    assert_eq!(ended.phase, Phase::Completed, "{ended:?}");
    for run_id in &runs {
        let detail = scene.engine().wait(*run_id).await.unwrap();
        assert_eq!(detail.row.run.status, RunStatus::Completed);
    }
    let shipped = |n| scene.floor.of("ship-old", n) + scene.floor.of("ship-new", n);
    let again: usize =
        (0..MESSAGES).map(|n| shipped(n).checked_sub(1).expect("each is shipped")).sum();
    // Only what was stopped in the middle is done again.
    assert!(again <= usize::try_from(ended.counts.checkpointed).unwrap(), "{again}: {ended:?}");
    let scene = Arc::into_inner(scene).expect("every start has ended");
    shut_down(scene.engines).await;
}

async fn t7_the_report_says_what_changed(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    let mut runs = Vec::new();
    for n in 0..10 {
        runs.push(scene.start(n).await);
    }
    scene.check(&runs, &[&scene.old]).await;
    let settings = "strategy: rolling\nverify_timeout: 30s\nbefore_window: 8\n";
    let deployment = scene.deploy(NEW, settings).await;
    scene.reached(&deployment, Phase::Audit).await;
    for n in 10..20 {
        scene.start(n).await;
    }
    let ended = scene.ended(&deployment).await;
    let report = scene.report(&ended).await;
    let (before, after) = (report.before.as_ref().unwrap(), report.after.as_ref().unwrap());
    assert_eq!((before.count, before.failed, after.failed), (8, 0, 0), "{report:?}");
    assert!(after.count >= 8 && report.is_good(), "{report:?}");
    assert!(report.to_text().contains("throughput"), "{}", report.to_text());
    shut_down(scene.engines).await;
}

async fn t8_one_deployment_of_a_flow_at_a_time(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    *scene.floor.slow_from.lock() = Some(0);
    let run_id = scene.start(0).await;
    eventually("it is under way", async || scene.floor.waiting.load(Ordering::SeqCst) == 1).await;
    let settings = FAST.replace("5s", "20s");
    let (one, other) = tokio::join!(
        scene.engine().start_deployment(request(NEW, &settings)),
        scene.engines[0].start_deployment(request(NEW, &settings)),
    );
    let (began, refused) = if one.is_ok() { (one, other) } else { (other, one) };
    let (began, refused) = (began.unwrap(), refused.unwrap_err());
    assert!(matches!(&refused, EngineError::Deploy(Refusal::InProgress { .. })), "{refused:?}");
    scene.reached(&began, Phase::Drain).await;
    let let_go = scene.engine().let_go("orders", None).await;
    let is_closed = async || scene.engine().gate("orders").await.unwrap().gate.state.is_closed();
    eventually("the gate is closed", is_closed).await;
    drop(let_go);
    let refused = scene.engine().let_go("orders", None).await.unwrap_err();
    assert!(matches!(refused, EngineError::GateClosed { .. }), "{refused:?}");
    let held = scene.start(1).await;
    scene.engine().ask_deployment("orders", &Ask::Rollback { note: None }).await.unwrap();
    let ended = scene.ended(&began).await;
    assert_eq!(ended.phase, Phase::RolledBack);
    *scene.floor.slow_from.lock() = None;
    scene.floor.let_go.notify_waiters();
    scene.check(&[run_id, held], &[&scene.old]).await;
    // The revision that was rolled back may be tried again, the active one may not.
    let again = scene.engine().plan_deployment(&request(OLD, FAST)).await.unwrap_err();
    assert!(matches!(again, EngineError::Deploy(Refusal::Active { .. })), "{again:?}");
    let ended = scene.ended(&scene.deploy(NEW, FAST).await).await;
    assert_eq!(ended.phase, Phase::Completed, "{ended:?}");
    let all = deployments(&**scene.engine().store(), Some("orders")).await.unwrap();
    assert_eq!(all.len(), 2);
    let older = scene.engine().plan_deployment(&request(OLD, FAST)).await.unwrap_err();
    assert!(matches!(older, EngineError::Deploy(Refusal::Older { .. })), "{older:?}");
    // Of those that have ended no more are kept than the settings say.
    let last = NEW.replace("attempts: 1", "attempts: 2");
    let last = scene.deploy(&last, &format!("{FAST}audit_max_per_flow: 1\n")).await;
    scene.ended(&last).await;
    let is_pruned = async || {
        let all = deployments(&**scene.engine().store(), Some("orders")).await.unwrap();
        all.len() == 1 && all[0].deployment_id == last.deployment_id
    };
    eventually("the older ones are forgotten", is_pruned).await;
    shut_down(scene.engines).await;
}

/// A leader in a runtime of its own, which ends without a word.
pub(crate) struct Leader {
    engine: Engine,
    runtime: tokio::runtime::Runtime,
}

impl Leader {
    pub(crate) fn start(store: Arc<dyn Store>, workers: Workers) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let engine = {
            let _entered = runtime.enter();
            // What it would execute when it dies is its own for the rest of a lease, and longer than
            // smoke tests may take.
            let queues = Queues::Only(vec!["no-step-has-this".into()]);
            Engine::start(store, workers, EngineConfig { queues, ..config() }).unwrap()
        };
        Self { engine, runtime }
    }

    pub(crate) fn kill(self) {
        let Self { engine, runtime } = self;
        runtime.shutdown_background();
        std::mem::forget(engine);
    }
}

pub(crate) async fn sqlite() -> Vec<Arc<dyn Store>> {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(instance_id());
    let store = SqliteStore::open(&folder.path().join("store.db"), options).await.unwrap();
    // The folder goes with the process.
    std::mem::forget(folder);
    vec![Arc::new(store)]
}

/// The cases of a module as tests on every store: two handles of a shared one, one of the others.
/// Those behind `shared:` are for shared stores only.
macro_rules! on_every_store {
    ($($case:ident),+ $(,)? $(; shared: $($shared:ident),+ $(,)?)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(vec![std::sync::Arc::new(flowgate_store::MemoryStore::new())]).await;
            })+
        }
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(crate::deploys::sqlite().await).await;
            })+
        }
        mod redis {
            crate::deploys::on_every_store!(@shared redis; $($case,)+ $($($shared,)+)?);
        }
        mod postgres {
            crate::deploys::on_every_store!(@shared postgres; $($case,)+ $($($shared,)+)?);
        }
    };
    (@shared $kind:ident; $($case:ident,)+) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $case() {
            let place = crate::shared::Place::$kind();
            super::$case(vec![place.open().await, place.open().await]).await;
        })+
    };
}
pub(crate) use on_every_store;

on_every_store!(
    t2_a_hundred_messages_with_a_drain_after_fifty_all_come_out,
    t3_a_slow_step_is_checkpointed_and_resumes_where_it_was,
    a_run_that_was_moved_while_its_attempt_is_held_up_follows_the_new_revision,
    t4_the_new_revision_takes_over_without_an_error,
    t5_a_broken_revision_is_found_and_the_old_one_goes_on,
    t7_the_report_says_what_changed,
    t10_messages_over_a_megabyte_pass_the_hold_unchanged,
    t11_a_thousand_messages_a_second_are_all_accepted,
    t8_one_deployment_of_a_flow_at_a_time,
);
