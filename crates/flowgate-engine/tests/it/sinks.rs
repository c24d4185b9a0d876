//! The sinks that come with the engine: HTTP and a file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::ids::Position;
use flowgate_core::retry::RetryPolicy;
use flowgate_engine::subscriber::{
    CheckpointEvery, FileSink, HttpSink, OnFailure, ResetTo, SubscribeOptions, SubscriberAdmin,
    SubscriptionState,
};
use flowgate_engine::{Engine, EngineError, Workers};
use flowgate_store::{MemoryStore, Store};
use serde_json::Value;
use wiremock::matchers::{body_partial_json, method};
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::subscribers::workers;
use crate::world::{World, config, eventually, store};

const ONE: &str = "
flow: one
steps:
  only: { run: { worker: work }, emits: [done] }
";

fn options() -> SubscribeOptions {
    let retry = RetryPolicy {
        delay_min: Duration::from_millis(5),
        attempts_max: 3,
        ..RetryPolicy::DEFAULT
    };
    SubscribeOptions { retry, ..SubscribeOptions::coordinated() }
}

async fn world(store: Arc<dyn Store>) -> World {
    World::with(store, ONE, vec![(workers(), config("a"))]).await
}

async fn lines_of_feed(store: &dyn Store) -> Vec<(String, u64)> {
    let page = store.read_feed(0, Position::START, 1_000).await.unwrap();
    page.iter().map(|event| (event.run_id.to_string(), event.seq)).collect()
}

#[tokio::test]
async fn a_request_that_is_refused_for_now_is_sent_again_with_the_same_key() {
    let server = MockServer::start().await;
    let busy = ResponseTemplate::new(503).insert_header("Retry-After", "0");
    Mock::given(method("POST")).respond_with(busy).up_to_n_times(2).mount(&server).await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(204)).mount(&server).await;
    let world = world(Arc::new(MemoryStore::new())).await;
    let token = BTreeMap::from([("X-Token".to_owned(), "secret".to_owned())]);
    let sink = HttpSink::new(&server.uri()).unwrap().headers(&token).unwrap();
    let handle = world.engine().subscribe("hook", sink, options()).await.unwrap();
    world.run(1).await;
    handle.wait_until_caught_up().await.unwrap();
    let requests = server.received_requests().await.unwrap();
    let keys: Vec<&str> =
        requests.iter().map(|r| r.headers["Idempotency-Key"].to_str().unwrap()).collect();
    let events = lines_of_feed(&*world.store).await;
    assert_eq!(requests.len(), events.len() + 2);
    assert!(keys[0] == keys[1] && keys[1] == keys[2], "{keys:?}");
    let distinct: BTreeSet<&str> = keys.iter().copied().collect();
    assert_eq!(distinct.len(), events.len());
    for (request, (run, seq)) in requests[2..].iter().zip(&events) {
        let body: Value = request.body_json().unwrap();
        assert_eq!((body["run"].as_str(), body["seq"].as_u64()), (Some(&**run), Some(*seq)));
        assert_eq!(body["key"], format!("hook/{run}/{seq}"));
        assert!(body["type"].is_string() && body["data"].is_object() && body["time"].is_string());
        assert_eq!(request.headers["X-Token"], "secret");
    }
    world.shutdown().await;
}

#[tokio::test]
async fn a_request_that_is_refused_for_good_is_a_dead_letter_at_once() {
    let server = MockServer::start().await;
    let first = body_partial_json(serde_json::json!({ "type": "run.started" }));
    let refused = ResponseTemplate::new(422).set_body_string("no such order");
    Mock::given(first).respond_with(refused).expect(1).mount(&server).await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(200)).mount(&server).await;
    let world = world(Arc::new(MemoryStore::new())).await;
    let sink = HttpSink::new(&server.uri()).unwrap();
    let handle = world.engine().subscribe("hook", sink, options()).await.unwrap();
    world.run(1).await;
    handle.wait_until_caught_up().await.unwrap();
    let dead = SubscriberAdmin::new(&*world.store).dead("hook").await.unwrap();
    assert_eq!(dead.len(), 1);
    assert!(dead[0].error.contains("422") && dead[0].error.contains("no such order"), "{dead:?}");
    world.shutdown().await;
}

#[test]
fn a_sink_for_something_else_than_http_is_refused() {
    for url in ["ftp://host/", "nonsense", ""] {
        assert!(matches!(HttpSink::new(url), Err(EngineError::Invalid(_))), "{url}");
    }
    let wrong = BTreeMap::from([("no good".to_owned(), "x".to_owned())]);
    assert!(HttpSink::new("http://host/").unwrap().headers(&wrong).is_err());
}

fn lines(path: &Path) -> Vec<(String, u64)> {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "no line is half there");
    let line = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap();
        (value["run"].as_str().unwrap().to_owned(), value["seq"].as_u64().unwrap())
    };
    text.lines().map(line).collect()
}

#[tokio::test]
async fn no_line_of_a_file_is_lost_or_doubled_by_crashes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.ndjson");
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let world = world(Arc::clone(&store)).await;
    // Seldom enough that a crash finds lines that no checkpoint knows.
    let checkpoint = CheckpointEvery::Batch { events_max: 7, wait_max: Duration::from_hours(1) };
    let lease = Duration::from_millis(300);
    for round in 0..8 {
        let options = SubscribeOptions { checkpoint, lease, ..options() };
        let engine = Engine::start(Arc::clone(&store), Workers::new(), config("b")).unwrap();
        let handle = engine.subscribe("file", FileSink::new(&path), options).await.unwrap();
        for number in 0..3 {
            world.run(round * 3 + number).await;
        }
        let before = lines_of_feed(&*store).await.len();
        eventually("it has gone on", || async {
            std::fs::read_to_string(&path).is_ok_and(|text| text.lines().count() + 7 > before)
        })
        .await;
        assert_eq!(*handle.state().borrow(), SubscriptionState::Active);
        // As if its process had ended; and the disk has a part of what was not synced.
        drop((engine, handle));
        tokio::task::yield_now().await;
        let torn = format!("{}{{\"run\": \"torn", std::fs::read_to_string(&path).unwrap());
        std::fs::write(&path, torn).unwrap();
    }
    let handle = world.engine().subscribe("file", FileSink::new(&path), options()).await.unwrap();
    handle.wait_until_caught_up().await.unwrap();
    assert_eq!(lines(&path), lines_of_feed(&*store).await);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_file_that_was_cut_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.ndjson");
    let world = world(store()).await;
    let options = || SubscribeOptions { on_failure: OnFailure::DeadLetter, ..options() };
    let handle = world.engine().subscribe("file", FileSink::new(&path), options()).await.unwrap();
    world.run(1).await;
    handle.wait_until_caught_up().await.unwrap();
    handle.unsubscribe().await;
    std::fs::write(&path, "").unwrap();
    let handle = world.engine().subscribe("file", FileSink::new(&path), options()).await.unwrap();
    let mut states = handle.state();
    let failed = states.wait_for(|state| matches!(state, SubscriptionState::Failed { .. })).await;
    assert!(format!("{:?}", *failed.unwrap()).contains("was replaced or cut"));
    let admin = SubscriberAdmin::new(&*world.store);
    admin.reset("file", &ResetTo::Start).await.unwrap();
    eventually("it begins anew", || async { lines(&path) == lines_of_feed(&*world.store).await })
        .await;
    world.shutdown().await;
}
