//! `flowgate runs show`.

use std::fmt::Display;

use flowgate_core::time::Timestamp;
use flowgate_core::view::{Brief, StepView};
use flowgate_store::RunDetail;
use std::time::Duration;

use super::super::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::lookup;
use crate::output::{Cell, Table};
use crate::report::RunFacts;
use crate::stores;

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
    let store = stores::open_to_read(app).await?;
    let run_id = lookup::run_id(&*store, &args.run).await?;
    let detail = lookup::run(&*store, run_id).await?;
    let flow = lookup::flow_of(&*store, &detail.row.run).await?;
    let events = flowgate_store::whole_log(&*store, run_id).await?;
    let mut facts = RunFacts::new(&flow, &detail, &events);
    facts.fate = lookup::fate(&*store, &detail.row.run).await?;
    if app.output.json {
        app.output.json(&facts)?;
        return Ok(Exit::Done);
    }
    print_facts(app, &facts, &detail, store.now().await?)?;
    Ok(Exit::Done)
}

fn print_facts(
    app: &App,
    facts: &RunFacts,
    detail: &RunDetail,
    now: Timestamp,
) -> Result<(), Failure> {
    let (row, report) = (&detail.row, &facts.report);
    let fact = |name: &str, value: &dyn Display| app.output.line(format_args!("{name:<9} {value}"));
    fact("run", &report.run_id)?;
    fact("flow", &format_args!("{} @ {}", Cell::bold(&report.flow), report.revision))?;
    fact("status", &Cell::status(report.status))?;
    let ago = Brief(now.since(row.started_at));
    fact("started", &format_args!("{} ({ago} ago)", report.started_at))?;
    let took = Brief(lookup::took(row, now));
    match &report.ended_at {
        Some(ended_at) => fact("ended", &format_args!("{ended_at} (after {took})"))?,
        None => fact("open for", &took)?,
    }
    if let Some(key) = &report.key {
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
    if let Some(failure) = &report.failure {
        fact("failure", &format_args!("{}: {}", failure.step, failure.message))?;
    }
    if let Some(fate) = &facts.fate {
        fact("fate", fate)?;
    }
    if row.events_removed {
        fact("events", &"removed by retention")?;
    }
    app.output.line("")?;
    step_table(facts, detail, now).print(app.output)
}

fn step_table(facts: &RunFacts, detail: &RunDetail, now: Timestamp) -> Table {
    let mut table = Table::new(&["step", "state", "attempts", "took", "note"]);
    for step in &facts.report.steps {
        let job = facts.jobs.iter().position(|job| job.step == step.name);
        let note = match job.map(|at| (&facts.jobs[at], &detail.jobs[at])) {
            Some((view, job)) => match &view.instance {
                Some(instance) => format!("attempt {} on {instance}", view.attempt),
                None if job.due_at > now => format!("due in {}", Brief(job.due_at.since(now))),
                None => format!("due for {}", Brief(now.since(job.due_at))),
            },
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
pub(crate) fn took_of(step: &StepView) -> String {
    step.duration_ms.map_or_else(String::new, |ms| Brief(Duration::from_millis(ms)).to_string())
}

/// What is worth saying about a step: its result, or why it failed.
pub(crate) fn note_of(step: &StepView) -> String {
    match (&step.error, &step.result) {
        (_, Some(result)) => result.get().to_owned(),
        (Some(error), None) => error.message.to_string(),
        (None, None) => String::new(),
    }
}
