//! A run as a person sees it: what each step did, and why the run is where it is.
//!
//! [`why`] answers the question that a status cannot: what is everybody waiting for? It reads the
//! run's record, its open jobs and its events, and changes nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::commit::JobKind;
use crate::event::{Event, StepError, StoredEvent};
use crate::flow::{Action, Flow, Needs, Step, Wait};
use crate::gate::Gate;
use crate::ids::{InstanceId, JobId, SlotIndex, StepIndex};
use crate::payload::Payload;
use crate::run::{Run, RunStatus, SHADOW_TAG, StepState};
use crate::time::Timestamp;

mod gist;
mod reason;
#[cfg(test)]
mod tests;

pub use gist::gist;
pub use reason::{Cause, Missing, MissingEvent, Reason};

/// What is known about a run, from whichever process asks.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    /// Its record.
    pub run: &'a Run,
    /// Its open jobs.
    pub jobs: &'a [OpenJob],
    /// Its events, in order; empty once retention has removed them.
    pub events: &'a [StoredEvent],
    /// Who executes the jobs of its store.
    pub executor: &'a Executor,
    /// Who uses the limits of [`parked_limits`], as far as that is known.
    pub limits: &'a [LimitUse],
    /// Who was seen to take steps of workers, if that is known.
    pub workers: Option<&'a [WorkerSeen]>,
    /// How the queues of its store stand, as far as that is known.
    pub queues: &'a QueuesSeen,
    /// The gate of its flow, if that is known.
    pub gate: Option<&'a Gate>,
}

/// How the queues of a store stand, as far as that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueuesSeen {
    /// Those that somebody has paused.
    pub paused: Vec<Arc<str>>,
    /// Those that instances take jobs of; absent if one takes those of all, or nothing is known.
    pub served: Option<Vec<Arc<str>>>,
    /// Instances that have a pool and are heard of, if that is known.
    pub pools: Option<Vec<PoolSeen>>,
}

/// An instance that has a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSeen {
    /// Its pool.
    pub pool: Arc<str>,
    /// The queues that it takes jobs of; all if none.
    pub queues: Option<Vec<Arc<str>>>,
}

/// Somebody who takes the steps of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSeen {
    /// The worker's name, as steps call it.
    pub worker: Arc<str>,
    /// The queues that they are taken from; all if none.
    pub queues: Option<Vec<Arc<str>>>,
    /// The pool that they may be for besides, if any.
    pub pool: Option<Arc<str>>,
    /// When somebody last asked.
    pub seen_at: Timestamp,
}

/// How long after somebody asked for a worker's steps they count as served.
pub const WORKER_SEEN_FOR: Duration = Duration::from_mins(1);

/// Who uses a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitUse {
    /// The limit's key.
    pub limit: Arc<str>,
    /// The jobs that hold a permit.
    pub holders: Vec<JobId>,
    /// How many jobs wait for one.
    pub in_line: u64,
}

/// The limits that steps of this log may be waiting for.
pub fn parked_limits(events: &[StoredEvent]) -> Vec<Arc<str>> {
    let mut limits: Vec<Arc<str>> = Vec::new();
    for stored in events {
        if let Event::StepParked { limit, .. } = &stored.event
            && !limits.contains(limit)
        {
            limits.push(Arc::clone(limit));
        }
    }
    limits
}

/// An open job, as far as the answer needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenJob {
    /// The step.
    pub step: StepIndex,
    /// What is to be done when it is due.
    pub kind: JobKind,
    /// Attempts so far.
    pub attempt: u32,
    /// When it is due, or was.
    pub due_at: Timestamp,
    /// Who holds it, and until when.
    pub lease: Option<(InstanceId, Timestamp)>,
}

/// Who executes the jobs of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Executor {
    /// This process, in words that name its instance.
    Known(String),
    /// Nobody.
    Nobody,
    /// It cannot be told from here.
    Unknown,
}

/// What a step did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepView {
    /// Its name.
    pub name: Arc<str>,
    /// Its state.
    pub state: StepState,
    /// Attempts that are in the log.
    pub attempts: u32,
    /// Attempts that failed.
    pub failures: u32,
    /// How long its attempts took together, or how long it waited; absent before the first ended.
    pub duration_ms: Option<u64>,
    /// Why its last failed attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<StepError>,
    /// What it returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Payload>,
}

/// The steps of a run in the order of its flow, with what its events say about each.
pub fn steps(flow: &Flow, run: &Run, events: &[StoredEvent]) -> Vec<StepView> {
    let mut views: Vec<StepView> = (flow.steps.iter().zip(&run.steps))
        .map(|(step, record)| StepView {
            name: Arc::clone(&step.name),
            state: record.state,
            attempts: record.attempt,
            failures: record.failures,
            duration_ms: None,
            error: None,
            result: None,
        })
        .collect();
    let mut waiting_since = vec![None; views.len()];
    for stored in events {
        let Some(index) = stored.event.step().and_then(|name| flow.step_index(name)) else {
            continue;
        };
        let since = &mut waiting_since[index.at()];
        if matches!(stored.event, Event::StepWaiting { .. }) {
            *since = Some(stored.at);
        }
        views[index.at()].note(stored, *since);
    }
    views
}

impl StepView {
    fn note(&mut self, stored: &StoredEvent, waiting_since: Option<Timestamp>) {
        let ended = match &stored.event {
            Event::StepSucceeded { elapsed_us, result, .. } => {
                self.result.clone_from(result);
                Some(*elapsed_us)
            }
            Event::StepFailed { elapsed_us, error, .. }
            | Event::AttemptFailed { elapsed_us, error, .. } => {
                self.error = Some(error.clone());
                Some(*elapsed_us)
            }
            Event::StepCancelled { .. } => waiting_since.map(|_| 0),
            Event::RunStarted(_)
            | Event::RunReleased { .. }
            | Event::RunMigrated(_)
            | Event::RunCheckpointed { .. }
            | Event::StepQueued { .. }
            | Event::StepWaiting { .. }
            | Event::StepRepaired { .. }
            | Event::StepStarted { .. }
            | Event::StepLost { .. }
            | Event::StepReleased { .. }
            | Event::StepParked { .. }
            | Event::EventEmitted { .. }
            | Event::EventRepeated { .. }
            | Event::StateSet { .. }
            | Event::StepSkipped { .. }
            | Event::StepCarried { .. }
            | Event::SignalReceived { .. }
            | Event::SignalTaken { .. }
            | Event::RunCompleted {}
            | Event::RunFailed { .. }
            | Event::RunCancelled { .. } => None,
        };
        if let Some(elapsed_us) = ended {
            let ms = match waiting_since {
                Some(since) => millis(stored.at.since(since)),
                None => elapsed_us / 1_000,
            };
            self.duration_ms = Some(self.duration_ms.unwrap_or(0).saturating_add(ms));
        }
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Why the run is not finished, or ended as it did: what matters most comes first.
///
/// There is at least one reason, and every step that is open, failed or skipped has one.
pub fn why(flow: &Flow, standing: &Standing<'_>, now: Timestamp) -> Vec<Reason> {
    let run = standing.run;
    if run.status == RunStatus::Held {
        return vec![Reason { step: None, cause: held(standing) }];
    }
    let mut reasons = Vec::new();
    for index in flow.step_indexes() {
        if run.step(index).state.is_open() {
            reasons.push(open_step(flow, standing, index, now));
        }
    }
    for index in flow.step_indexes() {
        match run.step(index).state {
            StepState::Failed => reasons.push(failed_step(flow, standing, index)),
            StepState::Pending => reasons.push(not_started(flow, run, index, Cause::Pending)),
            StepState::Skipped if run.status != RunStatus::Cancelled => {
                reasons.push(not_started(flow, run, index, Cause::Skipped));
            }
            StepState::Queued
            | StepState::Running
            | StepState::Waiting
            | StepState::Succeeded
            | StepState::Skipped
            | StepState::Cancelled => {}
        }
    }
    let whole = match run.status {
        RunStatus::Failed => None,
        RunStatus::Held | RunStatus::Running | RunStatus::Waiting => {
            let needs_work = *standing.executor == Executor::Nobody && !standing.jobs.is_empty();
            needs_work.then_some(Cause::Unowned {})
        }
        RunStatus::Completed => {
            let succeeded = run.steps.iter().filter(|step| step.state == StepState::Succeeded);
            Some(Cause::Completed { succeeded: succeeded.count(), steps: run.steps.len() })
        }
        RunStatus::Cancelled => Some(Cause::Cancelled { reason: cancel_reason(standing.events) }),
    };
    if let Some(cause) = whole {
        reasons.insert(0, Reason { step: None, cause });
    }
    reasons
}

fn held(standing: &Standing<'_>) -> Cause {
    let gate = standing.gate;
    Cause::Held {
        flow: Arc::clone(&standing.run.flow),
        since: standing.events.first().map(|first| first.at),
        gate: gate.map(|gate| gate.state),
        reason: gate.and_then(|gate| gate.reason.clone()),
        deployment: gate.and_then(|gate| gate.deployment.clone()),
    }
}

fn cancel_reason(events: &[StoredEvent]) -> Option<Arc<str>> {
    events.iter().rev().find_map(|stored| {
        if let Event::RunCancelled { reason } = &stored.event { reason.clone() } else { None }
    })
}

fn open_step(flow: &Flow, standing: &Standing<'_>, index: StepIndex, now: Timestamp) -> Reason {
    let step = flow.step(index);
    let job = standing.jobs.iter().find(|job| job.step == index);
    let cause = match (&step.action, job) {
        _ if step.is_stubbed() && standing.run.is_shadow() => Cause::Stubbed {
            original: standing.run.tags.get(SHADOW_TAG).cloned().unwrap_or_default(),
        },
        (Action::Wait(wait), job) => waiting(wait, job),
        (_, Some(job)) => queued_or_leased(flow, standing, job, now),
        (_, None) => Cause::Unknown {},
    };
    Reason { step: Some(Arc::clone(&step.name)), cause }
}

fn waiting(wait: &Wait, job: Option<&OpenJob>) -> Cause {
    match wait {
        Wait::Signal { signal, matches, .. } => Cause::Signal {
            signal: Arc::clone(signal),
            matches: matches.clone(),
            until: job.map(|job| job.due_at),
        },
        Wait::Delay(_) | Wait::Until(_) => match job {
            Some(job) => Cause::Timer { due_at: job.due_at },
            None => Cause::Unknown {},
        },
    }
}

fn queued_or_leased(flow: &Flow, standing: &Standing<'_>, job: &OpenJob, now: Timestamp) -> Cause {
    let step = flow.step(job.step);
    let record = standing.run.step(job.step);
    if let Some((instance, expires_at)) = &job.lease {
        return leased(step, standing, (job, instance.clone(), *expires_at), now);
    }
    let is_later = job.due_at > now;
    let queue = Arc::clone(&step.queue);
    if !is_later && standing.queues.paused.contains(&queue) {
        return Cause::Paused { queue, since: job.due_at };
    }
    if !is_later && let Some(cause) = poolless(step, standing, job) {
        return cause;
    }
    if (!is_later || was_released(standing, &step.name))
        && let Some(cause) = workerless(step, standing, job, now)
    {
        return cause;
    }
    if is_later && let Some(cause) = parked(standing, &step.name) {
        return cause;
    }
    if record.failures > 0 {
        let message = last_error(standing.events, &step.name).map(|error| error.message);
        return Cause::Retrying {
            due_at: job.due_at,
            wait_ms: millis(job.due_at.since(now)),
            failures: record.failures,
            attempts_max: step.retry.attempts_max,
            message,
        };
    }
    if is_later {
        return Cause::Delayed { due_at: job.due_at };
    }
    let is_unserved = |served: &Vec<Arc<str>>| !served.contains(&queue);
    if step.action.worker().is_none() && standing.queues.served.as_ref().is_some_and(is_unserved) {
        return Cause::Unserved { queue, since: job.due_at };
    }
    Cause::Queued { queue, since: job.due_at }
}

/// That no instance of the run's pool takes the step, if so.
fn poolless(step: &Step, standing: &Standing<'_>, job: &OpenJob) -> Option<Cause> {
    let (pool, pools) = (standing.run.pool.as_ref()?, standing.queues.pools.as_ref()?);
    let takes = |seen: &PoolSeen| {
        let queues = seen.queues.as_ref();
        seen.pool == *pool && queues.is_none_or(|queues| queues.contains(&step.queue))
    };
    let (pool, queue) = (Arc::clone(pool), Arc::clone(&step.queue));
    (!pools.iter().any(takes)).then_some(Cause::NoPool { pool, queue, since: job.due_at })
}

/// Whether the last that happened to the step is that somebody handed it back.
fn was_released(standing: &Standing<'_>, step: &str) -> bool {
    let last = events_of(standing.events, step).next_back();
    last.is_some_and(|stored| matches!(stored.event, Event::StepReleased { .. }))
}

/// That nobody takes the step of a worker, or has a broker for it, if so.
fn workerless(
    step: &Step,
    standing: &Standing<'_>,
    job: &OpenJob,
    now: Timestamp,
) -> Option<Cause> {
    let worker = step.action.worker()?;
    let takes = |seen: &&WorkerSeen| {
        let queues = seen.queues.as_ref();
        let pool = &standing.run.pool;
        *seen.worker == *worker
            && (pool.is_none() || seen.pool == *pool)
            && queues.is_none_or(|queues| queues.contains(&step.queue))
    };
    let asked_at = standing.workers?.iter().filter(takes).map(|seen| seen.seen_at).max();
    if asked_at.is_some_and(|at| now.since(at) <= WORKER_SEEN_FOR) {
        return None;
    }
    let (queue, since) = (Arc::clone(&step.queue), job.due_at.min(now));
    Some(match &step.action {
        Action::Mqtt(_) => Cause::NoBroker { queue, since },
        Action::Worker(_)
        | Action::Nothing
        | Action::Process(_)
        | Action::Shell(_)
        | Action::Http(_)
        | Action::Wait(_) => Cause::NoWorker { worker: worker.into(), queue, since, asked_at },
    })
}

/// What the step waits for if the last that happened to it is that it was parked.
fn parked(standing: &Standing<'_>, step: &str) -> Option<Cause> {
    let last = events_of(standing.events, step).next_back()?;
    let Event::StepParked { limit, reason, .. } = &last.event else { return None };
    let used = standing.limits.iter().find(|used| used.limit == *limit);
    Some(Cause::Parked {
        limit: Arc::clone(limit),
        reason: Arc::clone(reason),
        since: last.at,
        holders: used.map(|used| used.holders.iter().map(|job| job.run_id).collect()),
        in_line: used.map(|used| used.in_line),
    })
}

/// What a lease means. Who owns the store says more about it than its end: an owner renews the
/// leases of its own attempts in memory, and nobody else can have any.
fn leased(
    step: &Step,
    standing: &Standing<'_>,
    (job, instance, expires_at): (&OpenJob, InstanceId, Timestamp),
    now: Timestamp,
) -> Cause {
    let attempt = job.attempt;
    let is_remote = matches!(step.action, Action::Worker(_));
    let is_gone = match standing.executor {
        Executor::Nobody => true,
        // A worker outside of the owner's process holds its lease until that ends.
        Executor::Known(_) if is_remote && expires_at > now => false,
        Executor::Known(owner) => !owner.contains(&*instance.0),
        Executor::Unknown if expires_at <= now => {
            return Cause::LeaseExpired { instance, expired_at: expires_at };
        }
        Executor::Unknown => false,
    };
    if is_gone {
        return Cause::Abandoned { instance, attempt };
    }
    Cause::Leased { instance, attempt, since: started_at(standing.events, &step.name, attempt) }
}

fn events_of<'a>(
    events: &'a [StoredEvent],
    step: &'a str,
) -> impl DoubleEndedIterator<Item = &'a StoredEvent> {
    events.iter().filter(move |stored| stored.event.step().is_some_and(|name| **name == *step))
}

fn started_at(events: &[StoredEvent], step: &str, attempt: u32) -> Option<Timestamp> {
    let is_start = |stored: &&StoredEvent| matches!(&stored.event, Event::StepStarted { lease, .. } if lease.attempt == attempt);
    events_of(events, step).rev().find(is_start).map(|stored| stored.at)
}

fn last_error(events: &[StoredEvent], step: &str) -> Option<StepError> {
    events_of(events, step).rev().find_map(|stored| {
        if let Event::AttemptFailed { error, .. } | Event::StepFailed { error, .. } = &stored.event
        {
            Some(error.clone())
        } else {
            None
        }
    })
}

fn failed_step(flow: &Flow, standing: &Standing<'_>, index: StepIndex) -> Reason {
    let step = flow.step(index);
    let record = standing.run.step(index);
    let error = (standing.run.failure.as_ref().filter(|failure| failure.step == step.name))
        .map(|failure| failure.error.clone())
        .or_else(|| last_error(standing.events, &step.name));
    let cause = Cause::Failed {
        error_kind: error.as_ref().map(|error| error.kind),
        message: error.map(|error| error.message),
        failures: record.failures,
        attempts_max: step.retry.attempts_max,
        handled: step.failed.is_some(),
    };
    Reason { step: Some(Arc::clone(&step.name)), cause }
}

fn not_started(
    flow: &Flow,
    run: &Run,
    index: StepIndex,
    cause: impl FnOnce(Missing) -> Cause,
) -> Reason {
    let step = flow.step(index);
    let missing = match &step.needs {
        Needs::Start => Missing::default(),
        Needs::All(slots) => missing(flow, run, slots, false),
        Needs::Any(slots) => missing(flow, run, slots, true),
    };
    Reason { step: Some(Arc::clone(&step.name)), cause: cause(missing) }
}

fn missing(flow: &Flow, run: &Run, slots: &[SlotIndex], any: bool) -> Missing {
    let absent = slots.iter().filter(|slot| run.slots[slot.at()] == 0);
    let event = |slot: &SlotIndex| {
        let name = Arc::clone(&flow.slot(*slot).name);
        let sources = sources(flow, *slot)
            .map(|index| (Arc::clone(&flow.step(index).name), run.step(index).state))
            .collect();
        MissingEvent { event: name, sources }
    };
    Missing { any, events: absent.map(event).collect() }
}

/// The steps that can bring what `slot` stands for.
fn sources(flow: &Flow, slot: SlotIndex) -> impl Iterator<Item = StepIndex> {
    flow.step_indexes().filter(move |index| {
        let step = flow.step(*index);
        step.emits.contains(&slot) || step.succeeded == Some(slot) || step.failed == Some(slot)
    })
}

/// A length of time as people read it: two units at most.
#[derive(Clone, Copy, Debug)]
pub struct Brief(pub Duration);

impl fmt::Display for Brief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        let two = |first: u128, unit: &str, second: u128, unit_below: &str| match second {
            0 => format!("{first}{unit}"),
            _ => format!("{first}{unit}{second:02}{unit_below}"),
        };
        let text = match ms {
            0..1_000 => format!("{ms}ms"),
            1_000..60_000 if ms % 1_000 < 100 => format!("{}s", ms / 1_000),
            1_000..60_000 => format!("{}.{}s", ms / 1_000, ms % 1_000 / 100),
            60_000..3_600_000 => two(ms / 60_000, "m", ms % 60_000 / 1_000, "s"),
            3_600_000..86_400_000 => two(ms / 3_600_000, "h", ms % 3_600_000 / 60_000, "m"),
            _ => two(ms / 86_400_000, "d", ms % 86_400_000 / 3_600_000, "h"),
        };
        f.pad(&text)
    }
}
