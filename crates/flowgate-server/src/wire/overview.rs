//! Everything at a glance.

use std::sync::Arc;

use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::flows::RunCounts;
use super::instances::{InstanceItem, TermItem};
use super::queues::QueueItem;
use super::runs::RunItem;

/// Everything at a glance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Overview {
    /// The time of the store.
    #[schema(format = DateTime)]
    pub now: String,
    /// The version of the instance that answers.
    pub version: String,
    /// The kind of its store.
    pub store: String,
    /// The instance that answers.
    pub instance: String,
    /// How many runs are in each status.
    pub runs: RunCounts,
    /// What happened in each of the last sixty minutes, as this instance saw it, the oldest first.
    pub minutes: Vec<Minute>,
    /// Open runs that are older than a minute, with what they wait for; the latest ten.
    pub stuck: Vec<StuckRun>,
    /// How many there are.
    pub stuck_total: u64,
    /// The last five runs that failed.
    pub failures: Vec<RunItem>,
    /// Failed runs that nobody has dealt with; null if they are too many to count.
    pub dead: Option<u64>,
    /// The queues.
    pub queues: Vec<QueueItem>,
    /// Who leads.
    pub leader: Option<TermItem>,
    /// The instances.
    pub instances: Vec<InstanceItem>,
    /// The schedules that are due next; five of them.
    pub schedules: Vec<NextSchedule>,
    /// The deployments that are under way.
    pub deployments: Vec<OpenDeployment>,
}

/// A deployment that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpenDeployment {
    /// Its id.
    pub deployment_id: String,
    /// The flow.
    pub flow: String,
    /// Where it stands.
    pub phase: String,
    /// When it began.
    #[schema(format = DateTime)]
    pub began_at: String,
}

/// What happened in a minute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Minute {
    /// When it began.
    #[schema(format = DateTime)]
    pub at: String,
    /// Runs that were started.
    pub started: u64,
    /// Runs that completed.
    pub completed: u64,
    /// Runs that failed.
    pub failed: u64,
}

/// An open run that is older than a minute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StuckRun {
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// Its flow.
    #[schema(value_type = String)]
    pub flow: Arc<str>,
    /// Its status.
    #[schema(value_type = String, example = "waiting")]
    pub status: RunStatus,
    /// When it was started.
    #[schema(format = DateTime)]
    pub started_at: String,
    /// How long ago that was.
    pub age_ms: u64,
    /// The step that it waits for.
    #[schema(value_type = Option<String>)]
    pub step: Option<Arc<str>>,
    /// Why, such as `queued` or `signal`; null if that cannot be told.
    pub cause: Option<String>,
    /// Why, in words.
    pub message: Option<String>,
    /// A command that helps.
    pub help: Option<String>,
}

/// A schedule that is due soon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NextSchedule {
    /// Its name.
    pub name: String,
    /// The flow that it starts.
    pub flow: String,
    /// When it is due.
    #[schema(format = DateTime)]
    pub next_at: Option<String>,
    /// Whether its occurrences are skipped.
    pub paused: bool,
}
