//! Moving runs to another revision.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowgate_core::decide::Rejection;
use flowgate_core::ids::Revision;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::{Run, RunStatus};
use flowgate_engine::{Engine, EngineError, MoveTo};
use flowgate_store::{RunQuery, Store};
use futures_util::{StreamExt, stream};

use super::bulk::{AT_ONCE, max_of};
use super::run_query;
use crate::error::ApiError;
use crate::lookup;
use crate::wire::moves::{MigrateRun, MigrateRuns, MoveItem, RunsMoved, StayItem};
use crate::wire::runs::RunsQuery;

/// The word for the revision that new runs start on.
const ACTIVE: &str = "active";
/// The statuses in which a run can be moved.
const MOVABLE: [RunStatus; 2] = [RunStatus::Running, RunStatus::Waiting];

/// Moves the run that `name` names. One that is there already stays so.
pub async fn migrate(
    engine: &Engine,
    name: &str,
    request: MigrateRun,
) -> Result<MoveItem, ApiError> {
    let store = &**engine.store();
    let run_id = lookup::run_id(store, name).await?;
    let run = lookup::run(store, run_id).await?.row.run;
    let revision = revision(store, &run.flow, &request.revision).await?;
    let to = MoveTo { revision, steps: request.steps };
    match deal(engine, &run, &to, request.dry_run).await {
        Err(EngineError::Rejected(Rejection::NothingToDo)) => Ok(MoveItem {
            run_id,
            flow: run.flow.to_string(),
            from: to.revision.clone(),
            to: to.revision,
            at: Vec::new(),
            steps: Vec::new(),
            starts: Vec::new(),
            existed: true,
        }),
        other => Ok(other?),
    }
}

/// Moves all runs that match, the latest first, up to a bound.
pub async fn migrate_many(engine: &Engine, request: MigrateRuns) -> Result<RunsMoved, ApiError> {
    let max = max_of(request.max)?;
    let store = &**engine.store();
    let to = revision(store, &request.flow, &request.revision).await?;
    let from = match &request.from {
        None => None,
        Some(from) => Some(revision(store, &request.flow, from).await?),
    };
    let query = query_of(store, &request).await?;
    let is_meant =
        |run: &Run| run.revision != to && from.as_ref().is_none_or(|from| run.revision == *from);
    let (runs, more) = find(store, query, max, is_meant).await?;
    let to = MoveTo { revision: to, steps: request.steps };
    let mut done =
        RunsMoved { to: to.revision.clone(), moved: Vec::new(), stayed: Vec::new(), more };
    let (to, dry_run) = (&to, request.dry_run);
    let moving = |run: Arc<Run>| async move {
        let dealt = deal(engine, &run, to, dry_run).await;
        (run, dealt)
    };
    let mut dealt = stream::iter(runs).map(moving).buffered(AT_ONCE);
    while let Some((run, outcome)) = dealt.next().await {
        match outcome {
            Ok(item) => done.moved.push(item),
            // Somebody has moved it meanwhile.
            Err(EngineError::Rejected(Rejection::NothingToDo)) => {}
            Err(error) => {
                let reason = if let EngineError::NoPlace { reason, .. } = &error {
                    Some(reason.clone())
                } else {
                    None
                };
                let error = ApiError::from(error);
                if error.status == axum::http::StatusCode::SERVICE_UNAVAILABLE
                    && done.moved.is_empty()
                {
                    return Err(error);
                }
                done.stayed.push(StayItem {
                    run_id: run.run_id,
                    revision: run.revision.clone(),
                    code: error.code.into_owned(),
                    reason: reason.unwrap_or(error.message),
                });
            }
        }
    }
    Ok(done)
}

async fn deal(
    engine: &Engine,
    run: &Run,
    to: &MoveTo,
    dry_run: bool,
) -> Result<MoveItem, EngineError> {
    let done = if dry_run {
        engine.plan_move(run, to).await?
    } else {
        engine.move_run(run.run_id, to).await?
    };
    Ok(MoveItem::from(done))
}

/// The revision of a flow that a text names.
async fn revision(store: &dyn Store, flow: &str, text: &str) -> Result<Revision, ApiError> {
    let name = if text == ACTIVE { flow.to_owned() } else { format!("{flow}@{text}") };
    Ok(lookup::revision(store, &name).await?.revision.revision)
}

async fn query_of(store: &dyn Store, request: &MigrateRuns) -> Result<RunQuery, ApiError> {
    let tags: &BTreeMap<String, String> = &request.tags;
    let wanted = RunsQuery {
        flow: Some(request.flow.clone()),
        status: request.status.clone(),
        tag: tags.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        ..RunsQuery::default()
    };
    let mut query = run_query(&wanted, store.now().await?).map_err(ApiError::of_field)?;
    if let Some(status) = query.statuses.iter().find(|status| !MOVABLE.contains(status)) {
        let message = format!(
            "a run that is {} cannot be moved; only running and waiting ones can",
            status.as_str()
        );
        return Err(ApiError::invalid("field_invalid", message).path("status"));
    }
    if query.statuses.is_empty() {
        query.statuses = MOVABLE.to_vec();
    }
    Ok(query)
}

/// The runs that match, up to a bound, and whether there are more.
async fn find(
    store: &dyn Store,
    mut query: RunQuery,
    max: usize,
    is_meant: impl Fn(&Run) -> bool,
) -> Result<(Vec<Arc<Run>>, bool), ApiError> {
    query.limit = PAGE_MAX;
    let mut found = Vec::new();
    loop {
        let page = store.list_runs(&query).await?;
        let next = page.last().filter(|_| page.len() == PAGE_MAX).map(lookup::cursor_of);
        for row in page.into_iter().filter(|row| is_meant(&row.run)) {
            if found.len() == max {
                return Ok((found, true));
            }
            found.push(row.run);
        }
        match next {
            Some(next) => query.after = Some(next),
            None => return Ok((found, false)),
        }
    }
}
