//! Steps per second of one engine with handlers that do nothing.
//!
//! `cargo run --release -p flowgate-engine --example engine_bench -- [memory|sqlite] [seconds]`
#![expect(clippy::print_stdout, reason = "its output is what it is for")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flowgate_core::flow::Flow;
use flowgate_core::payload::Payload;
use flowgate_engine::{Engine, EngineConfig, HandlerError, StartRequest, StepContext, Workers};
use flowgate_store::{MemoryStore, SqliteOptions, SqliteStore, Store};
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::Instant;

/// Runs in flight at a time.
const RUNS: usize = 200;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let store = args.next().unwrap_or_else(|| "memory".to_owned());
    let seconds = args.next().map_or(Ok(3), |text| text.parse())?;
    let shapes = [("chain of 5", chain(5), 5), ("diamond", diamond(), 4), ("single", chain(1), 1)];
    for (name, file, steps) in shapes {
        let flow = Flow::new(serde_json::from_value(file)?)
            .map_err(|problems| anyhow::anyhow!("the flow is not valid: {problems:?}"))?;
        let folder = tempfile::tempdir()?;
        let store = open(&store, folder.path()).await?;
        measure(name, store, &flow, steps, Duration::from_secs(seconds)).await?;
    }
    Ok(())
}

async fn open(kind: &str, folder: &Path) -> anyhow::Result<Arc<dyn Store>> {
    match kind {
        "memory" => Ok(Arc::new(MemoryStore::new())),
        "sqlite" => {
            let options = SqliteOptions::new(flowgate_engine::instance_id());
            Ok(Arc::new(SqliteStore::open(folder.join("bench.db"), options).await?))
        }
        other => anyhow::bail!("there is no store `{other}` here; name `memory` or `sqlite`"),
    }
}

async fn measure(
    name: &str,
    store: Arc<dyn Store>,
    flow: &Flow,
    steps: u64,
    span: Duration,
) -> anyhow::Result<()> {
    let config = EngineConfig::new(flowgate_engine::instance_id());
    let engine = Engine::start(Arc::clone(&store), workers(), config)?;
    engine.register(flow, None).await?;
    let finished = Arc::new(AtomicU64::new(0));
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..RUNS {
        let (engine, flow, finished) = (engine.clone(), flow.clone(), Arc::clone(&finished));
        clients.spawn(async move {
            while began.elapsed() < span {
                engine.run_to_end(&flow, StartRequest::new(Payload::null())).await?;
                finished.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    let (elapsed, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    #[expect(clippy::cast_precision_loss, reason = "a bench counts less than 2^52")]
    let done = (finished.load(Ordering::Relaxed) * steps) as f64;
    println!(
        "{:<8} {name:<12} {:>9.0} steps/s  {:>6.2} µs CPU/step  idle run {:.0} µs",
        store.kind(),
        done / elapsed,
        cpu / done * 1e6,
        idle_run(&engine, flow).await?,
    );
    engine.shutdown().await;
    Ok(())
}

/// The median time of a run with nothing else going on, in microseconds.
async fn idle_run(engine: &Engine, flow: &Flow) -> anyhow::Result<f64> {
    let mut times = Vec::new();
    for _ in 0..200 {
        let began = Instant::now();
        engine.run_to_end(flow, StartRequest::new(Payload::null())).await?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2].as_secs_f64() * 1e6)
}

fn workers() -> Workers {
    let mut workers = Workers::new();
    workers.register("noop", |_: IgnoredAny, ctx: StepContext| async move {
        let next = match ctx.step() {
            "s0" => "e0",
            "s1" => "e1",
            "s2" => "e2",
            "s3" => "e3",
            "left" => "left.done",
            "right" => "right.done",
            _ => return Ok::<(), HandlerError>(()),
        };
        ctx.emit(next, &())?;
        Ok(())
    });
    workers
}

fn chain(length: usize) -> serde_json::Value {
    let mut steps = serde_json::Map::new();
    for at in 0..length {
        let mut step = json!({ "run": { "worker": "noop" } });
        if at > 0 {
            step["subscribes"] = json!([format!("e{}", at - 1)]);
        }
        if at + 1 < length {
            step["emits"] = json!([format!("e{at}")]);
        } else if length == 1 {
            step["emits"] = json!(["e0"]);
        }
        steps.insert(format!("s{at}"), step);
    }
    json!({ "flow": "bench", "steps": steps })
}

fn diamond() -> serde_json::Value {
    json!({ "flow": "bench", "steps": {
        "s0": { "run": { "worker": "noop" }, "emits": ["e0"] },
        "left": { "subscribes": ["e0"], "run": { "worker": "noop" }, "emits": ["left.done"] },
        "right": { "subscribes": ["e0"], "run": { "worker": "noop" }, "emits": ["right.done"] },
        "join": { "subscribes": ["left.done", "right.done"], "run": { "worker": "noop" } },
    } })
}

/// CPU time of this process so far.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name in brackets: the 12th and 13th field are ticks in user and system mode.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / 100.0
}
