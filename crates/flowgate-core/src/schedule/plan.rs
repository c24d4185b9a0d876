//! What becomes of the occurrences of a schedule.
//!
//! [`plan()`] looks at what has come due since the record's mark, in the order of the due times, and
//! moves the mark over each occurrence that it gives a fate. Whoever writes the record writes the
//! fates with it, all or nothing, so none can get lost between two leaders: what one has not
//! written down, the next one finds due.

use std::collections::HashMap;
use std::time::Duration;

use super::{
    Asked, CatchUp, Fate, Occurrence, Overlap, Pending, Range, Reason, Schedule, ScheduleRecord,
    Source,
};
use crate::flow::Span;
use crate::ids::RunId;
use crate::limits::OCCURRENCES_MAX;
use crate::time::Timestamp;

/// An occurrence that is started later than this is late.
pub const LATE_AFTER: Duration = Duration::from_secs(2);

/// What is to be written down about a schedule.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Plan {
    /// The record afterwards.
    pub record: ScheduleRecord,
    /// The entries of the ledger.
    pub rows: Vec<Occurrence>,
    /// Whether more has come due than fits into one plan.
    pub has_more: bool,
}

/// Gives each occurrence that has come due its fate.
///
/// `is_open` says whether the run that the schedule started last has not ended.
pub fn plan(
    name: &str,
    schedule: &Schedule,
    record: &ScheduleRecord,
    (now, term): (Timestamp, u64),
    is_open: bool,
) -> Plan {
    let mut planner = Planner {
        name,
        schedule,
        now,
        term,
        is_open: is_open || !record.pending.is_empty(),
        started_here: None,
        record: record.clone(),
        rows: Vec::new(),
    };
    let has_more = planner.run();
    Plan { record: planner.record, rows: planner.rows, has_more }
}

struct Planner<'a> {
    name: &'a str,
    schedule: &'a Schedule,
    now: Timestamp,
    term: u64,
    is_open: bool,
    /// The place among the rows of what this plan starts last.
    started_here: Option<usize>,
    record: ScheduleRecord,
    rows: Vec<Occurrence>,
}

impl Planner<'_> {
    fn run(&mut self) -> bool {
        if let Some(due_at) = self.record.queued
            && !self.is_open
        {
            self.record.queued = None;
            let fate = if self.is_late(due_at) { Fate::Late } else { Fate::Fired };
            self.start(due_at, fate, None);
        }
        let mut due = self.due();
        if due.len() > OCCURRENCES_MAX && self.pass_over(due[0]) {
            due = self.due();
        }
        for (at, due_at) in due.iter().copied().take(OCCURRENCES_MAX).enumerate() {
            if self.starts_at(due_at) > self.now {
                return false;
            }
            if self.record.pending.len() >= OCCURRENCES_MAX {
                return true;
            }
            let has_later = due.get(at + 1).is_some_and(|next| self.starts_at(*next) <= self.now);
            self.decide(due_at, has_later);
            self.record.fired_through = due_at;
        }
        due.len() > OCCURRENCES_MAX
    }

    /// What has come due since the mark, and one more than a plan may hold.
    fn due(&self) -> Vec<Timestamp> {
        self.schedule.between(self.record.fired_through, self.now, OCCURRENCES_MAX + 1)
    }

    fn starts_at(&self, due_at: Timestamp) -> Timestamp {
        due_at.plus(self.schedule.delay(self.name, due_at))
    }

    fn is_late(&self, due_at: Timestamp) -> bool {
        self.now.since(self.starts_at(due_at)) > LATE_AFTER
    }

    /// Gives a long backlog that nothing is started of one entry; whether there was one.
    fn pass_over(&mut self, first: Timestamp) -> bool {
        let is_paused = self.record.is_paused;
        let in_time = self.now.minus(LATE_AFTER).minus(self.schedule.jitter);
        let keep_from = match self.schedule.catch_up {
            CatchUp::All(Span(window)) if !is_paused => self.now.minus(window),
            CatchUp::Latest if !is_paused => {
                in_time.min(self.schedule.last_until(self.now).unwrap_or(self.now))
            }
            CatchUp::Skip | CatchUp::Latest | CatchUp::All(_) => in_time,
        };
        let before = Timestamp(keep_from.0.saturating_sub(1));
        let Some(through) = self.schedule.last_until(before).filter(|last| *last > first) else {
            return false;
        };
        let (fate, reason) = match self.schedule.catch_up {
            _ if is_paused => (Fate::Skipped, Reason::Paused),
            CatchUp::Latest => (Fate::Skipped, Reason::CatchUp),
            CatchUp::Skip | CatchUp::All(_) => (Fate::Missed, Reason::NoLeader),
        };
        let row = Occurrence { through: Some(through), ..self.row(first, fate) };
        self.rows.push(Occurrence { reason: Some(reason), ..row });
        self.record.fired_through = through;
        true
    }

    fn decide(&mut self, due_at: Timestamp, has_later: bool) {
        if self.record.is_paused {
            self.leave_out(due_at, Fate::Skipped, Reason::Paused);
        } else if !self.is_late(due_at) {
            self.start_unless_open(due_at, Fate::Fired);
        } else {
            match self.schedule.catch_up {
                CatchUp::Latest if has_later => {
                    self.leave_out(due_at, Fate::Skipped, Reason::CatchUp);
                }
                CatchUp::Latest => self.start_unless_open(due_at, Fate::Late),
                CatchUp::All(Span(window)) if self.now.since(due_at) <= window => {
                    self.start_unless_open(due_at, Fate::Late);
                }
                CatchUp::Skip | CatchUp::All(_) => {
                    self.leave_out(due_at, Fate::Missed, Reason::NoLeader);
                }
            }
        }
    }

    fn start_unless_open(&mut self, due_at: Timestamp, fate: Fate) {
        if !self.is_open {
            self.start(due_at, fate, None);
            return;
        }
        match self.schedule.overlap {
            Overlap::Allow => self.start(due_at, fate, None),
            Overlap::QueueOne if self.record.queued.is_none() => {
                self.record.queued = Some(due_at);
                self.rows.push(self.row(due_at, Fate::Queued));
            }
            Overlap::Skip | Overlap::QueueOne => {
                self.leave_out(due_at, Fate::Skipped, Reason::Overlap);
            }
            Overlap::CancelRunning => {
                let cancels = match self.started_here.take() {
                    // Starting what is cancelled at once would be for nothing.
                    Some(at) => {
                        let row = &mut self.rows[at];
                        (row.fate, row.reason) = (Fate::Skipped, Some(Reason::Overlap));
                        row.run_id = None;
                        self.record.pending.pop().and_then(|pending| pending.cancels)
                    }
                    None => self.record.last_run,
                };
                self.start(due_at, fate, cancels);
            }
        }
    }

    fn start(&mut self, due_at: Timestamp, fate: Fate, cancels: Option<RunId>) {
        let run_id = RunId::of_occurrence(self.name, due_at);
        self.record.pending.push(Pending { due_at, cancels });
        self.record.last_run = Some(run_id);
        self.is_open = true;
        self.started_here = Some(self.rows.len());
        self.rows.push(Occurrence { run_id: Some(run_id), ..self.row(due_at, fate) });
    }

    fn leave_out(&mut self, due_at: Timestamp, fate: Fate, reason: Reason) {
        self.rows.push(Occurrence { reason: Some(reason), ..self.row(due_at, fate) });
    }

    fn row(&self, due_at: Timestamp, fate: Fate) -> Occurrence {
        let mut row = Occurrence::new(due_at, fate, self.now);
        row.term = Some(self.term);
        row
    }
}

impl Occurrence {
    /// An entry with nothing but its fate.
    fn new(due_at: Timestamp, fate: Fate, decided_at: Timestamp) -> Self {
        Self {
            due_at,
            fate,
            reason: None,
            run_id: None,
            decided_at,
            term: None,
            asked: Asked::Clock,
            through: None,
            error: None,
        }
    }
}

impl ScheduleRecord {
    /// A schedule that somebody puts there at `now`: what was due before is not its business.
    pub fn new(spec: super::ScheduleSpec, source: Source, now: Timestamp) -> Self {
        Self {
            spec,
            source,
            added_at: now,
            is_paused: false,
            fired_through: now,
            pending: Vec::new(),
            queued: None,
            last_run: None,
        }
    }

    /// When there is something to do next: at once if something is to be started, else when the
    /// next occurrence is to be.
    pub fn wakes_at(&self, name: &str, schedule: &Schedule) -> Option<Timestamp> {
        if !self.pending.is_empty() {
            return Some(self.fired_through);
        }
        let due_at = schedule.next_after(self.fired_through)?;
        Some(due_at.plus(schedule.delay(name, due_at)))
    }

    /// Starts what was due in a range and has no run. None if that is more than may wait to be
    /// started.
    pub fn backfill(
        &self,
        name: &str,
        schedule: &Schedule,
        range: Range<'_>,
        now: Timestamp,
    ) -> Option<Plan> {
        let known: HashMap<Timestamp, Fate> =
            range.ledger.iter().map(|row| (row.due_at, row.fate)).collect();
        // What comes after the mark has its turn anyway.
        let to = range.to.min(self.fired_through);
        let after = Timestamp(range.from.0.saturating_sub(1));
        let due = schedule.between(after, to, OCCURRENCES_MAX + 1);
        if due.len() > OCCURRENCES_MAX {
            return None;
        }
        let mut record = self.clone();
        let mut rows = Vec::new();
        for due_at in due {
            let is_settled =
                known.get(&due_at).is_some_and(|fate| fate.has_run() || *fate == Fate::Queued);
            if !is_settled {
                rows.push(record.ask(name, due_at, Fate::Late, (Asked::Backfill, now)));
            }
        }
        let fits = record.pending.len() <= OCCURRENCES_MAX;
        fits.then_some(Plan { record, rows, has_more: false })
    }

    /// Starts an occurrence that is due now because somebody wants it. None if too many wait to be
    /// started.
    pub fn trigger(&self, name: &str, now: Timestamp) -> Option<Plan> {
        let mut record = self.clone();
        let row = record.ask(name, now, Fate::Fired, (Asked::Trigger, now));
        record.last_run = row.run_id;
        let fits = record.pending.len() <= OCCURRENCES_MAX;
        fits.then_some(Plan { record, rows: vec![row], has_more: false })
    }

    fn ask(
        &mut self,
        name: &str,
        due_at: Timestamp,
        fate: Fate,
        (asked, now): (Asked, Timestamp),
    ) -> Occurrence {
        let run_id = Some(RunId::of_occurrence(name, due_at));
        self.pending.push(Pending { due_at, cancels: None });
        Occurrence { run_id, asked, ..Occurrence::new(due_at, fate, now) }
    }
}
