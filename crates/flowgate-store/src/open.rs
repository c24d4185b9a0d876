//! The open runs and their jobs, in memory.
//!
//! The memory store and the embedded store share this: it checks the guards of a commit, applies
//! its changes, hands jobs off, claims, renews and lets leases expire. It knows nothing of logs:
//! whoever owns it writes them, and fills in the payloads of what was claimed.
//!
//! ```text
//!            add, due later            time passes
//!   (none) ----------------> delayed ---------------> ready <---+
//!      |                        ^                     |  ^      |
//!      +--- add, due now -------|---------------------+  |      | the lease expires
//!      |                        | postpone         claim |      |
//!      |                        +------------------+  |  | postpone
//!      |                                           |  v  |      |
//!      +--- add, handed off ---------------------> leased ------+
//! ```
//!
//! A commit removes a job from any of the three. A lease that expired stays with its job until
//! somebody claims it: then its stamp is told as lost, until a commit under a later lease of the
//! job, which has written it down, is applied.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::commit::{Claimed, Commit, Due, Guard, Job, JobChange};
use flowgate_core::event::{Event, LeaseStamp};
use flowgate_core::gate::GateStamp;
use flowgate_core::ids::{CommitId, InstanceId, JobId, LeaseToken, RunId, StepIndex};
use flowgate_core::limits::{CLAIM_BATCH_MAX, COMMIT_BYTES_MAX, PRIORITY_MAX};
use flowgate_core::run::{Run, RunStatus};
use flowgate_core::time::Timestamp;

use self::hash::IdMap;
use self::index::{Index, Key};
use crate::control::{PRIORITY_HEAD_START, QueueStats};
use crate::{
    Claimant, JobDetail, LeaseDetail, LeaseRef, Queues, Refusal, Renewal, RunDetail, RunRow,
};

pub(crate) mod hash;
mod index;

pub(crate) use self::index::{Place, Waiting};

/// All open runs.
#[derive(Debug, Default)]
pub(crate) struct OpenRuns {
    runs: IdMap<RunId, OpenRun>,
    index: Index,
    token_last: u64,
    ticket_last: u64,
    /// Those that were ever set.
    gates: HashMap<Arc<str>, GateStamp>,
}

/// A run that has not ended.
#[derive(Debug)]
pub(crate) struct OpenRun {
    pub(crate) run: Arc<Run>,
    pub(crate) started_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    /// In the order of their steps.
    jobs: Vec<OpenJob>,
}

/// A job that has not ended.
#[derive(Debug)]
pub(crate) struct OpenJob {
    /// Its attempt is that of its last lease.
    pub(crate) job: Job,
    pub(crate) due_at: Timestamp,
    /// The last lease, unless the job was postponed since. It may have expired.
    pub(crate) lease: Option<Lease>,
    /// Leases that ended without a word and are not in the log yet.
    pub(crate) lost: Vec<LeaseStamp>,
    /// How many steps of priority it is ahead of where its due time puts it.
    pub(crate) ahead: u8,
    place: Place,
    /// Orders jobs that are due at the same time.
    ticket: u64,
}

/// The right to settle a job.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) token: LeaseToken,
    pub(crate) instance: InstanceId,
    pub(crate) expires_at: Timestamp,
    /// The commit that granted it by hand-off.
    granted_by: Option<CommitId>,
}

/// What is to be done with a commit.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Its guards hold.
    Apply,
    /// It was applied before.
    Again,
    /// A guard does not hold.
    Refuse(Refusal),
}

/// What a verdict needs to know of runs that are not open and of what is written.
pub(crate) trait Written {
    /// Why it could not be read.
    type Fault;
    /// Whether a run with this id has ended.
    fn has_ended(&self, run_id: RunId) -> Result<bool, Self::Fault>;
    /// The commit whose first event has this number in the run.
    fn commit_at(&self, run_id: RunId, seq: u64) -> Result<Option<CommitId>, Self::Fault>;
}

/// A claimant and the slots that it has left in this call.
#[derive(Debug)]
pub(crate) struct Taker<'a> {
    claimant: &'a Claimant,
    slots: usize,
}

impl<'a> Taker<'a> {
    pub(crate) fn new(claimant: &'a Claimant) -> Self {
        Self { claimant, slots: claimant.slots.min(CLAIM_BATCH_MAX) }
    }
}

/// Refuses a commit over the limits; one that no rule can have made is a bug of the caller.
pub(crate) fn check_shape(commit: &Commit) -> Result<(), Refusal> {
    assert!(!commit.events.is_empty(), "a commit says what happened");
    assert_eq!(commit.run_id, commit.record.run_id, "a commit's record is that of its run");
    let count = u64::try_from(commit.events.len()).expect("events fit in memory");
    assert!(commit.record.version >= count, "the events of a commit end at its record's version");
    let fits = |guard: &Guard| match guard {
        Guard::RunAbsent => commit.version_before() == 0,
        Guard::RunVersion(version) => commit.version_before() == *version,
        Guard::LeaseHeld { .. } | Guard::Gate { .. } => false,
    };
    assert!(commit.guards.iter().any(fits), "a commit guards the version that it was decided on");
    let bytes = commit.events.iter().map(Event::payload_bytes).sum();
    if bytes > COMMIT_BYTES_MAX { Err(Refusal::TooLarge { bytes }) } else { Ok(()) }
}

impl OpenRuns {
    /// No runs, and tokens over `token_last`.
    pub(crate) fn new(token_last: u64) -> Self {
        Self { token_last, ..Self::default() }
    }

    /// The last token that was granted.
    pub(crate) fn token_last(&self) -> u64 {
        self.token_last
    }

    /// Tokens that are granted from now on are greater than this one.
    pub(crate) fn raise_tokens(&mut self, token: LeaseToken) {
        self.token_last = self.token_last.max(token.0);
    }

    /// The gate of a flow, as starts need to know it.
    pub(crate) fn gate(&self, flow: &str) -> GateStamp {
        self.gates.get(flow).copied().unwrap_or_default()
    }

    /// From now on the gate of a flow is this one.
    pub(crate) fn set_gate(&mut self, flow: Arc<str>, gate: GateStamp) {
        self.gates.insert(flow, gate);
    }

    /// Whether a run of the flow is held.
    pub(crate) fn holds_runs(&self, flow: &str) -> bool {
        let is_held = |open: &OpenRun| open.run.status == RunStatus::Held;
        self.runs.values().any(|open| *open.run.flow == *flow && is_held(open))
    }

    /// The open run with this id.
    pub(crate) fn get(&self, run_id: RunId) -> Option<&OpenRun> {
        self.runs.get(&run_id)
    }

    /// The current lease of an open job.
    pub(crate) fn lease(&self, job_id: JobId) -> Option<&Lease> {
        self.job(job_id).and_then(|open| open.lease.as_ref())
    }

    /// Whether the guards of `commit` hold, or it was applied before.
    pub(crate) fn judge<W: Written>(
        &self,
        commit: &Commit,
        now: Timestamp,
        written: &W,
    ) -> Result<Verdict, W::Fault> {
        let open = self.runs.get(&commit.run_id);
        let mut refusal = None;
        for guard in &commit.guards {
            let held = match guard {
                Guard::RunAbsent if open.is_some() || written.has_ended(commit.run_id)? => {
                    Err(Refusal::RunExists)
                }
                Guard::RunVersion(version) if open.is_none_or(|o| o.run.version != *version) => {
                    Err(Refusal::RunVersion)
                }
                Guard::LeaseHeld { job_id, token } if !self.is_held(*job_id, *token, now) => {
                    Err(Refusal::LeaseLost(*job_id))
                }
                Guard::Gate { generation } => {
                    let gate = self.gate(&commit.record.flow);
                    let holds = gate.generation == *generation;
                    if holds { Ok(()) } else { Err(Refusal::GateMoved(gate)) }
                }
                Guard::RunAbsent | Guard::RunVersion(_) | Guard::LeaseHeld { .. } => Ok(()),
            };
            match held {
                Ok(()) => {}
                // The version decides before a lease does: this commit may have ended the lease.
                Err(stale @ (Refusal::RunExists | Refusal::RunVersion)) => {
                    let at = written.commit_at(commit.run_id, commit.version_before() + 1)?;
                    if at == Some(commit.commit_id) {
                        return Ok(Verdict::Again);
                    }
                    return Ok(Verdict::Refuse(stale));
                }
                Err(
                    lost @ (Refusal::LeaseLost(_)
                    | Refusal::TooLarge { .. }
                    | Refusal::GateMoved(_)),
                ) => {
                    refusal = refusal.or(Some(lost));
                }
            }
        }
        Ok(refusal.map_or(Verdict::Apply, Verdict::Refuse))
    }

    fn is_held(&self, job_id: JobId, token: LeaseToken, now: Timestamp) -> bool {
        self.lease(job_id).is_some_and(|lease| lease.token == token && lease.expires_at > now)
    }

    fn job(&self, job_id: JobId) -> Option<&OpenJob> {
        let open = self.runs.get(&job_id.run_id)?;
        open.find(job_id.step).ok().map(|at| &open.jobs[at])
    }

    /// Applies a commit whose guards hold, and leases to `taker` what it made due.
    pub(crate) fn apply(
        &mut self,
        commit: &Commit,
        now: Timestamp,
        taker: Option<&mut Taker<'_>>,
    ) -> Vec<Claimed> {
        let Self { runs, index, token_last, ticket_last, gates: _ } = self;
        let open = runs.entry(commit.run_id).or_insert_with(|| OpenRun {
            run: Arc::clone(&commit.record),
            started_at: now,
            updated_at: now,
            jobs: Vec::new(),
        });
        open.run = Arc::clone(&commit.record);
        open.updated_at = now;
        for guard in &commit.guards {
            // A commit under a lease has written the leases lost before it.
            if let Guard::LeaseHeld { job_id, .. } = guard
                && let Ok(at) = open.find(job_id.step)
            {
                open.jobs[at].lost.clear();
            }
        }
        if commit.record.status.is_terminal() {
            open.jobs.iter().for_each(|job| index.remove(job));
            runs.remove(&commit.run_id);
            return Vec::new();
        }
        let mut hand_off = HandOff { commit_id: commit.commit_id, taker, token_last };
        let mut handed_off = Vec::new();
        for change in &commit.jobs {
            match change {
                JobChange::Add { job, due } => {
                    *ticket_last += 1;
                    let mut added = OpenJob::new(job.clone(), due_at(*due, now), *ticket_last);
                    added.queue(now);
                    if hand_off.take(&mut added, now) {
                        handed_off.push(added.claimed(&open.run));
                    }
                    index.insert(&added);
                    open.insert(added);
                }
                JobChange::Postpone { job_id, attempt, due } => {
                    if let Ok(at) = open.find(job_id.step) {
                        *ticket_last += 1;
                        let job = &mut open.jobs[at];
                        index.remove(job);
                        job.job.attempt = *attempt;
                        job.lease = None;
                        job.due_at = due_at(*due, now);
                        job.ticket = *ticket_last;
                        job.queue(now);
                        index.insert(job);
                    }
                }
                JobChange::Remove(job_id) => {
                    if let Ok(at) = open.find(job_id.step) {
                        index.remove(&open.jobs.remove(at));
                        handed_off.retain(|claimed| claimed.job.job_id != *job_id);
                    }
                }
            }
        }
        handed_off
    }

    /// The jobs that a commit handed off when it was applied, as far as they are still so leased.
    pub(crate) fn hand_off_again(
        &self,
        commit: &Commit,
        now: Timestamp,
        taker: Option<&mut Taker<'_>>,
    ) -> Vec<Claimed> {
        let (Some(taker), Some(open)) = (taker, self.runs.get(&commit.run_id)) else {
            return Vec::new();
        };
        let is_theirs = |lease: &Lease| {
            lease.granted_by == Some(commit.commit_id)
                && lease.instance == taker.claimant.instance
                && lease.expires_at > now
        };
        let theirs = open.jobs.iter().filter(|job| job.lease.as_ref().is_some_and(is_theirs));
        let again: Vec<Claimed> = theirs.map(|job| job.claimed(&open.run)).collect();
        taker.slots = taker.slots.saturating_sub(again.len());
        again
    }

    /// Leases the jobs that have been due longest, each as if its head start were time.
    pub(crate) fn claim(&mut self, claimant: &Claimant, now: Timestamp) -> Vec<Claimed> {
        self.let_time_pass(now);
        let count = claimant.slots.min(CLAIM_BATCH_MAX);
        let job_ids = self.index.pop_ready(&claimant.queues, count);
        let mut taken = Vec::with_capacity(job_ids.len());
        for job_id in job_ids {
            let open = self.runs.get_mut(&job_id.run_id).expect("an indexed job has a run");
            let at = open.find(job_id.step).expect("an indexed job is open");
            let job = &mut open.jobs[at];
            let stamp = job.stamp();
            job.lost.extend(stamp);
            self.token_last += 1;
            job.grant(claimant, LeaseToken(self.token_last), now, None);
            self.index.insert(job);
            taken.push(job.claimed(&open.run));
        }
        taken
    }

    /// Extends a lease that is still held.
    pub(crate) fn renew(&mut self, held: LeaseRef, span: Duration, now: Timestamp) -> Renewal {
        if !self.is_held(held.job_id, held.token, now) {
            return Renewal::Lost;
        }
        let open = self.runs.get_mut(&held.job_id.run_id).expect("a held lease has a run");
        let at = open.find(held.job_id.step).expect("a held lease has a job");
        let job = &mut open.jobs[at];
        let lease = job.lease.as_mut().expect("the lease is held");
        let expires_at = now.plus(span).max(lease.expires_at);
        let before = std::mem::replace(&mut lease.expires_at, expires_at);
        match job.place {
            Place::Leased => self.index.move_lease(held.token, before, expires_at),
            // The clock went back after the lease was seen to expire.
            Place::Ready | Place::Delayed => {
                lease.expires_at = before;
                return Renewal::Lost;
            }
        }
        Renewal::Held(expires_at)
    }

    /// Makes a delayed job due; whether that changed it, or none if there is no such job.
    pub(crate) fn wake(&mut self, job_id: JobId, now: Timestamp) -> Option<bool> {
        let open = self.runs.get_mut(&job_id.run_id)?;
        let at = open.find(job_id.step).ok()?;
        let job = &mut open.jobs[at];
        let is_later = job.place == Place::Delayed && job.due_at > now;
        if is_later {
            self.ticket_last += 1;
            self.index.remove(job);
            job.due_at = now;
            job.ticket = self.ticket_last;
            job.queue(now);
            self.index.insert(job);
        }
        Some(is_later)
    }

    /// What waits in each queue.
    pub(crate) fn stats(&mut self, now: Timestamp) -> Vec<QueueStats> {
        self.let_time_pass(now);
        self.index.stats()
    }

    /// Whether a job of `queues` is ready, or else how to wait for one.
    pub(crate) fn wait(&mut self, queues: &Queues, now: Timestamp) -> Waiting {
        self.let_time_pass(now);
        self.index.wait(queues)
    }

    /// Takes over a run and its open jobs from where they were kept.
    pub(crate) fn load(&mut self, mut run: OpenRun, jobs: Vec<OpenJob>, now: Timestamp) {
        for mut job in jobs {
            self.ticket_last += 1;
            job.ticket = self.ticket_last;
            let is_held = job.lease.as_ref().is_some_and(|lease| lease.expires_at > now);
            job.place = if is_held { Place::Leased } else { job.place_when_free(now) };
            self.index.insert(&job);
            run.insert(job);
        }
        self.runs.insert(run.run.run_id, run);
    }

    /// Jobs whose delay or lease is over become ready.
    fn let_time_pass(&mut self, now: Timestamp) {
        while let Some(job_id) = self.index.first_over(now) {
            let open = self.runs.get_mut(&job_id.run_id).expect("an indexed job has a run");
            let at = open.find(job_id.step).expect("an indexed job is open");
            self.index.remove(&open.jobs[at]);
            open.jobs[at].place = Place::Ready;
            self.index.insert(&open.jobs[at]);
        }
    }
}

/// What one commit hands off, and to whom.
struct HandOff<'a, 'b> {
    commit_id: CommitId,
    taker: Option<&'a mut Taker<'b>>,
    token_last: &'a mut u64,
}

impl HandOff<'_, '_> {
    fn take(&mut self, job: &mut OpenJob, now: Timestamp) -> bool {
        let Some(taker) = &mut self.taker else { return false };
        let wanted = job.place == Place::Ready && taker.claimant.queues.contains(&job.job.queue);
        if taker.slots == 0 || !wanted {
            return false;
        }
        taker.slots -= 1;
        *self.token_last += 1;
        job.grant(taker.claimant, LeaseToken(*self.token_last), now, Some(self.commit_id));
        true
    }
}

impl Lease {
    /// A lease as it was stored.
    pub(crate) fn restored(token: LeaseToken, instance: InstanceId, expires_at: Timestamp) -> Self {
        Self { token, instance, expires_at, granted_by: None }
    }
}

impl OpenRun {
    /// A run without jobs.
    pub(crate) fn new(run: Arc<Run>, started_at: Timestamp, updated_at: Timestamp) -> Self {
        Self { run, started_at, updated_at, jobs: Vec::new() }
    }

    /// Its open jobs, in the order of their steps.
    pub(crate) fn jobs(&self) -> &[OpenJob] {
        &self.jobs
    }

    /// As it is listed.
    pub(crate) fn row(&self) -> RunRow {
        RunRow {
            run: Arc::clone(&self.run),
            started_at: self.started_at,
            updated_at: self.updated_at,
            ended_at: None,
            events_removed: false,
        }
    }

    /// As it is shown.
    pub(crate) fn detail(&self) -> RunDetail {
        RunDetail { row: self.row(), jobs: self.jobs.iter().map(OpenJob::detail).collect() }
    }

    fn find(&self, step: StepIndex) -> Result<usize, usize> {
        self.jobs.binary_search_by_key(&step, |open| open.job.job_id.step)
    }

    fn insert(&mut self, job: OpenJob) {
        let at = self.find(job.job.job_id.step).expect_err("a step has one open job at a time");
        self.jobs.insert(at, job);
    }
}

impl OpenJob {
    /// A job that nobody has leased.
    pub(crate) fn new(job: Job, due_at: Timestamp, ticket: u64) -> Self {
        let place = Place::Ready;
        Self { job, due_at, lease: None, lost: Vec::new(), ahead: 0, place, ticket }
    }

    fn key(&self) -> Key {
        (self.due_at.minus(head_start(self.ahead)), self.ticket)
    }

    /// Puts it into its queue. Its priority counts if it is due, so that whoever waits longer than
    /// the head start of the highest is overtaken by nobody.
    pub(crate) fn queue(&mut self, now: Timestamp) {
        self.place = self.place_when_free(now);
        let is_due = self.place == Place::Ready;
        self.ahead = if is_due { self.job.priority.min(PRIORITY_MAX) } else { 0 };
    }

    fn place_when_free(&self, now: Timestamp) -> Place {
        if self.due_at <= now { Place::Ready } else { Place::Delayed }
    }

    /// How events name its last lease.
    pub(crate) fn stamp(&self) -> Option<LeaseStamp> {
        self.lease.as_ref().map(|lease| LeaseStamp {
            attempt: self.job.attempt,
            token: lease.token,
            instance: lease.instance.clone(),
        })
    }

    fn grant(
        &mut self,
        claimant: &Claimant,
        token: LeaseToken,
        now: Timestamp,
        granted_by: Option<CommitId>,
    ) {
        self.job.attempt += 1;
        self.place = Place::Leased;
        self.lease = Some(Lease {
            token,
            instance: claimant.instance.clone(),
            expires_at: now.plus(claimant.lease),
            granted_by,
        });
    }

    /// The leased job as its claimant gets it, but for the payloads.
    fn claimed(&self, run: &Arc<Run>) -> Claimed {
        let lease = self.lease.as_ref().expect("a claimed job has a lease");
        Claimed {
            job: self.job.clone(),
            token: lease.token,
            expires_at: lease.expires_at,
            lost: self.lost.clone(),
            run: Arc::clone(run),
            inputs: Vec::new(),
        }
    }

    /// As it is shown.
    pub(crate) fn detail(&self) -> JobDetail {
        JobDetail {
            job: self.job.clone(),
            due_at: self.due_at,
            lease: self.lease.as_ref().map(|lease| LeaseDetail {
                token: lease.token,
                instance: lease.instance.clone(),
                expires_at: lease.expires_at,
            }),
            lost: self.lost.clone(),
        }
    }
}

fn head_start(ahead: u8) -> Duration {
    PRIORITY_HEAD_START * u32::from(ahead)
}

fn due_at(due: Due, now: Timestamp) -> Timestamp {
    match due {
        Due::Now => now,
        Due::After(span) => now.plus(span),
        Due::At(at) => at,
    }
}
