//! A run as `run --json` and `runs show` tell it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use flowgate_core::event::{ErrorKind, Event, StoredEvent};
use flowgate_core::flow::Flow;
use flowgate_core::ids::{Revision, RunId};
use flowgate_core::payload::Payload;
use flowgate_core::run::RunStatus;
use flowgate_core::view::{self, StepView};
use flowgate_engine::Fate;
use flowgate_store::{JobDetail, RunDetail};
use serde::Serialize;

/// What became of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RunReport {
    pub(crate) run_id: RunId,
    pub(crate) flow: Arc<str>,
    pub(crate) revision: Revision,
    pub(crate) status: RunStatus,
    pub(crate) started_at: String,
    pub(crate) ended_at: Option<String>,
    /// From start to end; absent while it is open.
    pub(crate) duration_ms: Option<u64>,
    pub(crate) key: Option<Arc<str>>,
    pub(crate) steps: Vec<StepView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<FailureView>,
}

/// Why a run failed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FailureView {
    pub(crate) step: Arc<str>,
    pub(crate) message: Arc<str>,
    pub(crate) kind: ErrorKind,
}

/// All that the store knows about a run but its log.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RunFacts {
    #[serde(flatten)]
    pub(crate) report: RunReport,
    pub(crate) version: u64,
    pub(crate) tags: BTreeMap<Arc<str>, Arc<str>>,
    pub(crate) retry_of: Option<RunId>,
    pub(crate) input: Option<Payload>,
    pub(crate) state: BTreeMap<Arc<str>, Payload>,
    pub(crate) jobs: Vec<JobView>,
    /// What became of it as a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fate: Option<FateView>,
}

/// What became of a failed run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FateView {
    #[serde(flatten)]
    pub(crate) fate: Fate,
    pub(crate) at: String,
}

impl fmt::Display for FateView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fate {
            Fate::Retried { run_id } => write!(f, "tried again at {} as run {run_id}", self.at),
            Fate::Dropped {} => write!(f, "dropped at {}", self.at),
        }
    }
}

/// An open job.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct JobView {
    pub(crate) step: Arc<str>,
    pub(crate) queue: Arc<str>,
    pub(crate) attempt: u32,
    pub(crate) due_at: String,
    pub(crate) instance: Option<Arc<str>>,
}

impl RunReport {
    pub(crate) fn new(flow: &Flow, detail: &RunDetail, events: &[StoredEvent]) -> Self {
        let row = &detail.row;
        let run = &row.run;
        let failure = run.failure.as_ref().map(|failure| FailureView {
            step: Arc::clone(&failure.step),
            message: Arc::clone(&failure.error.message),
            kind: failure.error.kind,
        });
        let took = row.ended_at.map(|ended| ended.since(row.started_at));
        Self {
            run_id: run.run_id,
            flow: Arc::clone(&run.flow),
            revision: run.revision.clone(),
            status: run.status,
            started_at: row.started_at.to_string(),
            ended_at: row.ended_at.map(|at| at.to_string()),
            duration_ms: took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
            key: run.key.clone(),
            steps: view::steps(flow, run, events),
            failure,
        }
    }
}

impl RunFacts {
    pub(crate) fn new(flow: &Flow, detail: &RunDetail, events: &[StoredEvent]) -> Self {
        let run = &detail.row.run;
        let is_start = |stored: &&StoredEvent| matches!(stored.event, Event::RunStarted(_));
        let input = events.first().filter(is_start).map(|stored| stored.event.payload());
        let value = |seq: u64| {
            let at = events.binary_search_by_key(&seq, |stored| stored.seq).ok()?;
            Some(events[at].event.payload())
        };
        let state = run.state.iter();
        Self {
            report: RunReport::new(flow, detail, events),
            version: run.version,
            tags: run.tags.clone(),
            retry_of: run.retry_of,
            input,
            state: state.filter_map(|(key, seq)| Some((Arc::clone(key), value(*seq)?))).collect(),
            jobs: detail.jobs.iter().map(|job| JobView::new(flow, job)).collect(),
            fate: None,
        }
    }
}

impl JobView {
    fn new(flow: &Flow, detail: &JobDetail) -> Self {
        let lease = detail.lease.as_ref();
        Self {
            step: Arc::clone(&flow.step(detail.job.job_id.step).name),
            queue: Arc::clone(&detail.job.queue),
            attempt: detail.job.attempt,
            due_at: detail.due_at.to_string(),
            instance: lease.map(|lease| Arc::clone(&lease.instance.0)),
        }
    }
}
