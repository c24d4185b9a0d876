//! `flowgate schedules list`, `show`, `next` and `occurrences`: they only read.

use flowgate_core::view::Brief;
use flowgate_server::wire::Page;
use flowgate_server::wire::schedules::{
    DueTimes, OccurrenceItem, ScheduleDetail, ScheduleItem, ScheduleSource,
};
use serde::de::DeserializeOwned;

use super::super::App;
use super::{fates, note, path};
use crate::clock;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{Cell, Table};
use crate::reach::Reach;

/// Due times and entries that `show` prints.
const SHOWN: usize = 5;
/// What is asked for at once.
const PAGE: usize = 200;

/// Lists schedules.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With --json it prints one object: `items`, the schedules of this page, and `next`, the name to go \
on after, or null on the last page.

Examples:
  flowgate schedules list
  flowgate schedules list --flow report --json
  flowgate schedules list --limit 10 --after NAME")]
pub(crate) struct List {
    /// Only schedules of this flow
    #[arg(long)]
    flow: Option<String>,
    /// At most this many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=999))]
    limit: u64,
    /// Go on after the schedule of this name
    #[arg(long, value_name = "NAME")]
    after: Option<String>,
}

/// Shows a schedule.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  flowgate schedules show report/nightly")]
pub(crate) struct Show {
    /// The schedule
    name: String,
}

/// Shows due times.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  flowgate schedules next report/nightly
  flowgate schedules next report/nightly -n 3 --from 2026-10-24T00:00:00Z --json")]
pub(crate) struct Next {
    /// The schedule
    name: String,
    /// How many
    #[arg(short, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    n: u64,
    /// After this time instead of now
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
}

/// Shows the ledger.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With --json it prints one object: `items`, and `next`, the time to go on before, or null on the \
last page.

Examples:
  flowgate schedules occurrences report/nightly
  flowgate schedules occurrences report/nightly --fate missed --fate failed
  flowgate schedules occurrences report/nightly --limit 10 --before TIME")]
pub(crate) struct Occurrences {
    /// The schedule; also one that was removed
    name: String,
    /// Only those with this fate; may be repeated
    #[arg(long, value_parser = fates())]
    fate: Vec<String>,
    /// At most this many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=999))]
    limit: u64,
    /// Only those that were due before: `1h` ago, or a time such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    before: Option<String>,
}

/// As many pages as it takes for `wanted` of something.
async fn pages<T: DeserializeOwned>(
    reach: &Reach,
    path: &str,
    (wanted, after): (u64, Option<String>),
    more: &[(&str, &str)],
) -> Result<Page<T>, Failure> {
    let wanted = usize::try_from(wanted).expect("the limit is small");
    let mut whole = Page { items: Vec::new(), next: after };
    loop {
        let limit = (wanted - whole.items.len()).min(PAGE).to_string();
        let mut query = vec![("limit", &*limit)];
        query.extend(more);
        query.extend(whole.next.as_deref().map(|next| ("after", next)));
        let page: Page<T> = reach.get(path, &query).await?;
        whole.items.extend(page.items);
        whole.next = page.next;
        if whole.items.len() >= wanted || whole.next.is_none() {
            return Ok(whole);
        }
    }
}

pub(crate) async fn list(app: &App, args: List) -> Outcome {
    let reach = Reach::read(app).await?;
    let flow: Vec<_> = args.flow.as_deref().map(|flow| ("flow", flow)).into_iter().collect();
    let page: Page<ScheduleItem> =
        pages(&reach, "/schedules", (args.limit, args.after), &flow).await?;
    if app.output.json {
        app.output.json(&page)?;
        return Ok(Exit::Done);
    }
    if page.items.is_empty() {
        app.output.note("no schedules; add one to a flow file, or with `flowgate schedules add`");
        return Ok(Exit::Done);
    }
    let now = clock::now();
    let mut table = Table::new(&["schedule", "flow", "when", "zone", "state", "next"]);
    for item in &page.items {
        let next = item.next_at.as_deref().map(clock::read);
        table.row(vec![
            Cell::bold(&item.name),
            Cell::plain(&item.flow),
            Cell::plain(item.schedule.when()),
            Cell::plain(item.schedule.zone_name().unwrap_or_default()),
            Cell::plain(state(item)),
            Cell::dim(next.map_or_else(String::new, |at| format!("in {}", Brief(at.since(now))))),
        ]);
    }
    table.print(app.output)?;
    if let Some(next) = page.next {
        app.output.note(format_args!("more: flowgate schedules list --after {next} …"));
    }
    Ok(Exit::Done)
}

fn state(item: &ScheduleItem) -> &'static str {
    match item.next_at {
        _ if item.paused => "paused",
        None => "over",
        Some(_) => "active",
    }
}

pub(crate) async fn show(app: &App, args: Show) -> Outcome {
    let shown: ScheduleDetail = Reach::read(app).await?.get(&path(&args.name), &[]).await?;
    if app.output.json {
        app.output.json(&shown)?;
        return Ok(Exit::Done);
    }
    let (item, file) = (&shown.item, &shown.item.schedule);
    let line = |name: &str, value: &str| app.output.line(format_args!("{name:<10}{value}"));
    line("schedule", &Cell::bold(&item.name).to_string())?;
    line("flow", &item.flow)?;
    line("when", &file.when())?;
    if let Some(zone) = file.zone_name() {
        line("zone", zone)?;
    }
    line("state", state(item))?;
    let source = match item.source {
        ScheduleSource::File => "its flow file",
        ScheduleSource::Added => "added by hand",
    };
    line("from", source)?;
    if let Some(description) = &file.description {
        line("about", description)?;
    }
    if let Some(input) = &file.input {
        line("input", &input.to_string())?;
    }
    for at in shown.next.iter().take(SHOWN) {
        line("next", at)?;
    }
    let rows = &shown.occurrences[..shown.occurrences.len().min(SHOWN)];
    if !rows.is_empty() {
        app.output.line("")?;
        table(rows).print(app.output)?;
    }
    Ok(Exit::Done)
}

pub(crate) async fn next(app: &App, args: Next) -> Outcome {
    let reach = Reach::read(app).await?;
    let n = args.n.to_string();
    let mut query = vec![("n", &*n)];
    query.extend(args.from.as_deref().map(|from| ("from", from)));
    let due: DueTimes = reach.get(&format!("{}/next", path(&args.name)), &query).await?;
    if app.output.json {
        app.output.json(&due)?;
        return Ok(Exit::Done);
    }
    let shown: ScheduleDetail = reach.get(&path(&args.name), &[]).await?;
    let zone = shown.item.schedule.zone_name().unwrap_or("UTC");
    for at in &due.items {
        app.output.line(format_args!("{at}  {}", Cell::dim(local(at, zone))))?;
    }
    if due.items.is_empty() {
        app.output.note("it is not due any more");
    }
    if due.paused {
        app.output.note("the schedule is paused: its occurrences are skipped");
    }
    Ok(Exit::Done)
}

/// What the clock in a zone shows then.
fn local(at: &str, zone: &str) -> String {
    let time = at.parse::<jiff::Timestamp>().and_then(|time| time.in_tz(zone));
    time.map_or_else(|_| String::new(), |time| time.strftime("%a %d %b %H:%M:%S %Z").to_string())
}

pub(crate) async fn occurrences(app: &App, args: Occurrences) -> Outcome {
    let reach = Reach::read(app).await?;
    let fates = args.fate.join(",");
    let path = format!("{}/occurrences", path(&args.name));
    let page: Page<OccurrenceItem> =
        pages(&reach, &path, (args.limit, args.before), &[("fate", &*fates)]).await?;
    if app.output.json {
        app.output.json(&page)?;
        return Ok(Exit::Done);
    }
    if page.items.is_empty() {
        app.output.note("no occurrences");
        return Ok(Exit::Done);
    }
    table(&page.items).print(app.output)?;
    if let Some(next) = page.next {
        app.output.note(format_args!(
            "more: flowgate schedules occurrences {} --before {next} …",
            args.name
        ));
    }
    Ok(Exit::Done)
}

fn table(rows: &[OccurrenceItem]) -> Table {
    let mut table = Table::new(&["due", "fate", "delay", "run", "note"]);
    for row in rows {
        let run = row.run_id.map_or_else(String::new, |run_id| run_id.to_string());
        let delay = clock::read(&row.decided_at).since(clock::read(&row.due_at));
        let delay = row.fate.has_run().then(|| Brief(delay).to_string());
        table.row(vec![
            Cell::plain(&row.due_at),
            Cell::bold(row.fate),
            Cell::plain(delay.unwrap_or_default()),
            Cell::plain(run),
            Cell::dim(note(row)),
        ]);
    }
    table
}
