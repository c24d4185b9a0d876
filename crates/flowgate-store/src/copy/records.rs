//! Copying records.
//!
//! They are written like any other record, if there is none with that key: the target gives them
//! versions of its own, and they end when they would have ended in the source.

use std::sync::Arc;

use flowgate_core::gate::Gate;
use flowgate_core::limits::PAGE_MAX;

use super::{CopyError, count};
use crate::control::{
    Expect, GATE, GateOutcome, RECORD_KINDS, RECORD_KINDS_OF_ONE_STORE, Record, RecordQuery,
    RecordWrite, RecordsOutcome, gate_of, over_limit,
};
use crate::{Store, StoreError};

/// The kinds that a copy takes along.
fn kinds() -> impl Iterator<Item = &'static str> {
    let is_taken = |kind: &&str| !RECORD_KINDS_OF_ONE_STORE.contains(kind);
    RECORD_KINDS.into_iter().filter(is_taken).chain([GATE])
}

/// How many records `store` holds that a copy takes along.
pub(super) async fn count_records(store: &dyn Store) -> Result<u64, StoreError> {
    let mut records = 0;
    for kind in kinds() {
        let mut after = None;
        loop {
            let page = page(store, kind, after).await?;
            records += count(page.len());
            let Some(last) = page.last().filter(|_| page.len() == PAGE_MAX) else { break };
            after = Some(Arc::clone(&last.key));
        }
    }
    Ok(records)
}

/// Copies what the target does not have: how many there are, and how many were written.
pub(super) async fn copy_records(
    from: &dyn Store,
    to: &dyn Store,
) -> Result<(u64, u64), CopyError> {
    let (mut read, mut written) = (0, 0);
    for kind in kinds() {
        let mut after = None;
        loop {
            let page = page(from, kind, after).await.map_err(CopyError::Source)?;
            read += count(page.len());
            after = page.last().filter(|_| page.len() == PAGE_MAX).map(|r| Arc::clone(&r.key));
            written += write(to, kind, page).await.map_err(CopyError::Target)?;
            if after.is_none() {
                break;
            }
        }
    }
    Ok((read, written))
}

async fn page(
    store: &dyn Store,
    kind: &'static str,
    after: Option<Arc<str>>,
) -> Result<Vec<Record>, StoreError> {
    let prefix = "".into();
    let query = RecordQuery { kind, prefix, after, is_descending: false, limit: PAGE_MAX };
    store.list_records(&query).await
}

/// Writes those that `to` does not have; how many these are.
async fn write(
    to: &dyn Store,
    kind: &'static str,
    records: Vec<Record>,
) -> Result<u64, StoreError> {
    let keys: Vec<Arc<str>> = records.iter().map(|record| Arc::clone(&record.key)).collect();
    let there = to.read_records(kind, &keys).await?;
    let absent = records.into_iter().zip(there).filter(|(_, there)| there.is_none());
    if kind == GATE {
        let gates: Vec<Record> = absent.map(|(gate, _)| gate).collect();
        return set_gates(to, &gates).await;
    }
    let now = to.now().await?;
    let mut writes: Vec<RecordWrite> = absent
        .map(|(record, _)| RecordWrite {
            kind,
            key: record.key,
            expect: Expect::Absent,
            value: Some(record.value),
            keep: record.expires_at.map(|at| at.since(now)),
        })
        .collect();
    let mut written = 0;
    while !writes.is_empty() {
        let fits = match over_limit(&writes) {
            Some(RecordsOutcome::TooLarge(index)) => index.max(1),
            Some(_) | None => writes.len(),
        };
        let rest = writes.split_off(fits);
        written += count(writes.len());
        match to.write_records(std::mem::replace(&mut writes, rest), None).await? {
            RecordsOutcome::Written(_) => {}
            outcome @ (RecordsOutcome::Changed(_)
            | RecordsOutcome::TermLost
            | RecordsOutcome::TooLarge(_)) => {
                let message = format!("somebody writes records of the kind {kind}: {outcome:?}");
                return Err(StoreError::Unavailable { message, source: None });
            }
        }
    }
    Ok(written)
}

/// A gate begins in the target with its first generation there.
async fn set_gates(to: &dyn Store, gates: &[Record]) -> Result<u64, StoreError> {
    for record in gates {
        let gate = Gate { generation: 1, ..gate_of(Some(record))? };
        let outcome = to.set_gate(&record.key, &gate, false).await?;
        if outcome != GateOutcome::Set {
            let message = format!("somebody sets the gate of `{}`", record.key);
            return Err(StoreError::Unavailable { message, source: None });
        }
    }
    Ok(count(gates.len()))
}
