//! `flowgate schedules pause`, `resume`, `remove`, `backfill` and `trigger`: changing what happens.
//!
//! The owner of an embedded store does it. If nobody owns it, or the store is shared, it is written
//! down here, and whichever instance leads carries it out.

use flowgate_store::control::Term;
use serde_json::Value;

use super::super::App;
use crate::cmd::runs::steer;
use crate::control::{Request, ScheduleChange};
use crate::failure::{Exit, Outcome};
use crate::lookup;
use crate::stores;

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
    send(app, args.name, ScheduleChange::Pause, "paused").await
}

pub(crate) async fn resume(app: &App, args: Resume) -> Outcome {
    send(app, args.name, ScheduleChange::Resume, "resumed").await
}

pub(crate) async fn remove(app: &App, args: Remove) -> Outcome {
    send(app, args.name, ScheduleChange::Remove, "removed").await
}

pub(crate) async fn backfill(app: &App, args: Backfill) -> Outcome {
    let now = stores::open_to_read(app).await?.now().await?;
    let from = lookup::time("--from", &args.from, now)?;
    let to = args.to.as_deref().map(|text| lookup::time("--to", text, now)).transpose()?;
    let change = ScheduleChange::Backfill { from, to: to.unwrap_or(now) };
    let rows = ask(app, args.name, change).await?;
    if app.output.json {
        app.output.json(&serde_json::json!({ "items": rows }))?;
        return Ok(Exit::Done);
    }
    let rows = rows.as_array().map(Vec::as_slice).unwrap_or_default();
    for row in rows {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        app.output.line(format_args!("{}  {}", text("due_at"), text("run_id")))?;
    }
    if rows.is_empty() {
        app.output.note("every occurrence of the range has its run, or there is none");
    }
    tell_of_leader(app).await?;
    Ok(Exit::Done)
}

pub(crate) async fn trigger(app: &App, args: Trigger) -> Outcome {
    let row = ask(app, args.name, ScheduleChange::Trigger).await?;
    if app.output.json {
        app.output.json(&row)?;
        return Ok(Exit::Done);
    }
    app.output.line(row["run_id"].as_str().unwrap_or_default())?;
    tell_of_leader(app).await?;
    Ok(Exit::Done)
}

/// Has a schedule changed, and says what is so now.
pub(super) async fn send(
    app: &App,
    name: String,
    change: ScheduleChange,
    done: &'static str,
) -> Outcome {
    let item = ask(app, name, change).await?;
    if app.output.json {
        app.output.json(&item)?;
        return Ok(Exit::Done);
    }
    app.output.line(item["name"].as_str().unwrap_or_default())?;
    match item["next_at"].as_str() {
        Some(next) if item["paused"] != true && done != "removed" => {
            app.output.note(format_args!("{done}; it is due next at {next}"));
            tell_of_leader(app).await?;
        }
        Some(_) | None => app.output.note(done),
    }
    Ok(Exit::Done)
}

async fn ask(
    app: &App,
    name: String,
    change: ScheduleChange,
) -> Result<Value, crate::failure::Failure> {
    steer::send(app, Request::Schedule { name, change }).await?.reply.value()
}

/// Says so if no instance would fire schedules now.
async fn tell_of_leader(app: &App) -> Result<(), crate::failure::Failure> {
    let store = stores::open_to_read(app).await?;
    let now = store.now().await?;
    let term: Option<Term> = store.past_terms("leader", 1).await?.into_iter().next();
    if !term.is_some_and(|term| term.is_held(now)) {
        app.output.note("no instance leads now: it happens when one does; start `flowgate dev`");
    }
    Ok(())
}
