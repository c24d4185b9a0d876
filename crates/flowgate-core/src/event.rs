//! What happened in a run, as it is written down for good.
//!
//! An event is never changed once it is stored. A new kind of event, or a new field, follows the
//! rules of `docs/guide/formats.md`: new code reads every old event, and the files under
//! `tests/it/formats` prove it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{InstanceId, LeaseToken, Position, Revision, RunId};
use crate::payload::Payload;
use crate::run::{KeptSignal, StepRecord};
use crate::time::Timestamp;

/// The number of the form in which events and run records are stored.
pub const FORMAT: u32 = 1;

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
#[expect(clippy::enum_variant_names, reason = "the names are those of the stored types")]
pub enum Event {
    /// The run was accepted. Always the first event.
    #[serde(rename = "run.started")]
    RunStarted(RunStarted),
    /// A run that was held goes on, pinned to this revision from here on.
    #[serde(rename = "run.released")]
    RunReleased {
        /// The revision.
        revision: Revision,
        /// The pool whose instances execute it from here on; any if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pool: Option<Arc<str>>,
    },
    /// The run goes on, on another revision.
    #[serde(rename = "run.migrated")]
    RunMigrated(Box<RunMigrated>),
    /// What is open of the run was given up, for it to go on when a deployment has ended.
    #[serde(rename = "run.checkpointed")]
    RunCheckpointed {
        /// The deployment.
        deployment: Arc<str>,
        /// When it goes on by itself, if nobody has let it.
        until: Timestamp,
    },
    /// A step became due.
    #[serde(rename = "step.queued")]
    StepQueued {
        /// The step.
        step: Arc<str>,
        /// The numbers of the events whose payloads are its input.
        inputs: Vec<u64>,
    },
    /// A step was open without a job, which no decision leaves behind; it has one again.
    #[serde(rename = "step.repaired")]
    StepRepaired {
        /// The step.
        step: Arc<str>,
    },
    /// A step began to wait without holding a worker.
    #[serde(rename = "step.waiting")]
    StepWaiting {
        /// The step.
        step: Arc<str>,
        /// The numbers of the events whose payloads are its input.
        inputs: Vec<u64>,
    },
    /// An attempt of a step began.
    #[serde(rename = "step.started")]
    StepStarted {
        /// The step.
        step: Arc<str>,
        /// The lease that it runs under.
        lease: LeaseStamp,
    },
    /// A lease ended without an outcome: its instance died, stopped or was cut off.
    #[serde(rename = "step.lost")]
    StepLost {
        /// The step.
        step: Arc<str>,
        /// The lease that was lost.
        lease: LeaseStamp,
    },
    /// An instance handed a job back unfinished, on its shutdown.
    #[serde(rename = "step.released")]
    StepReleased {
        /// The step.
        step: Arc<str>,
        /// The lease that ended.
        lease: LeaseStamp,
    },
    /// A job waits for a permit of a limit, and its attempt does not count.
    #[serde(rename = "step.parked")]
    StepParked {
        /// The step.
        step: Arc<str>,
        /// The lease that ended.
        lease: LeaseStamp,
        /// The key of the limit.
        limit: Arc<str>,
        /// Why it must wait, in words.
        reason: Arc<str>,
    },
    /// A step emitted an event for the first time in this run.
    #[serde(rename = "event.emitted")]
    EventEmitted {
        /// The step that emitted it.
        step: Arc<str>,
        /// The event's name.
        event: Arc<str>,
        /// Its data.
        data: Payload,
    },
    /// A step emitted an event that this run has already; it starts nothing.
    #[serde(rename = "event.repeated")]
    EventRepeated {
        /// The step that emitted it.
        step: Arc<str>,
        /// The event's name.
        event: Arc<str>,
        /// Its data.
        data: Payload,
    },
    /// A step set a state value of the run.
    #[serde(rename = "state.set")]
    StateSet {
        /// The step that set it.
        step: Arc<str>,
        /// The value's name.
        key: Arc<str>,
        /// The value.
        value: Payload,
    },
    /// An attempt failed and another one follows.
    #[serde(rename = "attempt.failed")]
    AttemptFailed {
        /// The step.
        step: Arc<str>,
        /// The lease of the attempt.
        lease: LeaseStamp,
        /// Why it failed.
        error: StepError,
        /// How long it took.
        elapsed_us: u64,
        /// How long until the next attempt.
        retry_after_ms: u64,
    },
    /// A step ended well.
    #[serde(rename = "step.succeeded")]
    StepSucceeded {
        /// The step.
        step: Arc<str>,
        /// The lease of the attempt; absent where a signal ended a wait.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<LeaseStamp>,
        /// How long the attempt took.
        elapsed_us: u64,
        /// What the step returned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<Payload>,
    },
    /// A step failed for good.
    #[serde(rename = "step.failed")]
    StepFailed {
        /// The step.
        step: Arc<str>,
        /// The lease of the last attempt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<LeaseStamp>,
        /// Why it failed.
        error: StepError,
        /// How long the last attempt took.
        elapsed_us: u64,
    },
    /// A step could no longer start when its run ended.
    #[serde(rename = "step.skipped")]
    StepSkipped {
        /// The step.
        step: Arc<str>,
    },
    /// A step was open when its run was cancelled.
    #[serde(rename = "step.cancelled")]
    StepCancelled {
        /// The step.
        step: Arc<str>,
    },
    /// A step's success was taken over from the run that this one tries again.
    #[serde(rename = "step.carried")]
    StepCarried {
        /// The step.
        step: Arc<str>,
    },
    /// Somebody sent the run a signal.
    #[serde(rename = "signal.received")]
    SignalReceived {
        /// The signal's name.
        signal: Arc<str>,
        /// Its data.
        data: Payload,
    },
    /// A wait took a signal. The signal's data is the data of every event named here.
    #[serde(rename = "signal.taken")]
    SignalTaken {
        /// The step that waited.
        step: Arc<str>,
        /// The number of the signal's event.
        signal_seq: u64,
        /// The events that the step emits by it.
        events: Vec<Arc<str>>,
    },
    /// The run ended well. Nothing follows.
    #[serde(rename = "run.completed")]
    RunCompleted {},
    /// The run ended because a step failed. Nothing follows.
    #[serde(rename = "run.failed")]
    RunFailed {
        /// The step that failed first.
        step: Arc<str>,
    },
    /// The run was cancelled. Nothing follows.
    #[serde(rename = "run.cancelled")]
    RunCancelled {
        /// Why, in the words of whoever cancelled it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Arc<str>>,
    },
}

/// The facts of a start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunStarted {
    /// The flow.
    pub flow: Arc<str>,
    /// Its revision, to which the run is pinned.
    pub revision: Revision,
    /// The start's payload.
    pub input: Payload,
    /// The key of the start, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Arc<str>>,
    /// Labels for finding the run again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<Arc<str>, Arc<str>>,
    /// The run that this one tries again, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<RunId>,
    /// The priority of its jobs, whatever their steps say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Present if the gate of its flow was closed: the run begins when it is released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// The instance that accepted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// The pool whose instances execute it; any if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Arc<str>>,
}

/// What a start that is held has asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// How long after its acceptance its entry step is due, if that is later than at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
    /// When its entry step is due, if it named a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

/// Where a run stands on the revision that it was moved to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunMigrated {
    /// The revision that it is pinned to from here on.
    pub revision: Revision,
    /// Its steps, in the order of that revision.
    pub steps: Vec<StepRecord>,
    /// For everything a step of that revision can subscribe to, the number of the event that
    /// brought it; 0 before.
    pub slots: Vec<u64>,
    /// Signals that no wait has taken yet, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signals: Vec<KeptSignal>,
    /// Steps with another name than before: the old name, and the new one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub renamed: BTreeMap<Arc<str>, Arc<str>>,
    /// The deployment that moved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<Arc<str>>,
    /// The pool whose instances execute it from here on; any if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Arc<str>>,
}

/// Which lease an event was written under.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStamp {
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The lease's token.
    pub token: LeaseToken,
    /// The instance that held it.
    pub instance: InstanceId,
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepError {
    /// The kind of failure.
    pub kind: ErrorKind,
    /// What the step, or the engine on its behalf, said.
    pub message: Arc<str>,
}

/// The kinds of failure of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The step said so.
    Failed,
    /// The step said so, and that another attempt would not help.
    Final,
    /// It took longer than it may.
    TimedOut,
    /// It broke a rule: an undeclared event, an output over a limit, an answer that is not JSON.
    Invalid,
    /// Its handler panicked.
    Panicked,
    /// Its lease was lost more often than a step may lose it.
    Lost,
    /// A wait ended without what it waited for.
    WaitTimedOut,
}

impl ErrorKind {
    /// Whether another attempt could end differently.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Failed | Self::TimedOut | Self::Panicked => true,
            Self::Final | Self::Invalid | Self::Lost | Self::WaitTimedOut => false,
        }
    }
}

impl Event {
    /// The event's type as it is stored and shown.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::RunStarted(_) => "run.started",
            Self::RunReleased { .. } => "run.released",
            Self::RunMigrated(_) => "run.migrated",
            Self::RunCheckpointed { .. } => "run.checkpointed",
            Self::StepQueued { .. } => "step.queued",
            Self::StepRepaired { .. } => "step.repaired",
            Self::StepWaiting { .. } => "step.waiting",
            Self::StepStarted { .. } => "step.started",
            Self::StepLost { .. } => "step.lost",
            Self::StepReleased { .. } => "step.released",
            Self::StepParked { .. } => "step.parked",
            Self::EventEmitted { .. } => "event.emitted",
            Self::EventRepeated { .. } => "event.repeated",
            Self::StateSet { .. } => "state.set",
            Self::AttemptFailed { .. } => "attempt.failed",
            Self::StepSucceeded { .. } => "step.succeeded",
            Self::StepFailed { .. } => "step.failed",
            Self::StepSkipped { .. } => "step.skipped",
            Self::StepCancelled { .. } => "step.cancelled",
            Self::StepCarried { .. } => "step.carried",
            Self::SignalReceived { .. } => "signal.received",
            Self::SignalTaken { .. } => "signal.taken",
            Self::RunCompleted {} => "run.completed",
            Self::RunFailed { .. } => "run.failed",
            Self::RunCancelled { .. } => "run.cancelled",
        }
    }

    /// The step that the event is about.
    pub fn step(&self) -> Option<&Arc<str>> {
        match self {
            Self::StepQueued { step, .. }
            | Self::StepWaiting { step, .. }
            | Self::StepStarted { step, .. }
            | Self::StepLost { step, .. }
            | Self::StepReleased { step, .. }
            | Self::StepParked { step, .. }
            | Self::EventEmitted { step, .. }
            | Self::EventRepeated { step, .. }
            | Self::StateSet { step, .. }
            | Self::AttemptFailed { step, .. }
            | Self::StepSucceeded { step, .. }
            | Self::StepFailed { step, .. }
            | Self::StepRepaired { step }
            | Self::StepSkipped { step }
            | Self::StepCancelled { step }
            | Self::StepCarried { step }
            | Self::SignalTaken { step, .. }
            | Self::RunFailed { step } => Some(step),
            Self::RunStarted(_)
            | Self::RunReleased { .. }
            | Self::RunMigrated(_)
            | Self::RunCheckpointed { .. }
            | Self::SignalReceived { .. }
            | Self::RunCompleted {}
            | Self::RunCancelled { .. } => None,
        }
    }

    /// The lease that the event was written under.
    pub fn lease(&self) -> Option<&LeaseStamp> {
        match self {
            Self::StepStarted { lease, .. }
            | Self::StepLost { lease, .. }
            | Self::StepReleased { lease, .. }
            | Self::StepParked { lease, .. }
            | Self::AttemptFailed { lease, .. } => Some(lease),
            Self::StepSucceeded { lease, .. } | Self::StepFailed { lease, .. } => lease.as_ref(),
            Self::RunStarted(_)
            | Self::RunReleased { .. }
            | Self::RunMigrated(_)
            | Self::RunCheckpointed { .. }
            | Self::StepQueued { .. }
            | Self::StepWaiting { .. }
            | Self::StepRepaired { .. }
            | Self::EventEmitted { .. }
            | Self::EventRepeated { .. }
            | Self::StateSet { .. }
            | Self::StepSkipped { .. }
            | Self::StepCancelled { .. }
            | Self::StepCarried { .. }
            | Self::SignalReceived { .. }
            | Self::SignalTaken { .. }
            | Self::RunCompleted {}
            | Self::RunFailed { .. }
            | Self::RunCancelled { .. } => None,
        }
    }

    /// The payload that a job gets which names this event's number.
    pub fn payload(&self) -> Payload {
        match self {
            Self::RunStarted(started) => started.input.clone(),
            Self::EventEmitted { data, .. } | Self::SignalReceived { data, .. } => data.clone(),
            Self::StateSet { value, .. } => value.clone(),
            Self::StepFailed { error, .. } => {
                Payload::of(error).expect("an error's JSON form is within the limits")
            }
            Self::RunReleased { .. }
            | Self::RunMigrated(_)
            | Self::RunCheckpointed { .. }
            | Self::StepQueued { .. }
            | Self::StepWaiting { .. }
            | Self::StepRepaired { .. }
            | Self::StepStarted { .. }
            | Self::StepLost { .. }
            | Self::StepReleased { .. }
            | Self::StepParked { .. }
            | Self::EventRepeated { .. }
            | Self::AttemptFailed { .. }
            | Self::StepSucceeded { .. }
            | Self::StepSkipped { .. }
            | Self::StepCancelled { .. }
            | Self::StepCarried { .. }
            | Self::SignalTaken { .. }
            | Self::RunCompleted {}
            | Self::RunFailed { .. }
            | Self::RunCancelled { .. } => Payload::null(),
        }
    }

    /// Bytes of the payloads that the event carries.
    pub fn payload_bytes(&self) -> usize {
        match self {
            Self::RunStarted(started) => started.input.bytes(),
            Self::EventEmitted { data, .. }
            | Self::EventRepeated { data, .. }
            | Self::SignalReceived { data, .. }
            | Self::StateSet { value: data, .. } => data.bytes(),
            Self::StepSucceeded { result, .. } => result.as_ref().map_or(0, Payload::bytes),
            Self::AttemptFailed { error, .. } | Self::StepFailed { error, .. } => {
                error.message.len()
            }
            Self::RunReleased { .. }
            | Self::RunMigrated(_)
            | Self::RunCheckpointed { .. }
            | Self::StepQueued { .. }
            | Self::StepWaiting { .. }
            | Self::StepRepaired { .. }
            | Self::StepStarted { .. }
            | Self::StepLost { .. }
            | Self::StepReleased { .. }
            | Self::StepParked { .. }
            | Self::StepSkipped { .. }
            | Self::StepCancelled { .. }
            | Self::StepCarried { .. }
            | Self::SignalTaken { .. }
            | Self::RunCompleted {}
            | Self::RunFailed { .. }
            | Self::RunCancelled { .. } => 0,
        }
    }

    /// The revision that the run is pinned to from this event on, if it says so.
    pub fn revision(&self) -> Option<&Revision> {
        match self {
            Self::RunStarted(started) => Some(&started.revision),
            Self::RunReleased { revision, .. } => Some(revision),
            Self::RunMigrated(migrated) => Some(&migrated.revision),
            Self::RunCheckpointed { .. }
            | Self::StepQueued { .. }
            | Self::StepWaiting { .. }
            | Self::StepRepaired { .. }
            | Self::StepStarted { .. }
            | Self::StepLost { .. }
            | Self::StepReleased { .. }
            | Self::StepParked { .. }
            | Self::EventEmitted { .. }
            | Self::EventRepeated { .. }
            | Self::StateSet { .. }
            | Self::AttemptFailed { .. }
            | Self::StepSucceeded { .. }
            | Self::StepFailed { .. }
            | Self::StepSkipped { .. }
            | Self::StepCancelled { .. }
            | Self::StepCarried { .. }
            | Self::SignalReceived { .. }
            | Self::SignalTaken { .. }
            | Self::RunCompleted {}
            | Self::RunFailed { .. }
            | Self::RunCancelled { .. } => None,
        }
    }

    /// Whether the run ends with this event.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::RunCompleted {} | Self::RunFailed { .. } | Self::RunCancelled { .. })
    }
}

/// An event as a store returns it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredEvent {
    /// Its place in the feed.
    pub position: Position,
    /// Its run.
    pub run_id: RunId,
    /// Its number in the run, from 1 without gaps.
    pub seq: u64,
    /// When it was stored, on the store's clock.
    pub at: Timestamp,
    /// What happened.
    pub event: Event,
}
