//! `flowgate instances`.

use flowgate_core::time::Timestamp;
use flowgate_core::view::Brief;
use flowgate_engine::{FLAP_WINDOW, flapping_terms};
use flowgate_store::control::Term;
use flowgate_store::{Degradation, InstanceRow, InstanceState, Store};
use serde_json::json;

use super::App;
use crate::failure::{Exit, Outcome};
use crate::output::{Cell, Table};
use crate::stores::{self, is_silent};

/// Lists instances.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
An instance is a process that executes runs of the store: `flowgate worker start`, `flowgate \
dev`, `flowgate run`, or a program that embeds flowgate. One that is degraded does less, and one \
that is critical takes on no new runs; --json says why. One that is silent has not been heard of for longer than it should; \
it is listed for a day. What it had leased goes on elsewhere when its leases end.

One instance leads and fires schedules. --leader shows who does, and who did before: each term \
with its number, its holder, and how it ended.

Examples:
  flowgate instances
  flowgate instances --leader
  flowgate instances --store postgres://user@localhost/flowgate --json")]
pub(crate) struct Args {
    /// Show who leads, and who did before
    #[arg(long)]
    leader: bool,
    /// With --leader: at most this many terms
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    limit: u64,
    /// Only those of this pool
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    let store = stores::open_to_read(&app).await?;
    if args.leader {
        return leader(&app, &*store, usize::try_from(args.limit).expect("it is small")).await;
    }
    let now = store.now().await?;
    let mut rows = store.list_instances().await?;
    let is_meant =
        |row: &InstanceRow| args.pool.is_none() || row.beat.pool.as_deref() == args.pool.as_deref();
    rows.retain(is_meant);
    rows.sort_by(|a, b| a.beat.instance.0.cmp(&b.beat.instance.0));
    if app.output.json {
        let rows: Vec<_> = rows.iter().map(|row| value(row, now)).collect();
        app.output.json(&json!({ "instances": rows }))?;
        return Ok(Exit::Done);
    }
    if rows.is_empty() {
        app.output.note(match &args.pool {
            None => "no instance has been heard of; start one with `flowgate dev`".to_owned(),
            Some(pool) => format!("no instance of the pool `{pool}` has been heard of"),
        });
        return Ok(Exit::Done);
    }
    let heading = [
        "instance",
        "host",
        "pid",
        "version",
        "role",
        "state",
        "running",
        "queues",
        "pool",
        "since",
        "last seen",
    ];
    let mut table = Table::new(&heading);
    for row in &rows {
        let beat = &row.beat;
        table.row(vec![
            Cell::bold(&beat.instance),
            Cell::plain(host(row)),
            Cell::plain(beat.pid),
            Cell::plain(&beat.version),
            Cell::plain(beat.role.as_deref().unwrap_or("-")),
            Cell::plain(state(row, now)),
            Cell::plain(format_args!("{}/{}", beat.running, beat.slots)),
            Cell::plain(queues(row).map_or_else(|| "*".to_owned(), |queues| queues.join(","))),
            Cell::plain(beat.pool.as_deref().unwrap_or("-")),
            Cell::dim(row.started_at),
            Cell::dim(format_args!("{} ago", Brief(now.since(row.seen_at)))),
        ]);
    }
    table.print(app.output)?;
    Ok(Exit::Done)
}

/// Shows who leads, the terms so far, and whether they change too often.
async fn leader(app: &App, store: &dyn Store, limit: usize) -> Outcome {
    let now = store.now().await?;
    let terms = store.past_terms("leader", limit).await?;
    let flapping = flapping_terms(&terms);
    let current = terms.first().filter(|term| term.is_held(now));
    if app.output.json {
        let all: Vec<_> = terms.iter().map(|term| term_value(term, now)).collect();
        app.output.json(&json!({
            "leader": current.map(|term| term_value(term, now)), "terms": all,
            "flapping": flapping > 0,
        }))?;
        return Ok(Exit::Done);
    }
    if current.is_none() {
        app.output.note("no instance leads; schedules wait for one, such as `flowgate dev`");
    }
    if flapping > 0 {
        let minutes = FLAP_WINDOW.as_secs() / 60;
        app.output.warning(format_args!(
            "leadership flaps: {flapping} terms within {minutes} minutes; look for instances that \
             restart, and for a store that answers slowly"
        ));
    }
    if terms.is_empty() {
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["term", "instance", "since", "lasted", "end"]);
    for term in &terms {
        let until = ended_at(term, now).unwrap_or(now);
        table.row(vec![
            Cell::bold(term.term.number),
            Cell::plain(holder(term)),
            Cell::dim(term.began_at),
            Cell::plain(Brief(until.since(term.began_at))),
            Cell::plain(end(term, now)),
        ]);
    }
    table.print(app.output)?;
    Ok(Exit::Done)
}

fn term_value(term: &Term, now: Timestamp) -> serde_json::Value {
    json!({
        "term": term.term.number, "instance": holder(term),
        "began_at": term.began_at.to_string(), "expires_at": term.expires_at.to_string(),
        "ended_at": ended_at(term, now).map(|at| at.to_string()), "end": end(term, now),
    })
}

fn ended_at(term: &Term, now: Timestamp) -> Option<Timestamp> {
    term.released_at.or_else(|| (!term.is_held(now)).then_some(term.expires_at))
}

fn end(term: &Term, now: Timestamp) -> &'static str {
    match term.released_at {
        Some(_) => "released",
        None if term.is_held(now) => "leads",
        None => "expired",
    }
}

/// The instance that asked for the term; a random part behind its name tells its asks apart.
fn holder(term: &Term) -> &str {
    term.holder.rsplit_once('/').map_or(&term.holder, |(instance, _)| instance)
}

fn value(row: &InstanceRow, now: Timestamp) -> serde_json::Value {
    let beat = &row.beat;
    json!({
        "instance": beat.instance,
        "host": host(row),
        "pid": beat.pid,
        "version": beat.version,
        "role": beat.role,
        "pool": beat.pool,
        "state": state(row, now),
        "degradation": beat.degradation,
        "strained_by": beat.strained_by,
        "running": beat.running,
        "slots": beat.slots,
        "queues": queues(row),
        "started_at": row.started_at.to_string(),
        "seen_at": row.seen_at.to_string(),
    })
}

fn state(row: &InstanceRow, now: Timestamp) -> &'static str {
    match row.beat.state {
        _ if is_silent(row, now) => "silent",
        InstanceState::Ready => match row.beat.degradation {
            Degradation::Normal => "ready",
            strained @ (Degradation::Degraded | Degradation::Critical) => strained.as_str(),
        },
        InstanceState::Stopping => "stopping",
    }
}

/// An instance is named after its host, with a random part behind it.
fn host(row: &InstanceRow) -> &str {
    let name = &row.beat.instance.0;
    name.rsplit_once('-').map_or(name, |(host, _)| host)
}

/// The queues that it serves; none if it serves all.
fn queues(row: &InstanceRow) -> Option<Vec<&str>> {
    row.beat.queues.as_ref().map(|queues| queues.iter().map(|queue| &**queue).collect())
}
