//! Cancelling, signalling and trying again.

use flowgate_core::decide::Rejection;
use flowgate_core::event::Event;
use flowgate_core::ids::{RunId, is_identifier};
use flowgate_core::limits::ERROR_BYTES_MAX;
use flowgate_core::run::{Run, RunStatus};
use flowgate_engine::{Engine, EngineError, RetryOn};
use flowgate_store::{Store, StoreError};

use super::run_ref;
use super::show::recent_events;
use crate::error::ApiError;
use crate::lookup;
use crate::wire::runs::{CancelRun, RetryRun, RunRef, SignalRun, Signalled};

/// Events among which a signal is looked for that was just sent.
const RECENT_EVENTS: u64 = 50;

/// Stops the run that `name` names for good. One that was cancelled before stays so.
pub async fn cancel(engine: &Engine, name: &str, request: CancelRun) -> Result<RunRef, ApiError> {
    let store = &**engine.store();
    check_reason(request.reason.as_deref())?;
    let run_id = lookup::run_id(store, name).await?;
    lookup::run(store, run_id).await?;
    match engine.cancel(run_id, request.reason.as_deref()).await {
        Ok(run) => Ok(run_ref(&run, false)),
        Err(EngineError::Rejected(Rejection::RunEnded(RunStatus::Cancelled))) => {
            Ok(run_ref(&lookup::run(store, run_id).await?.row.run, true))
        }
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn check_reason(reason: Option<&str>) -> Result<(), ApiError> {
    if reason.is_some_and(|reason| reason.len() > ERROR_BYTES_MAX) {
        let message = format!("the reason has more than {ERROR_BYTES_MAX} bytes");
        return Err(ApiError::invalid("too_long", message).path("reason"));
    }
    Ok(())
}

/// Tries the finished run that `name` names again; the new run.
pub async fn retry(engine: &Engine, name: &str, request: RetryRun) -> Result<RunRef, ApiError> {
    let store = &**engine.store();
    let run_id = lookup::run_id(store, name).await?;
    let flow = lookup::run(store, run_id).await?.row.run.flow.clone();
    let on = match request.revision.as_deref() {
        None => RetryOn::Pinned,
        Some("active") => RetryOn::Active,
        Some(revision) => {
            let found = lookup::revision(store, &format!("{flow}@{revision}")).await?;
            RetryOn::Revision(found.revision.revision)
        }
    };
    let started = engine.retry(run_id, request.from.as_deref(), &on).await?;
    Ok(run_ref(&lookup::run(store, started.run_id).await?.row.run, started.existing))
}

/// Sends the run that `name` names a signal.
pub async fn signal(
    engine: &Engine,
    name: &str,
    request: SignalRun,
) -> Result<Signalled, ApiError> {
    let SignalRun { signal, data } = request;
    if !is_identifier(&signal) {
        let message = format!("`{}` cannot be the name of a signal", signal.escape_debug());
        return Err(ApiError::invalid("identifier_invalid", message).path("signal"));
    }
    let data = super::payload("data", data)?;
    let store = &**engine.store();
    let run_id = lookup::run_id(store, name).await?;
    lookup::run(store, run_id).await?;
    let run = engine.signal(run_id, &signal, data).await?;
    let (taken, kept) = fate_of_signal(store, run_id, &signal).await?;
    Ok(Signalled { run: run_ref(&run, false), taken, kept })
}

/// Whether a wait took a signal that was just sent, and whether it is kept for one.
async fn fate_of_signal(
    store: &dyn Store,
    run_id: RunId,
    signal: &str,
) -> Result<(bool, bool), ApiError> {
    let run = lookup::run(store, run_id).await?.row.run;
    fate_in_log(store, &run, signal).await.map_err(ApiError::from)
}

async fn fate_in_log(
    store: &dyn Store,
    run: &Run,
    signal: &str,
) -> Result<(bool, bool), StoreError> {
    let recent = recent_events(store, run, RECENT_EVENTS).await?;
    let is_ours = |event: &Event| matches!(event, Event::SignalReceived { signal: name, .. } if **name == *signal);
    let Some(received) = recent.iter().rev().find(|stored| is_ours(&stored.event)) else {
        return Ok((false, false));
    };
    let took = |event: &Event| matches!(event, Event::SignalTaken { signal_seq, .. } if *signal_seq == received.seq);
    let taken = recent.iter().any(|stored| took(&stored.event));
    let kept = run.signals.iter().any(|kept| kept.seq == received.seq);
    Ok((taken, kept))
}
