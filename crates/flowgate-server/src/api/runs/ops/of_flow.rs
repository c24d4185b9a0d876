//! The runs of a flow, by their place in the list.

use flowgate_core::limits::PAGE_MAX;
use flowgate_store::Store;

use super::{item, run_query};
use crate::error::ApiError;
use crate::lookup;
use crate::query::invalid;
use crate::wire::runs::{FlowRuns, RunsQuery};

/// Runs that may be passed over; whoever wants to see more goes on by cursor.
const OFFSET_MAX: usize = 10_000;

/// The runs of `flow` in one of the statuses, the latest first, without the first `offset` of them.
///
/// Only runs that match are counted, so a page that is not the last one is full.
pub async fn of_flow(
    store: &dyn Store,
    flow: &str,
    status: Vec<String>,
    (offset, limit): (usize, usize),
) -> Result<FlowRuns, ApiError> {
    if offset > OFFSET_MAX {
        let why = format!("it is at most {OFFSET_MAX}; use `GET /runs?flow=` and its cursor");
        return Err(invalid("offset", &why));
    }
    lookup::revision(store, flow).await?;
    let wanted = RunsQuery { flow: Some(flow.to_owned()), status, ..RunsQuery::default() };
    let mut query = run_query(&wanted, store.now().await?)?;
    let total = store.count_runs(&query).await?;
    let mut passed = 0;
    while passed < offset {
        query.limit = (offset - passed).min(PAGE_MAX);
        let page = store.list_runs(&query).await?;
        let Some(last) = page.last() else { break };
        passed += page.len();
        query.after = Some(lookup::cursor_of(last));
    }
    // One row more than the page, to know whether there is another.
    query.limit = if passed < offset { 1 } else { limit + 1 };
    let mut rows = store.list_runs(&query).await?;
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    Ok(FlowRuns { items: rows.iter().map(item).collect(), total, has_more })
}
