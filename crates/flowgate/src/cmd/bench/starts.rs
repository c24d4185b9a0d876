//! How many runs a second an instance accepts, asked in its own process.
//!
//! The instance is the one of `flowgate worker start`, so that the API of such a worker can be
//! compared with it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::payload::Payload;
use flowgate_engine::{Engine, EngineError, StartRequest};
use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::measure::{as_f64, percentile_ms};
use crate::cmd::App;
use crate::config::Role;
use crate::failure::{Exit, Failure};
use crate::flow_files;
use crate::instance::{Instance, Work, failure};

#[derive(Debug, Serialize)]
pub(super) struct StartFigure {
    starts_per_s: f64,
    p99_ms: f64,
}

/// Lets `callers` start runs of the flow in `file`, one after another each, for as long as `span`.
pub(super) async fn measure(
    app: &App,
    file: &Path,
    span: Duration,
    callers: usize,
) -> Result<StartFigure, Failure> {
    let loaded = flow_files::load(file).map_err(|error| error.into_failure(file))?;
    let instance = Instance::open(app, Work::As(Role::All)).await?;
    instance.register(&loaded).await?;
    let flow: Arc<str> = Arc::clone(&loaded.flow.name);
    let began = Instant::now();
    let mut starters = JoinSet::new();
    for _ in 0..callers {
        let (engine, flow) = (instance.engine().clone(), Arc::clone(&flow));
        starters.spawn(async move { start_until(&engine, &flow, began + span).await });
    }
    let mut latencies = Vec::new();
    while let Some(started) = starters.join_next().await {
        let started = started.map_err(|error| {
            Failure::new(Exit::RunFailed, "bench_failed", "a starter panicked").source(error)
        })?;
        latencies.extend(started.map_err(failure)?);
    }
    let elapsed = began.elapsed();
    instance.shutdown().await;
    latencies.sort_unstable();
    Ok(StartFigure {
        starts_per_s: as_f64(latencies.len()) / elapsed.as_secs_f64(),
        p99_ms: percentile_ms(&latencies, 99),
    })
}

async fn start_until(
    engine: &Engine,
    flow: &str,
    end: Instant,
) -> Result<Vec<Duration>, EngineError> {
    let input = Payload::of(&json!({ "orderId": 7 })).expect("the input is small");
    let mut latencies = Vec::new();
    while Instant::now() < end {
        let asked = Instant::now();
        engine.start_run(flow, StartRequest::new(input.clone())).await?;
        latencies.push(asked.elapsed());
    }
    Ok(latencies)
}
