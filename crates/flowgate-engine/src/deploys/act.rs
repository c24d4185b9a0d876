//! How the driver of a deployment does what is next. Everything here may be repeated.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::commit::Due;
use flowgate_core::decide::{self, MovedJob, Start};
use flowgate_core::deploy::machine::{Replayed, Source};
use flowgate_core::deploy::{Deployment, Next, ReplayRate, Seen, Share};
use flowgate_core::flow::Flow;
use flowgate_core::gate::{CanaryShare, Gate, GateStamp, GateState};
use flowgate_core::ids::{Revision, RunId};
use flowgate_core::payload::Payload;
use flowgate_core::time::Timestamp;
use flowgate_store::control::{Expect, GateOutcome};
use flowgate_store::{CommitOutcome, JobDetail, Refusal};

use super::checkpoints::{read_checkpoint, resume, settling};
use super::driver::{Driver, Held, Memo, Trouble};
use super::look::smoke_run;
use super::{Checkpoint, CheckpointState, CheckpointStep, PROBE_TAG};
use crate::backoff::Backoff;
use crate::error::EngineError;
use crate::gates;

/// How long whoever is alerted may take to answer.
const ALERT_MAX: Duration = Duration::from_secs(5);
/// How often somebody is alerted again who did not take it.
const ALERTS_AGAIN_MAX: u32 = 2;
/// Tries to start a smoke test while the gate moves.
pub(super) const TRIES_MAX: usize = 20;

impl Driver {
    /// Does one thing.
    pub(super) async fn act(
        &self,
        held: &Held,
        action: Next,
        seen: &Seen,
        memo: &mut Memo,
    ) -> Result<(), Trouble> {
        let deployment = &held.deployment;
        match action {
            Next::CloseGate { .. } => self.close_gate(deployment).await,
            Next::Checkpoint { runs } => self.checkpoint(deployment, &runs, seen.now).await,
            Next::StartSmoke { tests } => self.start_smoke(deployment, &tests).await,
            Next::StartShadow { originals } => self.start_shadow(deployment, &originals).await,
            Next::StubShadow { originals } => self.stub_shadow(deployment, &originals).await,
            Next::Activate { revision } => self.activate(deployment, &revision, memo).await,
            Next::Replay { source: Source::Hold, count, besides } => {
                self.replay_held(held, (count, besides), seen, memo).await
            }
            Next::Replay { source: Source::Checkpoints, count, .. } => {
                memo.last_replay = Some(Replayed { at: seen.now, count, left: seen.held });
                self.replay_checkpoints(deployment, count, &seen.active).await
            }
            Next::OpenGate { .. } => self.open_gate(held, seen).await,
            Next::Alert { texts } => {
                self.alert(deployment, &texts).await;
                memo.is_alerted = true;
                Ok(())
            }
            Next::Register => {
                // It was registered before the deployment was written down.
                memo.fault = Some(format!("the store has lost the revision {}", deployment.to));
                Ok(())
            }
            Next::SetShare { share } => self.set_share(deployment, share).await,
            Next::Become(_) | Next::Wait { .. } | Next::Measure(_) | Next::Finish => {
                unreachable!("the driver does these itself, or never lacks figures")
            }
        }
    }

    async fn close_gate(&self, deployment: &Deployment) -> Result<(), Trouble> {
        let (instance, flow) = (&self.instance, &deployment.flow);
        let gate = gates::read(instance, flow).await?;
        let id = &deployment.deployment_id.0;
        let closed = Gate {
            reason: Some(format!("deployment {id} to {}", deployment.to).into()),
            hold_max: deployment.settings.hold_max.into(),
            deadline: None,
            deployment: Some(Arc::clone(id)),
            ..gate.then(GateState::Draining)
        };
        self.move_gate(flow, &closed).await.map(drop)
    }

    /// Lets the last few go on and opens the gate.
    async fn open_gate(&self, held: &Held, seen: &Seen) -> Result<(), Trouble> {
        let (instance, deployment) = (&self.instance, &held.deployment);
        let gate = gates::read(instance, &deployment.flow).await?;
        let id = Some(Arc::clone(&deployment.deployment_id.0));
        let released = gates::open(instance, &deployment.flow, &gate, id).await?;
        self.note_released(held, seen, released).await
    }

    /// Writes down how many runs went on.
    async fn note_released(&self, held: &Held, seen: &Seen, released: u64) -> Result<(), Trouble> {
        if released == 0 {
            return Ok(());
        }
        let mut next = held.deployment.clone();
        next.version += 1;
        next.counts = seen.counts;
        next.counts.released = held.deployment.counts.released + released;
        next.counts.held = next.counts.held.max(next.counts.released);
        self.write(held, &next).await.map(drop)
    }

    /// Sends a share of the starts to the new revision, and what starts there to its pool.
    async fn set_share(&self, deployment: &Deployment, share: Share) -> Result<(), Trouble> {
        let gate = gates::read(&self.instance, &deployment.flow).await?;
        let canary = CanaryShare { revision: deployment.to.clone(), share };
        let shared = gate.sending(Some(canary), pools(&gate, deployment));
        // What somebody was quicker about is seen by the next look.
        self.move_gate(&deployment.flow, &shared).await.map(drop)
    }

    /// Sets a gate; whether nobody else has set it since it was read.
    async fn move_gate(&self, flow: &Arc<str>, gate: &Gate) -> Result<bool, Trouble> {
        let outcome = self.instance.store.set_gate(flow, gate, false).await?;
        if outcome == GateOutcome::Set {
            self.instance.note_gate(flow, gate.stamp());
            self.note_whole(flow, gate.generation);
        }
        Ok(outcome == GateOutcome::Set)
    }

    /// Sets the gate of a flow to what it is: whoever led before may have set it in part.
    pub(super) async fn set_gate_again(&self, flow: &Arc<str>) -> Result<(), Trouble> {
        let gate = gates::read(&self.instance, flow).await?;
        if gate.generation > 0 && !self.is_whole(flow, gate.generation) {
            self.move_gate(flow, &gate).await?;
        }
        Ok(())
    }

    /// Makes a revision active for all starts, and has every instance ask for it anew. Whose pool it
    /// is for is known before the first of them.
    async fn activate(
        &self,
        deployment: &Deployment,
        revision: &Revision,
        memo: &mut Memo,
    ) -> Result<(), Trouble> {
        let (instance, flow) = (&self.instance, &deployment.flow);
        let gate = gates::read(instance, flow).await?;
        let wanted = pools(&gate, deployment);
        if *revision == deployment.to
            && gate.pools != wanted
            && !self.move_gate(flow, &gate.sending(gate.canary.clone(), wanted)).await?
        {
            return Ok(());
        }
        let Some(found) = instance.store.read_revision(flow, Some(revision)).await? else {
            memo.fault = Some(format!("the store has lost the revision {revision}"));
            return Ok(());
        };
        if !found.active {
            instance.store.register_flow(found.revision).await?;
        }
        instance.flows.forget_active(flow);
        let gate = gates::read(instance, flow).await?;
        if !gate.state.is_closed() || gate.canary.is_some() {
            // Starts of the generation before are refused, and find the new revision.
            self.move_gate(flow, &gate.sending(None, gate.pools.clone())).await?;
        }
        Ok(())
    }

    /// Stops runs where they are, and writes down where that is.
    async fn checkpoint(
        &self,
        deployment: &Deployment,
        runs: &[RunId],
        now: Timestamp,
    ) -> Result<(), Trouble> {
        let (old, _) = self.flows(deployment).await?;
        let store = &*self.instance.store;
        let until = now.plus(deployment.settings.checkpoint_expiry.0);
        for run_id in runs {
            let Some(detail) = store.read_run(*run_id).await? else { continue };
            // One that has ended, or that somebody has moved since it was looked at, goes on.
            let run = &detail.row.run;
            if run.status.is_terminal() || run.revision != deployment.from {
                continue;
            }
            let commit_id = self.instance.commit_ids.next();
            let by = (Arc::clone(&deployment.deployment_id.0), until);
            let jobs: Vec<MovedJob> = detail.jobs.iter().map(JobDetail::to_move).collect();
            let Ok(commit) = decide::checkpoint(&old, run, &jobs, by, commit_id) else { continue };
            // Written down first: what is stopped and not known to be would wait until it expires.
            let steps = detail.jobs.iter().map(|job| {
                let (index, step) = (job.job.job_id.step, &old.step(job.job.job_id.step).name);
                CheckpointStep {
                    step: Arc::clone(step),
                    stage: run.step(index).state.as_str().into(),
                    inputs: job.job.inputs.clone(),
                    idempotency_key: format!("{run_id}/{step}/1").into(),
                }
            });
            let checkpoint = Checkpoint {
                run_id: *run_id,
                flow: Arc::clone(&deployment.flow),
                deployment: deployment.deployment_id.clone(),
                from: deployment.from.clone(),
                steps: steps.collect(),
                state_keys: run.state.keys().cloned().collect(),
                state: CheckpointState::Pending,
                created_at: now,
                expires_at: until,
                settled_at: None,
            };
            self.write_checkpoint(deployment, &checkpoint, Expect::Anything).await?;
            gates::commit_all(&self.instance, vec![commit]).await?;
        }
        Ok(())
    }

    async fn write_checkpoint(
        &self,
        deployment: &Deployment,
        checkpoint: &Checkpoint,
        expect: Expect,
    ) -> Result<(), Trouble> {
        self.write_all(vec![settling(checkpoint, expect, &deployment.settings)]).await.map(drop)
    }

    /// Lets the oldest checkpoints go on, unless somebody has: on the new revision where that is
    /// active and has a place for them, else where they were.
    async fn replay_checkpoints(
        &self,
        deployment: &Deployment,
        count: u32,
        active: &Revision,
    ) -> Result<(), Trouble> {
        let mut pending = self.checkpoints_of(deployment).await?;
        pending.retain(|one| one.state == CheckpointState::Pending);
        pending.sort_by_key(|one| (one.created_at, one.run_id));
        for one in pending.into_iter().take(usize::try_from(count).unwrap_or(usize::MAX)) {
            let (record, one) = read_checkpoint(&*self.instance.store, &one).await?;
            if one.state != CheckpointState::Pending {
                continue;
            }
            let state = resume(&self.instance, deployment, &one, active).await?;
            let settled_at = Some(self.instance.store.now().await?);
            let settled = Checkpoint { state, settled_at, ..one };
            let expect = Expect::Version(record.version);
            self.write_checkpoint(deployment, &settled, expect).await?;
        }
        Ok(())
    }

    /// Lets the oldest held runs go on: so many by the rate, and so many besides.
    async fn replay_held(
        &self,
        held: &Held,
        (count, besides): (u32, u32),
        seen: &Seen,
        memo: &mut Memo,
    ) -> Result<(), Trouble> {
        let (instance, deployment) = (&self.instance, &held.deployment);
        let wanted = usize::try_from(count.saturating_add(besides)).unwrap_or(usize::MAX);
        let waiting = &mut memo.waiting;
        let mut released = gates::release_of(instance, &deployment.flow, waiting, wanted).await?;
        let left = seen.held.saturating_sub(released);
        memo.last_replay = Some(Replayed { at: seen.now, count, left });
        let gate = gates::read(instance, &deployment.flow).await?;
        let is_ours = gate.deployment.as_ref() == Some(&deployment.deployment_id.0);
        if is_ours && memo.waiting.is_empty() {
            // What came meanwhile may be few enough to open now; else it never ends under load.
            let rate = match deployment.settings.replay_rate {
                ReplayRate::Unlimited => None,
                ReplayRate::PerSecond(rate) => Some(rate.get()),
            };
            let left = instance.store.count_runs(&gates::held_of(&deployment.flow)).await?;
            if usize::try_from(left).is_ok_and(|left| left <= gates::few(rate)) {
                let id = gate.deployment.clone();
                released += gates::open(instance, &deployment.flow, &gate, id).await?;
            }
        }
        self.note_released(held, seen, released).await
    }

    /// Starts smoke tests on the new revision, whatever the gate is.
    async fn start_smoke(&self, deployment: &Deployment, tests: &[String]) -> Result<(), Trouble> {
        let (_, new) = self.flows(deployment).await?;
        let wanted = deployment.settings.smoke_tests.iter();
        for test in wanted.filter(|test| tests.contains(&test.name)) {
            let input = Payload::of(&test.input).map_err(|error| {
                EngineError::Invalid(format!("the input of `{}`: {error}", test.name))
            })?;
            let id = Arc::clone(&deployment.deployment_id.0);
            let start = Start {
                run_id: smoke_run(deployment, &test.name),
                input,
                key: None,
                tags: BTreeMap::from([(PROBE_TAG.into(), id)]),
                priority: None,
                due: Due::Now,
                gate: GateStamp::default(),
                instance: Some(self.instance.config.instance.clone()),
                pool: deployment.settings.pool.as_deref().map(Into::into),
            };
            self.start_probe(&new, start).await?;
        }
        Ok(())
    }

    /// Starts a run on a revision whatever the gate is, unless it was.
    pub(super) async fn start_probe(&self, flow: &Flow, mut start: Start) -> Result<(), Trouble> {
        for _ in 0..TRIES_MAX {
            let commit_id = self.instance.commit_ids.next();
            let commit = decide::start(flow, &start, commit_id);
            let outcomes = self.instance.store.commit(vec![commit], None).await?;
            match outcomes.first() {
                Some(CommitOutcome::Refused(Refusal::GateMoved(gate))) => {
                    start.gate = GateStamp { is_closed: false, ..*gate };
                }
                Some(CommitOutcome::Applied { .. } | CommitOutcome::Refused(_)) | None => break,
            }
        }
        Ok(())
    }

    async fn alert(&self, deployment: &Deployment, texts: &[String]) {
        let Some(url) = &deployment.settings.alerts.webhook else { return };
        let flow = &deployment.flow;
        let id = &deployment.deployment_id;
        let body = serde_json::json!({ "flow": flow, "deployment": id, "alerts": texts });
        let body = body.to_string();
        let send = async || {
            let client = self.instance.http_guarded().map_err(ToString::to_string)?;
            let request = client.post(url).timeout(ALERT_MAX);
            let request = request.header("content-type", "application/json").body(body.clone());
            let answer = request.send().await.map_err(|error| error.to_string())?;
            answer.error_for_status().map_err(|error| error.to_string()).map(drop)
        };
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(1));
        while let Err(error) = send().await {
            if backoff.tries() == ALERTS_AGAIN_MAX {
                tracing::warn!(%flow, deployment = %id, error, "nobody was alerted");
                return;
            }
            backoff.wait().await;
        }
    }

    /// Ends the smoke tests of a deployment that is over.
    pub(super) async fn end_smoke(&self, deployment: &Deployment) -> Result<(), Trouble> {
        for test in &deployment.settings.smoke_tests {
            let run_id = smoke_run(deployment, &test.name);
            self.end_probe(run_id, "its deployment has ended").await?;
        }
        Ok(())
    }

    /// Cancels a run that a deployment has started, if it is open.
    pub(super) async fn end_probe(&self, run_id: RunId, reason: &str) -> Result<(), Trouble> {
        let detail = self.instance.store.read_run(run_id).await?;
        if detail.is_some_and(|detail| !detail.row.run.status.is_terminal()) {
            let engine = self.engine.upgrade().ok_or(Trouble::Lost)?;
            // One that ends meanwhile needs no end.
            drop(engine.cancel(run_id, Some(reason)).await);
        }
        Ok(())
    }
}

/// Which pools execute the two revisions of a deployment.
fn pools(gate: &Gate, deployment: &Deployment) -> BTreeMap<Revision, Arc<str>> {
    gate.pools_with((&deployment.from, &deployment.to), deployment.settings.pool.as_deref())
}
