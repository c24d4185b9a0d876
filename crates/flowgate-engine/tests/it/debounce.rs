//! Debounced starts: on a store in memory, whose time is tokio's, and racing on shared ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::commit::Due;
use flowgate_core::flow::Flow;
use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use flowgate_engine::{
    Engine, EngineConfig, EngineError, Leadership, SchedulerConfig, StartDebounce, StartRequest,
    Started, Workers, find_debounced, instance_id,
};
use flowgate_store::control::{Record, RecordQuery};
use flowgate_store::faulty::{Call, Fault, Faulty};
use flowgate_store::{RunQuery, Store};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::shared::{Place, shut_down};
use crate::world::{EPOCH, config, eventually, payload, store};

const WINDOW: Duration = Duration::from_secs(5);

fn flow(debounce: &str) -> Flow {
    Flow::parse(&format!("{{flow: f, debounce: {debounce}, steps: {{a: {{}}}}}}")).unwrap()
}

async fn engine(store: &Arc<dyn Store>, name: &str, debounce: &str) -> Engine {
    let engine = Engine::start(Arc::clone(store), Workers::new(), config(name)).unwrap();
    engine.register(&flow(debounce), None).await.unwrap();
    engine
}

fn leads(engine: &Engine) -> bool {
    matches!(*engine.leadership().borrow(), Leadership::Leading(_))
}

async fn start(engine: &Engine, path: &str, number: u64) -> Result<Started, EngineError> {
    let input = payload(json!({ "path": path, "n": number }));
    engine.start_run("f", StartRequest::new(input)).await
}

/// The inputs of all runs.
async fn runs(store: &dyn Store) -> BTreeMap<RunId, Value> {
    let rows = store.list_runs(&RunQuery { limit: 1_000, ..RunQuery::default() }).await.unwrap();
    let mut found = BTreeMap::new();
    for row in rows {
        let first = store.read_events(row.run.run_id, 0, 1).await.unwrap();
        found.insert(row.run.run_id, first[0].event.payload().value());
    }
    found
}

/// What is kept of bursts.
async fn records(store: &dyn Store) -> Vec<Record> {
    let mut found = Vec::new();
    for kind in ["debounce", "debounce_due", "debounce_input"] {
        let (prefix, after) = ("".into(), None);
        let query = RecordQuery { kind, prefix, after, is_descending: false, limit: 1_000 };
        found.extend(store.list_records(&query).await.unwrap());
    }
    found
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_a_hundred_starts_is_one_run_with_the_last_input() {
    let store = store();
    let engine = engine(&store, "a", "{key: input.path, window: 5s}").await;
    let (began, mut told) = (store.now().await.unwrap(), BTreeSet::new());
    for number in 0..100 {
        let started = start(&engine, "x", number).await.unwrap();
        assert_eq!(started.existing, number > 0);
        let due = began.plus(Duration::from_millis(100 * number) + WINDOW);
        assert_eq!(started.debounced_until, Some(due));
        told.insert(started.run_id);
        sleep(Duration::from_millis(100)).await;
    }
    let run_id = *told.first().unwrap();
    assert_eq!(told.len(), 1, "every start is told the same run");
    let waiting = find_debounced(&*store, &run_id.to_string()[..8]).await.unwrap();
    assert_eq!((waiting.len(), waiting[0].run_id, waiting[0].starts), (1, run_id, 100));
    assert!(runs(&*store).await.is_empty());
    let detail = engine.wait(run_id).await.unwrap();
    assert_eq!(detail.row.run.status, RunStatus::Completed);
    let due = began.plus(Duration::from_millis(9_900) + WINDOW);
    assert!(detail.row.started_at >= due && detail.row.started_at.since(due).as_millis() < 100);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(runs(&*store).await, BTreeMap::from([(run_id, json!({"path": "x", "n": 99}))]));
    assert!(records(&*store).await.is_empty());
    assert!(find_debounced(&*store, "").await.unwrap().is_empty());
    engine.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn two_bursts_and_two_keys_are_runs_of_their_own() {
    let store = store();
    let engine = engine(&store, "a", "{key: input.path, window: 5s}").await;
    let first = start(&engine, "x", 1).await.unwrap();
    let other = start(&engine, "y", 2).await.unwrap();
    sleep(WINDOW * 2).await;
    let second = start(&engine, "x", 3).await.unwrap();
    assert!(!second.existing);
    sleep(WINDOW * 2).await;
    let expected = [(first, "x", 1), (other, "y", 2), (second, "x", 3)];
    let expected =
        expected.map(|(started, path, n)| (started.run_id, json!({"path": path, "n": n})));
    assert_eq!(runs(&*store).await, BTreeMap::from(expected));
    engine.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_burst_does_not_last_longer_than_its_max() {
    let store = store();
    let engine = engine(&store, "a", "{window: 5s, max: 12s}").await;
    let (began, mut told) = (store.now().await.unwrap(), Vec::new());
    for number in 0..10 {
        told.push(start(&engine, "any", number).await.unwrap());
        sleep(Duration::from_secs(3)).await;
    }
    // At 0, 3, 6, 9 s, then at 12 s it begins; the next one at 12, 15, 18, 21 s.
    let due_after = |started: &Started| started.debounced_until.unwrap().since(began).as_secs();
    let dues: Vec<u64> = told.iter().map(due_after).collect();
    assert_eq!(dues[..4], [5, 8, 11, 12], "{dues:?}");
    sleep(WINDOW * 2).await;
    let runs = runs(&*store).await;
    let last = |run_id: RunId| told.iter().rposition(|started| started.run_id == run_id).unwrap();
    assert_eq!(
        runs.len(),
        told.iter().map(|started| started.run_id).collect::<BTreeSet<_>>().len()
    );
    assert!(runs.len() >= 2, "{runs:?}");
    for (run_id, input) in runs {
        assert_eq!(input["n"], last(run_id));
        let detail = store.read_run(run_id).await.unwrap().unwrap();
        let due = told[last(run_id)].debounced_until.unwrap();
        assert!(detail.row.started_at.since(due) < Duration::from_millis(100));
    }
    engine.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_may_be_debounced_where_its_flow_is_not_and_the_other_way_round() {
    let store = store();
    let engine = engine(&store, "a", "{window: 5s}").await;
    let plain = Flow::parse("{flow: plain, steps: {a: {}}}").unwrap();
    engine.register(&plain, None).await.unwrap();
    let by = |key: &str| StartDebounce::By { key: key.into(), window: WINDOW, max: None };
    let request = |debounce| StartRequest { debounce, ..StartRequest::new(payload(1)) };
    let first = engine.start_run("plain", request(by("k"))).await.unwrap();
    let again = engine.start_run("plain", request(by("k"))).await.unwrap();
    assert_eq!((again.run_id, again.existing), (first.run_id, true));
    let at_once = engine.start_run("f", request(StartDebounce::Never)).await.unwrap();
    assert_eq!(at_once.debounced_until, None);
    // Whoever waits for the end waits for the beginning too.
    let began = Instant::now();
    let run = engine.run_to_end("f", request(StartDebounce::OfFlow)).await.unwrap();
    assert_eq!(run.status, RunStatus::Completed);
    assert!(began.elapsed() >= WINDOW && began.elapsed() < WINDOW * 2, "{:?}", began.elapsed());
    assert_eq!(runs(&*store).await.len(), 3);
    engine.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_debounced_start_cannot_be_is_refused_and_changes_nothing() {
    let store = store();
    let engine = engine(&store, "a", "{window: 5s}").await;
    let plain = Flow::parse("{flow: plain, singleton: {}, steps: {a: {run: {worker: w}}}}");
    engine.register(&plain.unwrap(), None).await.unwrap();
    let new = || StartRequest::new(payload(1));
    let by = |key: &str, window: u64, max: Option<u64>| StartRequest {
        debounce: StartDebounce::By {
            key: key.into(),
            window: Duration::from_millis(window),
            max: max.map(Duration::from_millis),
        },
        ..new()
    };
    let rows = [
        ("f", StartRequest { key: Some("k".into()), ..new() }, "a key or a run id"),
        ("f", StartRequest { singleton: Some("k".into()), ..new() }, "a singleton, not both"),
        ("f", StartRequest { due: Due::After(WINDOW), ..new() }, "no delay and no time"),
        ("plain", by("k", 5, None), "a singleton, not both"),
        ("f", by("", 5, None), "a debounce key has 1 to 512 bytes"),
        ("f", by("a\0b", 5, None), "a debounce key has 1 to 512 bytes"),
        ("f", by("k", 0, None), "from 1ms to"),
        ("f", by("k", 366 * 86_400_000 + 1, None), "from 1ms to"),
        ("f", by("k", 5, Some(0)), "from 1ms to"),
        ("f", by("k", 5, Some(4)), "4ms, is shorter than its window of 5ms"),
    ];
    for (flow, request, expected) in rows {
        let error = engine.start_run(flow, request).await.unwrap_err();
        assert!(matches!(&error, EngineError::Invalid(text) if text.contains(expected)), "{error}");
    }
    assert!(records(&*store).await.is_empty());
    assert!(runs(&*store).await.is_empty());
    engine.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_dies_before_a_burst_is_due_is_followed_by_one_that_begins_it() {
    let store = store();
    let first = engine(&store, "a", "{window: 5s}").await;
    eventually("a leads", || async { leads(&first) }).await;
    let second = engine(&store, "b", "{window: 5s}").await;
    let started = start(&second, "x", 1).await.unwrap();
    drop(first);
    let again = start(&second, "x", 2).await.unwrap();
    assert_eq!(again.run_id, started.run_id);
    let detail = second.wait(started.run_id).await.unwrap();
    assert_eq!(detail.row.run.status, RunStatus::Completed);
    assert!(detail.row.started_at.since(EPOCH) < Duration::from_secs(13));
    sleep(Duration::from_mins(1)).await;
    let expected = BTreeMap::from([(started.run_id, json!({"path": "x", "n": 2}))]);
    assert_eq!(runs(&*store).await, expected);
    assert!(records(&*store).await.is_empty());
    second.shutdown().await;
}

/// A leader dies with a burst sealed: before it started the run, or after it.
async fn dies_with_a_sealed_burst(has_started: bool) {
    let store = store();
    let faulty = Arc::new(Faulty::new(Arc::clone(&store)));
    let first = engine(&(Arc::clone(&faulty) as Arc<dyn Store>), "a", "{window: 5s}").await;
    eventually("a leads", || async { leads(&first) }).await;
    let second = engine(&store, "b", "{window: 5s}").await;
    let started = start(&second, "x", 1).await.unwrap();
    faulty.plan(Call::Commit, Fault::Delayed(Duration::from_secs(1)), u32::MAX);
    let is_sealed =
        async || records(&*store).await.iter().any(|r| r.value.get().contains("sealed"));
    eventually("it is sealed", || async { is_sealed().await }).await;
    let is_there = async || store.read_run(started.run_id).await.unwrap().is_some();
    if has_started {
        faulty.plan(Call::Records, Fault::NotDone, u32::MAX);
        eventually("it is started", || async { is_there().await }).await;
    }
    drop(first);
    assert_eq!(is_there().await, has_started);
    assert!(is_sealed().await);
    let next = start(&second, "x", 2).await.unwrap();
    assert!(!next.existing, "a sealed burst takes no more starts");
    second.wait(started.run_id).await.unwrap();
    second.wait(next.run_id).await.unwrap();
    sleep(Duration::from_mins(1)).await;
    let expected = [(started.run_id, 1), (next.run_id, 2)];
    let expected = expected.map(|(run_id, n)| (run_id, json!({"path": "x", "n": n})));
    assert_eq!(runs(&*store).await, BTreeMap::from(expected));
    assert!(records(&*store).await.is_empty());
    second.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_dies_before_it_starts_a_sealed_burst_is_followed_by_one_that_does() {
    dies_with_a_sealed_burst(false).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_dies_after_it_started_a_burst_does_not_have_it_started_twice() {
    dies_with_a_sealed_burst(true).await;
}

/// What starts of one key, one after the other, were told: the run, or nothing where it failed.
type Told = Vec<Option<RunId>>;

/// Every run that somebody was told is there once and has the last input that it was told for, or
/// that of a later start whose answer got lost.
fn check(told: &Told, runs: &BTreeMap<RunId, Value>) -> usize {
    let mut bursts = BTreeMap::new();
    for (number, run_id) in told.iter().enumerate() {
        if let Some(run_id) = run_id {
            bursts.insert(*run_id, number);
        }
    }
    for (run_id, last) in &bursts {
        let input = runs.get(run_id).unwrap_or_else(|| panic!("{run_id} is missing"));
        let number = usize::try_from(input["n"].as_u64().unwrap()).unwrap();
        let is_lost = number > *last && told[*last + 1..=number].iter().all(Option::is_none);
        assert!(number == *last || is_lost, "{run_id}: has {number}, told {last}");
    }
    bursts.len()
}

#[tokio::test(start_paused = true)]
async fn whatever_fails_every_start_that_was_answered_is_in_the_run_that_it_was_told() {
    for seed in 0..10 {
        let store = store();
        let faulty =
            |seed| Arc::new(Faulty::random(Arc::clone(&store), seed, 0.1)) as Arc<dyn Store>;
        let engines: Vec<Engine> = [("a", seed), ("b", seed + 1_000)]
            .map(|(name, seed)| Engine::start(faulty(seed), Workers::new(), config(name)).unwrap())
            .into();
        store
            .register_flow(flowgate_store::NewRevision {
                revision: flow("{window: 1s, max: 5s}").revision,
                file: flow("{window: 1s, max: 5s}").file,
                folder: None,
                authored: flowgate_store::Authored::default(),
            })
            .await
            .unwrap();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut told = Told::new();
        for number in 0..200 {
            let engine = &engines[random.usize(0..2)];
            told.push(start(engine, "x", number).await.ok().map(|started| started.run_id));
            sleep(Duration::from_millis(random.u64(0..1_500))).await;
        }
        eventually("nothing is left", || async { records(&*store).await.is_empty() }).await;
        let runs = runs(&*store).await;
        let bursts = check(&told, &runs);
        assert!(bursts > 10 && runs.len() >= bursts, "seed {seed}: {bursts} {}", runs.len());
        for engine in &engines {
            engine.shutdown().await;
        }
    }
}

/// Two instances, each with a handle of its own, take the starts of a few keys; the one that leads
/// dies in between.
async fn race(place: &Place) {
    let lease = Duration::from_secs(2);
    let schedules = SchedulerConfig { lease, renew: lease / 3, ..SchedulerConfig::default() };
    let schedules = Some(schedules);
    let mut engines = Vec::new();
    for _ in 0..2 {
        let config =
            EngineConfig { schedules: schedules.clone(), ..EngineConfig::new(instance_id()) };
        engines.push(Engine::start(place.open().await, Workers::new(), config).unwrap());
        eventually("the first leads", || async { leads(&engines[0]) }).await;
    }
    let debounce = "{key: input.path, window: 300ms}";
    engines[0].register(&flow(debounce), None).await.unwrap();
    let at_once = (0..40).map(|number| start(&engines[number % 2], "all", 0));
    let at_once = futures_util::future::join_all(at_once).await;
    let told: BTreeSet<RunId> =
        at_once.into_iter().map(|started| started.unwrap().run_id).collect();
    assert_eq!(told.len(), 1, "starts at the same time are one burst");
    let dying = std::sync::Mutex::new(Some(engines.remove(0)));
    let staying = &engines[0];
    let dying = &dying;
    let by_key = ["x", "y", "z"].map(|path| async move {
        let mut told = Told::new();
        let mut pause = tokio::time::interval(Duration::from_millis(50));
        for number in 0..120_u64 {
            pause.tick().await;
            let first = dying.lock().expect("nobody panics").clone();
            let engine = first.as_ref().filter(|_| number % 2 == 0).unwrap_or(staying);
            told.push(start(engine, path, number).await.ok().map(|started| started.run_id));
            if path == "x" && number == 60 {
                drop(dying.lock().expect("nobody panics").take());
            }
            // A gap now and then that is longer than the window.
            for _ in 0..(if fastrand::u8(..) < 60 { fastrand::u8(5..9) } else { 0 }) {
                pause.tick().await;
            }
        }
        told
    });
    let by_key = futures_util::future::join_all(by_key).await;
    let store = place.open().await;
    eventually("nothing is left", || async { records(&*store).await.is_empty() }).await;
    let runs = runs(&*store).await;
    let bursts: Vec<usize> = by_key.iter().map(|told| check(told, &runs)).collect();
    assert!(bursts.iter().all(|count| *count > 5), "{bursts:?}");
    assert!(runs.len() > bursts.iter().sum(), "and the one of all");
    eventually("the other leads", || async { leads(staying) }).await;
    shut_down(engines).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_race_make_one_run_of_a_burst_on_postgres() {
    race(&Place::postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_race_make_one_run_of_a_burst_on_redis() {
    race(&Place::redis()).await;
}
