//! `flowgate schedules list`, `show`, `next` and `occurrences`: they only read.

use std::sync::Arc;

use flowgate_core::limits::PAGE_MAX;
use flowgate_core::schedule::{Occurrence, Schedule, Source};
use flowgate_core::time::Timestamp;
use flowgate_core::view::Brief;
use flowgate_engine::{NamedSchedule, read_ledger, read_schedules};
use serde_json::json;

use super::super::App;
use super::{fates, find, item, next_at, note, row};
use crate::failure::{Exit, Failure, Outcome};
use crate::lookup;
use crate::output::{Cell, Table};
use crate::stores;

/// Entries that `show` prints.
const SHOWN: usize = 5;
/// Entries that are looked through for a fate.
const SEARCHED_MAX: usize = 20_000;

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

pub(crate) async fn list(app: &App, args: List) -> Outcome {
    let store = stores::open_to_read(app).await?;
    let now = store.now().await?;
    let limit = usize::try_from(args.limit).expect("the limit is small");
    let mut after: Option<Arc<str>> = args.after.as_deref().map(Into::into);
    let mut found: Vec<NamedSchedule> = Vec::new();
    loop {
        let page = read_schedules(&*store, after, PAGE_MAX).await?;
        let is_last = page.len() < PAGE_MAX;
        after = page.last().map(|named| Arc::clone(&named.name));
        found.extend(
            page.into_iter().filter(|named| {
                args.flow.as_ref().is_none_or(|flow| named.record.spec.flow == *flow)
            }),
        );
        if is_last || found.len() > limit {
            break;
        }
    }
    let has_more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| has_more).map(|named| Arc::clone(&named.name));
    if app.output.json {
        let items: Vec<_> = found.iter().map(|named| item(named, now)).collect();
        app.output.json(&json!({ "items": items, "next": next }))?;
        return Ok(Exit::Done);
    }
    if found.is_empty() {
        app.output.note("no schedules; add one to a flow file, or with `flowgate schedules add`");
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["schedule", "flow", "when", "zone", "state", "next"]);
    for named in &found {
        let file = &named.record.spec.file;
        let next = next_at(named, now);
        table.row(vec![
            Cell::bold(&named.name),
            Cell::plain(&named.record.spec.flow),
            Cell::plain(file.when()),
            Cell::plain(file.zone_name().unwrap_or_default()),
            Cell::plain(state(named, next)),
            Cell::dim(next.map_or_else(String::new, |at| format!("in {}", Brief(at.since(now))))),
        ]);
    }
    table.print(app.output)?;
    if let Some(next) = next {
        app.output.note(format_args!("more: flowgate schedules list --after {next} …"));
    }
    Ok(Exit::Done)
}

fn state(named: &NamedSchedule, next: Option<Timestamp>) -> &'static str {
    match next {
        _ if named.record.is_paused => "paused",
        None => "over",
        Some(_) => "active",
    }
}

pub(crate) async fn show(app: &App, args: Show) -> Outcome {
    let store = stores::open_to_read(app).await?;
    let now = store.now().await?;
    let named = find(&*store, &args.name).await?;
    let record = &named.record;
    let due = upcoming(&named, now, SHOWN)?;
    let rows = read_ledger(&*store, &named.name, None, SHOWN).await?;
    if app.output.json {
        let mut value = item(&named, now);
        value["next"] = due.iter().map(ToString::to_string).collect();
        value["occurrences"] = rows.iter().map(row).collect();
        app.output.json(&value)?;
        return Ok(Exit::Done);
    }
    let file = &record.spec.file;
    let line = |name: &str, value: &str| app.output.line(format_args!("{name:<10}{value}"));
    line("schedule", &Cell::bold(&named.name).to_string())?;
    line("flow", &record.spec.flow)?;
    line("when", &file.when())?;
    if let Some(zone) = file.zone_name() {
        line("zone", zone)?;
    }
    line("state", state(&named, due.first().copied()))?;
    let source = match record.source {
        Source::FlowFile => "its flow file",
        Source::Hand => "added by hand",
        Source::Debounce => "a start that is put off",
    };
    line("from", source)?;
    if let Some(description) = &file.description {
        line("about", description)?;
    }
    if let Some(input) = &file.input {
        line("input", &input.to_string())?;
    }
    for at in &due {
        line("next", &at.to_string())?;
    }
    if !rows.is_empty() {
        app.output.line("")?;
        table(&rows).print(app.output)?;
    }
    Ok(Exit::Done)
}

fn upcoming(named: &NamedSchedule, from: Timestamp, n: usize) -> Result<Vec<Timestamp>, Failure> {
    let schedule = Schedule::new(&named.record.spec.file).map_err(|_| {
        let message = format!("this version cannot read the schedule `{}`", named.name);
        Failure::refused("schedule_invalid", message).help("use the version that wrote it")
    })?;
    Ok(schedule.between(from, Timestamp(i64::MAX), n))
}

pub(crate) async fn next(app: &App, args: Next) -> Outcome {
    let store = stores::open_to_read(app).await?;
    let now = store.now().await?;
    let named = find(&*store, &args.name).await?;
    let from = args.from.as_deref().map(|text| lookup::time("--from", text, now)).transpose()?;
    let n = usize::try_from(args.n).expect("the number is small");
    let due = upcoming(&named, from.unwrap_or(now), n)?;
    if app.output.json {
        let items: Vec<String> = due.iter().map(ToString::to_string).collect();
        let paused = named.record.is_paused;
        app.output.json(&json!({ "name": named.name, "paused": paused, "items": items }))?;
        return Ok(Exit::Done);
    }
    let zone = named.record.spec.file.zone_name().unwrap_or("UTC");
    for at in &due {
        app.output.line(format_args!("{at}  {}", Cell::dim(local(*at, zone))))?;
    }
    if due.is_empty() {
        app.output.note("it is not due any more");
    }
    if named.record.is_paused {
        app.output.note("the schedule is paused: its occurrences are skipped");
    }
    Ok(Exit::Done)
}

/// What the clock in a zone shows then.
fn local(at: Timestamp, zone: &str) -> String {
    let time = jiff::Timestamp::from_millisecond(at.0).and_then(|time| time.in_tz(zone));
    time.map_or_else(|_| String::new(), |time| time.strftime("%a %d %b %H:%M:%S %Z").to_string())
}

pub(crate) async fn occurrences(app: &App, args: Occurrences) -> Outcome {
    let store = stores::open_to_read(app).await?;
    let now = store.now().await?;
    let limit = usize::try_from(args.limit).expect("the limit is small");
    let mut before =
        args.before.as_deref().map(|text| lookup::time("--before", text, now)).transpose()?;
    let mut found: Vec<Occurrence> = Vec::new();
    let mut searched = 0;
    loop {
        let page = read_ledger(&*store, &args.name, before, PAGE_MAX).await?;
        let is_last = page.len() < PAGE_MAX;
        searched += page.len();
        before = page.last().map(|row| row.due_at);
        found.extend(page.into_iter().filter(|row| {
            args.fate.is_empty() || args.fate.iter().any(|fate| fate == row.fate.as_str())
        }));
        if is_last || found.len() > limit || searched >= SEARCHED_MAX {
            break;
        }
    }
    if searched == 0 && args.before.is_none() {
        // A slip in the name is more likely than a schedule that was never due.
        find(&*store, &args.name).await?;
    }
    let has_more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| has_more).map(|row| row.due_at.to_string());
    if app.output.json {
        let items: Vec<_> = found.iter().map(row).collect();
        app.output.json(&json!({ "items": items, "next": next }))?;
        return Ok(Exit::Done);
    }
    if found.is_empty() {
        app.output.note("no occurrences");
        return Ok(Exit::Done);
    }
    table(&found).print(app.output)?;
    if let Some(next) = next {
        app.output.note(format_args!(
            "more: flowgate schedules occurrences {} --before {next} …",
            args.name
        ));
    }
    Ok(Exit::Done)
}

fn table(rows: &[Occurrence]) -> Table {
    let mut table = Table::new(&["due", "fate", "delay", "run", "note"]);
    for row in rows {
        let run = row.run_id.map_or_else(String::new, |run_id| run_id.to_string());
        let delay = row.fate.has_run().then(|| Brief(row.decided_at.since(row.due_at)).to_string());
        table.row(vec![
            Cell::plain(row.due_at),
            Cell::bold(row.fate),
            Cell::plain(delay.unwrap_or_default()),
            Cell::plain(run),
            Cell::dim(note(row)),
        ]);
    }
    table
}
