//! What a message does, once.
//!
//! A start has a key that is made of the webhook and the message, so the rule for keys holds: the
//! same message gives the same run. A signal has no such key. So a record of kind `webhook` is
//! written before the signal is sent and marked when it was. A message whose record is marked came
//! before. One whose record is not is being taken by somebody else; if that is long ago, whoever it
//! was may have died between, and the log of the run says whether the signal got there.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::event::Event;
use flowgate_core::ids::RunId;
use flowgate_core::payload::Payload;
use flowgate_core::time::Timestamp;
use flowgate_engine::{Engine, EngineError, StartDebounce, StartRequest};
use flowgate_store::Store;
use flowgate_store::control::{Expect, Record, RecordWrite, RecordsOutcome};
use serde::{Deserialize, Serialize};

use super::Message;
use crate::api::runs::ops::run_ref;
use crate::error::ApiError;
use crate::lookup;
use crate::wire::runs::RunRef;

/// The kind of the records.
const KIND: &str = "webhook";
/// How long whoever took a message is not doubted.
const TAKING_MAX: Duration = Duration::from_secs(30);
/// How much longer than it could be sent again a message is remembered.
const KEPT_LONGER: Duration = Duration::from_hours(24);
/// Writes of others that are waited for.
const TRIES_MAX: usize = 5;
/// Events of a run in one page.
const EVENTS_PAGE: usize = 1_000;

/// Starts the run of a message.
pub(super) async fn start(
    engine: &Engine,
    flow: &str,
    hook: &str,
    message: Message,
) -> Result<RunRef, ApiError> {
    let key = format!("webhook/{hook}/{}", message.id);
    let request = StartRequest {
        key: Some(key.into()),
        // Each message is a run of its own, which its answer names.
        debounce: StartDebounce::Never,
        ..StartRequest::new(message.data)
    };
    let store = &**engine.store();
    match engine.start_run(flow, request).await {
        Ok(started) => {
            let run = lookup::run(store, started.run_id).await?.row.run;
            Ok(run_ref(&run, started.existing))
        }
        Err(EngineError::NoFlow(name)) => Err(lookup::no_flow(store, &name).await?),
        Err(error) => Err(error.into()),
    }
}

/// A signal that a message asks for.
#[derive(Debug)]
pub(super) struct Sent<'a> {
    pub(super) hook: &'a str,
    pub(super) signal: &'a str,
    pub(super) run_id: RunId,
    pub(super) tolerance: Duration,
}

/// What is remembered of a message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Taken {
    run_id: RunId,
    is_done: bool,
}

/// Sends the signal of a message, unless that was done.
pub(super) async fn signal(
    engine: &Engine,
    sent: &Sent<'_>,
    message: Message,
) -> Result<RunRef, ApiError> {
    let store = &**engine.store();
    let key: Arc<str> = format!("{}/{}", sent.hook, message.id).into();
    match take(store, &key, sent).await? {
        Turn::Done(run_id) => {
            let run = lookup::run(store, run_id).await?.row.run;
            return Ok(run_ref(&run, true));
        }
        Turn::Again(since) if is_received(store, sent, &message.data, since).await? => {
            mark(store, &key, sent).await;
            let run = lookup::run(store, sent.run_id).await?.row.run;
            return Ok(run_ref(&run, true));
        }
        Turn::Again(_) | Turn::First => {}
    }
    match engine.signal(sent.run_id, sent.signal, message.data).await {
        Ok(run) => {
            mark(store, &key, sent).await;
            Ok(run_ref(&run, false))
        }
        Err(error) => {
            let is_refused = !matches!(
                error,
                EngineError::Store(_) | EngineError::Contended | EngineError::Closed
            );
            // Nothing happened, so the sender may send it again.
            if is_refused {
                forget(store, &key, sent).await;
            }
            Err(error.into())
        }
    }
}

/// What is to be done about a message.
enum Turn {
    /// It is new.
    First,
    /// Somebody began with it at this time and did not say that it is done.
    Again(Timestamp),
    /// It was done, for this run.
    Done(RunId),
}

async fn take(store: &dyn Store, key: &Arc<str>, sent: &Sent<'_>) -> Result<Turn, ApiError> {
    for _ in 0..TRIES_MAX {
        let found = store.read_records(KIND, &[Arc::clone(key)]).await?.into_iter().next();
        let (expect, turn) = match found.flatten() {
            None => (Expect::Absent, Turn::First),
            Some(record) => {
                let taken = read(&record)?;
                if taken.is_done {
                    return Ok(Turn::Done(taken.run_id));
                }
                if taken.run_id != sent.run_id
                    || store.now().await?.since(record.written_at) < TAKING_MAX
                {
                    return Err(busy());
                }
                (Expect::Version(record.version), Turn::Again(record.written_at))
            }
        };
        let taken = Taken { run_id: sent.run_id, is_done: false };
        match write(store, key, expect, Some(taken), sent.tolerance).await? {
            RecordsOutcome::Written(_) => return Ok(turn),
            RecordsOutcome::Changed(_) => {}
            RecordsOutcome::TermLost | RecordsOutcome::TooLarge(_) => {
                unreachable!("a small record is written under no term")
            }
        }
    }
    Err(busy())
}

fn busy() -> ApiError {
    let error = ApiError::conflict("conflict", "somebody else is taking the same message");
    ApiError { retry_after: Some(TAKING_MAX.as_secs()), ..error }
}

fn read(record: &Record) -> Result<Taken, ApiError> {
    serde_json::from_str(record.value.get()).map_err(|error| {
        tracing::error!(key = %record.key, %error, "the record of a webhook cannot be read");
        ApiError::new(
            axum::http::StatusCode::INTERNAL_SERVER_ERROR,
            "store_failed",
            "what is kept of this message cannot be read",
        )
        .help("see the log of the instance")
    })
}

async fn write(
    store: &dyn Store,
    key: &Arc<str>,
    expect: Expect,
    taken: Option<Taken>,
    tolerance: Duration,
) -> Result<RecordsOutcome, ApiError> {
    let value = taken.map(|taken| Payload::of(&taken).expect("it has a JSON form"));
    let keep = Some(tolerance * 2 + KEPT_LONGER);
    let write = RecordWrite { kind: KIND, key: Arc::clone(key), expect, value, keep };
    Ok(store.write_records(vec![write], None).await?)
}

/// Forgets a message that had no effect. If that fails, it is refused for a while.
async fn forget(store: &dyn Store, key: &Arc<str>, sent: &Sent<'_>) {
    if let Err(error) = write(store, key, Expect::Anything, None, sent.tolerance).await {
        tracing::warn!(webhook = sent.hook, %error, "a message could not be forgotten");
    }
}

/// Remembers that the signal was sent. If that fails, the log of the run still says it.
async fn mark(store: &dyn Store, key: &Arc<str>, sent: &Sent<'_>) {
    let done = Taken { run_id: sent.run_id, is_done: true };
    if let Err(error) = write(store, key, Expect::Anything, Some(done), sent.tolerance).await {
        tracing::warn!(webhook = sent.hook, %error, "a message could not be marked as taken");
    }
}

/// Whether the run got the signal with this data since then.
async fn is_received(
    store: &dyn Store,
    sent: &Sent<'_>,
    data: &Payload,
    since: Timestamp,
) -> Result<bool, ApiError> {
    let mut after = 0;
    loop {
        let page = store.read_events(sent.run_id, after, EVENTS_PAGE).await?;
        let is_it = page.iter().filter(|stored| stored.at >= since).any(|stored| {
            matches!(&stored.event, Event::SignalReceived { signal, data: got }
                if **signal == *sent.signal && got.value() == data.value())
        });
        match page.last() {
            _ if is_it => return Ok(true),
            Some(last) if page.len() == EVENTS_PAGE => after = last.seq,
            Some(_) | None => return Ok(false),
        }
    }
}
