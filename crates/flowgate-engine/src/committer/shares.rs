//! How what there is to commit is shared out among the batches that are at a shared store.
//!
//! One batch of all there is would keep the store waiting for the engine and the engine for the
//! store, in turns. Many small ones cost more than they gain: a call has a price of its own at every
//! store, that of some twenty commits on PostgreSQL.

use flowgate_core::limits::COMMIT_BATCH_MAX;

/// Batches that may be at a shared store at a time: one for each thread of the runtime, but no fewer
/// and no more than these.
const BATCHES: std::ops::RangeInclusive<usize> = 2..=4;
/// Commits that are worth a batch beside another one, whatever that one holds, and that a batch may
/// hold without leaving some for another.
const SHARE_MIN: usize = 64;

/// The batches at the store.
#[derive(Debug)]
pub(super) struct Shares {
    batches_max: usize,
    batches: usize,
    /// Commits in all of them.
    commits: usize,
    /// Commits in the last one that was sent.
    last: usize,
}

impl Shares {
    pub(super) fn new(is_shared: bool, threads: usize) -> Self {
        // An embedded store gathers by itself what comes while it syncs.
        let batches_max =
            if is_shared { threads.clamp(*BATCHES.start(), *BATCHES.end()) } else { 1 };
        Self { batches_max, batches: 0, commits: 0, last: 0 }
    }

    /// Whether one more batch may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.batches < self.batches_max
    }

    /// Whether so many commits that wait should be sent now.
    pub(super) fn are_worth_a_batch(&self, waiting: usize) -> bool {
        match self.batches {
            0 => waiting > 0,
            _ => self.has_room() && waiting >= SHARE_MIN.max(self.last / 2),
        }
    }

    /// How many of those that wait the next batch may hold.
    pub(super) fn next(&self, waiting: usize) -> usize {
        let share = (waiting + self.commits).div_ceil(self.batches_max).max(SHARE_MIN);
        share.min(waiting).min(COMMIT_BATCH_MAX)
    }

    /// A batch is on its way.
    pub(super) fn sent(&mut self, commits: usize) {
        self.batches += 1;
        self.commits += commits;
        self.last = commits;
    }

    /// The store has answered a batch.
    pub(super) fn answered(&mut self, commits: usize) {
        self.batches -= 1;
        self.commits -= commits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends what waits as far as it is worth it; the sizes of the batches.
    fn send(shares: &mut Shares, mut waiting: usize) -> Vec<usize> {
        let mut sizes = Vec::new();
        while shares.are_worth_a_batch(waiting) {
            let size = shares.next(waiting);
            shares.sent(size);
            waiting -= size;
            sizes.push(size);
        }
        sizes
    }

    #[test]
    fn what_there_is_goes_in_equal_batches_but_little_in_one() {
        for (threads, waiting, sizes) in [
            (1, 0, vec![]),
            (1, 1, vec![1]),
            (1, 64, vec![64]),
            (1, 90, vec![64]),
            (1, 120, vec![64]),
            (1, 128, vec![64, 64]),
            (2, 200, vec![100, 100]),
            (4, 200, vec![64, 64, 64]),
            (4, 800, vec![200, 200, 200, 200]),
            (64, 4_000, vec![512, 512, 512, 512]),
        ] {
            let sent = send(&mut Shares::new(true, threads), waiting);
            assert_eq!(sent, sizes, "{threads} threads, {waiting} commits");
        }
        assert_eq!(send(&mut Shares::new(false, 8), 200), [200], "an embedded store gathers");
    }

    #[test]
    fn a_batch_that_comes_back_is_followed_by_one_like_it() {
        let mut shares = Shares::new(true, 2);
        assert_eq!(send(&mut shares, 200), [100, 100]);
        assert!(!shares.are_worth_a_batch(500), "two are under way");
        shares.answered(100);
        assert!(!shares.are_worth_a_batch(63), "more will come");
        assert_eq!(send(&mut shares, 100), [100]);
        shares.answered(100);
        shares.answered(100);
        assert!(shares.are_worth_a_batch(1), "nothing is under way");
    }
}
