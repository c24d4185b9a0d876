//! What must not grow: the cost of a step with the length of its run and with the history.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use flowgate_core::ids::RunId;
use flowgate_core::payload::Payload;
use flowgate_core::run::RunStatus;
use flowgate_engine::{HandlerError, StartRequest, StepContext, Workers};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::process::Command;

use super::measure::{Meter, as_f64, resident_mib_of};
use super::{IN_FLIGHT, Ratio, Rig, Scale, flows};

/// Events of a long run.
const EVENTS: u64 = 10_000;
/// Steps of the chain that a long run goes through.
const TAIL: usize = 100;
/// Measurements of each kind; the median counts.
const ROUNDS: usize = 3;

/// What a child process measured.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ChildFigure {
    steps_per_s: f64,
    resident_mib: f64,
}

pub(crate) fn register(workers: &mut Workers) {
    workers.register("fill", |input: u64, ctx: StepContext| async move {
        for _ in 0..input {
            ctx.emit("tick", &1)?;
        }
        Ok::<_, HandlerError>(())
    });
    for at in 0..TAIL {
        let next = (at + 1 < TAIL).then(|| format!("t{}", at + 1));
        workers.register(&format!("tail.{at}"), move |_: IgnoredAny, ctx: StepContext| {
            let next = next.clone();
            async move {
                if let Some(next) = &next {
                    ctx.emit(next, &1)?;
                }
                Ok::<_, HandlerError>(())
            }
        });
    }
}

/// How fast a run of 10,000 events goes on, as a share of the speed of a fresh one.
pub(crate) async fn long_run(folder: &Path, scale: &Scale) -> anyhow::Result<Ratio> {
    let rig = Rig::on_file(&folder.join("long.db")).await?;
    let chain = Arc::new(flows::CHAIN.flow());
    rig.engine.register(&chain, None).await?;
    let (mut fresh, mut long) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let short_ones = begin(&rig, scale.long_runs, 1).await?;
        let long_ones = begin(&rig, scale.long_runs, EVENTS).await?;
        // The file still has the many events to move out of its write-ahead log; other runs pay.
        rig.drive(&chain, scale.settling_runs, IN_FLIGHT).await?;
        fresh.push(tail_speed(&rig, &short_ones).await?);
        long.push(tail_speed(&rig, &long_ones).await?);
    }
    rig.engine.shutdown().await;
    let name = format!("a run with {EVENTS} events to a fresh one");
    Ok(Ratio::at_least(name, median(&mut long) / median(&mut fresh), 0.8))
}

/// Starts runs that have at least `events` events and then wait.
async fn begin(rig: &Rig, runs: usize, events: u64) -> anyhow::Result<Vec<RunId>> {
    let flow = long_flow();
    rig.engine.register(&flow, None).await?;
    let mut run_ids = Vec::new();
    for _ in 0..runs {
        let request = StartRequest::new(Payload::of(&events)?);
        run_ids.push(rig.engine.start_run(&flow, request).await?.run_id);
    }
    for run_id in &run_ids {
        loop {
            let detail = rig.store.read_run(*run_id).await?.context("the run is there")?;
            if detail.row.run.status == RunStatus::Waiting {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    Ok(run_ids)
}

/// Steps per second of runs that wait, from their signal to their end.
async fn tail_speed(rig: &Rig, run_ids: &[RunId]) -> anyhow::Result<f64> {
    let meter = Meter::start();
    for run_id in run_ids {
        rig.engine.signal(*run_id, "go", Payload::null()).await?;
    }
    for run_id in run_ids {
        rig.engine.wait(*run_id).await?;
    }
    Ok(meter.stop("sqlite", "tail", run_ids.len() * TAIL, Vec::new()).steps_per_s)
}

/// A step that emits as often as it is told, a wait, and a chain.
fn long_flow() -> flowgate_core::flow::Flow {
    let mut steps = json!({
        "fill": { "run": { "worker": "fill" }, "emits": ["tick"] },
        "gate": { "subscribes": ["step:fill"], "wait": { "signal": "go" }, "emits": ["t0"] },
    });
    for at in 0..TAIL {
        let mut step =
            json!({ "subscribes": [format!("t{at}")], "run": { "worker": format!("tail.{at}") } });
        if at + 1 < TAIL {
            step["emits"] = json!([format!("t{}", at + 1)]);
        }
        steps[format!("s{at}")] = step;
    }
    flows::flow("long", &steps)
}

/// Speed and memory with a long history, against an empty store, each in a process of its own.
pub(crate) async fn history(
    folder: &Path,
    scale: &Scale,
    quick: bool,
) -> anyhow::Result<[Ratio; 2]> {
    let full = folder.join("history.db");
    let rig = Rig::on_file(&full).await?;
    let flow = Arc::new(flows::SINGLE.flow());
    rig.engine.register(&flow, None).await?;
    rig.drive(&flow, scale.history_runs, 500).await?;
    rig.engine.shutdown().await;
    drop(rig);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let (mut memory_before, mut memory_after) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let empty = measure_child(&folder.join(format!("empty-{round}.db")), quick).await?;
        before.push(empty.steps_per_s);
        memory_before.push(empty.resident_mib);
        let file = folder.join(format!("history-{round}.db"));
        std::fs::copy(&full, &file).context("copying the history")?;
        let with_history = measure_child(&file, quick).await?;
        after.push(with_history.steps_per_s);
        memory_after.push(with_history.resident_mib);
    }
    let runs = scale.history_runs;
    let speed = median(&mut after) / median(&mut before);
    let memory = median(&mut memory_after) - median(&mut memory_before);
    Ok([
        Ratio::at_least(format!("speed with {runs} finished runs to none"), speed, 0.8),
        Ratio::at_most(format!("MiB that {runs} finished runs take"), memory, 64.0),
    ])
}

async fn measure_child(file: &Path, quick: bool) -> anyhow::Result<ChildFigure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("bench").arg("--child").arg(file);
    if quick {
        command.arg("--quick");
    }
    let output = command.output().await.context("starting a child to measure")?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "the child failed: {said}");
    serde_json::from_slice(&output.stdout).context("reading the child's figure")
}

/// Measures the chain on `file`, in this process.
pub(crate) async fn child(file: &Path, runs: usize) -> anyhow::Result<ChildFigure> {
    let rig = Rig::on_file(file).await?;
    let figure = rig.throughput(&flows::CHAIN, runs).await?;
    let resident_mib = resident_mib_of("self");
    rig.engine.shutdown().await;
    Ok(ChildFigure { steps_per_s: figure.steps_per_s, resident_mib })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(as_f64(0))
}
