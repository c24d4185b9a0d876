//! What came in, what came out, and what a deployment's report says of it, on every store. Names
//! with a number are the tests of the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::audit::{Direction, Entry, EntryStatus};
use flowgate_core::commit::Due;
use flowgate_core::decide::{self, Start};
use flowgate_core::deploy::{Figures, Phase, Verdict};
use flowgate_core::flow::Flow;
use flowgate_core::gate::GateStamp;
use flowgate_core::ids::{CommitId, InstanceId, RunId};
use flowgate_core::payload::Payload;
use flowgate_core::run::RunStatus;
use flowgate_engine::{
    AuditQuery, CheckpointState, Engine, EngineConfig, EngineError, HandlerError, HoldRequest,
    PrivateTargets, StartRequest, StepContext, Workers, audit_entries, audit_summary, audit_trail,
    checkpoints, deployment_report, find_deployment, instance_id,
};
use flowgate_store::{CommitOutcome, Retention, RunRow, SqliteOptions, SqliteStore, Store};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;
use wiremock::matchers::method;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::deploys::{Floor, Scene, config, on_every_store};
use crate::shared::{Place, shut_down};
use crate::world::{eventually, payload};

const OLD: &str = "
flow: orders
steps:
  take: { run: { worker: take }, emits: [taken] }
  ship: { subscribes: [taken], run: { worker: ship }, retry: { attempts: 1 } }
";

/// The handlers: orders with `fail` are not shipped, and those with `hang` not while `is_hanging`.
#[derive(Clone, Default)]
struct Desk {
    is_hanging: Arc<Mutex<bool>>,
    hanging: Arc<Mutex<usize>>,
}

impl Desk {
    fn workers(&self) -> Workers {
        let mut workers = Workers::new();
        workers.register("take", async |input: Value, step: StepContext| {
            step.emit("taken", &input)?;
            step.state_set("customer", &json!({ "order": input["n"], "name": "Ann" }))?;
            Ok::<_, HandlerError>(())
        });
        for name in ["ship", "ship-new"] {
            let desk = self.clone();
            workers.register(name, move |input: Value, step: StepContext| {
                let desk = desk.clone();
                async move { desk.ship(&input["taken"], &step).await }
            });
        }
        workers
    }

    async fn ship(&self, order: &Value, step: &StepContext) -> Result<Value, HandlerError> {
        if order["fail"] == true {
            return Err(HandlerError::retryable("out of stock"));
        }
        if order["hang"] == true && *self.is_hanging.lock() {
            *self.hanging.lock() += 1;
            std::future::pending::<()>().await;
        }
        let customer: Option<Value> = step.state_get("customer").await?;
        let named = customer.is_some_and(|customer| customer["order"] == order["n"]);
        Ok(json!({ "shipped": order["n"], "named": named }))
    }

    async fn scene(&self, stores: Vec<Arc<dyn Store>>) -> Scene {
        let start = |store| Engine::start(store, self.workers(), config_at(instance_id())).unwrap();
        let engines: Vec<Engine> = stores.into_iter().map(start).collect();
        let old = Flow::parse(OLD).unwrap();
        engines[0].register(&old, None).await.unwrap();
        Scene { engines, floor: Floor::default(), old }
    }
}

fn config_at(instance: InstanceId) -> EngineConfig {
    let grace = Duration::from_millis(50);
    let mut config = EngineConfig { instance, shutdown_grace: grace, ..config() };
    config.http.allow_private = PrivateTargets::Only(vec!["127.0.0.1".parse().unwrap()]);
    config
}

fn new_flow() -> String {
    OLD.replace("worker: ship", "worker: ship-new")
}

fn sha256(bytes: &[u8]) -> String {
    let digits: Vec<String> =
        Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    digits.concat()
}

async fn start(engine: &Engine, input: Payload) -> RunId {
    engine.start_run("orders", StartRequest::new(input)).await.unwrap().run_id
}

/// All entries that match, read in small pages.
async fn entries(store: &dyn Store, direction: Option<Direction>) -> Vec<Entry> {
    let flow = Some("orders".into());
    let mut query = AuditQuery { flow, direction, limit: 7, ..AuditQuery::default() };
    let mut found = Vec::new();
    loop {
        let page = audit_entries(store, &query).await.unwrap();
        found.extend(page.entries);
        let Some(next) = page.next else { return found };
        query.after = Some(next);
    }
}

/// Starts what nobody but a deployment can start.
async fn start_probe(store: &dyn Store, flow: &Flow) -> RunId {
    let run_id = RunId::derived("orders", "probe");
    let start = Start {
        run_id,
        input: payload(json!({ "n": 1 })),
        key: None,
        tags: BTreeMap::from([("flowgate.probe".into(), "none".into())]),
        priority: None,
        due: Due::Now,
        gate: GateStamp::default(),
        instance: None,
        pool: None,
    };
    let commit = decide::start(flow, &start, CommitId(Uuid::now_v7()));
    let outcomes = store.commit(vec![commit], None).await.unwrap();
    assert!(matches!(outcomes[..], [CommitOutcome::Applied { .. }]), "{outcomes:?}");
    run_id
}

async fn t6_fifty_messages_have_fifty_entries_in_and_fifty_out(stores: Vec<Arc<dyn Store>>) {
    let scene = Desk::default().scene(stores).await;
    let store = &**scene.engine().store();
    let began_at = store.now().await.unwrap();
    let mut sent: BTreeMap<RunId, (u32, String)> = BTreeMap::new();
    for n in 0..50_u32 {
        // As it is sent, with its spaces; of two that follow each other the bytes are equal.
        let raw = format!("{{ \"n\": {},  \"items\": [1, 2, 3] }}", n / 2);
        let engine = &scene.engines[usize::try_from(n).unwrap() % scene.engines.len()];
        sent.insert(start(engine, Payload::parse(&raw).unwrap()).await, (n / 2, raw));
    }
    let probe = start_probe(store, &scene.old).await;
    let mut rows: BTreeMap<RunId, RunRow> = BTreeMap::new();
    for run_id in sent.keys().chain([&probe]) {
        rows.insert(*run_id, scene.engine().wait(*run_id).await.unwrap().row);
    }
    let longest = store.now().await.unwrap().since(began_at);

    let all = entries(store, None).await;
    let of = |direction: Direction| -> BTreeMap<RunId, &Entry> {
        let matching = all.iter().filter(|entry| entry.direction == direction);
        matching.map(|entry| (entry.run_id, entry)).collect()
    };
    let (inbound, outbound) = (of(Direction::Inbound), of(Direction::Outbound));
    assert_eq!((all.len(), inbound.len(), outbound.len()), (100, 50, 50));
    let instances: BTreeSet<&InstanceId> =
        scene.engines.iter().map(|engine| &engine.config().instance).collect();
    for (run_id, (n, raw)) in &sent {
        let (came, went, row) = (inbound[run_id], outbound[run_id], &rows[run_id]);
        let content = came.content.as_ref().unwrap();
        assert_eq!(content.sha256, sha256(raw.as_bytes()));
        assert_eq!(content.bytes, u64::try_from(raw.len()).unwrap());
        assert_eq!(content.summary.keys, ["items", "n"]);
        assert_eq!(content.summary.lengths["items"], 3);
        let result = format!("{{\"named\":true,\"shipped\":{n}}}");
        let content = went.content.as_ref().unwrap();
        assert_eq!(content.sha256, sha256(result.as_bytes()));
        assert_eq!((came.status, went.status), (EntryStatus::Accepted, EntryStatus::Completed));
        assert_eq!((came.step.as_deref(), went.step.as_deref()), (Some("take"), Some("ship")));
        let took = row.ended_at.unwrap().since(row.started_at);
        assert_eq!(went.took_ms, Some(u64::try_from(took.as_millis()).unwrap()));
        assert!(took <= longest, "{took:?} of {longest:?}");
        for entry in [came, went] {
            assert_eq!(entry.revision, scene.old.revision);
            assert!(instances.contains(entry.instance.as_ref().unwrap()), "{entry:?}");
        }
    }
    let hashes: BTreeSet<&str> =
        inbound.values().map(|entry| &*entry.content.as_ref().unwrap().sha256).collect();
    assert_eq!(hashes.len(), 25, "equal payloads have equal hashes, others do not");
    let out = entries(store, Some(Direction::Outbound)).await;
    assert!(out.len() == 50 && out.iter().all(|entry| entry.direction == Direction::Outbound));
    shut_down(scene.engines).await;
}

async fn a_summary_and_a_trail_say_what_became_of_messages(stores: Vec<Arc<dyn Store>>) {
    let scene = Desk::default().scene(stores).await;
    let (engine, store) = (scene.engine(), &**scene.engine().store());
    let began_at = store.now().await.unwrap();
    let mut runs = Vec::new();
    for n in 0..5 {
        runs.push(start(engine, payload(json!({ "n": n, "fail": n == 4 }))).await);
    }
    for run_id in &runs {
        engine.wait(*run_id).await.unwrap();
    }
    engine.hold("orders", HoldRequest::default()).await.unwrap();
    let held = start(engine, payload(json!({ "n": 9 }))).await;
    let summary = audit_summary(store, Some("orders".into()), began_at).await.unwrap();
    let [came, went] = summary.lines.as_slice() else { panic!("{summary:?}") };
    assert_eq!((came.direction, came.count), (Direction::Inbound, 6));
    assert_eq!((went.direction, went.count, went.errors), (Direction::Outbound, 5, 1));
    let minutes = summary.until.since(began_at).max(Duration::from_secs(1)).as_secs_f64() / 60.0;
    assert!((came.per_minute - 6.0 / minutes).abs() < 1e-6, "{summary:?}");
    assert!(went.took_p50_ms <= went.took_p99_ms && went.took_avg_ms.is_some(), "{summary:?}");
    let later = audit_summary(store, None, summary.until.plus(Duration::from_secs(1)));
    assert_eq!(later.await.unwrap().lines, []);

    let whats = async |run_id| -> Vec<String> {
        let trail = audit_trail(store, run_id).await.unwrap().unwrap();
        let who = |step: Option<Arc<str>>| step.map(|step| format!(" {step}")).unwrap_or_default();
        trail.marks.into_iter().map(|mark| format!("{}{}", mark.what, who(mark.step))).collect()
    };
    let good = ["run.started", "step.succeeded take", "step.succeeded ship", "run.completed"];
    assert_eq!(whats(runs[0]).await, good);
    let bad = ["run.started", "step.succeeded take", "step.failed ship", "run.failed ship"];
    assert_eq!(whats(runs[4]).await, bad);
    assert_eq!(whats(held).await, ["run.started"]);
    let trail = audit_trail(store, runs[4]).await.unwrap().unwrap();
    let failed = trail.marks.iter().find(|mark| mark.what == "step.failed").unwrap();
    assert_eq!((failed.attempt, failed.note.as_deref()), (Some(1), Some("out of stock")));
    assert!(failed.instance.is_some() && failed.took_us.is_some(), "{failed:?}");
    assert_eq!(trail.entries.len(), 2);
    assert_eq!(trail.entries[1].error.as_ref().map(|error| &*error.step), Some("ship"));
    let held = audit_trail(store, held).await.unwrap().unwrap().entries;
    assert_eq!((held.len(), held[0].status), (1, EntryStatus::Held));
    shut_down(scene.engines).await;
}

/// The figures of these rows, by another way than the engine's.
fn figured(rows: &[RunRow]) -> Figures {
    let mut took: Vec<i64> =
        rows.iter().map(|row| row.ended_at.unwrap().0 - row.started_at.0).collect();
    took.sort_unstable();
    let failed = rows.iter().filter(|row| row.run.status == RunStatus::Failed).count();
    let first = rows.iter().map(|row| row.started_at.0).min().unwrap();
    let last = rows.iter().map(|row| row.ended_at.unwrap().0).max().unwrap();
    let ms = |value: i64| u64::try_from(value).unwrap();
    let real = |count: usize| f64::from(u32::try_from(count).unwrap());
    let minutes = f64::from(u32::try_from((last - first).max(1_000)).unwrap()) / 60_000.0;
    Figures {
        count: u64::try_from(rows.len()).unwrap(),
        failed: u64::try_from(failed).unwrap(),
        throughput_per_minute: real(rows.len()) / minutes,
        error_rate: real(failed) / real(rows.len()),
        latency_avg_ms: ms(took.iter().sum::<i64>()) / u64::try_from(took.len()).unwrap(),
        // Of eight, the fourth is the least that half of them do not exceed.
        latency_p50_ms: ms(took[took.len().div_ceil(2) - 1]),
        latency_p99_ms: ms(took[took.len() - 1]),
    }
}

async fn t7_deltas_are_those_of_the_runs_themselves(stores: Vec<Arc<dyn Store>>) {
    let scene = Desk::default().scene(stores).await;
    let (engine, store) = (scene.engine(), &**scene.engine().store());
    // One after the other, each at a later time, so that which are the last is plain.
    let run = async |n: u32, fail: bool| -> RunRow {
        let run_id = start(engine, payload(json!({ "n": n, "fail": fail }))).await;
        let row = engine.wait(run_id).await.unwrap().row;
        eventually("time goes on", async || store.now().await.unwrap() > row.ended_at.unwrap())
            .await;
        row
    };
    let mut before = Vec::new();
    for n in 0..10 {
        before.push(run(n, n == 0 || n == 5).await);
    }
    let settings = "strategy: rolling\nverify_timeout: 30s\nbefore_window: 8\n";
    let deployment = scene.deploy(&new_flow(), settings).await;
    scene.reached(&deployment, Phase::Audit).await;
    let mut after = Vec::new();
    for n in 10..18 {
        after.push(run(n, n < 13).await);
    }
    let ended = scene.ended(&deployment).await;
    let report = scene.report(&ended).await;
    // The last eight of ten, with one of the two that failed.
    let (before, after) = (figured(&before[2..]), figured(&after));
    assert_eq!((before.failed, after.failed), (1, 3));
    assert_eq!((report.before.as_ref(), report.after.as_ref()), (Some(&before), Some(&after)));
    let delta = report.delta.unwrap();
    let rate = after.throughput_per_minute - before.throughput_per_minute;
    assert!((delta.throughput_per_minute - rate).abs() < 1e-9, "{delta:?}");
    assert!((delta.error_rate - 0.25).abs() < 1e-9, "{delta:?}");
    let ms = |value: u64| i64::try_from(value).unwrap();
    assert_eq!(delta.latency_avg_ms, ms(after.latency_avg_ms) - ms(before.latency_avg_ms));
    assert_eq!(delta.latency_p50_ms, ms(after.latency_p50_ms) - ms(before.latency_p50_ms));
    assert_eq!(delta.latency_p99_ms, ms(after.latency_p99_ms) - ms(before.latency_p99_ms));
    let text = report.to_text();
    assert!(text.contains("error rate %               12.50       37.50      +25.00"), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((&json["before"]["failed"], &json["after"]["count"]), (&json!(1), &json!(8)));
    assert!(report.to_html().contains("37.50"), "{}", report.to_html());
    shut_down(scene.engines).await;
}

async fn somebody_is_told_of_a_passed_threshold_and_of_a_rollback(stores: Vec<Arc<dyn Store>>) {
    let server = MockServer::start().await;
    // Whoever does not take it is asked again.
    let busy = ResponseTemplate::new(503);
    Mock::given(method("POST")).respond_with(busy).up_to_n_times(1).mount(&server).await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(204)).mount(&server).await;
    let scene = Desk::default().scene(stores).await;
    let engine = scene.engine();
    let first = start(engine, payload(json!({ "n": 0 }))).await;
    engine.wait(first).await.unwrap();
    let alerts = format!("alerts: {{ error_rate_max: 0.05, webhook: '{}' }}\n", server.uri());
    let settings = format!("strategy: rolling\nverify_timeout: 30s\nbefore_window: 1\n{alerts}");
    let deployment = scene.deploy(&new_flow(), &settings).await;
    scene.reached(&deployment, Phase::Audit).await;
    start(engine, payload(json!({ "n": 1, "fail": true }))).await;
    let ended = scene.ended(&deployment).await;
    assert_eq!((ended.phase, ended.verdict), (Phase::Completed, Some(Verdict::Alerting)));
    let smoke = "smoke_tests: [{ name: ships, input: { fail: true } }]\n";
    let again = new_flow().replace("attempts: 1", "attempts: 1, backoff: { initial: 5ms }");
    let rolled_back = scene.ended(&scene.deploy(&again, &format!("{alerts}{smoke}")).await).await;
    assert_eq!(rolled_back.phase, Phase::RolledBack, "{rolled_back:?}");

    let requests = server.received_requests().await.unwrap();
    let bodies: Vec<Value> = requests.iter().map(|request| request.body_json().unwrap()).collect();
    let [refused, told, back] = bodies.as_slice() else { panic!("{bodies:?}") };
    assert_eq!(refused, told);
    let id = &*deployment.deployment_id.0;
    assert_eq!((&told["flow"], &told["deployment"]), (&json!("orders"), &json!(id)));
    assert_eq!(told["alerts"], json!(["the error rate is 100.00 %, over 5.00 %"]));
    let text = back["alerts"][0].as_str().unwrap();
    assert!(text.contains("was rolled back: smoke tests failed: ships"), "{text}");
    shut_down(scene.engines).await;
}

/// Holds what starts and lets only a few in, so that some are refused; how the report stays true.
async fn what_a_full_hold_refuses_is_counted_and_stays_provable(stores: Vec<Arc<dyn Store>>) {
    let desk = Desk::default();
    *desk.is_hanging.lock() = true;
    let scene = desk.scene(stores).await;
    let (engine, store) = (scene.engine(), &**scene.engine().store());
    let slow = start(engine, payload(json!({ "n": 0, "hang": true }))).await;
    eventually("a step is under way", async || *desk.hanging.lock() == 1).await;
    let settings = "strategy: blue-green\ndrain_timeout: 60s\nhold_max: 3\nverify_timeout: 100ms\n\
                    replay_rate: unlimited\n";
    let deployment = scene.deploy(&new_flow(), settings).await;
    let is_closed = async || engine.gate("orders").await.unwrap().gate.state.is_closed();
    eventually("the gate is closed", is_closed).await;
    let (mut held, mut refused) = (Vec::new(), 0_u64);
    while refused < 5 {
        // Each instance counts for itself, so they may hold a little more together.
        let at = &scene.engines[held.len() % scene.engines.len()];
        let request = StartRequest::new(payload(json!({ "n": 1 })));
        match at.start_run("orders", request).await {
            Ok(started) => held.push(started.run_id),
            Err(EngineError::HoldFull { .. }) => refused += 1,
            Err(error) => panic!("{error:?}"),
        }
        assert!(held.len() < 20, "the hold has no end");
    }
    engine.cancel(held[0], None).await.unwrap();
    engine.cancel(slow, None).await.unwrap();
    let ended = scene.ended(&deployment).await;
    assert_eq!((ended.phase, ended.counts.cancelled_held), (Phase::Completed, 1), "{ended:?}");
    let count = u64::try_from(held.len()).unwrap();
    assert_eq!((ended.counts.held, ended.counts.released), (count, count - 1), "{ended:?}");
    for run_id in &held {
        engine.wait(*run_id).await.unwrap();
    }
    let report = scene.report(&ended).await;
    let sum = report.conservation.clone().unwrap();
    assert!(sum.holds() && report.is_good(), "{report:?}");
    assert_eq!((sum.received, sum.refused, sum.finished), (count + 5, 5, count), "{sum:?}");
    assert_eq!(report.counted_at, None);

    // The runs are not kept for ever, and what was counted is not lost with them.
    let zero = Retention { events: Duration::ZERO, runs: Duration::ZERO, batch: 100 };
    let is_swept = async || {
        store.sweep(&zero).await.unwrap();
        store.read_run(held[0]).await.unwrap().is_none()
    };
    eventually("the runs are swept", is_swept).await;
    let later = deployment_report(store, &ended).await.unwrap();
    assert_eq!(
        (later.conservation, later.counted_at),
        (ended.conservation, ended.phases.last().map(|phase| phase.at))
    );
    assert!(scene.report(&scene.ended(&deployment).await).await.is_good());
    shut_down(scene.engines).await;
}

async fn a_deployment_is_forgotten_after_its_audit_retention(stores: Vec<Arc<dyn Store>>) {
    let scene = Desk::default().scene(stores).await;
    let store = &**scene.engine().store();
    let settings = "strategy: rolling\nverify_timeout: 100ms\naudit_retention: 2s\n";
    let deployment = scene.deploy(&new_flow(), settings).await;
    scene.ended(&deployment).await;
    let is_forgotten = async || {
        store.sweep(&Retention::DEFAULT).await.unwrap();
        find_deployment(store, "orders", None).await.unwrap().is_none()
    };
    eventually("it is forgotten", is_forgotten).await;
    shut_down(scene.engines).await;
}

/// A store that can be opened again.
enum Home {
    File(PathBuf),
    Server(Place),
}

impl Home {
    async fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::File(path) => {
                let options = SqliteOptions::new(instance_id());
                Arc::new(SqliteStore::open(path, options).await.unwrap())
            }
            Self::Server(place) => place.open().await,
        }
    }
}

/// One deployment is stopped in the middle by a restart: what its run had set, what the gate held
/// and the checkpoint are there afterwards, and all of it goes on.
async fn t1_context_survives_a_restart(home: Home) {
    let desk = Desk::default();
    *desk.is_hanging.lock() = true;
    let scene = desk.scene(vec![home.open().await]).await;
    let engine = scene.engine();
    let run_id = start(engine, payload(json!({ "n": 7, "hang": true }))).await;
    eventually("a step is under way", async || *desk.hanging.lock() == 1).await;
    let settings = "strategy: blue-green\ndrain_timeout: 100ms\nverify_timeout: 60s\n\
                    replay_rate: unlimited\nbefore_window: 1\n\
                    smoke_tests: [{ name: ships, input: { n: 8, hang: true } }]\n";
    let deployment = scene.deploy(&new_flow(), settings).await;
    scene.reached(&deployment, Phase::Verify).await;
    eventually("the smoke test is under way", async || *desk.hanging.lock() == 2).await;
    let held = start(engine, payload(json!({ "n": 9 }))).await;
    let gate = engine.gate("orders").await.unwrap().gate;
    shut_down(scene.engines).await;

    let store = home.open().await;
    let detail = store.read_run(run_id).await.unwrap().unwrap();
    let number = detail.row.run.state["customer"];
    let value = store.read_events(run_id, number - 1, 1).await.unwrap().remove(0).event.payload();
    assert_eq!(value.value(), json!({ "order": 7, "name": "Ann" }));
    let kept = checkpoints(&*store, Some("orders")).await.unwrap();
    let [checkpoint] = kept.as_slice() else { panic!("{kept:?}") };
    assert_eq!((checkpoint.run_id, checkpoint.state), (run_id, CheckpointState::Pending));
    assert_eq!((&*checkpoint.steps[0].step, &*checkpoint.state_keys[0]), ("ship", "customer"));
    *desk.is_hanging.lock() = false;
    let engine = Engine::start(store, desk.workers(), config_at(instance_id())).unwrap();
    assert_eq!(engine.gate("orders").await.unwrap().gate, gate);
    let scene = Scene { engines: vec![engine], floor: Floor::default(), old: scene.old };
    let ended = scene.ended(&deployment).await;
    assert_eq!((ended.phase, ended.counts.checkpointed), (Phase::Completed, 1), "{ended:?}");
    let store = &**scene.engine().store();
    for (run_id, n) in [(run_id, 7), (held, 9)] {
        scene.engine().wait(run_id).await.unwrap();
        let went = audit_trail(store, run_id).await.unwrap().unwrap().entries.pop().unwrap();
        // The step has read the state that another process had set.
        let result = format!("{{\"named\":true,\"shipped\":{n}}}");
        assert_eq!(went.content.unwrap().sha256, sha256(result.as_bytes()));
        assert_eq!(went.revision, ended.to);
    }
    shut_down(scene.engines).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t1_context_survives_a_restart_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    t1_context_survives_a_restart(Home::File(folder.path().join("store.db"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t1_context_survives_a_restart_on_redis() {
    t1_context_survives_a_restart(Home::Server(Place::redis())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t1_context_survives_a_restart_on_postgres() {
    t1_context_survives_a_restart(Home::Server(Place::postgres())).await;
}

on_every_store!(
    t6_fifty_messages_have_fifty_entries_in_and_fifty_out,
    a_summary_and_a_trail_say_what_became_of_messages,
    t7_deltas_are_those_of_the_runs_themselves,
    somebody_is_told_of_a_passed_threshold_and_of_a_rollback,
    what_a_full_hold_refuses_is_counted_and_stays_provable,
    a_deployment_is_forgotten_after_its_audit_retention,
);
