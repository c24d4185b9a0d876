//! The clock of a store: the only place here that reads time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flowgate_core::time::Timestamp;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Tells a store the time. Clones share one shift.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    source: Source,
    shift_ms: AtomicI64,
    shifted: Notify,
}

#[derive(Debug)]
enum Source {
    Wall,
    Tokio { base: Timestamp, began: Instant },
    Still { base: Timestamp },
}

impl Clock {
    /// The wall clock of this host.
    pub fn wall() -> Self {
        Self::from_source(Source::Wall)
    }

    /// A clock that shows `base` now and then follows tokio's time, also where a test paused it.
    ///
    /// Paused time is known to the threads of its runtime only. The embedded store reads its clock
    /// on a thread of its own, so there a test needs [`Clock::still`].
    pub fn tokio(base: Timestamp) -> Self {
        Self::from_source(Source::Tokio { base, began: Instant::now() })
    }

    /// A clock that shows `base` until it is advanced.
    pub fn still(base: Timestamp) -> Self {
        Self::from_source(Source::Still { base })
    }

    fn from_source(source: Source) -> Self {
        Self(Arc::new(Inner { source, shift_ms: AtomicI64::new(0), shifted: Notify::new() }))
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        let time = match &self.0.source {
            Source::Wall => wall_time(),
            Source::Tokio { base, began } => base.plus(began.elapsed()),
            Source::Still { base } => *base,
        };
        Timestamp(time.0.saturating_add(self.0.shift_ms.load(Ordering::SeqCst)))
    }

    /// Lets `span` pass at once, for every clone of this clock and all that waits on it.
    pub fn advance(&self, span: Duration) {
        let span_ms = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        self.0.shift_ms.fetch_add(span_ms, Ordering::SeqCst);
        self.0.shifted.notify_waiters();
    }

    /// Returns once this clock shows `until` or later.
    pub async fn sleep_until(&self, until: Timestamp) {
        loop {
            let shifted = self.0.shifted.notified();
            tokio::pin!(shifted);
            // Listens before it reads the time, so no shift falls between the two.
            shifted.as_mut().enable();
            let left = until.since(self.now());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                () = &mut shifted => {}
            }
        }
    }
}

/// Measures how long something takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(std::time::Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads time")]
    pub(crate) fn start() -> Self {
        Self(std::time::Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// The monotonic clock; tokio's, so that a test that pauses time pauses what waits by it.
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the wall clock")]
fn wall_time() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp(0).plus(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sleeper_wakes_when_its_time_is_reached_by_a_shift() {
        let clock = Clock::wall();
        let until = clock.now().plus(Duration::from_hours(1));
        let sleeper = clock.clone();
        let began = Instant::now();
        let sleep = async move { sleeper.sleep_until(until).await };
        let shift = async { clock.advance(Duration::from_secs(3601)) };
        tokio::join!(sleep, shift);
        assert!(began.elapsed() < Duration::from_secs(1), "it slept for {:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_tokio_clock_follows_paused_time() {
        let clock = Clock::tokio(Timestamp(1_000));
        tokio::time::advance(Duration::from_millis(250)).await;
        assert_eq!(clock.now(), Timestamp(1_250));
    }
}
