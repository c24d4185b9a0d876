//! `flowgate store copy`.

use std::collections::BTreeSet;
use std::time::Duration;

use flowgate_store::copy::{self, Contents, CopyError, CopyReport, Occupied, Phase, Progress};
use flowgate_store::{Store, StoreUrl};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::super::App;
use crate::config::parse_store;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{Cell, Output, Table};
use crate::signals::Stop;
use crate::stores::{self, OwnStore};
use flowgate_server::lookup::is_silent;

const TICK: Duration = Duration::from_millis(100);

/// Copies a store.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Copies flows with all their revisions, runs with their events, open ones too, and log lines. Nobody \
may work on either store meanwhile: stop `flowgate dev` first. Runs in flight go on in the target; \
attempts that were running when their process ended are repeated there, with the same idempotency \
key. At the end everything is read back and counted. The source stays as it is.

Examples:
  flowgate store copy sqlite:.flowgate/flowgate.db postgres://user@localhost/flowgate
  flowgate store copy sqlite:.flowgate/flowgate.db redis://localhost:6379 --continue")]
pub(crate) struct Args {
    /// The URL of the store to read
    from: String,
    /// The URL of the store to write
    to: String,
    /// Go on with a copy that was broken off: what the target has already stays as it is
    #[arg(long = "continue")]
    go_on: bool,
    /// Copy although an instance works on one of the stores; what it does meanwhile may be missing
    #[arg(long)]
    force: bool,
}

pub(crate) async fn run(app: &App, args: Args) -> Outcome {
    let mut stop = Stop::listen()?;
    let (from_url, to_url) = (store_url("FROM", &args.from)?, store_url("TO", &args.to)?);
    if from_url.to_string() == to_url.to_string() {
        return Err(Failure::usage("stores_equal", "FROM and TO are the same store"));
    }
    if let StoreUrl::Sqlite(path) = &from_url
        && !path.exists()
    {
        let path = path.display().to_string();
        let message = format!("there is no store at {path}");
        return Err(Failure::not_found("store_not_found", message).path(path));
    }
    let owner = flowgate_engine::instance_id();
    let from = stores::open_to_write(app, &from_url, &owner).await?;
    let outcome = match stores::open_to_write(app, &to_url, &owner).await {
        Ok(to) => {
            let outcome = Copying { app, args: &args, from: &from, to: &to }.go(&mut stop).await;
            to.close().await;
            outcome
        }
        Err(failure) => Err(failure),
    };
    from.close().await;
    outcome
}

fn store_url(name: &str, text: &str) -> Result<StoreUrl, Failure> {
    let wrong = |message: String, help: String| {
        Failure::usage("store_url_invalid", format!("{name}: {message}")).help(help).path(name)
    };
    match parse_store(text) {
        Ok(StoreUrl::Memory) => {
            let message = "a store in memory belongs to one process".to_owned();
            Err(wrong(message, "name a file or a server".to_owned()))
        }
        Ok(url) => Ok(url),
        Err((message, help)) => Err(wrong(message, help)),
    }
}

struct Copying<'a> {
    app: &'a App,
    args: &'a Args,
    from: &'a OwnStore,
    to: &'a OwnStore,
}

impl Copying<'_> {
    async fn go(&self, stop: &mut Stop) -> Outcome {
        let (from, to) = (&*self.from.store, &*self.to.store);
        if !self.args.force {
            refuse_busy("source", from).await?;
            refuse_busy("target", to).await?;
        }
        let occupied = if self.args.go_on { Occupied::Continue } else { Occupied::Refuse };
        let bar = Bar::new(self.app.output);
        let mut tell = |progress| bar.show(progress);
        let copied = tokio::select! {
            copied = copy::copy(from, to, occupied, &mut tell) => copied,
            exit = stop.next() => {
                bar.finish();
                return Err(self.broken_off(exit));
            }
        };
        bar.finish();
        let report = copied.map_err(|error| self.failure(error))?;
        self.conclude(&report)
    }

    fn again(&self) -> String {
        let shown = flowgate_store::url::masked;
        let (from, to) = (shown(&self.args.from), shown(&self.args.to));
        format!("flowgate store copy {from} {to} --continue")
    }

    fn broken_off(&self, exit: Exit) -> Failure {
        let message = "stopped before everything was copied; the source is as it was";
        Failure::new(exit, "stopped", message).help(format!("go on with `{}`", self.again()))
    }

    fn failure(&self, error: CopyError) -> Failure {
        match error {
            CopyError::Occupied { .. } => Failure::refused("target_not_empty", error.to_string())
                .help(format!(
                    "name an empty store; if a copy to it was broken off, go on with `{}`",
                    self.again()
                )),
            CopyError::Source(source) => Failure::from(source).path("FROM"),
            CopyError::Target(source) => {
                let failure = Failure::from(source).path("TO");
                let help =
                    failure.help.as_deref().map(|help| format!("{help}; ")).unwrap_or_default();
                failure.help(format!("{help}then go on with `{}`", self.again()))
            }
        }
    }

    fn conclude(&self, report: &CopyReport) -> Outcome {
        let is_complete = report.is_complete();
        if self.app.output.json {
            self.app.output.json(&json!({
                "complete": is_complete,
                "imported": {
                    "revisions": report.imported.revisions, "runs": report.imported.runs,
                    "records": report.records,
                },
                "source": report.source,
                "target": report.target,
            }))?;
        } else {
            table(report).print(self.app.output)?;
        }
        if is_complete {
            self.app.output.note("the target has all that the source has");
            return Ok(Exit::Done);
        }
        let message = "the target does not hold what the source holds";
        Err(Failure::new(Exit::RunFailed, "copy_differs", message).help(
            "somebody works on one of the stores, or the target held something else before; stop \
             them and copy to an empty store",
        ))
    }
}

/// Refuses a store that somebody works on. The owner of an embedded one is this process.
async fn refuse_busy(name: &str, store: &dyn Store) -> Result<(), Failure> {
    if !store.is_shared() {
        return Ok(());
    }
    let now = store.now().await?;
    let instances = store.list_instances().await?;
    let busy: Vec<String> = instances
        .iter()
        .filter(|row| !is_silent(row, now))
        .map(|row| row.beat.instance.to_string())
        .collect();
    if busy.is_empty() {
        return Ok(());
    }
    let message = format!("the {name} is in use by {}", busy.join(", "));
    Err(Failure::refused("store_in_use", message)
        .help("stop these instances first, or copy all the same with --force"))
}

fn table(report: &CopyReport) -> Table {
    let mut table = Table::new(&["what", "source", "target", ""]);
    let mut row = |what: &str, source: u64, target: u64| {
        let verdict = if source == target { "" } else { "differs" };
        table.row(vec![
            Cell::bold(what),
            Cell::plain(source),
            Cell::plain(target),
            Cell::plain(verdict),
        ]);
    };
    let Contents { revisions, runs, events, log_lines, open_jobs, records } = &report.source;
    let target = &report.target;
    row("revisions", *revisions, target.revisions);
    let statuses: BTreeSet<&str> = runs.keys().chain(target.runs.keys()).copied().collect();
    for status in statuses {
        let count = |contents: &Contents| contents.runs.get(status).copied().unwrap_or_default();
        row(&format!("runs {status}"), count(&report.source), count(target));
    }
    row("events", *events, target.events);
    row("log lines", *log_lines, target.log_lines);
    row("open jobs", *open_jobs, target.open_jobs);
    row("records", *records, target.records);
    table
}

/// The progress of a copy, redrawn on a terminal.
struct Bar(Option<ProgressBar>);

impl Bar {
    fn new(output: Output) -> Self {
        if !output.can_redraw() {
            return Self(None);
        }
        let bar = ProgressBar::no_length();
        let template = "{msg:<8} [{bar:40}] {pos}/{len} runs {elapsed}";
        let style = ProgressStyle::with_template(template).expect("our template is valid");
        bar.set_style(style.progress_chars("=> "));
        bar.enable_steady_tick(TICK);
        Self(Some(bar))
    }

    fn show(&self, progress: Progress) {
        let Some(bar) = &self.0 else { return };
        bar.set_message(match progress.phase {
            Phase::Copying => "copying",
            Phase::Checking => "checking",
        });
        bar.set_length(progress.runs);
        bar.set_position(progress.runs_done);
    }

    fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
