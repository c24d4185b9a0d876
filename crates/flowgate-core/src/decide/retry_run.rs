//! Trying a finished run again, as a new run.
//!
//! A terminal state is final, so a retry is a run of its own. It takes over what succeeded and does
//! the rest: the steps that did not succeed, the step that it is told to begin with, and all that
//! lies downstream of them.
//!
//! It may be on another revision than the run that it tries again. Then a step is the same if it has
//! the same name, whatever else was changed about it; what the new revision does not know any more
//! is left behind. Where a run was moved, what happened before has the names that its steps got then.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Draft, Rejection, Renames};
use crate::commit::{Commit, Due, Guard};
use crate::event::{Event, RunStarted, StoredEvent};
use crate::flow::Flow;
use crate::ids::{CommitId, InstanceId, RunId, StepIndex};
use crate::payload::Payload;
use crate::run::{Run, StepState};

/// What the run is that tries another one again.
#[derive(Clone, Debug)]
pub struct RetryAs {
    /// Its id.
    pub run_id: RunId,
    /// The id of its first commit.
    pub commit_id: CommitId,
    /// The generation at which the gate of its flow is open.
    pub gate: u64,
    /// The instance that accepts it.
    pub instance: Option<InstanceId>,
    /// The pool whose instances execute it; any if none.
    pub pool: Option<Arc<str>>,
}

/// The first commit of a run that tries `old` again, whose whole log is `log`.
///
/// `pinned` is the revision that `old` is pinned to, and `flow` the one that the new run is to be
/// on. With `from`, that step of `flow` and what follows it is done again even where it succeeded.
pub fn retry(
    (pinned, flow): (&Flow, &Flow),
    old: &Run,
    log: &[StoredEvent],
    from: Option<StepIndex>,
    new: &RetryAs,
) -> Result<Commit, Rejection> {
    if !old.status.is_terminal() {
        return Err(Rejection::RunOpen(old.status));
    }
    if old.is_shadow() {
        return Err(Rejection::RunShadow);
    }
    let again = steps_to_do_again((pinned, flow), old, from);
    if again.iter().all(|again| !again) {
        return Err(Rejection::NothingToRetry);
    }
    let RetryAs { run_id, commit_id, gate, instance, pool } = new.clone();
    let started = RunStarted {
        flow: Arc::clone(&flow.name),
        revision: flow.revision.clone(),
        input: log.first().map_or_else(Payload::null, |first| first.event.payload()),
        key: None,
        tags: old.tags.clone(),
        retry_of: Some(old.run_id),
        priority: old.priority,
        hold: None,
        instance,
        pool,
    };
    let mut draft = Draft::begin(flow, run_id, started);
    carry_over(&mut draft, log, &again);
    let carried = draft.events.len();
    for index in flow.step_indexes() {
        if let Some(inputs) = draft.inputs_if_ready(index) {
            draft.open_step(index, inputs, Due::Now);
        }
    }
    if draft.events.len() == carried {
        // What did not succeed was never asked for, and nothing asks for it now.
        return Err(Rejection::NothingToRetry);
    }
    Ok(draft.finish(commit_id, vec![Guard::RunAbsent, Guard::Gate { generation: gate }]))
}

/// For each step, whether the new run does it again.
fn steps_to_do_again(
    (pinned, flow): (&Flow, &Flow),
    old: &Run,
    from: Option<StepIndex>,
) -> Vec<bool> {
    let has_succeeded = |index: StepIndex| {
        let before = pinned.step_index(&flow.step(index).name);
        before.is_some_and(|before| old.step(before).state == StepState::Succeeded)
    };
    let mut again: Vec<bool> = flow.step_indexes().map(|index| !has_succeeded(index)).collect();
    let mut todo: Vec<StepIndex> = flow.step_indexes().filter(|at| again[at.at()]).collect();
    if let Some(from) = from
        && !std::mem::replace(&mut again[from.at()], true)
    {
        todo.push(from);
    }
    while let Some(index) = todo.pop() {
        let step = flow.step(index);
        let slots = step.emits.iter().copied().chain(step.succeeded).chain(step.failed);
        for &next in slots.flat_map(|slot| &flow.slot(slot).subscribers) {
            if !std::mem::replace(&mut again[next.at()], true) {
                todo.push(next);
            }
        }
    }
    again
}

/// Writes what the kept steps emitted, set and achieved into the new run's log.
fn carry_over(draft: &mut Draft<'_>, log: &[StoredEvent], again: &[bool]) {
    let flow = draft.flow;
    let moves = Moves::of(log);
    let mut signals: HashMap<u64, Payload> = HashMap::new();
    for stored in log {
        if let Event::SignalReceived { data, .. } = &stored.event {
            signals.insert(stored.seq, data.clone());
        }
        let Some(name) = stored.event.step().map(|name| moves.name_now(stored.seq, name)) else {
            continue;
        };
        let Some(index) = flow.step_index(&name) else { continue };
        if again[index.at()] {
            continue;
        }
        let is_known = |event: &Arc<str>| {
            flow.slot_index(event).is_some_and(|slot| flow.step(index).emits.contains(&slot))
        };
        match &stored.event {
            Event::EventEmitted { event, .. } if !is_known(event) => {}
            Event::EventEmitted { event, data, .. } => {
                let (event, data) = (Arc::clone(event), data.clone());
                draft.push(Event::EventEmitted { step: name, event, data });
            }
            Event::StateSet { key, value, .. } => {
                let (key, value) = (Arc::clone(key), value.clone());
                draft.push(Event::StateSet { step: name, key, value });
            }
            Event::SignalTaken { signal_seq, events, .. } => {
                for event in events.iter().filter(|event| is_known(event)) {
                    let data = signals.get(signal_seq).cloned().unwrap_or_else(Payload::null);
                    let (step, event) = (Arc::clone(&name), Arc::clone(event));
                    draft.push(Event::EventEmitted { step, event, data });
                }
            }
            Event::StepSucceeded { .. } | Event::StepCarried { .. } => {
                draft.push(Event::StepCarried { step: name });
            }
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
            | Event::EventRepeated { .. }
            | Event::AttemptFailed { .. }
            | Event::StepFailed { .. }
            | Event::StepSkipped { .. }
            | Event::StepCancelled { .. }
            | Event::SignalReceived { .. }
            | Event::RunCompleted {}
            | Event::RunFailed { .. }
            | Event::RunCancelled { .. } => {}
        }
    }
}

/// The moves of a run: the number of each, and the steps that got another name by it.
struct Moves<'a>(Vec<(u64, &'a Renames)>);

impl<'a> Moves<'a> {
    fn of(log: &'a [StoredEvent]) -> Self {
        let mut moves = Vec::new();
        for stored in log {
            if let Event::RunMigrated(migrated) = &stored.event {
                moves.push((stored.seq, &migrated.renamed));
            }
        }
        Self(moves)
    }

    /// The name at the end of the log of a step that event `seq` calls `name`.
    fn name_now(&self, seq: u64, name: &Arc<str>) -> Arc<str> {
        let mut name = name;
        for (_, renamed) in self.0.iter().filter(|(at, _)| *at > seq) {
            name = renamed.get(name).unwrap_or(name);
        }
        Arc::clone(name)
    }
}
