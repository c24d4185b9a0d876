//! `flowgate dead`: failed runs that nobody has dealt with.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Subcommand;
use flowgate_core::ids::RunId;
use flowgate_core::time::Timestamp;
use flowgate_core::view::Brief;
use flowgate_engine::QueueRate;
use flowgate_server::wire::dead::{
    DeadGroups, DeadItem, DeadMessagePage, DeadPage, DealRequest, Dealt,
};
use flowgate_server::wire::queues::parse_rate;
use indicatif::{ProgressBar, ProgressStyle};

use super::App;
use crate::clock;
use crate::confirm;
use crate::failure::{Exit, Failure, Outcome};
use crate::input;
use crate::output::{Cell, Table, short};
use crate::reach::Reach;
use crate::signals::Stop;

/// Dead letters that one listing shows.
const SHOWN_MAX: &str = "100";
/// Dead letters that are dealt with by one request, where no rate is given.
const BATCH: usize = 100;
/// Dead letters that are asked for at once.
const PAGE: &str = "200";
/// Dead letters that one call deals with; there may be more.
const LETTERS_MAX: usize = 100_000;

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
    #[command(after_help = "Examples:
  flowgate dead retry --flow order --step charge --rate 10/s
  flowgate dead retry --flow order --revision active --dry-run")]
    Retry(Retry),
    /// Drop dead letters
    Drop(Deal),
    /// List messages from outside that could not become runs, and why
    #[command(after_help = "\
They came by a subscription of MQTT, see docs/guide/mqtt.md, and are kept for 7 days. How their \
payloads begin is in the output with --json.

Examples:
  flowgate dead messages
  flowgate dead messages --subscription ingest --json")]
    Messages(Messages),
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
struct Messages {
    /// Only those that came by this subscription
    #[arg(long, value_name = "NAME")]
    subscription: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Retry {
    #[command(flatten)]
    deal: Deal,
    /// On the revision that new runs of their flow start on, instead of each on its own
    #[arg(long, value_name = "active", value_parser = ["active"])]
    revision: Option<String>,
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
    #[arg(long, value_name = "N/SPAN", value_parser = parse_rate)]
    rate: Option<QueueRate>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

impl Filter {
    /// As parameters of an address.
    fn query(&self) -> Result<Vec<(&'static str, String)>, Failure> {
        let named = [
            ("flow", &self.flow),
            ("step", &self.step),
            ("reason", &self.reason),
            ("since", &self.since),
        ];
        let named = named.into_iter().filter_map(|(name, value)| Some((name, value.clone()?)));
        let tags = input::tags(&self.tags)?;
        let tags = tags.iter().map(|(name, value)| ("tag", format!("{name}={value}")));
        Ok(named.chain(tags).collect())
    }
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    match args.verb {
        Verb::List(args) => list(&app, &args).await,
        Verb::Retry(Retry { deal: args, revision }) => {
            deal(&app, &args, &What::Retry(revision)).await
        }
        Verb::Drop(args) => deal(&app, &args, &What::Drop).await,
        Verb::Messages(args) => messages(&app, &args).await,
    }
}

async fn list(app: &App, args: &List) -> Outcome {
    let reach = Reach::read(app).await?;
    let filter = args.filter.query()?;
    let mut query: Vec<(&str, &str)> =
        filter.iter().map(|(name, value)| (*name, &**value)).collect();
    let total = if args.group {
        let groups: DeadGroups = reach.get("/dead/groups", &query).await?;
        if app.output.json {
            app.output.json(&groups)?;
            return Ok(Exit::Done);
        }
        table_of_groups(app, &groups)?;
        groups.total
    } else {
        query.push(("limit", SHOWN_MAX));
        let page: DeadPage = reach.get("/dead", &query).await?;
        if app.output.json {
            app.output.json(&page)?;
            return Ok(Exit::Done);
        }
        table_of_letters(app, &page.items)?;
        if page.next.is_some() {
            app.output.note("see them by reason: flowgate dead list --group");
        }
        page.total
    };
    if total == 0 {
        app.output.note("no dead letters");
    } else {
        app.output.note(format_args!("{total} dead letters"));
    }
    Ok(Exit::Done)
}

async fn messages(app: &App, args: &Messages) -> Outcome {
    let reach = Reach::read(app).await?;
    let mut query = vec![("limit", SHOWN_MAX)];
    query.extend(args.subscription.as_deref().map(|name| ("subscription", name)));
    let page: DeadMessagePage = reach.get("/dead/messages", &query).await?;
    if app.output.json {
        app.output.json(&page)?;
        return Ok(Exit::Done);
    }
    if page.items.is_empty() {
        app.output.note("no dead messages");
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["subscription", "kept", "topic", "bytes", "reason", "message"]);
    let now: Timestamp = clock::now();
    for dead in &page.items {
        table.row(vec![
            Cell::bold(&dead.subscription),
            Cell::dim(format_args!("{} ago", Brief(now.since(clock::read(&dead.kept_at))))),
            Cell::plain(&dead.topic),
            Cell::plain(dead.bytes),
            Cell::plain(&dead.reason),
            Cell::plain(&dead.message),
        ]);
    }
    table.print(app.output)?;
    if page.next.is_some() {
        app.output.note("there are more; choose one with --subscription NAME");
    }
    Ok(Exit::Done)
}

fn table_of_groups(app: &App, groups: &DeadGroups) -> Result<(), Failure> {
    if groups.items.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["count", "flow", "step", "kind", "example", "reason"]);
    for group in &groups.items {
        table.row(vec![
            Cell::bold(group.count),
            Cell::plain(&group.flow),
            Cell::plain(&group.step),
            Cell::plain(&group.kind),
            Cell::dim(short(group.example.run_id)),
            Cell::plain(&group.reason),
        ]);
    }
    table.print(app.output)
}

fn table_of_letters(app: &App, letters: &[DeadItem]) -> Result<(), Failure> {
    if letters.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["run", "flow", "step", "failed", "message"]);
    let now: Timestamp = clock::now();
    for letter in letters {
        let ended = letter.ended_at.as_deref().map(|at| now.since(clock::read(at)));
        table.row(vec![
            Cell::bold(short(letter.run_id)),
            Cell::plain(&letter.flow),
            Cell::plain(&letter.step),
            Cell::dim(ended.map_or_else(String::new, |ago| format!("{} ago", Brief(ago)))),
            Cell::plain(letter.message.as_deref().unwrap_or_default()),
        ]);
    }
    table.print(app.output)
}

/// What is done with dead letters.
enum What {
    /// Each is tried again, on this revision.
    Retry(Option<String>),
    Drop,
}

impl What {
    fn verb(&self) -> &'static str {
        match self {
            Self::Retry(_) => "retry",
            Self::Drop => "drop",
        }
    }

    fn done(&self) -> &'static str {
        match self {
            Self::Retry(_) => "retried",
            Self::Drop => "dropped",
        }
    }

    fn revision(&self) -> Option<String> {
        match self {
            Self::Retry(revision) => revision.clone(),
            Self::Drop => None,
        }
    }
}

async fn deal(app: &App, args: &Deal, what: &What) -> Outcome {
    let reach = if args.dry_run { Reach::read(app).await? } else { Reach::write(app).await? };
    let outcome = deal_by(app, &reach, args, what).await;
    reach.finish(outcome).await
}

async fn deal_by(app: &App, reach: &Reach, args: &Deal, what: &What) -> Outcome {
    let letters = chosen(reach, args).await?;
    if letters.is_empty() {
        if app.output.json {
            app.output.json(&Dealt::default())?;
        }
        app.output.note("no dead letters");
        return Ok(Exit::Done);
    }
    if args.dry_run {
        return tell_of_dry_run(app, &letters);
    }
    confirm(app, args, what, letters.len())?;
    let (dealt, is_stopped) = carry_out(app, reach, args, what, &letters).await?;
    tell(app, what, &dealt, is_stopped)
}

fn tell_of_dry_run(app: &App, letters: &[DeadItem]) -> Outcome {
    if app.output.json {
        let done = letters.iter().map(|letter| flowgate_server::wire::dead::DealtRun {
            run_id: letter.run_id,
            new_run_id: None,
        });
        let done: Vec<_> = done.collect();
        app.output.json(&Dealt { found: done.len() as u64, done, ..Dealt::default() })?;
        return Ok(Exit::Done);
    }
    let mut groups: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
    for letter in letters {
        *groups.entry((&letter.flow, &letter.step, &letter.reason)).or_default() += 1;
    }
    for ((flow, step, reason), count) in groups {
        app.output.line(format_args!("{count:>7}  {flow}/{step}: {reason}"))?;
    }
    app.output.note(format_args!("{} dead letters; nothing was changed", letters.len()));
    Ok(Exit::Done)
}

/// The dead letters that are named, or that match; the oldest first, as they would have come.
async fn chosen(reach: &Reach, args: &Deal) -> Result<Vec<DeadItem>, Failure> {
    let filter = args.filter.query()?;
    let mut letters: Vec<DeadItem> = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let mut query: Vec<(&str, &str)> =
            filter.iter().map(|(name, value)| (*name, &**value)).collect();
        query.push(("limit", PAGE));
        query.extend(after.as_deref().map(|after| ("after", after)));
        let page: DeadPage = reach.get("/dead", &query).await?;
        letters.extend(page.items);
        after = page.next;
        if after.is_none() || letters.len() >= LETTERS_MAX {
            break;
        }
    }
    letters.reverse();
    if args.runs.is_empty() {
        return Ok(letters);
    }
    let mut wanted: Vec<RunId> = Vec::new();
    for text in &args.runs {
        let path = format!("/runs/{}", crate::reach::segment(text));
        let run: serde_json::Value = reach.get(&path, &[]).await?;
        let run_id = serde_json::from_value(run["run_id"].clone()).map_err(|error| {
            Failure::refused("reply_invalid", "the answer makes no sense here").source(error)
        })?;
        wanted.push(run_id);
    }
    let is_dead = |run_id: &RunId| letters.iter().any(|letter| letter.run_id == *run_id);
    if let Some(run_id) = wanted.iter().find(|run_id| !is_dead(run_id)) {
        let message = format!("run {run_id} is no dead letter that matches");
        return Err(Failure::refused("not_dead", message)
            .help(format!("see `flowgate why {run_id}`"))
            .path(run_id.to_string()));
    }
    letters.retain(|letter| wanted.contains(&letter.run_id));
    Ok(letters)
}

/// Asks, where a person can answer.
fn confirm(app: &App, args: &Deal, what: &What, count: usize) -> Result<(), Failure> {
    if args.yes || !args.runs.is_empty() {
        return Ok(());
    }
    let verb = what.verb();
    let unasked = || {
        Failure::usage("not_confirmed", format!("{count} dead letters match"))
            .help(format!("add --yes to {verb} them, or --dry-run to see them"))
    };
    confirm::ask(app, &format!("{verb} {count} dead letters?"), &unasked)
}

/// Deals with one after the other; Ctrl-C ends it between two. Whether that was so.
async fn carry_out(
    app: &App,
    reach: &Reach,
    args: &Deal,
    what: &What,
    letters: &[DeadItem],
) -> Result<(Dealt, bool), Failure> {
    let mut stop = Stop::listen()?;
    let bar = bar(app, letters.len());
    let path = format!("/dead/{}", what.verb());
    let mut whole = Dealt { found: letters.len() as u64, ..Dealt::default() };
    // With a rate one by one, so that they come evenly.
    let (batch, pause) = match args.rate {
        None => (BATCH, Duration::ZERO),
        Some(rate) => (1, Duration::from_millis(rate.per_ms).div_f64(f64::from(rate.count))),
    };
    let mut ticks = tokio::time::interval(pause.max(Duration::from_nanos(1)));
    let mut is_stopped = false;
    for some in letters.chunks(batch) {
        tokio::select! {
            biased;
            _ = stop.next() => {
                is_stopped = true;
                break;
            }
            _ = ticks.tick() => {}
        }
        let run_ids = some.iter().map(|letter| letter.run_id.to_string()).collect();
        let revision = what.revision();
        let request = DealRequest { run_ids: Some(run_ids), revision, ..DealRequest::default() };
        let dealt: Dealt = match reach.post(&path, &request).await {
            Ok(dealt) => dealt,
            Err(failure) => {
                bar.finish_and_clear();
                tell(app, what, &left(whole), false)?;
                return Err(failure);
            }
        };
        whole.done.extend(dealt.done);
        whole.failed.extend(dealt.failed);
        whole.before += dealt.before;
        bar.inc(some.len() as u64);
    }
    bar.finish_and_clear();
    Ok((left(whole), is_stopped))
}

/// With how many are left.
fn left(dealt: Dealt) -> Dealt {
    let dealt_with = (dealt.done.len() + dealt.failed.len()) as u64 + dealt.before;
    Dealt { left: dealt.found.saturating_sub(dealt_with), ..dealt }
}

fn bar(app: &App, count: usize) -> ProgressBar {
    if !app.output.can_redraw() || app.output.json {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {per_sec}  {eta} left");
    ProgressBar::new(u64::try_from(count).unwrap_or(u64::MAX))
        .with_style(style.expect("the template is right"))
}

fn tell(app: &App, what: &What, dealt: &Dealt, is_stopped: bool) -> Outcome {
    let failed = dealt.failed.len();
    let exit = match (is_stopped, failed) {
        (true, _) => Exit::Interrupted,
        (false, 0) => Exit::Done,
        (false, _) => Exit::Refused,
    };
    if app.output.json {
        app.output.json(dealt)?;
        return Ok(exit);
    }
    for undealt in dealt.failed.iter().take(10) {
        app.output.warning(format_args!("{}: {}", undealt.run_id, undealt.message));
    }
    let done = dealt.done.len();
    app.output.line(format_args!("{done} of {} {}", dealt.found, what.done()))?;
    if dealt.before > 0 {
        app.output.note(format_args!("{} had been dealt with by others", dealt.before));
    }
    if failed > 0 {
        app.output.note(format_args!("{failed} could not be {}", what.done()));
    }
    if dealt.left > 0 {
        let left = dealt.left;
        app.output.note(format_args!("{left} are left as they were; call it again to go on"));
    }
    Ok(exit)
}
