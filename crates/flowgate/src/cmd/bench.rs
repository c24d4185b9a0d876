//! `bench`: how fast this machine runs flows, and how near that is to what its store can do.
//!
//! Absolute times say little on a shared machine, so every figure that is promised is a ratio of
//! two measurements of the same call.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use flowgate_store::memory::MemoryStore;
use serde::{Deserialize, Serialize};

use super::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{Cell, Output, Table};

mod bare;
mod flows;
mod gate;
mod growth;
mod idle;
mod measure;
mod peers;
mod raw;
mod rig;
mod rolling;
mod round_trips;
mod server;
mod shared;
mod starts;

use peers::Peer;
use rig::Rig;
use shared::Kind;

/// Runs in flight in the throughput scenarios.
const IN_FLIGHT: usize = 200;

/// Measurements of the memory store; the median counts.
const MEMORY_ROUNDS: usize = 5;

/// Measure how fast flows run here: steps per second, latency, CPU per step.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  flowgate bench                       the embedded stores, about a minute
  flowgate bench --quick               a rough figure in a few seconds
  flowgate bench --on sqlite --json    one store, as one JSON object
  flowgate bench --url redis://localhost:6379
                                       a shared store, in a data set that is removed afterwards")]
pub(crate) struct Args {
    /// Measure this store only; may be repeated.
    #[arg(long = "on", value_name = "KIND", value_parser = ["memory", "sqlite", "redis", "postgres"])]
    stores: Vec<String>,
    /// Measure the shared store at this URL (redis://… or postgres://…); may be repeated.
    #[arg(long = "url", value_name = "URL", value_parser = shared_url)]
    urls: Vec<String>,
    /// Where `--on redis` finds its server.
    #[arg(long, hide = true, env = "FLOWGATE_TEST_REDIS", hide_env_values = true)]
    redis: Option<String>,
    /// Where `--on postgres` finds its server.
    #[arg(long, hide = true, env = "FLOWGATE_TEST_POSTGRES", hide_env_values = true)]
    postgres: Option<String>,
    /// Compare with these peers, as their programs printed them, one a line (internal).
    #[arg(long, hide = true, value_name = "FILE")]
    peers: Option<PathBuf>,
    /// Fewer runs: rough figures in a few seconds.
    #[arg(long)]
    quick: bool,
    /// Fail (exit 1) if a promised ratio is missed.
    #[arg(long)]
    check: bool,
    /// Measure a file that is there already, in this process, and print one figure (internal).
    #[arg(long, hide = true, value_name = "FILE")]
    child: Option<PathBuf>,
    /// Do no more than this on the one shared store that is named (internal).
    #[arg(long, hide = true)]
    part: Option<Part>,
    /// Start runs of the flow in this file, with the settings of a worker (internal).
    #[arg(long, hide = true, value_name = "FILE")]
    starts: Option<PathBuf>,
    /// How long to start runs (internal).
    #[arg(long, hide = true, default_value_t = 5, value_name = "N")]
    seconds: u64,
    /// How many start runs at a time (internal).
    #[arg(long, hide = true, default_value_t = 64, value_name = "N")]
    callers: usize,
    /// Serve a handler that does nothing at this address, to compare with (internal).
    #[arg(long, hide = true, value_name = "ADDR")]
    bare: Option<std::net::SocketAddr>,
}

/// What is done between the turns of others.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Part {
    /// Measure one chain, and print one figure.
    Turn,
    /// Wait until the server has no work of its own.
    Rest,
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
    /// What the server used, if it runs on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server_cpu_us_per_step: Option<f64>,
    /// Calls of the store to its server, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    round_trips_per_step: Option<f64>,
}

/// Two figures of the same call, and what is promised about them.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Ratio {
    name: String,
    value: f64,
    /// Nothing where it is only worth knowing.
    #[serde(skip_serializing_if = "Option::is_none")]
    promise: Option<String>,
    kept: bool,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    results: Vec<Figure>,
    raw: Vec<Figure>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    peers: Vec<Peer>,
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
    if let Some(part) = args.part {
        let (kind, url) = args.one_shared().map_err(failed)?;
        match part {
            Part::Turn => {
                let figure = shared::turn(kind, url, &args.scale()).await.map_err(failed)?;
                output.json_line(&figure)?;
            }
            Part::Rest => shared::rest(kind, url, &args.scale()).await.map_err(failed)?,
        }
        return Ok(Exit::Done);
    }
    if let Some(file) = &args.starts {
        let span = Duration::from_secs(args.seconds);
        output.json_line(&starts::measure(&app, file, span, args.callers).await?)?;
        return Ok(Exit::Done);
    }
    if let Some(address) = args.bare {
        bare::serve(address).map_err(failed)?;
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
        let shared = self.shared()?;
        if !shared.is_empty() {
            round_trips::listen().context("counting round trips")?;
        }
        for (kind, url) in shared {
            shared::measure(kind, url, &self.scale(), &mut report)
                .await
                .with_context(|| format!("measuring {}", kind.name()))?;
        }
        if let Some(file) = &self.peers {
            report.peers = peers::read(file)?;
            peers::add_ratios(&mut report);
        }
        Ok(report)
    }

    fn one_shared(&self) -> anyhow::Result<(Kind, &str)> {
        match self.shared()?[..] {
            [one] => Ok(one),
            _ => bail!("name one shared store"),
        }
    }

    /// Whether an embedded store is to be measured: all are, unless something is named.
    fn wants(&self, store: &str) -> bool {
        let names_nothing = self.stores.is_empty() && self.urls.is_empty();
        names_nothing || self.stores.iter().any(|name| name == store)
    }

    /// The shared stores to measure, and where they are.
    fn shared(&self) -> anyhow::Result<Vec<(Kind, &str)>> {
        let mut shared = Vec::new();
        for kind in Kind::ALL {
            let mut urls: Vec<&str> = self.urls.iter().map(String::as_str).collect();
            urls.retain(|url| Kind::of(url) == Some(kind));
            if urls.is_empty() && self.stores.iter().any(|name| name == kind.name()) {
                let server = match kind {
                    Kind::Redis => self.redis.as_deref(),
                    Kind::Postgres => self.postgres.as_deref(),
                };
                let missing = || format!("--on {} needs a server: name it by --url", kind.name());
                urls.push(server.with_context(missing)?);
            }
            shared.extend(urls.into_iter().map(|url| (kind, url)));
        }
        Ok(shared)
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
            report.results.push(shared::median(figures));
        }
        let rig = Rig::new(Arc::new(MemoryStore::new()))?;
        report.results.push(rig.idle_chain(self.scale().idle_runs, None).await?);
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
            report.raw.push(raw::sqlite::replay(&file, scenario, batch).await?);
        }
        let rig = Rig::on_file(&folder.path().join("idle.db")).await?;
        report.results.push(rig.idle_chain(scale.idle_runs, None).await?);
        // What measures the gate leaves many open runs, and so comes last.
        let rolled = rolling::measure(&rig, scale.rolling_rounds, async || Ok(())).await;
        let gated = gate::measure(&*rig.store).await?;
        rig.engine.shutdown().await;
        drop(rig);
        add_raw_ratio(report);
        report.ratios.extend([gated, rolled.context("measuring deployments")?]);
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
    redis_runs: usize,
    postgres_runs: usize,
    shared_rounds: usize,
    rolling_rounds: usize,
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
        redis_runs: 10_000,
        postgres_runs: 10_000,
        shared_rounds: 7,
        rolling_rounds: 15,
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
        redis_runs: 5_000,
        postgres_runs: 3_000,
        shared_rounds: 3,
        rolling_rounds: 7,
    };
}

fn figure<'a>(list: &'a [Figure], store: &str, scenario: &str) -> Option<&'a Figure> {
    list.iter().find(|figure| figure.store == store && figure.scenario == scenario)
}

fn add_raw_ratio(report: &mut Report) {
    for scenario in flows::ALL {
        let ours = figure(&report.results, "sqlite", scenario.name);
        let bare = figure(&report.raw, "bare rusqlite", scenario.name);
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
        let kept = value >= promise;
        Self { name, value, promise: Some(format!("at least {promise}")), kept }
    }

    /// One that nothing is promised about, and that is worth knowing.
    fn told(name: String, value: f64) -> Self {
        Self { name, value, promise: None, kept: true }
    }

    fn at_most(name: String, value: f64, promise: f64) -> Self {
        let kept = value <= promise;
        Self { name, value, promise: Some(format!("at most {promise}")), kept }
    }
}

/// What can be measured by URL.
fn shared_url(text: &str) -> Result<String, String> {
    match Kind::of(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("only redis:// and postgres:// can be measured by URL".to_owned()),
    }
}

fn print(output: Output, report: &Report) -> Result<(), Failure> {
    let head = [
        "store",
        "scenario",
        "steps/s",
        "p50 ms",
        "p99 ms",
        "CPU µs/step",
        "server µs/step",
        "trips/step",
    ];
    let mut table = Table::new(&head);
    let optional = |value: Option<f64>, digits: usize| match value {
        Some(value) => Cell::plain(format!("{value:>7.digits$}")),
        None => Cell::plain(""),
    };
    for figure in report.results.iter().chain(&report.raw) {
        table.row(vec![
            Cell::plain(&figure.store),
            Cell::plain(&figure.scenario),
            Cell::plain(format!("{:>8.0}", figure.steps_per_s)),
            Cell::plain(format!("{:>7.2}", figure.p50_ms)),
            Cell::plain(format!("{:>7.2}", figure.p99_ms)),
            Cell::plain(format!("{:>7.1}", figure.cpu_us_per_step)),
            optional(figure.server_cpu_us_per_step, 1),
            optional(figure.round_trips_per_step, 2),
        ]);
    }
    table.print(output)?;
    output.line("")?;
    if !report.peers.is_empty() {
        peers::table(&report.peers).print(output)?;
        output.line("")?;
    }
    for Ratio { name, value, promise, kept } in &report.ratios {
        let promise = match (promise, kept) {
            (Some(promise), true) => format!("{promise}: kept"),
            (Some(promise), false) => format!("{promise}: MISSED"),
            (None, _) => "no promise".to_owned(),
        };
        output.line(format!("{name:<52} {value:>8.2}  ({promise})"))?;
    }
    Ok(())
}
