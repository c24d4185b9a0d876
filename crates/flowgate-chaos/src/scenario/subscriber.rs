//! A projection that three instances share, while whichever has it is killed, paused and cut off.
//!
//! The driver finds the active one in the store's history of terms, harms it, and waits for the
//! next term. At the end the state that is kept must be the fold of the feed, byte for byte, and
//! nobody may have written a checkpoint after the end of its term.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use flowgate_core::flow::Flow;
use flowgate_core::ids::Position;
use flowgate_core::payload::Payload;
use flowgate_engine::subscriber::{SubscriberAdmin, read_projection};
use flowgate_engine::{Engine, EngineConfig, StartRequest, Workers, instance_id};
use flowgate_store::control::Term;
use flowgate_store::{Queues, Store};
use flowgate_testbed::Stopwatch;
use serde::Serialize;
use tokio::runtime::Runtime;

use super::{Args, END_WAIT_MAX, LEASE};
use crate::cluster::{Cluster, Plan};
use crate::drive::wait_until_ended;
use crate::tally::{self, Tally};
use crate::{report, server};

/// How long the active one may be silent before another takes over.
const SUBSCRIBER_LEASE: Duration = Duration::from_secs(2);
/// How much longer than the lease that may take.
const FAILOVER_SLACK: Duration = Duration::from_secs(1);
/// How long the next term is waited for at all.
const TERM_WAIT_MAX: Duration = Duration::from_secs(30);
/// Runs between two faults.
const RUNS: usize = 20;

const FLOW: &str = "
flow: tallied
steps:
  one: {}
  two: { subscribes: [\"step:one\"] }
";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Harm {
    /// SIGKILL.
    Kill,
    /// SIGSTOP until another has taken over.
    Pause,
    /// Its connections are closed, and new ones as soon as they are made.
    Cut,
    /// Nothing reaches it, and it is not told.
    Silence,
}

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
    let client = runtime.block_on(client(&store))?;
    let store_name = args.store.name();
    let mut outcome = Outcome { scenario: "Subscriber", store: store_name, ..Outcome::default() };
    let driver = Driver { cluster: &cluster, store: &store, runtime: &runtime, client: &client };
    let kinds = [Harm::Kill, Harm::Pause, Harm::Cut, Harm::Silence];
    let kinds = if args.store.takes_proxy() { &kinds[..] } else { &kinds[..2] };
    for harm in kinds.iter().copied().cycle().take(args.faults) {
        driver.start_runs()?;
        let failover = driver.harm(harm)?;
        outcome.failovers.push((harm, u64::try_from(failover.as_millis())?));
        if failover > SUBSCRIBER_LEASE + FAILOVER_SLACK {
            outcome.problems.push(format!("a take-over took {failover:?} after {harm:?}"));
        }
    }
    driver.start_runs()?;
    runtime.block_on(judge(&store, &mut outcome))?;
    outcome.passed = outcome.problems.is_empty();
    runtime.block_on(client.shutdown());
    print(args, &outcome)?;
    if !outcome.passed {
        report::complain(&format!("logs are kept in {}", folder.keep().display()));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// An engine that executes nothing and starts the runs.
async fn client(store: &Arc<dyn Store>) -> anyhow::Result<Engine> {
    let config =
        EngineConfig { queues: Queues::Only(Vec::new()), ..EngineConfig::new(instance_id()) };
    let client = Engine::start(Arc::clone(store), Workers::new(), config)?;
    let flow = Flow::parse(FLOW).expect("the flow is valid");
    client.register(&flow, None).await.context("registering the flow")?;
    Ok(client)
}

struct Driver<'a> {
    cluster: &'a Cluster,
    store: &'a Arc<dyn Store>,
    runtime: &'a Runtime,
    client: &'a Engine,
}

impl Driver<'_> {
    fn start_runs(&self) -> anyhow::Result<()> {
        for _ in 0..RUNS {
            let start = self.client.start_run("tallied", StartRequest::new(Payload::null()));
            self.runtime.block_on(start).context("starting a run")?;
        }
        Ok(())
    }

    /// Harms whoever is active; how long it took until another was.
    fn harm(&self, harm: Harm) -> anyhow::Result<Duration> {
        let (place, term) = self.active()?;
        let instance = self.cluster.instance(place);
        let proxy = self.cluster.proxy(place);
        let began = self.runtime.block_on(self.store.now())?;
        match harm {
            Harm::Kill => ensure!(instance.kill()?, "the instance had ended by itself"),
            Harm::Pause => instance.signal("-STOP")?,
            Harm::Cut => proxy.context("there is no proxy")?.cut(),
            Harm::Silence => proxy.context("there is no proxy")?.half_open(),
        }
        self.start_runs()?;
        let next = self.next_after(&term)?;
        // It is let go while the next one works, and must do no harm.
        match harm {
            Harm::Kill => {
                self.cluster.replace(place)?;
                self.cluster.instance(place).wait_until_up()?;
            }
            Harm::Pause => instance.signal("-CONT")?,
            Harm::Cut | Harm::Silence => proxy.context("there is no proxy")?.pass(),
        }
        Ok(next.began_at.since(began))
    }

    fn last_term(&self) -> anyhow::Result<Option<Term>> {
        let name = format!("subscriber/{}/0", tally::ID);
        Ok(self.runtime.block_on(self.store.past_terms(&name, 1))?.into_iter().next())
    }

    /// The place of whoever is active, and its term.
    fn active(&self) -> anyhow::Result<(usize, Term)> {
        let watch = Stopwatch::start();
        while watch.elapsed() < TERM_WAIT_MAX {
            let now = self.runtime.block_on(self.store.now())?;
            if let Some(term) = self.last_term()?.filter(|term| term.is_held(now)) {
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
        bail!("nobody is active for {TERM_WAIT_MAX:?}")
    }

    /// Waits for a later term than this one.
    fn next_after(&self, term: &Term) -> anyhow::Result<Term> {
        let watch = Stopwatch::start();
        while watch.elapsed() < TERM_WAIT_MAX {
            if let Some(next) = self.last_term()?
                && next.term.number > term.term.number
            {
                return Ok(next);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("nobody took over within {TERM_WAIT_MAX:?}")
    }
}

/// Compares what is kept with the fold of the feeds.
async fn judge(store: &Arc<dyn Store>, outcome: &mut Outcome) -> anyhow::Result<()> {
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
    let mut terms = store.past_terms(&format!("subscriber/{}/0", tally::ID), 1_000).await?;
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
