//! A projection that three instances share, while whichever has it is killed, paused and cut off.
//!
//! The active one is found in the store's history of terms and harmed, and the next term is waited
//! for. At the end the state that is kept must be the fold of the feed, byte for byte, and
//! nobody may have written a checkpoint after the end of its term.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use flowgate_core::ids::Position;
use flowgate_core::payload::Payload;
use flowgate_engine::subscriber::{SubscriberAdmin, read_projection};
use flowgate_engine::{Engine, StartRequest};
use flowgate_store::Store;
use flowgate_testbed::Stopwatch;
use serde::Serialize;
use tokio::runtime::Runtime;

use super::holder::{self, Harm, Holders};
use super::{Args, END_WAIT_MAX, LEASE};
use crate::cluster::{Cluster, Plan};
use crate::drive::wait_until_ended;
use crate::tally::{self, Tally};
use crate::{report, server};

/// How long the active one may be silent before another takes over.
const SUBSCRIBER_LEASE: Duration = Duration::from_secs(2);
/// How much longer than the lease that may take.
const FAILOVER_SLACK: Duration = Duration::from_secs(1);
/// Runs between two faults.
const RUNS: usize = 20;

const FLOW: &str = "
flow: tallied
steps:
  one: {}
  two: { subscribes: [\"step:one\"] }
";

#[derive(Debug, Default, Serialize)]
struct Outcome {
    scenario: &'static str,
    store: &'static str,
    passed: bool,
    /// How long each take-over took, in milliseconds.
    failovers: Vec<(Harm, u64)>,
    terms: usize,
    events: u64,
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
        leader_lease: LEASE,
        subscriber_lease: Some(SUBSCRIBER_LEASE),
        slots: 32,
        plant: None,
    };
    let cluster = Cluster::start(&plan, folder.path())?;
    let store = runtime.block_on(server::open(&cluster.setup.url))?;
    let client = runtime.block_on(holder::client(&store, FLOW))?;
    let store_name = args.store.name();
    let mut outcome = Outcome { scenario: "Subscriber", store: store_name, ..Outcome::default() };
    let term = format!("subscriber/{}/0", tally::ID);
    let active = Holders { cluster: &cluster, store: &store, runtime: &runtime, term: &term };
    let start_runs = || runtime.block_on(start_runs(&client));
    for harm in Harm::faults(args) {
        start_runs()?;
        let failover = active.harm(harm, start_runs)?;
        outcome.failovers.push((harm, u64::try_from(failover.as_millis())?));
        if failover > SUBSCRIBER_LEASE + FAILOVER_SLACK {
            outcome.problems.push(format!("a take-over took {failover:?} after {harm:?}"));
        }
    }
    start_runs()?;
    runtime.block_on(judge(&store, &term, &mut outcome))?;
    outcome.passed = outcome.problems.is_empty();
    runtime.block_on(client.shutdown());
    print(args, &outcome)?;
    if !outcome.passed {
        report::complain(&format!("logs are kept in {}", folder.keep().display()));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

async fn start_runs(client: &Engine) -> anyhow::Result<()> {
    for _ in 0..RUNS {
        let start = client.start_run("tallied", StartRequest::new(Payload::null()));
        start.await.context("starting a run")?;
    }
    Ok(())
}

/// Compares what is kept with the fold of the feeds.
async fn judge(store: &Arc<dyn Store>, term: &str, outcome: &mut Outcome) -> anyhow::Result<()> {
    if wait_until_ended(&**store, END_WAIT_MAX).await? > 0 {
        outcome.problems.push("not every run ended".to_owned());
    }
    let admin = SubscriberAdmin::new(&**store);
    let watch = Stopwatch::start();
    loop {
        let info = admin.show(tally::ID).await?.context("there is no subscriber")?;
        if info.lag.is_caught_up {
            if info.dead > 0 {
                outcome.problems.push(format!("{} events were put aside", info.dead));
            }
            break;
        }
        if watch.elapsed() > END_WAIT_MAX {
            outcome.problems.push(format!("it does not catch up: {info:?}"));
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let kept: Vec<Option<Tally>> = read_projection(&**store, tally::ID).await?;
    let kept = kept.into_iter().next().flatten().unwrap_or_default();
    let mut folded = Tally::default();
    for feed in 0..store.feeds() {
        let mut after = Position::START;
        loop {
            let page = store.read_feed(feed, after, 500).await?;
            let Some(last) = page.last() else { break };
            after = last.position;
            for stored in &page {
                folded.fold(stored);
            }
        }
    }
    outcome.events = folded.events();
    if serde_json::to_vec(&kept)? != serde_json::to_vec(&folded)? {
        let (kept, folded) = (kept.events(), folded.events());
        let message = format!("the projection has {kept} events, and the feed {folded}");
        outcome.problems.push(message);
    }
    if kept.inverted > 0 {
        outcome.problems.push(format!("{} events came out of order", kept.inverted));
    }
    outcome.terms = holder::judge_terms(store, term, &mut outcome.problems).await?;
    Ok(())
}

fn print(args: &Args, outcome: &Outcome) -> anyhow::Result<()> {
    if args.json {
        return report::say(&serde_json::to_string(outcome).expect("an outcome has a JSON form"));
    }
    let mut took: Vec<u64> = outcome.failovers.iter().map(|(_, took)| *took).collect();
    took.sort_unstable();
    let lines = [
        format!("scenario         {} on {}", outcome.scenario, outcome.store),
        format!("take-overs       {}: {took:?} ms", took.len()),
        format!("terms            {}", outcome.terms),
        format!("events           {}", outcome.events),
    ];
    for line in lines.iter().chain(outcome.problems.iter().take(20)) {
        report::say(line)?;
    }
    report::say(if outcome.passed { "passed" } else { "FAILED" })
}
