//! Subscribers that act on runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use flowgate_core::ids::RunId;
use flowgate_core::payload::Payload;
use futures_util::future::BoxFuture;

use super::partition::SubscriberContext;
use super::{Delivery, Subscriber};
use crate::debounce::StartDebounce;
use crate::error::EngineError;
use crate::executor::worker::HandlerError;
use crate::supervisor::{StartRequest, Started};

/// A subscriber that starts runs and sends signals because of events.
///
/// Its starts have keys that follow from the event, so an event that is delivered again starts
/// nothing twice. A signal may arrive twice.
#[derive(Clone)]
pub struct Saga {
    handler: Arc<SagaHandler>,
}

type SagaHandler =
    dyn Fn(Delivery, SagaActions) -> BoxFuture<'static, Result<(), HandlerError>> + Send + Sync;

/// What a saga can do about an event.
#[derive(Clone, Debug)]
pub struct SagaActions {
    context: SubscriberContext,
    key: Arc<str>,
    starts: Arc<AtomicU32>,
}

impl Saga {
    /// Calls `handler` with each event.
    pub fn new<F, Fut, E>(handler: F) -> Self
    where
        F: Fn(Delivery, SagaActions) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<HandlerError>,
    {
        let handler = Arc::new(handler);
        let call = move |delivery, actions| -> BoxFuture<'static, Result<(), HandlerError>> {
            let called = handler(delivery, actions);
            Box::pin(async move { called.await.map_err(Into::into) })
        };
        Self { handler: Arc::new(call) }
    }
}

impl std::fmt::Debug for Saga {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Saga")
    }
}

impl SagaActions {
    /// Starts a run of the active revision of `flow`, unless this event has done so before. The
    /// starts of one event are told apart by their order, which must be the same each time; where
    /// it is not, name them by [`Self::start_named`].
    pub async fn start(&self, flow: &str, input: Payload) -> Result<Started, EngineError> {
        let number = self.starts.fetch_add(1, Ordering::Relaxed);
        self.start_named(flow, &number.to_string(), input).await
    }

    /// Starts a run, unless this event has started the one of this name before.
    pub async fn start_named(
        &self,
        flow: &str,
        name: &str,
        input: Payload,
    ) -> Result<Started, EngineError> {
        let engine = self.context.engine.upgrade().ok_or(EngineError::Closed)?;
        let key = format!("saga:{}:{name}", self.key).into();
        // The event has one run, whatever starts come close to it.
        let debounce = StartDebounce::Never;
        let request = StartRequest { key: Some(key), debounce, ..StartRequest::new(input) };
        match engine.start_run(flow, request).await {
            // It was started, whatever its input was then.
            Err(EngineError::KeyConflict { run_id, .. }) => Ok(Started::found(run_id)),
            started => started,
        }
    }

    /// Sends a run a signal. It may arrive a second time if the event is delivered again.
    pub async fn signal(
        &self,
        run_id: RunId,
        signal: &str,
        data: Payload,
    ) -> Result<(), EngineError> {
        let engine = self.context.engine.upgrade().ok_or(EngineError::Closed)?;
        engine.signal(run_id, signal, data).await.map(drop)
    }
}

#[async_trait]
impl Subscriber for Saga {
    fn kind(&self) -> &'static str {
        "saga"
    }

    async fn handle(
        &mut self,
        delivery: &Delivery,
        context: &SubscriberContext,
    ) -> Result<(), HandlerError> {
        let actions = SagaActions {
            context: context.clone(),
            key: delivery.key().into(),
            starts: Arc::default(),
        };
        (self.handler)(delivery.clone(), actions).await
    }
}
