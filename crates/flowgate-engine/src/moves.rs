//! Moving open runs to another revision because somebody asks, outside of any deployment.
//!
//! A move is one commit that is guarded by the version of the run: it is moved from where it was
//! looked at or not at all, and what was under way is given up, so its late result is refused. The
//! plan asks the same rules as the move.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowgate_core::decide::{self, MovedJob, Rejection, Renames};
use flowgate_core::deploy::Settings;
use flowgate_core::deploy::plan::{Change, Fate, StepMap, landing, open_steps};
use flowgate_core::ids::{Revision, RunId};
use flowgate_core::run::{Run, RunStatus};
use flowgate_store::JobDetail;

use crate::deploys;
use crate::error::EngineError;
use crate::flows::LoadedFlow;
use crate::gates;
use crate::supervisor::Engine;

/// Times that a run may be changed by others before a move gives up.
const TRIES_MAX: usize = 20;

/// Where runs are to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveTo {
    /// The revision of their flow.
    pub revision: Revision,
    /// Steps that have another name there: the old one, and the new one.
    pub steps: BTreeMap<String, String>,
}

/// What a move does to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The run.
    pub run_id: RunId,
    /// Its flow.
    pub flow: Arc<str>,
    /// The revision that it is moved from.
    pub from: Revision,
    /// The revision that it goes on on.
    pub to: Revision,
    /// The steps at which it is.
    pub at: Vec<Arc<str>>,
    /// The steps at which it goes on.
    pub steps: Vec<Arc<str>>,
    /// Steps that it begins with besides, as all that they need is there.
    pub starts: Vec<Arc<str>>,
}

/// A move and what its commit needs.
struct Planned {
    to_be: Move,
    flows: (Arc<LoadedFlow>, Arc<LoadedFlow>),
    renames: Renames,
}

impl Engine {
    /// What a move would do to a run, or why it cannot be moved. Nothing is changed.
    pub async fn plan_move(&self, run: &Run, to: &MoveTo) -> Result<Move, EngineError> {
        Ok(self.planned(run, to).await?.to_be)
    }

    /// Moves an open run to another revision of its flow. What has happened stays, what is open is
    /// done there.
    pub async fn move_run(&self, run_id: RunId, to: &MoveTo) -> Result<Move, EngineError> {
        let instance = self.instance();
        for _ in 0..TRIES_MAX {
            let detail = instance.store.read_run(run_id).await?;
            let detail = detail.ok_or(EngineError::NoRun(run_id))?;
            let run = &detail.row.run;
            let Planned { to_be, flows: (old, new), renames } = self.planned(run, to).await?;
            let flows = (&old.flow, &new.flow);
            let migrated = decide::place(flows, &renames, run);
            let mut migrated = migrated.map_err(|why| no_place(run, to, why.0))?;
            migrated.pool = gates::read(instance, &run.flow).await?.pool_of(&to.revision).cloned();
            let jobs: Vec<MovedJob> = detail.jobs.iter().map(JobDetail::to_move).collect();
            let commit_id = instance.commit_ids.next();
            let commit = decide::migrate(flows, migrated, run, &jobs, commit_id);
            let commit = commit.map_err(EngineError::Rejected)?;
            if gates::commit_all(instance, vec![commit]).await? > 0 {
                return Ok(to_be);
            }
        }
        Err(EngineError::Contended)
    }

    async fn planned(&self, run: &Run, to: &MoveTo) -> Result<Planned, EngineError> {
        match run.status {
            RunStatus::Running | RunStatus::Waiting => {}
            RunStatus::Held => return Err(EngineError::Rejected(Rejection::RunHeld)),
            ended @ (RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled) => {
                return Err(EngineError::Rejected(Rejection::RunEnded(ended)));
            }
        }
        if run.revision == to.revision {
            return Err(EngineError::Rejected(Rejection::NothingToDo));
        }
        if deploys::is_probe(run) {
            let reason = "it is a smoke test of a deployment".to_owned();
            return Err(no_place(run, to, reason));
        }
        if let Some(deployment) = deploys::stopped_by(&**self.store(), run).await? {
            return Err(EngineError::Checkpointed { run_id: run.run_id, deployment });
        }
        let (old, new) = (self.revision(run, &run.revision), self.revision(run, &to.revision));
        let (old, new) = (old.await?, new.await?);
        let map = StepMap::new((&old.flow, &new.flow), &to.steps).map_err(EngineError::Deploy)?;
        let settings = Settings::default();
        let change = Change { old: &old.flow, new: &new.flow, map: &map, settings: &settings };
        let (steps, starts) = match landing(&change, run) {
            Fate::Resumes { steps, starts } => (steps, starts),
            Fate::Pinned { reason } => return Err(no_place(run, to, reason)),
            Fate::Finishes => unreachable!("a run that is asked about lands or does not"),
        };
        let to_be = Move {
            run_id: run.run_id,
            flow: Arc::clone(&run.flow),
            from: run.revision.clone(),
            to: to.revision.clone(),
            at: open_steps(&old.flow, run),
            steps,
            starts,
        };
        let renames = map.renames(&old.flow);
        Ok(Planned { to_be, flows: (old, new), renames })
    }

    async fn revision(
        &self,
        run: &Run,
        revision: &Revision,
    ) -> Result<Arc<LoadedFlow>, EngineError> {
        let instance = self.instance();
        let exact = (&run.flow, revision);
        let loaded = instance.flows.load(&*instance.store, &instance.workers, exact).await;
        loaded.map_err(EngineError::Flow)
    }
}

fn no_place(run: &Run, to: &MoveTo, reason: String) -> EngineError {
    EngineError::NoPlace { run_id: run.run_id, revision: to.revision.clone(), reason }
}
