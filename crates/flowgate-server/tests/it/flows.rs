//! `/flows`.

use axum::http::StatusCode;
use serde_json::json;

use crate::world::{ONE_STEP, World};

const ORDER: &str = "\
flow: order
description: sells things
input: {type: object}
steps:
  start: {run: {worker: start}, emits: [paid, packed]}
  ship: {subscribes: [paid, packed], run: {worker: ship}, queue: slow, effect: true}
  refund: {subscribes: {any: [\"step.failed:ship\"]}}
schedules:
  nightly: {cron: \"0 2 * * *\", input: {}}
";

fn body(text: &str) -> String {
    json!({ "text": text }).to_string()
}

#[tokio::test]
async fn a_flow_is_listed_with_its_runs_and_schedules() {
    let world = World::new(&[ORDER, ONE_STEP]).await;
    world.post("/runs", r#"{"flow":"one"}"#).await;
    let (status, listed) = world.get("/flows").await;
    assert_eq!(status, StatusCode::OK);
    let items = listed["items"].as_array().expect("it is a list");
    assert_eq!(items.len(), 2);
    assert_eq!((&items[1]["flow"], &items[1]["schedules"]), (&json!("order"), &json!(1)));
    assert_eq!(items[1]["description"], "sells things");
    let runs = items[0]["runs"].as_object().expect("they are counted");
    assert_eq!(runs.values().filter_map(serde_json::Value::as_u64).sum::<u64>(), 1);
}

#[tokio::test]
async fn a_flow_is_shown_with_its_steps_and_edges() {
    let world = World::new(&[ORDER]).await;
    let (_, shown) = world.get("/flows/order").await;
    assert_eq!(shown["active"], true);
    assert_eq!(shown["schedules"], json!(["order/nightly"]));
    assert_eq!(shown["input_schema"], json!({"type": "object"}));
    let ship = &shown["steps"][1];
    assert_eq!(ship["starts_on"], json!({"kind": "all", "events": ["paid", "packed"]}));
    assert_eq!((&ship["action"], &ship["worker"]), (&json!("worker"), &json!("ship")));
    assert_eq!((&ship["queue"], &ship["does"]), (&json!("slow"), &json!("calls the worker ship")));
    assert_eq!((&shown["steps"][0]["effect"], &ship["effect"]), (&json!(false), &json!(true)));
    let edges = shown["edges"].as_array().expect("it is a list");
    assert!(edges.contains(&json!({"from": "start", "to": "ship", "event": "paid"})));
    assert!(edges.contains(&json!({"from": "ship", "to": "refund", "event": "step.failed:ship"})));
    let revision = shown["revision"].as_str().expect("it has one");
    let (_, same) = world.get(&format!("/flows/order?revision={}", &revision[..6])).await;
    assert_eq!(same["revision"], revision);
    let (status, drawn) = world.get("/flows/order/graph?format=mermaid").await;
    assert_eq!((status, &drawn["format"]), (StatusCode::OK, &json!("mermaid")));
    assert!(drawn["graph"].as_str().is_some_and(|text| text.contains("ship")));
}

#[tokio::test]
async fn a_registered_flow_is_a_new_revision_that_can_be_compared() {
    let world = World::new(&[ONE_STEP]).await;
    let changed = body("flow: one\nsteps:\n  only: {}\n  more: {subscribes: [\"step:only\"]}\n");
    let (status, registered) = world.post("/flows", &changed).await;
    assert_eq!((status, &registered["existed"]), (StatusCode::CREATED, &json!(false)));
    let (status, again) = world.post("/flows", &changed).await;
    assert_eq!((status, &again["existed"]), (StatusCode::OK, &json!(true)));
    let (_, listed) = world.get("/flows/one/revisions").await;
    let items = listed["items"].as_array().expect("it is a list");
    assert_eq!(items.len(), 2);
    let active: Vec<_> = items.iter().filter(|item| item["active"] == true).collect();
    assert_eq!(active[0]["revision"], registered["revision"]);
    assert_eq!(active[0]["runs"], json!({"held": 0, "running": 0, "waiting": 0}));
    let old = items.iter().find(|item| item["active"] == false).expect("there is one");
    let (old, new) = (old["revision"].as_str(), registered["revision"].as_str());
    let (old, new) = (old.expect("it is a text"), new.expect("it is a text"));
    let (status, compared) = world.get(&format!("/flows/one/diff?old={old}&new={new}")).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(compared["changes"].as_array().map(Vec::len), Some(1), "{compared}");
}

#[tokio::test]
async fn a_flow_file_is_checked_without_being_kept() {
    let world = World::new(&[]).await;
    let (_, valid) = world.post("/flows/validate", &body(ORDER)).await;
    assert_eq!((&valid["valid"], &valid["steps"]), (&json!(true), &json!(3)));
    let (status, wrong) =
        world.post("/flows/validate", &body("flow: a\nsteps:\n  b: {subscribes: [c]}\n")).await;
    assert_eq!((status, &wrong["valid"]), (StatusCode::OK, &json!(false)));
    assert_eq!(wrong["errors"][1]["line"], 3, "{wrong}");
    let (_, listed) = world.get("/flows").await;
    assert_eq!(listed["items"], json!([]));
}

#[tokio::test]
async fn a_flow_that_makes_no_sense_or_may_not_be_is_refused_with_its_code() {
    let world = World::new(&[]).await;
    let of_step = |step: &str| body(&format!("flow: a\nsteps:\n  b: {step}\n"));
    let cases = [
        (body("flow: a\n"), "flow_invalid"),
        (of_step("{run: {process: [echo]}}"), "process_forbidden"),
        (of_step("{run: {shell: echo}}"), "process_forbidden"),
        (of_step("{run: {worker: w}, retry: {attempts: 0}}"), "out_of_range"),
        (of_step("{}\nschedules:\n  s: {cron: \"0 0 31 2 *\"}"), "cron_never_fires"),
        (of_step("{}\nschedules:\n  s: {cron: \"61 * * * *\"}"), "cron_invalid"),
        (r#"{"text":"","more":1}"#.to_owned(), "unknown_field"),
    ];
    for (text, code) in cases {
        let (status, answer) = world.post("/flows", &text).await;
        assert_eq!((status.as_u16(), &answer["error"]["code"]), (422, &json!(code)), "{text}");
    }
    let (_, listed) = world.get("/flows").await;
    assert_eq!(listed["items"], json!([]));
}

#[tokio::test]
async fn what_is_not_there_is_named() {
    let world = World::new(&[ONE_STEP]).await;
    let cases = [
        ("/flows/ones", 404, "flow_not_found"),
        ("/flows/one%00", 404, "not_found"),
        ("/flows/one@1234", 404, "flow_not_found"),
        ("/flows/one?revision=abcdef", 404, "revision_not_found"),
        ("/flows/one/graph?format=png", 400, "query_param"),
        ("/flows/one/diff?old=abcd", 400, "query_param"),
        ("/flows/one?colour=red", 400, "query_param"),
        ("/flows/one/colour", 404, "not_found"),
    ];
    for (path, status, code) in cases {
        let (got, answer) = world.get(path).await;
        assert_eq!((got.as_u16(), &answer["error"]["code"]), (status, &json!(code)), "{path}");
    }
}
