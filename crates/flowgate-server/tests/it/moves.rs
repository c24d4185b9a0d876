//! Revisions with an author, and runs that are moved from one to another.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use flowgate_core::run::RunStatus;
use flowgate_server::HostOptions;
use flowgate_server::auth::{Scope, TokenEntry, Tokens, digest};
use serde_json::{Value, json};

use crate::world::{World, flow};

const OLD: &str = "flow: order\nsteps:\n  hold: { wait: { signal: go } }\n  ship: { subscribes: ['step:hold'] }\n";

fn renamed() -> String {
    OLD.replace("hold", "pause")
}

async fn registered(world: &World, body: Value) -> Value {
    let (status, answer) = world.post("/flows", &body.to_string()).await;
    assert!(status.is_success(), "{answer}");
    answer
}

#[tokio::test]
async fn a_revision_says_who_registered_it_first_and_what_for() {
    let tokens = Tokens::new(vec![TokenEntry {
        name: "ci".into(),
        sha256: digest("secret"),
        scope: Scope::Deploy,
        expires: None,
    }]);
    let options = HostOptions { tokens, is_public: true, ..HostOptions::default() };
    let world = World::with(options, &[]).await;
    let ask = async |method: &str, path: &str, body: Value| {
        let request = Request::builder()
            .method(method)
            .uri(format!("/api/v1{path}"))
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("authorization", "Bearer secret")
            .body(Body::from(if body.is_null() { String::new() } else { body.to_string() }));
        world.ask(request.expect("it is a request")).await
    };
    let new = json!({ "text": OLD, "note": "the first" });
    assert_eq!(ask("POST", "/flows", new).await.0, StatusCode::CREATED);
    let new = json!({ "text": renamed(), "author": "ann", "note": "mended" });
    assert_eq!(ask("POST", "/flows", new).await.0, StatusCode::CREATED);
    let again = json!({ "text": OLD, "author": "bob", "note": "again" });
    assert_eq!(ask("POST", "/flows", again).await.0, StatusCode::OK);
    let (_, listed) = ask("GET", "/flows/order/revisions", Value::Null).await;
    let told =
        |item: &Value| (item["author"].clone(), item["note"].clone(), item["active"].clone());
    assert_eq!(told(&listed["items"][0]), (json!("ann"), json!("mended"), json!(false)));
    assert_eq!(told(&listed["items"][1]), (json!("ci"), json!("the first"), json!(true)));
    let (_, shown) = ask("GET", "/flows/order", Value::Null).await;
    assert_eq!((&shown["author"], &shown["note"]), (&json!("ci"), &json!("the first")));
    let (_, flows) = ask("GET", "/flows", Value::Null).await;
    assert_eq!(flows["items"][0]["author"], "ci");
    for (author, message) in [("x".repeat(300), "256 bytes"), ("a\u{7}b".into(), "control")] {
        let new = json!({ "text": OLD.replace("ship", "send"), "author": author });
        let (status, answer) = ask("POST", "/flows", new).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(message), "{answer}");
    }
    let (_, listed) = ask("GET", "/flows/order/revisions", Value::Null).await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 2, "what is refused changes nothing");
}

#[tokio::test]
async fn a_run_is_moved_with_a_plan_first() {
    let world = World::new(&[OLD]).await;
    let run_id = world.start("order").await;
    world.reaches(&run_id, RunStatus::Waiting).await;
    registered(&world, json!({ "text": renamed() })).await;
    let path = format!("/runs/{run_id}/migrate");
    let migrate = async |body: Value| world.post(&path, &body.to_string()).await;

    let (status, refused) = migrate(json!({ "revision": "active" })).await;
    assert_eq!(status, StatusCode::CONFLICT, "{refused}");
    assert_eq!(refused["error"]["code"], "run_unmappable");
    assert!(refused["error"]["message"].as_str().unwrap().contains("`hold`"), "{refused}");
    let slip = json!({ "revision": "active", "steps": { "hold": "paus" } });
    let (status, slip) = migrate(slip).await;
    assert_eq!((status.as_u16(), &slip["error"]["code"]), (422, &json!("deploy_invalid")));
    assert_eq!(migrate(json!({ "revision": "ffff" })).await.0, StatusCode::NOT_FOUND);
    assert_eq!(migrate(json!({})).await.0, StatusCode::UNPROCESSABLE_ENTITY);

    let mut request =
        json!({ "revision": "active", "steps": { "hold": "pause" }, "dry_run": true });
    let (status, plan) = migrate(request.clone()).await;
    assert_eq!(status, StatusCode::OK, "{plan}");
    assert_eq!((&plan["at"], &plan["steps"]), (&json!(["hold"]), &json!(["pause"])), "{plan}");
    let (_, run) = world.get(&format!("/runs/{run_id}")).await;
    assert_eq!(run["revision"], *flow(OLD).revision.0, "a plan changes nothing");
    request["dry_run"] = false.into();
    let (_, done) = migrate(request.clone()).await;
    assert_eq!((&done["to"], &done["existed"]), (&plan["to"], &json!(false)), "{done}");
    let (status, again) = migrate(request).await;
    assert_eq!((status.as_u16(), &again["existed"]), (200, &json!(true)), "{again}");
    world.post(&format!("/runs/{run_id}/signal"), r#"{"signal":"go"}"#).await;
    world.ended(&run_id).await;
    let (status, late) = migrate(json!({ "revision": &*flow(OLD).revision.0 })).await;
    assert_eq!((status.as_u16(), &late["error"]["code"]), (409, &json!("run_terminal")));
}

#[tokio::test]
async fn many_runs_are_moved_and_those_without_a_place_are_counted() {
    let world = World::new(&[OLD]).await;
    for _ in 0..3 {
        let run_id = world.start("order").await;
        world.reaches(&run_id, RunStatus::Waiting).await;
    }
    let (old, new) = (flow(OLD).revision.to_string(), OLD.replace("ship", "send"));
    registered(&world, json!({ "text": new })).await;
    let migrate = async |body: Value| {
        let (status, answer) = world.post("/runs/migrate", &body.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        let count = |name: &str| answer[name].as_array().unwrap().len();
        (count("moved"), count("stayed"), answer["more"].as_bool().unwrap())
    };
    let mut request = json!({ "flow": "order", "revision": "active", "dry_run": true });
    assert_eq!(migrate(request.clone()).await, (3, 0, false));
    request["max"] = 2.into();
    assert_eq!(migrate(request.clone()).await, (2, 0, true));
    request["dry_run"] = false.into();
    assert_eq!(migrate(request.clone()).await, (2, 0, true));
    assert_eq!(migrate(request.clone()).await, (1, 0, false), "the rest");
    assert_eq!(migrate(request).await, (0, 0, false), "those that are there do not match");
    registered(&world, json!({ "text": renamed() })).await;
    let request = json!({ "flow": "order", "revision": "active" });
    assert_eq!(migrate(request).await, (0, 3, false), "they have no place");
    let request = json!({ "flow": "order", "revision": "active", "from": old });
    assert_eq!(migrate(request).await, (0, 0, false), "none is on that one any more");
    let rows = [
        (json!({ "flow": "order", "revision": "active", "status": ["held"] }), 422),
        (json!({ "flow": "order", "revision": "active", "max": 0 }), 422),
        (json!({ "flow": "nobody", "revision": "active" }), 404),
        (json!({ "revision": "active" }), 422),
    ];
    for (body, expected) in rows {
        let (status, answer) = world.post("/runs/migrate", &body.to_string()).await;
        assert_eq!(status.as_u16(), expected, "{body}: {answer}");
    }
}

#[tokio::test]
async fn a_run_that_no_deployment_has_stopped_has_no_checkpoint() {
    let world = World::new(&[OLD]).await;
    let run_id = world.start("order").await;
    for verb in ["replay", "discard"] {
        let (status, answer) = world.post(&format!("/checkpoints/{run_id}/{verb}"), "{}").await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{answer}");
        assert_eq!(answer["error"]["code"], "checkpoint_not_found");
    }
    let (_, run) = world.get(&format!("/runs/{run_id}")).await;
    assert_ne!(run["status"], "cancelled");
}
