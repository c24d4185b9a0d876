//! The driver: load, faults, healing, and the verdict.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use flowgate_core::event::StoredEvent;
use flowgate_core::ids::Position;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_store::{Clock, RunQuery, Store};
use flowgate_testbed::{FaultProxy, Stopwatch};
use parking_lot::Mutex;

use crate::cluster::{Cluster, Plan};
use crate::faults::{self, Fault, Injected};
use crate::instance::{Answer, Ask};
use crate::ledger::Ledger;
use crate::plant::Bug;
use crate::report::{self, Report};
use crate::{flows, judge, server, sink};

/// How long a lease lasts here: short, so that many end within one run of the harness.
const LEASE: Duration = Duration::from_secs(2);
/// How often, and how many times, is looked at what shows no effect yet.
const EFFECT_LOOK: Duration = Duration::from_millis(200);
const EFFECT_LOOKS: u32 = 50;
/// How long a client waits for an answer before it asks somebody else.
const CLIENT_WAIT_MAX: Duration = Duration::from_secs(8);
/// How long a client asks all of them in turn.
const CLIENT_ASKS_MAX: Duration = Duration::from_mins(1);
/// Clients that start runs side by side.
const CLIENTS: usize = 8;
/// Attempts that an instance executes at a time: few, so that the steps of a run spread out.
const SLOTS: usize = 6;
/// Faults that may be under way at a time.
const LANES: usize = 2;
/// How long the runs may take to end after everything is healed.
const HEAL_WAIT_MAX: Duration = Duration::from_mins(2);
/// How often somebody who waits for runs to end is told how many are open.
const OPEN_TOLD_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The kind of server
    #[arg(long, value_enum)]
    store: server::Kind,
    /// Instances
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(2..=50))]
    instances: u8,
    /// Runs to start
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: u32,
    /// Faults to inject
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    faults: u32,
    /// The seed of the plan; drawn and printed if absent
    #[arg(long)]
    seed: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Leave the exported log, the ledger, the effects, the faults with their times and the logs of
    /// the instances here
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Plant a bug, to see that the judge finds it: the exit code is 0 only if it does
    #[arg(long, value_enum, value_name = "BUG")]
    plant: Option<Bug>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    report::complain(&format!("seed {seed}"));
    let temporary = tempfile::Builder::new().prefix("flowgate-chaos-").tempdir();
    let temporary = temporary.context("making a folder")?;
    if let Some(keep) = &args.keep {
        std::fs::create_dir_all(keep).with_context(|| format!("making {}", keep.display()))?;
    }
    let folder = args.keep.clone().unwrap_or_else(|| temporary.path().to_owned());
    let runtime = tokio::runtime::Runtime::new().context("starting the runtime")?;
    let report = Drive::new(args, seed, &folder)?
        .run(&runtime)
        .with_context(|| format!("seed {seed}, nothing was judged"))?;
    report.print(args.json)?;
    let is_bad = !report.passed;
    if is_bad && args.keep.is_none() && args.plant.is_none() {
        report::complain(&format!("logs and files are kept in {}", temporary.keep().display()));
    }
    Ok(match args.plant {
        // A planted bug that nobody sees is the failure.
        Some(_) if is_bad && !report.verdict.is_clean() => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
        None if is_bad => ExitCode::FAILURE,
        None => ExitCode::SUCCESS,
    })
}

struct Drive<'a> {
    args: &'a Args,
    seed: u64,
    folder: &'a Path,
    plan: Vec<Fault>,
    cluster: Cluster,
    ledger: Mutex<Ledger>,
    injected: Mutex<Vec<Injected>>,
    /// Places that stand still or are without a process.
    away: Mutex<Vec<usize>>,
    started: AtomicUsize,
    faults_done: AtomicUsize,
}

impl<'a> Drive<'a> {
    fn new(args: &'a Args, seed: u64, folder: &'a Path) -> anyhow::Result<Self> {
        let plan = Plan {
            kind: args.store,
            instances: usize::from(args.instances),
            lease: LEASE,
            leader_lease: LEASE,
            subscriber_lease: None,
            slots: SLOTS,
            plant: args.plant,
        };
        let cluster = Cluster::start(&plan, folder)?;
        let mut random = fastrand::Rng::with_seed(seed);
        let count = usize::try_from(args.faults).context("counting faults")?;
        let with_proxy = args.store.takes_proxy();
        let plan = faults::plan(&mut random, count, cluster.len(), LEASE, with_proxy);
        Ok(Self {
            args,
            seed,
            folder,
            plan,
            cluster,
            ledger: Mutex::default(),
            injected: Mutex::default(),
            away: Mutex::default(),
            started: AtomicUsize::new(0),
            faults_done: AtomicUsize::new(0),
        })
    }

    fn run(&self, runtime: &tokio::runtime::Runtime) -> anyhow::Result<Report> {
        let watch = Stopwatch::start();
        let store = runtime.block_on(server::open(&self.cluster.setup.url))?;
        let followed = Arc::new(Mutex::new(Vec::new()));
        let follow_until = Arc::new(AtomicBool::new(false));
        let followers: Vec<_> = (0..store.feeds())
            .map(|feed| {
                let (store, followed) = (Arc::clone(&store), Arc::clone(&followed));
                let until = Arc::clone(&follow_until);
                runtime.spawn(follow(store, feed, followed, until))
            })
            .collect();
        let errors = self.load_and_faults(&store, runtime);
        self.heal()?;
        report::complain("healed; waiting until every run has ended");
        let waited = Stopwatch::start();
        let open = runtime.block_on(wait_until_ended(&*store, HEAL_WAIT_MAX))?;
        let ended_after = waited.elapsed();
        if open > 0 {
            report::complain(&format!("{open} runs did not end within {HEAL_WAIT_MAX:?}"));
        }
        follow_until.store(true, Ordering::SeqCst);
        for follower in followers {
            runtime.block_on(follower).context("following the feed")?;
        }
        let followed = std::mem::take(&mut *followed.lock());
        let ledger = self.ledger.lock();
        let executions = sink::read_file(&self.folder.join("effects"))?;
        let flows = flows::all();
        let verdict = judge::judge(&*store, &flows, &ledger, &executions, &followed);
        let verdict = runtime.block_on(verdict)?;
        judge::export(&self.folder.join("log.ndjson"), &followed)?;
        let text = serde_json::to_string_pretty(&*ledger).expect("a ledger has a JSON form");
        std::fs::write(self.folder.join("ledger.json"), text).context("writing the ledger")?;
        let injected = std::mem::take(&mut *self.injected.lock());
        faults::export(&self.folder.join("faults.ndjson"), &injected)?;
        let mut report = Report::new(self.args.store.name(), self.seed, verdict);
        report.instances = self.cluster.len();
        report.runs_wanted = self.args.runs;
        report.unknown_answers = ledger.starts.values().map(|s| u64::from(s.unknown)).sum();
        report.reads = ledger.reads;
        report.faults = faults::tallies(&injected);
        report.ended_after_heal = ended_after;
        report.took = watch.elapsed();
        report.errors = errors;
        report.judge();
        Ok(report)
    }

    /// Starts runs over the whole time of the faults, and injects them.
    fn load_and_faults(
        &self,
        store: &Arc<dyn Store>,
        runtime: &tokio::runtime::Runtime,
    ) -> Vec<String> {
        let span: Duration = self.plan.iter().map(|fault| fault.lasts + fault.then).sum();
        let span = span / u32::try_from(LANES).expect("a few lanes");
        let runs = usize::try_from(self.args.runs).expect("runs fit in memory");
        let pause = span / self.args.runs.max(1);
        let watch = Stopwatch::start();
        let next_fault = AtomicUsize::new(0);
        let next_run = AtomicUsize::new(0);
        let errors = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    loop {
                        let number = next_run.fetch_add(1, Ordering::SeqCst);
                        if number >= runs {
                            return;
                        }
                        let due = pause * u32::try_from(number).unwrap_or(u32::MAX);
                        std::thread::sleep(due.saturating_sub(watch.elapsed()));
                        self.start_one(number);
                        self.started.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            for _ in 0..LANES {
                scope.spawn(|| {
                    loop {
                        let number = next_fault.fetch_add(1, Ordering::SeqCst);
                        let Some(fault) = self.plan.get(number) else { return };
                        let injected = self.inject(fault, store, runtime);
                        if let Err(error) = injected {
                            let name = fault.kind.name();
                            errors.lock().push(format!("fault {number} ({name}): {error:#}"));
                        }
                        let done = self.faults_done.fetch_add(1, Ordering::SeqCst) + 1;
                        if done.is_multiple_of(10) {
                            let (of, started) =
                                (self.plan.len(), self.started.load(Ordering::SeqCst));
                            report::complain(&format!(
                                "{done} of {of} faults, {started} runs started"
                            ));
                        }
                        std::thread::sleep(fault.then);
                    }
                });
            }
        });
        errors.into_inner()
    }

    /// Starts one run, on whichever instance answers, under one key.
    fn start_one(&self, number: usize) {
        let names: Vec<&str> = flows::all().into_keys().collect();
        let flow = names[number % names.len()].to_owned();
        let key = format!("start-{number}");
        let watch = Stopwatch::start();
        for tries in 0.. {
            self.ledger.lock().ask(&key, &flow);
            let place = (number + tries) % self.cluster.len();
            let ask = Ask::Start { flow: flow.clone(), key: key.clone() };
            match self.cluster.instance(place).ask(ask, CLIENT_WAIT_MAX) {
                Some(Answer::Stored { run_id }) => {
                    self.ledger.lock().note_stored(&key, run_id);
                    self.read_back(run_id);
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
                }
            }
            if watch.elapsed() > CLIENT_ASKS_MAX {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A read after an acknowledged start finds it, on any instance.
    fn read_back(&self, run_id: flowgate_core::ids::RunId) {
        let place = fastrand::usize(0..self.cluster.len());
        match self.cluster.instance(place).ask(Ask::Read { run_id }, Duration::from_secs(3)) {
            Some(Answer::Found { .. }) => self.ledger.lock().reads += 1,
            Some(Answer::Absent) => {
                let mut ledger = self.ledger.lock();
                ledger.reads += 1;
                ledger.stale_reads.push(run_id);
            }
            Some(Answer::Stored { .. } | Answer::Unknown { .. } | Answer::Done { .. }) | None => {}
        }
    }

    fn inject(
        &self,
        fault: &Fault,
        store: &Arc<dyn Store>,
        runtime: &tokio::runtime::Runtime,
    ) -> anyhow::Result<()> {
        let clock = Clock::wall();
        let began_at = clock.now();
        let (place, took_effect) = match fault.kind {
            faults::Kind::Kill => self.on_a_place(fault, |place| {
                let was_alive = self.cluster.instance(place).kill()?;
                std::thread::sleep(fault.lasts);
                self.cluster.replace(place)?;
                self.cluster.instance(place).wait_until_up()?;
                Ok(was_alive)
            })?,
            faults::Kind::Stop => self.on_a_place(fault, |place| {
                let instance = self.cluster.instance(place);
                instance.signal("-STOP")?;
                std::thread::sleep(fault.lasts);
                instance.signal("-CONT")?;
                Ok(true)
            })?,
            faults::Kind::Restart => {
                let mut server = self.cluster.server.lock();
                server.control().kill()?;
                std::thread::sleep(fault.lasts);
                server.control().restart()?;
                (None, true)
            }
            faults::Kind::Cut => self.through_proxy(fault, FaultProxy::cut)?,
            faults::Kind::HalfOpen => self.through_proxy(fault, FaultProxy::half_open)?,
            faults::Kind::Swallow => {
                let count = u64::try_from(fault.amount).unwrap_or(1);
                self.through_proxy(fault, |proxy| proxy.swallow_replies(count))?
            }
            faults::Kind::Clock => {
                let server = self.cluster.server.lock();
                let before = runtime.block_on(now(&**store))?;
                let watch = Stopwatch::start();
                server.shift_clock(fault.amount).context("moving the store's clock")?;
                let after = runtime.block_on(now(&**store))?;
                (None, faults::is_jump(fault.amount, after.0 - before.0, watch.elapsed()))
            }
        };
        let (kind, ended_at) = (fault.kind, clock.now());
        self.injected.lock().push(Injected { kind, place, began_at, ended_at, took_effect });
        Ok(())
    }

    /// Does something to a place that nothing else is done to, while most others are there; to
    /// which, and whether it had an effect.
    fn on_a_place(
        &self,
        fault: &Fault,
        act: impl FnOnce(usize) -> anyhow::Result<bool>,
    ) -> anyhow::Result<(Option<usize>, bool)> {
        let place = {
            let mut away = self.away.lock();
            let free = (0..self.cluster.len())
                .map(|offset| (fault.instance + offset) % self.cluster.len())
                .find(|place| !away.contains(place))
                .context("every instance is away")?;
            away.push(free);
            free
        };
        let effect = act(place);
        self.away.lock().retain(|other| *other != place);
        Ok((Some(place), effect?))
    }

    /// Has a proxy misbehave for the fault's time, or until it has withheld something; that of which
    /// place, and whether it did.
    fn through_proxy(
        &self,
        fault: &Fault,
        act: impl FnOnce(&FaultProxy),
    ) -> anyhow::Result<(Option<usize>, bool)> {
        self.on_a_place(fault, |place| {
            let proxy = self.cluster.proxy(place).context("there is no proxy")?;
            let before = proxy.effects();
            act(proxy);
            std::thread::sleep(fault.lasts);
            // Whoever has just lost its connections may ask for nothing all that time.
            for _ in 0..EFFECT_LOOKS {
                if proxy.effects() != before {
                    break;
                }
                std::thread::sleep(EFFECT_LOOK);
            }
            proxy.pass();
            Ok(proxy.effects() != before)
        })
    }

    /// Makes everything whole: every place has a process that works.
    fn heal(&self) -> anyhow::Result<()> {
        for place in 0..self.cluster.len() {
            if let Some(proxy) = self.cluster.proxy(place) {
                proxy.pass();
            }
            let instance = self.cluster.instance(place);
            if instance.said().is_gone {
                self.cluster.replace(place)?;
            }
            self.cluster.instance(place).wait_until_up()?;
        }
        Ok(())
    }
}

/// Reads the store's clock. Whoever asks a server that was just started again is refused until the
/// store has found it.
async fn now(store: &dyn Store) -> anyhow::Result<Timestamp> {
    for _ in 0..EFFECT_LOOKS {
        match store.now().await {
            Err(error) if error.is_transient() => tokio::time::sleep(EFFECT_LOOK).await,
            answer => return answer.context("reading the store's clock"),
        }
    }
    store.now().await.context("reading the store's clock")
}

/// Reads a feed from its start, until it is told that nothing more comes.
async fn follow(
    store: Arc<dyn Store>,
    feed: u16,
    followed: Arc<Mutex<Vec<StoredEvent>>>,
    until: Arc<AtomicBool>,
) {
    let mut after = Position::START;
    loop {
        let is_last = until.load(Ordering::SeqCst);
        match store.read_feed(feed, after, 500).await {
            Ok(page) if page.is_empty() && is_last => return,
            Ok(page) if page.is_empty() => {
                // The server may be down; reading again shows it.
                drop(store.wait_feed(feed, after, Duration::from_millis(500)).await);
            }
            Ok(page) => {
                after = page.last().map_or(after, |last| last.position);
                followed.lock().extend(page);
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Waits until no run is open, and tells now and then how many are; how many still are in the end.
pub(crate) async fn wait_until_ended(store: &dyn Store, wait_max: Duration) -> anyhow::Result<u64> {
    let watch = Stopwatch::start();
    let statuses = RunStatus::OPEN.to_vec();
    let query = RunQuery { statuses, ..RunQuery::default() };
    let mut tell_at = OPEN_TOLD_EVERY;
    loop {
        let open = match store.count_runs(&query).await {
            Ok(0) => return Ok(0),
            Ok(open) => Some(open),
            Err(error) if error.is_transient() => None,
            Err(error) => return Err(error.into()),
        };
        if watch.elapsed() > wait_max {
            return open.context("the store does not answer after everything was healed");
        }
        if watch.elapsed() > tell_at {
            let open = open.map_or("an unknown number of".into(), |open| open.to_string());
            let (after, max) = (tell_at.as_secs(), wait_max.as_secs());
            report::complain(&format!("{open} runs are open after {after} of at most {max} s"));
            tell_at += OPEN_TOLD_EVERY;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[cfg(test)]
mod tests {
    use flowgate_store::MemoryStore;
    use flowgate_store::faulty::{Call, Fault, Faulty};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_clock_is_asked_again_while_the_store_is_away() {
        let faulty = Faulty::new(Arc::new(MemoryStore::new()));
        faulty.plan(Call::Now, Fault::NotDone, EFFECT_LOOKS);
        now(&faulty).await.unwrap();
        faulty.plan(Call::Now, Fault::NotDone, u32::MAX);
        let error = format!("{:#}", now(&faulty).await.unwrap_err());
        assert!(error.contains("reading the store's clock"), "{error}");
    }
}
