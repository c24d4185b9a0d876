//! An order flow inside a Rust program: `cargo run -p flowgate --example embed`.

use std::error::Error;
use std::sync::Arc;

use flowgate::{
    Engine, EngineConfig, FlowBuilder, HandlerError, LogLevel, MemoryStore, Payload, StartRequest,
    StepBuilder, StepContext, Workers, instance_id,
};
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut workers = Workers::new();
    workers.register("charge", async |order: Value, step: StepContext| {
        step.log(LogLevel::Info, &format!("charging order {} once", order["orderId"]));
        step.emit("payment.done", &json!({ "cents": 4200 }))?;
        Ok::<_, HandlerError>(())
    });
    workers.register("ship", async |input: Value, _: StepContext| {
        Ok::<_, HandlerError>(json!({ "shipped for": input["payment.done"]["cents"] }))
    });
    let flow = FlowBuilder::new("order")
        .step(StepBuilder::new("charge").worker("charge").emits(["payment.done"]))
        .step(StepBuilder::new("ship").after_all(["payment.done"]).worker("ship"))
        .build()
        .map_err(|mut problems| problems.remove(0))?;

    let store = Arc::new(MemoryStore::new());
    let engine = Engine::start(store, workers, EngineConfig::new(instance_id()))?;
    engine.register(&flow, None).await?;
    let input = Payload::of(&json!({ "orderId": 7 }))?;
    let run = engine.run_to_end("order", StartRequest::new(input)).await?;
    assert_eq!(run.status.as_str(), "completed");
    engine.shutdown().await;
    Ok(())
}
