//! The record of a deployment: where it stands, and all that its report needs.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::figures::Figures;
use super::machine::CanarySeen;
use super::plan::Plan;
use super::report::Conservation;
use super::settings::Settings;
use super::shadow::Shadow;
use crate::ids::{InstanceId, Revision, RunId};
use crate::time::Timestamp;

/// The number of the form in which deployments are stored.
pub const FORMAT: u32 = 1;

/// One deployment. Of two of a flow the later has the greater id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeploymentId(pub Arc<str>);

impl fmt::Display for DeploymentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Where a deployment stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deployment {
    /// The form of this record.
    pub format: u32,
    /// The deployment.
    pub deployment_id: DeploymentId,
    /// How often the record was written: a write is guarded by the version before, and so is
    /// everything that is done for the deployment.
    pub version: u64,
    /// The flow.
    pub flow: Arc<str>,
    /// The revision that was active when it began.
    pub from: Revision,
    /// The revision that is to become active.
    pub to: Revision,
    /// How it is done.
    pub settings: Settings,
    /// Who asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<Arc<str>>,
    /// What for, in their words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Arc<str>>,
    /// Whether it goes back to an older revision on purpose.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_forced: bool,
    /// Its phase.
    pub phase: Phase,
    /// When it began.
    pub began_at: Timestamp,
    /// When it entered each phase, in that order.
    pub phases: Vec<PhaseTime>,
    /// The instance that drives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<InstanceId>,
    /// The generation of the gate that it closes, or has closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate_generation: Option<u64>,
    /// Whether a canary was found good, or somebody said so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_promoted: bool,
    /// How the two revisions did side by side, when a canary was decided about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanarySeen>,
    /// What became of starts and runs.
    #[serde(default)]
    pub counts: Counts,
    /// What was going to happen to the open runs.
    #[serde(default)]
    pub plan: Plan,
    /// How the smoke tests ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub smoke: Vec<SmokeResult>,
    /// How the new revision did on the inputs of earlier runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Shadow>,
    /// Why it was rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback: Option<RollbackReason>,
    /// How the flow did before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Figures>,
    /// How it did after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Figures>,
    /// Where every start was when it ended; the runs themselves are not kept for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conservation: Option<Conservation>,
    /// What somebody was told of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alerts: Vec<String>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

/// What somebody asks for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The id of the deployment to be.
    pub deployment_id: DeploymentId,
    /// The flow.
    pub flow: Arc<str>,
    /// The active revision.
    pub from: Revision,
    /// The revision that is to become active.
    pub to: Revision,
    /// How it is to be done.
    pub settings: Settings,
    /// Who asks.
    pub author: Option<Arc<str>>,
    /// What for.
    pub note: Option<Arc<str>>,
    /// Whether an older revision may become active again.
    pub is_forced: bool,
    /// What is going to happen to the open runs.
    pub plan: Plan,
}

/// A phase of a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Nothing is changed yet; the figures before are taken.
    Plan,
    /// Starts are held, and open runs of the old revision finish or are checkpointed.
    Drain,
    /// The new revision is registered for its pool.
    Deploy,
    /// The smoke tests run on it.
    Verify,
    /// It takes over.
    Resume,
    /// The figures after are taken.
    Audit,
    /// It is active. Nothing follows.
    Completed,
    /// The old revision takes over again.
    RollingBack,
    /// The old revision is active. Nothing follows.
    RolledBack,
}

impl Phase {
    /// Every phase, in the order in which a deployment can reach them.
    pub const ALL: [Self; 9] = [
        Self::Plan,
        Self::Drain,
        Self::Deploy,
        Self::Verify,
        Self::Resume,
        Self::Audit,
        Self::Completed,
        Self::RollingBack,
        Self::RolledBack,
    ];

    /// Whether nothing follows.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::RolledBack => true,
            Self::Plan
            | Self::Drain
            | Self::Deploy
            | Self::Verify
            | Self::Resume
            | Self::Audit
            | Self::RollingBack => false,
        }
    }

    /// Whether a deployment in this phase can be rolled back.
    pub fn can_roll_back(self) -> bool {
        self.may_become(Self::RollingBack)
    }

    /// Whether a deployment in this phase can enter `next`.
    pub fn may_become(self, next: Self) -> bool {
        let followers: &[Self] = match self {
            Self::Plan => &[Self::Drain, Self::Deploy, Self::RollingBack],
            Self::Drain => &[Self::Deploy, Self::RollingBack],
            Self::Deploy => &[Self::Verify, Self::Resume, Self::RollingBack],
            Self::Verify => &[Self::Resume, Self::RollingBack],
            Self::Resume => &[Self::Audit, Self::RollingBack],
            Self::Audit => &[Self::Completed],
            Self::RollingBack => &[Self::RolledBack],
            Self::Completed | Self::RolledBack => &[],
        };
        followers.contains(&next)
    }

    /// As it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Drain => "drain",
            Self::Deploy => "deploy",
            Self::Verify => "verify",
            Self::Resume => "resume",
            Self::Audit => "audit",
            Self::Completed => "completed",
            Self::RollingBack => "rolling_back",
            Self::RolledBack => "rolled_back",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// When a phase was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// The phase.
    pub phase: Phase,
    /// When.
    pub at: Timestamp,
}

/// What became of starts and runs during a deployment, counted from durable records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Starts that were held.
    pub held: u64,
    /// Of them, those that were let go.
    pub released: u64,
    /// Of them, those that were cancelled instead.
    pub cancelled_held: u64,
    /// Runs that were checkpointed.
    pub checkpointed: u64,
    /// Runs that stay on the old revision beyond the drain.
    pub pinned: u64,
}

/// How a smoke test ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SmokeResult {
    /// The test.
    pub name: String,
    /// Its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// What was not as expected; it passed if there is nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mismatches: Vec<SmokeMismatch>,
}

impl SmokeResult {
    /// Whether all was as expected.
    pub fn has_passed(&self) -> bool {
        self.mismatches.is_empty()
    }
}

/// Something of a smoke test that was not as expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmokeMismatch {
    /// The place: `status`, or `emits.payment.done/amount`.
    pub path: String,
    /// What was expected there.
    pub wanted: String,
    /// What was found.
    pub found: String,
}

impl fmt::Display for SmokeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: wanted {}, found {}", self.path, self.wanted, self.found)
    }
}

/// Why a deployment was rolled back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RollbackReason {
    /// Somebody asked for it.
    Asked {
        /// Who, and why, in their words.
        note: Option<Arc<str>>,
    },
    /// Smoke tests failed.
    SmokeFailed {
        /// Their names.
        tests: Vec<String>,
    },
    /// Smoke tests did not end in time.
    VerifyTimedOut {
        /// Their names.
        tests: Vec<String>,
    },
    /// On the inputs of earlier runs the new revision did something else.
    ShadowDiffers {
        /// How many were compared.
        compared: u64,
        /// How many of them differ.
        differing: u64,
        /// How many may.
        differ_max: u32,
    },
    /// Not all of the shadow's runs ended in time.
    ShadowTimedOut {
        /// How many had not ended, or not begun.
        open: u64,
    },
    /// The new revision has passed, and was not to become active.
    OnlyTried {},
    /// No instance of the target pool is alive.
    PoolDead {
        /// The pool.
        pool: String,
    },
    /// The canary did worse than the old revision.
    CanaryWorse {
        /// In what.
        what: String,
    },
    /// Too few runs of the canary ended in time to decide.
    CanaryTimedOut {
        /// How many.
        samples: u64,
    },
    /// Something could not be done, and trying again would not help.
    Fault {
        /// What.
        message: String,
    },
}

impl fmt::Display for RollbackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked { note: None } => f.write_str("somebody asked for it"),
            Self::Asked { note: Some(note) } => write!(f, "somebody asked for it: {note}"),
            Self::SmokeFailed { tests } => write!(f, "smoke tests failed: {}", tests.join(", ")),
            Self::VerifyTimedOut { tests } => {
                write!(f, "smoke tests did not end in time: {}", tests.join(", "))
            }
            Self::ShadowDiffers { compared, differing, differ_max } => {
                write!(f, "{differing} of {compared} runs of the shadow differ")?;
                if *differ_max > 0 { write!(f, ", and {differ_max} may") } else { Ok(()) }
            }
            Self::ShadowTimedOut { open } => {
                write!(f, "{open} runs of the shadow did not end in time")
            }
            Self::OnlyTried {} => f.write_str("it was only to be tried, and has passed"),
            Self::PoolDead { pool } => write!(f, "no instance of the pool `{pool}` is alive"),
            Self::CanaryWorse { what } => write!(f, "the canary did worse: {what}"),
            Self::CanaryTimedOut { samples } => {
                write!(f, "only {samples} runs of the canary ended in time, too few to decide")
            }
            Self::Fault { message } => f.write_str(message),
        }
    }
}

/// How a deployment ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The new revision is active and within its thresholds.
    Good,
    /// The new revision is active and over a threshold.
    Alerting,
    /// The old revision is active.
    RolledBack,
    /// The old revision is active, as was meant, and the new one has passed.
    Tried,
}

impl Verdict {
    /// As it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Alerting => "alerting",
            Self::RolledBack => "rolled_back",
            Self::Tried => "tried",
        }
    }
}

impl Deployment {
    /// The first record of a deployment.
    pub fn begin(request: Request, now: Timestamp) -> Self {
        Self {
            format: FORMAT,
            deployment_id: request.deployment_id,
            version: 1,
            flow: request.flow,
            from: request.from,
            to: request.to,
            settings: request.settings,
            author: request.author,
            note: request.note,
            is_forced: request.is_forced,
            phase: Phase::Plan,
            began_at: now,
            phases: vec![PhaseTime { phase: Phase::Plan, at: now }],
            driver: None,
            gate_generation: None,
            is_promoted: false,
            canary: None,
            counts: Counts::default(),
            plan: request.plan,
            smoke: Vec::new(),
            shadow: None,
            rollback: None,
            before: None,
            after: None,
            conservation: None,
            alerts: Vec::new(),
            verdict: None,
        }
    }

    /// When it entered its phase.
    pub fn phase_at(&self) -> Timestamp {
        self.phases.last().map_or(self.began_at, |last| last.at)
    }

    /// When it ended.
    pub fn ended_at(&self) -> Option<Timestamp> {
        self.phase.is_terminal().then(|| self.phase_at())
    }

    /// The next record, driven by another instance.
    pub fn driven_by(&self, driver: InstanceId) -> Self {
        Self { version: self.version + 1, driver: Some(driver), ..self.clone() }
    }

    /// The next record, in another phase.
    pub(super) fn entering(&self, phase: Phase, now: Timestamp) -> Self {
        assert!(self.phase.may_become(phase), "{} is never followed by {phase}", self.phase);
        let mut record = self.clone();
        record.version += 1;
        record.phase = phase;
        // A clock that was set back does not make a phase end before it began.
        record.phases.push(PhaseTime { phase, at: now.max(self.phase_at()) });
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun() -> Deployment {
        let request = Request {
            deployment_id: DeploymentId("01J".into()),
            flow: "order".into(),
            from: Revision("aa".into()),
            to: Revision("bb".into()),
            settings: Settings::default(),
            author: Some("ann".into()),
            note: None,
            is_forced: false,
            plan: Plan::default(),
        };
        Deployment::begin(request, Timestamp(1_000))
    }

    #[test]
    fn a_record_of_the_first_form_is_read_and_unknown_fields_are_left() {
        let json = r#"{
            "format": 1, "deployment_id": "01J", "version": 1, "flow": "order", "from": "aa",
            "to": "bb", "settings": {}, "author": "ann", "phase": "plan", "began_at": 1000,
            "phases": [{"phase": "plan", "at": 1000}], "of_later": true
        }"#;
        assert_eq!(serde_json::from_str::<Deployment>(json).unwrap(), begun());
    }

    #[test]
    fn a_record_reads_as_it_is_written() {
        let mut record = begun().driven_by(InstanceId("host-1".into()));
        record = record.entering(Phase::Deploy, Timestamp(2_000));
        record = record.entering(Phase::RollingBack, Timestamp(1_500));
        record.rollback = Some(RollbackReason::SmokeFailed { tests: vec!["one".to_owned()] });
        record.gate_generation = Some(3);
        record.before = Some(Figures::default());
        let lost = RunId(uuid::Uuid::from_u128(3));
        record.conservation = Some(Conservation::of([lost], [], 2));
        assert_eq!((record.version, record.phase_at()), (4, Timestamp(2_000)));
        let json = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Deployment>(&json).unwrap(), record);
    }

    #[test]
    fn phases_have_the_names_that_they_are_stored_under() {
        for phase in Phase::ALL {
            assert_eq!(serde_json::to_value(phase).unwrap(), phase.as_str());
            let has_follower = Phase::ALL.iter().any(|next| phase.may_become(*next));
            assert_eq!(has_follower, !phase.is_terminal(), "{phase}");
        }
        assert!(Phase::Resume.can_roll_back());
        assert!(!Phase::Audit.can_roll_back());
    }
}
