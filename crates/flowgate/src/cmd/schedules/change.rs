//! `flowgate schedules pause`, `resume`, `remove`, `backfill` and `trigger`: changing what happens.
//!
//! What is asked for is written down, and whichever instance leads carries it out.

use flowgate_server::wire::Items;
use flowgate_server::wire::instances::LeaderReport;
use flowgate_server::wire::schedules::{
    AddSchedule, Backfill as Range, OccurrenceItem, ScheduleItem,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::super::App;
use super::path;
use crate::failure::{Exit, Failure, Outcome};
use crate::reach::Reach;

/// Pauses a schedule.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  flowgate schedules pause report/nightly")]
pub(crate) struct Pause {
    /// The schedule
    name: String,
}

/// Resumes a schedule.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What was due while it was paused stays skipped; `flowgate schedules backfill` starts it all the \
same.

Example:
  flowgate schedules resume report/nightly")]
pub(crate) struct Resume {
    /// The schedule
    name: String,
}

/// Removes a schedule.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  flowgate schedules remove nightly")]
pub(crate) struct Remove {
    /// The schedule
    name: String,
}

/// Fills a range.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Starts every occurrence of the range that has no run, all at once and whatever the overlap policy \
says; at most 500. An occurrence that was started before is not started again.

Examples:
  flowgate schedules backfill report/nightly --from 7d
  flowgate schedules backfill report/nightly --from 2026-01-01T00:00:00Z --to 2026-01-08T00:00:00Z")]
pub(crate) struct Backfill {
    /// The schedule
    name: String,
    /// From this time on: `7d` ago, or a time such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    from: String,
    /// Up to this time [default: now]
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

/// Starts a run now.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Prints the id of the run, which the leader starts with the input of the schedule.

Example:
  flowgate schedules trigger report/nightly")]
pub(crate) struct Trigger {
    /// The schedule
    name: String,
}

pub(crate) async fn pause(app: &App, args: Pause) -> Outcome {
    let item = post(app, &format!("{}/pause", path(&args.name)), &()).await?;
    tell(app, &item, "paused").await
}

pub(crate) async fn resume(app: &App, args: Resume) -> Outcome {
    let item = post(app, &format!("{}/resume", path(&args.name)), &()).await?;
    tell(app, &item, "resumed").await
}

pub(crate) async fn remove(app: &App, args: Remove) -> Outcome {
    let reach = Reach::write(app).await?;
    let item = reach.delete(&path(&args.name)).await;
    let item = reach.finish(item).await?;
    tell(app, &item, "removed").await
}

/// Adds a schedule.
pub(super) async fn add(app: &App, request: &AddSchedule) -> Outcome {
    let item = post(app, "/schedules", request).await?;
    tell(app, &item, "added").await
}

pub(crate) async fn backfill(app: &App, args: Backfill) -> Outcome {
    let range = Range { from: args.from, to: args.to };
    let filled: Items<OccurrenceItem> =
        post(app, &format!("{}/backfill", path(&args.name)), &range).await?;
    if app.output.json {
        app.output.json(&filled)?;
        return Ok(Exit::Done);
    }
    for row in &filled.items {
        let run = row.run_id.map(|run_id| run_id.to_string()).unwrap_or_default();
        app.output.line(format_args!("{}  {run}", row.due_at))?;
    }
    if filled.items.is_empty() {
        app.output.note("every occurrence of the range has its run, or there is none");
    }
    tell_of_leader(app).await?;
    Ok(Exit::Done)
}

pub(crate) async fn trigger(app: &App, args: Trigger) -> Outcome {
    let row: OccurrenceItem = post(app, &format!("{}/trigger", path(&args.name)), &()).await?;
    if app.output.json {
        app.output.json(&row)?;
        return Ok(Exit::Done);
    }
    app.output.line(row.run_id.map(|run_id| run_id.to_string()).unwrap_or_default())?;
    tell_of_leader(app).await?;
    Ok(Exit::Done)
}

/// Sends a request to whoever may write to the store.
async fn post<T: DeserializeOwned>(
    app: &App,
    path: &str,
    body: &impl Serialize,
) -> Result<T, Failure> {
    let reach = Reach::write(app).await?;
    let answer = reach.post(path, body).await;
    reach.finish(answer).await
}

/// Says what is so now.
async fn tell(app: &App, item: &ScheduleItem, done: &'static str) -> Outcome {
    if app.output.json {
        app.output.json(item)?;
        return Ok(Exit::Done);
    }
    app.output.line(&item.name)?;
    match &item.next_at {
        Some(next) if !item.paused && done != "removed" => {
            app.output.note(format_args!("{done}; it is due next at {next}"));
            tell_of_leader(app).await?;
        }
        Some(_) | None => app.output.note(done),
    }
    Ok(Exit::Done)
}

/// Says so if no instance would fire schedules now.
async fn tell_of_leader(app: &App) -> Result<(), Failure> {
    let report: LeaderReport = Reach::read(app).await?.get("/leader", &[("limit", "1")]).await?;
    if report.leader.is_none() {
        app.output.note("no instance leads now: it happens when one does; start `flowgate dev`");
    }
    Ok(())
}
