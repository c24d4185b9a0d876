//! The flowgate command.

use std::process::ExitCode;

mod clock;
mod cmd;
mod config;
mod control;
mod failure;
mod flow_files;
mod input;
mod instance;
mod logging;
mod lookup;
mod output;
mod progress;
mod record;
mod report;
mod signals;
mod stores;

/// A commit is made on one thread and freed on another, over and over; this allocator takes that
/// a quarter cheaper than the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cmd::main()
}
