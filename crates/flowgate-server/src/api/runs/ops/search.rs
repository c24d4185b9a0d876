//! Runs by what a person remembers of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use flowgate_core::ids::RunId;
use flowgate_core::limits::{KEY_BYTES_MAX, PAGE_MAX};
use flowgate_store::{RunQuery, RunRow, Store};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::error::ApiError;
use crate::lookup;

/// Letters of an id that are looked for.
const PREFIX_LETTERS_MIN: usize = 4;
/// Runs that are looked through, the latest first.
const RUNS_MAX: usize = 20_000;
/// Flows whose runs are looked for by a key.
const FLOWS_MAX: usize = 1_000;
/// Runs that are read at the same time.
const AT_ONCE: usize = 16;

/// The runs that match `query` and whose id begins with `text`, or whose key it is.
pub(super) async fn search(
    store: &dyn Store,
    query: &RunQuery,
    text: &str,
    limit: usize,
) -> Result<Vec<RunRow>, ApiError> {
    let mut found = by_key(store, query, text).await?;
    let prefix = text.to_ascii_lowercase();
    let is_hex = prefix.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    if is_hex && prefix.len() >= PREFIX_LETTERS_MIN {
        by_prefix(store, query, &prefix, (&mut found, limit)).await?;
    }
    found.truncate(limit);
    Ok(found)
}

/// The id of a run follows from its flow and its key.
async fn by_key(store: &dyn Store, query: &RunQuery, key: &str) -> Result<Vec<RunRow>, ApiError> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Ok(Vec::new());
    }
    let flows: BTreeSet<Arc<str>> = if let Some(flow) = &query.flow {
        BTreeSet::from([Arc::clone(flow)])
    } else {
        let all = store.list_revisions(None).await?;
        all.iter().map(|stored| stored.revision.file.flow.as_str().into()).collect()
    };
    let read = |flow: Arc<str>| store.read_run(RunId::derived(&flow, key));
    let reads = stream::iter(flows.into_iter().take(FLOWS_MAX).map(read)).buffered(AT_ONCE);
    let found: Vec<_> = reads.try_collect().await?;
    let rows = found.into_iter().flatten().map(|detail| detail.row);
    Ok(rows.filter(|row| matches(query, row)).collect())
}

async fn by_prefix(
    store: &dyn Store,
    query: &RunQuery,
    prefix: &str,
    (found, limit): (&mut Vec<RunRow>, usize),
) -> Result<(), ApiError> {
    let mut query = RunQuery { limit: PAGE_MAX, after: None, ..query.clone() };
    let mut seen = 0;
    while seen < RUNS_MAX && found.len() < limit {
        let page = store.list_runs(&query).await?;
        seen += page.len();
        query.after = page.last().map(lookup::cursor_of);
        let is_last = page.len() < PAGE_MAX;
        for row in page {
            let run_id = row.run.run_id;
            let is_new = found.iter().all(|other| other.run.run_id != run_id);
            if is_new && run_id.to_string().starts_with(prefix) {
                found.push(row);
            }
        }
        if is_last {
            return Ok(());
        }
    }
    Ok(())
}

/// Whether the query would list the run, its cursor aside.
fn matches(query: &RunQuery, row: &RunRow) -> bool {
    let run = &row.run;
    query.flow.as_ref().is_none_or(|flow| *flow == run.flow)
        && (query.statuses.is_empty() || query.statuses.contains(&run.status))
        && query.since.is_none_or(|since| row.started_at >= since)
        && query.until.is_none_or(|until| row.started_at < until)
        && query.tags.iter().all(|(name, value)| run.tags.get(name) == Some(value))
}
