//! What a store's own software can do, without an engine, without rules, with nothing to encode:
//! the limit that a store is measured against, in the same call and in turn with it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod sqlite;

/// What a step leaves behind in the least form of it, about 100 bytes.
const OUTPUT: &str = concat!(
    r#"{"event":"charge.done","order":"0192f1c4","amount":1999,"currency":"EUR","#,
    r#""at":"2026-01-01T00:00:00Z"}"#
);

/// A run's record in the least form of it.
const RECORD: &str =
    r#"{"status":"running","step":2,"events":{"a.done":3,"b.done":5},"version":6}"#;

/// Steps that a run has.
const STEPS: usize = 5;

/// What was done, and how long each batch of it took.
#[derive(Debug, Default)]
pub(crate) struct Worked {
    pub(crate) steps: usize,
    pub(crate) latencies: Vec<Duration>,
}

impl Worked {
    fn add(&mut self, other: Self) {
        self.steps += other.steps;
        self.latencies.extend(other.latencies);
    }
}

/// Work that a server gives itself: on two cores it is half of what there is while it lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Upkeep {
    /// How often it did such work.
    pub(crate) times: u64,
    pub(crate) is_under_way: bool,
}

/// Steps that are still to be done, by whoever comes first.
#[derive(Debug)]
struct Left(AtomicUsize);

impl Left {
    fn new(steps: usize) -> Self {
        Self(AtomicUsize::new(steps))
    }

    /// Whether another batch of this size is to be done by the caller.
    fn takes(&self, batch: usize) -> bool {
        let take = |left: usize| (left > 0).then(|| left.saturating_sub(batch));
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}
