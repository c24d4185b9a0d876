//! Where each open job stands: ready in its queue, delayed, or leased.
//!
//! Every job is in exactly one of three ordered maps, and it leaves by its exact key: nothing
//! stale stays behind, however many leases are granted and ended in a second.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use flowgate_core::ids::{JobId, LeaseToken};
use flowgate_core::time::Timestamp;
use tokio::sync::oneshot;

use super::hash::IdMap;
use super::{OpenJob, head_start};
use crate::Queues;
use crate::control::QueueStats;

/// A place in an order by time; the number keeps equal times apart, the first one first.
pub(super) type Key = (Timestamp, u64);

/// Which map a job is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In its queue; also with a lease that has expired.
    Ready,
    /// Among those that are due later.
    Delayed,
    /// Under a lease that has not been seen to expire.
    Leased,
}

/// The ready jobs of a queue, in a lane for each head start, so that each lane is in the order of
/// due times. No lane is empty.
#[derive(Debug, Default)]
struct Lanes(Vec<(u8, BTreeMap<Key, JobId>)>);

impl Lanes {
    fn insert(&mut self, open: &OpenJob) {
        let at = self.0.iter().position(|(ahead, _)| *ahead == open.ahead);
        let at = at.unwrap_or_else(|| {
            self.0.push((open.ahead, BTreeMap::new()));
            self.0.len() - 1
        });
        self.0[at].1.insert(open.key(), open.job.job_id);
    }

    fn remove(&mut self, ahead: u8, key: Key) -> Option<JobId> {
        let found = self.lane(ahead)?.remove(&key);
        self.tidy();
        found
    }

    fn lane(&mut self, ahead: u8) -> Option<&mut BTreeMap<Key, JobId>> {
        self.0.iter_mut().find(|(lane, _)| *lane == ahead).map(|(_, jobs)| jobs)
    }

    fn tidy(&mut self) {
        self.0.retain(|(_, jobs)| !jobs.is_empty());
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first of each lane.
    fn heads(&self) -> impl Iterator<Item = (u8, Key)> {
        self.0.iter().map(|(ahead, jobs)| {
            let (key, _) = jobs.first_key_value().expect("an empty lane is not kept");
            (*ahead, *key)
        })
    }

    fn count(&self) -> u64 {
        let count: usize = self.0.iter().map(|(_, jobs)| jobs.len()).sum();
        u64::try_from(count).expect("jobs fit in memory")
    }

    fn oldest_due_at(&self) -> Option<Timestamp> {
        self.heads().map(|(ahead, key)| key.0.plus(head_start(ahead))).min()
    }
}

/// The order of all open jobs.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Queues with a ready job.
    queues: IdMap<Arc<str>, Lanes>,
    delayed: BTreeMap<Key, JobId>,
    /// How many of those are in each queue that has some.
    later: IdMap<Arc<str>, u64>,
    /// By the end of the lease and its token.
    leased: BTreeMap<Key, JobId>,
    waiters: Vec<Waiter>,
}

/// Somebody who waits for a job of some queues.
#[derive(Debug)]
struct Waiter {
    queues: Queues,
    /// When it looks again by itself.
    until: Timestamp,
    wake: oneshot::Sender<()>,
}

/// The answer to a wait.
#[derive(Debug)]
pub(crate) enum Waiting {
    /// A job is ready.
    Ready,
    /// None is; one may be when `wake` resolves or at `until`.
    Until {
        /// Resolves when a job becomes ready or an earlier time counts.
        wake: oneshot::Receiver<()>,
        /// When the next delayed job is due or the next lease ends.
        until: Timestamp,
    },
}

impl Index {
    pub(super) fn insert(&mut self, open: &OpenJob) {
        let job_id = open.job.job_id;
        match open.place {
            Place::Ready => {
                if let Some(queue) = self.queues.get_mut(&open.job.queue) {
                    queue.insert(open);
                } else {
                    let mut queue = Lanes::default();
                    queue.insert(open);
                    self.queues.insert(Arc::clone(&open.job.queue), queue);
                }
                self.wake(|waiter| waiter.queues.contains(&open.job.queue));
            }
            Place::Delayed => {
                self.delayed.insert(open.key(), job_id);
                self.count_later(&open.job.queue);
                self.wake(|waiter| open.due_at < waiter.until);
            }
            Place::Leased => {
                let lease = open.lease.as_ref().expect("a leased job has a lease");
                let (expires_at, token) = (lease.expires_at, lease.token);
                self.leased.insert((expires_at, token.0), job_id);
                self.wake(|waiter| expires_at < waiter.until);
            }
        }
    }

    pub(super) fn remove(&mut self, open: &OpenJob) {
        let found = match open.place {
            Place::Ready => self.remove_ready(open),
            Place::Delayed => self.remove_delayed(&open.job.queue, open.key()),
            Place::Leased => {
                let lease = open.lease.as_ref().expect("a leased job has a lease");
                self.leased.remove(&(lease.expires_at, lease.token.0))
            }
        };
        assert_eq!(found, Some(open.job.job_id), "a job is in the map that it names");
    }

    fn remove_ready(&mut self, open: &OpenJob) -> Option<JobId> {
        let jobs = self.queues.get_mut(&open.job.queue)?;
        let found = jobs.remove(open.ahead, open.key());
        if jobs.is_empty() {
            self.queues.remove(&open.job.queue);
        }
        found
    }

    fn remove_delayed(&mut self, queue: &Arc<str>, key: Key) -> Option<JobId> {
        let count = self.later.get_mut(queue)?;
        *count -= 1;
        if *count == 0 {
            self.later.remove(queue);
        }
        self.delayed.remove(&key)
    }

    fn count_later(&mut self, queue: &Arc<str>) {
        if let Some(count) = self.later.get_mut(queue) {
            *count += 1;
        } else {
            self.later.insert(Arc::clone(queue), 1);
        }
    }

    /// What waits in each queue, in the order of their names.
    pub(super) fn stats(&self) -> Vec<QueueStats> {
        let mut names: Vec<&Arc<str>> = self.queues.keys().chain(self.later.keys()).collect();
        names.sort_unstable();
        names.dedup();
        let stats = names.into_iter().map(|name| {
            let ready = self.queues.get(name);
            QueueStats {
                queue: Arc::clone(name),
                due: ready.map_or(0, Lanes::count),
                later: self.later.get(name).copied().unwrap_or(0),
                oldest_due_at: ready.and_then(Lanes::oldest_due_at),
            }
        });
        stats.collect()
    }

    /// The lease with `token` now ends at `to`.
    pub(super) fn move_lease(&mut self, token: LeaseToken, from: Timestamp, to: Timestamp) {
        if from != to {
            let job_id = self.leased.remove(&(from, token.0)).expect("a held lease is indexed");
            self.leased.insert((to, token.0), job_id);
        }
    }

    /// The next job whose delay or lease is over.
    pub(super) fn first_over(&self, now: Timestamp) -> Option<JobId> {
        let firsts = [self.delayed.first_key_value(), self.leased.first_key_value()];
        let mut over = firsts.into_iter().flatten().filter(|(key, _)| key.0 <= now);
        over.next().map(|(_, job_id)| *job_id)
    }

    /// The ready jobs of `queues` that come first, out of their queues.
    pub(super) fn pop_ready(&mut self, queues: &Queues, count: usize) -> Vec<JobId> {
        let mut heads = BinaryHeap::new();
        let mut note = |name: &Arc<str>, jobs: &Lanes| {
            heads.extend(jobs.heads().map(|(ahead, key)| Reverse((key, ahead, Arc::clone(name)))));
        };
        match queues {
            Queues::Only(names) => {
                let mut names: Vec<&Arc<str>> = names.iter().collect();
                names.sort_unstable();
                names.dedup();
                let known = names.into_iter().filter_map(|name| self.queues.get_key_value(name));
                known.for_each(|(name, jobs)| note(name, jobs));
            }
            Queues::All | Queues::AllBut(_) | Queues::AllOf { .. } => {
                let others = self.queues.iter().filter(|(name, _)| queues.contains(name));
                others.for_each(|(name, jobs)| note(name, jobs));
            }
        }
        let mut taken = Vec::new();
        while taken.len() < count
            && let Some(Reverse((_, ahead, name))) = heads.pop()
        {
            let lanes = self.queues.get_mut(&name).expect("a queue with a head is kept");
            let jobs = lanes.lane(ahead).expect("a lane with a head is kept");
            // While this lane's jobs come first there is no need to look at the others.
            while taken.len() < count
                && let Some(first) = jobs.first_entry()
                && heads.peek().is_none_or(|Reverse((other, ..))| first.key() <= other)
            {
                taken.push(first.remove());
            }
            if let Some((key, _)) = jobs.first_key_value() {
                heads.push(Reverse((*key, ahead, name)));
                continue;
            }
            lanes.tidy();
            if lanes.is_empty() {
                self.queues.remove(&name);
            }
        }
        taken
    }

    /// Whether one of `queues` has a ready job, or else how to wait for it.
    pub(super) fn wait(&mut self, queues: &Queues) -> Waiting {
        let is_ready = match queues {
            Queues::Only(names) => names.iter().any(|name| self.queues.contains_key(name)),
            Queues::All | Queues::AllBut(_) | Queues::AllOf { .. } => {
                self.queues.keys().any(|name| queues.contains(name))
            }
        };
        if is_ready {
            return Waiting::Ready;
        }
        let firsts = [self.delayed.first_key_value(), self.leased.first_key_value()];
        let until = firsts.iter().flatten().map(|(key, _)| key.0).min();
        let until = until.unwrap_or(Timestamp(i64::MAX));
        let (wake, woken) = oneshot::channel();
        self.waiters.retain(|waiter| !waiter.wake.is_closed());
        self.waiters.push(Waiter { queues: queues.clone(), until, wake });
        Waiting::Until { wake: woken, until }
    }

    fn wake(&mut self, concerns: impl Fn(&Waiter) -> bool) {
        for waiter in self.waiters.extract_if(.., |waiter| concerns(waiter)) {
            // A waiter that has gone away needs no word.
            waiter.wake.send(()).ok();
        }
    }
}
