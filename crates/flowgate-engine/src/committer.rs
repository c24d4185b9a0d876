//! One loop that decides and commits everything that happens on this instance.
//!
//! While one batch is at the store the next one gathers, so at idle a commit leaves at once and
//! under load batches grow by themselves. A shared store gets the next batch already when it is
//! worth its way, and none takes more than its share: then the store works while the engine does. A
//! batch holds at most one commit per run, and a run with a commit under way is in no other batch:
//! several reports of a run are decided one after the other on each other's records and joined.
//!
//! ```text
//!          report                 decided                applied
//!  (none) ───────► Ready ─────────────────► Sent ─────────────────► Idle, or Ready again
//!                    ▲                       │ refused: version
//!                    └────── Rereading ◄─────┘
//! ```
//!
//! What each answer of the store does:
//! - *applied*: the record is kept, hand-offs go to execution, whoever waits is told;
//! - *refused, run version*: the record is read again and the reports are decided again;
//! - *refused, lease lost*: that attempt is dropped and told, the others are decided again;
//! - *refused, too large*: joined reports are decided one by one; an attempt alone fails by it;
//! - *unavailable*: the same commits are sent again, under the same ids, until the store answers.
//!   They are made from the same reports again, so the usual case pays for no copy.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::commit::{Commit, Due, Job, JobChange};
use flowgate_core::event::Event;
use flowgate_core::ids::{CommitId, RunId};
use flowgate_core::limits::COMMIT_BYTES_MAX;
use flowgate_core::run::Run;
use flowgate_store::{Claimant, CommitOutcome};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::attempt::Attempt;
use crate::backoff::Backoff;
use crate::clock;
use crate::error::CommitError;
use crate::flows::LoadedFlow;
use crate::health::Source;
use crate::id_map::RunSet;
use crate::in_flight::{Entry, Phase};
use crate::inbox::{Inbound, Item, NewRun, Reply, Seed};
use crate::instance::Instance;
use crate::metrics::Emits;

mod decide;
mod settle;
mod shares;

use shares::Shares;

pub(crate) use settle::refuse;

/// A commit that takes longer is worth a look: nothing is wrong with it, but runs stand still.
const COMMIT_LONG: Duration = Duration::from_secs(5);

/// The committer of an instance.
#[derive(Debug)]
pub(crate) struct Committer {
    instance: Arc<Instance>,
    /// Runs in line to be decided.
    ready: VecDeque<RunId>,
    starts: VecDeque<Box<NewRun>>,
    inbound: Vec<Inbound>,
    /// Attempts that the last batch made: they go to execution.
    handed_off: Vec<Arc<Attempt>>,
    /// Who waits for a commit of the last batch. They are told together at its end: each alone
    /// would wake a thread that finds nothing else to do and sleeps again.
    replies: Vec<(Reply, Arc<Run>)>,
    ended: Vec<Arc<Run>>,
    /// Runs that nothing is in flight of any more, though they go on.
    left: Vec<RunId>,
    pollers: usize,
    /// When the first came of what is in line.
    since: Option<Instant>,
    shares: Shares,
}

/// Commits that are on their way to the store together.
#[derive(Debug)]
struct Batch {
    sent: Vec<Sent>,
    /// Slots that were taken for what it hands off.
    slots: usize,
    /// Queues of jobs in it that this instance cannot execute.
    foreign: Vec<Arc<str>>,
    since: Option<Instant>,
    began: Instant,
}

/// A commit at the store, with what it was decided from.
#[derive(Debug)]
struct Sent {
    origin: SentOrigin,
    commit_id: CommitId,
    /// What it was decided on; none for a start.
    base: Option<Seed>,
    /// The record after it.
    record: Arc<Run>,
    /// The commit's events, if anybody listens or they are logged.
    events: Vec<Event>,
}

#[derive(Debug)]
enum SentOrigin {
    Start(Box<NewRun>),
    /// Reports of one run, joined.
    Reports(RunId, Vec<Item>),
}

impl Sent {
    /// Whether it stores events that attempts emitted.
    fn has_emits(&self) -> bool {
        match &self.origin {
            SentOrigin::Start(_) => false,
            SentOrigin::Reports(_, items) => {
                items.iter().any(|item| Emits::count(&item.report) > 0)
            }
        }
    }
}

impl Committer {
    pub(crate) fn new(instance: Arc<Instance>, pollers: usize) -> Self {
        Self {
            shares: Shares::new(instance.store.is_shared(), pollers),
            since: None,
            instance,
            ready: VecDeque::new(),
            starts: VecDeque::new(),
            inbound: Vec::new(),
            handed_off: Vec::new(),
            replies: Vec::new(),
            ended: Vec::new(),
            left: Vec::new(),
            pollers,
        }
    }

    /// Runs until the inbox is closed and nothing is left to commit.
    pub(crate) async fn run(mut self) {
        let instance = Arc::clone(&self.instance);
        let mut under_way = FuturesUnordered::new();
        loop {
            let mut inbound = std::mem::take(&mut self.inbound);
            let since = instance.inbox.take(&mut inbound);
            self.since = self.since.or(since);
            self.admit(&mut inbound);
            self.inbound = inbound;
            while self.shares.are_worth_a_batch(self.waiting()) {
                let (commits, sent, foreign) = self.prepare();
                if sent.is_empty() {
                    break;
                }
                let batch = self.begin(&commits, sent, foreign);
                under_way.push(carry(Arc::clone(&instance), commits, batch));
            }
            if under_way.is_empty() {
                if self.waiting() == 0 {
                    self.since = None;
                    if self.is_done() {
                        return;
                    }
                    instance.inbox.arrived().await;
                }
                continue;
            }
            let may_send = self.shares.has_room();
            tokio::select! {
                biased;
                Some((batch, outcomes)) = under_way.next() => {
                    let is_busy = batch.sent.len() > 1;
                    self.finish(batch, outcomes).await;
                    // Under load, what the batch set free runs first: its ends make the next batch.
                    // A store in memory never waits, so otherwise each batch would hold very little.
                    if is_busy {
                        instance.ready.taken().await;
                    } else {
                        tokio::task::consume_budget().await;
                    }
                }
                () = instance.inbox.arrived(), if may_send => {}
            }
        }
    }

    /// How many runs are in line.
    fn waiting(&self) -> usize {
        self.ready.len() + self.starts.len()
    }

    fn is_done(&self) -> bool {
        let instance = &self.instance;
        let is_quiet = || instance.in_flight.lock().values().all(|e| e.phase == Phase::Idle);
        instance.inbox.is_closed()
            && instance.inbox.is_empty()
            && (is_quiet() || instance.giving_up.is_cancelled())
    }

    fn admit(&mut self, inbound: &mut Vec<Inbound>) {
        if inbound.is_empty() {
            return;
        }
        let instance = Arc::clone(&self.instance);
        let mut runs = instance.in_flight.lock();
        for inbound in inbound.drain(..) {
            match inbound {
                Inbound::Start(start) => self.starts.push_back(start),
                Inbound::Reread { run_id, found } => {
                    if let Some(entry) = runs.get_mut(&run_id) {
                        self.note_reread(entry, found);
                        if entry.is_done() {
                            runs.remove(&run_id);
                            instance.ends.left(run_id);
                        }
                    }
                }
                Inbound::Report(mut item) => {
                    instance.metrics.emits.reported(Emits::count(&item.report));
                    let run_id = item.run_id;
                    let seed = item.seed.take();
                    let entry = match (runs.get_mut(&run_id), seed) {
                        (Some(entry), Some(seed)) => {
                            entry.note_moved(&seed.run, &seed.flow);
                            entry
                        }
                        (Some(entry), None) => entry,
                        (None, Some(seed)) => {
                            runs.entry(run_id).or_insert_with(|| Entry::new(seed.run, seed.flow))
                        }
                        // The attempt was dropped before its report came.
                        (None, None) => {
                            if let Some(attempt) = &item.attempt {
                                settle::give_back_if_cancelled(attempt);
                            }
                            refuse(item, CommitError::LeaseLost);
                            continue;
                        }
                    };
                    entry.pending.push(item);
                    if entry.phase == Phase::Idle {
                        entry.phase = Phase::Ready;
                        self.ready.push_back(run_id);
                    }
                }
            }
        }
    }

    /// Decides what is in line, up to one batch; with the queues of jobs that are for others.
    fn prepare(&mut self) -> (Vec<Commit>, Vec<Sent>, Vec<Arc<str>>) {
        let share = self.shares.next(self.waiting());
        let (mut commits, mut sent) = (Vec::with_capacity(share), Vec::with_capacity(share));
        let (mut foreign, mut bytes) = (Vec::new(), 0);
        let instance = Arc::clone(&self.instance);
        let is_heard =
            instance.live.receiver_count() > 0 || tracing::enabled!(tracing::Level::DEBUG);
        let mut runs = instance.in_flight.lock();
        let mut push = |origin, base, commit: Commit| {
            sent.push(Sent {
                origin,
                base,
                commit_id: commit.commit_id,
                record: Arc::clone(&commit.record),
                events: if is_heard { commit.events.clone() } else { Vec::new() },
            });
            bytes += commit.events.iter().map(Event::payload_bytes).sum::<usize>();
            commits.push(commit);
            commits.len() >= share || bytes >= COMMIT_BYTES_MAX
        };
        let mut begun = RunSet::default();
        while let Some(mut start) = self.starts.pop_front() {
            let run_id = start.run_id();
            if runs.contains_key(&run_id) {
                settle::answer(start.reply, Err(CommitError::RunExists));
                continue;
            }
            // Of two starts with one key the second waits for the answer to the first.
            if !begun.insert(run_id) {
                self.starts.push_front(start);
                break;
            }
            let commit = start.commit();
            note_foreign(&instance, &start.flow, &commit, &mut foreign);
            if push(SentOrigin::Start(start), None, commit) {
                return (commits, sent, foreign);
            }
        }
        while let Some(run_id) = self.ready.pop_front() {
            let Some(entry) = runs.get_mut(&run_id) else { continue };
            let (run, flow) = (Arc::clone(&entry.run), Arc::clone(&entry.flow));
            let base = Seed { run, flow };
            match decide::decide(&instance, entry) {
                Some((commit, items)) => {
                    entry.phase = Phase::Sent;
                    note_foreign(&instance, &entry.flow, &commit, &mut foreign);
                    if push(SentOrigin::Reports(run_id, items), Some(base), commit) {
                        break;
                    }
                }
                None if entry.pending.is_empty() => {
                    entry.phase = Phase::Idle;
                    if entry.is_done() {
                        runs.remove(&run_id);
                        instance.ends.left(run_id);
                    }
                }
                None => self.ready.push_back(run_id),
            }
        }
        (commits, sent, foreign)
    }

    /// Takes the slots that the batch may fill.
    fn begin(&mut self, commits: &[Commit], sent: Vec<Sent>, foreign: Vec<Arc<str>>) -> Batch {
        self.shares.sent(sent.len());
        let instance = &self.instance;
        #[expect(clippy::cast_precision_loss, reason = "batches and slots are small")]
        {
            instance.metrics.batch_size.record(commits.len() as f64);
            instance.metrics.running.set(instance.slots.taken() as f64);
        }
        // No more than it can fill: another batch may need the rest.
        let is_due =
            |change: &&JobChange| due_job(change).is_some_and(|job| !foreign.contains(&job.queue));
        let due = commits.iter().flat_map(|commit| &commit.jobs).filter(is_due).count();
        let is_stopping = instance.stopping.is_cancelled();
        let slots = if is_stopping { 0 } else { instance.slots.take_for_hand_off(due) };
        let since = self.since;
        if self.waiting() == 0 {
            self.since = None;
        }
        Batch { sent, slots, foreign, since, began: clock::now() }
    }

    /// Settles a batch that the store has answered.
    async fn finish(&mut self, batch: Batch, outcomes: Result<Vec<CommitOutcome>, CommitError>) {
        let instance = Arc::clone(&self.instance);
        let Batch { sent, slots, foreign: _, since, began } = batch;
        self.shares.answered(sent.len());
        let answered = clock::now();
        let took = answered.saturating_duration_since(began);
        instance.metrics.commit_seconds.record(took);
        if let Some(since) = since {
            let waited = began.saturating_duration_since(since);
            instance.metrics.commit_wait_seconds.record(waited);
            instance.metrics.orchestration_seconds.record(waited + took);
            if sent.iter().any(Sent::has_emits) {
                instance.metrics.emits.wait_seconds.record(waited + took);
            }
        }
        if took > COMMIT_LONG {
            let (instance, commits) = (&instance.config.instance, sent.len());
            tracing::warn!(%instance, commits, ?took, "a commit took long");
        }
        match outcomes {
            Ok(outcomes) => self.settle(sent, outcomes, answered),
            Err(CommitError::Store(_)) if sent.len() > 1 => self.commit_one_by_one(sent).await,
            Err(error) => self.give_up(sent, &error),
        }
        let used = self.handed_off.len();
        instance.slots.free(slots - used);
        instance.permits.hold_back(&mut self.handed_off);
        instance.ready.push(&mut self.handed_off, self.pollers);
        for (reply, run) in self.replies.drain(..) {
            settle::answer(reply, Ok(run));
        }
        for run in self.ended.drain(..) {
            instance.ends.ended(&run);
        }
        for run_id in self.left.drain(..) {
            instance.ends.left(run_id);
        }
    }

    /// One commit that the store cannot take must not keep the others out.
    async fn commit_one_by_one(&mut self, sent: Vec<Sent>) {
        for one in sent {
            let mut one = vec![one];
            let commits = remake(&mut one);
            match send(&self.instance, commits, &mut one, None).await {
                Ok(outcomes) => self.settle(one, outcomes, clock::now()),
                Err(error) => self.give_up(one, &error),
            }
        }
    }
}

/// The job that a change makes due at once, if it does.
fn due_job(change: &JobChange) -> Option<&Job> {
    match change {
        JobChange::Add { job, due: Due::Now } => Some(job),
        JobChange::Add { .. } | JobChange::Postpone { .. } | JobChange::Remove(_) => None,
    }
}

/// Notes the queues of what a commit makes due and this instance cannot execute, or may not: nothing
/// of them may be handed off to it.
fn note_foreign(
    instance: &Instance,
    flow: &LoadedFlow,
    commit: &Commit,
    foreign: &mut Vec<Arc<str>>,
) {
    let pool = &commit.record.pool;
    let is_of_another = pool.is_some() && *pool != instance.config.pool;
    if !flow.has_foreign() && !is_of_another {
        return;
    }
    for job in commit.jobs.iter().filter_map(due_job) {
        if (is_of_another || flow.is_foreign(job.job_id.step)) && !foreign.contains(&job.queue) {
            foreign.push(Arc::clone(&job.queue));
        }
    }
}

/// Brings a batch to the store; it comes back with what became of it.
async fn carry(
    instance: Arc<Instance>,
    commits: Vec<Commit>,
    mut batch: Batch,
) -> (Batch, Result<Vec<CommitOutcome>, CommitError>) {
    let claimant = (batch.slots > 0).then(|| instance.claimant_but(batch.slots, &batch.foreign));
    let outcomes = send(&instance, commits, &mut batch.sent, claimant).await;
    (batch, outcomes)
}

/// Sends commits until the store has answered.
async fn send(
    instance: &Instance,
    mut commits: Vec<Commit>,
    sent: &mut [Sent],
    claimant: Option<Claimant>,
) -> Result<Vec<CommitOutcome>, CommitError> {
    let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1));
    loop {
        let asked = clock::now();
        let answer = instance.store.commit(commits, claimant.as_ref()).await;
        let is_answered = answer.as_ref().map_or_else(|error| !error.is_transient(), |_| true);
        instance.strain.answers.note(asked, clock::now(), is_answered);
        match answer {
            Ok(outcomes) => {
                instance.health.answered(Source::Commits);
                return Ok(outcomes);
            }
            Err(error) if error.is_transient() => {
                instance.metrics.store_retries.increment(1);
                instance.health.failed(Source::Commits, &error);
                if let Some(kept_back) = instance.throttles.commits.pass() {
                    let commits = sent.len();
                    tracing::warn!(%error, commits, kept_back, "the store does not take commits; trying on");
                }
            }
            Err(error) => {
                instance.health.answered(Source::Commits);
                tracing::error!(%error, commits = sent.len(), "the store cannot take a batch");
                return Err(CommitError::Store(Arc::new(error)));
            }
        }
        tokio::select! {
            () = backoff.wait() => {}
            () = instance.giving_up.cancelled() => return Err(CommitError::Closed),
        }
        commits = remake(sent);
    }
}

/// The same commits again, from what they were decided from.
fn remake(sent: &mut [Sent]) -> Vec<Commit> {
    sent.iter_mut()
        .map(|sent| match &mut sent.origin {
            SentOrigin::Start(start) => start.commit(),
            SentOrigin::Reports(_, items) => {
                let base = sent.base.as_ref().expect("reports are about a run that exists");
                decide::again(&base.flow.flow, &base.run, items, sent.commit_id)
            }
        })
        .collect()
}
