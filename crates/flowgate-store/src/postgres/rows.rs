//! Values as the tables hold them.

use std::borrow::Cow;
use std::sync::Arc;

use flowgate_core::commit::{Claimed, Due, Job, JobKind};
use flowgate_core::event::{Event, LeaseStamp, StoredEvent};
use flowgate_core::ids::{InstanceId, JobId, LeaseToken, Position, RunId, StepIndex};
use flowgate_core::run::Run;
use flowgate_core::time::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::fault::Fault;
use crate::{JobDetail, LeaseDetail, Queues, RunRow, shorthand};

/// A column of a row.
pub(super) fn column<'a, T: FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, Fault> {
    row.try_get(at).map_err(Fault::unreadable)
}

/// A value that is kept as JSON.
pub(super) fn decode<T: DeserializeOwned>(text: &str) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(Fault::unreadable)
}

/// A run's record.
pub(super) fn decode_run(text: &str) -> Result<Run, Fault> {
    shorthand::decode_record(text).map_err(Fault::unreadable)
}

/// The events of a row of the log.
pub(super) fn decode_events(text: &str) -> Result<Vec<Event>, Fault> {
    shorthand::decode_events(text).map_err(Fault::unreadable)
}

/// A number as PostgreSQL keeps it. Numbers of ours stay far below where this would matter.
pub(super) fn to_integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The other way round.
pub(super) fn to_number(integer: i64) -> u64 {
    u64::try_from(integer).unwrap_or(0)
}

/// A span in milliseconds that can be added to any time of day.
pub(super) fn to_ms(span: std::time::Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX).min(i64::MAX / 4)
}

/// A count or index as a parameter.
pub(super) fn to_int4(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Text without the one character that PostgreSQL cannot keep.
pub(super) fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// Tags as one column holds them, as JSON; none if there are none.
pub(super) fn encode_tags(run: &Run) -> Option<String> {
    let tags: Vec<String> = run.tags.iter().map(|(name, value)| tag(name, value)).collect();
    (!tags.is_empty()).then(|| serde_json::to_string(&tags).expect("tags have a JSON form"))
}

/// A tag as it is stored. A name holds no `=`, so no two tags look the same.
pub(super) fn tag(name: &str, value: &str) -> String {
    storable(&format!("{name}={value}")).into_owned()
}

/// When a job is due: so long after the commit, or at this time.
pub(super) fn encode_due(due: Due) -> (Option<i64>, Option<i64>) {
    match due {
        Due::Now => (Some(0), None),
        Due::After(span) => (Some(to_ms(span)), None),
        Due::At(at) => (None, Some(at.0)),
    }
}

/// The queues that are wanted, all of no pool if none, and those that are not; each once. With `@`
/// and a pool among those, all of that pool are wanted too.
pub(super) fn encode_queues(queues: &Queues) -> (Option<Vec<Cow<'_, str>>>, Unwanted<'_>) {
    match queues {
        Queues::All => (None, None),
        Queues::Only(names) => (Some(sorted(names)), None),
        Queues::AllBut(names) => (None, Some(sorted(names))),
        Queues::AllOf { pool, but } => {
            let mut unwanted = sorted(but);
            unwanted.push(format!("@{pool}").into());
            (None, Some(unwanted))
        }
    }
}

/// Queues that are not wanted.
pub(super) type Unwanted<'a> = Option<Vec<Cow<'a, str>>>;

fn sorted(names: &[Arc<str>]) -> Vec<Cow<'_, str>> {
    let mut names: Vec<Cow<'_, str>> = names.iter().map(|name| Cow::Borrowed(&**name)).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The kind of a job as it is stored.
pub(super) fn encode_kind(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Execute => "execute",
        JobKind::Timer => "timer",
    }
}

/// The columns of a job that do not depend on its lease.
#[derive(Debug, Deserialize)]
pub(super) struct JobColumns {
    pub(super) run_id: RunId,
    pub(super) step: u16,
    pub(super) kind: String,
    pub(super) queue: Arc<str>,
    pub(super) priority: u8,
    pub(super) attempt: u32,
    pub(super) inputs: String,
}

impl JobColumns {
    pub(super) fn job(self) -> Result<Job, Fault> {
        let kind = match self.kind.as_str() {
            "execute" => JobKind::Execute,
            "timer" => JobKind::Timer,
            other => {
                let error = format!("`{other}` is not a kind of job");
                return Err(Fault::unreadable(std::io::Error::other(error)));
            }
        };
        Ok(Job {
            priority: self.priority,
            job_id: JobId { run_id: self.run_id, step: StepIndex(self.step) },
            kind,
            queue: self.queue,
            attempt: self.attempt,
            inputs: decode(&self.inputs)?,
        })
    }
}

/// A job as a detail of its run shows it.
#[derive(Debug, Deserialize)]
pub(super) struct JobRow {
    #[serde(flatten)]
    columns: JobColumns,
    due_at: Timestamp,
    token: Option<LeaseToken>,
    instance: Option<InstanceId>,
    expires_at: Option<Timestamp>,
    lost: Option<Vec<LeaseStamp>>,
}

impl JobRow {
    pub(super) fn detail(self) -> Result<JobDetail, Fault> {
        let lease = match (self.token, self.instance, self.expires_at) {
            (Some(token), Some(instance), Some(expires_at)) => {
                Some(LeaseDetail { token, instance, expires_at })
            }
            (_, _, _) => None,
        };
        let lost = self.lost.unwrap_or_default();
        Ok(JobDetail { job: self.columns.job()?, due_at: self.due_at, lease, lost })
    }

    /// The leased job as its claimant gets it, but for the payloads.
    pub(super) fn claimed(self, run: Arc<Run>) -> Result<Option<Claimed>, Fault> {
        let detail = self.detail()?;
        Ok(detail.lease.map(|lease| Claimed {
            job: detail.job,
            token: lease.token,
            expires_at: lease.expires_at,
            lost: detail.lost,
            run,
            inputs: Vec::new(),
        }))
    }
}

/// The columns of `runs r` that [`read_row`] takes.
pub(super) const RUN_COLUMNS: &str =
    "r.record, r.started_at, r.updated_at, r.ended_at, r.events_removed";

/// A row of [`RUN_COLUMNS`] as a listing shows it.
pub(super) fn read_row(row: &Row) -> Result<RunRow, Fault> {
    Ok(RunRow {
        run: Arc::new(decode_run(column(row, 0)?)?),
        started_at: Timestamp(column(row, 1)?),
        updated_at: Timestamp(column(row, 2)?),
        ended_at: column::<Option<i64>>(row, 3)?.map(Timestamp),
        events_removed: column(row, 4)?,
    })
}

/// The columns that [`read_events`] takes.
pub(super) const LOG_COLUMNS: &str = "xid::text::bigint, ordinal, run_id, seq, at, events";

/// The events of a row of [`LOG_COLUMNS`].
pub(super) fn read_events(row: &Row) -> Result<impl Iterator<Item = StoredEvent> + use<>, Fault> {
    let first = Position {
        major: to_number(column(row, 0)?),
        minor: to_number(column::<i32>(row, 1)?.into()),
    };
    let run_id = RunId(column(row, 2)?);
    let seq = to_number(column(row, 3)?);
    let at = Timestamp(column(row, 4)?);
    let events = decode_events(column(row, 5)?)?;
    Ok((0..).zip(events).map(move |(offset, event)| StoredEvent {
        position: first.plus(offset),
        run_id,
        seq: seq + offset,
        at,
        event,
    }))
}
