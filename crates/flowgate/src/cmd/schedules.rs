//! `flowgate schedules`.

use clap::Subcommand;
use flowgate_core::schedule::{Fate, Reason};
use flowgate_server::wire::schedules::OccurrenceItem;

use super::App;
use crate::failure::Outcome;
use crate::reach::segment;

mod add;
mod change;
mod look;

/// Works with schedules.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A schedule starts runs of a flow by the clock of the store. Those of a flow file are called \
FLOW/NAME and come and go with the file; others are added here and stay. Of all instances on a \
store one leads and fires them: see `flowgate instances --leader`.

Every due time has an entry in the ledger that says what became of it:
  fired       started in time
  late        started late, as the schedule catches up, or by a backfill
  queued      waits for the open run to end
  skipped     left out by a policy, or while paused
  missed      no instance led in time, and the schedule does not catch up that far
  suppressed  it had been started before; a second start was suppressed
  failed      could not be started

Examples:
  flowgate schedules list
  flowgate schedules add nightly --flow report --cron '30 2 * * *' --zone Europe/Berlin
  flowgate schedules occurrences nightly")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List schedules by name, with their next due times
    List(look::List),
    /// Show a schedule, what comes next and what became of the last
    Show(look::Show),
    /// Add a schedule for a flow that is in the store
    Add(Box<add::Args>),
    /// Skip the occurrences of a schedule until it is resumed
    Pause(change::Pause),
    /// Skip them no longer
    Resume(change::Resume),
    /// Remove a schedule that was added by hand; its runs and its ledger stay
    Remove(change::Remove),
    /// Show when a schedule is due next
    Next(look::Next),
    /// Show what became of each occurrence, the latest first
    Occurrences(look::Occurrences),
    /// Start what was due in a range and has no run
    Backfill(change::Backfill),
    /// Start a run of a schedule now
    Trigger(change::Trigger),
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    match args.verb {
        Verb::List(args) => look::list(&app, args).await,
        Verb::Show(args) => look::show(&app, args).await,
        Verb::Add(args) => add::run(&app, *args).await,
        Verb::Pause(args) => change::pause(&app, args).await,
        Verb::Resume(args) => change::resume(&app, args).await,
        Verb::Remove(args) => change::remove(&app, args).await,
        Verb::Next(args) => look::next(&app, args).await,
        Verb::Occurrences(args) => look::occurrences(&app, args).await,
        Verb::Backfill(args) => change::backfill(&app, args).await,
        Verb::Trigger(args) => change::trigger(&app, args).await,
    }
}

/// The path of a schedule.
fn path(name: &str) -> String {
    format!("/schedules/{}", segment(name))
}

/// Why an occurrence was not started, for people.
fn note(row: &OccurrenceItem) -> String {
    let reason = row.reason.map(Reason::as_str).unwrap_or_default();
    match (&row.through, &row.error) {
        (Some(through), _) => format!("and all to {through}: {reason}"),
        (None, Some(error)) => error.clone(),
        (None, None) => reason.to_owned(),
    }
}

/// The names of all fates, for the command line.
fn fates() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(Fate::ALL.map(Fate::as_str))
}
