//! The permits of all keys, in memory.
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
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::ids::JobId;
use flowgate_core::time::Timestamp;

use crate::control::{
    Limit, PERMIT_PLACE_KEPT, PermitAsk, PermitGrant, PermitOutcome, PermitRelease, PermitState,
    check_key,
};

/// The permits of all keys.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    keys: BTreeMap<Arc<str>, OfKey>,
    changed: Changed,
}

/// What is not yet told by [`Permits::take_changes`].
#[derive(Debug, Default)]
struct Changed {
    jobs: BTreeSet<(Arc<str>, JobId)>,
    rates: BTreeSet<Arc<str>>,
}

/// What has changed, for whoever keeps it elsewhere too.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Where a job stands now with a key; none if it has nothing to do with it any more.
    pub(crate) jobs: Vec<(Arc<str>, JobId, Option<Entry>)>,
    /// What a key remembers of its rate.
    pub(crate) rates: Vec<(Arc<str>, Option<Rate>)>,
}

/// A job that holds a permit or waits for one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// When it is forgotten.
    pub(crate) ends_at: Timestamp,
    pub(crate) standing: Standing,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Standing {
    Holds,
    /// Its number; who came first has the least.
    InLine(u64),
    /// Its place, in microseconds.
    Reserved(i64),
}

/// What is remembered of a rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// The latest place that was granted.
    pub(crate) granted_us: i64,
    /// From when on it no longer counts.
    pub(crate) free_us: i64,
}

/// The permits of one key.
#[derive(Debug, Default)]
struct OfKey {
    jobs: BTreeMap<JobId, Entry>,
    /// When each of `jobs` is over.
    ends: BTreeSet<(Timestamp, JobId)>,
    holders: u64,
    line: BTreeMap<u64, JobId>,
    ticket_last: u64,
    /// The reserved places of a rate.
    reserved: BTreeSet<(i64, JobId)>,
    rate: Option<Rate>,
    /// Jobs whose entries changed in this call.
    touched: Vec<JobId>,
}

impl Permits {
    /// Takes over where a job stood.
    pub(crate) fn load(&mut self, key: Arc<str>, job_id: JobId, entry: Entry) {
        let of_key = self.keys.entry(key).or_default();
        of_key.set(job_id, entry.standing, entry.ends_at);
        of_key.touched.clear();
    }

    /// Takes over what was remembered of a rate.
    pub(crate) fn load_rate(&mut self, key: Arc<str>, rate: Rate) {
        self.keys.entry(key).or_default().rate = Some(rate);
    }

    /// Gives each asker a permit, a place in line or a place in time.
    pub(crate) fn take(
        &mut self,
        asks: &[PermitAsk],
        lease: Duration,
        now: Timestamp,
    ) -> Vec<PermitOutcome> {
        let take = |ask: &PermitAsk| {
            check_key(&ask.key);
            let of_key = self.keys.entry(Arc::clone(&ask.key)).or_default();
            of_key.let_time_pass(now);
            let outcome = match ask.limit {
                Limit::AtOnce(limit) => of_key.take_at_once(limit, ask.job_id, lease, now),
                Limit::Rate { count, per_ms } => {
                    self.changed.rates.insert(Arc::clone(&ask.key));
                    let share_us = Limit::share_us(count, per_ms);
                    of_key.take_rated(share_us, ask.job_id, lease, now)
                }
            };
            self.changed.note(&ask.key, of_key);
            outcome
        };
        asks.iter().map(take).collect()
    }

    /// Takes all that is given back, then gives those in line what is free.
    pub(crate) fn release(
        &mut self,
        releases: &[PermitRelease],
        lease: Duration,
        now: Timestamp,
    ) -> Vec<PermitGrant> {
        let mut keys: Vec<(&Arc<str>, Limit)> = Vec::new();
        for release in releases {
            check_key(&release.key);
            if let (Some(of_key), Some(job_id)) = (self.keys.get_mut(&release.key), release.job_id)
            {
                of_key.remove(job_id);
            }
            match keys.iter_mut().find(|(key, _)| **key == release.key) {
                Some((_, limit)) => *limit = release.limit,
                None => keys.push((&release.key, release.limit)),
            }
        }
        let mut grants = Vec::new();
        for (key, limit) in keys {
            let Some(of_key) = self.keys.get_mut(key) else { continue };
            let served = of_key.serve(limit, lease, now).into_iter();
            grants.extend(served.map(|job_id| PermitGrant { key: Arc::clone(key), job_id }));
            self.changed.note(key, of_key);
        }
        grants
    }

    /// Who holds a permit of `key` and how many wait.
    pub(crate) fn state(&self, key: &str, now: Timestamp) -> PermitState {
        let mut state = PermitState::default();
        let Some(of_key) = self.keys.get(key) else { return state };
        for (ends_at, job_id) in of_key.ends.iter().filter(|(ends_at, _)| *ends_at > now) {
            match of_key.jobs[job_id].standing {
                Standing::Holds => state.holders.push((*job_id, *ends_at)),
                Standing::InLine(_) | Standing::Reserved(_) => state.in_line += 1,
            }
        }
        state
    }

    /// Forgets what is over.
    pub(crate) fn sweep(&mut self, now: Timestamp) {
        let Self { keys, changed } = self;
        keys.retain(|key, of_key| {
            of_key.let_time_pass(now);
            changed.note(key, of_key);
            let is_free = of_key.rate.is_none_or(|rate| rate.free_us <= micros(now));
            let is_idle = is_free && of_key.jobs.is_empty();
            if is_idle && of_key.rate.is_some() {
                changed.rates.insert(Arc::clone(key));
            }
            !is_idle
        });
    }

    /// What has changed since the last call.
    pub(crate) fn take_changes(&mut self) -> Changes {
        let Changed { jobs, rates } = std::mem::take(&mut self.changed);
        let jobs = jobs.into_iter().map(|(key, job_id)| {
            let entry = self.keys.get(&key).and_then(|of_key| of_key.jobs.get(&job_id));
            let entry = entry.copied();
            (key, job_id, entry)
        });
        let jobs = jobs.collect();
        let rates = rates.into_iter().map(|key| {
            let rate = self.keys.get(&key).and_then(|of_key| of_key.rate);
            (key, rate)
        });
        Changes { jobs, rates: rates.collect() }
    }
}

impl Changed {
    fn note(&mut self, key: &Arc<str>, of_key: &mut OfKey) {
        self.jobs.extend(of_key.touched.drain(..).map(|job_id| (Arc::clone(key), job_id)));
    }
}

impl OfKey {
    fn take_at_once(
        &mut self,
        limit: u32,
        job_id: JobId,
        lease: Duration,
        now: Timestamp,
    ) -> PermitOutcome {
        let ticket = match self.standing(job_id) {
            Some(Standing::Holds) => {
                self.set(job_id, Standing::Holds, now.plus(lease));
                return PermitOutcome::Granted;
            }
            Some(Standing::InLine(ticket)) => ticket,
            Some(Standing::Reserved(_)) | None => self.ticket_last + 1,
        };
        self.set(job_id, Standing::InLine(ticket), now.plus(PERMIT_PLACE_KEPT));
        let place = self.line.range(..=ticket).count();
        let place = u64::try_from(place).expect("a line fits in memory");
        // What is free is for those ahead, if they are as many.
        if place > u64::from(limit).saturating_sub(self.holders) {
            return PermitOutcome::InLine(place);
        }
        self.set(job_id, Standing::Holds, now.plus(lease));
        PermitOutcome::Granted
    }

    fn take_rated(
        &mut self,
        share_us: i64,
        job_id: JobId,
        lease: Duration,
        now: Timestamp,
    ) -> PermitOutcome {
        let place_us = match self.standing(job_id) {
            Some(Standing::Holds) => {
                self.set(job_id, Standing::Holds, now.plus(lease));
                return PermitOutcome::Granted;
            }
            Some(Standing::Reserved(place_us)) => place_us,
            Some(Standing::InLine(_)) | None => self.next_place(share_us, now),
        };
        let at = ceil_ms(place_us);
        if at > now {
            self.set(job_id, Standing::Reserved(place_us), at.plus(PERMIT_PLACE_KEPT));
            return PermitOutcome::NotBefore(at);
        }
        let before = self.rate.unwrap_or(Rate { granted_us: i64::MIN, free_us: i64::MIN });
        self.rate = Some(Rate {
            granted_us: before.granted_us.max(place_us),
            free_us: before.free_us.max(place_us.saturating_add(share_us)),
        });
        self.set(job_id, Standing::Holds, now.plus(lease));
        PermitOutcome::Granted
    }

    fn next_place(&self, share_us: i64, now: Timestamp) -> i64 {
        let reserved = self.reserved.last().map(|(place_us, _)| *place_us);
        let last = self.rate.map(|rate| rate.granted_us).max(reserved);
        let next = last.map_or(i64::MIN, |last| last.saturating_add(share_us));
        next.max(micros(now))
    }

    /// Gives those in line what is free, and returns them.
    fn serve(&mut self, limit: Limit, lease: Duration, now: Timestamp) -> Vec<JobId> {
        self.let_time_pass(now);
        let Limit::AtOnce(limit) = limit else { return Vec::new() };
        let mut served = Vec::new();
        while self.holders < u64::from(limit)
            && let Some((_, job_id)) = self.line.first_key_value()
        {
            let job_id = *job_id;
            self.set(job_id, Standing::Holds, now.plus(lease));
            served.push(job_id);
        }
        served
    }

    /// Forgets who is over.
    fn let_time_pass(&mut self, now: Timestamp) {
        while let Some((ends_at, job_id)) = self.ends.first().copied()
            && ends_at <= now
        {
            self.remove(job_id);
        }
    }

    fn standing(&self, job_id: JobId) -> Option<Standing> {
        self.jobs.get(&job_id).map(|entry| entry.standing)
    }

    /// Puts a job somewhere; what it holds never becomes shorter.
    fn set(&mut self, job_id: JobId, standing: Standing, ends_at: Timestamp) {
        let held = self.jobs.get(&job_id).filter(|e| matches!(e.standing, Standing::Holds));
        let ends_at = held.map_or(ends_at, |held| held.ends_at.max(ends_at));
        self.remove(job_id);
        match standing {
            Standing::Holds => self.holders += 1,
            Standing::InLine(ticket) => {
                self.ticket_last = self.ticket_last.max(ticket);
                self.line.insert(ticket, job_id);
            }
            Standing::Reserved(place_us) => drop(self.reserved.insert((place_us, job_id))),
        }
        self.ends.insert((ends_at, job_id));
        self.jobs.insert(job_id, Entry { ends_at, standing });
        self.touched.push(job_id);
    }

    fn remove(&mut self, job_id: JobId) {
        let Some(entry) = self.jobs.remove(&job_id) else { return };
        self.ends.remove(&(entry.ends_at, job_id));
        match entry.standing {
            Standing::Holds => self.holders -= 1,
            Standing::InLine(ticket) => drop(self.line.remove(&ticket)),
            Standing::Reserved(place_us) => drop(self.reserved.remove(&(place_us, job_id))),
        }
        self.touched.push(job_id);
    }
}

/// A time in microseconds, in which places of a rate are reckoned.
fn micros(at: Timestamp) -> i64 {
    at.0.saturating_mul(1_000)
}

/// The first time on the store's clock that is not before a place.
fn ceil_ms(place_us: i64) -> Timestamp {
    Timestamp(place_us.div_euclid(1_000) + i64::from(place_us.rem_euclid(1_000) > 0))
}
