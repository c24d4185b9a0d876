//! The permits of one key, in memory.
//!
//! ```text
//!                 there is room                      released, or the lease is over
//!   (none) ------------------------------> holds ------------------------------------> (none)
//!      |                                     ^
//!      |  at once: no room                   | a release makes room, or it asks when there is
//!      +----------------------> in line -----+
//!      |                                     | it asks at its time or later
//!      +----------------------> has a place -+
//!         a rate: its time is to come
//! ```
//!
//! Who stands in line or has a place and does not ask again is forgotten after
//! [`PERMIT_PLACE_KEPT`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use flowgate_core::ids::JobId;
use flowgate_core::time::Timestamp;

use crate::control::{Limit, PERMIT_PLACE_KEPT, PermitOutcome, PermitState};

/// The permits of one key.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    jobs: BTreeMap<JobId, Entry>,
    /// When each of `jobs` is over.
    ends: BTreeSet<(Timestamp, JobId)>,
    holders: u64,
    line: BTreeMap<u64, JobId>,
    ticket_last: u64,
    /// The reserved places of a rate, in microseconds.
    reserved: BTreeSet<(i64, JobId)>,
    /// The latest place of a rate that was granted.
    granted_us: Option<i64>,
    /// From when on the latest place no longer counts.
    free_us: i64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    ends_at: Timestamp,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Holds,
    InLine(u64),
    /// Its place, in microseconds.
    Reserved(i64),
}

impl Permits {
    /// Gives `job_id` a permit, a place in line or a place in time.
    pub(crate) fn take(
        &mut self,
        limit: Limit,
        job_id: JobId,
        lease: Duration,
        now: Timestamp,
    ) -> PermitOutcome {
        self.let_time_pass(now);
        let known = self.jobs.get(&job_id).map(|entry| entry.state);
        match (limit, known) {
            (_, Some(State::Holds)) => {
                self.set(job_id, State::Holds, now.plus(lease));
                PermitOutcome::Granted
            }
            (Limit::AtOnce(limit), known) => {
                let ticket = if let Some(State::InLine(ticket)) = known {
                    ticket
                } else {
                    self.ticket_last += 1;
                    self.ticket_last
                };
                self.set(job_id, State::InLine(ticket), now.plus(PERMIT_PLACE_KEPT));
                let place = self.line.range(..=ticket).count();
                let place = u64::try_from(place).expect("a line fits in memory");
                if place <= u64::from(limit).saturating_sub(self.holders) {
                    self.set(job_id, State::Holds, now.plus(lease));
                    return PermitOutcome::Granted;
                }
                PermitOutcome::InLine(place)
            }
            (Limit::Rate { count, per_ms }, known) => {
                let share_us = Limit::share_us(count, per_ms);
                let place_us = match known {
                    Some(State::Reserved(place_us)) => place_us,
                    Some(_) | None => self.next_place(share_us, now),
                };
                let at = ceil_ms(place_us);
                if at > now {
                    self.set(job_id, State::Reserved(place_us), at.plus(PERMIT_PLACE_KEPT));
                    return PermitOutcome::NotBefore(at);
                }
                self.granted_us = self.granted_us.max(Some(place_us));
                self.free_us = self.free_us.max(place_us.saturating_add(share_us));
                self.set(job_id, State::Holds, now.plus(lease));
                PermitOutcome::Granted
            }
        }
    }

    fn next_place(&self, share_us: i64, now: Timestamp) -> i64 {
        let reserved = self.reserved.last().map(|(place_us, _)| *place_us);
        let last = self.granted_us.max(reserved);
        let next = last.map_or(i64::MIN, |last| last.saturating_add(share_us));
        next.max(micros(now))
    }

    /// Takes whatever `job_id` has.
    pub(crate) fn give_back(&mut self, job_id: JobId) {
        let Some(entry) = self.jobs.remove(&job_id) else { return };
        self.ends.remove(&(entry.ends_at, job_id));
        match entry.state {
            State::Holds => self.holders -= 1,
            State::InLine(ticket) => drop(self.line.remove(&ticket)),
            State::Reserved(place_us) => drop(self.reserved.remove(&(place_us, job_id))),
        }
    }

    /// Gives those in line what is free, and returns them.
    pub(crate) fn serve(&mut self, limit: Limit, lease: Duration, now: Timestamp) -> Vec<JobId> {
        self.let_time_pass(now);
        let Limit::AtOnce(limit) = limit else { return Vec::new() };
        let mut served = Vec::new();
        while self.holders < u64::from(limit)
            && let Some((_, job_id)) = self.line.first_key_value()
        {
            let job_id = *job_id;
            self.set(job_id, State::Holds, now.plus(lease));
            served.push(job_id);
        }
        served
    }

    /// Who holds a permit and how many wait.
    pub(crate) fn state(&mut self, now: Timestamp) -> PermitState {
        self.let_time_pass(now);
        let holds = |job_id: &JobId| matches!(self.jobs[job_id].state, State::Holds);
        let holders = self.ends.iter().filter(|(_, job_id)| holds(job_id));
        let in_line = self.line.len() + self.reserved.len();
        PermitState {
            holders: holders.map(|(ends_at, job_id)| (*job_id, *ends_at)).collect(),
            in_line: u64::try_from(in_line).expect("a line fits in memory"),
        }
    }

    /// Whether nothing would be different if it were forgotten.
    pub(crate) fn is_idle(&mut self, now: Timestamp) -> bool {
        self.let_time_pass(now);
        self.jobs.is_empty() && self.free_us <= micros(now)
    }

    /// Forgets who is over.
    fn let_time_pass(&mut self, now: Timestamp) {
        while let Some((ends_at, job_id)) = self.ends.first().copied()
            && ends_at <= now
        {
            self.give_back(job_id);
        }
    }

    /// Puts a job where `state` says; what it holds never becomes shorter.
    fn set(&mut self, job_id: JobId, state: State, ends_at: Timestamp) {
        let held = self.jobs.get(&job_id).filter(|entry| matches!(entry.state, State::Holds));
        let ends_at = held.map_or(ends_at, |held| held.ends_at.max(ends_at));
        self.give_back(job_id);
        match state {
            State::Holds => self.holders += 1,
            State::InLine(ticket) => drop(self.line.insert(ticket, job_id)),
            State::Reserved(place_us) => drop(self.reserved.insert((place_us, job_id))),
        }
        self.ends.insert((ends_at, job_id));
        self.jobs.insert(job_id, Entry { ends_at, state });
    }
}

/// A time in microseconds, in which places of a rate are reckoned.
pub(crate) fn micros(at: Timestamp) -> i64 {
    at.0.saturating_mul(1_000)
}

/// The first time on the store's clock that is not before a place.
pub(crate) fn ceil_ms(place_us: i64) -> Timestamp {
    Timestamp(place_us.div_euclid(1_000) + i64::from(place_us.rem_euclid(1_000) > 0))
}
