//! What became of the runs, read from the file and judged by the rules of a log.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flowgate_core::check::{check_ended, check_run};
use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::flow::Flow;
use flowgate_core::ids::RunId;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::{Run, RunStatus};
use flowgate_store::sqlite::SqliteStore;
use flowgate_store::{RunCursor, RunQuery, RunRow, Store, whole_log};
use serde::Serialize;

use super::FLOWS;
use super::redeploy::revisions;
use crate::failure::Failure;

/// What is known of the runs of a demo.
pub(super) struct Judge {
    database: PathBuf,
    /// Starts that were acknowledged.
    accepted: BTreeSet<RunId>,
    /// Every revision of each flow.
    flows: BTreeMap<&'static str, Vec<Flow>>,
}

/// How many runs of a flow there are.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) flow: &'static str,
    pub(super) running: u64,
    pub(super) waiting: u64,
    pub(super) completed: u64,
    pub(super) failed: u64,
}

/// What became of some runs.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Verdict {
    /// Those that are judged: they were accepted, or seen.
    pub(super) runs: usize,
    /// Those that have ended, each with one terminal event.
    pub(super) finished: usize,
    /// Those that are not there any more.
    pub(super) lost: usize,
    /// Steps that succeeded more than once in a run.
    pub(super) doubled: usize,
    /// Attempts that were lost with their process, and repeated.
    pub(super) repeated: usize,
    pub(super) violations: Vec<String>,
}

impl Verdict {
    /// Whether every one of the runs ended once.
    pub(super) fn is_good(&self) -> bool {
        self.finished == self.runs && self.doubled == 0 && self.violations.is_empty()
    }
}

impl Judge {
    pub(super) fn new(database: &Path) -> Self {
        let flow = |text| vec![Flow::parse(text).expect("the flows of the demo are valid")];
        let mut flows: BTreeMap<_, _> =
            FLOWS.iter().map(|(name, text)| (*name, flow(text))).collect();
        flows.entry(FLOWS[0].0).or_default().extend(revisions());
        Self { database: database.to_owned(), accepted: BTreeSet::new(), flows }
    }

    /// A start was acknowledged, so its run must be there from now on.
    pub(super) fn note_started(&mut self, run_id: RunId) {
        self.accepted.insert(run_id);
    }

    async fn store(&self) -> Result<SqliteStore, Failure> {
        Ok(SqliteStore::open_read_only(&self.database).await?)
    }

    /// How many runs there are.
    pub(super) async fn figures(&self) -> Result<Vec<Figures>, Failure> {
        let store = self.store().await?;
        let mut all = Vec::with_capacity(FLOWS.len());
        for (flow, _) in FLOWS {
            let count = async |status| {
                let flow = Some(Arc::from(flow));
                let query = RunQuery { flow, statuses: vec![status], ..RunQuery::default() };
                store.count_runs(&query).await
            };
            all.push(Figures {
                flow,
                running: count(RunStatus::Running).await?,
                waiting: count(RunStatus::Waiting).await?,
                completed: count(RunStatus::Completed).await?,
                failed: count(RunStatus::Failed).await?,
            });
        }
        Ok(all)
    }

    /// The runs that have not ended.
    pub(super) async fn open_runs(&self) -> Result<Vec<Arc<Run>>, Failure> {
        let statuses = RunStatus::OPEN.to_vec();
        let rows = listed(&self.store().await?, statuses).await?;
        Ok(rows.into_iter().map(|row| row.run).collect())
    }

    pub(super) async fn have_ended(&self, runs: &[Arc<Run>]) -> Result<bool, Failure> {
        let store = self.store().await?;
        for run in runs {
            let found = store.read_run(run.run_id).await?;
            // One that is gone will not end any more; the verdict says so.
            if found.is_some_and(|detail| !detail.row.run.status.is_terminal()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What became of these runs, which should have ended.
    pub(super) async fn verdict(&self, runs: Vec<Arc<Run>>) -> Result<Verdict, Failure> {
        let store = self.store().await?;
        let mut verdict = Verdict { runs: runs.len(), ..Verdict::default() };
        for run in runs {
            self.judge(&store, run.run_id, &mut verdict).await?;
        }
        Ok(verdict)
    }

    /// What became of all runs; some may be open.
    pub(super) async fn of_all(&self) -> Result<Verdict, Failure> {
        let store = self.store().await?;
        let rows = listed(&store, Vec::new()).await?;
        let mut run_ids: BTreeSet<RunId> = rows.iter().map(|row| row.run.run_id).collect();
        run_ids.extend(&self.accepted);
        let mut verdict = Verdict { runs: run_ids.len(), ..Verdict::default() };
        for run_id in run_ids {
            self.judge(&store, run_id, &mut verdict).await?;
        }
        Ok(verdict)
    }

    /// Whether every run that was acknowledged has ended, or is gone.
    pub(super) async fn accepted_have_ended(&self) -> Result<bool, Failure> {
        let open = self.open_runs().await?;
        Ok(!open.iter().any(|run| self.accepted.contains(&run.run_id)))
    }

    /// What became of the runs that were acknowledged, which should have ended.
    pub(super) async fn of_accepted(&self) -> Result<Verdict, Failure> {
        let store = self.store().await?;
        let mut verdict = Verdict { runs: self.accepted.len(), ..Verdict::default() };
        for run_id in &self.accepted {
            self.judge(&store, *run_id, &mut verdict).await?;
        }
        Ok(verdict)
    }

    async fn judge(
        &self,
        store: &SqliteStore,
        run_id: RunId,
        verdict: &mut Verdict,
    ) -> Result<(), Failure> {
        let Some(detail) = store.read_run(run_id).await? else {
            verdict.lost += 1;
            verdict.violations.push(format!("run {run_id} was accepted and is not there"));
            return Ok(());
        };
        let run = &detail.row.run;
        let log = whole_log(store, run_id).await?;
        if let Some(revisions) = self.flows.get(&*run.flow)
            && !detail.row.events_removed
        {
            let revisions: Vec<&Flow> = revisions.iter().collect();
            let found = check_run(&revisions, run_id, &log, Some(run));
            verdict.violations.extend(found.iter().map(ToString::to_string));
        }
        if run.status.is_terminal() {
            let broken = check_ended(run_id, &log);
            verdict.finished += usize::from(broken.is_none());
            verdict.violations.extend(broken.iter().map(ToString::to_string));
        }
        verdict.doubled += doubled(&log);
        let is_lost = |stored: &&StoredEvent| matches!(stored.event, Event::StepLost { .. });
        verdict.repeated += log.iter().filter(is_lost).count();
        Ok(())
    }
}

/// Steps that succeeded more than once.
fn doubled(log: &[StoredEvent]) -> usize {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for stored in log {
        if let Event::StepSucceeded { step, .. } = &stored.event {
            *times.entry(step).or_default() += 1;
        }
    }
    times.values().filter(|times| **times > 1).count()
}

/// All runs in one of these statuses.
async fn listed(store: &SqliteStore, statuses: Vec<RunStatus>) -> Result<Vec<RunRow>, Failure> {
    let mut query = RunQuery { statuses, limit: PAGE_MAX, ..RunQuery::default() };
    let mut all = Vec::new();
    loop {
        let page = store.list_runs(&query).await?;
        let last = page.last();
        query.after =
            last.map(|row| RunCursor { started_at: row.started_at, run_id: row.run.run_id });
        let is_last = page.len() < PAGE_MAX;
        all.extend(page);
        if is_last {
            return Ok(all);
        }
    }
}
