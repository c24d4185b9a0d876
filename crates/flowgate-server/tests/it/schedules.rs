//! `/schedules`.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::world::{ONE_STEP, World};

const NIGHTLY: &str = "flow: nightly\nsteps:\n  only: {}\nschedules:\n  s: {cron: \"0 2 * * *\"}\n";

async fn add(world: &World, name: &str, spec: Value) -> (StatusCode, Value) {
    world.post("/schedules", &json!({ "name": name, "spec": spec }).to_string()).await
}

#[tokio::test]
async fn a_schedule_is_added_paused_resumed_and_removed() {
    let world = World::new(&[ONE_STEP]).await;
    let spec = json!({"flow": "one", "every": "1h", "catch_up": {"all": "6h"}, "input": {"a": 1}});
    let (status, added) = add(&world, "hourly", spec.clone()).await;
    assert_eq!((status, &added["source"]), (StatusCode::CREATED, &json!("added")), "{added}");
    assert_eq!(added["schedule"]["catch_up"], json!({"all": "6h"}));
    let (status, twice) = add(&world, "hourly", spec).await;
    assert_eq!((status.as_u16(), &twice["error"]["code"]), (409, &json!("conflict")));
    let (_, paused) = world.post("/schedules/hourly/pause", "").await;
    assert_eq!(paused["paused"], true);
    let (_, resumed) = world.post("/schedules/hourly/resume", "").await;
    assert_eq!(resumed["paused"], false);
    let (_, next) = world.get("/schedules/hourly/next?n=3").await;
    assert_eq!(next["items"].as_array().map(Vec::len), Some(3));
    let (status, _) = world.send(Method::DELETE, "/schedules/hourly", None).await;
    assert_eq!(status, StatusCode::OK);
    let (status, gone) = world.get("/schedules/hourly").await;
    assert_eq!((status.as_u16(), &gone["error"]["code"]), (404, &json!("schedule_not_found")));
}

#[tokio::test]
async fn a_schedule_of_a_flow_file_has_a_slash_in_its_name() {
    let world = World::new(&[NIGHTLY]).await;
    let (status, shown) = world.get("/schedules/nightly%2Fs").await;
    assert_eq!((status, &shown["source"]), (StatusCode::OK, &json!("file")), "{shown}");
    assert_eq!(shown["next"].as_array().map(Vec::len), Some(10));
    let (status, kept) = world.send(Method::DELETE, "/schedules/nightly%2Fs", None).await;
    assert_eq!((status.as_u16(), &kept["error"]["code"]), (409, &json!("conflict")));
}

#[tokio::test]
async fn a_triggered_occurrence_is_in_the_ledger() {
    let world = World::new(&[ONE_STEP]).await;
    add(&world, "once", json!({"flow": "one", "at": "2100-01-01T00:00:00Z"})).await;
    let (status, row) = world.post("/schedules/once/trigger", "").await;
    assert_eq!((status, &row["asked"]), (StatusCode::OK, &json!("trigger")), "{row}");
    assert!(row["run_id"].is_string());
    let (_, ledger) = world.get("/schedules/once/occurrences").await;
    assert_eq!(ledger["items"][0]["due_at"], row["due_at"]);
    let (_, none) = world.get("/schedules/once/occurrences?fate=missed,failed").await;
    assert_eq!(none["items"], json!([]));
}

#[tokio::test]
async fn a_range_is_filled_once() {
    let world = World::new(&[ONE_STEP]).await;
    add(&world, "often", json!({"flow": "one", "every": "10m"})).await;
    let (status, filled) = world.post("/schedules/often/backfill", r#"{"from":"1h"}"#).await;
    assert_eq!(status, StatusCode::OK, "{filled}");
    let count = filled["items"].as_array().map(Vec::len).unwrap_or_default();
    assert!((5..=7).contains(&count), "{filled}");
    let (status, wrong) =
        world.post("/schedules/often/backfill", r#"{"from":"1h","to":"2h"}"#).await;
    assert_eq!((status.as_u16(), &wrong["error"]["code"]), (422, &json!("out_of_range")));
}

#[tokio::test]
async fn schedules_are_listed_in_pages() {
    let world = World::new(&[ONE_STEP]).await;
    for name in ["a", "b", "c"] {
        add(&world, name, json!({"flow": "one", "every": "1h"})).await;
    }
    let (_, first) = world.get("/schedules?limit=2").await;
    assert_eq!((first["items"].as_array().map(Vec::len), &first["next"]), (Some(2), &json!("b")));
    let (_, second) = world.get("/schedules?limit=2&after=b&flow=one").await;
    assert_eq!((&second["items"][0]["name"], &second["next"]), (&json!("c"), &Value::Null));
}

#[tokio::test]
async fn a_schedule_that_makes_no_sense_is_refused_with_its_code() {
    let world = World::new(&[ONE_STEP]).await;
    let cron = |text: &str| json!({"flow": "one", "cron": text});
    let cases = [
        ("s", cron("* * * * * * *"), 422, "cron_invalid"),
        ("s", cron("61 * * * *"), 422, "cron_invalid"),
        ("s", cron("@reboot"), 422, "cron_invalid"),
        ("s", cron(&"*".repeat(10_000)), 422, "cron_invalid"),
        ("s", cron("0 0 31 2 *"), 422, "cron_never_fires"),
        ("s", json!({"flow": "one", "cron": "@daily", "zone": "Mars/Base"}), 422, "cron_invalid"),
        ("s", json!({"flow": "one", "every": "1ms"}), 422, "out_of_range"),
        ("s", json!({"flow": "one", "every": "soon"}), 422, "field_invalid"),
        ("s", json!({"flow": "one"}), 422, "field_invalid"),
        ("s", json!({"flow": "one", "every": "1h", "colour": 1}), 422, "unknown_field"),
        ("s/t", cron("@daily"), 422, "identifier_invalid"),
        ("s", json!({"flow": "two", "cron": "@daily"}), 404, "flow_not_found"),
    ];
    for (name, spec, status, code) in cases {
        let (got, answer) = add(&world, name, spec.clone()).await;
        assert_eq!((got.as_u16(), &answer["error"]["code"]), (status, &json!(code)), "{spec}");
    }
    let (_, listed) = world.get("/schedules").await;
    assert_eq!(listed["items"], json!([]));
    let long = "n".repeat(2_000);
    for path in ["/schedules/none", &format!("/schedules/{long}"), "/schedules/x/occurrences"] {
        let (status, answer) = world.get(path).await;
        assert_eq!(
            (status.as_u16(), &answer["error"]["code"]),
            (404, &json!("schedule_not_found"))
        );
    }
}
