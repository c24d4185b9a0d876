//! The store contract, the stores, and the suite that they pass.
//!
//! A store checks the guards of a [`Commit`] and applies all of it or nothing. It does not know
//! what a flow is: every rule is decided before, in `flowgate-core`.
//!
//! What every store promises, each a group of cases in the conformance suite:
//!
//! - **S1** A commit is atomic: all or nothing.
//! - **S2** It applies only if every guard holds.
//! - **S3** Of two commits on one version exactly one applies.
//! - **S4** A commit whose reply was lost can be sent again: it is recognised as applied.
//! - **S5** Event numbers are gapless per run; positions are in commit order, and a reader never
//!   sees one appear behind it. A store may have several feeds; a run is in one of them.
//! - **S6** Time is the store's time; no caller passes it in.
//! - **S7** Calls take batches, and each commit has its own outcome.
//! - **S8** A commit that makes a job due wakes a waiting claimer; losing every wake-up loses no
//!   job.
//! - **S9** A lease token only grows; an expired lease cannot settle, even before somebody else
//!   claims the job.
//! - **S10** Every size has a named limit, refused before writing.
//! - **S11** A run starts at the generation of its flow's gate that the commit names, or not at
//!   all; once a gate is set, no start of an older generation applies.
#![warn(missing_docs)]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::commit::{Claimed, Commit, Job};
use flowgate_core::decide::MovedJob;
use flowgate_core::event::{LeaseStamp, StoredEvent};
use flowgate_core::flow::FlowFile;
use flowgate_core::gate::GateStamp;
use flowgate_core::ids::{InstanceId, JobId, LeaseToken, Position, Revision, RunId};
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::pool;
use flowgate_core::run::{Run, RunStatus};
use flowgate_core::time::Timestamp;
use serde::{Deserialize, Serialize};

pub mod breaker;
mod changes;
pub mod clock;
#[cfg(feature = "testing")]
pub mod conformance;
pub mod control;
pub mod copy;
mod error;
#[cfg(feature = "testing")]
pub mod faulty;
mod finding;
mod instances;
pub mod instrumented;
pub mod memory;
mod open;
mod per_runtime;
mod permits;
pub mod postgres;
pub mod redis;
pub mod session;
mod shorthand;
pub mod sqlite;
mod told;
pub mod url;
mod wait;

pub use breaker::{Breaker, BreakerState};
pub use clock::Clock;
pub use control::Control;
pub use error::StoreError;
pub use finding::{Finding, Level};
pub use instrumented::Instrumented;
pub use memory::MemoryStore;
pub use postgres::{PostgresOptions, PostgresStore};
pub use redis::{RedisOptions, RedisStore, RedisUrlError};
pub use session::{HeldSession, SessionLock};
pub use sqlite::{SqliteOptions, SqliteStore, Synchronous};
pub use url::{StoreUrl, open_shared};

/// A place where runs live.
#[async_trait]
pub trait Store: Control + fmt::Debug {
    /// Its kind, as in the first part of its URL: `memory`, `sqlite`, `redis`, `redis-cluster`,
    /// `postgres`.
    fn kind(&self) -> &'static str;

    /// Whether more than one instance may use it at the same time.
    fn is_shared(&self) -> bool {
        true
    }

    /// The time on its clock.
    async fn now(&self) -> Result<Timestamp, StoreError>;

    /// Applies each of `commits` or refuses it, in order; the outcomes are in the same order.
    ///
    /// With a claimant, jobs that a commit adds, that are due at once and that are in one of its
    /// queues are leased to it in the same commit, as long as it has slots.
    async fn commit(
        &self,
        commits: Vec<Commit>,
        claimant: Option<&Claimant>,
    ) -> Result<Vec<CommitOutcome>, StoreError>;

    /// Leases due jobs, the longest due first, up to the claimant's slots.
    ///
    /// A job that was due when it was queued counts as due for longer by
    /// [`control::PRIORITY_HEAD_START`] for each step of its priority.
    ///
    /// A job whose lease expired is due. Each claim counts as an attempt.
    async fn claim(&self, claimant: &Claimant) -> Result<Vec<Claimed>, StoreError>;

    /// Returns when a job of `queues` may be due, and after `wait_max` at the latest.
    async fn wait_due(&self, queues: &Queues, wait_max: Duration) -> Result<(), StoreError>;

    /// Extends leases to `lease` from now.
    async fn renew(&self, leases: &[LeaseRef], lease: Duration)
    -> Result<Vec<Renewal>, StoreError>;

    /// A run with its open jobs.
    async fn read_run(&self, run_id: RunId) -> Result<Option<RunDetail>, StoreError>;

    /// Events of a run with numbers over `after`, in order, at most `limit`.
    async fn read_events(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError>;

    /// How many feeds it has. All events of a run are in one of them.
    fn feeds(&self) -> u16;

    /// Events of the feed with this index at positions over `after`, in commit order, at most
    /// `limit`.
    async fn read_feed(
        &self,
        feed: u16,
        after: Position,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError>;

    /// The end of the feed with this index: what can be read now is at or before it, and what is
    /// committed from now on is after it.
    async fn feed_end(&self, feed: u16) -> Result<Position, StoreError>;

    /// Returns when the feed with this index may hold an event over `after`, and after `wait_max`
    /// at the latest.
    async fn wait_feed(
        &self,
        feed: u16,
        after: Position,
        wait_max: Duration,
    ) -> Result<(), StoreError>;

    /// Runs that match `query`, the latest started first, at most its limit.
    async fn list_runs(&self, query: &RunQuery) -> Result<Vec<RunRow>, StoreError>;

    /// How many runs match `query`, its cursor and its limit aside.
    async fn count_runs(&self, query: &RunQuery) -> Result<u64, StoreError>;

    /// Keeps log lines of steps. They belong to no commit, and their order per run is kept.
    async fn append_logs(&self, lines: Vec<NewLogLine>) -> Result<(), StoreError>;

    /// Log lines of a run with numbers over `after`, in order, at most `limit`.
    async fn read_logs(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LogLine>, StoreError>;

    /// Keeps a revision of a flow and makes it the active one. Known revisions keep their time, and
    /// who registered them.
    async fn register_flow(&self, revision: NewRevision) -> Result<(), StoreError>;

    /// The revisions of `flow`, or of all flows, the latest registered first within a flow.
    async fn list_revisions(&self, flow: Option<&str>) -> Result<Vec<StoredRevision>, StoreError>;

    /// One revision of a flow: that of this name, or else the active one. It costs the same however
    /// many the flow has.
    async fn read_revision(
        &self,
        flow: &str,
        revision: Option<&Revision>,
    ) -> Result<Option<StoredRevision>, StoreError>;

    /// Removes what is older than `retention` and records that have expired, a bounded share of
    /// them in one call.
    async fn sweep(&self, retention: &Retention) -> Result<Swept, StoreError>;

    /// Notes that an instance is there. Instances that have been silent for a day are forgotten.
    async fn beat(&self, beat: &Beat) -> Result<(), StoreError>;

    /// Notes that an instance has ended.
    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError>;

    /// The instances that have not left, in the order of their first beats.
    async fn list_instances(&self) -> Result<Vec<InstanceRow>, StoreError>;

    /// Writes revisions and whole runs as another store had them. A revision or run that is there
    /// already stays as it is.
    ///
    /// Tokens that are granted later are greater than those in the copy. Positions are this
    /// store's own.
    async fn import(&self, copy: StoreCopy) -> Result<Imported, StoreError>;
}

/// All events of a run, read in pages.
pub async fn whole_log(store: &dyn Store, run_id: RunId) -> Result<Vec<StoredEvent>, StoreError> {
    let mut events: Vec<StoredEvent> = Vec::new();
    loop {
        let after = events.last().map_or(0, |stored| stored.seq);
        let page = store.read_events(run_id, after, PAGE_MAX).await?;
        let is_last = page.len() < PAGE_MAX;
        events.extend(page);
        if is_last {
            return Ok(events);
        }
    }
}

/// What an instance says of itself, again and again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// The instance.
    pub instance: InstanceId,
    /// Its process id on its host.
    pub pid: u32,
    /// The version of flowgate that it runs.
    pub version: Arc<str>,
    /// What it is for, if it was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Arc<str>>,
    /// A label that those who run it gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Arc<str>>,
    /// The queues that it serves; none if it serves all.
    pub queues: Option<Vec<Arc<str>>>,
    /// The workers whose steps it executes itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<Arc<str>>,
    /// How many attempts it can execute at a time.
    pub slots: u32,
    /// How many it executes now.
    pub running: u32,
    /// What it is doing.
    pub state: InstanceState,
    /// How strained it is.
    #[serde(default)]
    pub degradation: Degradation,
    /// What strains it, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strained_by: Option<Arc<str>>,
    /// How long it may be silent, in milliseconds, before something is wrong.
    pub silent_ms_max: u64,
}

/// What an instance is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstanceState {
    /// It works.
    Ready,
    /// It finishes what it has and takes nothing new.
    Stopping,
}

/// How strained an instance is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Degradation {
    /// Not at all.
    #[default]
    Normal,
    /// It does less, so that what it has goes on.
    Degraded,
    /// It takes on no new runs.
    Critical,
}

impl Degradation {
    /// As it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Degraded => "degraded",
            Self::Critical => "critical",
        }
    }
}

/// An instance as a store knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceRow {
    /// What it said last.
    pub beat: Beat,
    /// When it was first heard of.
    pub started_at: Timestamp,
    /// When it was last heard of.
    pub seen_at: Timestamp,
}

/// Part of a store, to be written into another one.
#[derive(Clone, Debug, Default)]
pub struct StoreCopy {
    /// Revisions, the first registered first.
    pub revisions: Vec<StoredRevision>,
    /// Runs, each whole.
    pub runs: Vec<RunCopy>,
}

/// All of a run.
#[derive(Clone, Debug)]
pub struct RunCopy {
    /// The run.
    pub row: RunRow,
    /// Its open jobs, none of them under a lease.
    pub jobs: Vec<JobCopy>,
    /// Its events in order, from the first; none if retention has removed them.
    pub events: Vec<StoredEvent>,
    /// Its log lines in order.
    pub log_lines: Vec<LogLine>,
}

/// An open job that nobody holds.
#[derive(Clone, Debug)]
pub struct JobCopy {
    /// The job.
    pub job: Job,
    /// When it is due.
    pub due_at: Timestamp,
    /// Leases that ended without a word and are not in the log yet.
    pub lost: Vec<LeaseStamp>,
}

impl RunCopy {
    /// The greatest token in it.
    pub fn token_max(&self) -> LeaseToken {
        let logged = self.events.iter().filter_map(|stored| stored.event.lease());
        let lost = self.jobs.iter().flat_map(|job| &job.lost);
        logged.chain(lost).map(|lease| lease.token).max().unwrap_or(LeaseToken(0))
    }
}

/// What an import wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Revisions that were not there before.
    pub revisions: u64,
    /// Runs that were not there before.
    pub runs: u64,
}

/// Who claims, what, and for how long.
#[derive(Clone, Debug)]
pub struct Claimant {
    /// The instance.
    pub instance: InstanceId,
    /// The queues that it serves.
    pub queues: Queues,
    /// How many jobs it can take.
    pub slots: usize,
    /// How long a lease lasts unless it is renewed.
    pub lease: Duration,
}

/// A choice of queues. Those of a pool ([`flowgate_core::pool`]) are in it only where that pool, or
/// the very queue, is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Queues {
    /// All of no pool.
    All,
    /// These.
    Only(Vec<Arc<str>>),
    /// All of no pool but these.
    AllBut(Vec<Arc<str>>),
    /// All of no pool and all of one.
    AllOf {
        /// The pool.
        pool: Arc<str>,
        /// But these.
        but: Vec<Arc<str>>,
    },
}

impl Queues {
    /// Whether `queue` is one of them.
    pub fn contains(&self, queue: &str) -> bool {
        let is_one_of = |names: &[Arc<str>]| names.iter().any(|name| **name == *queue);
        let pool_of = |queue| pool::split(queue).1;
        match self {
            Self::All => pool_of(queue).is_none(),
            Self::Only(names) => is_one_of(names),
            Self::AllBut(names) => pool_of(queue).is_none() && !is_one_of(names),
            Self::AllOf { pool, but } => {
                pool_of(queue).is_none_or(|of| *of == **pool) && !is_one_of(but)
            }
        }
    }
}

/// What became of a commit.
#[derive(Clone, Debug)]
#[must_use]
pub enum CommitOutcome {
    /// It is written, now or by an earlier call with the same commit id.
    Applied {
        /// Jobs that it made due and that are leased to the claimant.
        handed_off: Vec<Claimed>,
    },
    /// Nothing of it is written.
    Refused(Refusal),
}

/// Why a commit was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is a run with this id.
    RunExists,
    /// The run is at another version, or there is none.
    RunVersion,
    /// The lease is not held: it expired, or the job is gone or somebody else's.
    LeaseLost(JobId),
    /// The gate of the flow is at another generation: this is it.
    GateMoved(GateStamp),
    /// The commit is over a limit.
    TooLarge {
        /// The bytes of its payloads.
        bytes: usize,
    },
}

/// A lease, by job and token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRef {
    /// The job.
    pub job_id: JobId,
    /// The token.
    pub token: LeaseToken,
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Renewal {
    /// The lease holds until then.
    Held(Timestamp),
    /// The lease is gone, and with it the right to settle.
    Lost,
}

/// A run in a listing.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRow {
    /// Its record.
    pub run: Arc<Run>,
    /// When its first commit was applied.
    pub started_at: Timestamp,
    /// When its last commit was applied.
    pub updated_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Whether retention has removed its events.
    pub events_removed: bool,
}

/// A run with its open jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct RunDetail {
    /// The run.
    pub row: RunRow,
    /// Its open jobs, in the order of their steps.
    pub jobs: Vec<JobDetail>,
}

/// An open job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobDetail {
    /// The job.
    pub job: Job,
    /// When it is due, or was.
    pub due_at: Timestamp,
    /// The lease that it is under, also one that has expired and that nobody has taken over.
    pub lease: Option<LeaseDetail>,
    /// Leases before that one that ended without a word and are not in the log yet.
    pub lost: Vec<LeaseStamp>,
}

impl JobDetail {
    /// What a decision that moves its run to another revision needs of it.
    pub fn to_move(&self) -> MovedJob {
        let stamp = |lease: &LeaseDetail| LeaseStamp {
            attempt: self.job.attempt,
            token: lease.token,
            instance: lease.instance.clone(),
        };
        MovedJob {
            step: self.job.job_id.step,
            attempt: self.job.attempt,
            due_at: self.due_at,
            lease: self.lease.as_ref().map(stamp),
            lost: self.lost.clone(),
        }
    }
}

/// A lease as a store knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseDetail {
    /// Its token.
    pub token: LeaseToken,
    /// Who holds it.
    pub instance: InstanceId,
    /// When it ends.
    pub expires_at: Timestamp,
}

/// Which runs to list.
#[derive(Clone, Debug, Default)]
pub struct RunQuery {
    /// Only those of this flow.
    pub flow: Option<Arc<str>>,
    /// Only those in one of these statuses; all if empty.
    pub statuses: Vec<RunStatus>,
    /// Only those started at or after this time.
    pub since: Option<Timestamp>,
    /// Only those started before this time.
    pub until: Option<Timestamp>,
    /// Only those with all of these tags, each a name and a value.
    pub tags: Vec<(Arc<str>, Arc<str>)>,
    /// Only those that come after this one in the listing.
    pub after: Option<RunCursor>,
    /// At most this many, and at most [`flowgate_core::limits::PAGE_MAX`].
    pub limit: usize,
}

/// A place in a listing of runs: a page ends at one, and the next begins after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunCursor {
    /// When the last run of the page was started.
    pub started_at: Timestamp,
    /// That run.
    pub run_id: RunId,
}

/// How serious a log line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// For whoever looks closely.
    Debug,
    /// For the record.
    Info,
    /// Something to look at.
    Warn,
    /// Something went wrong.
    Error,
}

impl LogLevel {
    /// As it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }

    /// The level called `name`.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Debug, Self::Info, Self::Warn, Self::Error].into_iter().find(|l| l.as_str() == name)
    }
}

/// A line that a step logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLogLine {
    /// The run.
    pub run_id: RunId,
    /// The step.
    pub step: Arc<str>,
    /// The attempt.
    pub attempt: u32,
    /// How serious it is.
    pub level: LogLevel,
    /// What it says; cut to [`flowgate_core::limits::LOG_LINE_BYTES_MAX`] by whoever made it.
    pub text: String,
}

/// A log line as a store returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Its number in the run, from 1. Lines over the limit are counted here but not kept.
    pub number: u64,
    /// When it was stored.
    pub at: Timestamp,
    /// The line.
    pub line: NewLogLine,
}

/// A revision to keep.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRevision {
    /// Its content address.
    pub revision: Revision,
    /// The flow as it was written.
    pub file: FlowFile,
    /// The folder that its programs start in.
    pub folder: Option<String>,
    /// Who registered it, and what for. Of a revision that is known nothing but the first word
    /// counts: its content never changes, so neither does whose it is.
    pub authored: Authored,
}

/// Who registered a revision, and what for, as far as they said so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authored {
    /// Who.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<Arc<str>>,
    /// What for, in their words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Arc<str>>,
}

/// A revision as a store returns it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRevision {
    /// The revision.
    pub revision: NewRevision,
    /// When it was first registered.
    pub registered_at: Timestamp,
    /// Whether new runs start on it: the one of its flow that was registered last.
    pub active: bool,
}

/// How long finished runs are kept. Open runs are always kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Their events and log lines, after their end.
    pub events: Duration,
    /// Their records, after their end.
    pub runs: Duration,
    /// Runs and records touched in one call.
    pub batch: usize,
}

impl Retention {
    /// Events for seven days, records for thirty.
    pub const DEFAULT: Self = Self {
        events: Duration::from_hours(7 * 24),
        runs: Duration::from_hours(30 * 24),
        batch: 200,
    };
}

/// What a sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Runs whose events and log lines it removed.
    pub logs: u64,
    /// Runs whose records it removed.
    pub runs: u64,
    /// Records that had expired ([`control::Record`]).
    pub records: u64,
    /// Whether more is due: the batch was full.
    pub more: bool,
}
