//! `/jobs`: a worker in another process.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::world::World;

const SCORED: &str = "flow: scored\nsteps:\n  score: { run: { worker: score }, emits: [scored] }\n  end: { subscribes: [scored] }\n";

async fn started(world: &World) -> Value {
    let (status, run) = world.post("/runs", r#"{"flow":"scored","input":{"n":1}}"#).await;
    assert_eq!(status, StatusCode::CREATED, "{run}");
    let claim = r#"{"worker_id":"w-1","workers":["score"],"max":5,"wait_ms":5000}"#;
    let (status, claimed) = world.post("/jobs/claim", claim).await;
    assert_eq!(status, StatusCode::OK, "{claimed}");
    claimed["jobs"][0].clone()
}

#[tokio::test]
async fn a_worker_claims_renews_and_completes() {
    let world = World::new(&[SCORED]).await;
    let job = started(&world).await;
    assert_eq!(
        (&job["step"], &job["attempt"], &job["input"]),
        (&json!("score"), &json!(1), &json!({"n":1}))
    );
    let (run_id, token) = (job["run_id"].as_str().unwrap(), &job["token"]);
    let held = json!({ "run_id": run_id, "step": "score", "token": token });
    let renew = json!({ "worker_id": "w-1", "lease_ms": 5000, "jobs": [held] });
    let (status, renewed) = world.post("/jobs/renew", &renew.to_string()).await;
    assert_eq!((status, &renewed["jobs"][0]["held"]), (StatusCode::OK, &json!(true)), "{renewed}");
    let done = json!({ "token": token, "result": 7, "emits": [{ "event": "scored", "data": {} }] });
    let path = format!("/jobs/{run_id}/score/complete");
    let (status, settled) = world.post(&path, &done.to_string()).await;
    assert_eq!(status, StatusCode::OK, "{settled}");
    let (status, again) = world.post(&path, &done.to_string()).await;
    assert_eq!(status, StatusCode::OK, "sent again: {again}");
}

#[tokio::test]
async fn a_worker_that_has_asked_is_listed_with_the_instances() {
    let world = World::new(&[SCORED]).await;
    started(&world).await;
    let (status, listed) = world.get("/instances").await;
    assert_eq!(status, StatusCode::OK, "{listed}");
    let worker = &listed["workers"][0];
    assert_eq!(
        (&worker["worker_id"], &worker["workers"], &worker["queues"]),
        (&json!("w-1"), &json!(["score"]), &json!(["score"])),
        "{listed}"
    );
    let (_, of_pool) = world.get("/instances?pool=blue").await;
    assert_eq!(of_pool["workers"], json!([]), "the instance that it asks is of no pool");
}

#[tokio::test]
async fn a_job_that_is_not_held_is_refused() {
    let world = World::new(&[SCORED]).await;
    let job = started(&world).await;
    let run_id = job["run_id"].as_str().unwrap();
    let cases = [
        (format!("/jobs/{run_id}/score/complete"), r#"{"token":"999999"}"#, 409, "fenced"),
        (format!("/jobs/{run_id}/other/complete"), r#"{"token":"1"}"#, 404, "job_not_found"),
        (format!("/jobs/{run_id}/score/complete"), r#"{"token":"x"}"#, 422, "field_invalid"),
        (
            "/jobs/nonsense/score/fail".to_owned(),
            r#"{"token":"1","message":"m"}"#,
            404,
            "job_not_found",
        ),
    ];
    for (path, body, status, code) in cases {
        let (got, answer) = world.post(&path, body).await;
        assert_eq!(
            (got.as_u16(), &answer["error"]["code"]),
            (status, &json!(code)),
            "{path}: {answer}"
        );
    }
}
