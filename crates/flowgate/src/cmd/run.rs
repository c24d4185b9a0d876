//! `flowgate run`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::event::Event;
use flowgate_core::flow::{Action, Flow};
use flowgate_core::ids::{RunId, StepIndex};
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::payload::Payload;
use flowgate_core::run::{Run, RunStatus, StepState};
use flowgate_core::view::Brief;
use flowgate_engine::{EngineError, StartDebounce, StartRequest};
use flowgate_store::StoreUrl;

use super::App;
use super::runs::show::{note_of, took_of};
use crate::config::Origin;
use crate::failure::{Exit, Failure, Outcome};
use crate::flow_files::{self, LoadedFlow};
use crate::input;
use crate::instance::{Instance, Work, failure, warn_of_workers};
use crate::output::{Cell, Output, Table, short, status_phrase};
use crate::progress::Progress;
use crate::signals::Stop;
use crate::stores;
use flowgate_server::wire::runs::RunFacts;
use flowgate_server::{lookup, ops};

/// How long news of a run may be missed before it is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Runs a flow.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Registers the file's revision, starts a run and executes it in this process until it ends. \
Exit code 0 if it completed, 1 if it failed or was cancelled. Other open runs in the same store go \
on as well while this process owns it. A run that was killed or stopped goes on with --resume.

Examples:
  flowgate run examples/order.yaml --input '{\"orderId\": 7}'
  flowgate run order --input @order.json --key 7 --tag customer=42
  flowgate run --resume latest")]
pub(crate) struct Args {
    /// A flow file, or the name of a flow in the store
    #[arg(required_unless_present = "resume", value_name = "FILE|FLOW")]
    flow: Option<String>,
    /// The input: JSON, @FILE, or - for stdin
    #[arg(long, value_name = "JSON", default_value = "{}")]
    input: String,
    /// A key: the same key for the same flow gives the same run
    #[arg(long)]
    key: Option<String>,
    /// A label for finding the run again; may be repeated
    #[arg(long = "tag", value_name = "NAME=VALUE", value_parser = input::pair)]
    tags: Vec<(String, String)>,
    /// Go on with this run, which was killed or stopped
    #[arg(long, value_name = "RUN", conflicts_with_all = ["flow", "key", "tags"])]
    resume: Option<String>,
    /// Return as soon as the run only waits for a signal or a timer, or is held
    #[arg(long)]
    no_wait: bool,
    /// Attempts at the same time [default: 256]
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: Option<usize>,
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    let mut stop = Stop::listen()?;
    let start = match (&args.resume, &args.flow) {
        (Some(run), _) => Begin::Resume(run.clone()),
        (None, Some(flow)) => Begin::start(&args, flow)?,
        (None, None) => unreachable!("clap wants a flow or --resume"),
    };
    if let Begin::Resume(text) = &start {
        check_open(&app, text).await?;
    }
    let instance = Instance::open(&app, Work::Everything).await?;
    let outcome = start.go(&app, &instance, &args, &mut stop).await;
    let stopped = matches!(outcome, Ok(Followed { ended_by: EndedBy::Stop(_), .. }));
    if stopped {
        let grace = Brief(app.config.shutdown_grace);
        app.output.note(format_args!(
            "stopping: attempts have {grace} to end; Ctrl-C again stops at once"
        ));
    }
    tokio::select! {
        () = instance.shutdown() => {}
        _ = stop.next() => {}
    }
    conclude(&app, outcome?)
}

/// What is to be run.
enum Begin {
    Resume(String),
    File { loaded: Box<LoadedFlow>, start: Start },
    Stored { flow: String, start: Start },
}

/// What a run starts with.
struct Start {
    input: Payload,
    key: Option<String>,
    tags: BTreeMap<String, String>,
}

impl Begin {
    /// Checks what can be checked before the store is opened.
    fn start(args: &Args, flow: &str) -> Result<Self, Failure> {
        let input = input::read("--input", &args.input)?;
        let start = Start { input, key: args.key.clone(), tags: input::tags(&args.tags)? };
        let path = Path::new(flow);
        if path.is_file() {
            let loaded = flow_files::load(path).map_err(|error| error.into_failure(path))?;
            check_input(&loaded.flow, &start.input)?;
            return Ok(Self::File { loaded: Box::new(loaded), start });
        }
        if flow_files::is_path(flow) {
            return Err(flow_files::missing(path));
        }
        Ok(Self::Stored { flow: flow.to_owned(), start })
    }

    async fn go(
        self,
        app: &App,
        instance: &Arc<Instance>,
        args: &Args,
        stop: &mut Stop,
    ) -> Result<Followed, Failure> {
        let store = instance.store();
        let run_id = match self {
            Self::Resume(text) => {
                // It may have ended since it was looked at, by this process.
                lookup::run_id(store, &text).await?
            }
            Self::File { loaded, start } => {
                warn_of_workers(app, &loaded.flow);
                instance.register(&loaded).await?;
                start.go(instance, &loaded.flow.name).await?
            }
            Self::Stored { flow, start } => {
                let stored = lookup::revision(store, &flow).await?;
                check_input(&lookup::compile(stored)?, &start.input)?;
                start.go(instance, &flow).await?
            }
        };
        let run = lookup::run(store, run_id).await?.row.run;
        let flow = lookup::flow_of(store, &run).await?;
        let progress = Progress::new(app.output, &flow, run_id);
        let (no_wait, is_alone) = (args.no_wait, !store.is_shared());
        let (output, has_broker) = (app.output, app.config.mqtt.is_some());
        let followed =
            Follow { instance, output, flow, run_id, progress, no_wait, is_alone, has_broker };
        followed.until_end(stop).await
    }
}

impl Start {
    async fn go(self, instance: &Instance, flow: &str) -> Result<RunId, Failure> {
        let Self { input, key, tags } = self;
        let request = StartRequest {
            key: key.map(Into::into),
            tags: tags.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            // Whoever calls this wants to see the run.
            debounce: StartDebounce::Never,
            ..StartRequest::new(input)
        };
        match instance.engine().start_run(flow, request).await {
            Ok(started) => Ok(started.run_id),
            Err(EngineError::NoFlow(name)) => {
                Err(lookup::no_flow(instance.store(), &name).await?.into())
            }
            Err(error) => Err(failure(error)),
        }
    }
}

/// Refuses to go on with a run that has ended. It is looked at before this process works on the
/// store, and might end it.
async fn check_open(app: &App, text: &str) -> Result<(), Failure> {
    if matches!(app.config.store, StoreUrl::Memory) {
        return Ok(());
    }
    let store = stores::open_local(app).await?;
    let run_id = lookup::run_id(&*store, text).await?;
    let run = lookup::run(&*store, run_id).await?.row.run;
    if run.status.is_terminal() { Err(ended(run_id, run.status)) } else { Ok(()) }
}

fn ended(run_id: RunId, status: RunStatus) -> Failure {
    let message = format!("run {run_id} has ended: it is {}", status.as_str());
    Failure::refused("run_ended", message)
        .help(format!("try it again as a new run with `flowgate runs retry {}`", short(run_id)))
        .path(run_id.to_string())
}

/// Refuses an input that does not meet the flow's schema.
pub(crate) fn check_input(flow: &Flow, input: &Payload) -> Result<(), Failure> {
    flow.check_input(input).map_err(|problem| {
        Failure::usage("input_invalid", problem.to_string())
            .help(format!("see its schema with `flowgate flows show {} --file`", flow.name))
            .path("--input")
    })
}

struct Follow<'a> {
    instance: &'a Instance,
    output: Output,
    flow: Flow,
    run_id: RunId,
    progress: Progress,
    no_wait: bool,
    /// Whether no other process can execute steps of the store.
    is_alone: bool,
    /// Whether steps can publish here.
    has_broker: bool,
}

/// A run that is not followed any more.
struct Followed {
    report: RunFacts,
    ended_by: EndedBy,
}

enum EndedBy {
    /// The run ended.
    Run,
    /// It waits, and the user does not.
    Waiting,
    /// It is held at the gate of its flow, and the user does not wait.
    Held,
    /// It waits for this worker, and no other process can be it.
    NoWorker(Arc<str>),
    /// It is to publish, and this process has no broker.
    NoBroker,
    /// The user or the system stopped this process.
    Stop(Exit),
}

impl Follow<'_> {
    /// A run that is let go, or moved, may have other steps from there on.
    async fn follow_revision(&mut self, event: &Event) -> Result<(), Failure> {
        if !matches!(event, Event::RunReleased { .. } | Event::RunMigrated(_)) {
            return Ok(());
        }
        let store = self.instance.store();
        let run = lookup::run(store, self.run_id).await?.row.run;
        if run.revision != self.flow.revision {
            self.flow = lookup::flow_of(store, &run).await?;
            self.progress.finish();
            self.progress = Progress::new(self.output, &self.flow, self.run_id);
        }
        Ok(())
    }

    async fn until_end(mut self, stop: &mut Stop) -> Result<Followed, Failure> {
        let mut news = self.instance.news();
        let mut after = 0;
        let ended_by = loop {
            let page = self.instance.store().read_events(self.run_id, after, PAGE_MAX).await?;
            for stored in &page {
                self.follow_revision(&stored.event).await?;
                self.progress.note(&self.flow, stored);
                after = stored.seq;
            }
            if page.last().is_some_and(|last| last.event.is_terminal()) {
                break EndedBy::Run;
            }
            if page.len() == PAGE_MAX {
                continue;
            }
            let run = lookup::run(self.instance.store(), self.run_id).await?.row.run;
            if self.no_wait && run.status == RunStatus::Waiting {
                break EndedBy::Waiting;
            }
            if self.no_wait && run.status == RunStatus::Held {
                break EndedBy::Held;
            }
            if self.is_alone
                && let Some(lacking) = lacking(&self.flow, &run, self.has_broker)
            {
                break lacking;
            }
            let again = tokio::time::sleep(LOOK_AGAIN);
            tokio::select! {
                () = news.about(self.run_id) => {}
                () = again => {}
                exit = stop.next() => break EndedBy::Stop(exit),
            }
        };
        self.progress.finish();
        let store = self.instance.store();
        let detail = lookup::run(store, self.run_id).await?;
        let events = flowgate_store::whole_log(store, self.run_id).await?;
        Ok(Followed { report: ops::runs::show::facts(&self.flow, &detail, &events), ended_by })
    }
}

/// What a run waits for that is not in this process, if it waits for nothing else.
fn lacking(flow: &Flow, run: &Run, has_broker: bool) -> Option<EndedBy> {
    let mut open = flow.step_indexes().filter(|index| run.step(*index).state.is_open());
    let lacking = |index: StepIndex| {
        let lacking = match &flow.step(index).action {
            Action::Worker(name) => EndedBy::NoWorker(Arc::clone(name)),
            Action::Mqtt(_) if !has_broker => EndedBy::NoBroker,
            Action::Mqtt(_)
            | Action::Nothing
            | Action::Process(_)
            | Action::Shell(_)
            | Action::Http(_)
            | Action::Wait(_) => return None,
        };
        (run.step(index).state == StepState::Queued).then_some(lacking)
    };
    let first = lacking(open.next()?)?;
    open.all(|index| lacking(index).is_some()).then_some(first)
}

/// Says what became of the run.
fn conclude(app: &App, followed: Followed) -> Outcome {
    let Followed { report, ended_by } = followed;
    if let EndedBy::Stop(exit) = ended_by {
        return Err(stopped(app, report.run_id, exit));
    }
    if app.output.json {
        app.output.json(&report)?;
    } else {
        summary(app, &report)?;
    }
    match ended_by {
        EndedBy::Waiting => {
            let run_id = short(report.run_id);
            app.output.note(format_args!(
                "it waits: see `flowgate why {run_id}`\ngo on with `flowgate run --resume {run_id}`"
            ));
            Ok(Exit::Done)
        }
        EndedBy::Held => {
            let (run_id, flow) = (short(report.run_id), &report.flow);
            app.output.note(format_args!(
                "it is held: let it go with `flowgate hold off {flow}`\ngo on with `flowgate run \
                 --resume {run_id}`"
            ));
            Ok(Exit::Done)
        }
        EndedBy::NoWorker(worker) => {
            let run_id = short(report.run_id);
            app.output.note(format_args!(
                "it waits for the worker `{worker}`, which this process is not, and no other can \
                 be in this store\nlet a remote worker claim it from `flowgate dev`, or end it with \
                 `flowgate runs cancel {run_id}`"
            ));
            Ok(Exit::RunFailed)
        }
        EndedBy::NoBroker => {
            let run_id = short(report.run_id);
            app.output.note(format_args!(
                "it is to publish, and the settings name no broker\nset `[mqtt]` and go on with \
                 `flowgate run --resume {run_id}`, or end it with `flowgate runs cancel {run_id}`"
            ));
            Ok(Exit::RunFailed)
        }
        EndedBy::Run | EndedBy::Stop(_) if report.status == RunStatus::Completed => Ok(Exit::Done),
        EndedBy::Run | EndedBy::Stop(_) => {
            let run_id = short(report.run_id);
            app.output.note(format_args!(
                "why: flowgate why {run_id}\nagain: flowgate runs retry {run_id}"
            ));
            Ok(Exit::RunFailed)
        }
    }
}

fn stopped(app: &App, run_id: RunId, exit: Exit) -> Failure {
    if matches!(app.config.store, StoreUrl::Memory) {
        let message = "stopped; the run was in memory only and is gone";
        return Failure::new(exit, "stopped", message).help("keep runs with --store sqlite:PATH");
    }
    let store = match app.config.origin_of("store") {
        Origin::Flag(_) => format!(" --store {}", app.config.store),
        Origin::Variable(_) | Origin::File { .. } | Origin::Default => String::new(),
    };
    Failure::new(exit, "stopped", "stopped before the run ended; nothing is lost")
        .help(format!("go on with `flowgate run --resume {}{store}`", short(run_id)))
        .path(run_id.to_string())
}

fn summary(app: &App, report: &RunFacts) -> Result<(), Failure> {
    let took = report.duration_ms.map(|ms| format!(" after {}", Brief(Duration::from_millis(ms))));
    app.output.line(format_args!(
        "run {} of flow `{}` {}{}",
        report.run_id,
        report.flow,
        status_phrase(report.status),
        took.unwrap_or_default()
    ))?;
    let mut table = Table::new(&["step", "state", "attempts", "took", "note"]);
    for step in &report.steps {
        table.row(vec![
            Cell::bold(&step.name),
            Cell::state(step.state),
            Cell::plain(if step.attempts == 0 { String::new() } else { step.attempts.to_string() }),
            Cell::plain(took_of(step)),
            Cell::dim(note_of(step)),
        ]);
    }
    table.print(app.output)
}
