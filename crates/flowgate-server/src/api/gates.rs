//! `/gates`, and the gate of a flow.

use axum::Json;
use axum::extract::State;
use utoipa_axum::routes;

use crate::auth::Scope;
use crate::body;
use crate::error::ApiError;
use crate::host::Host;
use crate::path::Path;
use crate::query::Query;
use crate::routes::Routes;
use crate::wire::Items;
use crate::wire::gates::{GateChange, GateItem};

pub mod ops;

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(Scope::Read, routes!(list))
        .add(Scope::Read, routes!(show))
        .add(Scope::Deploy, routes!(change))
}

/// List gates
#[utoipa::path(get, path = "/gates", tag = "gates",
    responses((status = 200, description = "Every gate that was ever set, by flow.", body = Items<GateItem>)))]
async fn list(State(host): State<Host>, query: Query) -> Result<Json<Items<GateItem>>, ApiError> {
    query.end()?;
    ops::list(&*host.store()?).await.map(Json)
}

/// Show the gate of a flow
#[utoipa::path(get, path = "/flows/{flow}/gate", tag = "gates",
    params(("flow" = String, Path, description = "The flow")),
    responses((status = 200, description = "How it stands; open if it was never set.", body = GateItem)))]
async fn show(
    State(host): State<Host>,
    Path(flow): Path<String>,
    query: Query,
) -> Result<Json<GateItem>, ApiError> {
    query.end()?;
    ops::show(&*host.store()?, &flow).await.map(Json)
}

/// Hold a flow, or let go what it holds
///
/// After `holding` no start begins a run any more: it is answered as ever, and its run is `held`.
/// After `open` the held runs go on, the oldest first, and the gate opens when none is left.
#[utoipa::path(put, path = "/flows/{flow}/gate", tag = "gates", request_body = GateChange,
    params(("flow" = String, Path, description = "The flow")),
    responses((status = 200, description = "How it stands now.", body = GateItem)))]
async fn change(
    State(host): State<Host>,
    Path(flow): Path<String>,
    body::Json(change): body::Json<GateChange>,
) -> Result<Json<GateItem>, ApiError> {
    ops::change(&host.engine()?, &flow, change).await.map(Json)
}
