//! How a flow did over a number of ended runs, and how that changed.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::run::RunStatus;
use crate::time::Timestamp;

/// The shortest span that a throughput is counted over: fewer runs than that say nothing.
const SPAN_MIN: Duration = Duration::from_secs(1);

/// A run that has ended, as far as the figures need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedRun {
    /// When it was accepted.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How it ended.
    pub status: RunStatus,
}

/// How a flow did over a number of ended runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Runs that ended.
    pub count: u64,
    /// Of them, those that failed.
    pub failed: u64,
    /// Runs that ended in a minute, from the first start to the last end.
    pub throughput_per_minute: f64,
    /// The share of runs that failed, from 0 to 1.
    pub error_rate: f64,
    /// How long a run took on average.
    pub latency_avg_ms: u64,
    /// How long half of the runs took at most.
    pub latency_p50_ms: u64,
    /// How long 99 of 100 runs took at most.
    pub latency_p99_ms: u64,
}

impl Figures {
    /// The figures of these runs; all are 0 without one.
    pub fn of(runs: &[EndedRun]) -> Self {
        let first = runs.iter().map(|run| run.started_at).min();
        let last = runs.iter().map(|run| run.ended_at).max();
        let (Some(first), Some(last)) = (first, last) else { return Self::default() };
        let mut latencies: Vec<u64> =
            runs.iter().map(|run| millis(run.ended_at.since(run.started_at))).collect();
        latencies.sort_unstable();
        let count = number(runs.len());
        let failed = number(runs.iter().filter(|run| run.status == RunStatus::Failed).count());
        let minutes = last.since(first).max(SPAN_MIN).as_secs_f64() / 60.0;
        let total = latencies.iter().fold(0_u64, |sum, ms| sum.saturating_add(*ms));
        Self {
            count,
            failed,
            throughput_per_minute: real(count) / minutes,
            error_rate: real(failed) / real(count),
            latency_avg_ms: total / count,
            latency_p50_ms: percentile(&latencies, 50),
            latency_p99_ms: percentile(&latencies, 99),
        }
    }
}

/// The least of `sorted`, which is not empty, that `percent` of them do not exceed.
fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

/// How the figures changed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delta {
    /// Of runs in a minute.
    pub throughput_per_minute: f64,
    /// Of the share that failed.
    pub error_rate: f64,
    /// Of the average.
    pub latency_avg_ms: i64,
    /// Of the median.
    pub latency_p50_ms: i64,
    /// Of the 99th percentile.
    pub latency_p99_ms: i64,
}

impl Delta {
    /// What `after` has more than `before`.
    pub fn between(before: &Figures, after: &Figures) -> Self {
        Self {
            throughput_per_minute: after.throughput_per_minute - before.throughput_per_minute,
            error_rate: after.error_rate - before.error_rate,
            latency_avg_ms: difference(before.latency_avg_ms, after.latency_avg_ms),
            latency_p50_ms: difference(before.latency_p50_ms, after.latency_p50_ms),
            latency_p99_ms: difference(before.latency_p99_ms, after.latency_p99_ms),
        }
    }
}

fn difference(before: u64, after: u64) -> i64 {
    let size = i64::try_from(after.abs_diff(before)).unwrap_or(i64::MAX);
    if after < before { -size } else { size }
}

pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "figures for people need no more than 52 bits")]
pub(crate) fn real(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(started_at: i64, ended_at: i64, status: RunStatus) -> EndedRun {
        EndedRun { started_at: Timestamp(started_at), ended_at: Timestamp(ended_at), status }
    }

    #[test]
    fn figures_count_what_ended() {
        let mut runs: Vec<EndedRun> =
            (0..100).map(|at| run(at * 600, at * 600 + 10, RunStatus::Completed)).collect();
        runs[7].status = RunStatus::Failed;
        runs[9].ended_at = Timestamp(9 * 600 + 500);
        let figures = Figures::of(&runs);
        assert_eq!((figures.count, figures.failed), (100, 1));
        assert!((figures.error_rate - 0.01).abs() < 1e-9);
        assert!((figures.throughput_per_minute - 100.0).abs() < 2.0);
        assert_eq!((figures.latency_p50_ms, figures.latency_p99_ms), (10, 10));
        assert_eq!(figures.latency_avg_ms, 14);
        runs[8].ended_at = Timestamp(8 * 600 + 400);
        assert_eq!(Figures::of(&runs).latency_p99_ms, 400);
    }

    #[test]
    fn no_runs_have_no_figures_and_one_is_no_thousand_a_minute() {
        assert_eq!(Figures::of(&[]), Figures::default());
        let one = Figures::of(&[run(0, 5, RunStatus::Completed)]);
        assert!((one.throughput_per_minute - 60.0).abs() < 1e-9);
        assert_eq!((one.latency_avg_ms, one.latency_p50_ms, one.latency_p99_ms), (5, 5, 5));
    }

    #[test]
    fn a_delta_has_a_sign() {
        let before = Figures { latency_p99_ms: 100, error_rate: 0.1, ..Figures::default() };
        let after = Figures { latency_p99_ms: 60, error_rate: 0.4, ..Figures::default() };
        let delta = Delta::between(&before, &after);
        assert_eq!((delta.latency_p99_ms, delta.latency_p50_ms), (-40, 0));
        assert!((delta.error_rate - 0.3).abs() < 1e-9);
    }
}
