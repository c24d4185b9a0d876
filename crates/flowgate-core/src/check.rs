//! The checker: whether a run's log, and the record beside it, can be true.
//!
//! It knows the flow and the log and nothing else, so it judges any store and any faults alike.
//! The numbers are those of the invariants in `ARCHITECTURE.md`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::event::{Event, LeaseStamp, StoredEvent};
use crate::flow::{Flow, Needs};
use crate::ids::{LeaseToken, RunId, SlotIndex, StepIndex};
use crate::limits::LOST_MAX;
use crate::run::{Run, RunStatus, StepState};

/// A log that breaks an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The number of the invariant.
    pub invariant: u8,
    /// The run.
    pub run_id: RunId,
    /// The number of the event at which it shows; 0 if it is about the whole log.
    pub seq: u64,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant, run_id, seq, message } = self;
        write!(f, "invariant {invariant}, run {run_id}, event {seq}: {message}")
    }
}

/// What is wrong with the whole log of one run, and with its stored record if there is one.
/// `flows` has every revision that the log names.
pub fn check_run(
    flows: &[&Flow],
    run_id: RunId,
    log: &[StoredEvent],
    record: Option<&Run>,
) -> Vec<Violation> {
    let first = log.iter().find_map(|stored| stored.event.revision());
    let Some(flow) = flows.iter().find(|flow| Some(&flow.revision) == first) else {
        let message = "the revision that it started on is not at hand".to_owned();
        return vec![Violation { invariant: 9, run_id, seq: 0, message }];
    };
    let mut checker = Checker::new(flow, flows, run_id);
    checker.check_order(log);
    let folded = checker.walk(log);
    checker.check_joins(log);
    if let (Some(folded), Some(record)) = (folded, record)
        && folded != *record
    {
        checker.add(9, 0, format!("folding the log gives {folded:?}, stored is {record:?}"));
    }
    checker.violations
}

/// What is missing from a run that should have ended by now.
pub fn check_ended(run_id: RunId, log: &[StoredEvent]) -> Option<Violation> {
    if log.last().is_some_and(|last| last.event.is_terminal()) {
        return None;
    }
    let message = format!("the run has {} events and has not ended", log.len());
    Some(Violation { invariant: 1, run_id, seq: 0, message })
}

struct Checker<'a> {
    /// The revision that the run is pinned to at the event that is looked at.
    flow: &'a Flow,
    flows: &'a [&'a Flow],
    run_id: RunId,
    violations: Vec<Violation>,
    steps: BTreeMap<StepIndex, StepLog>,
}

/// What the log has said about one step so far.
#[derive(Default)]
struct StepLog {
    opened_at: Option<u64>,
    outcomes: u32,
    lost: u32,
    /// The lease that may act: the newest that has started and has not ended.
    lease: Option<LeaseToken>,
    /// The newest lease of all.
    newest: Option<LeaseToken>,
    /// The number of the attempt of that lease, if it counts.
    attempt: u32,
}

impl<'a> Checker<'a> {
    fn new(flow: &'a Flow, flows: &'a [&'a Flow], run_id: RunId) -> Self {
        Self { flow, flows, run_id, violations: Vec::new(), steps: BTreeMap::new() }
    }

    fn add(&mut self, invariant: u8, seq: u64, message: impl Into<String>) {
        let (run_id, message) = (self.run_id, message.into());
        self.violations.push(Violation { invariant, run_id, seq, message });
    }

    /// Numbers are 1..n; the first event is the start; the terminal event is the last.
    fn check_order(&mut self, log: &[StoredEvent]) {
        for (stored, expected) in log.iter().zip(1..) {
            if stored.seq != expected {
                self.add(2, stored.seq, format!("event {expected} has the number {}", stored.seq));
            }
            if stored.run_id != self.run_id {
                self.add(2, stored.seq, format!("the event belongs to run {}", stored.run_id));
            }
        }
        for pair in log.windows(2) {
            if pair[0].position >= pair[1].position {
                self.add(2, pair[1].seq, "its position is not after the one before it");
            }
            if pair[0].event.is_terminal() {
                self.add(2, pair[1].seq, format!("{} follows the end", pair[1].event.kind()));
            }
        }
    }

    /// Goes through the log with the record as it was at each event.
    fn walk(&mut self, log: &[StoredEvent]) -> Option<Run> {
        let mut events = log.iter();
        let mut run = match events.next().map(|first| &first.event) {
            Some(Event::RunStarted(started)) => Run::new(self.run_id, self.flow, started),
            Some(other) => {
                self.add(2, 1, format!("the log begins with {}", other.kind()));
                return None;
            }
            None => {
                self.add(1, 0, "the run has no events");
                return None;
            }
        };
        for stored in events {
            self.check_event(&run, stored);
            self.follow_pin(&run, stored);
            if let Err(error) = run.apply(self.flow, &stored.event) {
                self.add(9, stored.seq, error.to_string());
                return None;
            }
        }
        self.check_end(&run);
        Some(run)
    }

    /// Looks at the run by the revision that it is pinned to from this event on.
    fn follow_pin(&mut self, run: &Run, stored: &StoredEvent) {
        let Some(revision) = stored.event.revision() else { return };
        let Some(flow) = self.flows.iter().copied().find(|flow| flow.revision == *revision) else {
            self.add(9, stored.seq, format!("the revision {revision} is not at hand"));
            return;
        };
        if let Event::RunMigrated(migrated) = &stored.event {
            let mut steps = BTreeMap::new();
            for (index, log) in std::mem::take(&mut self.steps) {
                let name = &self.flow.step(index).name;
                let name = migrated.renamed.get(name).unwrap_or(name);
                steps.extend(flow.step_index(name).map(|index| (index, log)));
            }
            self.steps = steps;
        }
        if matches!(stored.event, Event::RunReleased { .. }) != (run.status == RunStatus::Held) {
            self.add(3, stored.seq, "only a run that is held is released");
        }
        self.flow = flow;
    }

    fn check_event(&mut self, run: &Run, stored: &StoredEvent) {
        let seq = stored.seq;
        let Some(index) = stored.event.step().and_then(|name| self.flow.step_index(name)) else {
            return;
        };
        let state = run.step(index).state;
        if let Some(lease) = stored.event.lease() {
            self.check_lease(index, seq, &stored.event, lease);
        }
        match &stored.event {
            Event::StepQueued { inputs, .. } | Event::StepWaiting { inputs, .. } => {
                self.check_opening(run, index, seq, inputs);
            }
            Event::EventEmitted { .. } | Event::EventRepeated { .. } | Event::StateSet { .. } => {
                // What a run takes over is written before anything of its own has begun.
                let carried = run.retry_of.is_some() && state == StepState::Pending;
                if !carried && !matches!(state, StepState::Running | StepState::Waiting) {
                    self.add(5, seq, format!("the step is {}", state.as_str()));
                }
            }
            Event::StepSucceeded { .. } | Event::StepFailed { .. } => {
                let step = self.steps.entry(index).or_default();
                step.outcomes += 1;
                if step.outcomes > 1 {
                    self.add(3, seq, "the step has a second outcome");
                }
            }
            Event::RunStarted(_)
            | Event::RunReleased { .. }
            | Event::RunMigrated(_)
            | Event::RunCheckpointed { .. }
            | Event::StepRepaired { .. }
            | Event::StepStarted { .. }
            | Event::StepLost { .. }
            | Event::StepReleased { .. }
            | Event::StepParked { .. }
            | Event::AttemptFailed { .. }
            | Event::StepSkipped { .. }
            | Event::StepCancelled { .. }
            | Event::StepCarried { .. }
            | Event::SignalReceived { .. }
            | Event::SignalTaken { .. }
            | Event::RunCompleted {}
            | Event::RunFailed { .. }
            | Event::RunCancelled { .. } => {}
        }
    }

    /// Tokens grow, and only the newest lease that has not ended may act.
    fn check_lease(&mut self, index: StepIndex, seq: u64, event: &Event, lease: &LeaseStamp) {
        let is_wait = matches!(self.flow.step(index).action, crate::flow::Action::Wait(_));
        let step = self.steps.entry(index).or_default();
        let (newest, acting) = (step.newest, step.lease);
        let grows = newest.is_none_or(|newest| newest < lease.token);
        step.newest = newest.max(Some(lease.token));
        let mut wrong = None;
        if grows && lease.attempt != step.attempt + 1 {
            wrong = Some((3, "the attempt has not the number after the one before it"));
        }
        // An attempt that was handed back, or got no permit, does not count.
        let counts = !matches!(event, Event::StepReleased { .. } | Event::StepParked { .. });
        step.attempt = if counts { lease.attempt } else { lease.attempt.saturating_sub(1) };
        match event {
            Event::StepStarted { .. } => {
                step.lease = Some(lease.token);
                if !grows {
                    wrong = Some((3, "an attempt began under a token that is not new"));
                } else if acting.is_some() {
                    wrong = Some((3, "an attempt began while another one was running"));
                }
            }
            Event::StepLost { .. } | Event::StepReleased { .. } | Event::StepParked { .. } => {
                step.lease = None;
                step.lost += u32::from(matches!(event, Event::StepLost { .. }));
                if acting.is_some_and(|acting| acting != lease.token) || !grows && acting.is_none()
                {
                    wrong = Some((5, "a lease ended that was not the running one"));
                } else if step.lost > LOST_MAX {
                    wrong = Some((3, "the step lost more leases than it may"));
                }
            }
            Event::AttemptFailed { .. }
            | Event::StepSucceeded { .. }
            | Event::StepFailed { .. }
            | Event::RunStarted(_)
            | Event::RunReleased { .. }
            | Event::RunMigrated(_)
            | Event::RunCheckpointed { .. }
            | Event::StepQueued { .. }
            | Event::StepWaiting { .. }
            | Event::StepRepaired { .. }
            | Event::EventEmitted { .. }
            | Event::EventRepeated { .. }
            | Event::StateSet { .. }
            | Event::StepSkipped { .. }
            | Event::StepCancelled { .. }
            | Event::StepCarried { .. }
            | Event::SignalReceived { .. }
            | Event::SignalTaken { .. }
            | Event::RunCompleted {}
            | Event::RunFailed { .. }
            | Event::RunCancelled { .. } => {
                step.lease = None;
                if is_wait {
                    if !grows {
                        wrong = Some((5, "a wait ended under a token that is not new"));
                    }
                } else if acting != Some(lease.token) {
                    wrong = Some((5, "an outcome came from a lease that had ended"));
                }
            }
        }
        if let Some((invariant, message)) = wrong {
            self.add(invariant, seq, format!("{message} (token {})", lease.token));
        }
    }

    /// A step opens once, and on events that are in the log before it.
    fn check_opening(&mut self, run: &Run, index: StepIndex, seq: u64, inputs: &[u64]) {
        let step = self.steps.entry(index).or_default();
        if step.opened_at.replace(seq).is_some() {
            self.add(3, seq, "the step became due a second time");
        }
        let filled = |slot: &SlotIndex| run.slots[slot.at()];
        let expected: Vec<u64> = match &self.flow.step(index).needs {
            Needs::Start => vec![1],
            Needs::All(slots) => slots.iter().map(filled).collect(),
            Needs::Any(slots) => slots.iter().map(filled).filter(|seq| *seq > 0).collect(),
        };
        if expected.is_empty() || expected.contains(&0) {
            self.add(4, seq, "the step became due before what it subscribes to");
        } else if expected != inputs {
            self.add(4, seq, format!("its inputs are {inputs:?} and should be {expected:?}"));
        }
    }

    /// A step whose needs are all in the log has started, unless the run was cancelled.
    fn check_joins(&mut self, log: &[StoredEvent]) {
        let Some(last) = log.last() else { return };
        if matches!(last.event, Event::RunCancelled { .. }) {
            return;
        }
        let carried: Vec<&Arc<str>> = log
            .iter()
            .filter(|stored| matches!(stored.event, Event::StepCarried { .. }))
            .filter_map(|stored| stored.event.step())
            .collect();
        let Ok(run) = Run::fold(self.run_id, self.flows, log.iter().map(|stored| &stored.event))
        else {
            return;
        };
        if run.status == RunStatus::Held {
            return;
        }
        for index in self.flow.step_indexes() {
            let met = |slot: &SlotIndex| run.slots[slot.at()] > 0;
            let ready = match &self.flow.step(index).needs {
                Needs::Start => true,
                Needs::All(slots) => slots.iter().all(met),
                Needs::Any(slots) => slots.iter().any(met),
            };
            let opened = self.steps.get(&index).is_some_and(|step| step.opened_at.is_some());
            let name = &self.flow.step(index).name;
            if ready && !opened && !carried.contains(&name) {
                self.add(4, 0, format!("`{name}` has all that it subscribes to and never started"));
            }
        }
    }

    /// The run's end follows from its steps.
    fn check_end(&mut self, run: &Run) {
        let open = run.steps.iter().any(|step| step.state.is_open());
        let expected = match (run.status, &run.failure) {
            (
                RunStatus::Held | RunStatus::Running | RunStatus::Waiting | RunStatus::Cancelled,
                _,
            ) => run.status,
            (RunStatus::Completed | RunStatus::Failed, Some(_)) => RunStatus::Failed,
            (RunStatus::Completed | RunStatus::Failed, None) => RunStatus::Completed,
        };
        if expected != run.status {
            self.add(1, run.version, format!("it ended as {}", run.status.as_str()));
        }
        if run.status.is_terminal() && open {
            self.add(1, run.version, "it ended while a step was open");
        }
        if !run.status.is_terminal() && !open && run.status != RunStatus::Held {
            self.add(1, run.version, "nothing is open and it has not ended");
        }
    }
}
