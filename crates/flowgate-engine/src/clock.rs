//! The only place of this crate that reads a clock.
//!
//! What counts (leases, due times, the order of events) is the store's time. The engine reads the
//! monotonic clock for what it waits for itself, and the wall clock for nothing but dates in HTTP
//! answers and the times that are shown with what was committed. The monotonic clock is tokio's, so that a test that pauses time pauses the engine.

use tokio::time::Instant;

/// The monotonic clock.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The wall clock.
pub(crate) fn wall() -> jiff::Timestamp {
    jiff::Timestamp::now()
}
