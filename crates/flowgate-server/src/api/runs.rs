//! `/runs`.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use utoipa_axum::routes;

use crate::auth::Scope;
use crate::body::{self, PAYLOAD_BODY_BYTES_MAX};
use crate::error::ApiError;
use crate::host::Host;
use crate::path::Path;
use crate::query::Query;
use crate::routes::Routes;
use crate::wire::CountedPage;
use crate::wire::runs::{FlowRuns, RunItem, RunRef, RunsQuery, StartRun};

mod export;
mod follow;
pub mod ops;
mod read;
mod steer;

pub(super) fn add(routes: Routes) -> Routes {
    let routes = routes.add(Scope::Run, routes!(start)).add(Scope::Read, routes!(list));
    let routes = routes.add(Scope::Read, routes!(list_of_flow));
    steer::add(follow::add(export::add(read::add(routes))))
}

/// Start a run
///
/// The same `key` for the same flow gives the same run; the header `Idempotency-Key` is another way
/// to send it.
#[utoipa::path(post, path = "/runs", tag = "runs", request_body = StartRun,
    responses((status = 201, description = "It is stored.", body = RunRef), (status = 200, description = "It was there before.", body = RunRef)))]
async fn start(
    State(host): State<Host>,
    headers: HeaderMap,
    body::Json(mut request): body::Json<StartRun, PAYLOAD_BODY_BYTES_MAX>,
) -> Result<(StatusCode, Json<RunRef>), ApiError> {
    if let Some(key) = headers.get("idempotency-key") {
        let key = key.to_str().map_err(|_| {
            ApiError::invalid("field_invalid", "the Idempotency-Key is not plain text")
        })?;
        if request.key.as_deref().is_some_and(|other| other != key) {
            let message = "the Idempotency-Key and the field `key` differ";
            return Err(ApiError::invalid("field_invalid", message).path("key"));
        }
        request.key = Some(key.to_owned());
    }
    let started = ops::start(&host.engine()?, request).await?;
    let status = if started.existed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(started)))
}

/// List runs
#[utoipa::path(get, path = "/runs", tag = "runs",
    params(
        ("flow" = Option<String>, Query, description = "Only runs of this flow"),
        ("status" = Option<String>, Query, description = "Only runs in one of these statuses, with commas between"),
        ("tag" = Option<String>, Query, description = "Only runs with this tag, `name=value`; may be repeated"),
        ("since" = Option<String>, Query, description = "Only runs started since: a time, or a span such as `1h`"),
        ("until" = Option<String>, Query, description = "Only runs started before"),
        ("search" = Option<String>, Query, description = "Only the runs whose id begins like this, or that have this key"),
        ("limit" = Option<u64>, Query, description = "At most this many; never more than 200", minimum = 1),
        ("after" = Option<String>, Query, description = "Go on after this cursor"),
    ),
    responses((status = 200, body = CountedPage<RunItem>)))]
async fn list(
    State(host): State<Host>,
    mut query: Query,
) -> Result<Json<CountedPage<RunItem>>, ApiError> {
    let wanted = RunsQuery {
        flow: query.one("flow")?,
        status: query.list("status"),
        tag: query.all("tag"),
        since: query.one("since")?,
        until: query.one("until")?,
        search: query.one("search")?,
        limit: Some(query.limit()?),
        after: query.one("after")?,
    };
    query.end()?;
    ops::list(&*host.store()?, &wanted).await.map(Json)
}

/// List the runs of a flow by their place
///
/// For whoever counts pages; `GET /runs?flow=` goes on by cursor, however far.
#[utoipa::path(get, path = "/flows/{flow}/runs", operation_id = "list_runs_of_flow", tag = "runs",
    params(
        ("flow" = String, Path, description = "The flow"),
        ("status" = Option<String>, Query, description = "Only runs in one of these statuses, with commas between"),
        ("offset" = Option<u64>, Query, description = "Pass over this many; at most 10000"),
        ("limit" = Option<u64>, Query, description = "At most this many; never more than 200", minimum = 1),
    ),
    responses((status = 200, description = "A page of runs.", body = FlowRuns)))]
async fn list_of_flow(
    State(host): State<Host>,
    Path(flow): Path<String>,
    mut query: Query,
) -> Result<Json<FlowRuns>, ApiError> {
    let status = query.list("status");
    let offset = query.number::<usize>("offset")?.unwrap_or(0);
    let limit = query.limit()?;
    query.end()?;
    ops::of_flow::of_flow(&*host.store()?, &flow, status, (offset, limit)).await.map(Json)
}
