//! The audit: what came into a flow and what came out of it, as its log has it.
//!
//! Nothing is written for the audit. An inbound entry is what the first event of a run says, and an
//! outbound entry what its last events say; those were written in the commit that accepted or ended
//! the run. So no entry is missing, none is there twice, and no payload is kept a second time: an
//! entry has its hash, its size and the names of its fields, none of its values.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::deploy::figures::{millis, number, real};
use crate::deploy::{EndedRun, Figures};
use crate::event::{ErrorKind, Event, StoredEvent};
use crate::ids::{InstanceId, Revision, RunId};
use crate::payload::Payload;
use crate::run::{Run, RunStatus};
use crate::time::Timestamp;

mod trail;

#[cfg(test)]
mod tests;

pub use trail::{Mark, Trail};

/// The first events of a run that its inbound entry needs.
pub const HEAD_EVENTS: usize = 3;
/// Names of fields that a summary has; the rest is counted.
pub const KEYS_MAX: usize = 32;
/// Letters of such a name.
const KEY_LETTERS_MAX: usize = 64;
/// The shortest window that a rate is counted over.
const WINDOW_MIN: Duration = Duration::from_secs(1);

/// Which way a message went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Into a flow: a start that was accepted.
    Inbound,
    /// Out of a flow: a run that has ended.
    Outbound,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Inbound, Self::Outbound];

    /// As it is written and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
        }
    }
}

/// What an entry says of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryStatus {
    /// It was accepted, and its run began.
    Accepted,
    /// It was accepted while the gate of its flow was closed.
    Held,
    /// Its run ended well.
    Completed,
    /// Its run ended because a step failed.
    Failed,
    /// Its run was cancelled.
    Cancelled,
}

impl EntryStatus {
    /// As it is written and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Held => "held",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A message that came into a flow, or what came out of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The run; with the direction it is the entry's id.
    pub run_id: RunId,
    /// The number of the event that says so.
    pub seq: u64,
    /// When, on the store's clock.
    pub at: Timestamp,
    /// The flow.
    pub flow: Arc<str>,
    /// The revision that the run was pinned to then.
    pub revision: Revision,
    /// Which way it went.
    pub direction: Direction,
    /// What became of it.
    pub status: EntryStatus,
    /// The step that took it, or that put it out.
    pub step: Option<Arc<str>>,
    /// The instance that accepted it, or that executed the last step.
    pub instance: Option<InstanceId>,
    /// The payload; absent where a run put nothing out.
    pub content: Option<Content>,
    /// How long it was held, or how long from its acceptance to the end of its run.
    pub took_ms: Option<u64>,
    /// The key that it was started with.
    pub key: Option<Arc<str>>,
    /// Why its run failed.
    pub error: Option<EntryError>,
}

/// A payload without its values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// The SHA-256 of its bytes, in hexadecimal digits. Equal payloads have equal ones.
    pub sha256: String,
    /// How many bytes it has.
    pub bytes: u64,
    /// What it is like.
    pub summary: Summary,
}

/// What a payload is like.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// `object`, `array`, `string`, `number`, `boolean` or `null`.
    #[serde(rename = "type")]
    pub kind: String,
    /// How many fields an object has, or how many items an array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// The names of the fields of an object, in their order; the first of them if there are many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// Of those that are arrays, how many items each has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lengths: BTreeMap<String, u64>,
}

/// Why a run failed, without what its step said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryError {
    /// The step that failed.
    pub step: Arc<str>,
    /// The kind of failure.
    pub kind: ErrorKind,
}

impl Content {
    /// What is said of a payload.
    pub fn of(payload: &Payload) -> Self {
        let text = payload.get();
        let mut sha256 = String::with_capacity(64);
        for byte in &Sha256::digest(text.as_bytes()) {
            write!(sha256, "{byte:02x}").expect("a string takes what is written to it");
        }
        Self { sha256, bytes: number(text.len()), summary: Summary::of(text) }
    }
}

impl Summary {
    fn of(text: &str) -> Self {
        let kind = match text.as_bytes().first() {
            Some(b'{') => return Self::of_object(text),
            Some(b'[') => {
                let length = Some(items(text));
                return Self { kind: "array".to_owned(), length, ..Self::default() };
            }
            Some(b'"') => "string",
            Some(b't' | b'f') => "boolean",
            Some(b'n') => "null",
            Some(_) | None => "number",
        };
        Self { kind: kind.to_owned(), ..Self::default() }
    }

    fn of_object(text: &str) -> Self {
        let fields: BTreeMap<String, &RawValue> = serde_json::from_str(text).unwrap_or_default();
        let length = Some(number(fields.len()));
        let mut summary = Self { kind: "object".to_owned(), length, ..Self::default() };
        for (name, value) in fields.into_iter().take(KEYS_MAX) {
            let name: String = name.chars().take(KEY_LETTERS_MAX).collect();
            if value.get().starts_with('[') {
                summary.lengths.insert(name.clone(), items(value.get()));
            }
            summary.keys.push(name);
        }
        summary
    }
}

/// How many items an array has.
fn items(text: &str) -> u64 {
    let items: Vec<serde::de::IgnoredAny> = serde_json::from_str(text).unwrap_or_default();
    number(items.len())
}

/// The inbound entry of a run, from its first [`HEAD_EVENTS`] events; none if they are not there.
pub fn inbound(head: &[StoredEvent]) -> Option<Entry> {
    let first = head.first().filter(|first| first.seq == 1)?;
    let Event::RunStarted(started) = &first.event else { return None };
    let is_begin = |stored: &&StoredEvent| {
        matches!(stored.event, Event::StepQueued { .. } | Event::StepWaiting { .. })
    };
    let released = head.iter().find(|stored| matches!(stored.event, Event::RunReleased { .. }));
    let is_held = started.hold.is_some();
    Some(Entry {
        run_id: first.run_id,
        seq: first.seq,
        at: first.at,
        flow: Arc::clone(&started.flow),
        revision: started.revision.clone(),
        direction: Direction::Inbound,
        status: if is_held { EntryStatus::Held } else { EntryStatus::Accepted },
        step: head.iter().find(is_begin).and_then(|stored| stored.event.step().cloned()),
        instance: started.instance.clone(),
        content: Some(Content::of(&started.input)),
        took_ms: released.map(|released| millis(released.at.since(first.at))),
        key: started.key.clone(),
        error: None,
    })
}

/// The outbound entry of a run that was accepted at `started_at`, from the last of its events.
///
/// What a run puts out is the result of the step that succeeded last or, where that has none, the
/// data of the event that was emitted last; one that failed or was cancelled puts nothing out.
/// None if these events do not reach far enough back to tell, or the run has not ended.
pub fn outbound(run: &Run, started_at: Timestamp, tail: &[StoredEvent]) -> Option<Entry> {
    let last = tail.last().filter(|last| last.event.is_terminal())?;
    let failure = run.failure.as_ref().filter(|_| run.status == RunStatus::Failed);
    let (status, found) = match run.status {
        RunStatus::Completed => (EntryStatus::Completed, output(tail)?),
        RunStatus::Failed => (EntryStatus::Failed, failed(tail, &failure?.step)?),
        RunStatus::Cancelled => (EntryStatus::Cancelled, Put::default()),
        RunStatus::Held | RunStatus::Running | RunStatus::Waiting => return None,
    };
    Some(Entry {
        run_id: last.run_id,
        seq: last.seq,
        at: last.at,
        flow: Arc::clone(&run.flow),
        revision: run.revision.clone(),
        direction: Direction::Outbound,
        status,
        step: found.step,
        instance: found.instance,
        content: found.payload.as_ref().map(Content::of),
        took_ms: Some(millis(last.at.since(started_at))),
        key: run.key.clone(),
        error: failure.map(|failure| EntryError {
            step: Arc::clone(&failure.step),
            kind: failure.error.kind,
        }),
    })
}

/// What was put out last, and by whom.
#[derive(Default)]
struct Put {
    step: Option<Arc<str>>,
    instance: Option<InstanceId>,
    payload: Option<Payload>,
}

/// What a completed run has put out; none if more of its events are needed to tell.
fn output(tail: &[StoredEvent]) -> Option<Put> {
    let is_whole = tail.first().is_some_and(|first| first.seq == 1);
    let last = tail.iter().rev().find_map(|stored| {
        let Event::StepSucceeded { step, lease, result, .. } = &stored.event else { return None };
        Some(Put {
            step: Some(Arc::clone(step)),
            instance: lease.as_ref().map(|lease| lease.instance.clone()),
            payload: result.clone().filter(|result| result.get() != "null"),
        })
    });
    if last.as_ref().is_some_and(|last| last.payload.is_some()) {
        return last;
    }
    let emitted = tail.iter().rev().find_map(|stored| {
        let Event::EventEmitted { data, .. } = &stored.event else { return None };
        Some(data.clone())
    });
    match (last, emitted) {
        (Some(last), Some(emitted)) => Some(Put { payload: Some(emitted), ..last }),
        (last, None | Some(_)) if is_whole => Some(last.unwrap_or_default()),
        (None, None | Some(_)) | (Some(_), None) => None,
    }
}

/// Who executed the step that failed first; none if more events are needed to tell.
fn failed(tail: &[StoredEvent], first: &Arc<str>) -> Option<Put> {
    let is_whole = tail.first().is_some_and(|first| first.seq == 1);
    let found = tail.iter().find_map(|stored| {
        let Event::StepFailed { step, lease, .. } = &stored.event else { return None };
        let instance = lease.as_ref().map(|lease| lease.instance.clone());
        (step == first).then(|| Put { step: Some(Arc::clone(step)), instance, payload: None })
    });
    found.or_else(|| is_whole.then(Put::default))
}

/// How the messages of a flow did that were accepted in a window, one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The flow.
    pub flow: Arc<str>,
    /// Which way.
    pub direction: Direction,
    /// How many.
    pub count: u64,
    /// How many in a minute of the window.
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

/// A run that was accepted in a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Its flow.
    pub flow: Arc<str>,
    /// When.
    pub started_at: Timestamp,
    /// When and how it ended, if it has.
    pub ended: Option<(Timestamp, RunStatus)>,
}

/// How the flows did whose runs were accepted in a window of this length: of each flow what came
/// in, and what has come out of that.
pub fn lines(accepted: &[Accepted], window: Duration) -> Vec<Line> {
    let minutes = window.max(WINDOW_MIN).as_secs_f64() / 60.0;
    let mut flows: BTreeMap<&Arc<str>, Vec<&Accepted>> = BTreeMap::new();
    for run in accepted {
        flows.entry(&run.flow).or_default().push(run);
    }
    let mut lines = Vec::with_capacity(flows.len() * 2);
    for (flow, runs) in flows {
        let ended = runs.iter().filter_map(|run| {
            let (ended_at, status) = run.ended?;
            Some(EndedRun { started_at: run.started_at, ended_at, status })
        });
        let figures = Figures::of(&ended.collect::<Vec<_>>());
        let took = |ms: u64| (figures.count > 0).then_some(ms);
        let inbound = number(runs.len());
        lines.push(Line {
            flow: Arc::clone(flow),
            direction: Direction::Inbound,
            count: inbound,
            per_minute: real(inbound) / minutes,
            errors: 0,
            took_avg_ms: None,
            took_p50_ms: None,
            took_p99_ms: None,
        });
        lines.push(Line {
            flow: Arc::clone(flow),
            direction: Direction::Outbound,
            count: figures.count,
            per_minute: real(figures.count) / minutes,
            errors: figures.failed,
            took_avg_ms: took(figures.latency_avg_ms),
            took_p50_ms: took(figures.latency_p50_ms),
            took_p99_ms: took(figures.latency_p99_ms),
        });
    }
    lines
}
