//! What is told as it happens.

use std::borrow::Cow;
use std::sync::Arc;

use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Runs that something happened to since the last time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LiveRuns {
    /// Them, each once.
    pub runs: Vec<LiveRun>,
    /// Events of more runs than are told at once.
    pub missed: u64,
}

/// A run that something happened to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LiveRun {
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// Its flow.
    #[schema(value_type = String)]
    pub flow: Arc<str>,
    /// Its status now.
    #[schema(value_type = String, example = "running")]
    pub status: RunStatus,
    /// The type of the event that happened last.
    #[schema(value_type = String, example = "step.succeeded")]
    pub r#type: Cow<'static, str>,
    /// When.
    #[schema(format = DateTime)]
    pub at: String,
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunEnd {
    /// How it ended.
    #[schema(value_type = String, example = "completed")]
    pub status: RunStatus,
}
