//! Schedules are due every second while whoever leads is killed, paused and cut off.
//!
//! The driver finds the leader in the store's history of terms, harms it, and waits for the next
//! term. At the end it compares the due times, which it computes itself, with the ledger, and the
//! ledger with the runs.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use flowgate_core::flow::Flow;
use flowgate_core::ids::RunId;
use flowgate_core::schedule::{Fate, Occurrence, Schedule};
use flowgate_core::time::Timestamp;
use flowgate_engine::{Engine, EngineConfig, Workers, instance_id, read_ledger};
use flowgate_store::control::Term;
use flowgate_store::{Queues, RunCursor, RunQuery, Store};
use flowgate_testbed::Stopwatch;
use serde::Serialize;
use tokio::runtime::Runtime;

use super::{Args, END_WAIT_MAX, LEASE, STOP_WAIT_MAX};
use crate::cluster::{Cluster, Plan};
use crate::drive::wait_until_ended;
use crate::{report, server};

/// How long a leader may be silent before another takes over.
const LEADER_LEASE: Duration = Duration::from_secs(2);
/// How much longer than the lease a failover may take.
const FAILOVER_SLACK: Duration = Duration::from_secs(2);
/// How long a failover may take when the leader stops by itself.
const HANDOVER_MAX: Duration = Duration::from_secs(1);
/// How long the next term is waited for at all.
const TERM_WAIT_MAX: Duration = Duration::from_secs(30);
/// Clean stops, besides the faults.
const STOPS: usize = 2;

const FLOW: &str = "
flow: tick
steps: { done: {} }
schedules:
  all: { every: 1s, catch_up: all }
  latest: { cron: \"* * * * * *\", zone: Europe/Berlin, catch_up: latest, overlap: skip }
  skip: { every: 1s, catch_up: skip, overlap: queue_one, jitter: 300ms }
";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Harm {
    /// SIGKILL.
    Kill,
    /// SIGSTOP for longer than the lease.
    Pause,
    /// Its connections are closed, and new ones as soon as they are made.
    Cut,
    /// Nothing reaches it, and it is not told.
    Silence,
    /// It is asked to end.
    Stop,
}

#[derive(Debug, Default, Serialize)]
struct Outcome {
    scenario: &'static str,
    store: &'static str,
    passed: bool,
    /// How long each failover took, in milliseconds.
    failovers: Vec<(Harm, u64)>,
    terms: usize,
    occurrences: usize,
    runs: usize,
    fates: BTreeMap<&'static str, usize>,
    problems: Vec<String>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let folder = tempfile::Builder::new().prefix("flowgate-scenario-").tempdir();
    let folder = folder.context("making a folder")?;
    let runtime = Runtime::new().context("starting the runtime")?;
    let plan = Plan {
        kind: args.store,
        instances: 3,
        lease: LEASE,
        leader_lease: LEADER_LEASE,
        subscriber_lease: None,
        slots: 32,
        plant: None,
    };
    let cluster = Cluster::start(&plan, folder.path())?;
    let store = runtime.block_on(server::open(&cluster.setup.url))?;
    let client = runtime.block_on(client(&store))?;
    let mut outcome =
        Outcome { scenario: "Leader", store: args.store.name(), ..Outcome::default() };
    let watch = Stopwatch::start();
    let driver = Driver { cluster: &cluster, store: &store, runtime: &runtime };
    for harm in plan_of(args) {
        let failover = driver.harm(harm)?;
        outcome.failovers.push((harm, u64::try_from(failover.as_millis())?));
    }
    std::thread::sleep(Duration::from_secs(args.seconds).saturating_sub(watch.elapsed()));
    runtime.block_on(judge(&store, &client, &mut outcome))?;
    judge_failovers(&mut outcome);
    outcome.passed = outcome.problems.is_empty();
    runtime.block_on(client.shutdown());
    print(args, &outcome)?;
    if !outcome.passed {
        report::complain(&format!("logs are kept in {}", folder.keep().display()));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// An engine that executes nothing, which the flow and its schedules are registered by.
async fn client(store: &Arc<dyn Store>) -> anyhow::Result<Engine> {
    let config =
        EngineConfig { queues: Queues::Only(Vec::new()), ..EngineConfig::new(instance_id()) };
    let client = Engine::start(Arc::clone(store), Workers::new(), config)?;
    let flow = Flow::parse(FLOW).expect("the flow is valid");
    client.register(&flow, None).await.context("registering the flow")?;
    Ok(client)
}

/// The faults in their order: each kind in turn, and clean stops between them.
fn plan_of(args: &Args) -> Vec<Harm> {
    let kinds = [Harm::Kill, Harm::Pause, Harm::Cut, Harm::Silence];
    let kinds = if args.store.takes_proxy() { &kinds[..] } else { &kinds[..2] };
    let mut plan: Vec<Harm> = kinds.iter().copied().cycle().take(args.faults).collect();
    for stop in 0..STOPS {
        let at = plan.len() * (stop + 1) / (STOPS + 1);
        plan.insert(at, Harm::Stop);
    }
    plan
}

struct Driver<'a> {
    cluster: &'a Cluster,
    store: &'a Arc<dyn Store>,
    runtime: &'a Runtime,
}

impl Driver<'_> {
    /// Harms whoever leads; how long it took until another did.
    fn harm(&self, harm: Harm) -> anyhow::Result<Duration> {
        let (place, term) = self.leader()?;
        let instance = self.cluster.instance(place);
        let proxy = self.cluster.proxy(place);
        let began = self.runtime.block_on(self.store.now())?;
        match harm {
            Harm::Kill => {
                instance.kill()?;
            }
            Harm::Pause => instance.signal("-STOP")?,
            Harm::Cut => proxy.context("there is no proxy")?.cut(),
            Harm::Silence => proxy.context("there is no proxy")?.half_open(),
            Harm::Stop => instance.stop(STOP_WAIT_MAX)?,
        }
        let next = self.next_after(&term)?;
        let term = self.ended(&term)?;
        // It is let go while the next one leads, and must do no harm.
        match harm {
            Harm::Kill | Harm::Stop => {
                self.cluster.replace(place)?;
                self.cluster.instance(place).wait_until_up()?;
            }
            Harm::Pause => instance.signal("-CONT")?,
            Harm::Cut | Harm::Silence => proxy.context("there is no proxy")?.pass(),
        }
        let since = match harm {
            Harm::Stop => term.released_at.unwrap_or(began),
            Harm::Kill | Harm::Pause | Harm::Cut | Harm::Silence => began,
        };
        Ok(next.began_at.since(since))
    }

    /// A term as it is after its end.
    fn ended(&self, term: &Term) -> anyhow::Result<Term> {
        let terms = self.runtime.block_on(self.store.past_terms("leader", 100))?;
        let ended = terms.into_iter().find(|other| other.term.number == term.term.number);
        ended.context("a term is gone from the history")
    }

    /// The place of whoever leads, and its term.
    fn leader(&self) -> anyhow::Result<(usize, Term)> {
        let watch = Stopwatch::start();
        while watch.elapsed() < TERM_WAIT_MAX {
            let now = self.runtime.block_on(self.store.now())?;
            let terms = self.runtime.block_on(self.store.past_terms("leader", 1))?;
            if let Some(term) = terms.into_iter().next().filter(|term| term.is_held(now)) {
                let holder = term.holder.rsplit_once('/').map_or("", |(name, _)| name);
                let place = (0..self.cluster.len()).find(|place| {
                    let said = self.cluster.instance(*place).said();
                    !said.is_gone && said.name.as_deref() == Some(holder)
                });
                if let Some(place) = place {
                    return Ok((place, term));
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("nobody leads for {TERM_WAIT_MAX:?}")
    }

    /// Waits for a later term than this one.
    fn next_after(&self, term: &Term) -> anyhow::Result<Term> {
        let watch = Stopwatch::start();
        while watch.elapsed() < TERM_WAIT_MAX {
            let terms = self.runtime.block_on(self.store.past_terms("leader", 1))?;
            if let Some(next) = terms.into_iter().next()
                && next.term.number > term.term.number
            {
                return Ok(next);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("nobody took over within {TERM_WAIT_MAX:?}")
    }
}

/// Compares due times, ledger and runs.
async fn judge(
    store: &Arc<dyn Store>,
    client: &Engine,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let names = ["tick/all", "tick/latest", "tick/skip"];
    let watch = Stopwatch::start();
    for name in names {
        client.pause_schedule(name, true).await?;
        loop {
            let record = client.schedule(name).await?.record;
            if record.pending.is_empty() && record.queued.is_none() {
                break;
            }
            if watch.elapsed() > END_WAIT_MAX {
                outcome.problems.push(format!("{name} is not settled: {record:?}"));
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    if wait_until_ended(&**store, END_WAIT_MAX).await? > 0 {
        outcome.problems.push("not every run ended".to_owned());
    }
    let runs = runs(store).await?;
    outcome.runs = runs.len();
    let mut started = BTreeSet::new();
    for name in names {
        judge_schedule(store, client, name, &mut started, outcome).await?;
    }
    for run_id in runs.difference(&started) {
        outcome.problems.push(format!("the ledger does not know of the run {run_id}"));
    }
    for run_id in started.difference(&runs) {
        outcome.problems.push(format!("the run {run_id} of the ledger is not there"));
    }
    let mut terms = store.past_terms("leader", 1_000).await?;
    terms.reverse();
    outcome.terms = terms.len();
    for pair in terms.windows(2) {
        let end = pair[0].released_at.unwrap_or(pair[0].expires_at);
        if pair[1].term.number != pair[0].term.number + 1 || pair[1].began_at < end {
            outcome.problems.push(format!("terms overlap: {:?} {:?}", pair[0], pair[1]));
        }
    }
    Ok(())
}

async fn judge_schedule(
    store: &Arc<dyn Store>,
    client: &Engine,
    name: &str,
    started: &mut BTreeSet<RunId>,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    // A paused schedule goes on writing down what it skips, so the mark and the ledger are read
    // again until nothing came between.
    let (record, rows) = loop {
        let before = client.schedule(name).await?.record;
        let rows: Vec<Occurrence> = read_ledger(&**store, name, None, 100_000).await?;
        let record = client.schedule(name).await?.record;
        if before.fired_through == record.fired_through {
            break (record, rows);
        }
    };
    let schedule = Schedule::new(&record.spec.file).expect("the schedule is valid");
    let expected: BTreeSet<Timestamp> =
        schedule.between(record.added_at, record.fired_through, 100_000).into_iter().collect();
    let found: BTreeSet<Timestamp> = rows
        .iter()
        .flat_map(|row| match row.through {
            None => vec![row.due_at],
            Some(through) => {
                let before = Timestamp(row.due_at.0 - 1);
                schedule.between(before, through, 100_000)
            }
        })
        .collect();
    outcome.occurrences += expected.len();
    for due_at in expected.difference(&found) {
        outcome.problems.push(format!("{name} at {due_at} has no fate"));
    }
    for due_at in found.difference(&expected) {
        outcome.problems.push(format!("{name} at {due_at} was never due"));
    }
    for row in &rows {
        *outcome.fates.entry(row.fate.as_str()).or_default() += 1;
        if row.fate.has_run() {
            let run_id = RunId::of_occurrence(name, row.due_at);
            if row.run_id != Some(run_id) {
                outcome.problems.push(format!("{name} at {} has another run", row.due_at));
            }
            started.insert(run_id);
        }
        if matches!(row.fate, Fate::Failed | Fate::Queued) {
            outcome.problems.push(format!("{name} at {}: {:?}", row.due_at, row));
        }
    }
    Ok(())
}

async fn runs(store: &Arc<dyn Store>) -> anyhow::Result<BTreeSet<RunId>> {
    let mut runs = BTreeSet::new();
    let mut query = RunQuery { flow: Some("tick".into()), limit: 1_000, ..RunQuery::default() };
    loop {
        let page = store.list_runs(&query).await?;
        runs.extend(page.iter().map(|row| row.run.run_id));
        let Some(last) = page.last() else { return Ok(runs) };
        query.after = Some(RunCursor { started_at: last.started_at, run_id: last.run.run_id });
    }
}

fn judge_failovers(outcome: &mut Outcome) {
    let lease = u64::try_from((LEADER_LEASE + FAILOVER_SLACK).as_millis()).unwrap_or(u64::MAX);
    let handover = u64::try_from(HANDOVER_MAX.as_millis()).unwrap_or(u64::MAX);
    for (harm, took) in outcome.failovers.clone() {
        let max = if harm == Harm::Stop { handover } else { lease };
        if took > max {
            outcome.problems.push(format!("a failover took {took} ms after {harm:?}"));
        }
    }
}

fn print(args: &Args, outcome: &Outcome) -> anyhow::Result<()> {
    if args.json {
        return report::say(&serde_json::to_string(outcome).expect("an outcome has a JSON form"));
    }
    let of = |wanted: &dyn Fn(Harm) -> bool| {
        let mut took: Vec<u64> = outcome
            .failovers
            .iter()
            .filter(|(harm, _)| wanted(*harm))
            .map(|(_, took)| *took)
            .collect();
        took.sort_unstable();
        match (took.get(took.len() / 2), took.last()) {
            (Some(median), Some(last)) => {
                format!("{}: median {median} ms, longest {last} ms", took.len())
            }
            _ => "none".to_owned(),
        }
    };
    let fates: Vec<String> =
        outcome.fates.iter().map(|(fate, count)| format!("{count} {fate}")).collect();
    let lines = [
        format!("scenario         {} on {}", outcome.scenario, outcome.store),
        format!("failovers        {}", of(&|harm| harm != Harm::Stop)),
        format!("after a stop     {}", of(&|harm| harm == Harm::Stop)),
        format!("terms            {}", outcome.terms),
        format!("occurrences      {}: {}", outcome.occurrences, fates.join(", ")),
        format!("runs             {}", outcome.runs),
    ];
    for line in lines.iter().chain(outcome.problems.iter().take(20)) {
        report::say(line)?;
    }
    report::say(if outcome.passed { "passed" } else { "FAILED" })
}
