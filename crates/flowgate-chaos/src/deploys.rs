//! Deployments of a flow under load, some with a fault, and a judge of what became of the messages.
//!
//! ```text
//!   lanes ──start, in order──▶ instance 1..n ──▶ proxy 1..n ──▶ store
//!                                  ▲    │ effects
//!   deployer ──deploy, kill, cut───┘    ▼
//!                                     sink
//! ```
//!
//! A message is a start whose key is the message's id. Each belongs to a lane, and the next of a
//! lane is sent when the one before is acknowledged, so the order of acceptance is known.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use flowgate_core::check::check_run;
use flowgate_core::deploy::Phase;
use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::flow::Flow;
use flowgate_core::ids::RunId;
use flowgate_engine::deployment_report;
use flowgate_store::{RunRow, Store};
use flowgate_testbed::Stopwatch;
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::cluster::{Cluster, Plan};
use crate::drive::wait_until_ended;
use crate::scenario::one_feed;
use crate::{judge as whole, report, server, sink};

mod flow;
mod judge;
mod load;
mod rounds;

pub(crate) use flow::register;

use flow::{FLOW, Quality};
use judge::{Entry, Left, Mark, Verdict, Window};
use load::{LANES, Load, Pace};
use rounds::{Deployer, Done, Round};

/// How long a lease lasts here.
const LEASE: Duration = Duration::from_secs(2);
/// How long a leader may be silent before another takes over.
const LEADER_LEASE: Duration = Duration::from_secs(1);
/// Instances on a server; on a file there is one.
const INSTANCES: usize = 3;
const SLOTS: usize = 32;
/// How long the runs may take to end when all messages are sent and all deployments over.
const END_WAIT_MAX: Duration = Duration::from_mins(1);
/// How often the deployer looks how far the messages are.
const LOOK: Duration = Duration::from_millis(5);
/// Violations that are printed.
const PRINTED_MAX: usize = 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Messages to send
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    messages: u32,
    /// Messages a second
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Deployments meanwhile
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=100))]
    deploys: u8,
    /// Instead, one deployment for each moment at which its driver can die
    #[arg(long, conflicts_with = "deploys")]
    boundaries: bool,
    /// The stores, one after another; all if absent
    #[arg(long, value_enum, value_delimiter = ',')]
    store: Vec<Where>,
    /// The seed of the rounds; drawn and printed if absent
    #[arg(long)]
    seed: Option<u64>,
    /// Print one JSON object a store
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Where {
    /// A file, and one instance
    Sqlite,
    Redis,
    Postgres,
}

impl Where {
    fn kind(self) -> server::Kind {
        match self {
            Self::Sqlite => server::Kind::Sqlite,
            Self::Redis => server::Kind::Redis,
            Self::Postgres => server::Kind::Postgres,
        }
    }

    fn instances(self) -> usize {
        match self {
            Self::Sqlite => 1,
            Self::Redis | Self::Postgres => INSTANCES,
        }
    }
}

/// How it went on one store.
#[derive(Debug, Serialize)]
struct Outcome {
    store: &'static str,
    seed: u64,
    messages: u32,
    rate: u32,
    passed: bool,
    rounds: Vec<Line>,
    took_ms: u128,
    problems: Vec<String>,
    #[serde(flatten)]
    verdict: Verdict,
}

/// How one deployment went.
#[derive(Debug, Serialize)]
struct Line {
    round: String,
    ended: &'static str,
    took_ms: u128,
    received: u64,
    held: u64,
    checkpointed: u64,
    at_fault: Option<&'static str>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    report::complain(&format!("seed {seed}"));
    let runtime = Runtime::new().context("starting the runtime")?;
    let all = <Where as clap::ValueEnum>::value_variants();
    let stores = if args.store.is_empty() { all } else { &args.store };
    let mut has_passed = true;
    for place in stores {
        let folder = tempfile::Builder::new().prefix("flowgate-deploys-").tempdir();
        let folder = folder.context("making a folder")?;
        let outcome = on_store(args, *place, seed, folder.path(), &runtime);
        let outcome = outcome.with_context(|| {
            format!("{place:?}, seed {seed}: nothing was judged; see {}", folder.path().display())
        });
        let passed = match &outcome {
            Ok(outcome) => outcome.passed,
            Err(_) => false,
        };
        if !passed {
            let kept = folder.keep();
            report::complain(&format!(
                "look at {0}: `sent.json` is what clients were told, `feed.ndjson` what happened, \
                 `effects` what was done, `instance-*.log` what instances say (a second number is \
                 that of a restart); the same rounds again: --seed {seed}",
                kept.display()
            ));
        }
        print(args.json, &outcome?)?;
        has_passed &= passed;
    }
    Ok(if has_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Sends the messages and deploys meanwhile, on one store.
fn on_store(
    args: &Args,
    place: Where,
    seed: u64,
    folder: &Path,
    runtime: &Runtime,
) -> anyhow::Result<Outcome> {
    let watch = Stopwatch::start();
    let plan = Plan {
        kind: place.kind(),
        instances: place.instances(),
        lease: LEASE,
        leader_lease: LEADER_LEASE,
        subscriber_lease: None,
        slots: SLOTS,
        plant: None,
    };
    let cluster = Cluster::start(&plan, folder)?;
    let store = runtime.block_on(server::look_at(&cluster.setup.url))?;
    let deployer = Deployer { cluster: &cluster, store: &store, runtime };
    deployer.register()?;
    let load = Load::default();
    let rounds = if args.boundaries {
        Round::boundaries()
    } else {
        Round::plan(seed, usize::from(args.deploys))
    };
    let done = send_and_deploy(args, &deployer, &load, &rounds)?;
    let mut problems = Vec::new();
    let open = runtime.block_on(wait_until_ended(&*store, END_WAIT_MAX))?;
    if open > 0 {
        problems.push(format!("{open} runs did not end within {END_WAIT_MAX:?}"));
    }
    let mut sent = load.sent.into_inner();
    sent.sort_by_key(|sent| (sent.lane, sent.seq));
    let text = serde_json::to_string_pretty(&sent).expect("what was sent has a JSON form");
    std::fs::write(folder.join("sent.json"), text).context("writing what was sent")?;
    let mut left = Left { messages: args.messages as usize, sent, ..Left::default() };
    runtime.block_on(read_left(&store, &done, folder, &mut left, &mut problems))?;
    for one in &done {
        let (phase, round) = (one.deployment.phase, one.round.name());
        if phase != one.round.expected() {
            problems.push(format!("`{round}` ended as {phase}: {:?}", one.deployment.rollback));
        }
    }
    // One that came when its deployment had ended shows nothing; the table says so.
    let mut faults = done.iter().filter_map(|one| one.at_fault).peekable();
    if faults.peek().is_some() && faults.all(Phase::is_terminal) {
        problems.push("every fault came when its deployment had ended".to_owned());
    }
    let verdict = judge::judge(&left);
    let rounds: Vec<Line> =
        done.iter().zip(&left.deployments).map(|(one, window)| line(one, window)).collect();
    // A broken revision may be found between two messages; if most saw none, there was no load.
    let idle = rounds.iter().filter(|line| line.received == 0).count();
    if idle * 2 > rounds.len() {
        problems.push(format!(
            "{idle} deployments saw no message: they took too long, or send more --messages"
        ));
    }
    Ok(Outcome {
        store: place.kind().name(),
        seed,
        messages: args.messages,
        rate: args.rate,
        passed: problems.is_empty() && verdict.violations.is_empty(),
        rounds,
        took_ms: watch.elapsed().as_millis(),
        problems,
        verdict,
    })
}

/// Sends all messages, and meanwhile has one deployment after the other.
fn send_and_deploy(
    args: &Args,
    deployer: &Deployer<'_>,
    load: &Load,
    rounds: &[Round],
) -> anyhow::Result<Vec<Done>> {
    let messages = args.messages as usize;
    let interval = Duration::from_secs(1) / args.rate;
    let pace = Pace { messages, interval, watch: Stopwatch::start() };
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            let cluster = deployer.cluster;
            scope.spawn(move || load.send_lane(cluster, lane, pace));
        }
        let mut done = Vec::new();
        for (number, round) in rounds.iter().enumerate() {
            // Each is given its share of the messages, unless those before took longer. Some are
            // sent before the first and after the last.
            let from = messages * (2 * number + 1) / (2 * rounds.len() + 2);
            let began = Stopwatch::start();
            while load.acknowledged() < from && began.elapsed() < END_WAIT_MAX {
                std::thread::sleep(LOOK);
            }
            let one = deployer.deploy(number + 1, *round);
            let one = one.with_context(|| format!("deployment {} ({})", number + 1, round.name()));
            done.push(one?);
        }
        Ok(done)
    })
}

/// Reads what the judge needs, and has the log of each run checked.
async fn read_left(
    store: &Arc<dyn Store>,
    done: &[Done],
    folder: &Path,
    left: &mut Left,
    problems: &mut Vec<String>,
) -> anyhow::Result<()> {
    let mut rows = whole::all_runs(&**store).await?;
    rows.retain(|row| &*row.run.flow == FLOW && row.run.key.is_some());
    let mut logs: BTreeMap<RunId, Vec<StoredEvent>> = BTreeMap::new();
    let mut exported = Vec::new();
    for feed in 0..store.feeds() {
        let events = one_feed(&**store, feed).await?;
        left.feeds.push(events.iter().filter_map(entry_of).collect());
        for stored in &events {
            logs.entry(stored.run_id).or_default().push(stored.clone());
        }
        exported.extend(events);
    }
    whole::export(&folder.join("feed.ndjson"), &exported)?;
    problems.extend(check_logs(&rows, &logs, done));
    let run = |row: &RunRow| (row.run.run_id, row.run.key.clone(), row.run.status);
    left.runs = rows.iter().map(run).collect();
    for (key, count) in sink::read_file(&folder.join("effects"))? {
        let run_id = key.split('/').next().and_then(|run_id| run_id.parse().ok());
        *left.executions.entry(run_id.context("an effect names its run")?).or_default() += count;
    }
    for one in done {
        left.deployments.push(window_of(store, one).await?);
    }
    Ok(())
}

/// What is wrong with the log of a run, for all of them.
fn check_logs(
    rows: &[RunRow],
    logs: &BTreeMap<RunId, Vec<StoredEvent>>,
    done: &[Done],
) -> Vec<String> {
    let texts = (0..=done.len()).flat_map(|number| {
        [Quality::Good, Quality::Broken].map(|quality| flow::text(number, quality))
    });
    let flows: Vec<Flow> =
        texts.map(|text| Flow::parse(&text).expect("the flow is valid")).collect();
    let flows: Vec<&Flow> = flows.iter().collect();
    let check = |row: &RunRow| {
        let log = logs.get(&row.run.run_id).map(Vec::as_slice).unwrap_or_default();
        check_run(&flows, row.run.run_id, log, Some(&row.run))
    };
    rows.iter().flat_map(check).map(|violation| violation.to_string()).collect()
}

fn entry_of(stored: &StoredEvent) -> Option<Entry> {
    let StoredEvent { run_id, at, event, .. } = stored;
    let mark = if let Event::RunStarted(started) = event {
        // A smoke test has no key.
        if &*started.flow != FLOW || started.key.is_none() {
            return None;
        }
        if started.hold.is_some() { Mark::Held } else { Mark::Started }
    } else if matches!(event, Event::RunReleased { .. }) {
        Mark::Released
    } else {
        return None;
    };
    Some(Entry { run_id: *run_id, at: *at, mark })
}

async fn window_of(store: &Arc<dyn Store>, done: &Done) -> anyhow::Result<Window> {
    let deployment = &done.deployment;
    let report = deployment_report(&**store, deployment).await.context("reading a report")?;
    let is_resumed = |phase| matches!(phase, Phase::Resume | Phase::RollingBack);
    let resumed = deployment.phases.iter().find(|entered| is_resumed(entered.phase));
    let conservation = report.conservation.context("a report has its sum")?;
    Ok(Window {
        name: format!("deployment {} ({})", deployment.deployment_id, done.round.name()),
        began_at: deployment.began_at,
        resumed_at: resumed.map_or(deployment.began_at, |entered| entered.at),
        ended_at: report.ended_at.context("the deployment has ended")?,
        received: conservation.received,
        held: report.counts.held,
        released: report.counts.released,
        is_conserved: conservation.holds(),
    })
}

fn line(done: &Done, window: &Window) -> Line {
    Line {
        round: done.round.name(),
        ended: done.deployment.phase.as_str(),
        took_ms: window.ended_at.since(window.began_at).as_millis(),
        received: window.received,
        held: window.held,
        checkpointed: done.deployment.counts.checkpointed,
        at_fault: done.at_fault.map(Phase::as_str),
    }
}

fn print(as_json: bool, outcome: &Outcome) -> anyhow::Result<()> {
    if as_json {
        return report::say(&serde_json::to_string(outcome).expect("an outcome has a JSON form"));
    }
    let v = &outcome.verdict;
    let hold_max = v.hold_ms.iter().max().copied().unwrap_or(0);
    let lines = [
        format!("store                {} (seed {})", outcome.store, outcome.seed),
        format!("acknowledged         {} of {}", v.acknowledged, outcome.messages),
        format!("lost                 {}", v.lost),
        format!("doubled              {}", v.doubled),
        format!("effects              {} of {} executions", v.effects, v.executions),
        format!("order broken         {}", v.order_broken),
        format!(
            "held                 {}, empty {hold_max} ms after a resume at the latest",
            v.held
        ),
        format!(
            "acceptance           p99 {} ms, longest {} ms; p99 {} ms behind {}/s",
            v.acceptance_p99_ms, v.acceptance_max_ms, v.late_p99_ms, outcome.rate
        ),
        format!("reports wrong        {}", v.reports_wrong),
        format!("took                 {} ms", outcome.took_ms),
    ];
    for line in &lines {
        report::say(line)?;
    }
    for (line, hold_ms) in outcome.rounds.iter().zip(&v.hold_ms) {
        let fault = line.at_fault.map(|phase| format!("; the fault in {phase}"));
        report::say(&format!(
            "  {:<24} {:<11} {:>5} ms, {:>4} received, {:>4} held for {hold_ms} ms after, {} checkpointed{}",
            line.round,
            line.ended,
            line.took_ms,
            line.received,
            line.held,
            line.checkpointed,
            fault.unwrap_or_default()
        ))?;
    }
    for problem in v.violations.iter().chain(&outcome.problems).take(PRINTED_MAX) {
        report::say(&format!("  {problem}"))?;
    }
    report::say(if outcome.passed { "passed" } else { "FAILED" })
}
