//! What instances agree on besides runs: terms, records, permits and hints.
//!
//! What every store promises, each a group of cases in the conformance suite:
//!
//! - **K1** Of all who ask for a name at most one holds it; the number of a term only grows, and a
//!   term ends by the store's clock.
//! - **K2** Records are written all or not at all, and only if every expectation holds and the term
//!   is held. A version is never used twice.
//! - **K3** Never more jobs than its limit hold a permit of a key; those who wait are served in
//!   their order.
//! - **K4** Losing every hint loses nothing but time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::ids::JobId;
use flowgate_core::payload::Payload;
use flowgate_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::StoreError;

/// The most ended terms of a name that are kept.
pub const TERMS_KEPT_MAX: usize = 1_000;
/// The most writes of records in one call.
pub const RECORD_WRITES_MAX: usize = 1_000;
/// How far a job of each step of priority is ahead of those without.
pub const PRIORITY_HEAD_START: Duration = Duration::from_mins(1);

/// The part of a store that is not about runs.
#[async_trait]
pub trait Control: Send + Sync {
    /// Takes a name for `ask.span`, or extends the term that the asker holds.
    ///
    /// Without `ask.renews` a name that is free, released or expired gets a new term, with a number
    /// that is one more than the last; one that the same holder holds is extended, so a lost reply
    /// does no harm. With it only that term is extended, if the asker still holds it.
    async fn take_term(&self, ask: &TermAsk) -> Result<TermOutcome, StoreError> {
        missing()
    }

    /// Ends a term at once, if it is still held. Whoever waits for the name should be told
    /// afterwards, see [`Self::tell`].
    async fn release_term(&self, term: &TermRef) -> Result<(), StoreError> {
        missing()
    }

    /// The last term of each name that begins with `prefix`, in the order of their names.
    async fn list_terms(&self, prefix: &str) -> Result<Vec<Term>, StoreError> {
        missing()
    }

    /// The last terms of a name, the latest first, at most `limit`.
    async fn past_terms(&self, name: &str, limit: usize) -> Result<Vec<Term>, StoreError> {
        missing()
    }

    /// Writes all of `writes` or nothing. With `under` only while that term is held.
    async fn write_records(
        &self,
        writes: Vec<RecordWrite>,
        under: Option<&TermRef>,
    ) -> Result<RecordsOutcome, StoreError> {
        missing()
    }

    /// The records with these keys, in their order; none where there is none.
    async fn read_records(
        &self,
        kind: &str,
        keys: &[Arc<str>],
    ) -> Result<Vec<Option<Record>>, StoreError> {
        missing()
    }

    /// Records in the order of their keys, byte by byte.
    async fn list_records(&self, query: &RecordQuery) -> Result<Vec<Record>, StoreError> {
        missing()
    }

    /// Asks for permits; the outcomes are in the same order. A job that holds one keeps it for
    /// `lease` from now, so this also renews.
    async fn take_permits(
        &self,
        asks: &[PermitAsk],
        lease: Duration,
    ) -> Result<Vec<PermitOutcome>, StoreError> {
        missing()
    }

    /// Gives permits back, and lets those who wait next have them for `lease`: they are returned,
    /// and the caller wakes them ([`Self::wake_jobs`]). A release without a job only lets those in
    /// line have what has expired.
    async fn release_permits(
        &self,
        releases: &[PermitRelease],
        lease: Duration,
    ) -> Result<Vec<PermitGrant>, StoreError> {
        missing()
    }

    /// Who holds permits of a key and how many wait.
    async fn read_permits(&self, key: &str) -> Result<PermitState, StoreError> {
        missing()
    }

    /// Makes queued jobs due at once. Returns those that exist, queued or leased.
    async fn wake_jobs(&self, jobs: &[JobId]) -> Result<Vec<JobId>, StoreError> {
        missing()
    }

    /// What waits in each queue that has jobs, in the order of their names.
    async fn queue_stats(&self) -> Result<Vec<QueueStats>, StoreError> {
        missing()
    }

    /// Wakes whoever waits for `topic` ([`Self::wait_told`]) on any instance.
    async fn tell(&self, topic: &str) -> Result<(), StoreError> {
        missing()
    }

    /// Returns when somebody may have told of `topic`, and after `wait_max` at the latest.
    async fn wait_told(&self, topic: &str, wait_max: Duration) -> Result<(), StoreError> {
        missing()
    }
}

// Until every store has its own.
fn missing<T>() -> Result<T, StoreError> {
    Err(StoreError::Incompatible { message: "this store does not have it yet".to_owned() })
}

/// Who wants a name, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermAsk {
    /// The name.
    pub name: Arc<str>,
    /// Who asks. No two askers of a name have the same.
    pub holder: Arc<str>,
    /// How long the term lasts unless it is renewed.
    pub span: Duration,
    /// The number of the term to be extended; none to begin one.
    pub renews: Option<u64>,
}

/// A term, as whoever acts in it names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TermRef {
    /// The name that is held.
    pub name: Arc<str>,
    /// Its number, from 1.
    pub number: u64,
}

/// One time that a name was held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Term {
    /// The name and the number.
    #[serde(flatten)]
    pub term: TermRef,
    /// Who held it.
    pub holder: Arc<str>,
    /// When it began.
    pub began_at: Timestamp,
    /// When it ends unless it is renewed, or ended.
    pub expires_at: Timestamp,
    /// When its holder gave it up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Timestamp>,
}

/// What became of an ask for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum TermOutcome {
    /// The asker holds it.
    Held(Term),
    /// Somebody else does; or, when a term was to be extended, this is the last one there is.
    NotHeld(Term),
}

/// A change to a record.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordWrite {
    /// What kind of record: `schedule`, `occurrence`, …
    pub kind: &'static str,
    /// Its key among those of its kind.
    pub key: Arc<str>,
    /// What must be there before.
    pub expect: Expect,
    /// What is there afterwards; none removes it.
    pub value: Option<Payload>,
    /// How long it is kept; for ever if none.
    pub keep: Option<Duration>,
}

/// What must be there before a record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Whatever is there.
    Anything,
    /// Nothing.
    Absent,
    /// The record at this version.
    Version(u64),
}

/// What became of a write of records.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum RecordsOutcome {
    /// All are written; the new version of each, in their order.
    Written(Vec<u64>),
    /// The expectation of the write at this index does not hold. Nothing is written.
    Changed(usize),
    /// The term is not held any more. Nothing is written.
    TermLost,
}

/// A record.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its key.
    pub key: Arc<str>,
    /// Grows with every write, and is never used twice in a store.
    pub version: u64,
    /// Its value.
    pub value: Payload,
    /// When it was written.
    pub written_at: Timestamp,
    /// When it is removed by a sweep.
    pub expires_at: Option<Timestamp>,
}

/// Which records to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordQuery {
    /// Of this kind.
    pub kind: &'static str,
    /// Only those whose keys begin with this.
    pub prefix: Arc<str>,
    /// Only those that come after this key in the listing.
    pub after: Option<Arc<str>>,
    /// Whether the last come first.
    pub is_descending: bool,
    /// At most this many, and at most [`flowgate_core::limits::PAGE_MAX`].
    pub limit: usize,
}

/// A job that wants a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitAsk {
    /// What is limited.
    pub key: Arc<str>,
    /// The limit.
    pub limit: Limit,
    /// Who asks.
    pub job_id: JobId,
}

/// How much of something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// This many at the same time.
    AtOnce(u32),
    /// This many in each span, evenly: the first at once, each next after its share of the span.
    Rate {
        /// How many.
        count: u32,
        /// In how many milliseconds.
        per_ms: u64,
    },
}

/// What became of an ask for a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum PermitOutcome {
    /// It holds one.
    Granted,
    /// It is in line, at this place from 1, and is returned by a release when its turn has come.
    InLine(u64),
    /// It has a place at this time: when it asks again then, it is granted.
    NotBefore(Timestamp),
}

/// A permit that is given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitRelease {
    /// What is limited.
    pub key: Arc<str>,
    /// The limit.
    pub limit: Limit,
    /// Who held it, or stood in line; none to look only for what has expired.
    pub job_id: Option<JobId>,
}

/// A permit that somebody in line got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitGrant {
    /// What is limited.
    pub key: Arc<str>,
    /// Who got it.
    pub job_id: JobId,
}

/// The permits of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PermitState {
    /// Who holds one, and until when.
    pub holders: Vec<(JobId, Timestamp)>,
    /// How many stand in line.
    pub in_line: u64,
}

/// What waits in a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStats {
    /// The queue.
    pub queue: Arc<str>,
    /// Jobs that are due and that nobody has.
    pub due: u64,
    /// Jobs that are due later.
    pub later: u64,
    /// When the one at the head became due.
    pub oldest_due_at: Option<Timestamp>,
}
