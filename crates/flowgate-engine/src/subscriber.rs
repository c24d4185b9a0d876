//! Subscribers: whoever is given every event of the store, in order, and remembers how far it is.
//!
//! ```text
//!                    term taken            term lost, or its connection
//!   Standby ───────────────────────▶ Active ─────────────────────────▶ Standby
//!      ▲                               │ an event fails, and on_failure is FailClosed
//!      └────── reset, retry-dead ──── Failed ◀─┘
//! ```
//!
//! - Delivery is **at least once**: an event counts as handled when the checkpoint is past it, and
//!   what was handled after the last checkpoint comes again after a crash. A subscriber whose effect
//!   is in the checkpoint's own transaction ([`PgSubscriber`]) has it exactly once.
//! - The events of a run come in their order, and one that cannot be handled is tried again, then
//!   put aside as a dead letter or, by choice, stops the subscriber. None is skipped in silence.
//! - A **checkpoint** is one record a partition: the position in each feed, and the state that the
//!   subscriber wants back. It is written under the term of the partition and over the version that
//!   was read at take-over, so one who lost the term writes nothing, and it never goes back.
//! - A subscriber reads the feeds with a cursor of its own, in a task of its own, a bounded part
//!   ahead: a slow one holds back nobody.
//! - [`InstanceMode::Coordinated`]: at most one instance has a partition. The others stand by, look
//!   again at least every 700 ms (with jitter, and at once when told), and take over what was
//!   released, or was not renewed for its lease. A term is renewed at a third of the lease, on the
//!   thread that renews the leases of jobs; without an answer it is trusted until a tenth before
//!   its end by this host's monotonic clock. Then the handler's future is dropped.
//! - Partitions are those of the hash of the run's id, so a run stays in order. An instance takes
//!   partitions up to its share, the partitions divided by those who want them and rounded up, and
//!   gives back what it has over that, between two events.

mod admin;
mod file_sink;
mod handle;
mod http_sink;
mod manager;
mod options;
mod partition;
mod pg;
mod projection;
mod saga;
mod share;
mod stored;
pub(crate) mod terms;

use async_trait::async_trait;
use flowgate_core::event::StoredEvent;
use flowgate_core::ids::RunId;
use flowgate_core::payload::Payload;
use flowgate_store::control::{RecordWrite, RecordsOutcome, TermRef};
use serde::Serialize;

use std::sync::Arc;

use crate::executor::worker::HandlerError;

pub use admin::{
    DeadLetter, Failed, MemberInfo, PartitionInfo, ResetTo, SubscriberAdmin, SubscriberInfo,
};
pub use file_sink::FileSink;
pub use handle::{Lag, SubscriptionHandle, SubscriptionState};
pub use http_sink::HttpSink;
pub use options::{
    CheckpointEvery, InstanceMode, OnFailure, PARTITIONS_MAX, StartFrom, SubscribeOptions,
};
pub use pg::{PgHandler, PgSubscriber};
pub use projection::{Projection, read_projection};
pub use saga::{Saga, SagaActions};

pub(crate) use handle::Subscriptions;
pub(crate) use manager::{Given, rebuild, subscribe};
pub use partition::SubscriberContext;

/// Whoever handles events.
///
/// A fresh clone begins at each take-over of a partition, so what it holds in memory is its own; the
/// state that outlives it is what [`Subscriber::checkpoint`] returned.
#[async_trait]
pub trait Subscriber: Send + 'static {
    /// What it is, for whoever lists subscribers.
    fn kind(&self) -> &'static str {
        "subscriber"
    }

    /// Begins where the last checkpoint ended; `state` is what that kept, if there was one.
    async fn restore(&mut self, _state: Option<&Payload>) -> Result<(), HandlerError> {
        Ok(())
    }

    /// Handles one event. It may come again after a crash or a failure, with the same
    /// [`Delivery::key`]. Its future is dropped when the subscriber must stop at once.
    async fn handle(
        &mut self,
        delivery: &Delivery,
        context: &SubscriberContext,
    ) -> Result<(), HandlerError>;

    /// Makes durable what was handled, and returns the state that is kept with the checkpoint.
    async fn checkpoint(&mut self) -> Result<Option<Payload>, HandlerError> {
        Ok(None)
    }

    /// Whether the checkpoint is written in the transaction of its effects, after each event: then
    /// [`Subscriber::handle_and_commit`] is asked instead of [`Subscriber::handle`].
    fn is_transactional(&self) -> bool {
        false
    }

    /// Handles one event, and writes `writes` under `under` in the same transaction: both are there
    /// or neither is. An error after which nobody knows is harmless: the next attempt finds out.
    async fn handle_and_commit(
        &mut self,
        _delivery: &Delivery,
        _context: &SubscriberContext,
        _writes: &[RecordWrite],
        _under: Option<&TermRef>,
    ) -> Result<RecordsOutcome, HandlerError> {
        Err(HandlerError::fatal("it says that it is transactional, and cannot commit"))
    }
}

/// An event on its way to a subscriber.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// The subscriber's id.
    pub subscriber: Arc<str>,
    /// The partition that the event's run is in.
    pub partition: u16,
    /// The number of the attempt to handle it, from 1, since the last take-over.
    pub attempt: u32,
    /// The event.
    pub event: StoredEvent,
}

impl Delivery {
    /// The idempotency key, `SUBSCRIBER/RUN/SEQ`: the same each time the event is delivered, also
    /// after the store was copied.
    pub fn key(&self) -> String {
        format!("{}/{}/{}", self.subscriber, self.event.run_id, self.event.seq)
    }
}

/// An event as sinks and dead letters write it.
#[derive(Serialize)]
struct EventLine<'a> {
    position: flowgate_core::ids::Position,
    run: RunId,
    seq: u64,
    time: String,
    #[serde(flatten)]
    event: &'a flowgate_core::event::Event,
}

impl<'a> EventLine<'a> {
    fn of(stored: &'a StoredEvent) -> Self {
        Self {
            position: stored.position,
            run: stored.run_id,
            seq: stored.seq,
            time: stored.at.to_string(),
            event: &stored.event,
        }
    }
}
