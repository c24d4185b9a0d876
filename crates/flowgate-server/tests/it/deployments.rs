//! `/deployments`: what whoever watches one is told.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use flowgate_core::run::RunStatus;
use flowgate_engine::{EngineConfig, SchedulerConfig, instance_id};
use flowgate_server::HostOptions;
use flowgate_store::{MemoryStore, Store};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::stores;
use crate::world::World;

const OLD: &str = "flow: one\nsteps:\n  ask: { wait: { signal: go } }\n";
const NEW: &str =
    "flow: one\nsteps:\n  ask: { wait: { signal: go } }\n  then: { subscribes: [\"step:ask\"] }\n";

/// The deployment, once it is as wanted.
async fn eventually(world: &World, path: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    let mut pause = tokio::time::interval(Duration::from_millis(5));
    let mut last = Value::Null;
    for _ in 0..12_000 {
        last = world.get(path).await.1;
        if is_it(&last) {
            return last;
        }
        pause.tick().await;
    }
    panic!("it did not become so within a minute: {last}");
}

async fn watched(store: Arc<dyn Store>) {
    let schedules = Some(SchedulerConfig::default());
    let config = EngineConfig { schedules, ..EngineConfig::new(instance_id()) };
    let world = World::on(store, config, HostOptions::default(), &[OLD]).await;
    let open = world.start("one").await;
    world.reaches(&open, RunStatus::Waiting).await;
    let new =
        json!({ "text": NEW, "strategy": "blue-green", "drain_timeout": "1h", "note": "<b>" });
    let (status, begun) = world.post("/flows/one/deployments", &new.to_string()).await;
    assert_eq!(status, StatusCode::CREATED, "{begun}");
    let path = format!(
        "/flows/one/deployments/{}",
        begun["deployment_id"].as_str().expect("it has an id")
    );
    let gate = eventually(&world, "/flows/one/gate", |gate| gate["state"] == "draining");
    assert_eq!(gate.await["deployment"], begun["deployment_id"]);
    world.start("one").await;
    world.start("one").await;

    let draining = world.get(&path).await.1;
    let left = &draining["progress"];
    assert_eq!((&left["open"], &left["held"], &left["stopped"]), (&json!(1), &json!(2), &json!(0)));
    let entered = draining["phases"].as_array().and_then(|all| all.last()).expect("it has begun");
    assert_eq!(entered["phase"], "drain", "{draining}");
    assert!(left["until"].as_str() > entered["at"].as_str(), "{draining}");
    let (_, listed) = world.get("/deployments").await;
    assert_eq!(listed["items"][0].get("progress"), None, "it is counted for one alone");
    let (_, overview) = world.get("/overview").await;
    let under_way = &overview["deployments"];
    assert_eq!((&under_way[0]["flow"], &under_way[0]["phase"]), (&json!("one"), &json!("drain")));

    let (status, _) = world.post(&format!("{path}/rollback"), r#"{"note":"enough"}"#).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let ended = eventually(&world, &path, |found| found["ended_at"].is_string()).await;
    assert_eq!((&ended["verdict"], ended.get("progress")), (&json!("rolled_back"), None));
    assert_eq!(ended["rollback"], "somebody asked for it: enough");
    let (_, report) = world.get(&format!("{path}/report")).await;
    let sum = &report["conservation"];
    assert_eq!(
        (&sum["received"], &sum["running"], &sum["held"]),
        (&json!(2), &json!(2), &json!(0))
    );
    has_a_page_of_its_own(&world, &path).await;
    world.engine.shutdown().await;
}

/// The page has its style in it, so it has a policy that lets it; and nothing in it is code.
async fn has_a_page_of_its_own(world: &World, path: &str) {
    let request = Request::builder()
        .uri(format!("/api/v1{path}/report?format=html"))
        .header("host", "localhost")
        .body(Body::empty())
        .expect("it is a request");
    let response = world.router.clone().oneshot(request).await.expect("routes do not fail");
    let headers = response.headers().clone();
    assert_eq!(headers[header::CONTENT_TYPE], "text/html; charset=utf-8");
    let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().expect("it is ASCII");
    for part in ["default-src 'none'", "style-src 'unsafe-inline'", "sandbox"] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("script-src"), "{policy}");
    assert_eq!(headers.get_all(header::CONTENT_SECURITY_POLICY).iter().count(), 1);
    let bytes = response.into_body().collect().await.expect("the body is there").to_bytes();
    let page = std::str::from_utf8(&bytes).expect("it is UTF-8");
    assert!(page.contains("ROLLED BACK") && page.contains("&lt;b&gt;"), "{page}");
    assert!(!page.contains("<b>"), "{page}");
}

#[tokio::test]
async fn who_watches_a_deployment_is_told_what_is_left_in_memory() {
    watched(Arc::new(MemoryStore::new())).await;
}

#[tokio::test]
async fn who_watches_a_deployment_is_told_what_is_left_on_sqlite() {
    let folder = tempfile::tempdir().expect("there is room");
    watched(stores::sqlite(folder.path()).await).await;
}

#[tokio::test]
async fn who_watches_a_deployment_is_told_what_is_left_on_redis() {
    watched(stores::redis().await).await;
}

#[tokio::test]
async fn who_watches_a_deployment_is_told_what_is_left_on_postgres() {
    watched(stores::postgres().await).await;
}
