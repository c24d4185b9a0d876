//! The routes of the API, one file a resource.

use axum::Router;
use axum::middleware::from_fn_with_state;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;

use crate::host::Host;
use crate::listener::Peer;
use crate::routes::Routes;
use crate::{assets, shield, standing};

mod audit;
pub(crate) mod dead;
mod deployments;
pub(crate) mod doctor;
mod document;
pub(crate) mod flows;
pub(crate) mod gates;
mod hooks;
pub(crate) mod instances;
mod jobs;
pub(crate) mod overview;
pub(crate) mod queues;
pub(crate) mod runs;
pub(crate) mod schedules;
mod session;
pub(crate) mod subscribers;

/// Where the API begins.
pub(crate) const BASE: &str = "/api/v1";

/// Adds all routes of the API, with their scopes.
pub(crate) fn add_all(routes: Routes) -> Routes {
    let routes = session::add(routes);
    let routes = overview::add(routes);
    let routes = runs::add(routes);
    let routes = hooks::add(routes);
    let routes = flows::add(routes);
    let routes = deployments::add(routes);
    let routes = gates::add(routes);
    let routes = audit::add(routes);
    let routes = schedules::add(routes);
    let routes = queues::add(routes);
    let routes = dead::add(routes);
    let routes = subscribers::add(routes);
    let routes = instances::add(routes);
    let routes = doctor::add(routes);
    let routes = jobs::add(routes);
    document::add(routes)
}

/// The description of the API, as `/api/v1/openapi.json` answers it.
pub fn document() -> OpenApi {
    let routes = Routes::described(document::Document::openapi());
    document::finish(add_all(routes).finish().1)
}

/// Everything that an instance serves, for callers that need no token: those of its own process,
/// and whoever may open its socket.
pub fn router_within(host: &Host) -> Router {
    router(host).layer(axum::Extension(Peer::Unix))
}

/// Everything that an instance serves.
pub fn router(host: &Host) -> Router {
    let (api, _, _) = add_all(Routes::undescribed()).finish();
    let method = |_: axum::http::Method| async {
        crate::ApiError::new(
            axum::http::StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            "this address does not take that method",
        )
    };
    let open = if host.options().is_off {
        Router::new().fallback(off)
    } else {
        Router::new().nest(BASE, api.method_not_allowed_fallback(method)).fallback(assets::serve)
    };
    open.merge(standing::routes())
        .with_state(host.clone())
        .layer(from_fn_with_state(host.clone(), shield::guard))
}

/// What is answered where the settings want no API.
async fn off() -> crate::ApiError {
    crate::ApiError::not_found("not_found", "this instance serves no API and no dashboard")
        .help("take the setting `api = \"off\"` away, or ask another instance")
}
