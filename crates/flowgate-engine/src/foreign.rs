//! Jobs of steps that the one who claimed them cannot execute: they go back to their queue.
//!
//! An instance leaves queues to others that hold nothing for it, and no commit leases it a job that
//! it cannot execute. What is left are the first jobs of a flow that it has not met, and queues that
//! mix steps of workers with others. There a job goes back with a delay that grows, so that those
//! behind it are not held up and nobody spins; whoever can execute it finds it when it is due.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::commit::Due;
use flowgate_core::decide::Report;
use flowgate_core::ids::JobId;
use flowgate_store::Queues;
use parking_lot::Mutex;

use crate::attempt::Attempt;
use crate::backoff::jittered;
use crate::inbox::{Inbound, Item, Reply, Seed};

/// The first delay of a job that goes back, before jitter.
const DELAY_MIN: Duration = Duration::from_millis(250);
/// The longest one.
const DELAY_MAX: Duration = Duration::from_mins(1);
/// Jobs whose delays are remembered. When there are more, all begin again.
const JOBS_MAX: usize = 10_000;

/// How often jobs went back from here.
#[derive(Debug, Default)]
pub(crate) struct HandBacks(Mutex<HashMap<JobId, u32>>);

impl HandBacks {
    /// When a job that goes back once more is due.
    fn next(&self, job_id: JobId) -> Due {
        let mut counts = self.0.lock();
        if counts.len() >= JOBS_MAX {
            counts.clear();
        }
        let count = counts.entry(job_id).or_default();
        let delay = DELAY_MIN.saturating_mul(1 << (*count).min(16)).min(DELAY_MAX);
        *count += 1;
        Due::After(jittered(delay))
    }
}

/// The report by which an attempt that cannot be executed by its holder goes back, uncounted.
///
/// `queues` are those that the holder asks for next: in one that it leaves out from now on, the job
/// is due at once.
pub(crate) fn hand_back(attempt: &Attempt, queues: &Queues) -> Report {
    attempt.end_once();
    let job = &attempt.claimed.job;
    let is_met_again = queues.contains(&job.queue);
    let hand_backs = &attempt.instance.hand_backs;
    let due = if is_met_again { hand_backs.next(job.job_id) } else { Due::Now };
    Report::AttemptReleased { attempt: attempt.for_rules(), due }
}

/// A report about an attempt that this instance does not keep in flight.
pub(crate) fn item(attempt: &Arc<Attempt>, report: Report, reply: Option<Reply>) -> Inbound {
    let claimed = &attempt.claimed;
    let seed = Seed { run: Arc::clone(&claimed.run), flow: Arc::clone(&attempt.flow) };
    Inbound::Report(Item {
        run_id: claimed.run.run_id,
        report,
        attempt: Some(Arc::clone(attempt)),
        seed: Some(Box::new(seed)),
        reply,
        refusals: 0,
    })
}
