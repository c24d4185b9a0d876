//! Wall time, CPU time and percentiles.

use std::time::Duration;

use tokio::time::Instant;

use super::Figure;

/// A measurement that has begun.
pub(crate) struct Meter {
    clock: Instant,
    cpu: Duration,
}

impl Meter {
    pub(crate) fn start() -> Self {
        Self { cpu: cpu_time(), clock: Instant::now() }
    }

    pub(crate) fn stop(
        self,
        store: &str,
        scenario: &str,
        steps: usize,
        mut latencies: Vec<Duration>,
    ) -> Figure {
        let elapsed = self.clock.elapsed();
        let cpu = cpu_time().saturating_sub(self.cpu);
        latencies.sort_unstable();
        let steps = as_f64(steps);
        Figure {
            store: store.to_owned(),
            scenario: scenario.to_owned(),
            steps_per_s: steps / elapsed.as_secs_f64(),
            p50_ms: percentile_ms(&latencies, 50),
            p99_ms: percentile_ms(&latencies, 99),
            cpu_us_per_step: cpu.as_secs_f64() * 1e6 / steps,
        }
    }
}

fn percentile_ms(sorted: &[Duration], percent: usize) -> f64 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
}

#[expect(clippy::cast_precision_loss, reason = "counts of runs are far below 2^52")]
pub(crate) fn as_f64(count: usize) -> f64 {
    count as f64
}

fn cpu_time() -> Duration {
    cpu_time_of("self")
}

/// User and system time of a process, from `/proc`; zero where there is none.
pub(crate) fn cpu_time_of(pid: &str) -> Duration {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return Duration::ZERO;
    };
    // The program's name is in parentheses and may hold spaces.
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    // Linux counts these in hundredths of a second on every platform that we build for.
    Duration::from_millis(ticks * 10)
}

/// Resident memory of a process in MiB, from `/proc`.
pub(crate) fn resident_mib_of(pid: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    let kib: f64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0.0);
    kib / 1024.0
}
