//! `/runs`.

use axum::http::StatusCode;
use serde_json::json;

use crate::world::{ONE_STEP, World};

#[tokio::test]
async fn a_started_run_is_listed() {
    let world = World::new(&[ONE_STEP]).await;
    let (status, started) = world.post("/runs", r#"{"flow":"one","key":"k"}"#).await;
    assert_eq!((status, &started["existed"]), (StatusCode::CREATED, &json!(false)), "{started}");
    let (status, again) = world.post("/runs", r#"{"flow":"one","key":"k"}"#).await;
    assert_eq!((status, &again["run_id"]), (StatusCode::OK, &started["run_id"]));
    let (status, listed) = world.get("/runs?flow=one&limit=1000000").await;
    assert_eq!((status, &listed["total"]), (StatusCode::OK, &json!(1)));
    assert_eq!(listed["items"][0]["run_id"], started["run_id"]);
    assert_eq!(listed["items"][0]["key"], "k");
}

#[tokio::test]
async fn a_start_that_makes_no_sense_says_why_and_starts_nothing() {
    let world = World::new(&[ONE_STEP]).await;
    let cases = [
        ("", 400, "body_empty"),
        ("not json", 400, "json_syntax"),
        (r#"{"flow":"one","flow":"one"}"#, 400, "json_duplicate_key"),
        (r#"{"flow":"one","colour":"red"}"#, 422, "unknown_field"),
        (r#"{"flow":"one","priority":99999999999}"#, 422, "integer_out_of_range"),
        (r#"{"flow":"one","input":"a\u0000"}"#, 422, "nul_not_allowed"),
        (r#"{"flow":"two"}"#, 404, "flow_not_found"),
    ];
    for (body, status, code) in cases {
        let (got, answer) = world.post("/runs", body).await;
        assert_eq!((got.as_u16(), &answer["error"]["code"]), (status, &json!(code)), "{body}");
    }
    let (_, listed) = world.get("/runs").await;
    assert_eq!(listed["total"], 0);
}

#[tokio::test]
async fn runs_of_a_flow_are_filtered_before_they_are_counted_off() {
    let world =
        World::new(&[ONE_STEP, "flow: waits\nsteps:\n  w: { wait: { signal: go } }\n"]).await;
    let mut completed = Vec::new();
    for _ in 0..5 {
        let run_id = world.start("one").await;
        world.ended(&run_id).await;
        completed.push(run_id);
    }
    // The latest come first; of those that started in one millisecond, the one with the larger id.
    let (_, all) = world.get("/runs?flow=one").await;
    let listed = all["items"].as_array().unwrap().iter();
    let listed: Vec<String> =
        listed.map(|item| item["run_id"].as_str().unwrap().to_owned()).collect();
    completed.sort_by_key(|run_id| listed.iter().position(|listed| listed == run_id));
    world.start("waits").await;
    let ids = |page: &serde_json::Value| -> Vec<String> {
        let items = page["items"].as_array().unwrap();
        items.iter().map(|item| item["run_id"].as_str().unwrap().to_owned()).collect()
    };
    for (offset, expected, has_more) in
        [(0, &completed[..2], true), (2, &completed[2..4], true), (4, &completed[4..], false)]
    {
        let path = format!("/flows/one/runs?status=completed&limit=2&offset={offset}");
        let (status, page) = world.get(&path).await;
        assert_eq!((status, ids(&page)), (StatusCode::OK, expected.to_vec()), "{page}");
        assert_eq!((&page["total"], &page["has_more"]), (&json!(5), &json!(has_more)));
    }
    let (_, past) = world.get("/flows/one/runs?offset=50").await;
    assert_eq!((ids(&past).len(), &past["has_more"]), (0, &json!(false)));
    let (status, answer) = world.get("/flows/none/runs").await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (404, &json!("flow_not_found")));
    let (status, _) = world.get("/flows/one/runs?offset=10001").await;
    assert_eq!(status.as_u16(), 400);
}
