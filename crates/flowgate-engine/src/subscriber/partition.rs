//! One partition while it is active here: events in, checkpoints out.

mod checkpoint;
mod dead;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::event::StoredEvent;
use flowgate_core::ids::Position;
use flowgate_core::retry::NextAttempt;
use flowgate_store::control::{Record, RecordWrite, TermRef};
use flowgate_store::{HeldSession, StoreError};
use futures_util::FutureExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::handle::{Shared, feed_ends, lag};
use super::manager::Make;
use super::options::{CheckpointEvery, OnFailure, StartFrom};
use super::share::partition_of;
use super::stored::{self, CHECKPOINT, CheckpointRecord};
use super::terms::HeldTerm;
use super::{Delivery, Subscriber};
use crate::backoff::{Backoff, jittered};
use crate::clock;
use crate::error::EngineError;
use crate::executor::worker::{HandlerError, panic_text, with_causes};
use crate::follow::{self, FollowFrom, Follower};
use crate::instance::Instance;
use crate::supervisor::WeakEngine;

/// How often a partition looks whether somebody has set its checkpoint or wants dead letters tried
/// again, where it is not told.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// What a subscriber is given besides the event.
#[derive(Clone, Debug)]
pub struct SubscriberContext {
    pub(super) engine: WeakEngine,
    pub(super) instance: Arc<Instance>,
    held: Option<Arc<HeldTerm>>,
}

impl SubscriberContext {
    /// Whether the subscriber is still the active one, as far as this instance knows. For handlers
    /// that work long without an `await`: others are dropped when it is not.
    pub fn is_active(&self) -> bool {
        self.held.as_ref().is_none_or(|held| held.is_trusted())
    }
}

/// A partition to be worked on.
pub(super) struct Partition {
    pub(super) shared: Arc<Shared>,
    pub(super) instance: Arc<Instance>,
    pub(super) engine: WeakEngine,
    pub(super) make: Make,
    pub(super) number: u16,
    pub(super) held: Option<Arc<HeldTerm>>,
    pub(super) session: Option<Box<dyn HeldSession>>,
    /// Who this is, in what it writes.
    pub(super) writer: Arc<str>,
    /// It is to end between two events.
    pub(super) stop: CancellationToken,
}

/// How the work on a partition ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It is somebody else's now.
    Lost,
    /// It was told to.
    Stopped,
    /// It stands still, and the store says so.
    Failed(Arc<str>),
    /// It must not go on here.
    Refused {
        /// Why.
        reason: Arc<str>,
        /// How often it had been set.
        resets: u64,
    },
}

/// Why the work cannot go on as it is.
enum Break {
    /// The checkpoint was set: begin anew.
    Reload,
    End(Ended),
}

impl From<Ended> for Break {
    fn from(ended: Ended) -> Self {
        Self::End(ended)
    }
}

/// The work between a take-over and its end.
struct Work {
    subscriber: Box<dyn Subscriber>,
    /// What was handled, and what of that is written.
    at: CheckpointRecord,
    written: Vec<Position>,
    version: Option<u64>,
    /// Events since the last checkpoint, and the time of the first.
    pending: usize,
    dirty_since: Option<Instant>,
}

/// What became of an event.
enum Delivered {
    Handled,
    /// And the checkpoint is past it.
    Committed,
    Failed {
        error: String,
        attempts: u32,
    },
    Stopped,
}

impl Partition {
    pub(super) async fn run(mut self) -> Ended {
        let session = self.session.take();
        let term_lost = async {
            match &self.held {
                Some(held) => held.lost().cancelled().await,
                None => std::future::pending().await,
            }
        };
        let session_lost = async {
            match &session {
                Some(session) => session.lost().await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            biased;
            () = term_lost => Ended::Lost,
            () = session_lost => Ended::Lost,
            ended = self.serve() => ended,
        };
        if let Some(session) = session {
            // One that is not released ends with its connection.
            drop(tokio::time::timeout(Duration::from_secs(1), session.release()).await);
        }
        self.lag_gauge(0.0);
        ended
    }

    async fn serve(&self) -> Ended {
        loop {
            match Box::pin(self.serve_once()).await {
                Break::Reload => {}
                Break::End(ended) => return ended,
            }
        }
    }

    /// Works from the stored checkpoint on, until it cannot.
    async fn serve_once(&self) -> Break {
        let mut work = match self.load().await {
            Ok(work) => work,
            Err(cause) => return cause,
        };
        let Err(cause) = self.follow(&mut work).await;
        cause
    }

    fn term(&self) -> Option<&TermRef> {
        self.held.as_ref().map(|held| &held.term)
    }

    fn key(&self) -> Arc<str> {
        stored::checkpoint_key(&self.shared.id, self.number)
    }

    fn context(&self) -> SubscriberContext {
        SubscriberContext {
            engine: self.engine.clone(),
            instance: Arc::clone(&self.instance),
            held: self.held.clone(),
        }
    }

    /// A process that was paused learns here that it may be too late, before it does anything.
    fn check_trust(&self) -> Result<(), Break> {
        let is_trusted = self.held.as_ref().is_none_or(|held| held.is_trusted());
        if is_trusted { Ok(()) } else { Err(Ended::Lost.into()) }
    }

    /// The answer of a store that may not answer at once.
    async fn patiently<T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        mut call: impl FnMut() -> F,
    ) -> Result<T, Break> {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        loop {
            match call().await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_transient() => backoff.wait().await,
                Err(error) => return Err(self.broken(&error)),
            }
        }
    }

    /// What no other attempt could change.
    fn broken(&self, error: &StoreError) -> Break {
        let reason: Arc<str> = stored::fit(&with_causes(error));
        tracing::error!(subscriber = %self.shared.id, partition = self.number, %reason, "failed");
        Ended::Refused { reason, resets: u64::MAX }.into()
    }

    async fn record(&self) -> Result<Option<Record>, Break> {
        let keys = [self.key()];
        let found = self.patiently(|| self.instance.store.read_records(CHECKPOINT, &keys)).await?;
        Ok(found.into_iter().next().flatten())
    }

    /// Begins where the last checkpoint ended.
    async fn load(&self) -> Result<Work, Break> {
        let feeds = usize::from(self.instance.store.feeds());
        let found = self.record().await?;
        let version = found.as_ref().map(|record| record.version);
        let at = match &found {
            Some(record) => {
                stored::read(CHECKPOINT, record).map_err(|error| self.broken(&error))?
            }
            None => self.beginning(feeds).await?,
        };
        if let Some(failed) = at.failed {
            return Err(Ended::Failed(failed.error).into());
        }
        if at.positions.len() != feeds {
            let count = at.positions.len();
            let reason =
                format!("its checkpoint is of {count} feeds, and the store has {feeds}").into();
            return Err(Ended::Refused { reason, resets: at.resets }.into());
        }
        let written = at.positions.clone();
        let mut work =
            Work { subscriber: (self.make)(), at, written, version, pending: 0, dirty_since: None };
        self.restore(&mut work).await?;
        if work.version.is_none() {
            // What the subscriber finds at its beginning is part of where it begins.
            self.write(&mut work, Vec::new()).await?;
        }
        Ok(work)
    }

    async fn beginning(&self, feeds: usize) -> Result<CheckpointRecord, Break> {
        let positions = match self.shared.options.from {
            StartFrom::Start => vec![Position::START; feeds],
            StartFrom::Now => self.patiently(|| feed_ends(&*self.instance.store)).await?,
        };
        let writer = Arc::clone(&self.writer);
        let (handled, resets) = (0, 0);
        Ok(CheckpointRecord { positions, handled, resets, writer, state: None, failed: None })
    }

    /// Gives the subscriber its state back. Whatever `on_failure` says, one that cannot begin
    /// cannot skip anything.
    async fn restore(&self, work: &mut Work) -> Result<(), Break> {
        let state = work.at.state.clone();
        let mut attempts = 0;
        loop {
            self.check_trust()?;
            attempts += 1;
            let error = match guarded(work.subscriber.restore(state.as_ref())).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if !self.another(attempts, &error).await? {
                let error = format!("it cannot begin where it ended: {}", error.message());
                return Err(self.fail(work, None, &error, attempts).await);
            }
        }
    }

    /// Waits before the next attempt; false if there is none.
    async fn another(&self, attempts: u32, error: &HandlerError) -> Result<bool, Break> {
        let id = &self.shared.id;
        let next = match self.shared.options.retry.after(attempts, fastrand::f64()) {
            NextAttempt::After(delay) if error.is_retryable() => {
                error.retry_delay().unwrap_or(delay)
            }
            NextAttempt::After(_) | NextAttempt::Never => return Ok(false),
        };
        let subscriber = id.to_string();
        metrics::counter!("flowgate_subscriber_retries_total", "subscriber" => subscriber)
            .increment(1);
        tracing::debug!(subscriber = %id, attempts, error = error.message(), "trying again");
        tokio::select! {
            () = self.stop.cancelled() => Err(Ended::Stopped.into()),
            () = tokio::time::sleep(next) => Ok(true),
        }
    }

    async fn follow(&self, work: &mut Work) -> Result<std::convert::Infallible, Break> {
        let from = FollowFrom::Positions(work.at.positions.clone());
        let mut follower = match follow::follow(&self.instance, from).await {
            Ok(follower) => follower,
            Err(error) => return Err(self.unreadable(work, &error).await),
        };
        let topic = stored::topic(&self.shared.id);
        let told = || async {
            if self.instance.store.wait_told(&topic, jittered(LOOK_MAX)).await.is_err() {
                tokio::time::sleep(jittered(LOOK_MAX)).await;
            }
        };
        self.retry_dead(work).await?;
        let mut asked = Box::pin(told());
        loop {
            let due = self.checkpoint_due(work);
            let timer = tokio::time::sleep_until(due.unwrap_or_else(clock::now));
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {
                    self.flush(work).await?;
                    return Err(Ended::Stopped.into());
                }
                () = timer, if due.is_some() => self.flush(work).await?,
                () = &mut asked => {
                    self.look(work).await?;
                    asked = Box::pin(told());
                }
                next = follower.next() => match next {
                    Ok(event) => self.take(work, &follower, event).await?,
                    Err(error) => return Err(self.unreadable(work, &error).await),
                },
            }
        }
    }

    /// An event that cannot be read is never skipped: the subscriber stands still before it.
    async fn unreadable(&self, work: &mut Work, error: &EngineError) -> Break {
        if matches!(error, EngineError::Closed) {
            return Ended::Stopped.into();
        }
        let error = format!("the next event cannot be read: {}", with_causes(error));
        self.fail(work, None, &error, 1).await
    }

    fn checkpoint_due(&self, work: &Work) -> Option<Instant> {
        let since = work.dirty_since?;
        match self.shared.options.checkpoint {
            CheckpointEvery::Event if work.pending > 0 => Some(since),
            // What is another partition's is written down now and then.
            CheckpointEvery::Event => Some(since + Duration::from_millis(200)),
            CheckpointEvery::Batch { wait_max, .. } => Some(since + wait_max),
        }
    }

    /// Handles the next event of the feeds.
    async fn take(
        &self,
        work: &mut Work,
        follower: &Follower,
        event: StoredEvent,
    ) -> Result<(), Break> {
        let options = &self.shared.options;
        if partition_of(event.run_id, options.partitions) == self.number {
            let delivery = self.delivery(event);
            let mut next = work.at.clone();
            next.positions.clear();
            next.positions.extend_from_slice(follower.positions());
            next.handled += 1;
            match self.deliver(work, delivery.clone(), (next, Vec::new())).await? {
                Delivered::Handled => {}
                Delivered::Committed => {
                    self.count_handled();
                    return Ok(());
                }
                Delivered::Stopped => {
                    self.flush(work).await?;
                    return Err(Ended::Stopped.into());
                }
                Delivered::Failed { error, attempts } => match options.on_failure {
                    OnFailure::DeadLetter => {
                        work.pass(follower);
                        return self.bury(work, &delivery.event, &error, attempts).await;
                    }
                    OnFailure::FailClosed => {
                        return Err(self.fail(work, Some(&delivery.event), &error, attempts).await);
                    }
                },
            }
            work.pending += 1;
            work.at.handled += 1;
            self.count_handled();
        }
        work.pass(follower);
        let is_full = match options.checkpoint {
            CheckpointEvery::Event => work.pending > 0,
            CheckpointEvery::Batch { events_max, .. } => work.pending >= events_max,
        };
        if is_full {
            self.flush(work).await?;
        }
        Ok(())
    }

    fn count_handled(&self) {
        let subscriber = self.shared.id.to_string();
        metrics::counter!("flowgate_subscriber_events_total", "subscriber" => subscriber)
            .increment(1);
    }

    fn delivery(&self, event: StoredEvent) -> Delivery {
        Delivery {
            subscriber: Arc::clone(&self.shared.id),
            partition: self.number,
            attempt: 0,
            event,
        }
    }

    /// Hands an event over, again and again as long as that may help. `next` is the checkpoint that
    /// is past it and what is written with that, for those who write it themselves.
    async fn deliver(
        &self,
        work: &mut Work,
        mut delivery: Delivery,
        next: (CheckpointRecord, Vec<RecordWrite>),
    ) -> Result<Delivered, Break> {
        let timeout = self.shared.options.timeout;
        let before = work.at.clone();
        loop {
            self.check_trust()?;
            delivery.attempt += 1;
            let attempt = self.attempt(work, &delivery, &next);
            let error = match tokio::time::timeout(timeout, attempt).await {
                Ok(Ok(delivered)) => return delivered,
                Ok(Err(error)) => error,
                Err(_) => HandlerError::retryable(format!("not handled within {timeout:?}")),
            };
            // Whatever was begun, the checkpoint is before the event.
            work.at = before.clone();
            match self.another(delivery.attempt, &error).await {
                Ok(true) => {}
                Ok(false) => {
                    let error = error.message().to_owned();
                    return Ok(Delivered::Failed { error, attempts: delivery.attempt });
                }
                Err(Break::End(Ended::Stopped)) => return Ok(Delivered::Stopped),
                Err(cause) => return Err(cause),
            }
        }
    }

    async fn attempt(
        &self,
        work: &mut Work,
        delivery: &Delivery,
        (next, extra): &(CheckpointRecord, Vec<RecordWrite>),
    ) -> Result<Result<Delivered, Break>, HandlerError> {
        let context = self.context();
        if !work.subscriber.is_transactional() {
            guarded(work.subscriber.handle(delivery, &context)).await?;
            return Ok(Ok(Delivered::Handled));
        }
        work.at = next.clone();
        let writes = match self.writes(work, extra.clone()) {
            Ok(writes) => writes,
            Err(cause) => return Ok(Err(cause)),
        };
        let subscriber = &mut work.subscriber;
        let handled = subscriber.handle_and_commit(delivery, &context, &writes, self.term());
        let outcome = guarded(handled).await?;
        let settled = self.settled(work, outcome, writes[0].value.as_ref()).await;
        Ok(settled.map(|()| Delivered::Committed))
    }

    /// Looks whether somebody has set the checkpoint, or wants dead letters tried again.
    async fn look(&self, work: &mut Work) -> Result<(), Break> {
        let found = self.record().await?;
        if found.map(|record| record.version) != work.version {
            self.changed(work, None).await?;
        }
        self.retry_dead(work).await?;
        let call = || lag(&*self.instance.store, &work.at.positions);
        self.lag_gauge(self.patiently(call).await?.behind.as_secs_f64());
        Ok(())
    }

    fn lag_gauge(&self, seconds: f64) {
        let labels =
            [("subscriber", self.shared.id.to_string()), ("partition", self.number.to_string())];
        metrics::gauge!("flowgate_subscriber_lag_seconds", &labels).set(seconds);
    }
}

impl Work {
    /// Everything that the follower gave is behind it.
    fn pass(&mut self, follower: &Follower) {
        self.at.positions.clear();
        self.at.positions.extend_from_slice(follower.positions());
        self.dirty_since.get_or_insert_with(clock::now);
    }

    /// The checkpoint is written.
    fn settle(&mut self) {
        self.written.clone_from(&self.at.positions);
        self.pending = 0;
        self.dirty_since = None;
    }
}

/// What a subscriber's code did, also if it panicked.
async fn guarded<T>(
    code: impl Future<Output = Result<T, HandlerError>>,
) -> Result<T, HandlerError> {
    match AssertUnwindSafe(code).catch_unwind().await {
        Ok(result) => result,
        Err(panic) => Err(HandlerError::retryable(format!("it panicked: {}", panic_text(&*panic)))),
    }
}
