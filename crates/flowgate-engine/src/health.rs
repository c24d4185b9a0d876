//! Whether an instance can do its work, and since when not.
//!
//! ```text
//!             the first beat is kept           a beat fails; commits, claims or renewals fail for a second
//!   Unready ─────────────────────────► Ready ────────────────────────────────────────► Unready
//!  (starting)                            ▲                                                │
//!                                        └────────────────────────────────────────────────┘
//!                                            what failed works again
//!   any ── shutdown ──► Stopping
//! ```
//!
//! Each source of calls is judged by itself: a store that takes beats and no commits is not ready
//! for an instance that has to commit. What is said of other instances comes from their own beats;
//! nothing is inferred about them from here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flowgate_core::ids::InstanceId;
use metrics::Gauge;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock;

/// How long commits, claims or renewals must fail before an instance is unready.
const FAILING_MAX: Duration = Duration::from_secs(1);
/// The shortest time between two log lines that say the same.
const REPEAT_MIN: Duration = Duration::from_secs(10);

/// Whether an instance can do its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It can.
    Ready,
    /// It waits for its store. It goes on by itself.
    Unready {
        /// Since when.
        since: Instant,
        /// What is missing.
        reason: Arc<str>,
    },
    /// It takes on nothing more.
    Stopping,
}

/// Who calls the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Beats,
    Commits,
    Claims,
    Renewals,
}

/// What an instance knows of its own health.
#[derive(Debug)]
pub(crate) struct Judge {
    instance: InstanceId,
    sources: [Failing; 4],
    health: watch::Sender<Health>,
    /// Whether the log says that it is unready.
    is_told: AtomicBool,
    gauge: Gauge,
}

/// The failures of a source since its last success.
#[derive(Debug, Default)]
struct Failing {
    is_failing: AtomicBool,
    first: Mutex<Option<Failure>>,
}

#[derive(Clone, Debug)]
struct Failure {
    at: Instant,
    /// What went wrong, once it has gone wrong for too long.
    reason: Option<Arc<str>>,
}

impl Judge {
    /// An instance is unready until its first beat, which waits for the settings of its queues.
    pub(crate) fn new(instance: InstanceId) -> Self {
        let gauge = metrics::gauge!("flowgate_ready", "instance" => instance.to_string());
        gauge.set(0.0);
        let since = clock::now();
        let reason = "it is starting".into();
        let health = watch::Sender::new(Health::Unready { since, reason });
        let sources = std::array::from_fn(|_| Failing::default());
        Self { instance, sources, health, is_told: AtomicBool::new(false), gauge }
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// A call of `source` was answered.
    pub(crate) fn answered(&self, source: Source) {
        let failing = self.failing(source);
        if failing.is_failing.load(Ordering::Acquire) {
            failing.is_failing.store(false, Ordering::Release);
            *failing.first.lock() = None;
            self.judge();
        } else if source == Source::Beats && *self.health.borrow() != Health::Ready {
            self.judge();
        }
    }

    /// A call of `source` failed, and it will be made again.
    pub(crate) fn failed(&self, source: Source, reason: &dyn std::fmt::Display) {
        let failing = self.failing(source);
        let patience = match source {
            Source::Beats => Duration::ZERO,
            Source::Commits | Source::Claims | Source::Renewals => FAILING_MAX,
        };
        let now = clock::now();
        let mut first = failing.first.lock();
        let failure = first.get_or_insert(Failure { at: now, reason: None });
        failing.is_failing.store(true, Ordering::Release);
        let is_long = now.saturating_duration_since(failure.at) >= patience;
        if failure.reason.is_none() && is_long {
            failure.reason = Some(reason.to_string().into());
            drop(first);
            self.judge();
        }
    }

    /// The instance takes on nothing more.
    pub(crate) fn stop(&self) {
        self.gauge.set(0.0);
        self.health.send_replace(Health::Stopping);
    }

    fn failing(&self, source: Source) -> &Failing {
        match source {
            Source::Beats => &self.sources[0],
            Source::Commits => &self.sources[1],
            Source::Claims => &self.sources[2],
            Source::Renewals => &self.sources[3],
        }
    }

    /// Takes over what the sources say, and tells of a change.
    fn judge(&self) {
        self.health.send_if_modified(|health| {
            // Read within, so that of two changes at once the later one counts.
            let failures = self.sources.iter().filter_map(|source| source.first.lock().clone());
            let worst = failures.filter(|f| f.reason.is_some()).min_by_key(|f| f.at);
            let next = match worst {
                None => Health::Ready,
                Some(Failure { at, reason }) => {
                    Health::Unready { since: at, reason: reason.unwrap_or_default() }
                }
            };
            self.change(health, next)
        });
    }

    fn change(&self, health: &mut Health, next: Health) -> bool {
        let instance = &self.instance;
        match (&*health, &next) {
            (Health::Stopping, _) | (Health::Ready, Health::Ready) => return false,
            (Health::Unready { since, .. }, Health::Ready) => {
                let unready_for = clock::now().saturating_duration_since(*since);
                if self.is_told.swap(false, Ordering::AcqRel) {
                    tracing::info!(%instance, ?unready_for, "ready again");
                } else {
                    tracing::debug!(%instance, "ready");
                }
            }
            (_, Health::Unready { since, reason }) => {
                if !self.is_told.swap(true, Ordering::AcqRel) {
                    let failing_for = clock::now().saturating_duration_since(*since);
                    tracing::warn!(%instance, %reason, ?failing_for, "the store does not answer; unready");
                }
            }
            (_, Health::Stopping) => unreachable!("only a shutdown stops an instance"),
        }
        self.gauge.set(if next == Health::Ready { 1.0 } else { 0.0 });
        *health = next;
        true
    }
}

/// Lets a warning that repeats itself through once in a while.
#[derive(Debug, Default)]
pub(crate) struct Throttle(Mutex<(Option<Instant>, u64)>);

impl Throttle {
    /// How many were kept back since the last one; none if this one is to be kept back too.
    pub(crate) fn pass(&self) -> Option<u64> {
        let now = clock::now();
        let mut state = self.0.lock();
        let (last, kept_back) = &mut *state;
        if last.is_some_and(|last| now.saturating_duration_since(last) < REPEAT_MIN) {
            *kept_back += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(kept_back))
    }
}

/// The warnings that a store that does not answer would repeat without end.
#[derive(Debug, Default)]
pub(crate) struct Throttles {
    pub(crate) commits: Throttle,
    pub(crate) claims: Throttle,
    pub(crate) renewals: Throttle,
    pub(crate) rereads: Throttle,
    pub(crate) permits: Throttle,
    pub(crate) queues: Throttle,
}
