//! Steps that send requests, against a server on this host.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::run::RunStatus;
use flowgate_engine::{PrivateTargets, Workers};
use flowgate_store::MemoryStore;
use serde_json::{Value, json};
use wiremock::matchers::{header, method};
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::world::{World, config, is};

async fn world(server: &MockServer, rest: &str) -> World {
    world_at(&server.uri(), rest).await
}

async fn world_at(url: &str, rest: &str) -> World {
    let yaml = format!(
        "{{flow: f, steps: {{a: {{run: {{http: {{url: '{url}/', headers: {{x-team: red}}}}}},
            emits: [done]{rest}}}, b: {{subscribes: [done]}}}}}}"
    );
    let store = Arc::new(MemoryStore::new());
    let mut config = config("a");
    config.http.allow_private = PrivateTargets::Only(vec!["127.0.0.1".parse().unwrap()]);
    World::with(store, &yaml, vec![(Workers::new(), config)]).await
}

#[tokio::test]
async fn a_request_says_what_it_is_about_and_an_answer_is_taken_over() {
    let server = MockServer::start().await;
    let answer =
        json!({ "emits": [{ "event": "done", "data": 7 }], "state": { "k": 1 }, "result": [1] });
    Mock::given(method("POST"))
        .and(header("x-team", "red"))
        .respond_with(ResponseTemplate::new(200).set_body_json(answer))
        .mount(&server)
        .await;
    let world = world(&server, "").await;
    let ended = world.run(json!({ "n": 1 })).await;
    is(&ended, RunStatus::Completed);
    let run_id = ended.row.run.run_id;
    assert_eq!(world.result(run_id, "a").await, json!([1]));
    assert!(world.story(run_id).await.contains(&"step.succeeded b".to_owned()));
    let sent = &server.received_requests().await.unwrap()[0];
    let key = format!("{run_id}/a/1");
    assert_eq!(sent.headers["idempotency-key"], key.as_str());
    let body: Value = serde_json::from_slice(&sent.body).unwrap();
    let expected = json!({
        "run_id": run_id.to_string(), "flow": "f", "revision": world.flow.revision.to_string(),
        "step": "a", "attempt": 1, "key": key, "input": { "n": 1 },
    });
    assert_eq!(body, expected);
    world.shutdown().await;
}

#[tokio::test]
async fn each_answer_has_its_meaning() {
    let large = format!("\"{}\"", "x".repeat(2 << 20));
    let rows = [
        (ResponseTemplate::new(204), "", "", 1),
        (ResponseTemplate::new(200).set_body_string("  "), "", "", 1),
        (ResponseTemplate::new(404).set_body_string("gone away"), "Final", "404", 1),
        (ResponseTemplate::new(400), "Final", "400 Bad Request", 1),
        (ResponseTemplate::new(302), "Final", "302", 1),
        (ResponseTemplate::new(303).insert_header("location", "/x"), "Final", "303", 1),
        (ResponseTemplate::new(500), "Failed", "500", 2),
        (ResponseTemplate::new(503), "Failed", "503", 2),
        (ResponseTemplate::new(408), "Failed", "408", 2),
        (ResponseTemplate::new(425), "Failed", "425", 2),
        (ResponseTemplate::new(429), "Failed", "429", 2),
        (ResponseTemplate::new(200).set_body_string("<html>"), "Invalid", "the answer is not", 1),
        (
            ResponseTemplate::new(200).set_body_string("{\"x\":1}"),
            "Invalid",
            "unknown field `x`",
            1,
        ),
        (ResponseTemplate::new(200).set_body_string("[]"), "Invalid", "the answer is not", 1),
        (ResponseTemplate::new(200).set_body_string(large), "Invalid", "response_too_large: ", 1),
        (
            ResponseTemplate::new(200).set_body_string(r#"{"emits":[{"event":"other"}]}"#),
            "Invalid",
            "`other`",
            1,
        ),
    ];
    for (answer, kind, message, attempts) in rows {
        let server = MockServer::start().await;
        Mock::given(method("POST")).respond_with(answer).mount(&server).await;
        let retry = ", retry: {attempts: 2, backoff: {initial: 1ms}}";
        let world = world(&server, retry).await;
        let ended = world.run(json!(null)).await;
        let sent = server.received_requests().await.unwrap().len();
        assert_eq!(sent, attempts, "{message}");
        if kind.is_empty() {
            is(&ended, RunStatus::Completed);
        } else {
            is(&ended, RunStatus::Failed);
            let failure = world.failure(ended.row.run.run_id).await;
            assert_eq!(failure.0, kind, "{}", failure.1);
            assert!(failure.1.contains(message), "{}", failure.1);
        }
        world.shutdown().await;
    }
}

#[tokio::test]
async fn retry_after_is_kept() {
    let server = MockServer::start().await;
    let busy = ResponseTemplate::new(429).insert_header("retry-after", "1");
    Mock::given(method("POST")).respond_with(busy).up_to_n_times(1).mount(&server).await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(200)).mount(&server).await;
    let world = world(&server, ", retry: {attempts: 2, backoff: {initial: 1ms}}").await;
    let ended = world.run(json!(null)).await;
    is(&ended, RunStatus::Completed);
    let took = ended.row.ended_at.unwrap().since(ended.row.started_at);
    assert!(took >= Duration::from_secs(1), "{took:?}");
    world.shutdown().await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    let server = MockServer::start().await;
    let slow = ResponseTemplate::new(200).set_delay(Duration::from_mins(1));
    Mock::given(method("POST")).respond_with(slow).mount(&server).await;
    let world = world(&server, ", timeout: 100ms, retry: {attempts: 1}").await;
    let ended = world.run(json!(null)).await;
    assert_eq!(world.failure(ended.row.run.run_id).await.0, "TimedOut");
    world.shutdown().await;
}

#[tokio::test]
async fn nobody_listening_is_tried_again() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let world = world_at(&url, ", retry: {attempts: 2, backoff: {initial: 1ms}}").await;
    let ended = world.run(json!(null)).await;
    is(&ended, RunStatus::Failed);
    assert_eq!(world.failure(ended.row.run.run_id).await.0, "Failed");
    assert_eq!(ended.row.run.steps[0].failures, 2);
    world.shutdown().await;
}
