//! `/runs/{run}` and what is below it.

use axum::http::StatusCode;
use flowgate_core::run::RunStatus;
use serde_json::{Value, json};

use crate::world::{ONE_STEP, World};

const WAITS: &str = "flow: waits\nsteps:\n  wait: { wait: { signal: go } }\n";
const CHATTY: &str = "flow: chatty\nsteps:\n  only: { run: { worker: chatty }, emits: [tick] }\n";
const FAILS: &str = "flow: fails\nsteps:\n  only:\n    run: { worker: broken }\n    \
                     retry: { attempts: 2, backoff: { initial: 1ms, max: 1ms } }\n";

fn code(answer: &Value) -> &str {
    answer["error"]["code"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_run_is_shown_by_its_id_its_beginning_and_latest() {
    let world = World::new(&[ONE_STEP]).await;
    let run_id = world.start("one").await;
    world.ended(&run_id).await;
    for name in [&*run_id, &run_id[..8], "latest"] {
        let (status, shown) = world.get(&format!("/runs/{name}")).await;
        assert_eq!((status, &shown["run_id"]), (StatusCode::OK, &json!(run_id)), "{name}");
        assert_eq!(shown["status"], "completed");
        assert_eq!(shown["steps"][0]["state"], "succeeded");
        assert_eq!((&shown["steps_complete"], &shown["input"]), (&json!(true), &json!({})));
        assert_eq!((&shown["failure"], &shown["jobs"]), (&Value::Null, &json!([])));
    }
    let cases = [("abc", 422), ("00000000-0000-0000-0000-000000000000", 404), ("ffffff", 404)];
    for (name, expected) in cases {
        for below in ["", "/events", "/timeline", "/logs", "/why", "/export", "/stream"] {
            let (status, answer) = world.get(&format!("/runs/{name}{below}")).await;
            assert_eq!(status.as_u16(), expected, "{name}{below}: {answer}");
        }
        for verb in ["cancel", "retry"] {
            let (status, answer) = world.post(&format!("/runs/{name}/{verb}"), "").await;
            assert_eq!(status.as_u16(), expected, "{name} {verb}: {answer}");
        }
    }
}

#[tokio::test]
async fn a_very_long_log_is_not_read_whole_to_show_a_run() {
    let world = World::new(&[CHATTY]).await;
    let (_, started) = world.post("/runs", r#"{"flow":"chatty","input":5000}"#).await;
    let run_id = started["run_id"].as_str().unwrap();
    world.ended(run_id).await;
    let (status, shown) = world.get(&format!("/runs/{run_id}")).await;
    assert_eq!((status, &shown["steps_complete"]), (StatusCode::OK, &json!(false)), "{shown}");
    assert!(shown["version"].as_u64().unwrap() > 5_000);
    assert_eq!((&shown["input"], &shown["state"]["first"]), (&json!(5000), &json!(5000)));
    assert_eq!(shown["steps"][0]["state"], "succeeded");
}

#[tokio::test]
async fn pages_of_events_hold_each_once_from_either_end() {
    let world = World::new(&[CHATTY]).await;
    let (_, started) = world.post("/runs", r#"{"flow":"chatty","input":25}"#).await;
    let run_id = started["run_id"].as_str().unwrap();
    world.ended(run_id).await;
    let (_, whole) = world.get(&format!("/runs/{run_id}/events?limit=1000")).await;
    assert_eq!(whole["next"], Value::Null);
    let whole = whole["items"].as_array().unwrap().clone();
    assert_eq!(whole.last().unwrap()["type"], "run.completed");
    assert!(whole[0]["text"].as_str().unwrap().starts_with("input "));
    for (order, by) in [("asc", "after"), ("desc", "before")] {
        let (mut all, mut more) = (Vec::new(), String::new());
        loop {
            let path = format!("/runs/{run_id}/events?order={order}&limit=7{more}");
            let (status, page) = world.get(&path).await;
            assert_eq!(status, StatusCode::OK, "{page}");
            all.extend(page["items"].as_array().unwrap().iter().cloned());
            let Some(next) = page["next"].as_u64() else { break };
            more = format!("&{by}={next}");
        }
        if order == "desc" {
            all.reverse();
        }
        assert_eq!(all, whole, "{order}");
    }
    for bad in ["order=up", "before=3", "order=desc&after=3", "limit=0", "after=-1", "x=1"] {
        let (status, answer) = world.get(&format!("/runs/{run_id}/events?{bad}")).await;
        assert_eq!((status.as_u16(), code(&answer)), (400, "query_param"), "{bad}");
    }
    let (status, text) = world.get(&format!("/runs/{run_id}/export")).await;
    assert_eq!((status, text), (StatusCode::OK, Value::Null), "it is lines, not a value");
}

#[tokio::test]
async fn a_timeline_tells_each_attempt_and_how_it_ended() {
    let world = World::new(&[FAILS, WAITS]).await;
    let failed = world.start("fails").await;
    world.ended(&failed).await;
    let (_, told) = world.get(&format!("/runs/{failed}/timeline")).await;
    let states: Vec<(u64, &str)> = (told["items"].as_array().unwrap().iter())
        .map(|item| (item["attempt"].as_u64().unwrap(), item["state"].as_str().unwrap()))
        .collect();
    assert_eq!(states, [(1, "retried"), (2, "failed")], "{told}");
    assert_eq!(told["items"][1]["error"]["message"], "it is broken");
    assert!(told["items"][0]["started_at"].as_str() <= told["items"][0]["ended_at"].as_str());
    let waiting = world.start("waits").await;
    world.reaches(&waiting, RunStatus::Waiting).await;
    let (_, told) = world.get(&format!("/runs/{waiting}/timeline")).await;
    assert_eq!(told["items"][0]["state"], "waiting", "{told}");
    assert_eq!(told["items"][0]["ended_at"], Value::Null);
}

#[tokio::test]
async fn a_run_is_steered_and_what_cannot_be_is_refused() {
    let world = World::new(&[WAITS, ONE_STEP]).await;
    let run_id = world.start("waits").await;
    world.reaches(&run_id, RunStatus::Waiting).await;
    let post = async |verb: &str, body: &str| {
        let (status, answer) = world.post(&format!("/runs/{run_id}/{verb}"), body).await;
        (status.as_u16(), answer)
    };
    let (_, why) = world.get(&format!("/runs/{run_id}/why")).await;
    assert_eq!(why["reasons"][0]["cause"], "signal", "{why}");
    assert_eq!(why["reasons"][0]["step"], "wait");
    let help = why["reasons"][0]["help"].as_str().unwrap();
    assert!(help.contains(&run_id), "{help}");
    let (status, answer) = post("retry", "").await;
    assert_eq!((status, code(&answer)), (409, "run_open"));
    let (status, answer) = post("signal", r#"{"signal":"stop"}"#).await;
    assert_eq!((status, code(&answer)), (422, "signal_unknown"));
    let (status, answer) = post("signal", r#"{"signal":"a b"}"#).await;
    assert_eq!((status, code(&answer)), (422, "identifier_invalid"));
    let (status, answer) =
        post("cancel", &json!({ "reason": "x".repeat(5_000) }).to_string()).await;
    assert_eq!((status, code(&answer)), (422, "too_long"));
    let (status, answer) = post("signal", r#"{"signal":"go"}"#).await;
    assert_eq!((status, &answer["taken"], &answer["kept"]), (200, &json!(true), &json!(false)));
    world.ended(&run_id).await;
    for (verb, body) in [("cancel", "{}"), ("signal", r#"{"signal":"go"}"#)] {
        let (status, answer) = post(verb, body).await;
        assert_eq!((status, code(&answer)), (409, "run_terminal"), "{verb}");
    }
    let (status, answer) = post("retry", r#"{"from":"nosuch"}"#).await;
    assert_eq!((status, code(&answer)), (422, "step_not_found"));
    let (status, again) = post("retry", r#"{"from":"wait"}"#).await;
    assert_eq!(status, 201, "{again}");
    let again_id = again["run_id"].as_str().unwrap().to_owned();
    assert_ne!(again_id, run_id);
    for existed in [false, true] {
        let body = r#"{"reason":"no longer wanted"}"#;
        let (status, answer) = world.post(&format!("/runs/{again_id}/cancel"), body).await;
        assert_eq!((status, &answer["existed"]), (StatusCode::OK, &json!(existed)));
        assert_eq!(answer["status"], "cancelled");
    }
}

/// A flow of two steps, of which the second does this.
fn mendable(input: &str, does: &str) -> String {
    format!(
        "flow: mended\n{input}steps:\n  first: {{}}\n  \
         second: {{ subscribes: ['step:first']{does} }}\n"
    )
}

#[tokio::test]
async fn a_run_that_failed_is_tried_again_on_the_revision_that_is_mended() {
    let broken = mendable("", ", run: { worker: broken }, retry: { attempts: 1 }");
    let world = World::new(&[&broken]).await;
    let run_id = world.start("mended").await;
    world.ended(&run_id).await;
    let text = json!({ "text": mendable("", "") }).to_string();
    let (status, registered) = world.post("/flows", &text).await;
    assert_eq!(status, StatusCode::CREATED, "{registered}");
    let path = format!("/runs/{run_id}/retry");
    let again = async |body: &str| {
        let (status, run) = world.post(&path, body).await;
        assert_eq!(status, StatusCode::CREATED, "{run}");
        let again_id = run["run_id"].as_str().expect("it has an id").to_owned();
        world.ended(&again_id).await;
        world.get(&format!("/runs/{again_id}")).await.1
    };
    assert_eq!(again("{}").await["status"], "failed", "it is on its own revision");
    let revision = registered["revision"].as_str().expect("it has one");
    for named in ["active", revision, &revision[..6]] {
        let run = again(&json!({ "revision": named }).to_string()).await;
        assert_eq!((&run["status"], &run["revision"]), (&json!("completed"), &json!(revision)));
        let (_, log) =
            world.get(&format!("/runs/{}/events", run["run_id"].as_str().unwrap())).await;
        assert_eq!(log["items"][1]["type"], "step.carried", "what succeeded is kept: {log}");
    }
    for (body, status, code_of) in [
        (r#"{"revision":"ffff"}"#, 404, "revision_not_found"),
        (r#"{"revision":"active","from":"third"}"#, 422, "step_not_found"),
    ] {
        let (got, answer) = world.post(&path, body).await;
        assert_eq!((got.as_u16(), code(&answer)), (status, code_of), "{answer}");
    }
    // A revision that does not take the old input is refused.
    let strict = "input: { type: object, required: [order] }\n";
    let text = json!({ "text": mendable(strict, "") }).to_string();
    assert_eq!(world.post("/flows", &text).await.0, StatusCode::CREATED);
    let (status, answer) = world.post(&path, r#"{"revision":"active"}"#).await;
    assert_eq!((status.as_u16(), code(&answer)), (422, "input_invalid"), "{answer}");
}

#[tokio::test]
async fn runs_are_found_by_what_a_person_remembers() {
    let world = World::new(&[ONE_STEP, WAITS]).await;
    let (_, keyed) = world.post("/runs", r#"{"flow":"one","key":"order 7"}"#).await;
    let keyed_id = keyed["run_id"].as_str().unwrap().to_owned();
    let other = world.start("waits").await;
    let found = async |query: &str| {
        let (status, page) = world.get(&format!("/runs?{query}")).await;
        assert_eq!(status, StatusCode::OK, "{page}");
        let items = page["items"].as_array().unwrap();
        let ids: Vec<_> =
            items.iter().map(|item| item["run_id"].as_str().unwrap().to_owned()).collect();
        ids
    };
    assert_eq!(found("search=order%207").await, std::slice::from_ref(&keyed_id));
    assert_eq!(found("search=order%207&flow=one").await, std::slice::from_ref(&keyed_id));
    assert!(found("search=order%207&flow=waits").await.is_empty());
    assert!(found("search=order%207&status=failed").await.is_empty());
    assert_eq!(found(&format!("search={}", &other[..18])).await, std::slice::from_ref(&other));
    assert_eq!(found(&format!("search={keyed_id}")).await, [keyed_id]);
    assert!(found("search=nothing").await.is_empty());
}
