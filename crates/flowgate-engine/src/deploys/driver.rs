//! Driving deployments, in the term of a leader.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::deploy::machine::Replayed;
use flowgate_core::deploy::{Deployment, DeploymentId, Next, ShadowResult, next};
use flowgate_core::ids::RunId;
use flowgate_store::StoreError;
use flowgate_store::control::{Expect, Record, RecordWrite, RecordsOutcome};
use parking_lot::Mutex;

use super::canary::Counted;
use super::{CHECKPOINT, Checkpoint, DEPLOYMENT, Open, TOPIC};
use super::{conservation, decode, key_of, list_all, list_records, read_one, write};
use crate::backoff::Backoff;
use crate::error::EngineError;
use crate::gates::HeldRun;
use crate::instance::Instance;
use crate::leadership::Reign;
use crate::supervisor::WeakEngine;

/// How long a deployment may go unnoticed if its hint is lost.
const RELOAD_MAX: Duration = Duration::from_secs(3);
/// How often one that is under way is looked at when nothing else says when.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Deployments that are forgotten at a time.
const PRUNED_MAX: usize = 50;
/// Their checkpoints that are forgotten by one call.
const FORGOTTEN_MAX: usize = 500;

/// Why a round ended early.
pub(super) enum Trouble {
    /// The term is over.
    Lost,
    /// Something failed that may work later.
    Failed(EngineError),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<EngineError> for Trouble {
    fn from(error: EngineError) -> Self {
        Self::Failed(error)
    }
}

/// What is known of a deployment besides its record. All of it may be lost.
#[derive(Debug, Default)]
pub(super) struct Memo {
    pub(super) last_replay: Option<Replayed>,
    pub(super) is_alerted: bool,
    pub(super) fault: Option<String>,
    /// Whether the gate was set in whole, whoever led before.
    is_gate_whole: bool,
    /// How the revisions of a canary did, when that was last counted.
    pub(super) canary: Option<Counted>,
    /// Held runs in their order, as far as they were listed.
    pub(super) waiting: VecDeque<HeldRun>,
    /// What came of the shadow, by the run whose input it was.
    pub(super) shadow: HashMap<RunId, ShadowResult>,
}

/// The leader, as far as deployments are concerned.
pub(super) struct Driver {
    pub(super) instance: Arc<Instance>,
    pub(super) engine: WeakEngine,
    reign: Arc<Reign>,
    /// The last generation of each flow's gate that is known to be set in whole.
    whole_gates: Mutex<HashMap<Arc<str>, u64>>,
}

/// A deployment and the version of its record in the store.
pub(super) struct Held {
    pub(super) deployment: Deployment,
    record: u64,
}

/// Drives what is under way, until the term is over.
pub(crate) async fn drive(instance: Arc<Instance>, engine: WeakEngine, reign: Arc<Reign>) {
    let driver = Driver { instance, engine, reign, whole_gates: Mutex::default() };
    let mut memos = HashMap::new();
    let mut backoff = new_backoff();
    while driver.reign.is_held() {
        match driver.round(&mut memos).await {
            Ok(wait_max) => {
                backoff = new_backoff();
                // A hint that is lost costs no more than the wait.
                drop(driver.instance.store.wait_told(TOPIC, wait_max).await);
            }
            Err(Trouble::Lost) => return,
            Err(Trouble::Failed(error)) => {
                // A store that does not answer is told of once, by whoever judges that.
                if backoff.tries() == 0 && !error.is_transient() {
                    tracing::warn!(%error, "a deployment could not go on; trying again");
                }
                backoff.wait().await;
            }
        }
    }
}

fn new_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(50), Duration::from_secs(1))
}

impl Driver {
    /// Goes on with every deployment as far as it can; how long to wait at most.
    async fn round(&self, memos: &mut HashMap<DeploymentId, Memo>) -> Result<Duration, Trouble> {
        let store = &*self.instance.store;
        let open: Vec<Open> = list_all(store, super::OPEN, "").await?;
        memos.retain(|id, _| open.iter().any(|open| open.deployment_id == *id));
        if open.is_empty() {
            return Ok(RELOAD_MAX);
        }
        let mut wait_max = LOOK_EVERY;
        for Open { flow, deployment_id: id } in open {
            let memo = memos.entry(id.clone()).or_default();
            wait_max = wait_max.min(self.go_on(&flow, &id, memo).await?);
        }
        Ok(wait_max)
    }

    /// Does one thing after the other, until there is something to wait for.
    async fn go_on(
        &self,
        flow: &Arc<str>,
        id: &DeploymentId,
        memo: &mut Memo,
    ) -> Result<Duration, Trouble> {
        if !memo.is_gate_whole {
            self.set_gate_again(flow).await?;
            memo.is_gate_whole = true;
        }
        // What this driver has just written need not be read.
        let mut known = None;
        loop {
            if !self.reign.is_held() {
                return Err(Trouble::Lost);
            }
            let found = match known.take() {
                Some(held) => Some(held),
                None => self.read(flow, id).await?,
            };
            // What has ended is not under way any more, so nobody looks at it again.
            let Some(held) = found.filter(|held| !held.deployment.phase.is_terminal()) else {
                return Ok(LOOK_EVERY);
            };
            let driver = &self.instance.config.instance;
            if held.deployment.driver.as_ref() != Some(driver) {
                // Whoever looks at it is told who drives it, also while there is nothing to do.
                known = self.write(&held, &held.deployment.driven_by(driver.clone())).await?;
                continue;
            }
            let seen = self.look(&held.deployment, memo).await?;
            let now = seen.now;
            match next(&held.deployment, &seen) {
                Next::Become(record) => {
                    tracing::info!(%flow, deployment = %id, phase = %record.phase, "deployment");
                    known = self.write(&held, &record).await?;
                }
                Next::Wait { until } => return Ok(until.since(now).min(LOOK_EVERY)),
                Next::Finish => return Ok(LOOK_EVERY),
                action @ (Next::Measure(_)
                | Next::CloseGate { .. }
                | Next::Checkpoint { .. }
                | Next::Register
                | Next::StartSmoke { .. }
                | Next::StartShadow { .. }
                | Next::StubShadow { .. }
                | Next::Activate { .. }
                | Next::SetShare { .. }
                | Next::Replay { .. }
                | Next::OpenGate { .. }
                | Next::Alert { .. }) => self.act(&held, action, &seen, memo).await?,
            }
        }
    }

    /// Whether this generation of a gate is known to be set in whole.
    pub(super) fn is_whole(&self, flow: &str, generation: u64) -> bool {
        self.whole_gates.lock().get(flow) == Some(&generation)
    }

    pub(super) fn note_whole(&self, flow: &Arc<str>, generation: u64) {
        self.whole_gates.lock().insert(Arc::clone(flow), generation);
    }

    async fn read(&self, flow: &str, id: &DeploymentId) -> Result<Option<Held>, Trouble> {
        let key = key_of(flow, id);
        let found: Option<(Record, Deployment)> =
            read_one(&*self.instance.store, DEPLOYMENT, &key).await?;
        Ok(found.map(|(record, deployment)| Held { deployment, record: record.version }))
    }

    /// Writes the next record of a deployment, unless somebody else has; what is written.
    pub(super) async fn write(
        &self,
        held: &Held,
        next: &Deployment,
    ) -> Result<Option<Held>, Trouble> {
        let mut next = next.clone();
        if next.phase.is_terminal() {
            let end = conservation::count_at_end(&*self.instance.store, &next).await?;
            next.conservation = Some(end.conservation);
            next.counts.cancelled_held = end.cancelled_held;
            next.counts.held = next.counts.held.max(next.counts.released + end.cancelled_held);
        }
        let key = key_of(&next.flow, &next.deployment_id);
        let keep = next.phase.is_terminal().then_some(next.settings.audit_retention.0);
        let record = write(DEPLOYMENT, key, Expect::Version(held.record), Some(&next));
        let mut writes = vec![RecordWrite { keep, ..record }];
        if next.phase.is_terminal() {
            self.end_smoke(&next).await?;
            self.end_shadow(&next).await?;
            let flow = Arc::clone(&next.flow);
            writes.push(write(super::OPEN, flow, Expect::Anything, None::<&()>));
        }
        let versions = self.write_all(writes).await?;
        if next.phase.is_terminal() {
            self.prune(&next).await?;
        }
        let written = versions.and_then(|versions| versions.first().copied());
        Ok(written.map(|record| Held { deployment: next, record }))
    }

    /// Forgets the oldest deployments of a flow that has more than are kept, and their checkpoints.
    async fn prune(&self, ended: &Deployment) -> Result<(), Trouble> {
        let max = usize::try_from(ended.settings.audit_max_per_flow).unwrap_or(usize::MAX);
        let store = &*self.instance.store;
        let all = list_records(store, DEPLOYMENT, &format!("{}/", ended.flow)).await?;
        for record in all.iter().skip(max.max(1)).take(PRUNED_MAX) {
            let one: &Deployment = &decode(record)?;
            let checkpoints: Vec<Checkpoint> = self.checkpoints_of(one).await?;
            let keys: Vec<Arc<str>> = checkpoints.iter().map(Checkpoint::key).collect();
            for keys in keys.chunks(FORGOTTEN_MAX) {
                let forget = |key: &Arc<str>| {
                    write(CHECKPOINT, Arc::clone(key), Expect::Anything, None::<&()>)
                };
                self.write_all(keys.iter().map(forget).collect()).await?;
            }
            let key = key_of(&one.flow, &one.deployment_id);
            self.write_all(vec![write(DEPLOYMENT, key, Expect::Anything, None::<&()>)]).await?;
        }
        Ok(())
    }

    /// Writes records under the term; their versions. What somebody has changed is read again by the
    /// next look.
    pub(super) async fn write_all(
        &self,
        writes: Vec<RecordWrite>,
    ) -> Result<Option<Vec<u64>>, Trouble> {
        match self.instance.store.write_records(writes, Some(&self.reign.term)).await? {
            RecordsOutcome::Written(versions) => Ok(Some(versions)),
            RecordsOutcome::Changed(_) => Ok(None),
            RecordsOutcome::TermLost => Err(Trouble::Lost),
            RecordsOutcome::TooLarge(_) => {
                let message = "the record of a deployment is too large".to_owned();
                Err(Trouble::Failed(EngineError::Invalid(message)))
            }
        }
    }
}
