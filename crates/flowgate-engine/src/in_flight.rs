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

    /// Takes over `run`, which is on the same revision, unless it is older than what is known.
    pub(crate) fn note(&mut self, run: &Arc<Run>) {
        if run.version > self.run.version {
            self.run = Arc::clone(run);
        }
    }

    /// The same for a run that may have been moved to another revision since.
    pub(crate) fn note_moved(&mut self, run: &Arc<Run>, flow: &Arc<LoadedFlow>) {
        if run.version > self.run.version && !self.flow.is_same(flow) {
            self.flow = Arc::clone(flow);
            self.lose_moved();
        }
        self.note(run);
    }

    /// Gives up the attempts of other revisions: a run is moved with all of its jobs.
    pub(crate) fn lose_moved(&mut self) {
        let (run, flow) = (&self.run, &self.flow);
        self.attempts.retain(|attempt| {
            let stays = attempt.flow.is_same(flow);
            if !stays {
                attempt.stop(Stop::LeaseLost);
                attempt.instance.metrics.leases_lost.increment(1);
                tracing::info!(run_id = %run.run_id, step = %attempt.step().name,
                    "the run was moved to another revision; the attempt is given up");
            }
            stays
        });
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
            entry.note_moved(run, &attempt.flow);
            if !attempt.flow.is_same(&entry.flow) {
                // It was claimed before the run was moved, and given up by that.
                attempt.stop(Stop::LeaseLost);
                continue;
            }
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
