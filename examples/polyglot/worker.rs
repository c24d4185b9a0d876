//! The handler in Rust of the polyglot flow, in a program that shares the store of the server:
//! `cargo run -p flowgate --example polyglot -- redis://127.0.0.1:6379`.

use std::error::Error;
use std::time::Duration;

use flowgate::{
    Engine, EngineConfig, HandlerError, LogLevel, StepContext, Workers, instance_id, open_shared,
};
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("name the store, such as redis://127.0.0.1:6379")?;
    let mut workers = Workers::new();
    workers.register("decide", async |input: Value, step: StepContext| {
        let points = input["order.scored"]["points"].as_u64().unwrap_or_default();
        let cents = input["order.priced"]["cents"].as_u64().unwrap_or_default();
        // The work takes so long.
        let work = input["order.scored"]["workMs"].as_u64().unwrap_or_default();
        tokio::time::sleep(Duration::from_millis(work)).await;
        step.log(LogLevel::Info, &format!("{points} points, {cents} cents, key {}", step.key()));
        let accepted = points > 0 && cents > 0;
        step.emit("order.decided", &json!({ "accepted": accepted, "points": points }))?;
        Ok::<_, HandlerError>(accepted)
    });
    let store = open_shared(&url).await?;
    // A short lease, so that the step of a killed program is soon executed by another.
    let config = EngineConfig { lease: Duration::from_secs(3), ..EngineConfig::new(instance_id()) };
    let engine = Engine::start(store, workers, config)?;
    tokio::signal::ctrl_c().await?;
    engine.shutdown().await;
    Ok(())
}
