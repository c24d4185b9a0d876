//! Schedules: flows that are started by the clock.
//!
//! An occurrence is one due time of a schedule. It is named by the schedule and that time alone:
//! the run that it starts has an id derived from the two, so whoever starts it, and however often,
//! there is one run. Jitter delays a start and does not change which occurrence it is.
//!
//! - [`ScheduleFile`] is a schedule as it is written, [`Schedule`] a valid one, which knows its due
//!   times.
//! - [`ScheduleRecord`] is what a store keeps of it: up to which time every occurrence has its
//!   fate, and which of them are still to be started.
//! - [`plan()`] gives each occurrence that has come due its fate.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::flow::{Path, Problem, Span, notation};
use crate::ids::RunId;
use crate::payload::Payload;
use crate::time::Timestamp;

mod catch_up;
mod plan;
mod times;
mod validate;

pub use plan::{LATE_AFTER, Plan, plan};

/// How far back a schedule with `catch_up: all` looks unless it says.
pub const CATCH_UP_WINDOW: Duration = Duration::from_hours(24);

/// A schedule as it is written: exactly one of `cron`, `every` and `at`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "a schedule: a mapping such as `{cron: \"0 2 * * *\", zone: Europe/Berlin}`"
)]
pub struct ScheduleFile {
    /// What the schedule is for, for people.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub description: Option<String>,
    /// Starts a run whenever the clock in `zone` meets this expression: minute, hour, day of the
    /// month, month and day of the week, with seconds in front if there are six, or `@hourly`,
    /// `@daily`, `@weekly`, `@monthly`, `@yearly`.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub cron: Option<String>,
    /// Starts a run each time this has passed since `start`, or since 1970-01-01T00:00:00Z.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub every: Option<Span>,
    /// Starts one run at this point in time (RFC 3339).
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub at: Option<String>,
    /// The time zone of `cron`, such as `Europe/Berlin`; `UTC` if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub zone: Option<String>,
    /// The input of the runs; `null` if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub input: Option<Value>,
    /// What happens when the run before has not ended; `allow` if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub overlap: Option<Overlap>,
    /// What happens to occurrences that nobody started in time; `latest` if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub catch_up: Option<CatchUp>,
    /// Delays each start by up to this long, by chance.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub jitter: Option<Span>,
    /// No occurrence is due before this point in time (RFC 3339).
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub start: Option<String>,
    /// No occurrence is due after this point in time (RFC 3339).
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub end: Option<String>,
    /// Labels of the runs, besides `schedule`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
}

/// What an occurrence does while the run of the one before is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// It is started all the same.
    #[default]
    Allow,
    /// It is skipped.
    Skip,
    /// It is started when that run ends; those that come due in between are skipped.
    QueueOne,
    /// That run is cancelled, and it is started.
    CancelRunning,
}

/// What becomes of occurrences that were not started in time, as nobody was there to do it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CatchUp {
    /// They are missed.
    Skip,
    /// The latest of them is started; those before are skipped.
    #[default]
    Latest,
    /// Those that are no older than this are started, in their order; the others are missed.
    All(Span),
}

/// A schedule and the flow that it starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduleSpec {
    /// The flow.
    pub flow: String,
    /// When and how.
    #[serde(flatten)]
    pub file: ScheduleFile,
}

/// A valid schedule.
#[derive(Clone, Debug)]
pub struct Schedule {
    when: times::When,
    start: Option<Timestamp>,
    end: Option<Timestamp>,
    jitter: Duration,
    /// What happens when the run before has not ended.
    pub overlap: Overlap,
    /// What happens to occurrences that nobody started in time.
    pub catch_up: CatchUp,
    /// The input of the runs.
    pub input: Payload,
    /// Labels of the runs.
    pub tags: BTreeMap<Arc<str>, Arc<str>>,
}

impl ScheduleFile {
    /// Everything that is wrong with it; nothing if it is valid.
    pub fn validate(&self) -> Vec<Problem> {
        self.validate_at(&Path::default())
    }

    /// The same, with places that begin with `path`.
    pub(crate) fn validate_at(&self, path: &Path) -> Vec<Problem> {
        validate::validate(path, self)
    }

    /// When it is due, in a few words.
    pub fn when(&self) -> String {
        match (&self.cron, &self.every, &self.at) {
            (Some(cron), ..) => cron.clone(),
            (None, Some(every), _) => format!("every {every}"),
            (None, None, Some(at)) => format!("at {at}"),
            (None, None, None) => String::new(),
        }
    }

    /// The zone of its clock; none if it has no clock.
    pub fn zone_name(&self) -> Option<&str> {
        self.cron.as_ref().map(|_| self.zone.as_deref().unwrap_or("UTC"))
    }

    /// Whether another has the same due times.
    pub fn has_times_of(&self, other: &Self) -> bool {
        (&self.cron, &self.every, &self.at, &self.zone, &self.start, &self.end)
            == (&other.cron, &other.every, &other.at, &other.zone, &other.start, &other.end)
    }
}

/// Who put a schedule there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The active revision of its flow. It goes when a revision without it becomes active.
    FlowFile,
    /// Somebody.
    Hand,
}

/// What a store keeps of a schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduleRecord {
    /// The schedule.
    pub spec: ScheduleSpec,
    /// Who put it there.
    pub source: Source,
    /// When it was put there.
    pub added_at: Timestamp,
    /// Whether its occurrences are skipped.
    #[serde(default)]
    pub is_paused: bool,
    /// Every occurrence up to this time has its fate.
    pub fired_through: Timestamp,
    /// Occurrences whose fate is to be started and which may not have been yet, in their order.
    ///
    /// They are written down before they are started: whoever leads next starts them again, which
    /// does nothing where it had been done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<Pending>,
    /// The occurrence that waits for the open run to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<Timestamp>,
    /// The run that was started last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<RunId>,
}

/// The part of a ledger that somebody asks about.
#[derive(Clone, Copy, Debug)]
pub struct Range<'a> {
    /// From this due time.
    pub from: Timestamp,
    /// To this one.
    pub to: Timestamp,
    /// What the ledger has of it.
    pub ledger: &'a [Occurrence],
}

/// An occurrence that is to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// When it was due.
    pub due_at: Timestamp,
    /// The run that is cancelled before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancels: Option<RunId>,
}

/// An occurrence as the ledger has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Occurrence {
    /// When it was due.
    pub due_at: Timestamp,
    /// What became of it.
    pub fate: Fate,
    /// Why it was not started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// When that was decided.
    pub decided_at: Timestamp,
    /// The term of the leader that decided it; none if somebody asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<u64>,
    /// Who asked for it.
    #[serde(default, skip_serializing_if = "Asked::is_clock")]
    pub asked: Asked,
    /// This entry stands for all occurrences from `due_at` to this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<Timestamp>,
    /// Why it could not be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What became of an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It was started in time.
    Fired,
    /// It was started late.
    Late,
    /// It waits for the open run to end.
    Queued,
    /// A policy left it out.
    Skipped,
    /// Nobody was there to start it, and no policy makes up for it.
    Missed,
    /// It had been started before; a second start was suppressed.
    Suppressed,
    /// It could not be started.
    Failed,
}

impl Fate {
    /// Every fate.
    pub const ALL: [Self; 7] = [
        Self::Fired,
        Self::Late,
        Self::Queued,
        Self::Skipped,
        Self::Missed,
        Self::Suppressed,
        Self::Failed,
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fired => "fired",
            Self::Late => "late",
            Self::Queued => "queued",
            Self::Skipped => "skipped",
            Self::Missed => "missed",
            Self::Suppressed => "suppressed",
            Self::Failed => "failed",
        }
    }

    /// Whether it has a run.
    pub fn has_run(self) -> bool {
        match self {
            Self::Fired | Self::Late | Self::Suppressed => true,
            Self::Queued | Self::Skipped | Self::Missed | Self::Failed => false,
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why an occurrence was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The run before was open.
    Overlap,
    /// A later one was started in its place.
    CatchUp,
    /// The schedule was paused.
    Paused,
    /// No instance led when it was due.
    NoLeader,
}

impl Reason {
    /// What it says, for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Overlap => "the run before was open",
            Self::CatchUp => "a later one was started in its place",
            Self::Paused => "the schedule was paused",
            Self::NoLeader => "no instance led in time",
        }
    }
}

/// Who asked for an occurrence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    /// The clock.
    #[default]
    Clock,
    /// Somebody, for a range of times.
    Backfill,
    /// Somebody, at once.
    Trigger,
}

impl Asked {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    fn is_clock(&self) -> bool {
        *self == Self::Clock
    }
}

impl RunId {
    /// The id of the run that an occurrence of a schedule starts.
    pub fn of_occurrence(schedule: &str, due_at: Timestamp) -> Self {
        // No flow has an empty name, so this is the run of no start with a key.
        Self::derived("", &ledger_key(schedule, due_at))
    }
}

/// The key of an occurrence in the ledger; those of a schedule sort by their due times.
pub fn ledger_key(schedule: &str, due_at: Timestamp) -> String {
    format!("{schedule}/{:015}", due_at.0)
}

/// The due time in a key of the ledger, if it is one of `schedule`.
pub fn due_at_of_key(schedule: &str, key: &str) -> Option<Timestamp> {
    let digits = key.strip_prefix(schedule)?.strip_prefix('/')?;
    let is_due = digits.len() == 15 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_due.then(|| digits.parse().ok().map(Timestamp)).flatten()
}

#[cfg(test)]
mod tests;
