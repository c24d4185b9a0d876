//! The description of the API.

use axum::Json;
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Described;
use utoipa_axum::routes;

use crate::auth::Scope;
use crate::routes::Routes;
use crate::wire::ErrorBody;

#[derive(OpenApi)]
#[openapi(
    info(title = "flowgate", description = "Flows that survive anything.", version = "1"),
    components(schemas(ErrorBody))
)]
pub(super) struct Document;

pub(super) fn add(routes: Routes) -> Routes {
    routes.add(Scope::Read, routes!(openapi))
}

/// Where the paths begin.
pub(super) fn finish(mut document: Described) -> Described {
    document.servers = Some(vec![utoipa::openapi::Server::new(super::BASE)]);
    document
}

/// Describe the API
#[utoipa::path(get, path = "/openapi.json", tag = "api", responses((status = 200, description = "An OpenAPI document.", body = Object)))]
async fn openapi() -> Json<Described> {
    Json(super::document())
}
