//! Following the feeds: all events, on whichever instance they were committed.
//!
//! One task a feed reads pages and waits for more; a bounded channel merges them. A run is in one
//! feed, so its events come in order. A follower that is not asked for more stops reading, and one
//! that knows its positions goes on where another one ended.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::event::StoredEvent;
use flowgate_core::ids::Position;
use flowgate_store::StoreError;
use futures_util::future::try_join_all;
use tokio::sync::mpsc;
use tokio_util::sync::DropGuard;

use crate::backoff::{Backoff, jittered};
use crate::error::EngineError;
use crate::instance::Instance;

/// Events read in one call.
const PAGE: usize = 256;
/// Events that wait for whoever follows.
const AHEAD_MAX: usize = 256;

/// Where following begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowFrom {
    /// With the first event that is kept.
    Start,
    /// With what is committed from now on.
    Now,
    /// After these positions, one for each feed, as [`Follower::positions`] gave them.
    Positions(Vec<Position>),
}

/// Events as they are committed, by any instance of the store.
#[derive(Debug)]
pub struct Follower {
    events: mpsc::Receiver<Read>,
    positions: Vec<Position>,
    /// Ends the tasks with it.
    _stop: DropGuard,
}

/// What a task has read of its feed.
type Read = (usize, Result<StoredEvent, StoreError>);

impl Follower {
    /// The next event. Of each run, and of each feed, they come in order; none is left out and
    /// none comes twice. A store that does not answer is waited for.
    ///
    /// An error ends the feed that it is about: follow anew from [`Self::positions`]. May be
    /// dropped before it is done.
    pub async fn next(&mut self) -> Result<StoredEvent, EngineError> {
        let (feed, read) = self.events.recv().await.ok_or(EngineError::Closed)?;
        let event = read?;
        self.positions[feed] = event.position;
        Ok(event)
    }

    /// The position of the last event of each feed that [`Self::next`] gave: where to go on.
    pub fn positions(&self) -> &[Position] {
        &self.positions
    }
}

/// Follows the feeds of the instance's store. Waits for the store where it must ask it for their
/// ends.
pub(crate) async fn follow(
    instance: &Arc<Instance>,
    from: FollowFrom,
) -> Result<Follower, EngineError> {
    let feeds = usize::from(instance.store.feeds());
    let positions = match from {
        FollowFrom::Start => vec![Position::START; feeds],
        FollowFrom::Now => {
            let ends = try_join_all((0..instance.store.feeds()).map(|feed| end(instance, feed)));
            let closed = instance.giving_up.run_until_cancelled(ends);
            closed.await.ok_or(EngineError::Closed)??
        }
        FollowFrom::Positions(positions) if positions.len() == feeds => positions,
        FollowFrom::Positions(positions) => {
            let count = positions.len();
            let message = format!("there are {count} positions, and the store has {feeds} feeds");
            return Err(EngineError::Invalid(message));
        }
    };
    let stop = instance.giving_up.child_token();
    let (sender, events) = mpsc::channel(AHEAD_MAX);
    for (feed, after) in positions.iter().copied().enumerate() {
        let read = read(Arc::clone(instance), feed, after, sender.clone());
        instance.tasks.spawn(stop.clone().run_until_cancelled_owned(read));
    }
    Ok(Follower { events, positions, _stop: stop.drop_guard() })
}

async fn end(instance: &Instance, feed: u16) -> Result<Position, StoreError> {
    let mut backoff = backoff();
    loop {
        match instance.store.feed_end(feed).await {
            Err(error) if error.is_transient() => backoff.wait().await,
            result => return result,
        }
    }
}

/// Reads a feed until nobody follows it any more.
async fn read(
    instance: Arc<Instance>,
    feed: usize,
    mut after: Position,
    events: mpsc::Sender<Read>,
) {
    let mut backoff = backoff();
    loop {
        match next_page(&instance, feed, after).await {
            Ok(page) => {
                backoff = self::backoff();
                for event in page {
                    after = event.position;
                    if events.send((feed, Ok(event))).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) if error.is_transient() => backoff.wait().await,
            Err(error) => {
                // Whoever followed may be gone.
                drop(events.send((feed, Err(error))).await);
                return;
            }
        }
    }
}

/// What there is after `after`; if that is nothing, waits until there may be something.
async fn next_page(
    instance: &Instance,
    feed: usize,
    after: Position,
) -> Result<Vec<StoredEvent>, StoreError> {
    let feed = u16::try_from(feed).expect("a store counts its feeds in 16 bits");
    let page = instance.store.read_feed(feed, after, PAGE).await?;
    if page.is_empty() {
        instance.store.wait_feed(feed, after, jittered(instance.config.poll_max)).await?;
    }
    Ok(page)
}

fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(20), Duration::from_secs(2))
}
