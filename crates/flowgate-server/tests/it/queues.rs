//! `/queues`.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use flowgate_core::flow::Flow;
use flowgate_core::gate::{Gate, GateState};
use flowgate_engine::{EngineConfig, instance_id};
use flowgate_server::HostOptions;
use flowgate_store::MemoryStore;
use flowgate_store::control::GateOutcome;
use flowgate_store::faulty::{Call, Fault, Faulty};
use serde_json::{Value, json};

use crate::world::World;

const SLOW: &str = "flow: slow\nsteps:\n  only: {run: {worker: w}, queue: slow}\n";

async fn patch(world: &World, queue: &str, change: &str) -> (StatusCode, Value) {
    world.send(Method::PATCH, &format!("/queues/{queue}"), Some(change)).await
}

#[tokio::test]
async fn what_is_absent_stays_and_null_takes_a_limit_away() {
    let world = World::new(&[SLOW]).await;
    let (status, changed) =
        patch(&world, "slow", r#"{"paused":true,"concurrency":4,"rate":"10/s"}"#).await;
    assert_eq!(status, StatusCode::OK, "{changed}");
    assert_eq!(changed["was"], json!({"paused": false, "concurrency": null, "rate": null}));
    let (_, changed) = patch(&world, "slow", r#"{"concurrency":null}"#).await;
    assert_eq!(changed["now"], json!({"paused": true, "concurrency": null, "rate": "10/s"}));
    let (_, listed) = world.get("/queues").await;
    assert_eq!(listed["items"][0]["rate"], "10/s");
    world.post("/runs", r#"{"flow":"slow"}"#).await;
    let (_, shown) = world.get("/queues/slow").await;
    assert_eq!((&shown["due"], &shown["in_line"]), (&json!(1), &json!(0)), "{shown}");
    assert_eq!(shown["holders"], json!([]));
}

#[tokio::test]
async fn a_run_in_a_paused_queue_says_so_and_how_to_go_on() {
    let world = World::new(&[SLOW]).await;
    patch(&world, "slow", r#"{"paused":true}"#).await;
    let run_id = world.start("slow").await;
    let (_, why) = world.get(&format!("/runs/{run_id}/why")).await;
    let reason = &why["reasons"][0];
    assert_eq!((&reason["cause"], &reason["queue"]), (&json!("paused"), &json!("slow")), "{why}");
    assert_eq!(reason["help"], "flowgate queues resume slow");
}

#[tokio::test]
async fn an_instance_that_was_not_heard_of_yet_does_not_say_that_nobody_works() {
    let faulty = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
    faulty.plan(Call::Beat, Fault::NotDone, u32::MAX);
    let config = EngineConfig::new(instance_id());
    let world = World::on(faulty, config, HostOptions::default(), &[SLOW]).await;
    assert_eq!(world.engine.store().list_instances().await.expect("the store is there"), []);
    let run_id = world.start("slow").await;
    let (_, why) = world.get(&format!("/runs/{run_id}/why")).await;
    let causes: Vec<_> = why["reasons"].as_array().into_iter().flatten().collect();
    assert!(!causes.is_empty() && causes.iter().all(|it| it["cause"] != "unowned"), "{why}");
}

#[tokio::test]
async fn a_limit_that_makes_no_sense_changes_nothing() {
    let world = World::new(&[SLOW]).await;
    let cases = [
        ("slow", r#"{"concurrency":0}"#, 422, "out_of_range"),
        ("slow", r#"{"concurrency":-1}"#, 422, "integer_out_of_range"),
        ("slow", r#"{"rate":"often"}"#, 422, "field_invalid"),
        ("slow", r#"{"colour":"red"}"#, 422, "unknown_field"),
        ("a%2Fb", r#"{"paused":true}"#, 422, "identifier_invalid"),
    ];
    for (queue, change, status, code) in cases {
        let (got, answer) = patch(&world, queue, change).await;
        assert_eq!((got.as_u16(), &answer["error"]["code"]), (status, &json!(code)), "{change}");
    }
    let (_, listed) = world.get("/queues").await;
    assert_eq!(listed["items"], json!([]));
    let (status, answer) = world.get("/queues/slow").await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (404, &json!("queue_not_found")));
}

#[tokio::test]
async fn a_queue_of_a_pool_is_listed_with_what_is_set_for_its_queue() {
    let world = World::new(&[SLOW]).await;
    let revision = Flow::parse(SLOW).expect("it is a flow").revision;
    let pools = [(revision, "green".into())].into();
    let gate = Gate { pools, ..Gate::default().then(GateState::Open) };
    let outcome = world.engine.store().set_gate(&"slow".into(), &gate, false).await;
    assert_eq!(outcome.expect("the store is there"), GateOutcome::Set);
    let run_id = world.start("slow").await;
    let (_, listed) = world.get("/queues").await;
    let item = &listed["items"][0];
    assert_eq!((&item["queue"], &item["due"]), (&json!("slow@green"), &json!(1)), "{listed}");
    assert_eq!((&item["paused"], &item["served_by"]), (&json!(false), &json!([])), "{listed}");
    let (_, why) = world.get(&format!("/runs/{run_id}/why")).await;
    let reason = &why["reasons"][0];
    assert_eq!((&reason["cause"], &reason["pool"]), (&json!("no_pool"), &json!("green")), "{why}");
    assert_eq!(reason["help"], "flowgate worker start --pool green");
    let (status, refused) = patch(&world, "slow@green", r#"{"paused":true}"#).await;
    assert_eq!((status.as_u16(), &refused["error"]["code"]), (422, &json!("identifier_invalid")));
    let help = refused["error"]["help"].as_str().unwrap_or_default();
    assert!(help.contains("name `slow`"), "{refused}");
    patch(&world, "slow", r#"{"paused":true,"concurrency":4}"#).await;
    let (_, shown) = world.get("/queues/slow@green").await;
    assert_eq!((&shown["paused"], &shown["concurrency"]), (&json!(true), &json!(4)), "{shown}");
    let (_, why) = world.get(&format!("/runs/{run_id}/why")).await;
    assert_eq!(why["reasons"][0]["help"], "flowgate queues resume slow", "{why}");
}
