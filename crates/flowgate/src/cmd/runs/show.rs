//! `flowgate runs show`.

use std::fmt::Display;
use std::time::Duration;

use flowgate_core::time::Timestamp;
use flowgate_core::view::Brief;
use flowgate_server::wire::runs::{RunFacts, StepItem};

use super::super::App;
use crate::clock;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{Cell, Table};
use crate::reach::{Reach, segment};

/// Shows a run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  flowgate runs show latest
  flowgate runs show 019a8b2c-1f3e --json")]
pub(crate) struct Args {
    /// The run
    run: String,
}

pub(crate) async fn run(app: &App, args: Args) -> Outcome {
    let reach = Reach::read(app).await?;
    let facts: RunFacts = reach.get(&format!("/runs/{}", segment(&args.run)), &[]).await?;
    if app.output.json {
        app.output.json(&facts)?;
        return Ok(Exit::Done);
    }
    print_facts(app, &facts, clock::now())?;
    Ok(Exit::Done)
}

fn print_facts(app: &App, facts: &RunFacts, now: Timestamp) -> Result<(), Failure> {
    let fact = |name: &str, value: &dyn Display| app.output.line(format_args!("{name:<9} {value}"));
    fact("run", &facts.run_id)?;
    fact("flow", &format_args!("{} @ {}", Cell::bold(&facts.flow), facts.revision))?;
    fact("status", &Cell::status(facts.status))?;
    let started_at = clock::read(&facts.started_at);
    let ago = Brief(now.since(started_at));
    fact("started", &format_args!("{} ({ago} ago)", facts.started_at))?;
    match &facts.ended_at {
        Some(ended_at) => {
            let took = Brief(clock::read(ended_at).since(started_at));
            fact("ended", &format_args!("{ended_at} (after {took})"))?;
        }
        None => fact("open for", &ago)?,
    }
    if let Some(key) = &facts.key {
        fact("key", key)?;
    }
    if !facts.tags.is_empty() {
        let tags: Vec<String> = facts.tags.iter().map(|(k, v)| format!("{k}={v}")).collect();
        fact("tags", &tags.join(" "))?;
    }
    if let Some(retry_of) = facts.retry_of {
        fact("retry of", &retry_of)?;
    }
    if let Some(input) = &facts.input {
        fact("input", &input.get())?;
    }
    for (key, value) in &facts.state {
        fact("state", &format_args!("{key} = {}", value.get()))?;
    }
    if let Some(failure) = &facts.failure {
        fact("failure", &format_args!("{}: {}", failure.step, failure.message))?;
    }
    if let Some(fate) = &facts.fate {
        fact("fate", fate)?;
    }
    if facts.events_removed {
        fact("events", &"removed by retention")?;
    }
    app.output.line("")?;
    step_table(facts, now).print(app.output)?;
    if !facts.steps_complete {
        app.output.note("its log is long: times and results are those of its last events");
    }
    Ok(())
}

fn step_table(facts: &RunFacts, now: Timestamp) -> Table {
    let mut table = Table::new(&["step", "state", "attempts", "took", "note"]);
    for step in &facts.steps {
        let note = match facts.jobs.iter().find(|job| job.step == step.name) {
            Some(job) => {
                let due_at = clock::read(&job.due_at);
                match &job.instance {
                    Some(instance) => format!("attempt {} on {instance}", job.attempt),
                    None if due_at > now => format!("due in {}", Brief(due_at.since(now))),
                    None => format!("due for {}", Brief(now.since(due_at))),
                }
            }
            None => note_of(step),
        };
        table.row(vec![
            Cell::bold(&step.name),
            Cell::state(step.state),
            Cell::plain(if step.attempts == 0 { String::new() } else { step.attempts.to_string() }),
            Cell::plain(took_of(step)),
            Cell::dim(note),
        ]);
    }
    table
}

/// How long a step took, or nothing.
pub(crate) fn took_of(step: &StepItem) -> String {
    step.duration_ms.map_or_else(String::new, |ms| Brief(Duration::from_millis(ms)).to_string())
}

/// What is worth saying about a step: its result, or why it failed.
pub(crate) fn note_of(step: &StepItem) -> String {
    match (&step.error, &step.result) {
        (_, Some(result)) => result.get().to_owned(),
        (Some(error), None) => error.message.to_string(),
        (None, None) => String::new(),
    }
}
