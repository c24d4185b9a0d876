//! `/instances` and `/leader`.

use axum::Json;
use axum::extract::State;
use utoipa_axum::routes;

use crate::auth::Scope;
use crate::error::ApiError;
use crate::host::Host;
use crate::query::Query;
use crate::routes::Routes;
use crate::wire::instances::{InstanceList, LeaderReport};

pub mod ops;

pub(super) fn add(routes: Routes) -> Routes {
    routes.add(Scope::Read, routes!(list)).add(Scope::Read, routes!(leader))
}

/// List instances, and the remote workers that ask them for jobs
#[utoipa::path(get, path = "/instances", tag = "instances",
    params(("pool" = Option<String>, Query, description = "Only those of this pool")),
    responses((status = 200, description = "Those that were heard of, by name.", body = InstanceList)))]
async fn list(State(host): State<Host>, mut query: Query) -> Result<Json<InstanceList>, ApiError> {
    let pool = query.one("pool")?;
    query.end()?;
    ops::list(&*host.store()?, pool.as_deref()).await.map(Json)
}

/// Say who leads
///
/// One instance leads and fires schedules.
#[utoipa::path(get, path = "/leader", tag = "instances",
    params(("limit" = Option<u64>, Query, description = "At most this many terms; never more than 200", minimum = 1)),
    responses((status = 200, description = "Who leads, and who did before.", body = LeaderReport)))]
async fn leader(
    State(host): State<Host>,
    mut query: Query,
) -> Result<Json<LeaderReport>, ApiError> {
    let limit = query.limit()?;
    query.end()?;
    ops::leader(&*host.store()?, limit).await.map(Json)
}
