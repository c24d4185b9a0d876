//! What a commit does to the jobs of its run in the end.
//!
//! A commit that was made of several decisions may name a step more than once. A store that
//! writes in sets, not one change after another, needs the last word on each step.

use flowgate_core::commit::{Commit, Due, Guard, Job, JobChange};
use flowgate_core::ids::StepIndex;

use crate::LeaseRef;

/// What a commit asks of the jobs of its run, and what it does to them.
#[derive(Debug, PartialEq)]
pub(crate) struct NetChanges<'a> {
    /// Leases that must be held, in the order of the commit. Of a job that stays, such a lease
    /// has written down the leases that were lost before it.
    pub(crate) leases: Vec<LeaseRef>,
    /// The last word on each step, at most one for a step, in the order of these words. A run
    /// that ends has none: all its jobs go.
    pub(crate) steps: Vec<(StepIndex, NetChange<'a>)>,
    /// Whether the run ends, and all its jobs with it.
    pub(crate) ends_run: bool,
}

/// The last word on one step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NetChange<'a> {
    /// The step has this job, whatever it had before.
    Put {
        /// The job, but for its attempt.
        job: &'a Job,
        /// The attempts that count.
        attempt: u32,
        /// When it is due.
        due: Due,
    },
    /// The job that the step has goes back to its queue, unleased; nothing if it has none.
    Postpone {
        /// The attempts that count.
        attempt: u32,
        /// When it is due again.
        due: Due,
    },
    /// The step has no job.
    Remove,
}

/// The net changes of `commit`.
pub(crate) fn net_changes(commit: &Commit) -> NetChanges<'_> {
    let leases = commit.guards.iter().filter_map(|guard| match *guard {
        Guard::LeaseHeld { job_id, token } => {
            assert_eq!(job_id.run_id, commit.run_id, "a commit guards leases of its own run");
            Some(LeaseRef { job_id, token })
        }
        Guard::RunAbsent | Guard::RunVersion(_) | Guard::Gate { .. } => None,
    });
    let ends_run = commit.record.status.is_terminal();
    let mut steps: Vec<(StepIndex, NetChange<'_>)> = Vec::new();
    for change in commit.jobs.iter().filter(|_| !ends_run) {
        let step = match change {
            JobChange::Add { job, .. } => job.job_id.step,
            JobChange::Postpone { job_id, .. } | JobChange::Remove(job_id) => job_id.step,
        };
        // A later word takes the place of an earlier one, and its own place in the order.
        let before = steps.iter().position(|(at, _)| *at == step).map(|at| steps.remove(at).1);
        steps.push((step, after(before, change)));
    }
    NetChanges { leases: leases.collect(), steps, ends_run }
}

fn after<'a>(before: Option<NetChange<'a>>, change: &'a JobChange) -> NetChange<'a> {
    match (before, change) {
        (_, JobChange::Add { job, due }) => NetChange::Put { job, attempt: job.attempt, due: *due },
        // That the job was there before this commit cannot be ruled out.
        (_, JobChange::Remove(_)) | (Some(NetChange::Remove), JobChange::Postpone { .. }) => {
            NetChange::Remove
        }
        (Some(NetChange::Put { job, .. }), JobChange::Postpone { attempt, due, .. }) => {
            NetChange::Put { job, attempt: *attempt, due: *due }
        }
        (Some(NetChange::Postpone { .. }) | None, JobChange::Postpone { attempt, due, .. }) => {
            NetChange::Postpone { attempt: *attempt, due: *due }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Duration;

    use flowgate_core::commit::JobKind;
    use flowgate_core::decide::{self, Start};
    use flowgate_core::flow::Flow;
    use flowgate_core::ids::{CommitIds, JobId, LeaseToken, RunId};
    use flowgate_core::payload::Payload;
    use flowgate_core::run::{Run, RunStatus};
    use serde_json::json;

    use super::*;

    const LATER: Due = Due::After(Duration::from_secs(1));

    fn commit(jobs: Vec<JobChange>) -> Commit {
        let file = json!({ "flow": "one", "steps": { "only": { "run": { "worker": "w" } } } });
        let flow = Flow::new(serde_json::from_value(file).unwrap()).unwrap();
        let run_id = RunId::derived("one", "1");
        let start = Start {
            run_id,
            input: Payload::null(),
            key: None,
            tags: BTreeMap::new(),
            priority: None,
            due: Due::Now,
            gate: flowgate_core::gate::GateStamp::default(),
            instance: None,
            pool: None,
        };
        Commit { jobs, ..decide::start(&flow, &start, CommitIds::new(1).next()) }
    }

    fn job_id(step: u16) -> JobId {
        JobId { run_id: RunId::derived("one", "1"), step: StepIndex(step) }
    }

    fn job(step: u16) -> Job {
        let (job_id, queue) = (job_id(step), "default".into());
        Job { job_id, kind: JobKind::Execute, queue, priority: 0, attempt: 0, inputs: vec![1] }
    }

    fn add(step: u16) -> JobChange {
        JobChange::Add { job: job(step), due: Due::Now }
    }

    fn postpone(step: u16) -> JobChange {
        JobChange::Postpone { job_id: job_id(step), attempt: 7, due: LATER }
    }

    fn remove(step: u16) -> JobChange {
        JobChange::Remove(job_id(step))
    }

    fn check(changes: &[JobChange], expected: &[(u16, NetChange<'_>)]) {
        let commit = commit(changes.to_vec());
        let steps: Vec<_> =
            expected.iter().map(|(at, net)| (StepIndex(*at), net.clone())).collect();
        assert_eq!(net_changes(&commit).steps, steps, "{changes:?}");
    }

    #[test]
    fn the_last_word_on_a_step_counts() {
        let job = job(0);
        let put = NetChange::Put { job: &job, attempt: 0, due: Due::Now };
        let put_later = NetChange::Put { job: &job, attempt: 7, due: LATER };
        let postponed = NetChange::Postpone { attempt: 7, due: LATER };
        check(&[], &[]);
        check(&[add(0)], &[(0, put.clone())]);
        check(&[remove(0), add(0)], &[(0, put.clone())]);
        check(&[postpone(0), add(0)], &[(0, put.clone())]);
        check(&[add(0), postpone(0)], &[(0, put_later)]);
        check(&[add(0), remove(0)], &[(0, NetChange::Remove)]);
        check(&[remove(0), add(0), remove(0)], &[(0, NetChange::Remove)]);
        check(&[postpone(0)], &[(0, postponed.clone())]);
        check(&[postpone(0), postpone(0)], &[(0, postponed)]);
        check(&[postpone(0), remove(0)], &[(0, NetChange::Remove)]);
        check(&[remove(0), postpone(0)], &[(0, NetChange::Remove)]);
        check(&[remove(0), postpone(0), add(0)], &[(0, put)]);
    }

    #[test]
    fn steps_are_in_the_order_of_their_last_words() {
        let (zero, two) = (job(0), job(2));
        let put = |job| NetChange::Put { job, attempt: 0, due: Due::Now };
        check(
            &[add(2), remove(1), add(0)],
            &[(2, put(&two)), (1, NetChange::Remove), (0, put(&zero))],
        );
        check(&[remove(0), add(2), add(0)], &[(2, put(&two)), (0, put(&zero))]);
    }

    #[test]
    fn a_run_that_ends_needs_no_word_on_its_steps() {
        let mut commit = commit(vec![remove(0), add(1)]);
        let record = Run { status: RunStatus::Failed, ..(*commit.record).clone() };
        commit.record = Arc::new(record);
        let net = net_changes(&commit);
        assert!(net.ends_run);
        assert_eq!(net.steps, []);
    }

    #[test]
    fn leases_are_those_of_the_guards_in_order() {
        let mut commit = commit(Vec::new());
        let lease = |step, token| LeaseRef { job_id: job_id(step), token: LeaseToken(token) };
        let leases = [lease(3, 8), lease(1, 9)];
        commit
            .guards
            .extend(leases.map(|LeaseRef { job_id, token }| Guard::LeaseHeld { job_id, token }));
        assert_eq!(net_changes(&commit).leases, leases);
    }
}
