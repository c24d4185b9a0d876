//! The runs that this instance works on, with their latest records.
//!
//! A run is here while an attempt of it is in flight on this instance, or something about it waits
//! for the committer. So a decision needs no read before it.

use std::sync::Arc;

use flowgate_core::ids::RunId;
use flowgate_core::run::Run;
use flowgate_store::LeaseRef;
use parking_lot::{Mutex, MutexGuard};

use crate::attempt::{Attempt, Stop};
use crate::flows::LoadedFlow;
use crate::id_map::RunMap;
use crate::inbox::Item;

/// The runs in flight.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    runs: Mutex<RunMap<Entry>>,
}

/// A run in flight.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its latest record that this instance knows.
    pub(crate) run: Arc<Run>,
    /// The revision that it is pinned to as far as this instance knows.
    pub(crate) flow: Arc<LoadedFlow>,
    /// Attempts that hold a lease as far as this instance knows.
    pub(crate) attempts: Vec<Arc<Attempt>>,
    /// Reports that wait to be decided, in order.
    pub(crate) pending: Vec<Item>,
    pub(crate) phase: Phase,
    /// Refusals since the last commit that was applied.
    pub(crate) refusals: u32,
    /// Whether reports are decided one by one, because a joined commit was too large.
    pub(crate) is_split: bool,
}

/// What the committer does about a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing.
    Idle,
    /// It is in line to be decided.
    Ready,
    /// A commit is under way.
    Sent,
    /// Its record is being read.
    Rereading,
}

impl Entry {
    pub(crate) fn new(run: Arc<Run>, flow: Arc<LoadedFlow>) -> Self {
        Self {
            run,
            flow,
            attempts: Vec::new(),
            pending: Vec::new(),
            phase: Phase::Idle,
            refusals: 0,
            is_split: false,
        }
    }

    /// Takes over `run` unless it is older than what is known.
    pub(crate) fn note(&mut self, run: &Arc<Run>) {
        if run.version > self.run.version {
            self.run = Arc::clone(run);
        }
    }

    /// Whether its decisions follow this revision.
    pub(crate) fn is_of(&self, flow: &Arc<LoadedFlow>) -> bool {
        Arc::ptr_eq(&self.flow, flow) || self.flow.flow.revision == flow.flow.revision
    }

    pub(crate) fn is_done(&self) -> bool {
        self.attempts.is_empty() && self.pending.is_empty() && self.phase == Phase::Idle
    }

    /// Takes an attempt off; none if it was taken off before.
    pub(crate) fn take_attempt(&mut self, lease: LeaseRef) -> Option<Arc<Attempt>> {
        let at = self.attempts.iter().position(|attempt| attempt.lease() == lease)?;
        Some(self.attempts.swap_remove(at))
    }
}

impl InFlight {
    pub(crate) fn lock(&self) -> MutexGuard<'_, RunMap<Entry>> {
        self.runs.lock()
    }

    /// Puts attempts in.
    pub(crate) fn add(&self, attempts: &[Arc<Attempt>]) {
        let mut runs = self.lock();
        for attempt in attempts {
            let run = &attempt.claimed.run;
            let entry = runs
                .entry(run.run_id)
                .or_insert_with(|| Entry::new(Arc::clone(run), Arc::clone(&attempt.flow)));
            if run.version > entry.run.version && !entry.is_of(&attempt.flow) {
                // It was moved to another revision, and with it every job of it.
                entry.flow = Arc::clone(&attempt.flow);
                entry.attempts.drain(..).for_each(|old| old.stop(Stop::LeaseLost));
            }
            entry.note(run);
            entry.attempts.push(Arc::clone(attempt));
        }
    }

    /// Drops an attempt that nothing more will be heard of.
    pub(crate) fn forget(&self, lease: LeaseRef) -> Option<Arc<Attempt>> {
        let mut runs = self.lock();
        let entry = runs.get_mut(&lease.job_id.run_id)?;
        let attempt = entry.take_attempt(lease);
        if entry.is_done() {
            runs.remove(&lease.job_id.run_id);
        }
        attempt
    }

    /// All attempts.
    pub(crate) fn attempts(&self) -> Vec<Arc<Attempt>> {
        self.lock().values().flat_map(|entry| entry.attempts.iter().cloned()).collect()
    }

    /// Whether something of the run is in flight.
    pub(crate) fn holds(&self, run_id: RunId) -> bool {
        self.lock().contains_key(&run_id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}
