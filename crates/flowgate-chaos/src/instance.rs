//! One instance: an engine in a process of its own, told what to do line by line.
//!
//! Commands are JSON objects on standard input, answers JSON objects on standard output with the
//! same `id`. Lines without one tell of the instance itself.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use flowgate_core::deploy::Settings;
use flowgate_core::flow::Flow;
use flowgate_core::ids::RunId;
use flowgate_core::payload::Payload;
use flowgate_engine::subscriber::SubscribeOptions;
use flowgate_engine::{
    DeployRequest, Engine, EngineConfig, Health, SchedulerConfig, StartRequest, Workers,
    instance_id,
};
use flowgate_store::{Queues, Store};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio_util::task::TaskTracker;

use crate::doom::{Boundary, Doom};
use crate::plant::{Bug, Planted};
use crate::sink::SinkClient;
use crate::{deploys, flows, server, tally};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    store: String,
    #[arg(long)]
    sink: u16,
    #[arg(long)]
    lease_ms: u64,
    #[arg(long)]
    leader_lease_ms: u64,
    #[arg(long)]
    subscriber_lease_ms: Option<u64>,
    #[arg(long, default_value_t = 32)]
    slots: usize,
    #[arg(long, value_enum)]
    plant: Option<Bug>,
}

/// What an instance is asked to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ask {
    /// Start a run.
    Start { flow: String, key: String },
    /// Say which version a run has.
    Read { run_id: RunId },
    /// Make a revision of a flow active.
    Register { flow: String },
    /// Begin a deployment of a revision.
    Deploy { flow: String, settings: String },
    /// Die at this moment of a deployment, or no more.
    Doom { at: Option<Boundary> },
    /// End gracefully.
    Stop,
}

/// A command.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Command {
    pub(crate) id: u64,
    pub(crate) ask: Ask,
}

/// What an instance says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Say {
    /// It takes commands.
    Up { instance: String },
    /// Whether it can work.
    Ready(bool),
    /// The answer to a command.
    Answer { id: u64, answer: Answer },
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The run is stored.
    Stored { run_id: RunId },
    /// The run is there, at this version.
    Found { version: u64 },
    /// The run is not there.
    Absent,
    /// It is done, and made this.
    Done { name: String },
    /// Nobody knows whether it was done.
    Unknown { error: String },
}

/// All handlers that a flow of the harness names.
fn workers(sink: &Arc<SinkClient>, lease: Duration) -> Workers {
    let mut workers = flows::workers(sink, lease);
    deploys::register(&mut workers, sink);
    workers
}

/// Works until it is told to stop.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| "info,flowgate_engine=info".into());
    // It goes to a file.
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr);
    log.with_env_filter(filter).init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the runtime")?;
    runtime.block_on(work(args))
}

async fn work(args: &Args) -> anyhow::Result<()> {
    let lease = Duration::from_millis(args.lease_ms);
    let config = EngineConfig {
        lease,
        slots: args.slots,
        queues: Queues::All,
        // A run that is stuck is to be seen, not repaired.
        reconcile_interval: Duration::from_hours(24),
        // Long steps do not fit into it, so some are handed back.
        shutdown_grace: Duration::from_millis(500),
        schedules: Some(SchedulerConfig::with_lease(Duration::from_millis(args.leader_lease_ms))),
        ..EngineConfig::new(instance_id())
    };
    let name = config.instance.0.to_string();
    let store: Arc<dyn Store> = loop {
        match server::open(&args.store).await {
            Ok(store) => break store,
            // The server may be down just now; a restarted instance waits for it.
            Err(error) => {
                tracing::warn!(error = %format!("{error:#}"), "the store cannot be opened");
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let doom = Arc::new(Doom::default());
    let store: Arc<dyn Store> = Arc::new(Planted::new(store, args.plant, Arc::clone(&doom)));
    let sink = Arc::new(SinkClient::new(args.sink, name.clone()));
    let engine = Engine::start(Arc::clone(&store), workers(&sink, lease), config)?;
    for flow in flows::all().values() {
        while let Err(error) = engine.register(flow, None).await {
            tracing::warn!(%error, "a flow cannot be registered");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    if let Some(lease) = args.subscriber_lease_ms {
        let lease = Duration::from_millis(lease);
        let options = SubscribeOptions { lease, ..SubscribeOptions::coordinated() };
        engine.subscribe(tally::ID, tally::projection(), options).await?;
    }
    say(&Say::Up { instance: name })?;
    let tasks = TaskTracker::new();
    tasks.spawn(tell_health(engine.clone()));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let command: Command = serde_json::from_str(&line).context("reading a command")?;
        if let Ask::Stop = command.ask {
            break;
        }
        let (engine, doom) = (engine.clone(), Arc::clone(&doom));
        tasks.spawn(async move {
            let answer = answer(&engine, &doom, command.ask).await;
            // The driver hangs up when it has killed this process anyway.
            drop(say(&Say::Answer { id: command.id, answer }));
        });
    }
    engine.shutdown().await;
    Ok(())
}

async fn answer(engine: &Engine, doom: &Doom, ask: Ask) -> Answer {
    let unknown = |error: &dyn std::fmt::Display| Answer::Unknown { error: error.to_string() };
    match ask {
        Ask::Start { flow, key } => {
            let input = Payload::of(&serde_json::json!({ "key": key })).expect("this is JSON");
            let request = StartRequest { key: Some(key.into()), ..StartRequest::new(input) };
            match engine.start_run(flow.as_str(), request).await {
                Ok(started) => Answer::Stored { run_id: started.run_id },
                Err(error) => unknown(&error),
            }
        }
        Ask::Read { run_id } => match engine.store().read_run(run_id).await {
            Ok(Some(detail)) => Answer::Found { version: detail.row.run.version },
            Ok(None) => Answer::Absent,
            Err(error) => unknown(&error),
        },
        Ask::Register { flow } => {
            let flow = Flow::parse(&flow).expect("the driver sends flows that are valid");
            match engine.register(&flow, None).await {
                Ok(()) => Answer::Done { name: flow.revision.to_string() },
                Err(error) => unknown(&error),
            }
        }
        Ask::Deploy { flow, settings } => {
            let request = DeployRequest {
                flow: Flow::parse(&flow).expect("the driver sends flows that are valid"),
                folder: None,
                settings: Settings::parse(&settings).expect("and settings that are"),
                author: None,
                note: None,
                is_forced: false,
            };
            match engine.start_deployment(request).await {
                Ok(deployment) => Answer::Done { name: deployment.deployment_id.to_string() },
                Err(error) => unknown(&error),
            }
        }
        Ask::Doom { at } => {
            doom.set(at);
            Answer::Done { name: String::new() }
        }
        Ask::Stop => Answer::Absent,
    }
}

async fn tell_health(engine: Engine) {
    let mut health = engine.health();
    loop {
        let is_ready = matches!(*health.borrow_and_update(), Health::Ready);
        if say(&Say::Ready(is_ready)).is_err() || health.changed().await.is_err() {
            return;
        }
    }
}

/// One line, in one write, so that lines of two tasks never mix.
fn say(what: &Say) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(what).expect("what is said has a JSON form");
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()?;
    Ok(())
}
