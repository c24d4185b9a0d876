//! Whether a canary did well enough.

use super::CanarySeen;
use crate::deploy::figures::real;
use crate::deploy::settings::Canary;

/// What the runs of a canary say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Too few have ended.
    TooFew,
    /// It does as well as it must.
    Good,
    /// It does worse, in this.
    Worse(String),
}

/// Compares the new revision with the old one. An old revision without runs is taken to be without
/// errors, and says nothing about latency.
pub(super) fn judge(rules: &Canary, seen: &CanarySeen) -> Judgement {
    let CanarySeen { old, new } = seen;
    if new.count < u64::from(rules.samples_min.max(1)) {
        return Judgement::TooFew;
    }
    if new.error_rate > old.error_rate + rules.error_rate_max {
        return Judgement::Worse(format!(
            "its error rate is {:.2} %, that of the old revision {:.2} %",
            new.error_rate * 100.0,
            old.error_rate * 100.0
        ));
    }
    // A run of less than a millisecond counts as one, so that 1 ms is not infinitely slower.
    let latency_max = real(old.latency_p99_ms.max(1)) * rules.latency_ratio_max;
    if old.count > 0 && real(new.latency_p99_ms) > latency_max {
        return Judgement::Worse(format!(
            "its 99th percentile of latency is {} ms, that of the old revision {} ms",
            new.latency_p99_ms, old.latency_p99_ms
        ));
    }
    Judgement::Good
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deploy::figures::Figures;

    fn figures(count: u64, error_rate: f64, latency_p99_ms: u64) -> Figures {
        Figures { count, error_rate, latency_p99_ms, ..Figures::default() }
    }

    #[test]
    fn a_canary_is_judged_by_errors_and_latency_once_it_has_enough_runs() {
        let rules = Canary::default();
        let rows = [
            (figures(900, 0.02, 100), figures(49, 1.0, 9_000), "too few"),
            (figures(900, 0.02, 100), figures(50, 0.03, 200), "good"),
            (figures(900, 0.02, 100), figures(50, 0.04, 100), "worse"),
            (figures(900, 0.02, 100), figures(50, 0.0, 201), "worse"),
            (figures(900, 0.0, 0), figures(50, 0.0, 2), "good"),
            (figures(0, 0.0, 0), figures(50, 0.0, 5_000), "good"),
            (figures(0, 0.0, 0), figures(50, 0.02, 0), "worse"),
        ];
        for (old, new, wanted) in rows {
            let seen = CanarySeen { old, new };
            let found = match judge(&rules, &seen) {
                Judgement::TooFew => "too few",
                Judgement::Good => "good",
                Judgement::Worse(_) => "worse",
            };
            assert_eq!(found, wanted, "{seen:?}");
        }
    }
}
