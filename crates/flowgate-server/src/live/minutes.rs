//! What happened in each of the last sixty minutes.

use std::collections::BTreeMap;
use std::time::Duration;

use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_store::{RunQuery, Store, StoreError};

use crate::lookup;

/// Minutes that are kept.
const MINUTES: i64 = 60;
const MINUTE_MS: i64 = 60_000;
/// Pages of runs that are read to know what happened before anybody counted.
const PAGES_MAX: usize = 5;

/// Starts and ends by the minute.
#[derive(Clone, Debug, Default)]
pub(super) struct Minutes {
    counts: BTreeMap<i64, Counts>,
    /// What happened until then was read, what happens later is counted.
    from: Timestamp,
}

/// What happened in a minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) started: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
}

impl Minutes {
    /// What the runs say that were started in the last sixty minutes; the latest of them, if they
    /// are very many.
    pub(super) async fn read(store: &dyn Store) -> Result<Self, StoreError> {
        let from = store.now().await?;
        let mut minutes = Self { counts: BTreeMap::new(), from };
        let since = from.minus(Duration::from_mins(MINUTES.unsigned_abs()));
        let mut query = RunQuery { since: Some(since), limit: PAGE_MAX, ..RunQuery::default() };
        for _ in 0..PAGES_MAX {
            let page = store.list_runs(&query).await?;
            for row in page.iter().filter(|row| row.started_at <= from) {
                minutes.at(row.started_at).started += 1;
                let Some(ended_at) = row.ended_at.filter(|at| *at <= from) else { continue };
                match row.run.status {
                    RunStatus::Completed => minutes.at(ended_at).completed += 1,
                    RunStatus::Failed => minutes.at(ended_at).failed += 1,
                    RunStatus::Held
                    | RunStatus::Running
                    | RunStatus::Waiting
                    | RunStatus::Cancelled => {}
                }
            }
            match page.last() {
                Some(last) if page.len() == PAGE_MAX => query.after = Some(lookup::cursor_of(last)),
                Some(_) | None => break,
            }
        }
        Ok(minutes)
    }

    fn at(&mut self, time: Timestamp) -> &mut Counts {
        self.counts.entry(time.0.div_euclid(MINUTE_MS)).or_default()
    }

    pub(super) fn count(&mut self, stored: &StoredEvent) {
        if stored.at <= self.from {
            return;
        }
        match &stored.event {
            Event::RunStarted(_) => self.at(stored.at).started += 1,
            Event::RunCompleted {} => self.at(stored.at).completed += 1,
            Event::RunFailed { .. } => self.at(stored.at).failed += 1,
            Event::RunReleased { .. }
            | Event::RunMigrated(_)
            | Event::RunCheckpointed { .. }
            | Event::StepQueued { .. }
            | Event::StepRepaired { .. }
            | Event::StepWaiting { .. }
            | Event::StepStarted { .. }
            | Event::StepLost { .. }
            | Event::StepReleased { .. }
            | Event::StepParked { .. }
            | Event::EventEmitted { .. }
            | Event::EventRepeated { .. }
            | Event::StateSet { .. }
            | Event::AttemptFailed { .. }
            | Event::StepSucceeded { .. }
            | Event::StepFailed { .. }
            | Event::StepSkipped { .. }
            | Event::StepCancelled { .. }
            | Event::StepCarried { .. }
            | Event::SignalReceived { .. }
            | Event::SignalTaken { .. }
            | Event::RunCancelled { .. } => return,
        }
        // Whatever the clock of the store does, no more is kept than is told.
        while self.counts.len() > usize::try_from(2 * MINUTES).expect("it is small") {
            self.counts.pop_first();
        }
    }

    /// The last sixty minutes before `now`, the oldest first, with those in which nothing happened.
    pub(super) fn last(&self, now: Timestamp) -> Vec<(Timestamp, Counts)> {
        let this = now.0.div_euclid(MINUTE_MS);
        let minute = |minute: i64| {
            let counts = self.counts.get(&minute).copied().unwrap_or_default();
            (Timestamp(minute.saturating_mul(MINUTE_MS)), counts)
        };
        (this - MINUTES + 1..=this).map(minute).collect()
    }
}

#[cfg(test)]
mod tests {
    use flowgate_core::ids::{Position, RunId};

    use super::*;

    #[test]
    fn an_hour_has_sixty_minutes_and_what_was_read_is_not_counted_again() {
        let mut minutes = Minutes { from: Timestamp(90_000), ..Minutes::default() };
        let completed = |at| StoredEvent {
            position: Position::counted(1),
            run_id: RunId::derived("a", "b"),
            seq: 1,
            at: Timestamp(at),
            event: Event::RunCompleted {},
        };
        for at in [30_000, 90_000, 90_001, 119_999, 120_000] {
            minutes.count(&completed(at));
        }
        let last = minutes.last(Timestamp(150_000));
        assert_eq!((last.len(), last[59].0), (60, Timestamp(120_000)));
        let counts: Vec<u64> = last[57..].iter().map(|(_, counts)| counts.completed).collect();
        assert_eq!(counts, [0, 2, 1]);
        let later = minutes.last(Timestamp(150_000 + 59 * MINUTE_MS));
        assert_eq!(later[0].1.completed, 1);
        let much_later = minutes.last(Timestamp(150_000 + 90 * MINUTE_MS));
        assert!(much_later.iter().all(|(_, counts)| *counts == Counts::default()));
    }
}
