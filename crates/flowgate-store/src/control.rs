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

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::gate::Gate;
use flowgate_core::ids::JobId;
use flowgate_core::limits::{COMMIT_BYTES_MAX, PAYLOAD_BYTES_MAX};
use flowgate_core::payload::Payload;
use flowgate_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::StoreError;
use crate::session::SessionLock;

/// The most ended terms of a name that are kept.
pub const TERMS_KEPT_MAX: usize = 1_000;
/// The most writes of records in one call.
pub const RECORD_WRITES_MAX: usize = 1_000;
/// Bytes of the name of a term, of the key of a record or of a permit, and of a topic.
pub const CONTROL_KEY_BYTES_MAX: usize = 1_024;
/// How long a place in line is kept for a job that does not ask again, and how long after its time
/// a reserved one.
pub const PERMIT_PLACE_KEPT: Duration = Duration::from_hours(24);
/// The kinds of record that there are. No other is written, so a copy of a store misses none.
pub const RECORD_KINDS: [&str; 21] = [
    "checkpoint",
    "dead",
    "dead_message",
    "debounce",
    "debounce_due",
    "debounce_input",
    "deploy_ask",
    "deploy_checkpoint",
    "deploy_open",
    "deploy_refused",
    "deployment",
    "occurrence",
    "queue",
    "schedule",
    "singleton",
    "subscriber",
    "subscriber_dead",
    "subscriber_member",
    "subscriber_retry",
    "webhook",
    "worker",
];
/// How far a job of each step of priority is ahead of those without.
pub const PRIORITY_HEAD_START: Duration = Duration::from_mins(1);
/// Those of them that mean something in their own store only: positions in its feeds, and who is
/// there. A copy of a store leaves them out.
pub const RECORD_KINDS_OF_ONE_STORE: [&str; 3] = ["checkpoint", "subscriber_member", "worker"];

/// The kind of the records of gates, with the names of flows as keys. They are written by
/// [`Control::set_gate`] alone.
pub const GATE: &str = "gate";

/// The part of a store that is not about runs.
#[async_trait]
pub trait Control: Send + Sync {
    /// Takes a name for `ask.span`, or extends the term that the asker holds.
    ///
    /// Without `ask.renews` a name that is free, released or expired gets a new term, with a number
    /// that is one more than the last; one that the same holder holds is extended, so a lost reply
    /// does no harm. With it only that term is extended, if the asker still holds it. No term
    /// becomes shorter.
    async fn take_term(&self, ask: &TermAsk) -> Result<TermOutcome, StoreError>;

    /// Ends a term at once, if it is still held: it is over now, and says so. Whoever waits for the
    /// name should be told afterwards, see [`Self::tell`].
    async fn release_term(&self, term: &TermRef) -> Result<(), StoreError>;

    /// The last term of each name that begins with `prefix`, in the order of their names.
    async fn list_terms(&self, prefix: &str) -> Result<Vec<Term>, StoreError>;

    /// The last terms of a name, the latest first, at most `limit`.
    async fn past_terms(&self, name: &str, limit: usize) -> Result<Vec<Term>, StoreError>;

    /// Writes all of `writes` or nothing. With `under` only while that term is held.
    ///
    /// The term is judged first, then the expectations in their order.
    async fn write_records(
        &self,
        writes: Vec<RecordWrite>,
        under: Option<&TermRef>,
    ) -> Result<RecordsOutcome, StoreError>;

    /// The records with these keys, in their order; none where there is none.
    async fn read_records(
        &self,
        kind: &str,
        keys: &[Arc<str>],
    ) -> Result<Vec<Option<Record>>, StoreError>;

    /// Records in the order of their keys, byte by byte.
    async fn list_records(&self, query: &RecordQuery) -> Result<Vec<Record>, StoreError>;

    /// Asks for permits; the outcomes are in the same order. A job that holds one keeps it for
    /// `lease` from now, so this also renews.
    ///
    /// Those ahead in line come first: what is free for them is not given to who asks later. A job
    /// that does not ask again for [`PERMIT_PLACE_KEPT`] loses its place.
    async fn take_permits(
        &self,
        asks: &[PermitAsk],
        lease: Duration,
    ) -> Result<Vec<PermitOutcome>, StoreError>;

    /// Gives permits back, and lets those who wait next have them for `lease`: they are returned,
    /// and the caller wakes them ([`Self::wake_jobs`]). A release without a job only lets those in
    /// line have what has expired. All of `releases` are given back before anybody gets anything.
    async fn release_permits(
        &self,
        releases: &[PermitRelease],
        lease: Duration,
    ) -> Result<Vec<PermitGrant>, StoreError>;

    /// Who holds permits of a key and how many wait.
    async fn read_permits(&self, key: &str) -> Result<PermitState, StoreError>;

    /// Makes queued jobs due at once, as if they were queued now. Returns those that exist, queued
    /// or leased, in the order of `jobs`. Those that are due already stay where they are.
    async fn wake_jobs(&self, jobs: &[JobId]) -> Result<Vec<JobId>, StoreError>;

    /// What waits in each queue that has jobs which nobody has, in the order of their names.
    async fn queue_stats(&self) -> Result<Vec<QueueStats>, StoreError>;

    /// Sets the gate of a flow to `gate`, whose generation is the one after that of the gate that is
    /// there. With `only_if_empty`, only while no run of the flow is held.
    ///
    /// When this returns, no start of an older generation comes in any more. To set the same gate
    /// again does no harm; after an error it may be set, or set in part. Whoever was told of a
    /// generation by a refusal finds a record that sends starts where that generation does; one that
    /// opens sends them where the one before it did.
    async fn set_gate(
        &self,
        flow: &Arc<str>,
        gate: &Gate,
        only_if_empty: bool,
    ) -> Result<GateOutcome, StoreError>;

    /// Wakes whoever waits for `topic` ([`Self::wait_told`]) on any instance.
    async fn tell(&self, topic: &str) -> Result<(), StoreError>;

    /// Returns when somebody may have told of `topic`, and after `wait_max` at the latest.
    async fn wait_told(&self, topic: &str, wait_max: Duration) -> Result<(), StoreError>;

    /// Locks `name` for as long as a session of the store's server lasts, where it has sessions.
    ///
    /// Such a lock is no guard, since it may be lost without a word: what must not happen twice is
    /// written under a term. It ends when its holder does, without waiting for a term to expire.
    async fn lock_session(&self, name: &str) -> Result<SessionLock, StoreError> {
        check_key(name);
        Ok(SessionLock::Unneeded)
    }

    /// Ends the session that has locked `name`, for whoever has taken over its term: a process
    /// that does not move keeps its sessions. Whether there was one.
    async fn end_session(&self, name: &str) -> Result<bool, StoreError> {
        check_key(name);
        Ok(false)
    }
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
    /// When it ends unless it is renewed, or when it ended.
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
    /// Somebody else does; or, when a term was to be extended, this is the last one there is, with
    /// the number 0 if there never was one.
    NotHeld(Term),
}

impl Term {
    /// Whether its holder may act in it at `now`.
    pub fn is_held(&self, now: Timestamp) -> bool {
        self.released_at.is_none() && self.expires_at > now
    }

    /// What stands for the last term of a name that nobody ever held.
    pub fn never_held(name: &Arc<str>) -> Self {
        Self {
            term: TermRef { name: Arc::clone(name), number: 0 },
            holder: "".into(),
            began_at: Timestamp(0),
            expires_at: Timestamp(0),
            released_at: None,
        }
    }

    /// What becomes of `ask` at `now`, where `last` is the last term of the name.
    pub(crate) fn judge(last: Option<Self>, ask: &TermAsk, now: Timestamp) -> TermOutcome {
        let expires_at = now.plus(ask.span);
        let number = last.as_ref().map_or(0, |last| last.term.number);
        match last {
            Some(mut last) if last.is_held(now) => {
                if last.holder != ask.holder || ask.renews.is_some_and(|renews| renews != number) {
                    return TermOutcome::NotHeld(last);
                }
                last.expires_at = last.expires_at.max(expires_at);
                TermOutcome::Held(last)
            }
            Some(_) | None if ask.renews.is_none() => TermOutcome::Held(Self {
                term: TermRef { name: Arc::clone(&ask.name), number: number + 1 },
                holder: Arc::clone(&ask.holder),
                began_at: now,
                expires_at,
                released_at: None,
            }),
            last => TermOutcome::NotHeld(last.unwrap_or_else(|| Self::never_held(&ask.name))),
        }
    }
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
    /// The write at this index is over a limit, or all before it and it together are. Nothing is
    /// written.
    TooLarge(usize),
}

/// What became of the setting of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum GateOutcome {
    /// It is set.
    Set,
    /// The gate is at another generation. Nothing is changed.
    Changed,
    /// Runs of the flow are held, and it was to be set only if none are.
    HoldsRuns,
}

/// The gate in its record; an open one where there is none.
pub fn gate_of(record: Option<&Record>) -> Result<Gate, StoreError> {
    let read = |record: &Record| {
        serde_json::from_str(record.value.get()).map_err(|error| StoreError::Corrupt {
            message: format!("the gate of `{}`: {error}", record.key),
            source: Some(Box::new(error)),
        })
    };
    record.map_or_else(|| Ok(Gate::default()), read)
}

/// Refuses writes over the limits; what no rule can have made is a bug of the caller.
///
/// Every store asks this before anything else.
pub fn over_limit(writes: &[RecordWrite]) -> Option<RecordsOutcome> {
    let mut seen = HashSet::new();
    let mut bytes = 0;
    for (index, write) in writes.iter().enumerate() {
        assert!(RECORD_KINDS.contains(&write.kind), "`{}` is not a kind of record", write.kind);
        assert!(seen.insert((write.kind, &write.key)), "one call writes a record once");
        let value_bytes = write.value.as_ref().map_or(0, Payload::bytes);
        bytes += value_bytes;
        let fits = index < RECORD_WRITES_MAX
            && value_bytes <= PAYLOAD_BYTES_MAX
            && bytes <= COMMIT_BYTES_MAX
            && is_key(&write.key);
        if !fits {
            return Some(RecordsOutcome::TooLarge(index));
        }
    }
    None
}

/// Whether every store can keep this as a key: not empty, not over [`CONTROL_KEY_BYTES_MAX`], and
/// without NUL.
pub fn is_key(text: &str) -> bool {
    !text.is_empty() && text.len() <= CONTROL_KEY_BYTES_MAX && !text.contains('\0')
}

/// The first text, byte by byte, that is after all that begin with `prefix`; none if there is none.
pub(crate) fn prefix_end(prefix: &str) -> Option<String> {
    let mut end = prefix.to_owned();
    // The order of UTF-8 is that of its characters.
    while let Some(last) = end.pop() {
        if let Some(next) = (last..=char::MAX).nth(1) {
            end.push(next);
            return Some(end);
        }
    }
    None
}

/// Panics where a name, a key or a topic is none: whoever makes them keeps them within the limits.
pub(crate) fn check_key(text: &str) {
    assert!(is_key(text), "a name has 1 to {CONTROL_KEY_BYTES_MAX} bytes and no NUL: {text:?}");
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
    /// From when on a sweep removes it. Until one does it is there.
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
    /// Nothing is saved up while nobody asks.
    Rate {
        /// How many.
        count: u32,
        /// In how many milliseconds.
        per_ms: u64,
    },
}

impl Limit {
    /// How far apart the places of a rate are, in microseconds; a count of 0 is taken for 1.
    pub(crate) fn share_us(count: u32, per_ms: u64) -> i64 {
        let share = u128::from(per_ms) * 1_000;
        i64::try_from(share.div_ceil(u128::from(count.max(1)))).unwrap_or(i64::MAX)
    }
}

/// What became of an ask for a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum PermitOutcome {
    /// It holds one.
    Granted,
    /// It is in line, at this place from 1, and is returned by a release when its turn has come.
    InLine(u64),
    /// It has a place at this time: when it asks again then or later, it is granted.
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
    /// Who holds one, and until when; who is over first comes first.
    pub holders: Vec<(JobId, Timestamp)>,
    /// How many stand in line, or have a place at a later time.
    pub in_line: u64,
}

/// What waits in a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStats {
    /// The queue.
    pub queue: Arc<str>,
    /// Jobs that are due and that nobody has, also those whose lease has expired.
    pub due: u64,
    /// Jobs that are due later.
    pub later: u64,
    /// When the one that has been due longest became due.
    pub oldest_due_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_after_all_that_begin_with_it_and_before_all_else() {
        let rows = [
            ("a/", Some("a0")),
            ("", None),
            ("z\u{7f}", Some("z\u{80}")),
            ("\u{d7ff}", Some("\u{e000}")),
            ("b\u{10ffff}", Some("c")),
            ("\u{10ffff}\u{10ffff}", None),
        ];
        for (prefix, end) in rows {
            assert_eq!(prefix_end(prefix).as_deref(), end, "{prefix:?}");
        }
    }

    #[test]
    fn the_share_of_a_rate_is_never_too_small() {
        assert_eq!(Limit::share_us(7, 1_000), 142_858);
        assert_eq!(Limit::share_us(0, 1_000), 1_000_000);
        assert_eq!(Limit::share_us(1, u64::MAX), i64::MAX);
    }
}
