//! A store in a few lines, for the tests of the rules: one run, guards, leases, a log.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{Attempt, Outcome, Output, Rejection, Report, Start, decide, start};
use crate::check::{check_ended, check_run};
use crate::commit::{Commit, Due, Guard, Job, JobChange};
use crate::event::{ErrorKind, Event, LeaseStamp, StepError, StoredEvent};
use crate::flow::{Flow, FlowFile};
use crate::gate::GateStamp;
use crate::ids::{CommitId, InstanceId, JobId, LeaseToken, Position, RunId, StepIndex};
use crate::payload::Payload;
use crate::run::{Run, StepState};
use crate::time::Timestamp;
use std::time::Duration;
use uuid::Uuid;

pub(super) const RUN: RunId = RunId(Uuid::from_u128(7));

pub(super) struct World {
    pub(super) flow: Flow,
    pub(super) run: Option<Arc<Run>>,
    pub(super) log: Vec<StoredEvent>,
    pub(super) jobs: BTreeMap<JobId, OpenJob>,
    applied: HashMap<u64, CommitId>,
    commits: u64,
    tokens: u64,
    /// The generation of the gate, and whether it holds what starts.
    pub(super) gate: u64,
    pub(super) is_closed: bool,
    /// The pool of what starts.
    pub(super) pool: Option<Arc<str>>,
    /// Revisions that the run was pinned to before.
    pub(super) before: Vec<Flow>,
}

#[derive(Debug)]
pub(super) struct OpenJob {
    pub(super) job: Job,
    pub(super) due: Due,
    lease: Option<LeaseStamp>,
    expired: bool,
    lost: Vec<LeaseStamp>,
}

impl OpenJob {
    /// The lease that it is under, also one that has expired.
    pub(super) fn lease(&self) -> Option<&LeaseStamp> {
        self.lease.as_ref()
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Applied {
    Now,
    Before,
    Refused,
}

impl World {
    pub(super) fn new(flow: serde_json::Value) -> Self {
        let file: FlowFile = serde_json::from_value(flow).expect("the test's flow has the form");
        Self::of(Flow::new(file).expect("the test's flow is valid"))
    }

    pub(super) fn of(flow: Flow) -> Self {
        Self {
            flow,
            run: None,
            log: Vec::new(),
            jobs: BTreeMap::new(),
            applied: HashMap::new(),
            commits: 0,
            tokens: 0,
            gate: 0,
            is_closed: false,
            pool: None,
            before: Vec::new(),
        }
    }

    pub(super) fn commit_id(&mut self) -> CommitId {
        self.commits += 1;
        CommitId(Uuid::from_u128(self.commits.into()))
    }

    /// Every revision that the log names.
    pub(super) fn flows(&self) -> Vec<&Flow> {
        self.before.iter().chain([&self.flow]).collect()
    }

    pub(super) fn start(&mut self) {
        self.start_with(None, Due::Now);
    }

    pub(super) fn start_with(&mut self, priority: Option<u8>, due: Due) {
        let commit_id = self.commit_id();
        let request = Start {
            run_id: RUN,
            input: Payload::parse("{\"n\":1}").unwrap(),
            key: None,
            tags: BTreeMap::new(),
            priority,
            due,
            gate: GateStamp { generation: self.gate, is_closed: self.is_closed },
            instance: None,
            pool: self.pool.clone(),
        };
        let commit = start(&self.flow, &request, commit_id);
        assert_eq!(self.apply(&commit), Applied::Now);
    }

    /// Applies a commit as a store must: whole, or not at all, and once.
    pub(super) fn apply(&mut self, commit: &Commit) -> Applied {
        let version = self.run.as_ref().map_or(0, |run| run.version);
        let before = commit.version_before();
        for guard in &commit.guards {
            let holds = match guard {
                Guard::RunAbsent => self.run.is_none(),
                Guard::RunVersion(wanted) => version == *wanted,
                Guard::Gate { generation } => self.gate == *generation,
                Guard::LeaseHeld { job_id, token } => self.jobs.get(job_id).is_some_and(|open| {
                    !open.expired && open.lease.as_ref().is_some_and(|l| l.token == *token)
                }),
            };
            if !holds {
                let known = self.applied.get(&before) == Some(&commit.commit_id);
                return if known { Applied::Before } else { Applied::Refused };
            }
        }
        self.applied.insert(before, commit.commit_id);
        for event in &commit.events {
            let seq = u64::try_from(self.log.len()).unwrap() + 1;
            self.log.push(StoredEvent {
                position: Position::counted(seq),
                run_id: RUN,
                seq,
                at: Timestamp(0),
                event: event.clone(),
            });
        }
        for guard in &commit.guards {
            if let Guard::LeaseHeld { job_id, .. } = guard
                && let Some(open) = self.jobs.get_mut(job_id)
            {
                open.lost.clear();
            }
        }
        for change in &commit.jobs {
            self.change(change);
        }
        self.run = Some(Arc::clone(&commit.record));
        Applied::Now
    }

    fn change(&mut self, change: &JobChange) {
        match change {
            JobChange::Add { job, due } => {
                let open = OpenJob {
                    job: job.clone(),
                    due: *due,
                    lease: None,
                    expired: false,
                    lost: Vec::new(),
                };
                assert!(self.jobs.insert(job.job_id, open).is_none(), "a job is added once");
            }
            JobChange::Postpone { job_id, attempt, due } => {
                let open = self.jobs.get_mut(job_id).expect("only an open job is postponed");
                open.job.attempt = *attempt;
                open.due = *due;
                open.lease = None;
                open.expired = false;
            }
            JobChange::Remove(job_id) => {
                self.jobs.remove(job_id);
            }
        }
    }

    /// The jobs that nobody holds, due or not.
    pub(super) fn claimable(&self) -> Vec<JobId> {
        let free = |open: &&OpenJob| open.lease.is_none() || open.expired;
        self.jobs.values().filter(free).map(|open| open.job.job_id).collect()
    }

    pub(super) fn claim(&mut self, job_id: JobId) -> Attempt {
        self.tokens += 1;
        let token = LeaseToken(self.tokens);
        let open = self.jobs.get_mut(&job_id).expect("the job is open");
        open.lost.extend(open.lease.take());
        open.expired = false;
        open.job.attempt += 1;
        let instance = InstanceId("test".into());
        let stamp = LeaseStamp { attempt: open.job.attempt, token, instance };
        open.lease = Some(stamp.clone());
        Attempt { job_id, stamp, lost: open.lost.clone(), logged: false }
    }

    pub(super) fn expire(&mut self, job_id: JobId) {
        if let Some(open) = self.jobs.get_mut(&job_id) {
            open.expired = open.lease.is_some();
        }
    }

    pub(super) fn decide(&mut self, report: &Report) -> Result<Commit, Rejection> {
        let commit_id = self.commit_id();
        decide(&self.flow, self.run.as_ref().expect("the run has started"), report, commit_id)
    }

    /// Decides on `report` and applies the decision.
    pub(super) fn report(&mut self, report: &Report) -> Result<Applied, Rejection> {
        let commit = self.decide(report)?;
        Ok(self.apply(&commit))
    }

    pub(super) fn index(&self, step: &str) -> StepIndex {
        self.flow.step_index(step).expect("the flow has the step")
    }

    pub(super) fn job(&self, step: &str) -> JobId {
        JobId { run_id: RUN, step: self.index(step) }
    }

    /// Claims `step`'s job and ends the attempt well, with these events.
    pub(super) fn succeed(&mut self, step: &str, emits: &[&str]) {
        let attempt = self.claim(self.job(step));
        let report = ended(attempt, success(emits));
        assert_eq!(self.report(&report), Ok(Applied::Now), "{step}");
    }

    /// Claims `step`'s job and ends the attempt badly.
    pub(super) fn fail(&mut self, step: &str, kind: ErrorKind) {
        let attempt = self.claim(self.job(step));
        assert_eq!(self.report(&ended(attempt, failure(kind))), Ok(Applied::Now), "{step}");
    }

    pub(super) fn timer(&mut self, step: &str) {
        let attempt = self.claim(self.job(step));
        assert_eq!(self.report(&Report::TimerDue(attempt)), Ok(Applied::Now), "{step}");
    }

    pub(super) fn signal(&mut self, signal: &str, data: &str) -> Result<Applied, Rejection> {
        let data = Payload::parse(data).unwrap();
        self.report(&Report::Signal { signal: signal.into(), data })
    }

    pub(super) fn state(&self, step: &str) -> StepState {
        self.run.as_ref().expect("the run has started").step(self.index(step)).state
    }

    pub(super) fn status(&self) -> &'static str {
        self.run.as_ref().expect("the run has started").status.as_str()
    }

    pub(super) fn kinds(&self) -> Vec<&'static str> {
        self.log.iter().map(|stored| stored.event.kind()).collect()
    }

    pub(super) fn events(&self) -> Vec<Event> {
        self.log.iter().map(|stored| stored.event.clone()).collect()
    }

    /// Every invariant that the log alone can show.
    pub(super) fn check(&self) {
        let violations = check_run(&self.flows(), RUN, &self.log, self.run.as_deref());
        assert!(violations.is_empty(), "{violations:#?}\n{:#?}", self.kinds());
        for open in self.jobs.values() {
            let state = self.run.as_ref().unwrap().step(open.job.job_id.step).state;
            assert!(state.is_open(), "a job is open and its step is {}", state.as_str());
        }
    }

    pub(super) fn check_ended(&self) {
        self.check();
        assert_eq!(check_ended(RUN, &self.log), None, "{:#?}", self.kinds());
        assert!(self.jobs.is_empty(), "an ended run has no jobs");
    }
}

pub(super) fn success(emits: &[&str]) -> Outcome {
    let emits =
        emits.iter().map(|event| (Arc::from(*event), Payload::parse("1").unwrap())).collect();
    Outcome::Succeeded(Output { emits, state: Vec::new(), result: None })
}

pub(super) fn failure(kind: ErrorKind) -> Outcome {
    Outcome::Failed { error: StepError { kind, message: "no".into() }, retry_after: None }
}

pub(super) fn ended(attempt: Attempt, outcome: Outcome) -> Report {
    Report::AttemptEnded { attempt, outcome, elapsed: Duration::from_millis(3), random: 0.5 }
}

pub(super) fn released(attempt: Attempt) -> Report {
    Report::AttemptReleased { attempt, due: Due::Now }
}

pub(super) fn parked(attempt: Attempt) -> Report {
    let (limit, reason) = ("step/random/s0/concurrency".into(), "2 at once".into());
    Report::AttemptParked { attempt, limit, reason, due: Due::After(Duration::from_mins(5)) }
}
