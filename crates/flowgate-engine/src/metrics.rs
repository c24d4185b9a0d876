//! What an instance counts. The names are in `docs/guide/operating.md`.

use metrics::{Counter, Gauge, Histogram};

/// Handles, made once: a look-up by name would cost more than a step.
#[derive(Clone)]
pub(crate) struct Metrics {
    pub(crate) succeeded: Counter,
    pub(crate) failed: Counter,
    pub(crate) retried: Counter,
    pub(crate) released: Counter,
    pub(crate) dropped: Counter,
    pub(crate) commits: Histogram,
    pub(crate) commit_seconds: Histogram,
    pub(crate) orchestration_seconds: Histogram,
    pub(crate) refused_version: Counter,
    pub(crate) refused_lease: Counter,
    pub(crate) store_errors: Counter,
    pub(crate) running: Gauge,
    pub(crate) leases_lost: Counter,
    pub(crate) repairs: Counter,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let steps =
            |outcome: &'static str| metrics::counter!("flowgate_steps_total", "outcome" => outcome);
        let refused = |guard: &'static str| metrics::counter!("flowgate_commits_refused_total", "guard" => guard);
        Self {
            succeeded: steps("succeeded"),
            failed: steps("failed"),
            retried: steps("retried"),
            released: steps("released"),
            dropped: steps("dropped"),
            commits: metrics::histogram!("flowgate_commit_batch_size"),
            commit_seconds: metrics::histogram!("flowgate_commit_seconds"),
            orchestration_seconds: metrics::histogram!("flowgate_orchestration_seconds"),
            refused_version: refused("run_version"),
            refused_lease: refused("lease_held"),
            store_errors: metrics::counter!("flowgate_store_errors_total"),
            running: metrics::gauge!("flowgate_attempts_running"),
            leases_lost: metrics::counter!("flowgate_leases_lost_total"),
            repairs: metrics::counter!("flowgate_reconciler_repairs_total"),
        }
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}
