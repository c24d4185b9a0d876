//! Log lines of steps, on their way to the store.
//!
//! A step never waits for its log: lines go into a bounded channel, and one task writes them in
//! batches. What finds no room is dropped and counted; the step's next line says so.

use std::time::Duration;

use flowgate_store::{NewLogLine, Store};
use metrics::Counter;
use tokio::sync::{mpsc, oneshot};

use crate::backoff::Backoff;

/// Lines that wait to be written.
const LINES_WAITING_MAX: usize = 32 << 10;
/// Lines in one write.
const LINES_PER_WRITE_MAX: usize = 1_000;

/// Where steps put their lines.
#[derive(Debug)]
pub(crate) struct LogSink {
    sender: mpsc::Sender<Entry>,
    dropped: Counter,
}

#[derive(Debug)]
enum Entry {
    Line(NewLogLine),
    /// Answered once everything before it is written.
    Flush(oneshot::Sender<()>),
}

/// What writes them.
#[derive(Debug)]
pub(crate) struct LogWriter {
    receiver: mpsc::Receiver<Entry>,
}

/// A sink and its writer.
pub(crate) fn channel() -> (LogSink, LogWriter) {
    let (sender, receiver) = mpsc::channel(LINES_WAITING_MAX);
    let dropped = metrics::counter!("flowgate_log_lines_dropped_total");
    (LogSink { sender, dropped }, LogWriter { receiver })
}

impl LogSink {
    /// Takes a line; false if there is no room for it.
    pub(crate) fn write(&self, line: NewLogLine) -> bool {
        let is_taken = self.sender.try_send(Entry::Line(line)).is_ok();
        if !is_taken {
            self.dropped.increment(1);
        }
        is_taken
    }

    /// Returns when every line so far is in the store, or given up.
    pub(crate) async fn flush(&self) {
        let (done, written) = oneshot::channel();
        if self.sender.send(Entry::Flush(done)).await.is_ok() {
            drop(written.await);
        }
    }
}

impl LogWriter {
    /// Writes lines until `closed` resolves and all that came before it is written.
    pub(crate) async fn run(mut self, store: &dyn Store, closed: impl Future<Output = ()>) {
        tokio::pin!(closed);
        let mut is_closed = false;
        let mut batch = Vec::new();
        loop {
            let count = tokio::select! {
                biased;
                count = self.receiver.recv_many(&mut batch, LINES_PER_WRITE_MAX) => count,
                () = &mut closed, if !is_closed => {
                    is_closed = true;
                    self.receiver.close();
                    continue;
                }
            };
            if count == 0 {
                return;
            }
            // After the end of the engine nobody waits for a store that does not answer.
            let tries_max = if is_closed { 3 } else { 10 };
            write(store, &mut batch, tries_max).await;
        }
    }
}

async fn write(store: &dyn Store, batch: &mut Vec<Entry>, tries_max: u32) {
    let mut lines = Vec::with_capacity(batch.len());
    let mut flushes = Vec::new();
    for entry in batch.drain(..) {
        match entry {
            Entry::Line(line) => lines.push(line),
            Entry::Flush(done) => flushes.push(done),
        }
    }
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
    while !lines.is_empty() {
        let Err(error) = store.append_logs(lines.clone()).await else { break };
        if !error.is_transient() || backoff.tries() >= tries_max {
            tracing::error!(%error, lines = lines.len(), "log lines of steps could not be written");
            metrics::counter!("flowgate_log_lines_dropped_total")
                .increment(u64::try_from(lines.len()).unwrap_or(u64::MAX));
            break;
        }
        backoff.wait().await;
    }
    for done in flushes {
        // Whoever asked may be gone.
        done.send(()).unwrap_or(());
    }
}
