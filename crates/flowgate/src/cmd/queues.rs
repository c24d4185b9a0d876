//! `flowgate queues`.

use clap::Subcommand;
use flowgate_core::limits::LIMIT_MAX;
use flowgate_core::view::Brief;
use flowgate_engine::QueueRate;
use flowgate_server::wire::Items;
use flowgate_server::wire::queues::{
    Change, QueueChange, QueueChanged, QueueDetail, QueueItem, QueueLimits, parse_rate, say_rate,
};

use super::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{Cell, Table, short};
use crate::reach::{Reach, segment};

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
    #[arg(long, value_name = "N/SPAN", value_parser = parse_rate)]
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

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    match args.verb {
        Verb::List => list(&app).await,
        Verb::Show(name) => show(&app, &name.queue).await,
        Verb::Pause(name) => {
            let change = QueueChange { paused: Some(true), ..QueueChange::default() };
            change_to(&app, &name.queue, &change).await
        }
        Verb::Resume(name) => {
            let change = QueueChange { paused: Some(false), ..QueueChange::default() };
            change_to(&app, &name.queue, &change).await
        }
        Verb::Set(set) => {
            let Set { queue, concurrency, rate } = set;
            if concurrency.is_none() && rate.is_none() {
                return Err(Failure::usage("usage", "nothing to set")
                    .help("name --concurrency N or --rate N/SPAN"));
            }
            let concurrency = concurrency.map_or(Change::Keep, Change::Set);
            let rate = rate.map_or(Change::Keep, |rate| Change::Set(say_rate(rate)));
            let change = QueueChange { paused: None, concurrency, rate };
            change_to(&app, &queue, &change).await
        }
        Verb::Unset(Unset { queue, concurrency, rate }) => {
            // Without a name, all of them.
            let all = !concurrency && !rate;
            let change = QueueChange {
                paused: None,
                concurrency: if concurrency || all { Change::Unset } else { Change::Keep },
                rate: if rate || all { Change::Unset } else { Change::Keep },
            };
            change_to(&app, &queue, &change).await
        }
    }
}

async fn change_to(app: &App, queue: &str, change: &QueueChange) -> Outcome {
    let reach = Reach::write(app).await?;
    let changed = change_by(&reach, queue, change).await;
    let (changed, is_known) = reach.finish(changed).await?;
    if app.output.json {
        app.output.json(&changed)?;
        return Ok(Exit::Done);
    }
    app.output.line(format_args!("{queue}: {}", in_words(&changed.now)))?;
    if changed.was == changed.now {
        app.output.note("that was so before");
    }
    if !is_known {
        app.output.note("no job waits in this queue now; is its name right?");
    }
    Ok(Exit::Done)
}

/// Makes the change; also whether something waited in the queue, or was set for it.
async fn change_by(
    reach: &Reach,
    queue: &str,
    change: &QueueChange,
) -> Result<(QueueChanged, bool), Failure> {
    let known: Items<QueueItem> = reach.get("/queues", &[]).await?;
    let changed = reach.patch(&format!("/queues/{}", segment(queue)), change).await?;
    Ok((changed, known.items.iter().any(|item| item.queue == queue)))
}

fn in_words(limits: &QueueLimits) -> String {
    let mut words = vec![if limits.paused { "paused" } else { "open" }.to_owned()];
    words.extend(limits.concurrency.map(|count| format!("{count} at once")));
    words.extend(limits.rate.clone());
    words.join(", ")
}

/// For how long the first due job has waited, for people.
fn oldest(item: &QueueItem) -> Option<String> {
    let age = item.oldest_age_ms?;
    Some(Brief(std::time::Duration::from_millis(age)).to_string())
}

async fn list(app: &App) -> Outcome {
    let listed: Items<QueueItem> = Reach::read(app).await?.get("/queues", &[]).await?;
    if app.output.json {
        app.output.json(&listed)?;
        return Ok(Exit::Done);
    }
    if listed.items.is_empty() {
        app.output.note("no job waits, and nothing is set for any queue");
        return Ok(Exit::Done);
    }
    let mut table =
        Table::new(&["queue", "state", "due", "later", "oldest", "concurrency", "rate"]);
    for item in &listed.items {
        table.row(vec![
            Cell::bold(&item.queue),
            Cell::plain(if item.paused { "paused" } else { "open" }),
            Cell::plain(item.due),
            Cell::plain(item.later),
            Cell::plain(oldest(item).unwrap_or_default()),
            Cell::plain(item.concurrency.map_or_else(String::new, |count| count.to_string())),
            Cell::plain(item.rate.as_deref().unwrap_or_default()),
        ]);
    }
    table.print(app.output)?;
    Ok(Exit::Done)
}

async fn show(app: &App, queue: &str) -> Outcome {
    let path = format!("/queues/{}", segment(queue));
    let shown: QueueDetail = Reach::read(app).await?.get(&path, &[]).await?;
    if app.output.json {
        app.output.json(&shown)?;
        return Ok(Exit::Done);
    }
    let QueueDetail { item, holders, in_line } = &shown;
    let fact = |name: &str, value: String| app.output.line(format_args!("{name:<9} {value}"));
    fact("queue", Cell::bold(queue).to_string())?;
    let (paused, concurrency, rate) = (item.paused, item.concurrency, item.rate.clone());
    fact("settings", in_words(&QueueLimits { paused, concurrency, rate }))?;
    let oldest = oldest(item).map(|age| format!(", the oldest for {age}"));
    fact("due", format!("{}{}", item.due, oldest.unwrap_or_default()))?;
    fact("later", item.later.to_string())?;
    if item.concurrency.is_some() || item.rate.is_some() {
        fact("in line", in_line.to_string())?;
        for holder in holders {
            let step = holder.step.as_deref().unwrap_or_default();
            fact("holder", format!("{} {step}", short(holder.run_id)).trim().to_owned())?;
        }
    }
    Ok(Exit::Done)
}
