//! The new revision on the inputs of earlier runs.
//!
//! Which runs those are is written down before the first is started, so whoever drives it next goes
//! on with the same ones.

use super::{Next, Seen, dead_pool, passed, roll_back};
use crate::deploy::record::{Deployment, RollbackReason, SmokeResult};
use crate::deploy::settings::ShadowRules;
use crate::deploy::shadow::{Shadow, ShadowResult};
use crate::ids::RunId;

/// Runs of a shadow that are open at a time, so that they do not crowd out what is real.
pub const SHADOW_OPEN_MAX: usize = 20;

/// What the driver sees of a shadow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShadowSeen {
    /// The runs to compare with, the latest first; of interest until they are written down.
    pub last: Vec<RunId>,
    /// The runs that were started, or cannot be.
    pub runs: Vec<ShadowRunSeen>,
}

/// A run of a shadow.
#[derive(Clone, Debug, PartialEq)]
pub struct ShadowRunSeen {
    /// The run whose input it was given.
    pub original: RunId,
    /// How it stands.
    pub stage: ShadowStage,
}

/// How a run of a shadow stands.
#[derive(Clone, Debug, PartialEq)]
pub enum ShadowStage {
    /// It is open.
    Open,
    /// A step of it waits to be ended as it was in the original.
    Unstubbed,
    /// It has ended and was compared.
    Ended(ShadowResult),
}

/// The record once the smoke tests have passed.
pub(super) fn begun(deployment: &Deployment, seen: &Seen, smoke: Vec<SmokeResult>) -> Deployment {
    let mut record = deployment.clone();
    record.version += 1;
    record.counts = seen.counts;
    record.smoke = smoke;
    record.shadow = Some(Shadow::of(seen.shadow.last.clone(), seen.now));
    record
}

pub(super) fn go_on(
    deployment: &Deployment,
    seen: &Seen,
    rules: &ShadowRules,
    shadow: &Shadow,
) -> Next {
    let find = |original: &RunId| seen.shadow.runs.iter().find(|run| run.original == *original);
    let (mut results, mut unstubbed, mut missing, mut open) =
        (Vec::new(), Vec::new(), Vec::new(), 0);
    for original in &shadow.originals {
        match find(original).map(|run| &run.stage) {
            Some(ShadowStage::Ended(result)) => results.push(result),
            Some(ShadowStage::Unstubbed) => unstubbed.push(*original),
            Some(ShadowStage::Open) => open += 1,
            None => missing.push(*original),
        }
    }
    let deadline = shadow.began_at.plus(rules.timeout.0);
    let has_ended = results.len() == shadow.originals.len();
    if has_ended || deadline <= seen.now {
        return end(deployment, seen, rules, shadow.with(&results));
    }
    let room = SHADOW_OPEN_MAX.saturating_sub(open + unstubbed.len());
    if !unstubbed.is_empty() {
        Next::StubShadow { originals: unstubbed }
    } else if room > 0 && !missing.is_empty() {
        missing.truncate(room);
        Next::StartShadow { originals: missing }
    } else {
        Next::Wait { until: deadline }
    }
}

fn end(deployment: &Deployment, seen: &Seen, rules: &ShadowRules, shadow: Shadow) -> Next {
    let Shadow { compared, differing, .. } = shadow;
    let all = u64::try_from(shadow.originals.len()).unwrap_or(u64::MAX);
    let differ_max = rules.differ_max;
    let reason = if differing > u64::from(differ_max) {
        Some(RollbackReason::ShadowDiffers { compared, differing, differ_max })
    } else if compared < all {
        Some(RollbackReason::ShadowTimedOut { open: all - compared })
    } else {
        dead_pool(deployment, seen)
    };
    let deployment = &Deployment { shadow: Some(shadow), ..deployment.clone() };
    match reason {
        Some(reason) => roll_back(deployment, seen, reason),
        None => passed(deployment, seen),
    }
}
