//! `/overview`.

use axum::http::StatusCode;
use flowgate_core::run::RunStatus;
use serde_json::json;

use crate::world::{ONE_STEP, World};

const WAITS: &str = "flow: waits\nsteps:\n  wait: { wait: { signal: go } }\n";
const FAILS: &str = "flow: fails\nsteps:\n  only: { run: { worker: broken } }\n";

#[tokio::test]
async fn everything_is_told_at_a_glance() {
    let world = World::new(&[ONE_STEP, WAITS, FAILS]).await;
    for flow in ["one", "one", "fails"] {
        let run_id = world.start(flow).await;
        world.ended(&run_id).await;
    }
    let waiting = world.start("waits").await;
    world.reaches(&waiting, RunStatus::Waiting).await;
    let (status, told) = world.get("/overview").await;
    assert_eq!(status, StatusCode::OK, "{told}");
    let runs = json!({ "held": 0, "running": 0, "waiting": 1, "completed": 2, "failed": 1, "cancelled": 0 });
    assert_eq!(told["runs"], runs);
    let minutes = told["minutes"].as_array().unwrap();
    let sum = |what: &str| minutes.iter().map(|minute| minute[what].as_u64().unwrap()).sum::<u64>();
    assert_eq!((minutes.len(), sum("started"), sum("completed"), sum("failed")), (60, 4, 2, 1));
    assert_eq!((&told["stuck_total"], &told["stuck"]), (&json!(0), &json!([])), "all are young");
    assert_eq!(told["failures"][0]["failure"]["message"], "it is broken");
    assert_eq!((&told["dead"], &told["store"]), (&json!(1), &json!("memory")));
    assert_eq!(
        (&told["deployments"], told["schedules"].as_array().unwrap().len()),
        (&json!([]), 0)
    );
    world.start("one").await;
    let (_, again) = world.get("/overview").await;
    assert_eq!(again, told, "within a second nothing is read again");
}
