//! Rows of the file, and the values that they hold.

use std::sync::Arc;

use flowgate_core::commit::{Commit, Job};
use flowgate_core::event::{Event, LeaseStamp, StoredEvent};
use flowgate_core::ids::{CommitId, InstanceId, LeaseToken, Position, RunId};
use flowgate_core::run::Run;
use flowgate_core::time::Timestamp;
use rusqlite::Row;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::fault::Fault;
use crate::open::{Lease, OpenJob, OpenRun, check_shape};
use crate::{Refusal, RunDetail, RunRow};

/// A commit with its JSON, made by the caller so that the writer need not.
#[derive(Debug)]
pub(super) struct Encoded {
    pub(super) commit: Commit,
    pub(super) record: String,
    pub(super) events: String,
}

/// Encodes a commit that is within the limits.
pub(super) fn encode(commit: Commit) -> Result<Encoded, Refusal> {
    check_shape(&commit)?;
    let record = serde_json::to_string(&*commit.record).expect("a record has a JSON form");
    let events = serde_json::to_string(&commit.events).expect("events have a JSON form");
    Ok(Encoded { commit, record, events })
}

/// An open job as it is stored.
#[derive(Deserialize)]
struct JobRow {
    job: Job,
    due_at: Timestamp,
    #[serde(default)]
    ahead: u8,
    #[serde(default)]
    lease: Option<LeaseRow>,
    #[serde(default)]
    lost: Vec<LeaseStamp>,
}

/// The same, borrowed.
#[derive(Serialize)]
struct JobRowRef<'a> {
    job: &'a Job,
    due_at: Timestamp,
    #[serde(skip_serializing_if = "is_zero")]
    ahead: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<LeaseRowRef<'a>>,
    #[serde(skip_serializing_if = "<[LeaseStamp]>::is_empty")]
    lost: &'a [LeaseStamp],
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(ahead: &u8) -> bool {
    *ahead == 0
}

#[derive(Deserialize)]
struct LeaseRow {
    token: LeaseToken,
    instance: InstanceId,
    expires_at: Timestamp,
}

#[derive(Serialize)]
struct LeaseRowRef<'a> {
    token: LeaseToken,
    instance: &'a InstanceId,
    expires_at: Timestamp,
}

/// The open jobs of a run as they are stored.
pub(super) fn encode_jobs(jobs: &[OpenJob]) -> String {
    let rows: Vec<JobRowRef<'_>> = jobs
        .iter()
        .map(|open| JobRowRef {
            job: &open.job,
            due_at: open.due_at,
            ahead: open.ahead,
            lease: open.lease.as_ref().map(|lease| LeaseRowRef {
                token: lease.token,
                instance: &lease.instance,
                expires_at: lease.expires_at,
            }),
            lost: &open.lost,
        })
        .collect();
    serde_json::to_string(&rows).expect("jobs have a JSON form")
}

/// The open jobs of a run, with their leases as they were stored.
pub(super) fn decode_jobs(text: &str) -> Result<Vec<OpenJob>, Fault> {
    let rows: Vec<JobRow> = serde_json::from_str(text).map_err(Fault::unreadable)?;
    let jobs = rows.into_iter().map(|row| {
        let mut open = OpenJob::new(row.job, row.due_at, 0);
        open.ahead = row.ahead;
        open.lost = row.lost;
        open.lease =
            row.lease.map(|lease| Lease::restored(lease.token, lease.instance, lease.expires_at));
        open
    });
    Ok(jobs.collect())
}

/// The columns that [`read_row`] takes.
pub(super) const RUN_COLUMNS: &str = "record, started_at, updated_at, ended_at, events_removed";

/// A row of [`RUN_COLUMNS`] as a listing shows it.
pub(super) fn read_row(row: &Row<'_>) -> Result<RunRow, Fault> {
    Ok(RunRow {
        run: decode_record(row.get_ref(0)?.as_str().map_err(Fault::unreadable)?)?,
        started_at: Timestamp(row.get(1)?),
        updated_at: Timestamp(row.get(2)?),
        ended_at: row.get::<_, Option<i64>>(3)?.map(Timestamp),
        events_removed: row.get(4)?,
    })
}

/// [`RUN_COLUMNS`] and `jobs` as a detail.
pub(super) fn read_detail(row: &Row<'_>) -> Result<RunDetail, Fault> {
    let jobs = decode_jobs(row.get_ref(5)?.as_str().map_err(Fault::unreadable)?)?;
    Ok(RunDetail { row: read_row(row)?, jobs: jobs.iter().map(OpenJob::detail).collect() })
}

/// [`RUN_COLUMNS`] and `jobs` of an open run.
pub(super) fn read_open(row: &Row<'_>) -> Result<(OpenRun, Vec<OpenJob>), Fault> {
    let listed = read_row(row)?;
    let jobs = decode_jobs(row.get_ref(5)?.as_str().map_err(Fault::unreadable)?)?;
    Ok((OpenRun::new(listed.run, listed.started_at, listed.updated_at), jobs))
}

fn decode_record(text: &str) -> Result<Arc<Run>, Fault> {
    serde_json::from_str(text).map(Arc::new).map_err(Fault::unreadable)
}

/// What one commit wrote into the log.
#[derive(Debug)]
pub(super) struct LogRow {
    position: u64,
    run_id: RunId,
    seq: u64,
    at: Timestamp,
    events: Vec<Event>,
}

/// The columns that [`LogRow::read`] takes.
pub(super) const LOG_COLUMNS: &str = "position, run_id, seq, at, events";

impl LogRow {
    pub(super) fn read(row: &Row<'_>) -> Result<Self, Fault> {
        let events = row.get_ref(4)?.as_str().map_err(Fault::unreadable)?;
        Ok(Self {
            position: to_number(row.get(0)?),
            run_id: run_id(row.get(1)?),
            seq: to_number(row.get(2)?),
            at: Timestamp(row.get(3)?),
            events: serde_json::from_str(events).map_err(Fault::unreadable)?,
        })
    }

    /// Its events as a reader gets them.
    pub(super) fn stored(self) -> impl Iterator<Item = StoredEvent> {
        let Self { position, run_id, seq, at, events } = self;
        (0_u64..).zip(events).map(move |(offset, event)| StoredEvent {
            position: Position::counted(position + offset),
            run_id,
            seq: seq + offset,
            at,
            event,
        })
    }

    /// The event with this number in the run, if this row holds it.
    pub(super) fn event(&self, seq: u64) -> Option<&Event> {
        let at = usize::try_from(seq.checked_sub(self.seq)?).ok()?;
        self.events.get(at)
    }
}

/// A run id as it is stored.
pub(super) fn run_id(bytes: [u8; 16]) -> RunId {
    RunId(Uuid::from_bytes(bytes))
}

/// A commit id as it is stored.
pub(super) fn commit_id(bytes: [u8; 16]) -> CommitId {
    CommitId(Uuid::from_bytes(bytes))
}

/// A number as SQLite keeps it. Numbers of ours stay far below where this would matter.
pub(super) fn to_integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The other way round.
pub(super) fn to_number(integer: i64) -> u64 {
    u64::try_from(integer).unwrap_or(0)
}
