//! Many runs at once.

use std::collections::BTreeMap;

use flowgate_core::ids::RunId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is to become of many runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Bulk {
    /// What.
    pub action: BulkAction,
    /// Of which.
    #[serde(default)]
    pub filter: BulkFilter,
    /// Say which they are, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// At most this many; 1,000 without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10_000)]
    pub max: Option<u64>,
    /// Why, for the logs of cancelled runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What can become of many runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BulkAction {
    /// They are stopped for good.
    Cancel,
    /// They are tried again, each as a new run. One that was tried again before is not again.
    Retry,
}

/// Which runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkFilter {
    /// Of this flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    /// In one of these statuses; without, in those that the action is for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub status: Vec<String>,
    /// With all of these tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Started since: a time, or a span such as `1h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Started before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

/// What became of many runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BulkDone {
    /// How many match.
    pub matched: u64,
    /// Those that it was done to, or would be.
    pub done: Vec<BulkItem>,
    /// Those that it could not be done to.
    pub failed: Vec<BulkFailure>,
    /// How many are left as they were.
    pub left: u64,
}

/// A run that it was done to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BulkItem {
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// The run that tries it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = Uuid)]
    pub new_run_id: Option<RunId>,
}

/// A run that it could not be done to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BulkFailure {
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// A stable code.
    pub code: String,
    /// The cause.
    pub message: String,
}
