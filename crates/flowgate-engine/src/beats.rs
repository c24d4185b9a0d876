//! An instance says that it is there, so that people can see who is and who has gone silent.
//!
//! Nothing depends on it: an instance that is gone is noticed by its leases. A beat is also the
//! call by which an idle instance learns that its store does not answer.

use std::sync::Arc;
use std::time::Duration;

use flowgate_store::{Beat, InstanceState, Queues};
use tokio_util::sync::CancellationToken;

use crate::backoff::jittered;
use crate::health::Source;
use crate::instance::Instance;

/// How long a beat may take.
const BEAT_MAX: Duration = Duration::from_secs(2);
/// How long the last word of an instance may take.
const LEAVE_MAX: Duration = Duration::from_secs(1);
/// Intervals without a beat after which something is wrong.
const SILENT_INTERVALS: u32 = 3;

/// Beats until `stop`, and once more at once when the instance begins to stop. A client has
/// nothing to say, and is ready.
pub(crate) async fn beat(instance: Arc<Instance>, stop: CancellationToken) {
    if instance.config.is_client() {
        instance.health.answered(Source::Beats);
        return;
    }
    let interval = instance.config.beat_interval;
    let mut is_stopping = false;
    loop {
        is_stopping = is_stopping || instance.stopping.is_cancelled();
        let state = if is_stopping { InstanceState::Stopping } else { InstanceState::Ready };
        // Not ended by `stop`: a beat that arrives late would undo the leaving.
        beat_once(&instance, state, interval.min(BEAT_MAX)).await;
        tokio::select! {
            () = stop.cancelled() => return,
            () = instance.stopping.cancelled(), if !is_stopping => {}
            () = tokio::time::sleep(jittered(interval)) => {}
        }
    }
}

async fn beat_once(instance: &Instance, state: InstanceState, wait_max: Duration) {
    let beat = next(instance, state);
    match tokio::time::timeout(wait_max, instance.store.beat(&beat)).await {
        Ok(Ok(())) => instance.health.answered(Source::Beats),
        Ok(Err(error)) => instance.health.failed(Source::Beats, &error),
        Err(_) => {
            let reason = format!("a beat was not answered within {wait_max:?}");
            instance.health.failed(Source::Beats, &reason);
        }
    }
}

fn next(instance: &Instance, state: InstanceState) -> Beat {
    let config = &instance.config;
    let silent_max = config.beat_interval * SILENT_INTERVALS;
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Beat {
        instance: config.instance.clone(),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").into(),
        queues: match &config.queues {
            Queues::All | Queues::AllBut(_) => None,
            Queues::Only(queues) => Some(queues.clone()),
        },
        slots: count(config.slots),
        // Not the slots that are taken: a claim under way has taken those that it may fill.
        running: count(instance.in_flight.attempts().len()),
        state,
        silent_ms_max: u64::try_from(silent_max.as_millis()).unwrap_or(u64::MAX),
    }
}

/// Says that the instance has ended. Without an answer it is listed as silent for a while.
pub(crate) async fn leave(instance: &Instance) {
    if instance.config.is_client() {
        return;
    }
    let call = instance.store.leave(&instance.config.instance);
    let left = tokio::time::timeout(LEAVE_MAX, call).await;
    if !matches!(left, Ok(Ok(()))) {
        tracing::debug!(instance = %instance.config.instance, "the store did not hear it leave");
    }
}
