//! What is told as it happens.

use axum::http::StatusCode;
use flowgate_core::run::RunStatus;
use serde_json::json;

use crate::world::{ONE_STEP, World};

/// A flow that waits for a signal with a certain value in it.
const WAITS: &str = "flow: waits\nsteps:\n  wait:\n    wait: { signal: go, match: { ok: true } }\n";

async fn signal(world: &World, run_id: &str, data: &str) {
    let body = format!(r#"{{"signal":"go","data":{data}}}"#);
    let (status, answer) = world.post(&format!("/runs/{run_id}/signal"), &body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
}

#[tokio::test]
async fn a_run_is_followed_from_its_start_to_its_end() {
    let world = World::new(&[WAITS]).await;
    let run_id = world.start("waits").await;
    let mut stream = world.listen(&format!("/runs/{run_id}/stream"), &[]).await;
    let seen = stream.until("step.waiting").await;
    assert_eq!(seen[0].data["type"], "run.started");
    assert_eq!(seen[0].data["flow"], "waits");
    signal(&world, &run_id, r#"{"ok":true}"#).await;
    let rest = stream.until("run.completed").await;
    let numbers: Vec<u64> = seen.iter().chain(&rest).filter_map(|message| message.id).collect();
    let count = u64::try_from(numbers.len()).unwrap();
    assert_eq!(numbers, (1..=count).collect::<Vec<_>>(), "each once, in order");
    let end = stream.next().await.unwrap();
    assert_eq!((&*end.event, &end.data), ("end", &json!({ "status": "completed" })));
    assert_eq!(stream.next().await, None);
}

#[tokio::test]
async fn whoever_comes_back_goes_on_after_the_last_event() {
    let world = World::new(&[WAITS]).await;
    let run_id = world.start("waits").await;
    world.reaches(&run_id, RunStatus::Waiting).await;
    let path = format!("/runs/{run_id}/stream");
    let mut by_header = world.listen(&path, &[("last-event-id", "1")]).await;
    assert_eq!(by_header.next_of("event").await.id, Some(2));
    let mut by_query = world.listen(&format!("{path}?after=1"), &[]).await;
    assert_eq!(by_query.next_of("event").await.id, Some(2));
    drop((by_header, by_query));
    signal(&world, &run_id, r#"{"ok":true}"#).await;
    world.ended(&run_id).await;
    let (_, shown) = world.get(&format!("/runs/{run_id}")).await;
    let last = shown["version"].as_u64().unwrap();
    let mut at_end = world.listen(&path, &[("last-event-id", &last.to_string())]).await;
    assert_eq!(at_end.next().await.unwrap().event, "end");
    assert_eq!(at_end.next().await, None);
    let (status, answer) = world.get(&format!("{path}?after=x")).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (400, &json!("query_param")));
}

#[tokio::test]
async fn whoever_does_not_read_is_dropped_and_told_so() {
    let world = World::new(&[WAITS]).await;
    let run_id = world.start("waits").await;
    let path = format!("/runs/{run_id}/stream");
    let mut slow = world.listen(&path, &[]).await;
    let mut quick = world.listen(&path, &[]).await;
    slow.until("step.waiting").await;
    quick.until("step.waiting").await;
    let text = "x".repeat(8_000);
    for _ in 0..20 {
        signal(&world, &run_id, &format!(r#"{{"ok":false,"text":"{text}"}}"#)).await;
        let told = quick.next_of("event").await;
        assert_eq!(told.data["type"], "signal.received");
    }
    let (mut count, mut last) = (0, None);
    while let Some(message) = slow.next().await {
        count += usize::from(message.event == "event");
        last = Some(message.event);
    }
    assert_eq!(last.as_deref(), Some("lagged"));
    assert!((1..20).contains(&count), "{count} events waited for it");
    signal(&world, &run_id, r#"{"ok":true}"#).await;
    quick.until("run.completed").await;
}

#[tokio::test]
async fn those_who_are_told_are_bounded_and_whoever_is_gone_makes_room() {
    let world = World::new(&[WAITS]).await;
    let run_id = world.start("waits").await;
    let path = format!("/runs/{run_id}/stream");
    let mut all = Vec::new();
    for _ in 0..999 {
        all.push(world.listen(&path, &[]).await);
    }
    all.push(world.listen("/live", &[]).await);
    for refused in ["/live", &path] {
        let (status, answer) = world.get(refused).await;
        assert_eq!((status.as_u16(), &answer["error"]["code"]), (503, &json!("overloaded")));
    }
    all.truncate(10);
    world.listen(&path, &[]).await;
    signal(&world, &run_id, r#"{"ok":true}"#).await;
    for stream in &mut all {
        stream.until("run.completed").await;
    }
}

#[tokio::test]
async fn whoever_looks_at_an_instance_that_ends_is_told_so() {
    let world = World::new(&[ONE_STEP]).await;
    let mut stream = world.listen("/live", &[]).await;
    assert!(stream.next_of("tick").await.data["now"].is_string());
    world.engine.shutdown().await;
    for path in ["/live", "/overview"] {
        let (status, answer) = world.get(path).await;
        assert_eq!(
            (status.as_u16(), &answer["error"]["code"]),
            (503, &json!("stopping")),
            "{path}"
        );
    }
}

#[tokio::test]
async fn runs_that_change_are_told_with_their_status() {
    let world = World::new(&[ONE_STEP, WAITS]).await;
    let mut all = world.listen("/live", &[]).await;
    let mut of_flow = world.listen("/live?flow=waits", &[]).await;
    assert!(all.next_of("tick").await.data["now"].is_string());
    let one = world.start("one").await;
    let waiting = world.start("waits").await;
    let mut seen = Vec::new();
    while seen.len() < 2 {
        for run in all.next_of("runs").await.data["runs"].as_array().unwrap() {
            let status = run["status"].as_str().unwrap();
            if matches!(status, "completed" | "waiting") {
                seen.push((run["run_id"].as_str().unwrap().to_owned(), status.to_owned()));
            }
        }
    }
    assert!(seen.contains(&(one, "completed".to_owned())), "{seen:?}");
    assert!(seen.contains(&(waiting.clone(), "waiting".to_owned())), "{seen:?}");
    let told = of_flow.next_of("runs").await.data;
    let runs = told["runs"].as_array().unwrap();
    assert!(runs.iter().all(|run| run["run_id"] == *waiting), "{told}");
}
