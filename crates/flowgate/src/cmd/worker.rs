//! `flowgate worker`.

use clap::Subcommand;

use super::App;
use crate::failure::Outcome;

pub(crate) mod start;

/// Runs workers.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Execute runs until it is told to stop
    Start(start::Args),
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    match args.verb {
        Verb::Start(args) => start::run(app, args).await,
    }
}
