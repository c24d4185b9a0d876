//! What happened in a run.

use std::borrow::Cow;
use std::sync::Arc;

use flowgate_core::event::StepError;
use flowgate_core::ids::{InstanceId, Position, Revision, RunId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An event. Every field but `text` is always there; what an event does not have is null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventItem {
    /// Its place in the feed.
    #[schema(value_type = String)]
    pub position: Position,
    /// Its run.
    #[schema(value_type = String, format = Uuid)]
    pub run: RunId,
    /// Its number in the run, from 1.
    pub seq: u64,
    /// Its type.
    #[schema(value_type = String, example = "step.started")]
    pub r#type: Cow<'static, str>,
    /// The step that it is about.
    #[schema(value_type = Option<String>)]
    pub step: Option<Arc<str>>,
    /// The attempt.
    pub attempt: Option<u32>,
    /// The token of its lease.
    pub token: Option<String>,
    /// Who held it.
    #[schema(value_type = Option<String>)]
    pub instance: Option<InstanceId>,
    /// The flow of the run.
    #[schema(value_type = String)]
    pub flow: Arc<str>,
    /// The revision that the run is pinned to.
    #[schema(value_type = String)]
    pub revision: Revision,
    /// What else it says.
    pub data: serde_json::Value,
    /// When it was committed.
    #[schema(format = DateTime)]
    pub time: String,
    /// What it says, on one line, for people; not in an export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// A page of events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventPage {
    /// What is on it.
    pub items: Vec<EventItem>,
    /// Where the next page begins: as `after`, or as `before` where the last come first.
    pub next: Option<u64>,
}

/// An attempt of a step, or a wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AttemptItem {
    /// The step.
    #[schema(value_type = String)]
    pub step: Arc<str>,
    /// Its number, from 1.
    pub attempt: u32,
    /// How it stands: `running`, `waiting`, `succeeded`, `failed`, `retried`, `lost`, `released`,
    /// `parked` or `cancelled`.
    #[schema(value_type = String, example = "succeeded")]
    pub state: Cow<'static, str>,
    /// When the step became due, or due again.
    #[schema(format = DateTime)]
    pub queued_at: Option<String>,
    /// When it began.
    #[schema(format = DateTime)]
    pub started_at: Option<String>,
    /// When it ended.
    #[schema(format = DateTime)]
    pub ended_at: Option<String>,
    /// Who executed it.
    #[schema(value_type = Option<String>)]
    pub instance: Option<InstanceId>,
    /// Why it failed.
    #[schema(value_type = Option<Object>)]
    pub error: Option<StepError>,
}

/// A line that a step logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogItem {
    /// Its number in the run, from 1.
    pub number: u64,
    /// When it was stored.
    #[schema(format = DateTime)]
    pub time: String,
    /// The step.
    #[schema(value_type = String)]
    pub step: Arc<str>,
    /// The attempt.
    pub attempt: u32,
    /// `debug`, `info`, `warn` or `error`.
    #[schema(value_type = String, example = "info")]
    pub level: Cow<'static, str>,
    /// What it says.
    pub text: String,
}

/// A page of log lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogPage {
    /// What is on it.
    pub items: Vec<LogItem>,
    /// Where the next page begins, as `after`; null if there is none now.
    pub next: Option<u64>,
}
