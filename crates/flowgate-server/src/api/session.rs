//! `/session`: the dashboard signs in with a token, and a cookie remembers it.

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::routes;

use crate::auth::{Caller, Scope};
use crate::body;
use crate::error::ApiError;
use crate::host::Host;
use crate::listener::Peer;
use crate::routes::{Needs, Routes};
use crate::shield::{self, COOKIE};

pub(super) fn add(routes: Routes) -> Routes {
    routes.add(Needs::Nothing, routes!(show, sign_in, sign_out))
}

/// Who the caller is.
#[derive(Debug, Serialize, ToSchema)]
struct Session {
    /// Whether they may do anything at all.
    authenticated: bool,
    /// What they may do.
    scopes: Vec<&'static str>,
    /// Whether a token is needed.
    login_required: bool,
    /// The version of the instance.
    version: &'static str,
    /// The kind of its store; null while it has none.
    store: Option<&'static str>,
}

/// A token to sign in with.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SignIn {
    /// The token.
    token: String,
}

/// Say who the caller is
#[utoipa::path(get, path = "/session", tag = "session", responses((status = 200, body = Session)))]
async fn show(State(host): State<Host>, Extension(caller): Extension<Caller>) -> Json<Session> {
    let scopes = caller.scope.map(|scope| scope.held().map(Scope::as_str).collect());
    Json(Session {
        authenticated: caller.scope.is_some(),
        scopes: scopes.unwrap_or_default(),
        login_required: !host.options().tokens.is_empty(),
        version: env!("CARGO_PKG_VERSION"),
        store: host.engine().ok().map(|engine| engine.store().kind()),
    })
}

/// Sign in with a token
#[utoipa::path(post, path = "/session", tag = "session", request_body = SignIn,
    responses((status = 204, description = "A cookie remembers it."), (status = 401, description = "The token is not known.", body = crate::wire::ErrorBody)))]
async fn sign_in(
    State(host): State<Host>,
    peer: Option<Extension<Peer>>,
    body::Json(SignIn { token }): body::Json<SignIn>,
) -> Result<Response, ApiError> {
    if host.options().tokens.find(&token, shield::now()).is_none() {
        return Err(shield::unknown_token());
    }
    let is_encrypted = peer.is_some_and(|Extension(peer)| peer == Peer::Tls);
    let more = if is_encrypted { "; Secure" } else { "" };
    cookie(&token, more).ok_or_else(shield::unknown_token)
}

/// Sign out
#[utoipa::path(delete, path = "/session", tag = "session", responses((status = 204, description = "The cookie is gone.")))]
async fn sign_out() -> Result<Response, ApiError> {
    cookie("", "; Max-Age=0").ok_or_else(shield::unknown_token)
}

fn cookie(value: &str, more: &str) -> Option<Response> {
    let text = format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict{more}");
    let value = HeaderValue::from_str(&text).ok()?;
    Some((StatusCode::NO_CONTENT, AppendHeaders([(header::SET_COOKIE, value)])).into_response())
}
