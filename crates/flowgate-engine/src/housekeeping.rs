//! What an instance does now and then: removing what is old, and looking for runs that are stuck.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::commit::JobKind;
use flowgate_core::flow::{Action, Flow, Wait};
use flowgate_core::run::{RunStatus, StepState};
use flowgate_store::{RunCursor, RunDetail, RunQuery, StoreError};

use crate::backoff::jittered;
use crate::instance::Instance;

/// How long a sweep lets others at the store between two batches.
const SWEEP_PAUSE: Duration = Duration::from_millis(50);
/// Runs that are looked at in one go.
const PAGE: usize = 200;

/// Removes what is older than the retention, in small batches, until the instance stops.
pub(crate) async fn sweep(instance: Arc<Instance>) {
    let mut pause = jittered(instance.config.retention_interval);
    while waited(&instance, pause).await {
        pause = match instance.store.sweep(&instance.config.retention).await {
            Ok(swept) => {
                if swept.logs + swept.runs > 0 {
                    tracing::debug!(logs = swept.logs, runs = swept.runs, "removed old runs");
                }
                if swept.more { SWEEP_PAUSE } else { jittered(instance.config.retention_interval) }
            }
            Err(error) => {
                tracing::warn!(%error, "old runs could not be removed");
                jittered(instance.config.retention_interval)
            }
        };
    }
}

/// Looks at open runs, a page at a time, until the instance stops.
///
/// A commit is atomic, so no run can be stuck. Should one be, this says so.
pub(crate) async fn reconcile(instance: Arc<Instance>) {
    let mut after = None;
    loop {
        let pause = match after {
            None => jittered(instance.config.reconcile_interval),
            Some(_) => SWEEP_PAUSE,
        };
        if !waited(&instance, pause).await {
            return;
        }
        after = match reconcile_page(&instance, after).await {
            Ok(after) => after,
            Err(error) => {
                tracing::warn!(%error, "open runs could not be checked");
                None
            }
        };
    }
}

/// Whether the instance goes on after `pause`.
async fn waited(instance: &Instance, pause: Duration) -> bool {
    tokio::select! {
        () = instance.stopping.cancelled() => false,
        () = tokio::time::sleep(pause) => true,
    }
}

/// Checks one page of open runs; where the next begins, if there is one.
pub(crate) async fn reconcile_page(
    instance: &Instance,
    after: Option<RunCursor>,
) -> Result<Option<RunCursor>, StoreError> {
    let statuses = vec![RunStatus::Running, RunStatus::Waiting];
    let query = RunQuery { statuses, after, limit: PAGE, ..RunQuery::default() };
    let rows = instance.store.list_runs(&query).await?;
    for row in &rows {
        let pinned = (&row.run.flow, &row.run.revision);
        let loaded = instance.flows.load(&*instance.store, &instance.workers, pinned).await;
        let (Ok(loaded), Some(detail)) = (loaded, instance.store.read_run(row.run.run_id).await?)
        else {
            continue;
        };
        for fault in faults(&loaded.flow, &detail) {
            instance.metrics.findings.increment(1);
            tracing::error!(run_id = %row.run.run_id, flow = %row.run.flow, "{fault}");
        }
    }
    let next = rows.last().filter(|_| rows.len() == PAGE);
    Ok(next.map(|row| RunCursor { started_at: row.started_at, run_id: row.run.run_id }))
}

/// What keeps a run from going on, in words.
fn faults(flow: &Flow, detail: &RunDetail) -> Vec<String> {
    let run = &detail.row.run;
    if run.status.is_terminal() {
        return Vec::new();
    }
    let mut faults = Vec::new();
    if run.open == 0 {
        faults.push("the run is open, but none of its steps is".to_owned());
    }
    for index in flow.step_indexes() {
        let step = flow.step(index);
        let job = detail.jobs.iter().find(|open| open.job.job_id.step == index);
        let wanted = match run.step(index).state {
            StepState::Queued | StepState::Running => Some(JobKind::Execute),
            StepState::Waiting => match &step.action {
                // Only a signal ends this wait.
                Action::Wait(Wait::Signal { timeout: None, .. }) => None,
                Action::Wait(_)
                | Action::Nothing
                | Action::Process(_)
                | Action::Shell(_)
                | Action::Http(_)
                | Action::Worker(_) => Some(JobKind::Timer),
            },
            StepState::Pending
            | StepState::Succeeded
            | StepState::Failed
            | StepState::Skipped
            | StepState::Cancelled => None,
        };
        match (wanted, job.map(|open| open.job.kind)) {
            (Some(wanted), Some(kind)) if wanted == kind => {}
            (None, None) => {}
            (Some(_), _) => faults.push(format!("the step `{}` is open without a job", step.name)),
            (None, Some(_)) => {
                faults.push(format!("the step `{}` has a job but is not open", step.name));
            }
        }
    }
    faults
}
