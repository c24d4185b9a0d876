//! A handler that ends its process each time: `cargo run -p flowgate --example abort -- abort.db`.
//!
//! Start it again until it says what became of the run: no step may end processes for ever.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use flowgate::{
    Engine, EngineConfig, FlowBuilder, HandlerError, Payload, SqliteOptions, SqliteStore,
    StartRequest, StepBuilder, StepContext, Workers, instance_id,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut workers = Workers::new();
    workers.register("abort", async |(): (), _: StepContext| -> Result<(), HandlerError> {
        std::process::abort()
    });
    let flow = FlowBuilder::new("abort")
        .step(StepBuilder::new("end").worker("abort"))
        .build()
        .map_err(|mut problems| problems.remove(0))?;

    let path = std::env::args_os().nth(1).ok_or("name a file for the store")?;
    let instance = instance_id();
    let store = Arc::new(SqliteStore::open(path, SqliteOptions::new(instance.clone())).await?);
    let lease = Duration::from_millis(100);
    let engine =
        Engine::start(store, workers, EngineConfig { lease, ..EngineConfig::new(instance) })?;
    engine.register(&flow, None).await?;
    let start = StartRequest { key: Some("once".into()), ..StartRequest::new(Payload::null()) };
    let started = engine.start_run("abort", start).await?;
    let ended = engine.wait(started.run_id).await?;
    engine.shutdown().await;
    assert_eq!(ended.row.run.status.as_str(), "failed");
    Ok(())
}
