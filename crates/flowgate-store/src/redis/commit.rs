//! Commits as the script takes them, and what it answers.
//!
//! The server has one thread and Lua is slow at making texts, so texts are made here as far as they
//! can be: the row of the log, the row of the feed, and the shape of a commit, which has all of it
//! that few commits of a batch differ in and which the script reads once for each that occurs.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use flowgate_core::commit::{Claimed, Commit, Due, Guard, Job, JobChange};
use flowgate_core::event::Event;
use flowgate_core::gate::GateStamp;
use flowgate_core::ids::{JobId, LeaseToken, RunId, StepIndex};
use flowgate_core::limits::CLAIM_BATCH_MAX;
use flowgate_core::run::Run;
use flowgate_core::time::Timestamp;
use redis::{Cmd, ToRedisArgs, Value};
use uuid::Uuid;

use super::fault::unreadable;
use super::rows::{Needy, decode_job, encode_queued, encode_run};
use super::script::Reply;
use crate::changes::{NetChange, NetChanges, net_changes};
use crate::shorthand::{encode_events, encode_record};
use crate::{Claimant, Refusal, StoreError};

/// Bytes of commits in one call of the script; more make several calls.
const CALL_BYTES_MAX: usize = 16 << 20;

/// A commit that is ready to be sent.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Its place in the batch.
    pub(super) index: usize,
    pub(super) commit: Commit,
    record: String,
    events: String,
    /// Which of its changes are to be handed off, by the place among its net changes.
    handed_off: Vec<usize>,
}

/// Gives out the slots of a claimant in the order of the batch, before its commits go their ways
/// to several partitions.
#[derive(Debug)]
pub(super) struct Slots<'a> {
    claimant: Option<&'a Claimant>,
    left: usize,
    /// Jobs that the batch puts in their queues unless they are handed off.
    jobs: usize,
}

impl<'a> Slots<'a> {
    pub(super) fn new(claimant: Option<&'a Claimant>) -> Self {
        let left = claimant.map_or(0, |claimant| claimant.slots.min(CLAIM_BATCH_MAX));
        Self { claimant, left, jobs: 0 }
    }

    /// Whether a job may be in a queue by what was prepared, after so many were handed off.
    pub(super) fn may_have_queued(&self, handed_off: usize) -> bool {
        handed_off < self.jobs
    }

    /// A commit with its texts and its share of the slots.
    pub(super) fn prepare(&mut self, index: usize, commit: Commit) -> Prepared {
        let record = encode_record(&commit.record);
        let events = encode_events(&commit.events);
        let mut handed_off = Vec::new();
        for (at, (_, change)) in net_changes(&commit).steps.iter().enumerate() {
            self.jobs += usize::from(*change != NetChange::Remove);
            if self.left > 0
                && let Some(claimant) = self.claimant
                && let NetChange::Put { job, due, .. } = change
                && may_be_due(*due)
                && claimant.queues.contains(&job.queue)
            {
                self.left -= 1;
                handed_off.push(at);
            }
        }
        Prepared { index, commit, record, events, handed_off }
    }
}

/// Whether a job that is due so may be due at once; a time is judged by the script.
fn may_be_due(due: Due) -> bool {
    match due {
        Due::Now | Due::At(_) => true,
        Due::After(span) => span.as_millis() == 0,
    }
}

/// The commits of one partition in calls of a bounded size, in order.
pub(super) fn in_calls(commits: Vec<Prepared>) -> Vec<Vec<Prepared>> {
    let mut calls: Vec<Vec<Prepared>> = Vec::new();
    let mut bytes = 0;
    for prepared in commits {
        bytes += prepared.record.len() + prepared.events.len();
        match calls.last_mut() {
            Some(call) if bytes <= CALL_BYTES_MAX => call.push(prepared),
            Some(_) | None => {
                bytes = prepared.record.len() + prepared.events.len();
                calls.push(vec![prepared]);
            }
        }
    }
    calls
}

/// The arguments of a call but for those before the number of commits. Keys of runs begin with
/// `prefix`.
pub(super) fn write(command: &mut Cmd, prefix: &str, commits: &[Prepared]) {
    let mut of_run: HashMap<RunId, usize> = HashMap::with_capacity(commits.len());
    for prepared in commits {
        *of_run.entry(prepared.commit.run_id).or_default() += 1;
    }
    let mut buffer = Uuid::encode_buffer();
    let (mut pointers, mut events) = (String::with_capacity(commits.len() * 50), 0);
    for Prepared { commit, .. } in commits {
        let separator = if pointers.is_empty() { "" } else { "," };
        let id = encode_run(commit.run_id, &mut buffer);
        let (seq, count) = (commit.record.version, commit.events.len());
        write!(pointers, "{separator}{id}:{seq}:{count}:{events}").expect("a text can grow");
        events += count;
    }
    command.arg(commits.len()).arg(events).arg(&pointers);
    let (mut key, mut offset) = (format!("{prefix}run:"), 0);
    for prepared in commits {
        key.truncate(prefix.len() + "run:".len());
        key.push_str(encode_run(prepared.commit.run_id, &mut buffer));
        command.arg(&key);
        prepared.write(command, offset, of_run[&prepared.commit.run_id] > 1);
        offset += prepared.commit.events.len();
    }
}

impl Prepared {
    /// Its arguments after the key of its run; `offset` is the number of events before its own in
    /// the call, `is_several` whether there are more commits of its run.
    fn write(&self, command: &mut Cmd, offset: usize, is_several: bool) {
        let commit = &self.commit;
        let net = net_changes(commit);
        let is_start = commit.guards.contains(&Guard::RunAbsent);
        let indexes = if is_start { indexes_of(&commit.record) } else { Vec::new() };
        let mut shape = String::with_capacity(64);
        self.write_shape(&mut shape, &net, indexes.len(), is_several).expect("a text can grow");
        command.arg(&shape);
        command.arg(commit.version_before()).arg(commit.record.version).arg(&self.record);
        let (commit_id, count) = (commit.commit_id.0.simple(), commit.events.len());
        command.arg(format!("{commit_id};{count};{offset};{}", self.events));
        for lease in &net.leases {
            command.arg(lease.token.0);
        }
        for (_, change) in &net.steps {
            if let NetChange::Put { job, .. } = change {
                command.arg(encode_queued(job));
            }
        }
        if is_start {
            command.arg(serde_json::to_string(&indexes).expect("names have a JSON form"));
            command.arg(&indexes);
        }
    }

    /// What few commits of a batch differ in, as the header of `commit.lua` has it.
    fn write_shape(
        &self,
        shape: &mut String,
        net: &NetChanges<'_>,
        indexes: usize,
        is_several: bool,
    ) -> std::fmt::Result {
        let record = &self.commit.record;
        write!(shape, "{};", record.status.as_str())?;
        let is_pinned = |event: &Event| event.revision().is_some();
        if net.ends_run || self.commit.events.iter().any(is_pinned) {
            write!(shape, "{}", record.steps.len())?;
        }
        shape.push(';');
        for lease in &net.leases {
            write!(shape, "{},", lease.job_id.step.0)?;
        }
        shape.push(';');
        for (at, (step, change)) in net.steps.iter().enumerate() {
            let step = step.0;
            match change {
                NetChange::Put { attempt, due, .. } => {
                    let wanted = if self.handed_off.contains(&at) { "!" } else { "" };
                    write!(shape, "p{step}{}/{attempt}{wanted},", due_text(*due))?;
                }
                NetChange::Postpone { attempt, due } => {
                    write!(shape, "l{step}{}/{attempt},", due_text(*due))?;
                }
                NetChange::Remove => write!(shape, "r{step},")?,
            }
        }
        write!(shape, ";{indexes};{};", if is_several { "s" } else { "" })?;
        match self.commit.gate() {
            Some(generation) => write!(shape, "{generation}/{}", record.flow),
            None => Ok(()),
        }
    }

    /// What became of it.
    fn outcome(&self, value: Value, granted: &Granted) -> Result<Answer, StoreError> {
        let mut handed_off = Vec::new();
        // As nearly all are: all that was to be handed off is.
        if let Value::Int(0) = value {
            let net = net_changes(&self.commit);
            for at in &self.handed_off {
                handed_off.push(self.handed_off(net.steps[*at].0, granted)?);
            }
            return Ok(Answer::Applied(handed_off));
        }
        let is_alone = matches!(value, Value::Int(_));
        let mut reply = Reply::of(if is_alone { Value::Array(vec![value]) } else { value })?;
        match reply.number::<u8>()? {
            0 => {
                while reply.left() > 0 {
                    handed_off.push(self.handed_off(StepIndex(reply.number()?), granted)?);
                }
            }
            1 => return Ok(Answer::Refused(Refusal::RunExists)),
            2 => return Ok(Answer::Refused(Refusal::RunVersion)),
            3 => {
                let job_id = JobId { run_id: self.commit.run_id, step: StepIndex(reply.number()?) };
                return Ok(Answer::Refused(Refusal::LeaseLost(job_id)));
            }
            4 => handed_off = self.handed_off_before(reply)?,
            5 => {
                let (generation, is_closed) = (reply.number()?, reply.number::<u8>()? == 1);
                let gate = GateStamp { generation, is_closed };
                return Ok(Answer::Refused(Refusal::GateMoved(gate)));
            }
            other => return Err(unreadable(format_args!("the outcome {other}"))),
        }
        Ok(Answer::Applied(handed_off))
    }

    /// A job that this commit has just added and that is leased by it.
    fn handed_off(
        &self,
        step: StepIndex,
        Granted { token, expires_at }: &Granted,
    ) -> Result<Needy, StoreError> {
        let (token, expires_at) = (*token, *expires_at);
        let added = self.commit.jobs.iter().rev().find_map(|change| match change {
            JobChange::Add { job, .. } if job.job_id.step == step => Some(job),
            JobChange::Add { .. } | JobChange::Postpone { .. } | JobChange::Remove(_) => None,
        });
        let added = added.ok_or_else(|| unreadable("a hand-off that nobody asked for"))?;
        let job = Job { attempt: added.attempt + 1, ..added.clone() };
        let run = Arc::clone(&self.commit.record);
        let lost = Vec::new();
        let claimed = Claimed { job, token, expires_at, lost, run, inputs: Vec::new() };
        let mut needy = Needy::new(claimed);
        needy.take_events(self.commit.version_before() + 1, &self.commit.events);
        Ok(needy)
    }

    /// The jobs that it handed off when it was applied, as far as they are still so leased.
    fn handed_off_before(&self, mut reply: Reply) -> Result<Vec<Needy>, StoreError> {
        let record = reply.text()?;
        let mut again = Vec::new();
        while reply.left() > 0 {
            let step = StepIndex(reply.number()?);
            let token = LeaseToken(reply.number()?);
            let attempt = reply.number()?;
            let expires_at = Timestamp(reply.number()?);
            let job_id = JobId { run_id: self.commit.run_id, step };
            let queue = self.commit.jobs.iter().rev().find_map(|change| match change {
                JobChange::Add { job, .. } if job.job_id == job_id => Some(Arc::clone(&job.queue)),
                JobChange::Add { .. } | JobChange::Postpone { .. } | JobChange::Remove(_) => None,
            });
            let queue = queue.ok_or_else(|| unreadable("a hand-off that nobody asked for"))?;
            let job = decode_job(&reply.word()?, job_id, queue, attempt)?;
            let run = record.as_deref().ok_or_else(|| unreadable("a run without a record"))?;
            let run: Arc<Run> = super::rows::decode_run(run)?;
            let lost = Vec::new();
            let claimed = Claimed { job, token, expires_at, lost, run, inputs: Vec::new() };
            let mut needy = Needy::new(claimed);
            needy.take_events(self.commit.version_before() + 1, &self.commit.events);
            again.push(needy);
        }
        Ok(again)
    }
}

/// What became of a commit, its jobs still without some of their payloads.
#[derive(Debug)]
pub(super) enum Answer {
    Applied(Vec<Needy>),
    Refused(Refusal),
}

impl Answer {
    /// How many jobs it handed off.
    pub(super) fn handed_off(&self) -> usize {
        match self {
            Self::Applied(jobs) => jobs.len(),
            Self::Refused(_) => 0,
        }
    }
}

/// The leases that a call granted by hand-off.
#[derive(Debug)]
struct Granted {
    token: LeaseToken,
    expires_at: Timestamp,
}

/// What the script answered to a call.
#[derive(Debug)]
pub(super) struct Answers {
    /// Whether the server has lost what this store knows to be written.
    pub(super) is_truncated: bool,
    /// The last position.
    pub(super) position: u64,
    /// By the place of the commit in the batch.
    pub(super) answers: Vec<(usize, Answer)>,
}

/// Reads the answer to a call with these commits.
pub(super) fn read(value: Value, commits: &[Prepared]) -> Result<Answers, StoreError> {
    let mut reply = Reply::of(value)?;
    let _now: i64 = reply.number()?;
    let expires_at = Timestamp(reply.number()?);
    let granted = Granted { token: LeaseToken(reply.number()?), expires_at };
    let is_truncated = reply.number::<u8>()? == 1;
    let position = reply.number()?;
    if reply.left() != commits.len() {
        return Err(unreadable("an answer to another batch"));
    }
    let answers = reply
        .zip(commits)
        .map(|(value, prepared)| Ok((prepared.index, prepared.outcome(value, &granted)?)));
    Ok(Answers { is_truncated, position, answers: answers.collect::<Result<_, _>>()? })
}

/// The indexes that a run is in for as long as it is kept.
pub(super) fn indexes_of(run: &Run) -> Vec<String> {
    let mut names = vec!["runs".to_owned(), flow_index(&run.flow)];
    names.extend(run.tags.iter().map(|(name, value)| tag_index(name, value)));
    names
}

/// The index of the runs of a flow.
pub(super) fn flow_index(flow: &str) -> String {
    format!("flow:{flow}")
}

/// The index of the runs with a tag. The length keeps `a=b` and `c` apart from `a` and `b=c`.
pub(super) fn tag_index(name: &str, value: &str) -> String {
    format!("tag:{}:{name}={value}", name.len())
}

/// A run id as it is part of keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text(pub(super) RunId);

impl ToRedisArgs for Text {
    fn write_redis_args<W: ?Sized + redis::RedisWrite>(&self, out: &mut W) {
        out.write_arg(encode_run(self.0, &mut Uuid::encode_buffer()).as_bytes());
    }
}

fn due_text(due: Due) -> String {
    match due {
        Due::Now => "+0".to_owned(),
        Due::After(span) => format!("+{}", span.as_millis().min(super::rows::TIME_MS_MAX)),
        Due::At(at) => {
            let at = u128::try_from(at.0).unwrap_or(0).min(super::rows::TIME_MS_MAX);
            format!("@{at}")
        }
    }
}
