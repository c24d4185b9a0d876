//! State that is folded from events.

use std::sync::Arc;

use async_trait::async_trait;
use flowgate_core::event::StoredEvent;
use flowgate_core::payload::Payload;
use flowgate_store::Store;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::handle::checkpoints;
use super::partition::SubscriberContext;
use super::stored::{self, SUBSCRIBER, SubscriberRecord};
use super::{Delivery, Subscriber};
use crate::error::EngineError;
use crate::executor::worker::HandlerError;

/// A subscriber whose whole effect is its state, which is kept with the checkpoint: what is read is
/// the fold of exactly the events behind the checkpoint, on whichever instance it goes on.
///
/// A fold that fails changes nothing. The state is limited like any payload
/// ([`flowgate_core::limits::PAYLOAD_BYTES_MAX`]); what grows with the number of runs belongs in
/// tables of one's own ([`super::PgSubscriber`]). With several partitions there is a state for each.
#[derive(Clone)]
pub struct Projection<T> {
    state: T,
    fold: Arc<Fold<T>>,
}

type Fold<T> = dyn Fn(&mut T, &StoredEvent) -> Result<(), HandlerError> + Send + Sync;

impl<T: Default> Projection<T> {
    /// Folds from the default of its state on.
    pub fn new(
        fold: impl Fn(&mut T, &StoredEvent) -> Result<(), HandlerError> + Send + Sync + 'static,
    ) -> Self {
        Self { state: T::default(), fold: Arc::new(fold) }
    }
}

impl<T> std::fmt::Debug for Projection<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Projection")
    }
}

#[async_trait]
impl<T> Subscriber for Projection<T>
where
    T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static,
{
    fn kind(&self) -> &'static str {
        "projection"
    }

    async fn restore(&mut self, state: Option<&Payload>) -> Result<(), HandlerError> {
        if let Some(state) = state {
            self.state = state.read().map_err(|error| {
                HandlerError::fatal(format!("its state has another shape: {error}; rebuild it"))
            })?;
        }
        Ok(())
    }

    async fn handle(
        &mut self,
        delivery: &Delivery,
        _context: &SubscriberContext,
    ) -> Result<(), HandlerError> {
        let mut next = self.state.clone();
        (self.fold)(&mut next, &delivery.event)?;
        self.state = next;
        Ok(())
    }

    async fn checkpoint(&mut self) -> Result<Option<Payload>, HandlerError> {
        let state = Payload::of(&self.state);
        state.map(Some).map_err(|error| HandlerError::fatal(error.to_string()))
    }
}

/// The state of a projection as of its last checkpoint, one for each partition; none where a
/// partition has not begun.
pub async fn read_projection<T: DeserializeOwned>(
    store: &dyn Store,
    id: &str,
) -> Result<Vec<Option<T>>, EngineError> {
    let found = store.read_records(SUBSCRIBER, &[id.into()]).await?.into_iter().next().flatten();
    let Some(record) = found else {
        return Err(EngineError::Invalid(format!("there is no subscriber `{id}`")));
    };
    let subscriber: SubscriberRecord = stored::read(SUBSCRIBER, &record)?;
    let read = |state: Payload| {
        state.read().map_err(|error| {
            let message = format!("the state of `{id}` has another shape: {error}");
            EngineError::Invalid(message)
        })
    };
    let found = checkpoints(store, id, subscriber.partitions).await?;
    let state = |checkpoint: Option<stored::CheckpointRecord>| {
        checkpoint.and_then(|checkpoint| checkpoint.state).map(read).transpose()
    };
    found.into_iter().map(state).collect()
}
