//! What was seen lately, within a bound.

use std::collections::HashMap;
use std::hash::Hash;

/// Keys that one of the two halves holds.
const HALF_MAX: usize = 16_384;

/// The values of the keys that were noted last: at least half of what it may hold, and what is
/// older goes away by itself.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    half_max: usize,
}

impl<K: Eq + Hash, V> Recent<K, V> {
    pub(crate) fn new() -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), half_max: HALF_MAX }
    }

    pub(crate) fn note(&mut self, key: K, value: V) {
        if self.young.len() >= self.half_max {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    pub(crate) fn take(&mut self, key: &K) -> Option<V> {
        let old = self.old.remove(key);
        self.young.remove(key).or(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_there_and_the_oldest_go() {
        let mut recent = Recent { half_max: 2, ..Recent::new() };
        for number in 0..5 {
            recent.note(number, number * 10);
        }
        let found: Vec<Option<i32>> = (0..5).map(|number| recent.take(&number)).collect();
        assert_eq!(found, [None, None, Some(20), Some(30), Some(40)]);
        assert_eq!(recent.take(&4), None);
    }
}
