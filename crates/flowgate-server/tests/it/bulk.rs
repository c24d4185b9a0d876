//! Many runs at once.

use axum::http::StatusCode;
use flowgate_core::run::RunStatus;
use serde_json::{Value, json};

use crate::world::World;

const WAITS: &str = "flow: waits\nsteps:\n  wait: { wait: { signal: go } }\n";
const FAILS: &str = "flow: fails\nsteps:\n  only: { run: { worker: broken } }\n";

async fn bulk(world: &World, body: Value) -> Value {
    let (status, answer) = world.post("/runs/bulk", &body.to_string()).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer
}

#[tokio::test]
async fn a_dry_run_says_what_would_be_done_and_changes_nothing() {
    let world = World::new(&[WAITS]).await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        let run_id = world.start("waits").await;
        world.reaches(&run_id, RunStatus::Waiting).await;
        runs.push(run_id);
    }
    let before = world.get("/runs").await.1;
    let mut request = json!({ "action": "cancel", "filter": { "flow": "waits" }, "dry_run": true });
    let would = bulk(&world, request.clone()).await;
    assert_eq!((&would["matched"], &would["left"]), (&json!(3), &json!(0)), "{would}");
    assert_eq!(would["done"].as_array().unwrap().len(), 3);
    assert_eq!(world.get("/runs").await.1, before, "nothing has changed");
    request["dry_run"] = false.into();
    request["max"] = 2.into();
    let done = bulk(&world, request.clone()).await;
    assert_eq!((&done["matched"], &done["left"]), (&json!(3), &json!(1)), "{done}");
    assert_eq!(done["done"].as_array().unwrap().len(), 2);
    let rest = bulk(&world, request).await;
    assert_eq!((&rest["matched"], &rest["left"]), (&json!(1), &json!(0)), "{rest}");
    let (_, listed) = world.get("/runs?status=cancelled").await;
    assert_eq!(listed["total"], 3);
}

#[tokio::test]
async fn failed_runs_are_tried_again_once_however_often_it_is_asked() {
    let world = World::new(&[FAILS]).await;
    let run_id = world.start("fails").await;
    world.ended(&run_id).await;
    let filter = json!({ "flow": "fails", "until": "2099-01-01T00:00:00Z" });
    let request = json!({ "action": "retry", "filter": filter });
    let first = bulk(&world, request.clone()).await;
    let new_id = first["done"][0]["new_run_id"].as_str().unwrap();
    world.ended(new_id).await;
    let again = bulk(&world, request).await;
    let of_first = |answer: &Value| {
        let done = answer["done"].as_array().unwrap().clone();
        done.into_iter().find(|item| item["run_id"] == *run_id).unwrap()["new_run_id"].clone()
    };
    assert_eq!(of_first(&again), of_first(&first));
}

#[tokio::test]
async fn what_cannot_be_dealt_with_so_is_refused_whole() {
    let world = World::new(&[WAITS]).await;
    let cases = [
        (json!({ "action": "cancel", "filter": { "status": ["failed"] } }), "field_invalid"),
        (json!({ "action": "retry", "filter": { "status": ["done"] } }), "field_invalid"),
        (json!({ "action": "drop" }), "field_invalid"),
        (json!({ "action": "cancel", "max": 0 }), "out_of_range"),
        (json!({ "action": "cancel", "max": 10_001 }), "out_of_range"),
        (json!({ "action": "cancel", "filter": { "since": "soon" } }), "field_invalid"),
        (json!({ "action": "cancel", "filter": { "colour": "red" } }), "unknown_field"),
    ];
    for (body, code) in cases {
        let (status, answer) = world.post("/runs/bulk", &body.to_string()).await;
        assert_eq!((status.as_u16(), &answer["error"]["code"]), (422, &json!(code)), "{body}");
    }
}
