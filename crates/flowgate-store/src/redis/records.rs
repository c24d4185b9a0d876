//! Records: small documents by kind and key. All of them are in the first partition, so that one
//! script writes any set of them under any term.
//!
//! A write whose reply was lost may have been applied. Whoever sent it reads the record again: a
//! version that it knows not to be its own, or the value, tells which it is. A second sending with
//! an expectation is answered `Changed` and does no harm.

use std::sync::Arc;

use flowgate_core::limits::PAGE_MAX;
use flowgate_core::payload::Payload;
use flowgate_core::time::Timestamp;
use redis::Cmd;

use super::range::Range;
use super::script::{self, Reply, parse};
use super::{RedisStore, fault, millis};
use crate::StoreError;
use crate::control::{Expect, Record, RecordQuery, RecordWrite, RecordsOutcome, TermRef};

/// Bytes of values that one call brings, but for the last.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Keys that one call reads.
const KEYS_MAX: usize = 1_000;

impl RedisStore {
    /// Writes all or nothing.
    pub(super) async fn put_records(
        &self,
        writes: &[RecordWrite],
        under: Option<&TermRef>,
    ) -> Result<RecordsOutcome, StoreError> {
        let write = |command: &mut Cmd| {
            match under {
                Some(term) => command.arg(&*term.name).arg(term.number),
                None => command.arg("").arg(0),
            };
            command.arg(writes.len());
            for write in writes {
                command.arg(write.kind).arg(&*write.key);
                match write.expect {
                    Expect::Anything => command.arg("*"),
                    Expect::Absent => command.arg("-"),
                    Expect::Version(version) => command.arg(version),
                };
                command.arg(u8::from(write.value.is_none()));
                command.arg(write.value.as_ref().map_or("", Payload::get));
                command.arg(write.keep.map(|keep| millis(keep).to_string()).unwrap_or_default());
            }
        };
        let prefix = self.partitions.prefix(0);
        let answer = self.run("writing records", &script::WRITE_RECORDS, prefix, write).await?;
        let mut reply = Reply::of(answer)?;
        match reply.number::<u8>()? {
            0 => {
                let last: u64 = reply.number()?;
                Ok(RecordsOutcome::Written(
                    (last + 1 - super::count(writes.len())..=last).collect(),
                ))
            }
            1 => reply.number().map(RecordsOutcome::Changed),
            2 => Ok(RecordsOutcome::TermLost),
            other => Err(fault::unreadable(format_args!("the outcome {other}"))),
        }
    }

    /// The records with these keys.
    pub(super) async fn records(
        &self,
        kind: &str,
        keys: &[Arc<str>],
    ) -> Result<Vec<Option<Record>>, StoreError> {
        let mut records = Vec::with_capacity(keys.len());
        while records.len() < keys.len() {
            let left = &keys[records.len()..];
            let asked = &left[..left.len().min(KEYS_MAX)];
            let write = |command: &mut Cmd| {
                command.arg(kind).arg(PAGE_BYTES_MAX).arg(asked.len());
                for key in asked {
                    command.arg(&**key);
                }
            };
            let prefix = self.partitions.prefix(0);
            let answer = self.run("reading records", &script::READ_RECORDS, prefix, write).await?;
            let mut reply = Reply::of(answer)?;
            let before = records.len();
            while reply.left() > 0 && records.len() < keys.len() {
                let key = &keys[records.len()];
                records.push(decode_record(key, reply.text()?, reply.text()?)?);
            }
            if records.len() == before {
                return Err(fault::unreadable("fewer records than were asked for"));
            }
        }
        Ok(records)
    }

    /// Records in the order of their keys.
    pub(super) async fn page_of_records(
        &self,
        query: &RecordQuery,
    ) -> Result<Vec<Record>, StoreError> {
        let limit = query.limit.min(PAGE_MAX);
        let mut records: Vec<Record> = Vec::new();
        while records.len() < limit {
            let after = records.last().map(|record| &record.key).or(query.after.as_ref());
            let after = after.map(|key| &**key);
            let (range, order) = if query.is_descending {
                (Range::descending(&query.prefix, after), "ZREVRANGEBYLEX")
            } else {
                (Range::ascending(&query.prefix, after), "ZRANGEBYLEX")
            };
            let left = limit - records.len();
            let write = |command: &mut Cmd| {
                command.arg(query.kind).arg(&range.begin).arg(&range.end).arg(order);
                command.arg(left).arg(PAGE_BYTES_MAX);
            };
            let prefix = self.partitions.prefix(0);
            let answer = self.run("listing records", &script::LIST_RECORDS, prefix, write).await?;
            let mut reply = Reply::of(answer)?;
            let has_more = reply.number::<u8>()? == 1;
            while reply.left() > 0 {
                let key = reply.word()?.into();
                let record = decode_record(&key, reply.text()?, reply.text()?)?;
                records.push(record.ok_or_else(|| fault::unreadable("a key without a record"))?);
            }
            if !has_more {
                break;
            }
        }
        Ok(records)
    }

    /// Removes records that have expired, at most `limit`, and says how many.
    pub(super) async fn sweep_records(&self, limit: u64) -> Result<u64, StoreError> {
        let write = |command: &mut Cmd| {
            command.arg(limit);
        };
        let prefix = self.partitions.prefix(0);
        let answer = self.run("sweeping records", &script::SWEEP_RECORDS, prefix, write).await?;
        Reply::of(redis::Value::Array(vec![answer]))?.number()
    }
}

/// A record as `write_records.lua` keeps it: `VERSION;WRITTEN;EXPIRES`, and its value.
fn decode_record(
    key: &Arc<str>,
    head: Option<String>,
    value: Option<String>,
) -> Result<Option<Record>, StoreError> {
    let (head, value) = match (head, value) {
        (Some(head), Some(value)) => (head, value),
        (None, None) => return Ok(None),
        (Some(_), None) | (None, Some(_)) => return Err(fault::unreadable("half a record")),
    };
    let mut parts = head.splitn(3, ';');
    let mut part = || parts.next().ok_or_else(|| fault::unreadable("half a record"));
    let (version, written_at) = (parse(part()?)?, Timestamp(parse(part()?)?));
    let expires = part()?;
    let expires_at = (!expires.is_empty()).then(|| parse(expires)).transpose()?.map(Timestamp);
    let value = serde_json::from_str(&value);
    let value = value.map_err(|error| super::rows::damaged("the value of a record", error))?;
    Ok(Some(Record { key: Arc::clone(key), version, value, written_at, expires_at }))
}
