//! `flowgate store`.

use clap::Subcommand;

use super::App;
use crate::failure::Outcome;

mod copy;

/// Works with whole stores.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Copy flows, runs, history and log lines to another store
    Copy(copy::Args),
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    match args.verb {
        Verb::Copy(args) => copy::run(&app, args).await,
    }
}
