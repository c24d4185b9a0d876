//! How late the runtime is that executes the steps.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock;
use crate::instance::Instance;

/// A question to a task of the runtime, and how long its answer takes.
#[derive(Debug, Default)]
pub(crate) struct Ping {
    state: Mutex<Asked>,
    asked: Notify,
}

#[derive(Debug, Default)]
struct Asked {
    /// When, if it has not been answered.
    open: Option<Instant>,
    /// How long the last answer took.
    last: Duration,
}

impl Ping {
    /// Asks, unless the last question is still open.
    pub(crate) fn ask(&self) {
        let mut state = self.state.lock();
        if state.open.is_none() {
            state.open = Some(clock::now());
            self.asked.notify_one();
        }
    }

    /// How late the runtime is: what the last answer took, or how long it has been due.
    pub(super) fn delay(&self, now: Instant) -> Duration {
        let state = self.state.lock();
        let open = state.open.map_or(Duration::ZERO, |asked| now.saturating_duration_since(asked));
        open.max(state.last)
    }

    fn answer(&self) {
        let mut state = self.state.lock();
        if let Some(asked) = state.open.take() {
            state.last = clock::now().saturating_duration_since(asked);
        }
    }
}

/// Answers on the runtime of the steps until the instance has ended.
pub(crate) async fn answer(instance: Arc<Instance>) {
    loop {
        tokio::select! {
            () = instance.giving_up.cancelled() => return,
            () = instance.strain.ping.asked.notified() => instance.strain.ping.answer(),
        }
    }
}
