//! `flowgate checkpoints`.

use clap::Subcommand;
use flowgate_server::wire::Items;
use flowgate_server::wire::deployments::{CheckpointItem, DiscardNote};
use serde::Serialize;

use super::App;
use crate::confirm;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{Cell, Table, short};
use crate::reach::{Reach, segment};

/// Works with runs that deployments have stopped.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A deployment stops runs that are open at its drain timeout, at their steps, and lets them go on \
when it has ended. In a steady state none is pending. Were everybody to die, a stopped run would \
go on by itself when its checkpoint expires.

Examples:
  flowgate checkpoints list
  flowgate checkpoints list order --pending
  flowgate checkpoints replay --flow order
  flowgate checkpoints discard 019a3f --reason 'the customer has gone'")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List them, the latest deployment of a flow first
    List(List),
    /// Let stopped runs go on now
    #[command(after_help = "\
A run goes on on the revision that its deployment has decided on, or on its own if that has no \
place for it or the deployment was rolled back. Before it has decided this is refused (exit code \
5): it lets its runs go on by itself. To repeat it changes nothing.

Examples:
  flowgate checkpoints replay 019a3f
  flowgate checkpoints replay --flow order --json")]
    Replay(Which),
    /// Give stopped runs up: they are cancelled
    #[command(after_help = "\
The run is cancelled for good, and its checkpoint says that it was discarded; the deployment goes \
on without it. It asks first, or needs --yes. To repeat it changes nothing.

Examples:
  flowgate checkpoints discard 019a3f --reason 'the customer has gone' --yes
  flowgate checkpoints discard --flow order")]
    Discard(Discard),
}

#[derive(Debug, clap::Args)]
struct List {
    /// The flow [default: all]
    flow: Option<String>,
    /// Only those that have not gone on
    #[arg(long)]
    pending: bool,
}

#[derive(Debug, clap::Args)]
struct Which {
    /// The run
    #[arg(required_unless_present = "flow", conflicts_with = "flow")]
    run: Option<String>,
    /// All stopped runs of this flow
    #[arg(long)]
    flow: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Discard {
    #[command(flatten)]
    which: Which,
    /// Why, for the log
    #[arg(long)]
    reason: Option<String>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

/// What became of checkpoints.
#[derive(Debug, Default, Serialize)]
struct Dealt {
    done: Vec<CheckpointItem>,
    failed: Vec<Failed>,
}

#[derive(Debug, Serialize)]
struct Failed {
    run: String,
    code: String,
    message: String,
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    match args.verb {
        Verb::List(args) => list(&app, args).await,
        Verb::Replay(which) => {
            let reach = Reach::write(&app).await?;
            let outcome = replay(&app, &reach, &which).await;
            reach.finish(outcome).await
        }
        Verb::Discard(args) => {
            let reach = Reach::write(&app).await?;
            let outcome = discard(&app, &reach, &args).await;
            reach.finish(outcome).await
        }
    }
}

async fn read(reach: &Reach, flow: Option<&str>) -> Result<Items<CheckpointItem>, Failure> {
    let query: Vec<(&str, &str)> = flow.iter().map(|flow| ("flow", *flow)).collect();
    reach.get("/checkpoints", &query).await
}

async fn list(app: &App, List { flow, pending }: List) -> Outcome {
    let mut listed = read(&Reach::read(app).await?, flow.as_deref()).await?;
    listed.items.retain(|item| !pending || item.state == "pending");
    if app.output.json {
        app.output.json(&listed)?;
        return Ok(Exit::Done);
    }
    if listed.items.is_empty() {
        app.output.note("there are none");
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["run", "flow", "at", "state", "since", "expires", "deployment"]);
    for item in &listed.items {
        let at: Vec<String> =
            item.steps.iter().map(|step| format!("{} ({})", step.step, step.stage)).collect();
        table.row(vec![
            Cell::bold(short(item.run_id)),
            Cell::plain(&item.flow),
            Cell::plain(at.join(", ")),
            Cell::plain(&item.state),
            Cell::plain(&item.created_at),
            Cell::plain(&item.expires_at),
            Cell::plain(&item.deployment_id),
        ]);
    }
    table.print(app.output)?;
    Ok(Exit::Done)
}

/// The runs that are meant; those of a flow as they were stopped.
async fn chosen(reach: &Reach, which: &Which) -> Result<Vec<String>, Failure> {
    if let Some(run) = &which.run {
        return Ok(vec![run.clone()]);
    }
    let mut pending = read(reach, which.flow.as_deref()).await?.items;
    pending.retain(|item| item.state == "pending");
    pending.sort_by(|a, b| (&a.created_at, a.run_id).cmp(&(&b.created_at, b.run_id)));
    Ok(pending.iter().map(|item| item.run_id.to_string()).collect())
}

async fn replay(app: &App, reach: &Reach, which: &Which) -> Outcome {
    let runs = chosen(reach, which).await?;
    deal(app, reach, which, &runs, ("replay", &DiscardNote::default())).await
}

async fn discard(app: &App, reach: &Reach, args: &Discard) -> Outcome {
    let runs = chosen(reach, &args.which).await?;
    if !args.yes && !runs.is_empty() {
        let count = runs.len();
        let unasked = || {
            Failure::usage("not_confirmed", format!("{count} stopped runs would be cancelled"))
                .help("add --yes to give them up; `flowgate checkpoints list --pending` shows them")
        };
        confirm::ask(app, &format!("cancel {count} stopped runs for good?"), &unasked)?;
    }
    let note = DiscardNote { reason: args.reason.clone() };
    deal(app, reach, &args.which, &runs, ("discard", &note)).await
}

/// Does it to one after the other. What cannot be done to one run is the failure of the verb; of
/// many it is told, and the rest goes on.
async fn deal(
    app: &App,
    reach: &Reach,
    which: &Which,
    runs: &[String],
    (verb, note): (&str, &DiscardNote),
) -> Outcome {
    let mut dealt = Dealt::default();
    for run in runs {
        let path = format!("/checkpoints/{}/{verb}", segment(run));
        match reach.post(&path, note).await {
            Ok(item) => dealt.done.push(item),
            Err(failure) if which.run.is_some() => return Err(failure),
            Err(failure) if failure.exit == Exit::Store => return Err(failure),
            Err(failure) => {
                let (code, message) = (failure.code.clone(), failure.cause());
                dealt.failed.push(Failed { run: run.clone(), code, message });
            }
        }
    }
    let exit = if dealt.failed.is_empty() { Exit::Done } else { Exit::Refused };
    if app.output.json {
        app.output.json(&dealt)?;
        return Ok(exit);
    }
    for item in &dealt.done {
        app.output.line(format_args!("{}  {}", item.run_id, item.state))?;
    }
    for failed in &dealt.failed {
        app.output.warning(format_args!("{}: {}", failed.run, failed.message));
    }
    if runs.is_empty() {
        app.output.note("no run is stopped");
    }
    Ok(exit)
}
