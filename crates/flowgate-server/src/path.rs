//! What varies in the path of a request.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::error::ApiError;

/// The parts of the path that vary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match axum::extract::Path::<T>::from_request_parts(parts, state).await {
            // No name has it, and not every store can be asked for one that does.
            Ok(_) if parts.uri.path().contains("%00") => {
                Err(ApiError::not_found("not_found", "no name holds the character NUL"))
            }
            Ok(axum::extract::Path(value)) => Ok(Self(value)),
            Err(error) => Err(ApiError::not_found("not_found", error.body_text())),
        }
    }
}
