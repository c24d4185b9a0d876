//! `/queues`.

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
use crate::wire::queues::{QueueChange, QueueChanged, QueueDetail, QueueItem};

pub mod ops;

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(Scope::Read, routes!(list))
        .add(Scope::Read, routes!(show))
        .add(Scope::Admin, routes!(change))
}

/// List queues
#[utoipa::path(get, path = "/queues", tag = "queues",
    responses((status = 200, description = "Every queue that has jobs or settings, by name.", body = Items<QueueItem>)))]
async fn list(State(host): State<Host>, query: Query) -> Result<Json<Items<QueueItem>>, ApiError> {
    query.end()?;
    ops::list(&*host.store()?).await.map(Json)
}

/// Show a queue
#[utoipa::path(get, path = "/queues/{queue}", tag = "queues",
    params(("queue" = String, Path, description = "The queue")),
    responses((status = 200, description = "It, and who holds its permits.", body = QueueDetail)))]
async fn show(
    State(host): State<Host>,
    Path(queue): Path<String>,
    query: Query,
) -> Result<Json<QueueDetail>, ApiError> {
    query.end()?;
    ops::show(&*host.store()?, &queue).await.map(Json)
}

/// Pause, resume or limit a queue
///
/// Nobody takes jobs of a paused queue; what runs goes on. Limits hold over all instances.
#[utoipa::path(patch, path = "/queues/{queue}", tag = "queues", request_body = QueueChange,
    params(("queue" = String, Path, description = "The queue")),
    responses((status = 200, description = "What was set and what is.", body = QueueChanged)))]
async fn change(
    State(host): State<Host>,
    Path(queue): Path<String>,
    body::Json(change): body::Json<QueueChange>,
) -> Result<Json<QueueChanged>, ApiError> {
    ops::change(&**host.engine()?.store(), &queue, change).await.map(Json)
}
