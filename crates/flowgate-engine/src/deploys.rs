//! Deployments: how they are asked for and read, and how the leader drives them.
//!
//! What happens next is decided by [`flowgate_core::deploy`]. Here is what it sees ([`look`]) and
//! how it is done ([`act`]). All that a deployment needs is in the store, so whoever leads after a
//! crash goes on with it.

use std::path::PathBuf;
use std::sync::Arc;

use flowgate_core::deploy::plan::{Change, OpenRun, Standing, StepMap, admit};
use flowgate_core::deploy::{
    Deployment, DeploymentId, Phase, Plan, Refusal, Report, Request, Settings, ShadowPlan,
    Strategy, plan,
};
use flowgate_core::flow::Flow;
use flowgate_core::ids::{Revision, RunId, is_identifier};
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::payload::Payload;
use flowgate_core::run::{Run, RunStatus};
use flowgate_core::time::Timestamp;
use flowgate_store::control::{Expect, Record, RecordQuery, RecordWrite, RecordsOutcome};
use flowgate_store::{
    Authored, RunCursor, RunQuery, RunRow, Store, StoreCopy, StoreError, StoredRevision,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{EngineError, FlowError};
use crate::supervisor::Engine;

mod act;
mod canary;
mod checkpoints;
mod conservation;
mod driver;
mod look;
mod progress;
pub(crate) mod refused;
mod shadow;

pub use canary::canary_figures;
pub use checkpoints::find_checkpoint;
pub(crate) use checkpoints::stopped_by;
pub(crate) use driver::drive;
pub use progress::{DeployProgress, deployment_progress, open_deployments};

/// The topic by which the leader is told of deployments.
pub(crate) const TOPIC: &str = "deploys";
const DEPLOYMENT: &str = "deployment";
/// Which deployment of a flow is under way, by the flow's name.
const OPEN: &str = "deploy_open";
/// What somebody asks a deployment for, by flow and deployment.
const ASK: &str = "deploy_ask";
/// Runs that were stopped where they are, by flow, deployment and run.
const CHECKPOINT: &str = "deploy_checkpoint";

/// The tag of the runs of smoke tests and of shadows; its value is the deployment.
pub(crate) const PROBE_TAG: &str = "flowgate.probe";

/// A deployment that somebody wants.
#[derive(Clone, Debug)]
pub struct DeployRequest {
    /// The revision that is to become active.
    pub flow: Flow,
    /// The folder that its programs start in.
    pub folder: Option<PathBuf>,
    /// How it is to be done.
    pub settings: Settings,
    /// Who asks.
    pub author: Option<Arc<str>>,
    /// What for.
    pub note: Option<Arc<str>>,
    /// Whether an older revision may become active again.
    pub is_forced: bool,
}

/// What a deployment would do.
#[derive(Clone, Debug, PartialEq)]
pub struct DeployPlan {
    /// The active revision.
    pub from: Revision,
    /// The one that is to become active.
    pub to: Revision,
    /// What is going to happen to the open runs.
    pub plan: Plan,
}

/// What somebody asks a deployment for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// To go back to the old revision.
    Rollback {
        /// Who asks, and why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<Arc<str>>,
    },
    /// To take a canary as good.
    Promote {},
}

/// A run that a deployment has stopped where it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The run.
    pub run_id: RunId,
    /// Its flow.
    pub flow: Arc<str>,
    /// The deployment.
    pub deployment: DeploymentId,
    /// The revision that it was on.
    pub from: Revision,
    /// The steps at which it was.
    pub steps: Vec<CheckpointStep>,
    /// The names of its state values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub state_keys: Vec<Arc<str>>,
    /// What became of it.
    pub state: CheckpointState,
    /// When it was stopped.
    pub created_at: Timestamp,
    /// When it goes on by itself, if nobody has let it.
    pub expires_at: Timestamp,
    /// When it went on, or was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_at: Option<Timestamp>,
}

impl Checkpoint {
    /// The key of its record.
    fn key(&self) -> Arc<str> {
        let Self { flow, deployment, run_id, .. } = self;
        format!("{flow}/{deployment}/{run_id}").into()
    }
}

/// A step at which a run was stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointStep {
    /// The step.
    pub step: Arc<str>,
    /// Its state: `queued`, `running` or `waiting`.
    pub stage: Arc<str>,
    /// The numbers of the events whose payloads are its input.
    pub inputs: Vec<u64>,
    /// The idempotency key of the step, the same for every attempt.
    pub idempotency_key: Arc<str>,
}

/// What became of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointState {
    /// The run is stopped.
    Pending,
    /// It has gone on, on the new revision.
    Resumed,
    /// It has gone on, on its own revision.
    Pinned,
    /// It was given up: the run was cancelled.
    Discarded,
}

impl CheckpointState {
    /// As it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Resumed => "resumed",
            Self::Pinned => "pinned",
            Self::Discarded => "discarded",
        }
    }
}

/// Which deployment of a flow is under way.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Open {
    flow: Arc<str>,
    deployment_id: DeploymentId,
}

impl Engine {
    /// What a deployment would do to the runs that are open now. Nothing is changed.
    pub async fn plan_deployment(
        &self,
        request: &DeployRequest,
    ) -> Result<DeployPlan, EngineError> {
        let (store, name) = (&**self.store(), &request.flow.name);
        if let Some(pool) = request.settings.pool.as_ref().filter(|pool| !is_identifier(pool)) {
            let message = format!("`{}` cannot be the name of a pool", pool.escape_debug());
            return Err(EngineError::Invalid(message));
        }
        let active = store.read_revision(name, None).await?;
        let active = &active.ok_or_else(|| EngineError::NoFlow(Arc::clone(name)))?;
        let from = active.revision.revision.clone();
        let open: Option<Open> = read_one(store, OPEN, name).await?.map(|(_, open)| open);
        let to = request.flow.revision.clone();
        let known = store.read_revision(name, Some(&to)).await?;
        let is_older = known.is_some_and(|known| known.registered_at < active.registered_at);
        let open = open.as_ref().map(|open| &open.deployment_id);
        let standing = Standing { active: &from, is_older, open };
        admit(&to, &standing, request.is_forced).map_err(EngineError::Deploy)?;
        let old = compile(active)?;
        let settings = &request.settings;
        let map = StepMap::new((&old, &request.flow), &settings.steps);
        let map = map.map_err(EngineError::Deploy)?;
        let change = Change { old: &old, new: &request.flow, map: &map, settings };
        let runs = open_runs(store, name, &from).await?;
        let runs: Vec<OpenRun<'_>> =
            runs.iter().map(|row| OpenRun { run: &row.run, ends_by: None }).collect();
        let mut plan = plan(&change, &runs, store.now().await?).map_err(EngineError::Deploy)?;
        if let Some(rules) = &settings.shadow {
            let found = shadow::candidates(store, name, &from).await?.len();
            let runs = u64::try_from(found).unwrap_or(u64::MAX).min(rules.runs.into());
            let planned = ShadowPlan::of(&request.flow, runs);
            plan.warnings.extend(planned.warnings((&old, &request.flow), &map));
            plan.shadow = Some(planned);
        }
        if let Some(pool) = &settings.pool
            && !look::is_pool_alive(store, pool).await?
        {
            plan.warnings.push(format!("no instance of the pool `{pool}` is alive"));
        }
        Ok(DeployPlan { from, to, plan })
    }

    /// Begins a deployment. The leader drives it from now on.
    pub async fn start_deployment(
        &self,
        request: DeployRequest,
    ) -> Result<Deployment, EngineError> {
        let DeployPlan { from, to, plan } = self.plan_deployment(&request).await?;
        let (store, name) = (&**self.store(), Arc::clone(&request.flow.name));
        let now = store.now().await?;
        let (author, note) = (request.author.clone(), request.note.clone());
        let authored = Authored { author, note };
        let revision = crate::flows::revision(&request.flow, request.folder.as_ref(), authored)?;
        // Not active: runs may be pinned to it, and none starts on it.
        let stored = StoredRevision { revision, registered_at: now, active: false };
        store.import(StoreCopy { revisions: vec![stored], runs: Vec::new() }).await?;
        let id = format!("{:012x}{:04x}", now.0, fastrand::u16(..));
        let deployment = Deployment::begin(
            Request {
                deployment_id: DeploymentId(id.into()),
                flow: Arc::clone(&name),
                from,
                to,
                settings: request.settings,
                author: request.author,
                note: request.note,
                is_forced: request.is_forced,
                plan,
            },
            now,
        );
        let open =
            Open { flow: Arc::clone(&name), deployment_id: deployment.deployment_id.clone() };
        let key = key_of(&name, &deployment.deployment_id);
        let writes = vec![
            write(OPEN, Arc::clone(&name), Expect::Absent, Some(&open)),
            write(DEPLOYMENT, key, Expect::Absent, Some(&deployment)),
        ];
        match store.write_records(writes, None).await? {
            RecordsOutcome::Written(_) => {}
            RecordsOutcome::Changed(_) => {
                let open: Option<(Record, Open)> = read_one(store, OPEN, &name).await?;
                let deployment_id = open.map_or(deployment.deployment_id, |(_, o)| o.deployment_id);
                return Err(EngineError::Deploy(Refusal::InProgress { deployment_id }));
            }
            RecordsOutcome::TermLost | RecordsOutcome::TooLarge(_) => {
                let message = "the settings of the deployment are too large".to_owned();
                return Err(EngineError::Invalid(message));
            }
        }
        store.tell(TOPIC).await?;
        Ok(deployment)
    }

    /// Asks a deployment that is under way for something. The leader does it.
    pub async fn ask_deployment(&self, flow: &str, ask: &Ask) -> Result<Deployment, EngineError> {
        let found = find_deployment(&**self.store(), flow, None).await?;
        let deployment = found.ok_or_else(|| EngineError::NoDeployment(flow.into()))?;
        let (id, phase) = (&deployment.deployment_id, deployment.phase);
        let strategy = deployment.settings.strategy;
        let refused = match ask {
            Ask::Rollback { .. } => (!phase.can_roll_back())
                .then(|| format!("deployment {id} is in the phase {phase}, which is past that")),
            Ask::Promote {} if strategy != Strategy::Canary => {
                Some(format!("deployment {id} is {strategy}; only a canary is promoted"))
            }
            Ask::Promote {} => (phase != Phase::Resume).then(|| {
                let watched = Phase::Resume;
                format!(
                    "deployment {id} is in the phase {phase}; a canary is promoted in {watched}"
                )
            }),
        };
        if let Some(message) = refused {
            return Err(EngineError::Invalid(message));
        }
        let key = key_of(&deployment.flow, &deployment.deployment_id);
        let keep = Some(deployment.settings.audit_retention.0);
        let asked = RecordWrite { keep, ..write(ASK, key, Expect::Anything, Some(ask)) };
        // It replaces what was asked for before.
        let _written = self.store().write_records(vec![asked], None).await?;
        self.store().tell(TOPIC).await?;
        Ok(deployment)
    }
}

/// The deployments of a flow, or of all flows, the latest of each flow first.
pub async fn deployments(
    store: &dyn Store,
    flow: Option<&str>,
) -> Result<Vec<Deployment>, StoreError> {
    let prefix = flow.map_or_else(String::new, |flow| format!("{flow}/"));
    list_all(store, DEPLOYMENT, &prefix).await
}

/// A deployment of a flow: the latest whose id begins with `id`, or the latest of all.
pub async fn find_deployment(
    store: &dyn Store,
    flow: &str,
    id: Option<&str>,
) -> Result<Option<Deployment>, StoreError> {
    // Whoever watches one asks for it by its whole id, and need not read the others.
    if let Some(id) = id {
        let key = key_of(flow, &DeploymentId(id.into()));
        let whole: Option<(Record, Deployment)> = read_one(store, DEPLOYMENT, &key).await?;
        if whole.is_some() {
            return Ok(whole.map(|(_, deployment)| deployment));
        }
    }
    let found = deployments(store, Some(flow)).await?;
    let is_it = |one: &Deployment| id.is_none_or(|id| one.deployment_id.0.starts_with(id));
    Ok(found.into_iter().find(is_it))
}

/// What became of a deployment, with the proof that nothing was lost.
pub async fn deployment_report(
    store: &dyn Store,
    deployment: &Deployment,
) -> Result<Report, StoreError> {
    let conservation = conservation::count_now(store, deployment).await?;
    Ok(Report::of(deployment, Some(conservation)))
}

/// The checkpoints of a flow, or of all flows.
pub async fn checkpoints(
    store: &dyn Store,
    flow: Option<&str>,
) -> Result<Vec<Checkpoint>, StoreError> {
    let prefix = flow.map_or_else(String::new, |flow| format!("{flow}/"));
    list_all(store, CHECKPOINT, &prefix).await
}

/// Whether this deployment of a flow is under way.
pub(crate) async fn is_open(
    store: &dyn Store,
    flow: &Arc<str>,
    deployment: &str,
) -> Result<bool, StoreError> {
    let open: Option<(Record, Open)> = read_one(store, OPEN, flow).await?;
    Ok(open.is_some_and(|(_, open)| *open.deployment_id.0 == *deployment))
}

fn key_of(flow: &str, id: &DeploymentId) -> Arc<str> {
    format!("{flow}/{id}").into()
}

/// Whether a run is one of a smoke test or of a shadow.
pub(crate) fn is_probe(run: &Run) -> bool {
    run.tags.contains_key(PROBE_TAG)
}

fn compile(stored: &StoredRevision) -> Result<Flow, EngineError> {
    let revision = &stored.revision;
    Flow::new(revision.file.clone()).map_err(|problems| {
        EngineError::Flow(FlowError::Invalid {
            flow: revision.file.flow.as_str().into(),
            revision: revision.revision.clone(),
            problems,
        })
    })
}

/// The runs of a flow that are open on a revision, but for those of smoke tests and held ones.
async fn open_runs(
    store: &dyn Store,
    flow: &Arc<str>,
    revision: &Revision,
) -> Result<Vec<RunRow>, StoreError> {
    let (flow, statuses) = (Some(Arc::clone(flow)), vec![RunStatus::Running, RunStatus::Waiting]);
    let mut rows = pages(store, RunQuery { flow, statuses, ..RunQuery::default() }).await?;
    rows.retain(|row| row.run.revision == *revision && !is_probe(&row.run));
    Ok(rows)
}

/// All runs that match.
async fn pages(store: &dyn Store, mut query: RunQuery) -> Result<Vec<RunRow>, StoreError> {
    query.limit = PAGE_MAX;
    let mut rows = Vec::new();
    loop {
        let page = store.list_runs(&query).await?;
        match page.last() {
            Some(last) if page.len() == PAGE_MAX => {
                let (started_at, run_id) = (last.started_at, last.run.run_id);
                query.after = Some(RunCursor { started_at, run_id });
                rows.extend(page);
            }
            Some(_) | None => {
                rows.extend(page);
                return Ok(rows);
            }
        }
    }
}

fn write<T: Serialize>(
    kind: &'static str,
    key: Arc<str>,
    expect: Expect,
    value: Option<&T>,
) -> RecordWrite {
    let value = value.map(|value| Payload::of(value).expect("a record has a JSON form"));
    RecordWrite { kind, key, expect, value, keep: None }
}

async fn read_one<T: DeserializeOwned>(
    store: &dyn Store,
    kind: &str,
    key: &Arc<str>,
) -> Result<Option<(Record, T)>, StoreError> {
    let found = store.read_records(kind, std::slice::from_ref(key)).await?;
    let Some(record) = found.into_iter().next().flatten() else { return Ok(None) };
    let value = decode(&record)?;
    Ok(Some((record, value)))
}

fn decode<T: DeserializeOwned>(record: &Record) -> Result<T, StoreError> {
    serde_json::from_str(record.value.get()).map_err(|error| StoreError::Corrupt {
        message: format!("the record `{}`: {error}", record.key),
        source: Some(Box::new(error)),
    })
}

/// The values of all records whose keys begin with `prefix`, the last first.
async fn list_all<T: DeserializeOwned>(
    store: &dyn Store,
    kind: &'static str,
    prefix: &str,
) -> Result<Vec<T>, StoreError> {
    list_records(store, kind, prefix).await?.iter().map(decode).collect()
}

/// All records whose keys begin with `prefix`, the last first.
async fn list_records(
    store: &dyn Store,
    kind: &'static str,
    prefix: &str,
) -> Result<Vec<Record>, StoreError> {
    let (mut records, mut after) = (Vec::new(), None);
    loop {
        let (prefix, limit) = (prefix.into(), PAGE_MAX);
        let query = RecordQuery { kind, prefix, after, is_descending: true, limit };
        let page = store.list_records(&query).await?;
        let is_last = page.len() < PAGE_MAX;
        after = page.last().map(|last| Arc::clone(&last.key));
        records.extend(page);
        if is_last {
            return Ok(records);
        }
    }
}
