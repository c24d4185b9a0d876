//! `flowgate runs list`.

use clap::builder::PossibleValuesParser;
use flowgate_core::ids::RunId;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_core::view::Brief;
use flowgate_store::{RunCursor, RunQuery, RunRow};
use serde_json::json;

use super::super::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::input;
use crate::lookup;
use crate::output::{Cell, Table, is_narrower_than, short};
use crate::stores;

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
    // One row more than a page is read, to know whether there is more.
    u64::try_from(PAGE_MAX - 1).expect("a page is small")
}

fn statuses() -> PossibleValuesParser {
    PossibleValuesParser::new(RunStatus::ALL.map(RunStatus::as_str))
}

pub(crate) async fn run(app: &App, args: Args) -> Outcome {
    let tags = input::tags(&args.tags)?;
    let store = stores::open_to_read(app).await?;
    let now = store.now().await?;
    let time = |flag: &str, text: &Option<String>| {
        text.as_deref().map(|text| lookup::time(flag, text, now)).transpose()
    };
    let limit = usize::try_from(args.limit).expect("the limit is small");
    let query = RunQuery {
        flow: lookup::flow_name(args.flow.as_ref()),
        statuses: RunStatus::ALL
            .into_iter()
            .filter(|status| args.status.iter().any(|name| name == status.as_str()))
            .collect(),
        since: time("--since", &args.since)?,
        until: time("--until", &args.until)?,
        tags: tags.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        after: args.after.as_deref().map(parse_cursor).transpose()?,
        limit: limit + 1,
    };
    let mut rows = store.list_runs(&query).await?;
    let total = store.count_runs(&query).await?;
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| has_more).map(|row| show_cursor(lookup::cursor_of(row)));
    if app.output.json {
        let items: Vec<_> = rows.iter().map(item).collect();
        app.output.json(&json!({ "items": items, "total": total, "next": next }))?;
        return Ok(Exit::Done);
    }
    if total == 0 {
        app.output.note("no runs");
        return Ok(Exit::Done);
    }
    if !rows.is_empty() {
        table(&rows, now).print(app.output)?;
    }
    app.output.note(format_args!("{} of {total} runs", rows.len()));
    if let Some(next) = next {
        app.output.note(format_args!("more: flowgate runs list --after {next} …"));
    }
    Ok(Exit::Done)
}

fn item(row: &RunRow) -> serde_json::Value {
    let run = &row.run;
    let took = row.ended_at.map(|ended| ended.since(row.started_at).as_millis());
    let failure = run.failure.as_ref().map(|failure| {
        let error = &failure.error;
        json!({ "step": failure.step, "message": error.message, "kind": error.kind })
    });
    json!({
        "run_id": run.run_id, "flow": run.flow, "revision": run.revision, "status": run.status,
        "started_at": row.started_at.to_string(), "updated_at": row.updated_at.to_string(),
        "ended_at": row.ended_at.map(|at| at.to_string()), "duration_ms": took,
        "key": run.key, "tags": run.tags, "retry_of": run.retry_of, "failure": failure,
    })
}

fn table(rows: &[RunRow], now: Timestamp) -> Table {
    let mut table = Table::new(&["run", "flow", "status", "started", "took", "note"]);
    let narrow = is_narrower_than(WIDE);
    for row in rows {
        let run = &row.run;
        let note = match (&run.failure, &run.key) {
            (Some(failure), _) => format!("{}: {}", failure.step, failure.error.message),
            (None, Some(key)) => format!("key {key}"),
            (None, None) => String::new(),
        };
        table.row(vec![
            Cell::plain(if narrow { short(run.run_id) } else { run.run_id.to_string() }),
            Cell::bold(&run.flow),
            Cell::status(run.status),
            Cell::dim(format!("{} ago", Brief(now.since(row.started_at)))),
            Cell::plain(Brief(lookup::took(row, now))),
            Cell::dim(note),
        ]);
    }
    table
}

/// A cursor as users pass it on without looking into it.
fn show_cursor(cursor: RunCursor) -> String {
    format!("{:x}.{}", cursor.started_at.0, cursor.run_id.0.simple())
}

fn parse_cursor(text: &str) -> Result<RunCursor, Failure> {
    let read = || {
        let (time, run_id) = text.split_once('.')?;
        let started_at = Timestamp(i64::from_str_radix(time, 16).ok()?);
        let run_id: RunId = run_id.parse().ok()?;
        Some(RunCursor { started_at, run_id })
    };
    read().ok_or_else(|| {
        Failure::usage("cursor_invalid", format!("`{text}` is not a cursor"))
            .help("pass on the one that the last page printed, as it is")
            .path("--after")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_being_shown() {
        let cursor = RunCursor {
            started_at: Timestamp(1_700_000_000_123),
            run_id: RunId::derived("a", "b"),
        };
        assert_eq!(parse_cursor(&show_cursor(cursor)).unwrap(), cursor);
        for bad in ["", "x", "1.2", "-1"] {
            assert_eq!(parse_cursor(bad).unwrap_err().exit, Exit::Usage, "{bad}");
        }
    }
}
