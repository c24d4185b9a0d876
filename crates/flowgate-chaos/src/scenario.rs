//! Situations that must hold, each with real processes on a real server.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use flowgate_core::event::StoredEvent;
use flowgate_core::ids::Position;
use flowgate_store::Store;
use flowgate_testbed::Stopwatch;
use parking_lot::Mutex;
use serde::Serialize;

use crate::cluster::{Cluster, Plan};
use crate::drive::wait_until_ended;
use crate::instance::{Answer, Ask};
use crate::judge::{self, Verdict};
use crate::ledger::Ledger;
use crate::{flows, report, server, sink};

pub(crate) mod holder;
mod leader;
mod subscriber;

/// How long a lease lasts here; longer than any pause that an idle machine makes.
const LEASE: Duration = Duration::from_secs(5);
/// How soon an instance must say that it cannot work.
const UNREADY_MAX: Duration = Duration::from_secs(5);
/// How long everything may take to end.
const END_WAIT_MAX: Duration = Duration::from_secs(90);
/// How long a graceful end may take.
const STOP_WAIT_MAX: Duration = Duration::from_secs(20);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The situation
    #[arg(value_enum)]
    name: Name,
    /// The kind of server
    #[arg(long, value_enum)]
    store: server::Kind,
    /// How long the store is away, or schedules are due at least, in seconds
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Runs to start
    #[arg(long, default_value_t = 100)]
    runs: usize,
    /// How often whoever leads, or is active, is killed, paused or cut off
    #[arg(long, default_value_t = 20)]
    faults: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    /// A fourth instance starts while runs are live: no run changes because of it
    FourthInstance,
    /// All three instances are restarted in turn, under load: nothing is lost or burnt
    RollingRestart,
    /// The store stands still in mid-run and comes back: unready, and nothing is lost
    Outage,
    /// Whoever leads is killed, paused and cut off while schedules are due every second: each
    /// occurrence has one run or another fate
    Leader,
    /// Whoever has a projection is killed, paused and cut off: another goes on in time, and the
    /// projection is the fold of the feed
    Subscriber,
}

#[derive(Debug, Default, Serialize)]
struct Outcome {
    scenario: String,
    store: &'static str,
    passed: bool,
    /// How soon each instance said that it cannot work, in seconds.
    unready_after: Vec<f64>,
    /// How soon each said that it can again.
    ready_after: Vec<f64>,
    /// Attempts that were handed back by an instance that ended.
    released: usize,
    problems: Vec<String>,
    #[serde(flatten)]
    verdict: Verdict,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.name == Name::Leader {
        return leader::run(args);
    }
    if args.name == Name::Subscriber {
        return subscriber::run(args);
    }
    let folder = tempfile::Builder::new().prefix("flowgate-scenario-").tempdir();
    let folder = folder.context("making a folder")?;
    let runtime = tokio::runtime::Runtime::new().context("starting the runtime")?;
    let plan = Plan {
        kind: args.store,
        instances: 3,
        lease: LEASE,
        leader_lease: LEASE,
        subscriber_lease: None,
        slots: 32,
        plant: None,
    };
    let mut cluster = Cluster::start(&plan, folder.path())?;
    let load = Load::default();
    let mut outcome = Outcome {
        scenario: format!("{:?}", args.name),
        store: args.store.name(),
        ..Outcome::default()
    };
    match args.name {
        Name::FourthInstance => {
            load.start(&cluster, args.runs, Duration::ZERO);
            cluster.add(args.store)?;
            cluster.instance(3).wait_until_up()?;
        }
        Name::RollingRestart => rolling_restart(&cluster, &load, args.runs)?,
        Name::Outage => outage(&cluster, &load, args, &mut outcome)?,
        Name::Leader | Name::Subscriber => unreachable!("it has a way of its own"),
    }
    let store = runtime.block_on(server::open(&cluster.setup.url))?;
    let open = runtime.block_on(wait_until_ended(&*store, END_WAIT_MAX))?;
    if open > 0 {
        outcome.problems.push(format!("{open} runs did not end within {END_WAIT_MAX:?}"));
    }
    let events = runtime.block_on(whole_feed(&*store))?;
    let executions = sink::read_file(&folder.path().join("effects"))?;
    let ledger = load.ledger.lock();
    let flows = flows::all();
    let judged = judge::judge(&*store, &flows, &ledger, &executions, &events);
    outcome.verdict = runtime.block_on(judged)?;
    outcome.released = events.iter().filter(|e| e.event.kind() == "step.released").count();
    let acknowledged = outcome.verdict.acknowledged;
    if acknowledged != ledger.starts.len() {
        let asked = ledger.starts.len();
        outcome.problems.push(format!("{acknowledged} of {asked} starts were acknowledged"));
    }
    if args.name != Name::Outage && outcome.verdict.leases_lost > 0 {
        let lost = outcome.verdict.leases_lost;
        outcome.problems.push(format!("{lost} leases were lost though nothing went wrong"));
    }
    outcome.passed = outcome.problems.is_empty() && outcome.verdict.is_clean();
    print(args, &outcome)?;
    if !outcome.passed {
        report::complain(&format!("logs and files are kept in {}", folder.keep().display()));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts runs and remembers them.
#[derive(Debug, Default)]
struct Load {
    ledger: Mutex<Ledger>,
    next: AtomicUsize,
}

impl Load {
    /// Starts `count` runs on all instances in turn.
    fn start(&self, cluster: &Cluster, count: usize, pause: Duration) {
        for _ in 0..count {
            self.start_one(cluster);
            std::thread::sleep(pause);
        }
    }

    fn start_one(&self, cluster: &Cluster) {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let names: Vec<&str> = flows::all().into_keys().collect();
        let (flow, key) = (names[number % names.len()], format!("start-{number}"));
        for tries in 0..60 {
            self.ledger.lock().ask(&key, flow);
            let ask = Ask::Start { flow: flow.to_owned(), key: key.clone() };
            let instance = cluster.instance((number + tries) % cluster.len());
            match instance.ask(ask, Duration::from_secs(5)) {
                Some(Answer::Stored { run_id }) => {
                    self.ledger.lock().note_stored(&key, run_id);
                    return;
                }
                Some(
                    Answer::Unknown { .. }
                    | Answer::Found { .. }
                    | Answer::Absent
                    | Answer::Done { .. },
                )
                | None => {
                    self.ledger.lock().note_unknown(&key);
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }
}

/// Ends every instance gracefully in turn, twice, while runs are started.
fn rolling_restart(cluster: &Cluster, load: &Load, runs: usize) -> anyhow::Result<()> {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            load.start(cluster, runs, Duration::from_millis(5));
            while !is_done.load(Ordering::SeqCst) {
                load.start(cluster, 1, Duration::from_millis(10));
            }
        });
        let restart = || {
            for place in (0..cluster.len()).cycle().take(2 * cluster.len()) {
                cluster.instance(place).stop(STOP_WAIT_MAX)?;
                cluster.replace(place)?;
                cluster.instance(place).wait_until_up()?;
            }
            Ok(())
        };
        let restarted = restart();
        is_done.store(true, Ordering::SeqCst);
        restarted
    })
}

/// Lets the store stand still while runs are live.
fn outage(
    cluster: &Cluster,
    load: &Load,
    args: &Args,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    for place in 0..cluster.len() {
        let ready = cluster.instance(place).wait_for(UNREADY_MAX, |said| said.is_ready);
        ready.context("waiting until an instance is ready")?;
    }
    load.start(cluster, args.runs, Duration::ZERO);
    let watch = Stopwatch::start();
    cluster.server.lock().control().pause()?;
    for place in 0..cluster.len() {
        let unready = cluster.instance(place).wait_for(UNREADY_MAX * 2, |said| !said.is_ready);
        unready.with_context(|| format!("waiting until instance {place} is unready"))?;
        outcome.unready_after.push(watch.elapsed().as_secs_f64());
    }
    let latest = outcome.unready_after.iter().copied().fold(0.0, f64::max);
    if latest > UNREADY_MAX.as_secs_f64() {
        outcome.problems.push(format!("an instance was unready after {latest:.1} s only"));
    }
    std::thread::sleep(Duration::from_secs(args.seconds).saturating_sub(watch.elapsed()));
    cluster.server.lock().control().resume()?;
    let watch = Stopwatch::start();
    for place in 0..cluster.len() {
        let instance = cluster.instance(place);
        ensure!(!instance.said().is_gone, "instance {place} ended during the outage");
        let ready = instance.wait_for(END_WAIT_MAX, |said| said.is_ready);
        ready.with_context(|| format!("waiting until instance {place} is ready again"))?;
        outcome.ready_after.push(watch.elapsed().as_secs_f64());
    }
    Ok(())
}

/// All feeds, one after another.
async fn whole_feed(store: &dyn Store) -> anyhow::Result<Vec<StoredEvent>> {
    let mut events = Vec::new();
    for feed in 0..store.feeds() {
        events.extend(one_feed(store, feed).await?);
    }
    Ok(events)
}

/// One feed from its beginning.
pub(crate) async fn one_feed(store: &dyn Store, feed: u16) -> anyhow::Result<Vec<StoredEvent>> {
    let (mut events, mut after) = (Vec::new(), Position::START);
    loop {
        let page = store.read_feed(feed, after, 1_000).await.context("reading the feed")?;
        let Some(last) = page.last() else { return Ok(events) };
        after = last.position;
        events.extend(page);
    }
}

fn print(args: &Args, outcome: &Outcome) -> anyhow::Result<()> {
    if args.json {
        return report::say(&serde_json::to_string(outcome).expect("an outcome has a JSON form"));
    }
    let v = &outcome.verdict;
    let statuses: Vec<String> =
        v.by_status.iter().map(|(status, count)| format!("{count} {status}")).collect();
    let spans = |spans: &[f64]| {
        spans.iter().map(|span| format!("{span:.1} s")).collect::<Vec<_>>().join(", ")
    };
    let mut lines = BTreeMap::from([
        (0, format!("scenario         {} on {}", outcome.scenario, outcome.store)),
        (1, format!("runs             {}: {}", v.runs, statuses.join(", "))),
        (2, format!("lost             {}", v.lost)),
        (3, format!("leases lost      {}", v.leases_lost)),
        (4, format!("handed back      {}", outcome.released)),
        (7, format!("violations       {}", v.violations.len())),
    ]);
    if args.name == Name::Outage {
        lines.insert(5, format!("unready after    {}", spans(&outcome.unready_after)));
        lines.insert(6, format!("ready again after {}", spans(&outcome.ready_after)));
    }
    for line in lines.values().chain(v.violations.iter().take(20)).chain(&outcome.problems) {
        report::say(line)?;
    }
    report::say(if outcome.passed { "passed" } else { "FAILED" })
}
