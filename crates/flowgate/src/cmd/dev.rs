//! `flowgate dev`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use flowgate_core::event::Event;
use flowgate_core::flow::{Action, Wait};
use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use flowgate_core::view::Brief;
use flowgate_engine::Applied;
use flowgate_store::{RunQuery, StoreUrl};
use serde_json::json;
use tokio::sync::mpsc;

use super::App;
use crate::clock;
use crate::config::Synchronous;
use crate::failure::{Failure, Outcome};
use crate::folders::{self, Folders};
use crate::instance::{Instance, Work};
use crate::monitor::Monitor;
use crate::output::{Cell, short};
use crate::progress::signal_command;
use crate::signals::Stop;

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
    /// Serve the dashboard, the API, health and metrics here; or off [default: 127.0.0.1:7420]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    let began = clock::instant();
    let mut stop = Stop::listen()?;
    let (changed, mut changes) = mpsc::channel(1);
    let folders = Folders::new(vec![args.folder])?;
    let _watcher = folders::watch(&app, folders.paths(), changed);
    let monitor = Monitor::start(&app)?;
    let instance = Instance::open(&app, Work::Everything).await?;
    instance.subscribe(&app).await?;
    if let Some(monitor) = &monitor {
        monitor.work(instance.engine());
    }
    let url = monitor.as_ref().filter(|_| app.config.api).and_then(Monitor::url);
    let mut dev = Dev { app: &app, instance: &instance, folders, url, began: HashMap::new() };
    let outcome = tokio::select! {
        exit = stop.next() => Ok(exit),
        outcome = dev.serve(&mut changes, began) => outcome,
    };
    if let Some(monitor) = &monitor {
        monitor.stop();
    }
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

async fn greet(dev: &Dev<'_>, began: Instant) -> Result<(), Failure> {
    let Dev { app, instance, folders, url, began: _ } = dev;
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
        statuses: RunStatus::OPEN.to_vec(),
        limit: OPEN_COUNTED_MAX,
        ..RunQuery::default()
    };
    let open = instance.store().list_runs(&query).await?.len();
    let more = if open == OPEN_COUNTED_MAX { "+" } else { "" };
    let served = folders.served();
    let note = |name: &str, text: &str| app.output.note(format_args!("  {name:<6} {text}"));
    app.output.note(format_args!(
        "flowgate {} serves {}",
        env!("CARGO_PKG_VERSION"),
        folders::shown(folders.paths())
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
    if let Some(url) = url {
        note("look", &format!("{url}/"));
    }
    let took = clock::instant().duration_since(began);
    app.output.note(format_args!("ready in {}; Ctrl-C stops, and nothing is lost", Brief(took)));
    Ok(())
}

/// What `dev` does until it is stopped.
struct Dev<'a> {
    app: &'a App,
    instance: &'a Instance,
    folders: Folders,
    /// Where the dashboard is.
    url: Option<String>,
    /// When the runs that started under our eyes began.
    began: HashMap<RunId, Instant>,
}

impl Dev<'_> {
    /// Serves the folder; ends only with a failure.
    async fn serve(&mut self, changes: &mut mpsc::Receiver<()>, began: Instant) -> Outcome {
        let mut news = self.instance.news();
        self.folders.read(self.app)?;
        self.folders.register(self.app, self.instance).await?;
        greet(self, began).await?;
        self.folders.set_greeted();
        loop {
            tokio::select! {
                Some(()) = changes.recv() => {
                    folders::settle(changes).await;
                    self.folders.read(self.app)?;
                    self.folders.register(self.app, self.instance).await?;
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
                let how = if started.hold.is_some() { "held" } else { "started" };
                Some(format!("{how}{}", again.unwrap_or_default()))
            }
            Event::RunReleased { revision, .. } => Some(format!("goes on with {revision}")),
            Event::RunCheckpointed { deployment, .. } => {
                Some(format!("stops where it is, for the deployment {deployment}"))
            }
            Event::RunMigrated(migrated) => Some(format!("moved to {}", migrated.revision)),
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
        let flow =
            flowgate_server::lookup::flow_of(self.instance.store(), &applied.run).await.ok()?;
        let action = &flow.step(flow.step_index(step)?).action;
        if let Action::Wait(Wait::Signal { signal, matches, .. }) = action {
            Some(signal_command(applied.run_id, signal, matches))
        } else {
            None
        }
    }
}
