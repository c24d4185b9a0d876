//! Commits as one statement over arrays.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use flowgate_core::commit::{Claimed, Commit, Job};
use flowgate_core::gate::Gate;
use flowgate_core::ids::{JobId, LeaseToken, RunId, StepIndex};
use flowgate_core::limits::CLAIM_BATCH_MAX;
use flowgate_core::payload::Payload;
use flowgate_core::pool::split;
use flowgate_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresStore;
use super::fault::Fault;
use super::pool::Param;
use super::rows::{
    JobRow, column, decode, encode_due, encode_kind, encode_queues, encode_tags, storable, to_int4,
    to_integer, to_ms, to_number,
};
use crate::changes::{NetChange, net_changes};
use crate::open::check_shape;
use crate::{Claimant, CommitOutcome, Refusal, StoreError};

/// Bytes of JSON that one statement carries, but for a single commit that has more.
const CALL_BYTES_MAX: usize = 16 << 20;
const DOING: &str = "committing";
/// The verdict on a start at a gate that has moved. Nothing of its statement is applied.
const GATE_MOVED: i16 = 5;

/// A commit with its JSON, and its place in the batch of the caller.
struct Encoded {
    place: usize,
    commit: Commit,
    record: String,
    events: String,
}

/// What became of the commits of one statement.
struct Answer {
    verdicts: Vec<i16>,
    lost_steps: Vec<Option<i32>>,
    granted: Vec<Grant>,
    expires_at: Timestamp,
    /// The gates that have moved, as JSON; empty for one that was never set.
    gates: Vec<Option<String>>,
}

/// A job that was leased to the claimant.
struct Grant {
    of: usize,
    step: i32,
    token: i64,
}

impl PostgresStore {
    pub(super) async fn commit_all(
        &self,
        commits: Vec<Commit>,
        claimant: Option<&Claimant>,
    ) -> Result<Vec<CommitOutcome>, StoreError> {
        let mut outcomes: Vec<Option<CommitOutcome>> = commits.iter().map(|_| None).collect();
        let mut encoded = Vec::with_capacity(commits.len());
        for (place, commit) in commits.into_iter().enumerate() {
            match check_shape(&commit) {
                Ok(()) => encoded.push(encode(place, commit)),
                Err(refusal) => outcomes[place] = Some(CommitOutcome::Refused(refusal)),
            }
        }
        let mut slots = claimant.map_or(0, |claimant| claimant.slots.min(CLAIM_BATCH_MAX));
        let mut rounds = VecDeque::from(rounds(encoded));
        while let Some(round) = rounds.pop_front() {
            let answer = self.send(&round, claimant, slots).await?;
            if answer.verdicts.contains(&GATE_MOVED) {
                let (moved, rest) = refuse_moved(round, &answer)?;
                for (place, outcome) in moved {
                    outcomes[place] = Some(outcome);
                }
                if !rest.is_empty() {
                    rounds.push_front(rest);
                }
                continue;
            }
            for (place, outcome) in self.outcomes(round, answer, claimant).await? {
                if let CommitOutcome::Applied { handed_off } = &outcome {
                    slots = slots.saturating_sub(handed_off.len());
                }
                outcomes[place] = Some(outcome);
            }
        }
        Ok(outcomes.into_iter().map(|o| o.expect("each commit has an outcome")).collect())
    }

    async fn send(
        &self,
        round: &[Encoded],
        claimant: Option<&Claimant>,
        slots: usize,
    ) -> Result<Answer, StoreError> {
        let mut arrays = Arrays::default();
        for (of, encoded) in (1..).zip(round) {
            arrays.push(of, encoded);
        }
        let queues_new = self.queues_unknown(&arrays.changes_queue);
        let row = self.call_commit(&arrays, &queues_new, claimant, slots).await?;
        let answer = Answer::read(&row).map_err(|fault| fault.into_error(DOING))?;
        // At a gate that has moved nothing is written, not even the names of queues.
        if !answer.verdicts.contains(&GATE_MOVED) {
            self.queues_known(queues_new);
        }
        if answer.verdicts.contains(&0) {
            let queued = arrays.changes_action.iter().filter(|action| **action != "remove").count();
            self.hints.committed(answer.granted.len() < queued);
        }
        Ok(answer)
    }

    async fn call_commit(
        &self,
        arrays: &Arrays<'_>,
        queues_new: &[String],
        claimant: Option<&Claimant>,
        slots: usize,
    ) -> Result<Row, StoreError> {
        let instance = claimant.map(|claimant| &*claimant.instance.0);
        let (queues, mut queues_not) = claimant.map_or((None, None), |c| encode_queues(&c.queues));
        if let Some(claimant) = claimant {
            // The function compares whole names, and those of the batch are all that it looks at.
            let others = arrays.changes_queue.iter().flatten().copied();
            let others = others.filter(|queue| split(queue).1.is_some());
            for queue in others.filter(|queue| !claimant.queues.contains(queue)) {
                queues_not.get_or_insert_default().push(queue.into());
            }
        }
        let lease_ms = claimant.map_or(0, |claimant| to_ms(claimant.lease));
        let slots = to_int4(slots);
        let (flows, generations): (Vec<&str>, Vec<i64>) = arrays.gates_named().into_iter().unzip();
        let params: [Param<'_>; 34] = [
            (&arrays.gates, Type::INT8_ARRAY),
            (&flows, Type::TEXT_ARRAY),
            (&generations, Type::INT8_ARRAY),
            (&arrays.run_ids, Type::UUID_ARRAY),
            (&arrays.commit_ids, Type::UUID_ARRAY),
            (&arrays.befores, Type::INT8_ARRAY),
            (&arrays.counts, Type::INT4_ARRAY),
            (&arrays.statuses, Type::TEXT_ARRAY),
            (&arrays.are_ends, Type::BOOL_ARRAY),
            (&arrays.records, Type::TEXT_ARRAY),
            (&arrays.events, Type::TEXT_ARRAY),
            (&arrays.flows, Type::TEXT_ARRAY),
            (&arrays.revisions, Type::TEXT_ARRAY),
            (&arrays.keys, Type::TEXT_ARRAY),
            (&arrays.tags, Type::TEXT_ARRAY),
            (&arrays.leases_of, Type::INT4_ARRAY),
            (&arrays.leases_step, Type::INT4_ARRAY),
            (&arrays.leases_token, Type::INT8_ARRAY),
            (&arrays.changes_of, Type::INT4_ARRAY),
            (&arrays.changes_step, Type::INT4_ARRAY),
            (&arrays.changes_action, Type::TEXT_ARRAY),
            (&arrays.changes_kind, Type::TEXT_ARRAY),
            (&arrays.changes_queue, Type::TEXT_ARRAY),
            (&arrays.changes_priority, Type::INT2_ARRAY),
            (&arrays.changes_attempt, Type::INT8_ARRAY),
            (&arrays.changes_inputs, Type::TEXT_ARRAY),
            (&arrays.changes_after_ms, Type::INT8_ARRAY),
            (&arrays.changes_at, Type::INT8_ARRAY),
            (&queues_new, Type::TEXT_ARRAY),
            (&instance, Type::TEXT),
            (&queues, Type::TEXT_ARRAY),
            (&queues_not, Type::TEXT_ARRAY),
            (&slots, Type::INT4),
            (&lease_ms, Type::INT8),
        ];
        self.pool.call_one(DOING, &self.sql.commit, &params).await
    }

    /// The outcomes of a round, with the payloads of what was handed off.
    async fn outcomes(
        &self,
        round: Vec<Encoded>,
        answer: Answer,
        claimant: Option<&Claimant>,
    ) -> Result<Outcomes, StoreError> {
        let again = self.leased_again(&round, &answer, claimant).await?;
        let mut granted: HashMap<usize, Vec<Claimed>> = HashMap::new();
        for grant in &answer.granted {
            let claimed = grant.claimed(&round[grant.of].commit, answer.expires_at);
            granted.entry(grant.of).or_default().push(claimed);
        }
        let mut older: Vec<Claimed> = again;
        let mut outcomes: Outcomes = Vec::with_capacity(round.len());
        for (of, encoded) in round.iter().enumerate() {
            let mut handed_off = Vec::new();
            for mut claimed in granted.remove(&of).unwrap_or_default() {
                if fill(&mut claimed, &encoded.commit) {
                    handed_off.push(claimed);
                } else {
                    older.push(claimed);
                }
            }
            outcomes.push((encoded.place, outcome(&answer, of, &encoded.commit, handed_off)));
        }
        if older.is_empty() {
            return Ok(outcomes);
        }
        let by_run: HashMap<RunId, usize> =
            round.iter().enumerate().map(|(of, e)| (e.commit.run_id, of)).collect();
        for claimed in self.with_inputs(DOING, older).await? {
            let of = by_run[&claimed.job.job_id.run_id];
            if let CommitOutcome::Applied { handed_off } = &mut outcomes[of].1 {
                handed_off.push(claimed);
            }
        }
        let order: HashMap<(usize, i32), usize> =
            answer.granted.iter().enumerate().map(|(at, g)| ((g.of, g.step), at)).collect();
        for (of, (_, outcome)) in outcomes.iter_mut().enumerate() {
            if let CommitOutcome::Applied { handed_off } = outcome {
                handed_off.sort_by_key(|c| order.get(&(of, i32::from(c.job.job_id.step.0))));
            }
        }
        Ok(outcomes)
    }

    /// What earlier calls with the same commits handed off, as far as it is still so leased.
    async fn leased_again(
        &self,
        round: &[Encoded],
        answer: &Answer,
        claimant: Option<&Claimant>,
    ) -> Result<Vec<Claimed>, StoreError> {
        let Some(claimant) = claimant else { return Ok(Vec::new()) };
        let again = || answer.verdicts.iter().zip(round).filter(|(verdict, _)| **verdict == 1);
        let commit_ids: Vec<Uuid> = again().map(|(_, e)| e.commit.commit_id.0).collect();
        if commit_ids.is_empty() {
            return Ok(Vec::new());
        }
        let run_ids: Vec<Uuid> = again().map(|(_, e)| e.commit.run_id.0).collect();
        let instance = &*claimant.instance.0;
        let rows = self
            .pool
            .call(
                DOING,
                &self.sql.leased_again,
                &[
                    (&run_ids, Type::UUID_ARRAY),
                    (&commit_ids, Type::UUID_ARRAY),
                    (&instance, Type::TEXT),
                ],
            )
            .await?;
        let read = |row: &Row| -> Result<Option<Claimed>, Fault> {
            let job: JobRow = decode(column(row, 0)?)?;
            job.claimed(Arc::new(decode(column(row, 1)?)?))
        };
        let claimed: Result<Vec<_>, Fault> = rows.iter().map(read).collect();
        let claimed = claimed.map_err(|fault| fault.into_error(DOING))?;
        Ok(claimed.into_iter().flatten().collect())
    }

    fn queues_unknown(&self, queues: &[Option<&str>]) -> Vec<String> {
        let known = self.queues_known.lock();
        let unknown: HashSet<&str> =
            queues.iter().copied().flatten().filter(|queue| !known.contains(*queue)).collect();
        unknown.into_iter().map(str::to_owned).collect()
    }

    fn queues_known(&self, queues: Vec<String>) {
        if !queues.is_empty() {
            self.queues_known.lock().extend(queues);
        }
    }
}

fn encode(place: usize, commit: Commit) -> Encoded {
    let record = serde_json::to_string(&*commit.record).expect("a record has a JSON form");
    let events = serde_json::to_string(&commit.events).expect("events have a JSON form");
    Encoded { place, commit, record, events }
}

/// Statements in which a run occurs once, in the order in which its commits came.
fn rounds(encoded: Vec<Encoded>) -> Vec<Vec<Encoded>> {
    let mut rounds: Vec<(Vec<Encoded>, usize)> = Vec::new();
    let mut next: HashMap<RunId, usize> = HashMap::with_capacity(encoded.len());
    for commit in encoded {
        let bytes = commit.record.len() + commit.events.len();
        let first = next.get(&commit.commit.run_id).copied().unwrap_or(0);
        let fits = |(round, size): &(Vec<Encoded>, usize)| {
            round.is_empty() || size + bytes <= CALL_BYTES_MAX
        };
        let at = (first..rounds.len()).find(|at| fits(&rounds[*at])).unwrap_or(rounds.len());
        if at == rounds.len() {
            rounds.push((Vec::new(), 0));
        }
        next.insert(commit.commit.run_id, at + 1);
        rounds[at].1 += bytes;
        rounds[at].0.push(commit);
    }
    rounds.into_iter().map(|(round, _)| round).collect()
}

/// Outcomes by the places of their commits in the batch of the caller.
type Outcomes = Vec<(usize, CommitOutcome)>;

/// The outcomes of the starts whose gates have moved, and what is to be sent again.
fn refuse_moved(
    round: Vec<Encoded>,
    answer: &Answer,
) -> Result<(Outcomes, Vec<Encoded>), StoreError> {
    let (mut moved, mut rest) = (Vec::new(), Vec::new());
    for (of, encoded) in round.into_iter().enumerate() {
        if answer.verdicts[of] != GATE_MOVED {
            rest.push(encoded);
            continue;
        }
        let gate = answer.gates[of].as_deref().filter(|gate| !gate.is_empty());
        let gate = gate.map_or_else(|| Ok(Gate::default()), decode);
        let gate = gate.map_err(|fault: Fault| fault.into_error(DOING))?.stamp();
        moved.push((encoded.place, CommitOutcome::Refused(Refusal::GateMoved(gate))));
    }
    Ok((moved, rest))
}

fn outcome(answer: &Answer, of: usize, commit: &Commit, handed_off: Vec<Claimed>) -> CommitOutcome {
    let refusal = match answer.verdicts[of] {
        0 | 1 => return CommitOutcome::Applied { handed_off },
        2 => Refusal::RunExists,
        3 => Refusal::RunVersion,
        _ => {
            let step = answer.lost_steps[of].and_then(|step| u16::try_from(step).ok());
            let step = StepIndex(step.expect("a refusal for a lease names its step"));
            Refusal::LeaseLost(JobId { run_id: commit.run_id, step })
        }
    };
    CommitOutcome::Refused(refusal)
}

/// Fills in the payloads that the commit itself holds; false if the job needs an older one.
fn fill(claimed: &mut Claimed, commit: &Commit) -> bool {
    let before = commit.version_before();
    let own = |seq: &u64| -> Option<Payload> {
        let at = usize::try_from(seq.checked_sub(before + 1)?).ok()?;
        commit.events.get(at).map(flowgate_core::event::Event::payload)
    };
    let inputs: Option<Vec<Payload>> = claimed.job.inputs.iter().map(own).collect();
    let is_filled = inputs.is_some();
    claimed.inputs = inputs.unwrap_or_default();
    is_filled
}

impl Grant {
    fn claimed(&self, commit: &Commit, expires_at: Timestamp) -> Claimed {
        let steps = net_changes(commit).steps;
        let put = steps.into_iter().find_map(|(step, change)| match change {
            NetChange::Put { job, attempt, .. } if i32::from(step.0) == self.step => {
                Some(Job { attempt: attempt + 1, ..job.clone() })
            }
            NetChange::Put { .. } | NetChange::Postpone { .. } | NetChange::Remove => None,
        });
        Claimed {
            job: put.expect("what was granted was put"),
            token: LeaseToken(to_number(self.token)),
            expires_at,
            lost: Vec::new(),
            run: Arc::clone(&commit.record),
            inputs: Vec::new(),
        }
    }
}

impl Answer {
    fn read(row: &Row) -> Result<Self, Fault> {
        let granted_of: Option<Vec<i32>> = column(row, 2)?;
        let granted_step: Option<Vec<i32>> = column(row, 3)?;
        let granted_token: Option<Vec<i64>> = column(row, 4)?;
        let steps = granted_step.unwrap_or_default().into_iter();
        let leases = steps.zip(granted_token.unwrap_or_default());
        let granted = granted_of.unwrap_or_default().into_iter().zip(leases);
        let granted = granted.map(|(of, (step, token))| {
            // Places begin at 1 there.
            Grant { of: usize::try_from(of - 1).unwrap_or(0), step, token }
        });
        let gates: Option<Vec<Option<String>>> = column(row, 6)?;
        Ok(Self {
            verdicts: column(row, 0)?,
            lost_steps: column(row, 1)?,
            granted: granted.collect(),
            expires_at: Timestamp(column(row, 5)?),
            gates: gates.unwrap_or_default(),
        })
    }
}

/// The parameters of the statement.
#[derive(Default)]
struct Arrays<'a> {
    gates: Vec<Option<i64>>,
    run_ids: Vec<Uuid>,
    commit_ids: Vec<Uuid>,
    befores: Vec<i64>,
    counts: Vec<i32>,
    statuses: Vec<&'static str>,
    are_ends: Vec<bool>,
    records: Vec<&'a str>,
    events: Vec<&'a str>,
    flows: Vec<Option<&'a str>>,
    revisions: Vec<Option<&'a str>>,
    keys: Vec<Option<String>>,
    tags: Vec<Option<String>>,
    leases_of: Vec<i32>,
    leases_step: Vec<i32>,
    leases_token: Vec<i64>,
    changes_of: Vec<i32>,
    changes_step: Vec<i32>,
    changes_action: Vec<&'static str>,
    changes_kind: Vec<Option<&'static str>>,
    changes_queue: Vec<Option<&'a str>>,
    changes_priority: Vec<Option<i16>>,
    changes_attempt: Vec<i64>,
    changes_inputs: Vec<Option<String>>,
    changes_after_ms: Vec<Option<i64>>,
    changes_at: Vec<Option<i64>>,
}

impl<'a> Arrays<'a> {
    /// The gates that starts name: each flow with each generation once.
    fn gates_named(&self) -> BTreeSet<(&'a str, i64)> {
        let named = self.flows.iter().zip(&self.gates);
        named.filter_map(|(flow, generation)| Some(((*flow)?, (*generation)?))).collect()
    }

    fn push(&mut self, of: i32, encoded: &'a Encoded) {
        let Encoded { commit, record, events, .. } = encoded;
        let run = &commit.record;
        let before = commit.version_before();
        let is_start = before == 0;
        self.gates.push(commit.gate().map(to_integer));
        self.run_ids.push(commit.run_id.0);
        self.commit_ids.push(commit.commit_id.0);
        self.befores.push(to_integer(before));
        self.counts.push(to_int4(commit.events.len()));
        self.statuses.push(run.status.as_str());
        self.are_ends.push(run.status.is_terminal());
        self.records.push(record);
        self.events.push(events);
        self.flows.push(is_start.then_some(&*run.flow));
        self.revisions.push(is_start.then_some(&*run.revision.0));
        let key = run.key.as_deref().filter(|_| is_start);
        self.keys.push(key.map(|key| storable(key).into_owned()));
        self.tags.push(if is_start { encode_tags(run) } else { None });
        let net = net_changes(commit);
        for lease in &net.leases {
            self.leases_of.push(of);
            self.leases_step.push(lease.job_id.step.0.into());
            self.leases_token.push(to_integer(lease.token.0));
        }
        for (step, change) in net.steps {
            self.push_change(of, step, &change);
        }
    }

    fn push_change(&mut self, of: i32, step: StepIndex, change: &NetChange<'a>) {
        let (action, job, attempt, due) = match change {
            NetChange::Put { job, attempt, due } => ("put", Some(*job), *attempt, Some(*due)),
            NetChange::Postpone { attempt, due } => ("postpone", None, *attempt, Some(*due)),
            NetChange::Remove => ("remove", None, 0, None),
        };
        let (after_ms, at) = due.map_or((None, None), encode_due);
        let inputs =
            |job: &Job| serde_json::to_string(&job.inputs).expect("numbers have a JSON form");
        self.changes_of.push(of);
        self.changes_step.push(step.0.into());
        self.changes_action.push(action);
        self.changes_kind.push(job.map(|job| encode_kind(job.kind)));
        self.changes_queue.push(job.map(|job| &*job.queue));
        self.changes_priority.push(job.map(|job| job.priority.into()));
        self.changes_attempt.push(attempt.into());
        self.changes_inputs.push(job.map(inputs));
        self.changes_after_ms.push(after_ms);
        self.changes_at.push(at);
    }
}
