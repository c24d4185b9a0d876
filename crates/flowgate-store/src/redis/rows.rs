//! Stored values, and the values that they stand for.

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
use crate::{JobDetail, LeaseDetail, RunDetail, RunRow, StoreError};

/// The last millisecond that a due time can have: a score is a double, in microseconds.
pub(super) const TIME_MS_MAX: u128 = 9_000_000_000_000;

/// A run id as it is part of keys.
pub(super) fn encode_run(run_id: RunId, buffer: &mut [u8; 45]) -> &str {
    run_id.0.hyphenated().encode_lower(buffer)
}

/// A run's record.
pub(super) fn decode_run(text: &str) -> Result<Arc<Run>, StoreError> {
    let run = serde_json::from_str(text).map(Arc::new);
    run.map_err(|error| damaged("a record of a run", error))
}

/// What never changes in a job: `KIND:INPUT,INPUT`.
pub(super) fn encode_job(job: &Job) -> String {
    let kind = match job.kind {
        JobKind::Execute => "execute",
        JobKind::Timer => "timer",
    };
    let inputs: Vec<String> = job.inputs.iter().map(u64::to_string).collect();
    format!("{kind}:{}", inputs.join(","))
}

/// The other way round.
pub(super) fn decode_job(
    text: &str,
    job_id: JobId,
    queue: Arc<str>,
    attempt: u32,
) -> Result<Job, StoreError> {
    let (kind, inputs) = text.split_once(':').ok_or_else(|| unreadable("a job without inputs"))?;
    let kind = match kind {
        "execute" => JobKind::Execute,
        "timer" => JobKind::Timer,
        other => return Err(unreadable(format_args!("a job of the kind `{other}`"))),
    };
    let inputs = inputs.split(',').filter(|input| !input.is_empty());
    let inputs = inputs.map(parse).collect::<Result<_, _>>()?;
    Ok(Job { job_id, kind, queue, priority: 0, attempt, inputs })
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
    let (lost, fixed) = (u8::from(has_lost), encode_job(job));
    format!("Q{lost};0;0;{};{due_us};{};;{fixed};", job.attempt, job.queue)
}

/// A run as a listing shows it: record, started, updated, ended, whether its events are removed.
pub(super) fn decode_row(mut reply: Reply) -> Result<Option<RunRow>, StoreError> {
    // A run may be swept between the look at an index and the look at it.
    let Some(record) = reply.text()? else { return Ok(None) };
    Ok(Some(RunRow {
        run: decode_run(&record)?,
        started_at: Timestamp(reply.number()?),
        updated_at: Timestamp(reply.number()?),
        ended_at: reply.text()?.map(|at| parse(&at)).transpose()?.map(Timestamp),
        events_removed: reply.text()?.is_some(),
    }))
}

/// All fields of a run.
pub(super) fn decode_detail(
    run_id: RunId,
    mut reply: Reply,
) -> Result<Option<RunDetail>, StoreError> {
    let mut fields = std::collections::HashMap::new();
    while reply.left() > 0 {
        fields.insert(reply.word()?, reply.word()?);
    }
    let Some(record) = fields.get("record") else { return Ok(None) };
    let time = |name: &str| {
        let at = fields.get(name).map(|at| parse(at)).transpose()?;
        at.map(Timestamp).ok_or_else(|| unreadable(format_args!("a run without {name}")))
    };
    let row = RunRow {
        run: decode_run(record)?,
        started_at: time("started_at")?,
        updated_at: time("updated_at")?,
        ended_at: fields.contains_key("ended_at").then(|| time("ended_at")).transpose()?,
        events_removed: fields.contains_key("events_removed"),
    };
    let mut jobs = Vec::new();
    for (name, state) in &fields {
        if let Some(step) = name.strip_prefix("job:") {
            let lost = fields.get(&format!("lost:{step}")).map_or("", String::as_str);
            let job_id = JobId { run_id, step: StepIndex(parse(step)?) };
            jobs.push(decode_job_detail(job_id, state, lost)?);
        }
    }
    jobs.sort_by_key(|open| open.job.job_id.step);
    Ok(Some(RunDetail { row, jobs }))
}

fn decode_job_detail(job_id: JobId, state: &str, lost: &str) -> Result<JobDetail, StoreError> {
    let mut parts = state.splitn(9, ';').skip(1);
    let mut part = || parts.next().ok_or_else(|| unreadable("half a job"));
    let (token, expires_at) = (parse(part()?)?, parse(part()?)?);
    let (attempt, due_us): (_, i64) = (parse(part()?)?, parse(part()?)?);
    let queue = part()?.into();
    part()?;
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
    /// First event, time, position, events.
    pub(super) fn read(run_id: RunId, mut reply: Reply) -> Result<Self, StoreError> {
        let (seq, at, position) = (reply.number()?, Timestamp(reply.number()?), reply.number()?);
        let events = serde_json::from_str(&reply.word()?);
        let events = events.map_err(|error| damaged("events", error))?;
        Ok(Self { run_id, seq, at, position, events })
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

    /// The same from events as they are stored; only those that it lacks are read.
    pub(super) fn take_stored(&mut self, first: u64, events: &str) -> Result<(), StoreError> {
        let events: Vec<&RawValue> =
            serde_json::from_str(events).map_err(|error| damaged("events", error))?;
        self.take(first, |at| {
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
