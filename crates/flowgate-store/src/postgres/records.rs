//! Records: small documents that are written together, under a term if need be.

use std::collections::HashMap;
use std::sync::Arc;

use flowgate_core::gate::Gate;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::payload::Payload;
use flowgate_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::fault::Fault;
use super::pool::Param;
use super::rows::{column, storable, to_int4, to_integer, to_ms, to_number};
use crate::StoreError;
use crate::control::{
    Expect, GateOutcome, Record, RecordQuery, RecordWrite, RecordsOutcome, TermRef, over_limit,
    prefix_end,
};

/// The columns that [`read_record`] takes.
const COLUMNS: &str = "key, version, value, written_at, expires_at";
pub(super) const DOING: &str = "writing records";

impl PostgresStore {
    pub(super) async fn write_all(
        &self,
        writes: &[RecordWrite],
        under: Option<&TermRef>,
    ) -> Result<RecordsOutcome, StoreError> {
        if let Some(refused) = over_limit(writes) {
            return Ok(refused);
        }
        let writes = Writes::of(writes, under);
        let row = self.pool.call_one(DOING, &self.sql.write_records, &writes.params()).await?;
        read_outcome(&row).map_err(|fault| fault.into_error(DOING))
    }

    pub(super) async fn put_gate(
        &self,
        flow: &Arc<str>,
        gate: &Gate,
        only_if_empty: bool,
    ) -> Result<GateOutcome, StoreError> {
        let doing = "setting a gate";
        let generation = to_integer(gate.generation);
        let value = serde_json::to_string(gate).expect("a gate has a JSON form");
        let params = [
            (&&**flow as _, Type::TEXT),
            (&generation as _, Type::INT8),
            (&value as _, Type::TEXT),
            (&only_if_empty as _, Type::BOOL),
        ];
        let row = self.pool.call_one(doing, &self.sql.set_gate, &params).await?;
        let outcome: i16 = column(&row, 0).map_err(|fault| fault.into_error(doing))?;
        Ok(match outcome {
            0 => GateOutcome::Set,
            1 => GateOutcome::Changed,
            _ => GateOutcome::HoldsRuns,
        })
    }

    pub(super) async fn records_at(
        &self,
        kind: &str,
        keys: &[Arc<str>],
    ) -> Result<Vec<Option<Record>>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let doing = "reading records";
        let sql = format!(
            "SELECT {COLUMNS} FROM \"{}\".records WHERE kind = $1 AND key = ANY ($2)",
            self.options.schema
        );
        let wanted: Vec<_> = keys.iter().map(|key| storable(key)).collect();
        let params = [(&kind as _, Type::TEXT), (&wanted as _, Type::TEXT_ARRAY)];
        let rows = self.pool.call(doing, &sql, &params).await?;
        let found: Result<Vec<Record>, Fault> = rows.iter().map(read_record).collect();
        let found = found.map_err(|fault| fault.into_error(doing))?;
        let found: HashMap<&str, &Record> =
            found.iter().map(|record| (&*record.key, record)).collect();
        Ok(keys.iter().map(|key| found.get(&**key).map(|record| (*record).clone())).collect())
    }

    pub(super) async fn records_of(&self, query: &RecordQuery) -> Result<Vec<Record>, StoreError> {
        let doing = "listing records";
        // A cursor is at or after the start of the range, or before it and does not matter.
        let (past, order) = if query.is_descending { ("<", "DESC") } else { (">", "ASC") };
        let sql = format!(
            "SELECT {COLUMNS} FROM \"{schema}\".records \
             WHERE kind = $1 AND key >= $2 AND ($3::text IS NULL OR key < $3) \
             AND ($4::text IS NULL OR key {past} $4) \
             ORDER BY key {order} LIMIT $5",
            schema = self.options.schema
        );
        let end = prefix_end(&query.prefix);
        let after = query.after.as_deref();
        let limit = i64::from(to_int4(query.limit.min(PAGE_MAX)));
        let params = [
            (&query.kind as _, Type::TEXT),
            (&&*query.prefix as _, Type::TEXT),
            (&end as _, Type::TEXT),
            (&after as _, Type::TEXT),
            (&limit as _, Type::INT8),
        ];
        let rows = self.pool.call(doing, &sql, &params).await?;
        let records: Result<Vec<Record>, Fault> = rows.iter().map(read_record).collect();
        records.map_err(|fault| fault.into_error(doing))
    }
}

/// Writes of records as columns, and the term that they need.
pub(super) struct Writes<'a> {
    kinds: Vec<&'a str>,
    keys: Vec<&'a str>,
    expects: Vec<Option<i64>>,
    values: Vec<Option<&'a str>>,
    keeps_ms: Vec<Option<i64>>,
    term_name: Option<&'a str>,
    term_number: Option<i64>,
}

impl<'a> Writes<'a> {
    /// The columns of writes that are within the limits.
    pub(super) fn of(writes: &'a [RecordWrite], under: Option<&'a TermRef>) -> Self {
        let expect = |expect| match expect {
            Expect::Anything => None,
            Expect::Absent => Some(0),
            Expect::Version(version) => Some(to_integer(version)),
        };
        Self {
            kinds: writes.iter().map(|write| write.kind).collect(),
            keys: writes.iter().map(|write| &*write.key).collect(),
            expects: writes.iter().map(|write| expect(write.expect)).collect(),
            values: writes.iter().map(|write| write.value.as_ref().map(Payload::get)).collect(),
            keeps_ms: writes.iter().map(|write| write.keep.map(to_ms)).collect(),
            term_name: under.map(|term| &*term.name),
            term_number: under.map(|term| to_integer(term.number)),
        }
    }

    pub(super) fn params(&self) -> [Param<'_>; 7] {
        [
            (&self.kinds, Type::TEXT_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.expects, Type::INT8_ARRAY),
            (&self.values, Type::TEXT_ARRAY),
            (&self.keeps_ms, Type::INT8_ARRAY),
            (&self.term_name, Type::TEXT),
            (&self.term_number, Type::INT8),
        ]
    }
}

/// What the function `write_records` answered.
pub(super) fn read_outcome(row: &Row) -> Result<RecordsOutcome, Fault> {
    if column(row, 0)? {
        return Ok(RecordsOutcome::TermLost);
    }
    if let Some(changed) = column::<Option<i32>>(row, 1)? {
        // Places begin at 1 there.
        let place = usize::try_from(changed - 1).map_err(Fault::unreadable)?;
        return Ok(RecordsOutcome::Changed(place));
    }
    let versions: Vec<i64> = column(row, 2)?;
    Ok(RecordsOutcome::Written(versions.into_iter().map(to_number).collect()))
}

fn read_record(row: &Row) -> Result<Record, Fault> {
    Ok(Record {
        key: column::<&str>(row, 0)?.into(),
        version: to_number(column(row, 1)?),
        value: Payload::parse(column(row, 2)?).map_err(Fault::unreadable)?,
        written_at: Timestamp(column(row, 3)?),
        expires_at: column::<Option<i64>>(row, 4)?.map(Timestamp),
    })
}
