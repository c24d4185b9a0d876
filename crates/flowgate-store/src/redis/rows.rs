//! Stored values, and the values that they stand for.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use flowgate_core::commit::{Claimed, Job, JobKind};
use flowgate_core::event::{Event, LeaseStamp, StoredEvent};
use flowgate_core::ids::{InstanceId, JobId, LeaseToken, Position, RunId, StepIndex};
use flowgate_core::payload::Payload;
use flowgate_core::run::Run;
use flowgate_core::time::Timestamp;
use serde_json::value::RawValue;

use super::fault::unreadable;
use super::script::{Reply, parse};
use crate::{JobDetail, LeaseDetail, RunDetail, RunRow, StoreError, shorthand};

/// The last millisecond that a due time can have: a score is a double, in microseconds.
pub(super) const TIME_MS_MAX: u128 = 9_000_000_000_000;

/// A run id as it is part of keys.
pub(super) fn encode_run(run_id: RunId, buffer: &mut [u8; 45]) -> &str {
    run_id.0.hyphenated().encode_lower(buffer)
}

/// A run's record.
pub(super) fn decode_run(text: &str) -> Result<Arc<Run>, StoreError> {
    let run = shorthand::decode_record(text).map(Arc::new);
    run.map_err(|error| damaged("a record of a run", error))
}

/// What never changes in a job: `QUEUE;KIND:INPUT,INPUT`, or `QUEUE;KIND/PRIORITY:INPUT,INPUT`.
pub(super) fn encode_queued(job: &Job) -> String {
    let kind = match job.kind {
        JobKind::Execute => "execute",
        JobKind::Timer => "timer",
    };
    let mut text = format!("{};{kind}", job.queue);
    if job.priority > 0 {
        write!(text, "/{}", job.priority).expect("a text can grow");
    }
    text.push(':');
    for (at, input) in job.inputs.iter().enumerate() {
        let separator = if at == 0 { "" } else { "," };
        write!(text, "{separator}{input}").expect("a text can grow");
    }
    text
}

/// The other way round, but for the queue.
pub(super) fn decode_job(
    text: &str,
    job_id: JobId,
    queue: Arc<str>,
    attempt: u32,
) -> Result<Job, StoreError> {
    let (kind, inputs) = text.split_once(':').ok_or_else(|| unreadable("a job without inputs"))?;
    let (kind, priority) = kind.split_once('/').unwrap_or((kind, "0"));
    let kind = match kind {
        "execute" => JobKind::Execute,
        "timer" => JobKind::Timer,
        other => return Err(unreadable(format_args!("a job of the kind `{other}`"))),
    };
    let inputs = inputs.split(',').filter(|input| !input.is_empty());
    let inputs = inputs.map(parse).collect::<Result<_, _>>()?;
    Ok(Job { job_id, kind, queue, priority: parse(priority)?, attempt, inputs })
}

/// Lost leases: a line `ATTEMPT;TOKEN;INSTANCE` for each.
pub(super) fn encode_lost(lost: &[LeaseStamp]) -> String {
    let line =
        |stamp: &LeaseStamp| format!("{};{};{}\n", stamp.attempt, stamp.token, stamp.instance);
    lost.iter().map(line).collect()
}

/// The other way round.
pub(super) fn decode_lost(text: &str) -> Result<Vec<LeaseStamp>, StoreError> {
    let lines = text.lines().map(|line| {
        let mut parts = line.splitn(3, ';');
        let mut part = || parts.next().ok_or_else(|| unreadable("half a lost lease"));
        let (attempt, token) = (parse(part()?)?, LeaseToken(parse(part()?)?));
        Ok(LeaseStamp { attempt, token, instance: InstanceId(part()?.into()) })
    });
    lines.collect()
}

/// A job's field, as the header of `shared.lua` has it, of a job that nobody holds.
pub(super) fn encode_free(job: &Job, due_us: u128, has_lost: bool) -> String {
    let (lost, queued) = (u8::from(has_lost), encode_queued(job));
    format!("Q{lost};0;0;{};{due_us};{queued};", job.attempt)
}

/// A run as a listing shows it: record, started, updated, ended, whether its events are removed.
pub(super) fn decode_row(mut reply: Reply) -> Result<Option<RunRow>, StoreError> {
    // A run may be swept between the look at an index and the look at it.
    let Some(record) = reply.text()? else { return Ok(None) };
    read_row(&record, &mut reply).map(Some)
}

fn read_row(record: &str, reply: &mut Reply) -> Result<RunRow, StoreError> {
    Ok(RunRow {
        run: decode_run(record)?,
        started_at: Timestamp(reply.number()?),
        updated_at: Timestamp(reply.number()?),
        ended_at: reply.text()?.map(|at| parse(&at)).transpose()?.map(Timestamp),
        events_removed: reply.text()?.is_some(),
    })
}

/// A run with its open jobs, as `read_run.lua` answers.
pub(super) fn decode_detail(
    run_id: RunId,
    mut reply: Reply,
) -> Result<Option<RunDetail>, StoreError> {
    if reply.left() == 0 {
        return Ok(None);
    }
    let record = reply.word()?;
    let row = read_row(&record, &mut reply)?;
    let mut jobs = Vec::new();
    while reply.left() > 0 {
        let job_id = JobId { run_id, step: StepIndex(reply.number()?) };
        let (state, lost) = (reply.word()?, reply.word()?);
        jobs.push(decode_job_detail(job_id, &state, &lost)?);
    }
    jobs.sort_by_key(|open| open.job.job_id.step);
    Ok(Some(RunDetail { row, jobs }))
}

fn decode_job_detail(job_id: JobId, state: &str, lost: &str) -> Result<JobDetail, StoreError> {
    let mut parts = state.splitn(8, ';').skip(1);
    let mut part = || parts.next().ok_or_else(|| unreadable("half a job"));
    let (token, expires_at) = (parse(part()?)?, parse(part()?)?);
    let (attempt, due_us): (_, i64) = (parse(part()?)?, parse(part()?)?);
    let queue = part()?.into();
    let (job, instance) = (part()?, InstanceId(part()?.into()));
    Ok(JobDetail {
        job: decode_job(job, job_id, queue, attempt)?,
        due_at: Timestamp(due_us / 1_000),
        lease: (token != 0).then_some(LeaseDetail {
            token: LeaseToken(token),
            instance,
            expires_at: Timestamp(expires_at),
        }),
        lost: decode_lost(lost)?,
    })
}

/// What one commit wrote into the log.
#[derive(Debug)]
pub(super) struct LogRow {
    pub(super) run_id: RunId,
    pub(super) seq: u64,
    pub(super) at: Timestamp,
    pub(super) position: u64,
    pub(super) events: Vec<Event>,
}

impl LogRow {
    /// Last event, time and place, text.
    pub(super) fn read(run_id: RunId, mut reply: Reply) -> Result<Self, StoreError> {
        let (last, at, text): (u64, _, _) = (reply.number()?, reply.word()?, reply.word()?);
        let row = RowText::read(last, &text)?;
        let mut parts = at.split(';');
        let mut part = || parts.next().ok_or_else(|| unreadable("half a row of a log"));
        let (at, entry) = (Timestamp(parse(part()?)?), parse::<u64>(part()?)?);
        let events = serde_json::from_str(&row.events).map_err(|error| damaged("events", error))?;
        Ok(Self { run_id, seq: row.first, at, position: entry + row.offset, events })
    }

    /// Its events as a reader gets them.
    pub(super) fn stored(self) -> impl Iterator<Item = StoredEvent> {
        let Self { run_id, seq, at, position, events } = self;
        (0_u64..).zip(events).map(move |(offset, event)| StoredEvent {
            position: Position::counted(position + offset),
            run_id,
            seq: seq + offset,
            at,
            event,
        })
    }
}

/// The text of a row of a log: `COMMIT;COUNT;OFFSET;EVENTS`, the events in shorthand.
#[derive(Debug)]
pub(super) struct RowText<'a> {
    /// The number of its first event.
    pub(super) first: u64,
    /// How far the first event is from the position that the row of the feed begins at.
    offset: u64,
    /// A JSON array.
    pub(super) events: Cow<'a, str>,
}

impl<'a> RowText<'a> {
    /// The row whose last event has this number.
    pub(super) fn read(last: u64, text: &'a str) -> Result<Self, StoreError> {
        let mut parts = text.splitn(4, ';').skip(1);
        let mut part = || parts.next().ok_or_else(|| unreadable("half a row of a log"));
        let (count, offset): (u64, u64) = (parse(part()?)?, parse(part()?)?);
        let before = last.checked_sub(count);
        let before = before.ok_or_else(|| unreadable("a row of a log that is too long"))?;
        Ok(Self { first: before + 1, offset, events: shorthand::EVENTS.read(part()?) })
    }
}

/// A claimed job that may lack some of its payloads.
#[derive(Debug)]
pub(super) struct Needy {
    claimed: Claimed,
    /// In the order of the job's inputs.
    found: Vec<Option<Payload>>,
}

impl Needy {
    /// A job without any of its payloads.
    pub(super) fn new(claimed: Claimed) -> Self {
        let found = vec![None; claimed.job.inputs.len()];
        Self { claimed, found }
    }

    /// The run that it belongs to.
    pub(super) fn run_id(&self) -> RunId {
        self.claimed.job.job_id.run_id
    }

    /// The number of an event whose payload it lacks.
    pub(super) fn lacks(&self) -> Option<u64> {
        let at = self.found.iter().position(Option::is_none)?;
        Some(self.claimed.job.inputs[at])
    }

    /// Takes what it lacks from events that begin with the number `first`.
    pub(super) fn take_events(&mut self, first: u64, events: &[Event]) {
        self.take(first, |at| events.get(at).map(|event| Ok(event.payload())))
            .expect("events in memory are read");
    }

    /// The same from a row of the log whose last event has this number; only the events that it
    /// lacks are read.
    pub(super) fn take_stored(&mut self, last: u64, text: &str) -> Result<(), StoreError> {
        let row = RowText::read(last, text)?;
        let events: Vec<&RawValue> =
            serde_json::from_str(&row.events).map_err(|error| damaged("events", error))?;
        self.take(row.first, |at| {
            let event = serde_json::from_str::<Event>(events.get(at)?.get());
            Some(event.map(|event| event.payload()).map_err(|error| damaged("an event", error)))
        })
    }

    fn take(
        &mut self,
        first: u64,
        read: impl Fn(usize) -> Option<Result<Payload, StoreError>>,
    ) -> Result<(), StoreError> {
        for (seq, found) in self.claimed.job.inputs.iter().zip(&mut self.found) {
            let at = seq.checked_sub(first).and_then(|at| usize::try_from(at).ok());
            if found.is_none()
                && let Some(payload) = at.and_then(&read)
            {
                *found = Some(payload?);
            }
        }
        Ok(())
    }

    /// The job with its payloads; none if some are gone with their run.
    pub(super) fn satisfied(self) -> Option<Claimed> {
        let inputs = self.found.into_iter().collect::<Option<Vec<_>>>()?;
        Some(Claimed { inputs, ..self.claimed })
    }
}

/// A stored value that is not what was written.
pub(super) fn damaged(what: &str, error: serde_json::Error) -> StoreError {
    StoreError::Corrupt {
        message: format!("Redis holds {what} that cannot be read: {error}"),
        source: Some(Box::new(error)),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_job_is_read_as_it_was_kept() {
        let job_id = JobId { run_id: RunId(Uuid::nil()), step: StepIndex(3) };
        for (kind, priority, inputs, text) in [
            (JobKind::Execute, 0, vec![1, 20], "a/1;execute:1,20"),
            (JobKind::Execute, 9, vec![], "a/1;execute/9:"),
            (JobKind::Timer, 1, vec![7], "a/1;timer/1:7"),
        ] {
            let job = Job { job_id, kind, queue: "a/1".into(), priority, attempt: 2, inputs };
            assert_eq!(encode_queued(&job), text);
            let (queue, text) = text.split_once(';').unwrap();
            assert_eq!(decode_job(text, job_id, queue.into(), 2).unwrap(), job);
        }
        assert!(decode_job("execute/x:1", job_id, "a".into(), 0).is_err());
    }
}
