//! How far back a scan of an index has to begin.
//!
//! As long as any transaction of the server is open, the remains of jobs that ended since cannot
//! be cleaned up, and a scan from the start of an index goes over all of them. So a scan that was
//! slow is not made each time: in between, scans begin at a floor, a little before the place that
//! the last ones had reached. What is below the floor, also a job that its priority puts there,
//! waits for the next scan from the start, which comes after ten times the time that such a scan
//! takes. While scans are quick, every one is from the start, and the order of what it finds is
//! exact.

use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Stopwatch;

/// A scan that takes longer than this is slow.
const QUICK_MAX: Duration = Duration::from_millis(2);
/// How long after a slow scan from the start the next one comes, in times of its duration.
const PAUSE_FACTOR: u32 = 10;
/// How far before the last place a scan begins, in milliseconds: clocks of commits and the order
/// in which they end differ a little.
const MARGIN_MS: i64 = 1_000;
/// Before everything.
const START: i64 = i64::MIN;

/// Where the next scan of one index begins.
#[derive(Debug)]
pub(super) struct Floor(Mutex<State>);

#[derive(Debug)]
struct State {
    /// How long the last scan from the start took.
    full: Duration,
    since_full: Stopwatch,
    /// The last place that a scan has reached.
    reached: i64,
}

impl Floor {
    pub(super) fn new() -> Self {
        let state = State { full: Duration::ZERO, since_full: Stopwatch::start(), reached: START };
        Self(Mutex::new(state))
    }

    /// Where the next scan begins.
    pub(super) fn next(&self) -> i64 {
        let state = self.0.lock();
        if state.full <= QUICK_MAX || state.since_full.elapsed() >= state.full * PAUSE_FACTOR {
            START
        } else {
            state.reached.saturating_sub(MARGIN_MS)
        }
    }

    /// Notes that a scan that began at `floor` took this long.
    pub(super) fn note(&self, floor: i64, took: Duration) {
        if floor == START {
            let mut state = self.0.lock();
            state.full = took;
            state.since_full = Stopwatch::start();
        }
    }

    /// Notes that all up to `place` has been seen to.
    pub(super) fn reach(&self, place: i64) {
        let mut state = self.0.lock();
        state.reached = state.reached.max(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_scans_begin_at_the_start() {
        let floor = Floor::new();
        floor.reach(50_000);
        floor.note(START, QUICK_MAX);
        assert_eq!(floor.next(), START);
    }

    #[test]
    fn after_a_slow_scan_the_next_ones_begin_before_the_last_place() {
        let floor = Floor::new();
        floor.reach(50_000);
        floor.reach(40_000);
        floor.note(START, Duration::from_hours(1));
        assert_eq!(floor.next(), 50_000 - MARGIN_MS);
        floor.note(49_000, Duration::ZERO);
        assert_eq!(floor.next(), 50_000 - MARGIN_MS, "only a scan from the start tells its price");
        floor.note(START, Duration::ZERO);
        assert_eq!(floor.next(), START);
    }
}
