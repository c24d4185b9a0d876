//! `flowgate subscribers`.

use clap::Subcommand;
use flowgate_core::ids::Position;
use flowgate_core::view::Brief;
use flowgate_engine::subscriber::{
    DeadLetter, InstanceMode, OnFailure, PartitionInfo, SubscriberAdmin, SubscriberInfo,
};
use serde_json::{Value, json};

use super::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::instance::failure;
use crate::lookup;
use crate::output::{Cell, Table, short};
use crate::steering::{self, Steer, To};
use crate::stores;

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
    let store = stores::open_to_read(app).await?;
    let infos = SubscriberAdmin::new(&*store).list().await.map_err(failure)?;
    if app.output.json {
        let rows: Vec<Value> = infos.iter().map(value).collect();
        app.output.json(&json!({ "subscribers": rows }))?;
        return Ok(Exit::Done);
    }
    if infos.is_empty() {
        app.output.note("no subscriber has begun; see docs/guide/subscribers.md");
        return Ok(Exit::Done);
    }
    let heading = ["subscriber", "kind", "mode", "state", "active", "behind", "dead"];
    let mut table = Table::new(&heading);
    for info in &infos {
        table.row(vec![
            Cell::bold(&info.id),
            Cell::plain(&info.kind),
            Cell::plain(info.mode.as_str()),
            Cell::plain(state(info)),
            Cell::plain(active(info)),
            Cell::plain(behind(info)),
            Cell::plain(info.dead),
        ]);
    }
    table.print(app.output)?;
    Ok(Exit::Done)
}

async fn show(app: &App, id: &str) -> Outcome {
    let store = stores::open_to_read(app).await?;
    let admin = SubscriberAdmin::new(&*store);
    let Some(info) = admin.show(id).await.map_err(failure)? else {
        return Err(Failure::not_found(
            "subscriber_not_found",
            format!("there is no subscriber `{id}`"),
        )
        .help("see `flowgate subscribers list`")
        .path(id));
    };
    let dead = admin.dead(id).await.map_err(failure)?;
    if app.output.json {
        let mut value = value(&info);
        value["dead_letters"] = dead.iter().map(dead_value).collect();
        app.output.json(&value)?;
        return Ok(Exit::Done);
    }
    let on_failure = on_failure(info.on_failure);
    app.output.line(format_args!(
        "{id}: {}, {}, {}, {on_failure}; {}; behind {}",
        info.kind,
        info.mode.as_str(),
        state(&info),
        if info.members.is_empty() { "nobody wants it".to_owned() } else { members(&info) },
        behind(&info),
    ))?;
    let mut table = Table::new(&["partition", "active on", "position", "handled", "failed"]);
    for partition in &info.partitions {
        table.row(vec![
            Cell::bold(partition.number),
            Cell::plain(holder(partition).unwrap_or("-")),
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
                Cell::bold(short(letter.run_id)),
                Cell::plain(format_args!("{} {}", letter.seq, letter.r#type)),
                Cell::plain(letter.attempts),
                Cell::dim(letter.died_at),
                Cell::plain(&letter.error),
            ]);
        }
        table.print(app.output)?;
        if dead.len() > DEAD_SHOWN_MAX {
            app.output.note(format_args!("{} dead letters in all; --json shows them", dead.len()));
        }
    }
    Ok(Exit::Done)
}

async fn reset(app: &App, args: Reset) -> Outcome {
    let to = match args.to.as_str() {
        "start" => To::Start,
        "end" => To::End,
        text => {
            let parsed: Result<Vec<Position>, _> = text.split(',').map(str::parse).collect();
            To::Positions(parsed.map_err(|error| {
                Failure::usage("position_invalid", error.to_string())
                    .help("write start, end, or a position of `flowgate subscribers show`")
                    .path("--to")
            })?)
        }
    };
    let told = steering::steer(app, Steer::SubscriberReset { id: args.id.clone(), to }).await?;
    tell(app, &told, format_args!("`{}` goes on from {}", args.id, args.to))
}

async fn retry_dead(app: &App, args: RetryDead) -> Outcome {
    let run_id = match &args.run {
        None => None,
        Some(text) => Some(lookup::run_id(&*stores::open_to_read(app).await?, text).await?),
    };
    let told =
        steering::steer(app, Steer::SubscriberRetryDead { id: args.id.clone(), run_id }).await?;
    let count = told["retried"].as_u64().unwrap_or(0);
    tell(app, &told, format_args!("`{}` tries {count} dead letters again", args.id))
}

fn tell(app: &App, told: &Value, note: impl std::fmt::Display) -> Outcome {
    if app.output.json {
        app.output.json(told)?;
    } else {
        app.output.note(note);
    }
    Ok(Exit::Done)
}

fn value(info: &SubscriberInfo) -> Value {
    let partitions: Vec<Value> = (info.partitions.iter())
        .map(|partition| {
            json!({
                "partition": partition.number,
                "active_on": holder(partition),
                "term": partition.term.as_ref().map(|term| term.term.number),
                "positions": partition.positions,
                "handled": partition.handled,
                "written_at": partition.written_at.map(|at| at.to_string()),
                "failed": partition.failed.as_ref().map(|failed| json!({
                    "run": failed.event.map(|(run_id, _)| run_id),
                    "seq": failed.event.map(|(_, seq)| seq),
                    "error": failed.error,
                    "attempts": failed.attempts,
                    "instance": failed.instance,
                })),
            })
        })
        .collect();
    let members: Vec<Value> = (info.members.iter())
        .map(|member| json!({ "instance": member.instance, "partitions": member.partitions }))
        .collect();
    json!({
        "subscriber": info.id,
        "kind": info.kind,
        "mode": info.mode.as_str(),
        "on_failure": on_failure(info.on_failure),
        "state": state(info),
        "caught_up": info.lag.is_caught_up,
        "behind_ms": u64::try_from(info.lag.behind.as_millis()).unwrap_or(u64::MAX),
        "dead": info.dead,
        "partitions": partitions,
        "members": members,
    })
}

fn dead_value(letter: &DeadLetter) -> Value {
    json!({
        "run": letter.run_id,
        "seq": letter.seq,
        "type": letter.r#type,
        "error": letter.error,
        "attempts": letter.attempts,
        "put_aside_at": letter.died_at.to_string(),
        "to_be_retried": letter.is_asked,
    })
}

fn on_failure(on_failure: OnFailure) -> &'static str {
    match on_failure {
        OnFailure::DeadLetter => "dead_letter",
        OnFailure::FailClosed => "fail_closed",
    }
}

/// Without a term nobody can say whether a single instance is there.
fn state(info: &SubscriberInfo) -> &'static str {
    if info.partitions.iter().any(|partition| partition.failed.is_some()) {
        return "failed";
    }
    if info.mode != InstanceMode::Coordinated {
        "unwatched"
    } else if info.partitions.iter().any(|partition| partition.term.is_some()) {
        "active"
    } else {
        "inactive"
    }
}

fn active(info: &SubscriberInfo) -> String {
    let mut holders: Vec<&str> = info.partitions.iter().filter_map(holder).collect();
    holders.sort_unstable();
    holders.dedup();
    if holders.is_empty() { "-".to_owned() } else { holders.join(",") }
}

/// The instance that has a partition.
fn holder(partition: &PartitionInfo) -> Option<&str> {
    let holder = &partition.term.as_ref()?.holder;
    Some(holder.split_once('/').map_or(&**holder, |(instance, _)| instance))
}

fn members(info: &SubscriberInfo) -> String {
    let member = |member: &flowgate_engine::subscriber::MemberInfo| match member.partitions {
        0 => format!("{} stands by", member.instance),
        count => format!("{} has {count}", member.instance),
    };
    info.members.iter().map(member).collect::<Vec<_>>().join(", ")
}

fn positions(partition: &PartitionInfo) -> String {
    match &partition.positions {
        None => "-".to_owned(),
        Some(positions) => positions.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
    }
}

fn behind(info: &SubscriberInfo) -> String {
    if info.lag.is_caught_up { "0s".to_owned() } else { Brief(info.lag.behind).to_string() }
}
