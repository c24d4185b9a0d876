//! From due jobs to attempts.
//!
//! The claimer takes jobs from the store while slots are free. When the store has no more it waits
//! to be woken; when it may have more it waits for a slot. Pollers take attempts in line and poll
//! each once: an attempt that ends in that poll costs no task. A handler that blocks in its first
//! poll holds up one poller; the others take what is behind it.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::commit::{Claimed, JobKind};
use flowgate_core::decide::{Outcome, Report};
use flowgate_core::event::ErrorKind;
use flowgate_core::limits::{CLAIM_BATCH_MAX, LOST_MAX};
use flowgate_store::StoreError;

use crate::attempt::{Attempt, Ending, failure};
use crate::backoff::{Backoff, jittered};
use crate::degradation::CLAIM_PAUSE;
use crate::health::Source;
use crate::instance::Instance;
use crate::{clock, executor, foreign};

/// First polls in a row before a poller lets others have the thread.
const POLLS_IN_A_ROW: u32 = 64;
/// A first poll this long has held others up for long enough.
const POLL_LONG: Duration = Duration::from_micros(200);

/// Claims due jobs until the instance stops.
pub(crate) async fn claim(instance: Arc<Instance>, pollers: usize) {
    let stopping = instance.stopping.clone();
    let mut backoff = backoff();
    // A paused queue is not to be touched, not even once.
    tokio::select! {
        () = stopping.cancelled() => return,
        () = instance.queues.known() => {}
    }
    while !stopping.is_cancelled() {
        let Err(error) = claim_some(&instance, pollers).await else {
            instance.health.answered(Source::Claims);
            backoff = self::backoff();
            continue;
        };
        instance.metrics.store_retries.increment(1);
        instance.health.failed(Source::Claims, &error);
        if let Some(kept_back) = instance.throttles.claims.pass() {
            tracing::warn!(%error, kept_back, "the store hands out no jobs; trying on");
        }
        tokio::select! {
            () = stopping.cancelled() => {}
            () = backoff.wait() => {}
        }
    }
}

fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(20), Duration::from_secs(2))
}

/// Claims what is due and begins it, or waits until something may be due.
///
/// Only the waits end when the instance stops: a claim that is under way may have been granted.
async fn claim_some(instance: &Arc<Instance>, pollers: usize) -> Result<(), StoreError> {
    let stopping = &instance.stopping;
    tokio::select! {
        biased;
        () = stopping.cancelled() => return Ok(()),
        () = instance.slots.any_free() => {}
    }
    let slowed_to = instance.strain.claims_slowed_to(instance.config.slots);
    let slots = Reserved::take(instance, slowed_to.unwrap_or(CLAIM_BATCH_MAX));
    if slots.count == 0 {
        return Ok(());
    }
    let asked = clock::now();
    let claimed = instance.store.claim(&instance.claimant(slots.count)).await;
    instance.strain.answers.note(asked, clock::now(), claimed.is_ok());
    let claimed = claimed?;
    instance.slots.set_behind(claimed.len() == slots.count);
    let is_empty = claimed.is_empty();
    begin(instance, claimed, slots, pollers).await;
    if !is_empty {
        if slowed_to.is_some() {
            stopping.run_until_cancelled(tokio::time::sleep(CLAIM_PAUSE)).await;
        }
        return Ok(());
    }
    let wait_max = jittered(instance.config.poll_max);
    let open = instance.queues.open();
    tokio::select! {
        biased;
        () = stopping.cancelled() => Ok(()),
        () = instance.queues.changed() => Ok(()),
        due = instance.store.wait_due(&open, wait_max) => due,
    }
}

/// Slots that nothing runs in yet; given back when dropped.
struct Reserved<'a> {
    instance: &'a Instance,
    count: usize,
}

impl<'a> Reserved<'a> {
    fn take(instance: &'a Instance, max: usize) -> Self {
        Self { instance, count: instance.slots.take(max.min(CLAIM_BATCH_MAX)) }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.instance.slots.free(self.count);
    }
}

/// Begins what was claimed. Each attempt takes over one of the reserved slots.
async fn begin(
    instance: &Arc<Instance>,
    claimed: Vec<Claimed>,
    mut slots: Reserved<'_>,
    pollers: usize,
) {
    let now = clock::now();
    let mut attempts = Vec::with_capacity(claimed.len());
    for claimed in claimed {
        let pinned = (&claimed.run.flow, &claimed.run.revision);
        match instance.flows.load(&*instance.store, &instance.workers, pinned).await {
            Ok(flow) => attempts.push(Attempt::new(instance, &flow, claimed, now)),
            Err(error) => {
                // The lease is not renewed, so the job is due again when it ends.
                let run_id = claimed.run.run_id;
                tracing::error!(%run_id, %error, "a job cannot be executed; it is left for later");
            }
        }
    }
    instance.in_flight.add(&attempts);
    attempts.retain(|attempt| match attempt.claimed.job.kind {
        JobKind::Timer => {
            attempt.end_once();
            let report = Report::TimerDue(attempt.for_rules());
            instance.inbox.report(Arc::clone(attempt), report, None);
            false
        }
        JobKind::Execute if attempt.flow.is_foreign(attempt.claimed.job.job_id.step) => {
            let report = foreign::hand_back(attempt, &instance.queues.open());
            instance.inbox.report(Arc::clone(attempt), report, None);
            false
        }
        JobKind::Execute => true,
    });
    slots.count -= attempts.len();
    drop(slots);
    attempts.retain(|attempt| !end_if_lost_too_often(attempt));
    instance.permits.hold_back(&mut attempts);
    instance.ready.push(&mut attempts, pollers);
}

fn end_if_lost_too_often(attempt: &Arc<Attempt>) -> bool {
    let Some(outcome) = lost_too_often(&attempt.claimed) else { return false };
    Arc::clone(attempt).end(Ending::Outcome(outcome));
    true
}

/// How a job ends whose leases were lost too often: a step that ends its process each time must not
/// do so for ever.
pub(crate) fn lost_too_often(claimed: &Claimed) -> Option<Outcome> {
    let unlogged = u32::try_from(claimed.lost.len()).unwrap_or(u32::MAX);
    let lost = claimed.run.step(claimed.job.job_id.step).lost.saturating_add(unlogged);
    let message =
        || format!("the lease of the step was lost {lost} times, and it may not be lost again");
    (lost >= LOST_MAX).then(|| failure(ErrorKind::Lost, &message(), None))
}

/// Begins attempts in line until `instance` has nothing in flight any more.
///
/// The committer is woken when the line is empty, so that what ended together is committed
/// together. It is woken earlier before a handler that is not known to be quick: ends that are
/// reported already must not wait for one that blocks.
pub(crate) async fn poll(instance: Arc<Instance>, pollers: usize) {
    let done = instance.giving_up.clone();
    let mut polls = 0;
    loop {
        let Some(attempt) = instance.ready.pop() else {
            if std::mem::take(&mut polls) > 0 {
                instance.inbox.wake();
            }
            tokio::select! {
                biased;
                () = instance.ready.arrived() => continue,
                () = done.cancelled() => return,
            }
        };
        let (flow, step) = (Arc::clone(&attempt.flow), attempt.claimed.job.job_id.step);
        if polls > 0 && !flow.is_quick(step) {
            instance.inbox.wake();
        }
        let before = clock::now();
        executor::begin(attempt);
        let is_slow = clock::now().saturating_duration_since(before) > POLL_LONG;
        flow.set_quick(step, !is_slow);
        if is_slow {
            instance.ready.note_slow(pollers);
        }
        polls += 1;
        if is_slow || polls >= POLLS_IN_A_ROW {
            polls = 0;
            instance.inbox.wake();
            tokio::task::yield_now().await;
        }
    }
}
