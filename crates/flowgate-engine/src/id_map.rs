//! Maps by run id, for the few look-ups that every step needs.
//!
//! Run ids are random or derived by SHA-256, so folding their bytes with a secret seed spreads them
//! well, and nobody can choose ids that collide without knowing the seed.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};

use flowgate_core::ids::RunId;

/// A map whose keys are run ids.
pub(crate) type RunMap<V> = HashMap<RunId, V, RunHash>;

/// A set of run ids.
pub(crate) type RunSet = HashSet<RunId, RunHash>;

/// Makes hashers with the seed of one map.
#[derive(Clone, Debug)]
pub(crate) struct RunHash(u64);

impl Default for RunHash {
    fn default() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }
}

impl BuildHasher for RunHash {
    type Hasher = RunHasher;

    fn build_hasher(&self) -> RunHasher {
        RunHasher(self.0)
    }
}

/// The hash of one run id.
#[derive(Debug)]
pub(crate) struct RunHasher(u64);

impl Hasher for RunHasher {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            let mixed = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0xd6e8_feb8_6659_fd93);
            self.0 = mixed ^ (mixed >> 32);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
