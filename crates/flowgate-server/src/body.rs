//! Reading the body of a request: whole, in time, within its size, and as what it says it is.

use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use flowgate_core::limits::PAYLOAD_BYTES_MAX;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use crate::error::ApiError;
use crate::strict;

/// Bytes of a body.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;
/// Bytes of a body that holds a payload, and what goes with it.
pub(crate) const PAYLOAD_BODY_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + (64 << 10);
/// How long a body may take to come.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);

/// A body that is a JSON value of the type `T`, of at most `MAX` bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Json<T, const MAX: usize = BODY_BYTES_MAX>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned, const MAX: usize> FromRequest<S> for Json<T, MAX> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        check_type(&parts.headers)?;
        let bytes = read(&parts.headers, body, MAX).await?;
        parse(&bytes).map(Self)
    }
}

/// Like [`Json`], where no body at all stands for the default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OptionalJson<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let bytes = read(&parts.headers, body, BODY_BYTES_MAX).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        check_type(&parts.headers)?;
        parse(&bytes).map(Self)
    }
}

/// The whole body, raw.
pub(crate) async fn read(headers: &HeaderMap, body: Body, max: usize) -> Result<Bytes, ApiError> {
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING)
        && encoding != "identity"
    {
        let message = "the body is compressed; it must be sent as it is";
        return Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "encoding_unsupported",
            message,
        ));
    }
    let too_large = || {
        let message = format!("the body has more than {max} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if length.and_then(|text| text.parse::<u64>().ok()).is_some_and(|length| length > max as u64) {
        return Err(too_large());
    }
    let gathered = tokio::time::timeout(BODY_TIME_MAX, gather(Limited::new(body, max))).await;
    match gathered {
        Ok(Ok(gathered)) => Ok(gathered),
        Ok(Err(error)) if error.downcast_ref::<LengthLimitError>().is_some() => Err(too_large()),
        Ok(Err(error)) => {
            Err(ApiError::bad_request("body_broken", format!("the body broke off: {error}")))
        }
        Err(_) => {
            let message = format!("the body did not come within {} s", BODY_TIME_MAX.as_secs());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message))
        }
    }
}

/// The bytes of a body in one piece.
///
/// They are copied: a piece keeps the whole buffer that it came in, so one who sends a byte at a
/// time would take thousands of times what the limit says.
async fn gather(mut body: Limited<Body>) -> Result<Bytes, BoxError> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame?.into_data() else { continue };
        if whole.is_empty() && body.is_end_stream() {
            return Ok(piece);
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole.freeze())
}

/// Reads `bytes` as a `T`.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        let message = "the request has no body; send a JSON object";
        return Err(ApiError::bad_request("body_empty", message));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        ApiError::bad_request("utf8_invalid", format!("the body is not UTF-8 at byte {at}"))
    })?;
    strict::check(text)?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let text = error.inner().to_string();
        let text = text.split(" at line ").next().unwrap_or(&text).to_owned();
        misfit(&text).path(if path == "." { String::new() } else { path })
    })
}

/// Why a value is not of the type that is asked for.
pub(crate) fn misfit(text: &str) -> ApiError {
    if text.starts_with("unknown field") {
        return ApiError::invalid("unknown_field", text);
    }
    let is_number = text.starts_with("invalid value: integer")
        || text.starts_with("invalid value: floating point")
        || text.starts_with("invalid type: floating point");
    let code = if is_number { "integer_out_of_range" } else { "field_invalid" };
    ApiError::invalid(code, text)
}

fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = given.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let message = match given {
        None => "the request has no Content-Type".to_owned(),
        Some(given) => format!("the Content-Type `{given}` is not understood"),
    };
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media_type", message)
        .help("send `Content-Type: application/json`"))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use super::*;

    /// A buffer, of which one byte came.
    struct Buffer {
        _held: Arc<()>,
    }

    impl AsRef<[u8]> for Buffer {
        fn as_ref(&self) -> &[u8] {
            b"x"
        }
    }

    #[tokio::test]
    async fn a_body_that_comes_byte_by_byte_keeps_no_buffer_of_a_byte() {
        let held = Arc::new(());
        let owner = Arc::clone(&held);
        let bytes = (0..1_000).map(move |_| {
            assert!(Arc::strong_count(&owner) <= 3, "a buffer is kept");
            Ok::<_, Infallible>(Bytes::from_owner(Buffer { _held: Arc::clone(&owner) }))
        });
        let body = Body::from_stream(futures_util::stream::iter(bytes));
        let whole = read(&HeaderMap::new(), body, 1_000).await.unwrap();
        assert_eq!(whole, "x".repeat(1_000));
        let body = Body::from("x".repeat(1_001));
        let refused = read(&HeaderMap::new(), body, 1_000).await.unwrap_err();
        assert_eq!(refused.code, "body_too_large");
    }
}
