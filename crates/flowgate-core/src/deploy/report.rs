//! The report of a deployment: what changed, and the proof that nothing was lost.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::figures::{Delta, Figures};
use super::machine::CanarySeen;
use super::record::{
    Counts, Deployment, DeploymentId, FORMAT, Phase, PhaseTime, SmokeResult, Verdict,
};
use super::settings::Strategy;
use super::shadow::Shadow;
use crate::ids::{Revision, RunId};
use crate::run::RunStatus;
use crate::time::Timestamp;

mod html;
mod text;

#[cfg(test)]
mod tests;

/// Runs that a failed equation names; the rest is counted.
pub const NAMED_RUNS_MAX: usize = 100;

/// What a deployment did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The form of this report.
    pub format: u32,
    /// The deployment.
    pub deployment_id: DeploymentId,
    /// The flow.
    pub flow: String,
    /// The revision that was active.
    pub from: Revision,
    /// The revision that was to become active.
    pub to: Revision,
    /// The way from one to the other.
    pub strategy: Strategy,
    /// Who asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Where it stands.
    pub phase: Phase,
    /// How it ended, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Why it was rolled back, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback: Option<String>,
    /// When it began.
    pub began_at: Timestamp,
    /// When it ended, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// When it entered each phase.
    pub phases: Vec<PhaseTime>,
    /// How the flow did before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Figures>,
    /// How it did after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Figures>,
    /// How that changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta: Option<Delta>,
    /// How the two revisions of a canary did side by side, when it was decided about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanarySeen>,
    /// What became of starts and runs.
    pub counts: Counts,
    /// Where every start is that was received meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conservation: Option<Conservation>,
    /// When that was counted, if runs of that time are not kept any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_at: Option<Timestamp>,
    /// How the smoke tests ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub smoke: Vec<SmokeResult>,
    /// How the new revision did on the inputs of earlier runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Shadow>,
    /// What somebody was told of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alerts: Vec<String>,
}

impl Report {
    /// The report of a deployment as it stands. Where every start is, is added by whoever counted;
    /// what was counted at its end stands where fewer runs are left than were received.
    pub fn of(deployment: &Deployment, conservation: Option<Conservation>) -> Self {
        let left = conservation.as_ref().map_or(0, |sum| sum.received);
        let at_end = deployment.conservation.as_ref().filter(|end| end.received > left);
        let counted_at = at_end.and(deployment.ended_at());
        let conservation = at_end.cloned().or(conservation);
        let delta = deployment.before.as_ref().zip(deployment.after.as_ref());
        Self {
            format: FORMAT,
            deployment_id: deployment.deployment_id.clone(),
            flow: deployment.flow.to_string(),
            from: deployment.from.clone(),
            to: deployment.to.clone(),
            strategy: deployment.settings.strategy,
            author: deployment.author.as_deref().map(str::to_owned),
            note: deployment.note.as_deref().map(str::to_owned),
            phase: deployment.phase,
            verdict: deployment.verdict,
            rollback: deployment.rollback.as_ref().map(ToString::to_string),
            began_at: deployment.began_at,
            ended_at: deployment.ended_at(),
            phases: deployment.phases.clone(),
            before: deployment.before.clone(),
            after: deployment.after.clone(),
            delta: delta.map(|(before, after)| Delta::between(before, after)),
            canary: deployment.canary.clone(),
            counts: deployment.counts,
            conservation,
            counted_at,
            smoke: deployment.smoke.clone(),
            shadow: deployment.shadow.clone(),
            alerts: deployment.alerts.clone(),
        }
    }

    /// Whether the new revision is active, or has passed where that was all, and nothing was lost.
    pub fn is_good(&self) -> bool {
        let is_as_meant = match self.verdict {
            Some(Verdict::Good | Verdict::Alerting | Verdict::Tried) => true,
            Some(Verdict::RolledBack) | None => false,
        };
        is_as_meant && self.conservation.as_ref().is_none_or(Conservation::holds)
    }

    /// How it stands, in a line.
    pub fn status_line(&self) -> String {
        let mut line = match (self.verdict, &self.rollback) {
            (Some(Verdict::Good), _) => "OK: the new revision is active".to_owned(),
            (Some(Verdict::Alerting), _) => {
                format!("ALERT: the new revision is active, and {}", self.alerts.join("; "))
            }
            (Some(Verdict::RolledBack), Some(why)) => format!("ROLLED BACK: {why}"),
            (Some(Verdict::RolledBack), None) => "ROLLED BACK".to_owned(),
            (Some(Verdict::Tried), _) => {
                "OK: the new revision has passed, and was only tried".to_owned()
            }
            (None, _) => format!("IN PROGRESS: {}", self.phase),
        };
        if let Some(conservation) = self.conservation.as_ref().filter(|sum| !sum.holds()) {
            line = format!("LOSS: {}; {line}", conservation.fault());
        }
        line
    }

    /// As a plain text of aligned columns.
    pub fn to_text(&self) -> String {
        text::render(self)
    }

    /// As a page that needs nothing but itself.
    pub fn to_html(&self) -> String {
        html::render(self)
    }

    /// How long it took, or has taken until its last phase began.
    fn took_ms(&self) -> u128 {
        let last = self.phases.last().map_or(self.began_at, |last| last.at);
        self.ended_at.unwrap_or(last).since(self.began_at).as_millis()
    }
}

/// Where a run that was received is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// It has ended.
    Finished,
    /// It is open.
    Running,
    /// Its start is held.
    Held,
}

impl Whereabouts {
    /// Where a run with this status is that is not held.
    pub fn of(status: RunStatus) -> Self {
        if status.is_terminal() { Self::Finished } else { Self::Running }
    }
}

/// The equation that shows that nothing was lost: received = finished + running + held + refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Conservation {
    /// Starts that were received, with those that were refused.
    pub received: u64,
    /// Of them, those whose run has ended.
    pub finished: u64,
    /// Those whose run is open.
    pub running: u64,
    /// Those that are held.
    pub held: u64,
    /// Those that were refused, and whose caller was told so.
    pub refused: u64,
    /// Runs that were received and are nowhere.
    #[serde(skip_serializing_if = "RunList::is_empty")]
    pub lost: RunList,
    /// Runs that are in more than one place.
    #[serde(skip_serializing_if = "RunList::is_empty")]
    pub doubled: RunList,
    /// Runs that nobody received.
    #[serde(skip_serializing_if = "RunList::is_empty")]
    pub unknown: RunList,
}

/// Runs, of which the first are named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunList {
    /// How many there are.
    pub count: u64,
    /// The first of them.
    pub runs: Vec<RunId>,
}

impl RunList {
    fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn add(&mut self, run_id: RunId) {
        self.count += 1;
        if self.runs.len() < NAMED_RUNS_MAX {
            self.runs.push(run_id);
        }
    }
}

impl Conservation {
    /// Compares the runs that were received with where they were found. `refused` starts have no
    /// run.
    pub fn of(
        received: impl IntoIterator<Item = RunId>,
        found: impl IntoIterator<Item = (RunId, Whereabouts)>,
        refused: u64,
    ) -> Self {
        let received: BTreeSet<RunId> = received.into_iter().collect();
        let count = u64::try_from(received.len()).unwrap_or(u64::MAX);
        let mut sum = Self { received: count.saturating_add(refused), refused, ..Self::default() };
        let mut places: BTreeMap<RunId, u32> = BTreeMap::new();
        for (run_id, whereabouts) in found {
            match whereabouts {
                Whereabouts::Finished => sum.finished += 1,
                Whereabouts::Running => sum.running += 1,
                Whereabouts::Held => sum.held += 1,
            }
            *places.entry(run_id).or_default() += 1;
        }
        for run_id in received.iter().filter(|run_id| !places.contains_key(run_id)) {
            sum.lost.add(*run_id);
        }
        for (run_id, count) in places {
            if count > 1 {
                sum.doubled.add(run_id);
            }
            if !received.contains(&run_id) {
                sum.unknown.add(run_id);
            }
        }
        sum
    }

    /// Whether every start is in exactly one place.
    pub fn holds(&self) -> bool {
        let sum = [self.finished, self.running, self.held, self.refused]
            .iter()
            .fold(0_u64, |sum, count| sum.saturating_add(*count));
        let lists = [&self.lost, &self.doubled, &self.unknown];
        sum == self.received && lists.iter().all(|list| list.is_empty())
    }

    /// Where it fails, in words.
    fn fault(&self) -> String {
        let lists = [("lost", &self.lost), ("doubled", &self.doubled), ("unknown", &self.unknown)];
        let parts: Vec<String> = lists
            .iter()
            .filter(|(_, list)| !list.is_empty())
            .map(|(what, list)| format!("{} {what}", list.count))
            .collect();
        if parts.is_empty() { "the sum does not hold".to_owned() } else { parts.join(", ") }
    }
}

/// What came of a shadow, in a line.
fn shadow_line(shadow: &Shadow) -> String {
    let Shadow { compared, differing, originals, .. } = shadow;
    let all = originals.len();
    format!("shadow: {compared} of {all} runs compared, {differing} differ")
}

/// How many differ besides those that are named.
fn unnamed(shadow: &Shadow) -> u64 {
    let named = u64::try_from(shadow.differences.len()).unwrap_or(u64::MAX);
    shadow.differing.saturating_sub(named)
}

/// A row of figures: what, before, after, and the difference.
struct Row {
    what: &'static str,
    before: f64,
    after: f64,
    /// Digits behind the point.
    digits: usize,
}

/// The figures that a report compares.
fn rows(before: &Figures, after: &Figures) -> [Row; 6] {
    let real = super::figures::real;
    let row = |what, before, after, digits| Row { what, before, after, digits };
    [
        row("runs", real(before.count), real(after.count), 0),
        row("throughput/min", before.throughput_per_minute, after.throughput_per_minute, 1),
        row("error rate %", before.error_rate * 100.0, after.error_rate * 100.0, 2),
        row("latency avg ms", real(before.latency_avg_ms), real(after.latency_avg_ms), 0),
        row("latency p50 ms", real(before.latency_p50_ms), real(after.latency_p50_ms), 0),
        row("latency p99 ms", real(before.latency_p99_ms), real(after.latency_p99_ms), 0),
    ]
}

/// What was counted, by its name.
fn counted(counts: &Counts) -> [(&'static str, u64); 5] {
    [
        ("held", counts.held),
        ("released", counts.released),
        ("cancelled while held", counts.cancelled_held),
        ("checkpointed", counts.checkpointed),
        ("pinned", counts.pinned),
    ]
}
