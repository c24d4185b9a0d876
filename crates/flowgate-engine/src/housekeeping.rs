//! What an instance does now and then: removing what is old, and looking for runs that are stuck.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::decide::{Report, decide};
use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use flowgate_store::{RunCursor, RunDetail, RunQuery, StoreError};

use crate::backoff::jittered;
use crate::flows::LoadedFlow;
use crate::inbox::{Inbound, Item, Seed};
use crate::instance::Instance;
use crate::singleton;

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
/// A commit is atomic, so no run can be stuck. Should one be, because somebody wrote into the
/// store, this says so and repairs it by a commit like any other.
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

/// Removes the records of singletons whose runs have ended, a page at a time, until the instance
/// stops.
pub(crate) async fn tidy_singletons(instance: Arc<Instance>) {
    let mut after = None;
    while waited(&instance, jittered(instance.config.retention_interval)).await {
        after = match singleton::tidy(&*instance.store, after).await {
            Ok(after) => after,
            Err(error) => {
                tracing::warn!(%error, "the records of singletons could not be checked");
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
        let Ok(flow) = loaded else { continue };
        // Others work on the run: what looks wrong is looked at once more.
        let Some(_) = find_repair(instance, &flow, row.run.run_id).await? else { continue };
        let Some(item) = find_repair(instance, &flow, row.run.run_id).await? else { continue };
        instance.inbox.push(Inbound::Report(item));
    }
    let next = rows.last().filter(|_| rows.len() == PAGE);
    Ok(next.map(|row| RunCursor { started_at: row.started_at, run_id: row.run.run_id }))
}

/// The report by which a run is decided again, if its jobs are not those that it should have.
///
/// It names the version and the jobs that were seen: whoever changes the run first makes it void.
async fn find_repair(
    instance: &Instance,
    flow: &Arc<LoadedFlow>,
    run_id: RunId,
) -> Result<Option<Item>, StoreError> {
    let Some(RunDetail { row, jobs }) = instance.store.read_run(run_id).await? else {
        return Ok(None);
    };
    let run = row.run;
    let jobs = jobs.iter().map(|open| open.job.job_id.step).collect();
    let report = Report::Reconcile { version: run.version, jobs };
    if decide(&flow.flow, &run, &report, instance.commit_ids.next()).is_err() {
        return Ok(None);
    }
    let seed = Some(Box::new(Seed { run, flow: Arc::clone(flow) }));
    Ok(Some(Item { run_id, report, attempt: None, seed, reply: None, refusals: 0 }))
}
