//! The trail of one run: who did what with it, in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::event::{Event, LeaseStamp, StoredEvent};
use crate::ids::{InstanceId, Revision};
use crate::time::Timestamp;

/// Something that was done with a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// The number of its event.
    pub seq: u64,
    /// When.
    pub at: Timestamp,
    /// What: the type of its event.
    pub what: String,
    /// The revision that the run was pinned to from then on.
    pub revision: Option<Revision>,
    /// The step.
    pub step: Option<Arc<str>>,
    /// The number of the attempt.
    pub attempt: Option<u32>,
    /// The instance that accepted the run, or executed the attempt.
    pub instance: Option<InstanceId>,
    /// How long the attempt took.
    pub took_us: Option<u64>,
    /// More about it, in words.
    pub note: Option<String>,
}

/// The trail of a run, as far as its events were read.
#[derive(Clone, Debug, Default)]
pub struct Trail {
    marks: Vec<Mark>,
    revision: Option<Revision>,
    /// By step, the attempts that have begun and not ended.
    open: BTreeMap<Arc<str>, Mark>,
}

impl Trail {
    /// Takes the next event of the run.
    pub fn note(&mut self, stored: &StoredEvent) {
        if let Some(revision) = stored.event.revision() {
            self.revision = Some(revision.clone());
        }
        match &stored.event {
            // What was emitted, set and queued follows from the attempts.
            Event::StepQueued { .. }
            | Event::EventEmitted { .. }
            | Event::EventRepeated { .. }
            | Event::StateSet { .. }
            | Event::SignalTaken { .. }
            | Event::StepSkipped { .. } => {}
            Event::StepStarted { step, .. } => {
                self.open.insert(Arc::clone(step), self.mark(stored));
            }
            Event::RunStarted(_)
            | Event::RunReleased { .. }
            | Event::RunMigrated(_)
            | Event::RunCheckpointed { .. }
            | Event::StepRepaired { .. }
            | Event::StepWaiting { .. }
            | Event::StepLost { .. }
            | Event::StepReleased { .. }
            | Event::StepParked { .. }
            | Event::AttemptFailed { .. }
            | Event::StepSucceeded { .. }
            | Event::StepFailed { .. }
            | Event::StepCancelled { .. }
            | Event::StepCarried { .. }
            | Event::SignalReceived { .. }
            | Event::RunCompleted {}
            | Event::RunFailed { .. }
            | Event::RunCancelled { .. } => {
                if let Some(step) = stored.event.step() {
                    self.open.remove(step);
                }
                self.marks.push(self.mark(stored));
            }
        }
    }

    /// How many marks there are so far.
    pub fn len(&self) -> usize {
        self.marks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// The marks in order, with the attempts that go on as the last.
    pub fn into_marks(self) -> Vec<Mark> {
        let Self { mut marks, open, .. } = self;
        let mut open: Vec<Mark> = open.into_values().collect();
        open.sort_by_key(|mark| mark.seq);
        marks.extend(open);
        marks
    }

    fn mark(&self, stored: &StoredEvent) -> Mark {
        let event = &stored.event;
        let lease = event.lease();
        let accepted_by =
            if let Event::RunStarted(started) = event { started.instance.clone() } else { None };
        Mark {
            seq: stored.seq,
            at: stored.at,
            what: event.kind().to_owned(),
            revision: self.revision.clone(),
            step: event.step().cloned(),
            attempt: lease.map(|lease| lease.attempt),
            instance: lease.map(|LeaseStamp { instance, .. }| instance.clone()).or(accepted_by),
            took_us: took_us(event),
            note: note(event),
        }
    }
}

/// How long the attempt took that ended with an event.
fn took_us(event: &Event) -> Option<u64> {
    if let Event::AttemptFailed { elapsed_us, .. }
    | Event::StepSucceeded { elapsed_us, lease: Some(_), .. }
    | Event::StepFailed { elapsed_us, lease: Some(_), .. } = event
    {
        Some(*elapsed_us)
    } else {
        None
    }
}

/// What else an event says, without payloads.
fn note(event: &Event) -> Option<String> {
    match event {
        Event::RunStarted(started) => {
            let held = started.hold.map(|_| "held".to_owned());
            let again = started.retry_of.map(|run_id| format!("tries {run_id} again"));
            held.or(again)
        }
        Event::RunMigrated(migrated) => {
            migrated.deployment.as_ref().map(|id| format!("deployment {id}"))
        }
        Event::RunCheckpointed { deployment, until } => {
            Some(format!("deployment {deployment}, until {until}"))
        }
        Event::StepParked { limit, .. } => Some(format!("limit {limit}")),
        Event::AttemptFailed { error, .. } | Event::StepFailed { error, .. } => {
            Some(error.message.to_string())
        }
        Event::SignalReceived { signal, .. } => Some(format!("signal {signal}")),
        Event::RunCancelled { reason } => reason.as_ref().map(ToString::to_string),
        Event::RunReleased { .. }
        | Event::StepQueued { .. }
        | Event::StepWaiting { .. }
        | Event::StepRepaired { .. }
        | Event::StepStarted { .. }
        | Event::StepLost { .. }
        | Event::StepReleased { .. }
        | Event::EventEmitted { .. }
        | Event::EventRepeated { .. }
        | Event::StateSet { .. }
        | Event::StepSucceeded { .. }
        | Event::StepSkipped { .. }
        | Event::StepCancelled { .. }
        | Event::StepCarried { .. }
        | Event::SignalTaken { .. }
        | Event::RunCompleted {}
        | Event::RunFailed { .. } => None,
    }
}
