//! The record of a run: where it stands, small and bounded.
//!
//! The record is the fold of the run's events. [`Run::apply`] is the only way that it changes, and
//! the rules in [`crate::decide`] go through it too, so a stored record cannot differ from its log.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::event::{Event, Hold, LeaseStamp, RunMigrated, RunStarted, StepError};
use crate::flow::{Action, Flow, Wait};
use crate::ids::{Revision, RunId, SlotIndex, StepIndex};
use crate::payload::Payload;

/// The tag of a run that tries a revision on the input of another run; its value is that run.
pub const SHADOW_TAG: &str = "flowgate.shadow";
/// How the names of tags begin that only flowgate itself gives a run.
pub const OWN_TAGS: &str = "flowgate.";

/// Where a run stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The run.
    pub run_id: RunId,
    /// Its flow.
    pub flow: Arc<str>,
    /// The revision that it is pinned to.
    pub revision: Revision,
    /// The number of its last event.
    pub version: u64,
    /// Its status.
    pub status: RunStatus,
    /// Its steps, in the order of its revision.
    pub steps: Vec<StepRecord>,
    /// For everything a step can subscribe to, the number of the event that brought it; 0 before.
    pub slots: Vec<u64>,
    /// For every state value, the number of the event that holds it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub state: BTreeMap<Arc<str>, u64>,
    /// Signals that no wait has taken yet, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signals: Vec<KeptSignal>,
    /// The first failure that no step subscribes to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The key that it was started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Arc<str>>,
    /// Labels for finding it again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<Arc<str>, Arc<str>>,
    /// The run that it tries again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<RunId>,
    /// The priority of its jobs, whatever their steps say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// What its start asked for, while it is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// The pool whose instances execute it; any if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Arc<str>>,
    /// Steps that are queued, running or waiting.
    pub open: u32,
    /// Steps that are waiting.
    pub waiting: u32,
}

/// The status of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// It was accepted while the gate of its flow was closed, and begins when it is released.
    Held,
    /// A step is due, running or about to be tried again.
    Running,
    /// Every open step waits.
    Waiting,
    /// It ended well.
    Completed,
    /// It ended because a step failed.
    Failed,
    /// It was cancelled.
    Cancelled,
}

impl RunStatus {
    /// All statuses, in the order in which a person would list them.
    pub const ALL: [Self; 6] =
        [Self::Held, Self::Running, Self::Waiting, Self::Completed, Self::Failed, Self::Cancelled];

    /// Those of runs that have not ended.
    pub const OPEN: [Self; 3] = [Self::Held, Self::Running, Self::Waiting];

    /// Whether nothing can change any more.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Held | Self::Running | Self::Waiting => false,
            Self::Completed | Self::Failed | Self::Cancelled => true,
        }
    }

    /// As it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Where a step of a run stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Its state.
    pub state: StepState,
    /// The number of its last attempt that is in the log.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: u32,
    /// Attempts that failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// Leases that were lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The state of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepState {
    /// It has not started, and may.
    #[default]
    Pending,
    /// It is due, or will be tried again.
    Queued,
    /// An attempt is known to be running.
    Running,
    /// It waits without holding a worker.
    Waiting,
    /// It ended well.
    Succeeded,
    /// It failed for good.
    Failed,
    /// It could not start before the run ended.
    Skipped,
    /// It was open when the run was cancelled.
    Cancelled,
}

impl StepState {
    /// Whether the run cannot end while a step is in this state.
    pub fn is_open(self) -> bool {
        match self {
            Self::Queued | Self::Running | Self::Waiting => true,
            Self::Pending | Self::Succeeded | Self::Failed | Self::Skipped | Self::Cancelled => {
                false
            }
        }
    }

    /// As it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A signal that came before a wait for it began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSignal {
    /// The number of the event that holds its data.
    pub seq: u64,
    /// The steps whose wait it meets.
    pub steps: Vec<StepIndex>,
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The step that failed.
    pub step: Arc<str>,
    /// What it said.
    pub error: StepError,
}

/// A log that no sequence of decisions can have written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FoldError {
    /// There is nothing to fold.
    #[error("a run has at least one event")]
    Empty,
    /// The first event is not a start.
    #[error("a run's log begins with run.started, not with {0}")]
    NotStarted(&'static str),
    /// An event names a step that the revision does not have.
    #[error("event {seq} names the step `{step}`, which the revision does not have")]
    UnknownStep {
        /// The event's number.
        seq: u64,
        /// The step's name.
        step: Arc<str>,
    },
    /// A second start.
    #[error("event {seq} starts a run that has started")]
    SecondStart {
        /// The event's number.
        seq: u64,
    },
    /// An event pins the run to a revision that is not at hand.
    #[error("event {seq} pins the run to the revision {revision}, which is not at hand")]
    UnknownRevision {
        /// The event's number.
        seq: u64,
        /// The revision.
        revision: Revision,
    },
}

impl Run {
    /// The record of a run whose first event is `started`.
    pub fn new(run_id: RunId, flow: &Flow, started: &RunStarted) -> Self {
        Self {
            run_id,
            flow: Arc::clone(&flow.name),
            revision: flow.revision.clone(),
            version: 1,
            status: if started.hold.is_some() { RunStatus::Held } else { RunStatus::Running },
            steps: vec![StepRecord::default(); flow.steps.len()],
            slots: vec![0; flow.slots.len()],
            state: BTreeMap::new(),
            signals: Vec::new(),
            failure: None,
            key: started.key.clone(),
            tags: started.tags.clone(),
            retry_of: started.retry_of,
            priority: started.priority,
            hold: started.hold,
            pool: started.pool.clone(),
            open: 0,
            waiting: 0,
        }
    }

    /// The record after all of `events`, the whole log of a run; `flows` has every revision that it
    /// names.
    pub fn fold<'a>(
        run_id: RunId,
        flows: &[&Flow],
        events: impl IntoIterator<Item = &'a Event>,
    ) -> Result<Self, FoldError> {
        let mut events = events.into_iter();
        let (mut flow, mut run) = match events.next() {
            None => return Err(FoldError::Empty),
            Some(Event::RunStarted(started)) => {
                let flow = revision_of(flows, &started.revision, 1)?;
                (flow, Self::new(run_id, flow, started))
            }
            Some(other) => return Err(FoldError::NotStarted(other.kind())),
        };
        for event in events {
            if let Some(revision) = event.revision() {
                flow = revision_of(flows, revision, run.version + 1)?;
            }
            run.apply(flow, event)?;
        }
        Ok(run)
    }

    /// Takes the next event of the run into the record. `flow` is the revision that the run is
    /// pinned to after it.
    pub fn apply(&mut self, flow: &Flow, event: &Event) -> Result<(), FoldError> {
        let seq = self.version + 1;
        let index = match event.step() {
            None => None,
            Some(name) => Some(
                flow.step_index(name)
                    .ok_or_else(|| FoldError::UnknownStep { seq, step: Arc::clone(name) })?,
            ),
        };
        self.version = seq;
        match event {
            Event::RunStarted(_) => return Err(FoldError::SecondStart { seq }),
            Event::RunReleased { pool, .. } => self.release(flow, pool.clone()),
            Event::RunMigrated(migrated) => self.migrate(migrated),
            Event::RunCheckpointed { .. } => {}
            Event::SignalReceived { signal, data } => {
                let steps = self.waits_met_by(flow, signal, data);
                if !steps.is_empty() {
                    self.signals.push(KeptSignal { seq, steps });
                }
            }
            Event::RunCompleted {} => self.status = RunStatus::Completed,
            Event::RunFailed { .. } => self.status = RunStatus::Failed,
            Event::RunCancelled { .. } => self.status = RunStatus::Cancelled,
            Event::StepQueued { .. }
            | Event::StepWaiting { .. }
            | Event::StepRepaired { .. }
            | Event::StepStarted { .. }
            | Event::StepLost { .. }
            | Event::StepReleased { .. }
            | Event::StepParked { .. }
            | Event::EventEmitted { .. }
            | Event::EventRepeated { .. }
            | Event::StateSet { .. }
            | Event::AttemptFailed { .. }
            | Event::StepSucceeded { .. }
            | Event::StepFailed { .. }
            | Event::StepSkipped { .. }
            | Event::StepCancelled { .. }
            | Event::StepCarried { .. }
            | Event::SignalTaken { .. } => {
                self.apply_to_step(flow, index.expect("these events name a step"), seq, event);
            }
        }
        Ok(())
    }

    fn apply_to_step(&mut self, flow: &Flow, index: StepIndex, seq: u64, event: &Event) {
        match event {
            Event::StepQueued { .. } => self.set_state(index, StepState::Queued),
            Event::StepWaiting { .. } => self.set_state(index, StepState::Waiting),
            Event::StepStarted { lease, .. } => {
                self.note_attempt(index, lease);
                self.set_state(index, StepState::Running);
            }
            Event::StepLost { lease, .. } => {
                self.note_attempt(index, lease);
                self.steps[index.at()].lost += 1;
                self.reopen(index);
            }
            Event::StepReleased { .. } | Event::StepParked { .. } => self.reopen(index),
            Event::EventEmitted { event, .. } => self.fill(flow.slot_index(event), seq),
            Event::StateSet { key, .. } => {
                self.state.insert(Arc::clone(key), seq);
            }
            Event::AttemptFailed { lease, .. } => {
                self.note_attempt(index, lease);
                self.steps[index.at()].failures += 1;
                self.set_state(index, StepState::Queued);
            }
            Event::StepSucceeded { lease, .. } => {
                self.note_outcome(index, lease.as_ref());
                self.set_state(index, StepState::Succeeded);
                self.fill(flow.step(index).succeeded, seq);
            }
            Event::StepCarried { .. } => {
                self.set_state(index, StepState::Succeeded);
                self.fill(flow.step(index).succeeded, seq);
            }
            Event::StepFailed { lease, error, step, .. } => {
                self.note_outcome(index, lease.as_ref());
                self.steps[index.at()].failures += 1;
                self.set_state(index, StepState::Failed);
                match flow.step(index).failed {
                    Some(slot) => self.fill(Some(slot), seq),
                    None if self.failure.is_none() => {
                        self.failure =
                            Some(Failure { step: Arc::clone(step), error: error.clone() });
                    }
                    None => {}
                }
            }
            Event::SignalTaken { signal_seq, events, .. } => {
                self.signals.retain(|kept| kept.seq != *signal_seq);
                for event in events {
                    self.fill(flow.slot_index(event), *signal_seq);
                }
            }
            Event::StepSkipped { .. } => self.set_state(index, StepState::Skipped),
            Event::StepCancelled { .. } => self.set_state(index, StepState::Cancelled),
            Event::EventRepeated { .. }
            | Event::StepRepaired { .. }
            | Event::RunStarted(_)
            | Event::RunReleased { .. }
            | Event::RunMigrated(_)
            | Event::RunCheckpointed { .. }
            | Event::SignalReceived { .. }
            | Event::RunCompleted {}
            | Event::RunFailed { .. }
            | Event::RunCancelled { .. } => {}
        }
    }

    /// Nothing has happened to it before, so it begins as if it started on `flow`.
    fn release(&mut self, flow: &Flow, pool: Option<Arc<str>>) {
        self.revision = flow.revision.clone();
        self.steps = vec![StepRecord::default(); flow.steps.len()];
        self.slots = vec![0; flow.slots.len()];
        self.hold = None;
        self.pool = pool;
        self.status = RunStatus::Running;
    }

    fn migrate(&mut self, migrated: &RunMigrated) {
        let RunMigrated { revision, steps, slots, signals, renamed: _, deployment: _, pool } =
            migrated;
        self.revision = revision.clone();
        self.steps.clone_from(steps);
        self.slots.clone_from(slots);
        self.signals.clone_from(signals);
        self.pool.clone_from(pool);
        let count = |is: fn(StepState) -> bool| {
            let count = self.steps.iter().filter(|step| is(step.state)).count();
            u32::try_from(count).expect("a flow's steps are few")
        };
        self.open = count(StepState::is_open);
        self.waiting = count(|state| state == StepState::Waiting);
        self.set_status();
    }

    fn set_state(&mut self, index: StepIndex, state: StepState) {
        let record = &mut self.steps[index.at()];
        let before = std::mem::replace(&mut record.state, state);
        self.open = self.open + u32::from(state.is_open()) - u32::from(before.is_open());
        self.waiting = self.waiting + u32::from(state == StepState::Waiting)
            - u32::from(before == StepState::Waiting);
        self.set_status();
    }

    fn set_status(&mut self) {
        self.status = if self.open > 0 && self.open == self.waiting {
            RunStatus::Waiting
        } else {
            RunStatus::Running
        };
    }

    /// A lease ended without an outcome: a running step is due again, a waiting one still waits.
    fn reopen(&mut self, index: StepIndex) {
        if self.steps[index.at()].state == StepState::Running {
            self.set_state(index, StepState::Queued);
        }
    }

    fn note_attempt(&mut self, index: StepIndex, lease: &LeaseStamp) {
        let record = &mut self.steps[index.at()];
        record.attempt = record.attempt.max(lease.attempt);
    }

    fn note_outcome(&mut self, index: StepIndex, lease: Option<&LeaseStamp>) {
        if let Some(lease) = lease {
            self.note_attempt(index, lease);
        }
    }

    /// The first to fill a slot counts.
    fn fill(&mut self, slot: Option<SlotIndex>, seq: u64) {
        if let Some(slot) = slot
            && self.slots[slot.at()] == 0
        {
            self.slots[slot.at()] = seq;
        }
    }

    /// The steps that wait, or may yet wait, for what this signal says.
    fn waits_met_by(&self, flow: &Flow, signal: &str, data: &Payload) -> Vec<StepIndex> {
        let mut value = None;
        let mut meets = |index: &StepIndex| match &flow.step(*index).action {
            Action::Wait(Wait::Signal { signal: name, matches, .. }) if **name == *signal => {
                let value = value.get_or_insert_with(|| data.value());
                matches.iter().all(|(key, wanted)| value.get(key) == Some(wanted))
            }
            Action::Wait(_)
            | Action::Nothing
            | Action::Process(_)
            | Action::Shell(_)
            | Action::Http(_)
            | Action::Mqtt(_)
            | Action::Worker(_) => false,
        };
        let may_take = |index: &StepIndex| {
            matches!(self.steps[index.at()].state, StepState::Pending | StepState::Waiting)
        };
        flow.step_indexes().filter(may_take).filter(|index| meets(index)).collect()
    }

    /// Whether it tries a revision on the input of another run, so that steps which change something
    /// outside are not executed.
    pub fn is_shadow(&self) -> bool {
        self.tags.contains_key(SHADOW_TAG)
    }

    /// The state of the step at `index`.
    pub fn step(&self, index: StepIndex) -> &StepRecord {
        &self.steps[index.at()]
    }
}

fn revision_of<'a>(
    flows: &[&'a Flow],
    revision: &Revision,
    seq: u64,
) -> Result<&'a Flow, FoldError> {
    let found = flows.iter().find(|flow| flow.revision == *revision);
    found.copied().ok_or_else(|| FoldError::UnknownRevision { seq, revision: revision.clone() })
}
