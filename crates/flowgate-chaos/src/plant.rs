//! Bugs on purpose: a store that breaks one promise, to show that the judge sees it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::commit::{Claimed, Commit, Guard, JobChange};
use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::ids::{InstanceId, Position, Revision, RunId};
use flowgate_core::run::Run;
use flowgate_core::time::Timestamp;
use flowgate_store::{
    Beat, Claimant, CommitOutcome, Imported, InstanceRow, LeaseRef, LogLine, NewLogLine,
    NewRevision, Queues, Refusal, Renewal, Retention, RunDetail, RunQuery, RunRow, Store,
    StoreCopy, StoreError, StoredRevision, Swept,
};
use parking_lot::Mutex;

use crate::doom::Doom;

mod control;

/// A promise that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Bug {
    /// No commit checks the lease of its attempt.
    NoLeaseGuard,
    /// Only a success checks the lease: failures, beginnings and early emits do not.
    LeaseGuardOnSuccessOnly,
    /// The jobs of a commit are written after it, and sometimes the process is gone by then.
    EnqueueAfterAppend,
    /// The terminal event is written after the last step, and sometimes not at all.
    EndAfterAppend,
    /// Who loses the race for a version believes to have won.
    LoserReturnsEarly,
    /// A commit without an answer counts as written.
    SilenceMeansYes,
    /// A claim hands out again what was handed out before.
    ClaimTwice,
    /// What is decided again after a refusal is decided on what was known before.
    StaleRead,
    /// The attempt is counted when it ends, not when it begins.
    AttemptNotCounted,
    /// A start without an answer is sent again under another id.
    StartAgainUnderNewId,
    /// Renewals are always granted, and lost leases keep settling.
    FenceIgnored,
}

/// A store with a bug, if it was given one, whose process may be doomed.
#[derive(Debug)]
pub(crate) struct Planted {
    inner: Arc<dyn Store>,
    bug: Option<Bug>,
    doom: Arc<Doom>,
    /// Runs as they were when a job of theirs was last claimed.
    known: Mutex<HashMap<RunId, Arc<Run>>>,
    claimed: Mutex<Vec<Claimed>>,
}

/// Of a hundred, how many are hit by a bug that needs a crash at a bad moment.
const SHARE: u8 = 10;

fn by_chance() -> bool {
    fastrand::u8(0..100) < SHARE
}

impl Planted {
    pub(crate) fn new(inner: Arc<dyn Store>, bug: Option<Bug>, doom: Arc<Doom>) -> Self {
        Self { inner, bug, doom, known: Mutex::default(), claimed: Mutex::default() }
    }

    fn spoil(&self, commit: &mut Commit) {
        let is_lease = |guard: &Guard| matches!(guard, Guard::LeaseHeld { .. });
        let Some(bug) = self.bug else { return };
        match bug {
            Bug::NoLeaseGuard | Bug::FenceIgnored => commit.guards.retain(|g| !is_lease(g)),
            Bug::LeaseGuardOnSuccessOnly => {
                let succeeds = |event: &Event| matches!(event, Event::StepSucceeded { .. });
                if !commit.events.iter().any(succeeds) {
                    commit.guards.retain(|guard| !is_lease(guard));
                }
            }
            Bug::EnqueueAfterAppend if by_chance() => {
                commit.jobs.retain(|change| !matches!(change, JobChange::Add { .. }));
            }
            Bug::EndAfterAppend if commit.record.status.is_terminal() && by_chance() => {
                let mut record = (*commit.record).clone();
                record.status = flowgate_core::run::RunStatus::Running;
                record.version -= 1;
                commit.events.pop();
                commit.record = Arc::new(record);
            }
            Bug::StartAgainUnderNewId if commit.version_before() == 0 && by_chance() => {
                let mut record = (*commit.record).clone();
                record.run_id = RunId(uuid::Uuid::now_v7());
                commit.run_id = record.run_id;
                commit.commit_id = flowgate_core::ids::CommitId(uuid::Uuid::now_v7());
                for change in &mut commit.jobs {
                    if let JobChange::Add { job, .. } = change {
                        job.job_id.run_id = record.run_id;
                    }
                }
                commit.record = Arc::new(record);
            }
            Bug::EnqueueAfterAppend
            | Bug::EndAfterAppend
            | Bug::StartAgainUnderNewId
            | Bug::LoserReturnsEarly
            | Bug::SilenceMeansYes
            | Bug::ClaimTwice
            | Bug::StaleRead
            | Bug::AttemptNotCounted => {}
        }
    }

    fn know(&self, claimed: &[Claimed]) {
        let runs = claimed.iter().map(|claimed| (claimed.job.job_id.run_id, claimed.run.clone()));
        self.known.lock().extend(runs);
    }
}

#[async_trait]
impl Store for Planted {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.inner.now().await
    }

    async fn commit(
        &self,
        mut commits: Vec<Commit>,
        claimant: Option<&Claimant>,
    ) -> Result<Vec<CommitOutcome>, StoreError> {
        if self.bug.is_none() {
            return self.inner.commit(commits, claimant).await;
        }
        let original = commits.clone();
        for commit in &mut commits {
            self.spoil(commit);
        }
        // The caller gets its own run too, as it would if only the answer had been lost.
        let is_other = |(spoilt, asked): &(&Commit, &Commit)| spoilt.run_id != asked.run_id;
        let doubled: Vec<Commit> =
            commits.iter().zip(&original).filter(is_other).map(|(_, c)| c.clone()).collect();
        let count = commits.len();
        if !doubled.is_empty() {
            self.inner.commit(doubled, None).await?;
        }
        let outcomes = match self.inner.commit(commits, claimant).await {
            Err(error) if self.bug == Some(Bug::SilenceMeansYes) && error.is_transient() => {
                return Ok(vec![CommitOutcome::Applied { handed_off: Vec::new() }; count]);
            }
            outcomes => outcomes?,
        };
        let judged = outcomes.into_iter().zip(original).map(|(outcome, asked)| match outcome {
            CommitOutcome::Refused(Refusal::RunVersion)
                if self.bug == Some(Bug::LoserReturnsEarly) && asked.version_before() > 0 =>
            {
                CommitOutcome::Applied { handed_off: Vec::new() }
            }
            CommitOutcome::Applied { mut handed_off } => {
                handed_off.retain(|claimed| claimed.job.job_id.run_id == asked.run_id);
                self.know(&handed_off);
                CommitOutcome::Applied { handed_off }
            }
            CommitOutcome::Refused(refusal) => CommitOutcome::Refused(refusal),
        });
        Ok(judged.collect())
    }

    async fn claim(&self, claimant: &Claimant) -> Result<Vec<Claimed>, StoreError> {
        let mut claimed = self.inner.claim(claimant).await?;
        let Some(bug) = self.bug else { return Ok(claimed) };
        self.know(&claimed);
        match bug {
            Bug::ClaimTwice => {
                let mut before = self.claimed.lock();
                if claimed.len() < claimant.slots && by_chance() {
                    claimed.extend(before.pop());
                }
                before.extend(claimed.iter().take(1).cloned());
                before.truncate(100);
            }
            Bug::AttemptNotCounted => {
                for claimed in &mut claimed {
                    claimed.job.attempt = claimed.job.attempt.saturating_sub(1).max(1);
                }
            }
            Bug::NoLeaseGuard
            | Bug::LeaseGuardOnSuccessOnly
            | Bug::EnqueueAfterAppend
            | Bug::EndAfterAppend
            | Bug::LoserReturnsEarly
            | Bug::SilenceMeansYes
            | Bug::StaleRead
            | Bug::StartAgainUnderNewId
            | Bug::FenceIgnored => {}
        }
        Ok(claimed)
    }

    async fn wait_due(&self, queues: &Queues, wait_max: Duration) -> Result<(), StoreError> {
        self.inner.wait_due(queues, wait_max).await
    }

    async fn renew(
        &self,
        leases: &[LeaseRef],
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        let now = self.inner.now().await?;
        let renewals = self.inner.renew(leases, lease).await?;
        if self.bug == Some(Bug::FenceIgnored) {
            return Ok(renewals.iter().map(|_| Renewal::Held(now.plus(lease))).collect());
        }
        Ok(renewals)
    }

    async fn read_run(&self, run_id: RunId) -> Result<Option<RunDetail>, StoreError> {
        let mut found = self.inner.read_run(run_id).await?;
        if self.bug == Some(Bug::StaleRead)
            && let Some(found) = &mut found
            && let Some(known) = self.known.lock().get(&run_id)
        {
            let version = found.row.run.version;
            found.row.run = Arc::new(Run { version, ..Run::clone(known) });
        }
        Ok(found)
    }

    async fn read_events(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.inner.read_events(run_id, after, limit).await
    }

    fn feeds(&self) -> u16 {
        self.inner.feeds()
    }

    async fn feed_end(&self, feed: u16) -> Result<Position, StoreError> {
        self.inner.feed_end(feed).await
    }

    async fn read_feed(
        &self,
        feed: u16,
        after: Position,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.inner.read_feed(feed, after, limit).await
    }

    async fn wait_feed(
        &self,
        feed: u16,
        after: Position,
        wait_max: Duration,
    ) -> Result<(), StoreError> {
        self.inner.wait_feed(feed, after, wait_max).await
    }

    async fn list_runs(&self, query: &RunQuery) -> Result<Vec<RunRow>, StoreError> {
        self.inner.list_runs(query).await
    }

    async fn count_runs(&self, query: &RunQuery) -> Result<u64, StoreError> {
        self.inner.count_runs(query).await
    }

    async fn append_logs(&self, lines: Vec<NewLogLine>) -> Result<(), StoreError> {
        self.inner.append_logs(lines).await
    }

    async fn read_logs(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LogLine>, StoreError> {
        self.inner.read_logs(run_id, after, limit).await
    }

    async fn register_flow(&self, revision: NewRevision) -> Result<(), StoreError> {
        self.inner.register_flow(revision).await
    }

    async fn list_revisions(&self, flow: Option<&str>) -> Result<Vec<StoredRevision>, StoreError> {
        self.inner.list_revisions(flow).await
    }

    async fn read_revision(
        &self,
        flow: &str,
        revision: Option<&Revision>,
    ) -> Result<Option<StoredRevision>, StoreError> {
        self.inner.read_revision(flow, revision).await
    }

    async fn sweep(&self, retention: &Retention) -> Result<Swept, StoreError> {
        self.inner.sweep(retention).await
    }

    async fn beat(&self, beat: &Beat) -> Result<(), StoreError> {
        self.inner.beat(beat).await
    }

    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError> {
        self.inner.leave(instance).await
    }

    async fn list_instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.inner.list_instances().await
    }

    async fn import(&self, copy: StoreCopy) -> Result<Imported, StoreError> {
        self.inner.import(copy).await
    }
}
