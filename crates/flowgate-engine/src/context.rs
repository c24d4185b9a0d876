//! What a handler is given besides its input.

use std::fmt;
use std::sync::Arc;

use flowgate_core::decide::{Rejection, Report};
use flowgate_core::ids::{Revision, RunId, is_identifier};
use flowgate_core::limits;
use flowgate_core::payload::{Payload, PayloadError};
use flowgate_store::{LogLevel, StoreError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::attempt::{Attempt, Stop};
use crate::error::CommitError;

/// The attempt that a handler executes. Cheap to clone.
#[derive(Clone)]
pub struct StepContext {
    pub(crate) attempt: Arc<Attempt>,
}

/// Why the engine did not take what a handler handed over.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// The step does not declare the event.
    #[error("the step emitted `{event}`, which is not in its `emits`{declared}")]
    EventUndeclared {
        /// The event.
        event: String,
        /// What the step declares, in words.
        declared: String,
    },
    /// The name cannot name a state value.
    #[error("`{0}` cannot name a state value")]
    StateName(String),
    /// The value is not within the limits.
    #[error("the data cannot be kept")]
    Payload(#[source] PayloadError),
    /// One attempt hands over too much.
    #[error("the attempt handed over {count} {what}; the limit is {max}")]
    TooMany {
        /// How many, with this one.
        count: usize,
        /// Of what.
        what: &'static str,
        /// How many there may be.
        max: usize,
    },
    /// The state value is of another shape.
    #[error("the state value `{key}` has another shape")]
    StateShape {
        /// The value's name.
        key: String,
        /// What does not fit.
        #[source]
        source: serde_json::Error,
    },
    /// The attempt must stop.
    #[error("the attempt must stop: {}", .0.as_str())]
    Stopped(Stop),
    /// The attempt has ended: its output is fixed.
    #[error("the attempt has ended, and its output is fixed")]
    Over,
    /// The run has moved past it.
    #[error("the run did not take it")]
    Rejected(#[source] Rejection),
    /// The store failed.
    #[error("the store failed")]
    Store(#[source] Arc<StoreError>),
}

impl StepContext {
    /// The run.
    pub fn run_id(&self) -> RunId {
        self.attempt.claimed.run.run_id
    }

    /// The flow's name.
    pub fn flow(&self) -> &str {
        &self.attempt.flow.flow.name
    }

    /// The revision that the run is pinned to.
    pub fn revision(&self) -> &Revision {
        &self.attempt.flow.flow.revision
    }

    /// The step's name.
    pub fn step(&self) -> &str {
        &self.attempt.step().name
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt.claimed.job.attempt
    }

    /// The idempotency key, `RUN/STEP/1`: the same for every attempt of this step in this run.
    pub fn key(&self) -> String {
        self.attempt.key()
    }

    /// The attempt's place in the run's trace, as the header `traceparent` has it: for requests
    /// that the handler sends. None if no spans are exported.
    pub fn traceparent(&self) -> Option<String> {
        self.attempt.traceparent()
    }

    /// The input as JSON text.
    pub fn input(&self) -> std::borrow::Cow<'_, str> {
        self.attempt.input()
    }

    /// Emits an event when the attempt succeeds. An attempt that fails emits nothing.
    pub fn emit(&self, event: &str, data: &impl Serialize) -> Result<(), ContextError> {
        let data = Payload::of(data).map_err(ContextError::Payload)?;
        emit(&self.attempt, event, data)
    }

    /// Emits an event at once: whoever subscribes to it starts while this step runs, and it stays
    /// even if this attempt fails.
    pub async fn emit_now(&self, event: &str, data: &impl Serialize) -> Result<(), ContextError> {
        let data = Payload::of(data).map_err(ContextError::Payload)?;
        let event = declared(&self.attempt, event)?;
        self.heartbeat()?;
        let report = Report::EmitNow { attempt: self.attempt.for_rules(), event, data };
        let (reply, answer) = tokio::sync::oneshot::channel();
        self.attempt.instance.inbox.report(Arc::clone(&self.attempt), report, Some(reply));
        match answer.await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(CommitError::Rejected(rejection))) => Err(ContextError::Rejected(rejection)),
            Ok(Err(CommitError::Store(error))) => Err(ContextError::Store(error)),
            Ok(Err(
                CommitError::LeaseLost
                | CommitError::RunExists
                | CommitError::NoRun
                | CommitError::Contended
                | CommitError::Moved
                | CommitError::GateMoved(_)
                | CommitError::TooLarge { .. }
                | CommitError::Closed,
            ))
            | Err(_) => {
                Err(ContextError::Stopped(self.attempt.stop_reason().unwrap_or(Stop::LeaseLost)))
            }
        }
    }

    /// Sets a state value of the run when the attempt succeeds.
    pub fn state_set(&self, key: &str, value: &impl Serialize) -> Result<(), ContextError> {
        let value = Payload::of(value).map_err(ContextError::Payload)?;
        state_set(&self.attempt, key, value)
    }

    /// A state value: what this attempt set, else what the run had when the attempt began.
    pub async fn state_get<T: DeserializeOwned>(
        &self,
        key: &str,
    ) -> Result<Option<T>, ContextError> {
        let Some(value) = self.state_value(key).await? else { return Ok(None) };
        value
            .read()
            .map(Some)
            .map_err(|source| ContextError::StateShape { key: key.to_owned(), source })
    }

    async fn state_value(&self, key: &str) -> Result<Option<Payload>, ContextError> {
        if let Some(value) = self.attempt.state_of_attempt(key) {
            return Ok(Some(value));
        }
        let run = &self.attempt.claimed.run;
        let Some(seq) = run.state.get(key) else { return Ok(None) };
        let store = &self.attempt.instance.store;
        let found = store.read_events(run.run_id, seq - 1, 1).await;
        let events = found.map_err(|error| ContextError::Store(Arc::new(error)))?;
        Ok(events.first().map(|stored| stored.event.payload()))
    }

    /// Keeps a log line of the step. Never waits, and is kept also if the attempt fails.
    pub fn log(&self, level: LogLevel, text: &str) {
        self.attempt.log(level, text);
    }

    /// Whether the attempt may go on: an error once the run was cancelled, the lease is lost or the
    /// instance shuts down. Leases are renewed by themselves; this is for handlers that work long
    /// without an `await`.
    pub fn heartbeat(&self) -> Result<(), ContextError> {
        match self.attempt.stop_reason() {
            Some(stop) => Err(ContextError::Stopped(stop)),
            None => Ok(()),
        }
    }

    /// Whether the attempt must stop.
    pub fn is_cancelled(&self) -> bool {
        self.attempt.stop_reason().is_some()
    }

    /// Returns when the attempt must stop, and why.
    pub async fn cancelled(&self) -> Stop {
        self.attempt.stopped().await
    }
}

impl fmt::Debug for StepContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StepContext").field(&self.attempt).finish()
    }
}

/// Keeps an event for the attempt's commit.
pub(crate) fn emit(attempt: &Attempt, event: &str, data: Payload) -> Result<(), ContextError> {
    let name = declared(attempt, event)?;
    let mut count = 0;
    let added = attempt.add_output(|output| {
        count = output.emits.len() + 1;
        if count <= limits::EMITS_PER_ATTEMPT_MAX {
            output.emits.push((name, data));
        }
    });
    taken(added, count, "events", limits::EMITS_PER_ATTEMPT_MAX)
}

/// Keeps a state value for the attempt's commit.
pub(crate) fn state_set(attempt: &Attempt, key: &str, value: Payload) -> Result<(), ContextError> {
    if !is_identifier(key) {
        return Err(ContextError::StateName(key.to_owned()));
    }
    let mut count = 0;
    let added = attempt.add_output(|output| {
        if let Some(kept) = output.state.iter_mut().find(|(name, _)| **name == *key) {
            kept.1 = value;
            return;
        }
        count = output.state.len() + 1;
        if count <= limits::STATE_KEYS_MAX {
            output.state.push((key.into(), value));
        }
    });
    taken(added, count, "state values", limits::STATE_KEYS_MAX)
}

fn taken(added: bool, count: usize, what: &'static str, max: usize) -> Result<(), ContextError> {
    if !added {
        return Err(ContextError::Over);
    }
    if count > max {
        return Err(ContextError::TooMany { count, what, max });
    }
    Ok(())
}

fn declared(attempt: &Attempt, event: &str) -> Result<Arc<str>, ContextError> {
    let flow = &attempt.flow.flow;
    let names = || attempt.step().emits.iter().map(|slot| &flow.slot(*slot).name);
    if let Some(name) = names().find(|name| ***name == *event) {
        return Ok(Arc::clone(name));
    }
    let names: Vec<&str> = names().map(|name| &**name).collect();
    let declared = if names.is_empty() {
        "; it declares none".to_owned()
    } else {
        format!("; it declares `{}`", names.join("`, `"))
    };
    Err(ContextError::EventUndeclared { event: event.to_owned(), declared })
}
