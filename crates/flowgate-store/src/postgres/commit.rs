//! Commits as one statement over arrays.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use flowgate_core::commit::{Claimed, Commit, Job};
use flowgate_core::gate::{Gate, GateStamp};
use flowgate_core::ids::{JobId, LeaseToken, RunId, StepIndex};
use flowgate_core::limits::CLAIM_BATCH_MAX;
use flowgate_core::payload::Payload;
use flowgate_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresStore;
use super::fault::Fault;
use super::pool::Param;
use super::rows::{
    JobRow, column, decode, decode_run, encode_due, encode_kind, encode_tags, storable, to_int4,
    to_integer, to_ms, to_number,
};
use crate::changes::{NetChange, NetChanges, net_changes};
use crate::open::check_shape;
use crate::shorthand::{encode_events, encode_record};
use crate::{Claimant, CommitOutcome, Refusal, StoreError};

/// Bytes of JSON that one statement carries, but for a single commit that has more.
const CALL_BYTES_MAX: usize = 16 << 20;
const DOING: &str = "committing";
/// Parameters of `commit_batch`.
pub(super) const COMMIT_PARAMS: usize = 43;
/// Steps in a lane.
const LANE_STEPS: u16 = 16;

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
    /// The gates that have moved.
    gates: Vec<Option<GateStamp>>,
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
        for round in rounds(encoded) {
            let answer = self.send(&round, claimant, slots).await?;
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
        let arrays = Arrays::of(round, claimant);
        let queues_new = self.queues_unknown(&arrays.changes_queue);
        let row = self.call_commit(&arrays, &queues_new, claimant, slots).await?;
        let answer = Answer::read(&row, &arrays).map_err(|fault| fault.into_error(DOING))?;
        self.queues_known(queues_new);
        if answer.verdicts.contains(&0) {
            let queued = arrays.changes_step.len() - arrays.removes.len();
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
        let lease_ms = claimant.map_or(0, |claimant| to_ms(claimant.lease));
        let slots = to_int4(slots);
        let (flows, generations): (Vec<&str>, Vec<i64>) = arrays.gates_named().into_iter().unzip();
        let params: [Param<'_>; COMMIT_PARAMS] = [
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
            (&arrays.ordinals, Type::INT4_ARRAY),
            (&arrays.flows, Type::TEXT_ARRAY),
            (&arrays.revisions, Type::TEXT_ARRAY),
            (&arrays.keys, Type::TEXT_ARRAY),
            (&arrays.tags, Type::TEXT_ARRAY),
            (&arrays.steps, Type::INT4_ARRAY),
            (&arrays.starts, Type::INT4_ARRAY),
            (&arrays.leases_of, Type::INT4_ARRAY),
            (&arrays.leases_step, Type::INT4_ARRAY),
            (&arrays.leases_token, Type::INT8_ARRAY),
            (&arrays.end_leases, Type::INT4_ARRAY),
            (&arrays.judged, Type::INT4_ARRAY),
            (&arrays.changes_of, Type::INT4_ARRAY),
            (&arrays.changes_step, Type::INT4_ARRAY),
            (&arrays.changes_from, Type::INT4_ARRAY),
            (&arrays.changes_lease, Type::INT4_ARRAY),
            (&arrays.changes_kind, Type::TEXT_ARRAY),
            (&arrays.changes_queue, Type::TEXT_ARRAY),
            (&arrays.changes_priority, Type::INT2_ARRAY),
            (&arrays.changes_attempt, Type::INT8_ARRAY),
            (&arrays.changes_inputs, Type::TEXT_ARRAY),
            (&arrays.changes_after_ms, Type::INT8_ARRAY),
            (&arrays.changes_at, Type::INT8_ARRAY),
            (&arrays.changes_wanted, Type::BOOL_ARRAY),
            (&arrays.adds, Type::INT4_ARRAY),
            (&arrays.moves, Type::INT4_ARRAY),
            (&arrays.postponed, Type::INT4_ARRAY),
            (&arrays.removes, Type::INT4_ARRAY),
            (&queues_new, Type::TEXT_ARRAY),
            (&instance, Type::TEXT),
            (&slots, Type::INT4),
            (&lease_ms, Type::INT8),
        ];
        self.pool.call_lasting(DOING, &self.sql.commit, &params).await
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
            job.claimed(Arc::new(decode_run(column(row, 1)?)?))
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
    let (record, events) = (encode_record(&commit.record), encode_events(&commit.events));
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

fn outcome(answer: &Answer, of: usize, commit: &Commit, handed_off: Vec<Claimed>) -> CommitOutcome {
    let refusal = match answer.verdicts[of] {
        0 | 1 => return CommitOutcome::Applied { handed_off },
        2 => Refusal::RunExists,
        3 => Refusal::RunVersion,
        5 => Refusal::GateMoved(answer.gates[of].expect("a gate that has moved is told")),
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
    fn read(row: &Row, arrays: &Arrays<'_>) -> Result<Self, Fault> {
        let places: Option<Vec<i32>> = column(row, 2)?;
        let tokens: Option<Vec<Option<i64>>> = column(row, 3)?;
        let mut granted: Vec<(i32, i64)> = places
            .unwrap_or_default()
            .into_iter()
            .zip(tokens.unwrap_or_default())
            .filter_map(|(place, token)| Some((place, token?)))
            .collect();
        granted.sort_unstable();
        // Places begin at 1 there.
        let index = |place: i32| usize::try_from(place - 1).unwrap_or(0);
        let grant = |(place, token)| {
            let at = index(place);
            Grant { of: index(arrays.changes_of[at]), step: arrays.changes_step[at], token }
        };
        let gates: Option<Vec<Option<&str>>> = column(row, 5)?;
        // It is empty where the gate was never set.
        let gate = |text: &str| -> Result<Gate, Fault> {
            if text.is_empty() { Ok(Gate::default()) } else { decode(text) }
        };
        let stamp = |text: Option<&str>| -> Result<Option<GateStamp>, Fault> {
            Ok(text.map(gate).transpose()?.map(|gate| gate.stamp()))
        };
        let gates: Result<_, Fault> = gates.unwrap_or_default().into_iter().map(stamp).collect();
        Ok(Self {
            verdicts: column(row, 0)?,
            lost_steps: column(row, 1)?,
            granted: granted.into_iter().map(grant).collect(),
            expires_at: Timestamp(column(row, 4)?),
            gates: gates?,
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
    ordinals: Vec<i32>,
    flows: Vec<Option<&'a str>>,
    revisions: Vec<Option<&'a str>>,
    keys: Vec<Option<String>>,
    tags: Vec<Option<String>>,
    steps: Vec<i32>,
    starts: Vec<i32>,
    leases_of: Vec<i32>,
    leases_step: Vec<i32>,
    leases_token: Vec<i64>,
    end_leases: Vec<Option<i32>>,
    judged: Vec<i32>,
    changes_of: Vec<i32>,
    changes_step: Vec<i32>,
    changes_from: Vec<i32>,
    changes_lease: Vec<Option<i32>>,
    changes_kind: Vec<Option<&'static str>>,
    changes_queue: Vec<Option<&'a str>>,
    changes_priority: Vec<Option<i16>>,
    changes_attempt: Vec<i64>,
    changes_inputs: Vec<Option<String>>,
    changes_after_ms: Vec<Option<i64>>,
    changes_at: Vec<Option<i64>>,
    changes_wanted: Vec<bool>,
    adds: Vec<i32>,
    moves: Vec<i32>,
    postponed: Vec<i32>,
    removes: Vec<i32>,
}

/// A commit of the statement, as its leases and changes see it.
#[derive(Clone, Copy)]
struct Owner<'c> {
    of: i32,
    is_start: bool,
    claimant: Option<&'c Claimant>,
}

/// A leased job that a change takes away, in the row of which that puts another one if it puts any.
#[derive(Clone, Copy)]
struct Taken {
    step: StepIndex,
    /// The place of the lease.
    lease: i32,
    /// The step of the change.
    by: StepIndex,
}

/// Steps of one lane may share the row of a job: `lane_of` in the schema.
fn lane_of(step: StepIndex) -> u16 {
    step.0 / LANE_STEPS
}

impl<'a> Arrays<'a> {
    /// The gates that starts name: each flow with each generation once.
    fn gates_named(&self) -> BTreeSet<(&'a str, i64)> {
        let named = self.flows.iter().zip(&self.gates);
        named.filter_map(|(flow, generation)| Some(((*flow)?, (*generation)?))).collect()
    }

    fn of(round: &'a [Encoded], claimant: Option<&Claimant>) -> Self {
        let mut arrays = Self::default();
        for (of, encoded) in (1..).zip(round) {
            arrays.push(of, encoded, claimant);
        }
        let run_ids = &arrays.run_ids;
        for places in [&mut arrays.steps, &mut arrays.starts] {
            places.sort_unstable_by_key(|of| run_ids[usize::try_from(of - 1).unwrap_or(0)]);
        }
        arrays
    }

    fn push(&mut self, of: i32, encoded: &'a Encoded, claimant: Option<&Claimant>) {
        let Encoded { commit, record, events, .. } = encoded;
        let run = &commit.record;
        let before = commit.version_before();
        let is_start = before == 0;
        // One that is refused leaves a gap behind, which nobody minds.
        let ordinal = self.ordinals.last().zip(self.counts.last());
        self.ordinals.push(ordinal.map_or(1, |(ordinal, count)| ordinal + count));
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
        if is_start { &mut self.starts } else { &mut self.steps }.push(of);
        self.push_jobs(Owner { of, is_start, claimant }, &net_changes(commit));
    }

    /// The leases and changes of a commit. The job that one of its leases was about and that it
    /// removes makes room for one that it puts, if their steps may share a row. Whatever takes a
    /// leased job away judges the lease; all others are judged by themselves.
    fn push_jobs(&mut self, owner: Owner<'_>, net: &NetChanges<'a>) {
        let first = to_int4(self.leases_of.len() + 1);
        for lease in &net.leases {
            self.leases_of.push(owner.of);
            self.leases_step.push(lease.job_id.step.0.into());
            self.leases_token.push(to_integer(lease.token.0));
        }
        let by_end = (net.ends_run && !owner.is_start && !net.leases.is_empty()).then_some(first);
        self.end_leases.push(by_end);
        let taken = taken_by_changes(net, first);
        let is_judged =
            |place: &i32| by_end != Some(*place) && taken.iter().all(|t| t.lease != *place);
        self.judged.extend((first..).take(net.leases.len()).filter(is_judged));
        for (step, change) in &net.steps {
            self.push_change(owner, *step, change, &taken);
        }
    }

    /// A change, unless it is the removal of a job whose row another one takes.
    fn push_change(
        &mut self,
        owner: Owner<'_>,
        step: StepIndex,
        change: &NetChange<'a>,
        taken: &[Taken],
    ) {
        let place = to_int4(self.changes_of.len() + 1);
        let (job, attempt, due) = match change {
            NetChange::Put { job, attempt, due } => {
                if owner.is_start { &mut self.adds } else { &mut self.moves }.push(place);
                (Some(*job), *attempt, Some(*due))
            }
            NetChange::Postpone { attempt, due } => {
                self.postponed.push(place);
                (None, *attempt, Some(*due))
            }
            NetChange::Remove if taken.iter().any(|t| t.step == step && t.by != step) => return,
            NetChange::Remove => {
                self.removes.push(place);
                (None, 0, None)
            }
        };
        let (after_ms, at) = due.map_or((None, None), encode_due);
        let inputs =
            |job: &Job| serde_json::to_string(&job.inputs).expect("numbers have a JSON form");
        let taken = taken.iter().find(|taken| taken.by == step);
        let is_wanted = |job: &Job| owner.claimant.is_some_and(|c| c.queues.contains(&job.queue));
        self.changes_of.push(owner.of);
        self.changes_step.push(step.0.into());
        self.changes_from.push(taken.map_or(step, |taken| taken.step).0.into());
        self.changes_lease.push(taken.map(|taken| taken.lease));
        self.changes_kind.push(job.map(|job| encode_kind(job.kind)));
        self.changes_queue.push(job.map(|job| &*job.queue));
        self.changes_priority.push(job.map(|job| job.priority.into()));
        self.changes_attempt.push(attempt.into());
        self.changes_inputs.push(job.map(inputs));
        self.changes_after_ms.push(after_ms);
        self.changes_at.push(at);
        self.changes_wanted.push(job.is_some_and(is_wanted));
    }
}

/// The leased jobs that the changes of a commit take away, whose leases begin at a place.
fn taken_by_changes(net: &NetChanges<'_>, first: i32) -> Vec<Taken> {
    let leased = (first..).zip(&net.leases).map(|(lease, of)| (of.job_id.step, lease));
    let mut taken: Vec<Taken> = leased
        .filter(|(step, _)| net.steps.contains(&(*step, NetChange::Remove)))
        .map(|(step, lease)| Taken { step, lease, by: step })
        .collect();
    taken.sort_unstable_by_key(|taken| (taken.step, taken.lease));
    taken.dedup_by_key(|taken| taken.step);
    for (step, change) in &net.steps {
        let NetChange::Put { .. } = change else { continue };
        let fits = |t: &&mut Taken| t.by == t.step && lane_of(t.step) == lane_of(*step);
        if let Some(taken) = taken.iter_mut().find(fits) {
            taken.by = *step;
        }
    }
    taken
}
