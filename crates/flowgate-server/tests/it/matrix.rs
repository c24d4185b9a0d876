//! Every route, for everybody.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use flowgate_core::time::Timestamp;
use flowgate_server::auth::{Scope, TokenEntry, Tokens, digest};
use flowgate_server::{HostOptions, Needs, RouteEntry, matrix};
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

use crate::world::World;

/// Who asks: the token that they show, and what it allows.
const CALLERS: [(&str, Option<Scope>); 6] = [
    ("", None),
    ("expired", None),
    ("read", Some(Scope::Read)),
    ("run", Some(Scope::Run)),
    ("deploy", Some(Scope::Deploy)),
    ("admin", Some(Scope::Admin)),
];

fn tokens() -> Tokens {
    let entry = |name: &str, scope, expires| TokenEntry {
        name: name.into(),
        sha256: digest(name),
        scope,
        expires,
    };
    let live = Scope::ALL.map(|scope| entry(scope.as_str(), scope, None));
    let expired = entry("expired", Scope::Admin, Some(Timestamp(1)));
    Tokens::new(live.into_iter().chain([expired]).collect())
}

/// The status of the answer, and its code if it is a refusal.
async fn ask(world: &World, entry: &RouteEntry, token: &str) -> (StatusCode, Value) {
    let mut path = entry.path.clone();
    while let (Some(begin), Some(end)) = (path.find('{'), path.find('}')) {
        path.replace_range(begin..=end, "00000000-0000-0000-0000-000000000000");
    }
    let mut request = Request::builder()
        .method(entry.method.as_str())
        .uri(format!("/api/v1{path}"))
        .header("host", "localhost")
        .header("content-type", "application/json");
    if !token.is_empty() {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(Body::from("{}")).expect("it is a request");
    let response = world.router.clone().oneshot(request).await.expect("routes do not fail");
    let status = response.status();
    if status.is_success() {
        // A stream has no end.
        return (status, Value::Null);
    }
    let bytes = response.into_body().collect().await.expect("the body is there").to_bytes();
    let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    (status, answer["error"]["code"].clone())
}

#[tokio::test]
async fn every_route_refuses_a_caller_with_less_than_its_scope() {
    let options = HostOptions { tokens: tokens(), is_public: true, ..HostOptions::default() };
    let world = World::with(options, &[]).await;
    let entries = matrix();
    assert!(entries.len() > 15, "{}", entries.len());
    for entry in &entries {
        for (token, held) in CALLERS {
            let (status, code) = ask(&world, entry, token).await;
            let told = format!("{} {} by `{token}`: {status} {code}", entry.method, entry.path);
            let is_open = match entry.needs {
                Needs::Nothing | Needs::Signature => true,
                Needs::Scope(scope) => held >= Some(scope),
            };
            if token == "expired" {
                assert_eq!((status.as_u16(), code), (401, "token_invalid".into()), "{told}");
            } else if is_open {
                assert_ne!(code, "token_missing", "{told}");
                assert_ne!(code, "scope_missing", "{told}");
                assert!(!status.is_server_error(), "{told}");
            } else if token.is_empty() {
                assert_eq!((status.as_u16(), code), (401, "token_missing".into()), "{told}");
            } else {
                assert_eq!((status.as_u16(), code), (403, "scope_missing".into()), "{told}");
            }
        }
    }
}

#[tokio::test]
async fn a_cookie_that_outlived_its_token_leads_to_the_login_and_to_no_dead_end() {
    let options = HostOptions { tokens: tokens(), is_public: true, ..HostOptions::default() };
    let world = World::with(options, &[]).await;
    let ask = |method: &str, path: &str, token: &str, body: &'static str| {
        Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("cookie", format!("theme=dark; flowgate-session={token}"))
            .body(Body::from(body))
            .expect("it is a request")
    };
    let sign_in = r#"{"token":"read"}"#;
    for (method, path, token, body, status) in [
        ("GET", "/api/v1/runs", "read", "", 200),
        ("GET", "/api/v1/runs", "expired", "", 401),
        ("GET", "/api/v1/runs", "never known", "", 401),
        ("GET", "/api/v1/session", "expired", "", 200),
        ("POST", "/api/v1/session", "expired", sign_in, 204),
        ("DELETE", "/api/v1/session", "expired", "", 204),
        ("GET", "/", "expired", "", 200),
        ("GET", "/app.js", "expired", "", 200),
    ] {
        let request = ask(method, path, token, body);
        let response = world.router.clone().oneshot(request).await.expect("routes do not fail");
        assert_eq!(response.status().as_u16(), status, "{method} {path} by `{token}`");
    }
}
