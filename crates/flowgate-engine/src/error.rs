//! What can go wrong for whoever asks the engine for something.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::decide::Rejection;
use flowgate_core::deploy::{Phase, Refusal};
use flowgate_core::flow::{InputProblem, Problem};
use flowgate_core::gate::GateStamp;
use flowgate_core::ids::{Revision, RunId};
use flowgate_core::view::Brief;
use flowgate_store::StoreError;

use crate::deploys::CheckpointState;

/// The engine could not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// There is no such flow.
    #[error("there is no flow `{0}`; register it first")]
    NoFlow(Arc<str>),
    /// There is no such run.
    #[error("there is no run {0}")]
    NoRun(RunId),
    /// There is no such schedule.
    #[error("there is no schedule `{0}`")]
    NoSchedule(Arc<str>),
    /// The run has not failed, or it was dropped.
    #[error("run {0} is no dead letter: it has not failed, or somebody has dropped it")]
    NotDead(RunId),
    /// There is no such subscriber.
    #[error("there is no subscriber `{0}`")]
    NoSubscriber(Arc<str>),
    /// There is no such step.
    #[error("the flow has no step `{step}`; it has {known}")]
    NoStep {
        /// The step.
        step: String,
        /// The steps that it has, in words.
        known: String,
    },
    /// The revision that the run is pinned to cannot be used.
    #[error("the revision cannot be used")]
    Flow(#[source] FlowError),
    /// The input does not meet the flow's schema.
    #[error(transparent)]
    Input(InputProblem),
    /// The key or the tags are over a limit.
    #[error("{0}")]
    Invalid(String),
    /// A start with this key had another input.
    #[error("the key `{key}` was used with another input, for run {run_id}")]
    KeyConflict {
        /// The key.
        key: Arc<str>,
        /// The run that has it.
        run_id: RunId,
    },
    /// The run is past it, or it makes no sense for its flow.
    #[error(transparent)]
    Rejected(Rejection),
    /// So many others changed the run that the engine gave up.
    #[error("the run is changed by too many others at once; try again")]
    Contended,
    /// The instance is critical: it takes on no new runs.
    #[error("the instance is overloaded: {cause}; try again in {}", Brief(*.retry_after))]
    Overloaded {
        /// What strains it.
        cause: Arc<str>,
        /// How long it takes at least until it may be better.
        retry_after: Duration,
    },
    /// The gate of the flow is closed, and this cannot be held.
    #[error("the gate of `{flow}` is closed; `flowgate hold status {flow}` says why")]
    GateClosed {
        /// The flow.
        flow: Arc<str>,
    },
    /// There is no such deployment.
    #[error("there is no deployment `{0}`")]
    NoDeployment(Arc<str>),
    /// The deployment cannot begin.
    #[error(transparent)]
    Deploy(Refusal),
    /// The run has no place in the revision.
    #[error("run {run_id} has no place in the revision {revision}: {reason}")]
    NoPlace {
        /// The run.
        run_id: RunId,
        /// The revision.
        revision: Revision,
        /// Why, in words.
        reason: String,
    },
    /// A deployment has stopped the run, and lets it go on.
    #[error("run {run_id} is stopped by deployment {deployment}, which lets it go on")]
    Checkpointed {
        /// The run.
        run_id: RunId,
        /// The deployment.
        deployment: Arc<str>,
    },
    /// No deployment has stopped the run.
    #[error("run {0} has no checkpoint: no deployment has stopped it")]
    NoCheckpoint(RunId),
    /// The checkpoint is not pending any more.
    #[error("the checkpoint of run {run_id} is {state} already", state = .state.as_str())]
    CheckpointSettled {
        /// The run.
        run_id: RunId,
        /// What became of it.
        state: CheckpointState,
    },
    /// The deployment has not decided on which revision its runs go on.
    #[error(
        "deployment {deployment} is in the phase {phase}, and has not decided on which revision \
         its runs go on"
    )]
    Undecided {
        /// The deployment.
        deployment: Arc<str>,
        /// Its phase.
        phase: Phase,
    },
    /// The flow holds as many runs as it may.
    #[error("`{flow}` holds {max} runs, and no more until its gate is open; try again later")]
    HoldFull {
        /// The flow.
        flow: Arc<str>,
        /// How many it holds at most.
        max: u64,
        /// The deployment that holds it.
        deployment: Option<Arc<str>>,
    },
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    Closed,
    /// The store failed.
    #[error("the store failed")]
    Store(#[source] Arc<StoreError>),
}

/// A revision cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FlowError {
    /// The store does not have it.
    #[error("the store has no revision {revision} of the flow `{flow}`")]
    Unknown {
        /// The flow.
        flow: Arc<str>,
        /// The revision.
        revision: Revision,
    },
    /// It is not valid for this version of flowgate.
    #[error("revision {revision} of the flow `{flow}` is not valid: {}", problems_in_words(.problems))]
    Invalid {
        /// The flow.
        flow: Arc<str>,
        /// The revision.
        revision: Revision,
        /// What is wrong.
        problems: Vec<Problem>,
    },
    /// The store failed.
    #[error("the store failed")]
    Store(#[source] Arc<StoreError>),
}

fn problems_in_words(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Why a commit was not applied.
#[derive(Clone, Debug)]
pub(crate) enum CommitError {
    /// The rules refuse it.
    Rejected(Rejection),
    /// The attempt no longer holds its lease.
    LeaseLost,
    /// There is such a run.
    RunExists,
    /// There is no such run.
    NoRun,
    /// Others were faster, too often.
    Contended,
    /// The run was moved to another revision meanwhile.
    Moved,
    /// The gate of the flow is at another generation.
    GateMoved(GateStamp),
    /// It is over the limit.
    TooLarge { bytes: usize },
    /// The store failed for good.
    Store(Arc<StoreError>),
    /// The engine shut down before the store answered.
    Closed,
}

impl From<Arc<StoreError>> for EngineError {
    fn from(error: Arc<StoreError>) -> Self {
        Self::Store(error)
    }
}

impl From<StoreError> for EngineError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

impl EngineError {
    /// Whether the store may answer when it is asked again.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_transient())
    }

    /// The answer to a commit about `run_id`.
    pub(crate) fn of_commit(error: CommitError, run_id: RunId) -> Self {
        match error {
            CommitError::Rejected(rejection) => Self::Rejected(rejection),
            CommitError::NoRun | CommitError::LeaseLost => Self::NoRun(run_id),
            CommitError::RunExists
            | CommitError::Contended
            | CommitError::Moved
            | CommitError::GateMoved(_) => Self::Contended,
            CommitError::TooLarge { bytes } => Self::Invalid(format!(
                "{bytes} bytes of payloads are over the limit of {}",
                flowgate_core::limits::COMMIT_BYTES_MAX
            )),
            CommitError::Store(error) => Self::Store(error),
            CommitError::Closed => Self::Closed,
        }
    }
}
