//! `/gates`, and starts at a gate that is closed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use flowgate_core::gate::{CanaryShare, Gate, GateState};
use flowgate_core::ids::Revision;
use flowgate_engine::{EngineConfig, SchedulerConfig, instance_id};
use flowgate_server::HostOptions;
use flowgate_store::control::GateOutcome;
use flowgate_store::{MemoryStore, Store};
use serde_json::{Value, json};

use crate::stores;
use crate::world::{ONE_STEP, World};

const ANOTHER: &str = "flow: another\nsteps:\n  only: {}\n";

/// An instance that leads, so that what is let go does go on.
async fn world(store: Arc<dyn Store>) -> World {
    let schedules = Some(SchedulerConfig::default());
    let config = EngineConfig { schedules, ..EngineConfig::new(instance_id()) };
    World::on(store, config, HostOptions::default(), &[ONE_STEP, ANOTHER]).await
}

async fn put(world: &World, flow: &str, change: &str) -> (StatusCode, Value) {
    world.send(Method::PUT, &format!("/flows/{flow}/gate"), Some(change)).await
}

async fn set(world: &World, change: &str) -> Value {
    let (status, gate) = put(world, "one", change).await;
    assert_eq!(status, StatusCode::OK, "{gate}");
    gate
}

/// The gate, once it is open.
async fn open(world: &World) -> Value {
    let mut pause = tokio::time::interval(Duration::from_millis(5));
    for _ in 0..12_000 {
        let (_, gate) = world.get("/flows/one/gate").await;
        if gate["state"] == "open" {
            return gate;
        }
        pause.tick().await;
    }
    panic!("the gate is not open within a minute");
}

async fn all_holds(store: Arc<dyn Store>) {
    let world = world(store).await;
    let (_, never_set) = world.get("/flows/one/gate").await;
    assert_eq!(
        never_set,
        json!({
            "flow": "one", "state": "open", "generation": 0, "held": 0, "hold_max": 100_000,
            "oldest_at": null, "age_ms": null, "reason": null, "deadline": null,
            "replay_rate": null, "deployment": null, "canary": null, "pools": [], "set_at": null,
        })
    );
    assert_eq!(world.get("/gates").await.1, json!({"items": []}));
    let gate =
        set(&world, r#"{"state":"holding","reason":"bank is down","hold_max":3,"deadline":"1h"}"#);
    let gate = gate.await;
    assert_eq!((&gate["state"], &gate["generation"]), (&json!("holding"), &json!(1)));
    assert_eq!((&gate["reason"], &gate["hold_max"]), (&json!("bank is down"), &json!(3)));
    assert!(gate["deadline"].as_str() > gate["set_at"].as_str(), "{gate}");
    let runs = held_up_to_its_bound(&world).await;
    told_of_one_held(&world, &runs[0]).await;
    let gate = set(&world, r#"{"state":"open","rate":1000}"#).await;
    assert!(gate["generation"].as_u64() > Some(1), "{gate}");
    for run_id in &runs {
        world.ended(run_id).await;
    }
    let gate = open(&world).await;
    assert_eq!((&gate["held"], &gate["reason"]), (&json!(0), &Value::Null), "{gate}");
    let (_, started) = world.post("/runs", r#"{"flow":"one"}"#).await;
    assert_eq!(started["status"], "completed", "{started}");
    world.engine.shutdown().await;
}

/// Starts three runs, which are held, and one more, which is not; the three.
async fn held_up_to_its_bound(world: &World) -> Vec<String> {
    let mut runs = Vec::new();
    for n in 0..3 {
        let start = format!(r#"{{"flow":"one","key":"k{n}"}}"#);
        let (status, started) = world.post("/runs", &start).await;
        assert_eq!((status, &started["status"]), (StatusCode::CREATED, &json!("held")));
        assert_eq!(started["existed"], false);
        runs.push(started["run_id"].as_str().expect("it has an id").to_owned());
    }
    let (status, refused) = world.post("/runs", r#"{"flow":"one"}"#).await;
    assert_eq!((status.as_u16(), &refused["error"]["code"]), (429, &json!("hold_full")));
    assert_eq!(refused["error"]["path"], "one");
    let (status, elsewhere) = world.post("/runs", r#"{"flow":"another"}"#).await;
    assert_eq!((status, &elsewhere["status"]), (StatusCode::CREATED, &json!("completed")));
    runs
}

/// Every place that shows a run, or counts runs, shows that they are held.
async fn told_of_one_held(world: &World, run_id: &str) {
    let (_, listed) = world.get("/gates").await;
    let items = listed["items"].as_array().expect("it is a list");
    assert_eq!(items.len(), 1, "{listed}");
    assert_eq!((&items[0]["flow"], &items[0]["held"]), (&json!("one"), &json!(3)), "{listed}");
    assert!(items[0]["age_ms"].is_u64(), "{listed}");
    let (_, shown) = world.get(&format!("/runs/{run_id}")).await;
    assert_eq!((&shown["status"], &shown["started_at"]), (&json!("held"), &items[0]["oldest_at"]));
    let (_, held) = world.get("/runs?status=held").await;
    assert_eq!(held["total"], 3, "{held}");
    let (_, flows) = world.get("/flows").await;
    assert_eq!(flows["items"][1]["runs"]["held"], 3, "{flows}");
    let (_, why) = world.get(&format!("/runs/{run_id}/why")).await;
    let reason = &why["reasons"][0];
    assert_eq!(reason["help"], "flowgate hold off one", "{why}");
    let message = reason["message"].as_str().unwrap_or_default();
    assert!(message.contains("is holding") && message.contains("bank is down"), "{message}");
    let (status, refused) =
        world.post(&format!("/runs/{run_id}/signal"), r#"{"signal":"go","data":1}"#).await;
    assert_eq!((status.as_u16(), &refused["error"]["code"]), (409, &json!("run_held")));
}

#[tokio::test]
async fn a_held_flow_takes_starts_up_to_its_bound_and_lets_them_go_in_memory() {
    all_holds(Arc::new(MemoryStore::new())).await;
}

#[tokio::test]
async fn a_held_flow_takes_starts_up_to_its_bound_and_lets_them_go_on_sqlite() {
    let folder = tempfile::tempdir().expect("there is room");
    all_holds(stores::sqlite(folder.path()).await).await;
}

#[tokio::test]
async fn a_held_flow_takes_starts_up_to_its_bound_and_lets_them_go_on_redis() {
    all_holds(stores::redis().await).await;
}

#[tokio::test]
async fn a_held_flow_takes_starts_up_to_its_bound_and_lets_them_go_on_postgres() {
    all_holds(stores::postgres().await).await;
}

#[tokio::test]
async fn to_hold_what_is_held_and_to_open_what_is_open_changes_nothing() {
    let world = World::new(&[ONE_STEP]).await;
    let open = set(&world, r#"{"state":"open"}"#).await;
    assert_eq!((&open["state"], &open["generation"]), (&json!("open"), &json!(0)));
    let first = set(&world, r#"{"state":"holding","reason":"first"}"#).await;
    let again = set(&world, r#"{"state":"holding","reason":"second","hold_max":1}"#).await;
    assert_eq!(again["reason"], "first", "{again}");
    assert_eq!(again["generation"], first["generation"]);
    assert_eq!(again["hold_max"], first["hold_max"]);
}

#[tokio::test]
async fn what_a_closed_gate_does_not_take_is_refused_with_its_code() {
    let world = World::new(&[ONE_STEP]).await;
    let before = world.start("one").await;
    set(&world, r#"{"state":"holding"}"#).await;
    let (status, refused) =
        world.post(&format!("/runs/{before}/retry"), r#"{"from":"only"}"#).await;
    assert_eq!((status.as_u16(), &refused["error"]["code"]), (409, &json!("gate_closed")));
    world.start("one").await;
    // Nobody leads here, so it goes on letting go.
    let gate = set(&world, r#"{"state":"open","rate":5}"#).await;
    assert_eq!((&gate["state"], &gate["replay_rate"]), (&json!("replaying"), &json!(5)));
    assert_eq!(gate["held"], 1);
    // It can be held again meanwhile.
    let gate = set(&world, r#"{"state":"holding"}"#).await;
    assert_eq!((&gate["state"], &gate["held"]), (&json!("holding"), &json!(1)));
    let flow = "one".into();
    let gate = Gate {
        generation: 4,
        state: GateState::Draining,
        deployment: Some("d-7".into()),
        canary: Some(CanaryShare {
            revision: Revision("new".into()),
            share: "5%".parse().expect("a share"),
        }),
        pools: BTreeMap::from([(Revision("new".into()), "green".into())]),
        ..Gate::default()
    };
    let outcome = world.engine.store().set_gate(&flow, &gate, false).await;
    assert_eq!(outcome.expect("the store is there"), GateOutcome::Set);
    for change in [r#"{"state":"holding"}"#, r#"{"state":"open"}"#] {
        let (status, refused) = put(&world, "one", change).await;
        assert_eq!((status.as_u16(), &refused["error"]["code"]), (409, &json!("gate_closed")));
        let message = refused["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("the deployment d-7"), "{message}");
    }
    let (_, shown) = world.get("/flows/one/gate").await;
    assert_eq!((&shown["state"], &shown["deployment"]), (&json!("draining"), &json!("d-7")));
    assert_eq!(shown["canary"], json!({"revision": "new", "share": "5%"}));
    assert_eq!(shown["pools"], json!([{"revision": "new", "pool": "green"}]));
}

#[tokio::test]
async fn the_same_key_gives_the_same_held_run() {
    let world = World::new(&[ONE_STEP]).await;
    set(&world, r#"{"state":"holding"}"#).await;
    let (status, first) = world.post("/runs", r#"{"flow":"one","key":"k"}"#).await;
    assert_eq!((status, &first["status"]), (StatusCode::CREATED, &json!("held")), "{first}");
    let (status, again) = world.post("/runs", r#"{"flow":"one","key":"k"}"#).await;
    assert_eq!((status, &again["status"]), (StatusCode::OK, &json!("held")), "{again}");
    assert_eq!((&again["run_id"], &again["existed"]), (&first["run_id"], &json!(true)));
}

#[tokio::test]
async fn the_first_of_more_runs_than_a_page_is_found() {
    let world = World::new(&[ONE_STEP]).await;
    set(&world, r#"{"state":"holding"}"#).await;
    let first = world.start("one").await;
    for _ in 0..1_100 {
        world.start("one").await;
    }
    let (_, shown) = world.get(&format!("/runs/{first}")).await;
    let (_, gate) = world.get("/flows/one/gate").await;
    assert_eq!((&gate["held"], &gate["oldest_at"]), (&json!(1_101), &shown["started_at"]));
}

#[tokio::test]
async fn a_change_that_makes_no_sense_changes_nothing() {
    let world = World::new(&[ONE_STEP]).await;
    let long = format!(r#"{{"state":"holding","reason":"{}"}}"#, "x".repeat(5_000));
    for (flow, change, status, code) in [
        ("two", r#"{"state":"holding"}"#, 404, "flow_not_found"),
        ("two", r#"{"state":"open"}"#, 404, "flow_not_found"),
        ("one", "{}", 422, "field_invalid"),
        ("one", r#"{"state":"ajar"}"#, 422, "field_invalid"),
        ("one", r#"{"state":"draining"}"#, 422, "field_invalid"),
        ("one", r#"{"state":"holding","colour":"red"}"#, 422, "unknown_field"),
        ("one", r#"{"state":"holding","hold_max":0}"#, 422, "out_of_range"),
        ("one", r#"{"state":"holding","hold_max":1000001}"#, 422, "out_of_range"),
        ("one", r#"{"state":"holding","hold_max":-1}"#, 422, "integer_out_of_range"),
        ("one", r#"{"state":"holding","deadline":"soon"}"#, 422, "field_invalid"),
        ("one", r#"{"state":"holding","deadline":"0s"}"#, 422, "out_of_range"),
        ("one", r#"{"state":"holding","deadline":"367d"}"#, 422, "out_of_range"),
        ("one", r#"{"state":"holding","rate":1}"#, 422, "field_invalid"),
        ("one", &long, 422, "too_long"),
        ("one", r#"{"state":"open","rate":0}"#, 422, "out_of_range"),
        ("one", r#"{"state":"open","rate":-1}"#, 422, "integer_out_of_range"),
        ("one", r#"{"state":"open","rate":0.5}"#, 422, "integer_out_of_range"),
        ("one", r#"{"state":"open","hold_max":1}"#, 422, "field_invalid"),
        ("one", r#"{"state":"open","reason":"done"}"#, 422, "field_invalid"),
        ("one", r#"{"state":"open","deadline":"1m"}"#, 422, "field_invalid"),
    ] {
        let (got, answer) = put(&world, flow, change).await;
        assert_eq!((got.as_u16(), &answer["error"]["code"]), (status, &json!(code)), "{change}");
    }
    assert_eq!(world.get("/gates").await.1, json!({"items": []}));
    let (status, answer) = world.get("/flows/two/gate").await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (404, &json!("flow_not_found")));
}
