//! How fast the store answered lately.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::controller::Reading;

/// Answers that are remembered between two looks.
const REMEMBERED_MAX: usize = 256;

/// The answers of the store since the last look.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    /// How long each took; none if it failed.
    took: VecDeque<Option<Duration>>,
    /// What the last look found.
    last: Option<Duration>,
}

impl Answers {
    /// A call that was begun at `asked` was answered, or failed, at `now`.
    pub(crate) fn note(&self, asked: Instant, now: Instant, is_answered: bool) {
        let mut remembered = self.0.lock();
        if remembered.took.len() == REMEMBERED_MAX {
            remembered.took.pop_front();
        }
        let took = is_answered.then(|| now.saturating_duration_since(asked));
        remembered.took.push_back(took);
    }

    /// In seconds, how long all but the slowest twentieth took since the last look; a call that
    /// failed is the slowest.
    pub(super) fn take_percentile_95(&self) -> Reading {
        let mut remembered = self.0.lock();
        if remembered.took.is_empty() {
            return Reading::None;
        }
        let mut took: Vec<Option<Duration>> = remembered.took.drain(..).collect();
        took.sort_by_key(|took| took.unwrap_or(Duration::MAX));
        let found = took[(took.len() * 95).div_ceil(100) - 1];
        remembered.last = found;
        found.map_or(Reading::Failed, |took| Reading::Value(took.as_secs_f64()))
    }

    /// What the last look found; none if the store did not answer.
    pub(crate) fn last_percentile_95(&self) -> Option<Duration> {
        self.0.lock().last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(took_ms: &[Option<u64>], expected: Reading) {
        let (answers, began) = (Answers::default(), crate::clock::now());
        for took in took_ms {
            let at = began + Duration::from_millis(took.unwrap_or(0));
            answers.note(began, at, took.is_some());
        }
        assert_eq!(answers.take_percentile_95(), expected, "{took_ms:?}");
        assert_eq!(answers.take_percentile_95(), Reading::None, "each counts once");
    }

    #[test]
    fn one_slow_answer_of_twenty_does_not_count_and_a_failed_one_is_the_slowest() {
        check(&[], Reading::None);
        check(&[Some(7)], Reading::Value(0.007));
        let mut answers = vec![Some(1); 19];
        answers.push(Some(900));
        check(&answers, Reading::Value(0.001));
        answers.push(None);
        check(&answers, Reading::Value(0.9));
        check(&[Some(1), None], Reading::Failed);
        check(&[None], Reading::Failed);
    }
}
