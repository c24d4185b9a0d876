//! A circuit breaker around a store that is reached over a network.
//!
//! ```text
//!            FAILURES_MAX calls in a row are not answered
//!   Closed ──────────────────────────────────────────────► Open
//!     ▲                                                     │ a pause, longer each time
//!     │ answered                                            ▼
//!     └───────────────────────────────────────────────── one probe ──► Open again, if it fails
//! ```
//!
//! - While it is open a call fails at once and says since when and until when, so nobody queues up
//!   behind a store that does not answer.
//! - The first call after a pause is the probe. There is one at a time, and its pauses are jittered:
//!   many instances neither keep a struggling store down nor come back to it in step.
//! - A probe that hangs holds its place for [`PROBE_MAX`] only.
//! - Waits are neither answers nor probes: while it is open they wait for the next try.
//! - A renewal, of leases or of a term, is always tried. They end by time, so it may not wait for
//!   somebody else's probe, and instances send few of them.
//! - Any answer closes it, also a refusal and an error that trying again does not mend.
//! - A call that its caller gave up on after [`SILENCE_MIN`] counts as not answered. A probe that is
//!   given up sooner says nothing of the store, so the next one follows after the shortest pause.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::commit::{Claimed, Commit};
use flowgate_core::event::StoredEvent;
use flowgate_core::ids::{InstanceId, Position, Revision, RunId};
use flowgate_core::time::Timestamp;
use metrics::{Counter, Gauge};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::monotonic;
use crate::{
    Beat, Claimant, CommitOutcome, Imported, InstanceRow, LeaseRef, LogLine, NewLogLine,
    NewRevision, Queues, Renewal, Retention, RunDetail, RunQuery, RunRow, Store, StoreCopy,
    StoreError, StoredRevision, Swept,
};

mod control;

/// Calls in a row that are not answered before it opens.
pub const FAILURES_MAX: u32 = 3;
/// The pause before the first probe, before jitter.
pub const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause before a probe, before jitter.
pub const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long a probe keeps others from probing.
pub const PROBE_MAX: Duration = Duration::from_secs(5);
/// How long a call that its caller gave up on must have lasted to count as not answered.
pub const SILENCE_MIN: Duration = Duration::from_secs(1);

/// A store that fails fast while the one behind it does not answer.
pub struct Breaker {
    inner: Arc<dyn Store>,
    /// Calls in a row that were not answered, while it is closed; [`OPEN`] while it is open.
    failures: AtomicU32,
    open: Mutex<Option<Open>>,
    state: watch::Sender<BreakerState>,
    gauge: Gauge,
    opened: Counter,
}

/// Whether calls reach the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// They do.
    Closed,
    /// They fail at once, but for a probe now and then.
    Open {
        /// Since when.
        since: Instant,
        /// What the last failed call said.
        reason: Arc<str>,
    },
}

/// What `failures` says of a breaker that is open.
const OPEN: u32 = u32::MAX;

/// When the next probe may be made.
#[derive(Debug)]
struct Open {
    since: Instant,
    reason: Arc<str>,
    /// The next pause, before jitter.
    pause: Duration,
    try_at: Instant,
    /// Until when somebody else is probing.
    probed_until: Option<Instant>,
}

impl Open {
    fn may_try(&self, now: Instant) -> bool {
        now >= self.try_at && self.probed_until.is_none_or(|until| now >= until)
    }

    /// Puts the next try off by a pause, and the one after it by a longer one.
    fn put_off(&mut self, now: Instant) {
        self.try_after(now, self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    fn try_after(&mut self, now: Instant, pause: Duration) {
        self.try_at = now + pause.mul_f64(0.5 + 0.5 * fastrand::f64());
        self.probed_until = None;
    }
}

/// How a call gets to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passage {
    Closed,
    Probe,
    /// Past an open breaker, without taking the probe's place.
    Beside,
}

impl Breaker {
    /// `inner`, behind a closed breaker.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        let kind = inner.kind();
        let gauge = metrics::gauge!("flowgate_store_breaker_state", "store" => kind);
        gauge.set(0.0);
        Self {
            inner,
            failures: AtomicU32::new(0),
            open: Mutex::default(),
            state: watch::Sender::new(BreakerState::Closed),
            gauge,
            opened: metrics::counter!("flowgate_store_breaker_opened_total", "store" => kind),
        }
    }

    /// Whether calls reach the store now.
    pub fn state(&self) -> BreakerState {
        self.state.borrow().clone()
    }

    /// Whether calls reach the store, from now on.
    pub fn watch(&self) -> watch::Receiver<BreakerState> {
        self.state.subscribe()
    }

    /// Calls the store if it may be called.
    async fn pass<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let passage = self.admit()?;
        self.call(passage, work).await
    }

    /// Calls the store also while it is open.
    async fn try_always<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let passage = self.admit().unwrap_or(Passage::Beside);
        self.call(passage, work).await
    }

    fn admit(&self) -> Result<Passage, StoreError> {
        if self.failures.load(Ordering::Acquire) != OPEN {
            return Ok(Passage::Closed);
        }
        let now = monotonic();
        let mut open = self.open.lock();
        let Some(open) = open.as_mut() else { return Ok(Passage::Closed) };
        if open.may_try(now) {
            open.probed_until = Some(now + PROBE_MAX);
            return Ok(Passage::Probe);
        }
        let (down, reason) = (now.saturating_duration_since(open.since), &open.reason);
        let wait = open.try_at.saturating_duration_since(now);
        let message = format!(
            "no answer for {down:.1?}, and it is tried again in {wait:.1?}; the last try: {reason}"
        );
        Err(StoreError::Unavailable { message, source: None })
    }

    async fn call<T>(
        &self,
        passage: Passage,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let call = Call { breaker: self, passage, began: monotonic(), is_over: false };
        let result = work.await;
        call.end(result.as_ref().err());
        result
    }

    /// While it is open, waits until it may be tried or is closed, at most `wait_max`; whether it
    /// was open.
    async fn paused(&self, wait_max: Duration) -> bool {
        if self.failures.load(Ordering::Acquire) != OPEN {
            return false;
        }
        let mut changed = self.watch();
        let may_try = async {
            loop {
                let now = monotonic();
                let next = match &*self.open.lock() {
                    Some(open) if !open.may_try(now) => {
                        open.try_at.max(open.probed_until.unwrap_or(now))
                    }
                    Some(_) | None => return,
                };
                tokio::select! {
                    () = tokio::time::sleep_until(next) => {}
                    _ = changed.changed() => {}
                }
            }
        };
        // It does not matter whether the time was up: whoever waited tries now.
        drop(tokio::time::timeout(wait_max, may_try).await);
        true
    }

    /// A wait that ends well may have heard nothing; one that fails is a call that was not answered.
    fn note_wait(&self, result: Result<(), StoreError>) -> Result<(), StoreError> {
        if let Err(StoreError::Unavailable { .. }) = &result {
            self.unanswered(Passage::Closed, result.as_ref().err());
        }
        result
    }

    fn answered(&self) {
        if self.failures.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut open = self.open.lock();
        self.failures.store(0, Ordering::Release);
        if let Some(open) = open.take() {
            self.gauge.set(0.0);
            self.state.send_replace(BreakerState::Closed);
            let down = monotonic().saturating_duration_since(open.since);
            tracing::debug!(store = self.inner.kind(), ?down, "the breaker closes");
        }
    }

    fn unanswered(&self, passage: Passage, error: Option<&StoreError>) {
        let now = monotonic();
        let reason = || error.map_or("it did not answer in time".into(), |e| e.to_string().into());
        let mut guard = self.open.lock();
        if let Some(open) = guard.as_mut() {
            // Calls from before it opened, and renewals, do not put the probe off.
            if passage == Passage::Probe {
                open.reason = reason();
                open.put_off(now);
                // Those who wait for the next try learn when that is.
                self.tell_open(open);
            }
            return;
        }
        let failures = self.failures.load(Ordering::Acquire).saturating_add(1);
        if failures < FAILURES_MAX {
            self.failures.store(failures, Ordering::Release);
            return;
        }
        let pause = PAUSE_MIN;
        let open = Open { since: now, reason: reason(), pause, try_at: now, probed_until: None };
        let open = guard.insert(open);
        open.put_off(now);
        self.failures.store(OPEN, Ordering::Release);
        self.gauge.set(1.0);
        self.opened.increment(1);
        self.tell_open(open);
        tracing::debug!(store = self.inner.kind(), reason = %open.reason, "the breaker opens");
    }

    /// The caller of a probe has gone before the store could answer.
    fn abandoned(&self) {
        if let Some(open) = self.open.lock().as_mut() {
            open.try_after(monotonic(), PAUSE_MIN);
            self.tell_open(open);
        }
    }

    fn tell_open(&self, open: &Open) {
        let (since, reason) = (open.since, Arc::clone(&open.reason));
        self.state.send_replace(BreakerState::Open { since, reason });
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker")
            .field("inner", &self.inner)
            .field("open", &self.open.lock())
            .finish_non_exhaustive()
    }
}

/// A call under way. Its caller may drop it before the store answers.
struct Call<'a> {
    breaker: &'a Breaker,
    passage: Passage,
    began: Instant,
    is_over: bool,
}

impl Call<'_> {
    fn end(mut self, error: Option<&StoreError>) {
        self.is_over = true;
        if let Some(StoreError::Unavailable { .. }) = error {
            self.breaker.unanswered(self.passage, error);
        } else {
            self.breaker.answered();
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let is_long = monotonic().saturating_duration_since(self.began) >= SILENCE_MIN;
        if is_long {
            self.breaker.unanswered(self.passage, None);
        } else if self.passage == Passage::Probe {
            self.breaker.abandoned();
        }
    }
}

#[async_trait]
impl Store for Breaker {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.pass(self.inner.now()).await
    }

    async fn commit(
        &self,
        commits: Vec<Commit>,
        claimant: Option<&Claimant>,
    ) -> Result<Vec<CommitOutcome>, StoreError> {
        self.pass(self.inner.commit(commits, claimant)).await
    }

    async fn claim(&self, claimant: &Claimant) -> Result<Vec<Claimed>, StoreError> {
        self.pass(self.inner.claim(claimant)).await
    }

    async fn wait_due(&self, queues: &Queues, wait_max: Duration) -> Result<(), StoreError> {
        if self.paused(wait_max).await {
            return Ok(());
        }
        self.note_wait(self.inner.wait_due(queues, wait_max).await)
    }

    async fn renew(
        &self,
        leases: &[LeaseRef],
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        self.try_always(self.inner.renew(leases, lease)).await
    }

    async fn read_run(&self, run_id: RunId) -> Result<Option<RunDetail>, StoreError> {
        self.pass(self.inner.read_run(run_id)).await
    }

    async fn read_events(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.pass(self.inner.read_events(run_id, after, limit)).await
    }

    fn feeds(&self) -> u16 {
        self.inner.feeds()
    }

    async fn read_feed(
        &self,
        feed: u16,
        after: Position,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.pass(self.inner.read_feed(feed, after, limit)).await
    }

    async fn feed_end(&self, feed: u16) -> Result<Position, StoreError> {
        self.pass(self.inner.feed_end(feed)).await
    }

    async fn wait_feed(
        &self,
        feed: u16,
        after: Position,
        wait_max: Duration,
    ) -> Result<(), StoreError> {
        if self.paused(wait_max).await {
            return Ok(());
        }
        self.note_wait(self.inner.wait_feed(feed, after, wait_max).await)
    }

    async fn list_runs(&self, query: &RunQuery) -> Result<Vec<RunRow>, StoreError> {
        self.pass(self.inner.list_runs(query)).await
    }

    async fn count_runs(&self, query: &RunQuery) -> Result<u64, StoreError> {
        self.pass(self.inner.count_runs(query)).await
    }

    async fn append_logs(&self, lines: Vec<NewLogLine>) -> Result<(), StoreError> {
        self.pass(self.inner.append_logs(lines)).await
    }

    async fn read_logs(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LogLine>, StoreError> {
        self.pass(self.inner.read_logs(run_id, after, limit)).await
    }

    async fn register_flow(&self, revision: NewRevision) -> Result<(), StoreError> {
        self.pass(self.inner.register_flow(revision)).await
    }

    async fn list_revisions(&self, flow: Option<&str>) -> Result<Vec<StoredRevision>, StoreError> {
        self.pass(self.inner.list_revisions(flow)).await
    }

    async fn read_revision(
        &self,
        flow: &str,
        revision: Option<&Revision>,
    ) -> Result<Option<StoredRevision>, StoreError> {
        self.pass(self.inner.read_revision(flow, revision)).await
    }

    async fn sweep(&self, retention: &Retention) -> Result<Swept, StoreError> {
        self.pass(self.inner.sweep(retention)).await
    }

    async fn beat(&self, beat: &Beat) -> Result<(), StoreError> {
        self.pass(self.inner.beat(beat)).await
    }

    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError> {
        self.pass(self.inner.leave(instance)).await
    }

    async fn list_instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.pass(self.inner.list_instances()).await
    }

    async fn import(&self, copy: StoreCopy) -> Result<Imported, StoreError> {
        self.pass(self.inner.import(copy)).await
    }
}
