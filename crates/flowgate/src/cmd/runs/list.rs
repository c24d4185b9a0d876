//! `flowgate runs list`.

use clap::builder::PossibleValuesParser;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_core::view::Brief;
use flowgate_server::wire::CountedPage;
use flowgate_server::wire::runs::RunItem;

use super::super::App;
use crate::clock;
use crate::failure::{Exit, Failure, Outcome};
use crate::input;
use crate::output::{Cell, Table, is_narrower_than, short};
use crate::reach::Reach;

/// Runs that are asked for at once.
const PAGE: usize = 200;
/// Columns of a terminal that has room for whole ids.
const WIDE: usize = 110;

/// Lists runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With --json it prints one object: `items`, the runs of this page; `total`, how many match on all \
pages; and `next`, the cursor of the next page, or null on the last one.

Examples:
  flowgate runs list
  flowgate runs list --flow order --status failed --status cancelled --since 24h
  flowgate runs list --tag customer=42 --tag tier=gold
  flowgate runs list --limit 10 --after CURSOR")]
pub(crate) struct Args {
    /// Only runs of this flow
    #[arg(long)]
    flow: Option<String>,
    /// Only runs in this status; may be repeated
    #[arg(long, value_parser = statuses())]
    status: Vec<String>,
    /// Only runs with this tag; may be repeated, and then they have all of them
    #[arg(long = "tag", value_name = "NAME=VALUE", value_parser = input::pair)]
    tags: Vec<(String, String)>,
    /// Only runs started since: `1h` ago, or a time such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only runs started before
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// At most this many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=limit_max()))]
    limit: u64,
    /// Go on where the last page ended: the cursor that it printed
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

fn limit_max() -> u64 {
    u64::try_from(PAGE_MAX).expect("a page is small")
}

fn statuses() -> PossibleValuesParser {
    PossibleValuesParser::new(RunStatus::ALL.map(RunStatus::as_str))
}

pub(crate) async fn run(app: &App, args: Args) -> Outcome {
    let reach = Reach::read(app).await?;
    let page = pages(&reach, args).await?;
    if app.output.json {
        app.output.json(&page)?;
        return Ok(Exit::Done);
    }
    if page.total == 0 {
        app.output.note("no runs");
        return Ok(Exit::Done);
    }
    if !page.items.is_empty() {
        table(&page.items, clock::now()).print(app.output)?;
    }
    app.output.note(format_args!("{} of {} runs", page.items.len(), page.total));
    if let Some(next) = page.next {
        app.output.note(format_args!("more: flowgate runs list --after {next} …"));
    }
    Ok(Exit::Done)
}

/// As many pages as it takes.
async fn pages(reach: &Reach, args: Args) -> Result<CountedPage<RunItem>, Failure> {
    let tags: Vec<String> =
        input::tags(&args.tags)?.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let status = args.status.join(",");
    let wanted = usize::try_from(args.limit).expect("the limit is small");
    let mut whole = CountedPage { items: Vec::new(), total: 0, next: args.after };
    loop {
        let limit = (wanted - whole.items.len()).min(PAGE).to_string();
        let mut query = vec![("status", &*status), ("limit", &*limit)];
        query.extend(tags.iter().map(|tag| ("tag", &**tag)));
        let rest = [
            ("flow", &args.flow),
            ("since", &args.since),
            ("until", &args.until),
            ("after", &whole.next),
        ];
        query.extend(rest.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?))));
        let page: CountedPage<RunItem> = reach.get("/runs", &query).await?;
        whole.items.extend(page.items);
        (whole.total, whole.next) = (page.total, page.next);
        if whole.items.len() >= wanted || whole.next.is_none() {
            return Ok(whole);
        }
    }
}

fn table(items: &[RunItem], now: Timestamp) -> Table {
    let mut table = Table::new(&["run", "flow", "status", "started", "took", "note"]);
    let narrow = is_narrower_than(WIDE);
    for item in items {
        let note = match (&item.failure, &item.key) {
            (Some(failure), _) => format!("{}: {}", failure.step, failure.message),
            (None, Some(key)) => format!("key {key}"),
            (None, None) => String::new(),
        };
        let started_at = clock::read(&item.started_at);
        let ended_at = item.ended_at.as_deref().map_or(now, clock::read);
        table.row(vec![
            Cell::plain(if narrow { short(item.run_id) } else { item.run_id.to_string() }),
            Cell::bold(&item.flow),
            Cell::status(item.status),
            Cell::dim(format!("{} ago", Brief(now.since(started_at)))),
            Cell::plain(Brief(ended_at.since(started_at))),
            Cell::dim(note),
        ]);
    }
    table
}
