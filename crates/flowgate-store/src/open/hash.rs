//! A fast hash for ids.
//!
//! The default hash of the standard library guards against chosen keys and takes a tenth of the
//! time of a whole step for the few look-ups that a step needs. Ids are 16 bytes that are random
//! or derived by SHA-256; a folded multiplication with a secret seed spreads them as well, and
//! whoever does not know the seed cannot choose keys that collide.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A map whose keys are ids or names.
pub(crate) type IdMap<K, V> = HashMap<K, V, IdHash>;

/// Makes hashers with the seed of one map.
#[derive(Clone, Debug)]
pub(crate) struct IdHash {
    seed: u64,
}

impl Default for IdHash {
    fn default() -> Self {
        Self { seed: RandomState::new().build_hasher().finish() }
    }
}

impl BuildHasher for IdHash {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher { state: self.seed }
    }
}

/// The hash of one id.
#[derive(Debug)]
pub(crate) struct IdHasher {
    state: u64,
}

impl IdHasher {
    fn mix(&mut self, word: u64) {
        // The odd constant has no pattern: it is the fractional part of the golden ratio.
        let product = u128::from(self.state ^ word) * 0x9e37_79b9_7f4a_7c15;
        let folded = (product >> 64) ^ (product & u128::from(u64::MAX));
        self.state = u64::try_from(folded).expect("half of a product fits").rotate_left(23);
    }
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.mix(u64::from_le_bytes(last));
        }
    }

    fn write_usize(&mut self, number: usize) {
        self.state ^= number as u64;
    }

    fn write_u8(&mut self, number: u8) {
        self.mix(u64::from(number));
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_ids_spread_over_high_and_low_bits() {
        let build = IdHash { seed: 7 };
        let hash = |number: u128| build.hash_one(number.to_be_bytes());
        let low: std::collections::HashSet<u64> = (0..1_000).map(|n| hash(n) & 0x3ff).collect();
        let high: std::collections::HashSet<u64> = (0..1_000).map(|n| hash(n) >> 57).collect();
        assert!(low.len() > 550, "{} of 1024 low values", low.len());
        assert!(high.len() > 100, "{} of 128 high values", high.len());
    }
}
