//! When a failed attempt is tried again.

use std::time::Duration;

use crate::flow::RetryFile;

/// How many attempts a step has and how long it waits between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Attempts in all.
    pub attempts_max: u32,
    /// The delay before the second attempt.
    pub delay_min: Duration,
    /// By how much each delay is longer than the one before.
    pub factor: f64,
    /// The longest delay.
    pub delay_max: Duration,
    /// The share of a delay that is random, from 0 to 1.
    pub jitter: f64,
}

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum NextAttempt {
    /// Another one, after this delay.
    After(Duration),
    /// None.
    Never,
}

impl RetryPolicy {
    /// What a step has that does not say otherwise.
    pub const DEFAULT: Self = Self {
        attempts_max: 3,
        delay_min: Duration::from_secs(1),
        factor: 2.0,
        delay_max: Duration::from_mins(1),
        jitter: 0.2,
    };

    /// The policy that `file` describes, with defaults for what it leaves out.
    pub fn from_file(file: Option<&RetryFile>) -> Self {
        let Some(file) = file else { return Self::DEFAULT };
        let backoff = file.backoff.clone().unwrap_or_default();
        Self {
            attempts_max: file.attempts.unwrap_or(Self::DEFAULT.attempts_max),
            delay_min: backoff.initial.map_or(Self::DEFAULT.delay_min, |span| span.0),
            factor: backoff.factor.unwrap_or(Self::DEFAULT.factor),
            delay_max: backoff.max.map_or(Self::DEFAULT.delay_max, |span| span.0),
            jitter: backoff.jitter.unwrap_or(Self::DEFAULT.jitter),
        }
    }

    /// What follows the failure number `failures` (from 1); `random` is from 0 to 1.
    pub fn after(&self, failures: u32, random: f64) -> NextAttempt {
        if failures >= self.attempts_max {
            return NextAttempt::Never;
        }
        let exponent = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
        let full = self.delay_min.as_secs_f64() * self.factor.powi(exponent);
        let capped = full.min(self.delay_max.as_secs_f64());
        // The random share is taken off, so that no delay is over the longest.
        let delay = capped * (1.0 - self.jitter * random.clamp(0.0, 1.0));
        NextAttempt::After(Duration::try_from_secs_f64(delay).unwrap_or(self.delay_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(jitter: f64) -> RetryPolicy {
        RetryPolicy {
            attempts_max: 6,
            delay_min: Duration::from_millis(200),
            factor: 2.0,
            delay_max: Duration::from_secs(1),
            jitter,
        }
    }

    #[test]
    fn delays_grow_up_to_the_longest_and_attempts_end() {
        let rows = [(1, 200), (2, 400), (3, 800), (4, 1000), (5, 1000)];
        for (failures, ms) in rows {
            let expected = NextAttempt::After(Duration::from_millis(ms));
            assert_eq!(policy(0.0).after(failures, 0.7), expected, "after {failures}");
        }
        assert_eq!(policy(0.0).after(6, 0.0), NextAttempt::Never);
    }

    #[test]
    fn jitter_only_shortens_a_delay() {
        let expected = NextAttempt::After(Duration::from_millis(100));
        assert_eq!(policy(0.5).after(1, 1.0), expected);
        assert_eq!(policy(0.5).after(1, 0.0), NextAttempt::After(Duration::from_millis(200)));
    }

    #[test]
    fn a_huge_factor_does_not_overflow() {
        let steep = RetryPolicy { factor: 1e300, attempts_max: 1000, ..policy(0.0) };
        assert_eq!(steep.after(900, 0.0), NextAttempt::After(Duration::from_secs(1)));
    }
}
