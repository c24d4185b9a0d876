//! The place of a run in another revision, by the rules of the [plan](super).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Change, Fate};
use crate::flow::{Action, Needs, Wait};
use crate::ids::{SlotIndex, StepIndex};
use crate::run::{Run, StepState};

/// Where `run` goes on, or why it cannot.
pub(super) fn find(change: &Change<'_>, run: &Run) -> Fate {
    match Moved::of(change, run).and_then(|moved| moved.check()) {
        Ok((steps, starts)) => Fate::Resumes { steps, starts },
        Err(reason) => Fate::Pinned { reason },
    }
}

/// A run as it would be on the new revision.
struct Moved<'a> {
    change: &'a Change<'a>,
    run: &'a Run,
    /// For each step of the new revision, the step of the run that it stands for.
    before: Vec<Option<StepIndex>>,
    /// The slots of the new revision that the run has filled.
    filled: BTreeSet<SlotIndex>,
}

type Names = Vec<Arc<str>>;

impl<'a> Moved<'a> {
    /// Finds a step for each that has begun.
    fn of(change: &'a Change<'a>, run: &'a Run) -> Result<Self, String> {
        let Change { old, new, map, .. } = *change;
        let mut before = vec![None; new.steps.len()];
        for (from, to) in map.pairs() {
            let to = new.step_index(to).expect("a step map names steps that are there");
            before[to.at()] = old.step_index(from);
        }
        for index in old.step_indexes().filter(|index| has_begun(run.step(*index).state)) {
            let name = &old.step(index).name;
            if map.get(name).is_none() {
                let state = run.step(index).state.as_str();
                return Err(format!(
                    "step `{name}` is {state}, and no step of the new revision stands for it"
                ));
            }
        }
        let mut moved = Self { change, run, before, filled: BTreeSet::new() };
        moved.fill();
        Ok(moved)
    }

    /// Takes over what the run has: events by their name, the ends of steps by their step.
    fn fill(&mut self) {
        let Change { old, new, .. } = *self.change;
        let events = old.slots.iter().zip(&self.run.slots).filter(|(_, seq)| **seq > 0);
        // The ends of steps have a `:` in their name, which no event has.
        let events = events.filter(|(slot, _)| !slot.name.contains(':'));
        self.filled.extend(events.filter_map(|(slot, _)| new.slot_index(&slot.name)));
        for index in new.step_indexes() {
            let step = new.step(index);
            let slot = match self.state(index) {
                StepState::Succeeded => step.succeeded,
                StepState::Failed => step.failed,
                StepState::Pending
                | StepState::Queued
                | StepState::Running
                | StepState::Waiting
                | StepState::Skipped
                | StepState::Cancelled => None,
            };
            self.filled.extend(slot);
        }
    }

    /// The state that a step of the new revision begins with.
    fn state(&self, index: StepIndex) -> StepState {
        self.before[index.at()].map_or(StepState::Pending, |before| self.run.step(before).state)
    }

    /// The steps to go on at, and those to begin with.
    fn check(&self) -> Result<(Names, Names), String> {
        let new = self.change.new;
        let (mut steps, mut starts) = (Vec::new(), Vec::new());
        for index in new.step_indexes() {
            let state = self.state(index);
            let name = &new.step(index).name;
            if state.is_open() {
                self.check_kind(index, state)?;
                self.check_input(index)?;
                self.check_upstream(index)?;
                steps.push(Arc::clone(name));
            } else if state == StepState::Pending {
                self.check_needs(index)?;
                if self.is_ready(index) {
                    starts.push(Arc::clone(name));
                }
            } else {
                self.check_upstream(index)?;
            }
        }
        Ok((steps, starts))
    }

    /// Rule 2: a wait stays a wait.
    fn check_kind(&self, index: StepIndex, state: StepState) -> Result<(), String> {
        let new = self.change.new.step(index);
        let before = self.before[index.at()].expect("an open step stands for one");
        let old = self.change.old.step(before);
        let (is_waiting, wait) = (state == StepState::Waiting, wait_of(&new.action));
        match (is_waiting, wait) {
            (true, None) => {
                Err(format!("step `{}` waits, and `{}` is no wait", old.name, new.name))
            }
            (false, Some(_)) => {
                let state = state.as_str();
                Err(format!("step `{}` is {state}, and `{}` is a wait", old.name, new.name))
            }
            (false, None) => Ok(()),
            (true, Some(wait)) => match (wait_of(&old.action).and_then(signal_of), signal_of(wait))
            {
                (old_signal, new_signal) if old_signal == new_signal => Ok(()),
                (Some(signal), _) => Err(format!(
                    "step `{}` waits for the signal `{signal}`, and `{}` does not",
                    old.name, new.name
                )),
                (None, _) => Err(format!(
                    "step `{}` waits for a time, and `{}` for a signal",
                    old.name, new.name
                )),
            },
        }
    }

    /// Rule 3: an open step has its input.
    fn check_input(&self, index: StepIndex) -> Result<(), String> {
        let new = self.change.new;
        let step = new.step(index);
        let missing = match &step.needs {
            Needs::Start => None,
            Needs::All(slots) => slots.iter().find(|slot| !self.filled.contains(slot)),
            Needs::Any(slots) if slots.iter().any(|slot| self.filled.contains(slot)) => None,
            Needs::Any(slots) => slots.first(),
        };
        match missing {
            None => Ok(()),
            Some(slot) => Err(format!(
                "step `{}` is open and needs `{}`, which the run does not have",
                step.name,
                new.slot(*slot).name
            )),
        }
    }

    /// Rule 4: a step that has not begun waits for nothing that can no longer come.
    fn check_needs(&self, index: StepIndex) -> Result<(), String> {
        let new = self.change.new;
        let step = new.step(index);
        let slots = match &step.needs {
            Needs::Start => return Ok(()),
            // One that can still come is enough, as is one that is there.
            Needs::Any(slots) if slots.iter().any(|slot| self.why_never(*slot).is_none()) => {
                return Ok(());
            }
            Needs::All(slots) | Needs::Any(slots) => slots,
        };
        match slots.iter().find_map(|slot| Some((slot, self.why_never(*slot)?))) {
            None => Ok(()),
            Some((slot, emitter)) => Err(format!(
                "step `{}` needs `{}`, which `{emitter}` emits on the new revision only, and it \
                 has ended on the old one",
                step.name,
                new.slot(*slot).name
            )),
        }
    }

    /// A step that has ended and could not emit `slot`, if no other can emit it any more.
    fn why_never(&self, slot: SlotIndex) -> Option<Arc<str>> {
        let Change { old, new, .. } = *self.change;
        if self.filled.contains(&slot) {
            return None;
        }
        let mut never = None;
        let emitters = new.step_indexes().filter(|index| new.step(*index).emits.contains(&slot));
        for index in emitters {
            match self.state(index) {
                StepState::Pending
                | StepState::Queued
                | StepState::Running
                | StepState::Waiting => return None,
                StepState::Succeeded
                | StepState::Failed
                | StepState::Skipped
                | StepState::Cancelled => {}
            }
            let before = self.before[index.at()].expect("a step that ended stands for one");
            let old_slot = old.slot_index(&new.slot(slot).name);
            if old_slot.is_some_and(|slot| old.step(before).emits.contains(&slot)) {
                // It could have emitted it, and did not.
                return None;
            }
            never = Some(Arc::clone(&new.step(index).name));
        }
        never
    }

    /// Rule 5: nothing new lies before a step that has begun.
    fn check_upstream(&self, index: StepIndex) -> Result<(), String> {
        let Change { new, map, .. } = *self.change;
        let before = self.before[index.at()].expect("a step that has begun stands for one");
        let was_upstream = &map.upstream_old[before.at()];
        let is_upstream = &map.upstream_new[index.at()];
        for other in new.step_indexes().filter(|other| is_upstream[other.at()]) {
            let was_before = self.before[other.at()].is_some_and(|at| was_upstream[at.at()]);
            if self.state(other) == StepState::Pending && !was_before {
                return Err(format!(
                    "step `{}` comes before `{}`, which has begun without it",
                    new.step(other).name,
                    new.step(index).name,
                ));
            }
        }
        Ok(())
    }

    /// Whether a step that has not begun has all that it needs.
    fn is_ready(&self, index: StepIndex) -> bool {
        match &self.change.new.step(index).needs {
            Needs::Start => true,
            Needs::All(slots) => slots.iter().all(|slot| self.filled.contains(slot)),
            Needs::Any(slots) => slots.iter().any(|slot| self.filled.contains(slot)),
        }
    }
}

fn has_begun(state: StepState) -> bool {
    match state {
        StepState::Pending | StepState::Skipped | StepState::Cancelled => false,
        StepState::Queued
        | StepState::Running
        | StepState::Waiting
        | StepState::Succeeded
        | StepState::Failed => true,
    }
}

fn wait_of(action: &Action) -> Option<&Wait> {
    match action {
        Action::Wait(wait) => Some(wait),
        Action::Nothing
        | Action::Process(_)
        | Action::Shell(_)
        | Action::Http(_)
        | Action::Mqtt(_)
        | Action::Worker(_) => None,
    }
}

fn signal_of(wait: &Wait) -> Option<&Arc<str>> {
    match wait {
        Wait::Signal { signal, .. } => Some(signal),
        Wait::Delay(_) | Wait::Until(_) => None,
    }
}
