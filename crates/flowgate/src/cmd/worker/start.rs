//! `flowgate worker start`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowgate_core::view::Brief;
use flowgate_engine::{Engine, Health};
use flowgate_store::Queues;
use tokio::sync::{mpsc, watch};

use crate::clock;
use crate::cmd::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::folders::{self, Folders};
use crate::instance::{Instance, Work};
use crate::monitor::Monitor;
use crate::signals::Stop;
use crate::systemd;

mod summary;

/// How long it waits before it tries a store again that did not answer: at first,
const WAIT_MIN: Duration = Duration::from_millis(500);
/// and at most.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How often it says that it still waits.
const SAY_AGAIN: Duration = Duration::from_secs(30);

/// Executes runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Executes runs of the store until SIGTERM or Ctrl-C. With folders it first registers the flows in \
their files, all of them or none; without, it serves the flows that the store has. Any number of \
workers share a store on PostgreSQL or Redis; they are equal, and one of those that may leads: it \
fires the schedules. A store that is not there is waited for, unready, unless --no-wait is given.

On a signal it is unready at once, claims nothing more, lets steps end within `shutdown_grace`, \
hands the rest back without counting the attempt, and exits with 0. A second signal ends it at \
once, with 130 or 143.

Roles:
  all          steps and schedules (the default)
  job-worker   steps only
  cron-worker  steps and schedules, beside job-workers
  auto         `all` on a store of its own, `cron-worker` on a shared one

Examples:
  flowgate worker start flows
  flowgate worker start --store postgres://user@db/flowgate --role job-worker --concurrency 64
  flowgate worker start --queues mail,default --pool gpu --listen 0.0.0.0:7420 --api off")]
pub(crate) struct Args {
    /// Folders with flow files
    #[arg(value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// What it is for: all, job-worker, cron-worker or auto [default: all]
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
    /// Queues to serve, with commas between [default: all of them]
    #[arg(long, value_name = "NAMES")]
    queues: Option<String>,
    /// Attempts at the same time [default: 256]
    #[arg(long, value_name = "N")]
    concurrency: Option<usize>,
    /// The pool of the instance: it executes what is deployed to that besides what is for anybody
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Where the dashboard, the API, health and metrics are served, or off [default:
    /// 127.0.0.1:7420, or a free port where that is taken]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// off: serve only health and metrics [default: on]
    #[arg(long, value_name = "on|off")]
    api: Option<String>,
    /// Register flow files again when they are saved
    #[arg(long, requires = "folders")]
    watch: bool,
    /// Exit with 3 if the store is not there, instead of waiting for it
    #[arg(long)]
    no_wait: bool,
}

impl Args {
    /// The settings that its flags stand for.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String, &'static str)> {
        let text = |key, value: &Option<String>, flag| Some((key, value.clone()?, flag));
        let concurrency = self.concurrency.map(|n| n.to_string());
        [
            text("role", &self.role, "--role"),
            text("queues", &self.queues, "--queues"),
            text("concurrency", &concurrency, "--concurrency"),
            text("pool", &self.pool, "--pool"),
            text("listen", &self.listen, "--listen"),
            text("api", &self.api, "--api"),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    let began = clock::instant();
    let mut stop = Stop::listen()?;
    let mut folders = Folders::new(args.folders)?;
    let (changed, mut changes) = mpsc::channel(1);
    let _watcher = if args.watch { folders::watch(&app, folders.paths(), changed) } else { None };
    folders.read_all(&app)?;
    let monitor = Monitor::start(&app)?;
    let work = Work::As(app.config.role.on_store(app.config.store.is_shared()));
    let worker = Worker { app: &app, monitor: monitor.as_ref(), waits: !args.no_wait, work };
    let instance = tokio::select! {
        _ = stop.next() => {
            app.output.note("stopped before the store was there");
            return Ok(Exit::Done);
        }
        opened = worker.open() => opened?,
    };
    let outcome = tokio::select! {
        _ = stop.next() => Ok(()),
        Err(failure) = worker.serve(&instance, &mut folders, &mut changes, began) => Err(failure),
    };
    worker.end(&instance, &mut stop, outcome).await
}

/// Serves the API and the dashboard, and executes nothing.
pub(crate) async fn serve(app: App) -> Outcome {
    let began = clock::instant();
    let mut stop = Stop::listen()?;
    let mut folders = Folders::new(Vec::new())?;
    let (_changed, mut changes) = mpsc::channel(1);
    let monitor = Monitor::start(&app)?;
    if monitor.as_ref().and_then(Monitor::address).is_none() || !app.config.api {
        return Err(Failure::usage("nothing_to_serve", "the settings want no API")
            .help("name an address with --listen ADDR, and set `api` to on")
            .path("listen"));
    }
    let worker = Worker { app: &app, monitor: monitor.as_ref(), waits: true, work: Work::Serve };
    let instance = tokio::select! {
        _ = stop.next() => return Ok(Exit::Done),
        opened = worker.open() => opened?,
    };
    let outcome = tokio::select! {
        _ = stop.next() => Ok(()),
        Err(failure) = worker.serve(&instance, &mut folders, &mut changes, began) => Err(failure),
    };
    worker.end(&instance, &mut stop, outcome).await
}

/// What a worker works with.
struct Worker<'a> {
    app: &'a App,
    monitor: Option<&'a Monitor>,
    /// Whether it waits for a store that is not there.
    waits: bool,
    work: Work,
}

impl Worker<'_> {
    /// Opens the store, however long that takes. It never uses another one.
    async fn open(&self) -> Result<Arc<Instance>, Failure> {
        let open = async || Instance::open(self.app, self.work).await;
        let instance = self.patiently(None, open).await?;
        if let Some(monitor) = self.monitor {
            monitor.work(instance.engine());
        }
        if self.work != Work::Serve {
            instance.subscribe(self.app).await?;
        }
        Ok(instance)
    }

    /// Does something with the store, again and again as long as the store is not there.
    async fn patiently<T>(
        &self,
        instance: Option<&Instance>,
        mut work: impl AsyncFnMut() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut pause = WAIT_MIN;
        let mut said_at: Option<Instant> = None;
        loop {
            let failure = match work().await {
                Ok(done) => return Ok(done),
                Err(failure) => failure,
            };
            // A file does not come back by itself, and settings that lose runs do not change.
            let may_come = self.app.config.store.is_shared() && failure.code == "store_unavailable";
            if !self.waits || !may_come {
                return Err(failure);
            }
            let cause = failure.cause();
            // An instance knows by itself whether it is ready.
            if let (None, Some(monitor)) = (instance, self.monitor) {
                monitor.wait(&cause);
            }
            systemd::starting(&format!("waits for its store: {cause}"), 4 * WAIT_MAX);
            let now = clock::instant();
            if said_at.is_none_or(|at| now.saturating_duration_since(at) >= SAY_AGAIN) {
                said_at = Some(now);
                let store = self.app.config.store.to_string();
                tracing::warn!(%store, %cause, "waiting for the store; unready");
            }
            tokio::time::sleep(pause.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
            pause = (pause * 2).min(WAIT_MAX);
        }
    }

    /// Serves until something is wrong that does not go away.
    async fn serve(
        &self,
        instance: &Arc<Instance>,
        folders: &mut Folders,
        changes: &mut mpsc::Receiver<()>,
        began: Instant,
    ) -> Result<(), Failure> {
        let app = self.app;
        self.patiently(Some(instance), async || folders.register(app, instance).await).await?;
        let engine = instance.engine();
        let mut health = engine.health();
        ready(&mut health).await?;
        systemd::ready("ready");
        self.greet(engine, folders, began);
        folders.set_greeted();
        let summary = summary::tell(engine, app.config.summary_interval);
        tokio::pin!(summary);
        loop {
            tokio::select! {
                Some(()) = changes.recv() => {
                    folders::settle(changes).await;
                    folders.read(app)?;
                    let register = async || folders.register(app, instance).await;
                    self.patiently(Some(instance), register).await?;
                }
                changed = health.changed() => {
                    if changed.is_err() || *health.borrow() == Health::Stopping {
                        return Err(stopped());
                    }
                    systemd::status(&standing(&health));
                }
                () = &mut summary => {}
            }
        }
    }

    fn greet(&self, engine: &Engine, folders: &Folders, began: Instant) {
        let (app, config) = (self.app, engine.config());
        let note = |name: &str, text: &str| app.output.note(format_args!("  {name:<6} {text}"));
        let version = env!("CARGO_PKG_VERSION");
        let what = if self.work == Work::Serve { "serve" } else { "worker" };
        app.output.note(format_args!("flowgate {version} {what} {}", config.instance));
        if let Work::As(role) = self.work {
            let said = if app.config.role == role { "" } else { " (by auto)" };
            note("role", &format!("{role}{said}"));
        }
        note("store", &app.config.store.to_string());
        let served = folders.served();
        if served.is_empty() {
            note("flows", "those of the store");
        }
        for (at, flow) in served.iter().enumerate() {
            note(if at == 0 { "flows" } else { "" }, flow);
        }
        if let Queues::Only(queues) = &config.queues
            && self.work != Work::Serve
        {
            note("queues", &queues.join(", "));
        }
        if let Some(pool) = &config.pool {
            note("pool", pool);
        }
        if let Some(url) = self.monitor.and_then(Monitor::url) {
            let more = if app.config.api { "/, /api/v1, " } else { "" };
            note("listen", &format!("{url} ({more}/healthz, /readyz, /metrics)"));
        }
        let took = Brief(clock::instant().duration_since(began));
        app.output
            .note(format_args!("ready in {took}; SIGTERM or Ctrl-C stops, and nothing is lost"));
    }

    /// Stops gracefully within the grace, or at once with a second signal.
    async fn end(
        &self,
        instance: &Instance,
        stop: &mut Stop,
        outcome: Result<(), Failure>,
    ) -> Outcome {
        if let Some(monitor) = self.monitor {
            monitor.stop();
        }
        systemd::stopping();
        let grace = self.app.config.shutdown_grace;
        self.app.output.note(format_args!(
            "stopping: steps have {} to end; a second signal stops at once",
            Brief(grace)
        ));
        tokio::select! {
            ended = tokio::time::timeout(grace, instance.shutdown()) => {
                if ended.is_err() {
                    tracing::warn!("not all was handed back in time; leases end by themselves");
                }
            }
            exit = stop.next() => return Ok(exit),
        }
        outcome?;
        if self.work != Work::Serve {
            self.app.output.note("stopped; open runs go on with the next worker");
        }
        Ok(Exit::Done)
    }
}

/// Returns when the instance is ready for the first time.
async fn ready(health: &mut watch::Receiver<Health>) -> Result<(), Failure> {
    let is_past_start = |health: &Health| matches!(health, Health::Ready | Health::Stopping);
    match health.wait_for(is_past_start).await {
        Ok(health) if *health == Health::Ready => Ok(()),
        Ok(_) | Err(_) => Err(stopped()),
    }
}

fn standing(health: &watch::Receiver<Health>) -> String {
    match &*health.borrow() {
        Health::Ready => "ready".to_owned(),
        Health::Unready { reason, .. } => format!("unready: {reason}"),
        Health::Stopping => "stopping".to_owned(),
    }
}

/// The engine stopped by itself, which only a bug makes it do.
fn stopped() -> Failure {
    Failure::new(Exit::RunFailed, "engine_stopped", "the engine stopped by itself")
        .help("see the log; other workers go on with what it had, when its leases end")
}
