//! `/instances`, `/leader`, `/doctor` and `/subscribers`.

use axum::http::StatusCode;
use flowgate_core::ids::RunId;
use serde_json::json;

use crate::world::World;

#[tokio::test]
async fn who_is_there_and_how_the_store_stands_is_told() {
    let world = World::new(&[]).await;
    for (path, key) in [
        ("/instances", "items"),
        ("/instances?pool=blue", "items"),
        ("/leader", "terms"),
        ("/subscribers", "items"),
        ("/doctor", "findings"),
    ] {
        let (status, answer) = world.get(path).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        assert!(answer[key].is_array(), "{path}: {answer}");
    }
    let (_, examined) = world.get("/doctor").await;
    assert_eq!((&examined["store"], &examined["healthy"]), (&json!("memory:"), &json!(true)));
    assert_eq!(examined["findings"][0]["level"], "warning");
}

#[tokio::test]
async fn a_subscriber_that_is_not_there_is_not_found() {
    let world = World::new(&[]).await;
    let not_found = (404, json!("subscriber_not_found"));
    let long = format!("/subscribers/{}", "n".repeat(3_000));
    for path in ["/subscribers/none", &*long] {
        let (status, answer) = world.get(path).await;
        assert_eq!((status.as_u16(), answer["error"]["code"].clone()), not_found);
    }
    for (path, body, status, code) in [
        ("/subscribers/none/reset", r#"{"to":"start"}"#, 404, "subscriber_not_found"),
        ("/subscribers/none/reset", r#"{"to":["0"]}"#, 404, "subscriber_not_found"),
        ("/subscribers/none/reset", r#"{"to":["here"]}"#, 422, "field_invalid"),
        ("/subscribers/none/reset", r#"{"to":"middle"}"#, 422, "field_invalid"),
        ("/subscribers/none/retry-dead", "{}", 404, "subscriber_not_found"),
        ("/subscribers/none/retry-dead", r#"{"run_id":"x"}"#, 422, "run_id_invalid"),
    ] {
        let (got, answer) = world.post(path, body).await;
        assert_eq!((got.as_u16(), &answer["error"]["code"]), (status, &json!(code)), "{body}");
    }
    let run = json!({ "run_id": RunId::derived("a", "b") }).to_string();
    let (status, _) = world.post("/subscribers/none/retry-dead", &run).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}
