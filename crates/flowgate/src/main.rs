//! The flowgate command.

use std::process::ExitCode;

mod clock;
mod cmd;
mod config;
mod confirm;
mod control;
mod failure;
mod flow_files;
mod folders;
mod input;
mod instance;
mod logging;
mod monitor;
mod output;
mod progress;
mod reach;
mod signals;
mod sse;
mod stores;
mod subscribers;
mod systemd;

/// A commit is made on one thread and freed on another, over and over; with this allocator a step
/// took about a fifth less CPU than with the system's (docs/benchmarks.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cmd::main()
}
