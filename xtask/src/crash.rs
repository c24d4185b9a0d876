//! `cargo xtask crash`: the crash test of the release binary.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

use crate::launch;
use crate::workspace::{Workspace, exit_code};

/// The verb of the binary that does the work.
pub(crate) const VERB: &str = "crash-test";

/// The short form, a stage of `cargo xtask test`.
pub(crate) const SHORT_FORM: &[&str] = &["--on", "sqlite", "--runs", "60", "--kills", "5"];

#[derive(Debug, Args)]
pub(crate) struct CrashArgs {
    /// Handed to `flowgate crash-test`: --store, --runs, --kills, --seed, --json
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

pub(crate) fn run(workspace: &Workspace, args: &CrashArgs) -> anyhow::Result<ExitCode> {
    launch::flowgate(workspace, VERB, &launch::with_kind(&args.args), &[]).map(exit_code)
}
