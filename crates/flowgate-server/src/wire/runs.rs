//! Runs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use flowgate_core::event::{ErrorKind, StepError};
use flowgate_core::ids::{Revision, RunId};
use flowgate_core::payload::Payload;
use flowgate_core::run::{RunStatus, StepState};
use flowgate_engine::Fate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::identifier;

/// A start.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartRun {
    /// The flow; its active revision is started.
    pub flow: String,
    /// The payload of the entry step; `{}` without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub input: Option<Payload>,
    /// The same key for the same flow gives the same run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Labels for finding it again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// One open run at a time for this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub singleton: Option<String>,
    /// How far ahead its jobs are of others, 0 to 9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 9)]
    pub priority: Option<u8>,
    /// Begin this many milliseconds from now.
    #[serde(
        default,
        deserialize_with = "identifier::exact_if_any",
        skip_serializing_if = "Option::is_none"
    )]
    pub delay_ms: Option<u64>,
    /// Begin at this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub at: Option<String>,
    /// Make one run of starts that follow each other closely, whatever the flow says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debounce: Option<DebounceStart>,
}

/// Which starts become one run, with the last input.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DebounceStart {
    /// Those of the flow with the same key.
    pub key: String,
    /// How long there must be no start before the run begins.
    #[serde(deserialize_with = "identifier::exact")]
    #[schema(minimum = 1)]
    pub window_ms: u64,
    /// How long after the first start the run begins at the latest.
    #[serde(
        default,
        deserialize_with = "identifier::exact_if_any",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(minimum = 1)]
    pub max_ms: Option<u64>,
}

impl StartRun {
    /// A start of this flow, with nothing else said.
    pub fn of(flow: &str) -> Self {
        Self {
            flow: flow.to_owned(),
            input: None,
            key: None,
            tags: BTreeMap::new(),
            singleton: None,
            priority: None,
            delay_ms: None,
            at: None,
            debounce: None,
        }
    }
}

/// A run that a request was about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunRef {
    /// The run; the new one after a start or a retry.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// Its flow.
    #[schema(value_type = String)]
    pub flow: Arc<str>,
    /// The revision that it is pinned to; null while it is debounced.
    #[schema(value_type = Option<String>)]
    pub revision: Option<Revision>,
    /// Its status; null while it is debounced, since there is no such run yet.
    #[schema(value_type = Option<String>, example = "running")]
    pub status: Option<RunStatus>,
    /// Whether it was there before.
    pub existed: bool,
    /// When a debounced run begins, unless more starts come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub debounced_until: Option<String>,
}

/// A run in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunItem {
    /// Its id.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// Its flow.
    #[schema(value_type = String)]
    pub flow: Arc<str>,
    /// The revision that it is pinned to.
    #[schema(value_type = String)]
    pub revision: Revision,
    /// Its status.
    #[schema(value_type = String, example = "running")]
    pub status: RunStatus,
    /// When it was started.
    #[schema(format = DateTime)]
    pub started_at: String,
    /// When something last happened to it.
    #[schema(format = DateTime)]
    pub updated_at: String,
    /// When it ended.
    #[schema(format = DateTime)]
    pub ended_at: Option<String>,
    /// From start to end.
    pub duration_ms: Option<u64>,
    /// The key that it was started with.
    #[schema(value_type = Option<String>)]
    pub key: Option<Arc<str>>,
    /// Its tags.
    #[schema(value_type = BTreeMap<String, String>)]
    pub tags: BTreeMap<Arc<str>, Arc<str>>,
    /// The run that it tries again.
    #[schema(value_type = Option<String>, format = Uuid)]
    pub retry_of: Option<RunId>,
    /// Why it failed.
    pub failure: Option<Failure>,
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Failure {
    /// The step that failed.
    #[schema(value_type = String)]
    pub step: Arc<str>,
    /// What its last attempt said.
    #[schema(value_type = String)]
    pub message: Arc<str>,
    /// The kind of failure.
    #[schema(value_type = String)]
    pub kind: ErrorKind,
}

/// Which runs to list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunsQuery {
    /// Only runs of this flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    /// Only runs in one of these statuses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub status: Vec<String>,
    /// Only runs with all of these tags, each `name=value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tag: Vec<String>,
    /// Only runs started since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Only runs started before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Only the run whose id begins like this, or that has this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<String>,
    /// How many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Go on after this cursor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// All that the store knows about a run but its log.
///
/// It has the fields of [`RunItem`] written out: payloads, which are kept as they were sent, cannot be
/// read from a flattened value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunFacts {
    /// Its id.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// Its flow.
    #[schema(value_type = String)]
    pub flow: Arc<str>,
    /// The revision that it is pinned to.
    #[schema(value_type = String)]
    pub revision: Revision,
    /// Its status.
    #[schema(value_type = String, example = "running")]
    pub status: RunStatus,
    /// When it was started.
    #[schema(format = DateTime)]
    pub started_at: String,
    /// When something last happened to it.
    #[schema(format = DateTime)]
    pub updated_at: String,
    /// When it ended.
    #[schema(format = DateTime)]
    pub ended_at: Option<String>,
    /// From start to end.
    pub duration_ms: Option<u64>,
    /// The key that it was started with.
    #[schema(value_type = Option<String>)]
    pub key: Option<Arc<str>>,
    /// Its tags.
    #[schema(value_type = BTreeMap<String, String>)]
    pub tags: BTreeMap<Arc<str>, Arc<str>>,
    /// The run that it tries again.
    #[schema(value_type = Option<String>, format = Uuid)]
    pub retry_of: Option<RunId>,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// The number of its last event.
    pub version: u64,
    /// Its steps, in the order of its flow.
    pub steps: Vec<StepItem>,
    /// Whether all events were read for the steps; of a very long log only the last are.
    pub steps_complete: bool,
    /// The payload of its start; null once retention has removed its events.
    #[schema(value_type = Option<serde_json::Value>)]
    pub input: Option<Payload>,
    /// Its state values.
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    pub state: BTreeMap<Arc<str>, Payload>,
    /// Its open jobs.
    pub jobs: Vec<JobItem>,
    /// What became of it as a dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fate: Option<FateItem>,
    /// Whether retention has removed its events.
    pub events_removed: bool,
}

/// A step of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StepItem {
    /// Its name.
    #[schema(value_type = String)]
    pub name: Arc<str>,
    /// Its state.
    #[schema(value_type = String, example = "running")]
    pub state: StepState,
    /// Attempts that are in the log.
    pub attempts: u32,
    /// Attempts that failed.
    pub failures: u32,
    /// How long its attempts took together, or how long it waited.
    pub duration_ms: Option<u64>,
    /// Why its last failed attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub error: Option<StepError>,
    /// What it returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Payload>,
    /// When its first attempt, or its wait, began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub started_at: Option<String>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub ended_at: Option<String>,
}

/// An open job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobItem {
    /// Its step.
    #[schema(value_type = String)]
    pub step: Arc<str>,
    /// The queue that it waits in.
    #[schema(value_type = String)]
    pub queue: Arc<str>,
    /// Attempts so far.
    pub attempt: u32,
    /// When it is due, or was.
    #[schema(format = DateTime)]
    pub due_at: String,
    /// Who holds it.
    #[schema(value_type = Option<String>)]
    pub instance: Option<Arc<str>>,
    /// Until when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
}

/// A cancellation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRun {
    /// Why, for the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Another try.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryRun {
    /// Do this step again, and what follows it, even if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The revision that it is on: `active`, or one by its first 4 letters or more; without, the one
    /// that the run was on. A step that succeeded is one of the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

/// A signal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalRun {
    /// Its name.
    pub signal: String,
    /// Its data; `{}` without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub data: Option<Payload>,
}

/// What became of a signal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Signalled {
    /// The run.
    #[serde(flatten)]
    pub run: RunRef,
    /// Whether a wait took it.
    pub taken: bool,
    /// Whether it is kept for a wait that has not begun.
    pub kept: bool,
}

/// What became of a failed run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FateItem {
    /// What.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub fate: Fate,
    /// When.
    #[schema(format = DateTime)]
    pub at: String,
}

impl fmt::Display for FateItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fate {
            Fate::Retried { run_id } => write!(f, "tried again at {} as run {run_id}", self.at),
            Fate::Dropped {} => write!(f, "dropped at {}", self.at),
        }
    }
}

/// Runs of a flow, by their place in the list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowRuns {
    /// What is on the page.
    pub items: Vec<RunItem>,
    /// How many there are on all pages.
    pub total: u64,
    /// Whether there are more after it.
    pub has_more: bool,
}
