//! Waiting longer after each failure, never in step with others.

use std::time::Duration;

/// Delays that double up to a longest one, each taken at random from its upper half.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
    tries: u32,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { next: first, longest, tries: 0 }
    }

    /// How often it has waited.
    pub(crate) fn tries(&self) -> u32 {
        self.tries
    }

    pub(crate) async fn wait(&mut self) {
        let delay = jittered(self.next);
        self.next = (self.next * 2).min(self.longest);
        self.tries += 1;
        tokio::time::sleep(delay).await;
    }
}

/// From half of `span` to all of it.
pub(crate) fn jittered(span: Duration) -> Duration {
    span.mul_f64(0.5 + 0.5 * fastrand::f64())
}
