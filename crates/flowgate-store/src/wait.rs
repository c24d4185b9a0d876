//! Waiting for a due job without polling.

use std::time::Duration;

use crate::clock::Clock;
use crate::open::Waiting;
use crate::{Queues, StoreError};

/// Where a wait can ask whether a job is ready and, in the same step, ask to be woken.
pub(crate) trait Ask {
    /// Whether a job of `queues` is ready, or else how to wait for one.
    async fn ask(&self, queues: &Queues) -> Result<Waiting, StoreError>;
}

/// Returns when a job of `queues` is ready, and after `wait_max` at the latest.
///
/// No wake-up is lost: `ask` looks and enlists in one step, so whatever becomes ready after it
/// wakes, and whatever was ready before it is seen.
pub(crate) async fn wait_due(
    ask: &impl Ask,
    clock: &Clock,
    queues: &Queues,
    wait_max: Duration,
) -> Result<(), StoreError> {
    let ready = async {
        loop {
            match ask.ask(queues).await? {
                Waiting::Ready => return Ok(()),
                Waiting::Until { wake, until } => tokio::select! {
                    // The other end also goes away when all open runs are read anew.
                    _ = wake => {}
                    () = clock.sleep_until(until) => {}
                },
            }
        }
    };
    tokio::time::timeout(wait_max, ready).await.unwrap_or(Ok(()))
}
