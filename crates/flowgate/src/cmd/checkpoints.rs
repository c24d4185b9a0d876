//! `flowgate checkpoints`.

use clap::Subcommand;
use flowgate_server::wire::Items;
use flowgate_server::wire::deployments::CheckpointItem;

use super::App;
use crate::failure::{Exit, Outcome};
use crate::output::{Cell, Table, short};
use crate::reach::Reach;

/// Looks at runs that deployments have stopped.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A deployment stops runs that are open at its drain timeout, at their steps, and lets them go on \
when it has ended. In a steady state none is pending. Were everybody to die, a stopped run would \
go on by itself when its checkpoint expires.

Examples:
  flowgate checkpoints list
  flowgate checkpoints list order --pending")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List them, the latest deployment of a flow first
    List(List),
}

#[derive(Debug, clap::Args)]
struct List {
    /// The flow [default: all]
    flow: Option<String>,
    /// Only those that have not gone on
    #[arg(long)]
    pending: bool,
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    let Verb::List(List { flow, pending }) = args.verb;
    let query: Vec<(&str, &str)> = flow.iter().map(|flow| ("flow", flow.as_str())).collect();
    let reach = Reach::read(&app).await?;
    let mut listed: Items<CheckpointItem> = reach.get("/checkpoints", &query).await?;
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
