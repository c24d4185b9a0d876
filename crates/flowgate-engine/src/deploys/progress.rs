//! What a deployment that is under way has left to do, for whoever watches it.

use std::sync::Arc;

use flowgate_core::deploy::{Deployment, Phase, Strategy};
use flowgate_core::flow::Span;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_store::control::Record;
use flowgate_store::{RunQuery, Store, StoreError};

use super::{
    CHECKPOINT, Checkpoint, CheckpointState, DEPLOYMENT, OPEN, Open, is_probe, key_of, list_all,
    read_one,
};
use crate::gates;

/// What a deployment has left to do. Its record counts at the change of a phase; this is how it is
/// now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeployProgress {
    /// Runs that are open on the old revision and are not stopped.
    pub open: u64,
    /// Runs that are held.
    pub held: u64,
    /// Runs that are stopped and have not gone on.
    pub stopped: u64,
    /// When what the phase waits for is over, at the latest.
    pub until: Option<Timestamp>,
}

/// What is left to do of a deployment; nothing if it has ended.
pub async fn deployment_progress(
    store: &dyn Store,
    deployment: &Deployment,
) -> Result<Option<DeployProgress>, StoreError> {
    if deployment.phase.is_terminal() {
        return Ok(None);
    }
    let prefix = format!("{}/{}/", deployment.flow, deployment.deployment_id);
    let checkpoints: Vec<Checkpoint> = list_all(store, CHECKPOINT, &prefix).await?;
    let is_pending = |one: &&Checkpoint| one.state == CheckpointState::Pending;
    let stopped = count(checkpoints.iter().filter(is_pending).count());
    Ok(Some(DeployProgress {
        open: open(store, deployment).await?.saturating_sub(stopped),
        held: store.count_runs(&gates::held_of(&deployment.flow)).await?,
        stopped,
        until: until(deployment),
    }))
}

/// The deployments that are under way.
pub async fn open_deployments(store: &dyn Store) -> Result<Vec<Deployment>, StoreError> {
    let open: Vec<Open> = list_all(store, OPEN, "").await?;
    let mut found = Vec::with_capacity(open.len());
    for Open { flow, deployment_id } in open {
        let key = key_of(&flow, &deployment_id);
        let read: Option<(Record, Deployment)> = read_one(store, DEPLOYMENT, &key).await?;
        found.extend(read.map(|(_, deployment)| deployment));
    }
    Ok(found)
}

/// Runs that are open on the old revision. Where they are too many for a page, those of other
/// revisions are not told apart.
async fn open(store: &dyn Store, deployment: &Deployment) -> Result<u64, StoreError> {
    let query = RunQuery {
        flow: Some(Arc::clone(&deployment.flow)),
        statuses: vec![RunStatus::Running, RunStatus::Waiting],
        limit: PAGE_MAX,
        ..RunQuery::default()
    };
    let rows = store.list_runs(&query).await?;
    if rows.len() == PAGE_MAX {
        return store.count_runs(&query).await;
    }
    let is_old =
        |row: &&flowgate_store::RunRow| row.run.revision == deployment.from && !is_probe(&row.run);
    Ok(count(rows.iter().filter(is_old).count()))
}

fn until(deployment: &Deployment) -> Option<Timestamp> {
    let settings = &deployment.settings;
    let Span(span) = match deployment.phase {
        Phase::Drain => settings.drain_timeout,
        Phase::Verify | Phase::Audit => settings.verify_timeout,
        Phase::Resume if settings.strategy == Strategy::Canary && !deployment.is_promoted => {
            settings.canary.timeout
        }
        Phase::Plan
        | Phase::Deploy
        | Phase::Resume
        | Phase::Completed
        | Phase::RollingBack
        | Phase::RolledBack => return None,
    };
    Some(deployment.phase_at().plus(span))
}

fn count(number: usize) -> u64 {
    u64::try_from(number).expect("what fits in memory can be counted")
}
