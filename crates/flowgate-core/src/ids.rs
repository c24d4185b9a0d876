//! Names and numbers that must not be mixed up.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// One run of a flow.
///
/// A `UUIDv7` for a plain start; a `UUIDv8` derived from flow and key for a start with a key, so that
/// the same key finds the same run without an index over all partitions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub Uuid);

impl RunId {
    /// The id that every start of `flow` with `key` has.
    pub fn derived(flow: &str, key: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(flow.as_bytes());
        // A name cannot hold this byte, so no two pairs hash the same text.
        hash.update([0]);
        hash.update(key.as_bytes());
        let digest = hash.finalize();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A run id that is not a UUID.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a run id (a UUID such as 01890a5d-ac96-774b-bcce-b302099a8057)")]
pub struct RunIdError(String);

impl FromStr for RunId {
    type Err = RunIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::parse_str(text).map(Self).map_err(|_| RunIdError(text.to_owned()))
    }
}

/// The place of a step in its revision's list of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StepIndex(pub u16);

impl StepIndex {
    /// As an index into a slice.
    pub fn at(self) -> usize {
        usize::from(self.0)
    }
}

/// The place of an event name in its revision's list of event names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SlotIndex(pub u16);

impl SlotIndex {
    /// As an index into a slice.
    pub fn at(self) -> usize {
        usize::from(self.0)
    }
}

/// One due execution of a step: a step has at most one open job at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId {
    /// The run that the job belongs to.
    pub run_id: RunId,
    /// The step that it executes.
    pub step: StepIndex,
}

/// The number of one lease of a job. Of two leases of a job the later has the greater token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseToken(pub u64);

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One process that runs flowgate: the host's name and a random part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstanceId(pub Arc<str>);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What makes a commit recognisable when it is sent a second time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CommitId(pub Uuid);

impl fmt::Debug for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Makes commit ids that no other source makes: a random half and a counter.
#[derive(Debug)]
pub struct CommitIds {
    source: u64,
    next: std::sync::atomic::AtomicU64,
}

impl CommitIds {
    /// A source of ids; `source` must be random.
    pub fn new(source: u64) -> Self {
        Self { source, next: std::sync::atomic::AtomicU64::new(1) }
    }

    /// The next id.
    pub fn next(&self) -> CommitId {
        let number = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        CommitId(Uuid::from_u64_pair(self.source, number))
    }
}

/// A place in a feed: the events of its runs in commit order.
///
/// Where one counter numbers the events the major part is 0. Where transactions end in another
/// order than they began in, it is the transaction, and the minor part the event's place in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// What decides first.
    pub major: u64,
    /// What decides among those of one major part, from 1.
    pub minor: u64,
}

impl Position {
    /// Before every event.
    pub const START: Self = Self { major: 0, minor: 0 };

    /// The place that a counter gives.
    pub fn counted(minor: u64) -> Self {
        Self { major: 0, minor }
    }

    /// The place this far after it, within the same major part.
    #[must_use]
    pub fn plus(self, count: u64) -> Self {
        Self { minor: self.minor + count, ..self }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.major {
            0 => write!(f, "{}", self.minor),
            major => write!(f, "{major}-{}", self.minor),
        }
    }
}

/// A position that is not written as one.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a position (a number, or two with a `-` between them)")]
pub struct PositionError(String);

impl FromStr for Position {
    type Err = PositionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (major, minor) = text.split_once('-').unwrap_or(("0", text));
        match (major.parse(), minor.parse()) {
            (Ok(major), Ok(minor)) => Ok(Self { major, minor }),
            (Err(_), _) | (_, Err(_)) => Err(PositionError(text.to_owned())),
        }
    }
}

impl Serialize for Position {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Position {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The content address of a revision: the first 16 hex digits of the SHA-256 of its canonical form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub Arc<str>);

impl Revision {
    /// The revision of a flow whose canonical form is `canonical`.
    pub fn of(canonical: &[u8]) -> Self {
        let digest = Sha256::digest(canonical);
        let start = u64::from_be_bytes(std::array::from_fn(|at| digest[at]));
        Self(format!("{start:016x}").into())
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether `name` may name a flow, a step, an event, a queue, a worker or a signal: an ASCII
/// letter or digit, then letters, digits, `.`, `_`, `-`; at most 128 in all and no `..`.
pub fn is_identifier(name: &str) -> bool {
    let bytes = name.as_bytes();
    bytes.len() <= crate::limits::NAME_BYTES_MAX
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        && !name.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_key_of_the_same_flow_has_the_same_run_id() {
        assert_eq!(RunId::derived("order", "7"), RunId::derived("order", "7"));
        assert_ne!(RunId::derived("order", "7"), RunId::derived("orders", "7"));
        assert_ne!(RunId::derived("a", "bc"), RunId::derived("ab", "c"));
        assert_eq!(RunId::derived("order", "7").0.get_version_num(), 8);
    }

    #[test]
    fn an_identifier_is_short_ascii_without_separators() {
        for good in ["a", "payment.done", "step-1", "A_b.c", "9"] {
            assert!(is_identifier(good), "{good}");
        }
        let long = "a".repeat(129);
        for bad in ["", ".", "..", "a..b", "a/b", "a:b", "{a}", "a b", "é", "-a", &long, "a\n"] {
            assert!(!is_identifier(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_position_reads_as_it_is_written() {
        for (position, text) in
            [(Position::counted(7), "7"), (Position { major: 812, minor: 3 }, "812-3")]
        {
            assert_eq!(position.to_string(), text);
            assert_eq!(text.parse::<Position>().unwrap(), position);
            let json = serde_json::to_string(&position).unwrap();
            assert_eq!(serde_json::from_str::<Position>(&json).unwrap(), position);
        }
        assert!(Position { major: 1, minor: 1 } > Position::counted(9));
        for bad in ["", "-", "a", "1-", "1-2-3", "-1"] {
            assert!(bad.parse::<Position>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_source_of_commit_ids_never_repeats() {
        let ids = CommitIds::new(7);
        assert_ne!(ids.next(), ids.next());
        assert_ne!(CommitIds::new(7).next(), CommitIds::new(8).next());
    }
}
