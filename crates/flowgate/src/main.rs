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

fn main() -> ExitCode {
    cmd::main()
}
