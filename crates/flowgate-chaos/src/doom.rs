//! Where an instance dies: precisely between two phases of a deployment that it drives.
//!
//! A kill from outside comes when it comes, and most phases are over by then. So the instance is
//! told beforehand, and kills itself right before or right after the write that enters the phase.

use std::fmt;
use std::process::Command;

use flowgate_core::deploy::{Deployment, Phase};
use flowgate_store::control::RecordWrite;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// The kind of record that says where a deployment stands.
const DEPLOYMENT: &str = "deployment";

/// A moment at the beginning of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Boundary {
    pub(crate) phase: Phase,
    pub(crate) side: Side,
}

/// Whether the phase is written down by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    Before,
    After,
}

impl Boundary {
    /// Every moment at which a driver can die: all phases but the first, which whoever asks for a
    /// deployment writes.
    pub(crate) fn all() -> Vec<Self> {
        let phases = Phase::ALL.into_iter().filter(|phase| *phase != Phase::Plan);
        let both = |phase| [Side::Before, Side::After].map(|side| Self { phase, side });
        phases.flat_map(both).collect()
    }

    /// Whether only a deployment that is rolled back comes by.
    pub(crate) fn is_on_the_way_back(self) -> bool {
        matches!(self.phase, Phase::RollingBack | Phase::RolledBack)
    }
}

impl fmt::Display for Boundary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            Side::Before => "before",
            Side::After => "after",
        };
        write!(f, "{side} {}", self.phase)
    }
}

/// When this process dies, if it was told.
#[derive(Debug, Default)]
pub(crate) struct Doom(Mutex<Option<Boundary>>);

impl Doom {
    /// It dies then, or no more if `at` is none.
    pub(crate) fn set(&self, at: Option<Boundary>) {
        *self.0.lock() = at;
    }

    /// Called on either side of a write of records; does not return if this is the moment.
    pub(crate) fn pass(&self, side: Side, entered: &[Phase]) {
        let is_now = self.0.lock().is_some_and(|at| at.side == side && entered.contains(&at.phase));
        if is_now {
            // Whoever is killed by a signal does nothing more, unlike whoever exits.
            drop(Command::new("kill").args(["-KILL", &std::process::id().to_string()]).status());
        }
    }
}

/// The phases that deployments are in by these writes.
pub(crate) fn phases(writes: &[RecordWrite]) -> Vec<Phase> {
    let deployments = writes.iter().filter(|write| write.kind == DEPLOYMENT);
    let read = |write: &RecordWrite| write.value.as_ref()?.read::<Deployment>().ok();
    deployments.filter_map(read).map(|deployment| deployment.phase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_moment_on_either_side_of_every_phase_but_the_first() {
        let all = Boundary::all();
        assert_eq!(all.len(), 2 * (Phase::ALL.len() - 1));
        assert_eq!(all.iter().filter(|one| one.is_on_the_way_back()).count(), 4);
        assert_eq!(all[0].to_string(), "before drain");
    }
}
