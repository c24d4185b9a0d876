//! `demo-instance`: the process that does the work of a demo.
//!
//! It owns the store, executes the steps with handlers of its own, serves the dashboard and starts
//! runs. It ends when its standard input does: with the process that shows the demo, whatever
//! became of that.

use std::time::Duration;

use flowgate_core::flow::Flow;
use flowgate_engine::{ContextError, HandlerError, StepContext, Workers};
use flowgate_store::LogLevel;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::sync::Notify;

use super::child::Line;
use super::{FLOWS, load};
use crate::cmd::App;
use crate::failure::{Exit, Outcome};
use crate::flow_files::LoadedFlow;
use crate::instance::{Instance, Work};
use crate::monitor::Monitor;

/// Under a steady load one of so many orders is looked at for this long.
const SLOW_EVERY: u8 = 60;
const SLOW: Duration = Duration::from_secs(5);

/// Be the process that does the work of a demo.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Start more runs, and leave none waiting for a person
    #[arg(long)]
    busy: bool,
    /// Start orders all the time, and nothing else, until a line comes in
    #[arg(long)]
    steady: bool,
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    let monitor = Monitor::start(&app)?;
    let instance = Instance::open_with(&app, Work::Everything, workers(args.steady)).await?;
    if let Some(monitor) = &monitor {
        monitor.work(instance.engine());
    }
    let mut news = instance.news();
    let loaded = FLOWS.map(|(_, text)| LoadedFlow {
        flow: Flow::parse(text).expect("the flows of the demo are valid"),
        folder: "/".to_owned(),
    });
    instance.register_all(&loaded).await?;
    app.output.json_line(&Line::Ready)?;
    let load = load::Load::new(instance.engine(), app.output, args.busy);
    let rest = Notify::new();
    let load =
        async { if args.steady { load.run_steadily(&rest).await } else { load.run().await } };
    let tell = async {
        loop {
            // What is missed was shown by the figures.
            if let Ok(applied) = news.next().await
                && applied.run.status.is_terminal()
                && let Err(failure) = app.output.json_line(&Line::Finished)
            {
                return failure;
            }
        }
    };
    let outcome = tokio::select! {
        () = closed(&rest) => Ok(Exit::Done),
        failure = tell => Err(failure),
        failure = load => Err(failure),
    };
    if let Some(monitor) = &monitor {
        monitor.stop();
    }
    instance.shutdown().await;
    outcome
}

/// Returns when nobody can say anything to this process any more. Whatever is said is that it should
/// rest.
async fn closed(rest: &Notify) {
    let mut stdin = tokio::io::stdin();
    let mut buffer = [0; 64];
    while stdin.read(&mut buffer).await.is_ok_and(|count| count > 0) {
        rest.notify_one();
    }
}

/// The steps of all flows, by their names.
fn workers(is_steady: bool) -> Workers {
    let mut workers = Workers::new();
    workers.register("demo", move |_: serde_json::Value, ctx: StepContext| async move {
        tokio::time::sleep(if is_steady { takes_steadily(&ctx) } else { takes(ctx.step()) }).await;
        match (ctx.flow(), ctx.step()) {
            ("order", "receive") => {
                ctx.log(LogLevel::Info, "three things to do, all at once");
                emit_all(&ctx, &["payment.requested", "stock.requested", "check.requested"])?;
            }
            ("order", "charge") => {
                ctx.log(LogLevel::Info, &format!("charging once per key {}", ctx.key()));
                if fastrand::u8(0..10) == 0 {
                    return Err(HandlerError::retryable("the bank did not answer"));
                }
                ctx.emit("payment.done", &json!({ "cents": 100 * fastrand::u32(5..200) }))?;
            }
            ("order", "reserve") => ctx.emit("stock.done", &json!({ "shelf": "B12" }))?,
            ("order", "check") => {
                ctx.emit("check.done", &json!({ "score": fastrand::u8(0..40) }))?;
            }
            ("order", "ship") => {
                let parcel = format!("P-{}", fastrand::u32(1_000..10_000));
                ctx.state_set("parcel", &parcel)?;
                ctx.emit("shipped", &json!({ "parcel": parcel }))?;
            }
            ("order", "dispatch") => return Err(HandlerError::fatal("no carrier is set up")),
            ("expense", "submit") => emit_all(&ctx, &["approval.requested"])?,
            ("import", "fetch") => {
                if fastrand::u8(0..5) < 2 {
                    ctx.log(LogLevel::Warn, "the service answered with 503");
                    return Err(HandlerError::retryable("the service is overloaded (503)"));
                }
                ctx.emit("fetched", &json!({ "rows": fastrand::u32(10..500) }))?;
            }
            ("report", "collect") => emit_all(&ctx, &["collected"])?,
            (_, step) => ctx.log(LogLevel::Info, &format!("{step} is done")),
        }
        Ok(json!({ "attempt": ctx.attempt() }))
    });
    workers
}

fn emit_all(ctx: &StepContext, events: &[&str]) -> Result<(), ContextError> {
    events.iter().try_for_each(|event| ctx.emit(event, &json!({ "by": ctx.step() })))
}

/// Short, so that many orders are handled at once; but some are looked at closely.
fn takes_steadily(ctx: &StepContext) -> Duration {
    // The first attempt alone: what was stopped and goes on has been looked at.
    if ctx.step() == "check" && ctx.attempt() == 1 && fastrand::u8(0..SLOW_EVERY) == 0 {
        return SLOW;
    }
    takes(ctx.step()) / 10
}

/// Long enough to be seen, short enough to be waited for.
fn takes(step: &str) -> Duration {
    let (from, to) = match step {
        "charge" | "fetch" => (300, 1_000),
        "check" | "collect" => (200, 800),
        _ => (120, 400),
    };
    Duration::from_millis(fastrand::u64(from..to))
}
