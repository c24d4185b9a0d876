//! Looking at one run.

use axum::Json;
use axum::extract::State;
use flowgate_core::limits::PAGE_MAX;
use utoipa_axum::routes;

use super::ops::log::Events;
use super::ops::{log, show, timeline, why};
use crate::auth::Scope;
use crate::error::ApiError;
use crate::host::Host;
use crate::path::Path;
use crate::query::{Query, invalid};
use crate::routes::Routes;
use crate::wire::Items;
use crate::wire::events::{AttemptItem, EventPage, LogPage};
use crate::wire::runs::RunFacts;
use crate::wire::why::Why;

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(Scope::Read, routes!(show_run))
        .add(Scope::Read, routes!(events))
        .add(Scope::Read, routes!(attempts))
        .add(Scope::Read, routes!(logs))
        .add(Scope::Read, routes!(why_run))
}

/// Show a run
///
/// All that is known about it but its log. Of a very long log only the last events are read:
/// `steps_complete` says whether that was all.
#[utoipa::path(get, path = "/runs/{run}", operation_id = "show_run", tag = "runs",
    params(("run" = String, Path, description = "A run id, its first 6 letters or more, or `latest`")),
    responses((status = 200, body = RunFacts), (status = 409, description = "More than one run begins like this.", body = crate::wire::ErrorBody)))]
async fn show_run(
    State(host): State<Host>,
    Path(run): Path<String>,
    query: Query,
) -> Result<Json<RunFacts>, ApiError> {
    query.end()?;
    show::show(&*host.store()?, &run).await.map(Json)
}

/// Show what happened in a run
#[utoipa::path(get, path = "/runs/{run}/events", operation_id = "list_events", tag = "runs",
    params(
        ("run" = String, Path, description = "A run id, its first 6 letters or more, or `latest`"),
        ("after" = Option<u64>, Query, description = "Only events with greater numbers"),
        ("before" = Option<u64>, Query, description = "Only events with smaller numbers; with `order=desc`"),
        ("order" = Option<String>, Query, description = "`asc`, the first first, or `desc`, the last first"),
        ("limit" = Option<u64>, Query, description = "At most this many; never more than 1000", minimum = 1),
    ),
    responses((status = 200, body = EventPage), (status = 409, description = "More than one run begins like this.", body = crate::wire::ErrorBody)))]
async fn events(
    State(host): State<Host>,
    Path(run): Path<String>,
    mut query: Query,
) -> Result<Json<EventPage>, ApiError> {
    let (after, before) = (query.number::<u64>("after")?, query.number::<u64>("before")?);
    let order = query.one("order")?;
    let limit = query.limit_to(PAGE_MAX)?;
    query.end()?;
    let wanted = match (order.as_deref(), after, before) {
        (None | Some("asc"), after, None) => Events::After(after.unwrap_or(0)),
        (Some("desc"), None, before) => Events::Before(before),
        (None | Some("asc"), _, Some(_)) => {
            return Err(invalid("before", "it goes with `order=desc`"));
        }
        (Some("desc"), Some(_), _) => {
            return Err(invalid("after", "it goes with `order=asc`; use `before`"));
        }
        (Some(_), _, _) => return Err(invalid("order", "it is `asc` or `desc`")),
    };
    log::events(&*host.store()?, &run, wanted, limit).await.map(Json)
}

/// Show the attempts of a run, one after the other
#[utoipa::path(get, path = "/runs/{run}/timeline", operation_id = "show_timeline", tag = "runs",
    params(("run" = String, Path, description = "A run id, its first 6 letters or more, or `latest`")),
    responses((status = 200, body = Items<AttemptItem>), (status = 409, description = "More than one run begins like this.", body = crate::wire::ErrorBody)))]
async fn attempts(
    State(host): State<Host>,
    Path(run): Path<String>,
    query: Query,
) -> Result<Json<Items<AttemptItem>>, ApiError> {
    query.end()?;
    timeline::timeline(&*host.store()?, &run).await.map(Json)
}

/// Show what the steps of a run logged
#[utoipa::path(get, path = "/runs/{run}/logs", operation_id = "list_logs", tag = "runs",
    params(
        ("run" = String, Path, description = "A run id, its first 6 letters or more, or `latest`"),
        ("after" = Option<u64>, Query, description = "Only lines with greater numbers"),
        ("step" = Option<String>, Query, description = "Only lines of this step"),
        ("limit" = Option<u64>, Query, description = "At most this many; never more than 1000", minimum = 1),
    ),
    responses((status = 200, body = LogPage), (status = 409, description = "More than one run begins like this.", body = crate::wire::ErrorBody)))]
async fn logs(
    State(host): State<Host>,
    Path(run): Path<String>,
    mut query: Query,
) -> Result<Json<LogPage>, ApiError> {
    let after = query.number::<u64>("after")?.unwrap_or(0);
    let step = query.one("step")?;
    let limit = query.limit_to(PAGE_MAX)?;
    query.end()?;
    log::logs(&*host.store()?, &run, (after, limit), step.as_deref()).await.map(Json)
}

/// Say why a run is not finished, or ended as it did
#[utoipa::path(get, path = "/runs/{run}/why", operation_id = "explain_run", tag = "runs",
    params(("run" = String, Path, description = "A run id, its first 6 letters or more, or `latest`")),
    responses((status = 200, body = Why), (status = 409, description = "More than one run begins like this.", body = crate::wire::ErrorBody)))]
async fn why_run(
    State(host): State<Host>,
    Path(run): Path<String>,
    query: Query,
) -> Result<Json<Why>, ApiError> {
    query.end()?;
    why::why(&host, &run).await.map(Json)
}
