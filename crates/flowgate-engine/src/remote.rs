//! Workers in other processes: they claim jobs of worker steps from any instance and settle them at
//! any instance of the store.
//!
//! ```text
//!   claim ──► step.started is in the log ──► the worker has run id, step and token
//!                                              │ renews    │ completes, fails, releases
//!                                              ▼           ▼
//!                                        the lease holds   the outcome is in the log
//! ```
//!
//! - The lease is the worker's, under its id: nobody renews it but the worker. A worker that dies
//!   is noticed by the end of its lease; the job is due again, and a late result is refused.
//! - Nothing is kept here that another instance would need. Whoever settles reads the run, and the
//!   commit is guarded by the lease as any other.
//! - A job that cannot be handed out, because the caller is gone, goes back uncounted; should that
//!   fail too, its lease ends.
//! - Limits hold as they do for handlers: a job without a permit is parked, and permits are renewed
//!   and given back with the lease.
//! - The timeout of a step holds: from then on its lease is not renewed and nothing of it is taken.
//!   The attempt fails by it as soon as somebody notices: who renews, who settles, or who claims
//!   the job next.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::decide::Output;
use flowgate_core::ids::{LeaseToken, Revision, RunId};
use flowgate_core::payload::Payload;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_store::{LeaseRef, LogLevel, StoreError};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::Engine;
use crate::error::EngineError;

mod claim;
mod log;
mod seen;
mod settle;

pub use seen::{RemoteWorker, remote_workers, workers_seen};

/// The most jobs in one claim.
pub const CLAIM_MAX: usize = 100;
/// The most workers, or queues, that one claim names.
pub const NAMES_MAX: usize = 100;
/// The most leases in one renewal.
pub const RENEWALS_MAX: usize = 1_000;
/// The shortest lease of a remote worker.
pub const LEASE_MIN: Duration = Duration::from_secs(1);
/// The longest lease of a remote worker.
pub const LEASE_MAX: Duration = Duration::from_mins(10);
/// The longest that a claim waits.
pub const WAIT_MAX: Duration = Duration::from_secs(30);
/// Bytes of a worker's id.
pub const WORKER_ID_BYTES_MAX: usize = 128;
/// Attempts whose beginning is remembered here; of others the log tells.
const STARTED_MAX: usize = 50_000;

/// Who claims, what, and for how long.
#[derive(Clone, Debug)]
pub struct RemoteClaim {
    /// Who claims: its leases and events have this name.
    pub worker_id: Arc<str>,
    /// The workers whose steps it executes, as flows call them.
    pub workers: Vec<Arc<str>>,
    /// The queues that it takes them from; without it, the own queues of `workers`.
    pub queues: Option<Vec<Arc<str>>>,
    /// How many jobs it can take.
    pub max: usize,
    /// How long a lease lasts unless it is renewed.
    pub lease: Duration,
    /// How long to wait for a first job.
    pub wait: Duration,
}

/// A job that was handed out.
#[derive(Clone, Debug)]
pub struct RemoteJob {
    /// The run.
    pub run_id: RunId,
    /// Its flow.
    pub flow: Arc<str>,
    /// The revision that the run is pinned to.
    pub revision: Revision,
    /// The step.
    pub step: Arc<str>,
    /// The worker that the step calls.
    pub worker: Arc<str>,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The token of the lease.
    pub token: LeaseToken,
    /// The idempotency key, the same for every attempt of the step in the run.
    pub key: String,
    /// The input.
    pub input: Box<RawValue>,
    /// The state values of the run.
    pub state: BTreeMap<Arc<str>, Payload>,
    /// How long the lease lasts unless it is renewed.
    pub lease: Duration,
    /// When it ends, on the store's clock.
    pub expires_at: Timestamp,
    /// How long the attempt may take.
    pub timeout: Option<Duration>,
    /// Its place in the run's trace, as the header `traceparent` has it, if spans are exported.
    pub traceparent: Option<String>,
}

/// The lease of a job that was handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteLease {
    /// The run.
    pub run_id: RunId,
    /// The step.
    pub step: Arc<str>,
    /// The token.
    pub token: LeaseToken,
}

/// Why a remote attempt failed.
#[derive(Clone, Debug)]
pub struct RemoteFailure {
    /// What went wrong.
    pub message: String,
    /// Whether another attempt could end differently.
    pub retry: bool,
    /// When the next attempt should be, if the worker knows better than the step's policy.
    pub retry_after: Option<Duration>,
}

/// A log line of a remote attempt.
#[derive(Clone, Debug)]
pub struct RemoteLine {
    /// How serious it is.
    pub level: LogLevel,
    /// What it says.
    pub text: String,
}

/// What was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The run.
    pub run_id: RunId,
    /// Its status afterwards.
    pub status: RunStatus,
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum RemoteRenewal {
    /// The lease holds until then.
    Held(Timestamp),
    /// The run was cancelled: the worker should stop.
    Cancelled,
    /// The lease is gone: it ended, or the attempt has taken longer than it may. The worker should
    /// stop.
    LeaseLost,
}

/// Why nothing was handed out or settled.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RemoteError {
    /// There is no such run, or it has no such step, or that calls no worker.
    #[error("there is no run {run_id} with a step `{step}` that calls a worker")]
    NotFound {
        /// The run.
        run_id: RunId,
        /// The step.
        step: Arc<str>,
    },
    /// The token is not the current one, or its lease is over.
    #[error(
        "the lease {token} of step `{step}` in run {run_id} is not held any more: it ended, or \
         somebody else has the job; drop the result and claim again"
    )]
    Fenced {
        /// The run.
        run_id: RunId,
        /// The step.
        step: Arc<str>,
        /// The token.
        token: LeaseToken,
    },
    /// The run has ended.
    #[error("the run {run_id} has ended: it is {}; drop the result", .status.as_str())]
    RunTerminal {
        /// The run.
        run_id: RunId,
        /// How it ended.
        status: RunStatus,
    },
    /// What was handed over breaks a rule; nothing is changed.
    #[error("{message}")]
    Invalid {
        /// Where it is wrong.
        field: &'static str,
        /// What is wrong, and what would be right.
        message: String,
    },
    /// The engine could not do it.
    #[error(transparent)]
    Engine(EngineError),
}

impl RemoteError {
    /// The stable code of the HTTP API; none for what is not about remote workers.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::NotFound { .. } => Some("job_not_found"),
            Self::Fenced { .. } => Some("fenced"),
            Self::RunTerminal { .. } => Some("run_terminal"),
            Self::Invalid { .. } => Some("field_invalid"),
            Self::Engine(_) => None,
        }
    }
}

impl From<StoreError> for RemoteError {
    fn from(error: StoreError) -> Self {
        Self::Engine(error.into())
    }
}

/// What an instance remembers of remote workers. Nothing is wrong if it is lost.
#[derive(Debug, Default)]
pub(crate) struct RemoteBook {
    /// When attempts began that were handed out here.
    started: Mutex<HashMap<LeaseRef, Instant>>,
    seen: Mutex<HashMap<Arc<str>, seen::Noted>>,
}

impl RemoteBook {
    fn note_started(&self, lease: LeaseRef, now: Instant) {
        let mut started = self.started.lock();
        if started.len() >= STARTED_MAX {
            started.clear();
        }
        started.insert(lease, now);
    }

    fn started(&self, lease: LeaseRef) -> Option<Instant> {
        self.started.lock().get(&lease).copied()
    }

    fn forget(&self, lease: LeaseRef) {
        self.started.lock().remove(&lease);
    }
}

impl Engine {
    /// Hands out due jobs of worker steps to a worker in another process; none if none became due
    /// in `wait`. Their `step.started` is in the log.
    ///
    /// If the caller goes away before it has them, they go back to their queue.
    pub async fn claim_remote(&self, claim: RemoteClaim) -> Result<Vec<RemoteJob>, RemoteError> {
        claim::claim(self.instance(), claim).await
    }

    /// Extends leases to `lease` from now; the answers are in the same order.
    pub async fn renew_remote(
        &self,
        lease: Duration,
        leases: &[RemoteLease],
    ) -> Result<Vec<RemoteRenewal>, RemoteError> {
        settle::renew(self.instance(), lease, leases).await
    }

    /// An attempt ended well. Sent again under the same token, it is answered as the first time.
    pub async fn complete_remote(
        &self,
        lease: &RemoteLease,
        output: Output,
        lines: Vec<RemoteLine>,
    ) -> Result<Settled, RemoteError> {
        let settlement = settle::Settlement::Completed(output);
        settle::settle(self.instance(), lease, settlement, lines).await
    }

    /// An attempt failed. Sent again under the same token, it is answered as the first time.
    pub async fn fail_remote(
        &self,
        lease: &RemoteLease,
        failure: RemoteFailure,
        lines: Vec<RemoteLine>,
    ) -> Result<Settled, RemoteError> {
        let settlement = settle::Settlement::Failed(failure);
        settle::settle(self.instance(), lease, settlement, lines).await
    }

    /// A worker gives a job back; the attempt does not count.
    pub async fn release_remote(&self, lease: &RemoteLease) -> Result<Settled, RemoteError> {
        settle::settle(self.instance(), lease, settle::Settlement::Released, Vec::new()).await
    }

    /// Emits an event at once, while the attempt goes on.
    pub async fn emit_remote(
        &self,
        lease: &RemoteLease,
        event: &str,
        data: Payload,
    ) -> Result<(), RemoteError> {
        settle::emit(self.instance(), lease, event, data).await
    }

    /// Keeps log lines of an attempt that goes on.
    pub async fn log_remote(
        &self,
        lease: &RemoteLease,
        lines: Vec<RemoteLine>,
    ) -> Result<(), RemoteError> {
        settle::log(self.instance(), lease, lines).await
    }
}
