//! How a verb reaches the API. Every verb asks the same router, wherever that is:
//!
//! - with `--server`, in another process, over the network;
//! - to change something in an embedded store that another process owns, in that process, over its
//!   socket;
//! - else in this process, on the store that it opens.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use bytes::Bytes;
use flowgate_server::{ApiError, wire::ErrorBody};
use flowgate_store::{Store, StoreUrl};
use futures_util::{Stream, StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower::ServiceExt;

use crate::cmd::App;
use crate::control::{self, Address};
use crate::failure::{Exit, Failure};
use crate::instance::{Instance, Work, reading_router};
use crate::stores;
use flowgate_server::lookup;

/// Where the API begins.
const BASE: &str = "/api/v1";
/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer may take.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// Tries to find the owner or to become it: the owner may just be starting or ending.
const TRIES: u32 = 10;
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// What to do about a request whose answer was lost.
const HELP_UNKNOWN: &str = "it may or may not have been done: look before trying again";

/// A way to the API.
#[derive(Debug)]
pub(crate) struct Reach {
    way: Way,
    /// Whether somebody executes what becomes due, as far as that is known.
    pub(crate) is_worked_on: bool,
}

#[derive(Debug)]
enum Way {
    /// To another process.
    Http(Http),
    /// To this one.
    Here { router: Router, instance: Option<Arc<Instance>> },
}

#[derive(Debug)]
struct Http {
    client: reqwest::Client,
    /// Scheme and authority.
    origin: String,
    token: Option<String>,
    /// The other process, in words.
    name: String,
    // Keeps the folder open while its number is part of the socket's address.
    _address: Option<Address>,
}

/// An answer that is there as a whole.
struct Answer {
    status: StatusCode,
    body: Bytes,
}

/// Parameters of an address.
pub(crate) type Query<'a> = &'a [(&'a str, &'a str)];

impl Reach {
    /// A way to look at something.
    pub(crate) async fn read(app: &App) -> Result<Self, Failure> {
        if let Some(server) = &app.config.server {
            return Self::server(app, server);
        }
        let store = stores::open_local(app).await?;
        let way = Way::Here { router: reading_router(app, store), instance: None };
        Ok(Self { way, is_worked_on: true })
    }

    /// A way to change something: through whoever may write to the store.
    pub(crate) async fn write(app: &App) -> Result<Self, Failure> {
        if let Some(server) = &app.config.server {
            return Self::server(app, server);
        }
        match &app.config.store {
            StoreUrl::Memory => Err(stores::memory_is_private()),
            StoreUrl::Sqlite(path) => Self::owner(app, &stores::canonical(path)).await,
            StoreUrl::Redis(_) | StoreUrl::Postgres(_) => {
                let instance = Instance::open(app, Work::Nothing).await?;
                let is_worked_on = has_instances(instance.store()).await?;
                Ok(Self { is_worked_on, ..Self::here(&instance) })
            }
        }
    }

    /// A way to the server at this address.
    pub(crate) fn server(app: &App, server: &str) -> Result<Self, Failure> {
        let http = Http {
            client: client(reqwest::Client::builder())?,
            origin: server.trim_end_matches('/').to_owned(),
            token: app.config.token.clone(),
            name: server.to_owned(),
            _address: None,
        };
        Ok(Self { way: Way::Http(http), is_worked_on: true })
    }

    /// Finds the owner of the file at `path`, or becomes it.
    async fn owner(app: &App, path: &Path) -> Result<Self, Failure> {
        let mut refusal = None;
        for attempt in 0..TRIES {
            if attempt > 0 {
                tokio::time::sleep(TRY_AGAIN).await;
            }
            if let Some(address) = control::find(path).await? {
                let builder = reqwest::Client::builder().unix_socket(&*address.path);
                let http = Http {
                    client: client(builder.tls_certs_only([]))?,
                    origin: "http://localhost".to_owned(),
                    token: None,
                    name: format!("the owner of {}", path.display()),
                    _address: Some(address),
                };
                return Ok(Self { way: Way::Http(http), is_worked_on: true });
            }
            match Instance::open(app, Work::Nothing).await {
                Ok(instance) => return Ok(Self::here(&instance)),
                Err(failure) if failure.code == "store_in_use" => refusal = Some(failure),
                Err(failure) => return Err(failure),
            }
        }
        let refusal = refusal.expect("every try that did not return was refused");
        Err(refusal.help("that process takes no requests; stop it and try again"))
    }

    fn here(instance: &Arc<Instance>) -> Self {
        let router = instance.router();
        let way = Way::Here { router, instance: Some(Arc::clone(instance)) };
        Self { way, is_worked_on: false }
    }

    /// Gives up what was opened for it, with all that was written.
    pub(crate) async fn close(self) {
        if let Way::Here { instance: Some(instance), .. } = self.way {
            instance.shutdown().await;
        }
    }

    /// Gives it up, and passes on what was answered. If the store does not answer, nothing is waited
    /// for: what it did not take is dropped with the process.
    pub(crate) async fn finish<T>(self, answer: Result<T, Failure>) -> Result<T, Failure> {
        match &answer {
            Err(failure) if failure.exit == Exit::Store => {}
            Ok(_) | Err(_) => self.close().await,
        }
        answer
    }

    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: Query<'_>,
    ) -> Result<T, Failure> {
        let path = format!("{path}{}", query_text(query));
        read(&self.ask(Method::GET, &path, None).await?)
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        let body = serde_json::to_string(body).expect("a request has a JSON form");
        read(&self.ask(Method::POST, path, Some(body)).await?)
    }

    pub(crate) async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        let body = serde_json::to_string(body).expect("a request has a JSON form");
        read(&self.ask(Method::PUT, path, Some(body)).await?)
    }

    pub(crate) async fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        let body = serde_json::to_string(body).expect("a request has a JSON form");
        read(&self.ask(Method::PATCH, path, Some(body)).await?)
    }

    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        read(&self.ask(Method::DELETE, path, None).await?)
    }

    /// The body of the answer as it comes.
    pub(crate) async fn stream(
        &self,
        path: &str,
        query: Query<'_>,
    ) -> Result<impl Stream<Item = Result<Bytes, Failure>> + Send + Unpin + use<>, Failure> {
        let path = format!("{path}{}", query_text(query));
        match &self.way {
            Way::Http(http) => {
                let request = http.request(Method::GET, &path);
                let response = request.send().await.map_err(|error| http.lost(error))?;
                let status = response.status();
                if !status.is_success() {
                    let body = response.bytes().await.map_err(|error| http.lost(error))?;
                    return Err(refusal(&Answer { status, body }));
                }
                let name = http.name.clone();
                let lost = move |error: reqwest::Error| broken(&name, error);
                Ok(response.bytes_stream().map_err(lost).boxed())
            }
            Way::Here { router, .. } => {
                let response = route(router, Method::GET, &path, None).await;
                let status = response.status();
                if !status.is_success() {
                    return Err(refusal(&gather(response).await?));
                }
                let body = response.into_body().into_data_stream();
                let lost = |error: axum::Error| broken("the store", error);
                Ok(StreamExt::boxed(TryStreamExt::map_err(body, lost)))
            }
        }
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<Answer, Failure> {
        let answer = match &self.way {
            Way::Here { router, .. } => {
                let asked = async { gather(route(router, method, path, body).await).await };
                tokio::time::timeout(REPLY_TIMEOUT, asked).await.map_err(|_| {
                    let seconds = REPLY_TIMEOUT.as_secs();
                    let message = format!("the store did not answer within {seconds} seconds");
                    Failure::new(Exit::Store, "store_unavailable", message).help(HELP_UNKNOWN)
                })??
            }
            Way::Http(http) => {
                let mut request = http.request(method, path).timeout(REPLY_TIMEOUT);
                if let Some(body) = body {
                    request = request.header(header::CONTENT_TYPE, "application/json").body(body);
                }
                let response = request.send().await.map_err(|error| http.lost(error))?;
                let status = response.status();
                let body = response.bytes().await.map_err(|error| http.lost(error))?;
                Answer { status, body }
            }
        };
        if answer.status.is_success() { Ok(answer) } else { Err(refusal(&answer)) }
    }
}

impl Http {
    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.client.request(method, format!("{}{BASE}{path}", self.origin));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    fn lost(&self, error: reqwest::Error) -> Failure {
        let name = &self.name;
        if error.is_connect() || error.is_builder() {
            let message = format!("cannot reach {name}");
            return Failure::new(Exit::Store, "server_unreachable", message)
                .source(error)
                .help("check the address, and that `flowgate dev`, `worker start` or `serve` runs")
                .path(name);
        }
        broken(name, error)
    }
}

fn broken(name: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
    Failure::new(Exit::Store, "server_unreachable", format!("{name} did not answer"))
        .source(error)
        .help(HELP_UNKNOWN)
        .path(name)
}

fn client(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, Failure> {
    install_tls();
    builder
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .user_agent(concat!("flowgate/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| {
            Failure::new(Exit::Store, "client_failed", "cannot make a client").source(error)
        })
}

/// Has TLS done by the library that the whole program uses.
pub(crate) fn install_tls() {
    // Another part of this process may have installed it.
    drop(rustls::crypto::ring::default_provider().install_default());
}

async fn route(
    router: &Router,
    method: Method,
    path: &str,
    body: Option<String>,
) -> axum::http::Response<Body> {
    let request = Request::builder()
        .method(method)
        .uri(format!("{BASE}{path}"))
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body.unwrap_or_default()))
        .expect("what varies in the path is encoded");
    let Ok(response) = router.clone().oneshot(request).await;
    response
}

async fn gather(response: axum::http::Response<Body>) -> Result<Answer, Failure> {
    let status = response.status();
    let body = response.into_body().collect().await.map_err(|error| broken("the store", error))?;
    Ok(Answer { status, body: body.to_bytes() })
}

fn read<T: DeserializeOwned>(answer: &Answer) -> Result<T, Failure> {
    serde_json::from_slice(&answer.body).map_err(|error| {
        Failure::refused("reply_invalid", "the answer makes no sense here")
            .source(error)
            .help("use the same version of flowgate on both sides")
    })
}

/// Why the other side did not do it.
fn refusal(answer: &Answer) -> Failure {
    let status = answer.status;
    let Ok(ErrorBody { error }) = serde_json::from_slice(&answer.body) else {
        let message = format!("the answer is {status}, and does not come from flowgate");
        return Failure::new(Exit::Store, "reply_invalid", message)
            .help("check the address of the server");
    };
    let refused = ApiError::new(status, "", error.message);
    let refused = ApiError { path: error.path, help: error.help, ..refused };
    Failure::from(ApiError { code: error.code.into(), ..refused })
}

/// A part of a path, or a value of a parameter, with what would end it written otherwise.
pub(crate) fn segment(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("writing to a string cannot fail");
        }
    }
    encoded
}

fn query_text(query: Query<'_>) -> String {
    let pairs: Vec<String> =
        query.iter().map(|(name, value)| format!("{name}={}", segment(value))).collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

/// Whether an instance works on the store.
async fn has_instances(store: &dyn Store) -> Result<bool, Failure> {
    let now = store.now().await?;
    let instances = store.list_instances().await?;
    Ok(instances.iter().any(|row| !lookup::is_silent(row, now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_end_a_part_of_a_path_is_encoded() {
        assert_eq!(segment("order/nightly"), "order%2Fnightly");
        assert_eq!(segment("a b?ä"), "a%20b%3F%C3%A4");
        assert_eq!(query_text(&[("tag", "k=v&w"), ("limit", "5")]), "?tag=k%3Dv%26w&limit=5");
        assert_eq!(query_text(&[]), "");
    }

    #[test]
    fn a_refusal_keeps_its_code_and_has_its_exit() {
        let check = |status: u16, body: &str, exit: Exit, code: &str| {
            let status = StatusCode::from_u16(status).unwrap();
            let failure = refusal(&Answer { status, body: body.to_owned().into() });
            assert_eq!((failure.exit, &*failure.code), (exit, code), "{body}");
        };
        let body =
            |code: &str| format!(r#"{{"error":{{"code":"{code}","message":"m","path":null}}}}"#);
        check(404, &body("run_not_found"), Exit::NotFound, "run_not_found");
        check(409, &body("run_terminal"), Exit::Refused, "run_terminal");
        check(422, &body("field_invalid"), Exit::Usage, "field_invalid");
        check(503, &body("overloaded"), Exit::Refused, "overloaded");
        check(503, &body("store_unavailable"), Exit::Store, "store_unavailable");
        check(502, "<html>", Exit::Store, "reply_invalid");
    }
}
