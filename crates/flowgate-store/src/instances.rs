//! The instances of a store that one process holds.

use std::time::Duration;

use flowgate_core::ids::InstanceId;
use flowgate_core::time::Timestamp;

use crate::{Beat, InstanceRow};

/// How long a silent instance is remembered.
pub(crate) const SILENCE_MAX: Duration = Duration::from_hours(24);

/// Instances in the order of their first beats.
#[derive(Debug, Default)]
pub(crate) struct Instances(Vec<InstanceRow>);

impl Instances {
    /// Notes a beat, and forgets who has been silent for too long.
    pub(crate) fn beat(&mut self, beat: &Beat, now: Timestamp) {
        self.0.retain(|row| now.since(row.seen_at) < SILENCE_MAX);
        if let Some(known) = self.0.iter_mut().find(|row| row.beat.instance == beat.instance) {
            known.beat = beat.clone();
            known.seen_at = now;
        } else {
            self.0.push(InstanceRow { beat: beat.clone(), started_at: now, seen_at: now });
        }
    }

    /// Forgets an instance.
    pub(crate) fn leave(&mut self, instance: &InstanceId) {
        self.0.retain(|row| row.beat.instance != *instance);
    }

    /// All of them.
    pub(crate) fn list(&self) -> Vec<InstanceRow> {
        self.0.clone()
    }
}
