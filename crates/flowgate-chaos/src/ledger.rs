//! What the driver asked for, and what it was told.

use std::collections::BTreeMap;

use flowgate_core::ids::RunId;
use serde::Serialize;

/// One start, however often it was asked for.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Start {
    /// Its key, which no other start has.
    pub(crate) key: String,
    /// The flow.
    pub(crate) flow: String,
    /// How often it was asked for.
    pub(crate) asked: u32,
    /// How often nobody knows what became of it.
    pub(crate) unknown: u32,
    /// The run, once an instance has said that it is stored.
    pub(crate) run_id: Option<RunId>,
    /// Runs that later answers named instead.
    pub(crate) others: Vec<RunId>,
}

/// All starts, by key, and what reading them back has shown.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Ledger {
    pub(crate) starts: BTreeMap<String, Start>,
    /// Reads after an acknowledged start, on whichever instance.
    pub(crate) reads: u64,
    /// Such reads that did not find the run.
    pub(crate) stale_reads: Vec<RunId>,
}

impl Ledger {
    /// A start is about to be asked for.
    pub(crate) fn ask(&mut self, key: &str, flow: &str) {
        let start = self.starts.entry(key.to_owned()).or_insert_with(|| Start {
            key: key.to_owned(),
            flow: flow.to_owned(),
            asked: 0,
            unknown: 0,
            run_id: None,
            others: Vec::new(),
        });
        start.asked += 1;
    }

    /// Nobody knows what became of it.
    pub(crate) fn note_unknown(&mut self, key: &str) {
        if let Some(start) = self.starts.get_mut(key) {
            start.unknown += 1;
        }
    }

    /// An instance said that it is stored.
    pub(crate) fn note_stored(&mut self, key: &str, run_id: RunId) {
        let Some(start) = self.starts.get_mut(key) else { return };
        match start.run_id {
            None => start.run_id = Some(run_id),
            Some(known) if known == run_id => {}
            Some(_) => start.others.push(run_id),
        }
    }

    /// How many were acknowledged.
    pub(crate) fn acknowledged(&self) -> usize {
        self.starts.values().filter(|start| start.run_id.is_some()).count()
    }
}
