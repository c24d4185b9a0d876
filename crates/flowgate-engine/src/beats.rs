//! An instance says that it is there, so that people can see who is and who has gone silent.
//!
//! Nothing depends on it: an instance that is gone is noticed by its leases. A beat is also the
//! call by which an idle instance learns that its store does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flowgate_store::{Beat, InstanceState, Queues};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::jittered;
use crate::health::Source;
use crate::instance::Instance;
use crate::{clock, degradation};

/// How long a beat may take.
const BEAT_MAX: Duration = Duration::from_secs(2);
/// How long the last word of an instance may take.
const LEAVE_MAX: Duration = Duration::from_secs(1);
/// Intervals without a beat after which something is wrong.
const SILENT_INTERVALS: u32 = 3;

/// Signs of life of the thread that renews leases and beats.
#[derive(Debug)]
pub(crate) struct Pulse {
    began: Instant,
    /// The last sign, in milliseconds after `began`.
    last_ms: AtomicU64,
    is_over: AtomicBool,
    stalled_after: Duration,
}

impl Pulse {
    pub(crate) fn new(beat_interval: Duration) -> Self {
        Self {
            began: clock::now(),
            last_ms: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            // A beat may take its time, and the next one comes an interval later.
            stalled_after: beat_interval * SILENT_INTERVALS + BEAT_MAX,
        }
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(clock::now().saturating_duration_since(self.began).as_millis())
            .unwrap_or(u64::MAX)
    }

    fn beat(&self) {
        self.last_ms.store(self.elapsed_ms(), Ordering::Release);
    }

    /// Notes when the result goes away that nobody beats any more, also if by a panic.
    fn begin(&self) -> Ending<'_> {
        Ending(self)
    }

    /// How long there has been no sign of life, if that is too long.
    pub(crate) fn stalled_for(&self) -> Option<Duration> {
        let silent = self.elapsed_ms().saturating_sub(self.last_ms.load(Ordering::Acquire));
        let silent = Duration::from_millis(silent);
        (self.is_over.load(Ordering::Acquire) || silent > self.stalled_after).then_some(silent)
    }
}

struct Ending<'a>(&'a Pulse);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

/// Beats until `stop`, and once more at once when the instance begins to stop. A client has
/// nothing to say, and is ready.
pub(crate) async fn beat(instance: Arc<Instance>, stop: CancellationToken) {
    if instance.config.is_client() {
        instance.health.answered(Source::Beats);
        return;
    }
    let interval = instance.config.beat_interval;
    let _ending = instance.pulse.begin();
    // It takes no jobs before it knows which queues are paused, and so is not ready. A store that
    // does not answer at all is found out by the beat.
    tokio::select! {
        () = instance.queues.known() => {}
        () = stop.cancelled() => {}
        () = tokio::time::sleep(interval) => {}
    }
    let mut is_stopping = false;
    loop {
        instance.pulse.beat();
        is_stopping = is_stopping || instance.stopping.is_cancelled();
        let state = if is_stopping { InstanceState::Stopping } else { InstanceState::Ready };
        instance.strain.ping.ask();
        // Not ended by `stop`: a beat that arrives late would undo the leaving.
        beat_once(&instance, state, interval.min(BEAT_MAX)).await;
        stop.run_until_cancelled(degradation::look(&instance)).await;
        tokio::select! {
            () = stop.cancelled() => return,
            () = instance.stopping.cancelled(), if !is_stopping => {}
            () = tokio::time::sleep(jittered(interval)) => {}
        }
    }
}

async fn beat_once(instance: &Instance, state: InstanceState, wait_max: Duration) {
    let beat = next(instance, state);
    let asked = clock::now();
    let beaten = tokio::time::timeout(wait_max, instance.store.beat(&beat)).await;
    instance.strain.answers.note(asked, clock::now(), matches!(beaten, Ok(Ok(()))));
    match beaten {
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
    let (degradation, strained_by) = instance.strain.now();
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Beat {
        instance: config.instance.clone(),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").into(),
        role: config.role.clone(),
        pool: config.pool.clone(),
        queues: match instance.queues.served() {
            Queues::All | Queues::AllBut(_) | Queues::AllOf { .. } => None,
            Queues::Only(queues) => Some(queues.clone()),
        },
        workers: instance.workers.names().map(Into::into).collect(),
        slots: count(config.slots),
        // Not the slots that are taken: a claim under way has taken those that it may fill.
        running: count(instance.in_flight.attempts().len()),
        state,
        degradation,
        strained_by,
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
