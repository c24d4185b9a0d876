//! Changing what becomes of one run.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use utoipa_axum::routes;

use super::ops::{bulk, steer};
use crate::auth::Scope;
use crate::body::{self, PAYLOAD_BODY_BYTES_MAX};
use crate::error::ApiError;
use crate::host::Host;
use crate::path::Path;
use crate::routes::Routes;
use crate::wire::bulk::{Bulk, BulkDone};
use crate::wire::runs::{CancelRun, RetryRun, RunRef, SignalRun, Signalled};

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(Scope::Run, routes!(cancel))
        .add(Scope::Run, routes!(retry))
        .add(Scope::Run, routes!(signal))
        .add(Scope::Run, routes!(deal))
}

/// Stop a run for good
///
/// To cancel one that is cancelled changes nothing.
#[utoipa::path(post, path = "/runs/{run}/cancel", operation_id = "cancel_run", tag = "runs",
    params(("run" = String, Path, description = "A run id, its first 6 letters or more, or `latest`")),
    request_body = CancelRun, responses((status = 200, body = RunRef)))]
async fn cancel(
    State(host): State<Host>,
    Path(run): Path<String>,
    body::OptionalJson(request): body::OptionalJson<CancelRun>,
) -> Result<Json<RunRef>, ApiError> {
    steer::cancel(&host.engine()?, &run, request).await.map(Json)
}

/// Try a finished run again, as a new run
///
/// The new run takes over what succeeded and does the rest.
#[utoipa::path(post, path = "/runs/{run}/retry", operation_id = "retry_run", tag = "runs",
    params(("run" = String, Path, description = "A run id, its first 6 letters or more, or `latest`")),
    request_body = RetryRun, responses((status = 201, description = "The new run.", body = RunRef)))]
async fn retry(
    State(host): State<Host>,
    Path(run): Path<String>,
    body::OptionalJson(request): body::OptionalJson<RetryRun>,
) -> Result<(StatusCode, Json<RunRef>), ApiError> {
    let started = steer::retry(&host.engine()?, &run, request).await?;
    Ok((StatusCode::CREATED, Json(started)))
}

/// Send a run a signal that a step of it waits for
#[utoipa::path(post, path = "/runs/{run}/signal", operation_id = "signal_run", tag = "runs",
    params(("run" = String, Path, description = "A run id, its first 6 letters or more, or `latest`")),
    request_body = SignalRun, responses((status = 200, body = Signalled)))]
async fn signal(
    State(host): State<Host>,
    Path(run): Path<String>,
    body::Json(request): body::Json<SignalRun, PAYLOAD_BODY_BYTES_MAX>,
) -> Result<Json<Signalled>, ApiError> {
    steer::signal(&host.engine()?, &run, request).await.map(Json)
}

/// Cancel or retry many runs
///
/// Deals with all runs that match, the latest first, up to `max`; with `dry_run` it says which they
/// are and changes nothing.
#[utoipa::path(post, path = "/runs/bulk", operation_id = "deal_with_runs", tag = "runs",
    request_body = Bulk, responses((status = 200, body = BulkDone)))]
async fn deal(
    State(host): State<Host>,
    body::Json(request): body::Json<Bulk>,
) -> Result<Json<BulkDone>, ApiError> {
    bulk::bulk(&host.engine()?, request).await.map(Json)
}
