//! Events as other programs and people read them.

use std::sync::Arc;

use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::flow::LimitName;
use flowgate_core::ids::{InstanceId, LeaseToken, Position, Revision, RunId};
use flowgate_core::view::Brief;
use serde::Serialize;
use std::time::Duration;

/// One line of an export. Every field is always there; what an event does not have is null.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Record {
    position: Position,
    run: RunId,
    seq: u64,
    r#type: &'static str,
    step: Option<Arc<str>>,
    attempt: Option<u32>,
    token: Option<LeaseToken>,
    instance: Option<InstanceId>,
    flow: Arc<str>,
    revision: Revision,
    data: serde_json::Value,
    time: String,
}

impl Record {
    /// The line for `stored`, an event of a run of this flow and revision.
    pub(crate) fn new(stored: &StoredEvent, flow: Arc<str>, revision: Revision) -> Self {
        let lease = stored.event.lease();
        Self {
            position: stored.position,
            run: stored.run_id,
            seq: stored.seq,
            r#type: stored.event.kind(),
            step: stored.event.step().cloned(),
            attempt: lease.map(|lease| lease.attempt),
            token: lease.map(|lease| lease.token),
            instance: lease.map(|lease| lease.instance.clone()),
            flow,
            revision,
            data: rest_of(&stored.event),
            time: stored.at.to_string(),
        }
    }
}

/// What the event says beyond the fields that every record has.
fn rest_of(event: &Event) -> serde_json::Value {
    let mut value = serde_json::to_value(event).expect("an event has a JSON form");
    let mut data = value["data"].take();
    if let Some(fields) = data.as_object_mut() {
        for name in ["step", "lease", "flow", "revision"] {
            fields.remove(name);
        }
    }
    data
}

/// What an event says, on one line, for people.
pub(crate) fn detail(event: &Event) -> String {
    match event {
        Event::RunStarted(started) => format!("input {}", started.input.get()),
        Event::StepQueued { .. }
        | Event::StepWaiting { .. }
        | Event::StepRepaired { .. }
        | Event::StepSkipped { .. }
        | Event::StepCancelled { .. }
        | Event::StepCarried { .. }
        // A wait that a signal ended took no time of any attempt.
        | Event::StepSucceeded { lease: None, .. }
        | Event::RunCompleted {} => String::new(),
        Event::StepStarted { lease, .. }
        | Event::StepLost { lease, .. }
        | Event::StepReleased { lease, .. } => {
            format!("attempt {} on {}", lease.attempt, lease.instance)
        }
        Event::StepParked { limit, reason, .. } => format!("{}: {reason}", LimitName(limit)),
        Event::EventEmitted { event, data, .. } | Event::EventRepeated { event, data, .. } => {
            format!("{event} {}", data.get())
        }
        Event::StateSet { key, value, .. } => format!("{key} = {}", value.get()),
        Event::AttemptFailed { lease, error, retry_after_ms, .. } => {
            let wait = Brief(Duration::from_millis(*retry_after_ms));
            format!("attempt {}: {}; next in {wait}", lease.attempt, error.message)
        }
        Event::StepSucceeded { elapsed_us, result, .. } => {
            let took = Brief(Duration::from_micros(*elapsed_us));
            result.as_ref().map_or_else(
                || format!("in {took}"),
                |result| format!("in {took}, result {}", result.get()),
            )
        }
        Event::StepFailed { error, .. } => error.message.to_string(),
        Event::SignalReceived { signal, data } => format!("{signal} {}", data.get()),
        Event::SignalTaken { signal_seq, .. } => format!("signal of event {signal_seq}"),
        Event::RunFailed { step } => format!("because of {step}"),
        Event::RunCancelled { reason } => reason.as_deref().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use flowgate_core::event::LeaseStamp;
    use flowgate_core::time::Timestamp;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_record_has_its_twelve_fields_whatever_the_event() {
        let lease =
            LeaseStamp { attempt: 2, token: LeaseToken(5), instance: InstanceId("host-1".into()) };
        let stored = |event| StoredEvent {
            position: Position::counted(9),
            run_id: RunId::derived("order", "7"),
            seq: 3,
            at: Timestamp(0),
            event,
        };
        let record = |event| {
            let record = Record::new(&stored(event), "order".into(), Revision("ab".into()));
            serde_json::to_value(record).unwrap()
        };
        let started = record(Event::StepStarted { step: "charge".into(), lease });
        assert_eq!(
            started,
            json!({
                "position": "9", "run": RunId::derived("order", "7"), "seq": 3,
                "type": "step.started", "step": "charge", "attempt": 2, "token": 5,
                "instance": "host-1", "flow": "order", "revision": "ab", "data": {},
                "time": "1970-01-01T00:00:00.000Z",
            })
        );
        let completed = record(Event::RunCompleted {});
        let keys = |value: &serde_json::Value| {
            value.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        };
        assert_eq!(keys(&completed), keys(&started));
        assert_eq!(completed["step"], json!(null));
    }
}
