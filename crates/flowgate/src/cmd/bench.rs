//! `bench`: how fast this machine runs flows, and how near that is to what its store can do.
//!
//! Absolute times say little on a shared machine, so every figure that is promised is a ratio of
//! two measurements of the same call.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::flow::Flow;
use flowgate_core::payload::Payload;
use flowgate_engine::{Engine, EngineConfig, StartRequest, Workers, instance_id};
use flowgate_store::Store;
use flowgate_store::memory::MemoryStore;
use flowgate_store::sqlite::{SqliteOptions, SqliteStore};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{Cell, Output, Table};

mod flows;
mod growth;
mod idle;
mod measure;
mod raw;

use measure::Meter;

/// Runs in flight in the throughput scenarios.
const IN_FLIGHT: usize = 200;

/// Measurements of the memory store; the median counts.
const MEMORY_ROUNDS: usize = 5;

/// Measure how fast flows run here: steps per second, latency, CPU per step.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  flowgate bench                       all stores and scenarios, about a minute
  flowgate bench --quick               a rough figure in a few seconds
  flowgate bench --on sqlite --json    one store, as one JSON object")]
pub(crate) struct Args {
    /// Measure this store only; may be repeated.
    #[arg(long = "on", value_name = "KIND", value_parser = ["memory", "sqlite"])]
    stores: Vec<String>,
    /// Fewer runs: rough figures in a few seconds.
    #[arg(long)]
    quick: bool,
    /// Fail (exit 1) if a promised ratio is missed.
    #[arg(long)]
    check: bool,
    /// Measure a file that is there already, in this process, and print one figure (internal).
    #[arg(long, hide = true, value_name = "FILE")]
    child: Option<std::path::PathBuf>,
}

/// One figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    store: String,
    scenario: String,
    steps_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    cpu_us_per_step: f64,
}

/// A promise about two figures of the same call.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Ratio {
    name: String,
    value: f64,
    promise: String,
    kept: bool,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    results: Vec<Figure>,
    raw: Vec<Figure>,
    ratios: Vec<Ratio>,
}

/// Measures and prints.
pub(crate) async fn run(app: App, args: Args) -> Outcome {
    let output = app.output;
    let failed = |error: anyhow::Error| {
        Failure::new(Exit::RunFailed, "bench_failed", "cannot measure").source(error)
    };
    if let Some(file) = &args.child {
        let figure = growth::child(file, args.scale().child_runs).await.map_err(failed)?;
        output.json_line(&figure)?;
        return Ok(Exit::Done);
    }
    output.note("measuring; other work on this machine changes the figures");
    let report = args.measure().await.map_err(failed)?;
    if output.json {
        output.json(&report)?;
    } else {
        print(output, &report)?;
    }
    let kept = report.ratios.iter().all(|ratio| ratio.kept);
    Ok(if kept || !args.check { Exit::Done } else { Exit::RunFailed })
}

impl Args {
    async fn measure(&self) -> anyhow::Result<Report> {
        let mut report = Report::default();
        if self.wants("memory") {
            self.measure_memory(&mut report).await?;
        }
        if self.wants("sqlite") {
            self.measure_sqlite(&mut report).await?;
        }
        add_store_ratio(&mut report);
        Ok(report)
    }

    fn wants(&self, store: &str) -> bool {
        self.stores.is_empty() || self.stores.iter().any(|name| name == store)
    }

    fn scale(&self) -> Scale {
        if self.quick { Scale::QUICK } else { Scale::FULL }
    }

    async fn measure_memory(&self, report: &mut Report) -> anyhow::Result<()> {
        for scenario in flows::ALL {
            let mut figures = Vec::new();
            // Every run stays in memory, so each round has a store of its own.
            for _ in 0..MEMORY_ROUNDS {
                let rig = Rig::new(Arc::new(MemoryStore::new()))?;
                figures.push(rig.throughput(scenario, self.scale().memory_runs).await?);
                rig.engine.shutdown().await;
            }
            figures.sort_by(|a, b| a.steps_per_s.total_cmp(&b.steps_per_s));
            report.results.push(figures.swap_remove(MEMORY_ROUNDS / 2));
        }
        let rig = Rig::new(Arc::new(MemoryStore::new()))?;
        report.results.push(rig.idle_chain(self.scale().idle_runs).await?);
        rig.engine.shutdown().await;
        Ok(())
    }

    async fn measure_sqlite(&self, report: &mut Report) -> anyhow::Result<()> {
        let scale = self.scale();
        let folder = tempfile::Builder::new().prefix("flowgate-bench-").tempdir()?;
        for scenario in flows::ALL {
            let file = folder.path().join(format!("{}.db", scenario.name));
            let rig = Rig::on_file(&file).await?;
            report.results.push(rig.throughput(scenario, scale.sqlite_runs).await?);
            let batch = rig.batch();
            rig.engine.shutdown().await;
            drop(rig);
            report.raw.push(raw::replay(&file, scenario, batch).await?);
        }
        let rig = Rig::on_file(&folder.path().join("idle.db")).await?;
        report.results.push(rig.idle_chain(scale.idle_runs).await?);
        rig.engine.shutdown().await;
        drop(rig);
        add_raw_ratio(report);
        report.ratios.push(growth::long_run(folder.path(), &scale).await?);
        report.ratios.extend(growth::history(folder.path(), &scale, self.quick).await?);
        report.ratios.extend(idle::dev(folder.path(), scale.idle).await?);
        Ok(())
    }
}

/// How much is measured.
pub(crate) struct Scale {
    memory_runs: usize,
    sqlite_runs: usize,
    idle_runs: usize,
    long_runs: usize,
    settling_runs: usize,
    history_runs: usize,
    child_runs: usize,
    idle: Duration,
}

impl Scale {
    const FULL: Self = Self {
        memory_runs: 20_000,
        sqlite_runs: 40_000,
        idle_runs: 300,
        long_runs: 20,
        settling_runs: 3_000,
        history_runs: 100_000,
        child_runs: 30_000,
        idle: Duration::from_secs(30),
    };
    const QUICK: Self = Self {
        memory_runs: 5_000,
        sqlite_runs: 4_000,
        idle_runs: 50,
        long_runs: 4,
        settling_runs: 500,
        history_runs: 10_000,
        child_runs: 4_000,
        idle: Duration::from_secs(2),
    };
}

/// An engine with the no-op handlers of the scenarios.
pub(crate) struct Rig {
    engine: Engine,
    store: Arc<dyn Store>,
    sqlite: Option<Arc<SqliteStore>>,
}

impl Rig {
    fn new(store: Arc<dyn Store>) -> anyhow::Result<Self> {
        let config = EngineConfig { slots: 1_024, ..EngineConfig::new(instance_id()) };
        let engine = Engine::start(Arc::clone(&store), workers(), config)?;
        Ok(Self { engine, store, sqlite: None })
    }

    async fn on_file(file: &std::path::Path) -> anyhow::Result<Self> {
        let options = SqliteOptions::new(instance_id());
        let sqlite = Arc::new(SqliteStore::open(file, options).await?);
        let mut rig = Self::new(Arc::clone(&sqlite) as Arc<dyn Store>)?;
        rig.sqlite = Some(sqlite);
        Ok(rig)
    }

    /// How many commits the file took in one transaction, on average.
    fn batch(&self) -> usize {
        let stats = self.sqlite.as_ref().map(|sqlite| sqlite.stats()).unwrap_or_default();
        usize::try_from(stats.commits / stats.transactions.max(1)).unwrap_or(1).max(1)
    }

    async fn throughput(&self, scenario: &flows::Scenario, runs: usize) -> anyhow::Result<Figure> {
        let flow = Arc::new(scenario.flow());
        self.engine.register(&flow, None).await?;
        // The first runs load the revision, grow the maps and warm the file's cache.
        self.drive(&flow, runs / 20, IN_FLIGHT).await?;
        let meter = Meter::start();
        let latencies = self.drive(&flow, runs, IN_FLIGHT).await?;
        Ok(meter.stop(self.store.kind(), scenario.name, runs * flow.steps.len(), latencies))
    }

    /// One chain at a time.
    async fn idle_chain(&self, runs: usize) -> anyhow::Result<Figure> {
        let flow = Arc::new(flows::CHAIN.flow());
        self.engine.register(&flow, None).await?;
        self.drive(&flow, 10, 1).await?;
        let meter = Meter::start();
        let latencies = self.drive(&flow, runs, 1).await?;
        Ok(meter.stop(self.store.kind(), "idle chain", runs * flow.steps.len(), latencies))
    }

    /// Starts `runs` runs, `in_flight` at a time, and waits for them; how long each took.
    pub(crate) async fn drive(
        &self,
        flow: &Arc<Flow>,
        runs: usize,
        in_flight: usize,
    ) -> anyhow::Result<Vec<Duration>> {
        let left = Arc::new(std::sync::atomic::AtomicUsize::new(runs));
        let mut drivers = JoinSet::new();
        for _ in 0..in_flight.min(runs) {
            let (engine, flow, left) = (self.engine.clone(), Arc::clone(flow), Arc::clone(&left));
            drivers.spawn(async move { drive_one_by_one(&engine, &flow, &left).await });
        }
        let mut latencies = Vec::with_capacity(runs);
        while let Some(driven) = drivers.join_next().await {
            latencies.extend(driven??);
        }
        Ok(latencies)
    }
}

async fn drive_one_by_one(
    engine: &Engine,
    flow: &Flow,
    left: &std::sync::atomic::AtomicUsize,
) -> anyhow::Result<Vec<Duration>> {
    use std::sync::atomic::Ordering;
    let mut latencies = Vec::new();
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
        let clock = tokio::time::Instant::now();
        let request = StartRequest::new(Payload::null());
        engine.run_to_end(flow, request).await?;
        latencies.push(clock.elapsed());
    }
    Ok(latencies)
}

fn workers() -> Workers {
    let mut workers = Workers::new();
    for scenario in flows::ALL {
        scenario.register(&mut workers);
    }
    growth::register(&mut workers);
    workers
}

fn figure<'a>(list: &'a [Figure], store: &str, scenario: &str) -> Option<&'a Figure> {
    list.iter().find(|figure| figure.store == store && figure.scenario == scenario)
}

fn add_raw_ratio(report: &mut Report) {
    for scenario in flows::ALL {
        let ours = figure(&report.results, "sqlite", scenario.name);
        let bare = figure(&report.raw, "sqlite", scenario.name);
        if let (Some(ours), Some(bare)) = (ours, bare) {
            let name = format!("sqlite {} of bare rusqlite", scenario.name);
            let ratio = Ratio::at_least(name, ours.steps_per_s / bare.steps_per_s, 0.35);
            report.ratios.push(ratio);
        }
    }
}

fn add_store_ratio(report: &mut Report) {
    let speed = |store| figure(&report.results, store, "chain").map(|figure| figure.steps_per_s);
    if let (Some(memory), Some(sqlite)) = (speed("memory"), speed("sqlite")) {
        let name = "memory chain to sqlite chain".to_owned();
        report.ratios.push(Ratio::at_least(name, memory / sqlite, 5.0));
    }
}

impl Ratio {
    fn at_least(name: String, value: f64, promise: f64) -> Self {
        Self { name, value, promise: format!("at least {promise}"), kept: value >= promise }
    }

    fn at_most(name: String, value: f64, promise: f64) -> Self {
        Self { name, value, promise: format!("at most {promise}"), kept: value <= promise }
    }
}

fn print(output: Output, report: &Report) -> Result<(), Failure> {
    let head = ["store", "scenario", "steps/s", "p50 ms", "p99 ms", "CPU µs/step"];
    let mut table = Table::new(&head);
    let ours = report.results.iter().map(|figure| (figure, figure.store.as_str()));
    let bare = report.raw.iter().map(|figure| (figure, "bare rusqlite"));
    for (figure, store) in ours.chain(bare) {
        table.row(vec![
            Cell::plain(store),
            Cell::plain(&figure.scenario),
            Cell::plain(format!("{:>8.0}", figure.steps_per_s)),
            Cell::plain(format!("{:>7.2}", figure.p50_ms)),
            Cell::plain(format!("{:>7.2}", figure.p99_ms)),
            Cell::plain(format!("{:>7.1}", figure.cpu_us_per_step)),
        ]);
    }
    table.print(output)?;
    output.line("")?;
    for Ratio { name, value, promise, kept } in &report.ratios {
        let mark = if *kept { "kept" } else { "MISSED" };
        output.line(format!("{name:<44} {value:>8.2}  ({promise}: {mark})"))?;
    }
    Ok(())
}
