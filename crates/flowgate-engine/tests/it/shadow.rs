//! The new revision on the inputs of earlier runs, before it becomes active, on every store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flowgate_core::check;
use flowgate_core::decide::Rejection;
use flowgate_core::deploy::{Deployment, Phase, RollbackReason, Settings};
use flowgate_core::flow::Flow;
use flowgate_core::ids::RunId;
use flowgate_core::run::{RunStatus, SHADOW_TAG};
use flowgate_engine::remote::RemoteClaim;
use flowgate_engine::{
    DeadFilter, DeployRequest, Engine, EngineError, HandlerError, RetryOn, StartRequest,
    StepContext, Workers, dead_letters, deployment_report, find_deployment,
};
use flowgate_store::{MemoryStore, RunQuery, RunRow, Store, whole_log};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::deploys::{Leader, config, on_every_store};
use crate::remote::{claim, lease, output};
use crate::shared::shut_down;
use crate::world::{eventually, payload};

const OLD: &str = "
flow: orders
steps:
  price: { run: { worker: price }, emits: [priced] }
  charge: { subscribes: [priced], run: { worker: charge }, effect: true, emits: [paid] }
  ship: { subscribes: [paid], run: { worker: ship } }
";
const RULES: &str = "{shadow: {runs: 3}, verify_timeout: 100ms}";

/// What the handlers have done, and what holds one of them up.
#[derive(Clone, Default)]
struct Floor {
    done: Arc<Mutex<BTreeMap<String, usize>>>,
    is_held_up: Arc<AtomicBool>,
    let_go: Arc<Notify>,
}

impl Floor {
    fn workers(&self) -> Workers {
        let mut workers = Workers::new();
        for name in
            ["price", "price-new", "price-dear", "price-slow", "price-broken", "charge", "ship"]
        {
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
        let calls = {
            let mut done = self.done.lock();
            let calls = done.entry(name.to_owned()).or_default();
            *calls += 1;
            *calls
        };
        if name == "price-slow" && self.is_held_up.load(Ordering::SeqCst) {
            self.let_go.notified().await;
        }
        match name {
            "charge" => {
                let receipt = format!("{}-{calls}", input["priced"]["n"]);
                step.state_set("receipt", &receipt)?;
                step.emit("paid", &json!({ "receipt": receipt }))?;
                Ok(json!({ "ok": true }))
            }
            "ship" => {
                let receipt: Option<String> = step.state_get("receipt").await?;
                Ok(json!({ "with": input["paid"]["receipt"], "state": receipt }))
            }
            "price-broken" => Err(HandlerError::fatal("no price")),
            pricer => {
                let n = input["n"].as_u64().unwrap_or(0);
                let sum = if pricer == "price-dear" { n * 3 } else { n * 2 };
                step.emit("priced", &json!({ "n": n, "sum": sum, "call": calls }))?;
                Ok(Value::Null)
            }
        }
    }

    fn count(&self, name: &str) -> usize {
        self.done.lock().get(name).copied().unwrap_or(0)
    }
}

/// The old revision with another worker that prices, and its events without what always differs.
fn priced_by(worker: &str) -> String {
    OLD.replace("worker: price }", &format!("worker: {worker} }}"))
}

fn rules(shadow: &str) -> String {
    format!("{{shadow: {{ignore: [emits.priced/call], {shadow}}}, verify_timeout: 100ms}}")
}

struct Scene {
    engines: Vec<Engine>,
    floor: Floor,
    old: Flow,
}

impl Scene {
    async fn new(stores: Vec<Arc<dyn Store>>) -> Self {
        Self::of(OLD, stores).await
    }

    async fn of(flow: &str, stores: Vec<Arc<dyn Store>>) -> Self {
        let (floor, old) = (Floor::default(), Flow::parse(flow).unwrap());
        let start = |store| Engine::start(store, floor.workers(), config()).unwrap();
        let engines: Vec<Engine> = stores.into_iter().map(start).collect();
        engines[0].register(&old, None).await.unwrap();
        Self { engines, floor, old }
    }

    fn engine(&self) -> &Engine {
        self.engines.last().unwrap()
    }

    fn store(&self) -> &dyn Store {
        &**self.engine().store()
    }

    async fn start(&self, n: u64) -> RunId {
        let request = StartRequest::new(payload(json!({ "n": n })));
        self.engine().start_run("orders", request).await.unwrap().run_id
    }

    /// Runs that have completed, the first first.
    async fn completed(&self, count: u64) -> Vec<RunId> {
        let mut runs = Vec::new();
        for n in 1..=count {
            let run_id = self.start(n).await;
            let detail = self.engine().wait(run_id).await.unwrap();
            assert_eq!(detail.row.run.status, RunStatus::Completed);
            runs.push(run_id);
        }
        runs
    }

    async fn deploy(&self, flow: &str, settings: &str) -> Deployment {
        self.engine().start_deployment(request(flow, settings)).await.unwrap()
    }

    async fn read(&self, deployment: &Deployment) -> Deployment {
        let id = Some(&*deployment.deployment_id.0);
        find_deployment(self.store(), "orders", id).await.unwrap().expect("it has begun")
    }

    /// The deployment when it has ended.
    async fn ended(&self, deployment: &Deployment) -> Deployment {
        let is_over = async || self.read(deployment).await.phase.is_terminal();
        eventually("the deployment ends", is_over).await;
        self.read(deployment).await
    }

    /// The runs of a deployment's shadow.
    async fn shadows(&self, deployment: &Deployment) -> Vec<RunRow> {
        let tag = ("flowgate.probe".into(), Arc::clone(&deployment.deployment_id.0));
        let query = RunQuery { tags: vec![tag], limit: 100, ..RunQuery::default() };
        let mut rows = self.store().list_runs(&query).await.unwrap();
        rows.retain(|row| row.run.tags.contains_key(SHADOW_TAG));
        rows
    }

    async fn active(&self) -> String {
        let revisions = self.store().list_revisions(Some("orders")).await.unwrap();
        revisions.iter().find(|stored| stored.active).unwrap().revision.revision.to_string()
    }
}

fn request(flow: &str, settings: &str) -> DeployRequest {
    DeployRequest {
        flow: Flow::parse(flow).unwrap(),
        folder: None,
        settings: Settings::parse(settings).unwrap(),
        author: None,
        note: None,
        is_forced: true,
    }
}

async fn equal_outputs_are_promoted_and_no_effect_is_done_again(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    let runs = scene.completed(5).await;
    let new = priced_by("price-new");
    let settings = rules("runs: 3");
    let plan = scene.engine().plan_deployment(&request(&new, &settings)).await.unwrap().plan;
    let planned = plan.shadow.unwrap();
    assert_eq!((planned.runs, planned.stubbed), (3, vec!["charge".into()]));
    let executed: Vec<&str> = planned.executed.iter().map(|name| &**name).collect();
    assert_eq!(executed, ["price", "ship"]);
    assert!(plan.warnings[0].contains("executes `price`, `ship` for real"), "{:?}", plan.warnings);
    let deployment = scene.deploy(&new, &settings).await;
    let ended = scene.ended(&deployment).await;
    let shadow = ended.shadow.as_ref().expect("a shadow");
    assert_eq!(
        (ended.phase, shadow.compared, shadow.differing),
        (Phase::Completed, 3, 0),
        "{ended:?}"
    );
    // Those that were accepted in one millisecond are in the order of their ids.
    let query = RunQuery { flow: Some("orders".into()), limit: 100, ..RunQuery::default() };
    let rows = scene.store().list_runs(&query).await.unwrap();
    let originals = rows.iter().map(|row| row.run.run_id).filter(|run_id| runs.contains(run_id));
    let last: Vec<RunId> = originals.take(3).collect();
    assert_eq!(shadow.originals, last, "the latest first");
    let floor = &scene.floor;
    assert_eq!((floor.count("charge"), floor.count("price-new"), floor.count("ship")), (5, 3, 8));
    let rows = scene.shadows(&deployment).await;
    assert_eq!(rows.len(), 3);
    let flow = Flow::parse(&new).unwrap();
    for row in &rows {
        let log = whole_log(scene.store(), row.run.run_id).await.unwrap();
        assert_eq!(check::check_run(&[&flow], row.run.run_id, &log, Some(&row.run)), []);
        assert_eq!(row.run.status, RunStatus::Completed);
    }
    // They count as nothing that has happened, and nobody can have them done again.
    let report = deployment_report(scene.store(), &ended).await.unwrap();
    assert_eq!(report.conservation.unwrap().received, 0);
    let again = scene.engine().retry(rows[0].run.run_id, Some("charge"), &RetryOn::Pinned).await;
    assert!(matches!(again, Err(EngineError::Rejected(Rejection::RunShadow))), "{again:?}");
    shut_down(scene.engines).await;
}

async fn another_output_goes_back_unless_it_is_ignored(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    let runs = scene.completed(2).await;
    let dear = priced_by("price-dear");
    let ended = scene.ended(&scene.deploy(&dear, &rules("runs: 2")).await).await;
    assert_eq!(ended.phase, Phase::RolledBack);
    let reason = RollbackReason::ShadowDiffers { compared: 2, differing: 2, differ_max: 0 };
    assert_eq!(ended.rollback, Some(reason));
    assert_eq!(scene.active().await, scene.old.revision.to_string());
    let report = deployment_report(scene.store(), &ended).await.unwrap();
    let text = report.to_text();
    let wanted = "emits.priced/sum: wanted 4, found 6";
    for part in [wanted, &runs[1].to_string(), "2 of 2 runs compared, 2 differ"] {
        assert!(text.contains(part), "{part}: {text}");
        assert!(report.to_html().contains(part), "{part}");
    }
    // One that differs is one too many, two may.
    let few = scene.ended(&scene.deploy(&dear, &rules("runs: 2, differ_max: 1")).await).await;
    assert_eq!(few.phase, Phase::RolledBack);
    let broken =
        scene.ended(&scene.deploy(&priced_by("price-broken"), &rules("runs: 1")).await).await;
    let text = deployment_report(scene.store(), &broken).await.unwrap().to_text();
    let wanted = "status: wanted completed, found failed: step `price`: no price";
    assert!(text.contains(wanted), "{text}");
    let (dead, _) = dead_letters(scene.store(), &DeadFilter::default(), None).await.unwrap();
    assert!(dead.is_empty(), "nothing real has failed: {dead:?}");
    // An input that it does not take is a difference too.
    let picky = dear.replace("steps:", "input: {required: [tenant]}\nsteps:");
    let refused = scene.ended(&scene.deploy(&picky, &rules("runs: 2")).await).await;
    let first = &refused.shadow.as_ref().unwrap().differences[0].mismatches[0];
    assert_eq!((refused.phase, &*first.path), (Phase::RolledBack, "input"), "{refused:?}");
    let ignored = rules("runs: 2").replace("[emits.priced/call]", "[emits.priced]");
    let kept = scene.ended(&scene.deploy(&dear, &ignored).await).await;
    assert_eq!(kept.phase, Phase::Completed, "{kept:?}");
    assert_eq!(scene.floor.count("charge"), 2, "whatever was tried");
    shut_down(scene.engines).await;
}

async fn a_wait_is_over_as_it_was(stores: Vec<Arc<dyn Store>>) {
    let waiting = format!(
        "{OLD}  nap: {{ subscribes: ['step:ship'], wait: {{ delay: 10ms }}, emits: [rested] }}
  approve: {{ subscribes: [rested], wait: {{ signal: ok }}, emits: [approved] }}
"
    );
    let scene = Scene::of(&waiting, stores).await;
    let run_id = scene.start(1).await;
    let data = payload(json!({ "by": "ann" }));
    scene.engine().signal(run_id, "ok", data).await.unwrap();
    let detail = scene.engine().wait(run_id).await.unwrap();
    assert_eq!(detail.row.run.status, RunStatus::Completed);
    let new = waiting
        .replace("delay: 10ms", "delay: 8h")
        .replace("worker: price }", "worker: price-new }");
    // Past the gate, which is closed meanwhile.
    let settings = rules("runs: 5").replace("{shadow", "{strategy: blue-green, shadow");
    let ended = scene.ended(&scene.deploy(&new, &settings).await).await;
    assert!(ended.phases.iter().any(|entered| entered.phase == Phase::Drain), "{ended:?}");
    let shadow = ended.shadow.as_ref().expect("a shadow");
    assert_eq!(
        (ended.phase, shadow.compared, shadow.differing),
        (Phase::Completed, 1, 0),
        "{ended:?}"
    );
    shut_down(scene.engines).await;
}

async fn one_that_hangs_goes_back_in_time_and_leaves_nothing_open(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    scene.completed(2).await;
    scene.floor.is_held_up.store(true, Ordering::SeqCst);
    let deployment = scene.deploy(&priced_by("price-slow"), &rules("timeout: 700ms")).await;
    let ended = scene.ended(&deployment).await;
    assert_eq!(ended.phase, Phase::RolledBack);
    assert_eq!(ended.rollback, Some(RollbackReason::ShadowTimedOut { open: 2 }));
    let rows = scene.shadows(&deployment).await;
    let is_cancelled = |row: &RunRow| row.run.status == RunStatus::Cancelled;
    assert!(rows.len() == 2 && rows.iter().all(is_cancelled), "{rows:?}");
    scene.floor.let_go.notify_waiters();
    shut_down(scene.engines).await;
}

/// The effect is that of a worker in another process, which asks for jobs all the time.
async fn a_remote_worker_gets_no_job_of_a_shadow(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    scene.completed(3).await;
    let new = OLD.replace("worker: charge", "worker: bank");
    let ask = || RemoteClaim {
        workers: vec!["bank".into()],
        wait: Duration::from_millis(100),
        ..claim("bank-1")
    };
    let deployment = scene.deploy(&new, &rules("runs: 3")).await;
    let mut ended = scene.read(&deployment).await;
    while !ended.phase.is_terminal() {
        let jobs = scene.engine().claim_remote(ask()).await.unwrap();
        assert!(jobs.is_empty(), "{jobs:?}");
        ended = scene.read(&deployment).await;
    }
    let compared = ended.shadow.as_ref().map(|shadow| shadow.compared);
    assert_eq!((ended.phase, compared), (Phase::Completed, Some(3)), "{ended:?}");
    // A run that is real is another matter.
    let run_id = scene.start(9).await;
    let claim = RemoteClaim { wait: Duration::from_secs(20), ..ask() };
    let jobs = scene.engine().claim_remote(claim).await.unwrap();
    let [job] = jobs.as_slice() else { panic!("{jobs:?}") };
    assert_eq!((job.run_id, &*job.step), (run_id, "charge"));
    let done = output(&["paid"], json!({ "ok": true }));
    scene.engine().complete_remote(&lease(job), done, vec![]).await.unwrap();
    let detail = scene.engine().wait(run_id).await.unwrap();
    assert_eq!(detail.row.run.status, RunStatus::Completed);
    shut_down(scene.engines).await;
}

async fn a_driver_that_dies_in_the_middle_is_followed_by_one_that_starts_none_twice(
    stores: Vec<Arc<dyn Store>>,
) {
    let (first, second) = (Arc::clone(&stores[0]), Arc::clone(&stores[1]));
    // It leads, and executes nothing.
    let leader = Leader::start(Arc::clone(&first), Workers::new());
    let leads = async || !first.list_terms("leader").await.unwrap().is_empty();
    eventually("somebody leads", leads).await;
    let scene = Scene::new(vec![second]).await;
    scene.completed(4).await;
    scene.floor.is_held_up.store(true, Ordering::SeqCst);
    let deployment = scene.deploy(&priced_by("price-slow"), &rules("runs: 4")).await;
    let has_begun = async || scene.floor.count("price-slow") == 4;
    eventually("the shadow is under way", has_begun).await;
    let before = scene.read(&deployment).await.shadow.expect("it is written down");
    leader.kill();
    // Runs that end meanwhile are not taken instead.
    let meanwhile = scene.start(7).await;
    scene.engine().wait(meanwhile).await.unwrap();
    scene.floor.is_held_up.store(false, Ordering::SeqCst);
    scene.floor.let_go.notify_waiters();
    let ended = scene.ended(&deployment).await;
    let shadow = ended.shadow.as_ref().expect("a shadow");
    assert_eq!((ended.phase, shadow.compared), (Phase::Completed, 4), "{ended:?}");
    assert_eq!(shadow.originals, before.originals);
    assert_eq!(scene.shadows(&deployment).await.len(), 4);
    assert_eq!((scene.floor.count("price-slow"), scene.floor.count("charge")), (4, 5));
    shut_down(scene.engines).await;
}

/// A tag that only a deployment gives a run cannot be given by a caller.
#[tokio::test]
async fn a_start_cannot_pass_for_a_shadow() {
    let scene = Scene::new(vec![Arc::new(MemoryStore::new())]).await;
    let mut request = StartRequest::new(payload(json!({ "n": 1 })));
    request.tags.insert(SHADOW_TAG.into(), "x".into());
    let refused = scene.engine().start_run("orders", request).await.unwrap_err();
    assert!(refused.to_string().contains("`flowgate.shadow` is flowgate's own"), "{refused}");
    let nothing = scene.engine().plan_deployment(&request_of_nothing()).await.unwrap().plan;
    assert!(nothing.warnings[0].contains("compares nothing"), "{:?}", nothing.warnings);
    shut_down(scene.engines).await;
}

fn request_of_nothing() -> DeployRequest {
    request(&priced_by("price-new"), RULES)
}

on_every_store!(
    equal_outputs_are_promoted_and_no_effect_is_done_again,
    another_output_goes_back_unless_it_is_ignored,
    a_wait_is_over_as_it_was,
    one_that_hangs_goes_back_in_time_and_leaves_nothing_open,
    a_remote_worker_gets_no_job_of_a_shadow,
    ;
    shared:
    a_driver_that_dies_in_the_middle_is_followed_by_one_that_starts_none_twice,
);
