//! `flowgate runs events`, `watch`, `logs` and `export`: reading what happened.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::ids::{Position, Revision, RunId};
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_store::Store;
use serde_json::json;

use super::super::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::lookup;
use crate::output::{Cell, Output};
use crate::record::{self, Record};
use crate::stores;

/// How often a watched run is looked at: at first, and after a while without news.
const POLL_MIN: Duration = Duration::from_millis(40);
const POLL_MAX: Duration = Duration::from_millis(100);

/// Shows events.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  flowgate runs events latest
  flowgate runs events latest --json | grep step.failed")]
pub(crate) struct Events {
    /// The run
    run: String,
}

/// Follows a run.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Ends with the run: exit code 0 if it completed, 1 if it failed or was cancelled.

Example:
  flowgate runs watch latest")]
pub(crate) struct Watch {
    /// The run
    run: String,
}

/// Shows log lines.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  flowgate runs logs latest
  flowgate runs logs latest --step charge")]
pub(crate) struct Logs {
    /// The run
    run: String,
    /// Only lines of this step
    #[arg(long)]
    step: Option<String>,
}

/// Exports events.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each line has the fields position, run, seq, type, step, attempt, token, instance, flow, revision, \
data and time; what an event does not have is null. Lines are in commit order; where a store has \
several feeds, one feed comes after the other, and a run is in one of them.

Examples:
  flowgate runs export > all.ndjson
  flowgate runs export --flow order --since 24h
  flowgate runs export latest")]
pub(crate) struct Export {
    /// Only this run
    run: Option<String>,
    /// Only runs of this flow
    #[arg(long, conflicts_with = "run")]
    flow: Option<String>,
    /// Only events since: `1h` ago, or a time such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
}

/// Prints the events of one run, for people or for programs.
struct Printer {
    output: Output,
    flow: Arc<str>,
    revision: Revision,
    started_at: Timestamp,
    step_width: usize,
}

impl Printer {
    async fn new(app: &App, store: &dyn Store, run_id: RunId) -> Result<Self, Failure> {
        let row = lookup::run(store, run_id).await?.row;
        let names = lookup::flow_of(store, &row.run)
            .await
            .map(|flow| flow.steps.iter().map(|step| step.name.len()).max().unwrap_or_default());
        Ok(Self {
            output: app.output,
            flow: Arc::clone(&row.run.flow),
            revision: row.run.revision.clone(),
            started_at: row.started_at,
            step_width: names.unwrap_or_default(),
        })
    }

    fn print(&self, stored: &StoredEvent) -> Result<(), Failure> {
        if self.output.json {
            let record = Record::new(stored, Arc::clone(&self.flow), self.revision.clone());
            return self.output.json_line(&record);
        }
        let after = stored.at.since(self.started_at);
        let step = stored.event.step().map_or("", |step| step);
        let head = format!(
            "{:>4}  {:>10}  {:<15}  {step:<width$}",
            stored.seq,
            format!("+{:.3}s", after.as_secs_f64()),
            stored.event.kind(),
            width = self.step_width,
        );
        let room = crate::output::room_after(head.chars().count() + 2);
        let detail = crate::output::shortened(&record::detail(&stored.event), room);
        self.output.line(format!("{head}  {}", Cell::dim(detail)).trim_end())
    }
}

pub(crate) async fn events(app: &App, args: Events) -> Outcome {
    let store = stores::open_to_read(app).await?;
    let run_id = lookup::run_id(&*store, &args.run).await?;
    let printer = Printer::new(app, &*store, run_id).await?;
    let mut after = 0;
    loop {
        let page = store.read_events(run_id, after, PAGE_MAX).await?;
        page.iter().try_for_each(|stored| printer.print(stored))?;
        match page.last() {
            Some(last) if page.len() == PAGE_MAX => after = last.seq,
            Some(_) => return Ok(Exit::Done),
            None => {
                if after == 0 {
                    app.output.note("its events were removed by retention");
                }
                return Ok(Exit::Done);
            }
        }
    }
}

pub(crate) async fn watch(app: &App, args: Watch) -> Outcome {
    let store = stores::open_to_read(app).await?;
    let run_id = lookup::run_id(&*store, &args.run).await?;
    let printer = Printer::new(app, &*store, run_id).await?;
    let (mut after, mut pause) = (0, POLL_MIN);
    loop {
        let page = store.read_events(run_id, after, PAGE_MAX).await?;
        page.iter().try_for_each(|stored| printer.print(stored))?;
        if let Some(last) = page.last() {
            if last.event.is_terminal() {
                return Ok(exit_of(&last.event));
            }
            after = last.seq;
            pause = POLL_MIN;
            continue;
        }
        let status = lookup::run(&*store, run_id).await?.row.run.status;
        if status.is_terminal() && after == 0 {
            app.output.note("its events were removed by retention");
            return Ok(if status == RunStatus::Completed { Exit::Done } else { Exit::RunFailed });
        }
        // Another process executes it, and nothing tells us when.
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 3 / 2).min(POLL_MAX),
            stopped = tokio::signal::ctrl_c() => {
                drop(stopped);
                return Ok(Exit::Interrupted);
            }
        }
    }
}

fn exit_of(last: &Event) -> Exit {
    if matches!(last, Event::RunCompleted {}) { Exit::Done } else { Exit::RunFailed }
}

pub(crate) async fn logs(app: &App, args: Logs) -> Outcome {
    let store = stores::open_to_read(app).await?;
    let run_id = lookup::run_id(&*store, &args.run).await?;
    lookup::run(&*store, run_id).await?;
    let mut after = 0;
    loop {
        let page = store.read_logs(run_id, after, PAGE_MAX).await?;
        for log in &page {
            after = log.number;
            let line = &log.line;
            if args.step.as_deref().is_some_and(|step| *step != *line.step) {
                continue;
            }
            if app.output.json {
                app.output.json_line(&json!({
                    "number": log.number, "time": log.at.to_string(), "step": line.step,
                    "attempt": line.attempt, "level": line.level.as_str(), "text": line.text,
                }))?;
                continue;
            }
            let head =
                format!("{} {:<5} {}#{}", log.at, line.level.as_str(), line.step, line.attempt);
            app.output.line(format_args!("{}  {}", Cell::dim(head), line.text))?;
        }
        if page.len() < PAGE_MAX {
            return Ok(Exit::Done);
        }
    }
}

pub(crate) async fn export(app: &App, args: Export) -> Outcome {
    let store = stores::open_to_read(app).await?;
    let since = match &args.since {
        Some(text) => Some(lookup::time("--since", text, store.now().await?)?),
        None => None,
    };
    let only = match &args.run {
        Some(text) => Some(lookup::run_id(&*store, text).await?),
        None => None,
    };
    let mut export =
        Exporter { app, store: &*store, flow: args.flow, since, names: HashMap::new() };
    match only {
        Some(run_id) => export.run(run_id).await?,
        None => {
            for feed in 0..store.feeds() {
                export.feed(feed).await?;
            }
        }
    }
    Ok(Exit::Done)
}

/// Prints the events that are wanted.
struct Exporter<'a> {
    app: &'a App,
    store: &'a dyn Store,
    flow: Option<String>,
    since: Option<Timestamp>,
    names: HashMap<RunId, (Arc<str>, Revision)>,
}

impl Exporter<'_> {
    async fn run(&mut self, run_id: RunId) -> Result<(), Failure> {
        let mut after = 0;
        loop {
            let page = self.store.read_events(run_id, after, PAGE_MAX).await?;
            self.print(&page).await?;
            match page.last() {
                Some(last) => after = last.seq,
                // A run that was never there is an error, one without events is not.
                None if after == 0 => return lookup::run(self.store, run_id).await.map(drop),
                None => return Ok(()),
            }
        }
    }

    async fn feed(&mut self, feed: u16) -> Result<(), Failure> {
        let mut after = Position::START;
        loop {
            let page = self.store.read_feed(feed, after, PAGE_MAX).await?;
            self.print(&page).await?;
            match page.last() {
                Some(last) if page.len() == PAGE_MAX => after = last.position,
                Some(_) | None => return Ok(()),
            }
        }
    }

    async fn print(&mut self, page: &[StoredEvent]) -> Result<(), Failure> {
        for stored in page {
            let (flow, revision) = name_of(self.store, &mut self.names, stored).await?;
            let is_wanted = self.flow.as_deref().is_none_or(|name| *name == *flow)
                && self.since.is_none_or(|since| stored.at >= since);
            if is_wanted {
                self.app.output.json_line(&Record::new(stored, flow, revision))?;
            }
            if stored.event.is_terminal() {
                self.names.remove(&stored.run_id);
            }
        }
        Ok(())
    }
}

/// The flow and revision of an event's run: its start says so, else its record does.
async fn name_of(
    store: &dyn Store,
    names: &mut HashMap<RunId, (Arc<str>, Revision)>,
    stored: &StoredEvent,
) -> Result<(Arc<str>, Revision), Failure> {
    if let Some(name) = names.get(&stored.run_id) {
        return Ok(name.clone());
    }
    let name = if let Event::RunStarted(started) = &stored.event {
        (Arc::clone(&started.flow), started.revision.clone())
    } else {
        let run = lookup::run(store, stored.run_id).await?.row.run;
        (Arc::clone(&run.flow), run.revision.clone())
    };
    names.insert(stored.run_id, name.clone());
    Ok(name)
}
