//! Wall time, CPU time and percentiles.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::Instant;

use super::server::ServerProcess;
use super::{Figure, round_trips};

/// A measurement that has begun.
pub(crate) struct Meter {
    clock: Instant,
    cpu: Duration,
    server: Option<(ServerProcess, Duration)>,
    round_trips: u64,
}

impl Meter {
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    /// Measures what a server uses, too.
    pub(crate) fn start_with(server: Option<ServerProcess>) -> Self {
        Self {
            round_trips: round_trips::count(),
            server: server.map(|server| (server, server.cpu_time())),
            cpu: cpu_time(),
            clock: Instant::now(),
        }
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
        let server = self.server.map(|(server, before)| server.cpu_time().saturating_sub(before));
        let round_trips = round_trips::count() - self.round_trips;
        latencies.sort_unstable();
        let steps = as_f64(steps);
        let per_step = |used: Duration| used.as_secs_f64() * 1e6 / steps;
        Figure {
            store: store.to_owned(),
            scenario: scenario.to_owned(),
            steps_per_s: steps / elapsed.as_secs_f64(),
            p50_ms: percentile_ms(&latencies, 50),
            p99_ms: percentile_ms(&latencies, 99),
            cpu_us_per_step: per_step(cpu),
            server_cpu_us_per_step: server.map(per_step),
            round_trips_per_step: (round_trips > 0)
                .then(|| as_f64(usize::try_from(round_trips).unwrap_or(usize::MAX)) / steps),
        }
    }
}

pub(crate) fn percentile_ms(sorted: &[Duration], percent: usize) -> f64 {
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

/// User and system time of a process; zero where there is none.
pub(crate) fn cpu_time_of(pid: &str) -> Duration {
    Stat::read(pid).map_or(Duration::ZERO, |stat| stat.own)
}

/// What `/proc` says of a process.
pub(crate) struct Stat {
    pub(crate) program: String,
    pub(crate) parent: u32,
    /// User and system time.
    pub(crate) own: Duration,
    /// The same of its children that have ended.
    pub(crate) ended_children: Duration,
}

impl Stat {
    pub(crate) fn read(pid: impl Display) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(line: &str) -> Option<Self> {
        // The program's name is in parentheses, and may hold spaces and parentheses.
        let (before, after) = line.rsplit_once(')')?;
        let (_, program) = before.split_once('(')?;
        let fields: Vec<&str> = after.split_whitespace().collect();
        // Linux counts these in hundredths of a second on every platform that we build for.
        let time = |user: usize| {
            let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
            Some(Duration::from_millis((ticks(user)? + ticks(user + 1)?) * 10))
        };
        Some(Self {
            program: program.to_owned(),
            parent: fields.get(1)?.parse().ok()?,
            own: time(11)?,
            ended_children: time(13)?,
        })
    }
}

/// Resident memory of a process in MiB, from `/proc`.
pub(crate) fn resident_mib_of(pid: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    let kib: f64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0.0);
    kib / 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let line = "7 (a (b) c) S 3 7 7 0 -1 0 0 0 0 0 150 50 20 5 20 0 1 0 0 0 0";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.program.as_str(), stat.parent), ("a (b) c", 3));
        assert_eq!(stat.own, Duration::from_secs(2));
        assert_eq!(stat.ended_children, Duration::from_millis(250));
        assert!(Stat::parse("7 (a) S").is_none());
    }
}
