//! `flowgate hold`.

use std::time::Duration;

use clap::Subcommand;
use flowgate_core::flow::Span;
use flowgate_core::gate::GateState;
use flowgate_core::limits::LIMIT_MAX;
use flowgate_core::view::Brief;
use flowgate_server::wire::Items;
use flowgate_server::wire::gates::{GateChange, GateItem, GateWish};

use super::App;
use crate::clock;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{Cell, Table};
use crate::reach::{Reach, segment};

mod wait;

/// Holds flows.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A flow that is held takes starts as ever, and keeps them: their runs are `held` and begin when it \
lets go, the oldest first. Runs that have begun go on. It holds 100000 runs unless --max says \
otherwise, and refuses what comes after them.

Examples:
  flowgate hold on order --reason 'the bank does not answer'
  flowgate hold status
  flowgate hold off order --rate 10 --wait")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Hold what starts from now on
    On(On),
    /// Let go what is held, and open the gate when nothing is held any more
    Off(Off),
    /// Show which flows are held, how much they hold and why
    Status(Status),
}

/// Holds a flow.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  flowgate hold on order --reason 'the bank does not answer'
  flowgate hold on order --max 5000 --for 30m")]
struct On {
    /// The flow
    flow: String,
    /// Why, for whoever wonders
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Hold at most this many runs, and refuse what comes after them [default: 100000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=u64::from(LIMIT_MAX)))]
    max: Option<u64>,
    /// Let go by itself after this long, such as 30m
    #[arg(long = "for", value_name = "SPAN")]
    span: Option<Span>,
}

/// Lets a flow go.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What starts meanwhile is held behind the others. The instance that leads lets go; this needs not \
wait for it.

Examples:
  flowgate hold off order
  flowgate hold off order --rate 10 --wait")]
struct Off {
    /// The flow
    flow: String,
    /// Let go at most this many runs a second, besides as many as come in [default: as many as can be]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(LIMIT_MAX)))]
    rate: Option<u32>,
    /// Return when the gate is open
    #[arg(long)]
    wait: bool,
}

/// Shows gates.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  flowgate hold status
  flowgate hold status order --json")]
struct Status {
    /// Only this flow; all whose gate was ever set without
    flow: Option<String>,
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    match args.verb {
        Verb::On(args) => on(&app, args).await,
        Verb::Off(args) => off(&app, args).await,
        Verb::Status(Status { flow: Some(flow) }) => show(&app, &flow).await,
        Verb::Status(Status { flow: None }) => list(&app).await,
    }
}

fn path_of(flow: &str) -> String {
    format!("/flows/{}/gate", segment(flow))
}

async fn on(app: &App, args: On) -> Outcome {
    let On { flow, reason, max: hold_max, span } = args;
    let deadline = span.map(|span| span.to_string());
    let change = GateChange { reason, hold_max, deadline, ..GateChange::to(GateWish::Holding) };
    let reach = Reach::write(app).await?;
    let changed = change_by(&reach, &flow, &change).await;
    let (before, now) = reach.finish(changed).await?;
    if app.output.json {
        app.output.json(&now)?;
        return Ok(Exit::Done);
    }
    app.output.line(format_args!("{flow}: {}", in_words(&now)))?;
    if before.generation == now.generation {
        app.output.note("that was so before; its reason, its bound and its deadline stay");
    }
    app.output
        .note(format_args!("what starts now is held; let it go with `flowgate hold off {flow}`"));
    Ok(Exit::Done)
}

/// Makes the change; the gate before it and after it.
async fn change_by(
    reach: &Reach,
    flow: &str,
    change: &GateChange,
) -> Result<(GateItem, GateItem), Failure> {
    let before = reach.get(&path_of(flow), &[]).await?;
    Ok((before, reach.put(&path_of(flow), change).await?))
}

async fn off(app: &App, args: Off) -> Outcome {
    let Off { flow, rate, wait } = args;
    let change = GateChange { rate, ..GateChange::to(GateWish::Open) };
    let reach = Reach::write(app).await?;
    let is_worked_on = reach.is_worked_on;
    let outcome = match change_by(&reach, &flow, &change).await {
        Ok((_, now)) if wait && is_worked_on && now.state != GateState::Open => {
            wait::until_open(app, &reach, now).await
        }
        Ok((before, now)) => Ok(wait::Waited { before, now, stopped: None }),
        Err(failure) => Err(failure),
    };
    let wait::Waited { before, now, stopped } = reach.finish(outcome).await?;
    if app.output.json {
        app.output.json(&now)?;
    } else {
        app.output.line(format_args!("{flow}: {}", in_words(&now)))?;
    }
    if let Some(exit) = stopped {
        app.output.note("it goes on without this process; see `flowgate hold status`");
        return Ok(exit);
    }
    if now.state == GateState::Open {
        if before.state == GateState::Open {
            app.output.note("that was so before");
        }
        return Ok(Exit::Done);
    }
    if is_worked_on {
        app.output.note(format_args!("see how far it is with `flowgate hold status {flow}`"));
        return Ok(Exit::Done);
    }
    let help = "start `flowgate dev`, or `flowgate worker start`: the instance that leads lets go";
    if wait {
        let message = format!("nobody works on the store, so `{flow}` is not let go yet");
        return Err(Failure::refused("nobody_leads", message).help(help).path(flow));
    }
    app.output.note(format_args!("nobody lets it go yet: {help}"));
    Ok(Exit::Done)
}

/// A gate in one line: what it does, how much it holds, and what bounds it.
fn in_words(gate: &GateItem) -> String {
    let mut words = vec![gate.state.as_str().to_owned()];
    if gate.state.is_closed() {
        words.push(format!("{} held", gate.held));
    }
    words.extend(gate.replay_rate.map(|rate| format!("{rate} a second")));
    words.extend(gate.deadline.as_ref().map(|at| format!("until {at}")));
    words.extend(gate.deployment.as_ref().map(|id| format!("for the deployment {id}")));
    words.extend(
        gate.canary.as_ref().map(|to| format!("{} of starts to {}", to.share, to.revision)),
    );
    words.extend(gate.pools.iter().map(|of| format!("{} for the pool {}", of.revision, of.pool)));
    let reason = gate.reason.as_ref().map(|reason| format!(" ({reason})"));
    format!("{}{}", words.join(", "), reason.unwrap_or_default())
}

/// For how long the first held run has waited, for people.
fn oldest(gate: &GateItem) -> Option<String> {
    Some(Brief(Duration::from_millis(gate.age_ms?)).to_string())
}

/// How long ago it was set, for people.
fn since(gate: &GateItem) -> Option<String> {
    let set_at = clock::read(gate.set_at.as_deref()?);
    Some(format!("{} ago", Brief(clock::now().since(set_at))))
}

async fn list(app: &App) -> Outcome {
    let listed: Items<GateItem> = Reach::read(app).await?.get("/gates", &[]).await?;
    if app.output.json {
        app.output.json(&listed)?;
        return Ok(Exit::Done);
    }
    if listed.items.is_empty() {
        app.output.note("no flow was ever held; hold one with `flowgate hold on FLOW`");
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["flow", "state", "held", "oldest", "since", "reason"]);
    for gate in &listed.items {
        table.row(vec![
            Cell::bold(&gate.flow),
            Cell::gate(gate.state),
            Cell::plain(gate.held),
            Cell::plain(oldest(gate).unwrap_or_default()),
            Cell::dim(since(gate).unwrap_or_default()),
            Cell::plain(gate.reason.as_deref().unwrap_or_default()),
        ]);
    }
    table.print(app.output)?;
    for gate in &listed.items {
        if let Some(next) = next(gate) {
            app.output.note(format_args!("{}: {next}", gate.flow));
        }
    }
    Ok(Exit::Done)
}

async fn show(app: &App, flow: &str) -> Outcome {
    let gate: GateItem = Reach::read(app).await?.get(&path_of(flow), &[]).await?;
    if app.output.json {
        app.output.json(&gate)?;
        return Ok(Exit::Done);
    }
    let fact = |name: &str, value: String| app.output.line(format_args!("{name:<10} {value}"));
    fact("flow", Cell::bold(&gate.flow).to_string())?;
    fact("state", Cell::gate(gate.state).to_string())?;
    if gate.state.is_closed() {
        let oldest = oldest(&gate).map(|age| format!(", the oldest for {age}"));
        let oldest = oldest.unwrap_or_default();
        fact("held", format!("{} of at most {}{oldest}", gate.held, gate.hold_max))?;
    }
    let facts = [
        ("since", gate.set_at.as_ref().zip(since(&gate)).map(|(at, ago)| format!("{at}, {ago}"))),
        ("reason", gate.reason.clone()),
        ("deadline", gate.deadline.clone()),
        ("rate", gate.replay_rate.map(|rate| format!("{rate} runs a second"))),
        ("deployment", gate.deployment.clone()),
    ];
    for (name, value) in facts {
        value.map_or(Ok(()), |value| fact(name, value))?;
    }
    if let Some(next) = next(&gate) {
        app.output.note(next);
    }
    Ok(Exit::Done)
}

/// What to do about a gate that is not open.
fn next(gate: &GateItem) -> Option<String> {
    let flow = &gate.flow;
    match (gate.state, &gate.deployment) {
        (GateState::Open, _) => None,
        (GateState::Draining | GateState::Holding | GateState::Replaying, Some(deployment)) => {
            Some(format!(
                "the deployment {deployment} opens it; its runs: `flowgate runs list --flow {flow} --status held`"
            ))
        }
        (GateState::Draining | GateState::Holding, None) => {
            let by_itself = gate.deadline.as_ref();
            let by_itself = by_itself.map(|at| format!(", or wait: it does so at {at}"));
            let by_itself = by_itself.unwrap_or_default();
            Some(format!("let it go with `flowgate hold off {flow}`{by_itself}"))
        }
        (GateState::Replaying, None) => Some(format!(
            "it lets go, and opens when nothing is held; wait with `flowgate hold off {flow} --wait`"
        )),
    }
}
