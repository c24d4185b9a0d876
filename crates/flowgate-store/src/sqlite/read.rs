//! Reading the file: a small pool of connections, each used by one blocking task at a time.

use std::path::PathBuf;
use std::sync::Arc;

use flowgate_core::commit::Claimed;
use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::flow::FlowFile;
use flowgate_core::ids::{Position, Revision, RunId};
use flowgate_core::payload::Payload;
use flowgate_core::time::Timestamp;
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, Params, Row, params};
use tokio::sync::Semaphore;

use super::fault::{Fault, closed};
use super::file::{FORMAT_WITH_AUTHORS, open_for_reading};
use super::rows::{LOG_COLUMNS, LogRow, RUN_COLUMNS, read_detail, to_integer, to_number};
use crate::{
    Authored, LogLevel, LogLine, NewLogLine, NewRevision, RunDetail, StoreError, StoredRevision,
};

/// Connections that read at the same time.
const READERS_MAX: usize = 4;

/// Connections that read. A read that begins after a write was acknowledged sees it.
#[derive(Debug)]
pub(super) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    permits: Semaphore,
}

impl Readers {
    pub(super) fn new(path: PathBuf) -> Arc<Self> {
        Arc::new(Self { path, idle: Mutex::default(), permits: Semaphore::new(READERS_MAX) })
    }

    /// What `work` reads.
    pub(super) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        doing: &'static str,
        work: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _permit = self.permits.acquire().await.map_err(|_| closed())?;
        let readers = Arc::clone(self);
        let task = tokio::task::spawn_blocking(move || {
            let idle = readers.idle.lock().pop();
            let connection = match idle {
                Some(connection) => connection,
                None => open_for_reading(&readers.path)?,
            };
            let value = work(&connection)?;
            readers.idle.lock().push(connection);
            Ok(value)
        });
        let read = task.await.map_err(|error| StoreError::Unavailable {
            message: format!("{doing}: the reader did not end"),
            source: Some(Box::new(error)),
        })?;
        read.map_err(|fault: Fault| fault.into_error(doing))
    }

    /// Closes the connections that are not in use.
    pub(super) fn close(&self) {
        self.permits.close();
        self.idle.lock().clear();
    }
}

/// A run with its jobs as they are in the file.
pub(super) fn run(connection: &Connection, run_id: RunId) -> Result<Option<RunDetail>, Fault> {
    let sql = format!("SELECT {RUN_COLUMNS}, jobs FROM runs WHERE run_id = ?1");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([run_id.0.as_bytes()])?;
    rows.next()?.map(read_detail).transpose()
}

/// The events of a run.
pub(super) fn events(
    connection: &Connection,
    run_id: RunId,
    after: u64,
    limit: usize,
) -> Result<Vec<StoredEvent>, Fault> {
    // The row that holds the next event may begin before it.
    let sql = format!(
        "SELECT {LOG_COLUMNS} FROM log WHERE run_id = ?1 AND seq >= ifnull(\
         (SELECT max(seq) FROM log WHERE run_id = ?1 AND seq <= ?2), 0) ORDER BY seq"
    );
    let next = to_integer(after.saturating_add(1));
    let params = params![run_id.0.as_bytes(), next];
    expand(connection, &sql, params, |event| event.seq > after, limit)
}

/// The events of all runs, in commit order.
pub(super) fn feed(
    connection: &Connection,
    after: Position,
    limit: usize,
) -> Result<Vec<StoredEvent>, Fault> {
    let sql = format!(
        "SELECT {LOG_COLUMNS} FROM log WHERE position >= ifnull(\
         (SELECT max(position) FROM log WHERE position <= ?1), 0) ORDER BY position"
    );
    let next = to_integer(after.minor.saturating_add(1));
    expand(connection, &sql, [next], |event| event.position > after, limit)
}

/// The position of the last event that is kept.
pub(super) fn feed_end(connection: &Connection) -> Result<Position, Fault> {
    let sql = "SELECT position + count - 1 FROM log ORDER BY position DESC LIMIT 1";
    let end = connection.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?;
    Ok(end.map_or(Position::START, |end| Position::counted(to_number(end))))
}

fn expand(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    is_wanted: impl Fn(&StoredEvent) -> bool,
    limit: usize,
) -> Result<Vec<StoredEvent>, Fault> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    let mut events = Vec::new();
    while events.len() < limit
        && let Some(row) = rows.next()?
    {
        events.extend(LogRow::read(row)?.stored().filter(&is_wanted));
    }
    events.truncate(limit);
    Ok(events)
}

/// Fills in the payloads that a job names; `None` if its run is gone.
pub(super) fn with_inputs(
    connection: &Connection,
    mut claimed: Claimed,
) -> Result<Option<Claimed>, Fault> {
    let sql = format!(
        "SELECT {LOG_COLUMNS} FROM log WHERE run_id = ?1 AND seq <= ?2 ORDER BY seq DESC LIMIT 1"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    claimed.inputs = Vec::with_capacity(claimed.job.inputs.len());
    for seq in &claimed.job.inputs {
        let run_id = claimed.job.job_id.run_id;
        let mut rows = statement.query(params![run_id.0.as_bytes(), to_integer(*seq)])?;
        let row = rows.next()?.map(LogRow::read).transpose()?;
        let payload: Option<Payload> = row.and_then(|row| row.event(*seq).map(Event::payload));
        let Some(payload) = payload else { return Ok(None) };
        claimed.inputs.push(payload);
    }
    Ok(Some(claimed))
}

/// The log lines of a run.
pub(super) fn log_lines(
    connection: &Connection,
    run_id: RunId,
    after: u64,
    limit: usize,
) -> Result<Vec<LogLine>, Fault> {
    let mut statement = connection.prepare_cached(
        "SELECT number, at, step, attempt, level, text FROM log_lines \
         WHERE run_id = ?1 AND number > ?2 ORDER BY number LIMIT ?3",
    )?;
    let params = params![run_id.0.as_bytes(), to_integer(after), to_integer(limit as u64)];
    let mut rows = statement.query(params)?;
    let mut lines = Vec::new();
    while let Some(row) = rows.next()? {
        lines.push(read_line(run_id, row)?);
    }
    Ok(lines)
}

fn read_line(run_id: RunId, row: &Row<'_>) -> Result<LogLine, Fault> {
    let level: String = row.get(4)?;
    let unknown = || std::io::Error::other(format!("`{level}` is not a log level"));
    let level = LogLevel::parse(&level).ok_or_else(|| Fault::unreadable(unknown()))?;
    let line = NewLogLine {
        run_id,
        step: row.get::<_, String>(2)?.into(),
        attempt: row.get(3)?,
        level,
        text: row.get(5)?,
    };
    Ok(LogLine { number: to_number(row.get(0)?), at: Timestamp(row.get(1)?), line })
}

/// The revisions of a flow, or of all.
pub(super) fn revisions(
    connection: &Connection,
    format: u32,
    flow: Option<&str>,
) -> Result<Vec<StoredRevision>, Fault> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {} FROM revisions WHERE ?1 IS NULL OR flow = ?1 \
         ORDER BY flow, registered_at DESC, revision_number DESC",
        revision_columns(format),
    ))?;
    let mut rows = statement.query([flow])?;
    let mut list = Vec::new();
    while let Some(row) = rows.next()? {
        list.push(read_revision(row)?);
    }
    Ok(list)
}

/// The revision of this name, or else the active one.
pub(super) fn revision(
    connection: &Connection,
    format: u32,
    (flow, revision): (&str, Option<&Revision>),
) -> Result<Option<StoredRevision>, Fault> {
    let condition = if revision.is_some() { "revision = ?2" } else { "active AND ?2 IS NULL" };
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {} FROM revisions WHERE flow = ?1 AND {condition}",
        revision_columns(format),
    ))?;
    let mut rows = statement.query((flow, revision.map(|revision| &*revision.0)))?;
    rows.next()?.map(read_revision).transpose()
}

fn revision_columns(format: u32) -> String {
    let authored = if format < FORMAT_WITH_AUTHORS { "NULL, NULL" } else { "author, note" };
    format!("revision, file, folder, registered_at, active, {authored}")
}

fn read_revision(row: &Row<'_>) -> Result<StoredRevision, Fault> {
    let file = row.get_ref(1)?.as_str().map_err(Fault::unreadable)?;
    let file: FlowFile = serde_json::from_str(file).map_err(Fault::unreadable)?;
    let revision = Revision(row.get::<_, String>(0)?.into());
    let text = |at| row.get::<_, Option<String>>(at).map(|text| text.map(Arc::from));
    let authored = Authored { author: text(5)?, note: text(6)? };
    Ok(StoredRevision {
        revision: NewRevision { revision, file, folder: row.get(2)?, authored },
        registered_at: Timestamp(row.get(3)?),
        active: row.get(4)?,
    })
}

/// The commit whose first event has this number in the run.
pub(super) fn commit_at(
    connection: &Connection,
    run_id: RunId,
    seq: u64,
) -> Result<Option<[u8; 16]>, Fault> {
    let mut statement =
        connection.prepare_cached("SELECT commit_id FROM log WHERE run_id = ?1 AND seq = ?2")?;
    let params = params![run_id.0.as_bytes(), to_integer(seq)];
    Ok(statement.query_row(params, |row| row.get(0)).optional()?)
}

/// Whether the file has a run with this id.
pub(super) fn has_run(connection: &Connection, run_id: RunId) -> Result<bool, Fault> {
    let mut statement = connection.prepare_cached("SELECT 1 FROM runs WHERE run_id = ?1")?;
    Ok(statement.exists([run_id.0.as_bytes()])?)
}
