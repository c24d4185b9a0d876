//! The flowgate command.

use std::process::ExitCode;

mod clock;
mod cmd;
mod config;
mod failure;
mod flow_files;
mod input;
mod logging;
mod lookup;
mod output;
mod stores;

fn main() -> ExitCode {
    cmd::main()
}
