//! What is kept of subscribers: the forms of their records.

use std::sync::Arc;

use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::ids::{InstanceId, Position, RunId};
use flowgate_core::limits;
use flowgate_core::payload::{Payload, PayloadError};
use flowgate_core::time::Timestamp;
use flowgate_store::StoreError;
use flowgate_store::control::{Expect, Record, RecordWrite};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::options::{InstanceMode, OnFailure};
use crate::text;

/// Subscribers, by id.
pub(super) const SUBSCRIBER: &str = "subscriber";
/// Checkpoints, by `ID/PARTITION`.
pub(super) const CHECKPOINT: &str = "checkpoint";
/// Events that were put aside, by `ID/RUN/SEQ`.
pub(super) const DEAD: &str = "subscriber_dead";
/// Those of them that are to be tried again, by `ID/PARTITION/RUN/SEQ`.
pub(super) const RETRY: &str = "subscriber_retry";
/// Who wants to be active, by `ID/HOLDER`.
pub(super) const MEMBER: &str = "subscriber_member";

/// What all instances of a subscriber agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SubscriberRecord {
    pub(super) kind: Arc<str>,
    pub(super) mode: InstanceMode,
    pub(super) partitions: u16,
    pub(super) on_failure: OnFailure,
}

/// How far a partition is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct CheckpointRecord {
    /// Of the last event of each feed that is behind it.
    pub(super) positions: Vec<Position>,
    /// Events that were handled or put aside.
    pub(super) handled: u64,
    /// How often somebody has set it: a subscriber at another number begins anew.
    pub(super) resets: u64,
    /// Who wrote it, so that whoever got no answer knows its own write.
    pub(super) writer: Arc<str>,
    /// What the subscriber wants back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<Payload>,
    /// Why it stands still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<FailedRecord>,
}

/// The event that a subscriber stopped at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FailedRecord {
    /// Absent where it could not begin, or the event could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) run: Option<RunId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) seq: Option<u64>,
    pub(super) error: Arc<str>,
    pub(super) attempts: u32,
    pub(super) instance: InstanceId,
}

/// An event that was put aside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct DeadRecord {
    pub(super) run: RunId,
    pub(super) seq: u64,
    pub(super) position: Position,
    pub(super) at: Timestamp,
    pub(super) r#type: Arc<str>,
    /// The event; absent where it is too large to be kept twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) event: Option<Payload>,
    pub(super) error: Arc<str>,
    pub(super) attempts: u32,
}

/// Who wants to be active.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MemberRecord {
    pub(super) instance: InstanceId,
    pub(super) mode: InstanceMode,
}

impl DeadRecord {
    pub(super) fn of(stored: &StoredEvent, error: &str, attempts: u32) -> Self {
        Self {
            run: stored.run_id,
            seq: stored.seq,
            position: stored.position,
            at: stored.at,
            r#type: stored.event.kind().into(),
            // Room for the other fields: a record is as large as a payload.
            event: Payload::of(&stored.event)
                .ok()
                .filter(|event| event.bytes() < limits::PAYLOAD_BYTES_MAX / 2),
            error: fit(error),
            attempts,
        }
    }

    /// The event, if it was kept and can be read.
    pub(super) fn stored(&self) -> Option<StoredEvent> {
        let event: Event = self.event.as_ref()?.read().ok()?;
        let Self { run: run_id, seq, position, at, .. } = *self;
        Some(StoredEvent { position, run_id, seq, at, event })
    }
}

/// An error as it is kept.
pub(super) fn fit(error: &str) -> Arc<str> {
    text::fit(error, limits::ERROR_BYTES_MAX).into()
}

pub(super) fn checkpoint_key(id: &str, partition: u16) -> Arc<str> {
    format!("{id}/{partition}").into()
}

pub(super) fn dead_key(id: &str, run_id: RunId, seq: u64) -> Arc<str> {
    format!("{id}/{run_id}/{seq:012}").into()
}

pub(super) fn retry_key(id: &str, partition: u16, run_id: RunId, seq: u64) -> Arc<str> {
    format!("{id}/{partition}/{run_id}/{seq:012}").into()
}

pub(super) fn term_name(id: &str, partition: u16) -> Arc<str> {
    format!("subscriber/{id}/{partition}").into()
}

/// What is told when somebody should look again.
pub(super) fn topic(id: &str) -> Arc<str> {
    format!("subscriber/{id}").into()
}

/// A write of a record that is kept for ever.
pub(super) fn write(
    kind: &'static str,
    key: Arc<str>,
    expect: Expect,
    value: &impl Serialize,
) -> Result<RecordWrite, PayloadError> {
    Ok(RecordWrite { kind, key, expect, value: Some(Payload::of(value)?), keep: None })
}

pub(super) fn removal(kind: &'static str, key: Arc<str>, expect: Expect) -> RecordWrite {
    RecordWrite { kind, key, expect, value: None, keep: None }
}

/// What a record says. One that cannot be read is damage, never nothing.
pub(super) fn read<T: DeserializeOwned>(
    kind: &'static str,
    record: &Record,
) -> Result<T, StoreError> {
    record.value.read().map_err(|error| StoreError::Corrupt {
        message: format!("the record `{}` of kind `{kind}` cannot be read", record.key),
        source: Some(Box::new(error)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn round_trip<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
        stored: &serde_json::Value,
    ) {
        let text = stored.to_string();
        let value: T = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_value(&value).unwrap(), *stored);
    }

    #[test]
    fn every_record_is_read_as_it_was_first_stored() {
        round_trip::<SubscriberRecord>(&json!({
            "kind": "projection", "mode": "coordinated", "partitions": 4,
            "on_failure": "fail_closed"
        }));
        round_trip::<CheckpointRecord>(&json!({
            "positions": ["7", "812-3"], "handled": 12, "resets": 1, "writer": "a/1",
            "state": {"b": 1, "a": 2}
        }));
        let run = RunId::derived("order", "7");
        round_trip::<FailedRecord>(&json!({
            "run": run, "seq": 3, "error": "no", "attempts": 5, "instance": "a"
        }));
        round_trip::<DeadRecord>(&json!({
            "run": run, "seq": 3, "position": "9", "at": 5, "type": "run.completed",
            "event": {"type": "run.completed", "data": {}}, "error": "no", "attempts": 5
        }));
        round_trip::<MemberRecord>(&json!({"instance": "a", "mode": "single_instance"}));
    }

    #[test]
    fn a_dead_letter_gives_its_event_back() {
        let stored = StoredEvent {
            position: Position::counted(9),
            run_id: RunId::derived("order", "7"),
            seq: 3,
            at: Timestamp(5),
            event: Event::RunFailed { step: "one".into() },
        };
        let dead = DeadRecord::of(&stored, "no", 2);
        let text = serde_json::to_string(&dead).unwrap();
        let read: DeadRecord = serde_json::from_str(&text).unwrap();
        assert_eq!(read.stored(), Some(stored));
    }
}
