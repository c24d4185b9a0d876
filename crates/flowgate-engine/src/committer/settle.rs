//! What the store's answers do.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::commit::{Claimed, JobKind};
use flowgate_core::decide::Report;
use flowgate_core::event::{ErrorKind, Event};
use flowgate_core::ids::{JobId, RunId};
use flowgate_core::run::{Run, StepState};
use flowgate_store::{CommitOutcome, Refusal, StoreError};
use tokio::time::Instant;

use super::{Committer, Sent, SentOrigin};
use crate::attempt::{Attempt, Stop, failure};
use crate::backoff::jittered;
use crate::clock;
use crate::error::CommitError;
use crate::id_map::RunMap;
use crate::in_flight::{Entry, Phase};
use crate::inbox::{Inbound, Item, NewRun, Reply};
use crate::instance::{Applied, Instance};
use crate::metrics::Emits;

/// Refusals in a row after which those who wait for an answer get one.
const REFUSALS_MAX: u32 = 100;
/// The longest wait before a refused run is read again.
const REREAD_DELAY_MAX: Duration = Duration::from_millis(200);

impl Committer {
    /// Takes the answers of the store over.
    pub(super) fn settle(&mut self, sent: Vec<Sent>, outcomes: Vec<CommitOutcome>, now: Instant) {
        assert_eq!(sent.len(), outcomes.len(), "a store answers every commit");
        let instance = Arc::clone(&self.instance);
        let mut runs = instance.in_flight.lock();
        for (sent, outcome) in sent.into_iter().zip(outcomes) {
            match (sent.origin, outcome) {
                (SentOrigin::Start(start), CommitOutcome::Applied { handed_off }) => {
                    instance.metrics.runs_started.increment(1);
                    self.tell(&sent.record, sent.events);
                    self.begin_run(&mut runs, *start, &sent.record, (handed_off, now));
                }
                (SentOrigin::Start(start), CommitOutcome::Refused(refusal)) => {
                    self.tell_refused(&sent.record, refusal);
                    answer(start.reply, Err(error_of(refusal)));
                }
                (SentOrigin::Reports(run_id, items), CommitOutcome::Applied { handed_off }) => {
                    self.tell(&sent.record, sent.events);
                    let entry = runs.get_mut(&run_id).expect("a run with a commit is kept");
                    entry.refusals = 0;
                    entry.is_split = false;
                    entry.note(&sent.record);
                    for item in items {
                        self.applied(entry, item, &sent.record);
                    }
                    // What was leased on a revision that the run has left was taken from it again.
                    if sent.record.revision == entry.flow.flow.revision {
                        self.hand_off(entry, handed_off, now);
                    }
                    self.go_on(&mut runs, run_id);
                }
                (SentOrigin::Reports(run_id, items), CommitOutcome::Refused(refusal)) => {
                    let entry = runs.get_mut(&run_id).expect("a run with a commit is kept");
                    self.tell_refused(&sent.record, refusal);
                    self.refused(entry, items, refusal);
                    self.go_on(&mut runs, run_id);
                }
            }
        }
    }

    /// The store will not answer these: who waits is told, leases end by themselves.
    pub(super) fn give_up(&mut self, sent: Vec<Sent>, error: &CommitError) {
        let instance = Arc::clone(&self.instance);
        let mut runs = instance.in_flight.lock();
        for sent in sent {
            match sent.origin {
                SentOrigin::Start(start) => answer(start.reply, Err(error.clone())),
                SentOrigin::Reports(run_id, items) => {
                    let entry = runs.get_mut(&run_id).expect("a run with a commit is kept");
                    entry.phase = Phase::Idle;
                    for item in items {
                        if let Some(attempt) = &item.attempt {
                            attempt.stop(Stop::LeaseLost);
                            entry.take_attempt(attempt.lease());
                        }
                        refuse(item, error.clone());
                    }
                    self.go_on(&mut runs, run_id);
                }
            }
        }
    }

    /// A commit is written.
    fn tell(&mut self, record: &Arc<Run>, events: Vec<Event>) {
        let Instance { metrics, config, .. } = &*self.instance;
        let Run { run_id, flow, version, status, .. } = &**record;
        metrics.commits.applied.increment(1);
        let instance = &config.instance;
        tracing::debug!(%run_id, %flow, %instance, version, "decided");
        for event in &events {
            // The numbers of its inputs name what triggered it; payloads are never logged.
            if let Event::StepQueued { step, inputs } = event {
                tracing::debug!(%run_id, %flow, %instance, %step, ?inputs, "a step is due");
            }
        }
        if let Some(ended) = metrics.runs_ended.of(*status) {
            ended.increment(1);
            let status = status.as_str();
            tracing::info!(%run_id, %flow, %instance, status, "the run ended");
            self.ended.push(Arc::clone(record));
        }
        if !events.is_empty() {
            let (run, at) = (Arc::clone(record), clock::wall());
            let applied = Applied { run_id: record.run_id, run, at, events };
            // The last listener may be gone by now.
            drop(self.instance.live.send(Arc::new(applied)));
        }
    }

    /// A commit is not written.
    fn tell_refused(&self, record: &Run, refusal: Refusal) {
        let Instance { metrics, config, .. } = &*self.instance;
        let Run { run_id, flow, version, .. } = record;
        metrics.commits.refused(refusal).increment(1);
        let message = match refusal {
            Refusal::RunVersion => "another instance was first",
            Refusal::RunExists => "the run was started before",
            Refusal::LeaseLost(_) => "the lease was lost before the commit",
            Refusal::GateMoved(_) => "the gate of the flow has moved",
            Refusal::TooLarge { .. } => "the commit is too large",
        };
        tracing::debug!(%run_id, %flow, instance = %config.instance, version, "{message}");
    }

    fn begin_run(
        &mut self,
        runs: &mut RunMap<Entry>,
        start: NewRun,
        record: &Arc<Run>,
        (handed_off, now): (Vec<Claimed>, Instant),
    ) {
        if !handed_off.is_empty() {
            let (run_id, flow) = (record.run_id, start.flow);
            let entry = runs.entry(run_id).or_insert_with(|| Entry::new(Arc::clone(record), flow));
            entry.note(record);
            self.hand_off(entry, handed_off, now);
            self.go_on(runs, run_id);
        }
        self.replies.push((start.reply, Arc::clone(record)));
    }

    /// One report of a commit that is now written.
    fn applied(&mut self, entry: &mut Entry, item: Item, record: &Arc<Run>) {
        self.instance.metrics.emits.stored(Emits::count(&item.report));
        if let Some(attempt) = &item.attempt {
            match &item.report {
                Report::AttemptStarted(_) | Report::EmitNow { .. } => attempt.set_logged(),
                Report::AttemptEnded { .. }
                | Report::AttemptReleased { .. }
                | Report::LostTimedOut { .. }
                | Report::AttemptParked { .. }
                | Report::TimerDue(_) => {
                    entry.take_attempt(attempt.lease());
                    self.count(&item.report, record);
                    let permits = &self.instance.permits;
                    permits.give_back(attempt);
                    if let Report::AttemptParked { limit, .. } = &item.report {
                        permits.note_parked(attempt, limit);
                    }
                }
                Report::Signal { .. } | Report::Reconcile { .. } | Report::Cancel { .. } => {}
            }
        }
        if let Report::Reconcile { version, .. } = item.report {
            self.instance.metrics.repairs.increment(1);
            let Run { run_id, flow, .. } = &**record;
            let instance = &self.instance.config.instance;
            tracing::error!(%run_id, %flow, %instance, version, "a run was stuck; it is repaired");
        }
        if record.status.is_terminal() {
            // Whatever still runs, runs for nothing: the run was cancelled.
            entry.attempts.drain(..).for_each(|attempt| attempt.stop(Stop::Cancelled));
        }
        if let Some(reply) = item.reply {
            self.replies.push((reply, Arc::clone(record)));
        }
    }

    fn count(&self, report: &Report, record: &Run) {
        let metrics = &self.instance.metrics;
        match report {
            Report::AttemptEnded { attempt, .. } | Report::LostTimedOut { attempt, .. } => {
                match record.step(attempt.job_id.step).state {
                    StepState::Succeeded => metrics.succeeded(),
                    StepState::Queued => metrics.retried(),
                    StepState::Pending
                    | StepState::Running
                    | StepState::Waiting
                    | StepState::Failed
                    | StepState::Skipped
                    | StepState::Cancelled => metrics.failed(),
                }
            }
            Report::AttemptReleased { .. } => metrics.released.increment(1),
            Report::AttemptParked { .. } => metrics.parked.increment(1),
            Report::AttemptStarted(_)
            | Report::EmitNow { .. }
            | Report::TimerDue(_)
            | Report::Signal { .. }
            | Report::Reconcile { .. }
            | Report::Cancel { .. } => {}
        }
    }

    /// Jobs that the commit made due and leased to this instance.
    fn hand_off(&mut self, entry: &mut Entry, handed_off: Vec<Claimed>, now: Instant) {
        for claimed in handed_off {
            if claimed.run.revision != entry.flow.flow.revision {
                // The run was moved before the answer came, and this job was given up by that.
                continue;
            }
            let kind = claimed.job.kind;
            let attempt = Attempt::new(&self.instance, &entry.flow, claimed, now);
            entry.attempts.push(Arc::clone(&attempt));
            match kind {
                JobKind::Execute => self.handed_off.push(attempt),
                JobKind::Timer => {
                    attempt.end_once();
                    let report = Report::TimerDue(attempt.for_rules());
                    self.instance.inbox.report(attempt, report, None);
                }
            }
        }
    }

    /// A commit of `items` is not written.
    fn refused(&mut self, entry: &mut Entry, mut items: Vec<Item>, refusal: Refusal) {
        entry.phase = Phase::Idle;
        match refusal {
            Refusal::RunVersion | Refusal::RunExists | Refusal::GateMoved(_) => {
                entry.refusals += 1;
                items = answer_contended(items);
                entry.phase = Phase::Rereading;
                self.reread(entry.run.run_id, entry.refusals);
            }
            Refusal::LeaseLost(job_id) => {
                items = drop_lost(entry, items, job_id);
            }
            Refusal::TooLarge { bytes } if items.len() == 1 => {
                items = fail_large(items, bytes);
            }
            Refusal::TooLarge { .. } => entry.is_split = true,
        }
        items.append(&mut entry.pending);
        entry.pending = items;
    }

    /// Puts a run that is not under way in line again, or drops it.
    fn go_on(&mut self, runs: &mut RunMap<Entry>, run_id: RunId) {
        let Some(entry) = runs.get_mut(&run_id) else { return };
        match entry.phase {
            Phase::Rereading | Phase::Ready => return,
            Phase::Idle | Phase::Sent => {}
        }
        entry.phase = if entry.pending.is_empty() { Phase::Idle } else { Phase::Ready };
        if entry.phase == Phase::Ready {
            self.ready.push_back(run_id);
        } else if entry.is_done() {
            let has_ended = entry.run.status.is_terminal();
            runs.remove(&run_id);
            // Those who wait for an end are told of it, and of nothing else.
            if !has_ended || self.ended.last().is_none_or(|run| run.run_id != run_id) {
                self.left.push(run_id);
            }
        }
    }

    /// Reads a run again, beside the batches. The answer comes back through the inbox.
    fn reread(&self, run_id: RunId, refusals: u32) {
        let instance = Arc::clone(&self.instance);
        instance.clone().tasks.spawn(async move {
            if refusals > 1 {
                let delay = Duration::from_millis(1 << refusals.min(10)).min(REREAD_DELAY_MAX);
                tokio::time::sleep(jittered(delay)).await;
            }
            let found = instance.store.read_run(run_id).await;
            let found = found.map(|found| found.map(|detail| detail.row.run));
            instance.inbox.push(Inbound::Reread { run_id, found });
        });
    }

    pub(super) fn note_reread(
        &mut self,
        entry: &mut Entry,
        found: Result<Option<Arc<Run>>, StoreError>,
    ) {
        match found {
            // What was read before the run was moved says nothing about where it is.
            Ok(Some(run))
                if run.revision != entry.flow.flow.revision && run.version > entry.run.version =>
            {
                // It was moved to a revision that is not at hand here, and with it all of its jobs.
                entry.run = run;
                entry.phase = Phase::Idle;
                entry.attempts.drain(..).for_each(|attempt| {
                    attempt.stop(Stop::LeaseLost);
                    self.instance.metrics.leases_lost.increment(1);
                });
                for item in entry.pending.drain(..) {
                    let is_of_attempt = item.attempt.is_some();
                    let error =
                        if is_of_attempt { CommitError::LeaseLost } else { CommitError::Moved };
                    refuse(item, error);
                }
            }
            Ok(Some(run)) => {
                entry.note(&run);
                entry.phase = Phase::Ready;
                self.ready.push_back(run.run_id);
            }
            Ok(None) => {
                entry.phase = Phase::Idle;
                entry.attempts.drain(..).for_each(|attempt| attempt.stop(Stop::LeaseLost));
                entry.pending.drain(..).for_each(|item| refuse(item, CommitError::NoRun));
            }
            Err(_) if self.instance.giving_up.is_cancelled() => entry.phase = Phase::Idle,
            Err(error) => {
                if let Some(kept_back) = self.instance.throttles.rereads.pass() {
                    let run_id = entry.run.run_id;
                    tracing::warn!(%error, %run_id, kept_back, "a run cannot be read; trying on");
                }
                self.reread(entry.run.run_id, entry.refusals.max(6));
            }
        }
    }
}

/// Counts that `items` came second. Whoever has waited through too many is answered, and his are
/// dropped; the rest.
fn answer_contended(mut items: Vec<Item>) -> Vec<Item> {
    for item in &mut items {
        item.refusals += 1;
    }
    let is_over = |item: &Item| item.reply.is_some() && item.refusals > REFUSALS_MAX;
    let (over, rest): (Vec<Item>, Vec<Item>) = items.into_iter().partition(is_over);
    for item in over {
        refuse(item, CommitError::Contended);
    }
    rest
}

/// Drops what the attempt of `job_id` reported and tells it; the rest.
fn drop_lost(entry: &mut Entry, items: Vec<Item>, job_id: JobId) -> Vec<Item> {
    let is_lost = |item: &Item| item.attempt.as_ref().is_some_and(|a| a.lease().job_id == job_id);
    let (lost, rest): (Vec<Item>, Vec<Item>) = items.into_iter().partition(is_lost);
    for item in lost {
        if let Some(attempt) = &item.attempt {
            attempt.stop(Stop::LeaseLost);
            if entry.take_attempt(attempt.lease()).is_some() {
                attempt.instance.metrics.leases_lost.increment(1);
            }
        }
        refuse(item, CommitError::LeaseLost);
    }
    rest
}

/// An output that no commit can hold makes its attempt fail; anybody else is told.
fn fail_large(items: Vec<Item>, bytes: usize) -> Vec<Item> {
    let mut rest = Vec::new();
    for mut item in items {
        if matches!(item.report, Report::AttemptEnded { .. }) {
            drop_emits(&item);
        }
        if let Report::AttemptEnded { outcome, .. } = &mut item.report {
            let message = format!("the step handed over {bytes} bytes, more than one commit holds");
            *outcome = failure(ErrorKind::Invalid, &message, None);
            rest.push(item);
        } else {
            refuse(item, CommitError::TooLarge { bytes });
        }
    }
    rest
}

fn error_of(refusal: Refusal) -> CommitError {
    match refusal {
        Refusal::RunExists => CommitError::RunExists,
        Refusal::RunVersion => CommitError::NoRun,
        Refusal::LeaseLost(_) => CommitError::LeaseLost,
        Refusal::GateMoved(gate) => CommitError::GateMoved(gate),
        Refusal::TooLarge { bytes } => CommitError::TooLarge { bytes },
    }
}

/// What an attempt emitted is stored with its report or not at all.
fn drop_emits(item: &Item) {
    if let Some(attempt) = &item.attempt {
        attempt.instance.metrics.emits.dropped(Emits::count(&item.report));
    }
}

/// Drops a report and tells whoever waits for it.
pub(crate) fn refuse(item: Item, error: CommitError) {
    drop_emits(&item);
    if let Some(reply) = item.reply {
        answer(reply, Err(error));
    }
}

/// The job of a cancelled run is no more, so nobody else can hold its permits. Those of an attempt
/// that lost its lease may be somebody else's by now.
pub(super) fn give_back_if_cancelled(attempt: &Attempt) {
    if attempt.stop_reason() == Some(Stop::Cancelled) {
        attempt.instance.permits.give_back(attempt);
    }
}

/// Whoever asked may be gone.
pub(super) fn answer(reply: Reply, answer: Result<Arc<Run>, CommitError>) {
    drop(reply.send(answer));
}
