//! `cargo xtask load`: the release binary under clients that are slow, deaf or many.
//!
//! `slow` measures a normal request before and while 1,000 clients send a byte a second and 500
//! follow events, 100 of which never read. `starts` measures with `wrk` how many starts a second
//! the API accepts on a durable embedded store, beside a bare handler and the engine's own rate.

mod instance;
mod request;
mod slow;
mod starts;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ValueEnum};

use crate::workspace::Workspace;
use crate::{launch, output, signals};

#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// Do only this part
    #[arg(long, value_enum, value_name = "PART")]
    only: Option<Part>,
    /// Shorter: rough figures, and no promise about those that other work on the machine changes
    #[arg(long)]
    quick: bool,
    /// Measure this binary instead of building one for release
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// A part of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Slow,
    Starts,
}

/// How much is done, and what is promised of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Short,
    Full,
}

pub(crate) fn run(workspace: &Workspace, args: &LoadArgs) -> anyhow::Result<ExitCode> {
    signals::hold()?;
    let form = if args.quick { Form::Short } else { Form::Full };
    let binary = match &args.binary {
        Some(binary) => binary.canonicalize().context("finding the binary")?,
        None => launch::build(workspace, "flowgate")?,
    };
    let mut broken = Vec::new();
    if args.only != Some(Part::Starts) {
        broken.extend(slow::measure(&binary, form)?);
    }
    if args.only != Some(Part::Slow) {
        broken.extend(starts::measure(&binary, form)?);
    }
    Ok(told(&broken))
}

/// The short form, a stage of `cargo xtask test`: what needs no program that may be missing.
pub(crate) fn stage(workspace: &Workspace) -> anyhow::Result<i32> {
    let binary = launch::build(workspace, "flowgate")?;
    let broken = slow::measure(&binary, Form::Short)?;
    let is_kept = told(&broken) == ExitCode::SUCCESS;
    Ok(i32::from(!is_kept))
}

fn told(broken: &[String]) -> ExitCode {
    for promise in broken {
        output::complain(&format!("missed: {promise}"));
    }
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
