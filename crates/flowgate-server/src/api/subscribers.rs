//! `/subscribers`.

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
use crate::wire::subscribers::{
    ResetDone, ResetRequest, RetryDead, RetryDeadDone, SubscriberDetail, SubscriberItem,
};

pub mod ops;

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(Scope::Read, routes!(list))
        .add(Scope::Read, routes!(show))
        .add(Scope::Admin, routes!(reset))
        .add(Scope::Admin, routes!(retry_dead))
}

/// List subscribers
#[utoipa::path(get, path = "/subscribers", tag = "subscribers",
    responses((status = 200, description = "All that have begun, by id.", body = Items<SubscriberItem>)))]
async fn list(
    State(host): State<Host>,
    query: Query,
) -> Result<Json<Items<SubscriberItem>>, ApiError> {
    query.end()?;
    ops::list(&*host.store()?).await.map(Json)
}

/// Show a subscriber
#[utoipa::path(get, path = "/subscribers/{id}", tag = "subscribers",
    params(("id" = String, Path, description = "The subscriber")),
    responses((status = 200, description = "It, and what it has put aside.", body = SubscriberDetail)))]
async fn show(
    State(host): State<Host>,
    Path(id): Path<String>,
    query: Query,
) -> Result<Json<SubscriberDetail>, ApiError> {
    query.end()?;
    ops::show(&*host.store()?, &id).await.map(Json)
}

/// Let a subscriber go on elsewhere
///
/// Whoever is active begins anew there at once, without the state that it had. A projection can
/// only be reset to the start.
#[utoipa::path(post, path = "/subscribers/{id}/reset", tag = "subscribers", request_body = ResetRequest,
    params(("id" = String, Path, description = "The subscriber")),
    responses((status = 200, description = "It goes on there.", body = ResetDone)))]
async fn reset(
    State(host): State<Host>,
    Path(id): Path<String>,
    body::Json(request): body::Json<ResetRequest>,
) -> Result<Json<ResetDone>, ApiError> {
    ops::reset(&**host.engine()?.store(), &id, request).await.map(Json)
}

/// Let a subscriber try again what it has put aside
#[utoipa::path(post, path = "/subscribers/{id}/retry-dead", tag = "subscribers", request_body = RetryDead,
    params(("id" = String, Path, description = "The subscriber")),
    responses((status = 200, description = "How many events it tries.", body = RetryDeadDone)))]
async fn retry_dead(
    State(host): State<Host>,
    Path(id): Path<String>,
    body::OptionalJson(request): body::OptionalJson<RetryDead>,
) -> Result<Json<RetryDeadDone>, ApiError> {
    ops::retry_dead(&**host.engine()?.store(), &id, &request).await.map(Json)
}
