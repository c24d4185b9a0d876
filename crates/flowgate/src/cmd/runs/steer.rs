//! `flowgate runs start`, `signal`, `cancel` and `retry`: changing what happens.
//!
//! The owner of an embedded store does it. If nobody owns it, or the store is shared, this process
//! does for as long as it takes, and executes nothing.

use std::fmt::Display;

use flowgate_core::flow::Span;
use flowgate_core::limits::PRIORITY_MAX;
use flowgate_core::run::RunStatus;
use flowgate_server::wire::runs::{
    CancelRun, DebounceStart, RetryRun, RunRef, SignalRun, Signalled, StartRun,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::super::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::input;
use crate::output::short;
use crate::reach::{Reach, segment};

/// Starts a run.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Prints the run's id and returns; follow it with `flowgate runs watch`.

Examples:
  flowgate runs start order --input '{\"orderId\": 7}'
  flowgate runs start order --input @order.json --key 7 --tag customer=42
  flowgate runs start import --singleton-key nightly --priority 9
  flowgate runs start reminder --delay 5m
  flowgate runs start index --debounce-key docs --debounce-window 5s --debounce-max 1m")]
pub(crate) struct Start {
    /// The name of a flow in the store
    flow: String,
    /// The input: JSON, @FILE, or - for stdin
    #[arg(long, value_name = "JSON", default_value = "{}")]
    input: String,
    /// A key: the same key for the same flow gives the same run
    #[arg(long)]
    key: Option<String>,
    /// A label for finding the run again; may be repeated
    #[arg(long = "tag", value_name = "NAME=VALUE", value_parser = input::pair)]
    tags: Vec<(String, String)>,
    /// One open run at a time for this key: a start while it is open gives that run
    #[arg(long, value_name = "KEY", conflicts_with = "key")]
    singleton_key: Option<String>,
    /// How far ahead its jobs are of others that became due when they did, whatever its steps say
    #[arg(long, value_name = "0..9", value_parser = clap::value_parser!(u8).range(..=i64::from(PRIORITY_MAX)))]
    priority: Option<u8>,
    /// Begin this long from now, such as 5m
    #[arg(long, value_name = "SPAN", conflicts_with = "at")]
    delay: Option<Span>,
    /// Begin at this time, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Starts with this key that follow each other within the window become one run, with the last
    /// input
    #[arg(
        long,
        value_name = "KEY",
        requires = "debounce_window",
        conflicts_with_all = ["key", "singleton_key", "delay", "at"]
    )]
    debounce_key: Option<String>,
    /// How long there must be no start before that run begins, such as 5s
    #[arg(long, value_name = "SPAN", requires = "debounce_key")]
    debounce_window: Option<Span>,
    /// How long after the first start that run begins at the latest, such as 1m
    #[arg(long, value_name = "SPAN", requires = "debounce_key")]
    debounce_max: Option<Span>,
}

/// Sends a signal.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  flowgate runs signal latest approval --data '{\"approved\": true}'")]
pub(crate) struct Signal {
    /// The run
    run: String,
    /// The signal's name
    signal: String,
    /// Its data: JSON, @FILE, or - for stdin
    #[arg(long, value_name = "JSON", default_value = "{}")]
    data: String,
}

/// Cancels a run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  flowgate runs cancel latest --reason 'wrong customer'")]
pub(crate) struct Cancel {
    /// The run
    run: String,
    /// Why, for the log
    #[arg(long)]
    reason: Option<String>,
}

/// Tries a run again.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The new run takes over what succeeded and does the rest. With --revision active it is on the \
revision that new runs start on, such as one with the mistake mended; a step that succeeded is one \
of the same name. With --from the steps before STEP are taken over, and STEP and all that follows \
it are done again there.

Examples:
  flowgate runs retry latest
  flowgate runs retry latest --from charge
  flowgate runs retry latest --revision active
  flowgate runs retry latest --from charge --revision active")]
pub(crate) struct Retry {
    /// The finished run
    run: String,
    /// Do this step again, and what follows it, even if it succeeded
    #[arg(long, value_name = "STEP")]
    from: Option<String>,
    /// On this revision of the flow: active, or the first letters of one [default: the run's own]
    #[arg(long)]
    revision: Option<String>,
}

pub(crate) async fn start(app: &App, args: Start) -> Outcome {
    let request = StartRun {
        input: Some(input::read("--input", &args.input)?),
        key: args.key,
        tags: input::tags(&args.tags)?,
        singleton: args.singleton_key,
        priority: args.priority,
        delay_ms: args.delay.map(millis),
        at: args.at,
        debounce: args.debounce_key.zip(args.debounce_window).map(|(key, window)| {
            let (window_ms, max_ms) = (millis(window), args.debounce_max.map(millis));
            DebounceStart { key, window_ms, max_ms }
        }),
        ..StartRun::of(&args.flow)
    };
    let (started, is_worked_on): (RunRef, _) = send(app, "/runs", &request).await?;
    if let Some(until) = &started.debounced_until
        && !app.output.json
    {
        app.output.line(started.run_id)?;
        app.output.note(format_args!("debounced: begins at {until} unless more starts come"));
        if !is_worked_on {
            app.output.note("nobody begins it yet: start `flowgate dev`");
        }
        return Ok(Exit::Done);
    }
    let done = if started.existed { "this key has a run already" } else { "started" };
    tell(app, &started, &started, is_worked_on, done)
}

pub(crate) async fn signal(app: &App, args: Signal) -> Outcome {
    let data = Some(input::read("--data", &args.data)?);
    let request = SignalRun { signal: args.signal, data };
    let path = path_of(&args.run, "signal");
    let (signalled, is_worked_on): (Signalled, _) = send(app, &path, &request).await?;
    let exit = tell(app, &signalled, &signalled.run, is_worked_on, "signalled")?;
    match (signalled.taken, signalled.kept) {
        (true, _) => {}
        (false, true) => app.output.note("it is kept for a wait that has not begun"),
        (false, false) => app.output.note(format_args!(
            "no wait takes it: its data does not match; see `flowgate why {}`",
            short(signalled.run.run_id)
        )),
    }
    Ok(exit)
}

pub(crate) async fn cancel(app: &App, args: Cancel) -> Outcome {
    let request = CancelRun { reason: args.reason };
    let path = path_of(&args.run, "cancel");
    let (run, is_worked_on): (RunRef, _) = send(app, &path, &request).await?;
    let done = if run.existed { "it was cancelled before" } else { "cancelled" };
    tell(app, &run, &run, is_worked_on, done)
}

pub(crate) async fn retry(app: &App, args: Retry) -> Outcome {
    let request = RetryRun { from: args.from, revision: args.revision };
    let path = path_of(&args.run, "retry");
    let (run, is_worked_on): (RunRef, _) = send(app, &path, &request).await?;
    tell(app, &run, &run, is_worked_on, "started")
}

fn millis(Span(span): Span) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn path_of(run: &str, verb: &str) -> String {
    format!("/runs/{}/{verb}", segment(run))
}

/// Has a request carried out; the answer, and whether somebody executes what it made due.
async fn send<T: DeserializeOwned>(
    app: &App,
    path: &str,
    request: &impl Serialize,
) -> Result<(T, bool), Failure> {
    let reach = Reach::write(app).await?;
    let is_worked_on = reach.is_worked_on;
    let answer = reach.post(path, request).await;
    Ok((reach.finish(answer).await?, is_worked_on))
}

fn tell(
    app: &App,
    whole: &impl Serialize,
    run: &RunRef,
    is_worked_on: bool,
    done: impl Display,
) -> Outcome {
    if app.output.json {
        app.output.json(whole)?;
        return Ok(Exit::Done);
    }
    app.output.line(run.run_id)?;
    let Some(status) = run.status else { return Ok(Exit::Done) };
    let flow = &run.flow;
    app.output.note(format_args!("{done}; the run of flow `{flow}` is {}", status.as_str()));
    if status == RunStatus::Held {
        app.output.note(format_args!(
            "it begins when the flow is let go: `flowgate hold off {flow}`; see `flowgate hold \
             status {flow}`"
        ));
    } else if !is_worked_on && !status.is_terminal() {
        app.output.note(format_args!(
            "nobody executes it yet: start `flowgate dev`, or `flowgate run --resume {}`",
            short(run.run_id)
        ));
    }
    Ok(Exit::Done)
}
