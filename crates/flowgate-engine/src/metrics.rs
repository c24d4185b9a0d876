//! What an instance counts. The names are in `docs/guide/operating.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flowgate_core::decide::{Outcome, Report};
use flowgate_core::ids::InstanceId;
use flowgate_core::run::RunStatus;
use flowgate_store::Refusal;
use metrics::{Counter, Gauge, Histogram};

/// Handles, made once: a look-up by name would cost more than a step.
#[derive(Clone)]
pub(crate) struct Metrics {
    succeeded: Counter,
    failed: Counter,
    retried: Counter,
    pub(crate) released: Counter,
    pub(crate) parked: Counter,
    pub(crate) dropped: Counter,
    pub(crate) batch_size: Histogram,
    pub(crate) commit_wait_seconds: Histogram,
    pub(crate) commit_seconds: Histogram,
    pub(crate) orchestration_seconds: Histogram,
    pub(crate) commits: Commits,
    pub(crate) runs_started: Counter,
    pub(crate) runs_ended: RunsEnded,
    pub(crate) reports_late: Counter,
    pub(crate) store_retries: Counter,
    pub(crate) running: Gauge,
    pub(crate) leases_lost: Counter,
    pub(crate) repairs: Counter,
    pub(crate) emits: Emits,
    pub(crate) totals: Arc<Totals>,
}

/// Events that attempts hand over, until they are stored with their commit.
#[derive(Clone)]
pub(crate) struct Emits {
    pending: Gauge,
    pub(crate) wait_seconds: Histogram,
    dropped: Counter,
}

impl Emits {
    /// How many a report holds.
    pub(crate) fn count(report: &Report) -> u32 {
        let emits = match report {
            Report::EmitNow { .. } => 1,
            Report::AttemptEnded { outcome: Outcome::Succeeded(output), .. } => output.emits.len(),
            Report::AttemptEnded { outcome: Outcome::Failed { .. }, .. }
            | Report::AttemptStarted(_)
            | Report::AttemptReleased { .. }
            | Report::LostTimedOut { .. }
            | Report::AttemptParked { .. }
            | Report::TimerDue(_)
            | Report::Signal { .. }
            | Report::Reconcile { .. }
            | Report::Cancel { .. } => 0,
        };
        u32::try_from(emits).unwrap_or(u32::MAX)
    }

    /// They are on their way to the store.
    pub(crate) fn reported(&self, count: u32) {
        if count > 0 {
            self.pending.increment(count);
        }
    }

    /// They are stored.
    pub(crate) fn stored(&self, count: u32) {
        if count > 0 {
            self.pending.decrement(count);
        }
    }

    /// They never will be: their attempt had lost its lease, or its run is past it.
    pub(crate) fn dropped(&self, count: u32) {
        if count > 0 {
            self.pending.decrement(count);
            self.dropped.increment(u64::from(count));
        }
    }
}

/// Attempts by what became of them, for who has no exporter.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) succeeded: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) retried: AtomicU64,
}

/// Commits by what became of them.
#[derive(Clone)]
pub(crate) struct Commits {
    pub(crate) applied: Counter,
    run_exists: Counter,
    run_version: Counter,
    lease_lost: Counter,
    gate_moved: Counter,
    too_large: Counter,
}

impl Commits {
    pub(crate) fn refused(&self, refusal: Refusal) -> &Counter {
        match refusal {
            Refusal::RunExists => &self.run_exists,
            Refusal::RunVersion => &self.run_version,
            Refusal::LeaseLost(_) => &self.lease_lost,
            Refusal::GateMoved(_) => &self.gate_moved,
            Refusal::TooLarge { .. } => &self.too_large,
        }
    }
}

/// Runs that ended by a commit of this instance, by how.
#[derive(Clone)]
pub(crate) struct RunsEnded {
    completed: Counter,
    failed: Counter,
    cancelled: Counter,
}

impl RunsEnded {
    /// The counter of a status that is an end.
    pub(crate) fn of(&self, status: RunStatus) -> Option<&Counter> {
        match status {
            RunStatus::Completed => Some(&self.completed),
            RunStatus::Failed => Some(&self.failed),
            RunStatus::Cancelled => Some(&self.cancelled),
            RunStatus::Held | RunStatus::Running | RunStatus::Waiting => None,
        }
    }
}

impl Metrics {
    /// An attempt succeeded.
    pub(crate) fn succeeded(&self) {
        self.succeeded.increment(1);
        self.totals.succeeded.fetch_add(1, Ordering::Relaxed);
    }

    /// An attempt failed, and with it its step.
    pub(crate) fn failed(&self) {
        self.failed.increment(1);
        self.totals.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// An attempt failed, and another follows.
    pub(crate) fn retried(&self) {
        self.retried.increment(1);
        self.totals.retried.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn new(instance: &InstanceId) -> Self {
        let instance = instance.to_string();
        let steps =
            |outcome: &'static str| metrics::counter!("flowgate_steps_total", "outcome" => outcome);
        let commits = |outcome: &'static str| {
            let instance = instance.clone();
            metrics::counter!("flowgate_commits_total", "instance" => instance, "outcome" => outcome)
        };
        let ended = |status: RunStatus| metrics::counter!("flowgate_runs_ended_total", "status" => status.as_str());
        Self {
            succeeded: steps("succeeded"),
            failed: steps("failed"),
            retried: steps("retried"),
            released: steps("released"),
            parked: steps("parked"),
            dropped: steps("dropped"),
            batch_size: metrics::histogram!("flowgate_commit_batch_size"),
            commit_wait_seconds: metrics::histogram!("flowgate_commit_wait_seconds"),
            commit_seconds: metrics::histogram!("flowgate_commit_seconds"),
            orchestration_seconds: metrics::histogram!(
                "flowgate_orchestration_seconds", "instance" => instance.clone()
            ),
            commits: Commits {
                applied: commits("applied"),
                run_exists: commits("run_exists"),
                run_version: commits("run_version"),
                lease_lost: commits("lease_lost"),
                gate_moved: commits("gate_moved"),
                too_large: commits("too_large"),
            },
            runs_started: metrics::counter!("flowgate_runs_started_total"),
            runs_ended: RunsEnded {
                completed: ended(RunStatus::Completed),
                failed: ended(RunStatus::Failed),
                cancelled: ended(RunStatus::Cancelled),
            },
            reports_late: metrics::counter!("flowgate_reports_after_end_total"),
            store_retries: metrics::counter!("flowgate_store_retries_total"),
            running: metrics::gauge!("flowgate_attempts_running"),
            leases_lost: metrics::counter!("flowgate_leases_lost_total"),
            repairs: metrics::counter!("flowgate_reconciler_repairs_total"),
            emits: Emits {
                pending: metrics::gauge!("flowgate_emits_pending"),
                wait_seconds: metrics::histogram!("flowgate_emit_wait_seconds"),
                dropped: metrics::counter!("flowgate_emits_dropped_total"),
            },
            totals: Arc::default(),
        }
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}
