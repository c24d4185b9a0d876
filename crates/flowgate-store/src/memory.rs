//! A store in memory, for tests and for flows that need not outlive their process.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::commit::{Claimed, Commit};
use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::ids::{CommitId, InstanceId, Position, Revision, RunId};
use flowgate_core::limits::{COMMIT_BATCH_MAX, LOG_LINES_MAX, PAGE_MAX};
use flowgate_core::payload::Payload;
use flowgate_core::time::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;

use self::control::Agreed;
use crate::clock::Clock;
use crate::instances::Instances;
use crate::open::hash::IdMap;
use crate::open::{OpenJob, OpenRun, OpenRuns, Taker, Verdict, Waiting, Written, check_shape};
use crate::told::Told;
use crate::wait::{Ask, wait_due};
use crate::{
    Beat, Claimant, CommitOutcome, Imported, InstanceRow, LeaseRef, LogLine, NewLogLine,
    NewRevision, Queues, Renewal, Retention, RunCopy, RunDetail, RunQuery, RunRow, Store,
    StoreCopy, StoreError, StoredRevision, Swept,
};

mod control;

/// A store in memory. What it holds ends with it.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Clock,
    state: Mutex<State>,
    agreed: Mutex<Agreed>,
    instances: Mutex<Instances>,
    told: Told,
    /// The last position; it changes with the state, under its lock.
    feed_end: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    open: OpenRuns,
    runs: Runs,
    /// The log in commit order, by the position of each row's first event.
    feed: BTreeMap<u64, Arc<LogRow>>,
    listing: BTreeSet<(Timestamp, RunId)>,
    ended: BTreeSet<Ended>,
    position_last: u64,
    /// By flow, in the order of their registration.
    revisions: BTreeMap<String, Vec<StoredRevision>>,
}

/// Every run that is kept, open or not.
#[derive(Debug, Default)]
struct Runs(IdMap<RunId, KeptRun>);

#[derive(Debug)]
struct KeptRun {
    row: RunRow,
    log: Vec<Arc<LogRow>>,
    lines: Vec<LogLine>,
    lines_counted: u64,
}

/// What one commit wrote.
#[derive(Debug)]
struct LogRow {
    position: u64,
    run_id: RunId,
    /// The number of its first event.
    seq: u64,
    commit_id: CommitId,
    at: Timestamp,
    events: Vec<Event>,
}

/// The order in which a sweep comes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ended {
    events_removed: bool,
    ended_at: Timestamp,
    run_id: RunId,
}

impl MemoryStore {
    /// An empty store on the wall clock.
    pub fn new() -> Self {
        Self::with_clock(Clock::wall())
    }

    /// An empty store on `clock`.
    pub fn with_clock(clock: Clock) -> Self {
        Self {
            clock,
            state: Mutex::default(),
            agreed: Mutex::default(),
            instances: Mutex::default(),
            told: Told::default(),
            feed_end: watch::Sender::default(),
        }
    }

    /// Its clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn kind(&self) -> &'static str {
        "memory"
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.clock.now())
    }

    async fn commit(
        &self,
        commits: Vec<Commit>,
        claimant: Option<&Claimant>,
    ) -> Result<Vec<CommitOutcome>, StoreError> {
        assert!(commits.len() <= COMMIT_BATCH_MAX, "a batch is within its limit");
        let mut taker = claimant.map(Taker::new);
        let shapes: Vec<_> = commits.iter().map(check_shape).collect();
        let mut state = self.state.lock();
        let now = self.clock.now();
        let outcomes = commits.into_iter().zip(shapes).map(|(commit, shape)| match shape {
            Ok(()) => state.commit(commit, now, taker.as_mut()),
            Err(refusal) => CommitOutcome::Refused(refusal),
        });
        let outcomes = outcomes.collect();
        self.feed_end.send_replace(state.position_last);
        Ok(outcomes)
    }

    async fn claim(&self, claimant: &Claimant) -> Result<Vec<Claimed>, StoreError> {
        let mut state = self.state.lock();
        let claimed = state.open.claim(claimant, self.clock.now());
        Ok(claimed.into_iter().map(|claimed| state.runs.with_inputs(claimed)).collect())
    }

    async fn wait_due(&self, queues: &Queues, wait_max: Duration) -> Result<(), StoreError> {
        wait_due(self, &self.clock, queues, wait_max).await
    }

    async fn renew(
        &self,
        leases: &[LeaseRef],
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        let mut state = self.state.lock();
        let now = self.clock.now();
        Ok(leases.iter().map(|held| state.open.renew(*held, lease, now)).collect())
    }

    async fn read_run(&self, run_id: RunId) -> Result<Option<RunDetail>, StoreError> {
        let state = self.state.lock();
        if let Some(open) = state.open.get(run_id) {
            return Ok(Some(open.detail()));
        }
        let kept = state.runs.0.get(&run_id);
        Ok(kept.map(|kept| RunDetail { row: kept.row.clone(), jobs: Vec::new() }))
    }

    async fn read_events(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let state = self.state.lock();
        let Some(kept) = state.runs.0.get(&run_id) else { return Ok(Vec::new()) };
        let first = kept.row_of(after.saturating_add(1));
        let events = kept.log[first..].iter().flat_map(|row| row.stored());
        Ok(events.skip_while(|event| event.seq <= after).take(limit).collect())
    }

    fn feeds(&self) -> u16 {
        1
    }

    async fn read_feed(
        &self,
        _feed: u16,
        after: Position,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let after = after.minor;
        let state = self.state.lock();
        // The row that holds the next position may begin before it.
        let first =
            state.feed.range(..=after.saturating_add(1)).next_back().map_or(0, |(first, _)| *first);
        let events = state.feed.range(first..).flat_map(|(_, row)| row.stored());
        Ok(events.skip_while(|event| event.position.minor <= after).take(limit).collect())
    }

    async fn feed_end(&self, _feed: u16) -> Result<Position, StoreError> {
        Ok(Position::counted(self.state.lock().position_last))
    }

    async fn wait_feed(
        &self,
        _feed: u16,
        after: Position,
        wait_max: Duration,
    ) -> Result<(), StoreError> {
        let mut grown = self.feed_end.subscribe();
        let grows = grown.wait_for(|end| *end > after.minor);
        // At the latest time it does not matter whether it has grown.
        drop(tokio::time::timeout(wait_max, grows).await);
        Ok(())
    }

    async fn list_runs(&self, query: &RunQuery) -> Result<Vec<RunRow>, StoreError> {
        let state = self.state.lock();
        Ok(state.listed(query).take(query.limit.min(PAGE_MAX)).cloned().collect())
    }

    async fn count_runs(&self, query: &RunQuery) -> Result<u64, StoreError> {
        let query = RunQuery { after: None, ..query.clone() };
        let count = self.state.lock().listed(&query).count();
        Ok(u64::try_from(count).expect("runs fit in memory"))
    }

    async fn append_logs(&self, lines: Vec<NewLogLine>) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let at = self.clock.now();
        for line in lines {
            let kept = state.runs.0.get_mut(&line.run_id).filter(|kept| !kept.row.events_removed);
            let Some(kept) = kept else { continue };
            kept.lines_counted += 1;
            if kept.lines_counted <= LOG_LINES_MAX {
                kept.lines.push(LogLine { number: kept.lines_counted, at, line });
            }
        }
        Ok(())
    }

    async fn read_logs(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LogLine>, StoreError> {
        let state = self.state.lock();
        let Some(kept) = state.runs.0.get(&run_id) else { return Ok(Vec::new()) };
        let first = kept.lines.partition_point(|line| line.number <= after);
        Ok(kept.lines[first..].iter().take(limit).cloned().collect())
    }

    async fn register_flow(&self, revision: NewRevision) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let of_flow = state.revisions.entry(revision.file.flow.clone()).or_default();
        for stored in of_flow.iter_mut() {
            stored.active = false;
        }
        let known = of_flow.iter_mut().find(|s| s.revision.revision == revision.revision);
        if let Some(known) = known {
            known.active = true;
            known.revision.folder = revision.folder;
        } else {
            let registered_at = self.clock.now();
            of_flow.push(StoredRevision { revision, registered_at, active: true });
        }
        Ok(())
    }

    async fn list_revisions(&self, flow: Option<&str>) -> Result<Vec<StoredRevision>, StoreError> {
        let state = self.state.lock();
        let flows = state.revisions.iter().filter(|(name, _)| flow.is_none_or(|f| f == *name));
        Ok(flows.flat_map(|(_, of_flow)| of_flow.iter().rev()).cloned().collect())
    }

    async fn read_revision(
        &self,
        flow: &str,
        revision: Option<&Revision>,
    ) -> Result<Option<StoredRevision>, StoreError> {
        let state = self.state.lock();
        let mut of_flow = state.revisions.get(flow).into_iter().flatten();
        let is_it = |stored: &&StoredRevision| match revision {
            Some(revision) => stored.revision.revision == *revision,
            None => stored.active,
        };
        Ok(of_flow.find(is_it).cloned())
    }

    async fn sweep(&self, retention: &Retention) -> Result<Swept, StoreError> {
        let now = self.clock.now();
        let (swept, left) = self.state.lock().sweep(retention, now);
        let records = self.agreed.lock().sweep(left, now);
        let more = left == records;
        Ok(Swept {
            records: u64::try_from(records).expect("a batch fits in memory"),
            more,
            ..swept
        })
    }

    async fn beat(&self, beat: &Beat) -> Result<(), StoreError> {
        self.instances.lock().beat(beat, self.clock.now());
        Ok(())
    }

    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError> {
        self.instances.lock().leave(instance);
        Ok(())
    }

    async fn list_instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        Ok(self.instances.lock().list())
    }

    async fn import(&self, copy: StoreCopy) -> Result<Imported, StoreError> {
        let mut state = self.state.lock();
        let imported = state.import(copy, self.clock.now());
        self.feed_end.send_replace(state.position_last);
        Ok(imported)
    }
}

impl Ask for MemoryStore {
    async fn ask(&self, queues: &Queues) -> Result<Waiting, StoreError> {
        Ok(self.state.lock().open.wait(queues, self.clock.now()))
    }
}

impl State {
    /// The runs that match `query`, latest first, without its limit.
    fn listed<'a>(&'a self, query: &'a RunQuery) -> impl Iterator<Item = &'a RunRow> {
        let until = (query.until.unwrap_or(Timestamp(i64::MAX)), RunId(uuid::Uuid::nil()));
        let after = query.after.map_or(until, |cursor| (cursor.started_at, cursor.run_id));
        let rows = self.listing.range(..until.min(after)).rev();
        let has_tag = |row: &RunRow, name: &str, value: &str| {
            row.run.tags.get(name).is_some_and(|tag| **tag == *value)
        };
        rows.take_while(|(started_at, _)| query.since.is_none_or(|since| *started_at >= since))
            .map(|(_, run_id)| &self.runs.0[run_id].row)
            .filter(|row| query.flow.as_ref().is_none_or(|flow| *flow == row.run.flow))
            .filter(|row| query.statuses.is_empty() || query.statuses.contains(&row.run.status))
            .filter(move |row| query.tags.iter().all(|(name, value)| has_tag(row, name, value)))
    }

    fn import(&mut self, copy: StoreCopy, now: Timestamp) -> Imported {
        let mut imported = Imported::default();
        for revision in copy.revisions {
            let of_flow = self.revisions.entry(revision.revision.file.flow.clone()).or_default();
            if of_flow.iter().any(|known| known.revision.revision == revision.revision.revision) {
                continue;
            }
            let active = revision.active && !of_flow.iter().any(|known| known.active);
            let at = of_flow.partition_point(|known| known.registered_at <= revision.registered_at);
            of_flow.insert(at, StoredRevision { active, ..revision });
            imported.revisions += 1;
        }
        for run in copy.runs {
            if !self.runs.0.contains_key(&run.row.run.run_id) {
                self.import_run(run, now);
                imported.runs += 1;
            }
        }
        imported
    }

    fn import_run(&mut self, copy: RunCopy, now: Timestamp) {
        self.open.raise_tokens(copy.token_max());
        let RunCopy { row, jobs, events, log_lines } = copy;
        let run_id = row.run.run_id;
        self.listing.insert((row.started_at, run_id));
        if let Some(ended_at) = row.ended_at {
            self.ended.insert(Ended { events_removed: row.events_removed, ended_at, run_id });
        } else {
            let open = OpenRun::new(Arc::clone(&row.run), row.started_at, row.updated_at);
            let jobs = jobs.into_iter().map(|job| {
                let mut open = OpenJob::new(job.job, job.due_at, 0);
                open.lost = job.lost;
                open.queue(now);
                open
            });
            self.open.load(open, jobs.collect(), now);
        }
        let mut log = Vec::new();
        for stored in events {
            self.position_last += 1;
            let row = Arc::new(LogRow {
                position: self.position_last,
                run_id,
                seq: stored.seq,
                // No commit has this id, so none is taken for one that was applied.
                commit_id: CommitId(uuid::Uuid::nil()),
                at: stored.at,
                events: vec![stored.event],
            });
            self.feed.insert(row.position, Arc::clone(&row));
            log.push(row);
        }
        let lines_counted = log_lines.last().map_or(0, |line| line.number);
        self.runs.0.insert(run_id, KeptRun { row, log, lines: log_lines, lines_counted });
    }

    fn commit(
        &mut self,
        commit: Commit,
        now: Timestamp,
        taker: Option<&mut Taker<'_>>,
    ) -> CommitOutcome {
        let Ok(verdict) = self.open.judge(&commit, now, &self.runs);
        let handed_off = match verdict {
            Verdict::Refuse(refusal) => return CommitOutcome::Refused(refusal),
            Verdict::Again => self.open.hand_off_again(&commit, now, taker),
            Verdict::Apply => {
                let handed_off = self.open.apply(&commit, now, taker);
                self.write(commit, now);
                handed_off
            }
        };
        let handed_off = handed_off.into_iter().map(|c| self.runs.with_inputs(c)).collect();
        CommitOutcome::Applied { handed_off }
    }

    fn write(&mut self, commit: Commit, now: Timestamp) {
        let seq = commit.version_before() + 1;
        let count = u64::try_from(commit.events.len()).expect("events fit in memory");
        let position = self.position_last + 1;
        self.position_last += count;
        let kept = self.runs.0.entry(commit.run_id).or_insert_with(|| {
            self.listing.insert((now, commit.run_id));
            KeptRun::new(&commit, now)
        });
        if commit.record.status.is_terminal() {
            kept.row.ended_at = Some(now);
            let run_id = commit.run_id;
            self.ended.insert(Ended { events_removed: false, ended_at: now, run_id });
        }
        kept.row.updated_at = now;
        kept.row.run = commit.record;
        let row = Arc::new(LogRow {
            position,
            run_id: commit.run_id,
            seq,
            commit_id: commit.commit_id,
            at: now,
            events: commit.events,
        });
        kept.log.push(Arc::clone(&row));
        self.feed.insert(position, row);
    }

    /// What it removed, and how much of the batch is left.
    fn sweep(&mut self, retention: &Retention, now: Timestamp) -> (Swept, usize) {
        let mut swept = Swept::default();
        let mut left = retention.batch;
        // Events never outlive the record that they belong to.
        let events_before = now.minus(retention.events.min(retention.runs));
        while left > 0
            && let Some(ended) = self.ended.first().copied()
            && !ended.events_removed
            && ended.ended_at <= events_before
        {
            self.ended.pop_first();
            self.ended.insert(Ended { events_removed: true, ..ended });
            let kept = self.runs.0.get_mut(&ended.run_id).expect("an ended run is kept");
            kept.row.events_removed = true;
            kept.lines = Vec::new();
            for row in std::mem::take(&mut kept.log) {
                self.feed.remove(&row.position);
            }
            swept.logs += 1;
            left -= 1;
        }
        let removed = Ended {
            events_removed: true,
            ended_at: Timestamp(i64::MIN),
            run_id: RunId(uuid::Uuid::nil()),
        };
        let runs_before = now.minus(retention.runs);
        while left > 0
            && let Some(ended) = self.ended.range(removed..).next().copied()
            && ended.ended_at <= runs_before
        {
            self.ended.remove(&ended);
            let kept = self.runs.0.remove(&ended.run_id).expect("an ended run is kept");
            self.listing.remove(&(kept.row.started_at, ended.run_id));
            swept.runs += 1;
            left -= 1;
        }
        (swept, left)
    }
}

impl Runs {
    /// `claimed` with the payloads that its job names.
    fn with_inputs(&self, mut claimed: Claimed) -> Claimed {
        let kept = &self.0[&claimed.job.job_id.run_id];
        claimed.inputs = claimed.job.inputs.iter().map(|seq| kept.payload(*seq)).collect();
        claimed
    }
}

impl Written for Runs {
    type Fault = Infallible;

    fn has_ended(&self, run_id: RunId) -> Result<bool, Infallible> {
        Ok(self.0.contains_key(&run_id))
    }

    fn commit_at(&self, run_id: RunId, seq: u64) -> Result<Option<CommitId>, Infallible> {
        let Some(kept) = self.0.get(&run_id) else { return Ok(None) };
        let row = kept.log.get(kept.row_of(seq)).filter(|row| row.seq == seq);
        Ok(row.map(|row| row.commit_id))
    }
}

impl KeptRun {
    fn new(start: &Commit, now: Timestamp) -> Self {
        Self {
            row: RunRow {
                run: Arc::clone(&start.record),
                started_at: now,
                updated_at: now,
                ended_at: None,
                events_removed: false,
            },
            log: Vec::new(),
            lines: Vec::new(),
            lines_counted: 0,
        }
    }

    /// The index of the row that holds the event `seq`, or of the last row.
    fn row_of(&self, seq: u64) -> usize {
        self.log.partition_point(|row| row.seq <= seq).saturating_sub(1)
    }

    fn payload(&self, seq: u64) -> Payload {
        let row = &self.log[self.row_of(seq)];
        let at = usize::try_from(seq - row.seq).expect("events fit in memory");
        row.events[at].payload()
    }
}

impl LogRow {
    fn stored(&self) -> impl Iterator<Item = StoredEvent> {
        (0_u64..).zip(&self.events).map(|(offset, event)| StoredEvent {
            position: Position::counted(self.position + offset),
            run_id: self.run_id,
            seq: self.seq + offset,
            at: self.at,
            event: event.clone(),
        })
    }
}
