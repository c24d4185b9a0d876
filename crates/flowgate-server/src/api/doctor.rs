//! `/doctor`.

use axum::Json;
use axum::extract::State;
use flowgate_store::StoreUrl;
use utoipa_axum::routes;

use crate::auth::Scope;
use crate::error::ApiError;
use crate::host::Host;
use crate::query::Query;
use crate::routes::Routes;
use crate::wire::doctor::Examination;

pub mod ops;

pub(super) fn add(routes: Routes) -> Routes {
    routes.add(Scope::Read, routes!(examine))
}

/// Examine the store
///
/// Looks for what may cost runs, and changes nothing.
#[utoipa::path(get, path = "/doctor", tag = "instances",
    responses((status = 200, description = "All that was looked at.", body = Examination)))]
async fn examine(State(host): State<Host>, query: Query) -> Result<Json<Examination>, ApiError> {
    query.end()?;
    let store = host.options().store_url.as_ref().unwrap_or(&StoreUrl::Memory);
    Ok(Json(ops::examine(store).await))
}
