//! Moving what one store holds to another one.
//!
//! Revisions and runs are copied as they are, the first started first; a run that is open goes on
//! in the target, and the lease that an attempt of it held is recorded there as lost. Records are
//! written anew, but for those that mean something in their own store only; terms and permits end
//! with the instances that hold them and are not copied. The source is only read. Nobody may work on either store meanwhile: whoever calls makes sure of it.
//!
//! A copy that was broken off is taken up by copying again: [`Store::import`] leaves alone what is
//! there, and a run is there whole or not at all.
//!
//! At the end everything is read back from the target and counted.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use flowgate_core::event::LeaseStamp;
use flowgate_core::ids::RunId;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::RunStatus;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use crate::{
    Imported, JobCopy, LogLine, RunCopy, RunCursor, RunDetail, RunQuery, Store, StoreCopy,
    StoreError, whole_log,
};

mod records;

/// Runs in one import.
const BATCH_RUNS_MAX: usize = 100;
/// Events and log lines in one import, unless one run alone has more.
const BATCH_ROWS_MAX: usize = 5_000;
/// Bytes of payloads and log lines in one import, unless one run alone has more.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// Runs that are read at a time.
const READS_MAX: usize = 8;

/// What to do with a target that holds something already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupied {
    /// Refuse it.
    Refuse,
    /// Add what it does not have: the copy before this one was broken off.
    Continue,
}

/// How far a copy has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What it is doing.
    pub phase: Phase,
    /// Runs that are done in this phase.
    pub runs_done: u64,
    /// Runs that there are in it.
    pub runs: u64,
}

/// What a copy is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It reads the source and writes the target.
    Copying,
    /// It reads the target and counts.
    Checking,
}

/// How much a store holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Contents {
    /// Revisions of flows.
    pub revisions: u64,
    /// Runs, by the names of their statuses.
    pub runs: BTreeMap<&'static str, u64>,
    /// Events of all runs.
    pub events: u64,
    /// Log lines of all runs.
    pub log_lines: u64,
    /// Open jobs of all runs.
    pub open_jobs: u64,
    /// Records that a copy takes along.
    pub records: u64,
}

impl Contents {
    fn empty() -> Self {
        // Every status has its line, also one that no run is in.
        let runs = RunStatus::ALL.iter().map(|status| (status.as_str(), 0)).collect();
        Self { runs, ..Self::default() }
    }

    fn add(&mut self, run: &RunCopy) {
        *self.runs.entry(run.row.run.status.as_str()).or_default() += 1;
        self.events += count(run.events.len());
        self.log_lines += count(run.log_lines.len());
        self.open_jobs += count(run.jobs.len());
    }

    /// How many runs it holds.
    pub fn runs_total(&self) -> u64 {
        self.runs.values().sum()
    }
}

/// What a copy did.
#[derive(Clone, Debug)]
#[must_use]
pub struct CopyReport {
    /// What was not in the target before.
    pub imported: Imported,
    /// Records that were not in the target before.
    pub records: u64,
    /// What was read from the source.
    pub source: Contents,
    /// What was read back from the target.
    pub target: Contents,
}

impl CopyReport {
    /// Whether the target holds what the source does, no less and no more.
    pub fn is_complete(&self) -> bool {
        self.source == self.target
    }
}

/// Why a copy was not made, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The target holds something.
    #[error(
        "the target is not empty: it has {runs} runs, {revisions} revisions and {records} records"
    )]
    Occupied {
        /// Runs that it has.
        runs: u64,
        /// Revisions that it has.
        revisions: u64,
        /// Records that it has.
        records: u64,
    },
    /// The source failed.
    #[error("reading the source")]
    Source(#[source] StoreError),
    /// The target failed.
    #[error("writing the target")]
    Target(#[source] StoreError),
}

/// Copies all of `from` to `to`, and tells how far it has come.
pub async fn copy(
    from: &dyn Store,
    to: &dyn Store,
    occupied: Occupied,
    tell: &mut (dyn FnMut(Progress) + Send),
) -> Result<CopyReport, CopyError> {
    if occupied == Occupied::Refuse {
        refuse_occupied(to).await?;
    }
    let mut source = Contents::empty();
    let mut imported = copy_revisions(from, to, &mut source).await?;
    let (read, records) = records::copy_records(from, to).await?;
    source.records = read;
    let run_ids = run_ids(from).await.map_err(CopyError::Source)?;
    let mut progress = Progress { phase: Phase::Copying, runs_done: 0, runs: count(run_ids.len()) };
    tell(progress);
    let mut batch = Batch::default();
    let mut runs = reading(from, run_ids);
    while let Some(run) = runs.try_next().await.map_err(CopyError::Source)? {
        // Retention may have removed it since it was listed.
        let Some(run) = run else { continue };
        source.add(&run);
        if !batch.has_room_for(&run) {
            imported.runs += batch.write(to).await?;
            progress.runs_done = source.runs_total() - 1;
            tell(progress);
        }
        batch.push(run);
    }
    drop(runs);
    imported.runs += batch.write(to).await?;
    progress.runs_done = source.runs_total();
    tell(progress);
    let target = contents(to, tell).await.map_err(CopyError::Target)?;
    Ok(CopyReport { imported, records, source, target })
}

/// All of a run as the store has it, its leases given up; none if there is no such run.
pub async fn read_run(store: &dyn Store, run_id: RunId) -> Result<Option<RunCopy>, StoreError> {
    let Some(RunDetail { row, jobs }) = store.read_run(run_id).await? else { return Ok(None) };
    let jobs = jobs.into_iter().map(|open| {
        let mut lost = open.lost;
        lost.extend(open.lease.map(|lease| LeaseStamp {
            attempt: open.job.attempt,
            token: lease.token,
            instance: lease.instance,
        }));
        JobCopy { job: open.job, due_at: open.due_at, lost }
    });
    let jobs = jobs.collect();
    let events = whole_log(store, run_id).await?;
    let log_lines = read_logs(store, run_id).await?;
    Ok(Some(RunCopy { row, jobs, events, log_lines }))
}

async fn refuse_occupied(to: &dyn Store) -> Result<(), CopyError> {
    let runs = to.count_runs(&RunQuery::default()).await.map_err(CopyError::Target)?;
    let revisions = to.list_revisions(None).await.map_err(CopyError::Target)?;
    let records = records::count_records(to).await.map_err(CopyError::Target)?;
    if runs == 0 && revisions.is_empty() && records == 0 {
        return Ok(());
    }
    Err(CopyError::Occupied { runs, revisions: count(revisions.len()), records })
}

async fn copy_revisions(
    from: &dyn Store,
    to: &dyn Store,
    source: &mut Contents,
) -> Result<Imported, CopyError> {
    let mut revisions = from.list_revisions(None).await.map_err(CopyError::Source)?;
    source.revisions = count(revisions.len());
    revisions.sort_by_key(|stored| stored.registered_at);
    let mut imported = Imported::default();
    for chunk in revisions.chunks(BATCH_RUNS_MAX) {
        let copy = StoreCopy { revisions: chunk.to_vec(), runs: Vec::new() };
        imported.revisions += to.import(copy).await.map_err(CopyError::Target)?.revisions;
    }
    Ok(imported)
}

/// The runs of a store, the first started first. A store lists the latest first, so all ids are
/// held at a time: sixteen bytes a run.
async fn run_ids(store: &dyn Store) -> Result<VecDeque<RunId>, StoreError> {
    let mut run_ids = VecDeque::new();
    let mut query = RunQuery { limit: PAGE_MAX, ..RunQuery::default() };
    loop {
        let page = store.list_runs(&query).await?;
        for row in &page {
            run_ids.push_front(row.run.run_id);
        }
        match page.last() {
            Some(last) if page.len() == PAGE_MAX => {
                let (started_at, run_id) = (last.started_at, last.run.run_id);
                query.after = Some(RunCursor { started_at, run_id });
            }
            Some(_) | None => return Ok(run_ids),
        }
    }
}

/// Whole runs in the order of `run_ids`, a few of them read at a time.
fn reading(
    store: &dyn Store,
    run_ids: VecDeque<RunId>,
) -> impl stream::Stream<Item = Result<Option<RunCopy>, StoreError>> + Unpin {
    stream::iter(run_ids).map(move |run_id| Box::pin(read_run(store, run_id))).buffered(READS_MAX)
}

/// Counts what `store` holds, by reading it.
async fn contents(
    store: &dyn Store,
    tell: &mut (dyn FnMut(Progress) + Send),
) -> Result<Contents, StoreError> {
    let mut contents = Contents::empty();
    contents.revisions = count(store.list_revisions(None).await?.len());
    contents.records = records::count_records(store).await?;
    let run_ids = run_ids(store).await?;
    let runs = count(run_ids.len());
    tell(Progress { phase: Phase::Checking, runs_done: 0, runs });
    let mut read = reading(store, run_ids);
    while let Some(run) = read.try_next().await? {
        if let Some(run) = run {
            contents.add(&run);
        }
        let runs_done = contents.runs_total();
        if runs_done.is_multiple_of(count(BATCH_RUNS_MAX)) || runs_done == runs {
            tell(Progress { phase: Phase::Checking, runs_done, runs });
        }
    }
    Ok(contents)
}

async fn read_logs(store: &dyn Store, run_id: RunId) -> Result<Vec<LogLine>, StoreError> {
    let mut lines: Vec<LogLine> = Vec::new();
    loop {
        let after = lines.last().map_or(0, |line| line.number);
        let page = store.read_logs(run_id, after, PAGE_MAX).await?;
        let is_last = page.len() < PAGE_MAX;
        lines.extend(page);
        if is_last {
            return Ok(lines);
        }
    }
}

/// Runs that are written together.
#[derive(Debug, Default)]
struct Batch {
    runs: Vec<RunCopy>,
    rows: usize,
    bytes: usize,
}

impl Batch {
    fn has_room_for(&self, run: &RunCopy) -> bool {
        self.runs.is_empty()
            || (self.runs.len() < BATCH_RUNS_MAX
                && self.rows + rows_of(run) <= BATCH_ROWS_MAX
                && self.bytes + bytes_of(run) <= BATCH_BYTES_MAX)
    }

    fn push(&mut self, run: RunCopy) {
        self.rows += rows_of(&run);
        self.bytes += bytes_of(&run);
        self.runs.push(run);
    }

    /// Writes it and is empty; how many runs the target did not have.
    async fn write(&mut self, to: &dyn Store) -> Result<u64, CopyError> {
        let Self { runs, .. } = std::mem::take(self);
        if runs.is_empty() {
            return Ok(0);
        }
        let copy = StoreCopy { revisions: Vec::new(), runs };
        Ok(to.import(copy).await.map_err(CopyError::Target)?.runs)
    }
}

fn rows_of(run: &RunCopy) -> usize {
    run.events.len() + run.log_lines.len()
}

fn bytes_of(run: &RunCopy) -> usize {
    let payloads = run.events.iter().map(|stored| stored.event.payload_bytes());
    let lines = run.log_lines.iter().map(|line| line.line.text.len());
    payloads.chain(lines).sum()
}

fn count(number: usize) -> u64 {
    u64::try_from(number).expect("what fits in memory can be counted")
}
