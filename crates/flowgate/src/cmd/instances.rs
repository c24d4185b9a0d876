//! `flowgate instances`.

use flowgate_core::view::Brief;
use flowgate_engine::FLAP_WINDOW;
use flowgate_server::wire::instances::{InstanceItem, InstanceList, LeaderReport, WorkerItem};

use super::App;
use crate::clock;
use crate::failure::{Exit, Outcome};
use crate::output::{Cell, Table};
use crate::reach::Reach;

/// Lists instances.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
An instance is a process that executes runs of the store: `flowgate worker start`, `flowgate \
dev`, `flowgate run`, or a program that embeds flowgate. One that is degraded does less, and one \
that is critical takes on no new runs; --json says why. One that is silent has not been heard of for longer than it should; \
it is listed for a day. What it had leased goes on elsewhere when its leases end.

Remote workers that have asked an instance for jobs within the last hour are listed below.

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
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=200))]
    limit: u64,
    /// Only those of this pool
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    let reach = Reach::read(&app).await?;
    if args.leader {
        let limit = args.limit.to_string();
        return leader(&app, &reach.get("/leader", &[("limit", &*limit)]).await?);
    }
    let pool = args.pool.as_deref().map(|pool| ("pool", pool));
    let query: Vec<_> = pool.into_iter().collect();
    let listed: InstanceList = reach.get("/instances", &query).await?;
    if app.output.json {
        app.output.json(&listed)?;
        return Ok(Exit::Done);
    }
    if listed.items.is_empty() && listed.workers.is_empty() {
        app.output.note(match &args.pool {
            None => "no instance has been heard of; start one with `flowgate dev`".to_owned(),
            Some(pool) => format!("no instance of the pool `{pool}` has been heard of"),
        });
        return Ok(Exit::Done);
    }
    if !listed.items.is_empty() {
        table(&listed.items).print(app.output)?;
    }
    if !listed.workers.is_empty() {
        worker_table(&listed.workers).print(app.output)?;
    }
    Ok(Exit::Done)
}

fn table(items: &[InstanceItem]) -> Table {
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
    let now = clock::now();
    let mut table = Table::new(&heading);
    for item in items {
        let queues = item.queues.as_ref().map_or_else(|| "*".to_owned(), |all| all.join(","));
        table.row(vec![
            Cell::bold(&item.instance),
            Cell::plain(&item.host),
            Cell::plain(item.pid),
            Cell::plain(&item.version),
            Cell::plain(item.role.as_deref().unwrap_or("-")),
            Cell::plain(&item.state),
            Cell::plain(format_args!("{}/{}", item.running, item.slots)),
            Cell::plain(queues),
            Cell::plain(item.pool.as_deref().unwrap_or("-")),
            Cell::dim(&item.started_at),
            Cell::dim(format_args!("{} ago", Brief(now.since(clock::read(&item.seen_at))))),
        ]);
    }
    table
}

fn worker_table(items: &[WorkerItem]) -> Table {
    let now = clock::now();
    let mut table = Table::new(&["remote worker", "executes", "queues", "asks", "last seen"]);
    for item in items {
        table.row(vec![
            Cell::bold(&item.worker_id),
            Cell::plain(item.workers.join(",")),
            Cell::plain(item.queues.join(",")),
            Cell::plain(&item.instance),
            Cell::dim(format_args!("{} ago", Brief(now.since(clock::read(&item.seen_at))))),
        ]);
    }
    table
}

/// Shows who leads, the terms so far, and whether they change too often.
fn leader(app: &App, report: &LeaderReport) -> Outcome {
    if app.output.json {
        app.output.json(report)?;
        return Ok(Exit::Done);
    }
    if report.leader.is_none() {
        app.output.note("no instance leads; schedules wait for one, such as `flowgate dev`");
    }
    if report.flapping {
        let minutes = FLAP_WINDOW.as_secs() / 60;
        app.output.warning(format_args!(
            "leadership flaps: many terms within {minutes} minutes; look for instances that \
             restart, and for a store that answers slowly"
        ));
    }
    if report.terms.is_empty() {
        return Ok(Exit::Done);
    }
    let now = clock::now();
    let mut table = Table::new(&["term", "instance", "since", "lasted", "end"]);
    for term in &report.terms {
        let until = term.ended_at.as_deref().map_or(now, clock::read);
        table.row(vec![
            Cell::bold(term.term),
            Cell::plain(&term.instance),
            Cell::dim(&term.began_at),
            Cell::plain(Brief(until.since(clock::read(&term.began_at)))),
            Cell::plain(term.end.as_str()),
        ]);
    }
    table.print(app.output)?;
    Ok(Exit::Done)
}
