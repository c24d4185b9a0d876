//! The projection of every instance, and the same fold by whoever judges it.

use std::collections::BTreeMap;

use flowgate_core::event::StoredEvent;
use flowgate_engine::subscriber::Projection;
use serde::{Deserialize, Serialize};

/// Its name.
pub(crate) const ID: &str = "tally";

/// What is folded: the same bytes for the same events, if those of each run are in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    kinds: BTreeMap<String, u64>,
    last: BTreeMap<String, u64>,
    /// Events that did not follow on the one before in their run.
    pub(crate) inverted: u64,
}

impl Tally {
    pub(crate) fn fold(&mut self, stored: &StoredEvent) {
        *self.kinds.entry(stored.event.kind().to_owned()).or_default() += 1;
        let last = self.last.entry(stored.run_id.to_string()).or_default();
        if stored.seq != *last + 1 {
            self.inverted += 1;
        }
        *last = stored.seq;
    }

    /// Events in all.
    pub(crate) fn events(&self) -> u64 {
        self.kinds.values().sum()
    }
}

pub(crate) fn projection() -> Projection<Tally> {
    Projection::new(|tally: &mut Tally, stored: &StoredEvent| {
        tally.fold(stored);
        Ok(())
    })
}
