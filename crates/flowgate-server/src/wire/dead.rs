//! Dead letters: failed runs that nobody has dealt with.

use std::collections::BTreeMap;

use flowgate_core::ids::RunId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadItem {
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// Its flow.
    pub flow: String,
    /// The step that failed.
    pub step: String,
    /// The kind of failure.
    #[schema(example = "timed_out")]
    pub kind: String,
    /// What the last attempt said.
    pub message: Option<String>,
    /// The message without numbers and ids.
    pub reason: String,
    /// When the run was started.
    #[schema(format = DateTime)]
    pub started_at: String,
    /// When it ended.
    #[schema(format = DateTime)]
    pub ended_at: Option<String>,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
}

/// A page of dead letters, the latest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadPage {
    /// What is on it.
    pub items: Vec<DeadItem>,
    /// How many there are on all pages.
    pub total: u64,
    /// Whether all failed runs were looked through for `total`, and not only the latest.
    pub complete: bool,
    /// The cursor of the next page; null on the last one.
    pub next: Option<String>,
}

/// Dead letters of one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadGroup {
    /// How many.
    pub count: u64,
    /// Their flow.
    pub flow: String,
    /// The step that failed.
    pub step: String,
    /// The kind of failure.
    pub kind: String,
    /// The message without numbers and ids.
    pub reason: String,
    /// The latest of them.
    pub example: DeadExample,
}

/// A dead letter of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadExample {
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// What its last attempt said.
    pub message: Option<String>,
    /// When it ended.
    #[schema(format = DateTime)]
    pub ended_at: Option<String>,
}

/// Dead letters by reason, the most first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadGroups {
    /// The groups.
    pub items: Vec<DeadGroup>,
    /// How many dead letters there are in all groups.
    pub total: u64,
    /// Whether all failed runs were looked through, and not only the latest.
    pub complete: bool,
}

/// Which dead letters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadWanted {
    /// Only those of this flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    /// Only those whose failed step is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Only those with this kind of failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Only those whose kind of failure is this, or whose message holds it, numbers and ids aside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Only those started since: a time, or a span such as `1h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Only those with all of these tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
}

/// What is to be done with dead letters: some runs, or all that match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DealRequest {
    /// These runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 10_000)]
    pub run_ids: Option<Vec<String>>,
    /// Those that match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<DeadWanted>,
    /// Only say which they are.
    #[serde(default)]
    pub dry_run: bool,
    /// What they are tried again on: `active` for the revision that new runs start on; without, each
    /// on its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// At most this many, the oldest first; 1000 without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10_000)]
    pub max: Option<u64>,
}

/// What became of dead letters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Dealt {
    /// How many match.
    pub found: u64,
    /// Those that were dealt with; with `dry_run` those that would be.
    pub done: Vec<DealtRun>,
    /// How many somebody else had dealt with.
    pub before: u64,
    /// Those that could not be.
    pub failed: Vec<UndealtRun>,
    /// How many are left as they were.
    pub left: u64,
}

/// A dead letter that was dealt with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DealtRun {
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// The run that tries it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = Uuid)]
    pub new_run_id: Option<RunId>,
}

/// A dead letter that could not be dealt with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UndealtRun {
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// Why not, as a stable code.
    pub code: String,
    /// Why not.
    pub message: String,
}

/// A message from outside that could not become a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadMessageItem {
    /// The subscription that it came by.
    pub subscription: String,
    /// The flow that it was for.
    pub flow: String,
    /// Its topic.
    pub topic: String,
    /// Its message id, if it had one.
    pub message_id: Option<String>,
    /// Why it could not become a run, in one word.
    #[schema(example = "not_json")]
    pub reason: String,
    /// The same, for people.
    pub message: String,
    /// How large its payload was.
    pub bytes: u64,
    /// How the payload begins, as text; null if it is none.
    pub text: Option<String>,
    /// The same in Base64, where it is no text.
    pub base64: Option<String>,
    /// When it was kept.
    #[schema(format = DateTime)]
    pub kept_at: String,
}

/// A page of dead messages, the last of each subscription first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadMessagePage {
    /// What is on it.
    pub items: Vec<DeadMessageItem>,
    /// The cursor of the next page; null on the last one.
    pub next: Option<String>,
}
