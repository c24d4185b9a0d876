//! A store that fails on command, for tests of whoever uses one.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::commit::{Claimed, Commit};
use flowgate_core::event::StoredEvent;
use flowgate_core::ids::{InstanceId, Position, Revision, RunId};
use flowgate_core::time::Timestamp;
use parking_lot::Mutex;

use crate::{
    Beat, Claimant, CommitOutcome, Imported, InstanceRow, LeaseRef, LogLine, NewLogLine,
    NewRevision, Queues, Refusal, Renewal, Retention, RunDetail, RunQuery, RunRow, Store,
    StoreCopy, StoreError, StoredRevision, Swept,
};

mod control;

/// The kinds of call that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// [`Store::now`]
    Now,
    /// [`Store::commit`]
    Commit,
    /// [`Store::claim`]
    Claim,
    /// [`Store::wait_due`]
    WaitDue,
    /// [`Store::renew`]
    Renew,
    /// Every call that only reads.
    Read,
    /// [`Store::append_logs`]
    AppendLogs,
    /// [`Store::register_flow`]
    RegisterFlow,
    /// [`Store::sweep`]
    Sweep,
    /// [`Store::beat`] and [`Store::leave`]
    Beat,
    /// [`Store::import`]
    Import,
    /// [`Control::take_term`](crate::Control::take_term) and its release
    Terms,
    /// [`Control::write_records`](crate::Control::write_records)
    Records,
    /// [`Control::take_permits`](crate::Control::take_permits) and their release
    Permits,
    /// [`Control::wake_jobs`](crate::Control::wake_jobs)
    Wake,
    /// [`Control::tell`](crate::Control::tell)
    Tell,
    /// [`Control::wait_told`](crate::Control::wait_told)
    WaitTold,
    /// [`Control::lock_session`](crate::Control::lock_session) and its end
    Lock,
}

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails, and nothing of it is done.
    NotDone,
    /// It is done, and its reply is lost.
    ReplyLost,
    /// It is done after this time.
    Delayed(Duration),
    /// It is done, and its reply comes after this time.
    ReplyLate(Duration),
}

/// A store around another one that fails on command. Without commands it changes nothing.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn Store>,
    planned: Mutex<HashMap<Call, Planned>>,
    random: Option<Random>,
    drops_wake_ups: AtomicBool,
    /// Commits that are still to come second.
    seconds: AtomicU32,
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    fault: Fault,
    times: u32,
}

#[derive(Debug)]
struct Random {
    seed: u64,
    share: f64,
    source: Mutex<fastrand::Rng>,
}

impl Faulty {
    /// `inner`, failing on command only.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            planned: Mutex::default(),
            random: None,
            drops_wake_ups: AtomicBool::new(false),
            seconds: AtomicU32::new(0),
        }
    }

    /// `inner`, failing also by chance: a `share` of the calls, from 0 to 1. The seed is printed.
    #[expect(clippy::print_stderr, reason = "a failed test shows the seed that it can be rerun by")]
    pub fn random(inner: Arc<dyn Store>, seed: u64, share: f64) -> Self {
        eprintln!("the faults of this store come from the seed {seed}");
        let source = Mutex::new(fastrand::Rng::with_seed(seed));
        Self { random: Some(Random { seed, share, source }), ..Self::new(inner) }
    }

    /// The next `times` calls of this kind go wrong in this way.
    pub fn plan(&self, call: Call, fault: Fault, times: u32) {
        self.planned.lock().insert(call, Planned { fault, times });
    }

    /// From now on a wait lasts as long as it may, whatever becomes due.
    pub fn drop_wake_ups(&self, drops: bool) {
        self.drops_wake_ups.store(drops, Ordering::SeqCst);
    }

    /// In the next `times` calls somebody else was first with every run.
    pub fn come_second(&self, times: u32) {
        self.seconds.store(times, Ordering::SeqCst);
    }

    fn draw(&self, call: Call) -> Option<Fault> {
        if let Some(planned) = self.planned.lock().get_mut(&call)
            && planned.times > 0
        {
            planned.times -= 1;
            return Some(planned.fault);
        }
        let random = self.random.as_ref()?;
        let mut source = random.source.lock();
        if source.f64() >= random.share {
            return None;
        }
        Some(match source.u8(0..3) {
            0 => Fault::NotDone,
            1 => Fault::ReplyLost,
            _ => Fault::Delayed(Duration::from_millis(source.u64(1..20))),
        })
    }

    async fn pass<T>(
        &self,
        call: Call,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match self.draw(call) {
            None => work.await,
            Some(Fault::NotDone) => Err(self.failure(call, "was not done")),
            Some(Fault::ReplyLost) => {
                work.await?;
                Err(self.failure(call, "was done, and its reply is lost"))
            }
            Some(Fault::Delayed(span)) => {
                tokio::time::sleep(span).await;
                work.await
            }
            Some(Fault::ReplyLate(span)) => {
                let reply = work.await;
                tokio::time::sleep(span).await;
                reply
            }
        }
    }

    fn failure(&self, call: Call, what: &str) -> StoreError {
        let seed = self.random.as_ref().map(|random| format!(" (seed {})", random.seed));
        let message = format!("{call:?} {what}, on command{}", seed.unwrap_or_default());
        StoreError::Unavailable { message, source: None }
    }
}

#[async_trait]
impl Store for Faulty {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.pass(Call::Now, self.inner.now()).await
    }

    async fn commit(
        &self,
        commits: Vec<Commit>,
        claimant: Option<&Claimant>,
    ) -> Result<Vec<CommitOutcome>, StoreError> {
        let one_less = |times: u32| times.checked_sub(1);
        if self.seconds.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
            let second = CommitOutcome::Refused(Refusal::RunVersion);
            return Ok(commits.iter().map(|_| second.clone()).collect());
        }
        self.pass(Call::Commit, self.inner.commit(commits, claimant)).await
    }

    async fn claim(&self, claimant: &Claimant) -> Result<Vec<Claimed>, StoreError> {
        self.pass(Call::Claim, self.inner.claim(claimant)).await
    }

    async fn wait_due(&self, queues: &Queues, wait_max: Duration) -> Result<(), StoreError> {
        if self.drops_wake_ups.load(Ordering::SeqCst) {
            tokio::time::sleep(wait_max).await;
            return Ok(());
        }
        self.pass(Call::WaitDue, self.inner.wait_due(queues, wait_max)).await
    }

    async fn renew(
        &self,
        leases: &[LeaseRef],
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        self.pass(Call::Renew, self.inner.renew(leases, lease)).await
    }

    async fn read_run(&self, run_id: RunId) -> Result<Option<RunDetail>, StoreError> {
        self.pass(Call::Read, self.inner.read_run(run_id)).await
    }

    async fn read_events(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.pass(Call::Read, self.inner.read_events(run_id, after, limit)).await
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
        self.pass(Call::Read, self.inner.read_feed(feed, after, limit)).await
    }

    async fn feed_end(&self, feed: u16) -> Result<Position, StoreError> {
        self.pass(Call::Read, self.inner.feed_end(feed)).await
    }

    async fn wait_feed(
        &self,
        feed: u16,
        after: Position,
        wait_max: Duration,
    ) -> Result<(), StoreError> {
        self.pass(Call::Read, self.inner.wait_feed(feed, after, wait_max)).await
    }

    async fn list_runs(&self, query: &RunQuery) -> Result<Vec<RunRow>, StoreError> {
        self.pass(Call::Read, self.inner.list_runs(query)).await
    }

    async fn count_runs(&self, query: &RunQuery) -> Result<u64, StoreError> {
        self.pass(Call::Read, self.inner.count_runs(query)).await
    }

    async fn append_logs(&self, lines: Vec<NewLogLine>) -> Result<(), StoreError> {
        self.pass(Call::AppendLogs, self.inner.append_logs(lines)).await
    }

    async fn read_logs(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LogLine>, StoreError> {
        self.pass(Call::Read, self.inner.read_logs(run_id, after, limit)).await
    }

    async fn register_flow(&self, revision: NewRevision) -> Result<(), StoreError> {
        self.pass(Call::RegisterFlow, self.inner.register_flow(revision)).await
    }

    async fn list_revisions(&self, flow: Option<&str>) -> Result<Vec<StoredRevision>, StoreError> {
        self.pass(Call::Read, self.inner.list_revisions(flow)).await
    }

    async fn read_revision(
        &self,
        flow: &str,
        revision: Option<&Revision>,
    ) -> Result<Option<StoredRevision>, StoreError> {
        self.pass(Call::Read, self.inner.read_revision(flow, revision)).await
    }

    async fn sweep(&self, retention: &Retention) -> Result<Swept, StoreError> {
        self.pass(Call::Sweep, self.inner.sweep(retention)).await
    }

    async fn beat(&self, beat: &Beat) -> Result<(), StoreError> {
        self.pass(Call::Beat, self.inner.beat(beat)).await
    }

    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError> {
        self.pass(Call::Beat, self.inner.leave(instance)).await
    }

    async fn list_instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.pass(Call::Read, self.inner.list_instances()).await
    }

    async fn import(&self, copy: StoreCopy) -> Result<Imported, StoreError> {
        self.pass(Call::Import, self.inner.import(copy)).await
    }
}
