//! Steps that publish a message.
//!
//! The engine knows no broker: whoever starts it hands in a [`Publisher`], which is the handler of
//! these steps. So an instance without one treats them like the steps of a worker that it has not.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::flow::{Action, MQTT_WORKER};
use tokio::time::Instant;

use super::worker::{Handler, HandlerError, HandlerFuture, Workers};
use crate::attempt::Attempt;
use crate::context::StepContext;

/// How long a step without a `timeout` may take to publish.
const PUBLISH_MAX: Duration = Duration::from_secs(30);

/// Publishes messages at a broker.
#[async_trait]
pub trait Publisher: fmt::Debug + Send + Sync {
    /// Publishes a message, and returns when the broker has said that it has it. It fails at the
    /// message's deadline at the latest, and says what it was waiting for.
    ///
    /// It may be published more than once: its key says that it is the same.
    async fn publish(&self, message: OutgoingMessage) -> Result<(), HandlerError>;
}

/// A message that a step publishes.
#[derive(Clone, Debug)]
pub struct OutgoingMessage {
    /// The topic, which holds no wildcard.
    pub topic: Arc<str>,
    /// The payload, JSON.
    pub payload: String,
    /// Whether the broker keeps it for those who subscribe later.
    pub is_retained: bool,
    /// Until when the broker must have it.
    pub deadline: Instant,
    /// The attempt that publishes it.
    pub context: StepContext,
}

impl Workers {
    /// Has steps with `run: {mqtt: …}` published by `publisher`. Without one, other instances
    /// execute them.
    pub fn publish_by(&mut self, publisher: Arc<dyn Publisher>) -> &mut Self {
        self.insert(MQTT_WORKER, Arc::new(Publishing(publisher)));
        self
    }
}

struct Publishing(Arc<dyn Publisher>);

impl Handler for Publishing {
    fn call(&self, attempt: &Arc<Attempt>) -> HandlerFuture {
        let publisher = Arc::clone(&self.0);
        let message = message(attempt);
        Box::pin(async move { publisher.publish(message?).await.map(|()| None) })
    }
}

fn message(attempt: &Arc<Attempt>) -> Result<OutgoingMessage, HandlerError> {
    let step = attempt.step();
    let Action::Mqtt(publication) = &step.action else {
        unreachable!("only a step that publishes gets here");
    };
    let input = attempt.input();
    let payload = publication.payload_in(&input).map_err(HandlerError::invalid)?;
    Ok(OutgoingMessage {
        topic: Arc::clone(&publication.topic),
        payload: payload.to_owned(),
        is_retained: publication.is_retained,
        deadline: attempt.began + step.timeout.unwrap_or(PUBLISH_MAX),
        context: StepContext { attempt: Arc::clone(attempt) },
    })
}
