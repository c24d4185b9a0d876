//! Where every start is that was received during a deployment.

use std::collections::BTreeSet;
use std::sync::Arc;

use flowgate_core::deploy::report::Whereabouts;
use flowgate_core::deploy::{Conservation, Deployment, Settings};
use flowgate_core::ids::RunId;
use flowgate_core::run::{Run, RunStatus};
use flowgate_store::{RunQuery, RunRow, Store, StoreError};
use futures_util::{StreamExt, TryStreamExt};

use super::{PROBE_TAG, is_probe, pages, refused};

/// Records that are read at a time.
const READS_MAX: usize = 16;

/// What is counted when a deployment has ended, by sizes of the index alone: whoever drives it has
/// others to drive, and it may have received a great many.
pub(super) struct AtEnd {
    pub(super) conservation: Conservation,
    /// Starts that were cancelled while they were held.
    pub(super) cancelled_held: u64,
}

pub(super) async fn count_at_end(
    store: &dyn Store,
    deployment: &Deployment,
) -> Result<AtEnd, StoreError> {
    // Stores find those that are open without a look at all that have ended. What goes on meanwhile
    // is where it was, and counted once.
    let held = count(store, deployment, &[RunStatus::Held]).await?;
    let open = count(store, deployment, &RunStatus::OPEN).await?;
    let received = count(store, deployment, &[]).await?.max(open);
    let held = held.min(open);
    let refused = refused::count(store, deployment).await?;
    let cancelled = RunQuery { statuses: vec![RunStatus::Cancelled], ..during(deployment) };
    let cancelled = pages(store, cancelled).await?;
    // What was released is not on hold, whatever became of it later.
    let is_cancelled_held = |row: &&RunRow| row.run.hold.is_some() && !is_probe(&row.run);
    let cancelled_held = cancelled.iter().filter(is_cancelled_held).count();
    let conservation = Conservation {
        received: received + refused,
        finished: received - open,
        running: open - held,
        held,
        refused,
        ..Conservation::default()
    };
    Ok(AtEnd { conservation, cancelled_held: u64::try_from(cancelled_held).unwrap_or(u64::MAX) })
}

/// How many runs were accepted while a deployment was under way and have one of these statuses,
/// which are all if there is none, but for its smoke tests and its shadow.
async fn count(
    store: &dyn Store,
    deployment: &Deployment,
    statuses: &[RunStatus],
) -> Result<u64, StoreError> {
    let all = RunQuery { statuses: statuses.to_vec(), ..during(deployment) };
    let Settings { smoke_tests, shadow, .. } = &deployment.settings;
    if smoke_tests.is_empty() && shadow.is_none() {
        return store.count_runs(&all).await;
    }
    let tag = (PROBE_TAG.into(), Arc::clone(&deployment.deployment_id.0));
    let probes = RunQuery { tags: vec![tag], ..all.clone() };
    let (all, probes) = tokio::try_join!(store.count_runs(&all), store.count_runs(&probes))?;
    Ok(all.saturating_sub(probes))
}

/// The runs that were accepted while a deployment was under way.
fn during(deployment: &Deployment) -> RunQuery {
    let (since, until) = (Some(deployment.began_at), deployment.ended_at());
    RunQuery { flow: Some(Arc::clone(&deployment.flow)), since, until, ..RunQuery::default() }
}

/// Where every start is now: the index says what was accepted, the record of each where it is.
pub(super) async fn count_now(
    store: &dyn Store,
    deployment: &Deployment,
) -> Result<Conservation, StoreError> {
    let rows = received(store, deployment).await?;
    let mut ids: BTreeSet<RunId> = rows.iter().map(|row| row.run.run_id).collect();
    let reads: Vec<_> = rows.iter().map(|row| status_of(store, row.run.run_id)).collect();
    let found: Vec<Option<(RunId, Whereabouts)>> =
        futures_util::stream::iter(reads).buffered(READS_MAX).try_collect().await?;
    let found: Vec<(RunId, Whereabouts)> = found.into_iter().flatten().collect();
    if found.len() < ids.len() {
        // What retention has removed meanwhile is in the index no more either.
        let kept = received(store, deployment).await?;
        let kept: BTreeSet<RunId> = kept.iter().map(|row| row.run.run_id).collect();
        let found: BTreeSet<RunId> = found.iter().map(|(run_id, _)| *run_id).collect();
        ids.retain(|run_id| kept.contains(run_id) || found.contains(run_id));
    }
    let refused = refused::count(store, deployment).await?;
    Ok(Conservation::of(ids, found, refused))
}

/// The runs that were accepted while a deployment was under way, but for its smoke tests.
async fn received(store: &dyn Store, deployment: &Deployment) -> Result<Vec<RunRow>, StoreError> {
    let mut rows = pages(store, during(deployment)).await?;
    rows.retain(|row| !is_probe(&row.run));
    Ok(rows)
}

async fn status_of(
    store: &dyn Store,
    run_id: RunId,
) -> Result<Option<(RunId, Whereabouts)>, StoreError> {
    let found = store.read_run(run_id).await?;
    Ok(found.map(|detail| {
        let Run { status, .. } = *detail.row.run;
        (run_id, whereabouts(status))
    }))
}

fn whereabouts(status: RunStatus) -> Whereabouts {
    match status {
        RunStatus::Held => Whereabouts::Held,
        RunStatus::Running
        | RunStatus::Waiting
        | RunStatus::Completed
        | RunStatus::Failed
        | RunStatus::Cancelled => Whereabouts::of(status),
    }
}
