//! `flowgate runs events`, `watch`, `logs` and `export`: reading what happened.

use std::time::Duration;

use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_server::wire::events::{EventItem, EventPage, LogPage};
use flowgate_server::wire::live::RunEnd;
use flowgate_server::wire::runs::RunFacts;
use futures_util::StreamExt;

use super::super::App;
use crate::clock;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{Cell, Output};
use crate::reach::{Reach, segment};
use crate::sse;

/// How long to wait before a broken connection is made again, and how often.
const RECONNECT: Duration = Duration::from_millis(500);
const RECONNECTS_MAX: u32 = 20;
/// What is asked for at once.
const PAGE: &str = "1000";
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
    started_at: Timestamp,
    step_width: usize,
}

impl Printer {
    fn new(app: &App, facts: &RunFacts) -> Self {
        let widths = facts.steps.iter().map(|step| step.name.len());
        Self {
            output: app.output,
            started_at: clock::read(&facts.started_at),
            step_width: widths.max().unwrap_or_default(),
        }
    }

    fn print(&self, event: &EventItem) -> Result<(), Failure> {
        if self.output.json {
            return self.output.json_line(event);
        }
        let after = clock::read(&event.time).since(self.started_at);
        let step = event.step.as_deref().unwrap_or_default();
        let head = format!(
            "{:>4}  {:>10}  {:<15}  {step:<width$}",
            event.seq,
            format!("+{:.3}s", after.as_secs_f64()),
            event.r#type,
            width = self.step_width,
        );
        let room = crate::output::room_after(head.chars().count() + 2);
        let text = event.text.as_deref().unwrap_or_default();
        let detail = crate::output::shortened(text, room);
        self.output.line(format!("{head}  {}", Cell::dim(detail)).trim_end())
    }
}

async fn facts_of(reach: &Reach, run: &str) -> Result<RunFacts, Failure> {
    reach.get(&format!("/runs/{}", segment(run)), &[]).await
}

async fn page_of(reach: &Reach, run_id: RunId, after: u64) -> Result<EventPage, Failure> {
    let after = after.to_string();
    let query = [("after", &*after), ("limit", PAGE)];
    reach.get(&format!("/runs/{run_id}/events"), &query).await
}

pub(crate) async fn events(app: &App, args: Events) -> Outcome {
    let reach = Reach::read(app).await?;
    let facts = facts_of(&reach, &args.run).await?;
    let printer = Printer::new(app, &facts);
    let mut next = Some(0);
    while let Some(after) = next {
        let page = page_of(&reach, facts.run_id, after).await?;
        page.items.iter().try_for_each(|event| printer.print(event))?;
        if after == 0 && page.items.is_empty() {
            app.output.note("its events were removed by retention");
        }
        next = page.next;
    }
    Ok(Exit::Done)
}

pub(crate) async fn watch(app: &App, args: Watch) -> Outcome {
    let reach = Reach::read(app).await?;
    let facts = facts_of(&reach, &args.run).await?;
    let (run_id, printer) = (facts.run_id, Printer::new(app, &facts));
    if app.config.server.is_some() {
        return follow(&reach, run_id, &printer).await;
    }
    let (mut after, mut pause) = (0, POLL_MIN);
    loop {
        let page = page_of(&reach, run_id, after).await?;
        page.items.iter().try_for_each(|event| printer.print(event))?;
        if let Some(last) = page.items.last() {
            if let Some(exit) = exit_of(&last.r#type) {
                return Ok(exit);
            }
            after = last.seq;
            pause = POLL_MIN;
            continue;
        }
        if after == 0 {
            let status = facts_of(&reach, &args.run).await?.status;
            if status.is_terminal() {
                app.output.note("its events were removed by retention");
                let is_well = status == RunStatus::Completed;
                return Ok(if is_well { Exit::Done } else { Exit::RunFailed });
            }
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

/// Follows a run as another instance tells it, and comes back when the connection breaks.
async fn follow(reach: &Reach, run_id: RunId, printer: &Printer) -> Outcome {
    let path = format!("/runs/{run_id}/stream");
    let (mut after, mut failures) = (0_u64, 0);
    loop {
        let after_text = after.to_string();
        let told = tokio::select! {
            told = listen(reach, &path, &after_text, printer) => told,
            stopped = tokio::signal::ctrl_c() => {
                drop(stopped);
                return Ok(Exit::Interrupted);
            }
        };
        match told {
            Ok(Told { exit: Some(exit), .. }) => return Ok(exit),
            Ok(Told { after: Some(last), .. }) => (after, failures) = (last, 0),
            Ok(Told { .. }) => failures += 1,
            Err(failure) if failure.exit == Exit::Store => failures += 1,
            Err(failure) => return Err(failure),
        }
        if failures == RECONNECTS_MAX {
            let message = "the connection broke again and again";
            return Err(Failure::new(Exit::Store, "server_unreachable", message)
                .help("look with `flowgate runs show` when the instance answers"));
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

/// What was told before a connection ended.
#[derive(Default)]
struct Told {
    /// The number of the last event.
    after: Option<u64>,
    /// How the verb ends, if the run did.
    exit: Option<Exit>,
}

async fn listen(
    reach: &Reach,
    path: &str,
    after: &str,
    printer: &Printer,
) -> Result<Told, Failure> {
    let mut chunks = reach.stream(path, &[("after", after)]).await?;
    let (mut parser, mut told) = (sse::Parser::default(), Told::default());
    while let Some(Ok(chunk)) = chunks.next().await {
        for message in parser.push(&chunk) {
            match message.event.as_str() {
                "event" => {
                    let event: EventItem = read(&message.data)?;
                    printer.print(&event)?;
                    told.after = Some(event.seq);
                }
                "end" => {
                    let RunEnd { status } = read(&message.data)?;
                    let is_well = status == RunStatus::Completed;
                    told.exit = Some(if is_well { Exit::Done } else { Exit::RunFailed });
                    return Ok(told);
                }
                _ => {}
            }
        }
    }
    Ok(told)
}

fn read<T: serde::de::DeserializeOwned>(data: &str) -> Result<T, Failure> {
    serde_json::from_str(data).map_err(|error| {
        Failure::refused("reply_invalid", "the answer makes no sense here")
            .source(error)
            .help("use the same version of flowgate on both sides")
    })
}

/// How a verb ends that followed a run to this event, if nothing comes after it.
fn exit_of(last: &str) -> Option<Exit> {
    match last {
        "run.completed" => Some(Exit::Done),
        "run.failed" | "run.cancelled" => Some(Exit::RunFailed),
        _ => None,
    }
}

pub(crate) async fn logs(app: &App, args: Logs) -> Outcome {
    let reach = Reach::read(app).await?;
    let path = format!("/runs/{}/logs", segment(&args.run));
    let mut next = Some(0_u64);
    while let Some(after) = next {
        let after = after.to_string();
        let mut query = vec![("after", &*after), ("limit", PAGE)];
        query.extend(args.step.as_deref().map(|step| ("step", step)));
        let page: LogPage = reach.get(&path, &query).await?;
        for line in &page.items {
            if app.output.json {
                app.output.json_line(line)?;
                continue;
            }
            let head = format!("{} {:<5} {}#{}", line.time, line.level, line.step, line.attempt);
            app.output.line(format_args!("{}  {}", Cell::dim(head), line.text))?;
        }
        next = page.next;
    }
    Ok(Exit::Done)
}

pub(crate) async fn export(app: &App, args: Export) -> Outcome {
    let reach = Reach::read(app).await?;
    let path = match &args.run {
        Some(run) => format!("/runs/{}/export", segment(run)),
        None => "/runs/export".to_owned(),
    };
    let mut query = Vec::new();
    query.extend(args.flow.as_deref().map(|flow| ("flow", flow)));
    query.extend(args.since.as_deref().map(|since| ("since", since)));
    let mut chunks = reach.stream(&path, &query).await?;
    let mut rest: Vec<u8> = Vec::new();
    while let Some(chunk) = chunks.next().await {
        rest.extend_from_slice(&chunk?);
        // Only whole lines are printed, wherever the network cut them.
        if let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') {
            app.output.text(&String::from_utf8_lossy(&rest[..=end]))?;
            rest.drain(..=end);
        }
    }
    Ok(Exit::Done)
}
