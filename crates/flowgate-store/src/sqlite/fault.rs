//! What SQLite says when something fails, sorted by what the caller does about it.

use std::sync::Arc;

use rusqlite::ErrorCode;
use rusqlite::types::Type;

use crate::StoreError;

/// A failed statement. All callers that share a transaction share its fault.
#[derive(Clone, Debug)]
pub(super) struct Fault(Arc<rusqlite::Error>);

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self(Arc::new(error))
    }
}

impl Fault {
    /// A stored value that is not what was written.
    pub(super) fn unreadable(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(error)).into()
    }

    /// The error for a caller who was `doing` this.
    pub(super) fn into_error(self, doing: &str) -> StoreError {
        let is = |code| self.0.sqlite_error_code() == Some(code);
        let message = format!("{doing}: {}", self.0);
        let source: Option<Box<dyn std::error::Error + Send + Sync>> =
            Some(Box::new(Arc::clone(&self.0)));
        let is_unreadable = matches!(
            *self.0,
            rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
        );
        if is(ErrorCode::DiskFull) {
            StoreError::Full { message, source }
        } else if is(ErrorCode::DatabaseCorrupt) || is(ErrorCode::NotADatabase) || is_unreadable {
            StoreError::Corrupt { message, source }
        } else {
            StoreError::Unavailable { message, source }
        }
    }
}

/// The store does not answer because it is closed, or its writer is gone.
pub(super) fn closed() -> StoreError {
    StoreError::Unavailable { message: "the store is closed".to_owned(), source: None }
}
