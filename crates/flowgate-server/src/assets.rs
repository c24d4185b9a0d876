//! The dashboard: a few files, embedded in the binary.

use std::fmt::Write as _;

use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use rust_embed::RustEmbed;

use crate::error::ApiError;

#[derive(RustEmbed)]
#[folder = "../../web/dist"]
struct Files;

/// The page that every address of the dashboard begins with.
const PAGE: &str = "index.html";

/// A file of the dashboard; the page itself for every address that is not one of its files.
pub(crate) async fn serve(uri: Uri, asked: HeaderMap) -> Response {
    let path = uri.path().trim_start_matches('/');
    if path.starts_with("api/") {
        return ApiError::not_found("not_found", format!("there is nothing at {}", uri.path()))
            .help("`/api/v1/openapi.json` describes what there is")
            .into_response();
    }
    let is_file = path.contains('.') && !path.contains('/') || path.starts_with("assets/");
    let name = if is_file { path } else { PAGE };
    let Some(file) = Files::get(name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let kind = HeaderValue::from_str(file.metadata.mimetype())
        .unwrap_or(HeaderValue::from_static("application/octet-stream"));
    let etag = format!("\"{}\"", hex(&file.metadata.sha256_hash()[..8]));
    let mut response = if is_known(&asked, &etag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        file.data.into_response()
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    let etag = HeaderValue::try_from(etag).expect("digits and quotes may stand in a header");
    headers.insert(header::ETAG, etag);
    response
}

/// Whether the caller has this version of the file already.
fn is_known(asked: &HeaderMap, etag: &str) -> bool {
    let known = asked.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    known.is_some_and(|known| {
        known.split(',').any(|each| each.trim().trim_start_matches("W/") == etag)
    })
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn get(path: &str, etag: Option<&HeaderValue>) -> Response {
        let mut asked = HeaderMap::new();
        if let Some(etag) = etag {
            asked.insert(header::IF_NONE_MATCH, etag.clone());
        }
        serve(path.parse().unwrap(), asked).await
    }

    #[tokio::test]
    async fn every_page_of_the_dashboard_is_the_same_file() {
        for path in
            ["/", "/runs", "/runs/019a8b2c-1f3e", "/flows/a.b", "/schedules/order%2Fnightly"]
        {
            let response = get(path, None).await;
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            assert_eq!(response.headers()[header::CONTENT_TYPE], "text/html", "{path}");
        }
        assert_eq!(get("/nothing.js", None).await.status(), StatusCode::NOT_FOUND);
        assert_eq!(get("/api/v1/nothing", None).await.status(), StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn a_file_that_the_browser_has_is_not_sent_again() {
        for path in ["/app.js", "/app.css", "/icon.svg", "/"] {
            let first = get(path, None).await;
            assert_eq!(first.status(), StatusCode::OK, "{path}");
            let etag = &first.headers()[header::ETAG];
            assert_eq!(get(path, Some(etag)).await.status(), StatusCode::NOT_MODIFIED, "{path}");
            let other = HeaderValue::from_static("\"other\"");
            assert_eq!(get(path, Some(&other)).await.status(), StatusCode::OK, "{path}");
        }
    }
}
