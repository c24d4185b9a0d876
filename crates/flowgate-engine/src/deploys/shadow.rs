//! The runs of a shadow: the new revision on the inputs of runs of the old one.
//!
//! A run's id follows from the deployment and from the run whose input it has, so each is started
//! once, whoever drives the deployment. What it must not execute has no job: it is ended here.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowgate_core::commit::Due;
use flowgate_core::decide::{self, Start};
use flowgate_core::deploy::machine::{
    SHADOW_OPEN_MAX, ShadowRunSeen, ShadowSeen, ShadowStage, SmokeSeen,
};
use flowgate_core::deploy::plan::StepMap;
use flowgate_core::deploy::shadow::{self, Original, Pair};
use flowgate_core::deploy::{Deployment, Phase, ShadowResult, ShadowRules, SmokeResult};
use flowgate_core::flow::Flow;
use flowgate_core::gate::GateStamp;
use flowgate_core::ids::{Revision, RunId};
use flowgate_core::limits::{PAGE_MAX, STEPS_MAX};
use flowgate_core::payload::Payload;
use flowgate_core::run::{RunStatus, SHADOW_TAG};
use flowgate_store::{RunQuery, RunRow, Store, StoreError, whole_log};

use super::act::TRIES_MAX;
use super::driver::{Driver, Memo, Trouble};
use super::{PROBE_TAG, is_probe};
use crate::error::EngineError;
use crate::gates;

/// The run of the new revision on the input of `original`: the same whoever starts it.
fn shadow_run(deployment: &Deployment, original: RunId) -> RunId {
    let id = &deployment.deployment_id;
    RunId::derived(&deployment.flow, &format!("deploy/{id}/shadow/{original}"))
}

/// The latest runs of a revision that can be compared with, by their records.
pub(super) async fn candidates(
    store: &dyn Store,
    flow: &Arc<str>,
    revision: &Revision,
) -> Result<Vec<RunRow>, StoreError> {
    let (flow, statuses) = (Some(Arc::clone(flow)), vec![RunStatus::Completed]);
    let query = RunQuery { flow, statuses, limit: PAGE_MAX, ..RunQuery::default() };
    let mut rows = store.list_runs(&query).await?;
    let is_candidate = |row: &RunRow| {
        row.run.revision == *revision && shadow::may_be_original(&row.run) && !is_probe(&row.run)
    };
    rows.retain(is_candidate);
    Ok(rows)
}

/// The two revisions of a deployment, and which steps stand for which.
struct Revisions {
    old: Flow,
    new: Flow,
    map: StepMap,
}

impl Driver {
    /// How the shadow stands, as far as it has come.
    pub(super) async fn shadow(
        &self,
        deployment: &Deployment,
        smoke: &[SmokeSeen],
        memo: &mut Memo,
    ) -> Result<ShadowSeen, Trouble> {
        let is_due = deployment.phase == Phase::Verify;
        let Some(rules) = deployment.settings.shadow.as_ref().filter(|_| is_due) else {
            return Ok(ShadowSeen::default());
        };
        if let Some(shadow) = &deployment.shadow {
            let runs = self.shadow_runs(deployment, rules, &shadow.originals, memo).await?;
            return Ok(ShadowSeen { last: Vec::new(), runs });
        }
        let has_passed =
            |seen: &SmokeSeen| seen.result.as_ref().is_some_and(SmokeResult::has_passed);
        let tests = deployment.settings.smoke_tests.len();
        if smoke.len() < tests || !smoke.iter().all(has_passed) {
            return Ok(ShadowSeen::default());
        }
        let last = self.last_runs(deployment, rules).await?;
        Ok(ShadowSeen { last, runs: Vec::new() })
    }

    /// The last runs that can be compared with.
    async fn last_runs(
        &self,
        deployment: &Deployment,
        rules: &ShadowRules,
    ) -> Result<Vec<RunId>, Trouble> {
        let store = &*self.instance.store;
        let wanted = usize::try_from(rules.runs).unwrap_or(usize::MAX);
        let mut last = Vec::new();
        for row in candidates(store, &deployment.flow, &deployment.from).await? {
            if last.len() == wanted {
                break;
            }
            let run_id = row.run.run_id;
            let log = whole_log(store, run_id).await?;
            last.extend(Original::new(row.run, log).map(|_| run_id));
        }
        Ok(last)
    }

    async fn shadow_runs(
        &self,
        deployment: &Deployment,
        rules: &ShadowRules,
        originals: &[RunId],
        memo: &mut Memo,
    ) -> Result<Vec<ShadowRunSeen>, Trouble> {
        let revisions = self.revisions(deployment).await?;
        let (mut runs, mut missing) = (Vec::new(), 0);
        for original in originals.iter().copied() {
            let stage = match memo.shadow.get(&original) {
                Some(result) => Some(ShadowStage::Ended(result.clone())),
                None => self.shadow_stage(deployment, rules, &revisions, original).await?,
            };
            match stage {
                Some(stage) => {
                    if let ShadowStage::Ended(result) = &stage {
                        memo.shadow.insert(original, result.clone());
                    }
                    runs.push(ShadowRunSeen { original, stage });
                }
                // They are started in this order, so those behind are not there either.
                None if missing == SHADOW_OPEN_MAX => break,
                None => missing += 1,
            }
        }
        Ok(runs)
    }

    /// How one run of the shadow stands; none if it was not started.
    async fn shadow_stage(
        &self,
        deployment: &Deployment,
        rules: &ShadowRules,
        revisions: &Revisions,
        original: RunId,
    ) -> Result<Option<ShadowStage>, Trouble> {
        let store = &*self.instance.store;
        let run_id = shadow_run(deployment, original);
        let Some(detail) = store.read_run(run_id).await? else {
            let refused = self.refused(&revisions.new, original, run_id).await?;
            return Ok(refused.map(ShadowStage::Ended));
        };
        let run = &detail.row.run;
        if !run.status.is_terminal() {
            let is_unstubbed = decide::unstubbed(&revisions.new, run).is_some();
            let stage = if is_unstubbed { ShadowStage::Unstubbed } else { ShadowStage::Open };
            return Ok(Some(stage));
        }
        let result = match self.original(original).await? {
            None => shadow::lost(original, run_id),
            Some(original) => {
                let Revisions { old, new, map } = revisions;
                let log = whole_log(store, run_id).await?;
                shadow::compare(&Pair { old, new, map }, &rules.ignore, &original, (run, &log))
            }
        };
        Ok(Some(ShadowStage::Ended(result)))
    }

    /// That the new revision does not take the input of a run, if so.
    async fn refused(
        &self,
        new: &Flow,
        original: RunId,
        run_id: RunId,
    ) -> Result<Option<ShadowResult>, Trouble> {
        if new.file.input.is_none() {
            return Ok(None);
        }
        let first = self.instance.store.read_events(original, 0, 1).await?;
        let Some(first) = first.first() else { return Ok(Some(shadow::lost(original, run_id))) };
        let problem = new.check_input(&first.event.payload()).err();
        Ok(problem.map(|problem| shadow::unfit(original, run_id, problem.to_string())))
    }

    async fn original(&self, run_id: RunId) -> Result<Option<Original>, Trouble> {
        let store = &*self.instance.store;
        let Some(detail) = store.read_run(run_id).await? else { return Ok(None) };
        Ok(Original::new(detail.row.run, whole_log(store, run_id).await?))
    }

    async fn revisions(&self, deployment: &Deployment) -> Result<Revisions, Trouble> {
        let (old, new) = self.flows(deployment).await?;
        let map = StepMap::new((&old, &new), &deployment.settings.steps);
        let map = map.map_err(EngineError::Deploy)?;
        Ok(Revisions { old, new, map })
    }

    /// Starts the new revision on the inputs of runs, whatever the gate is.
    pub(super) async fn start_shadow(
        &self,
        deployment: &Deployment,
        originals: &[RunId],
    ) -> Result<(), Trouble> {
        let (_, new) = self.flows(deployment).await?;
        for original in originals {
            let first = self.instance.store.read_events(*original, 0, 1).await?;
            let probe = (PROBE_TAG.into(), Arc::clone(&deployment.deployment_id.0));
            let shadow = (SHADOW_TAG.into(), original.to_string().into());
            let start = Start {
                run_id: shadow_run(deployment, *original),
                // One that is gone is found when the run is compared.
                input: first.first().map_or_else(Payload::null, |first| first.event.payload()),
                key: None,
                tags: BTreeMap::from([probe, shadow]),
                priority: Some(0),
                due: Due::Now,
                gate: GateStamp::default(),
                instance: Some(self.instance.config.instance.clone()),
                pool: deployment.settings.pool.as_deref().map(Into::into),
            };
            self.start_probe(&new, start).await?;
        }
        Ok(())
    }

    /// Ends what is not executed in the shadows of these runs, as it ended there.
    pub(super) async fn stub_shadow(
        &self,
        deployment: &Deployment,
        originals: &[RunId],
    ) -> Result<(), Trouble> {
        let revisions = self.revisions(deployment).await?;
        for original in originals {
            let run_id = shadow_run(deployment, *original);
            match self.original(*original).await? {
                Some(original) => self.stub_run(&revisions, run_id, &original).await?,
                None => self.end_probe(run_id, "the run that it stands for is gone").await?,
            }
        }
        Ok(())
    }

    async fn stub_run(
        &self,
        Revisions { new, map, .. }: &Revisions,
        run_id: RunId,
        original: &Original,
    ) -> Result<(), Trouble> {
        for _ in 0..STEPS_MAX + TRIES_MAX {
            let Some(detail) = self.instance.store.read_run(run_id).await? else { return Ok(()) };
            let run = &detail.row.run;
            let Some(index) = decide::unstubbed(new, run) else { return Ok(()) };
            let stub = shadow::stub(new, map, index, original);
            let commit_id = self.instance.commit_ids.next();
            // A run that has moved on meanwhile is read again.
            if let Ok(commit) = decide::stub(new, run, index, &stub, commit_id) {
                gates::commit_all(&self.instance, vec![commit]).await?;
            }
        }
        Err(Trouble::Failed(EngineError::Contended))
    }

    /// Ends the runs of the shadow of a deployment that is over.
    pub(super) async fn end_shadow(&self, deployment: &Deployment) -> Result<(), Trouble> {
        let originals = deployment.shadow.iter().flat_map(|shadow| &shadow.originals);
        for original in originals {
            let run_id = shadow_run(deployment, *original);
            self.end_probe(run_id, "its deployment has ended").await?;
        }
        Ok(())
    }
}
