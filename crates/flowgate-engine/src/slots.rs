//! How many attempts may execute at a time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The slots of an instance. Whoever executes an attempt holds one until the attempt's end.
#[derive(Debug)]
pub(crate) struct Slots {
    total: usize,
    free: AtomicUsize,
    freed: Notify,
    /// How many wait for a slot: without any, freeing one is one addition.
    awaiting: AtomicUsize,
    /// Whether the store has more due jobs than this instance took.
    is_behind: AtomicBool,
}

impl Slots {
    pub(crate) fn new(total: usize) -> Self {
        Self {
            total,
            free: AtomicUsize::new(total),
            freed: Notify::new(),
            awaiting: AtomicUsize::new(0),
            is_behind: AtomicBool::new(false),
        }
    }

    /// Takes free slots, at most `max`; how many.
    pub(crate) fn take(&self, max: usize) -> usize {
        self.take_but(0, max)
    }

    /// Takes free slots for what a commit makes due, so that it need not be claimed.
    ///
    /// While jobs wait in the store a share is left for them: or else runs that are under way would
    /// keep those out that have waited longer.
    pub(crate) fn take_for_hand_off(&self, max: usize) -> usize {
        let kept = if self.is_behind.load(Ordering::Relaxed) { self.total.div_ceil(8) } else { 0 };
        self.take_but(kept, max)
    }

    fn take_but(&self, kept: usize, max: usize) -> usize {
        let mut taken = 0;
        let update = |free: usize| {
            taken = free.saturating_sub(kept).min(max);
            Some(free - taken)
        };
        self.free
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, update)
            .expect("the update always has a value");
        taken
    }

    /// Gives back `count` slots.
    pub(crate) fn free(&self, count: usize) {
        if count == 0 {
            return;
        }
        // Either this sees that somebody waits, or who begins to wait sees the free slot.
        let before = self.free.fetch_add(count, Ordering::SeqCst);
        debug_assert!(before + count <= self.total, "a slot is given back once");
        if self.awaiting.load(Ordering::SeqCst) > 0 {
            self.freed.notify_waiters();
        }
    }

    pub(crate) fn set_behind(&self, is_behind: bool) {
        self.is_behind.store(is_behind, Ordering::Relaxed);
    }

    /// Whether the store had at least as many due jobs as were asked for the last time.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        self.total - self.free.load(Ordering::Acquire)
    }

    /// Returns when at least one slot is free.
    pub(crate) async fn any_free(&self) {
        self.wait_until(|free| free > 0).await;
    }

    /// Returns when no slot is taken.
    pub(crate) async fn all_free(&self) {
        self.wait_until(|free| free == self.total).await;
    }

    async fn wait_until(&self, holds: impl Fn(usize) -> bool) {
        let _awaiting = Awaiting::begin(&self.awaiting);
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if holds(self.free.load(Ordering::SeqCst)) {
                return;
            }
            freed.await;
        }
    }
}

struct Awaiting<'a>(&'a AtomicUsize);

impl<'a> Awaiting<'a> {
    fn begin(awaiting: &'a AtomicUsize) -> Self {
        awaiting.fetch_add(1, Ordering::SeqCst);
        Self(awaiting)
    }
}

impl Drop for Awaiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_up_to_what_is_free() {
        let slots = Slots::new(8);
        assert_eq!((slots.take(5), slots.take(5), slots.take(1)), (5, 3, 0));
        slots.free(8);
        assert_eq!(slots.taken(), 0);
    }

    #[test]
    fn hand_offs_leave_a_share_to_jobs_that_wait() {
        let slots = Slots::new(16);
        slots.set_behind(true);
        assert_eq!(slots.take_for_hand_off(100), 14);
        assert_eq!(slots.take(100), 2);
    }
}
