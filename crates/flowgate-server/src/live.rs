//! What happens, told to whoever looks, as it happens.
//!
//! ```text
//!   feeds ── follower ── hub ─┬─ those who follow one run:  frames of its events
//!                             ├─ those who look at many:    runs that changed, 4 times a second,
//!                             │                             some of them after the others
//!                             └─ counts by the minute
//! ```
//!
//! - The feeds are read once, however many look. The hub begins with the first of them, and ends a
//!   minute after the last: an instance that nobody looks at reads nothing.
//! - What waits for somebody who does not read is bounded; they are told that they missed something,
//!   and go on from the log.
//! - Whoever is gone is forgotten: a subscription ends when it is dropped.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flowgate_core::event::StoredEvent;
use flowgate_core::ids::{Revision, RunId};
use flowgate_core::time::Timestamp;
use flowgate_engine::{Engine, EngineError, FollowFrom, Follower};
use flowgate_store::Store;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use self::changes::Changes;
use self::client::{Client, Frame};
use self::minutes::Minutes;
use crate::api::runs::ops::log::event_item;
use crate::error::ApiError;

mod changes;
mod client;
mod minutes;
pub(crate) mod stream;

pub(crate) use minutes::Counts;

/// Those who are told at the same time.
const CLIENTS_MAX: usize = 1_000;
/// How often runs that changed are told.
const TELL_INTERVAL: Duration = Duration::from_millis(250);
/// Where many look, they are told one part after another, so that no request waits behind all of
/// them: how many parts there are, the fewest of a part, and what passes between two.
const PARTS_MAX: usize = 20;
const PART_MIN: usize = 16;
const PART_PAUSE: Duration = Duration::from_millis(10);
/// How long nobody looks before the feeds are left alone.
const IDLE: Duration = Duration::from_mins(1);
/// How long a feed that cannot be read is left alone.
const PAUSE: Duration = Duration::from_secs(1);

/// The hub of a host.
#[derive(Debug)]
pub(crate) struct Live {
    hub: Arc<Hub>,
    // Ends with it.
    task: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Hub {
    room: Arc<Semaphore>,
    state: Mutex<State>,
    /// It changes under the lock of the state.
    phase: watch::Sender<Phase>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Off,
    Starting,
    On,
    Failed,
    /// The instance ends.
    Closed,
}

#[derive(Debug, Default)]
struct State {
    runs: HashMap<RunId, Watched>,
    lookers: Vec<Looker>,
    changes: Changes,
    minutes: Minutes,
    /// Whether somebody asked for something since it was last looked at.
    is_used: bool,
}

/// A run that somebody follows.
#[derive(Debug)]
struct Watched {
    flow: Arc<str>,
    revision: Revision,
    clients: Vec<Arc<Client>>,
}

/// Somebody who looks at many runs.
#[derive(Debug)]
struct Looker {
    flow: Option<Arc<str>>,
    client: Arc<Client>,
}

/// Somebody follows a run for as long as this is there.
#[derive(Debug)]
pub(crate) struct Following {
    hub: Arc<Hub>,
    run_id: RunId,
    flow: Arc<str>,
    revision: Revision,
    client: Arc<Client>,
}

/// Somebody looks at many runs for as long as this is there.
#[derive(Debug)]
pub(crate) struct Looking {
    hub: Arc<Hub>,
    client: Arc<Client>,
}

impl Live {
    pub(crate) fn new() -> Self {
        let hub = Hub {
            room: Arc::new(Semaphore::new(CLIENTS_MAX)),
            state: Mutex::default(),
            phase: watch::Sender::new(Phase::Off),
        };
        Self { hub: Arc::new(hub), task: Mutex::default() }
    }

    /// Follows a run from now on.
    pub(crate) async fn follow(
        &self,
        engine: &Engine,
        run_id: RunId,
        (flow, revision): (Arc<str>, Revision),
    ) -> Result<Following, ApiError> {
        let client = self.client()?;
        let new = Watched { flow: flow.clone(), revision: revision.clone(), clients: Vec::new() };
        let join = |state: &mut State| {
            state.runs.entry(run_id).or_insert(new).clients.push(Arc::clone(&client));
        };
        self.when_on(engine, join).await?;
        Ok(Following { hub: Arc::clone(&self.hub), run_id, flow, revision, client })
    }

    /// Looks at all runs from now on, or at those of one flow.
    pub(crate) async fn look(
        &self,
        engine: &Engine,
        flow: Option<Arc<str>>,
    ) -> Result<Looking, ApiError> {
        let client = self.client()?;
        let looker = Looker { flow, client: Arc::clone(&client) };
        self.when_on(engine, |state| state.lookers.push(looker)).await?;
        Ok(Looking { hub: Arc::clone(&self.hub), client })
    }

    /// What happened in each of the sixty minutes before `now`.
    pub(crate) async fn minutes(
        &self,
        engine: &Engine,
        now: Timestamp,
    ) -> Result<Vec<(Timestamp, Counts)>, ApiError> {
        self.when_on(engine, |state| state.minutes.last(now)).await
    }

    fn client(&self) -> Result<Arc<Client>, ApiError> {
        let permit = Arc::clone(&self.hub.room).try_acquire_owned().map_err(|_| {
            let message = format!("{CLIENTS_MAX} others are told what happens already");
            ApiError::unavailable("overloaded", message).help("try again, or ask another instance")
        })?;
        Ok(Arc::new(Client::new(permit)))
    }

    /// Does something while the feeds are followed, which they are from then on.
    async fn when_on<T>(
        &self,
        engine: &Engine,
        act: impl FnOnce(&mut State) -> T,
    ) -> Result<T, ApiError> {
        let mut phase = self.hub.phase.subscribe();
        self.begin(engine);
        loop {
            let reached = *phase
                .wait_for(|phase| *phase != Phase::Starting)
                .await
                .expect("the sender is part of the hub");
            let mut state = self.hub.state.lock();
            match *self.hub.phase.borrow() {
                Phase::On => {
                    state.is_used = true;
                    return Ok(act(&mut state));
                }
                Phase::Failed => {
                    return Err(ApiError::unavailable(
                        "store_unavailable",
                        "the feeds of the store cannot be followed",
                    ));
                }
                Phase::Closed => return Err(EngineError::Closed.into()),
                Phase::Off | Phase::Starting => {}
            }
            drop(state);
            if reached == Phase::Off {
                self.begin(engine);
            }
        }
    }

    fn begin(&self, engine: &Engine) {
        let state = self.hub.state.lock();
        let is_begun = matches!(*self.hub.phase.borrow(), Phase::Starting | Phase::On);
        if is_begun {
            return;
        }
        self.hub.phase.send_replace(Phase::Starting);
        drop(state);
        let mut task = self.task.lock();
        while task.try_join_next().is_some() {}
        task.spawn(run(Arc::clone(&self.hub), engine.clone()));
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.hub.close();
    }
}

/// Follows the feeds until nobody looks any more, or the instance ends.
async fn run(hub: Arc<Hub>, engine: Engine) {
    let begun = async {
        let follower = engine.follow(FollowFrom::Now).await?;
        let minutes = Minutes::read(&**engine.store()).await?;
        Ok::<_, EngineError>((follower, minutes))
    };
    let mut follower = match begun.await {
        Ok((follower, minutes)) => {
            let mut state = hub.state.lock();
            state.minutes = minutes;
            hub.phase.send_replace(Phase::On);
            follower
        }
        Err(error) => {
            let phase = if matches!(error, EngineError::Closed) {
                Phase::Closed
            } else {
                tracing::warn!(%error, "what happens cannot be followed");
                Phase::Failed
            };
            let _state = hub.state.lock();
            hub.phase.send_replace(phase);
            return;
        }
    };
    if follow(&hub, &engine, &mut follower).await == Ended::Instance {
        hub.close();
    }
}

/// Why the feeds are followed no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Idle,
    Instance,
}

async fn follow(hub: &Hub, engine: &Engine, follower: &mut Follower) -> Ended {
    let mut tell = tokio::time::interval(TELL_INTERVAL);
    tell.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut part = tokio::time::interval(PART_PAUSE);
    part.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut round = Round::default();
    let mut look = tokio::time::interval(IDLE);
    // The first one is at once.
    look.tick().await;
    loop {
        tokio::select! {
            next = follower.next() => match next {
                Ok(stored) => hub.take(&stored),
                Err(EngineError::Closed) => return Ended::Instance,
                Err(error) => {
                    tracing::warn!(%error, "a feed cannot be followed; trying on");
                    tokio::time::sleep(PAUSE).await;
                    let from = FollowFrom::Positions(follower.positions().to_vec());
                    match engine.follow(from).await {
                        Ok(again) => *follower = again,
                        Err(_) => return Ended::Instance,
                    }
                }
            },
            _ = part.tick(), if !round.is_over() => round.tell_part(),
            _ = tell.tick(), if round.is_over() && hub.has_changes() => {
                round = hub.tell(&**engine.store()).await;
                round.tell_part();
            }
            _ = look.tick() => {
                if hub.end_if_idle() {
                    return Ended::Idle;
                }
            }
        }
    }
}

/// Frames for many clients, told one part after another.
#[derive(Debug, Default)]
struct Round {
    left: Vec<(Arc<Client>, Frame)>,
    part: usize,
}

impl Round {
    fn new(left: Vec<(Arc<Client>, Frame)>) -> Self {
        let part = left.len().div_ceil(PARTS_MAX).max(PART_MIN);
        Self { left, part }
    }

    fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// Tells the next part.
    fn tell_part(&mut self) {
        let rest = self.left.len().saturating_sub(self.part);
        for (client, frame) in self.left.drain(rest..) {
            client.push(&frame);
        }
    }
}

impl Hub {
    fn take(&self, stored: &StoredEvent) {
        let mut state = self.state.lock();
        state.minutes.count(stored);
        if !state.lookers.is_empty() {
            state.changes.note(stored);
        }
        if let Some(watched) = state.runs.get(&stored.run_id) {
            let frame = event_frame(stored, &watched.flow, &watched.revision);
            watched.clients.iter().for_each(|client| client.push(&frame));
        }
    }

    fn has_changes(&self) -> bool {
        !self.state.lock().changes.is_empty()
    }

    /// What those who look at many runs are to be told of what changed.
    async fn tell(&self, store: &dyn Store) -> Round {
        let taken = self.state.lock().changes.take();
        let told = taken.complete(store).await;
        let all = changes::frame(&told, None);
        let state = self.state.lock();
        let told = state.lookers.iter().filter_map(|Looker { flow, client }| {
            let of_flow = flow.as_deref().map(|flow| changes::frame(&told, Some(flow)));
            Some((Arc::clone(client), of_flow.unwrap_or_else(|| all.clone())?))
        });
        Round::new(told.collect())
    }

    fn end_if_idle(&self) -> bool {
        let mut state = self.state.lock();
        let was_used = std::mem::take(&mut state.is_used);
        let is_idle = state.runs.is_empty() && state.lookers.is_empty() && !was_used;
        if is_idle {
            state.changes.clear();
            self.phase.send_replace(Phase::Off);
        }
        is_idle
    }

    /// Tells everybody that nothing comes any more.
    fn close(&self) {
        let mut state = self.state.lock();
        self.phase.send_replace(Phase::Off);
        let of_runs = state.runs.values().flat_map(|watched| &watched.clients);
        of_runs.chain(state.lookers.iter().map(|looker| &looker.client)).for_each(|c| c.close());
        state.changes.clear();
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut state = self.hub.state.lock();
        if let Some(watched) = state.runs.get_mut(&self.run_id) {
            watched.clients.retain(|client| !Arc::ptr_eq(client, &self.client));
            if watched.clients.is_empty() {
                state.runs.remove(&self.run_id);
            }
        }
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        let mut state = self.hub.state.lock();
        state.lookers.retain(|looker| !Arc::ptr_eq(&looker.client, &self.client));
        if state.lookers.is_empty() {
            state.changes.clear();
        }
    }
}

/// The event as those get it who follow its run.
fn event_frame(stored: &StoredEvent, flow: &Arc<str>, revision: &Revision) -> Frame {
    let item = event_item(stored, Arc::clone(flow), revision.clone());
    let data = serde_json::to_string(&item).expect("an event has a JSON form");
    let bytes = Bytes::from(format!("id: {}\nevent: event\ndata: {data}\n\n", stored.seq));
    Frame { seq: stored.seq, is_last: stored.event.is_terminal(), bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_tells_each_once_in_few_parts_and_a_few_at_once() {
        let room = Arc::new(Semaphore::new(CLIENTS_MAX));
        for (count, parts) in [(0, 0), (1, 1), (16, 1), (17, 2), (320, 20), (CLIENTS_MAX, 20)] {
            let client = || {
                let permit = Arc::clone(&room).try_acquire_owned().expect("there is room");
                Arc::new(Client::new(permit))
            };
            let clients: Vec<_> = (0..count).map(|_| client()).collect();
            let frame = Frame { seq: 0, is_last: false, bytes: Bytes::from_static(b"x") };
            let told = clients.iter().map(|client| (Arc::clone(client), frame.clone()));
            let mut round = Round::new(told.collect());
            let mut made = 0;
            while !round.is_over() {
                round.tell_part();
                made += 1;
            }
            assert_eq!(made, parts, "{count} clients");
            assert!(clients.iter().all(|client| client.waiting_frames() == 1), "{count} clients");
        }
    }
}
