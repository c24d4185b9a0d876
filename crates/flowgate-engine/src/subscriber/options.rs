//! How a subscriber is run.

use std::time::Duration;

use flowgate_core::retry::RetryPolicy;
use serde::{Deserialize, Serialize};

use crate::error::EngineError;

/// The most partitions of a subscriber.
pub const PARTITIONS_MAX: u16 = 256;
/// The most events between two checkpoints.
const BATCH_MAX: usize = 10_000;
/// The shortest and the longest lease of a partition.
const LEASE: (Duration, Duration) = (Duration::from_millis(300), Duration::from_hours(1));

/// How instances with the same subscriber share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum InstanceMode {
    /// No coordination. Use when there is a single instance, or something else sees to it that
    /// there is. The checkpoint is kept all the same; of two that use one id at the same time both
    /// are given every event, and the one whose checkpoint comes second fails.
    #[default]
    SingleInstance,
    /// At most one instance is active, by a lease in the store; the others stand by and take over.
    Coordinated,
}

impl InstanceMode {
    /// As it is written in settings and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SingleInstance => "single_instance",
            Self::Coordinated => "coordinated",
        }
    }
}

/// What becomes of an event that could not be handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// It is put aside with its error, and the next one follows.
    #[default]
    DeadLetter,
    /// The subscriber stops at it, visibly, until somebody says to go on.
    FailClosed,
}

/// When a checkpoint is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointEvery {
    /// After each event.
    Event,
    /// After this many events, and at the latest this long after the first of them.
    Batch {
        /// Events.
        events_max: usize,
        /// How long.
        wait_max: Duration,
    },
}

/// Where a subscriber begins that has no checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartFrom {
    /// With the first event that is kept.
    #[default]
    Start,
    /// With what is committed from now on.
    Now,
}

/// How a subscriber is run.
#[derive(Debug, Clone)]
pub struct SubscribeOptions {
    /// How instances share it.
    pub mode: InstanceMode,
    /// Where it begins without a checkpoint.
    pub from: StartFrom,
    /// When its checkpoint is written.
    pub checkpoint: CheckpointEvery,
    /// How often an event is tried, and how long between.
    pub retry: RetryPolicy,
    /// What becomes of an event that failed for good.
    pub on_failure: OnFailure,
    /// Into how many parts it is divided by the hash of the run's id. Fixed for an id.
    pub partitions: u16,
    /// How long a partition stays with an instance that is not heard of.
    pub lease: Duration,
    /// How long one attempt to handle an event may take.
    pub timeout: Duration,
}

impl Default for SubscribeOptions {
    fn default() -> Self {
        Self {
            mode: InstanceMode::default(),
            from: StartFrom::default(),
            checkpoint: CheckpointEvery::Batch {
                events_max: 100,
                wait_max: Duration::from_millis(200),
            },
            retry: RetryPolicy { attempts_max: 5, ..RetryPolicy::DEFAULT },
            on_failure: OnFailure::default(),
            partitions: 1,
            lease: Duration::from_secs(10),
            timeout: Duration::from_mins(5),
        }
    }
}

impl SubscribeOptions {
    /// The defaults, shared by instances.
    pub fn coordinated() -> Self {
        Self { mode: InstanceMode::Coordinated, ..Self::default() }
    }

    /// Whether a subscriber can be run with them.
    pub fn validate(&self) -> Result<(), EngineError> {
        let wrong = |message: String| Err(EngineError::Invalid(message));
        if !(1..=PARTITIONS_MAX).contains(&self.partitions) {
            let count = self.partitions;
            return wrong(format!(
                "a subscriber has 1 to {PARTITIONS_MAX} partitions, not {count}"
            ));
        }
        if !(LEASE.0..=LEASE.1).contains(&self.lease) {
            let (least, longest) = LEASE;
            return wrong(format!(
                "the lease of a subscriber is {:?}; it must be from {least:?} to {longest:?}",
                self.lease
            ));
        }
        if self.timeout.is_zero() || self.retry.attempts_max == 0 {
            return wrong("a subscriber needs an attempt, and time for it".to_owned());
        }
        match self.checkpoint {
            CheckpointEvery::Batch { events_max, .. } if !(1..=BATCH_MAX).contains(&events_max) => {
                wrong(format!("a batch has 1 to {BATCH_MAX} events, not {events_max}"))
            }
            CheckpointEvery::Event | CheckpointEvery::Batch { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_instance_is_the_default() {
        assert_eq!(InstanceMode::default(), InstanceMode::SingleInstance);
        assert_eq!(SubscribeOptions::default().mode, InstanceMode::SingleInstance);
        assert_eq!(SubscribeOptions::default().validate().map_err(|e| e.to_string()), Ok(()));
    }

    #[test]
    fn options_that_cannot_work_are_refused() {
        let good = SubscribeOptions::default;
        let empty = CheckpointEvery::Batch { events_max: 0, wait_max: Duration::from_secs(1) };
        let never = RetryPolicy { attempts_max: 0, ..RetryPolicy::DEFAULT };
        for bad in [
            SubscribeOptions { partitions: 0, ..good() },
            SubscribeOptions { partitions: PARTITIONS_MAX + 1, ..good() },
            SubscribeOptions { lease: Duration::from_millis(1), ..good() },
            SubscribeOptions { timeout: Duration::ZERO, ..good() },
            SubscribeOptions { checkpoint: empty, ..good() },
            SubscribeOptions { retry: never, ..good() },
        ] {
            assert!(matches!(bad.validate(), Err(EngineError::Invalid(_))), "{bad:?}");
        }
    }
}
