//! Bursts: starts that follow each other closely and become one run, with the last input.
//!
//! ```text
//!            first start                    due, by whoever leads           the run is there
//!   nothing ------------> open burst --------------------------> sealed ---------------------> gone
//!                          |      ^
//!                          +------+ a start: the last input, due later
//! ```
//!
//! The run has its id from the first start on, so every start of the burst can be told which run it
//! becomes. A burst that is sealed does not change any more: the next start of its key begins
//! another one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{Revision, RunId};
use crate::time::Timestamp;

/// How long a burst waits for more starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// How long there must be no start before the run begins.
    pub quiet: Duration,
    /// How long after the first start the run begins at the latest.
    pub max: Option<Duration>,
}

impl Window {
    /// When a burst is due that began at `first_at` and whose last start is at `now`.
    fn ends_at(self, first_at: Timestamp, now: Timestamp) -> Timestamp {
        let end = now.plus(self.quiet);
        self.max.map_or(end, |max| end.min(first_at.plus(max)))
    }
}

/// What of a start, besides its input, the run of a burst has from the last one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastStart {
    /// The revision that its input was checked against, and that the run is pinned to.
    pub revision: Revision,
    /// Its labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<Arc<str>, Arc<str>>,
    /// The priority of its jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
}

/// Starts of one key that become one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Burst {
    /// The run that they become.
    pub run_id: RunId,
    /// Its flow.
    pub flow: Arc<str>,
    /// When the first of them came.
    pub first_at: Timestamp,
    /// When the run begins, unless more of them come.
    pub due_at: Timestamp,
    /// How many they are.
    pub starts: u64,
    /// The last of them.
    pub last: LastStart,
}

impl Burst {
    /// A burst of one start.
    pub fn begin(
        run_id: RunId,
        flow: Arc<str>,
        last: LastStart,
        (window, now): (Window, Timestamp),
    ) -> Self {
        let due_at = window.ends_at(now, now);
        Self { run_id, flow, first_at: now, due_at, starts: 1, last }
    }

    /// The burst with one more start, which never makes it due earlier.
    #[must_use]
    pub fn join(self, last: LastStart, (window, now): (Window, Timestamp)) -> Self {
        let due_at = self.due_at.max(window.ends_at(self.first_at, now));
        Self { due_at, starts: self.starts + 1, last, ..self }
    }
}

/// What whoever leads finds in the list of bursts by time.
///
/// The entry of an open burst is not moved with every start: it is only looked at no later than the
/// burst is due.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum DueBurst {
    /// Look at the burst of this key.
    Open {
        /// The key.
        key: Arc<str>,
    },
    /// Begin the run.
    Sealed {
        /// The burst, which does not change any more.
        burst: Burst,
        /// Why it could not be begun the last time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
}

/// The key of a burst in the list by time; they sort by their times.
pub fn due_key(at: Timestamp, run_id: RunId) -> Arc<str> {
    format!("{:015}/{run_id}", at.0).into()
}

/// The time and the run of a key in the list by time.
pub fn due_of_key(key: &str) -> Option<(Timestamp, RunId)> {
    let (digits, run_id) = key.split_once('/')?;
    Some((Timestamp(digits.parse().ok()?), run_id.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn last(number: u8) -> LastStart {
        let (revision, tags) = (Revision("r".into()), BTreeMap::new());
        LastStart { revision, tags, priority: Some(number) }
    }

    /// When a burst is due, in seconds, after starts at these times with this window.
    fn due(starts: &[i64], (quiet, max): (u64, Option<u64>)) -> i64 {
        let max = max.map(Duration::from_secs);
        let window = Window { quiet: Duration::from_secs(quiet), max };
        let mut times = starts.iter().map(|at| (window, Timestamp(at * 1_000)));
        let first = times.next().expect("a burst has a start");
        let burst = Burst::begin(RunId(Uuid::from_u128(1)), "f".into(), last(0), first);
        let burst = times.fold(burst, |burst, time| burst.join(last(9), time));
        assert_eq!(burst.starts, u64::try_from(starts.len()).unwrap());
        assert_eq!(burst.last, last(if starts.len() == 1 { 0 } else { 9 }));
        burst.due_at.0 / 1_000
    }

    #[test]
    fn each_start_puts_a_burst_off_but_not_beyond_its_max() {
        type Row<'a> = (&'a [i64], (u64, Option<u64>), i64);
        let rows: [Row<'_>; 6] = [
            (&[0], (5, None), 5),
            (&[0, 3, 7], (5, None), 12),
            (&[0, 3, 7], (5, Some(10)), 10),
            (&[0, 3, 7, 30], (5, Some(10)), 10),
            (&[0], (5, Some(5)), 5),
            // The clock of a store that was put back.
            (&[9, 2], (5, None), 14),
        ];
        for (starts, window, expected) in rows {
            assert_eq!(due(starts, window), expected, "{starts:?} {window:?}");
        }
    }

    #[test]
    fn keys_by_time_sort_by_their_times_and_are_read_back() {
        let run_id = RunId(Uuid::from_u128(7));
        let keys = [5, 70, 1_700_000_000_000].map(|at| due_key(Timestamp(at), run_id));
        assert!(keys.is_sorted());
        assert_eq!(due_of_key(&keys[2]), Some((Timestamp(1_700_000_000_000), run_id)));
        for bad in ["", "7", "a/b", "7/b", "000000000000007/"] {
            assert_eq!(due_of_key(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_burst_is_stored_in_this_form() {
        let time = (Window { quiet: Duration::from_secs(5), max: None }, Timestamp(1_000));
        let run_id = RunId(Uuid::from_u128(7));
        let burst = Burst::begin(run_id, "f".into(), last(3), time);
        let sealed = DueBurst::Sealed { burst, error: None };
        let text = serde_json::to_string(&sealed).unwrap();
        assert_eq!(
            text,
            r#"{"state":"sealed","burst":{"run_id":"00000000-0000-0000-0000-000000000007","flow":"f","first_at":1000,"due_at":6000,"starts":1,"last":{"revision":"r","priority":3}}}"#
        );
        assert_eq!(serde_json::from_str::<DueBurst>(&text).unwrap(), sealed);
        let open = DueBurst::Open { key: "f/k".into() };
        assert_eq!(serde_json::to_string(&open).unwrap(), r#"{"state":"open","key":"f/k"}"#);
    }
}
