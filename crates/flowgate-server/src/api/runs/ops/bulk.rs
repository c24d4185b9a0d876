//! Many runs at once.

use flowgate_core::decide::Rejection;
use flowgate_core::ids::RunId;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::RunStatus;
use flowgate_engine::{Engine, EngineError, RetryOn};
use flowgate_store::{RunQuery, Store};
use futures_util::{StreamExt, stream};

use super::run_query;
use crate::error::ApiError;
use crate::lookup;
use crate::wire::bulk::{Bulk, BulkAction, BulkDone, BulkFailure, BulkItem};
use crate::wire::runs::RunsQuery;

/// Runs that are dealt with if nobody says how many.
const MAX_DEFAULT: u64 = 1_000;
/// Runs that may be dealt with by one request.
const MAX: u64 = 10_000;
/// Runs that are dealt with at the same time.
pub(super) const AT_ONCE: usize = 16;

/// Deals with all runs that match, the latest first, up to a bound.
pub async fn bulk(engine: &Engine, request: Bulk) -> Result<BulkDone, ApiError> {
    let max = max_of(request.max)?;
    super::steer::check_reason(request.reason.as_deref())?;
    let store = &**engine.store();
    let query = query_of(store, &request).await?;
    let matched = store.count_runs(&query).await?;
    let runs = find(store, query, max).await?;
    let mut tally = BulkDone { matched, ..BulkDone::default() };
    if request.dry_run {
        let item = |(run_id, _)| BulkItem { run_id, new_run_id: None };
        tally.done = runs.into_iter().map(item).collect();
    } else {
        carry_out(engine, &request, runs, &mut tally).await;
    }
    let dealt = u64::try_from(tally.done.len() + tally.failed.len()).unwrap_or(u64::MAX);
    tally.left = matched.saturating_sub(dealt);
    Ok(tally)
}

/// How many runs one request deals with.
pub(super) fn max_of(max: Option<u64>) -> Result<usize, ApiError> {
    let max = max.unwrap_or(MAX_DEFAULT);
    if !(1..=MAX).contains(&max) {
        let message = format!("`max` is {max}; it must be from 1 to {MAX}");
        return Err(ApiError::invalid("out_of_range", message).path("max"));
    }
    Ok(usize::try_from(max).unwrap_or(usize::MAX))
}

/// The statuses in which a run can be dealt with so.
fn statuses_for(action: BulkAction) -> &'static [RunStatus] {
    match action {
        BulkAction::Cancel => &RunStatus::OPEN,
        BulkAction::Retry => &[RunStatus::Failed, RunStatus::Cancelled],
    }
}

async fn query_of(store: &dyn Store, request: &Bulk) -> Result<RunQuery, ApiError> {
    let filter = &request.filter;
    let wanted = RunsQuery {
        flow: filter.flow.clone(),
        status: filter.status.clone(),
        tag: filter.tags.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        since: filter.since.clone(),
        until: filter.until.clone(),
        ..RunsQuery::default()
    };
    let mut query = run_query(&wanted, store.now().await?).map_err(ApiError::of_field)?;
    let possible = statuses_for(request.action);
    if let Some(status) = query.statuses.iter().find(|status| !possible.contains(status)) {
        let names: Vec<&str> = possible.iter().map(|status| status.as_str()).collect();
        let message = format!(
            "a run that is {} cannot be dealt with so; only {} can",
            status.as_str(),
            names.join(" and ")
        );
        return Err(ApiError::invalid("field_invalid", message).path("filter.status"));
    }
    if query.statuses.is_empty() {
        // Whoever cancelled a run did not want it; it is tried again only if it is named.
        query.statuses = match request.action {
            BulkAction::Cancel => possible.to_vec(),
            BulkAction::Retry => vec![RunStatus::Failed],
        };
    }
    Ok(query)
}

async fn find(
    store: &dyn Store,
    mut query: RunQuery,
    max: usize,
) -> Result<Vec<(RunId, RunStatus)>, ApiError> {
    let mut found = Vec::new();
    loop {
        query.limit = (max - found.len()).min(PAGE_MAX);
        let page = store.list_runs(&query).await?;
        found.extend(page.iter().map(|row| (row.run.run_id, row.run.status)));
        match page.last() {
            Some(last) if page.len() == query.limit && found.len() < max => {
                query.after = Some(lookup::cursor_of(last));
            }
            Some(_) | None => return Ok(found),
        }
    }
}

async fn carry_out(
    engine: &Engine,
    request: &Bulk,
    runs: Vec<(RunId, RunStatus)>,
    tally: &mut BulkDone,
) {
    let deal = |(run_id, status)| async move {
        let dealt = match request.action {
            BulkAction::Cancel => cancel(engine, run_id, request.reason.as_deref()).await,
            BulkAction::Retry => retry(engine, run_id, status).await,
        };
        (run_id, dealt)
    };
    let mut dealt = stream::iter(runs).map(deal).buffered(AT_ONCE);
    while let Some((run_id, outcome)) = dealt.next().await {
        match outcome.map_err(ApiError::from) {
            Ok(new_run_id) => tally.done.push(BulkItem { run_id, new_run_id }),
            Err(error) => {
                // Whoever cannot do it now cannot do the rest either.
                let is_pointless = error.status == axum::http::StatusCode::SERVICE_UNAVAILABLE;
                let (code, message) = (error.code.into_owned(), error.message);
                tally.failed.push(BulkFailure { run_id, code, message });
                if is_pointless {
                    return;
                }
            }
        }
    }
}

async fn cancel(
    engine: &Engine,
    run_id: RunId,
    reason: Option<&str>,
) -> Result<Option<RunId>, EngineError> {
    match engine.cancel(run_id, reason).await {
        Ok(_) | Err(EngineError::Rejected(Rejection::RunEnded(RunStatus::Cancelled))) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn retry(
    engine: &Engine,
    run_id: RunId,
    status: RunStatus,
) -> Result<Option<RunId>, EngineError> {
    // A request that is sent again must not try a failed run twice.
    let started = if status == RunStatus::Failed {
        engine.retry_dead_letter(run_id, &RetryOn::Pinned).await?
    } else {
        engine.retry(run_id, None, &RetryOn::Pinned).await?
    };
    Ok(Some(started.run_id))
}
