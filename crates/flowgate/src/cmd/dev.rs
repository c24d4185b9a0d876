//! `flowgate dev`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowgate_core::event::Event;
use flowgate_core::flow::{Action, Wait};
use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use flowgate_core::view::Brief;
use flowgate_engine::Applied;
use flowgate_store::{RunQuery, StoreUrl};
use notify::{RecursiveMode, Watcher};
use serde_json::json;
use tokio::sync::mpsc;

use super::App;
use crate::clock;
use crate::config::Synchronous;
use crate::failure::{Failure, Outcome};
use crate::flow_files::{self, LoadError, LoadedFlow};
use crate::instance::{Instance, Work, warn_of_workers};
use crate::output::{Cell, short, shortened};
use crate::progress::signal_command;
use crate::signals::Stop;

/// How long a folder must be quiet before it is read again: editors save in several steps.
const QUIET: Duration = Duration::from_millis(60);
const QUIET_MAX: Duration = Duration::from_secs(1);
/// Open runs that are counted; more are shown as this many and a plus.
const OPEN_COUNTED_MAX: usize = 1_000;

/// Serves a folder.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Loads every flow file (*.yaml, *.yml, *.json with `flow` and `steps`) in the folder, executes \
their runs and goes on with every open run in the store. A saved file becomes the active revision \
at once; runs stay on the revision that they started on. A broken file is reported, and the last \
good revision stays active. Ctrl-C stops gracefully; nothing is lost.

While it runs, from another terminal:
  flowgate runs start order --input '{\"orderId\": 7}'
  flowgate runs watch latest

Examples:
  flowgate dev
  flowgate dev flows --store sqlite:dev.db")]
pub(crate) struct Args {
    /// The folder with the flow files
    #[arg(default_value = ".", value_name = "DIR")]
    folder: PathBuf,
    /// Attempts at the same time [default: 256]
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: Option<usize>,
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    let began = clock::instant();
    let mut stop = Stop::listen()?;
    let (changed, mut changes) = mpsc::channel(1);
    if !args.folder.is_dir() {
        let folder = args.folder.display().to_string();
        let message = format!("there is no folder {folder}");
        return Err(Failure::not_found("folder_not_found", message).path(folder));
    }
    let _watcher = watch(&app, &args.folder, changed);
    let instance = Instance::open(&app, Work::Everything).await?;
    let folder = Folder { path: args.folder, is_greeted: false, known: HashMap::new() };
    let mut dev = Dev { app: &app, instance: &instance, folder, began: HashMap::new() };
    let outcome = tokio::select! {
        exit = stop.next() => Ok(exit),
        outcome = dev.serve(&mut changes, began) => outcome,
    };
    let grace = Brief(app.config.shutdown_grace);
    app.output
        .note(format_args!("stopping: attempts have {grace} to end; Ctrl-C again stops at once"));
    tokio::select! {
        () = instance.shutdown() => {}
        _ = stop.next() => {}
    }
    app.output.note("stopped; open runs go on with the next `flowgate dev`");
    outcome
}

/// Tells of changes in the folder, as long as the result is kept.
fn watch(app: &App, folder: &Path, changed: mpsc::Sender<()>) -> Option<impl Watcher + use<>> {
    let tell = move |event: notify::Result<notify::Event>| {
        // The database may lie in the same folder and changes all the time.
        let is_change = event.is_ok_and(|event| {
            !event.kind.is_access() && event.paths.iter().any(|path| flow_files::may_be_flow(path))
        });
        // One that waits to be read is as good as two, so a full channel is fine.
        if is_change && changed.try_send(()).is_err() {
            tracing::trace!("a change is waiting to be read");
        }
    };
    let watching = notify::recommended_watcher(tell).and_then(|mut watcher| {
        watcher.watch(folder, RecursiveMode::NonRecursive).map(|()| watcher)
    });
    match watching {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            let folder = folder.display();
            app.output.warning(format_args!(
                "cannot watch {folder}: {error}; restart `flowgate dev` after changes"
            ));
            None
        }
    }
}

/// Waits until nothing has changed for a while, but not for ever.
async fn settle(changes: &mut mpsc::Receiver<()>) {
    let quiet = async { while tokio::time::timeout(QUIET, changes.recv()).await.is_ok() {} };
    if tokio::time::timeout(QUIET_MAX, quiet).await.is_err() {
        tracing::debug!("the folder changes all the time");
    }
}

/// The flow files of a folder, and what became of each when it was last read.
struct Folder {
    path: PathBuf,
    /// Whether the user has been told what is served.
    is_greeted: bool,
    known: HashMap<PathBuf, Known>,
}

#[derive(Clone, Debug, PartialEq)]
enum Known {
    /// Its flow and revision are served.
    Served { flow: Arc<str>, revision: String, steps: usize },
    /// This is wrong with it.
    Broken(String),
}

impl Known {
    fn served(loaded: &LoadedFlow) -> Self {
        Self::Served {
            flow: Arc::clone(&loaded.flow.name),
            revision: loaded.flow.revision.to_string(),
            steps: loaded.flow.steps.len(),
        }
    }

    fn doubled(path: &Path, loaded: &LoadedFlow, other: &Path) -> Self {
        Self::Broken(format!(
            "{}:1:1: flow `{}` is in {} already; rename one of them",
            path.display(),
            loaded.flow.name,
            other.display()
        ))
    }
}

impl Folder {
    /// Registers what is new and reports what is broken, each once.
    async fn read(&mut self, app: &App, instance: &Instance) -> Result<(), Failure> {
        let paths = flow_files::in_folder(&self.path).map_err(|error| {
            let message = format!("cannot read {}", self.path.display());
            Failure::usage("folder_invalid", message).source(error)
        })?;
        for (path, known) in self.known.extract_if(|path, _| !paths.contains(path)) {
            if let Known::Served { flow, .. } = known {
                let (time, path) = (clock::time_of_day(), path.display());
                app.output.note(format_args!("{time} {path} is gone; `{flow}` stays as it was"));
            }
        }
        let mut fresh = Vec::new();
        for path in paths {
            let found = match flow_files::load(&path) {
                Ok(loaded) => {
                    let other = self.holder(&loaded.flow.name, &path);
                    let known = other.map(|other| Known::doubled(&path, &loaded, other));
                    let known = known.unwrap_or_else(|| Known::served(&loaded));
                    if matches!(known, Known::Served { .. })
                        && self.known.get(&path) != Some(&known)
                    {
                        fresh.push(loaded);
                    }
                    known
                }
                Err(LoadError::Invalid(_)) if !flow_files::claims_to_be_flow(&path) => continue,
                Err(LoadError::Invalid(errors)) => {
                    Known::Broken(errors.in_file(&path.display().to_string()).to_string())
                }
                // It was removed, or is being written; there will be another change.
                Err(LoadError::Unreadable(_)) => continue,
            };
            if let Known::Broken(problem) = &found
                && self.known.get(&path) != Some(&found)
            {
                app.output.warning(problem);
            }
            self.known.insert(path, found);
        }
        for loaded in &fresh {
            warn_of_workers(app, &loaded.flow);
        }
        instance.register_all(&fresh).await?;
        if self.is_greeted {
            for LoadedFlow { flow, .. } in &fresh {
                let (time, revision) = (clock::time_of_day(), &flow.revision);
                app.output.note(format_args!("{time} `{}` is now revision {revision}", flow.name));
            }
        }
        Ok(())
    }

    fn holder(&self, name: &str, path: &Path) -> Option<&Path> {
        let mut others = self.known.iter().filter(|(other, _)| *other != path);
        let found = others
            .find(|(_, known)| matches!(known, Known::Served { flow, .. } if **flow == *name));
        found.map(|(other, _)| other.as_path())
    }
}

async fn greet(
    app: &App,
    instance: &Instance,
    folder: &Folder,
    began: Instant,
) -> Result<(), Failure> {
    let durable = match (&app.config.store, app.config.synchronous) {
        (StoreUrl::Memory, _) => "runs are gone when this process ends",
        (StoreUrl::Sqlite(_), Synchronous::Full) => {
            "synchronous=FULL: what is accepted survives power loss"
        }
        (StoreUrl::Sqlite(_), Synchronous::Normal) => {
            "synchronous=NORMAL: survives a crash; power loss may cost the last moments"
        }
        (StoreUrl::Redis(_) | StoreUrl::Postgres(_), _) => {
            "shared: what is accepted survives this process; see `flowgate instances`"
        }
    };
    let query = RunQuery {
        statuses: vec![RunStatus::Running, RunStatus::Waiting],
        limit: OPEN_COUNTED_MAX,
        ..RunQuery::default()
    };
    let open = instance.store().list_runs(&query).await?.len();
    let more = if open == OPEN_COUNTED_MAX { "+" } else { "" };
    let mut served: Vec<String> = (folder.known.values())
        .filter_map(|known| match known {
            Known::Served { flow, revision, steps } => {
                let plural = if *steps == 1 { "" } else { "s" };
                let revision = shortened(revision, 9).replace('…', "");
                Some(format!("{flow}@{revision} ({steps} step{plural})"))
            }
            Known::Broken(_) => None,
        })
        .collect();
    served.sort();
    let note = |name: &str, text: &str| app.output.note(format_args!("  {name:<6} {text}"));
    app.output.note(format_args!(
        "flowgate {} serves {}",
        env!("CARGO_PKG_VERSION"),
        folder.path.display()
    ));
    note("store", &app.config.store.to_string());
    note("", durable);
    if served.is_empty() {
        note("flows", "none yet; put a flow file here, such as examples/order.yaml");
    }
    for (at, flow) in served.iter().enumerate() {
        note(if at == 0 { "flows" } else { "" }, flow);
    }
    if open > 0 {
        let go_on = if open == 1 { "run goes on" } else { "runs go on" };
        note("open", &format!("{open}{more} {go_on}"));
    }
    let took = clock::instant().duration_since(began);
    app.output.note(format_args!("ready in {}; Ctrl-C stops, and nothing is lost", Brief(took)));
    Ok(())
}

/// What `dev` does until it is stopped.
struct Dev<'a> {
    app: &'a App,
    instance: &'a Instance,
    folder: Folder,
    /// When the runs that started under our eyes began.
    began: HashMap<RunId, Instant>,
}

impl Dev<'_> {
    /// Serves the folder; ends only with a failure.
    async fn serve(&mut self, changes: &mut mpsc::Receiver<()>, began: Instant) -> Outcome {
        let mut news = self.instance.news();
        self.folder.read(self.app, self.instance).await?;
        greet(self.app, self.instance, &self.folder, began).await?;
        self.folder.is_greeted = true;
        loop {
            tokio::select! {
                Some(()) = changes.recv() => {
                    settle(changes).await;
                    self.folder.read(self.app, self.instance).await?;
                }
                applied = news.next() => match applied {
                    Ok(applied) => self.tell(&applied).await?,
                    Err(missed) => self.app.output.warning(format_args!(
                        "{missed} changes went by too fast to be shown; see `flowgate runs list`"
                    )),
                },
            }
        }
    }

    /// Prints a line for each start and end of a run and each failure of a step.
    async fn tell(&mut self, applied: &Applied) -> Result<(), Failure> {
        for event in &applied.events {
            let Some(text) = self.told(applied, event).await else { continue };
            if self.app.output.json {
                self.app.output.json_line(&json!({
                    "run_id": applied.run_id, "flow": applied.run.flow, "type": event.kind(),
                    "step": event.step(), "message": text,
                }))?;
                continue;
            }
            self.app.output.line(format_args!(
                "{} {} {} {text}",
                Cell::dim(clock::time_of_day()),
                Cell::dim(short(applied.run_id)),
                Cell::bold(&applied.run.flow),
            ))?;
        }
        Ok(())
    }

    async fn told(&mut self, applied: &Applied, event: &Event) -> Option<String> {
        let took = |began: Option<Instant>| {
            let took = began.map(|began| Brief(clock::instant().duration_since(began)));
            took.map(|took| format!(" in {took}")).unwrap_or_default()
        };
        match event {
            Event::RunStarted(started) => {
                self.began.insert(applied.run_id, clock::instant());
                let again =
                    started.retry_of.map(|run_id| format!(", a retry of {}", short(run_id)));
                Some(format!("started{}", again.unwrap_or_default()))
            }
            Event::RunCompleted {} | Event::RunFailed { .. } | Event::RunCancelled { .. } => {
                let took = took(self.began.remove(&applied.run_id));
                Some(format!("{}{took}", Cell::status(applied.run.status)))
            }
            Event::AttemptFailed { step, lease, error, retry_after_ms, .. } => {
                let wait = Brief(Duration::from_millis(*retry_after_ms));
                let attempt = lease.attempt;
                let message = &error.message;
                Some(format!("{step}: attempt {attempt} failed: {message}; next in {wait}"))
            }
            Event::StepFailed { step, error, .. } => {
                Some(format!("{step}: failed: {}", error.message))
            }
            Event::StepLost { step, lease, .. } => {
                Some(format!("{step}: attempt {} was lost with its process", lease.attempt))
            }
            Event::StepRepaired { step } => {
                Some(format!("{step}: was open without a job, or had one too many; repaired"))
            }
            Event::StepWaiting { step, .. } => {
                let command = self.signal_of(applied, step).await?;
                Some(format!("{step}: waits for a signal\n  {command}"))
            }
            Event::StepQueued { .. }
            | Event::StepStarted { .. }
            | Event::StepReleased { .. }
            | Event::StepParked { .. }
            | Event::EventEmitted { .. }
            | Event::EventRepeated { .. }
            | Event::StateSet { .. }
            | Event::StepSucceeded { .. }
            | Event::StepSkipped { .. }
            | Event::StepCancelled { .. }
            | Event::StepCarried { .. }
            | Event::SignalReceived { .. }
            | Event::SignalTaken { .. } => None,
        }
    }

    /// How to end the wait of a step, if a signal does.
    async fn signal_of(&self, applied: &Applied, step: &str) -> Option<String> {
        let flow = crate::lookup::flow_of(self.instance.store(), &applied.run).await.ok()?;
        let action = &flow.step(flow.step_index(step)?).action;
        if let Action::Wait(Wait::Signal { signal, matches, .. }) = action {
            Some(signal_command(applied.run_id, signal, matches))
        } else {
            None
        }
    }
}
