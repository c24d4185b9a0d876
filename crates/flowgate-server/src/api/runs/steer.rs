//! Changing what becomes of one run.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use utoipa_axum::routes;

use super::ops::{bulk, moves, steer};
use crate::auth::Scope;
use crate::body::{self, PAYLOAD_BODY_BYTES_MAX};
use crate::error::ApiError;
use crate::host::Host;
use crate::path::Path;
use crate::routes::Routes;
use crate::wire::bulk::{Bulk, BulkDone};
use crate::wire::moves::{MigrateRun, MigrateRuns, MoveItem, RunsMoved};
use crate::wire::runs::{CancelRun, RetryRun, RunRef, SignalRun, Signalled};

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(Scope::Run, routes!(cancel))
        .add(Scope::Run, routes!(retry))
        .add(Scope::Run, routes!(signal))
        .add(Scope::Run, routes!(deal))
        .add(Scope::Run, routes!(migrate))
        .add(Scope::Run, routes!(migrate_many))
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

/// Move an open run to another revision of its flow
///
/// What has happened stays, and what is open is done there: what is under way is given up. With
/// `dry_run` it says where the run would go on and changes nothing. To move one that is there
/// already changes nothing.
#[utoipa::path(post, path = "/runs/{run}/migrate", operation_id = "migrate_run", tag = "runs",
    params(("run" = String, Path, description = "A run id, its first 6 letters or more, or `latest`")),
    request_body = MigrateRun, responses((status = 200, body = MoveItem)))]
async fn migrate(
    State(host): State<Host>,
    Path(run): Path<String>,
    body::Json(request): body::Json<MigrateRun>,
) -> Result<Json<MoveItem>, ApiError> {
    moves::migrate(&host.engine()?, &run, request).await.map(Json)
}

/// Move many open runs of a flow to another revision
///
/// Moves all runs that match, the latest first, up to `max`; those that have no place there stay,
/// and the answer says why. With `dry_run` it says what would become of each and changes nothing.
#[utoipa::path(post, path = "/runs/migrate", operation_id = "migrate_runs", tag = "runs",
    request_body = MigrateRuns, responses((status = 200, body = RunsMoved)))]
async fn migrate_many(
    State(host): State<Host>,
    body::Json(request): body::Json<MigrateRuns>,
) -> Result<Json<RunsMoved>, ApiError> {
    moves::migrate_many(&host.engine()?, request).await.map(Json)
}
