//! What happened in a run: its events, and what its steps logged.

use std::borrow::Cow;
use std::sync::Arc;

use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::ids::Revision;
use flowgate_core::limits::PAGE_MAX;
use flowgate_store::{LogLine, Store};

use crate::error::ApiError;
use crate::lookup;
use crate::wire::events::{EventItem, EventPage, LogItem, LogPage};

mod text;

pub use text::text;

/// Pages of log lines that are looked through for those of a step.
const PAGES_MAX: usize = 20;

/// Which events of a run to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    /// Those after this number, the first of them first.
    After(u64),
    /// Those before this number, the last of them first; all without a number.
    Before(Option<u64>),
}

/// The event as the wire tells it, of a run of this flow and revision.
pub fn event_item(stored: &StoredEvent, flow: Arc<str>, revision: Revision) -> EventItem {
    EventItem { text: Some(text(&stored.event)), ..export_item(stored, flow, revision) }
}

/// The event as a line of an export.
pub fn export_item(stored: &StoredEvent, flow: Arc<str>, revision: Revision) -> EventItem {
    let lease = stored.event.lease();
    EventItem {
        position: stored.position,
        run: stored.run_id,
        seq: stored.seq,
        r#type: Cow::Borrowed(stored.event.kind()),
        step: stored.event.step().cloned(),
        attempt: lease.map(|lease| lease.attempt),
        token: lease.map(|lease| lease.token.to_string()),
        instance: lease.map(|lease| lease.instance.clone()),
        flow,
        revision,
        data: rest_of(&stored.event),
        time: stored.at.to_string(),
        text: None,
    }
}

/// What the event says beyond the fields that every item has.
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

/// A page of the events of the run that `name` names.
pub async fn events(
    store: &dyn Store,
    name: &str,
    wanted: Events,
    limit: usize,
) -> Result<EventPage, ApiError> {
    let run_id = lookup::run_id(store, name).await?;
    let run = lookup::run(store, run_id).await?.row.run;
    let limit = limit.clamp(1, PAGE_MAX);
    let count = u64::try_from(limit).unwrap_or(u64::MAX);
    let (after, count) = match wanted {
        Events::After(after) => (after, count),
        Events::Before(before) => {
            // Of a run that goes on, its record says what the last one was.
            let end = before.unwrap_or(u64::MAX).min(run.version.saturating_add(1));
            let after = end.saturating_sub(1).saturating_sub(count);
            (after, end.saturating_sub(1).saturating_sub(after))
        }
    };
    if count == 0 {
        return Ok(EventPage { items: Vec::new(), next: None });
    }
    let read = usize::try_from(count).unwrap_or(limit);
    let page = store.read_events(run_id, after, read).await?;
    let item = |stored| event_item(stored, Arc::clone(&run.flow), run.revision.clone());
    let mut items: Vec<EventItem> = page.iter().map(item).collect();
    let next = match wanted {
        Events::After(_) => items.last().filter(|_| items.len() == limit).map(|last| last.seq),
        Events::Before(_) => {
            items.reverse();
            items.last().map(|first| first.seq).filter(|seq| *seq > 1)
        }
    };
    Ok(EventPage { items, next })
}

/// Log lines of the run that `name` names with numbers over `after`, of one step or of all.
pub async fn logs(
    store: &dyn Store,
    name: &str,
    (mut after, limit): (u64, usize),
    step: Option<&str>,
) -> Result<LogPage, ApiError> {
    let run_id = lookup::run_id(store, name).await?;
    lookup::run(store, run_id).await?;
    let mut items = Vec::new();
    for _ in 0..PAGES_MAX {
        let room = if step.is_some() { PAGE_MAX } else { limit.min(PAGE_MAX) };
        let page = store.read_logs(run_id, after, room).await?;
        let is_last = page.len() < room;
        for line in page {
            after = line.number;
            if step.is_none_or(|step| *step == *line.line.step) {
                items.push(log_item(line));
            }
            if items.len() == limit {
                return Ok(LogPage { items, next: Some(after) });
            }
        }
        if is_last {
            return Ok(LogPage { items, next: None });
        }
    }
    Ok(LogPage { items, next: Some(after) })
}

fn log_item(log: LogLine) -> LogItem {
    LogItem {
        number: log.number,
        time: log.at.to_string(),
        step: log.line.step,
        attempt: log.line.attempt,
        level: Cow::Borrowed(log.line.level.as_str()),
        text: log.line.text,
    }
}

#[cfg(test)]
mod tests {
    use flowgate_core::event::LeaseStamp;
    use flowgate_core::ids::{InstanceId, LeaseToken, Position, RunId};
    use flowgate_core::time::Timestamp;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_of_an_export_has_its_twelve_fields_whatever_the_event() {
        let lease =
            LeaseStamp { attempt: 2, token: LeaseToken(5), instance: InstanceId("host-1".into()) };
        let stored = |event| StoredEvent {
            position: Position::counted(9),
            run_id: RunId::derived("order", "7"),
            seq: 3,
            at: Timestamp(0),
            event,
        };
        let line = |event| {
            let line = export_item(&stored(event), "order".into(), Revision("ab".into()));
            serde_json::to_value(line).unwrap()
        };
        let started = line(Event::StepStarted { step: "charge".into(), lease });
        assert_eq!(
            started,
            json!({
                "position": "9", "run": RunId::derived("order", "7"), "seq": 3,
                "type": "step.started", "step": "charge", "attempt": 2, "token": "5",
                "instance": "host-1", "flow": "order", "revision": "ab", "data": {},
                "time": "1970-01-01T00:00:00.000Z",
            })
        );
        let completed = line(Event::RunCompleted {});
        let keys = |value: &serde_json::Value| {
            value.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        };
        assert_eq!(keys(&completed), keys(&started));
        assert_eq!(completed["step"], json!(null));
    }
}
