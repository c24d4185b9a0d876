//! Moving an open run to another revision, at the boundaries of its steps.
//!
//! What has happened stays: a step that succeeded has succeeded on the new revision, and what was
//! emitted is there. What is open is given up, and is done by the step of the new revision that it
//! corresponds to. A run whose place the new revision does not have stays where it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Draft, Rejection};
use crate::commit::{Commit, Due, Guard, JobChange};
use crate::event::{Event, LeaseStamp, RunMigrated};
use crate::flow::{Action, Flow, Needs};
use crate::ids::{CommitId, StepIndex};
use crate::run::{KeptSignal, Run, RunStatus, StepRecord, StepState};
use crate::time::Timestamp;

/// Steps that have another name on the new revision: the old name, and the new one.
pub type Renames = BTreeMap<Arc<str>, Arc<str>>;

/// An open job of a run that is to be moved.
#[derive(Clone, Debug)]
pub struct MovedJob {
    /// Its step on the revision that the run is pinned to.
    pub step: StepIndex,
    /// Attempts so far, that of `lease` among them.
    pub attempt: u32,
    /// When it is due, or was.
    pub due_at: Timestamp,
    /// The lease that it is under.
    pub lease: Option<LeaseStamp>,
    /// Leases before that one that ended without a word and are not in the log yet.
    pub lost: Vec<LeaseStamp>,
}

/// Why a run cannot be moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unmappable(pub String);

/// Where `run`, pinned to `pinned`, would stand on `flow`.
pub fn place(
    (pinned, flow): (&Flow, &Flow),
    renames: &Renames,
    run: &Run,
) -> Result<RunMigrated, Unmappable> {
    if run.status == RunStatus::Held {
        return Err(Unmappable("it is held, so it begins on the active revision".to_owned()));
    }
    let map = Map::new(pinned, flow, renames);
    let mut steps = vec![StepRecord::default(); flow.steps.len()];
    for old in pinned.step_indexes() {
        let record = run.step(old);
        if let Some(new) = map.new_of(old) {
            map.check_open((old, new), record.state)?;
            steps[new.at()] = record.clone();
        } else if record.state.is_open() {
            let (name, state) = (&pinned.step(old).name, record.state.as_str());
            let message =
                format!("its step `{name}` is {state}, and the revision has no such step");
            return Err(Unmappable(message));
        }
    }
    let slots = map.slots(run)?;
    let migrated = RunMigrated {
        revision: flow.revision.clone(),
        signals: map.signals(run),
        renamed: map.renamed(),
        steps,
        slots,
        deployment: None,
        pool: run.pool.clone(),
    };
    check_order(flow, &migrated)?;
    Ok(migrated)
}

/// The commit that moves a run: its open jobs are given up, and their steps are due anew.
pub fn migrate(
    (pinned, flow): (&Flow, &Flow),
    mut migrated: RunMigrated,
    run: &Run,
    jobs: &[MovedJob],
    commit_id: CommitId,
) -> Result<Commit, Rejection> {
    if run.status.is_terminal() {
        return Err(Rejection::RunEnded(run.status));
    }
    if flow.revision == run.revision {
        return Err(Rejection::NothingToDo);
    }
    let mut before = Draft::resume(pinned, run);
    for job in jobs {
        before.give_up(job);
        before.jobs.push(JobChange::Remove(before.job_id(job.step)));
    }
    let Draft { run: record, events, jobs: changes, .. } = before;
    let renamed = migrated.renamed.clone();
    // The leases that ended just now count for their steps.
    for old in pinned.step_indexes() {
        let name = &pinned.step(old).name;
        if let Some(new) = flow.step_index(renamed.get(name).unwrap_or(name)) {
            migrated.steps[new.at()] = record.step(old).clone();
        }
    }
    let mut draft = Draft { flow, run: record, events, jobs: changes };
    draft.push(Event::RunMigrated(Box::new(migrated)));
    for index in flow.step_indexes() {
        let name = &flow.step(index).name;
        let was = renamed.iter().find(|(_, new)| *new == name).map_or(name, |(old, _)| old);
        let old = pinned.step_index(was);
        let job = old.and_then(|old| jobs.iter().find(|job| job.step == old));
        draft.open_moved(index, job);
    }
    Ok(draft.finish(commit_id, vec![Guard::RunVersion(run.version)]))
}

/// The commit that gives up what is open of a run until `until`, unless it is moved or woken
/// before: its jobs are nobody's, and those of steps that run are not due. Waits go on.
pub fn checkpoint(
    flow: &Flow,
    run: &Run,
    jobs: &[MovedJob],
    (deployment, until): (Arc<str>, Timestamp),
    commit_id: CommitId,
) -> Result<Commit, Rejection> {
    if run.status.is_terminal() {
        return Err(Rejection::RunEnded(run.status));
    }
    let mut draft = Draft::resume(flow, run);
    for job in jobs {
        if run.step(job.step).state == StepState::Waiting {
            continue;
        }
        draft.give_up(job);
        let attempt = job.attempt.saturating_sub(u32::from(job.lease.is_some()));
        draft.postpone(job.step, attempt, Due::At(until));
    }
    draft.push(Event::RunCheckpointed { deployment, until });
    Ok(draft.finish(commit_id, vec![Guard::RunVersion(run.version)]))
}

impl Draft<'_> {
    /// Writes down the leases of a job that end with this decision.
    fn give_up(&mut self, job: &MovedJob) {
        let step = self.name(job.step);
        for lease in &job.lost {
            self.push(Event::StepLost { step: Arc::clone(&step), lease: lease.clone() });
        }
        if let Some(lease) = job.lease.clone() {
            self.push(Event::StepReleased { step, lease });
        }
    }

    /// Gives a step of a run that was just moved the job that it has, or opens it if its time has
    /// come.
    fn open_moved(&mut self, index: StepIndex, job: Option<&MovedJob>) {
        match self.run.step(index).state {
            StepState::Pending => {
                if let Some(inputs) = self.inputs_if_ready(index) {
                    self.open_step(index, inputs, Due::Now);
                }
            }
            StepState::Queued | StepState::Running | StepState::Waiting => {
                let Some((kind, due)) = self.job_of(index) else { return };
                let due = job.map_or(due, |job| Due::At(job.due_at));
                self.add(index, kind, self.inputs_of(index), due);
                // An attempt that is given up does not count.
                let attempt =
                    job.map_or(0, |job| job.attempt.saturating_sub(u32::from(job.lease.is_some())));
                if let Some(JobChange::Add { job, .. }) = self.jobs.last_mut() {
                    job.attempt = attempt;
                }
            }
            StepState::Succeeded
            | StepState::Failed
            | StepState::Skipped
            | StepState::Cancelled => {}
        }
    }
}

/// Which step and slot of one revision is which of another.
struct Map<'a> {
    pinned: &'a Flow,
    flow: &'a Flow,
    /// For each step of the old revision, that of the new one.
    steps: Vec<Option<StepIndex>>,
}

impl<'a> Map<'a> {
    fn new(pinned: &'a Flow, flow: &'a Flow, renames: &Renames) -> Self {
        let new_of = |old: StepIndex| {
            let name = &pinned.step(old).name;
            flow.step_index(renames.get(name).unwrap_or(name))
        };
        Self { pinned, flow, steps: pinned.step_indexes().map(new_of).collect() }
    }

    fn new_of(&self, old: StepIndex) -> Option<StepIndex> {
        self.steps[old.at()]
    }

    fn old_of(&self, new: StepIndex) -> Option<StepIndex> {
        self.pinned.step_indexes().find(|old| self.new_of(*old) == Some(new))
    }

    fn renamed(&self) -> Renames {
        let name_of = |(old, new): (StepIndex, StepIndex)| {
            (Arc::clone(&self.pinned.step(old).name), Arc::clone(&self.flow.step(new).name))
        };
        let pairs = self.pinned.step_indexes().filter_map(|old| Some((old, self.new_of(old)?)));
        pairs.map(name_of).filter(|(old, new)| old != new).collect()
    }

    /// A step that is open is of the same kind on both.
    fn check_open(
        &self,
        (old, new): (StepIndex, StepIndex),
        state: StepState,
    ) -> Result<(), Unmappable> {
        let kind = |action: &Action| match action {
            Action::Nothing => "does nothing",
            Action::Wait(_) => "waits",
            Action::Process(_)
            | Action::Shell(_)
            | Action::Http(_)
            | Action::Mqtt(_)
            | Action::Worker(_) => "runs",
        };
        let (was, is) = (kind(&self.pinned.step(old).action), kind(&self.flow.step(new).action));
        if state.is_open() && was != is {
            let name = &self.flow.step(new).name;
            let (state, is) = (state.as_str(), is);
            return Err(Unmappable(format!(
                "its step `{name}` is {state}, and on the revision that step {is}"
            )));
        }
        Ok(())
    }

    /// What is there of all that a step of the new revision can subscribe to.
    fn slots(&self, run: &Run) -> Result<Vec<u64>, Unmappable> {
        let mut slots = vec![0; self.flow.slots.len()];
        for new in self.flow.step_indexes() {
            let step = self.flow.step(new);
            for slot in &step.emits {
                let was = self.pinned.slot_index(&self.flow.slot(*slot).name);
                slots[slot.at()] = was.map_or(0, |was| run.slots[was.at()]);
            }
            let Some(old) = self.old_of(new) else { continue };
            let (before, state) = (self.pinned.step(old), run.step(old).state);
            let ends = [
                (step.succeeded, before.succeeded, StepState::Succeeded),
                (step.failed, before.failed, StepState::Failed),
            ];
            for (slot, was, end) in ends {
                let Some(slot) = slot else { continue };
                slots[slot.at()] = was.map_or(0, |was| run.slots[was.at()]);
                if state == end && slots[slot.at()] == 0 {
                    let (name, end) = (&step.name, end.as_str());
                    return Err(Unmappable(format!(
                        "a step waits for `{name}` to be {end}, and when it was is not known"
                    )));
                }
            }
        }
        Ok(slots)
    }

    fn signals(&self, run: &Run) -> Vec<KeptSignal> {
        let moved = run.signals.iter().map(|kept| {
            let steps = kept.steps.iter().filter_map(|old| self.new_of(*old)).collect();
            KeptSignal { seq: kept.seq, steps }
        });
        moved.filter(|kept| !kept.steps.is_empty()).collect()
    }
}

/// What has begun has all that it needs, and nothing that would begin now comes before it.
fn check_order(flow: &Flow, migrated: &RunMigrated) -> Result<(), Unmappable> {
    let is_there = |slot: &crate::ids::SlotIndex| migrated.slots[slot.at()] > 0;
    let is_ready = |index: StepIndex| match &flow.step(index).needs {
        Needs::Start => true,
        Needs::All(slots) => slots.iter().all(is_there),
        Needs::Any(slots) => slots.iter().any(is_there),
    };
    let state = |index: StepIndex| migrated.steps[index.at()].state;
    for index in flow.step_indexes() {
        let name = &flow.step(index).name;
        if state(index).is_open() && !is_ready(index) {
            return Err(Unmappable(format!(
                "its step `{name}` is {}, and on the revision it needs what has not come",
                state(index).as_str()
            )));
        }
        if state(index) != StepState::Pending || !is_ready(index) {
            continue;
        }
        if let Some(after) = downstream(flow, index).find(|at| state(*at) != StepState::Pending) {
            return Err(Unmappable(format!(
                "`{name}` would begin now, and `{}`, which comes after it, has begun already",
                flow.step(after).name
            )));
        }
    }
    Ok(())
}

/// The steps that come after one, at any distance.
fn downstream(flow: &Flow, from: StepIndex) -> impl Iterator<Item = StepIndex> {
    let mut is_after = vec![false; flow.steps.len()];
    let mut todo = vec![from];
    while let Some(index) = todo.pop() {
        let step = flow.step(index);
        let slots = step.emits.iter().copied().chain(step.succeeded).chain(step.failed);
        for &next in slots.flat_map(|slot| &flow.slot(slot).subscribers) {
            if !std::mem::replace(&mut is_after[next.at()], true) {
                todo.push(next);
            }
        }
    }
    flow.step_indexes().filter(move |index| is_after[index.at()]).collect::<Vec<_>>().into_iter()
}
