//! `/healthz`, `/readyz`, `/metrics` and `/version`, for probes and scrapers.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use serde_json::json;

use crate::auth::{Caller, Scope};
use crate::error::ApiError;
use crate::host::Host;

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(crate) fn routes() -> Router<Host> {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/version", get(version))
}

async fn healthz(State(host): State<Host>) -> Response {
    standing("healthy", &host.process().unhealthy())
}

async fn readyz(State(host): State<Host>) -> Response {
    standing("ready", &host.process().unready())
}

/// Whether something holds, and if not why.
fn standing(what: &str, reasons: &[String]) -> Response {
    let holds = reasons.is_empty();
    let status = if holds { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ what: holds, "reasons": reasons }))).into_response()
}

async fn metrics(
    State(host): State<Host>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    if !host.options().tokens.is_empty() && caller.scope < Some(Scope::Read) {
        let message = "the metrics need a token with the scope `read`";
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, "token_missing", message)
            .help("send `Authorization: Bearer TOKEN`"));
    }
    match host.process().metrics().await {
        Some(text) => Ok(([(header::CONTENT_TYPE, PROMETHEUS)], text).into_response()),
        None => Err(ApiError::not_found("not_found", "nothing is counted")),
    }
}

async fn version() -> Response {
    Json(json!({ "version": env!("CARGO_PKG_VERSION"), "api": "v1" })).into_response()
}
