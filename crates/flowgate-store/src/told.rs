//! Who waits in this process to be told of a topic.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Those who wait, each for one topic and one word.
#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<Vec<(Arc<str>, oneshot::Sender<()>)>>);

impl Told {
    /// Wakes those who wait for `topic`.
    pub(crate) fn tell(&self, topic: &str) {
        for (_, wake) in self.0.lock().extract_if(.., |(waits_for, _)| **waits_for == *topic) {
            // Who has gone away needs no word.
            wake.send(()).ok();
        }
    }

    /// Wakes all: nobody knows what they were not told.
    pub(crate) fn tell_all(&self) {
        for (_, wake) in self.0.lock().drain(..) {
            wake.send(()).ok();
        }
    }

    /// Returns when somebody tells of `topic`, and after `wait_max` at the latest.
    pub(crate) async fn wait(&self, topic: &str, wait_max: Duration) {
        let (wake, woken) = oneshot::channel();
        {
            let mut waiters = self.0.lock();
            waiters.retain(|(_, wake)| !wake.is_closed());
            waiters.push((topic.into(), wake));
        }
        // At the latest time it does not matter whether there was a word.
        drop(tokio::time::timeout(wait_max, woken).await);
    }
}
