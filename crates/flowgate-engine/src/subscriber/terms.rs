//! Keeping the terms of partitions.
//!
//! ```text
//!   taken       renewal      renewal          trusted until
//!   |---- 1/3 ----|---- 1/3 ----|---- … ---- 9/10 |- 1/10 -| the last one ends, on the store
//! ```
//!
//! Each term is renewed at a third of its span, and after a failure again at a tenth. When it is
//! lost, or no answer came for nine tenths of it, whoever works under it is stopped. What makes a
//! late write harmless is the number of the term, not this clock.

use std::sync::Arc;
use std::time::Duration;

use flowgate_store::Store;
use flowgate_store::control::{TermAsk, TermOutcome, TermRef};
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::instance::Instance;

/// How long the keeper sleeps while it has nothing to keep.
const IDLE: Duration = Duration::from_hours(1);

/// The terms of this instance.
#[derive(Debug, Default)]
pub(crate) struct Terms {
    held: Mutex<Vec<Arc<HeldTerm>>>,
    changed: Notify,
}

/// A term that is renewed as long as somebody keeps this.
#[derive(Debug)]
pub(crate) struct HeldTerm {
    pub(crate) term: TermRef,
    holder: Arc<str>,
    span: Duration,
    /// When the answer that is trusted was asked for, and when the next one is.
    times: Mutex<(Instant, Instant)>,
    lost: CancellationToken,
}

impl HeldTerm {
    /// Cancelled when it is not held any more.
    pub(crate) fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Whether whoever works under it may go on, by this host's clock.
    pub(crate) fn is_trusted(&self) -> bool {
        !self.lost.is_cancelled() && clock::now() < self.trusted_until()
    }

    fn trusted_until(&self) -> Instant {
        self.times.lock().0 + self.span.mul_f64(0.9)
    }

    fn renew_at(&self) -> Instant {
        self.times.lock().1
    }
}

impl Terms {
    /// Keeps a term that an ask at `asked` was answered with.
    pub(crate) fn keep(
        &self,
        term: TermRef,
        holder: Arc<str>,
        span: Duration,
        asked: Instant,
    ) -> Arc<HeldTerm> {
        let times = Mutex::new((asked, asked + span / 3));
        let held = Arc::new(HeldTerm { term, holder, span, times, lost: CancellationToken::new() });
        self.held.lock().push(Arc::clone(&held));
        self.changed.notify_one();
        held
    }

    /// Stops renewing a term.
    pub(crate) fn forget(&self, held: &Arc<HeldTerm>) {
        held.lost.cancel();
        self.held.lock().retain(|kept| !Arc::ptr_eq(kept, held));
    }
}

/// Renews the terms of an instance, until it is dropped.
pub(crate) async fn keep(instance: Arc<Instance>) {
    loop {
        let held = instance.terms.held.lock().clone();
        let next = held.iter().map(|held| held.renew_at().min(held.trusted_until())).min();
        let sleep = tokio::time::sleep_until(next.unwrap_or_else(|| clock::now() + IDLE));
        tokio::select! {
            () = sleep => {}
            () = instance.terms.changed.notified() => continue,
        }
        let now = clock::now();
        let due = held.iter().filter(|held| held.renew_at() <= now);
        join_all(due.map(|held| renew(&*instance.store, held))).await;
        let now = clock::now();
        for held in held.iter().filter(|held| held.trusted_until() <= now) {
            lose(&instance, held, "it could not be renewed");
        }
        let is_lost = |held: &&Arc<HeldTerm>| held.lost.is_cancelled();
        for held in held.iter().filter(is_lost) {
            instance.terms.forget(held);
        }
    }
}

async fn renew(store: &dyn Store, held: &HeldTerm) {
    let asked = clock::now();
    let left = held.trusted_until().saturating_duration_since(asked);
    if left.is_zero() || held.lost.is_cancelled() {
        return;
    }
    let ask = TermAsk {
        name: Arc::clone(&held.term.name),
        holder: Arc::clone(&held.holder),
        span: held.span,
        renews: Some(held.term.number),
    };
    let answer = tokio::time::timeout(left.min(held.span / 3), store.take_term(&ask)).await;
    match answer {
        Ok(Ok(TermOutcome::Held(_))) => *held.times.lock() = (asked, asked + held.span / 3),
        Ok(Ok(TermOutcome::NotHeld(_))) => {
            tracing::warn!(term = %held.term.name, number = held.term.number, "a term was lost");
            held.lost.cancel();
        }
        Ok(Err(error)) => {
            tracing::debug!(term = %held.term.name, %error, "a term could not be renewed");
            held.times.lock().1 = clock::now() + held.span / 10;
        }
        Err(_) => held.times.lock().1 = clock::now() + held.span / 10,
    }
}

fn lose(instance: &Instance, held: &HeldTerm, why: &str) {
    if !held.lost.is_cancelled() {
        let instance = &instance.config.instance;
        tracing::warn!(%instance, term = %held.term.name, why, "a term was lost");
        held.lost.cancel();
    }
}
