//! Ids of new runs.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use flowgate_core::ids::RunId;

use crate::clock;

/// Makes `UUIDv7`s without asking the system for random bytes each time: a hash of a counter, under a
/// key that the system chose at random, is as hard to meet twice.
#[derive(Debug, Default)]
pub(crate) struct RunIds {
    key: RandomState,
    count: AtomicU64,
}

impl RunIds {
    pub(crate) fn next(&self) -> RunId {
        let (high, low) = (self.random().to_le_bytes(), self.random().to_le_bytes());
        let mut random = [0; 10];
        random[..8].copy_from_slice(&high);
        random[8..].copy_from_slice(&low[..2]);
        let millis = u64::try_from(clock::wall().as_millisecond()).unwrap_or(0);
        RunId(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
    }

    pub(crate) fn random(&self) -> u64 {
        self.key.hash_one(self.count.fetch_add(1, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ids_are_uuids_of_version_7_and_differ() {
        let (one, two) = (RunIds::default(), RunIds::default());
        let ids: std::collections::HashSet<RunId> =
            (0..500).flat_map(|_| [one.next(), two.next()]).collect();
        assert_eq!(ids.len(), 1_000);
        assert!(ids.iter().all(|run_id| run_id.0.get_version_num() == 7));
    }
}
