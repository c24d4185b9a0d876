//! Spans of runs and attempts, for a collector that speaks OTLP over HTTP.
//!
//! ```text
//!   committer ── Applied (broadcast) ── spans ── queue ── exporter ── collector
//!                 falls behind: missed   make     full: dropped   fails: dropped
//! ```
//!
//! - Spans are made of what is committed, by the instance that commits it: the span of an attempt
//!   by the one that settles it, the span of a run by the one that ends it.
//! - Their ids follow from the run ([`flowgate_core::trace`]), so the spans of many instances are
//!   one trace without anything being handed over.
//! - Nobody waits for a collector. What it does not take in time is dropped and counted; runs know
//!   nothing of it.
#![warn(missing_docs)]

mod endpoint;
mod exporter;
mod recent;
mod spans;

use std::sync::Arc;
use std::time::Duration;

use flowgate_engine::{Applied, Engine};
use opentelemetry_sdk::trace::SpanData;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use endpoint::{Endpoint, EndpointError};

use crate::exporter::{Dropped, Exporter};
use crate::spans::SpanMaker;

/// Spans that wait for the collector.
const QUEUE_MAX: usize = 8_192;
/// How long the last spans may take on their way, at the end of a process.
const FINISH_MAX: Duration = Duration::from_secs(3);

/// Why no spans can be exported.
#[derive(Debug, thiserror::Error)]
#[error("no client for the trace collector can be made")]
pub struct TracesError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// Exports the spans of an engine until it is finished.
#[derive(Debug)]
pub struct Traces {
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl Traces {
    /// Exports what `engine` commits from now on. Steps learn their place in the trace only if the
    /// engine's configuration says that it is traced.
    pub fn start(engine: &Engine, endpoint: &Endpoint) -> Result<Self, TracesError> {
        let exporter = Exporter::new(&engine.config().instance, endpoint)?;
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let stop = CancellationToken::new();
        let maker = SpanMaker::new(Arc::clone(engine.store()));
        let listener = Listener { commits: engine.events(), maker, queue, stop: stop.clone() };
        let mut tasks = JoinSet::new();
        tasks.spawn(listener.listen());
        tasks.spawn(exporter.export(waiting));
        Ok(Self { tasks, stop })
    }

    /// Exports what has been committed so far, and ends. Call it after the engine has shut down.
    ///
    /// A collector that does not answer is waited for a few seconds at most.
    pub async fn finish(mut self) {
        self.stop.cancel();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(FINISH_MAX, ended).await.is_err() {
            tracing::warn!("the trace collector did not take the last spans in time");
        }
    }
}

/// Turns commits into spans.
struct Listener {
    commits: broadcast::Receiver<Arc<Applied>>,
    maker: SpanMaker,
    queue: mpsc::Sender<SpanData>,
    stop: CancellationToken,
}

impl Listener {
    async fn listen(mut self) {
        let dropped = Dropped::new();
        loop {
            let received = tokio::select! {
                biased;
                received = self.commits.recv() => received,
                () = self.stop.cancelled() => break,
            };
            match received {
                Ok(applied) => self.make(&applied, &dropped).await,
                Err(RecvError::Lagged(missed)) => dropped.missed.increment(missed),
                Err(RecvError::Closed) => return,
            }
        }
        loop {
            match self.commits.try_recv() {
                Ok(applied) => self.make(&applied, &dropped).await,
                Err(TryRecvError::Lagged(missed)) => dropped.missed.increment(missed),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }

    async fn make(&mut self, applied: &Applied, dropped: &Dropped) {
        for span in self.maker.make(applied).await {
            if self.queue.try_send(span).is_err() {
                dropped.queue_full.increment(1);
            }
        }
    }
}
