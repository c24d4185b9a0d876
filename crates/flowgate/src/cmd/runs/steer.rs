//! `flowgate runs start`, `signal`, `cancel` and `retry`: changing what happens.
//!
//! The owner of an embedded store does it. If nobody owns it, or the store is shared, this process
//! does for as long as it takes, and executes nothing.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use flowgate_core::event::Event;
use flowgate_core::ids::RunId;
use flowgate_store::StoreUrl;

use super::super::App;
use crate::control::{self, Reply, Request, RunReply, Serve};
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
  flowgate runs start order --input @order.json --key 7 --tag customer=42")]
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
    let request = Request::Start { flow: args.flow, input, key: args.key, tags };
    let sent = send(app, request).await?;
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
