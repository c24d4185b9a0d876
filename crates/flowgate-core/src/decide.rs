//! The rules: what a run does next, given what happened.
//!
//! Every function here takes values and returns a [`Commit`] or a [`Rejection`]. A decision is made
//! on one version of the run and says so in its guards, so it applies to that version or not at
//! all. Its record is made by applying its own events: the log and the record cannot disagree.

use std::sync::Arc;
use std::time::Duration;

use crate::commit::{Commit, Due, Guard, Job, JobChange, JobKind};
use crate::event::{ErrorKind, Event, LeaseStamp, RunStarted, StepError};
use crate::flow::{Action, Flow, Needs, OnTimeout, Span, Wait};
use crate::gate::GateStamp;
use crate::ids::{CommitId, InstanceId, JobId, RunId, SlotIndex, StepIndex};
use crate::payload::Payload;
use crate::retry::NextAttempt;
use crate::run::{Run, RunStatus, StepState};
use crate::{limits, pool};

mod hold;
mod migrate;
mod output;
mod retry_run;
mod shadow;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

pub use hold::release;
pub use migrate::{MovedJob, Renames, Unmappable, checkpoint, migrate, place};
pub use retry_run::{RetryAs, retry};
pub use shadow::{Stub, stub, unstubbed};

/// Something that happened to a run.
#[derive(Clone, Debug)]
pub enum Report {
    /// An attempt is running for long enough to be shown.
    AttemptStarted(Attempt),
    /// A running attempt emitted an event that must not wait for its end.
    EmitNow {
        /// The attempt.
        attempt: Attempt,
        /// The event's name.
        event: Arc<str>,
        /// Its data.
        data: Payload,
    },
    /// An attempt ended.
    AttemptEnded {
        /// The attempt.
        attempt: Attempt,
        /// How.
        outcome: Outcome,
        /// How long it took.
        elapsed: Duration,
        /// A random number from 0 to 1, for the delay before the next attempt.
        random: f64,
    },
    /// An attempt was given up by who held it: it stops, or it cannot execute the step.
    AttemptReleased {
        /// The attempt.
        attempt: Attempt,
        /// When the job is due again.
        due: Due,
    },
    /// The lease before this one ended without a word, and what it was for has taken longer than
    /// it may. Nothing else was lost.
    LostTimedOut {
        /// The lease that found out.
        attempt: Attempt,
        /// How long the lost attempt took.
        elapsed: Duration,
        /// A random number from 0 to 1, for the delay before the next attempt.
        random: f64,
    },
    /// An attempt did not begin: its job waits for a permit of a limit.
    AttemptParked {
        /// The attempt.
        attempt: Attempt,
        /// The key of the limit.
        limit: Arc<str>,
        /// Why it must wait, in words.
        reason: Arc<str>,
        /// When the job asks again, unless it is woken.
        due: Due,
    },
    /// The timer of a wait is due.
    TimerDue(Attempt),
    /// Somebody sent a signal.
    Signal {
        /// Its name.
        signal: Arc<str>,
        /// Its data.
        data: Payload,
    },
    /// At this version the run has exactly these jobs. What is open without one gets one, what is
    /// not open loses it, and a run with nothing open ends.
    Reconcile {
        /// The version that was looked at.
        version: u64,
        /// The steps that have a job.
        jobs: Vec<StepIndex>,
    },
    /// Somebody wants the run to stop.
    Cancel {
        /// Why.
        reason: Option<Arc<str>>,
    },
}

/// One lease of a job, as the decision about it needs it.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The job.
    pub job_id: JobId,
    /// How events name the lease.
    pub stamp: LeaseStamp,
    /// Earlier leases of the job that are not in the log yet.
    pub lost: Vec<LeaseStamp>,
    /// Whether an earlier commit of this attempt has written `lost` and `step.started`.
    pub logged: bool,
}

/// How an attempt ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Well.
    Succeeded(Output),
    /// Not well.
    Failed {
        /// Why.
        error: StepError,
        /// When the next attempt should be, if the step knows better than its policy.
        retry_after: Option<Duration>,
    },
}

/// What a successful attempt hands over.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Events, in the order in which they were emitted.
    pub emits: Vec<(Arc<str>, Payload)>,
    /// State values.
    pub state: Vec<(Arc<str>, Payload)>,
    /// The step's result.
    pub result: Option<Payload>,
}

/// A start.
#[derive(Clone, Debug)]
pub struct Start {
    /// The new run.
    pub run_id: RunId,
    /// Its payload.
    pub input: Payload,
    /// Its key.
    pub key: Option<Arc<str>>,
    /// Its tags.
    pub tags: std::collections::BTreeMap<Arc<str>, Arc<str>>,
    /// The priority of its jobs, whatever their steps say.
    pub priority: Option<u8>,
    /// When its entry step is due. It has to be one that runs, unless that is now.
    pub due: Due,
    /// The gate of its flow, as far as is known. While it is closed the run is held.
    pub gate: GateStamp,
    /// The instance that accepts it.
    pub instance: Option<InstanceId>,
    /// The pool whose instances execute it, unless it is held; any if none.
    pub pool: Option<Arc<str>>,
}

/// Why nothing can be decided: the run is past it, or it makes no sense for this flow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The run has ended.
    #[error("the run has ended: it is {status}", status = .0.as_str())]
    RunEnded(RunStatus),
    /// The run has not ended.
    #[error("the run has not ended: it is {status}", status = .0.as_str())]
    RunOpen(RunStatus),
    /// The run is held, so nothing of it has begun.
    #[error("the run is held until the gate of its flow opens")]
    RunHeld,
    /// The run is not held.
    #[error("the run is not held: it is {status}", status = .0.as_str())]
    RunNotHeld(RunStatus),
    /// The attempt's step is not open any more.
    #[error("the step is not open: it is {state}", state = .0.as_str())]
    StepNotOpen(StepState),
    /// No wait of the flow is for this signal.
    #[error("no step of the flow waits for the signal `{signal}`; it has {known}")]
    SignalUnknown {
        /// The signal.
        signal: Arc<str>,
        /// What the flow waits for, in words.
        known: String,
    },
    /// The run keeps as many signals as it may.
    #[error("the run keeps {max} signals that no wait has taken", max = limits::SIGNALS_KEPT_MAX)]
    SignalsFull,
    /// The event may not be emitted.
    #[error("{}", .0.message)]
    OutputInvalid(StepError),
    /// The run is as it should be.
    #[error("there is nothing to do")]
    NothingToDo,
    /// The run tried a revision on the input of another one.
    #[error("a shadow run is not tried again: try the run that it stands for")]
    RunShadow,
    /// Everything succeeded, or was never asked for: there is nothing to do again.
    #[error("there is nothing to do again; name the step to start from")]
    NothingToRetry,
}

/// The first commit of a run.
pub fn start(flow: &Flow, start: &Start, commit_id: CommitId) -> Commit {
    let started = RunStarted {
        flow: Arc::clone(&flow.name),
        revision: flow.revision.clone(),
        input: start.input.clone(),
        key: start.key.clone(),
        tags: start.tags.clone(),
        retry_of: None,
        priority: start.priority,
        hold: start.gate.is_closed.then(|| hold::hold(start.due)),
        instance: start.instance.clone(),
        pool: start.pool.clone().filter(|_| !start.gate.is_closed),
    };
    let mut draft = Draft::begin(flow, start.run_id, started);
    if !start.gate.is_closed {
        draft.open_step(flow.entry, vec![1], start.due);
    }
    let generation = start.gate.generation;
    draft.finish(commit_id, vec![Guard::RunAbsent, Guard::Gate { generation }])
}

/// What follows from `report`, for the run as it is in `run`.
pub fn decide(
    flow: &Flow,
    run: &Run,
    report: &Report,
    commit_id: CommitId,
) -> Result<Commit, Rejection> {
    if run.status.is_terminal() {
        return Err(Rejection::RunEnded(run.status));
    }
    let mut draft = Draft::resume(flow, run);
    let mut guards = vec![Guard::RunVersion(run.version)];
    match report {
        Report::AttemptStarted(attempt) => {
            guards.push(draft.enter(attempt)?);
        }
        Report::EmitNow { attempt, event, data } => {
            output::check_emit(flow, flow.step(attempt.job_id.step), event)
                .map_err(Rejection::OutputInvalid)?;
            guards.push(draft.enter(attempt)?);
            let slot = draft.emit(attempt.job_id.step, event, data);
            draft.start_subscribers(slot);
        }
        Report::AttemptEnded { attempt, outcome, elapsed, random } => {
            guards.push(draft.enter(attempt)?);
            draft.end_attempt(attempt, outcome, micros(*elapsed), *random);
        }
        Report::AttemptReleased { attempt, due } => {
            guards.push(draft.release(attempt, *due)?);
        }
        Report::LostTimedOut { attempt, elapsed, random } => {
            guards.push(draft.time_lost_out(attempt, *elapsed, *random)?);
        }
        Report::AttemptParked { attempt, limit, reason, due } => {
            guards.push(draft.park(attempt, limit, reason, *due)?);
        }
        Report::TimerDue(attempt) => {
            guards.push(draft.enter_wait(attempt)?);
            draft.end_wait(attempt);
        }
        Report::Signal { .. } if run.status == RunStatus::Held => return Err(Rejection::RunHeld),
        Report::Signal { signal, data } => draft.signal(signal, data)?,
        Report::Reconcile { version, .. }
            if *version != run.version || run.status == RunStatus::Held =>
        {
            return Err(Rejection::NothingToDo);
        }
        Report::Reconcile { jobs, .. } => draft.reconcile(jobs),
        Report::Cancel { reason } => draft.cancel(reason.clone()),
    }
    draft.end_if_quiet();
    if draft.events.is_empty() {
        return Err(Rejection::NothingToDo);
    }
    Ok(draft.finish(commit_id, guards))
}

/// Whether the rules take `output` of the step at `index`; what is wrong with it otherwise.
pub fn check_output(
    flow: &Flow,
    run: &Run,
    index: StepIndex,
    output: &Output,
) -> Result<(), StepError> {
    output::check(flow, flow.step(index), run, output)
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// A decision in the making: the record so far and what brought it there.
struct Draft<'a> {
    flow: &'a Flow,
    run: Run,
    events: Vec<Event>,
    jobs: Vec<JobChange>,
}

impl<'a> Draft<'a> {
    fn begin(flow: &'a Flow, run_id: RunId, started: RunStarted) -> Self {
        let run = Run::new(run_id, flow, &started);
        Self { flow, run, events: vec![Event::RunStarted(started)], jobs: Vec::new() }
    }

    fn resume(flow: &'a Flow, run: &Run) -> Self {
        Self { flow, run: run.clone(), events: Vec::with_capacity(6), jobs: Vec::new() }
    }

    fn push(&mut self, event: Event) {
        self.run.apply(self.flow, &event).expect("the rules write only events that fold");
        self.events.push(event);
    }

    fn name(&self, index: StepIndex) -> Arc<str> {
        Arc::clone(&self.flow.step(index).name)
    }

    fn job_id(&self, step: StepIndex) -> JobId {
        JobId { run_id: self.run.run_id, step }
    }

    /// Writes down the leases that the log does not know yet, and returns the guard of this one.
    fn enter(&mut self, attempt: &Attempt) -> Result<Guard, Rejection> {
        let index = attempt.job_id.step;
        match self.run.step(index).state {
            StepState::Queued | StepState::Running => {}
            other @ (StepState::Pending
            | StepState::Waiting
            | StepState::Succeeded
            | StepState::Failed
            | StepState::Skipped
            | StepState::Cancelled) => return Err(Rejection::StepNotOpen(other)),
        }
        if !attempt.logged {
            self.log_lost(attempt);
            self.push(Event::StepStarted { step: self.name(index), lease: attempt.stamp.clone() });
        }
        Ok(Guard::LeaseHeld { job_id: attempt.job_id, token: attempt.stamp.token })
    }

    fn enter_wait(&mut self, attempt: &Attempt) -> Result<Guard, Rejection> {
        let state = self.run.step(attempt.job_id.step).state;
        if state != StepState::Waiting {
            return Err(Rejection::StepNotOpen(state));
        }
        if !attempt.logged {
            self.log_lost(attempt);
        }
        Ok(Guard::LeaseHeld { job_id: attempt.job_id, token: attempt.stamp.token })
    }

    fn log_lost(&mut self, attempt: &Attempt) {
        let step = self.name(attempt.job_id.step);
        for lease in &attempt.lost {
            self.push(Event::StepLost { step: Arc::clone(&step), lease: lease.clone() });
        }
    }

    fn release(&mut self, attempt: &Attempt, due: Due) -> Result<Guard, Rejection> {
        let (step, lease) = (self.name(attempt.job_id.step), attempt.stamp.clone());
        self.hand_back(attempt, Event::StepReleased { step, lease }, due)
    }

    /// The attempt of the lease before this one failed by its timeout; this one does not count.
    fn time_lost_out(
        &mut self,
        attempt: &Attempt,
        elapsed: Duration,
        random: f64,
    ) -> Result<Guard, Rejection> {
        let index = attempt.job_id.step;
        let state = self.run.step(index).state;
        let ([lost], StepState::Running) = (attempt.lost.as_slice(), state) else {
            return Err(Rejection::StepNotOpen(state));
        };
        let timeout = Span(self.flow.step(index).timeout.unwrap_or(elapsed));
        let message = format!("the attempt was ended after its timeout of {timeout}").into();
        let error = StepError { kind: ErrorKind::TimedOut, message };
        let over = Attempt { stamp: lost.clone(), lost: Vec::new(), logged: true, ..*attempt };
        let outcome = Outcome::Failed { error, retry_after: None };
        self.end_attempt(&over, &outcome, micros(elapsed), random);
        Ok(Guard::LeaseHeld { job_id: attempt.job_id, token: attempt.stamp.token })
    }

    fn park(
        &mut self,
        attempt: &Attempt,
        limit: &Arc<str>,
        reason: &Arc<str>,
        due: Due,
    ) -> Result<Guard, Rejection> {
        let state = self.run.step(attempt.job_id.step).state;
        // A wait needs no permit.
        if state == StepState::Waiting {
            return Err(Rejection::StepNotOpen(state));
        }
        let (step, lease) = (self.name(attempt.job_id.step), attempt.stamp.clone());
        let (limit, reason) = (Arc::clone(limit), Arc::clone(reason));
        self.hand_back(attempt, Event::StepParked { step, lease, limit, reason }, due)
    }

    /// The job goes back to its queue, and the attempt does not count.
    fn hand_back(&mut self, attempt: &Attempt, event: Event, due: Due) -> Result<Guard, Rejection> {
        let index = attempt.job_id.step;
        let state = self.run.step(index).state;
        if !state.is_open() {
            return Err(Rejection::StepNotOpen(state));
        }
        if !attempt.logged {
            self.log_lost(attempt);
        }
        self.push(event);
        let attempts_before = attempt.stamp.attempt.saturating_sub(1);
        self.postpone(index, attempts_before, due);
        Ok(Guard::LeaseHeld { job_id: attempt.job_id, token: attempt.stamp.token })
    }

    fn end_attempt(&mut self, attempt: &Attempt, outcome: &Outcome, elapsed_us: u64, random: f64) {
        let index = attempt.job_id.step;
        match outcome {
            Outcome::Succeeded(output) => {
                match output::check(self.flow, self.flow.step(index), &self.run, output) {
                    Ok(()) => self.succeed(attempt, output, elapsed_us),
                    Err(error) => self.fail(attempt, error, elapsed_us),
                }
            }
            Outcome::Failed { error, retry_after } => {
                let failures = self.run.step(index).failures + 1;
                let policy = self.flow.step(index).retry;
                match policy.after(failures, random) {
                    NextAttempt::After(delay) if error.kind.is_retryable() => {
                        let delay = retry_after.unwrap_or(delay).min(limits::DURATION_MAX);
                        self.push(Event::AttemptFailed {
                            step: self.name(index),
                            lease: attempt.stamp.clone(),
                            error: error.clone(),
                            elapsed_us,
                            retry_after_ms: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
                        });
                        self.postpone(index, attempt.stamp.attempt, Due::After(delay));
                    }
                    NextAttempt::After(_) | NextAttempt::Never => {
                        self.fail(attempt, error.clone(), elapsed_us);
                    }
                }
            }
        }
    }

    fn succeed(&mut self, attempt: &Attempt, output: &Output, elapsed_us: u64) {
        self.jobs.push(JobChange::Remove(attempt.job_id));
        let lease = Some(attempt.stamp.clone());
        self.hand_over(attempt.job_id.step, lease, output, elapsed_us);
    }

    /// The step ended well, and left this: whoever subscribes to any of it starts.
    fn hand_over(
        &mut self,
        index: StepIndex,
        lease: Option<LeaseStamp>,
        output: &Output,
        elapsed_us: u64,
    ) {
        let mut filled = Vec::new();
        for (key, value) in &output.state {
            let (step, key) = (self.name(index), Arc::clone(key));
            self.push(Event::StateSet { step, key, value: value.clone() });
        }
        for (event, data) in &output.emits {
            filled.extend(self.emit(index, event, data));
        }
        self.complete(index, lease, elapsed_us, output.result.clone());
        for slot in filled {
            self.start_subscribers(Some(slot));
        }
    }

    /// The step ended well: whoever subscribes to that starts.
    fn complete(
        &mut self,
        index: StepIndex,
        lease: Option<LeaseStamp>,
        elapsed_us: u64,
        result: Option<Payload>,
    ) {
        self.push(Event::StepSucceeded { step: self.name(index), lease, elapsed_us, result });
        self.start_subscribers(self.flow.step(index).succeeded);
    }

    fn fail(&mut self, attempt: &Attempt, error: StepError, elapsed_us: u64) {
        let index = attempt.job_id.step;
        let (step, lease) = (self.name(index), Some(attempt.stamp.clone()));
        self.push(Event::StepFailed { step, lease, error, elapsed_us });
        self.jobs.push(JobChange::Remove(attempt.job_id));
        self.start_subscribers(self.flow.step(index).failed);
    }

    /// Writes down that `index` emitted `event`; the slot that this filled, if it was the first.
    fn emit(&mut self, index: StepIndex, event: &str, data: &Payload) -> Option<SlotIndex> {
        let slot = self.flow.slot_index(event).expect("a declared event has a slot");
        let (step, name) = (self.name(index), Arc::clone(&self.flow.slot(slot).name));
        if self.run.slots[slot.at()] == 0 {
            self.push(Event::EventEmitted { step, event: name, data: data.clone() });
            Some(slot)
        } else {
            self.push(Event::EventRepeated { step, event: name, data: data.clone() });
            None
        }
    }

    fn start_subscribers(&mut self, slot: Option<SlotIndex>) {
        let Some(slot) = slot else { return };
        let flow = self.flow;
        for &index in &flow.slot(slot).subscribers {
            if let Some(inputs) = self.inputs_if_ready(index) {
                self.open_step(index, inputs, Due::Now);
            }
        }
    }

    /// The numbers of the events that a pending step starts on, if it can start now.
    fn inputs_if_ready(&self, index: StepIndex) -> Option<Vec<u64>> {
        if self.run.step(index).state != StepState::Pending {
            return None;
        }
        let inputs = self.inputs_of(index);
        let is_ready = match &self.flow.step(index).needs {
            Needs::Start => true,
            Needs::All(slots) => slots.len() == inputs.len(),
            Needs::Any(_) => !inputs.is_empty(),
        };
        is_ready.then_some(inputs)
    }

    /// The numbers of the events that are there of those that a step subscribes to.
    fn inputs_of(&self, index: StepIndex) -> Vec<u64> {
        match &self.flow.step(index).needs {
            Needs::Start => vec![1],
            Needs::All(slots) | Needs::Any(slots) => {
                slots.iter().map(|slot| self.run.slots[slot.at()]).filter(|seq| *seq > 0).collect()
            }
        }
    }

    /// A step's time has come; one that runs is due then.
    fn open_step(&mut self, index: StepIndex, inputs: Vec<u64>, due: Due) {
        let flow = self.flow;
        let step = self.name(index);
        if self.is_stubbed(index) {
            self.push(Event::StepWaiting { step, inputs });
            return;
        }
        match &flow.step(index).action {
            Action::Nothing => {
                self.push(Event::StepQueued { step, inputs });
                self.complete(index, None, 0, None);
            }
            Action::Wait(wait) => {
                self.push(Event::StepWaiting { step, inputs: inputs.clone() });
                self.begin_wait(index, wait, inputs);
            }
            Action::Process(_)
            | Action::Shell(_)
            | Action::Http(_)
            | Action::Mqtt(_)
            | Action::Worker(_) => {
                self.push(Event::StepQueued { step, inputs: inputs.clone() });
                self.add(index, JobKind::Execute, inputs, due);
            }
        }
    }

    fn begin_wait(&mut self, index: StepIndex, wait: &Wait, inputs: Vec<u64>) {
        let due = match wait {
            Wait::Delay(delay) => Due::After(*delay),
            Wait::Until(at) => Due::At(*at),
            Wait::Signal { timeout, .. } => {
                let kept = self.run.signals.iter().find(|kept| kept.steps.contains(&index));
                if let Some(signal_seq) = kept.map(|kept| kept.seq) {
                    self.take_signal(index, signal_seq);
                    return;
                }
                // Without a timeout only a signal ends the wait, and that needs no job.
                let Some(timeout) = timeout else { return };
                Due::After(*timeout)
            }
        };
        self.add(index, JobKind::Timer, inputs, due);
    }

    fn postpone(&mut self, step: StepIndex, attempt: u32, due: Due) {
        self.jobs.push(JobChange::Postpone { job_id: self.job_id(step), attempt, due });
    }

    fn add(&mut self, step: StepIndex, kind: JobKind, inputs: Vec<u64>, due: Due) {
        let flow_step = self.flow.step(step);
        let queue = match &self.run.pool {
            None => Arc::clone(&flow_step.queue),
            Some(pool) => pool::queue_of(&flow_step.queue, pool),
        };
        let priority = self.run.priority.unwrap_or(flow_step.priority);
        let job = Job { job_id: self.job_id(step), kind, queue, priority, attempt: 0, inputs };
        self.jobs.push(JobChange::Add { job, due });
    }

    fn take_signal(&mut self, index: StepIndex, signal_seq: u64) {
        let flow = self.flow;
        let slots = self.emits_of_wait(index);
        let events = slots.iter().map(|slot| Arc::clone(&flow.slot(*slot).name)).collect();
        let fresh: Vec<SlotIndex> =
            slots.into_iter().filter(|slot| self.run.slots[slot.at()] == 0).collect();
        self.push(Event::SignalTaken { step: self.name(index), signal_seq, events });
        self.complete(index, None, 0, None);
        for slot in fresh {
            self.start_subscribers(Some(slot));
        }
    }

    /// What a wait emits when it ends well: all that it declares but what its timeout emits.
    fn emits_of_wait(&self, index: StepIndex) -> Vec<SlotIndex> {
        let step = self.flow.step(index);
        let is_for_timeout = |slot: &SlotIndex| match &step.action {
            Action::Wait(Wait::Signal { on_timeout: OnTimeout::Emit(event), .. }) => {
                *self.flow.slot(*slot).name == **event
            }
            Action::Wait(_)
            | Action::Nothing
            | Action::Process(_)
            | Action::Shell(_)
            | Action::Http(_)
            | Action::Mqtt(_)
            | Action::Worker(_) => false,
        };
        step.emits.iter().copied().filter(|slot| !is_for_timeout(slot)).collect()
    }

    /// The timer of a wait is due: a delay is over, or a signal did not come.
    fn end_wait(&mut self, attempt: &Attempt) {
        let index = attempt.job_id.step;
        let flow = self.flow;
        let Action::Wait(wait) = &flow.step(index).action else {
            unreachable!("only a step with a wait is in the state waiting");
        };
        match wait {
            Wait::Delay(_) | Wait::Until(_) => self.end_wait_well(attempt),
            Wait::Signal { signal, on_timeout, .. } => match on_timeout {
                OnTimeout::Continue => self.end_wait_well(attempt),
                OnTimeout::Emit(event) => {
                    let slot = self.emit(index, event, &Payload::null());
                    self.jobs.push(JobChange::Remove(attempt.job_id));
                    self.complete(index, Some(attempt.stamp.clone()), 0, None);
                    self.start_subscribers(slot);
                }
                OnTimeout::Fail => {
                    let message = format!("the signal `{signal}` did not come in time").into();
                    self.fail(attempt, StepError { kind: ErrorKind::WaitTimedOut, message }, 0);
                }
            },
        }
    }

    fn end_wait_well(&mut self, attempt: &Attempt) {
        let index = attempt.job_id.step;
        let flow = self.flow;
        let mut filled = Vec::new();
        for slot in self.emits_of_wait(index) {
            filled.extend(self.emit(index, &flow.slot(slot).name, &Payload::null()));
        }
        self.jobs.push(JobChange::Remove(attempt.job_id));
        self.complete(index, Some(attempt.stamp.clone()), 0, None);
        for slot in filled {
            self.start_subscribers(Some(slot));
        }
    }

    fn signal(&mut self, signal: &Arc<str>, data: &Payload) -> Result<(), Rejection> {
        output::check_signal(self.flow, &self.run, signal)?;
        self.push(Event::SignalReceived { signal: Arc::clone(signal), data: data.clone() });
        let seq = self.run.version;
        let kept = self.run.signals.last().filter(|kept| kept.seq == seq);
        let takers = kept.map(|kept| kept.steps.clone()).unwrap_or_default();
        let taker =
            takers.into_iter().find(|index| self.run.step(*index).state == StepState::Waiting);
        if let Some(index) = taker {
            self.jobs.push(JobChange::Remove(self.job_id(index)));
            self.take_signal(index, seq);
        }
        Ok(())
    }

    /// Gives every open step the job that it should have, and takes the others away.
    fn reconcile(&mut self, jobs: &[StepIndex]) {
        for index in self.flow.step_indexes() {
            match (self.job_of(index), jobs.contains(&index)) {
                (Some((kind, due)), false) => {
                    let inputs = self.inputs_of(index);
                    self.push(Event::StepRepaired { step: self.name(index) });
                    self.add(index, kind, inputs, due);
                }
                (None, true) => {
                    self.push(Event::StepRepaired { step: self.name(index) });
                    self.jobs.push(JobChange::Remove(self.job_id(index)));
                }
                (Some(_), true) | (None, false) => {}
            }
        }
    }

    /// The job that a step in its state has, as if it were opened now.
    fn job_of(&self, index: StepIndex) -> Option<(JobKind, Due)> {
        if self.is_stubbed(index) {
            return None;
        }
        match self.run.step(index).state {
            StepState::Queued | StepState::Running => Some((JobKind::Execute, Due::Now)),
            StepState::Waiting => match &self.flow.step(index).action {
                Action::Wait(Wait::Delay(delay)) => Some((JobKind::Timer, Due::After(*delay))),
                Action::Wait(Wait::Until(at)) => Some((JobKind::Timer, Due::At(*at))),
                // Without a timeout only a signal ends the wait.
                Action::Wait(Wait::Signal { timeout, .. }) => {
                    timeout.map(|timeout| (JobKind::Timer, Due::After(timeout)))
                }
                Action::Nothing
                | Action::Process(_)
                | Action::Shell(_)
                | Action::Http(_)
                | Action::Mqtt(_)
                | Action::Worker(_) => None,
            },
            StepState::Pending
            | StepState::Succeeded
            | StepState::Failed
            | StepState::Skipped
            | StepState::Cancelled => None,
        }
    }

    fn cancel(&mut self, reason: Option<Arc<str>>) {
        for index in self.flow.step_indexes() {
            let state = self.run.step(index).state;
            if state.is_open() {
                self.push(Event::StepCancelled { step: self.name(index) });
                self.jobs.push(JobChange::Remove(self.job_id(index)));
            } else if state == StepState::Pending {
                self.push(Event::StepSkipped { step: self.name(index) });
            }
        }
        self.push(Event::RunCancelled { reason });
    }

    /// A run ends when nothing is queued, running or waiting.
    fn end_if_quiet(&mut self) {
        let is_held = self.run.status == RunStatus::Held;
        if self.run.open > 0 || is_held || self.run.status.is_terminal() {
            return;
        }
        for index in self.flow.step_indexes() {
            if self.run.step(index).state == StepState::Pending {
                self.push(Event::StepSkipped { step: self.name(index) });
            }
        }
        let failed = self.run.failure.as_ref().map(|failure| Arc::clone(&failure.step));
        self.push(match failed {
            Some(step) => Event::RunFailed { step },
            None => Event::RunCompleted {},
        });
    }

    fn finish(mut self, commit_id: CommitId, guards: Vec<Guard>) -> Commit {
        self.end_if_quiet();
        Commit {
            commit_id,
            run_id: self.run.run_id,
            guards,
            events: self.events,
            record: Arc::new(self.run),
            jobs: self.jobs,
        }
    }
}
