//! `flowgate instances`.

use flowgate_core::time::Timestamp;
use flowgate_core::view::Brief;
use flowgate_store::{Degradation, InstanceRow, InstanceState};
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

Examples:
  flowgate instances
  flowgate instances --store postgres://user@localhost/flowgate --json")]
pub(crate) struct Args {
    /// Only those of this pool
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    let store = stores::open_to_read(&app).await?;
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
