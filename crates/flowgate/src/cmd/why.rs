//! `flowgate why`.

use flowgate_core::event::StoredEvent;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_core::view::{self, LimitUse, OpenJob, Standing};
use flowgate_store::{Beat, Degradation, InstanceRow, JobDetail, Store, StoreError};
use serde_json::json;

use super::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::lookup;
use crate::output::{Cell, short, status_phrase};
use crate::stores;

/// Explains a run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  flowgate why latest
  flowgate why 019a8b2c-1f3e --json")]
pub(crate) struct Args {
    /// The run's id, its first 6 letters or more, or `latest`
    run: String,
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    let store = stores::open_to_read(&app).await?;
    let run_id = lookup::run_id(&*store, &args.run).await?;
    let detail = lookup::run(&*store, run_id).await?;
    let flow = lookup::flow_of(&*store, &detail.row.run).await?;
    let events = flowgate_store::whole_log(&*store, run_id).await?;
    let now = store.now().await?;
    let executor = stores::executor(&app, &*store, &detail, now).await?;
    let jobs: Vec<OpenJob> = detail.jobs.iter().map(open_job).collect();
    let run = &detail.row.run;
    let strained = strained(&*store, run.status, now).await?;
    let limits = limits_in_use(&*store, &events).await?;
    let standing =
        Standing { run, jobs: &jobs, events: &events, executor: &executor, limits: &limits };
    let reasons = view::why(&flow, &standing, now);
    let fate = lookup::fate(&*store, run).await?;
    let shown_id = if app.output.json { run_id.to_string() } else { short(run_id) };
    let remedy = |reason: &view::Reason| {
        let remedy = reason.remedy()?;
        Some(format!("flowgate {}", remedy.replace("RUN", &shown_id)))
    };
    if app.output.json {
        let reasons: Vec<_> = reasons
            .iter()
            .map(|reason| {
                let mut value = serde_json::to_value(reason).expect("a reason is JSON");
                value["message"] = reason.to_string().into();
                value["help"] = remedy(reason).into();
                value
            })
            .collect();
        let strained: Vec<_> = strained.iter().map(in_json).collect();
        app.output.json(&json!({
            "run_id": run_id, "flow": run.flow, "status": run.status, "reasons": reasons,
            "strained": strained,
            "fate": fate,
        }))?;
        return Ok(Exit::Done);
    }
    app.output.line(format_args!(
        "run {run_id} of flow `{}` {}:",
        run.flow,
        status_phrase(run.status)
    ))?;
    for reason in &reasons {
        app.output.line(format_args!("  {reason}"))?;
        // What was tried again or dropped needs no other remedy.
        if let Some(remedy) = remedy(reason).filter(|_| fate.is_none()) {
            app.output.line(format_args!("    {} {remedy}", Cell::dim("→")))?;
        }
    }
    for beat in &strained {
        app.output.line(format_args!("  {}", in_words(beat)))?;
    }
    if let Some(fate) = fate {
        app.output.line(format_args!("  {fate}"))?;
    }
    Ok(Exit::Done)
}

/// Who uses the limits that steps of the run may be waiting for.
async fn limits_in_use(
    store: &dyn Store,
    events: &[StoredEvent],
) -> Result<Vec<LimitUse>, StoreError> {
    let mut used = Vec::new();
    for limit in view::parked_limits(events) {
        let state = store.read_permits(&limit).await?;
        let holders = state.holders.into_iter().map(|(job_id, _)| job_id).collect();
        used.push(LimitUse { limit, holders, in_line: state.in_line });
    }
    Ok(used)
}

/// Instances that are strained, if the run is open: then it may wait for them.
async fn strained(
    store: &dyn Store,
    status: RunStatus,
    now: Timestamp,
) -> Result<Vec<Beat>, Failure> {
    if status.is_terminal() {
        return Ok(Vec::new());
    }
    let rows = store.list_instances().await?;
    let is_strained = |row: &InstanceRow| {
        row.beat.degradation > Degradation::Normal && !stores::is_silent(row, now)
    };
    Ok(rows.into_iter().filter(is_strained).map(|row| row.beat).collect())
}

fn open_job(job: &JobDetail) -> OpenJob {
    OpenJob {
        step: job.job.job_id.step,
        kind: job.job.kind,
        attempt: job.job.attempt,
        due_at: job.due_at,
        lease: job.lease.as_ref().map(|lease| (lease.instance.clone(), lease.expires_at)),
    }
}

fn in_json(beat: &Beat) -> serde_json::Value {
    json!({
        "instance": beat.instance, "degradation": beat.degradation, "strained_by": beat.strained_by,
    })
}

fn in_words(beat: &Beat) -> String {
    let (instance, level) = (&beat.instance, beat.degradation.as_str());
    let cause = beat.strained_by.as_deref().unwrap_or("it recovers");
    format!("the instance {instance} is {level}, so it may take longer: {cause}")
}
