//! The new revision on the inputs of runs that have ended: what its steps are given where they are
//! not executed, and in what it differs.
//!
//! - **Stubs**: a step with `effect: true`, and a wait, ends as the step of that name did in the
//!   original run. One that the original did not come to ends without events; a delay or a point in
//!   time that it did not have is over at once.
//! - **Comparison**: how the run ended; how each step ended that both revisions have; of steps with
//!   `effect: true` also those that only one of them has; the events with their data, and the
//!   results of steps. What is to be ignored is taken out of both sides first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::plan::StepMap;
use super::record::SmokeMismatch;
use super::settings::Ignored;
use super::smoke::{cut_short, differ, emitted, ended, mismatch, results, text};
use crate::decide::{Output, Stub};
use crate::event::{Event, StepError, StoredEvent};
use crate::flow::{Action, Flow, Wait};
use crate::ids::{RunId, StepIndex};
use crate::payload::Payload;
use crate::run::{Run, RunStatus, StepState};
use crate::time::Timestamp;

#[cfg(test)]
mod tests;

/// Runs whose differences a record names; the rest is counted.
pub const NAMED_MAX: usize = 5;

/// How the new revision did on the inputs of earlier runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shadow {
    /// When these runs were chosen.
    pub began_at: Timestamp,
    /// The runs whose inputs it is given, the latest first.
    pub originals: Vec<RunId>,
    /// How many were compared.
    #[serde(default)]
    pub compared: u64,
    /// How many of them differ.
    #[serde(default)]
    pub differing: u64,
    /// The first that differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<ShadowResult>,
}

impl Shadow {
    /// These runs, none of which is compared yet.
    pub fn of(originals: Vec<RunId>, began_at: Timestamp) -> Self {
        Self { began_at, originals, compared: 0, differing: 0, differences: Vec::new() }
    }

    /// The same, with what came of the runs that were compared.
    pub(super) fn with(&self, results: &[&ShadowResult]) -> Self {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let differing: Vec<&&ShadowResult> = results.iter().filter(|one| !one.is_same()).collect();
        Self {
            compared: count(results.len()),
            differing: count(differing.len()),
            differences: differing.into_iter().take(NAMED_MAX).copied().cloned().collect(),
            ..self.clone()
        }
    }
}

/// What came of the new revision on the input of one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowResult {
    /// The run whose input it was given.
    pub original: RunId,
    /// The run of the new revision.
    pub run_id: RunId,
    /// In what it differs; in nothing if there is nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mismatches: Vec<SmokeMismatch>,
}

impl ShadowResult {
    /// Whether the two do not differ.
    pub fn is_same(&self) -> bool {
        self.mismatches.is_empty()
    }
}

/// What a shadow would do, before it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShadowPlan {
    /// How many runs there are to compare with, of those that are asked for.
    pub runs: u64,
    /// Steps that are executed.
    pub executed: Vec<Arc<str>>,
    /// Steps that are not, and end as they did in the original run.
    pub stubbed: Vec<Arc<str>>,
}

impl ShadowPlan {
    /// What would be executed of `new`.
    pub fn of(new: &Flow, runs: u64) -> Self {
        let named = |is: fn(&crate::flow::Step) -> bool| {
            new.steps.iter().filter(|step| is(step)).map(|step| Arc::clone(&step.name)).collect()
        };
        let executed = named(|step| !step.is_stubbed() && !matches!(step.action, Action::Nothing));
        Self { runs, executed, stubbed: named(crate::flow::Step::is_stubbed) }
    }

    /// What somebody should know before they go on.
    pub fn warnings(&self, (old, new): (&Flow, &Flow), map: &StepMap) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.runs == 0 {
            warnings.push(
                "no run of the active revision has completed, so the shadow compares nothing"
                    .to_owned(),
            );
        }
        if !self.executed.is_empty() {
            warnings.push(format!(
                "the shadow executes {} for real; mark those that change something outside with \
                 `effect: true`",
                quoted(&self.executed)
            ));
        }
        let is_new = |step: &&crate::flow::Step| step.is_effect && map.origin(&step.name).is_none();
        let is_gone = |step: &&crate::flow::Step| step.is_effect && map.get(&step.name).is_none();
        let alone = new.steps.iter().filter(is_new).chain(old.steps.iter().filter(is_gone));
        for step in alone {
            warnings.push(format!(
                "only one of the revisions has the step `{0}`, so every run that comes to it \
                 differs; add `steps.{0}` to `shadow.ignore` if that is meant",
                step.name
            ));
        }
        warnings
    }
}

fn quoted(names: &[Arc<str>]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// A run of the old revision that has completed, as far as the new one is held against it.
#[derive(Clone, Debug)]
pub struct Original {
    /// Its record.
    pub run: Arc<Run>,
    /// Its whole log.
    pub log: Vec<StoredEvent>,
}

impl Original {
    /// A run that can be compared with. That takes one which has completed on its revision alone,
    /// was not tried again from another one, and whose whole log is there.
    pub fn new(run: Arc<Run>, log: Vec<StoredEvent>) -> Option<Self> {
        let is_whole = u64::try_from(log.len()).is_ok_and(|events| events == run.version);
        let is_moved = log.iter().any(|one| matches!(one.event, Event::RunMigrated(_)));
        (may_be_original(&run) && is_whole && !is_moved).then_some(Self { run, log })
    }

    /// What the run was given.
    pub fn input(&self) -> Payload {
        self.log.first().map_or_else(Payload::null, |first| first.event.payload())
    }
}

/// Whether a run can be compared with, by its record alone.
pub fn may_be_original(run: &Run) -> bool {
    run.status == RunStatus::Completed && run.retry_of.is_none() && !run.is_shadow()
}

/// What happened to one step of a run.
#[derive(Default)]
struct Left {
    output: Output,
    has_succeeded: bool,
    error: Option<StepError>,
}

/// How the step of the new revision at `index` ends in a shadow of `original`.
pub fn stub(new: &Flow, map: &StepMap, index: StepIndex, original: &Original) -> Stub {
    let step = new.step(index);
    let name = map.origin(&step.name);
    let mut left = name.map(|name| left_by(name, &original.log)).unwrap_or_default();
    if let Some(error) = left.error {
        return Stub::Failed(error);
    }
    let is_declared = |event: &str| step.emits.iter().any(|slot| *new.slot(*slot).name == *event);
    let passes_by_itself = matches!(step.action, Action::Wait(Wait::Delay(_) | Wait::Until(_)));
    if !left.has_succeeded && passes_by_itself {
        let events = step.emits.iter().map(|slot| Arc::clone(&new.slot(*slot).name));
        left.output.emits = events.map(|event| (event, Payload::null())).collect();
    }
    left.output.emits.retain(|(event, _)| is_declared(event));
    Stub::Succeeded(left.output)
}

fn left_by(name: &str, log: &[StoredEvent]) -> Left {
    let mut left = Left::default();
    for stored in log {
        if stored.event.step().is_none_or(|step| **step != *name) {
            continue;
        }
        match &stored.event {
            Event::EventEmitted { event, data, .. } => {
                left.output.emits.push((Arc::clone(event), data.clone()));
            }
            Event::StateSet { key, value, .. } => {
                left.output.state.retain(|(kept, _)| kept != key);
                left.output.state.push((Arc::clone(key), value.clone()));
            }
            Event::SignalTaken { signal_seq, events, .. } => {
                let signal = log.iter().find(|other| other.seq == *signal_seq);
                let data = signal.map_or_else(Payload::null, |signal| signal.event.payload());
                left.output
                    .emits
                    .extend(events.iter().map(|event| (Arc::clone(event), data.clone())));
            }
            Event::StepSucceeded { result, .. } => {
                left.has_succeeded = true;
                left.output.result.clone_from(result);
            }
            Event::StepFailed { error, .. } => left.error = Some(error.clone()),
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
            // The first counts.
            | Event::EventRepeated { .. }
            | Event::AttemptFailed { .. }
            | Event::StepSkipped { .. }
            | Event::StepCancelled { .. }
            | Event::StepCarried { .. }
            | Event::SignalReceived { .. }
            | Event::RunCompleted {}
            | Event::RunFailed { .. }
            | Event::RunCancelled { .. } => {}
        }
    }
    left
}

/// The two revisions of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// The one that the originals ran on.
    pub old: &'a Flow,
    /// The one that is tried.
    pub new: &'a Flow,
    /// Which steps stand for which.
    pub map: &'a StepMap,
}

/// In what the shadow of a run differs from it.
pub fn compare(
    pair: &Pair<'_>,
    ignored: &[Ignored],
    original: &Original,
    (run, log): (&Run, &[StoredEvent]),
) -> ShadowResult {
    let mut mismatches = Vec::new();
    if run.status != original.run.status {
        mismatches.push(mismatch("status", original.run.status.as_str(), ended(run)));
    }
    compare_steps(pair, (&original.run, run), &mut mismatches);
    mismatches.retain(|found| !ignored.iter().any(|path| path.is_all_of(&found.path)));
    let values = |payloads: BTreeMap<&str, Payload>| -> BTreeMap<String, Value> {
        payloads.into_iter().map(|(name, data)| (name.to_owned(), data.value())).collect()
    };
    let events = (values(emitted(&original.log)), values(emitted(log)));
    compare_values("emits", events, ignored, &mut mismatches);
    let given = |log: &[StoredEvent], name: &dyn Fn(&str) -> String| -> BTreeMap<String, Value> {
        let results = results(log).into_iter();
        let some = results.filter_map(|(step, result)| Some((name(step), result?.value())));
        some.filter(|(_, value)| !value.is_null()).collect()
    };
    let renamed = |step: &str| pair.map.get(step).map_or(step, |name| name).to_owned();
    let results = (given(&original.log, &renamed), given(log, &str::to_owned));
    compare_values("result", results, ignored, &mut mismatches);
    cut_short(&mut mismatches);
    ShadowResult { original: original.run.run_id, run_id: run.run_id, mismatches }
}

/// That the new revision does not take the input of a run.
pub fn unfit(original: RunId, run_id: RunId, problem: String) -> ShadowResult {
    let mismatches = vec![mismatch("input", "an input that is accepted", problem)];
    ShadowResult { original, run_id, mismatches }
}

/// That a run cannot be compared with any more.
pub fn lost(original: RunId, run_id: RunId) -> ShadowResult {
    let mismatches = vec![mismatch("original", "a run to compare with", "its log is gone")];
    ShadowResult { original, run_id, mismatches }
}

/// How steps ended: those that both revisions have, and effects that only one has.
fn compare_steps(
    pair: &Pair<'_>,
    (old_run, new_run): (&Run, &Run),
    mismatches: &mut Vec<SmokeMismatch>,
) {
    let Pair { old, new, map } = *pair;
    for index in old.step_indexes() {
        let (step, wanted) = (old.step(index), old_run.step(index).state);
        let other = map.get(&step.name).and_then(|name| new.step_index(name));
        match other {
            Some(other) => {
                let found = new_run.step(other).state;
                if wanted != found {
                    let path = format!("steps.{}", new.step(other).name);
                    mismatches.push(mismatch(path, wanted.as_str(), found.as_str()));
                }
            }
            None if step.is_effect && has_begun(wanted) => {
                let path = format!("steps.{}", step.name);
                mismatches.push(mismatch(path, wanted.as_str(), "no such step"));
            }
            None => {}
        }
    }
    for index in new.step_indexes() {
        let (step, found) = (new.step(index), new_run.step(index).state);
        if step.is_effect && map.origin(&step.name).is_none() && has_begun(found) {
            let path = format!("steps.{}", step.name);
            mismatches.push(mismatch(path, "no such step", found.as_str()));
        }
    }
}

fn has_begun(state: StepState) -> bool {
    match state {
        StepState::Pending | StepState::Skipped => false,
        StepState::Queued
        | StepState::Running
        | StepState::Waiting
        | StepState::Succeeded
        | StepState::Failed
        | StepState::Cancelled => true,
    }
}

fn compare_values(
    kind: &str,
    (wanted, found): (BTreeMap<String, Value>, BTreeMap<String, Value>),
    ignored: &[Ignored],
    mismatches: &mut Vec<SmokeMismatch>,
) {
    let names: BTreeSet<&String> = wanted.keys().chain(found.keys()).collect();
    for name in names {
        let path = format!("{kind}.{name}");
        if ignored.iter().any(|one| one.is_all_of(&path)) {
            continue;
        }
        let rest = |value: &Value| {
            let mut value = value.clone();
            for one in ignored {
                one.take_out(&path, &mut value);
            }
            value
        };
        match (wanted.get(name).map(rest), found.get(name).map(rest)) {
            (Some(wanted), Some(found)) => {
                let mut differences = Vec::new();
                differ(&path, &wanted, &found, &mut differences);
                mismatches.extend(differences);
            }
            (Some(wanted), None) => mismatches.push(mismatch(path, text(&wanted), "nothing")),
            (None, Some(found)) => mismatches.push(mismatch(path, "nothing", text(&found))),
            (None, None) => unreachable!("a name comes from one of the two"),
        }
    }
}
