//! What becomes of a run that a deployment has stopped: it goes on, or it is given up.
//!
//! The driver of the deployment lets it go on, or somebody asks for it before. Whoever is quicker
//! does it: a move is guarded by the version of the run, and the state of a checkpoint by that of
//! its record. So no run is moved twice, and whoever comes second finds what was done.

use std::sync::Arc;

use flowgate_core::decide::{self, MovedJob, Rejection};
use flowgate_core::deploy::plan::StepMap;
use flowgate_core::deploy::{Deployment, Phase, Settings};
use flowgate_core::flow::Flow;
use flowgate_core::ids::{Revision, RunId};
use flowgate_core::run::{Run, RunStatus, StepState};
use flowgate_core::time::Timestamp;
use flowgate_store::control::{Expect, Record, RecordWrite, RecordsOutcome};
use flowgate_store::{JobDetail, RunDetail, Store, StoreError};

use super::{
    CHECKPOINT, Checkpoint, CheckpointState, DEPLOYMENT, OPEN, Open, key_of, list_all, read_one,
    write,
};
use crate::error::EngineError;
use crate::gates;
use crate::instance::Instance;
use crate::supervisor::Engine;

/// Times that others may be quicker before it is given up.
const TRIES_MAX: usize = 20;
/// Why a run was cancelled whose checkpoint was discarded, if nobody says.
const DISCARDED: &str = "its checkpoint was discarded";

impl Engine {
    /// Lets a run that a deployment has stopped go on now: on the revision that the deployment has
    /// decided on, or on its own if that has no place for it, or the deployment was rolled back or
    /// is forgotten. One that has gone on is left alone.
    pub async fn replay_checkpoint(&self, found: &Checkpoint) -> Result<Checkpoint, EngineError> {
        let (instance, store) = (self.instance(), &**self.store());
        for _ in 0..TRIES_MAX {
            let (record, checkpoint) = read_checkpoint(store, found).await?;
            match checkpoint.state {
                CheckpointState::Pending => {}
                CheckpointState::Resumed | CheckpointState::Pinned => return Ok(checkpoint),
                CheckpointState::Discarded => return Err(settled(&checkpoint)),
            }
            let key = key_of(&checkpoint.flow, &checkpoint.deployment);
            let deployment: Option<(Record, Deployment)> =
                read_one(store, DEPLOYMENT, &key).await?;
            let state = match deployment {
                None => wake(store, checkpoint.run_id).await?,
                Some((_, deployment)) => {
                    let revision = decided(store, &deployment).await?;
                    resume(instance, &deployment, &checkpoint, &revision).await?
                }
            };
            let settled_at = Some(store.now().await?);
            let settled = Checkpoint { state, settled_at, ..checkpoint };
            if self.settle(&settled, record.version).await? {
                return Ok(settled);
            }
        }
        Err(EngineError::Contended)
    }

    /// Gives up a run that a deployment has stopped: it is cancelled.
    pub async fn discard_checkpoint(
        &self,
        found: &Checkpoint,
        reason: Option<&str>,
    ) -> Result<Checkpoint, EngineError> {
        let mut is_cancelled = false;
        for _ in 0..TRIES_MAX {
            let (record, checkpoint) = read_checkpoint(&**self.store(), found).await?;
            match checkpoint.state {
                CheckpointState::Pending => {}
                CheckpointState::Discarded => return Ok(checkpoint),
                // Whoever let it go on meanwhile was too late.
                CheckpointState::Resumed | CheckpointState::Pinned if is_cancelled => {}
                CheckpointState::Resumed | CheckpointState::Pinned => {
                    return Err(settled(&checkpoint));
                }
            }
            // First: whoever finds a cancelled run knows what became of its checkpoint, but nobody
            // would cancel the run of a checkpoint that is discarded.
            match self.cancel(checkpoint.run_id, Some(reason.unwrap_or(DISCARDED))).await {
                Ok(_)
                | Err(
                    EngineError::NoRun(_)
                    | EngineError::Rejected(Rejection::RunEnded(RunStatus::Cancelled)),
                ) => {}
                Err(error) => return Err(error),
            }
            is_cancelled = true;
            let (state, now) = (CheckpointState::Discarded, self.store().now().await?);
            let settled = Checkpoint { state, settled_at: Some(now), ..checkpoint };
            if self.settle(&settled, record.version).await? {
                return Ok(settled);
            }
        }
        Err(EngineError::Contended)
    }

    /// Writes down what became of a checkpoint; false if somebody else has.
    async fn settle(&self, checkpoint: &Checkpoint, version: u64) -> Result<bool, EngineError> {
        let store = &**self.store();
        let key = key_of(&checkpoint.flow, &checkpoint.deployment);
        let deployment: Option<(Record, Deployment)> = read_one(store, DEPLOYMENT, &key).await?;
        let settings = deployment.map_or_else(Settings::default, |(_, found)| found.settings);
        let write = settling(checkpoint, Expect::Version(version), &settings);
        match store.write_records(vec![write], None).await? {
            RecordsOutcome::Written(_) => Ok(true),
            RecordsOutcome::Changed(_) => Ok(false),
            RecordsOutcome::TermLost | RecordsOutcome::TooLarge(_) => {
                unreachable!("it has no term, and is as large as before")
            }
        }
    }
}

/// The latest checkpoint of a run.
pub async fn find_checkpoint(store: &dyn Store, run: &Run) -> Result<Checkpoint, EngineError> {
    let all: Vec<Checkpoint> = list_all(store, CHECKPOINT, &format!("{}/", run.flow)).await?;
    let found = all.into_iter().find(|one| one.run_id == run.run_id);
    found.ok_or(EngineError::NoCheckpoint(run.run_id))
}

/// The deployment under way that has stopped a run, if one has.
pub(crate) async fn stopped_by(
    store: &dyn Store,
    run: &Run,
) -> Result<Option<Arc<str>>, StoreError> {
    let open: Option<(Record, Open)> = read_one(store, OPEN, &run.flow).await?;
    let Some((_, Open { flow, deployment_id })) = open else { return Ok(None) };
    let key = format!("{flow}/{deployment_id}/{}", run.run_id).into();
    let found: Option<(Record, Checkpoint)> = read_one(store, CHECKPOINT, &key).await?;
    let is_pending = found.is_some_and(|(_, one)| one.state == CheckpointState::Pending);
    Ok(is_pending.then_some(deployment_id.0))
}

/// A checkpoint as it is now, with its record.
pub(super) async fn read_checkpoint(
    store: &dyn Store,
    found: &Checkpoint,
) -> Result<(Record, Checkpoint), EngineError> {
    let read = read_one(store, CHECKPOINT, &found.key()).await?;
    read.ok_or(EngineError::NoCheckpoint(found.run_id))
}

/// The record of a checkpoint. One that is pending is kept until somebody has dealt with it.
pub(super) fn settling(
    checkpoint: &Checkpoint,
    expect: Expect,
    settings: &Settings,
) -> RecordWrite {
    let keep = match checkpoint.state {
        CheckpointState::Pending => None,
        CheckpointState::Resumed | CheckpointState::Pinned | CheckpointState::Discarded => {
            Some(settings.audit_retention.0)
        }
    };
    RecordWrite { keep, ..write(CHECKPOINT, checkpoint.key(), expect, Some(checkpoint)) }
}

/// Lets a stopped run go on: on the new revision of its deployment if that is `revision` and has a
/// place for it, else where it was.
pub(super) async fn resume(
    instance: &Arc<Instance>,
    deployment: &Deployment,
    checkpoint: &Checkpoint,
    revision: &Revision,
) -> Result<CheckpointState, EngineError> {
    let store = &*instance.store;
    for _ in 0..TRIES_MAX {
        let Some(detail) = store.read_run(checkpoint.run_id).await? else {
            return Ok(CheckpointState::Pinned);
        };
        let run = &detail.row.run;
        if run.revision == deployment.to {
            return Ok(CheckpointState::Resumed);
        }
        // Somebody may have moved it elsewhere just before it was stopped.
        let may_move = *revision == deployment.to && run.revision == deployment.from;
        if may_move && !run.status.is_terminal() && migrate(instance, deployment, &detail).await? {
            continue;
        }
        return wake(store, checkpoint.run_id).await;
    }
    Err(EngineError::Contended)
}

/// The two revisions of a deployment.
pub(super) async fn flows_of(
    instance: &Instance,
    deployment: &Deployment,
) -> Result<(Flow, Flow), EngineError> {
    let load = async |revision: &Revision| {
        let exact = (&deployment.flow, revision);
        let loaded = instance.flows.load(&*instance.store, &instance.workers, exact).await;
        loaded.map(|loaded| loaded.flow.clone()).map_err(EngineError::Flow)
    };
    Ok((load(&deployment.from).await?, load(&deployment.to).await?))
}

/// Moves a run to the new revision; false if it has no place there. Whether somebody was quicker is
/// for the next look.
async fn migrate(
    instance: &Arc<Instance>,
    deployment: &Deployment,
    detail: &RunDetail,
) -> Result<bool, EngineError> {
    let (old, new) = flows_of(instance, deployment).await?;
    let map = StepMap::new((&old, &new), &deployment.settings.steps);
    let renames = map.map_err(EngineError::Deploy)?.renames(&old);
    let run = &detail.row.run;
    let Ok(mut migrated) = decide::place((&old, &new), &renames, run) else { return Ok(false) };
    migrated.deployment = Some(Arc::clone(&deployment.deployment_id.0));
    migrated.pool = deployment.settings.pool.as_deref().map(Into::into);
    let mut jobs: Vec<MovedJob> = detail.jobs.iter().map(JobDetail::to_move).collect();
    for job in executing(detail) {
        // What was put off by the checkpoint is due now.
        let moved = jobs.iter_mut().find(|moved| moved.step == job.job.job_id.step);
        moved.expect("each has one").due_at = Timestamp(0);
    }
    let commit_id = instance.commit_ids.next();
    let commit = decide::migrate((&old, &new), migrated, run, &jobs, commit_id);
    let Ok(commit) = commit else { return Ok(false) };
    gates::commit_all(instance, vec![commit]).await?;
    Ok(true)
}

/// Has a run go on where it is; what became of its checkpoint by that.
async fn wake(store: &dyn Store, run_id: RunId) -> Result<CheckpointState, EngineError> {
    let Some(detail) = store.read_run(run_id).await? else { return Ok(CheckpointState::Pinned) };
    if detail.row.run.status == RunStatus::Cancelled {
        return Ok(CheckpointState::Discarded);
    }
    let jobs: Vec<_> = executing(&detail).map(|job| job.job.job_id).collect();
    store.wake_jobs(&jobs).await?;
    Ok(CheckpointState::Pinned)
}

/// The revision on which the runs of a deployment go on, once that is known.
async fn decided(store: &dyn Store, deployment: &Deployment) -> Result<Revision, EngineError> {
    let undecided = || EngineError::Undecided {
        deployment: Arc::clone(&deployment.deployment_id.0),
        phase: deployment.phase,
    };
    match deployment.phase {
        Phase::Plan | Phase::Drain | Phase::Deploy | Phase::Verify => Err(undecided()),
        Phase::Resume => {
            let active = store.read_revision(&deployment.flow, None).await?;
            let is_active = active.is_some_and(|stored| stored.revision.revision == deployment.to);
            if is_active { Ok(deployment.to.clone()) } else { Err(undecided()) }
        }
        Phase::Audit | Phase::Completed => Ok(deployment.to.clone()),
        Phase::RollingBack | Phase::RolledBack => Ok(deployment.from.clone()),
    }
}

/// The jobs of a run that are to be executed.
fn executing(detail: &RunDetail) -> impl Iterator<Item = &JobDetail> {
    let run = &detail.row.run;
    detail.jobs.iter().filter(|job| run.step(job.job.job_id.step).state != StepState::Waiting)
}

fn settled(checkpoint: &Checkpoint) -> EngineError {
    EngineError::CheckpointSettled { run_id: checkpoint.run_id, state: checkpoint.state }
}
