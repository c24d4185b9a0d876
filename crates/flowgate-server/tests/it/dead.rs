//! `/dead`.

use axum::http::StatusCode;
use flowgate_core::ids::RunId;
use flowgate_engine::{DeadMessage, FirstBytes, dead_message_key, keep_dead_message};
use serde_json::{Value, json};

use crate::world::{ONE_STEP, World};

/// A flow whose runs fail at once.
const DOOMED: &str = "flow: doomed\nsteps:\n  only: {wait: {signal: never, timeout: 1ms}}\n";

async fn failed(count: usize) -> (World, Vec<String>) {
    let world = World::new(&[DOOMED, ONE_STEP]).await;
    let mut runs = Vec::new();
    for _ in 0..count {
        let (_, started) = world.post("/runs", r#"{"flow":"doomed"}"#).await;
        let run_id = started["run_id"].as_str().expect("it has an id").to_owned();
        world.engine.wait(run_id.parse().expect("it is an id")).await.expect("it ends");
        runs.push(run_id);
    }
    (world, runs)
}

fn ids(answer: &Value) -> Vec<&str> {
    let done = answer["done"].as_array().expect("it is a list");
    done.iter().filter_map(|done| done["run_id"].as_str()).collect()
}

#[tokio::test]
async fn dead_letters_are_listed_in_pages_and_counted_by_reason() {
    let (world, runs) = failed(3).await;
    let (_, first) = world.get("/dead?limit=2&kind=wait_timed_out").await;
    assert_eq!((&first["total"], &first["complete"]), (&json!(3), &json!(true)), "{first}");
    assert_eq!(first["items"][0]["run_id"], *runs[2]);
    let next = first["next"].as_str().expect("there is another page");
    let (_, second) = world.get(&format!("/dead?limit=2&after={next}")).await;
    assert_eq!((&second["items"][0]["run_id"], &second["next"]), (&json!(runs[0]), &Value::Null));
    let (_, groups) = world.get("/dead/groups").await;
    assert_eq!((&groups["total"], &groups["items"][0]["count"]), (&json!(3), &json!(3)));
    assert_eq!(groups["items"][0]["example"]["run_id"], *runs[2]);
    let (_, others) = world.get("/dead?flow=one").await;
    assert_eq!(others["total"], 0);
    let (status, wrong) = world.get("/dead?after=here").await;
    assert_eq!((status.as_u16(), &wrong["error"]["code"]), (400, &json!("cursor_invalid")));
}

#[tokio::test]
async fn a_dry_run_changes_nothing_and_a_retry_leaves_the_newest_for_later() {
    let (world, runs) = failed(3).await;
    let (_, dry) = world.post("/dead/retry", r#"{"filter":{},"dry_run":true}"#).await;
    assert_eq!(ids(&dry), runs, "{dry}");
    let (_, still) = world.get("/dead").await;
    assert_eq!(still["total"], 3);
    let (status, dealt) = world.post("/dead/retry", r#"{"filter":{},"max":2}"#).await;
    assert_eq!((status, ids(&dealt)), (StatusCode::OK, vec![&*runs[0], &*runs[1]]));
    assert_eq!((&dealt["found"], &dealt["left"]), (&json!(3), &json!(1)));
    let new: RunId = dealt["done"][0]["new_run_id"].as_str().expect("it is one").parse().unwrap();
    world.engine.wait(new).await.expect("it ends");
}

#[tokio::test]
async fn dead_letters_are_tried_again_on_the_revision_that_is_active() {
    let (world, runs) = failed(2).await;
    let (_, before) = world.get(&format!("/runs/{}", runs[0])).await;
    let flow = before["flow"].as_str().expect("it has one");
    let text = json!({ "text": format!("flow: {flow}\nsteps:\n  only: {{}}\n") }).to_string();
    let (_, registered) = world.post("/flows", &text).await;
    for body in [r#"{"filter":{},"revision":"ab12"}"#, r#"{"filter":{},"revision":""}"#] {
        let (status, answer) = world.post("/dead/retry", body).await;
        assert_eq!((status.as_u16(), &answer["error"]["code"]), (422, &json!("field_invalid")));
    }
    let (status, _) = world.post("/dead/drop", r#"{"filter":{},"revision":"active"}"#).await;
    assert_eq!(status.as_u16(), 422);
    let (_, dealt) = world.post("/dead/retry", r#"{"filter":{},"revision":"active"}"#).await;
    assert_eq!(ids(&dealt), runs, "{dealt}");
    for done in dealt["done"].as_array().expect("it is a list") {
        let new_id = done["new_run_id"].as_str().expect("it has an id");
        world.ended(new_id).await;
        let (_, run) = world.get(&format!("/runs/{new_id}")).await;
        assert_eq!(
            (&run["status"], &run["revision"]),
            (&json!("completed"), &registered["revision"])
        );
    }
}

#[tokio::test]
async fn a_dropped_letter_is_dropped_once() {
    let (world, runs) = failed(1).await;
    let body = json!({ "run_ids": runs }).to_string();
    let (_, dealt) = world.post("/dead/drop", &body).await;
    assert_eq!(ids(&dealt), runs);
    let (_, again) = world.post("/dead/drop", &body).await;
    assert_eq!((&again["before"], &again["done"]), (&json!(1), &json!([])));
    let (_, listed) = world.get("/dead").await;
    assert_eq!(listed["total"], 0);
}

#[tokio::test]
async fn what_is_not_dead_is_refused_and_nothing_is_done() {
    let (world, runs) = failed(1).await;
    let (_, good) = world.post("/runs", r#"{"flow":"one"}"#).await;
    let good = good["run_id"].as_str().expect("it has an id");
    world.engine.wait(good.parse().expect("it is an id")).await.expect("it ends");
    let unknown = RunId::derived("a", "b").to_string();
    let cases = [
        (json!({ "run_ids": [runs[0], good] }), 409, "not_dead"),
        (json!({ "run_ids": [runs[0], unknown] }), 404, "run_not_found"),
        (json!({}), 422, "field_invalid"),
        (json!({ "filter": {}, "max": 0 }), 422, "out_of_range"),
        (json!({ "filter": {"colour": "red"} }), 422, "unknown_field"),
    ];
    for (body, status, code) in cases {
        let (got, answer) = world.post("/dead/drop", &body.to_string()).await;
        assert_eq!((got.as_u16(), &answer["error"]["code"]), (status, &json!(code)), "{body}");
    }
    let (_, listed) = world.get("/dead").await;
    assert_eq!(listed["total"], 1);
}

#[tokio::test]
async fn dead_messages_are_listed_in_pages_with_how_they_begin() {
    let world = World::new(&[]).await;
    for payload in [&b"{oops"[..], &[0xff]] {
        let dead = DeadMessage {
            subscription: "ingest".into(),
            flow: "ingest".into(),
            topic: "redforge/ingest/input".to_owned(),
            message_id: None,
            reason: "not_json".to_owned(),
            message: "it is not valid JSON".to_owned(),
            bytes: payload.len() as u64,
            first: FirstBytes::of(payload),
        };
        let key = dead_message_key("ingest");
        keep_dead_message(&**world.engine.store(), key, &dead).await.expect("it is kept");
    }
    let (_, first) = world.get("/dead/messages?limit=1&subscription=ingest").await;
    assert_eq!(
        (&first["items"][0]["base64"], &first["items"][0]["bytes"]),
        (&json!("/w=="), &json!(1))
    );
    let next = first["next"].as_str().expect("there is another page").replace('/', "%2F");
    let (_, second) = world.get(&format!("/dead/messages?limit=2&after={next}")).await;
    assert_eq!((&second["items"][0]["text"], &second["next"]), (&json!("{oops"), &Value::Null));
    let (_, others) = world.get("/dead/messages?subscription=other").await;
    assert_eq!(others["items"], json!([]));
    let (status, wrong) = world.get("/dead/messages?after=%00").await;
    assert_eq!((status.as_u16(), &wrong["error"]["code"]), (400, &json!("query_param")), "{wrong}");
}
