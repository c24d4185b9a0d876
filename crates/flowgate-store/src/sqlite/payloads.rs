//! Payloads of open runs, kept in memory within a budget so that a claim need not read the log.

use flowgate_core::commit::Claimed;
use flowgate_core::event::Event;
use flowgate_core::payload::Payload;

/// Bytes of payloads kept for all open runs.
pub(super) const PAYLOAD_BYTES_MAX: usize = 64 << 20;
/// Bytes of payloads kept for one run, so that one cannot use up what all share.
pub(super) const PAYLOAD_BYTES_PER_RUN_MAX: usize = 4 << 20;
/// What keeping a payload costs besides its own bytes.
const ENTRY_BYTES: usize = 64;

/// The payloads of one run: all of them or none.
#[derive(Debug)]
pub(super) enum Payloads {
    /// Those that are not null, by the numbers of their events, in order.
    Kept {
        /// The payloads.
        list: Vec<(u64, Payload)>,
        /// What they cost.
        bytes: usize,
    },
    /// They are in the log only.
    InLog,
}

impl Payloads {
    /// Those of a run that has no events yet.
    pub(super) fn new() -> Self {
        Self::Kept { list: Vec::new(), bytes: 0 }
    }

    /// What they take of the budget.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Kept { bytes, .. } => *bytes,
            Self::InLog => 0,
        }
    }

    /// Keeps the payloads of events whose numbers begin at `seq`, as far as `room` allows.
    pub(super) fn add(&mut self, seq: u64, events: &[Event], room: usize) {
        let Self::Kept { list, bytes } = self else { return };
        for (seq, event) in (seq..).zip(events) {
            if is_kept(event) {
                let payload = event.payload();
                *bytes += payload.bytes() + ENTRY_BYTES;
                list.push((seq, payload));
            }
        }
        if *bytes > room.min(PAYLOAD_BYTES_PER_RUN_MAX) {
            *self = Self::InLog;
        }
    }

    /// Fills in the payloads that a job names, if they are kept.
    pub(super) fn fill(&self, claimed: &mut Claimed) {
        let Self::Kept { list, .. } = self else { return };
        let find = |seq: &u64| match list.binary_search_by_key(seq, |(at, _)| *at) {
            Ok(at) => list[at].1.clone(),
            Err(_) => Payload::null(),
        };
        claimed.inputs = claimed.job.inputs.iter().map(find).collect();
    }
}

/// Whether a job that names this event gets more than null.
fn is_kept(event: &Event) -> bool {
    match event {
        Event::RunStarted(_)
        | Event::EventEmitted { .. }
        | Event::SignalReceived { .. }
        | Event::StateSet { .. }
        | Event::StepFailed { .. } => true,
        Event::RunReleased { .. }
        | Event::RunMigrated(_)
        | Event::RunCheckpointed { .. }
        | Event::StepQueued { .. }
        | Event::StepWaiting { .. }
        | Event::StepRepaired { .. }
        | Event::StepStarted { .. }
        | Event::StepLost { .. }
        | Event::StepReleased { .. }
        | Event::StepParked { .. }
        | Event::EventRepeated { .. }
        | Event::AttemptFailed { .. }
        | Event::StepSucceeded { .. }
        | Event::StepSkipped { .. }
        | Event::StepCancelled { .. }
        | Event::StepCarried { .. }
        | Event::SignalTaken { .. }
        | Event::RunCompleted {}
        | Event::RunFailed { .. }
        | Event::RunCancelled { .. } => false,
    }
}
