//! Waiting longer after each failure, never in step with others.

use std::time::Duration;

/// Delays that double up to a longest one, each taken at random from its upper half.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { first, next: first, longest }
    }

    /// Waits, and at least for `least`.
    pub(crate) async fn wait(&mut self, least: Duration) {
        let delay = least + self.next.mul_f64(0.5 + 0.5 * fastrand::f64());
        self.next = (self.next * 2).min(self.longest);
        tokio::time::sleep(delay).await;
    }

    /// Begins again with the shortest delay.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}
