//! A store with a span and metrics around every call, so that no store can forget them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::commit::{Claimed, Commit};
use flowgate_core::event::StoredEvent;
use flowgate_core::ids::{InstanceId, Position, Revision, RunId};
use flowgate_core::time::Timestamp;
use metrics::{counter, histogram};
use tracing::Instrument;

use crate::clock::Stopwatch;
use crate::{
    Beat, Claimant, CommitOutcome, Imported, InstanceRow, LeaseRef, LogLine, NewLogLine,
    NewRevision, Queues, Refusal, Renewal, Retention, RunDetail, RunQuery, RunRow, Store,
    StoreCopy, StoreError, StoredRevision, Swept,
};

mod control;

/// A store that tells about its calls.
#[derive(Clone, Debug)]
pub struct Instrumented {
    inner: Arc<dyn Store>,
    kind: &'static str,
}

impl Instrumented {
    /// `inner`, telling about its calls.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        let kind = inner.kind();
        Self { inner, kind }
    }

    async fn timed<T>(
        &self,
        call: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let kind = self.kind;
        let watch = Stopwatch::start();
        let result = work.instrument(tracing::debug_span!("store", store = kind, call)).await;
        counter!("flowgate_store_calls_total", "store" => kind, "call" => call).increment(1);
        histogram!("flowgate_store_call_seconds", "store" => kind, "call" => call)
            .record(watch.elapsed());
        if let Err(error) = &result {
            let error = error_name(error);
            counter!("flowgate_store_errors_total", "store" => kind, "call" => call, "error" => error)
                .increment(1);
        }
        result
    }

    fn tell_outcomes(&self, outcomes: &[CommitOutcome]) {
        let kind = self.kind;
        let mut jobs = 0;
        for outcome in outcomes {
            match outcome {
                CommitOutcome::Applied { handed_off } => jobs += handed_off.len(),
                CommitOutcome::Refused(refusal) => {
                    let reason = refusal_name(*refusal);
                    counter!("flowgate_store_refusals_total", "store" => kind, "reason" => reason)
                        .increment(1);
                }
            }
        }
        counter!("flowgate_store_handed_off_jobs_total", "store" => kind).increment(jobs as u64);
    }
}

fn error_name(error: &StoreError) -> &'static str {
    match error {
        StoreError::Unavailable { .. } => "unavailable",
        StoreError::Full { .. } => "full",
        StoreError::Owned { .. } => "owned",
        StoreError::ReadOnly => "read_only",
        StoreError::Corrupt { .. } => "corrupt",
        StoreError::Unsafe { .. } => "unsafe",
        StoreError::Incompatible { .. } => "incompatible",
    }
}

fn refusal_name(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::RunExists => "run_exists",
        Refusal::RunVersion => "run_version",
        Refusal::LeaseLost(_) => "lease_lost",
        Refusal::GateMoved(_) => "gate_moved",
        Refusal::TooLarge { .. } => "too_large",
    }
}

#[async_trait]
impl Store for Instrumented {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.timed("now", self.inner.now()).await
    }

    async fn commit(
        &self,
        commits: Vec<Commit>,
        claimant: Option<&Claimant>,
    ) -> Result<Vec<CommitOutcome>, StoreError> {
        #[expect(clippy::cast_precision_loss, reason = "a batch is far smaller than 2^52")]
        histogram!("flowgate_store_batch_size", "store" => self.kind).record(commits.len() as f64);
        let outcomes = self.timed("commit", self.inner.commit(commits, claimant)).await?;
        self.tell_outcomes(&outcomes);
        Ok(outcomes)
    }

    async fn claim(&self, claimant: &Claimant) -> Result<Vec<Claimed>, StoreError> {
        self.timed("claim", self.inner.claim(claimant)).await
    }

    async fn wait_due(&self, queues: &Queues, wait_max: Duration) -> Result<(), StoreError> {
        self.timed("wait_due", self.inner.wait_due(queues, wait_max)).await
    }

    async fn renew(
        &self,
        leases: &[LeaseRef],
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        self.timed("renew", self.inner.renew(leases, lease)).await
    }

    async fn read_run(&self, run_id: RunId) -> Result<Option<RunDetail>, StoreError> {
        self.timed("read_run", self.inner.read_run(run_id)).await
    }

    async fn read_events(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.timed("read_events", self.inner.read_events(run_id, after, limit)).await
    }

    fn feeds(&self) -> u16 {
        self.inner.feeds()
    }

    async fn read_feed(
        &self,
        feed: u16,
        after: Position,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.timed("read_feed", self.inner.read_feed(feed, after, limit)).await
    }

    async fn feed_end(&self, feed: u16) -> Result<Position, StoreError> {
        self.timed("feed_end", self.inner.feed_end(feed)).await
    }

    async fn wait_feed(
        &self,
        feed: u16,
        after: Position,
        wait_max: Duration,
    ) -> Result<(), StoreError> {
        self.timed("wait_feed", self.inner.wait_feed(feed, after, wait_max)).await
    }

    async fn list_runs(&self, query: &RunQuery) -> Result<Vec<RunRow>, StoreError> {
        self.timed("list_runs", self.inner.list_runs(query)).await
    }

    async fn count_runs(&self, query: &RunQuery) -> Result<u64, StoreError> {
        self.timed("count_runs", self.inner.count_runs(query)).await
    }

    async fn append_logs(&self, lines: Vec<NewLogLine>) -> Result<(), StoreError> {
        self.timed("append_logs", self.inner.append_logs(lines)).await
    }

    async fn read_logs(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LogLine>, StoreError> {
        self.timed("read_logs", self.inner.read_logs(run_id, after, limit)).await
    }

    async fn register_flow(&self, revision: NewRevision) -> Result<(), StoreError> {
        self.timed("register_flow", self.inner.register_flow(revision)).await
    }

    async fn list_revisions(&self, flow: Option<&str>) -> Result<Vec<StoredRevision>, StoreError> {
        self.timed("list_revisions", self.inner.list_revisions(flow)).await
    }

    async fn read_revision(
        &self,
        flow: &str,
        revision: Option<&Revision>,
    ) -> Result<Option<StoredRevision>, StoreError> {
        self.timed("read_revision", self.inner.read_revision(flow, revision)).await
    }

    async fn sweep(&self, retention: &Retention) -> Result<Swept, StoreError> {
        self.timed("sweep", self.inner.sweep(retention)).await
    }

    async fn beat(&self, beat: &Beat) -> Result<(), StoreError> {
        self.timed("beat", self.inner.beat(beat)).await
    }

    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError> {
        self.timed("leave", self.inner.leave(instance)).await
    }

    async fn list_instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.timed("list_instances", self.inner.list_instances()).await
    }

    async fn import(&self, copy: StoreCopy) -> Result<Imported, StoreError> {
        self.timed("import", self.inner.import(copy)).await
    }
}
