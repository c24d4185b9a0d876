//! What the parts of one instance share.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use flowgate_core::event::Event;
use flowgate_core::ids::{CommitIds, RunId};
use flowgate_core::run::Run;
use flowgate_store::{Claimant, LeaseRef, Store};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, broadcast, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::attempt::Attempt;
use crate::beats::Pulse;
use crate::config::EngineConfig;
use crate::debounce::Turns;
use crate::degradation::Strain;
use crate::ends::Ends;
use crate::executor::{self, worker::Workers};
use crate::flows::Flows;
use crate::foreign::HandBacks;
use crate::gates::Gates;
use crate::health::{Judge, Throttles};
use crate::in_flight::InFlight;
use crate::inbox::Inbox;
use crate::leadership::{self, Leadership};
use crate::logs::LogSink;
use crate::metrics::Metrics;
use crate::permits::Permits;
use crate::queues::{self, QueueBook};
use crate::remote::RemoteBook;
use crate::run_ids::RunIds;
use crate::slots::Slots;
use crate::subscriber::Subscriptions;
use crate::subscriber::terms::Terms;

/// Applied commits that a slow listener may fall behind.
const LIVE_MAX: usize = 4_096;

/// One instance.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) config: EngineConfig,
    pub(crate) workers: Workers,
    pub(crate) flows: Flows,
    pub(crate) gates: Gates,
    pub(crate) inbox: Inbox,
    pub(crate) in_flight: InFlight,
    pub(crate) slots: Slots,
    pub(crate) logs: LogSink,
    pub(crate) metrics: Metrics,
    pub(crate) health: Judge,
    pub(crate) leadership: watch::Sender<Leadership>,
    pub(crate) throttles: Throttles,
    pub(crate) pulse: Pulse,
    pub(crate) strain: Strain,
    pub(crate) commit_ids: CommitIds,
    pub(crate) run_ids: RunIds,
    /// Attempts that wait for their first poll.
    pub(crate) ready: Ready,
    pub(crate) permits: Permits,
    pub(crate) queues: Arc<QueueBook>,
    pub(crate) hand_backs: HandBacks,
    pub(crate) remote: RemoteBook,
    pub(crate) ends: Ends,
    pub(crate) bursts: Turns,
    pub(crate) subscriptions: Subscriptions,
    pub(crate) terms: Terms,
    pub(crate) live: broadcast::Sender<Arc<Applied>>,
    pub(crate) processes: Semaphore,
    /// Attempts and everything else that shutdown waits for.
    pub(crate) tasks: TaskTracker,
    /// Nothing new is begun.
    pub(crate) stopping: CancellationToken,
    /// Nobody waits for the store any more.
    pub(crate) giving_up: CancellationToken,
    http: OnceLock<Result<reqwest::Client, reqwest::Error>>,
    http_guarded: OnceLock<Result<reqwest::Client, reqwest::Error>>,
}

/// A commit that was applied through this instance.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The run.
    pub run_id: RunId,
    /// Its record after the commit.
    pub run: Arc<Run>,
    /// When the store had answered, on this machine's clock: for showing, not for deciding.
    pub at: jiff::Timestamp,
    /// What happened, in order; the last one has the number of the record's version.
    pub events: Vec<Event>,
}

impl Instance {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        workers: Workers,
        config: EngineConfig,
        logs: LogSink,
    ) -> Self {
        let run_ids = RunIds::default();
        let queues = Arc::new(QueueBook::new(&config.queues, config.pool.as_ref(), &workers));
        Self {
            ends: Ends::new(store.is_shared()),
            store,
            workers,
            flows: Flows::new(Arc::clone(&queues)),
            gates: Gates::default(),
            hand_backs: HandBacks::default(),
            remote: RemoteBook::default(),
            inbox: Inbox::new(),
            in_flight: InFlight::default(),
            slots: Slots::new(config.slots),
            logs,
            metrics: Metrics::new(&config.instance),
            health: Judge::new(config.instance.clone()),
            leadership: leadership::channel(),
            throttles: Throttles::default(),
            pulse: Pulse::new(config.beat_interval),
            strain: Strain::new(config.instance.clone(), &config.degradation),
            commit_ids: CommitIds::new(run_ids.random()),
            run_ids,
            ready: Ready::default(),
            permits: Permits::default(),
            queues,
            bursts: Turns::default(),
            subscriptions: Subscriptions::default(),
            terms: Terms::default(),
            live: broadcast::channel(LIVE_MAX).0,
            processes: Semaphore::new(config.process.running_max),
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
            giving_up: CancellationToken::new(),
            http: OnceLock::new(),
            http_guarded: OnceLock::new(),
            config,
        }
    }

    /// This instance as a claimant of up to `slots` jobs.
    pub(crate) fn claimant(&self, slots: usize) -> Claimant {
        Claimant {
            instance: self.config.instance.clone(),
            queues: self.queues.open(),
            slots,
            lease: self.config.lease,
        }
    }

    /// This instance as a claimant that leaves out the queues of `foreign` too.
    pub(crate) fn claimant_but(&self, slots: usize, foreign: &[Arc<str>]) -> Claimant {
        let mut claimant = self.claimant(slots);
        if !foreign.is_empty() {
            claimant.queues = queues::without(&claimant.queues, foreign.to_vec());
        }
        claimant
    }

    /// Drops an attempt that nothing more will be heard of.
    pub(crate) fn forget(&self, lease: LeaseRef) -> Option<Arc<Attempt>> {
        let attempt = self.in_flight.forget(lease);
        let run_id = lease.job_id.run_id;
        if !self.in_flight.holds(run_id) {
            self.ends.left(run_id);
        }
        attempt
    }

    /// For requests to where the settings say: those are trusted.
    pub(crate) fn http(&self) -> Result<&reqwest::Client, &reqwest::Error> {
        self.http.get_or_init(|| executor::http::client(&self.config.http)).as_ref()
    }

    /// For requests to where flows say. It shares no connection with the other one.
    pub(crate) fn http_guarded(&self) -> Result<&reqwest::Client, &reqwest::Error> {
        let client = || executor::http::guarded_client(&self.config.http);
        self.http_guarded.get_or_init(client).as_ref()
    }
}

/// Attempts that wait for their first poll.
///
/// Waking a thread costs more than the first polls of a few handlers that do not block. So a small
/// batch wakes one poller, until a first poll was slow: then every batch wakes all, for a while.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    queue: Mutex<VecDeque<Arc<Attempt>>>,
    arrived: Notify,
    /// Batches that still wake all pollers.
    wary: AtomicU32,
}

/// Attempts that one poller is woken for.
const POLLS_PER_WAKE: usize = 64;
/// How often the committer gives way to the pollers before it goes on all the same.
const YIELDS_MAX: u32 = 20;
/// Batches that wake all pollers after a slow first poll.
const WARY_BATCHES: u32 = 1_000;

impl Ready {
    /// Puts attempts in line, and wakes up to `pollers` of those who take them out.
    pub(crate) fn push(&self, attempts: &mut Vec<Arc<Attempt>>, pollers: usize) {
        let wary = self.wary.load(Ordering::Relaxed);
        let wakes = if wary > 0 {
            self.wary.store(wary - 1, Ordering::Relaxed);
            attempts.len()
        } else {
            attempts.len().div_ceil(POLLS_PER_WAKE)
        };
        self.queue.lock().extend(attempts.drain(..));
        self.wake(wakes.min(pollers));
    }

    /// A first poll held up those behind it: others take them.
    pub(crate) fn note_slow(&self, pollers: usize) {
        self.wary.store(WARY_BATCHES, Ordering::Relaxed);
        let waiting = self.queue.lock().len();
        self.wake(waiting.min(pollers));
    }

    fn wake(&self, pollers: usize) {
        for _ in 0..pollers {
            self.arrived.notify_one();
        }
    }

    /// Gives way to those who take them out, until nobody waits in line or has waited for long.
    pub(crate) async fn taken(&self) {
        for _ in 0..YIELDS_MAX {
            tokio::task::yield_now().await;
            if self.queue.lock().is_empty() {
                return;
            }
        }
    }

    pub(crate) fn pop(&self) -> Option<Arc<Attempt>> {
        self.queue.lock().pop_front()
    }

    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }
}
