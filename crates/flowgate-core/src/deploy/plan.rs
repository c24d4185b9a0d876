//! What is going to happen to each open run, before anything changes.
//!
//! A run that is checkpointed goes on at the steps of the new revision that stand for its open ones
//! ([`StepMap`]). It has a place there, and so can be moved, if
//!
//! 1. each of its steps that is open, has succeeded or has failed stands for a step of the new
//!    revision;
//! 2. an open step that waits stands for a wait, for the same signal if it is for one, and an open
//!    step that does not wait for one that does not either;
//! 3. what the new revision wants as input of an open step is there;
//! 4. no step that has not begun needs an event that only steps declare which have ended, and which
//!    could not emit it before: it would wait for ever;
//! 5. no step that has not begun lies before one that has, unless it did so on the old revision: it
//!    would come too late.
//!
//! A run that has no place stays on its revision, and the plan says why.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::record::DeploymentId;
use super::settings::{Migration, Settings, Strategy};
use super::shadow::ShadowPlan;
use crate::flow::{Flow, nearest};
use crate::ids::{Revision, RunId, StepIndex};
use crate::run::Run;
use crate::time::Timestamp;

mod place;
#[cfg(test)]
mod tests;

/// Runs that a plan lists one by one; the rest is counted.
pub const PLANNED_RUNS_MAX: usize = 1_000;

/// What is going to happen to the open runs of a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Plan {
    /// Runs that are expected to finish on their revision.
    pub finishing: u64,
    /// Runs that go on on the new revision if they have not finished.
    pub resuming: u64,
    /// Runs that stay on their revision however long they take.
    pub pinned: u64,
    /// The first of them, each with its fate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<PlannedRun>,
    /// What a shadow would do, if there is to be one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowPlan>,
    /// What somebody should know before they go on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// An open run and what is going to happen to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRun {
    /// The run.
    pub run_id: RunId,
    /// The steps at which it is.
    pub at: Vec<Arc<str>>,
    /// What is going to happen to it.
    #[serde(flatten)]
    pub fate: Fate,
}

/// What is going to happen to an open run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fate", rename_all = "snake_case")]
pub enum Fate {
    /// It finishes on its revision.
    Finishes,
    /// If it is open at the drain timeout, it goes on on the new revision.
    Resumes {
        /// The steps at which it goes on.
        steps: Vec<Arc<str>>,
        /// Steps that it begins with besides, as all that they need is there.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        starts: Vec<Arc<str>>,
    },
    /// It stays on its revision, however long it takes.
    Pinned {
        /// Why, in words.
        reason: String,
    },
}

impl Fate {
    /// As it is stored and shown.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Finishes => "finishes",
            Self::Resumes { .. } => "resumes",
            Self::Pinned { .. } => "pinned",
        }
    }
}

/// Why a deployment cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another one is under way.
    #[error("deployment {deployment_id} of the flow is under way; wait for it, or roll it back")]
    InProgress {
        /// That one.
        deployment_id: DeploymentId,
    },
    /// The revision is active.
    #[error("revision {revision} is active already")]
    Active {
        /// The revision.
        revision: Revision,
    },
    /// The revision was active before the one that is.
    #[error("revision {revision} is older than {active}, which is active; force it to go back")]
    Older {
        /// The revision.
        revision: Revision,
        /// The one that is active.
        active: Revision,
    },
    /// The step map does not fit the two revisions.
    #[error("steps: {message}; {remedy}")]
    StepMap {
        /// What is wrong.
        message: String,
        /// The way out.
        remedy: String,
    },
    /// All runs are to be migrated, and these have no place in the new revision.
    #[error(
        "{} open runs have no place in the new revision: {}; map their steps, or leave out `migrate: true` and let them finish",
        .runs.len(), listed(.runs)
    )]
    Unmappable {
        /// The runs, each with the reason.
        runs: Vec<(RunId, String)>,
    },
}

/// Runs that a message names; the rest is counted.
const LISTED_MAX: usize = 10;

fn listed(runs: &[(RunId, String)]) -> String {
    let mut text: Vec<String> =
        runs.iter().take(LISTED_MAX).map(|(run_id, why)| format!("{run_id} ({why})")).collect();
    if runs.len() > LISTED_MAX {
        text.push(format!("and {} more", runs.len() - LISTED_MAX));
    }
    text.join(", ")
}

/// What is known of the flow when somebody asks for a deployment.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    /// The active revision.
    pub active: &'a Revision,
    /// Whether the revision that is asked for was active before it.
    pub is_older: bool,
    /// The deployment that is under way, if one is.
    pub open: Option<&'a DeploymentId>,
}

/// Whether a deployment of `revision` may begin at all.
pub fn admit(revision: &Revision, standing: &Standing<'_>, is_forced: bool) -> Result<(), Refusal> {
    let Standing { active, is_older, open } = *standing;
    if let Some(deployment_id) = open {
        return Err(Refusal::InProgress { deployment_id: deployment_id.clone() });
    }
    if revision == active {
        return Err(Refusal::Active { revision: revision.clone() });
    }
    if is_older && !is_forced {
        return Err(Refusal::Older { revision: revision.clone(), active: active.clone() });
    }
    Ok(())
}

/// Which step of the new revision stands for which of the old one.
///
/// What is named explicitly counts. Any other step stands for the one of the same name, unless that
/// was given to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepMap {
    names: BTreeMap<Arc<str>, Arc<str>>,
    upstream_old: Vec<Vec<bool>>,
    upstream_new: Vec<Vec<bool>>,
}

impl StepMap {
    /// Checks `names`, from old to new, against the two revisions.
    pub fn new(
        (old, new): (&Flow, &Flow),
        names: &BTreeMap<String, String>,
    ) -> Result<Self, Refusal> {
        let mut map = BTreeMap::new();
        let mut taken: BTreeMap<&str, &str> = BTreeMap::new();
        for (from, to) in names {
            known(old, "old", from)?;
            known(new, "new", to)?;
            if let Some(other) = taken.insert(to, from) {
                return Err(Refusal::StepMap {
                    message: format!("`{other}` and `{from}` both become `{to}`"),
                    remedy: "map one of them to another step, or to none".to_owned(),
                });
            }
            map.insert(from.as_str().into(), to.as_str().into());
        }
        for step in &old.steps {
            let is_free = !taken.contains_key(&*step.name) && !map.contains_key(&step.name);
            if is_free && new.step_index(&step.name).is_some() {
                map.insert(Arc::clone(&step.name), Arc::clone(&step.name));
            }
        }
        Ok(Self { names: map, upstream_old: upstream(old), upstream_new: upstream(new) })
    }

    /// The step of the new revision that stands for `step` of the old one.
    pub fn get(&self, step: &str) -> Option<&Arc<str>> {
        self.names.get(step)
    }

    /// The step of the old revision that `step` of the new one stands for.
    pub fn origin(&self, step: &str) -> Option<&Arc<str>> {
        self.pairs().find(|(_, new)| ***new == *step).map(|(old, _)| old)
    }

    /// For each step of the old revision the name of the one that stands for it; an empty name where
    /// none does.
    pub fn renames(&self, old: &Flow) -> BTreeMap<Arc<str>, Arc<str>> {
        let name = |name: &Arc<str>| self.get(name).map_or_else(|| "".into(), Arc::clone);
        old.steps.iter().map(|step| (Arc::clone(&step.name), name(&step.name))).collect()
    }

    fn pairs(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.names.iter()
    }
}

fn known(flow: &Flow, which: &str, step: &str) -> Result<(), Refusal> {
    if flow.step_index(step).is_some() {
        return Ok(());
    }
    let remedy = match nearest(step, flow.steps.iter().map(|step| &*step.name)) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => "write `old step: new step`".to_owned(),
    };
    let message = format!("the {which} revision has no step `{}`", step.escape_debug());
    Err(Refusal::StepMap { message, remedy })
}

/// An open run of the old revision.
#[derive(Clone, Copy, Debug)]
pub struct OpenRun<'a> {
    /// Its record.
    pub run: &'a Run,
    /// When it can be expected to have ended, if that is known.
    pub ends_by: Option<Timestamp>,
}

/// What is planned.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The active revision.
    pub old: &'a Flow,
    /// The one that is to become active.
    pub new: &'a Flow,
    /// Which steps stand for which.
    pub map: &'a StepMap,
    /// How it is done.
    pub settings: &'a Settings,
}

/// What would become of a run that is open at the drain timeout.
pub fn fate(change: &Change<'_>, run: &Run) -> Fate {
    match change.settings.strategy {
        Strategy::Rolling | Strategy::Canary | Strategy::Shadow => Fate::Finishes,
        Strategy::BlueGreen => match change.settings.migration {
            Migration::Never => {
                Fate::Pinned { reason: "the deployment does not migrate runs".to_owned() }
            }
            Migration::Mappable | Migration::All => landing(change, run),
        },
    }
}

/// Where a run would go on if it were moved now, whatever the strategy, or why it has no place.
pub fn landing(change: &Change<'_>, run: &Run) -> Fate {
    match place::find(change, run) {
        found @ Fate::Resumes { .. } => {
            // The plan promises no more than the move will do.
            let renames = change.map.renames(change.old);
            let moved = crate::decide::place((change.old, change.new), &renames, run);
            moved.map_or_else(|why| Fate::Pinned { reason: why.0 }, |_| found)
        }
        other @ (Fate::Finishes | Fate::Pinned { .. }) => other,
    }
}

/// What is going to happen to each of `runs`, if the drain began at `now`.
pub fn plan(change: &Change<'_>, runs: &[OpenRun<'_>], now: Timestamp) -> Result<Plan, Refusal> {
    let deadline = now.plus(change.settings.drain_timeout.0);
    let mut plan = Plan::default();
    let mut unmappable = Vec::new();
    for open in runs {
        let run_id = open.run.run_id;
        let is_soon_over = open.ends_by.is_some_and(|ends_by| ends_by <= deadline);
        let fate = if is_soon_over { Fate::Finishes } else { fate(change, open.run) };
        match &fate {
            Fate::Finishes => plan.finishing += 1,
            Fate::Resumes { .. } => plan.resuming += 1,
            Fate::Pinned { reason } => {
                plan.pinned += 1;
                unmappable.push((run_id, reason.clone()));
            }
        }
        if plan.runs.len() < PLANNED_RUNS_MAX {
            plan.runs.push(PlannedRun { run_id, at: open_steps(change.old, open.run), fate });
        }
    }
    if change.settings.migration == Migration::All && !unmappable.is_empty() {
        return Err(Refusal::Unmappable { runs: unmappable });
    }
    Ok(plan)
}

/// The names of the steps that are open in a run, in the order of its revision.
pub fn open_steps(flow: &Flow, run: &Run) -> Vec<Arc<str>> {
    let open = flow.step_indexes().filter(|index| run.step(*index).state.is_open());
    open.map(|index| Arc::clone(&flow.step(index).name)).collect()
}

/// For each step of a flow, and each other by its index, whether that one lies before it.
fn upstream(flow: &Flow) -> Vec<Vec<bool>> {
    let mut emitters: Vec<Vec<StepIndex>> = vec![Vec::new(); flow.steps.len()];
    for index in flow.step_indexes() {
        let step = flow.step(index);
        let slots = step.emits.iter().copied().chain(step.succeeded).chain(step.failed);
        for next in slots.flat_map(|slot| &flow.slot(slot).subscribers) {
            emitters[next.at()].push(index);
        }
    }
    let before = |index: StepIndex| {
        let mut found = vec![false; flow.steps.len()];
        let mut todo = vec![index];
        while let Some(index) = todo.pop() {
            for emitter in &emitters[index.at()] {
                if !std::mem::replace(&mut found[emitter.at()], true) {
                    todo.push(*emitter);
                }
            }
        }
        found
    };
    flow.step_indexes().map(before).collect()
}
