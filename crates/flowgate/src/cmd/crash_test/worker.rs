//! `crash-worker`: the process that `crash-test` kills.
//!
//! It reads `start KEY` and `finish` from its standard input, and says `ready`, `started KEY RUN`
//! once a start is committed, and `finished` once no run is open.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::flow::Flow;
use flowgate_core::payload::Payload;
use flowgate_core::run::RunStatus;
use flowgate_engine::{
    Engine, EngineConfig, HandlerError, StartRequest, StepContext, Workers, instance_id,
};
use flowgate_store::sqlite::{SqliteOptions, SqliteStore};
use flowgate_store::{RunQuery, Store};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinSet;

use super::FLOW;
use crate::cmd::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::Output;

/// Be the process that `crash-test` kills.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(long)]
    database: PathBuf,
    #[arg(long)]
    ledger: PathBuf,
}

/// Works until its standard input ends.
pub(crate) async fn run(app: App, args: Args) -> Outcome {
    work(app.output, &args).await.map_err(|error| {
        Failure::new(Exit::RunFailed, "crash_worker_failed", "the worker stopped").source(error)
    })?;
    Ok(Exit::Done)
}

async fn work(output: Output, args: &Args) -> anyhow::Result<()> {
    let config = EngineConfig::new(instance_id());
    let options = SqliteOptions::new(config.instance.clone());
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&args.database, options).await?);
    let flow = Arc::new(Flow::parse(FLOW).expect("the crash flow is valid"));
    let engine = Engine::start(Arc::clone(&store), workers(&args.ledger)?, config)?;
    engine.register(&flow, None).await?;
    say(output, "ready")?;
    let mut starts = JoinSet::new();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        if let Some(("start", key)) = line.split_once(' ') {
            let (engine, flow, key) = (engine.clone(), Arc::clone(&flow), key.to_owned());
            starts.spawn(async move { start(output, &engine, &flow, &key).await });
            continue;
        }
        while let Some(started) = starts.join_next().await {
            started??;
        }
        finish(&engine, &*store).await?;
        say(output, "finished")?;
    }
    engine.shutdown().await;
    Ok(())
}

fn say(output: Output, line: &str) -> anyhow::Result<()> {
    output.line(line).map_err(|failure| anyhow::anyhow!("{}", failure.cause()))
}

async fn start(output: Output, engine: &Engine, flow: &Flow, key: &str) -> anyhow::Result<()> {
    let input = Payload::of(&serde_json::json!({ "key": key }))?;
    let request = StartRequest { key: Some(key.into()), ..StartRequest::new(input) };
    let started = engine.start_run(flow, request).await?;
    say(output, &format!("started {key} {}", started.run_id))
}

/// Waits for every open run.
async fn finish(engine: &Engine, store: &dyn Store) -> anyhow::Result<()> {
    loop {
        let query = RunQuery {
            statuses: vec![RunStatus::Running, RunStatus::Waiting],
            limit: 100,
            ..RunQuery::default()
        };
        let open = store.list_runs(&query).await?;
        if open.is_empty() {
            return Ok(());
        }
        for row in open {
            engine.wait(row.run.run_id).await?;
        }
    }
}

fn workers(ledger: &Path) -> anyhow::Result<Workers> {
    let ledger = Arc::new(OpenOptions::new().create(true).append(true).open(ledger)?);
    let mut workers = Workers::new();
    workers.register("crash", move |_: serde_json::Value, ctx: StepContext| {
        let ledger = Arc::clone(&ledger);
        async move {
            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..15_000))).await;
            // One write of one short line, so that a kill leaves it whole or out.
            (&*ledger).write_all(format!("{};\n", ctx.key()).as_bytes())?;
            if ctx.step() == "right" && fastrand::u8(0..3) == 0 {
                return Err(HandlerError::retryable("planned failure"));
            }
            for event in emits(ctx.step()) {
                ctx.emit(event, &1)?;
            }
            Ok::<_, HandlerError>(())
        }
    });
    Ok(workers)
}

fn emits(step: &str) -> &'static [&'static str] {
    match step {
        "start" => &["left", "right"],
        "left" => &["left.done"],
        "right" => &["right.done"],
        "join" => &["joined"],
        _ => &[],
    }
}
