//! A subscription as whoever made it sees it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::ids::Position;
use flowgate_store::{Store, StoreError};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::options::SubscribeOptions;
use super::stored::{self, CHECKPOINT, CheckpointRecord};
use crate::backoff::{Backoff, jittered};
use crate::error::EngineError;
use crate::instance::Instance;

/// How long whoever waits goes without looking.
const LOOK_MAX: Duration = Duration::from_millis(200);

/// What a subscription is doing on this instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubscriptionState {
    /// Another instance has all partitions, or none could be taken yet.
    Standby,
    /// It is given events.
    Active,
    /// It stands still, on every instance, until `flowgate subscribers reset` or `retry-dead`, or a
    /// new subscription with its id.
    Failed {
        /// Why.
        reason: Arc<str>,
    },
    /// It has ended.
    Stopped,
}

/// How far a subscriber is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lag {
    /// Since when its oldest unhandled event has waited; zero if there is none.
    pub behind: Duration,
    /// Whether there is one.
    pub is_caught_up: bool,
}

/// A subscription. Clones are handles of the same one; it goes on when they are dropped.
#[derive(Clone, Debug)]
pub struct SubscriptionHandle {
    pub(super) shared: Arc<Shared>,
    pub(super) instance: Arc<Instance>,
}

/// What a handle and the tasks of its subscription share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) id: Arc<str>,
    pub(super) options: SubscribeOptions,
    pub(super) state: watch::Sender<SubscriptionState>,
    /// Changes with each checkpoint that is written here.
    pub(super) progress: watch::Sender<u64>,
    pub(super) active: Mutex<BTreeSet<u16>>,
    /// It is to end between two events.
    pub(super) stop: CancellationToken,
    /// It is to end at once.
    pub(super) abort: CancellationToken,
    /// It has ended.
    pub(super) done: CancellationToken,
}

/// The subscriptions of an instance.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    pub(super) tasks: TaskTracker,
}

impl Subscriptions {
    /// Returns when all have ended, and after `grace` at the latest. They end because the instance
    /// is stopping.
    pub(crate) async fn drained(&self, grace: Duration) {
        self.tasks.close();
        if tokio::time::timeout(grace, self.tasks.wait()).await.is_err() {
            tracing::warn!("subscribers did not stop in time; their leases end by themselves");
        }
    }
}

impl SubscriptionHandle {
    /// The subscriber's id.
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// What it is doing here, from now on.
    pub fn state(&self) -> watch::Receiver<SubscriptionState> {
        self.shared.state.subscribe()
    }

    /// The partitions that are handled here.
    pub fn partitions(&self) -> Vec<u16> {
        self.shared.active.lock().iter().copied().collect()
    }

    /// How far the subscriber is behind, on whichever instance it is active.
    pub async fn lag(&self) -> Result<Lag, EngineError> {
        let store = &*self.instance.store;
        let checkpoints = checkpoints(store, &self.shared.id, self.shared.options.partitions);
        Ok(lag(store, &positions(&checkpoints.await?)).await?)
    }

    /// Returns when every event that is committed by now is behind its checkpoint, on whichever
    /// instance it is active. A store that does not answer is waited for.
    ///
    /// An error once the subscription has failed or ended.
    pub async fn wait_until_caught_up(&self) -> Result<(), EngineError> {
        let store = &*self.instance.store;
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        let mut progress = self.shared.progress.subscribe();
        let mut ends: Option<Vec<Position>> = None;
        loop {
            match &*self.shared.state.borrow() {
                SubscriptionState::Failed { reason } => {
                    let id = &self.shared.id;
                    let message = format!("the subscriber `{id}` stands still: {reason}");
                    return Err(EngineError::Invalid(message));
                }
                SubscriptionState::Stopped => return Err(EngineError::Closed),
                SubscriptionState::Active | SubscriptionState::Standby => {}
            }
            let looked = async {
                if ends.is_none() {
                    ends = Some(feed_ends(store).await?);
                }
                let ends = ends.as_ref().expect("they were just read");
                self.is_past(ends).await
            };
            match looked.await {
                Ok(true) => return Ok(()),
                Ok(false) => {
                    let changed = progress.changed();
                    // Another instance may be the one that writes checkpoints.
                    drop(tokio::time::timeout(jittered(LOOK_MAX), changed).await);
                }
                Err(error) if error.is_transient() => backoff.wait().await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn is_past(&self, ends: &[Position]) -> Result<bool, StoreError> {
        let Shared { id, options, .. } = &*self.shared;
        let store = &*self.instance.store;
        for checkpoint in checkpoints(store, id, options.partitions).await? {
            let Some(checkpoint) = checkpoint else { return Ok(false) };
            for (feed, (position, end)) in (0..).zip(checkpoint.positions.iter().zip(ends)) {
                // The end of a feed need not be the position of an event.
                if position < end {
                    let next = store.read_feed(feed, *position, 1).await?;
                    if next.first().is_some_and(|event| event.position <= *end) {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Ends it: lets the event in hand be handled within the instance's shutdown grace, writes the
    /// checkpoint, and lets another instance have its partitions.
    pub async fn unsubscribe(&self) {
        self.shared.stop.cancel();
        let grace = self.instance.config.shutdown_grace;
        if tokio::time::timeout(grace, self.shared.done.cancelled()).await.is_err() {
            self.shared.abort.cancel();
            self.shared.done.cancelled().await;
        }
    }
}

/// The ends of all feeds.
pub(super) async fn feed_ends(store: &dyn Store) -> Result<Vec<Position>, StoreError> {
    let ends = (0..store.feeds()).map(|feed| store.feed_end(feed));
    futures_util::future::try_join_all(ends).await
}

/// The checkpoints of a subscriber's partitions.
pub(super) async fn checkpoints(
    store: &dyn Store,
    id: &str,
    partitions: u16,
) -> Result<Vec<Option<CheckpointRecord>>, StoreError> {
    let keys: Vec<Arc<str>> =
        (0..partitions).map(|number| stored::checkpoint_key(id, number)).collect();
    let records = store.read_records(CHECKPOINT, &keys).await?;
    let read = |record: Option<flowgate_store::control::Record>| {
        record.map(|record| stored::read(CHECKPOINT, &record)).transpose()
    };
    records.into_iter().map(read).collect()
}

/// The least position of each feed over all partitions; none where a partition has no checkpoint.
fn positions(checkpoints: &[Option<CheckpointRecord>]) -> Vec<Position> {
    let mut least: Vec<Position> = Vec::new();
    for checkpoint in checkpoints {
        let Some(checkpoint) = checkpoint else { return Vec::new() };
        if least.is_empty() {
            least.clone_from(&checkpoint.positions);
        }
        for (least, position) in least.iter_mut().zip(&checkpoint.positions) {
            *least = (*least).min(*position);
        }
    }
    least
}

/// How far behind the feeds these positions are; the beginning for those that are missing.
pub(super) async fn lag(store: &dyn Store, positions: &[Position]) -> Result<Lag, StoreError> {
    let mut oldest = None;
    for feed in 0..store.feeds() {
        let after = positions.get(usize::from(feed)).copied().unwrap_or(Position::START);
        let next = store.read_feed(feed, after, 1).await?;
        let at = next.first().map(|event| event.at);
        oldest = [oldest, at].into_iter().flatten().min();
    }
    let Some(oldest) = oldest else {
        return Ok(Lag { behind: Duration::ZERO, is_caught_up: true });
    };
    Ok(Lag { behind: store.now().await?.since(oldest), is_caught_up: false })
}
