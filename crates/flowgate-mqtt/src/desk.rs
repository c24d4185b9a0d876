//! What becomes of each message: a run, or a dead message, durable before it is acknowledged.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flowgate_engine::{
    DeadMessage, Engine, EngineError, StartRequest, dead_message_key, keep_dead_message,
};
use metrics::{Counter, Gauge};

use crate::backoff::Backoff;
use crate::message::{Origin, Wish};
use crate::settings::Subscription;

/// Between two tries of a message that the engine could not take.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Where the messages of one subscription are dealt with.
#[derive(Debug)]
pub(crate) struct Desk {
    engine: Engine,
    pub(crate) subscription: Subscription,
    counts: Counts,
    /// Messages that wait for a store, a flow or an instance that cannot take them now.
    waiting: AtomicUsize,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Settled {
    /// It is in the store: the broker may forget it.
    Kept,
    /// The engine ends, so the broker keeps it for whoever comes next.
    Left,
}

struct Counts {
    started: Counter,
    existing: Counter,
    dead: Counter,
    without_id: Counter,
    waiting: Gauge,
}

impl std::fmt::Debug for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counts").finish_non_exhaustive()
    }
}

impl Counts {
    fn new(subscription: &Arc<str>) -> Self {
        let messages = |outcome: &'static str| {
            metrics::counter!("flowgate_mqtt_messages_total",
                "subscription" => Arc::clone(subscription), "outcome" => outcome)
        };
        Self {
            started: messages("started"),
            existing: messages("existing"),
            dead: messages("dead"),
            without_id: metrics::counter!("flowgate_mqtt_messages_without_id_total",
                "subscription" => Arc::clone(subscription)),
            waiting: metrics::gauge!("flowgate_mqtt_messages_waiting",
                "subscription" => Arc::clone(subscription)),
        }
    }
}

/// How a start ended that was not refused for now.
enum Answer {
    Accepted,
    Refused(&'static str, String),
    Closed,
}

/// What to do about an error of the engine.
enum Next {
    /// The message can never become a run, for this reason.
    Refuse(&'static str),
    /// Try again, not before this time.
    Again(Duration),
    /// Leave it to the broker.
    Leave,
}

impl Desk {
    pub(crate) fn new(engine: Engine, subscription: Subscription) -> Self {
        let counts = Counts::new(&subscription.name);
        Self { engine, subscription, counts, waiting: AtomicUsize::new(0) }
    }

    /// Sees to it that a message is in the store, however long that takes.
    pub(crate) async fn settle(&self, wish: Wish) -> Settled {
        match wish {
            Wish::Dead(dead) => self.bury(&dead).await,
            Wish::Start(request, origin) => {
                if origin.message_id.is_none() {
                    self.counts.without_id.increment(1);
                }
                match self.start(&request).await {
                    Answer::Accepted => return Settled::Kept,
                    Answer::Closed => return Settled::Left,
                    Answer::Refused(reason, message) => {
                        self.bury(&self.dead(&request, origin, (reason, message))).await;
                    }
                }
            }
        }
        Settled::Kept
    }

    fn dead(&self, request: &StartRequest, origin: Origin, why: (&str, String)) -> DeadMessage {
        origin.dead(&self.subscription, request.input.get().as_bytes(), why)
    }

    async fn start(&self, request: &StartRequest) -> Answer {
        let mut patience = Patience::new(self);
        loop {
            let flow = &*self.subscription.flow;
            let error = match self.engine.start_run(flow, request.clone()).await {
                Ok(started) if started.existing => {
                    self.counts.existing.increment(1);
                    return Answer::Accepted;
                }
                Ok(_) => {
                    self.counts.started.increment(1);
                    return Answer::Accepted;
                }
                Err(error) => error,
            };
            match next(&error) {
                Next::Refuse(reason) => return Answer::Refused(reason, error.to_string()),
                Next::Leave => return Answer::Closed,
                Next::Again(least) => patience.wait(least, &error).await,
            }
        }
    }

    async fn bury(&self, dead: &DeadMessage) {
        let DeadMessage { topic, reason, message: why, bytes, .. } = dead;
        let subscription = &self.subscription.name;
        tracing::warn!(%subscription, topic, reason, why, bytes, "a message cannot become a run");
        let key = dead_message_key(subscription);
        let mut patience = Patience::new(self);
        let store = self.engine.store();
        while let Err(error) = keep_dead_message(&**store, Arc::clone(&key), dead).await {
            patience.wait(Duration::ZERO, &error).await;
        }
        self.counts.dead.increment(1);
    }
}

fn next(error: &EngineError) -> Next {
    match error {
        EngineError::Input(_) => Next::Refuse("input_invalid"),
        EngineError::Invalid(_) | EngineError::Rejected(_) => Next::Refuse("start_invalid"),
        EngineError::KeyConflict { .. } => Next::Refuse("key_conflict"),
        EngineError::Overloaded { retry_after, .. } => Next::Again(*retry_after),
        EngineError::Closed => Next::Leave,
        // Somebody may register the flow, open its gate, or repair the store; the broker keeps the rest meanwhile.
        EngineError::NoFlow(_)
        | EngineError::Flow(_)
        | EngineError::Contended
        | EngineError::HoldFull { .. }
        | EngineError::GateClosed { .. }
        | EngineError::Store(_)
        | EngineError::NoRun(_)
        | EngineError::NoDeployment(_)
        | EngineError::Deploy(_)
        | EngineError::NoSchedule(_)
        | EngineError::NotDead(_)
        | EngineError::NoSubscriber(_)
        | EngineError::NoPlace { .. }
        | EngineError::Checkpointed { .. }
        | EngineError::NoCheckpoint(_)
        | EngineError::CheckpointSettled { .. }
        | EngineError::Undecided { .. }
        | EngineError::NoStep { .. } => Next::Again(Duration::ZERO),
    }
}

/// The waits of one message. The first one of a subscription that waits says why, and the last one
/// that it is over.
struct Patience<'a> {
    desk: &'a Desk,
    backoff: Backoff,
    is_waiting: bool,
}

impl<'a> Patience<'a> {
    fn new(desk: &'a Desk) -> Self {
        Self { desk, backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX), is_waiting: false }
    }

    async fn wait(&mut self, least: Duration, error: &(dyn Error + Send + Sync + 'static)) {
        if !self.is_waiting {
            self.is_waiting = true;
            self.desk.counts.waiting.increment(1);
            if self.desk.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
                let subscription = &self.desk.subscription.name;
                tracing::warn!(%subscription, error, "messages wait; none is acknowledged before");
            }
        }
        self.backoff.wait(least).await;
    }
}

impl Drop for Patience<'_> {
    fn drop(&mut self) {
        if self.is_waiting {
            self.desk.counts.waiting.decrement(1);
            if self.desk.waiting.fetch_sub(1, Ordering::Relaxed) == 1 {
                let subscription = &self.desk.subscription.name;
                tracing::info!(%subscription, "no message waits any more");
            }
        }
    }
}
