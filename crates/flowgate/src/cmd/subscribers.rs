//! `flowgate subscribers`.

use std::time::Duration;

use clap::Subcommand;
use flowgate_core::view::Brief;
use flowgate_server::wire::Items;
use flowgate_server::wire::subscribers::{
    MemberItem, PartitionItem, ResetDone, ResetName, ResetRequest, ResetTarget,
    RetryDead as RetryRequest, RetryDeadDone, SubscriberDetail, SubscriberItem,
};
use serde::Serialize;

use super::App;
use crate::failure::{Exit, Outcome};
use crate::output::{Cell, Table, short};
use crate::reach::{Reach, segment};

/// Dead letters that are shown; more are counted.
const DEAD_SHOWN_MAX: usize = 20;

/// Works with subscribers.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A subscriber is given every event of the store, in order, and remembers how far it is: a sink of \
`[subscribers.NAME]` in flowgate.toml, or a projection or saga of a program that embeds flowgate.

Examples:
  flowgate subscribers list
  flowgate subscribers show billing
  flowgate subscribers retry-dead billing
  flowgate subscribers reset billing --to start")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List subscribers: where each is active, how far it is behind, what it has put aside
    List,
    /// Show one: its partitions, who stands by, its dead letters
    Show(Show),
    /// Let one go on from the start, the end or a position
    #[command(after_help = "\
Whoever is active begins anew there at once, without the state that it had; what it was doing is \
not written any more. A projection can only be reset to the start.

Examples:
  flowgate subscribers reset billing --to start
  flowgate subscribers reset billing --to 812-3")]
    Reset(Reset),
    /// Let one try again what it has put aside, or the event that it stopped at
    #[command(after_help = "\
The active instance tries them; each that is handled is gone from the dead letters. They come out \
of their order: later events were handled before.

Examples:
  flowgate subscribers retry-dead billing
  flowgate subscribers retry-dead billing --run latest")]
    RetryDead(RetryDead),
}

#[derive(Debug, clap::Args)]
struct Show {
    /// The subscriber
    id: String,
}

#[derive(Debug, clap::Args)]
struct Reset {
    /// The subscriber
    id: String,
    /// `start`, `end`, or a position as `show` prints it: one for each feed, with commas between
    #[arg(long, value_name = "WHERE")]
    to: String,
}

#[derive(Debug, clap::Args)]
struct RetryDead {
    /// The subscriber
    id: String,
    /// Only events of this run
    #[arg(long)]
    run: Option<String>,
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    match args.verb {
        Verb::List => list(&app).await,
        Verb::Show(args) => show(&app, &args.id).await,
        Verb::Reset(args) => reset(&app, args).await,
        Verb::RetryDead(args) => retry_dead(&app, args).await,
    }
}

async fn list(app: &App) -> Outcome {
    let listed: Items<SubscriberItem> = Reach::read(app).await?.get("/subscribers", &[]).await?;
    if app.output.json {
        app.output.json(&listed)?;
        return Ok(Exit::Done);
    }
    if listed.items.is_empty() {
        app.output.note("no subscriber has begun; see docs/guide/subscribers.md");
        return Ok(Exit::Done);
    }
    let heading = ["subscriber", "kind", "mode", "state", "active", "behind", "dead"];
    let mut table = Table::new(&heading);
    for item in &listed.items {
        table.row(vec![
            Cell::bold(&item.subscriber),
            Cell::plain(&item.kind),
            Cell::plain(&item.mode),
            Cell::plain(&item.state),
            Cell::plain(active(item)),
            Cell::plain(behind(item)),
            Cell::plain(item.dead),
        ]);
    }
    table.print(app.output)?;
    Ok(Exit::Done)
}

async fn show(app: &App, id: &str) -> Outcome {
    let path = format!("/subscribers/{}", segment(id));
    let shown: SubscriberDetail = Reach::read(app).await?.get(&path, &[]).await?;
    if app.output.json {
        app.output.json(&shown)?;
        return Ok(Exit::Done);
    }
    let (item, dead) = (&shown.item, &shown.dead_letters);
    app.output.line(format_args!(
        "{id}: {}, {}, {}, {}; {}; behind {}",
        item.kind,
        item.mode,
        item.state,
        item.on_failure,
        if item.members.is_empty() { "nobody wants it".to_owned() } else { members(item) },
        behind(item),
    ))?;
    let mut table = Table::new(&["partition", "active on", "position", "handled", "failed"]);
    for partition in &item.partitions {
        table.row(vec![
            Cell::bold(partition.partition),
            Cell::plain(partition.active_on.as_deref().unwrap_or("-")),
            Cell::plain(positions(partition)),
            Cell::plain(partition.handled),
            Cell::plain(partition.failed.as_ref().map_or("", |failed| &*failed.error)),
        ]);
    }
    table.print(app.output)?;
    if !dead.is_empty() {
        let mut table = Table::new(&["run", "event", "attempts", "put aside", "error"]);
        for letter in dead.iter().take(DEAD_SHOWN_MAX) {
            table.row(vec![
                Cell::bold(short(letter.run)),
                Cell::plain(format_args!("{} {}", letter.seq, letter.r#type)),
                Cell::plain(letter.attempts),
                Cell::dim(&letter.put_aside_at),
                Cell::plain(&letter.error),
            ]);
        }
        table.print(app.output)?;
        if dead.len() > DEAD_SHOWN_MAX {
            app.output.note(format_args!("{} dead letters in all; --json shows them", item.dead));
        }
    }
    Ok(Exit::Done)
}

async fn reset(app: &App, args: Reset) -> Outcome {
    let to = match args.to.as_str() {
        "start" => ResetTarget::Named(ResetName::Start),
        "end" => ResetTarget::Named(ResetName::End),
        text => ResetTarget::Positions(text.split(',').map(str::to_owned).collect()),
    };
    let reach = Reach::write(app).await?;
    let path = format!("/subscribers/{}/reset", segment(&args.id));
    let told = reach.post(&path, &ResetRequest { to }).await;
    let told: ResetDone = reach.finish(told).await?;
    tell(app, &told, format_args!("`{}` goes on from {}", args.id, args.to))
}

async fn retry_dead(app: &App, args: RetryDead) -> Outcome {
    let reach = Reach::write(app).await?;
    let path = format!("/subscribers/{}/retry-dead", segment(&args.id));
    let told = reach.post(&path, &RetryRequest { run_id: args.run }).await;
    let told: RetryDeadDone = reach.finish(told).await?;
    tell(app, &told, format_args!("`{}` tries {} dead letters again", args.id, told.retried))
}

fn tell(app: &App, told: &impl Serialize, note: impl std::fmt::Display) -> Outcome {
    if app.output.json {
        app.output.json(told)?;
    } else {
        app.output.note(note);
    }
    Ok(Exit::Done)
}

fn active(item: &SubscriberItem) -> String {
    let mut holders: Vec<&str> =
        item.partitions.iter().filter_map(|partition| partition.active_on.as_deref()).collect();
    holders.sort_unstable();
    holders.dedup();
    if holders.is_empty() { "-".to_owned() } else { holders.join(",") }
}

fn members(item: &SubscriberItem) -> String {
    let member = |member: &MemberItem| match member.partitions {
        0 => format!("{} stands by", member.instance),
        count => format!("{} has {count}", member.instance),
    };
    item.members.iter().map(member).collect::<Vec<_>>().join(", ")
}

fn positions(partition: &PartitionItem) -> String {
    match &partition.positions {
        None => "-".to_owned(),
        Some(positions) => positions.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
    }
}

fn behind(item: &SubscriberItem) -> String {
    let behind = Brief(Duration::from_millis(item.behind_ms));
    if item.caught_up { "0s".to_owned() } else { behind.to_string() }
}
