//! `flowgate queues`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clap::Subcommand;
use flowgate_core::flow::{Span, queue_concurrency_key, queue_rate_key};
use flowgate_core::ids::is_identifier;
use flowgate_core::limits::LIMIT_MAX;
use flowgate_core::time::Timestamp;
use flowgate_core::view::Brief;
use flowgate_engine::{QueueRate, QueueSettings, queue_settings};
use flowgate_store::Store;
use flowgate_store::control::QueueStats;
use serde_json::{Value, json};

use super::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{Cell, Table, short};
use crate::steering::{self, Change, QueueChange, Steer};
use crate::stores;

/// Works with queues.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A queue is where the jobs of steps wait; a step names its own with `queue`, and `default` is the \
others'. Nobody takes jobs of a paused queue; what runs goes on. Limits hold over all instances.

Examples:
  flowgate queues list
  flowgate queues pause mail
  flowgate queues set mail --concurrency 4 --rate 10/s
  flowgate queues unset mail --rate")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the queues that have jobs or settings
    List,
    /// Show one: what waits, what is set, who holds its permits
    Show(Name),
    /// Let nobody take jobs of a queue
    Pause(Name),
    /// Let jobs of a paused queue be taken again
    Resume(Name),
    /// Limit a queue
    Set(Set),
    /// Take limits of a queue away
    Unset(Unset),
}

#[derive(Debug, clap::Args)]
struct Name {
    /// The queue
    queue: String,
}

#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
struct Set {
    /// The queue
    queue: String,
    /// How many of its jobs may run at the same time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(LIMIT_MAX)))]
    concurrency: Option<u32>,
    /// How many of its jobs may begin in a span: 10/s, 100/m, 5/10s
    #[arg(long, value_name = "N/SPAN", value_parser = rate)]
    rate: Option<QueueRate>,
}

#[derive(Debug, clap::Args)]
struct Unset {
    /// The queue
    queue: String,
    /// Its limit of jobs at the same time
    #[arg(long)]
    concurrency: bool,
    /// Its rate
    #[arg(long)]
    rate: bool,
}

/// Reads `10/s`, `100/m`, `5/10s`.
pub(super) fn rate(text: &str) -> Result<QueueRate, String> {
    let wrong = || "write a number and a span, such as 10/s, 100/m or 5/10s".to_owned();
    let (count, span) = text.split_once('/').ok_or_else(wrong)?;
    let count: u32 = count.parse().map_err(|_| wrong())?;
    let span = if span.starts_with(|c: char| c.is_ascii_digit()) {
        span.to_owned()
    } else {
        format!("1{span}")
    };
    let Span(per) = span.parse().map_err(|_| wrong())?;
    if count == 0 || count > LIMIT_MAX || per.is_zero() {
        return Err(format!("a rate is from 1 to {LIMIT_MAX} in a span that is more than none"));
    }
    Ok(QueueRate { count, per_ms: u64::try_from(per.as_millis()).unwrap_or(u64::MAX) })
}

pub(super) fn say_rate(rate: QueueRate) -> String {
    let per = Span(Duration::from_millis(rate.per_ms)).to_string();
    format!(
        "{}/{}",
        rate.count,
        per.strip_prefix('1')
            .filter(|unit| !unit.starts_with(|c: char| c.is_ascii_digit()))
            .unwrap_or(&per)
    )
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    match args.verb {
        Verb::List => list(&app).await,
        Verb::Show(name) => show(&app, &name.queue).await,
        Verb::Pause(name) => {
            let change = QueueChange { paused: Some(true), ..QueueChange::default() };
            change_to(&app, name.queue, change).await
        }
        Verb::Resume(name) => {
            let change = QueueChange { paused: Some(false), ..QueueChange::default() };
            change_to(&app, name.queue, change).await
        }
        Verb::Set(set) => {
            let Set { queue, concurrency, rate } = set;
            if concurrency.is_none() && rate.is_none() {
                return Err(Failure::usage("usage", "nothing to set")
                    .help("name --concurrency N or --rate N/SPAN"));
            }
            let concurrency = concurrency.map_or(Change::Keep, Change::Set);
            let rate = rate.map_or(Change::Keep, Change::Set);
            change_to(&app, queue, QueueChange { paused: None, concurrency, rate }).await
        }
        Verb::Unset(Unset { queue, concurrency, rate }) => {
            // Without a name, all of them.
            let all = !concurrency && !rate;
            let change = QueueChange {
                paused: None,
                concurrency: if concurrency || all { Change::Unset } else { Change::Keep },
                rate: if rate || all { Change::Unset } else { Change::Keep },
            };
            change_to(&app, queue, change).await
        }
    }
}

async fn change_to(app: &App, queue: String, change: QueueChange) -> Outcome {
    if !is_identifier(&queue) {
        let message = format!("`{}` cannot be the name of a queue", queue.escape_debug());
        return Err(Failure::usage("queue_invalid", message)
            .help("see the names with `flowgate queues list`")
            .path(queue));
    }
    let known = known(app, &queue).await?;
    let value = steering::steer(app, Steer::Queue { queue: queue.clone(), change }).await?;
    if app.output.json {
        app.output.json(&value)?;
        return Ok(Exit::Done);
    }
    let read = |at: &str| serde_json::from_value(value[at].clone()).unwrap_or_default();
    let (was, now): (QueueSettings, QueueSettings) = (read("was"), read("now"));
    app.output.line(format_args!("{queue}: {}", settings_in_words(now)))?;
    if was == now {
        app.output.note("that was so before");
    }
    if !known {
        app.output.note("no job waits in this queue now; is its name right?");
    }
    Ok(Exit::Done)
}

/// Whether something waits in the queue, or is set for it.
async fn known(app: &App, queue: &str) -> Result<bool, Failure> {
    let store = stores::open_to_read(app).await?;
    Ok(rows(&*store).await?.iter().any(|row| *row.stats.queue == *queue))
}

fn settings_in_words(settings: QueueSettings) -> String {
    let mut words = vec![if settings.paused { "paused" } else { "open" }.to_owned()];
    words.extend(settings.concurrency.map(|count| format!("{count} at once")));
    words.extend(settings.rate.map(say_rate));
    words.join(", ")
}

struct QueueRow {
    stats: QueueStats,
    settings: QueueSettings,
}

/// Every queue that has jobs or settings, by name.
async fn rows(store: &dyn Store) -> Result<Vec<QueueRow>, Failure> {
    let mut rows: BTreeMap<Arc<str>, QueueRow> = BTreeMap::new();
    for stats in store.queue_stats().await? {
        let settings = QueueSettings::default();
        rows.insert(Arc::clone(&stats.queue), QueueRow { stats, settings });
    }
    for (queue, settings) in queue_settings(store).await? {
        let empty =
            || QueueStats { queue: Arc::clone(&queue), due: 0, later: 0, oldest_due_at: None };
        let row = QueueRow { stats: empty(), settings };
        rows.entry(Arc::clone(&queue)).or_insert(row).settings = settings;
    }
    Ok(rows.into_values().collect())
}

async fn list(app: &App) -> Outcome {
    let store = stores::open_to_read(app).await?;
    let now = store.now().await?;
    let rows = rows(&*store).await?;
    if app.output.json {
        let rows: Vec<Value> = rows.iter().map(|row| value(row, now)).collect();
        app.output.json(&json!({ "queues": rows }))?;
        return Ok(Exit::Done);
    }
    if rows.is_empty() {
        app.output.note("no job waits, and nothing is set for any queue");
        return Ok(Exit::Done);
    }
    let mut table =
        Table::new(&["queue", "state", "due", "later", "oldest", "concurrency", "rate"]);
    for row in &rows {
        let QueueSettings { paused, concurrency, rate } = row.settings;
        table.row(vec![
            Cell::bold(&row.stats.queue),
            Cell::plain(if paused { "paused" } else { "open" }),
            Cell::plain(row.stats.due),
            Cell::plain(row.stats.later),
            Cell::plain(
                row.stats
                    .oldest_due_at
                    .map_or_else(String::new, |at| Brief(now.since(at)).to_string()),
            ),
            Cell::plain(concurrency.map_or_else(String::new, |count| count.to_string())),
            Cell::plain(rate.map_or_else(String::new, say_rate)),
        ]);
    }
    table.print(app.output)?;
    Ok(Exit::Done)
}

fn value(row: &QueueRow, now: Timestamp) -> Value {
    let QueueStats { queue, due, later, oldest_due_at } = &row.stats;
    json!({
        "queue": queue,
        "paused": row.settings.paused,
        "concurrency": row.settings.concurrency,
        "rate": row.settings.rate,
        "due": due,
        "later": later,
        "oldest_due_at": oldest_due_at.map(|at| at.to_string()),
        "oldest_age_ms": oldest_due_at.map(|at| u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX)),
    })
}

async fn show(app: &App, queue: &str) -> Outcome {
    let store = stores::open_to_read(app).await?;
    let now = store.now().await?;
    let found = rows(&*store).await?.into_iter().find(|row| *row.stats.queue == *queue);
    let row = found.ok_or_else(|| {
        let message = format!("no job waits in the queue `{queue}`, and nothing is set for it");
        Failure::not_found("queue_not_found", message)
            .help("see `flowgate queues list`; the queue of a step is in its flow file")
            .path(queue)
    })?;
    let running = store.read_permits(&queue_concurrency_key(queue)).await?;
    let begun = store.read_permits(&queue_rate_key(queue)).await?;
    let in_line = running.in_line + begun.in_line;
    if app.output.json {
        let mut value = value(&row, now);
        value["holders"] = running.holders.iter().map(|(job, _)| job.run_id.to_string()).collect();
        value["in_line"] = in_line.into();
        app.output.json(&value)?;
        return Ok(Exit::Done);
    }
    let fact = |name: &str, value: String| app.output.line(format_args!("{name:<9} {value}"));
    fact("queue", Cell::bold(queue).to_string())?;
    fact("settings", settings_in_words(row.settings))?;
    let oldest =
        row.stats.oldest_due_at.map(|at| format!(", the oldest for {}", Brief(now.since(at))));
    fact("due", format!("{}{}", row.stats.due, oldest.unwrap_or_default()))?;
    fact("later", row.stats.later.to_string())?;
    if row.settings.concurrency.is_some() || row.settings.rate.is_some() {
        fact("in line", in_line.to_string())?;
        for (job, _) in running.holders {
            fact("holder", short(job.run_id))?;
        }
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_read_and_said_in_the_same_words() {
        for (text, count, per_ms) in [
            ("10/s", 10, 1_000),
            ("100/m", 100, 60_000),
            ("5/10s", 5, 10_000),
            ("1/h", 1, 3_600_000),
        ] {
            let read = rate(text).unwrap();
            assert_eq!((read.count, read.per_ms), (count, per_ms));
            assert_eq!(say_rate(read), text);
        }
        for text in ["", "10", "/s", "0/s", "10/", "x/s", "10/0s", "10/fortnight"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }
}
