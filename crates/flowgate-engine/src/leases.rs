//! Keeping leases while attempts run.
//!
//! An attempt may settle as long as its lease holds on the store's clock. All leases of an instance
//! are renewed in one call, every third of a lease:
//!
//! ```text
//!   claim        renewal      renewal      renewal …
//!   |---- 1/3 ----|---- 1/3 ----|---- 1/3 ----| the lease of the claim ends here
//! ```
//!
//! - A renewal that failed is tried again after a tenth of the lease.
//! - A renewal answered `Lost` stops the attempt, and its result is dropped. That is how a cancelled
//!   run reaches the attempts of other instances.
//! - Without an answer the attempt is trusted until a tenth before its lease must have ended, by
//!   this host's monotonic clock; then it is stopped. That is a courtesy to the user's systems: what
//!   makes a late result harmless is the token, not this clock.
//! - Renewals run on a thread of their own, so handlers that block every thread of the runtime
//!   cannot starve them. Beats run beside them, so a busy instance does not look dead.

use std::fmt::Display;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use flowgate_store::{LeaseRef, Renewal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::attempt::{Attempt, Stop};
use crate::config::Renewals;
use crate::health::Source;
use crate::instance::Instance;
use crate::{beats, clock, permits, subscriber};

/// Leases in one call.
const RENEWALS_MAX: usize = 10_000;

/// What renews leases, until it is stopped.
#[derive(Debug)]
pub(crate) struct LeaseKeeper {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl LeaseKeeper {
    pub(crate) fn start(instance: &Arc<Instance>) -> Self {
        let stop = CancellationToken::new();
        let (keeper, beater) = (Arc::clone(instance), Arc::clone(instance));
        let terms = subscriber::terms::keep(Arc::clone(instance));
        let stopped = stop.clone();
        let work = async move {
            let keep = stopped.run_until_cancelled(keep(keeper));
            let terms = stopped.run_until_cancelled(terms);
            tokio::join!(keep, terms, beats::beat(beater, stopped.clone()));
        };
        let thread = match instance.config.renewals {
            Renewals::OnRuntime => {
                instance.tasks.spawn(work);
                None
            }
            Renewals::OwnThread => {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a host that runs flowgate can make a timer");
                let thread = std::thread::Builder::new()
                    .name("flowgate-leases".to_owned())
                    .spawn(move || runtime.block_on(work))
                    .expect("a host that runs flowgate can start a thread");
                Some(thread)
            }
        };
        Self { stop, thread }
    }

    /// Stops renewing, without waiting for the thread.
    pub(crate) fn cancel(&self) {
        self.stop.cancel();
    }

    /// Stops renewing and waits for the thread.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        if let Some(thread) = self.thread {
            let joined = tokio::task::spawn_blocking(move || thread.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!("the thread that renews leases panicked");
            }
        }
    }
}

async fn keep(instance: Arc<Instance>) {
    let interval = instance.config.lease / 3;
    let mut wait = interval;
    loop {
        tokio::time::sleep(wait).await;
        let attempts = instance.in_flight.attempts();
        let now = clock::now();
        report_long_ones(&attempts, instance.config.started_after, now);
        // What began just now is renewed the next time.
        let due: Vec<_> =
            attempts.into_iter().filter(|a| a.unheld_for(now) >= interval / 2).collect();
        wait = interval;
        if due.is_empty() {
            instance.health.answered(Source::Renewals);
        }
        for batch in due.chunks(RENEWALS_MAX) {
            if !renew(&instance, batch, interval).await {
                wait = instance.config.lease / 10;
            }
            permits::renew(&instance, batch, instance.config.lease).await;
        }
        stop_untrusted(&instance, &due);
    }
}

/// A handler that blocks in its first poll cannot arm the timer that says it runs.
fn report_long_ones(attempts: &[Arc<Attempt>], started_after: Duration, now: Instant) {
    let is_long =
        |a: &&Arc<Attempt>| now.saturating_duration_since(a.work_began()) >= started_after;
    attempts.iter().filter(is_long).for_each(Attempt::report_started);
}

/// Renews leases; false if the store did not answer.
async fn renew(instance: &Instance, attempts: &[Arc<Attempt>], wait_max: Duration) -> bool {
    let leases: Vec<LeaseRef> = attempts.iter().map(|attempt| attempt.lease()).collect();
    let asked = clock::now();
    let call = instance.store.renew(&leases, instance.config.lease);
    let renewed = tokio::time::timeout(wait_max, call).await;
    instance.strain.answers.note(asked, clock::now(), matches!(renewed, Ok(Ok(_))));
    let renewals = match renewed {
        Ok(Ok(renewals)) => renewals,
        Ok(Err(error)) => {
            note_failure(instance, leases.len(), &error);
            return false;
        }
        Err(_) => {
            note_failure(instance, leases.len(), &"renewals are not answered in time");
            return false;
        }
    };
    instance.health.answered(Source::Renewals);
    for (attempt, renewal) in attempts.iter().zip(renewals) {
        match renewal {
            Renewal::Held(_) => attempt.note_held(asked),
            // The commit that ends the attempt may be what ended the lease: the committer knows.
            Renewal::Lost if attempt.is_over() => {}
            Renewal::Lost => lose(instance, attempt),
        }
    }
    true
}

fn note_failure(instance: &Instance, leases: usize, error: &dyn Display) {
    instance.metrics.store_retries.increment(1);
    instance.health.failed(Source::Renewals, error);
    if let Some(kept_back) = instance.throttles.renewals.pass() {
        tracing::warn!(%error, leases, kept_back, "leases could not be renewed; trying on");
    }
}

fn stop_untrusted(instance: &Instance, attempts: &[Arc<Attempt>]) {
    let lease = instance.config.lease;
    let trusted_for = lease.mul_f64(0.9);
    let now = clock::now();
    for attempt in attempts {
        if attempt.unheld_for(now) >= trusted_for && !attempt.is_over() {
            lose(instance, attempt);
        }
    }
}

fn lose(instance: &Instance, attempt: &Attempt) {
    if instance.forget(attempt.lease()).is_some() {
        instance.metrics.leases_lost.increment(1);
        let run_id = attempt.claimed.run.run_id;
        tracing::warn!(%run_id, step = %attempt.step().name, "the lease of an attempt was lost");
    }
    attempt.stop(Stop::LeaseLost);
}
