//! The audit.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowgate_core::audit::{Content, Direction, Entry, EntryStatus, Line, Mark, Summary};
use flowgate_core::event::ErrorKind;
use flowgate_core::ids::{InstanceId, Revision, RunId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A message that came into a flow, or what came out of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// The run; with the direction it is the entry's id.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// The number of the event of the run that says so.
    pub seq: u64,
    /// When.
    #[schema(format = DateTime)]
    pub at: String,
    /// The flow.
    #[schema(value_type = String)]
    pub flow: Arc<str>,
    /// The revision that the run was pinned to then.
    #[schema(value_type = String)]
    pub revision: Revision,
    /// `inbound` or `outbound`.
    #[schema(value_type = String, example = "inbound")]
    pub direction: Direction,
    /// Inbound `accepted` or `held`, outbound `completed`, `failed` or `cancelled`.
    #[schema(value_type = String, example = "completed")]
    pub status: EntryStatus,
    /// The step that took it, or that put it out.
    #[schema(value_type = Option<String>)]
    pub step: Option<Arc<str>>,
    /// The instance that accepted it, or that executed the last step.
    #[schema(value_type = Option<String>)]
    pub instance: Option<InstanceId>,
    /// The SHA-256 of the bytes of the payload; null where a run put nothing out.
    pub payload_sha256: Option<String>,
    /// How many bytes the payload has.
    pub payload_bytes: Option<u64>,
    /// What the payload is like, without its values.
    pub summary: Option<AuditPayload>,
    /// How long it was held, or how long from its acceptance to the end of its run.
    pub took_ms: Option<u64>,
    /// The key that it was started with.
    #[schema(value_type = Option<String>)]
    pub key: Option<Arc<str>>,
    /// Why its run failed.
    pub error: Option<AuditError>,
}

/// What a payload is like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditPayload {
    /// `object`, `array`, `string`, `number`, `boolean` or `null`.
    pub r#type: String,
    /// How many fields an object has, or how many items an array.
    pub length: Option<u64>,
    /// The names of the fields of an object; the first of them if there are many.
    pub keys: Vec<String>,
    /// Of those that are arrays, how many items each has.
    pub lengths: BTreeMap<String, u64>,
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditError {
    /// The step that failed.
    #[schema(value_type = String)]
    pub step: Arc<str>,
    /// The kind of failure.
    #[schema(value_type = String, example = "timed_out")]
    pub kind: ErrorKind,
}

/// How the messages of a flow did, one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditLine {
    /// The flow.
    #[schema(value_type = String)]
    pub flow: Arc<str>,
    /// `inbound`, or `outbound` for what has come out of what came in.
    #[schema(value_type = String, example = "inbound")]
    pub direction: Direction,
    /// How many.
    pub count: u64,
    /// How many in a minute.
    pub per_minute: f64,
    /// Of those that came out, how many failed.
    pub errors: u64,
    /// How long those that came out took on average.
    pub took_avg_ms: Option<u64>,
    /// How long half of them took at most.
    pub took_p50_ms: Option<u64>,
    /// How long 99 of 100 of them took at most.
    pub took_p99_ms: Option<u64>,
}

/// How flows did with the runs that were accepted since a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditFigures {
    /// From when on runs were counted.
    #[schema(format = DateTime)]
    pub since: String,
    /// Up to when.
    #[schema(format = DateTime)]
    pub until: String,
    /// Whether there were too many, so that `since` is later than asked for.
    pub cut: bool,
    /// Two of each flow: what came in, and what has come out of that.
    pub items: Vec<AuditLine>,
}

/// What was done with a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunTrail {
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// Its entries: inbound, then outbound if it has ended; none once its events were removed.
    pub entries: Vec<AuditEntry>,
    /// What was done with it, in order.
    pub items: Vec<TrailItem>,
    /// Whether there is more than `items` has.
    pub cut: bool,
}

/// Something that was done with a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TrailItem {
    /// The number of its event.
    pub seq: u64,
    /// When.
    #[schema(format = DateTime)]
    pub at: String,
    /// What: the type of its event.
    #[schema(example = "step.succeeded")]
    pub what: String,
    /// The revision that the run was pinned to from then on.
    #[schema(value_type = Option<String>)]
    pub revision: Option<Revision>,
    /// The step.
    #[schema(value_type = Option<String>)]
    pub step: Option<Arc<str>>,
    /// The number of the attempt.
    pub attempt: Option<u32>,
    /// The instance that accepted the run, or executed the attempt.
    #[schema(value_type = Option<String>)]
    pub instance: Option<InstanceId>,
    /// How long the attempt took, in microseconds.
    pub took_us: Option<u64>,
    /// More about it, in words.
    pub note: Option<String>,
}

impl From<Entry> for AuditEntry {
    fn from(entry: Entry) -> Self {
        let (payload_sha256, payload_bytes, summary) = match entry.content {
            Some(Content { sha256, bytes, summary }) => {
                (Some(sha256), Some(bytes), Some(AuditPayload::from(summary)))
            }
            None => (None, None, None),
        };
        Self {
            run_id: entry.run_id,
            seq: entry.seq,
            at: entry.at.to_string(),
            flow: entry.flow,
            revision: entry.revision,
            direction: entry.direction,
            status: entry.status,
            step: entry.step,
            instance: entry.instance,
            payload_sha256,
            payload_bytes,
            summary,
            took_ms: entry.took_ms,
            key: entry.key,
            error: entry.error.map(|error| AuditError { step: error.step, kind: error.kind }),
        }
    }
}

impl From<Summary> for AuditPayload {
    fn from(Summary { kind, length, keys, lengths }: Summary) -> Self {
        Self { r#type: kind, length, keys, lengths }
    }
}

impl From<Line> for AuditLine {
    fn from(line: Line) -> Self {
        Self {
            flow: line.flow,
            direction: line.direction,
            count: line.count,
            per_minute: line.per_minute,
            errors: line.errors,
            took_avg_ms: line.took_avg_ms,
            took_p50_ms: line.took_p50_ms,
            took_p99_ms: line.took_p99_ms,
        }
    }
}

impl From<Mark> for TrailItem {
    fn from(mark: Mark) -> Self {
        Self {
            seq: mark.seq,
            at: mark.at.to_string(),
            what: mark.what,
            revision: mark.revision,
            step: mark.step,
            attempt: mark.attempt,
            instance: mark.instance,
            took_us: mark.took_us,
            note: mark.note,
        }
    }
}
