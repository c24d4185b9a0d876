//! Handlers in this process, by name.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use flowgate_core::decide::Outcome;
use flowgate_core::event::ErrorKind;
use flowgate_core::payload::Payload;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::attempt::{Attempt, Ending, failure};
use crate::context::{ContextError, StepContext};

/// The handlers of an instance, by the names that flows call them.
#[derive(Clone, Default)]
pub struct Workers {
    by_name: BTreeMap<String, Arc<dyn Handler>>,
}

/// Why a handler failed.
///
/// Any error becomes one by `?`: the attempt failed and may be tried again.
#[derive(Debug)]
pub struct HandlerError {
    kind: ErrorKind,
    message: String,
    retry_after: Option<Duration>,
}

pub(crate) type HandlerFuture =
    Pin<Box<dyn Future<Output = Result<Option<Payload>, HandlerError>> + Send>>;

/// A handler with its types taken away.
pub(crate) trait Handler: Send + Sync {
    fn call(&self, attempt: &Arc<Attempt>) -> HandlerFuture;
}

impl Workers {
    /// No handlers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers `handler` under `name`; an earlier one of that name is replaced.
    ///
    /// The input is read into the handler's own type, and what it returns is kept as the step's
    /// result. A handler that panics fails its attempt.
    pub fn register<I, R, E, F, Fut>(&mut self, name: &str, handler: F) -> &mut Self
    where
        I: DeserializeOwned + Send + 'static,
        R: Serialize + 'static,
        E: Into<HandlerError>,
        F: Fn(I, StepContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
    {
        self.insert(name, Arc::new(Typed { handler, input: std::marker::PhantomData::<fn(I)> }));
        self
    }

    pub(super) fn insert(&mut self, name: &str, handler: Arc<dyn Handler>) {
        self.by_name.insert(name.to_owned(), handler);
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<dyn Handler>> {
        self.by_name.get(name)
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

struct Typed<F, I> {
    handler: F,
    input: std::marker::PhantomData<fn(I)>,
}

impl<I, R, E, F, Fut> Handler for Typed<F, I>
where
    I: DeserializeOwned + Send + 'static,
    R: Serialize + 'static,
    E: Into<HandlerError>,
    F: Fn(I, StepContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, E>> + Send + 'static,
{
    fn call(&self, attempt: &Arc<Attempt>) -> HandlerFuture {
        let input = match serde_json::from_str(&attempt.input()) {
            Ok(input) => input,
            Err(error) => {
                let message = format!("the input does not fit the handler: {error}");
                let error = HandlerError::invalid(message);
                return Box::pin(std::future::ready(Err(error)));
            }
        };
        let future = (self.handler)(input, StepContext { attempt: Arc::clone(attempt) });
        Box::pin(async move {
            let result = future.await.map_err(Into::into)?;
            result_payload(&result)
        })
    }
}

/// What a handler returned, for the log; nothing if it has nothing to say.
fn result_payload<R: Serialize + 'static>(result: &R) -> Result<Option<Payload>, HandlerError> {
    if TypeId::of::<R>() == TypeId::of::<()>() {
        return Ok(None);
    }
    let kept = Payload::of(result).map(Some);
    kept.map_err(|error| HandlerError::invalid(format!("the result cannot be kept: {error}")))
}

impl HandlerError {
    /// The attempt failed, and may be tried again.
    pub fn retryable(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Failed, message: message.into(), retry_after: None }
    }

    /// The attempt failed, and should be tried again after `delay`.
    pub fn retry_after(message: impl Into<String>, delay: Duration) -> Self {
        Self { retry_after: Some(delay), ..Self::retryable(message) }
    }

    /// The attempt failed, and another one would not help.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Final, message: message.into(), retry_after: None }
    }

    /// What the step says or gets breaks a rule, and another attempt would not help.
    pub(super) fn invalid(message: String) -> Self {
        Self { kind: ErrorKind::Invalid, message, retry_after: None }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }

    pub(crate) fn retry_delay(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let error: Box<dyn Error + Send + Sync> = error.into();
        let kind = match error.downcast_ref::<ContextError>() {
            Some(
                ContextError::EventUndeclared { .. }
                | ContextError::StateName(_)
                | ContextError::Payload(_)
                | ContextError::TooMany { .. },
            ) => ErrorKind::Invalid,
            Some(
                ContextError::StateShape { .. }
                | ContextError::Stopped(_)
                | ContextError::Over
                | ContextError::Rejected(_)
                | ContextError::Store(_),
            )
            | None => ErrorKind::Failed,
        };
        Self { kind, message: with_causes(&*error), retry_after: None }
    }
}

/// An error's message with those of its causes.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message.push_str(": ");
        message.push_str(&error.to_string());
        cause = error.source();
    }
    message
}

/// Begins an attempt: either it ended in its first poll, or here is the rest of it.
///
/// The first poll has no waker. The rest must be polled again at once, which registers one.
pub(crate) fn begin(handler: &dyn Handler, attempt: &Arc<Attempt>) -> Result<Ending, Rest> {
    let mut context = Context::from_waker(std::task::Waker::noop());
    // What ended is dropped in here too, for that may also panic.
    let first = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let mut future = handler.call(attempt);
        match future.as_mut().poll(&mut context) {
            Poll::Ready(result) => Ok(result),
            Poll::Pending => Err(future),
        }
    }));
    match first {
        Ok(Ok(result)) => Ok(ending(attempt, result)),
        Ok(Err(future)) => Err(Rest(future)),
        Err(panic) => Ok(panicked(&*panic)),
    }
}

/// A handler that did not end in its first poll.
pub(crate) struct Rest(HandlerFuture);

impl Rest {
    /// Lets the handler go on until it ends, or until the attempt must.
    pub(crate) async fn finish(self, attempt: &Arc<Attempt>) -> Ending {
        tokio::select! {
            biased;
            result = self.0 => ending(attempt, result),
            interrupt = attempt.interrupted(attempt.began) => attempt.ending_of(interrupt),
        }
    }
}

fn ending(attempt: &Attempt, result: Result<Option<Payload>, HandlerError>) -> Ending {
    match result {
        Ok(result) => Ending::Outcome(Outcome::Succeeded(attempt.take_output(result))),
        // A handler that gives up because it was told to stop did not fail.
        Err(error) => match attempt.stop_reason() {
            Some(stop) => Ending::Stopped(stop),
            None => Ending::Outcome(failure(error.kind, &error.message, error.retry_after)),
        },
    }
}

/// The end of an attempt whose handler, or whose executor, panicked.
pub(crate) fn panicked(panic: &(dyn std::any::Any + Send)) -> Ending {
    let message = format!("the handler panicked: {}", panic_text(panic));
    Ending::failed(ErrorKind::Panicked, &message)
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("with a value that is no text")
}
