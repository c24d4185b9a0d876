//! `/flows`.

use axum::extract::State;
use axum::http::StatusCode;
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
use crate::wire::flows::{
    FlowDetail, FlowDiff, FlowGraph, FlowItem, FlowText, GraphFormat, NewFlow, Registered,
    RevisionItem, Validation,
};

pub mod ops;

/// Bytes of a body with a flow file in it, which may be mostly escapes.
const TEXT_BYTES_MAX: usize = 2 * flowgate_core::limits::FLOW_FILE_BYTES_MAX + 1024;

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(Scope::Read, routes!(list))
        .add(Scope::Deploy, routes!(register))
        .add(Scope::Read, routes!(validate))
        .add(Scope::Read, routes!(show))
        .add(Scope::Read, routes!(revisions))
        .add(Scope::Read, routes!(graph))
        .add(Scope::Read, routes!(changes))
}

/// List flows
#[utoipa::path(get, path = "/flows", tag = "flows",
    responses((status = 200, description = "All flows, by name.", body = Items<FlowItem>)))]
async fn list(State(host): State<Host>, query: Query) -> Result<Json<Items<FlowItem>>, ApiError> {
    query.end()?;
    ops::list(&*host.store()?).await.map(Json)
}

/// Register a flow
///
/// New runs start on it. Who registered a revision first, and what for, stays with it. A flow that starts programs is refused unless the setting
/// `api.allow_process` is on.
#[utoipa::path(post, path = "/flows", tag = "flows", request_body = NewFlow,
    responses((status = 201, description = "It is stored.", body = Registered), (status = 200, description = "The store had this revision before.", body = Registered)))]
async fn register(
    State(host): State<Host>,
    Extension(caller): Extension<Caller>,
    body::Json(new): body::Json<NewFlow, TEXT_BYTES_MAX>,
) -> Result<(StatusCode, Json<Registered>), ApiError> {
    let registered =
        ops::register(&host.engine()?, NewFlow { author: caller.author(new.author), ..new })
            .await?;
    let status = if registered.existed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(registered)))
}

/// Check a flow file
#[utoipa::path(post, path = "/flows/validate", tag = "flows", request_body = FlowText,
    responses((status = 200, description = "Whether it is valid, and all that is wrong if not.", body = Validation)))]
async fn validate(
    body::Json(FlowText { text }): body::Json<FlowText, TEXT_BYTES_MAX>,
) -> Json<Validation> {
    Json(ops::validate(&text))
}

/// Show a flow
#[utoipa::path(get, path = "/flows/{flow}", tag = "flows",
    params(
        ("flow" = String, Path, description = "The flow"),
        ("revision" = Option<String>, Query, description = "A revision, or its first 4 letters or more; the active one without"),
    ),
    responses((status = 200, description = "A revision of it.", body = FlowDetail)))]
async fn show(
    State(host): State<Host>,
    Path(flow): Path<String>,
    mut query: Query,
) -> Result<Json<FlowDetail>, ApiError> {
    let revision = query.one("revision")?;
    query.end()?;
    ops::show(&*host.store()?, &flow, revision.as_deref()).await.map(Json)
}

/// List the revisions of a flow
#[utoipa::path(get, path = "/flows/{flow}/revisions", tag = "flows",
    params(("flow" = String, Path, description = "The flow")),
    responses((status = 200, description = "The latest registered first.", body = Items<RevisionItem>)))]
async fn revisions(
    State(host): State<Host>,
    Path(flow): Path<String>,
    query: Query,
) -> Result<Json<Items<RevisionItem>>, ApiError> {
    query.end()?;
    ops::revisions(&*host.store()?, &flow).await.map(Json)
}

/// Draw a flow
#[utoipa::path(get, path = "/flows/{flow}/graph", tag = "flows",
    params(
        ("flow" = String, Path, description = "The flow"),
        ("format" = Option<GraphFormat>, Query, description = "How; `svg` without"),
        ("revision" = Option<String>, Query, description = "A revision; the active one without"),
    ),
    responses((status = 200, description = "The drawing.", body = FlowGraph)))]
async fn graph(
    State(host): State<Host>,
    Path(flow): Path<String>,
    mut query: Query,
) -> Result<Json<FlowGraph>, ApiError> {
    let format = match query.one("format")? {
        None => GraphFormat::Svg,
        Some(name) => {
            let named = GraphFormat::ALL.into_iter().find(|format| format.as_str() == name);
            named.ok_or_else(|| invalid("format", "it is svg, mermaid, dot or text"))?
        }
    };
    let revision = query.one("revision")?;
    query.end()?;
    let store = host.store()?;
    ops::graph(&*store, &flow, revision.as_deref(), format).await.map(Json)
}

/// Compare two revisions of a flow
#[utoipa::path(get, path = "/flows/{flow}/diff", tag = "flows",
    params(
        ("flow" = String, Path, description = "The flow"),
        ("old" = String, Query, description = "A revision"),
        ("new" = String, Query, description = "Another"),
    ),
    responses((status = 200, description = "What is different.", body = FlowDiff)))]
async fn changes(
    State(host): State<Host>,
    Path(flow): Path<String>,
    mut query: Query,
) -> Result<Json<FlowDiff>, ApiError> {
    let missing = |name| move || invalid(name, "it is not there; name a revision");
    let old = query.one("old")?.ok_or_else(missing("old"))?;
    let new = query.one("new")?.ok_or_else(missing("new"))?;
    query.end()?;
    ops::changes(&*host.store()?, &flow, (&old, &new)).await.map(Json)
}
