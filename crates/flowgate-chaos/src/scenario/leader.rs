//! Schedules are due every second while whoever leads is killed, paused and cut off.
//!
//! The leader is found in the store's history of terms and harmed, and the next term is waited for.
//! At the end the scenario compares the due times, which it computes itself, with the ledger, and the
//! ledger with the runs.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use flowgate_core::ids::RunId;
use flowgate_core::schedule::{Fate, Occurrence, Schedule};
use flowgate_core::time::Timestamp;
use flowgate_engine::{Engine, read_ledger};
use flowgate_store::{RunCursor, RunQuery, Store};
use flowgate_testbed::Stopwatch;
use serde::Serialize;
use tokio::runtime::Runtime;

use super::holder::{self, Harm, Holders};
use super::{Args, END_WAIT_MAX, LEASE};
use crate::cluster::{Cluster, Plan};
use crate::drive::wait_until_ended;
use crate::{report, server};

/// How long a leader may be silent before another takes over.
const LEADER_LEASE: Duration = Duration::from_secs(2);
/// How much longer than the lease a failover may take.
const FAILOVER_SLACK: Duration = Duration::from_secs(2);
/// How long a failover may take when the leader stops by itself.
const HANDOVER_MAX: Duration = Duration::from_secs(1);
/// Clean stops, besides the faults.
const STOPS: usize = 6;

const FLOW: &str = "
flow: tick
steps: { done: {} }
schedules:
  all: { every: 1s, catch_up: all }
  latest: { cron: \"* * * * * *\", zone: Europe/Berlin, catch_up: latest, overlap: skip }
  skip: { every: 1s, catch_up: skip, overlap: queue_one, jitter: 300ms }
";

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
    let client = runtime.block_on(holder::client(&store, FLOW))?;
    let mut outcome =
        Outcome { scenario: "Leader", store: args.store.name(), ..Outcome::default() };
    let watch = Stopwatch::start();
    let leaders = Holders { cluster: &cluster, store: &store, runtime: &runtime, term: "leader" };
    for harm in plan_of(args) {
        let failover = leaders.harm(harm, || Ok(()))?;
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

/// The faults in their order: each kind in turn, and clean stops between them.
fn plan_of(args: &Args) -> Vec<Harm> {
    let mut plan = Harm::faults(args);
    for stop in 0..STOPS {
        let at = plan.len() * (stop + 1) / (STOPS + 1);
        plan.insert(at, Harm::Stop);
    }
    plan
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
    outcome.terms = holder::judge_terms(store, "leader", &mut outcome.problems).await?;
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
