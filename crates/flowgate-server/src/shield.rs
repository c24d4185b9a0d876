//! What every request passes before its route: is this host meant, was it a page of another site
//! that sent it, and who is it?

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::auth::Caller;
use crate::error::ApiError;
use crate::host::Host;
use crate::listener::Peer;

/// The cookie of the dashboard.
pub(crate) const COOKIE: &str = "flowgate-session";
/// Bytes of an address.
const URI_BYTES_MAX: usize = 8 << 10;
/// Pages may load what this host serves and nothing else.
const CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                   img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'";

/// Lets a request through, or not.
pub(crate) async fn guard(State(host): State<Host>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().copied().unwrap_or(Peer::Tcp);
    let mut response = match admit(&host, peer, &request) {
        Ok(caller) => {
            let (method, path) = (request.method(), request.uri().path());
            tracing::debug!(caller = %caller.name, %method, path, "asked");
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    };
    let headers = response.headers_mut();
    // A page that is complete in itself has a policy of its own.
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(CSP));
    let fixed: [(HeaderName, &str); 4] = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

fn admit(host: &Host, peer: Peer, request: &Request) -> Result<Caller, ApiError> {
    if request.uri().to_string().len() > URI_BYTES_MAX {
        let message = format!("the address has more than {URI_BYTES_MAX} bytes");
        return Err(ApiError::new(StatusCode::URI_TOO_LONG, "url_too_long", message));
    }
    match peer {
        // Only the user whose process this is can open the socket.
        Peer::Unix => return Ok(Caller::trusted("the owner of the socket")),
        Peer::Tcp | Peer::Tls => {}
    }
    let headers = request.headers();
    if !is_probe(host, request.uri()) {
        check_host(host, headers, request.uri())?;
    }
    check_site(headers, request.method(), request.uri())?;
    identify(host, headers)
}

/// Whether it is a probe or a scraper, which calls an instance by any address. What these are told
/// is no secret, or needs a token.
fn is_probe(host: &Host, uri: &Uri) -> bool {
    match uri.path() {
        "/healthz" | "/readyz" | "/version" => true,
        "/metrics" => !host.options().tokens.is_empty(),
        _ => false,
    }
}

/// The name by which the caller knows this host, in lower case, without a port.
fn host_of<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let given = match headers.get(header::HOST) {
        Some(value) => value.to_str().ok()?,
        None => uri.authority()?.as_str(),
    };
    Some(without_port(given))
}

fn without_port(authority: &str) -> &str {
    if let Some(end) = authority.find(']') {
        return &authority[..=end];
    }
    authority.split(':').next().unwrap_or(authority)
}

/// A page of another site may have its name point here, and then read all that it asks for. So
/// only known names are answered: those of loopback, and those of the settings.
fn check_host(host: &Host, headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
    let options = host.options();
    let given = host_of(headers, uri).unwrap_or_default();
    let is_loopback = given.eq_ignore_ascii_case("localhost")
        || given.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback())
        || given == "[::1]";
    let is_named = options.allowed_hosts.iter().any(|name| name.eq_ignore_ascii_case(given));
    // With tokens, a foreign page has none to show, so a public host may go by any name.
    let is_any = options.is_public && options.allowed_hosts.is_empty() && !given.is_empty();
    if is_loopback || is_named || is_any {
        return Ok(());
    }
    let given: String = given.chars().take(100).collect();
    let message = format!("this host does not go by the name `{given}`");
    Err(ApiError::new(StatusCode::MISDIRECTED_REQUEST, "host_not_allowed", message)
        .help("use 127.0.0.1 or localhost, or add the name to the setting `api.hosts`"))
}

/// Refuses what a page of another site sent with the cookies of this one.
fn check_site(headers: &HeaderMap, method: &Method, uri: &Uri) -> Result<(), ApiError> {
    let refuse = || {
        let message = "another site sent this request";
        Err(ApiError::new(StatusCode::FORBIDDEN, "csrf", message))
    };
    let is_read = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    // A link to a page of the dashboard may be followed from anywhere.
    if is_read && !uri.path().starts_with("/api/") {
        return Ok(());
    }
    if let Some(site) = headers.get("sec-fetch-site")
        && site != "same-origin"
        && site != "none"
    {
        return refuse();
    }
    if let Some(origin) = headers.get(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        let given = headers.get(header::HOST).and_then(|value| value.to_str().ok());
        if authority.is_none() || authority != given {
            return refuse();
        }
    }
    Ok(())
}

fn identify(host: &Host, headers: &HeaderMap) -> Result<Caller, ApiError> {
    let options = host.options();
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let authorization = given.next();
    if given.next().is_some() {
        let message = "the request has more than one Authorization header";
        return Err(ApiError::bad_request("authorization_twice", message));
    }
    if options.tokens.is_empty() {
        return Ok(if options.is_public { Caller::unknown() } else { Caller::trusted("anybody") });
    }
    let Some(authorization) = authorization else {
        // A cookie outlives its token: whoever has such a one is asked to sign in, as if they had
        // none.
        let known = cookie(headers).and_then(|token| options.tokens.find(token, now()));
        return Ok(known.unwrap_or_else(Caller::unknown));
    };
    let bearer = authorization.to_str().ok().and_then(|text| text.split_once(' '));
    let token = bearer.filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
    let Some((_, token)) = token else { return Err(unknown_token()) };
    options.tokens.find(token.trim(), now()).ok_or_else(unknown_token)
}

pub(crate) fn unknown_token() -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, "token_invalid", "the token is not known, or expired")
        .help("`flowgate tokens new` makes one; the settings hold its SHA-256")
}

/// The wall clock, which tokens expire by.
pub(crate) fn now() -> flowgate_core::time::Timestamp {
    flowgate_core::time::Timestamp(jiff::Timestamp::now().as_millisecond())
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|text| text.split(';')).filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| name.trim() == COOKIE).map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_known_without_its_port() {
        assert_eq!(without_port("localhost:7420"), "localhost");
        assert_eq!(without_port("[::1]:7420"), "[::1]");
        assert_eq!(without_port("example.org"), "example.org");
    }

    #[test]
    fn a_request_of_another_site_is_refused() {
        let check = |method: Method, path: &str, headers: &[(&'static str, &str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.insert(*name, value.parse().expect("it is a value"));
            }
            check_site(&map, &method, &path.parse().expect("it is an address")).is_ok()
        };
        let host = ("host", "localhost:1");
        assert!(check(Method::POST, "/api/v1/runs", &[host]));
        assert!(check(Method::POST, "/api/v1/runs", &[host, ("origin", "http://localhost:1")]));
        assert!(check(Method::POST, "/api/v1/runs", &[host, ("sec-fetch-site", "same-origin")]));
        assert!(check(Method::GET, "/runs", &[host, ("sec-fetch-site", "cross-site")]));
        assert!(!check(Method::POST, "/api/v1/runs", &[host, ("origin", "null")]));
        assert!(!check(Method::POST, "/api/v1/runs", &[host, ("origin", "http://evil.example")]));
        assert!(!check(Method::GET, "/api/v1/live", &[host, ("sec-fetch-site", "cross-site")]));
    }
}
