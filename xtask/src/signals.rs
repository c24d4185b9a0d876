//! Signals that ask xtask to end, and how it ends what it has started before it does.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

use anyhow::{Context, bail};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::output;

/// The command that runs now, if there is one.
static COMMAND: AtomicU32 = AtomicU32::new(NO_COMMAND);
const NO_COMMAND: u32 = 0;
static IS_ASKED_TO_END: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C and SIGTERM do not end xtask at once: they end the command that runs, and
/// no further command starts, so that xtask comes to its end and takes its servers along.
///
/// Each signal is also told to the receiver.
pub(crate) fn hold() -> anyhow::Result<(Sender<()>, Receiver<()>)> {
    let (sender, receiver) = mpsc::channel();
    let (registered, is_registered) = mpsc::channel();
    let tell = sender.clone();
    std::thread::spawn(move || match register() {
        Ok((runtime, interrupts, terminations)) => {
            registered.send(Ok(())).unwrap_or_default();
            listen(&runtime, interrupts, terminations, &tell);
        }
        Err(error) => registered.send(Err(error)).unwrap_or_default(),
    });
    is_registered.recv().context("starting to listen for signals")??;
    Ok((sender, receiver))
}

/// Says which command runs while `wait` waits for it.
pub(crate) fn while_it_runs<T>(pid: u32, wait: impl FnOnce() -> T) -> T {
    COMMAND.store(pid, Ordering::SeqCst);
    let result = wait();
    COMMAND.store(NO_COMMAND, Ordering::SeqCst);
    result
}

/// Fails if xtask was asked to end.
pub(crate) fn may_go_on() -> anyhow::Result<()> {
    if IS_ASKED_TO_END.load(Ordering::SeqCst) {
        bail!("a signal asked for the end");
    }
    Ok(())
}

fn register() -> anyhow::Result<(Runtime, Signal, Signal)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("making a runtime for signals")?;
    let listeners = {
        let _entered = runtime.enter();
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    };
    let interrupts = listeners.0.context("listening for Ctrl-C")?;
    let terminations = listeners.1.context("listening for SIGTERM")?;
    Ok((runtime, interrupts, terminations))
}

fn listen(runtime: &Runtime, mut interrupts: Signal, mut terminations: Signal, tell: &Sender<()>) {
    runtime.block_on(async {
        loop {
            tokio::select! {
                _ = interrupts.recv() => {}
                _ = terminations.recv() => {}
            }
            IS_ASKED_TO_END.store(true, Ordering::SeqCst);
            pass_on();
            // If nobody waits for it, the end is under way by other means.
            tell.send(()).unwrap_or_default();
        }
    });
}

fn pass_on() {
    let pid = COMMAND.load(Ordering::SeqCst);
    if pid == NO_COMMAND {
        return;
    }
    // A command that has ended in the meantime is no fault.
    if let Err(error) = Command::new("kill").args(["-TERM", &pid.to_string()]).output() {
        output::complain(&format!("cannot end process {pid}: {error}"));
    }
}
