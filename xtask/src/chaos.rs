//! `cargo xtask chaos`, `scenario` and `deploy-chaos`: real instances on private servers, under
//! faults.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

use crate::workspace::{Workspace, exit_code};
use crate::{launch, output, services};

/// The harness.
const PACKAGE: &str = "flowgate-chaos";

/// The short forms, a stage of `cargo xtask test`.
const SHORT_FORMS: &[(&str, &[&str])] = &[
    ("drive", &["--store", "postgres", "--instances", "3", "--runs", "100", "--faults", "15"]),
    ("drive", &["--store", "redis", "--instances", "3", "--runs", "100", "--faults", "15"]),
    ("scenario", &["fourth-instance", "--store", "postgres"]),
    ("scenario", &["rolling-restart", "--store", "redis"]),
    ("scenario", &["outage", "--store", "postgres", "--seconds", "8"]),
    ("scenario", &["leader", "--store", "redis", "--faults", "4", "--seconds", "15"]),
    ("scenario", &["leader", "--store", "postgres", "--faults", "4", "--seconds", "15"]),
    ("scenario", &["subscriber", "--store", "redis", "--faults", "4"]),
    ("scenario", &["subscriber", "--store", "postgres", "--faults", "4"]),
    ("deploys", &["--store", "redis", "--messages", "1000", "--rate", "60", "--deploys", "3"]),
    ("deploys", &["--store", "postgres", "--messages", "700", "--rate", "20", "--boundaries"]),
];

#[derive(Debug, Args)]
pub(crate) struct ChaosArgs {
    /// Handed to the harness: --store, --instances, --runs, --faults, --seed, --json, --keep,
    /// --plant, or for deployments --messages, --rate, --deploys, --boundaries; `--help` says more
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Runs `flowgate-chaos VERB ARGS…`.
pub(crate) fn run(workspace: &Workspace, verb: &str, args: &ChaosArgs) -> anyhow::Result<ExitCode> {
    services::install(&services::needed())?;
    let binary = launch::build(workspace, PACKAGE)?;
    launch::run(workspace, &binary, verb, &args.args, &[]).map(exit_code)
}

/// Runs the short forms, up to the first that fails.
pub(crate) fn short_forms(workspace: &Workspace) -> anyhow::Result<Option<i32>> {
    let binary = launch::build(workspace, PACKAGE)?;
    for (verb, args) in SHORT_FORMS {
        output::complain(&format!("-- {verb} {}", args.join(" ")));
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        let status = launch::run(workspace, &binary, verb, &args, &[])?;
        if !status.success() {
            return Ok(status.code());
        }
    }
    Ok(Some(0))
}
