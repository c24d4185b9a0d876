//! The decision: levels from looks, with hysteresis. It reads no clock and no store.

use std::collections::VecDeque;
use std::time::Duration;

use flowgate_core::view::Brief;
use tokio::time::Instant;

use super::{Bounds, Degradation};

/// Looks that are remembered,
const LOOKS: usize = 5;
/// and how many of them must be bad for a level to rise.
const BAD_MIN: usize = 3;
/// Under this share of a bound it is clearly not reached.
const CALM_SHARE: f64 = 0.8;
/// How long it must be calm before a level falls.
pub(super) const CALM_FOR: Duration = Duration::from_secs(30);

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reading {
    /// There is nothing to measure.
    None,
    /// It is this much.
    Value(f64),
    /// It could not be measured.
    Failed,
}

/// What is measured; the order of the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    StoreLatency,
    LoopDelay,
    Memory,
    QueueDue,
    QueueAge,
}

const MEASURES: [Measure; 5] = [
    Measure::StoreLatency,
    Measure::LoopDelay,
    Measure::Memory,
    Measure::QueueDue,
    Measure::QueueAge,
];

impl Measure {
    /// Whether it is about what waits, not about the instance or its store.
    fn is_of_queues(self) -> bool {
        matches!(self, Self::QueueDue | Self::QueueAge)
    }

    fn in_words(self, reading: Reading) -> String {
        match (self, reading) {
            (Self::StoreLatency, Reading::Value(seconds)) => {
                format!("the store takes {}", Brief(Duration::from_secs_f64(seconds)))
            }
            (Self::StoreLatency, _) => "the store does not answer".to_owned(),
            (Self::LoopDelay, Reading::Value(seconds)) => {
                format!("the event loop is {} late", Brief(Duration::from_secs_f64(seconds)))
            }
            (Self::LoopDelay, _) => "the event loop cannot be measured".to_owned(),
            (Self::Memory, Reading::Value(share)) => {
                format!("{:.0} % of the memory is in use", share * 100.0)
            }
            (Self::Memory, _) => "memory cannot be measured".to_owned(),
            (Self::QueueDue, Reading::Value(due)) => format!("{due} jobs are due"),
            (Self::QueueAge, Reading::Value(seconds)) => {
                format!("a due job has waited {}", Brief(Duration::from_secs_f64(seconds)))
            }
            (Self::QueueDue | Self::QueueAge, _) => "the queues cannot be read".to_owned(),
        }
    }
}

/// One look at an instance: seconds, shares and jobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Look {
    pub(super) store_latency: Reading,
    pub(super) loop_delay: Reading,
    pub(super) memory: Reading,
    pub(super) queue_due: Reading,
    pub(super) queue_age: Reading,
}

impl Look {
    fn reading(&self, measure: Measure) -> Reading {
        match measure {
            Measure::StoreLatency => self.store_latency,
            Measure::LoopDelay => self.loop_delay,
            Measure::Memory => self.memory,
            Measure::QueueDue => self.queue_due,
            Measure::QueueAge => self.queue_age,
        }
    }
}

/// A new level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) from: Degradation,
    pub(super) to: Degradation,
}

/// The levels of an instance.
#[derive(Debug)]
pub(super) struct Controller {
    bounds: [Option<Bounds<f64>>; 5],
    /// By what the instance and its store can do.
    own: Hysteresis,
    /// By what waits.
    queues: Hysteresis,
}

impl Controller {
    pub(super) fn new(bounds: [Option<Bounds<f64>>; 5]) -> Self {
        Self { bounds, own: Hysteresis::default(), queues: Hysteresis::default() }
    }

    pub(super) fn level(&self) -> Degradation {
        self.own.level.max(self.queues.level)
    }

    /// Claiming less does not help against full queues.
    pub(super) fn slows_claims(&self) -> bool {
        self.own.level > Degradation::Normal
    }

    /// The level after one more look, if it changed.
    pub(super) fn observe(&mut self, now: Instant, look: &Look) -> Option<Change> {
        let from = self.level();
        let own = |measure: Measure| !measure.is_of_queues();
        self.own.observe(now, self.worst(look, 1.0, own), self.worst(look, CALM_SHARE, own));
        let queues = Measure::is_of_queues;
        let (level, calm) = (self.worst(look, 1.0, queues), self.worst(look, CALM_SHARE, queues));
        self.queues.observe(now, level, calm);
        let to = self.level();
        (from != to).then_some(Change { from, to })
    }

    /// What is over a bound in this look, the worst of it, in words.
    pub(super) fn cause(&self, look: &Look) -> Option<String> {
        let level = |measure: &Measure| self.level_of(*measure, look, 1.0);
        // The first of those that are equally bad.
        let worst = MEASURES.into_iter().rev().max_by_key(level)?;
        let is_bad = level(&worst) > Degradation::Normal;
        is_bad.then(|| worst.in_words(look.reading(worst)))
    }

    /// How long it takes at least until a critical instance is not critical any more.
    pub(super) fn calm_after(&self, now: Instant) -> Duration {
        [&self.own, &self.queues]
            .into_iter()
            .filter(|part| part.level == Degradation::Critical)
            .map(|part| part.calm_after(now))
            .max()
            .unwrap_or_default()
    }

    fn worst(&self, look: &Look, share: f64, counts: impl Fn(Measure) -> bool) -> Degradation {
        let levels = MEASURES.into_iter().filter(|measure| counts(*measure));
        levels.map(|measure| self.level_of(measure, look, share)).max().unwrap_or_default()
    }

    fn level_of(&self, measure: Measure, look: &Look, share: f64) -> Degradation {
        let Some(bounds) = self.bounds[measure as usize] else { return Degradation::Normal };
        match look.reading(measure) {
            Reading::Failed => Degradation::Degraded,
            Reading::Value(value) if value >= bounds.critical * share => Degradation::Critical,
            Reading::Value(value) if value >= bounds.degraded * share => Degradation::Degraded,
            Reading::None | Reading::Value(_) => Degradation::Normal,
        }
    }
}

/// A level that rises when looks stay bad, and falls when they stay calm.
#[derive(Debug, Default)]
struct Hysteresis {
    level: Degradation,
    recent: VecDeque<Degradation>,
    /// Since when looks are calmer than the level, and the worst of them.
    calm: Option<(Instant, Degradation)>,
}

impl Hysteresis {
    /// One more look: its level, and its level by the bounds of calm, which is not lower.
    fn observe(&mut self, now: Instant, level: Degradation, calm: Degradation) {
        if self.recent.len() == LOOKS {
            self.recent.pop_front();
        }
        self.recent.push_back(level);
        let bad = |level: Degradation| self.recent.iter().filter(|look| **look >= level).count();
        let rises = [Degradation::Critical, Degradation::Degraded]
            .into_iter()
            .find(|level| *level > self.level && bad(*level) >= BAD_MIN);
        if let Some(level) = rises {
            self.level = level;
            self.calm = None;
        }
        if calm >= self.level {
            self.calm = None;
            return;
        }
        let (since, worst) =
            self.calm.map_or((now, calm), |(since, worst)| (since, worst.max(calm)));
        self.calm = Some((since, worst));
        if now.saturating_duration_since(since) >= CALM_FOR {
            self.level = worst;
            self.calm = None;
        }
    }

    fn calm_after(&self, now: Instant) -> Duration {
        let calm_for = self.calm.map(|(since, _)| now.saturating_duration_since(since));
        CALM_FOR.saturating_sub(calm_for.unwrap_or_default()).max(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests;
