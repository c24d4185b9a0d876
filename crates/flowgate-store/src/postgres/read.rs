//! Reading runs, events, log lines, revisions and instances.

use std::sync::Arc;

use flowgate_core::event::StoredEvent;
use flowgate_core::flow::FlowFile;
use flowgate_core::ids::{Position, Revision, RunId};
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::PostgresStore;
use super::fault::Fault;
use super::pool::Param;
use super::rows::{
    JobRow, LOG_COLUMNS, RUN_COLUMNS, column, decode, read_events, read_row, tag, to_int4,
    to_integer, to_number,
};
use crate::{
    Authored, InstanceRow, LogLevel, LogLine, NewLogLine, NewRevision, RunDetail, RunQuery, RunRow,
    StoreError, StoredRevision,
};

/// As they are read.
const REVISION_COLUMNS: &str = "revision, file, folder, registered_at, active, author, note";

impl PostgresStore {
    pub(super) async fn run_detail(&self, run_id: RunId) -> Result<Option<RunDetail>, StoreError> {
        // One statement, so the jobs are those of the record.
        let schema = &self.options.schema;
        let sql = format!(
            "SELECT {RUN_COLUMNS}, (SELECT json_agg(j ORDER BY j.step)::text \
             FROM \"{schema}\".jobs j WHERE j.run_id = r.run_id) \
             FROM \"{schema}\".runs r WHERE r.run_id = $1"
        );
        let rows = self.pool.call("reading a run", &sql, &[(&run_id.0, Type::UUID)]).await?;
        let detail = rows.first().map(read_detail).transpose();
        detail.map_err(|fault| fault.into_error("reading a run"))
    }

    pub(super) async fn events_of(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        // The row that holds the next event may begin before it.
        let log = format!("\"{}\".log", self.options.schema);
        let sql = format!(
            "SELECT {LOG_COLUMNS} FROM {log} WHERE run_id = $1 AND seq >= coalesce(\
             (SELECT max(seq) FROM {log} WHERE run_id = $1 AND seq <= $2), 0) \
             ORDER BY seq LIMIT $3"
        );
        let next = to_integer(after.saturating_add(1));
        let rows_max = i64::from(to_int4(limit.saturating_add(1)));
        let params =
            [(&run_id.0 as _, Type::UUID), (&next as _, Type::INT8), (&rows_max as _, Type::INT8)];
        let rows = self.pool.call("reading events", &sql, &params).await?;
        expand(&rows, |event| event.seq > after, limit)
    }

    pub(super) async fn feed_after(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let log = format!("\"{}\".log", self.options.schema);
        // Below the snapshot's xmin every transaction has ended: nothing can appear there later.
        // The order names the table, since `xid` alone would be what is selected of it, and that
        // has no index.
        let sql = format!(
            "SELECT {LOG_COLUMNS} FROM {log} AS log \
             WHERE xid < pg_snapshot_xmin(pg_current_snapshot()) \
             AND (xid, ordinal) >= ($1::xid8, coalesce((SELECT max(ordinal) FROM {log} \
             WHERE xid = $1::xid8 AND ordinal <= $2), 0)) \
             ORDER BY log.xid, log.ordinal LIMIT $3"
        );
        let major = after.major.to_string();
        let next = to_int4(usize::try_from(after.minor.saturating_add(1)).unwrap_or(usize::MAX));
        let rows_max = i64::from(to_int4(limit.saturating_add(1)));
        let params =
            [(&major as _, Type::TEXT), (&next as _, Type::INT4), (&rows_max as _, Type::INT8)];
        let rows = self.pool.call("reading the feed", &sql, &params).await?;
        expand(&rows, |event| event.position > after, limit)
    }

    /// The position of the last event that can be read.
    pub(super) async fn end_of_feed(&self) -> Result<Position, StoreError> {
        let doing = "reading the end of the feed";
        let sql = format!(
            "SELECT xid::text::bigint, (ordinal + count - 1)::bigint FROM \"{}\".log AS log \
             WHERE xid < pg_snapshot_xmin(pg_current_snapshot()) \
             ORDER BY log.xid DESC, log.ordinal DESC LIMIT 1",
            self.options.schema
        );
        let rows = self.pool.call(doing, &sql, &[]).await?;
        let Some(row) = rows.first() else { return Ok(Position::START) };
        let number = |at| column::<i64>(row, at).map(to_number);
        let end = number(0).and_then(|major| Ok(Position { major, minor: number(1)? }));
        end.map_err(|fault| fault.into_error(doing))
    }

    pub(super) async fn list(&self, query: &RunQuery) -> Result<Vec<RunRow>, StoreError> {
        let mut filter = Filter::new(query);
        if let Some(after) = query.after {
            let started_at = filter.bind(after.started_at.0, Type::INT8);
            let run_id = filter.bind(after.run_id.0, Type::UUID);
            filter.and(&format!("(r.started_at, r.run_id) < ({started_at}, {run_id})"));
        }
        let limit = filter.bind(to_integer(query.limit.min(PAGE_MAX) as u64), Type::INT8);
        let page = format!("ORDER BY r.started_at DESC, r.run_id DESC LIMIT {limit}");
        let schema = &self.options.schema;
        // Only a page is read whole, and none is sorted but of what makes it up.
        let pages = filter.arms(schema, query, "r.started_at, r.run_id", &page);
        let sql = format!(
            "SELECT {RUN_COLUMNS} FROM (SELECT r.started_at, r.run_id FROM ({pages}) AS r {page}) \
             AS p (page_at, page_id) JOIN \"{schema}\".runs r ON r.run_id = p.page_id \
             ORDER BY p.page_at DESC, p.page_id DESC"
        );
        let rows = self.pool.call("listing runs", &sql, &filter.params()).await?;
        let list: Result<Vec<RunRow>, Fault> = rows.iter().map(read_row).collect();
        list.map_err(|fault| fault.into_error("listing runs"))
    }

    pub(super) async fn count(&self, query: &RunQuery) -> Result<u64, StoreError> {
        let filter = Filter::new(query);
        let counts = filter.arms(&self.options.schema, query, "count(*) AS count", "");
        let sql = format!("SELECT coalesce(sum(c.count), 0)::bigint FROM ({counts}) AS c");
        let within = self.options.call_timeout * super::LONG_FACTOR;
        let doing = "counting runs";
        let rows = self.pool.call_within(within, doing, &sql, &filter.params()).await?;
        let count = rows.first().map_or(Ok(0), |row| column(row, 0));
        Ok(to_number(count.map_err(|fault| fault.into_error(doing))?))
    }

    pub(super) async fn lines_of(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LogLine>, StoreError> {
        let schema = &self.options.schema;
        let sql = format!(
            "SELECT number, at, step, attempt, level, text FROM \"{schema}\".log_lines \
             WHERE run_id = $1 AND number > $2 ORDER BY number LIMIT $3"
        );
        let (after, limit) = (to_integer(after), to_integer(limit as u64));
        let params =
            [(&run_id.0 as _, Type::UUID), (&after as _, Type::INT8), (&limit as _, Type::INT8)];
        let rows = self.pool.call("reading log lines", &sql, &params).await?;
        let lines: Result<Vec<_>, Fault> = rows.iter().map(|row| read_line(run_id, row)).collect();
        lines.map_err(|fault| fault.into_error("reading log lines"))
    }

    pub(super) async fn revisions(
        &self,
        flow: Option<&str>,
    ) -> Result<Vec<StoredRevision>, StoreError> {
        let schema = &self.options.schema;
        let sql = format!(
            "SELECT {REVISION_COLUMNS} FROM \"{schema}\".revisions \
             WHERE $1 IS NULL OR flow = $1 \
             ORDER BY flow COLLATE \"C\", registered_at DESC, revision_number DESC"
        );
        let rows = self.pool.call("listing revisions", &sql, &[(&flow, Type::TEXT)]).await?;
        let list: Result<Vec<_>, Fault> = rows.iter().map(read_revision).collect();
        list.map_err(|fault| fault.into_error("listing revisions"))
    }

    /// The revision of this name, or else the active one.
    pub(super) async fn revision(
        &self,
        flow: &str,
        revision: Option<&Revision>,
    ) -> Result<Option<StoredRevision>, StoreError> {
        let schema = &self.options.schema;
        let condition = if revision.is_some() { "revision = $2" } else { "active AND $2 IS NULL" };
        let sql = format!(
            "SELECT {REVISION_COLUMNS} FROM \"{schema}\".revisions \
             WHERE flow = $1 AND {condition}"
        );
        let revision = revision.map(|revision| &*revision.0);
        let params = [(&flow as _, Type::TEXT), (&revision as _, Type::TEXT)];
        let rows = self.pool.call("reading a revision", &sql, &params).await?;
        let found = rows.first().map(read_revision).transpose();
        found.map_err(|fault| fault.into_error("reading a revision"))
    }

    pub(super) async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        let schema = &self.options.schema;
        let sql = format!(
            "SELECT beat, started_at, seen_at FROM \"{schema}\".instances ORDER BY instance_number"
        );
        let rows = self.pool.call("listing instances", &sql, &[]).await?;
        let read = |row: &Row| -> Result<InstanceRow, Fault> {
            Ok(InstanceRow {
                beat: decode(column(row, 0)?)?,
                started_at: Timestamp(column(row, 1)?),
                seen_at: Timestamp(column(row, 2)?),
            })
        };
        let list: Result<Vec<_>, Fault> = rows.iter().map(read).collect();
        list.map_err(|fault| fault.into_error("listing instances"))
    }
}

/// What a listing and a count have in common.
struct Filter {
    sql: String,
    values: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
}

impl Filter {
    fn new(query: &RunQuery) -> Self {
        let mut filter = Self { sql: String::new(), values: Vec::new() };
        if let Some(flow) = &query.flow {
            let flow = filter.bind(flow.to_string(), Type::TEXT);
            filter.and(&format!("r.flow = {flow}"));
        }
        if let Some(since) = query.since {
            let since = filter.bind(since.0, Type::INT8);
            filter.and(&format!("r.started_at >= {since}"));
        }
        if let Some(until) = query.until {
            let until = filter.bind(until.0, Type::INT8);
            filter.and(&format!("r.started_at < {until}"));
        }
        if !query.tags.is_empty() {
            let tags: Vec<String> =
                query.tags.iter().map(|(name, value)| tag(name, value)).collect();
            let tags = filter.bind(tags, Type::TEXT_ARRAY);
            filter.and(&format!("r.tags IS NOT NULL AND r.tags @> {tags}"));
        }
        filter
    }

    /// What `select` finds in each of the places where such runs are, one after the other.
    fn arms(&self, schema: &str, query: &RunQuery, select: &str, page: &str) -> String {
        let statuses: Vec<Option<RunStatus>> = match query.statuses.as_slice() {
            [] => vec![None],
            wanted => RunStatus::ALL.into_iter().filter(|s| wanted.contains(s)).map(Some).collect(),
        };
        let (filter, runs) = (&self.sql, format!("\"{schema}\".runs"));
        let incomplete = format!("\"{schema}\".incomplete_runs");
        let arm = |status: Option<RunStatus>| {
            let Some(status) = status else {
                return format!("(SELECT {select} FROM {runs} r WHERE TRUE{filter} {page})");
            };
            let name = status.as_str();
            if status == RunStatus::Completed {
                return format!(
                    "(SELECT {select} FROM {runs} r WHERE r.status = '{name}'{filter} {page})"
                );
            }
            if !query.tags.is_empty() {
                // The server chooses where to begin, by what it knows of tags and statuses.
                return format!(
                    "(SELECT {select} FROM {incomplete} i JOIN {runs} r ON r.run_id = i.run_id \
                     AND r.flow = i.flow AND r.started_at = i.started_at \
                     WHERE i.status = '{name}'{filter} {page})"
                );
            }
            if query.flow.is_some() {
                return format!(
                    "(SELECT {select} FROM {incomplete} r WHERE r.status = '{name}'{filter} {page})"
                );
            }
            format!(
                "(SELECT r.* FROM \"{schema}\".incomplete_flows f CROSS JOIN LATERAL (\
                 SELECT {select} FROM {incomplete} r \
                 WHERE r.flow = f.flow AND r.status = '{name}'{filter} {page}) AS r)"
            )
        };
        statuses.into_iter().map(arm).collect::<Vec<_>>().join(" UNION ALL ")
    }

    fn and(&mut self, condition: &str) {
        self.sql.push_str(" AND ");
        self.sql.push_str(condition);
    }

    fn bind(&mut self, value: impl ToSql + Sync + Send + 'static, of: Type) -> String {
        self.values.push((Box::new(value), of));
        format!("${}", self.values.len())
    }

    fn params(&self) -> Vec<Param<'_>> {
        let mut params: Vec<Param<'_>> = Vec::with_capacity(self.values.len());
        for (value, of) in &self.values {
            params.push((&**value, of.clone()));
        }
        params
    }
}

fn read_detail(row: &Row) -> Result<RunDetail, Fault> {
    let jobs: Option<&str> = column(row, 5)?;
    let jobs: Vec<JobRow> = jobs.map(decode).transpose()?.unwrap_or_default();
    let jobs: Result<Vec<_>, Fault> = jobs.into_iter().map(JobRow::detail).collect();
    Ok(RunDetail { row: read_row(row)?, jobs: jobs? })
}

fn expand(
    rows: &[Row],
    is_wanted: impl Fn(&StoredEvent) -> bool,
    limit: usize,
) -> Result<Vec<StoredEvent>, StoreError> {
    let mut events = Vec::new();
    for row in rows {
        if events.len() >= limit {
            break;
        }
        let stored = read_events(row).map_err(|fault| fault.into_error("reading events"))?;
        events.extend(stored.filter(&is_wanted));
    }
    events.truncate(limit);
    Ok(events)
}

fn read_line(run_id: RunId, row: &Row) -> Result<LogLine, Fault> {
    let level: &str = column(row, 4)?;
    let unknown = || std::io::Error::other(format!("`{level}` is not a log level"));
    let level = LogLevel::parse(level).ok_or_else(|| Fault::unreadable(unknown()))?;
    let line = NewLogLine {
        run_id,
        step: column::<&str>(row, 2)?.into(),
        attempt: u32::try_from(column::<i64>(row, 3)?).map_err(Fault::unreadable)?,
        level,
        text: column(row, 5)?,
    };
    Ok(LogLine { number: to_number(column(row, 0)?), at: Timestamp(column(row, 1)?), line })
}

fn read_revision(row: &Row) -> Result<StoredRevision, Fault> {
    let file: FlowFile = decode(column(row, 1)?)?;
    let revision = Revision(column::<&str>(row, 0)?.into());
    let text = |at| column::<Option<&str>>(row, at).map(|text| text.map(Arc::from));
    let authored = Authored { author: text(5)?, note: text(6)? };
    Ok(StoredRevision {
        revision: NewRevision { revision, file, folder: column(row, 2)?, authored },
        registered_at: Timestamp(column(row, 3)?),
        active: column(row, 4)?,
    })
}
