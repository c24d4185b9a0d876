//! `flowgate runs start`, `signal`, `cancel` and `retry`: changing what happens.
//!
//! The owner of an embedded store does it. If nobody owns it, or the store is shared, this process
//! does for as long as it takes, and executes nothing.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::event::Event;
use flowgate_core::flow::Span;
use flowgate_core::ids::RunId;
use flowgate_core::limits::PRIORITY_MAX;
use flowgate_core::time::Timestamp;
use flowgate_store::StoreUrl;

use super::super::App;
use crate::control::{self, Reply, Request, RunReply, Serve, StartAt, StartOptions};
use crate::failure::{Exit, Failure, Outcome};
use crate::input;
use crate::instance::{Instance, Work};
use crate::lookup;
use crate::output::short;
use crate::stores;

/// Tries to find the owner or to become it: the owner may just be starting or ending.
const TRIES: u32 = 10;
/// Events among which a signal is looked for that was just sent.
const RECENT_EVENTS: usize = 50;
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// How long a shared store may take.
const SHARED_MAX: Duration = Duration::from_secs(20);

/// Starts a run.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Prints the run's id and returns; follow it with `flowgate runs watch`.

Examples:
  flowgate runs start order --input '{\"orderId\": 7}'
  flowgate runs start order --input @order.json --key 7 --tag customer=42
  flowgate runs start import --singleton-key nightly --priority 9
  flowgate runs start reminder --delay 5m")]
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
The new run takes over what succeeded and does the rest.

Examples:
  flowgate runs retry latest
  flowgate runs retry latest --from charge")]
pub(crate) struct Retry {
    /// The finished run
    run: String,
    /// Do this step again, and what follows it, even if it succeeded
    #[arg(long, value_name = "STEP")]
    from: Option<String>,
}

pub(crate) async fn start(app: &App, args: Start) -> Outcome {
    let input = input::read("--input", &args.input)?;
    let tags = input::tags(&args.tags)?;
    let due = match (args.delay, &args.at) {
        (Some(Span(delay)), _) => {
            Some(StartAt::AfterMs(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)))
        }
        (None, Some(at)) => Some(StartAt::At(point_in_time(at)?)),
        (None, None) => None,
    };
    let (key, singleton, priority) = (args.key, args.singleton_key, args.priority);
    let options = StartOptions { key, tags, singleton, priority, due };
    let sent = send(app, Request::Start { flow: args.flow, input, options }).await?;
    let (reply, is_owned) = (sent.reply.run()?, sent.is_owned);
    let done = if reply.existed { "this key has a run already" } else { "started" };
    tell(app, &reply, is_owned, done)
}

pub(crate) async fn signal(app: &App, args: Signal) -> Outcome {
    let data = input::read("--data", &args.data)?;
    let run_id = resolve(app, &args.run).await?;
    let signal = args.signal.clone();
    let sent = send(app, Request::Signal { run_id, signal: args.signal, data }).await?;
    let exit = tell(app, &sent.reply.run()?, sent.is_owned, "signalled")?;
    if !app.output.json
        && let Some(fate) = fate_of_signal(app, run_id, &signal).await?
    {
        app.output.note(fate);
    }
    Ok(exit)
}

/// What to say of a signal that ended no wait.
async fn fate_of_signal(app: &App, run_id: RunId, signal: &str) -> Result<Option<String>, Failure> {
    let store = stores::open_to_read(app).await?;
    let run = lookup::run(&*store, run_id).await?.row.run;
    let after =
        run.version.saturating_sub(u64::try_from(RECENT_EVENTS).expect("it is a small number"));
    let recent = store.read_events(run_id, after, RECENT_EVENTS).await?;
    let is_ours = |event: &Event| matches!(event, Event::SignalReceived { signal: name, .. } if **name == *signal);
    let Some(received) = recent.iter().rev().find(|stored| is_ours(&stored.event)) else {
        return Ok(None);
    };
    let took = |event: &Event| matches!(event, Event::SignalTaken { signal_seq, .. } if *signal_seq == received.seq);
    if recent.iter().any(|stored| took(&stored.event)) {
        return Ok(None);
    }
    let is_kept = run.signals.iter().any(|kept| kept.seq == received.seq);
    Ok(Some(if is_kept {
        "it is kept for a wait that has not begun".to_owned()
    } else {
        let run = short(run_id);
        format!("no wait takes it: its data does not match; see `flowgate why {run}`")
    }))
}

pub(crate) async fn cancel(app: &App, args: Cancel) -> Outcome {
    let run_id = resolve(app, &args.run).await?;
    let sent = send(app, Request::Cancel { run_id, reason: args.reason }).await?;
    tell(app, &sent.reply.run()?, sent.is_owned, "cancelled")
}

pub(crate) async fn retry(app: &App, args: Retry) -> Outcome {
    let run_id = resolve(app, &args.run).await?;
    let sent = send(app, Request::Retry { run_id, from: args.from }).await?;
    tell(app, &sent.reply.run()?, sent.is_owned, "started")
}

fn point_in_time(text: &str) -> Result<Timestamp, Failure> {
    let time: jiff::Timestamp = text.parse().map_err(|_| {
        Failure::usage("time_invalid", format!("--at: `{text}` is not a point in time"))
            .help("write a time such as 2026-01-31T12:00:00Z, or use --delay 5m")
            .path("--at")
    })?;
    Ok(Timestamp(time.as_millisecond()))
}

async fn resolve(app: &App, text: &str) -> Result<RunId, Failure> {
    let store = stores::open_to_read(app).await?;
    let run_id = lookup::run_id(&*store, text).await?;
    lookup::run(&*store, run_id).await?;
    Ok(run_id)
}

/// A request that was carried out.
pub(crate) struct Sent {
    pub(crate) reply: Reply,
    /// Whether somebody executes what it made due.
    pub(crate) is_owned: bool,
}

/// Has whoever may write to the store carry out a request.
pub(crate) async fn send(app: &App, request: Request) -> Result<Sent, Failure> {
    match &app.config.store {
        StoreUrl::Memory => Err(stores::memory_is_private()),
        StoreUrl::Sqlite(path) => send_to_owner(app, path, request).await,
        StoreUrl::Redis(_) | StoreUrl::Postgres(_) => commit_shared(app, request).await,
    }
}

/// Writes the request down in a shared store; whichever instance is there carries it out.
async fn commit_shared(app: &App, request: Request) -> Result<Sent, Failure> {
    let instance = Instance::open(app, Work::Nothing).await?;
    let asked = async {
        let reply = instance.serve(request).await?;
        let now = instance.store().now().await?;
        let instances = instance.store().list_instances().await?;
        let is_owned = instances.iter().any(|row| !stores::is_silent(row, now));
        Ok(Sent { reply, is_owned })
    };
    let sent = tokio::time::timeout(SHARED_MAX, asked).await.unwrap_or_else(|_| {
        let message = format!("the store did not answer within {} seconds", SHARED_MAX.as_secs());
        Err(Failure::new(Exit::Store, "store_unavailable", message)
            .help("it may or may not have been done: look with `flowgate runs list`"))
    });
    // What the store did not take is dropped with the process.
    if sent.is_ok() {
        instance.shutdown().await;
    }
    sent
}

async fn send_to_owner(app: &App, path: &Path, request: Request) -> Result<Sent, Failure> {
    let mut refusal = None;
    for attempt in 0..TRIES {
        if attempt > 0 {
            tokio::time::sleep(TRY_AGAIN).await;
        }
        if let Some(reply) = control::send(&stores::canonical(path), &request).await? {
            return Ok(Sent { reply, is_owned: true });
        }
        match Instance::open(app, Work::Nothing).await {
            Ok(instance) => {
                let reply = instance.serve(request).await;
                instance.shutdown().await;
                return Ok(Sent { reply: reply?, is_owned: false });
            }
            Err(failure) if failure.code == "store_in_use" => refusal = Some(failure),
            Err(failure) => return Err(failure),
        }
    }
    let refusal = refusal.expect("every try that did not return was refused");
    Err(refusal.help("that process takes no requests; stop it and try again"))
}

/// Whoever carries out one request after the other.
pub(crate) enum Hand {
    /// The owner of the file at this path.
    Owner(PathBuf),
    /// This process.
    Own(Arc<Instance>),
}

impl Hand {
    /// Finds the owner of the store, or becomes it, or joins others on a shared one.
    pub(crate) async fn open(app: &App) -> Result<Self, Failure> {
        let path = match &app.config.store {
            StoreUrl::Memory => return Err(stores::memory_is_private()),
            StoreUrl::Sqlite(path) => stores::canonical(path),
            StoreUrl::Redis(_) | StoreUrl::Postgres(_) => {
                return Ok(Self::Own(Instance::open(app, Work::Nothing).await?));
            }
        };
        match Instance::open(app, Work::Nothing).await {
            Ok(instance) => Ok(Self::Own(instance)),
            Err(failure) if failure.code == "store_in_use" => Ok(Self::Owner(path)),
            Err(failure) => Err(failure),
        }
    }

    pub(crate) async fn ask(&self, request: Request) -> Result<Reply, Failure> {
        match self {
            Self::Own(instance) => instance.serve(request).await,
            Self::Owner(path) => control::send(path, &request).await?.ok_or_else(|| {
                Failure::new(Exit::Store, "owner_unreachable", "the owner of the store has gone")
                    .help("try again: it goes on where it stopped")
            }),
        }
    }

    pub(crate) async fn close(self) {
        if let Self::Own(instance) = self {
            instance.shutdown().await;
        }
    }
}

fn tell(app: &App, reply: &RunReply, is_owned: bool, done: impl Display) -> Outcome {
    if app.output.json {
        app.output.json(reply)?;
        return Ok(Exit::Done);
    }
    app.output.line(reply.run_id)?;
    let (flow, status) = (&reply.flow, reply.status.as_str());
    app.output.note(format_args!("{done}; the run of flow `{flow}` is {status}"));
    if !is_owned && !reply.status.is_terminal() {
        app.output.note(format_args!(
            "nobody executes it yet: start `flowgate dev`, or `flowgate run --resume {}`",
            short(reply.run_id)
        ));
    }
    Ok(Exit::Done)
}
