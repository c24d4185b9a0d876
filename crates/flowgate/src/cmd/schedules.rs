//! `flowgate schedules`.

use clap::Subcommand;
use flowgate_core::flow::nearest;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::schedule::{Fate, Occurrence, Reason, Schedule};
use flowgate_core::time::Timestamp;
use flowgate_engine::{NamedSchedule, read_schedules};
use flowgate_store::Store;
use serde_json::{Value, json};

use super::App;
use crate::failure::{Failure, Outcome};

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

/// A schedule as programs read it.
pub(crate) fn item(named: &NamedSchedule, now: Timestamp) -> Value {
    let record = &named.record;
    json!({
        "name": named.name, "flow": record.spec.flow, "schedule": record.spec.file,
        "source": record.source, "paused": record.is_paused,
        "next_at": next_at(named, now).map(|at| at.to_string()),
        "decided_through": record.fired_through.to_string(),
        "added_at": record.added_at.to_string(), "last_run": record.last_run,
        "queued": record.queued.map(|at| at.to_string()), "pending": record.pending.len(),
    })
}

/// The next due time after now; what is past and not decided yet is not waited for.
fn next_at(named: &NamedSchedule, now: Timestamp) -> Option<Timestamp> {
    let schedule = Schedule::new(&named.record.spec.file).ok()?;
    schedule.next_after(named.record.fired_through.max(now))
}

/// An entry of the ledger as programs read it.
pub(crate) fn row(row: &Occurrence) -> Value {
    json!({
        "due_at": row.due_at.to_string(), "fate": row.fate, "reason": row.reason,
        "run_id": row.run_id, "decided_at": row.decided_at.to_string(), "term": row.term,
        "asked": row.asked, "through": row.through.map(|at| at.to_string()), "error": row.error,
    })
}

/// Why an occurrence was not started, for people.
fn note(row: &Occurrence) -> String {
    let reason = row.reason.map(Reason::as_str).unwrap_or_default();
    match (&row.through, &row.error) {
        (Some(through), _) => format!("and all to {through}: {reason}"),
        (None, Some(error)) => error.clone(),
        (None, None) => reason.to_owned(),
    }
}

/// The schedule called `name`.
async fn find(store: &dyn Store, name: &str) -> Result<NamedSchedule, Failure> {
    let keys = [name.into()];
    let found = store.read_records(flowgate_engine::SCHEDULE, &keys).await?;
    match found.into_iter().flatten().next() {
        Some(record) => Ok(NamedSchedule::read(record)?),
        None => Err(unknown(store, name).await?),
    }
}

/// What to say about a schedule that the store does not have.
pub(crate) async fn unknown(store: &dyn Store, name: &str) -> Result<Failure, Failure> {
    let known = read_schedules(store, None, PAGE_MAX).await?;
    let help = match nearest(name, known.iter().map(|named| &*named.name)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "see `flowgate schedules list`; those of a flow file are FLOW/NAME".to_owned(),
    };
    let message = format!("there is no schedule `{name}`");
    Ok(Failure::not_found("schedule_not_found", message).help(help).path(name))
}

/// The names of all fates, for the command line.
fn fates() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(Fate::ALL.map(Fate::as_str))
}
