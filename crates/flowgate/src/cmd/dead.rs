//! `flowgate dead`: failed runs that nobody has dealt with.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Subcommand;
use flowgate_core::ids::RunId;
use flowgate_core::time::Timestamp;
use flowgate_core::view::Brief;
use flowgate_engine::{DeadFilter, DeadLetter, DeadReason, QueueRate, dead_letters};
use flowgate_store::Store;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::App;
use super::queues::rate;
use super::runs::steer::Hand;
use crate::control::{Reply, Request};
use crate::failure::{Exit, Failure, Outcome};
use crate::input;
use crate::lookup;
use crate::output::{Cell, Table, short};
use crate::signals::Stop;
use crate::steering::Steer;
use crate::stores;

/// Dead letters that are dealt with by one call; there may be more.
const LETTERS_MAX: usize = 100_000;
/// Dead letters that one listing shows.
const SHOWN_MAX: usize = 100;

/// Works with dead letters.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A dead letter is a failed run that nobody has tried again or dropped. Trying it again is a new \
run, which takes over what succeeded; dropping it leaves the run as it is.

Examples:
  flowgate dead list --group
  flowgate dead retry --flow order --step charge --reason 'card declined' --rate 10/s
  flowgate dead drop --flow import --since 7d --dry-run")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List dead letters, the latest first, or count them by reason
    List(List),
    /// Try dead letters again, each as a new run
    Retry(Deal),
    /// Drop dead letters
    Drop(Deal),
}

#[derive(Debug, clap::Args)]
struct Filter {
    /// Only runs of this flow
    #[arg(long)]
    flow: Option<String>,
    /// Only runs whose failed step is this one
    #[arg(long)]
    step: Option<String>,
    /// Only runs whose kind of failure is this, or whose message holds it; numbers and ids differ
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Only runs started since: `1h` ago, or a time such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only runs with this tag; may be repeated, and then they have all of them
    #[arg(long = "tag", value_name = "NAME=VALUE", value_parser = input::pair)]
    tags: Vec<(String, String)>,
}

#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    filter: Filter,
    /// Count them by flow, step and reason
    #[arg(long)]
    group: bool,
}

#[derive(Debug, clap::Args)]
struct Deal {
    /// Only these runs
    runs: Vec<String>,
    #[command(flatten)]
    filter: Filter,
    /// Say how many there are, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// No more than this many in a span: 10/s, 100/m
    #[arg(long, value_name = "N/SPAN", value_parser = rate)]
    rate: Option<QueueRate>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

impl Filter {
    fn read(&self, now: Timestamp) -> Result<DeadFilter, Failure> {
        let tags = input::tags(&self.tags)?;
        let since = self.since.as_deref().map(|text| lookup::time("--since", text, now));
        Ok(DeadFilter {
            flow: lookup::flow_name(self.flow.as_ref()),
            step: lookup::flow_name(self.step.as_ref()),
            reason: self.reason.clone(),
            since: since.transpose()?,
            tags: tags.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        })
    }
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    match args.verb {
        Verb::List(args) => list(&app, &args).await,
        Verb::Retry(args) => deal(&app, &args, What::Retry).await,
        Verb::Drop(args) => deal(&app, &args, What::Drop).await,
    }
}

/// All dead letters that match, the latest first.
async fn find(store: &dyn Store, filter: &DeadFilter) -> Result<Vec<DeadLetter>, Failure> {
    let (mut letters, mut after) = (Vec::new(), None);
    loop {
        let (page, next) = dead_letters(store, filter, after).await?;
        letters.extend(page);
        if next.is_none() || letters.len() >= LETTERS_MAX {
            letters.truncate(LETTERS_MAX);
            return Ok(letters);
        }
        after = next;
    }
}

/// Dead letters of one reason.
struct Group<'a> {
    count: usize,
    latest: &'a DeadLetter,
}

fn groups(letters: &[DeadLetter]) -> Vec<(&DeadReason, Group<'_>)> {
    let mut groups: BTreeMap<&DeadReason, Group<'_>> = BTreeMap::new();
    for letter in letters {
        let new = Group { count: 0, latest: letter };
        groups.entry(&letter.reason).or_insert(new).count += 1;
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.count));
    groups
}

async fn list(app: &App, args: &List) -> Outcome {
    let store = stores::open_to_read(app).await?;
    let now = store.now().await?;
    let letters = find(&*store, &args.filter.read(now)?).await?;
    if app.output.json {
        let items: Vec<Value> = if args.group {
            groups(&letters)
                .into_iter()
                .map(|(reason, group)| group_value(reason, &group))
                .collect()
        } else {
            letters.iter().take(SHOWN_MAX).map(value).collect()
        };
        let key = if args.group { "groups" } else { "items" };
        app.output.json(&json!({ key: items, "total": letters.len() }))?;
        return Ok(Exit::Done);
    }
    if letters.is_empty() {
        app.output.note("no dead letters");
        return Ok(Exit::Done);
    }
    if args.group {
        let mut table = Table::new(&["count", "flow", "step", "kind", "example", "reason"]);
        for (reason, group) in groups(&letters) {
            table.row(vec![
                Cell::bold(group.count),
                Cell::plain(&reason.flow),
                Cell::plain(&reason.step),
                Cell::plain(reason.kind),
                Cell::dim(short(group.latest.row.run.run_id)),
                Cell::plain(&reason.message),
            ]);
        }
        table.print(app.output)?;
    } else {
        let mut table = Table::new(&["run", "flow", "step", "failed", "message"]);
        for letter in letters.iter().take(SHOWN_MAX) {
            table.row(row(letter, now));
        }
        table.print(app.output)?;
    }
    app.output.note(format_args!("{} dead letters", letters.len()));
    if !args.group && letters.len() > SHOWN_MAX {
        app.output.note("see them by reason: flowgate dead list --group");
    }
    Ok(Exit::Done)
}

fn row(letter: &DeadLetter, now: Timestamp) -> Vec<Cell> {
    let run = &letter.row.run;
    let message = run.failure.as_ref().map_or("", |failure| &*failure.error.message);
    let ended =
        letter.row.ended_at.map_or_else(String::new, |at| format!("{} ago", Brief(now.since(at))));
    vec![
        Cell::bold(short(run.run_id)),
        Cell::plain(&run.flow),
        Cell::plain(&letter.reason.step),
        Cell::dim(ended),
        Cell::plain(message),
    ]
}

fn value(letter: &DeadLetter) -> Value {
    let (row, reason) = (&letter.row, &letter.reason);
    json!({
        "run_id": row.run.run_id,
        "flow": row.run.flow,
        "step": reason.step,
        "kind": reason.kind,
        "message": row.run.failure.as_ref().map(|failure| &failure.error.message),
        "reason": reason.message,
        "started_at": row.started_at.to_string(),
        "ended_at": row.ended_at.map(|at| at.to_string()),
        "tags": row.run.tags,
    })
}

fn group_value(reason: &DeadReason, group: &Group<'_>) -> Value {
    let latest = &group.latest.row;
    let mut value = serde_json::to_value(reason).expect("a reason is JSON");
    value["count"] = group.count.into();
    value["example"] = json!({
        "run_id": latest.run.run_id,
        "message": latest.run.failure.as_ref().map(|failure| &failure.error.message),
        "ended_at": latest.ended_at.map(|at| at.to_string()),
    });
    value
}

/// What is done with dead letters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Retry,
    Drop,
}

impl What {
    fn verb(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Drop => "drop",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Retry => "retried",
            Self::Drop => "dropped",
        }
    }

    fn request(self, run_id: RunId, kept: Duration) -> Request {
        match self {
            Self::Retry => Request::RetryDead { run_id },
            Self::Drop => {
                let kept_ms = u64::try_from(kept.as_millis()).unwrap_or(u64::MAX);
                Request::Steer(Steer::DropDead { run_id, kept_ms })
            }
        }
    }
}

/// What became of many dead letters.
#[derive(Default)]
struct Tally {
    done: Vec<Value>,
    /// Somebody else was quicker.
    before: usize,
    failed: Vec<(RunId, Failure)>,
    is_stopped: bool,
}

async fn deal(app: &App, args: &Deal, what: What) -> Outcome {
    let letters = chosen(app, args).await?;
    if letters.is_empty() {
        if app.output.json {
            app.output.json(&json!({ "found": 0, what.done(): [], "before": 0, "failed": [] }))?;
        }
        app.output.note("no dead letters");
        return Ok(Exit::Done);
    }
    if args.dry_run {
        if app.output.json {
            let ids: Vec<RunId> = letters.iter().map(|letter| letter.row.run.run_id).collect();
            app.output.json(&json!({ "found": ids.len(), "would": what.verb(), "runs": ids }))?;
        } else {
            for (reason, group) in groups(&letters) {
                let DeadReason { flow, step, message, .. } = reason;
                app.output.line(format_args!("{:>7}  {flow}/{step}: {message}", group.count))?;
            }
            app.output.note(format_args!("{} dead letters; nothing was changed", letters.len()));
        }
        return Ok(Exit::Done);
    }
    confirm(app, args, what, letters.len())?;
    let tally = carry_out(app, args, what, &letters).await?;
    tell(app, what, letters.len(), &tally)
}

/// The dead letters that are named, or that match.
async fn chosen(app: &App, args: &Deal) -> Result<Vec<DeadLetter>, Failure> {
    let store = stores::open_to_read(app).await?;
    let filter = args.filter.read(store.now().await?)?;
    let letters = find(&*store, &filter).await?;
    if args.runs.is_empty() {
        return Ok(letters);
    }
    let mut wanted = Vec::new();
    for text in &args.runs {
        wanted.push(lookup::run_id(&*store, text).await?);
    }
    let is_dead = |run_id: &RunId| letters.iter().any(|letter| letter.row.run.run_id == *run_id);
    if let Some(run_id) = wanted.iter().find(|run_id| !is_dead(run_id)) {
        let message = format!("run {run_id} is no dead letter that matches");
        return Err(Failure::refused("not_dead", message)
            .help(format!("see `flowgate why {run_id}`"))
            .path(run_id.to_string()));
    }
    Ok(letters.into_iter().filter(|letter| wanted.contains(&letter.row.run.run_id)).collect())
}

/// Asks, where a person can answer.
fn confirm(app: &App, args: &Deal, what: What, count: usize) -> Result<(), Failure> {
    if args.yes || !args.runs.is_empty() {
        return Ok(());
    }
    let verb = what.verb();
    let unasked = || {
        Failure::usage("not_confirmed", format!("{count} dead letters match"))
            .help(format!("add --yes to {verb} them, or --dry-run to see them"))
    };
    if app.output.json || !console::user_attended() {
        return Err(unasked());
    }
    app.output.note(format_args!("{verb} {count} dead letters? [y/N]"));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(|error| unasked().source(error))?;
    if matches!(line.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(unasked()) }
}

/// Deals with one after the other; Ctrl-C ends it between two.
async fn carry_out(
    app: &App,
    args: &Deal,
    what: What,
    letters: &[DeadLetter],
) -> Result<Tally, Failure> {
    let mut stop = Stop::listen()?;
    let hand = Hand::open(app).await?;
    let bar = bar(app, letters.len());
    let mut tally = Tally::default();
    let pause = args.rate.map_or(Duration::ZERO, |rate| {
        Duration::from_millis(rate.per_ms).div_f64(f64::from(rate.count))
    });
    let mut ticks = tokio::time::interval(pause.max(Duration::from_nanos(1)));
    // The oldest first, as they would have come.
    for letter in letters.iter().rev() {
        tokio::select! {
            biased;
            _ = stop.next() => {
                tally.is_stopped = true;
                break;
            }
            _ = ticks.tick() => {}
        }
        let run_id = letter.row.run.run_id;
        match hand.ask(what.request(run_id, app.config.retention.runs)).await {
            Ok(Reply::Run(reply)) if reply.existed => tally.before += 1,
            Ok(Reply::Run(reply)) => {
                tally.done.push(json!({ "run_id": run_id, "new_run_id": reply.run_id }));
            }
            Ok(Reply::Value(value)) if value["dropped"] == true => {
                tally.done.push(json!({ "run_id": run_id }));
            }
            Ok(Reply::Value(_)) => tally.before += 1,
            Err(failure) if failure.code == "not_dead" => tally.before += 1,
            Err(failure) if failure.exit == Exit::Store => {
                bar.finish_and_clear();
                tell(app, what, letters.len(), &tally)?;
                return Err(failure);
            }
            Err(failure) => tally.failed.push((run_id, failure)),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    hand.close().await;
    Ok(tally)
}

fn bar(app: &App, count: usize) -> ProgressBar {
    if !app.output.can_redraw() || app.output.json {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {per_sec}  {eta} left");
    ProgressBar::new(u64::try_from(count).unwrap_or(u64::MAX))
        .with_style(style.expect("the template is right"))
}

fn tell(app: &App, what: What, found: usize, tally: &Tally) -> Outcome {
    let (done, failed) = (tally.done.len(), tally.failed.len());
    let left = found - done - tally.before - failed;
    let exit = match (tally.is_stopped, failed) {
        (true, _) => Exit::Interrupted,
        (false, 0) => Exit::Done,
        (false, _) => Exit::Refused,
    };
    if app.output.json {
        let failed: Vec<Value> = (tally.failed.iter())
            .map(|(run_id, failure)| json!({ "run_id": run_id, "message": failure.cause() }))
            .collect();
        app.output.json(&json!({
            "found": found, what.done(): tally.done, "before": tally.before, "failed": failed,
            "left": left,
        }))?;
        return Ok(exit);
    }
    for (run_id, failure) in tally.failed.iter().take(10) {
        app.output.warning(format_args!("{run_id}: {}", failure.cause()));
    }
    app.output.line(format_args!("{done} of {found} {}", what.done()))?;
    if tally.before > 0 {
        app.output.note(format_args!("{} had been dealt with by others", tally.before));
    }
    if failed > 0 {
        app.output.note(format_args!("{failed} could not be {}", what.done()));
    }
    if left > 0 {
        app.output.note(format_args!("{left} are left as they were; call it again to go on"));
    }
    Ok(exit)
}
