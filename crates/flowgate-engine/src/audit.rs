//! The audit, read from the index of runs and from their logs; nothing is written for it.
//!
//! Entries are listed by run, in the order in which runs were accepted, since that is the order that
//! every store can page through however many there are. They are kept as long as the events of
//! their runs are. Smoke tests of deployments are left out.

use std::sync::Arc;

use flowgate_core::audit::{self, Accepted, Direction, Entry, HEAD_EVENTS, Line, Mark, Trail};
use flowgate_core::ids::RunId;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_store::{RunCursor, RunQuery, RunRow, Store, StoreError, whole_log};
use futures_util::{StreamExt, TryStreamExt};

use crate::deploys::is_probe;

/// Logs that are read at a time.
const READS_MAX: usize = 16;
/// The last events of a run that tell, but for rare ones, what it put out.
const TAIL_EVENTS: u64 = 16;
/// Runs that a summary counts; the latest, if there are more.
pub const SUMMARY_RUNS_MAX: usize = 100_000;
/// Marks of a trail.
pub const TRAIL_MARKS_MAX: usize = 10_000;

/// Which entries to list.
#[derive(Clone, Debug, Default)]
pub struct AuditQuery {
    /// Only those of this flow.
    pub flow: Option<Arc<str>>,
    /// Only those that went this way.
    pub direction: Option<Direction>,
    /// Only those of runs that were accepted at or after this time.
    pub since: Option<Timestamp>,
    /// Only those of runs that were accepted before this time.
    pub until: Option<Timestamp>,
    /// Only those of runs that come after this one in the listing.
    pub after: Option<RunCursor>,
    /// Those of at most this many runs.
    pub limit: usize,
}

/// A page of entries.
#[derive(Clone, Debug)]
pub struct AuditPage {
    /// The entries of each run: inbound, then outbound if it has ended.
    pub entries: Vec<Entry>,
    /// Where the next page begins, if there is one.
    pub next: Option<RunCursor>,
}

/// What was done with a run.
#[derive(Clone, Debug)]
pub struct AuditTrail {
    /// Its entries: inbound, then outbound if it has ended.
    pub entries: Vec<Entry>,
    /// What was done with it, in order.
    pub marks: Vec<Mark>,
    /// Whether there are more marks than are told.
    pub is_cut: bool,
}

/// How flows did.
#[derive(Clone, Debug)]
pub struct AuditSummary {
    /// Of each flow, what came in and what has come out of that.
    pub lines: Vec<Line>,
    /// From when on runs were counted: later than asked for if there were too many.
    pub since: Timestamp,
    /// Up to when.
    pub until: Timestamp,
    /// Whether there were too many.
    pub is_cut: bool,
}

/// A page of entries, those of the run that was accepted last first.
pub async fn audit_entries(store: &dyn Store, query: &AuditQuery) -> Result<AuditPage, StoreError> {
    let AuditQuery { flow, direction, since, until, after, limit } = query.clone();
    let statuses = match direction {
        Some(Direction::Outbound) => ENDS.to_vec(),
        Some(Direction::Inbound) | None => Vec::new(),
    };
    // One row more than the page, to know whether there is another.
    let limit = limit.clamp(1, PAGE_MAX - 1);
    let query =
        RunQuery { flow, statuses, since, until, after, limit: limit + 1, ..RunQuery::default() };
    let mut rows = store.list_runs(&query).await?;
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| has_more).map(cursor_of);
    let reads: Vec<_> = rows
        .iter()
        .filter(|row| !is_probe(&row.run) && !row.events_removed)
        .map(|row| entries_of(store, row, direction))
        .collect();
    let read: Vec<Vec<Entry>> =
        futures_util::stream::iter(reads).buffered(READS_MAX).try_collect().await?;
    Ok(AuditPage { entries: read.into_iter().flatten().collect(), next })
}

/// What was done with a run, in order; none if there is no such run.
pub async fn audit_trail(
    store: &dyn Store,
    run_id: RunId,
) -> Result<Option<AuditTrail>, StoreError> {
    let Some(detail) = store.read_run(run_id).await? else { return Ok(None) };
    let entries = entries_of(store, &detail.row, None).await?;
    let (mut trail, mut after) = (Trail::default(), 0);
    let is_cut = loop {
        let page = store.read_events(run_id, after, PAGE_MAX).await?;
        for stored in &page {
            trail.note(stored);
        }
        match page.last() {
            Some(_) if trail.len() > TRAIL_MARKS_MAX => break true,
            Some(last) if page.len() == PAGE_MAX => after = last.seq,
            Some(_) | None => break false,
        }
    };
    let mut marks = trail.into_marks();
    marks.truncate(TRAIL_MARKS_MAX);
    Ok(Some(AuditTrail { entries, marks, is_cut }))
}

/// How flows did with the runs that were accepted since a time, up to now.
pub async fn audit_summary(
    store: &dyn Store,
    flow: Option<Arc<str>>,
    since: Timestamp,
) -> Result<AuditSummary, StoreError> {
    let until = store.now().await?;
    let mut query = RunQuery { flow, since: Some(since), limit: PAGE_MAX, ..RunQuery::default() };
    let (mut accepted, mut since) = (Vec::new(), since);
    let is_cut = loop {
        let page = store.list_runs(&query).await?;
        accepted.extend(page.iter().filter(|row| !is_probe(&row.run)).map(|row| Accepted {
            flow: Arc::clone(&row.run.flow),
            started_at: row.started_at,
            ended: row.ended_at.map(|at| (at, row.run.status)),
        }));
        let Some(last) = page.last().filter(|_| page.len() == PAGE_MAX) else { break false };
        query.after = Some(cursor_of(last));
        if accepted.len() >= SUMMARY_RUNS_MAX {
            // What was counted goes back to here.
            since = last.started_at;
            break true;
        }
    };
    let lines = audit::lines(&accepted, until.since(since));
    Ok(AuditSummary { lines, since, until, is_cut })
}

const ENDS: [RunStatus; 3] = [RunStatus::Completed, RunStatus::Failed, RunStatus::Cancelled];

fn cursor_of(row: &RunRow) -> RunCursor {
    RunCursor { started_at: row.started_at, run_id: row.run.run_id }
}

/// The entries of a run: inbound, then outbound if it has ended.
async fn entries_of(
    store: &dyn Store,
    row: &RunRow,
    direction: Option<Direction>,
) -> Result<Vec<Entry>, StoreError> {
    let is_wanted = |wanted: Direction| direction.is_none_or(|direction| direction == wanted);
    let mut entries = Vec::with_capacity(2);
    if is_wanted(Direction::Inbound) {
        let head = store.read_events(row.run.run_id, 0, HEAD_EVENTS).await?;
        entries.extend(audit::inbound(&head));
    }
    if is_wanted(Direction::Outbound) && row.run.status.is_terminal() {
        entries.extend(outbound(store, row).await?);
    }
    Ok(entries)
}

/// The outbound entry of a run that has ended, unless retention has removed its events.
async fn outbound(store: &dyn Store, row: &RunRow) -> Result<Option<Entry>, StoreError> {
    let (run, started_at) = (&row.run, row.started_at);
    let after = run.version.saturating_sub(TAIL_EVENTS);
    let tail = store.read_events(run.run_id, after, PAGE_MAX).await?;
    let told = audit::outbound(run, started_at, &tail);
    if told.is_some() || after == 0 {
        return Ok(told);
    }
    Ok(audit::outbound(run, started_at, &whole_log(store, run.run_id).await?))
}
