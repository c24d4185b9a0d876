//! An instance as its callers see it, from its start to its shutdown.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use flowgate_core::commit::Due;
use flowgate_core::decide::{self, Report, Start};
use flowgate_core::flow::Flow;
use flowgate_core::gate::GateStamp;
use flowgate_core::ids::{Revision, RunId};
use flowgate_core::payload::Payload;
use flowgate_core::run::Run;
use flowgate_core::time::Timestamp;
use flowgate_store::control::QueueStats;
use flowgate_store::{Authored, RunDetail, Store};
use futures_util::FutureExt;
use tokio::sync::{broadcast, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::attempt::{Ending, Stop};
use crate::backoff::jittered;
use crate::committer::Committer;
use crate::config::{ConfigError, EngineConfig};
use crate::debounce::{self, StartDebounce};
use crate::degradation::Degradation;
use crate::ends::{End, Known};
use crate::error::{CommitError, EngineError};
use crate::executor::worker::Workers;
use crate::flows::{self, LoadedFlow};
use crate::follow::{FollowFrom, Follower};
use crate::gates;
use crate::health::Health;
use crate::inbox::{Inbound, Item, NewRun, Origin, Seed};
use crate::instance::{Applied, Instance};
use crate::leadership::{self, Leadership};
use crate::leases::LeaseKeeper;
use crate::metrics::Totals;
use crate::singleton::Turn;
use crate::starts::{self, Sharing};
use crate::subscriber::{self, SubscribeOptions, Subscriber, SubscriptionHandle};
use crate::{
    beats, clock, degradation, ends, follow, housekeeping, logs, permits, queues, singleton, worker,
};

/// A running instance. Clones are handles of the same one.
///
/// Whoever started it calls [`Engine::shutdown`]: then nothing is burnt and nothing is lost. When
/// the last handle goes away without it, the instance stops as if its process had ended.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
}

/// An engine that may be gone: whoever holds this does not keep it running.
#[derive(Clone, Debug)]
pub(crate) struct WeakEngine(Weak<Inner>);

impl WeakEngine {
    pub(crate) fn upgrade(&self) -> Option<Engine> {
        self.0.upgrade().map(|inner| Engine { inner })
    }
}

#[derive(Debug)]
struct Inner {
    instance: Arc<Instance>,
    parts: tokio::sync::Mutex<Option<Parts>>,
    logs_closed: CancellationToken,
}

/// What a shutdown takes apart.
#[derive(Debug)]
struct Parts {
    committer: JoinHandle<()>,
    log_writer: JoinHandle<()>,
    leases: LeaseKeeper,
}

/// How often something is reported anew because its run was moved to another revision.
const MOVES_MAX: usize = 5;
/// How often a start is decided anew because the gate of its flow has moved.
pub(crate) const GATE_TRIES_MAX: usize = 20;

/// A start.
#[derive(Clone, Debug)]
pub struct StartRequest {
    /// The payload of the entry step.
    pub input: Payload,
    /// The same key for the same flow gives the same run.
    pub key: Option<Arc<str>>,
    /// Labels for finding the run again.
    pub tags: BTreeMap<Arc<str>, Arc<str>>,
    /// The run's id, for a caller who must know it before; not together with a key.
    pub run_id: Option<RunId>,
    /// One open run at a time for each such key of the flow: a start while it is open gives that
    /// run. Without it, the flow's own `singleton` counts. Not together with a key.
    pub singleton: Option<Arc<str>>,
    /// The priority of its jobs, whatever their steps say.
    pub priority: Option<u8>,
    /// When its entry step is due; later than now only if that is a step that runs.
    pub due: Due,
    /// Whether it waits for more starts of its kind, which become one run with it. Not together
    /// with a key, a run id, a singleton or a due time.
    pub debounce: StartDebounce,
}

impl StartRequest {
    /// A start with this input and nothing else.
    pub fn new(input: Payload) -> Self {
        let (priority, due) = (None, Due::Now);
        let (key, singleton, run_id) = (None, None, None);
        let (tags, debounce) = (BTreeMap::new(), StartDebounce::OfFlow);
        Self { input, key, tags, run_id, singleton, priority, due, debounce }
    }
}

/// A run that was started, now or before.
#[derive(Clone, Debug, PartialEq)]
pub struct Started {
    /// The run.
    pub run_id: RunId,
    /// Whether an earlier start with the same key, or id, had begun it.
    pub existing: bool,
    /// If it is debounced: when it begins, unless more starts come. There is no such run before.
    pub debounced_until: Option<Timestamp>,
    /// The run as this start left it; `None` if this start did not begin it.
    pub run: Option<Arc<Run>>,
}

impl Started {
    /// A run that this start has begun.
    pub(crate) fn begun(run: Arc<Run>) -> Self {
        Self { run_id: run.run_id, existing: false, debounced_until: None, run: Some(run) }
    }

    /// A run that was there before.
    pub(crate) fn found(run_id: RunId) -> Self {
        Self { run_id, existing: true, debounced_until: None, run: None }
    }
}

/// What an instance has done since it started, and does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Attempts that execute now.
    pub running: usize,
    /// Attempts that succeeded.
    pub succeeded: u64,
    /// Attempts that failed, and with them their steps.
    pub failed: u64,
    /// Attempts that failed, and were or will be followed by another.
    pub retried: u64,
    /// How long the store takes to answer, but for the slowest twentieth; none if it does not.
    pub store_latency: Option<Duration>,
}

/// What waits in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDepth {
    /// The queue.
    pub queue: Arc<str>,
    /// Jobs that are due and that nobody has.
    pub due: u64,
    /// Jobs that are due later.
    pub later: u64,
    /// How long the first that is due has waited; zero if none is.
    pub oldest: Duration,
}

/// The flow to start: by name its active revision, or exactly this one.
#[derive(Clone, Copy, Debug)]
pub enum FlowRef<'a> {
    /// The revision that was registered last.
    Active(&'a str),
    /// This revision, which must be registered too.
    Exact(&'a Flow),
}

impl<'a> From<&'a str> for FlowRef<'a> {
    fn from(name: &'a str) -> Self {
        Self::Active(name)
    }
}

impl<'a> From<&'a Flow> for FlowRef<'a> {
    fn from(flow: &'a Flow) -> Self {
        Self::Exact(flow)
    }
}

impl Engine {
    /// Starts an instance on the current runtime.
    pub fn start(
        store: Arc<dyn Store>,
        workers: Workers,
        config: EngineConfig,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        let (sink, writer) = logs::channel();
        let instance = Arc::new(Instance::new(store, workers, config, sink));
        let tasks = &instance.tasks;
        let pollers = tokio::runtime::Handle::current().metrics().num_workers();
        for _ in 0..pollers {
            tasks.spawn(worker::poll(Arc::clone(&instance), pollers));
        }
        tasks.spawn(degradation::answer(Arc::clone(&instance)));
        let committer = tasks.spawn(commit(Arc::clone(&instance), pollers));
        tasks.spawn(ends::follow_for_those_who_wait(Arc::clone(&instance)));
        if !instance.config.is_client() {
            tasks.spawn(queues::follow(Arc::clone(&instance)));
            tasks.spawn(permits::keep(Arc::clone(&instance), pollers));
            tasks.spawn(worker::claim(Arc::clone(&instance), pollers));
            tasks.spawn(housekeeping::tidy_singletons(Arc::clone(&instance)));
            tasks.spawn(housekeeping::sweep(Arc::clone(&instance)));
            tasks.spawn(housekeeping::reconcile(Arc::clone(&instance)));
        }
        let logs_closed = CancellationToken::new();
        let (log_store, closed) = (Arc::clone(&instance.store), logs_closed.clone());
        let log_writer = tasks.spawn(async move {
            writer.run(&*log_store, closed.cancelled()).await;
        });
        let leases = LeaseKeeper::start(&instance);
        let parts = tokio::sync::Mutex::new(Some(Parts { committer, log_writer, leases }));
        tracing::info!(instance = %instance.config.instance, store = instance.store.kind(), "started");
        let inner = Arc::new(Inner { instance, parts, logs_closed });
        let instance = &inner.instance;
        if let Some(config) = instance.config.schedules.clone()
            && !instance.config.is_client()
        {
            let engine = WeakEngine(Arc::downgrade(&inner));
            instance.tasks.spawn(leadership::campaign(Arc::clone(instance), engine, config));
        }
        Ok(Self { inner })
    }

    pub(crate) fn instance(&self) -> &Arc<Instance> {
        &self.inner.instance
    }

    /// Its configuration.
    pub fn config(&self) -> &EngineConfig {
        &self.instance().config
    }

    /// Its store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.instance().store
    }

    /// Keeps a revision of a flow; new runs start on it. Its programs start in `folder`.
    pub async fn register(&self, flow: &Flow, folder: Option<PathBuf>) -> Result<(), EngineError> {
        self.register_by(flow, folder, Authored::default()).await
    }

    /// The same, with who registers it and what for. That stays as it was first said.
    pub async fn register_by(
        &self,
        flow: &Flow,
        folder: Option<PathBuf>,
        authored: Authored,
    ) -> Result<(), EngineError> {
        let instance = self.instance();
        instance.store.register_flow(flows::revision(flow, folder.as_ref(), authored)?).await?;
        let loaded = LoadedFlow::new(flow.clone(), folder, &instance.workers);
        let loaded = instance.flows.keep(loaded);
        instance.flows.remember_active(&loaded, clock::now());
        self.register_schedules(flow).await
    }

    /// Starts a run. The answer means that it is stored.
    pub async fn start_run<'a>(
        &self,
        flow: impl Into<FlowRef<'a>>,
        request: StartRequest,
    ) -> Result<Started, EngineError> {
        self.instance().strain.admit()?;
        self.start_accepted(flow, request).await
    }

    /// Starts a run whatever the strain: somebody has decided that it is to be.
    pub(crate) async fn start_accepted<'a>(
        &self,
        flow: impl Into<FlowRef<'a>>,
        request: StartRequest,
    ) -> Result<Started, EngineError> {
        let (flow, gate) = self.flow_at_gate(flow.into()).await?;
        let (start, sharing) = starts::check(&flow.flow, request, gate, &self.instance().run_ids)?;
        self.begin_shared(flow, start, sharing).await
    }

    /// Starts a run and returns its record when it has ended.
    pub async fn run_to_end<'a>(
        &self,
        flow: impl Into<FlowRef<'a>>,
        request: StartRequest,
    ) -> Result<Arc<Run>, EngineError> {
        self.instance().strain.admit()?;
        let (flow, gate) = self.flow_at_gate(flow.into()).await?;
        let (start, sharing) = starts::check(&flow.flow, request, gate, &self.instance().run_ids)?;
        if sharing != Sharing::None {
            let started = self.begin_shared(flow, start, sharing).await?;
            return Ok(self.wait(started.run_id).await?.row.run);
        }
        let run_id = start.run_id;
        // Listening from before the start, it needs no read if the run ends here.
        let listener = self.instance().ends.listen(run_id);
        let started = self.begin(flow, start).await?;
        let known = if started.existing { Known::Nothing } else { Known::Started };
        match ends::ended(self.instance(), listener, known).await? {
            End::Here(run) => Ok(run),
            End::Read(detail) => Ok(detail.row.run),
        }
    }

    /// Sends a run a signal.
    pub async fn signal(
        &self,
        run_id: RunId,
        signal: &str,
        data: Payload,
    ) -> Result<Arc<Run>, EngineError> {
        self.report(run_id, Report::Signal { signal: signal.into(), data }).await
    }

    /// Ends a run: its queued jobs at once, its running attempts as soon as they can be told.
    pub async fn cancel(
        &self,
        run_id: RunId,
        reason: Option<&str>,
    ) -> Result<Arc<Run>, EngineError> {
        self.report(run_id, Report::Cancel { reason: reason.map(Into::into) }).await
    }

    /// Returns when the run has ended, on whichever instance. One that is debounced is waited for.
    pub async fn wait(&self, run_id: RunId) -> Result<RunDetail, EngineError> {
        loop {
            match self.wait_for_end(run_id).await {
                Err(EngineError::NoRun(_)) => {}
                ended => return ended,
            }
            if debounce::find(&**self.store(), &run_id.to_string()).await?.is_empty() {
                // It may just have begun.
                return self.wait_for_end(run_id).await;
            }
            tokio::time::sleep(jittered(self.config().poll_max)).await;
        }
    }

    async fn wait_for_end(&self, run_id: RunId) -> Result<RunDetail, EngineError> {
        let listener = self.instance().ends.listen(run_id);
        match ends::ended(self.instance(), listener, Known::Nothing).await? {
            End::Read(detail) => Ok(*detail),
            End::Here(_) => {
                let read = ends::read_ended(self.instance(), run_id).await?;
                Ok(read.expect("a run that has ended stays so"))
            }
        }
    }

    /// Follows all events, on whichever instance they are committed, in the order of each run.
    ///
    /// From now on means: everything that is committed after this returns is among them.
    pub async fn follow(&self, from: FollowFrom) -> Result<Follower, EngineError> {
        follow::follow(self.instance(), from).await
    }

    /// Gives `subscriber` every event, from its checkpoint on; see [`crate::subscriber`]. The state
    /// of the handle says whether that happens here or another instance is ahead.
    ///
    /// It goes on until [`SubscriptionHandle::unsubscribe`] or the engine's end.
    pub async fn subscribe<S: Subscriber + Clone>(
        &self,
        id: &str,
        subscriber: S,
        options: SubscribeOptions,
    ) -> Result<SubscriptionHandle, EngineError> {
        subscriber::subscribe(self.given(subscriber), id, options).await
    }

    /// Folds all events anew with `subscriber`, beside the one of this id that is in use; when it
    /// has caught up, its checkpoint and state replace those in use, all at once. Whoever is active
    /// goes on from there.
    pub async fn rebuild<S: Subscriber + Clone>(
        &self,
        id: &str,
        subscriber: S,
        options: SubscribeOptions,
    ) -> Result<(), EngineError> {
        subscriber::rebuild(self.given(subscriber), id, options).await
    }

    fn given<S: Subscriber + Clone>(&self, subscriber: S) -> subscriber::Given {
        let engine = WeakEngine(Arc::downgrade(&self.inner));
        subscriber::Given::new(engine, Arc::clone(self.instance()), subscriber)
    }

    /// What is committed through this instance from now on. A listener that falls far behind
    /// misses the oldest, and is told.
    pub fn events(&self) -> broadcast::Receiver<Arc<Applied>> {
        self.instance().live.subscribe()
    }

    /// Whether it takes on work: it is not shutting down, and no bug has stopped it.
    pub fn is_running(&self) -> bool {
        !self.instance().stopping.is_cancelled()
    }

    /// Whether it can do its work, from now on.
    ///
    /// An idle instance notices within five seconds that its store does not answer, as long as it
    /// beats every two.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.instance().health.watch()
    }

    /// Whether it leads, from now on.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.instance().leadership.subscribe()
    }

    /// How strained it is, from now on. One that only starts and steers runs never is.
    pub fn degradation(&self) -> watch::Receiver<Degradation> {
        self.instance().strain.watch()
    }

    /// How long there has been no sign of life of the thread that renews leases and beats, if that
    /// is too long: then its leases end, and others take over what it executes.
    pub fn leases_stalled_for(&self) -> Option<Duration> {
        let instance = self.instance();
        if instance.config.is_client() { None } else { instance.pulse.stalled_for() }
    }

    /// What it has done since it started, and does now.
    pub fn stats(&self) -> Stats {
        let instance = self.instance();
        let Totals { succeeded, failed, retried } = &*instance.metrics.totals;
        Stats {
            running: instance.in_flight.attempts().len(),
            succeeded: succeeded.load(Ordering::Relaxed),
            failed: failed.load(Ordering::Relaxed),
            retried: retried.load(Ordering::Relaxed),
            store_latency: instance.strain.answers.last_percentile_95(),
        }
    }

    /// Sets the gauges of what is only known at the moment: for who is about to read them.
    pub fn measure(&self) {
        let instance = self.instance();
        #[expect(clippy::cast_precision_loss, reason = "slots are few")]
        instance.metrics.running.set(instance.in_flight.attempts().len() as f64);
    }

    /// What waits in each queue of the store that has jobs, whoever serves it.
    pub async fn queues(&self) -> Result<Vec<QueueDepth>, EngineError> {
        let (stats, now) = degradation::read_queues(&**self.store()).await?;
        let depth = |stats: QueueStats| QueueDepth {
            queue: stats.queue,
            due: stats.due,
            later: stats.later,
            oldest: stats.oldest_due_at.map_or(Duration::ZERO, |at| now.since(at)),
        };
        Ok(stats.into_iter().map(depth).collect())
    }

    /// Whether it is for jobs in a queue of the store, whatever is set for that.
    pub fn serves(&self, queue: &str) -> bool {
        self.instance().queues.serves(queue)
    }

    /// Whether nothing is in flight on this instance.
    pub fn is_idle(&self) -> bool {
        let instance = self.instance();
        instance.slots.taken() == 0 && instance.in_flight.is_empty() && instance.inbox.is_empty()
    }

    /// Returns when every log line so far is in the store.
    pub async fn flush_logs(&self) {
        self.instance().logs.flush().await;
    }

    /// Stops gracefully: claims nothing more, lets attempts finish within the grace while their
    /// leases are kept, hands the rest back without burning an attempt, and returns when nothing of
    /// the instance runs any more.
    pub async fn shutdown(&self) {
        let mut parts = self.inner.parts.lock().await;
        let Some(parts) = parts.take() else { return };
        let instance = self.instance();
        let grace = instance.config.shutdown_grace;
        instance.health.stop();
        instance.stopping.cancel();
        let (attempts, ()) = tokio::join!(
            tokio::time::timeout(grace, instance.slots.all_free()),
            instance.subscriptions.drained(grace),
        );
        if attempts.is_err() {
            hand_back(instance).await;
        }
        instance.inbox.close();
        let mut committer = parts.committer;
        if tokio::time::timeout(grace, &mut committer).await.is_err() {
            tracing::warn!("the store did not take the last commits; leases end by themselves");
            instance.giving_up.cancel();
            drop(committer.await);
        }
        permits::flush(instance).await;
        instance.giving_up.cancel();
        parts.leases.stop().await;
        beats::leave(instance).await;
        self.inner.logs_closed.cancel();
        drop(parts.log_writer.await);
        instance.tasks.close();
        if tokio::time::timeout(Duration::from_secs(1), instance.tasks.wait()).await.is_err() {
            tracing::warn!(
                tasks = instance.tasks.len(),
                "handlers that do not stop are left behind"
            );
        }
        tracing::info!(instance = %instance.config.instance, "stopped");
    }

    pub(crate) async fn flow(&self, flow: FlowRef<'_>) -> Result<Arc<LoadedFlow>, EngineError> {
        let Instance { flows, store, workers, .. } = &**self.instance();
        match flow {
            FlowRef::Active(name) => {
                let active = flows.active(&**store, workers, name).await;
                active.map_err(EngineError::Flow)?.ok_or_else(|| EngineError::NoFlow(name.into()))
            }
            FlowRef::Exact(flow) => {
                let pinned: (&Arc<str>, &Revision) = (&flow.name, &flow.revision);
                flows.load(&**store, workers, pinned).await.map_err(EngineError::Flow)
            }
        }
    }

    /// The flow to start, and what was known of its gate before: a start that knows a generation is
    /// on no revision that was replaced before that generation.
    async fn flow_at_gate(
        &self,
        flow: FlowRef<'_>,
    ) -> Result<(Arc<LoadedFlow>, GateStamp), EngineError> {
        let name = match flow {
            FlowRef::Active(name) => name,
            FlowRef::Exact(flow) => &flow.name,
        };
        let gate = self.instance().gates.stamp(name);
        Ok((self.flow(flow).await?, gate))
    }

    /// The revision that new runs of a flow start on.
    pub(crate) async fn active_flow(&self, name: &str) -> Result<Flow, EngineError> {
        Ok(self.flow(FlowRef::Active(name)).await?.flow.clone())
    }

    pub(crate) async fn begin(
        &self,
        flow: Arc<LoadedFlow>,
        start: Start,
    ) -> Result<Started, EngineError> {
        let instance = self.instance();
        let (mut flow, mut start) = (flow, start);
        start.instance = Some(instance.config.instance.clone());
        for _ in 0..GATE_TRIES_MAX {
            if start.gate.is_closed
                && let Err(full) = gates::enter(instance, &flow.flow.name, start.gate).await
            {
                // One that was accepted before needs no room.
                let is_there = instance.store.read_run(start.run_id).await?.is_some();
                return if is_there {
                    self.existing(start.run_id, start.key, &start.input).await
                } else {
                    gates::note_refused(instance, &full).await?;
                    Err(full)
                };
            }
            let to = self.sent_to(&flow, &mut start).await?;
            let (run_id, commit_id) = (start.run_id, instance.commit_ids.next());
            let decided = Some(decide::start(&to.flow, &start, commit_id));
            let (reply, answer) = oneshot::channel();
            let origin = Origin::Start(start.clone());
            let new_run = NewRun { flow: to, origin, commit_id, reply, decided };
            instance.inbox.push(Inbound::Start(Box::new(new_run)));
            match self.answer(answer).await {
                Ok(run) => return Ok(Started::begun(run)),
                Err(CommitError::RunExists) => {
                    return self.existing(run_id, start.key, &start.input).await;
                }
                Err(CommitError::GateMoved(gate)) => {
                    let name = &flow.flow.name;
                    // Whoever asked for the active revision gets the one that is active now.
                    let was_active = instance.flows.is_active(&flow);
                    instance.note_gate(name, gate);
                    start.gate = gate;
                    if was_active {
                        flow = self.flow(FlowRef::Active(&name.clone())).await?;
                        flow.flow.check_input(&start.input).map_err(EngineError::Input)?;
                    }
                }
                Err(error) => return Err(EngineError::of_commit(error, run_id)),
            }
        }
        Err(EngineError::Contended)
    }

    /// The revision that a start begins on, and whose pool: those of a canary if its share has the
    /// run and its revision takes such a start, else those of `flow`.
    async fn sent_to(
        &self,
        flow: &Arc<LoadedFlow>,
        start: &mut Start,
    ) -> Result<Arc<LoadedFlow>, EngineError> {
        let instance = self.instance();
        let Instance { flows, store, workers, .. } = &**instance;
        let name = &flow.flow.name;
        let Some(gate) = gates::met(instance, name, start.gate).await? else {
            return Ok(Arc::clone(flow));
        };
        let mut to = Arc::clone(flow);
        if let Some(canary) = gate.canary_of(start.run_id)
            && !start.gate.is_closed
            && flows.is_active(flow)
        {
            let loaded = flows.load(&**store, workers, (name, canary)).await;
            let canary = loaded.map_err(EngineError::Flow)?;
            if starts::suits(&canary.flow, start) {
                to = canary;
            }
        }
        start.pool = gate.pool_of(&to.flow.revision).cloned();
        Ok(to)
    }

    /// Starts a run, or finds the one that it shares with other starts.
    async fn begin_shared(
        &self,
        flow: Arc<LoadedFlow>,
        start: Start,
        sharing: Sharing,
    ) -> Result<Started, EngineError> {
        match sharing {
            Sharing::None => self.begin(flow, start).await,
            Sharing::Singleton(key) => self.begin_singleton(flow, start, &key).await,
            Sharing::Burst(key, window) => {
                debounce::put_off(self.instance(), &flow.flow, start, (&key, window)).await
            }
        }
    }

    /// Starts the run of a singleton, unless it is open.
    async fn begin_singleton(
        &self,
        flow: Arc<LoadedFlow>,
        mut start: Start,
        key: &Arc<str>,
    ) -> Result<Started, EngineError> {
        match singleton::turn(&**self.store(), key, start.run_id).await? {
            Turn::Open(run_id) => return Ok(Started::found(run_id)),
            Turn::Start(run_id) => start.run_id = run_id,
        }
        let run_id = start.run_id;
        match self.begin(flow, start).await {
            // Another start was quicker; whatever its input was, its run is the one.
            Err(EngineError::KeyConflict { .. }) => Ok(Started::found(run_id)),
            other => other,
        }
    }

    /// The run that an earlier start began, if that start was the same.
    async fn existing(
        &self,
        run_id: RunId,
        key: Option<Arc<str>>,
        input: &Payload,
    ) -> Result<Started, EngineError> {
        let first = self.store().read_events(run_id, 0, 1).await?;
        let is_same = first.first().is_none_or(|first| {
            let before = first.event.payload();
            before == *input || before.value() == input.value()
        });
        if is_same {
            return Ok(Started::found(run_id));
        }
        let key = key.unwrap_or_else(|| run_id.to_string().into());
        Err(EngineError::KeyConflict { key, run_id })
    }

    async fn report(&self, run_id: RunId, report: Report) -> Result<Arc<Run>, EngineError> {
        for _ in 0..MOVES_MAX {
            let seed = Some(Box::new(self.seed(run_id).await?));
            let (reply, answer) = oneshot::channel();
            let (report, reply) = (report.clone(), Some(reply));
            let item = Item { run_id, report, attempt: None, seed, reply, refusals: 0 };
            self.instance().inbox.push(Inbound::Report(item));
            match self.answer(answer).await {
                // The steps that it is about have other places now.
                Err(CommitError::Moved) => {}
                answer => return answer.map_err(|error| EngineError::of_commit(error, run_id)),
            }
        }
        Err(EngineError::Contended)
    }

    pub(crate) async fn seed(&self, run_id: RunId) -> Result<Seed, EngineError> {
        let instance = self.instance();
        let found = instance.store.read_run(run_id).await?;
        let run = found.ok_or(EngineError::NoRun(run_id))?.row.run;
        let pinned = (&run.flow, &run.revision);
        let flow = instance.flows.load(&*instance.store, &instance.workers, pinned).await;
        Ok(Seed { flow: flow.map_err(EngineError::Flow)?, run })
    }

    pub(crate) async fn answer(
        &self,
        answer: oneshot::Receiver<Result<Arc<Run>, CommitError>>,
    ) -> Result<Arc<Run>, CommitError> {
        tokio::select! {
            biased;
            answer = answer => answer.unwrap_or(Err(CommitError::Closed)),
            () = self.instance().giving_up.cancelled() => Err(CommitError::Closed),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.instance.health.stop();
        self.instance.stopping.cancel();
        self.instance.giving_up.cancel();
        self.instance.inbox.close();
        self.logs_closed.cancel();
        if let Some(parts) = self.parts.get_mut() {
            parts.leases.cancel();
        }
    }
}

/// Runs the committer. Without it an instance can do nothing, so a bug in it ends the instance:
/// its leases end by themselves, and other instances take over.
async fn commit(instance: Arc<Instance>, pollers: usize) {
    let committer = Committer::new(Arc::clone(&instance), pollers).run();
    if AssertUnwindSafe(committer).catch_unwind().await.is_err() {
        tracing::error!("the committer panicked; the instance stops");
        instance.health.stop();
        instance.stopping.cancel();
        instance.giving_up.cancel();
    }
}

/// Ends what did not finish within the grace and gives the jobs back.
async fn hand_back(instance: &Instance) {
    let attempts = instance.in_flight.attempts();
    tracing::info!(attempts = attempts.len(), "handing back what did not finish in time");
    for attempt in &attempts {
        attempt.stop(Stop::Shutdown);
    }
    let grace = instance.config.process.kill_grace + Duration::from_millis(500);
    if tokio::time::timeout(grace, instance.slots.all_free()).await.is_err() {
        // Handlers that block: their jobs go back, and what they may still report is dropped.
        for attempt in instance.in_flight.attempts() {
            attempt.end(Ending::Stopped(Stop::Shutdown));
        }
    }
}
