//! Runs that are moved to another revision.

use std::collections::BTreeMap;

use flowgate_core::ids::{Revision, RunId};
use flowgate_engine::Move;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a run is to go on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MigrateRun {
    /// The revision of its flow: `active`, or its first 4 letters or more.
    pub revision: String,
    /// Steps that have another name there: the old one, and the new one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub steps: BTreeMap<String, String>,
    /// Say what would become of it, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Where many runs are to go on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MigrateRuns {
    /// Their flow.
    pub flow: String,
    /// Only those on this revision; all that are on another than `revision` without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Only those in one of these statuses: `running`, `waiting`; both without.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub status: Vec<String>,
    /// Only those with all of these tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// The revision that they go on on: `active`, or its first 4 letters or more.
    pub revision: String,
    /// Steps that have another name there: the old one, and the new one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub steps: BTreeMap<String, String>,
    /// Say what would become of each, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// At most this many, the latest first; 1,000 without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10_000)]
    pub max: Option<u64>,
}

/// What a move does to a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MoveItem {
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// Its flow.
    pub flow: String,
    /// The revision that it is moved from.
    #[schema(value_type = String)]
    pub from: Revision,
    /// The revision that it goes on on.
    #[schema(value_type = String)]
    pub to: Revision,
    /// The steps at which it is.
    pub at: Vec<String>,
    /// The steps at which it goes on.
    pub steps: Vec<String>,
    /// Steps that it begins with besides, as all that they need is there.
    pub starts: Vec<String>,
    /// Whether it was on that revision before, and nothing was done.
    pub existed: bool,
}

/// A run that is not moved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StayItem {
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// The revision that it stays on.
    #[schema(value_type = String)]
    pub revision: Revision,
    /// A stable code: `run_unmappable` if the revision has no place for it.
    pub code: String,
    /// Why.
    pub reason: String,
}

/// What became of many runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunsMoved {
    /// The revision.
    #[schema(value_type = String)]
    pub to: Revision,
    /// Those that were moved, or would be.
    pub moved: Vec<MoveItem>,
    /// Those that stay where they are, and why.
    pub stayed: Vec<StayItem>,
    /// Whether more match than were looked at.
    pub more: bool,
}

impl From<Move> for MoveItem {
    fn from(done: Move) -> Self {
        let texts =
            |names: Vec<std::sync::Arc<str>>| names.iter().map(ToString::to_string).collect();
        Self {
            run_id: done.run_id,
            flow: done.flow.to_string(),
            from: done.from,
            to: done.to,
            at: texts(done.at),
            steps: texts(done.steps),
            starts: texts(done.starts),
            existed: false,
        }
    }
}
