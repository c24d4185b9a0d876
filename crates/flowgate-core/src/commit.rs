//! One decision, as a store applies it: all of it or nothing.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::event::{Event, LeaseStamp};
use crate::ids::{CommitId, InstanceId, JobId, LeaseToken, RunId};
use crate::payload::Payload;
use crate::run::Run;
use crate::time::Timestamp;

/// A decision about one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Commit {
    /// What makes it recognisable when it is sent again.
    pub commit_id: CommitId,
    /// The run that it is about.
    pub run_id: RunId,
    /// Facts that must hold for it to apply.
    pub guards: Vec<Guard>,
    /// What happened, in order. Their numbers follow the version that the decision was made on.
    pub events: Vec<Event>,
    /// The run's record after it; its version is the number of the last event.
    pub record: Arc<Run>,
    /// What becomes due, and what no longer is.
    pub jobs: Vec<JobChange>,
}

/// A fact that somebody else may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// No run has this commit's run id.
    RunAbsent,
    /// The run's version is this one.
    RunVersion(u64),
    /// The gate of the run's flow is at this generation; 0 if it was never set.
    Gate {
        /// The generation.
        generation: u64,
    },
    /// The job is leased under this token, and the lease has not expired.
    LeaseHeld {
        /// The job.
        job_id: JobId,
        /// The token.
        token: LeaseToken,
    },
}

/// A change to a run's jobs.
#[derive(Clone, Debug, PartialEq)]
pub enum JobChange {
    /// The job is new.
    Add {
        /// The job.
        job: Job,
        /// When it is due.
        due: Due,
    },
    /// The job goes back to its queue, unleased.
    Postpone {
        /// The job.
        job_id: JobId,
        /// The attempts that count.
        attempt: u32,
        /// When it is due again.
        due: Due,
    },
    /// There is no such job.
    Remove(JobId),
}

/// One due execution of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The run and the step.
    pub job_id: JobId,
    /// What is to be done when it is due.
    pub kind: JobKind,
    /// The queue that it waits in.
    pub queue: Arc<str>,
    /// How far ahead it is of jobs that became due when it did, from 0 to
    /// [`PRIORITY_MAX`](crate::limits::PRIORITY_MAX). It counts where the job is due at once.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: u8,
    /// Attempts so far; a claim makes it one more.
    pub attempt: u32,
    /// The numbers of the events whose payloads it needs.
    pub inputs: Vec<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(priority: &u8) -> bool {
    *priority == 0
}

/// What is to be done when a job is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Execute the step.
    Execute,
    /// End the step's wait, or look at the signals that it has.
    Timer,
}

/// When a job is due, on the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// At once.
    Now,
    /// This long after the commit is applied.
    After(Duration),
    /// At this time.
    At(Timestamp),
}

/// A leased job with all that its execution and the decision after it need.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The job; its attempt is the one that begins now.
    pub job: Job,
    /// The token of the lease.
    pub token: LeaseToken,
    /// When the lease ends, on the store's clock, unless it is renewed.
    pub expires_at: Timestamp,
    /// Leases of this job that ended without a word and are not in the log yet.
    pub lost: Vec<LeaseStamp>,
    /// The run's record.
    pub run: Arc<Run>,
    /// The payloads that the job names, in its order.
    pub inputs: Vec<Payload>,
}

impl Claimed {
    /// How events name this lease.
    pub fn stamp(&self, instance: &InstanceId) -> LeaseStamp {
        LeaseStamp { attempt: self.job.attempt, token: self.token, instance: instance.clone() }
    }
}

impl Commit {
    /// This commit and `next`, which was decided on its record, as one.
    ///
    /// The two must be about the same run. The result keeps this commit's id and version guard.
    #[must_use]
    pub fn then(mut self, next: Self) -> Self {
        assert_eq!(self.run_id, next.run_id, "only decisions about one run can be joined");
        let leases = next.guards.into_iter().filter(|guard| match guard {
            Guard::LeaseHeld { .. } => true,
            Guard::RunAbsent | Guard::RunVersion(_) | Guard::Gate { .. } => false,
        });
        for lease in leases {
            if !self.guards.contains(&lease) {
                self.guards.push(lease);
            }
        }
        self.events.extend(next.events);
        self.jobs.extend(next.jobs);
        self.record = next.record;
        self
    }

    /// The generation at which the gate of its flow must be, if it starts a run.
    pub fn gate(&self) -> Option<u64> {
        self.guards.iter().find_map(|guard| match guard {
            Guard::Gate { generation } => Some(*generation),
            Guard::RunAbsent | Guard::RunVersion(_) | Guard::LeaseHeld { .. } => None,
        })
    }

    /// The version of the run that the decision was made on; 0 for a start.
    pub fn version_before(&self) -> u64 {
        self.record.version - u64::try_from(self.events.len()).expect("events fit in memory")
    }
}
