//! Three addresses over HTTP/1.1, for probes and scrapers.
//!
//! Each connection answers one request. Whoever is slow to ask is cut off, and more connections
//! than a few wait in the line of the operating system.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::Shared;

/// Connections at the same time.
const CONNECTIONS_MAX: usize = 64;
/// How long a request may take to come.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// How long a connection may last in all.
const CONNECTION_MAX: Duration = Duration::from_secs(15);
/// Bytes of a request.
const REQUEST_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
/// How long nobody is let in after the system could not do so.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const JSON: &str = "application/json";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves without end.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "health and metrics cannot be served"),
    };
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(tokio::time::timeout(
                        CONNECTION_MAX,
                        connection(stream, Arc::clone(&shared)),
                    ));
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(|request| answer(request, Arc::clone(&shared)));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_MAX)
        .max_buf_size(REQUEST_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a request was not answered");
    }
}

async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let mut response = match request.uri().path() {
        "/healthz" | "/readyz" | "/metrics" if !is_read => {
            let mut response =
                error(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are served");
            response.headers_mut().insert(ALLOW, "GET, HEAD".parse().expect("it is a value"));
            response
        }
        "/healthz" => standing("healthy", shared.unhealthy().as_slice()),
        "/readyz" => standing("ready", &shared.unready()),
        "/metrics" => match &shared.exposition {
            Some(exposition) => {
                let text = exposition.render(shared.engine().as_ref()).await;
                respond(StatusCode::OK, PROMETHEUS, text)
            }
            None => error(StatusCode::NOT_FOUND, "nothing is counted"),
        },
        _ => error(StatusCode::NOT_FOUND, "there are /healthz, /readyz and /metrics"),
    };
    response.headers_mut().insert(CACHE_CONTROL, "no-store".parse().expect("it is a value"));
    Ok(response)
}

/// Whether something holds, and if not why.
fn standing(what: &str, reasons: &[String]) -> Response<Full<Bytes>> {
    let holds = reasons.is_empty();
    let status = if holds { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    respond(status, JSON, json!({ what: holds, "reasons": reasons }).to_string())
}

fn error(status: StatusCode, message: &str) -> Response<Full<Bytes>> {
    respond(status, JSON, json!({ "error": { "message": message } }).to_string())
}

fn respond(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind.parse().expect("it is a value"));
    response
}
