//! `/deployments`, and those of a flow.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use utoipa_axum::routes;

use crate::auth::{Caller, Scope};
use crate::body;
use crate::error::ApiError;
use crate::host::Host;
use crate::path::Path;
use crate::query::{Query, invalid};
use crate::routes::Routes;
use crate::wire::Items;
use crate::wire::deployments::{
    CheckpointItem, DeploymentItem, DiscardNote, NewDeployment, PlanItem, ReportItem, RollbackNote,
};

mod ops;

/// Bytes of a flow file and a deploy file.
const TEXT_BYTES_MAX: usize = 2 << 20;

/// The page of a report has its style in it, and nothing that could do anything.
const REPORT_CSP: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; \
                          base-uri 'none'; form-action 'none'; sandbox";

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(Scope::Read, routes!(list))
        .add(Scope::Read, routes!(checkpoints))
        .add(Scope::Deploy, routes!(replay))
        .add(Scope::Deploy, routes!(discard))
        .add(Scope::Read, routes!(plan))
        .add(Scope::Deploy, routes!(start))
        .add(Scope::Read, routes!(show))
        .add(Scope::Read, routes!(report))
        .add(Scope::Deploy, routes!(rollback))
        .add(Scope::Deploy, routes!(promote))
}

/// List deployments
#[utoipa::path(get, path = "/deployments", tag = "deployments",
    params(("flow" = Option<String>, Query, description = "Only those of this flow")),
    responses((status = 200, description = "Deployments, the latest of each flow first.", body = Items<DeploymentItem>)))]
async fn list(
    State(host): State<Host>,
    mut query: Query,
) -> Result<Json<Items<DeploymentItem>>, ApiError> {
    let flow = query.one("flow")?;
    query.end()?;
    ops::list(&*host.store()?, flow.as_deref()).await.map(Json)
}

/// List checkpoints
#[utoipa::path(get, path = "/checkpoints", tag = "deployments",
    params(("flow" = Option<String>, Query, description = "Only those of this flow")),
    responses((status = 200, description = "Runs that deployments have stopped where they were.", body = Items<CheckpointItem>)))]
async fn checkpoints(
    State(host): State<Host>,
    mut query: Query,
) -> Result<Json<Items<CheckpointItem>>, ApiError> {
    let flow = query.one("flow")?;
    query.end()?;
    ops::checkpoints(&*host.store()?, flow.as_deref()).await.map(Json)
}

/// Let a stopped run go on now
///
/// On the revision that its deployment has decided on, or on its own if that has no place for it or
/// the deployment was rolled back. To repeat it changes nothing.
#[utoipa::path(post, path = "/checkpoints/{run}/replay", operation_id = "replay_checkpoint", tag = "deployments",
    params(("run" = String, Path, description = "A run id, its first 6 letters or more, or `latest`")),
    responses((status = 200, description = "What became of it.", body = CheckpointItem)))]
async fn replay(
    State(host): State<Host>,
    Path(run): Path<String>,
) -> Result<Json<CheckpointItem>, ApiError> {
    ops::replay(&host.engine()?, &run).await.map(Json)
}

/// Give up a stopped run
///
/// The run is cancelled. To repeat it changes nothing.
#[utoipa::path(post, path = "/checkpoints/{run}/discard", operation_id = "discard_checkpoint", tag = "deployments",
    params(("run" = String, Path, description = "A run id, its first 6 letters or more, or `latest`")),
    request_body = DiscardNote,
    responses((status = 200, description = "What became of it.", body = CheckpointItem)))]
async fn discard(
    State(host): State<Host>,
    Path(run): Path<String>,
    body::OptionalJson(DiscardNote { reason }): body::OptionalJson<DiscardNote>,
) -> Result<Json<CheckpointItem>, ApiError> {
    ops::discard(&host.engine()?, &run, reason.as_deref()).await.map(Json)
}

/// Say what a deployment would do
///
/// Every open run is listed with its fate. Nothing is changed.
#[utoipa::path(post, path = "/flows/{flow}/deployments/plan", tag = "deployments", request_body = NewDeployment,
    params(("flow" = String, Path, description = "The flow")),
    responses((status = 200, description = "What it would do.", body = PlanItem)))]
async fn plan(
    State(host): State<Host>,
    Path(flow): Path<String>,
    body::Json(new): body::Json<NewDeployment, TEXT_BYTES_MAX>,
) -> Result<Json<PlanItem>, ApiError> {
    ops::plan(&host.engine()?, &flow, new).await.map(Json)
}

/// Deploy a revision
///
/// The leader drives it from then on, whoever asked for it.
#[utoipa::path(post, path = "/flows/{flow}/deployments", tag = "deployments", request_body = NewDeployment,
    params(("flow" = String, Path, description = "The flow")),
    responses((status = 201, description = "It has begun.", body = DeploymentItem)))]
async fn start(
    State(host): State<Host>,
    Path(flow): Path<String>,
    Extension(caller): Extension<Caller>,
    body::Json(new): body::Json<NewDeployment, TEXT_BYTES_MAX>,
) -> Result<(StatusCode, Json<DeploymentItem>), ApiError> {
    let new = NewDeployment { author: caller.author(new.author), ..new };
    let started = ops::start(&host.engine()?, &flow, new).await?;
    Ok((StatusCode::CREATED, Json(started)))
}

/// Show a deployment
#[utoipa::path(get, path = "/flows/{flow}/deployments/{deployment}", tag = "deployments",
    params(
        ("flow" = String, Path, description = "The flow"),
        ("deployment" = String, Path, description = "The deployment, or the beginning of its id, or `latest`"),
    ),
    responses((status = 200, description = "Where it stands.", body = DeploymentItem)))]
async fn show(
    State(host): State<Host>,
    Path((flow, deployment)): Path<(String, String)>,
    query: Query,
) -> Result<Json<DeploymentItem>, ApiError> {
    query.end()?;
    ops::show(&*host.store()?, &flow, &deployment).await.map(Json)
}

/// Report on a deployment
///
/// Before and after, what was held, released and checkpointed, and whether every start is in
/// exactly one place.
#[utoipa::path(get, path = "/flows/{flow}/deployments/{deployment}/report", tag = "deployments",
    params(
        ("flow" = String, Path, description = "The flow"),
        ("deployment" = String, Path, description = "The deployment, or the beginning of its id, or `latest`"),
        ("format" = Option<String>, Query, description = "`json`, `text` or `html`; `json` without"),
    ),
    responses((status = 200, description = "The report.", content(
        (ReportItem = "application/json"), (String = "text/plain"), (String = "text/html")))))]
async fn report(
    State(host): State<Host>,
    Path((flow, deployment)): Path<(String, String)>,
    mut query: Query,
) -> Result<Response, ApiError> {
    let format = query.one("format")?;
    query.end()?;
    let report = async || ops::report(&*host.store()?, &flow, &deployment).await;
    let typed = |kind: &'static str, text: String| ([(header::CONTENT_TYPE, kind)], text);
    Ok(match format.as_deref() {
        None | Some("json") => {
            let value = serde_json::to_value(report().await?).expect("a report is JSON");
            Json(ReportItem(value)).into_response()
        }
        Some("text") => {
            typed("text/plain; charset=utf-8", report().await?.to_text()).into_response()
        }
        Some("html") => {
            let page = typed("text/html; charset=utf-8", report().await?.to_html());
            ([(header::CONTENT_SECURITY_POLICY, REPORT_CSP)], page).into_response()
        }
        Some(_) => return Err(invalid("format", "it is `json`, `text` or `html`")),
    })
}

/// Roll a deployment back
///
/// The old revision becomes active again, and goes on with what is held.
#[utoipa::path(post, path = "/flows/{flow}/deployments/{deployment}/rollback", tag = "deployments", request_body = RollbackNote,
    params(
        ("flow" = String, Path, description = "The flow"),
        ("deployment" = String, Path, description = "The deployment, or the beginning of its id, or `latest`"),
    ),
    responses((status = 202, description = "It was asked for.", body = DeploymentItem)))]
async fn rollback(
    State(host): State<Host>,
    Path((flow, deployment)): Path<(String, String)>,
    body::Json(RollbackNote { note }): body::Json<RollbackNote>,
) -> Result<(StatusCode, Json<DeploymentItem>), ApiError> {
    let asked = ops::roll_back(&host.engine()?, (&flow, &deployment), note).await?;
    Ok((StatusCode::ACCEPTED, Json(asked)))
}

/// Take a canary as good
#[utoipa::path(post, path = "/flows/{flow}/deployments/{deployment}/promote", tag = "deployments",
    params(
        ("flow" = String, Path, description = "The flow"),
        ("deployment" = String, Path, description = "The deployment, or the beginning of its id, or `latest`"),
    ),
    responses((status = 202, description = "It was asked for.", body = DeploymentItem)))]
async fn promote(
    State(host): State<Host>,
    Path((flow, deployment)): Path<(String, String)>,
) -> Result<(StatusCode, Json<DeploymentItem>), ApiError> {
    let asked = ops::promote(&host.engine()?, (&flow, &deployment)).await?;
    Ok((StatusCode::ACCEPTED, Json(asked)))
}
