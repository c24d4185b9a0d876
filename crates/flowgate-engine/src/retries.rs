//! Trying finished runs again, as new runs.

use std::sync::Arc;

use flowgate_core::decide::{self, RetryAs};
use flowgate_core::flow::Flow;
use flowgate_core::ids::{Revision, RunId};
use flowgate_core::run::RunStatus;
use flowgate_store::whole_log;
use tokio::sync::oneshot;

use crate::dead::{self, Fate};
use crate::error::{CommitError, EngineError};
use crate::gates;
use crate::inbox::{Inbound, NewRun, Origin, Seed};
use crate::supervisor::{Engine, FlowRef, GATE_TRIES_MAX, Started};

/// The revision that another try of a run is on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RetryOn {
    /// The one that the run is pinned to.
    #[default]
    Pinned,
    /// The one that new runs of its flow start on.
    Active,
    /// This one.
    Revision(Revision),
}

impl Engine {
    /// Tries a finished run again, as a new run: what did not succeed and all that follows from it,
    /// or the step `from` and all that follows from that. On another revision, a step that succeeded
    /// is one of the same name.
    ///
    /// A failed run is no dead letter any more afterwards.
    pub async fn retry(
        &self,
        run_id: RunId,
        from: Option<&str>,
        on: &RetryOn,
    ) -> Result<Started, EngineError> {
        self.instance().strain.admit()?;
        let seed = self.seed(run_id).await?;
        let (was, new_id) = (seed.run.status, self.instance().run_ids.next());
        let started = self.retry_as(seed, from, on, new_id).await?;
        if was == RunStatus::Failed {
            let kept = self.config().retention.runs;
            dead::note(&**self.store(), run_id, Fate::Retried { run_id: new_id }, kept).await?;
        }
        Ok(started)
    }

    /// Tries a dead letter again; an existing run if somebody has done so before.
    pub async fn retry_dead_letter(
        &self,
        run_id: RunId,
        on: &RetryOn,
    ) -> Result<Started, EngineError> {
        self.instance().strain.admit()?;
        let store = &**self.store();
        match dead::fate_of(store, run_id).await? {
            Some((Fate::Retried { run_id }, _)) => return Ok(Started::found(run_id)),
            Some((Fate::Dropped {}, _)) => return Err(EngineError::NotDead(run_id)),
            None => {}
        }
        let seed = self.seed(run_id).await?;
        if seed.run.status != RunStatus::Failed {
            return Err(EngineError::NotDead(run_id));
        }
        let new_id = dead::retry_id(run_id);
        let started = self.retry_as(seed, None, on, new_id).await?;
        let kept = self.config().retention.runs;
        dead::note(store, run_id, Fate::Retried { run_id: new_id }, kept).await?;
        Ok(started)
    }

    /// Starts the run that tries another one again, unless it is there already.
    async fn retry_as(
        &self,
        seed: Seed,
        from: Option<&str>,
        on: &RetryOn,
        new_id: RunId,
    ) -> Result<Started, EngineError> {
        let instance = self.instance();
        let Seed { flow: pinned, run } = seed;
        let flow = match on {
            RetryOn::Pinned => Arc::clone(&pinned),
            RetryOn::Active => self.flow(FlowRef::Active(&run.flow)).await?,
            RetryOn::Revision(revision) => {
                let exact: (&Arc<str>, &Revision) = (&run.flow, revision);
                let loaded = instance.flows.load(&*instance.store, &instance.workers, exact).await;
                loaded.map_err(EngineError::Flow)?
            }
        };
        let from = from.map(|name| step_index(&flow.flow, name)).transpose()?;
        let log = whole_log(&**self.store(), run.run_id).await?;
        if let Some(first) = log.first()
            && flow.flow.revision != pinned.flow.revision
        {
            flow.flow.check_input(&first.event.payload()).map_err(EngineError::Input)?;
        }
        let flows = (&pinned.flow, &flow.flow);
        let mut gate = instance.gates.stamp(&run.flow);
        for _ in 0..GATE_TRIES_MAX {
            if gate.is_closed {
                // It may have opened since.
                gate = gates::read(instance, &run.flow).await?.stamp();
            }
            if gate.is_closed {
                return Err(EngineError::GateClosed { flow: Arc::clone(&run.flow) });
            }
            let commit_id = instance.commit_ids.next();
            let met = gates::met(instance, &run.flow, gate).await?;
            let pool = met.as_ref().and_then(|met| met.pool_of(&flow.flow.revision)).cloned();
            let by = Some(instance.config.instance.clone());
            let generation = gate.generation;
            let new = RetryAs { run_id: new_id, commit_id, gate: generation, instance: by, pool };
            let commit =
                decide::retry(flows, &run, &log, from, &new).map_err(EngineError::Rejected)?;
            let (reply, answer) = oneshot::channel();
            instance.inbox.push(Inbound::Start(Box::new(NewRun {
                flow: Arc::clone(&flow),
                origin: Origin::Retry(Box::new(commit)),
                commit_id,
                reply,
                decided: None,
            })));
            match self.answer(answer).await {
                Ok(run) => return Ok(Started::begun(run)),
                Err(CommitError::RunExists) => return Ok(Started::found(new_id)),
                Err(CommitError::GateMoved(moved)) => {
                    instance.note_gate(&run.flow, moved);
                    gate = moved;
                }
                Err(error) => return Err(EngineError::of_commit(error, new_id)),
            }
        }
        Err(EngineError::Contended)
    }
}

fn step_index(flow: &Flow, name: &str) -> Result<flowgate_core::ids::StepIndex, EngineError> {
    flow.step_index(name).ok_or_else(|| {
        let known: Vec<&str> = flow.steps.iter().map(|step| &*step.name).collect();
        let known = format!("`{}`", known.join("`, `"));
        EngineError::NoStep { step: name.to_owned(), known }
    })
}
