//! The user, or the system, wants this process to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Exit, Failure};

/// Hears SIGINT and SIGTERM from now on; neither ends the process by itself any more.
#[derive(Debug)]
pub(crate) struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    pub(crate) fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Failure::new(Exit::Store, "signals_failed", "cannot listen to signals")
                    .source(error)
            })
        };
        let interrupt = listen(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for the next one; the exit code that says which.
    pub(crate) async fn next(&mut self) -> Exit {
        tokio::select! {
            _ = self.interrupt.recv() => Exit::Interrupted,
            _ = self.terminate.recv() => Exit::Terminated,
        }
    }
}
