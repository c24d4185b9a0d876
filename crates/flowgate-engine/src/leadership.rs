//! Leading: of all instances on a store that may, one fires schedules and bursts.
//!
//! The right to do so is the term `leader` of the store: a lease with a number that only grows.
//!
//! ```text
//!             takes the term                    its lease is over, or
//!   standby ------------------> leading ------- the store says that it is ------> standby
//!      ^   retries, and when it    |  renews at a third of the lease
//!      |   is told                 |
//!      +---------------------------+  shutdown: gives it up and tells the others
//! ```
//!
//! - A call to the store takes at most a quarter of the lease, so a renewal that hangs can be tried
//!   again before the lease ends.
//! - A leader that hears nothing stops a tenth before its lease can have ended: the lease began
//!   after the call that it was asked for by, so this host's monotonic clock from then on is on the
//!   safe side.
//! - A leader that was paused finds its lease over when it wakes. What it may still send is refused:
//!   every write names the term, and every run that it starts has the id that its successor's has.
//! - A standby asks every five seconds, or each half of the lease if that is shorter. A term that
//!   was not renewed between two asks may be that of a dead leader: then it asks every second. The
//!   second ask comes before the lease ends, or right after it, so a leader that dies is replaced
//!   within its lease and two seconds; one that stops is replaced as soon as it has told.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::time::Timestamp;
use flowgate_store::StoreError;
use flowgate_store::control::{Term, TermAsk, TermOutcome, TermRef};
use futures_util::future::{MaybeDone, maybe_done};
use metrics::{Counter, Gauge, Histogram};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::jittered;
use crate::config::SchedulerConfig;
use crate::instance::Instance;
use crate::supervisor::WeakEngine;
use crate::{clock, debouncer, deploys, gates, scheduler};

/// The name of the term, and the topic by which standbys are told that it is free.
pub(crate) const LEADER: &str = "leader";
/// How long a standby waits at most before it asks again, while the leader renews.
const STANDBY_MAX: Duration = Duration::from_secs(5);
/// The same while it does not, or the store does not answer.
const RETRY_MAX: Duration = Duration::from_secs(1);
/// How long the last words of a leader may take.
const RELEASE_MAX: Duration = Duration::from_secs(1);

/// More terms than this within [`FLAP_WINDOW`] are too many.
pub const FLAP_TERMS_MAX: usize = 3;
/// The time in which terms are counted.
pub const FLAP_WINDOW: Duration = Duration::from_mins(5);

/// Whether an instance leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// It never does.
    Never,
    /// Another does, or nobody.
    Standby,
    /// It does, in the term of this number.
    Leading(u64),
}

/// How many of the last terms, the latest first, began so shortly before the latest that
/// leadership is said to flap; zero if they did not.
pub fn flapping_terms(terms: &[Term]) -> usize {
    let Some(latest) = terms.first() else { return 0 };
    let since = latest.began_at.minus(FLAP_WINDOW);
    let count = terms.iter().filter(|term| term.began_at > since).count();
    if count > FLAP_TERMS_MAX { count } else { 0 }
}

/// A term in hand.
#[derive(Debug)]
pub(crate) struct Reign {
    pub(crate) term: TermRef,
    until: Mutex<Instant>,
}

impl Reign {
    /// Whether the term may still be acted in.
    pub(crate) fn is_held(&self) -> bool {
        clock::now() < self.until()
    }

    fn until(&self) -> Instant {
        *self.until.lock()
    }
}

/// Why a term was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Stopping,
    /// Another has it, or may.
    Lost,
    /// The store did not renew it in time.
    Unrenewed,
}

/// What waiting for a word ends with.
type Told = Result<(), StoreError>;

struct Campaign {
    instance: Arc<Instance>,
    engine: WeakEngine,
    config: SchedulerConfig,
    holder: Arc<str>,
    metrics: Metrics,
    /// Whether the last ask failed; each failure after the first is not worth a warning.
    is_failing: bool,
    /// The last term that was heard of, and its end then.
    heard: (u64, Timestamp),
    /// Whether that term was renewed between the last two asks.
    is_renewed: bool,
}

/// Takes the term whenever it is free and leads, until the instance stops.
pub(crate) async fn campaign(instance: Arc<Instance>, engine: WeakEngine, config: SchedulerConfig) {
    let holder = format!("{}/{:016x}", instance.config.instance, fastrand::u64(..)).into();
    let metrics = Metrics::new(&instance.config.instance.to_string());
    instance.leadership.send_replace(Leadership::Standby);
    let stopping = instance.stopping.clone();
    let mut campaign = Campaign {
        instance,
        engine,
        config,
        holder,
        metrics,
        is_failing: false,
        heard: (0, Timestamp(0)),
        is_renewed: false,
    };
    while !stopping.is_cancelled() {
        // It listens before it asks: the word that the term is free may come while it does.
        let store = Arc::clone(&campaign.instance.store);
        let mut told = pin!(maybe_done(store.wait_told(LEADER, STANDBY_MAX * 2)));
        tokio::select! {
            biased;
            () = told.as_mut() => {}
            () = std::future::ready(()) => {}
        }
        campaign.ask().await;
        tokio::select! {
            () = stopping.cancelled() => {}
            () = campaign.wait(told) => {}
        }
    }
}

impl Campaign {
    /// Asks for the term once, and leads if it is given.
    async fn ask(&mut self) {
        let began = clock::now();
        let Some(asked) = self.take_unless_stopping().await else { return };
        match asked {
            Ok(TermOutcome::Held(term)) => {
                self.metrics.acquisition_seconds.record(began.elapsed());
                self.is_failing = false;
                self.heard = (term.term.number, term.expires_at);
                self.lead(&term, began).await;
                self.is_renewed = false;
            }
            Ok(TermOutcome::NotHeld(term)) => {
                self.is_failing = false;
                let before = self.heard;
                self.heard = (term.term.number, term.expires_at);
                self.is_renewed = self.heard != before;
                if before.0 != term.term.number {
                    tracing::info!(
                        instance = %self.instance.config.instance, leader = %term.holder,
                        term = term.term.number, "another instance leads"
                    );
                }
            }
            Err(error) => {
                self.is_renewed = false;
                self.failed(&error, "the term of the leader could not be asked for");
            }
        }
    }

    /// Asks for the term; nothing if the instance stops meanwhile.
    async fn take_unless_stopping(&self) -> Option<Result<TermOutcome, StoreError>> {
        let mut take = pin!(self.take(None));
        tokio::select! {
            asked = &mut take => return Some(asked),
            () = self.instance.stopping.cancelled() => {}
        }
        // What it is given now would be missed by all others until its lease ends.
        if let Ok(Ok(TermOutcome::Held(term))) = tokio::time::timeout(RELEASE_MAX, take).await {
            self.release(&term.term).await;
        }
        None
    }

    fn failed(&mut self, error: &StoreError, message: &'static str) {
        if self.is_failing {
            tracing::debug!(%error, message);
        } else {
            tracing::warn!(%error, message);
        }
        self.is_failing = true;
    }

    /// One call, which takes no longer than may be waited for.
    async fn take(&self, renews: Option<u64>) -> Result<TermOutcome, StoreError> {
        let ask = TermAsk {
            name: LEADER.into(),
            holder: Arc::clone(&self.holder),
            span: self.config.lease,
            renews,
        };
        let call = self.instance.store.take_term(&ask);
        tokio::time::timeout(self.config.call_max(), call).await.unwrap_or_else(|elapsed| {
            let message = format!("a term was asked for, for {:?}", self.config.call_max());
            Err(StoreError::Unavailable { message, source: Some(elapsed.into()) })
        })
    }

    /// Waits until it is worth asking again: when it is `told`, or after a while.
    async fn wait(&self, mut told: Pin<&mut MaybeDone<impl Future<Output = Told>>>) {
        let retry = if self.is_renewed {
            let standby = STANDBY_MAX.min(self.config.lease / 2);
            standby + jittered(standby / 10)
        } else {
            jittered(RETRY_MAX.min(self.config.lease / 5))
        };
        let over = tokio::time::sleep(retry);
        tokio::select! {
            () = told.as_mut() => {}
            () = over => return,
        }
        // Nobody tells anything while the store does not answer.
        if let Some(Err(_)) = told.take_output() {
            tokio::time::sleep(retry).await;
        }
    }

    async fn lead(&mut self, term: &Term, began: Instant) {
        let instance = Arc::clone(&self.instance);
        let number = term.term.number;
        let until = Mutex::new(began + self.config.usable());
        let reign = Arc::new(Reign { term: term.term.clone(), until });
        instance.leadership.send_replace(Leadership::Leading(number));
        self.metrics.active.set(1);
        self.metrics.to_leading.increment(1);
        tracing::info!(instance = %instance.config.instance, term = number, "leads");
        let stop = CancellationToken::new();
        let (engine, config) = (self.engine.clone(), self.config.clone());
        let gates = gates::run(Arc::clone(&instance), engine.clone(), Arc::clone(&reign));
        let gates = Box::pin(gates);
        let deploys = deploys::drive(Arc::clone(&instance), engine.clone(), Arc::clone(&reign));
        let deploys = Box::pin(deploys);
        let bursts = debouncer::run(Arc::clone(&instance), engine.clone(), Arc::clone(&reign));
        let schedules = scheduler::run(Arc::clone(&instance), engine, Arc::clone(&reign), config);
        let work = async {
            // They end only when the term is over.
            tokio::select! {
                () = schedules => {}
                () = bursts => {}
                () = gates => {}
                () = deploys => {}
            }
        };
        let stopped = stop.clone();
        let mut working =
            instance.tasks.spawn(async move { stopped.run_until_cancelled_owned(work).await });
        let end = tokio::select! {
            end = self.keep(&reign) => end,
            // It ends by itself only when the store says that the term is lost.
            _ = &mut working => End::Lost,
        };
        stop.cancel();
        instance.leadership.send_replace(Leadership::Standby);
        self.metrics.active.set(0);
        self.metrics.lease_remaining.set(0);
        self.metrics.to_standby.increment(1);
        match end {
            End::Stopping => tracing::info!(term = number, "stops leading"),
            End::Lost => tracing::warn!(term = number, "does not lead any more: its term is over"),
            End::Unrenewed => {
                tracing::warn!(term = number, "does not lead any more: the store did not answer");
            }
        }
        if !working.is_finished() {
            drop(working.await);
        }
        if end == End::Stopping {
            self.release(&reign.term).await;
        }
    }

    /// Renews until the term is given up.
    async fn keep(&mut self, reign: &Reign) -> End {
        let stopping = self.instance.stopping.clone();
        // On a store with one owner, each restart of it is a term.
        if self.instance.store.is_shared() {
            self.note_flaps().await;
        }
        let mut next = clock::now() + self.config.renew;
        loop {
            let left = reign.until().saturating_duration_since(clock::now());
            self.metrics.lease_remaining.set(left.as_secs_f64());
            let pause = next.min(clock::now() + self.config.lease / 20);
            tokio::select! {
                biased;
                () = stopping.cancelled() => return End::Stopping,
                () = tokio::time::sleep_until(reign.until()) => return End::Unrenewed,
                () = tokio::time::sleep_until(pause) => {}
            }
            let began = clock::now();
            if began < next {
                continue;
            }
            let renewed = tokio::select! {
                biased;
                () = stopping.cancelled() => return End::Stopping,
                () = tokio::time::sleep_until(reign.until()) => return End::Unrenewed,
                renewed = self.take(Some(reign.term.number)) => renewed,
            };
            match renewed {
                Ok(TermOutcome::Held(_)) => {
                    *reign.until.lock() = began + self.config.usable();
                    next = began + self.config.renew;
                    self.is_failing = false;
                }
                Ok(TermOutcome::NotHeld(_)) => return End::Lost,
                Err(error) => {
                    self.failed(&error, "the term of the leader was not renewed");
                    next = clock::now() + jittered(self.config.renew / 10);
                }
            }
        }
    }

    /// Looks at the last terms of the whole cluster.
    async fn note_flaps(&mut self) {
        let call = self.instance.store.past_terms(LEADER, FLAP_TERMS_MAX * 5);
        match tokio::time::timeout(self.config.call_max(), call).await {
            Ok(Ok(terms)) => {
                let count = flapping_terms(&terms);
                if count > 0 {
                    self.metrics.flaps.increment(1);
                    tracing::warn!(
                        terms = count, within = ?FLAP_WINDOW,
                        "leadership flaps; see `flowgate instances --leader`"
                    );
                }
            }
            Ok(Err(error)) => tracing::debug!(%error, "the last terms could not be read"),
            Err(_) => tracing::debug!("the last terms were not read in time"),
        }
    }

    async fn release(&self, term: &TermRef) {
        let store = &self.instance.store;
        let release = async {
            store.release_term(term).await?;
            store.tell(LEADER).await
        };
        match tokio::time::timeout(RELEASE_MAX, release).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "the term ends by itself: it was not released");
            }
            Err(_) => tracing::warn!("the term ends by itself: it was not released in time"),
        }
    }
}

/// What is counted about leading.
struct Metrics {
    active: Gauge,
    lease_remaining: Gauge,
    to_leading: Counter,
    to_standby: Counter,
    flaps: Counter,
    acquisition_seconds: Histogram,
}

impl Metrics {
    fn new(instance: &str) -> Self {
        let name = || instance.to_owned();
        let changes = |to: &'static str| metrics::counter!("flowgate_leader_changes_total", "instance" => name(), "to" => to);
        Self {
            active: metrics::gauge!("flowgate_leader_active", "instance" => name()),
            lease_remaining: metrics::gauge!(
                "flowgate_leader_lease_remaining_seconds", "instance" => name()
            ),
            to_leading: changes("leading"),
            to_standby: changes("standby"),
            flaps: metrics::counter!("flowgate_leader_flaps_total", "instance" => name()),
            acquisition_seconds: metrics::histogram!(
                "flowgate_leader_acquisition_seconds", "instance" => name()
            ),
        }
    }
}

/// The sender of what [`crate::Engine::leadership`] shows.
pub(crate) fn channel() -> watch::Sender<Leadership> {
    watch::channel(Leadership::Never).0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(number: u64, minutes: u64) -> Term {
        let began_at = Timestamp(0).plus(Duration::from_mins(minutes));
        let term = TermRef { name: LEADER.into(), number };
        Term { term, holder: "a/1".into(), began_at, expires_at: began_at, released_at: None }
    }

    #[test]
    fn four_terms_within_five_minutes_are_flapping() {
        let rows: [(&[u64], usize); 5] =
            [(&[], 0), (&[9], 0), (&[9, 8, 7], 0), (&[9, 8, 7, 6], 4), (&[19, 18, 17, 10, 9], 0)];
        for (minutes, expected) in rows {
            let terms: Vec<Term> = minutes.iter().map(|minute| term(*minute, *minute)).collect();
            assert_eq!(flapping_terms(&terms), expected, "{minutes:?}");
        }
    }
}
