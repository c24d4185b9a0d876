//! What waits for the committer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flowgate_core::commit::Commit;
use flowgate_core::decide::{self, Report, Start};
use flowgate_core::ids::{CommitId, RunId};
use flowgate_core::run::Run;
use flowgate_store::StoreError;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::attempt::Attempt;
use crate::clock;
use crate::error::CommitError;
use crate::flows::LoadedFlow;

/// Who waits for a commit's answer: the record after it.
pub(crate) type Reply = oneshot::Sender<Result<Arc<Run>, CommitError>>;

/// Something for the committer.
#[derive(Debug)]
pub(crate) enum Inbound {
    /// Something happened to a run.
    Report(Item),
    /// A new run.
    Start(Box<NewRun>),
    /// A run was read again after a refusal.
    Reread { run_id: RunId, found: Result<Option<Arc<Run>>, StoreError> },
}

/// A report that waits to be decided, or was decided and waits for the store.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) run_id: RunId,
    pub(crate) report: Report,
    /// The attempt that it is about.
    pub(crate) attempt: Option<Arc<Attempt>>,
    /// The run, where this instance may not have it in flight.
    pub(crate) seed: Option<Box<Seed>>,
    pub(crate) reply: Option<Reply>,
    /// How often its commit came second.
    pub(crate) refusals: u32,
}

/// A run and its revision.
#[derive(Clone, Debug)]
pub(crate) struct Seed {
    pub(crate) run: Arc<Run>,
    pub(crate) flow: Arc<LoadedFlow>,
}

/// A run to begin.
#[derive(Debug)]
pub(crate) struct NewRun {
    pub(crate) flow: Arc<LoadedFlow>,
    pub(crate) origin: Origin,
    pub(crate) commit_id: CommitId,
    pub(crate) reply: Reply,
    /// The commit as it was decided where the start was asked for.
    pub(crate) decided: Option<Commit>,
}

/// Where a new run comes from. The commit can be made from it again.
#[derive(Debug)]
pub(crate) enum Origin {
    /// Somebody started it.
    Start(Start),
    /// It tries another run again.
    Retry(Box<Commit>),
}

impl NewRun {
    pub(crate) fn run_id(&self) -> RunId {
        match &self.origin {
            Origin::Start(start) => start.run_id,
            Origin::Retry(commit) => commit.run_id,
        }
    }

    /// The commit, the same at each call.
    pub(crate) fn commit(&mut self) -> Commit {
        self.decided.take().unwrap_or_else(|| match &self.origin {
            Origin::Start(start) => decide::start(&self.flow.flow, start, self.commit_id),
            Origin::Retry(commit) => (**commit).clone(),
        })
    }
}

/// The committer's only way in. Attempts in flight bound what reports it holds; everybody else
/// waits for an answer.
#[derive(Debug)]
pub(crate) struct Inbox {
    waiting: Mutex<Waiting>,
    arrived: Notify,
    is_closed: AtomicBool,
    /// Whether somebody put something in and will wake the committer later.
    has_quiet: AtomicBool,
}

#[derive(Debug)]
struct Waiting {
    inbound: Vec<Inbound>,
    /// When the first of them came.
    since: Instant,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        let waiting = Waiting { inbound: Vec::new(), since: clock::now() };
        Self {
            waiting: Mutex::new(waiting),
            arrived: Notify::new(),
            is_closed: AtomicBool::new(false),
            has_quiet: AtomicBool::new(false),
        }
    }

    pub(crate) fn push(&self, inbound: Inbound) {
        // What came before may have come quietly, and its waker may be busy for a while.
        let is_first = self.put(inbound);
        if is_first || self.has_quiet.swap(false, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Puts several things in, for the committer to find together.
    pub(crate) fn push_all(&self, inbound: Vec<Inbound>) {
        let mut waiting = self.waiting.lock();
        if waiting.inbound.is_empty() {
            waiting.since = clock::now();
        }
        waiting.inbound.extend(inbound);
        drop(waiting);
        self.wake();
    }

    /// Wakes the committer.
    pub(crate) fn wake(&self) {
        self.arrived.notify_one();
    }

    /// Puts something in without waking the committer; whether it was empty before.
    fn put(&self, inbound: Inbound) -> bool {
        let mut waiting = self.waiting.lock();
        let is_first = waiting.inbound.is_empty();
        if is_first {
            waiting.since = clock::now();
        }
        waiting.inbound.push(inbound);
        is_first
    }

    /// Like [`Self::report`], by somebody who wakes the committer a little later.
    pub(crate) fn report_quietly(&self, attempt: Arc<Attempt>, report: Report) {
        let run_id = attempt.claimed.job.job_id.run_id;
        let attempt = Some(attempt);
        self.has_quiet.store(true, Ordering::Release);
        self.put(Inbound::Report(Item {
            run_id,
            report,
            attempt,
            seed: None,
            reply: None,
            refusals: 0,
        }));
    }

    /// A report about an attempt of this instance.
    pub(crate) fn report(&self, attempt: Arc<Attempt>, report: Report, reply: Option<Reply>) {
        let run_id = attempt.claimed.job.job_id.run_id;
        self.push(Inbound::Report(Item {
            run_id,
            report,
            attempt: Some(attempt),
            seed: None,
            reply,
            refusals: 0,
        }));
    }

    /// Moves all that waits to `into`, which is empty; since when the first has waited.
    pub(crate) fn take(&self, into: &mut Vec<Inbound>) -> Option<Instant> {
        let mut waiting = self.waiting.lock();
        std::mem::swap(&mut waiting.inbound, into);
        (!into.is_empty()).then_some(waiting.since)
    }

    /// Returns when something may wait, or the inbox is closed.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.lock().inbound.is_empty()
    }

    /// Nothing that matters comes any more: the committer ends once it has nothing to do.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.arrived.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}
