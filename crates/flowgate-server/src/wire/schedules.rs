//! Schedules.

use std::collections::BTreeMap;

use flowgate_core::ids::RunId;
use flowgate_core::schedule::{Asked, Fate, Reason, ScheduleFile};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleItem {
    /// Its name: `FLOW/NAME` if it comes with a flow file.
    pub name: String,
    /// The flow that it starts.
    pub flow: String,
    /// When and how, as it was written.
    #[schema(value_type = Object)]
    pub schedule: ScheduleFile,
    /// Who put it there.
    pub source: ScheduleSource,
    /// Whether its occurrences are skipped.
    pub paused: bool,
    /// When it is due next; null if it is not any more.
    #[schema(format = DateTime)]
    pub next_at: Option<String>,
    /// Every occurrence up to this time has its fate.
    #[schema(format = DateTime)]
    pub decided_through: String,
    /// When it was put there.
    #[schema(format = DateTime)]
    pub added_at: String,
    /// The run that it started last.
    #[schema(value_type = Option<String>, format = Uuid)]
    pub last_run: Option<RunId>,
    /// The occurrence that waits for the open run to end.
    #[schema(format = DateTime)]
    pub queued: Option<String>,
    /// Occurrences that are to be started.
    pub pending: usize,
}

/// Who put a schedule there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleSource {
    /// Its flow file.
    File,
    /// Somebody.
    Added,
}

/// A schedule with what comes next and what became of the last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleDetail {
    /// The schedule.
    #[serde(flatten)]
    pub item: ScheduleItem,
    /// The next due times.
    pub next: Vec<String>,
    /// The last entries of the ledger.
    pub occurrences: Vec<OccurrenceItem>,
}

/// When a schedule is due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DueTimes {
    /// The schedule.
    pub name: String,
    /// Whether its occurrences are skipped.
    pub paused: bool,
    /// The due times.
    pub items: Vec<String>,
}

/// An entry of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OccurrenceItem {
    /// When it was due.
    #[schema(format = DateTime)]
    pub due_at: String,
    /// What became of it.
    #[schema(value_type = String, example = "fired")]
    pub fate: Fate,
    /// Why it was not started.
    #[schema(value_type = Option<String>)]
    pub reason: Option<Reason>,
    /// Its run.
    #[schema(value_type = Option<String>, format = Uuid)]
    pub run_id: Option<RunId>,
    /// When that was decided.
    #[schema(format = DateTime)]
    pub decided_at: String,
    /// The term of the leader that decided it; null if somebody asked for it.
    pub term: Option<u64>,
    /// Who asked for it: `clock`, `backfill` or `trigger`.
    #[schema(value_type = String, example = "clock")]
    pub asked: Asked,
    /// The entry stands for all occurrences from `due_at` to this time.
    #[schema(format = DateTime)]
    pub through: Option<String>,
    /// Why it could not be started.
    pub error: Option<String>,
}

/// A schedule to be added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddSchedule {
    /// Its name.
    pub name: String,
    /// What it starts, when and how.
    pub spec: ScheduleBody,
    /// Whether it may take the place of one that was added by this name before.
    #[serde(default)]
    pub replace: bool,
}

/// What a schedule starts, when and how: exactly one of `cron`, `every` and `at`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleBody {
    /// The flow.
    pub flow: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Due whenever the clock meets this: minute, hour, day, month, weekday; seconds may be first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "30 2 * * *")]
    pub cron: Option<String>,
    /// Due each time this has passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "15m")]
    pub every: Option<String>,
    /// Due once, at this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub at: Option<String>,
    /// The time zone of `cron`; UTC without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "Europe/Berlin")]
    pub zone: Option<String>,
    /// The input of its runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// While the run before is open: `allow`, `skip`, `queue_one` or `cancel_running`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "skip")]
    pub overlap: Option<String>,
    /// What nobody started in time: `skip`, `latest`, `all`, or `{"all": "6h"}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>, example = "latest")]
    pub catch_up: Option<Value>,
    /// Puts each start off by up to this long, by chance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<String>,
    /// Not due before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub start: Option<String>,
    /// Not due after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub end: Option<String>,
    /// Labels of its runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
}

/// A range of due times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Backfill {
    /// From this time: a time, or a span such as `7d` for that long ago.
    #[schema(example = "7d")]
    pub from: String,
    /// To this one; now without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// Which schedules to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulesQuery {
    /// Only those of this flow.
    pub flow: Option<String>,
    /// At most this many.
    pub limit: usize,
    /// Go on after the one of this name.
    pub after: Option<String>,
}

/// Which entries of a ledger to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OccurrencesQuery {
    /// Only those with one of these fates.
    pub fates: Vec<Fate>,
    /// At most this many.
    pub limit: usize,
    /// Go on with those due before this time, or before that long ago.
    pub after: Option<String>,
}
