//! A handler that does nothing: what HTTP itself costs here.
//!
//! It is served as the API is, by one thread, and its answer is as long as that of a start.

use std::net::SocketAddr;

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

const ANSWER: &str = r#"{"run_id":"01890a5d-ac96-774b-bcce-b302099a8057","flow":"load","revision":"0123456789ab","status":"running","existed":false}"#;

/// Serves until its process is ended.
pub(super) fn serve(address: SocketAddr) -> anyhow::Result<()> {
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let router = Router::new()
                .route("/readyz", get(async || StatusCode::OK))
                .route("/api/v1/runs", post(start));
            axum::serve(tokio::net::TcpListener::bind(address).await?, router).await
        })
    });
    let served = thread.join().map_err(|_| anyhow::anyhow!("the thread panicked"))?;
    served.context("serving the bare handler")
}

async fn start(body: Bytes) -> Response {
    debug_assert!(!body.is_empty(), "a start has a body");
    (StatusCode::CREATED, [(header::CONTENT_TYPE, "application/json")], ANSWER).into_response()
}
