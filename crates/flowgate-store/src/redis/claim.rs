//! Claims as the scripts take them, and what they answer.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use flowgate_core::commit::Claimed;
use flowgate_core::ids::{JobId, LeaseToken, RunId, StepIndex};
use flowgate_core::limits::CLAIM_BATCH_MAX;
use flowgate_core::run::Run;
use flowgate_core::time::Timestamp;
use redis::{Cmd, Value};

use super::rows::{Needy, decode_job, decode_lost, decode_run};
use super::script::Reply;
use crate::{Claimant, Queues, StoreError};

/// Bytes of payloads that a claim brings along; the rest is read after it.
const CLAIM_BYTES_MAX: usize = 4 << 20;

/// The arguments of a claim of `count` jobs.
pub(super) fn write(command: &mut Cmd, claimant: &Claimant, count: usize) {
    command.arg(&*claimant.instance.0).arg(super::millis(claimant.lease));
    command.arg(count).arg(CLAIM_BYTES_MAX);
    write_queues(command, &claimant.queues);
}

/// How the scripts take a choice of queues.
pub(super) fn write_queues(command: &mut Cmd, queues: &Queues) {
    match queues {
        Queues::All => {
            command.arg(-1);
        }
        Queues::Only(names) => {
            let mut names: Vec<&str> = names.iter().map(|name| &**name).collect();
            names.sort_unstable();
            names.dedup();
            command.arg(names.len());
            for name in names {
                command.arg(name);
            }
        }
        // Below -1: all but as many as it is below.
        Queues::AllBut(names) => {
            command.arg(-1 - count(names.len()));
            for name in names {
                command.arg(&**name);
            }
        }
        Queues::AllOf { pool, but } => {
            command.arg(-2 - count(but.len())).arg(format!("@{pool}"));
            for name in but {
                command.arg(&**name);
            }
        }
    }
}

fn count(names: usize) -> isize {
    isize::try_from(names).expect("a list fits in memory")
}

/// A claimed job and where it stood in its queue.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) order_us: i64,
    pub(super) needy: Needy,
}

/// Reads the answer to a claim.
pub(super) fn read(value: Value) -> Result<Vec<Due>, StoreError> {
    let mut reply = Reply::of(value)?;
    let _now: i64 = reply.number()?;
    let expires_at = Timestamp(reply.number()?);
    let mut runs: HashMap<RunId, Known> = HashMap::new();
    let mut claimed = Vec::with_capacity(reply.left());
    for job in reply {
        claimed.push(read_job(Reply::of(job)?, expires_at, &mut runs)?);
    }
    // A row that one job brought may hold what another job of the run needs.
    for due in &mut claimed {
        let Some(known) = runs.get(&due.needy.run_id()) else { continue };
        for (last, text) in &known.rows {
            if due.needy.lacks().is_some() {
                due.needy.take_stored(*last, text)?;
            }
        }
    }
    Ok(claimed)
}

/// What an answer holds of a run.
struct Known {
    run: Arc<Run>,
    rows: Vec<(u64, String)>,
}

fn read_job(
    mut reply: Reply,
    expires_at: Timestamp,
    runs: &mut HashMap<RunId, Known>,
) -> Result<Due, StoreError> {
    let run_id: RunId = reply.number()?;
    let job_id = JobId { run_id, step: StepIndex(reply.number()?) };
    let order_us = reply.number()?;
    let token = LeaseToken(reply.number()?);
    let attempt = reply.number()?;
    let queue = reply.word()?.into();
    let job = decode_job(&reply.word()?, job_id, queue, attempt)?;
    let lost = decode_lost(&reply.word()?)?;
    let record = reply.word()?;
    let known = match runs.entry(run_id) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => new.insert(Known { run: decode_run(&record)?, rows: Vec::new() }),
    };
    while reply.left() > 0 {
        known.rows.push((reply.number()?, reply.word()?));
    }
    let run = Arc::clone(&known.run);
    let claimed = Claimed { job, token, expires_at, lost, run, inputs: Vec::new() };
    Ok(Due { order_us, needy: Needy::new(claimed) })
}

/// When the next jobs of a partition are due.
#[derive(Debug)]
pub(super) struct Ahead {
    now: Timestamp,
    /// When the first lease ends.
    lease_ends: Option<Timestamp>,
    /// Where they stand in their queues, in microseconds: of those that are not due it is when they
    /// will be.
    dues: Vec<i64>,
}

impl Ahead {
    /// Reads the answer of `peek`.
    pub(super) fn read(value: Value) -> Result<Self, StoreError> {
        let mut reply = Reply::of(value)?;
        let (now, lease_ends) = (Timestamp(reply.number()?), reply.number::<i64>()?);
        let mut dues = Vec::with_capacity(reply.left());
        while reply.left() > 0 {
            dues.push(reply.number()?);
        }
        Ok(Self { now, lease_ends: (lease_ends >= 0).then_some(Timestamp(lease_ends)), dues })
    }

    /// How long until a job may be due; zero if one is.
    pub(super) fn until_due(&self) -> Option<std::time::Duration> {
        let first = self.dues.first().map(|due_us| Timestamp(due_us / 1_000));
        first.into_iter().chain(self.lease_ends).min().map(|at| at.since(self.now))
    }

    /// The jobs that are due now.
    fn due_now(&self) -> impl Iterator<Item = i64> {
        self.dues.iter().copied().take_while(|due_us| due_us / 1_000 <= self.now.0)
    }
}

/// How many jobs to claim from each partition so that the longest due of all are claimed.
pub(super) fn shares(partitions: &[Ahead], slots: usize) -> Vec<usize> {
    let due = partitions
        .iter()
        .enumerate()
        .flat_map(|(index, ahead)| ahead.due_now().map(move |due_us| (due_us, index)));
    let mut due: Vec<_> = due.collect();
    due.sort_unstable();
    let mut shares = vec![0; partitions.len()];
    for (_, index) in due.into_iter().take(slots.min(CLAIM_BATCH_MAX)) {
        shares[index] += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead(dues: &[i64]) -> Ahead {
        Ahead { now: Timestamp(10), lease_ends: None, dues: dues.to_vec() }
    }

    #[test]
    fn the_longest_due_are_claimed_wherever_they_are() {
        let partitions = [ahead(&[1_000, 5_000, 6_000]), ahead(&[]), ahead(&[2_000, 20_000])];
        assert_eq!(shares(&partitions, 2), [1, 0, 1]);
        assert_eq!(shares(&partitions, 3), [2, 0, 1]);
        assert_eq!(shares(&partitions, 9), [3, 0, 1], "what is due later is left");
        assert_eq!(shares(&partitions, 0), [0, 0, 0]);
    }

    #[test]
    fn a_wait_ends_with_the_first_job_or_lease() {
        let later = Ahead { lease_ends: Some(Timestamp(40)), ..ahead(&[30_500]) };
        assert_eq!(later.until_due(), Some(std::time::Duration::from_millis(20)));
        assert_eq!(ahead(&[10_999]).until_due(), Some(std::time::Duration::ZERO));
        assert_eq!(ahead(&[]).until_due(), None);
    }
}
