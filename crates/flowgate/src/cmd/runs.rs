//! `flowgate runs`.

use clap::Subcommand;

use super::App;
use crate::failure::Outcome;

mod events;
mod list;
mod migrate;
pub(crate) mod show;
pub(crate) mod steer;

/// Works with runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
RUN is a run's id, its first 6 letters or more, or `latest`.

Verbs that read also work beside a process that owns the store. Verbs that change something are \
handed to that process; with the store free they are written at once, and `flowgate dev` carries \
them out.

Examples:
  flowgate runs list
  flowgate runs show latest")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start a run of a flow that is in the store
    Start(steer::Start),
    /// List runs, the latest first
    List(list::Args),
    /// Show a run: its record, its steps and its open jobs
    Show(show::Args),
    /// Show what happened in a run
    Events(events::Events),
    /// Follow a run until it ends
    Watch(events::Watch),
    /// Show what the steps of a run logged
    Logs(events::Logs),
    /// Print events as one line of JSON each
    Export(events::Export),
    /// Send a run a signal that a step of it waits for
    Signal(steer::Signal),
    /// Stop a run for good
    Cancel(steer::Cancel),
    /// Try a finished run again, as a new run
    Retry(steer::Retry),
    /// Move open runs to another revision of their flow, with a plan first
    Migrate(migrate::Args),
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    match args.verb {
        Verb::Start(args) => steer::start(&app, args).await,
        Verb::List(args) => list::run(&app, args).await,
        Verb::Show(args) => show::run(&app, args).await,
        Verb::Events(args) => events::events(&app, args).await,
        Verb::Watch(args) => events::watch(&app, args).await,
        Verb::Logs(args) => events::logs(&app, args).await,
        Verb::Export(args) => events::export(&app, args).await,
        Verb::Signal(args) => steer::signal(&app, args).await,
        Verb::Cancel(args) => steer::cancel(&app, args).await,
        Verb::Retry(args) => steer::retry(&app, args).await,
        Verb::Migrate(args) => migrate::run(&app, args).await,
    }
}
