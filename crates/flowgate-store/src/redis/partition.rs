//! Where a run lives.
//!
//! Every key of a partition begins with `PREFIX:{pN}:`; the braces make Redis Cluster keep all of
//! them in one slot. A run's record, jobs, log and feed are in the partition of its id, so one
//! script sees them all.

use flowgate_core::ids::RunId;

/// The number of the layout.
pub(super) const FORMAT: u32 = 3;

/// The oldest layout that is taken over: it has records and events without shorthand, and those are
/// read all the same.
pub(super) const FORMAT_MIN: u32 = 2;

/// The partitions of a data set.
#[derive(Debug)]
pub(super) struct Partitions {
    prefixes: Vec<String>,
}

impl Partitions {
    /// `count` partitions of the data set called `prefix`.
    pub(super) fn new(prefix: &str, count: u16) -> Self {
        Self { prefixes: (0..count).map(|index| partition_prefix(prefix, index)).collect() }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u16 {
        u16::try_from(self.prefixes.len()).expect("partitions are counted in 16 bits")
    }

    /// The index of the one that the run lives in.
    pub(super) fn of(&self, run_id: RunId) -> usize {
        place(run_id.0.as_bytes(), self.prefixes.len())
    }

    /// The index of the one that the permits of this key are in.
    pub(super) fn of_key(&self, key: &str) -> usize {
        place(key.as_bytes(), self.prefixes.len())
    }

    /// What the keys of a partition begin with.
    pub(super) fn prefix(&self, index: usize) -> &str {
        &self.prefixes[index]
    }

    /// What the keys of a run's partition begin with.
    pub(super) fn prefix_of(&self, run_id: RunId) -> &str {
        self.prefix(self.of(run_id))
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = (usize, &str)> {
        self.prefixes.iter().map(String::as_str).enumerate()
    }
}

/// What the keys of a partition begin with.
pub(super) fn partition_prefix(prefix: &str, index: u16) -> String {
    format!("{prefix}:{{p{index}}}:")
}

/// FNV-1a of the bytes of an id or a key. Part of the layout: it never changes.
fn place(bytes: &[u8], count: usize) -> usize {
    let hash = bytes
        .iter()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    usize::try_from(hash).expect("32 bits fit") % count
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn runs_spread_over_the_partitions() {
        let mut counts = [0; 16];
        for _ in 0..16_000 {
            counts[place(Uuid::now_v7().as_bytes(), 16)] += 1;
        }
        assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_run_stays_where_it_is() {
        assert_eq!(place(RunId::derived("order", "7").0.as_bytes(), 16), 3);
        assert_eq!(place(Uuid::nil().as_bytes(), 16), 5);
        assert_eq!(partition_prefix("fg", 7), "fg:{p7}:");
    }
}
