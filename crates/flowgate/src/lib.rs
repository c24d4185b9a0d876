//! Flows that survive anything, inside your own program.
//!
//! A flow is a graph of steps that subscribe to events and emit events. An [`Engine`] executes the
//! runs of flows on a [`Store`]; what a store has accepted survives the end of the process, and the
//! next engine on the same store goes on with it. Steps are programs, HTTP requests, waits, or
//! handlers of yours: async functions that are registered with [`Workers`] by the name that flows
//! call them.
//!
//! ```
//! use std::sync::Arc;
//!
//! use flowgate::{
//!     Engine, EngineConfig, FlowBuilder, HandlerError, MemoryStore, Payload, RunStatus,
//!     StartRequest, StepBuilder, StepContext, Workers, instance_id,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut workers = Workers::new();
//! workers.register("greet", async |name: String, step: StepContext| {
//!     step.emit("greeted", &format!("Hello, {name}!"))?;
//!     Ok::<_, HandlerError>(name.len())
//! });
//!
//! let flow = FlowBuilder::new("hello")
//!     .step(StepBuilder::new("greet").worker("greet").emits(["greeted"]))
//!     .step(StepBuilder::new("done").after_all(["greeted"]))
//!     .build()
//!     .map_err(|mut problems| problems.remove(0))?;
//!
//! let store = Arc::new(MemoryStore::new());
//! let engine = Engine::start(store, workers, EngineConfig::new(instance_id()))?;
//! engine.register(&flow, None).await?;
//! let run = engine.run_to_end("hello", StartRequest::new(Payload::of(&"Ada")?)).await?;
//! assert_eq!(run.status, RunStatus::Completed);
//! engine.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! With [`SqliteStore`] in place of [`MemoryStore`] the runs are kept in a file, and with what
//! [`open_shared`] opens many processes work on the same ones.
#![warn(missing_docs)]

pub use flowgate_core::event::{Event, StepError, StoredEvent};
pub use flowgate_core::flow::{
    BackoffFile, Flow, FlowBuilder, FlowErrors, OnTimeout, Problem, Span, StepBuilder,
};
pub use flowgate_core::ids::{InstanceId, Position, Revision, RunId};
pub use flowgate_core::payload::{Payload, PayloadError};
pub use flowgate_core::retry::RetryPolicy;
pub use flowgate_core::run::{Run, RunStatus, StepState};
pub use flowgate_core::time::Timestamp;
pub use flowgate_engine::subscriber;
pub use flowgate_engine::{
    Applied, ConfigError, ContextError, Engine, EngineConfig, EngineError, FlowRef, HandlerError,
    StartDebounce, StartRequest, Started, StepContext, Stop, Workers, instance_id,
};
pub use flowgate_store::{
    LogLevel, MemoryStore, Queues, Retention, RunDetail, RunQuery, RunRow, SqliteOptions,
    SqliteStore, Store, StoreError, StoreUrl, Synchronous, open_shared,
};
