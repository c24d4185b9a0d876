//! What a deployment does next, as a function of its record and of what its driver sees.
//!
//! [`next`] names one thing. The driver does it, under the guard that the record still has the
//! version that it was decided for, looks again and asks again. Every action may be repeated, and
//! may have been done by an instance that died before it could say so.
//!
//! Held starts and checkpoints are let go at the replay rate: a few, then a wait as long as they
//! were worth. A driver that was away does not make up for it. Starts that came meanwhile are let go
//! besides, so that what is held grows less by the rate, however many come.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::figures::{Figures, real};
use super::plan::{Fate, PlannedRun};
use super::record::{Counts, Deployment, Phase, RollbackReason, SmokeResult, Verdict};
use super::settings::{Alerts, Canary, Migration, ReplayRate, Share, Strategy};
use crate::ids::{Revision, RunId};
use crate::time::Timestamp;

mod canary;
mod shadow;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

pub use shadow::{SHADOW_OPEN_MAX, ShadowRunSeen, ShadowSeen, ShadowStage};

/// Runs that are checkpointed in one go.
pub const CHECKPOINT_BATCH_MAX: usize = 100;
/// Starts or checkpoints that are let go at once.
pub const REPLAY_BATCH_MAX: u32 = 500;
/// Batches in a second, for a replay rate that is high enough.
const REPLAY_BATCHES_PER_SECOND: u32 = 10;

/// What the driver of a deployment sees, from durable records.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The time, on the store's clock.
    pub now: Timestamp,
    /// The active revision of the flow.
    pub active: Revision,
    /// The share of starts that goes to the new revision, if one is set.
    pub share: Option<Share>,
    /// Whether the new revision is registered for its pool.
    pub is_registered: bool,
    /// Whether an instance of the target pool is alive; true if there is no target pool.
    pub is_pool_alive: bool,
    /// The flow's gate.
    pub gate: Gate,
    /// The open runs on the old revision, without those that are held, checkpointed or smoke tests,
    /// each with what would become of it now. All of them, or at least one if there are any.
    pub open: Vec<PlannedRun>,
    /// Checkpoints of this deployment that have not been resumed.
    pub checkpoints: u64,
    /// Starts of the flow that are held.
    pub held: u64,
    /// What this driver let go last.
    pub last_replay: Option<Replayed>,
    /// The smoke tests that were started.
    pub smoke: Vec<SmokeSeen>,
    /// The runs of the shadow.
    pub shadow: ShadowSeen,
    /// How the two revisions did since the canary began.
    pub canary: Option<CanarySeen>,
    /// How the flow did before, once it was asked for.
    pub before: Option<Figures>,
    /// How the flow did since the new revision took over, once it was asked for.
    pub after: Option<Figures>,
    /// What somebody asks for.
    pub asked: Option<Asked>,
    /// Something that could not be done, and trying again would not help.
    pub fault: Option<String>,
    /// Whether the alert was sent, or given up.
    pub is_alerted: bool,
    /// What became of starts and runs.
    pub counts: Counts,
}

/// Whether starts of a flow are held. Each change has a greater generation, or the same when the
/// one who closed it opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Whether starts are held.
    pub is_holding: bool,
    /// The generation of its last change.
    pub generation: u64,
}

/// Something that was let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// When.
    pub at: Timestamp,
    /// How many, but for those that had come since the time before.
    pub count: u32,
    /// How many starts were held after it.
    pub left: u64,
}

/// A smoke test that was started.
#[derive(Clone, Debug, PartialEq)]
pub struct SmokeSeen {
    /// The test.
    pub name: String,
    /// How it ended, if it has.
    pub result: Option<SmokeResult>,
}

/// How two revisions did side by side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CanarySeen {
    /// The old one.
    pub old: Figures,
    /// The new one.
    pub new: Figures,
}

/// What somebody asks a deployment for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To go back to the old revision.
    Rollback {
        /// Who asks, and why.
        note: Option<std::sync::Arc<str>>,
    },
    /// To take a canary as good.
    Promote,
}

/// The one thing to do now.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub enum Next {
    /// Write this record in place of the one that was asked about.
    Become(Box<Deployment>),
    /// Look again when something changes, and no later than this.
    Wait {
        /// When.
        until: Timestamp,
    },
    /// Take the figures: of the last runs of the old revision, or of those since the switch.
    Measure(Moment),
    /// Hold the starts of the flow under this generation, unless the gate has had it or a later one.
    CloseGate {
        /// The generation.
        generation: u64,
    },
    /// Fence the attempts of these runs and checkpoint them where they are; not those that ended.
    Checkpoint {
        /// The runs.
        runs: Vec<RunId>,
    },
    /// Register the new revision for its pool, without making it active.
    Register,
    /// Start the smoke tests of these names on the new revision, unless they were.
    StartSmoke {
        /// The names.
        tests: Vec<String>,
    },
    /// Start the new revision on the inputs of these runs, unless it was.
    StartShadow {
        /// The runs.
        originals: Vec<RunId>,
    },
    /// End the steps that wait for it in the shadows of these runs, as they ended there.
    StubShadow {
        /// The runs.
        originals: Vec<RunId>,
    },
    /// Make this revision active, for all starts.
    Activate {
        /// The revision.
        revision: Revision,
    },
    /// Let this share of the starts go to the new revision.
    SetShare {
        /// The share.
        share: Share,
    },
    /// Let the oldest few go on, on the active revision.
    Replay {
        /// Of what.
        source: Source,
        /// How many at most, by the rate.
        count: u32,
        /// How many more: as many as came since the last were let go.
        besides: u32,
    },
    /// Let starts through under this generation if nothing is held, and the gate has no later one.
    OpenGate {
        /// The generation.
        generation: u64,
    },
    /// Tell somebody.
    Alert {
        /// What, each in a sentence.
        texts: Vec<String>,
    },
    /// Nothing is left but to cancel smoke tests that are open, and to give the lease back.
    Finish,
}

/// When figures are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before anything changed.
    Before,
    /// After the switch.
    After,
}

/// What is let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Runs that were checkpointed.
    Checkpoints,
    /// Starts that were held, in their order.
    Hold,
}

/// What `deployment` does next.
pub fn next(deployment: &Deployment, seen: &Seen) -> Next {
    if deployment.phase.can_roll_back() {
        if let Some(Asked::Rollback { note }) = &seen.asked {
            return roll_back(deployment, seen, RollbackReason::Asked { note: note.clone() });
        }
        if let Some(message) = &seen.fault {
            let reason = RollbackReason::Fault { message: message.clone() };
            return roll_back(deployment, seen, reason);
        }
    }
    match deployment.phase {
        Phase::Plan => plan(deployment, seen),
        Phase::Drain => drain(deployment, seen),
        Phase::Deploy => deploy(deployment, seen),
        Phase::Verify => verify(deployment, seen),
        Phase::Resume => resume(deployment, seen),
        Phase::Audit => audit(deployment, seen),
        Phase::RollingBack => rolling_back(deployment, seen),
        Phase::Completed | Phase::RolledBack => Next::Finish,
    }
}

/// What the figures after a deployment are to be alerted about, each in a sentence.
pub fn alerts(thresholds: &Alerts, after: &Figures) -> Vec<String> {
    let mut texts = Vec::new();
    if let Some(max) = thresholds.error_rate_max
        && after.error_rate > max
    {
        let (rate, max) = (after.error_rate * 100.0, max * 100.0);
        texts.push(format!("the error rate is {rate:.2} %, over {max:.2} %"));
    }
    if let Some(max) = thresholds.latency_p99_max
        && u128::from(after.latency_p99_ms) > max.0.as_millis()
    {
        let ms = after.latency_p99_ms;
        texts.push(format!("the 99th percentile of latency is {ms} ms, over {max}"));
    }
    texts
}

fn plan(deployment: &Deployment, seen: &Seen) -> Next {
    if let Some(dead) = dead_pool(deployment, seen) {
        return roll_back(deployment, seen, dead);
    }
    let Some(before) = &seen.before else { return Next::Measure(Moment::Before) };
    let mut record = match deployment.settings.strategy {
        Strategy::Rolling | Strategy::Canary | Strategy::Shadow => {
            enter(deployment, Phase::Deploy, seen)
        }
        Strategy::BlueGreen => {
            let mut record = enter(deployment, Phase::Drain, seen);
            record.gate_generation = Some(seen.gate.generation + 1);
            record
        }
    };
    record.before = Some(before.clone());
    written(record)
}

fn drain(deployment: &Deployment, seen: &Seen) -> Next {
    let wanted = deployment.gate_generation.unwrap_or(0);
    if seen.gate.generation < wanted {
        return Next::CloseGate { generation: wanted };
    }
    if !seen.gate.is_holding || seen.gate.generation > wanted {
        // Somebody opened it, or closed it again: it is closed anew, and theirs is taken over.
        let mut record = deployment.clone();
        record.version += 1;
        record.gate_generation = Some(seen.gate.generation + 1);
        return written(record);
    }
    let deadline = deployment.phase_at().plus(deployment.settings.drain_timeout.0);
    if !seen.open.is_empty() && seen.now < deadline {
        return Next::Wait { until: deadline };
    }
    let runs: Vec<RunId> = match deployment.settings.migration {
        Migration::Never => Vec::new(),
        Migration::Mappable | Migration::All => seen
            .open
            .iter()
            .filter(|open| matches!(open.fate, Fate::Resumes { .. }))
            .map(|open| open.run_id)
            .take(CHECKPOINT_BATCH_MAX)
            .collect(),
    };
    if runs.is_empty() {
        return written(enter(deployment, Phase::Deploy, seen));
    }
    Next::Checkpoint { runs }
}

fn deploy(deployment: &Deployment, seen: &Seen) -> Next {
    if !seen.is_registered {
        return Next::Register;
    }
    let settings = &deployment.settings;
    let has_checks = !settings.smoke_tests.is_empty() || settings.shadow.is_some();
    let is_bare = settings.strategy == Strategy::Rolling && !has_checks;
    let phase = if is_bare { Phase::Resume } else { Phase::Verify };
    written(enter(deployment, phase, seen))
}

fn verify(deployment: &Deployment, seen: &Seen) -> Next {
    if let (Some(rules), Some(shadow)) = (&deployment.settings.shadow, &deployment.shadow) {
        // It begins when the smoke tests have passed.
        return shadow::go_on(deployment, seen, rules, shadow);
    }
    let tests: Vec<&String> =
        deployment.settings.smoke_tests.iter().map(|test| &test.name).collect();
    let find = |name: &String| seen.smoke.iter().find(|smoke| smoke.name == *name);
    let results: Vec<SmokeResult> =
        tests.iter().filter_map(|name| find(name)?.result.clone()).collect();
    let failed: Vec<String> = results
        .iter()
        .filter(|result| !result.has_passed())
        .map(|result| result.name.clone())
        .collect();
    if !failed.is_empty() {
        return smoke_failed(
            deployment,
            seen,
            results,
            RollbackReason::SmokeFailed { tests: failed },
        );
    }
    if results.len() == tests.len() {
        if let Some(dead) = dead_pool(deployment, seen) {
            return roll_back(deployment, seen, dead);
        }
        if deployment.settings.shadow.is_some() {
            return written(shadow::begun(deployment, seen, results));
        }
        return passed(&Deployment { smoke: results, ..deployment.clone() }, seen);
    }
    let deadline = deployment.phase_at().plus(deployment.settings.verify_timeout.0);
    if deadline <= seen.now {
        let has_ended = |name: &&String| results.iter().any(|result| result.name == **name);
        let tests = tests.into_iter().filter(|name| !has_ended(name)).cloned().collect();
        return smoke_failed(deployment, seen, results, RollbackReason::VerifyTimedOut { tests });
    }
    let missing: Vec<String> =
        tests.into_iter().filter(|name| find(name).is_none()).cloned().collect();
    if missing.is_empty() {
        Next::Wait { until: deadline }
    } else {
        Next::StartSmoke { tests: missing }
    }
}

/// The new revision has passed all that it was tried with.
fn passed(deployment: &Deployment, seen: &Seen) -> Next {
    match deployment.settings.strategy {
        Strategy::Rolling | Strategy::BlueGreen | Strategy::Canary => {
            written(enter(deployment, Phase::Resume, seen))
        }
        Strategy::Shadow => roll_back(deployment, seen, RollbackReason::OnlyTried {}),
    }
}

fn smoke_failed(
    deployment: &Deployment,
    seen: &Seen,
    results: Vec<SmokeResult>,
    reason: RollbackReason,
) -> Next {
    let mut record = enter(deployment, Phase::RollingBack, seen);
    record.smoke = results;
    record.rollback = Some(reason);
    written(record)
}

fn resume(deployment: &Deployment, seen: &Seen) -> Next {
    let settings = &deployment.settings;
    if settings.strategy == Strategy::Canary && !deployment.is_promoted {
        return watch_canary(deployment, seen, &settings.canary);
    }
    match go_on(deployment, seen, &deployment.to) {
        Some(next) => next,
        None => written(enter(deployment, Phase::Audit, seen)),
    }
}

fn watch_canary(deployment: &Deployment, seen: &Seen, rules: &Canary) -> Next {
    // What was decided by is kept.
    let deployment = &Deployment { canary: seen.canary.clone(), ..deployment.clone() };
    let promoted = || {
        let mut record = deployment.clone();
        record.version += 1;
        record.is_promoted = true;
        written(record)
    };
    if seen.asked == Some(Asked::Promote) {
        return promoted();
    }
    if let Some(dead) = dead_pool(deployment, seen) {
        return roll_back(deployment, seen, dead);
    }
    if seen.share != Some(rules.share) {
        return Next::SetShare { share: rules.share };
    }
    let nothing = CanarySeen::default();
    let samples = seen.canary.as_ref().unwrap_or(&nothing);
    let deadline = deployment.phase_at().plus(rules.timeout.0);
    match canary::judge(rules, samples) {
        canary::Judgement::Good => promoted(),
        canary::Judgement::Worse(what) => {
            roll_back(deployment, seen, RollbackReason::CanaryWorse { what })
        }
        canary::Judgement::TooFew if seen.now < deadline => Next::Wait { until: deadline },
        canary::Judgement::TooFew => {
            let samples = samples.new.count;
            roll_back(deployment, seen, RollbackReason::CanaryTimedOut { samples })
        }
    }
}

fn audit(deployment: &Deployment, seen: &Seen) -> Next {
    let Some(after) = &seen.after else { return Next::Measure(Moment::After) };
    let before = deployment.before.as_ref().map_or(0, |before| before.count);
    let enough = before.min(u64::from(deployment.settings.before_window));
    let deadline = deployment.phase_at().plus(deployment.settings.verify_timeout.0);
    if after.count < enough && seen.now < deadline {
        return Next::Wait { until: deadline };
    }
    let texts = alerts(&deployment.settings.alerts, after);
    if let Some(alert) = untold(deployment, seen, &texts) {
        return alert;
    }
    let mut record = enter(deployment, Phase::Completed, seen);
    record.after = Some(after.clone());
    record.verdict = Some(if texts.is_empty() { Verdict::Good } else { Verdict::Alerting });
    record.alerts = texts;
    written(record)
}

fn rolling_back(deployment: &Deployment, seen: &Seen) -> Next {
    if let Some(next) = go_on(deployment, seen, &deployment.from) {
        return next;
    }
    if deployment.rollback == Some(RollbackReason::OnlyTried {}) {
        let mut record = enter(deployment, Phase::RolledBack, seen);
        record.verdict = Some(Verdict::Tried);
        return written(record);
    }
    let why = deployment.rollback.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    let texts = vec![format!(
        "deployment {} of flow {} to {} was rolled back{why}",
        deployment.deployment_id, deployment.flow, deployment.to
    )];
    if let Some(alert) = untold(deployment, seen, &texts) {
        return alert;
    }
    let mut record = enter(deployment, Phase::RolledBack, seen);
    record.verdict = Some(Verdict::RolledBack);
    record.alerts = texts;
    written(record)
}

/// What must be done until all that was stopped goes on, on `revision`; nothing if it does.
fn go_on(deployment: &Deployment, seen: &Seen, revision: &Revision) -> Option<Next> {
    if seen.active != *revision || seen.share.is_some() {
        return Some(Next::Activate { revision: revision.clone() });
    }
    // A gate that this deployment has not closed is somebody else's, and so is what it holds.
    let generation = deployment.gate_generation?;
    if seen.checkpoints > 0 {
        return Some(replay(deployment, seen, Source::Checkpoints, seen.checkpoints));
    }
    let is_ours = seen.gate.generation <= generation;
    if seen.held > 0 && (is_ours || !seen.gate.is_holding) {
        return Some(replay(deployment, seen, Source::Hold, seen.held));
    }
    // One that was never closed gets the generation all the same: closing it late does nothing then.
    let is_done = !is_ours || (!seen.gate.is_holding && seen.gate.generation == generation);
    if is_done { None } else { Some(Next::OpenGate { generation }) }
}

fn replay(deployment: &Deployment, seen: &Seen, source: Source, left: u64) -> Next {
    let left = u32::try_from(left).unwrap_or(u32::MAX);
    let mut came = 0;
    let batch = match deployment.settings.replay_rate {
        ReplayRate::Unlimited => REPLAY_BATCH_MAX,
        ReplayRate::PerSecond(rate) => {
            if let Some(last) = seen.last_replay {
                let worth =
                    Duration::from_secs_f64(real(last.count.into()) / f64::from(rate.get()));
                let until = last.at.plus(worth);
                if seen.now < until {
                    return Next::Wait { until };
                }
                if source == Source::Hold {
                    came = u32::try_from(seen.held.saturating_sub(last.left)).unwrap_or(u32::MAX);
                }
            }
            (rate.get() / REPLAY_BATCHES_PER_SECOND).clamp(1, REPLAY_BATCH_MAX)
        }
    };
    let count = batch.min(left);
    Next::Replay { source, count, besides: came.min(left - count) }
}

/// Tells somebody, if there is something to tell, somebody to tell, and it was not done.
fn untold(deployment: &Deployment, seen: &Seen, texts: &[String]) -> Option<Next> {
    let is_due = deployment.settings.alerts.webhook.is_some() && !texts.is_empty();
    (is_due && !seen.is_alerted).then(|| Next::Alert { texts: texts.to_vec() })
}

fn dead_pool(deployment: &Deployment, seen: &Seen) -> Option<RollbackReason> {
    let pool = deployment.settings.pool.as_ref().filter(|_| !seen.is_pool_alive)?;
    Some(RollbackReason::PoolDead { pool: pool.clone() })
}

fn roll_back(deployment: &Deployment, seen: &Seen, reason: RollbackReason) -> Next {
    let mut record = enter(deployment, Phase::RollingBack, seen);
    record.rollback = Some(reason);
    written(record)
}

fn enter(deployment: &Deployment, phase: Phase, seen: &Seen) -> Deployment {
    let mut record = deployment.entering(phase, seen.now);
    record.counts = seen.counts;
    record
}

fn written(record: Deployment) -> Next {
    Next::Become(Box::new(record))
}
