//! `flowgate audit`.

use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use flowgate_core::audit::Direction;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::view::Brief;
use flowgate_server::wire::Page;
use flowgate_server::wire::audit::{AuditEntry, AuditFigures, RunTrail};
use std::time::Duration;

use super::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{Cell, Table, short};
use crate::reach::{Reach, segment};

/// Runs whose entries are asked for at once.
const PAGE: usize = 200;
/// Letters of a hash in a table.
const HASH_LETTERS: usize = 12;

/// Looks at what came into flows and what came out of them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each run has an inbound entry, from its start, and an outbound one when it has ended: the SHA-256 \
and the size of the payload as it was sent, the names of its fields, and none of its values. They \
are read from the log of the run, so none is missing, and they are kept as long as that is \
(`retention.events`). Smoke tests of deployments are left out.

Examples:
  flowgate audit summary
  flowgate audit list --flow order --direction outbound --since 1h
  flowgate audit run latest")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show what was done with a run: every attempt, by whom, on which revision
    Run(RunArgs),
    /// List entries, those of the run that was accepted last first
    List(List),
    /// Say how many came in and out of each flow, how fast, and how many failed
    Summary(Summary),
}

/// Shows what was done with a run.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  flowgate audit run latest
  flowgate audit run 01890a5d --json")]
struct RunArgs {
    /// The run: its id, its first 6 letters or more, or `latest`
    run: String,
}

/// Lists entries.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With --json it prints one object: `items`, the entries of this page, and `next`, the cursor of the \
next page, or null on the last one.

Examples:
  flowgate audit list --flow order
  flowgate audit list --direction outbound --since 1h --limit 500
  flowgate audit list --after CURSOR")]
struct List {
    /// Only entries of this flow
    #[arg(long)]
    flow: Option<String>,
    /// Only those that went this way
    #[arg(long, value_parser = PossibleValuesParser::new(Direction::ALL.map(Direction::as_str)))]
    direction: Option<String>,
    /// Only those of runs accepted since: `1h` ago, or a time such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only those of runs accepted before
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Those of at most this many runs
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=limit_max()))]
    limit: u64,
    /// Go on where the last page ended: the cursor that it printed
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

/// Says how flows did.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It counts the runs that were accepted since the given time: what came in and, of that, what has \
come out. So the two differ by what is still open.

Examples:
  flowgate audit summary
  flowgate audit summary --flow order --since 24h")]
struct Summary {
    /// Only this flow
    #[arg(long)]
    flow: Option<String>,
    /// Runs accepted since: `1h` ago, or a time such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", default_value = "1h")]
    since: String,
}

fn limit_max() -> u64 {
    u64::try_from(PAGE_MAX).expect("a page is small")
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    match args.verb {
        Verb::Run(args) => trail(&app, &args).await,
        Verb::List(args) => list(&app, args).await,
        Verb::Summary(args) => summary(&app, &args).await,
    }
}

async fn trail(app: &App, args: &RunArgs) -> Outcome {
    let path = format!("/runs/{}/audit", segment(&args.run));
    let trail: RunTrail = Reach::read(app).await?.get(&path, &[]).await?;
    if app.output.json {
        app.output.json(&trail)?;
        return Ok(Exit::Done);
    }
    if trail.items.is_empty() {
        app.output.note("its events were removed by retention");
        return Ok(Exit::Done);
    }
    table(&trail.entries).print(app.output)?;
    app.output.line(format_args!(""))?;
    let mut table =
        Table::new(&["at", "what", "step", "attempt", "took", "instance", "revision", "note"]);
    for item in &trail.items {
        let took = item.took_us.map(|us| Brief(Duration::from_micros(us)).to_string());
        table.row(vec![
            Cell::dim(&item.at),
            Cell::bold(&item.what),
            Cell::plain(item.step.as_deref().unwrap_or_default()),
            Cell::plain(item.attempt.map(|attempt| attempt.to_string()).unwrap_or_default()),
            Cell::plain(took.unwrap_or_default()),
            Cell::plain(item.instance.as_ref().map(ToString::to_string).unwrap_or_default()),
            Cell::plain(item.revision.as_ref().map(ToString::to_string).unwrap_or_default()),
            Cell::dim(item.note.as_deref().unwrap_or_default()),
        ]);
    }
    table.print(app.output)?;
    if trail.cut {
        app.output.note("there is more: see `flowgate runs events`");
    }
    Ok(Exit::Done)
}

async fn list(app: &App, args: List) -> Outcome {
    let reach = Reach::read(app).await?;
    let page = pages(&reach, args).await?;
    if app.output.json {
        app.output.json(&page)?;
        return Ok(Exit::Done);
    }
    if page.items.is_empty() {
        app.output.note("there are none");
    } else {
        table(&page.items).print(app.output)?;
    }
    if let Some(next) = page.next {
        app.output.note(format_args!("more: flowgate audit list --after {next} …"));
    }
    Ok(Exit::Done)
}

/// As many pages as it takes.
async fn pages(reach: &Reach, args: List) -> Result<Page<AuditEntry>, Failure> {
    let mut wanted = usize::try_from(args.limit).expect("the limit is small");
    let mut whole = Page { items: Vec::new(), next: args.after };
    loop {
        let asked = wanted.min(PAGE);
        let limit = asked.to_string();
        let mut query = vec![("limit", &*limit)];
        let rest = [
            ("flow", &args.flow),
            ("direction", &args.direction),
            ("since", &args.since),
            ("until", &args.until),
            ("after", &whole.next),
        ];
        query.extend(rest.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?))));
        let page: Page<AuditEntry> = reach.get("/audit", &query).await?;
        whole.items.extend(page.items);
        whole.next = page.next;
        wanted -= asked;
        if wanted == 0 || whole.next.is_none() {
            return Ok(whole);
        }
    }
}

fn table(entries: &[AuditEntry]) -> Table {
    let columns = [
        "at",
        "run",
        "flow",
        "direction",
        "status",
        "took",
        "bytes",
        "sha256",
        "fields",
        "instance",
    ];
    let mut table = Table::new(&columns);
    for entry in entries {
        let hash = entry.payload_sha256.as_deref().unwrap_or_default();
        let took = entry.took_ms.map(|ms| Brief(Duration::from_millis(ms)).to_string());
        table.row(vec![
            Cell::dim(&entry.at),
            Cell::bold(short(entry.run_id)),
            Cell::plain(&entry.flow),
            Cell::plain(entry.direction.as_str()),
            Cell::plain(entry.status.as_str()),
            Cell::plain(took.unwrap_or_default()),
            Cell::plain(entry.payload_bytes.map(|bytes| bytes.to_string()).unwrap_or_default()),
            Cell::plain(hash.get(..HASH_LETTERS).unwrap_or_default()),
            Cell::dim(fields(entry)),
            Cell::dim(entry.instance.as_ref().map(ToString::to_string).unwrap_or_default()),
        ]);
    }
    table
}

/// What the payload is like, in a few words.
fn fields(entry: &AuditEntry) -> String {
    if let Some(error) = &entry.error {
        return format!("{} failed", error.step);
    }
    let Some(summary) = &entry.summary else { return String::new() };
    if summary.keys.is_empty() {
        return match summary.length {
            Some(length) => format!("{} of {length}", summary.r#type),
            None => summary.r#type.clone(),
        };
    }
    let named = summary.keys.iter().map(|key| match summary.lengths.get(key) {
        Some(length) => format!("{key}[{length}]"),
        None => key.clone(),
    });
    named.collect::<Vec<_>>().join(", ")
}

async fn summary(app: &App, args: &Summary) -> Outcome {
    let mut query = vec![("since", args.since.as_str())];
    query.extend(args.flow.as_deref().map(|flow| ("flow", flow)));
    let figures: AuditFigures = Reach::read(app).await?.get("/audit/summary", &query).await?;
    if app.output.json {
        app.output.json(&figures)?;
        return Ok(Exit::Done);
    }
    if figures.items.is_empty() {
        app.output.note(format_args!("nothing came in since {}", figures.since));
        return Ok(Exit::Done);
    }
    let columns = ["flow", "direction", "count", "per minute", "errors", "avg", "p50", "p99"];
    let mut table = Table::new(&columns);
    for line in &figures.items {
        let took =
            |ms: Option<u64>| Cell::plain(ms.map(|ms| format!("{ms} ms")).unwrap_or_default());
        table.row(vec![
            Cell::bold(&line.flow),
            Cell::plain(line.direction.as_str()),
            Cell::plain(line.count),
            Cell::plain(format!("{:.1}", line.per_minute)),
            Cell::plain(line.errors),
            took(line.took_avg_ms),
            took(line.took_p50_ms),
            took(line.took_p99_ms),
        ]);
    }
    table.print(app.output)?;
    let cut = if figures.cut { "; there were too many to go back further" } else { "" };
    app.output.note(format_args!("runs accepted since {}{cut}", figures.since));
    Ok(Exit::Done)
}
