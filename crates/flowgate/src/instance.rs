//! This process as an instance on its store: the engine, and who may ask it for something.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use flowgate_core::decide::Rejection;
use flowgate_core::flow::{Action, Flow};
use flowgate_core::ids::{InstanceId, RunId};
use flowgate_core::view::Brief;
use flowgate_engine::{
    Applied, Engine, EngineConfig, EngineError, HttpConfig, ProcessConfig, SchedulerConfig, Workers,
};
use flowgate_mqtt::{Bridge, Outlet};
use flowgate_store::{Queues, Retention, Store, StoreUrl};
use flowgate_traces::Traces;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cmd::App;
use crate::config::{Origin, Role};
use crate::control::Socket;
use crate::failure::{Exit, Failure};
use crate::flow_files::LoadedFlow;
use crate::stores::{self, OwnStore};
use crate::subscribers;

use flowgate_server::{Host, HostOptions, Process};

const SWEEP_MIN: Duration = Duration::from_secs(1);
const SWEEP_MAX: Duration = Duration::from_mins(1);
/// The most of a worker's grace that is kept for what comes after its attempts.
const GRACE_REST_MAX: Duration = Duration::from_secs(4);

/// What an instance executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// The queues that the settings name, and all that must be looked after.
    Everything,
    /// The queues that the settings name, in this role, until it is told to stop.
    As(Role),
    /// Nothing, for as long as it is there: it serves the API.
    Serve,
    /// Nothing: it only writes down what it is asked.
    Nothing,
}

/// An engine on the store of the settings.
#[derive(Debug)]
pub(crate) struct Instance {
    engine: Engine,
    own: OwnStore,
    store_url: StoreUrl,
    stop: CancellationToken,
    socket: tokio::sync::Mutex<JoinSet<()>>,
    traces: tokio::sync::Mutex<Option<Traces>>,
    bridge: tokio::sync::Mutex<Option<Bridge>>,
    outlet: tokio::sync::Mutex<Option<Outlet>>,
}

impl Instance {
    /// Opens the store and begins to work. Where it owns the store, other processes can ask it for
    /// something from now on.
    pub(crate) async fn open(app: &App, work: Work) -> Result<Arc<Self>, Failure> {
        Self::open_with(app, work, Workers::new()).await
    }

    /// The same, with handlers of this program.
    pub(crate) async fn open_with(
        app: &App,
        work: Work,
        mut workers: Workers,
    ) -> Result<Arc<Self>, Failure> {
        let outlet = match work {
            Work::Everything | Work::As(_) => subscribers::publish(app, &mut workers)?,
            Work::Serve | Work::Nothing => None,
        };
        let instance_id = flowgate_engine::instance_id();
        let own = stores::open_to_write(app, &app.config.store, &instance_id).await?;
        let config = engine_config(app, work, instance_id);
        let engine = Engine::start(Arc::clone(&own.store), workers, config).map_err(|error| {
            Failure::usage("config_invalid", "the settings cannot work").source(error)
        })?;
        let traces = tokio::sync::Mutex::new(export_spans(app, &engine)?);
        let stop = CancellationToken::new();
        let socket = tokio::sync::Mutex::new(JoinSet::new());
        let store_url = app.config.store.clone();
        let (bridge, outlet) = (tokio::sync::Mutex::new(None), tokio::sync::Mutex::new(outlet));
        let instance =
            Arc::new(Self { engine, own, store_url, stop, socket, traces, bridge, outlet });
        if let StoreUrl::Sqlite(path) = &app.config.store
            && work != Work::Nothing
        {
            match Socket::bind(&stores::canonical(path)) {
                Ok(socket) => {
                    let serving = socket.serve(instance.router(), instance.stop.clone());
                    instance.socket.lock().await.spawn(serving);
                }
                Err(error) => app.output.warning(format_args!(
                    "cannot listen beside {}: {error}; `flowgate runs start`, `signal`, `cancel`, \
                     `retry` and changes of schedules will not reach this process",
                    path.display()
                )),
            }
        }
        Ok(instance)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Begins the subscribers of the settings, and listens to their broker; both end with the
    /// instance.
    pub(crate) async fn subscribe(&self, app: &App) -> Result<(), Failure> {
        subscribers::subscribe(app, &self.engine).await?;
        *self.bridge.lock().await = subscribers::listen(app, &self.engine)?;
        Ok(())
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.own.store
    }

    /// Keeps the revision; new runs start on it.
    pub(crate) async fn register(&self, loaded: &LoadedFlow) -> Result<(), Failure> {
        let folder = Some(PathBuf::from(&loaded.folder));
        self.engine.register(&loaded.flow, folder).await.map_err(failure)
    }

    /// Keeps the revisions that are not active yet, all at once: each by itself waits for the disk.
    pub(crate) async fn register_all(&self, flows: &[LoadedFlow]) -> Result<(), Failure> {
        if flows.is_empty() {
            return Ok(());
        }
        let stored = self.store().list_revisions(None).await?;
        let is_active = |loaded: &&LoadedFlow| {
            stored.iter().any(|stored| {
                stored.active
                    && stored.revision.revision == loaded.flow.revision
                    && stored.revision.folder.as_deref() == Some(&*loaded.folder)
            })
        };
        let all = futures_util::future::join_all(flows.iter().map(async |loaded| {
            if is_active(&loaded) {
                // Whoever made it active may have ended before it came to its schedules.
                self.engine.register_schedules(&loaded.flow).await.map_err(failure)
            } else {
                self.register(loaded).await
            }
        }));
        all.await.into_iter().collect()
    }

    /// The API of this instance, for its own process and for whoever may open its socket.
    pub(crate) fn router(self: &Arc<Self>) -> Router {
        let process = Arc::new(self.engine.clone());
        let store_url = Some(self.store_url.clone());
        let options = HostOptions { store_url, ..HostOptions::default() };
        flowgate_server::router_within(&Host::new(process, options))
    }

    /// What is committed through this instance from now on.
    pub(crate) fn news(&self) -> News {
        News(self.engine.events())
    }

    /// Stops gracefully: attempts have the grace of the settings to end, the rest is handed back.
    pub(crate) async fn shutdown(&self) {
        self.stop.cancel();
        if let Some(bridge) = self.bridge.lock().await.take() {
            bridge.stop().await;
        }
        self.engine.shutdown().await;
        if let Some(outlet) = self.outlet.lock().await.take() {
            outlet.stop().await;
        }
        if let Some(traces) = self.traces.lock().await.take() {
            traces.finish().await;
        }
        let mut socket = self.socket.lock().await;
        while socket.join_next().await.is_some() {}
        self.own.close().await;
    }
}

/// How the engine of an instance works, by the settings.
fn engine_config(app: &App, work: Work, instance_id: InstanceId) -> EngineConfig {
    let defaults = EngineConfig::new(instance_id);
    let (shutdown_grace, kill_grace) = match work {
        Work::As(_) => share_grace(app.config.shutdown_grace, defaults.process.kill_grace),
        Work::Everything | Work::Serve | Work::Nothing => {
            (app.config.shutdown_grace, defaults.process.kill_grace)
        }
    };
    // Programs have a bound of their own, which yields to what the user says.
    let is_said = app.config.origin_of("concurrency") != &Origin::Default;
    let running_max = if is_said { app.config.concurrency } else { defaults.process.running_max };
    EngineConfig {
        process: ProcessConfig {
            running_max,
            kill_grace,
            allowed: Arc::clone(&app.config.process_allow),
            without_folder: app.config.api_allow_process,
            ..defaults.process
        },
        http: HttpConfig { allow_private: app.config.http_allow_private.clone(), ..defaults.http },
        secrets: app.config.secrets.clone(),
        role: match work {
            Work::Everything => Some(Role::All.as_str().into()),
            Work::As(role) => Some(role.as_str().into()),
            Work::Serve => Some("serve".into()),
            Work::Nothing => None,
        },
        pool: app.config.pool.clone(),
        degradation: app.config.degradation.clone(),
        queues: match work {
            Work::Everything | Work::As(_) => app.config.queues.clone(),
            Work::Serve | Work::Nothing => Queues::Only(Vec::new()),
        },
        slots: app.config.concurrency,
        lease: app.config.lease,
        shutdown_grace,
        retention: app.config.retention,
        retention_interval: sweep_interval(&app.config.retention),
        schedules: match work {
            Work::Everything | Work::As(Role::All | Role::CronWorker | Role::Auto) => {
                Some(SchedulerConfig::with_lease(app.config.leader_lease))
            }
            Work::As(Role::JobWorker) | Work::Serve | Work::Nothing => None,
        },
        is_traced: app.config.otlp_endpoint.is_some(),
        ..defaults
    }
}

/// Begins to export spans, if the settings name a collector.
fn export_spans(app: &App, engine: &Engine) -> Result<Option<Traces>, Failure> {
    let traces = app.config.otlp_endpoint.as_ref().map(|at| Traces::start(engine, at));
    traces.transpose().map_err(|error| {
        Failure::usage("config_invalid", "spans cannot be exported")
            .source(error)
            .help("check `otlp.endpoint`, or set it to off")
            .path("otlp.endpoint")
    })
}

/// Of the time that a worker has to stop, how long attempts have to end, and programs to be killed.
///
/// The rest is for what comes after: handing back what did not end, and the last commits.
fn share_grace(whole: Duration, kill_grace: Duration) -> (Duration, Duration) {
    let rest = (whole / 4).min(GRACE_REST_MAX);
    (whole.saturating_sub(rest), kill_grace.min(rest / 2))
}

/// How often finished runs are swept: what is kept for a short time must also go soon.
fn sweep_interval(retention: &Retention) -> Duration {
    retention.events.min(retention.runs).clamp(SWEEP_MIN, SWEEP_MAX)
}

/// A store that was opened to read, as the API sees it.
#[derive(Debug)]
struct Reading(Arc<dyn Store>);

#[async_trait]
impl Process for Reading {
    fn engine(&self) -> Result<Engine, String> {
        Err("the store was opened for reading only".to_owned())
    }

    fn store(&self) -> Result<Arc<dyn Store>, String> {
        Ok(Arc::clone(&self.0))
    }

    fn unhealthy(&self) -> Vec<String> {
        Vec::new()
    }

    fn unready(&self) -> Vec<String> {
        Vec::new()
    }

    async fn metrics(&self) -> Option<String> {
        None
    }
}

/// The API on a store that was opened to read.
pub(crate) fn reading_router(app: &App, store: Arc<dyn Store>) -> Router {
    let process = Arc::new(Reading(store));
    let store_url = Some(app.config.store.clone());
    let options = HostOptions { store_url, ..HostOptions::default() };
    flowgate_server::router_within(&Host::new(process, options))
}

/// Commits as they are applied.
#[derive(Debug)]
pub(crate) struct News(broadcast::Receiver<Arc<Applied>>);

impl News {
    /// Returns when something happened to the run, or may have.
    pub(crate) async fn about(&mut self, run_id: RunId) {
        loop {
            match self.0.recv().await {
                Ok(applied) if applied.run_id != run_id => {}
                Ok(_) | Err(RecvError::Lagged(_)) => return,
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }

    /// The next commit, or how many were missed.
    pub(crate) async fn next(&mut self) -> Result<Arc<Applied>, u64> {
        match self.0.recv().await {
            Ok(applied) => Ok(applied),
            Err(RecvError::Lagged(missed)) => Err(missed),
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Why the engine did not do it, for people.
pub(crate) fn failure(error: EngineError) -> Failure {
    match error {
        EngineError::NoFlow(name) => {
            Failure::not_found("flow_not_found", format!("there is no flow `{name}`")).path(&*name)
        }
        EngineError::NoRun(run_id) => {
            Failure::not_found("run_not_found", format!("there is no run {run_id}"))
                .path(run_id.to_string())
        }
        EngineError::NoSchedule(name) => {
            Failure::not_found("schedule_not_found", format!("there is no schedule `{name}`"))
                .path(&*name)
        }
        EngineError::NotDead(run_id) => Failure::refused("not_dead", error.to_string())
            .help(format!("see `flowgate why {run_id}`"))
            .path(run_id.to_string()),
        EngineError::NoSubscriber(ref id) => {
            Failure::not_found("subscriber_not_found", error.to_string())
                .help("see `flowgate subscribers list`")
                .path(&**id)
        }
        EngineError::NoStep { .. } => Failure::usage("step_not_found", error.to_string()),
        EngineError::Input(problem) => Failure::usage("input_invalid", problem.to_string())
            .help(format!("see its schema with `flowgate flows show {} --file`", problem.flow)),
        EngineError::Invalid(message) => Failure::usage("input_invalid", message),
        EngineError::KeyConflict { ref key, run_id } => {
            let message = format!("the key `{key}` was used with another input");
            Failure::refused("key_conflict", message)
                .help(format!("use another key; that run is {run_id}"))
                .path(run_id.to_string())
        }
        EngineError::Rejected(rejection) => rejected(&rejection),
        EngineError::Store(error) => match Arc::try_unwrap(error) {
            Ok(error) => Failure::from(error),
            Err(shared) => {
                Failure::new(Exit::Store, "store_failed", "the store failed").source(shared)
            }
        },
        EngineError::Overloaded { ref cause, retry_after } => {
            let message = format!("the instance is overloaded and takes no new runs: {cause}");
            Failure::refused("overloaded", message)
                .help(format!("try again in {}; what was accepted goes on", Brief(retry_after)))
        }
        EngineError::GateClosed { ref flow } => Failure::refused("gate_closed", error.to_string())
            .help(format!("see `flowgate hold status {flow}`")),
        EngineError::NoDeployment(ref id) => {
            Failure::not_found("deployment_not_found", error.to_string())
                .help("see `flowgate deploy status`")
                .path(&**id)
        }
        EngineError::Deploy(_) => Failure::refused("deploy_refused", error.to_string()),
        EngineError::NoCheckpoint(run_id) => {
            Failure::not_found("checkpoint_not_found", error.to_string())
                .help("see `flowgate checkpoints list`")
                .path(run_id.to_string())
        }
        EngineError::NoPlace { .. }
        | EngineError::Checkpointed { .. }
        | EngineError::CheckpointSettled { .. }
        | EngineError::Undecided { .. } => not_moved(&error),
        EngineError::HoldFull { ref flow, .. } => Failure::refused("hold_full", error.to_string())
            .help(format!("see `flowgate hold status {flow}`")),
        EngineError::Flow(_) | EngineError::Contended | EngineError::Closed => {
            Failure::refused("engine_refused", error.to_string()).source(error)
        }
    }
}

/// Why a run stays where it is, or its checkpoint as it is.
fn not_moved(error: &EngineError) -> Failure {
    let message = error.to_string();
    if let EngineError::NoPlace { run_id, .. } = error {
        Failure::refused("run_unmappable", message)
            .help("map its steps, or let it finish where it is")
            .path(run_id.to_string())
    } else if let EngineError::Checkpointed { run_id, .. } = error {
        Failure::refused("run_checkpointed", message)
            .help(format!("wait, or `flowgate checkpoints replay {run_id}`"))
    } else if let EngineError::CheckpointSettled { run_id, .. } = error {
        Failure::refused("checkpoint_settled", message)
            .help(format!("see `flowgate runs show {run_id}`"))
    } else {
        Failure::refused("deploy_undecided", message)
            .help("it lets them go on by itself; wait for it, or roll it back")
    }
}

fn rejected(rejection: &Rejection) -> Failure {
    let message = rejection.to_string();
    match rejection {
        Rejection::RunEnded(_) => Failure::refused("run_ended", message)
            .help("try it again as a new run with `flowgate runs retry RUN`"),
        Rejection::RunOpen(_) => {
            Failure::refused("run_open", message).help("wait for its end, or cancel it")
        }
        Rejection::SignalUnknown { .. } => Failure::usage("signal_unknown", message),
        Rejection::SignalsFull => Failure::refused("signals_full", message),
        Rejection::NothingToRetry => Failure::refused("nothing_to_retry", message)
            .help("do a step again with `flowgate runs retry RUN --from STEP`"),
        Rejection::RunHeld => Failure::refused("run_held", message).help("see `flowgate why RUN`"),
        Rejection::RunShadow => Failure::refused("run_shadow", message),
        Rejection::StepNotOpen(_)
        | Rejection::RunNotHeld(_)
        | Rejection::OutputInvalid(_)
        | Rejection::NothingToDo => Failure::refused("rejected", message),
    }
}

/// Warns of steps that this program cannot execute by itself.
pub(crate) fn warn_of_workers(app: &App, flow: &Flow) {
    for step in &flow.steps {
        let (name, flow) = (&step.name, &flow.name);
        match &step.action {
            Action::Worker(worker) => app.output.warning(format_args!(
                "step `{name}` of flow `{flow}` calls the worker `{worker}`; a run that gets there \
                 waits until one claims it: a remote worker, or a program that embeds flowgate"
            )),
            Action::Mqtt(_) if app.config.mqtt.is_none() => app.output.warning(format_args!(
                "step `{name}` of flow `{flow}` publishes, and the settings name no broker; a run \
                 that gets there waits for an instance with one: set `[mqtt]`"
            )),
            Action::Mqtt(_)
            | Action::Nothing
            | Action::Process(_)
            | Action::Shell(_)
            | Action::Http(_)
            | Action::Wait(_) => {}
        }
    }
}
