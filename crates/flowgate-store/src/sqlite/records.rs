//! Records, in the file.

use std::ops::RangeInclusive;
use std::sync::Arc;

use flowgate_core::gate::{Gate, GateStamp};
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::payload::Payload;
use flowgate_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};

use super::fault::Fault;
use super::rows::{to_integer, to_number};
use super::writer::Writer;
use crate::control::{
    Expect, GATE, GateOutcome, Record, RecordQuery, RecordWrite, RecordsOutcome, TermRef, gate_of,
    prefix_end,
};

const COLUMNS: &str = "key, version, value, written_at, expires_at";

impl Writer {
    /// Writes all of `writes`, or says why not.
    pub(super) fn write_records(
        &mut self,
        writes: &[RecordWrite],
        under: Option<&TermRef>,
    ) -> Result<RecordsOutcome, Fault> {
        if let Some(term) = under
            && self.held(term)?.is_none()
        {
            return Ok(RecordsOutcome::TermLost);
        }
        for (index, write) in writes.iter().enumerate() {
            let version = version(&self.connection, write.kind, &write.key)?;
            let holds = match write.expect {
                Expect::Anything => true,
                Expect::Absent => version.is_none(),
                Expect::Version(expected) => version == Some(expected),
            };
            if !holds {
                return Ok(RecordsOutcome::Changed(index));
            }
        }
        if writes.is_empty() {
            return Ok(RecordsOutcome::Written(Vec::new()));
        }
        let now = self.now();
        let versions = self.use_versions(writes.len())?;
        for (write, version) in writes.iter().zip(versions.clone()) {
            let expires_at = write.keep.map(|keep| now.plus(keep));
            let connection = self.transaction()?;
            if let Some(value) = &write.value {
                let sql = format!(
                    "INSERT INTO records (kind, {COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
                     ON CONFLICT (kind, key) DO UPDATE SET version = excluded.version, \
                     value = excluded.value, written_at = excluded.written_at, \
                     expires_at = excluded.expires_at"
                );
                connection.prepare_cached(&sql)?.execute(params![
                    write.kind,
                    &*write.key,
                    to_integer(version),
                    value.get(),
                    now.0,
                    expires_at.map(|at| at.0),
                ])?;
            } else {
                let sql = "DELETE FROM records WHERE kind = ?1 AND key = ?2";
                connection.prepare_cached(sql)?.execute(params![write.kind, &*write.key])?;
            }
        }
        Ok(RecordsOutcome::Written(versions.collect()))
    }

    /// Sets the gate of a flow, or says why not.
    pub(super) fn set_gate(
        &mut self,
        flow: &Arc<str>,
        gate: &Gate,
        only_if_empty: bool,
    ) -> Result<GateOutcome, Fault> {
        let found = read(&self.connection, GATE, std::slice::from_ref(flow))?;
        let found = found.into_iter().next().flatten();
        let before = gate_of(found.as_ref()).map_err(Fault::unreadable)?;
        if found.is_some() && before == *gate {
            return Ok(GateOutcome::Set);
        }
        if before.generation + 1 != gate.generation {
            return Ok(GateOutcome::Changed);
        }
        if only_if_empty && self.open.holds_runs(flow) {
            return Ok(GateOutcome::HoldsRuns);
        }
        let value = Payload::of(gate).expect("a gate's JSON form is within the limits");
        let (key, expect) = (Arc::clone(flow), Expect::Anything);
        let write = RecordWrite { kind: GATE, key, expect, value: Some(value), keep: None };
        let _written = self.write_records(&[write], None)?;
        self.open.set_gate(Arc::clone(flow), gate.stamp());
        Ok(GateOutcome::Set)
    }

    /// Versions that nobody has had and nobody will have again.
    fn use_versions(&mut self, count: usize) -> Result<RangeInclusive<u64>, Fault> {
        let count = count as u64;
        let sql = "UPDATE meta SET value = value + ?1 \
             WHERE name = 'record_version_last' RETURNING value";
        let mut statement = self.transaction()?.prepare_cached(sql)?;
        let last = to_number(statement.query_row([to_integer(count)], |row| row.get(0))?);
        Ok(last + 1 - count..=last)
    }

    /// Removes at most `limit` records that have expired.
    pub(super) fn sweep_records(&mut self, limit: usize) -> Result<usize, Fault> {
        let now = self.now();
        let found: bool = self
            .connection
            .prepare_cached("SELECT 1 FROM records WHERE expires_at <= ?1 LIMIT ?2")?
            .exists(params![now.0, to_integer(limit as u64)])?;
        if !found {
            return Ok(0);
        }
        let sql = "DELETE FROM records WHERE record_number IN \
             (SELECT record_number FROM records WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)";
        let mut statement = self.transaction()?.prepare_cached(sql)?;
        Ok(statement.execute(params![now.0, to_integer(limit as u64)])?)
    }
}

fn version(connection: &Connection, kind: &str, key: &str) -> Result<Option<u64>, Fault> {
    let sql = "SELECT version FROM records WHERE kind = ?1 AND key = ?2";
    let mut statement = connection.prepare_cached(sql)?;
    let version = statement.query_row([kind, key], |row| row.get(0)).optional()?;
    Ok(version.map(to_number))
}

/// The records with these keys.
pub(super) fn read(
    connection: &Connection,
    kind: &str,
    keys: &[Arc<str>],
) -> Result<Vec<Option<Record>>, Fault> {
    let sql = format!("SELECT {COLUMNS} FROM records WHERE kind = ?1 AND key = ?2");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        let mut rows = statement.query(params![kind, &**key])?;
        found.push(rows.next()?.map(read_row).transpose()?);
    }
    Ok(found)
}

/// Records in the order of their keys.
pub(super) fn list(connection: &Connection, query: &RecordQuery) -> Result<Vec<Record>, Fault> {
    let end = prefix_end(&query.prefix);
    let limit = to_integer(query.limit.min(PAGE_MAX) as u64);
    let prefix: &str = &query.prefix;
    let mut sql = format!("SELECT {COLUMNS} FROM records WHERE kind = :kind AND key >= :prefix");
    let mut values: Vec<(&str, &dyn ToSql)> =
        vec![(":kind", &query.kind), (":prefix", &prefix), (":limit", &limit)];
    if let Some(end) = &end {
        sql.push_str(" AND key < :end");
        values.push((":end", end));
    }
    if let Some(after) = &query.after {
        sql.push_str(if query.is_descending { " AND key < :after" } else { " AND key > :after" });
        values.push((":after", after));
    }
    sql.push_str(" ORDER BY key ");
    sql.push_str(if query.is_descending { "DESC" } else { "ASC" });
    sql.push_str(" LIMIT :limit");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(&*values)?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        records.push(read_row(row)?);
    }
    Ok(records)
}

fn read_row(row: &Row<'_>) -> Result<Record, Fault> {
    let value = row.get_ref(2)?.as_str().map_err(Fault::unreadable)?;
    let value: Payload = serde_json::from_str(value).map_err(Fault::unreadable)?;
    Ok(Record {
        key: row.get(0)?,
        version: to_number(row.get(1)?),
        value,
        written_at: Timestamp(row.get(3)?),
        expires_at: row.get::<_, Option<i64>>(4)?.map(Timestamp),
    })
}

/// The gates of flows that were ever set.
pub(super) fn gates(connection: &Connection) -> Result<Vec<(Arc<str>, GateStamp)>, Fault> {
    let sql = format!("SELECT {COLUMNS} FROM records WHERE kind = ?1");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([GATE])?;
    let mut gates = Vec::new();
    while let Some(row) = rows.next()? {
        let record = read_row(row)?;
        let gate = gate_of(Some(&record)).map_err(Fault::unreadable)?;
        gates.push((record.key, gate.stamp()));
    }
    Ok(gates)
}
