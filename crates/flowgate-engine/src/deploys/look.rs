//! What the driver of a deployment sees.

use std::sync::Arc;

use flowgate_core::deploy::machine::{Asked, Gate, SmokeSeen};
use flowgate_core::deploy::plan::{Change, PlannedRun, StepMap, fate, open_steps};
use flowgate_core::deploy::{Counts, Deployment, EndedRun, Figures, Phase, Seen, Share, smoke};
use flowgate_core::flow::Flow;
use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_store::control::Record;
use flowgate_store::{RunQuery, RunRow, Store, StoreError, whole_log};

use super::driver::{Driver, Memo, Trouble};
use super::{
    ASK, Ask, CHECKPOINT, Checkpoint, CheckpointState, is_probe, key_of, list_all, open_runs,
    read_one,
};
use crate::gates;

/// The run of a smoke test: the same whoever starts it.
pub(super) fn smoke_run(deployment: &Deployment, test: &str) -> RunId {
    RunId::derived(&deployment.flow, &format!("deploy/{}/{test}", deployment.deployment_id))
}

/// Whether an instance of a pool is alive.
pub(super) async fn is_pool_alive(store: &dyn Store, pool: &str) -> Result<bool, StoreError> {
    let now = store.now().await?;
    let is_alive = |row: &flowgate_store::InstanceRow| {
        let silent = u64::try_from(now.since(row.seen_at).as_millis()).unwrap_or(u64::MAX);
        row.beat.pool.as_deref() == Some(pool) && silent <= row.beat.silent_ms_max
    };
    Ok(store.list_instances().await?.iter().any(is_alive))
}

impl Driver {
    pub(super) async fn look(
        &self,
        deployment: &Deployment,
        memo: &mut Memo,
    ) -> Result<Seen, Trouble> {
        let store = &*self.instance.store;
        let flow = &deployment.flow;
        let active = store.read_revision(flow, None).await?;
        let active = active.map_or_else(|| deployment.from.clone(), |s| s.revision.revision);
        // Asked for in this phase alone.
        let is_registered = deployment.phase != Phase::Deploy
            || store.read_revision(flow, Some(&deployment.to)).await?.is_some();
        let pool = deployment.settings.pool.as_deref();
        let is_pool_alive = match pool {
            Some(pool) => is_pool_alive(store, pool).await?,
            None => true,
        };
        let key = key_of(flow, &deployment.deployment_id);
        let asked: Option<(Record, Ask)> = read_one(store, ASK, &key).await?;
        let checkpoints = self.checkpoints_of(deployment).await?;
        let is_pending = |one: &&Checkpoint| one.state == CheckpointState::Pending;
        let held = store.count_runs(&gates::held_of(flow)).await?;
        let open = self.open(deployment).await?;
        let (gate, share) = self.gate(deployment).await?;
        let counts = Counts {
            held: deployment.counts.released + held,
            checkpointed: count(checkpoints.len()),
            pinned: count(
                checkpoints.iter().filter(|c| c.state == CheckpointState::Pinned).count(),
            ),
            ..deployment.counts
        };
        let smoke = self.smoke(deployment).await?;
        let shadow = self.shadow(deployment, &smoke, memo).await?;
        Ok(Seen {
            now: store.now().await?,
            active,
            share,
            is_registered,
            is_pool_alive,
            gate,
            open,
            checkpoints: count(checkpoints.iter().filter(is_pending).count()),
            held,
            last_replay: memo.last_replay,
            smoke,
            shadow,
            canary: super::canary::counted(store, deployment, memo).await?,
            before: self.before(deployment).await?,
            after: self.after(deployment).await?,
            asked: asked.map(|(_, ask)| match ask {
                Ask::Rollback { note } => Asked::Rollback { note },
                Ask::Promote {} => Asked::Promote,
            }),
            fault: memo.fault.clone(),
            is_alerted: memo.is_alerted,
            counts,
        })
    }

    /// The checkpoints of a deployment.
    pub(super) async fn checkpoints_of(
        &self,
        deployment: &Deployment,
    ) -> Result<Vec<Checkpoint>, Trouble> {
        // Nothing is stopped before the gate is closed.
        if deployment.gate_generation.is_none() {
            return Ok(Vec::new());
        }
        let prefix = format!("{}/{}/", deployment.flow, deployment.deployment_id);
        Ok(list_all(&*self.instance.store, CHECKPOINT, &prefix).await?)
    }

    /// The gate as the machine counts: one that this deployment has set has its generation. And the
    /// share of starts that it sends to the new revision.
    async fn gate(&self, deployment: &Deployment) -> Result<(Gate, Option<Share>), Trouble> {
        let gate = gates::read(&self.instance, &deployment.flow).await?;
        let is_ours = gate.deployment.as_ref() == Some(&deployment.deployment_id.0);
        let generation = match deployment.gate_generation {
            Some(ours) if is_ours => ours,
            Some(_) | None => gate.generation,
        };
        let canary = gate.canary.as_ref().filter(|canary| canary.revision == deployment.to);
        let share = canary.map(|canary| canary.share);
        Ok((Gate { is_holding: gate.state.is_closed(), generation }, share))
    }

    /// The two revisions of a deployment.
    pub(super) async fn flows(&self, deployment: &Deployment) -> Result<(Flow, Flow), Trouble> {
        Ok(super::checkpoints::flows_of(&self.instance, deployment).await?)
    }

    /// The open runs on the old revision, while they matter, with what would become of each.
    async fn open(&self, deployment: &Deployment) -> Result<Vec<PlannedRun>, Trouble> {
        if deployment.phase != Phase::Drain {
            return Ok(Vec::new());
        }
        let (old, new) = self.flows(deployment).await?;
        let settings = &deployment.settings;
        let map = StepMap::new((&old, &new), &settings.steps);
        let map = map.map_err(crate::error::EngineError::Deploy)?;
        let change = Change { old: &old, new: &new, map: &map, settings };
        let stopped = self.checkpoints_of(deployment).await?;
        let is_stopped = |row: &RunRow| stopped.iter().any(|one| one.run_id == row.run.run_id);
        let rows = open_runs(&*self.instance.store, &deployment.flow, &deployment.from).await?;
        let open = rows.iter().filter(|row| !is_stopped(row)).map(|row| PlannedRun {
            run_id: row.run.run_id,
            at: open_steps(&old, &row.run),
            fate: fate(&change, &row.run),
        });
        Ok(open.collect())
    }

    /// How the smoke tests stand that were started.
    async fn smoke(&self, deployment: &Deployment) -> Result<Vec<SmokeSeen>, Trouble> {
        // When a shadow has begun, they have passed, and the record says so.
        if deployment.phase != Phase::Verify || deployment.shadow.is_some() {
            return Ok(Vec::new());
        }
        let store = &*self.instance.store;
        let mut seen = Vec::new();
        for test in &deployment.settings.smoke_tests {
            let run_id = smoke_run(deployment, &test.name);
            let Some(detail) = store.read_run(run_id).await? else { continue };
            let run = &detail.row.run;
            let result = if run.status.is_terminal() {
                Some(smoke::check(test, run, &whole_log(store, run_id).await?))
            } else {
                None
            };
            seen.push(SmokeSeen { name: test.name.clone(), result });
        }
        Ok(seen)
    }

    /// How the last runs did before anything changed.
    async fn before(&self, deployment: &Deployment) -> Result<Option<Figures>, Trouble> {
        if deployment.phase != Phase::Plan {
            return Ok(None);
        }
        let rows = self.last_ended(deployment, None).await?;
        Ok(Some(figures(&rows)))
    }

    /// How the last runs did on the new revision since it took over.
    async fn after(&self, deployment: &Deployment) -> Result<Option<Figures>, Trouble> {
        if deployment.phase != Phase::Audit {
            return Ok(None);
        }
        let since = Some(began(deployment, Phase::Resume));
        let mut rows = self.last_ended(deployment, since).await?;
        rows.retain(|row| row.run.revision == deployment.to);
        Ok(Some(figures(&rows)))
    }

    /// As many runs that have ended as figures are taken of, the last ones.
    async fn last_ended(
        &self,
        deployment: &Deployment,
        since: Option<Timestamp>,
    ) -> Result<Vec<RunRow>, Trouble> {
        let limit = usize::try_from(deployment.settings.before_window).unwrap_or(usize::MAX);
        let (flow, statuses) = (Some(Arc::clone(&deployment.flow)), ENDS.to_vec());
        let query = RunQuery { flow, statuses, since, limit, ..RunQuery::default() };
        Ok(self.instance.store.list_runs(&query).await?)
    }
}

pub(super) const ENDS: [RunStatus; 3] =
    [RunStatus::Completed, RunStatus::Failed, RunStatus::Cancelled];

/// When a deployment entered a phase, or when it began.
pub(super) fn began(deployment: &Deployment, phase: Phase) -> Timestamp {
    let entered = deployment.phases.iter().find(|entered| entered.phase == phase);
    entered.map_or(deployment.began_at, |entered| entered.at)
}

fn figures(rows: &[RunRow]) -> Figures {
    Figures::of(&rows.iter().filter_map(ended).collect::<Vec<_>>())
}

/// How a run ended, if it has and is none of a smoke test.
pub(super) fn ended(row: &RunRow) -> Option<EndedRun> {
    let (started_at, ended_at) = (row.started_at, row.ended_at?);
    let status = row.run.status;
    (!is_probe(&row.run)).then_some(EndedRun { started_at, ended_at, status })
}

fn count(number: usize) -> u64 {
    u64::try_from(number).expect("what fits in memory can be counted")
}
