//! What PostgreSQL says when something fails, sorted by what the caller does about it.

use std::time::Duration;

use deadpool_postgres::{PoolError, TimeoutType};
use tokio_postgres::error::SqlState;

use crate::StoreError;

/// A call that failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// The driver or the server said so.
    Driver(tokio_postgres::Error),
    /// No answer came in time. Whether the call was carried out is not known.
    Silence(Duration),
    /// No connection could be had.
    Pool(PoolError),
    /// A stored value is not what was written.
    Unreadable(Box<dyn std::error::Error + Send + Sync>),
}

/// What to do about a state that the server answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reaction {
    /// The server chose this transaction as a victim; the same call works at once.
    Repeat,
    /// Try again later.
    Wait,
    /// Make room.
    MakeRoom,
    /// Restore what somebody took away.
    Restore,
    /// Somebody has to change a setting, a right or a version.
    Change(&'static str),
}

fn reaction(state: &SqlState) -> Reaction {
    if *state == SqlState::T_R_SERIALIZATION_FAILURE || *state == SqlState::T_R_DEADLOCK_DETECTED {
        return Reaction::Repeat;
    }
    if *state == SqlState::DISK_FULL {
        return Reaction::MakeRoom;
    }
    if *state == SqlState::INVALID_CATALOG_NAME {
        return Reaction::Change("create the database, or correct its name in the store's URL");
    }
    if *state == SqlState::INSUFFICIENT_PRIVILEGE {
        return Reaction::Change(
            "grant the user CREATE on the database, or ownership of the schema",
        );
    }
    let is_gone = [
        SqlState::UNDEFINED_TABLE,
        SqlState::UNDEFINED_COLUMN,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::UNDEFINED_OBJECT,
        SqlState::INVALID_SCHEMA_NAME,
        SqlState::DATA_CORRUPTED,
        SqlState::INDEX_CORRUPTED,
    ];
    if is_gone.contains(state) {
        return Reaction::Restore;
    }
    match state.code().get(..2) {
        Some("28") => Reaction::Change("correct user and password in the store's URL"),
        Some("0A" | "42") => Reaction::Change("use PostgreSQL 13 or later, and a schema of ours"),
        // Lost connections, read-only servers, shut-downs, too many clients, time-outs and all
        // that this table does not know.
        Some(_) | None => Reaction::Wait,
    }
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Driver(error)
    }
}

impl Fault {
    /// A stored value that is not what was written.
    pub(super) fn unreadable(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Unreadable(Box::new(error))
    }

    /// Whether the same call works at once.
    pub(super) fn is_repeatable(&self) -> bool {
        match self {
            Self::Driver(error) => error.code().is_some_and(|s| reaction(s) == Reaction::Repeat),
            Self::Silence(_) | Self::Pool(_) | Self::Unreadable(_) => false,
        }
    }

    /// Whether the server has something against the statement, and so has not carried it out. What
    /// it knows by its name may be another one, also of a schema that is gone.
    pub(super) fn is_about_statement(&self) -> bool {
        let is_about = |state: &SqlState| {
            *state == SqlState::PROTOCOL_VIOLATION
                || matches!(state.code().get(..2), Some("0A" | "26" | "3F" | "42"))
        };
        match self {
            Self::Driver(error) => error.code().is_some_and(is_about),
            Self::Silence(_) | Self::Pool(_) | Self::Unreadable(_) => false,
        }
    }

    /// The error for a caller who was `doing` this.
    pub(super) fn into_error(self, doing: &str) -> StoreError {
        match self {
            Self::Driver(error) => driver_error(error, doing),
            Self::Pool(PoolError::Backend(error)) => {
                driver_error(error, &format!("connecting, for {doing}"))
            }
            Self::Pool(error) => {
                let message = match &error {
                    PoolError::Timeout(TimeoutType::Wait) => {
                        format!("{doing}: all connections of the pool are busy")
                    }
                    PoolError::Timeout(TimeoutType::Create | TimeoutType::Recycle)
                    | PoolError::Backend(_)
                    | PoolError::Closed
                    | PoolError::NoRuntimeSpecified
                    | PoolError::PostCreateHook(_) => format!("{doing}: there is no connection"),
                };
                StoreError::Unavailable { message, source: Some(Box::new(error)) }
            }
            Self::Silence(waited) => StoreError::Unavailable {
                message: format!("{doing}: no answer within {waited:?}"),
                source: None,
            },
            Self::Unreadable(error) => {
                StoreError::Corrupt { message: format!("{doing}: {error}"), source: Some(error) }
            }
        }
    }
}

fn driver_error(error: tokio_postgres::Error, doing: &str) -> StoreError {
    let said = match (error.as_db_error(), std::error::Error::source(&error)) {
        (Some(answer), _) => answer.message().to_owned(),
        // Without its cause, an error of the driver says little more than that there is one.
        (None, Some(cause)) => format!("{error}: {cause}"),
        (None, None) => error.to_string(),
    };
    let message = format!("{doing}: {said}");
    let reaction = error.code().map_or(Reaction::Wait, reaction);
    let source: Option<Box<dyn std::error::Error + Send + Sync>> = Some(Box::new(error));
    match reaction {
        Reaction::Repeat | Reaction::Wait => StoreError::Unavailable { message, source },
        Reaction::MakeRoom => StoreError::Full { message, source },
        Reaction::Restore => StoreError::Corrupt { message, source },
        Reaction::Change(remedy) => {
            StoreError::Incompatible { message: format!("{message}; {remedy}") }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_its_reaction() {
        let change = |remedy| Reaction::Change(remedy);
        for (code, expected) in [
            ("40001", Reaction::Repeat),
            ("40P01", Reaction::Repeat),
            ("57P01", Reaction::Wait),
            ("57P02", Reaction::Wait),
            ("57P03", Reaction::Wait),
            ("57014", Reaction::Wait),
            ("08006", Reaction::Wait),
            ("08P01", Reaction::Wait),
            ("25006", Reaction::Wait),
            ("53300", Reaction::Wait),
            ("53200", Reaction::Wait),
            ("55P03", Reaction::Wait),
            ("58030", Reaction::Wait),
            ("XX000", Reaction::Wait),
            ("53100", Reaction::MakeRoom),
            ("42P01", Reaction::Restore),
            ("42883", Reaction::Restore),
            ("3F000", Reaction::Restore),
            ("XX001", Reaction::Restore),
            ("XX002", Reaction::Restore),
            ("28P01", change("correct user and password in the store's URL")),
            ("28000", change("correct user and password in the store's URL")),
            ("3D000", change("create the database, or correct its name in the store's URL")),
            ("42501", change("grant the user CREATE on the database, or ownership of the schema")),
            ("42601", change("use PostgreSQL 13 or later, and a schema of ours")),
            ("0A000", change("use PostgreSQL 13 or later, and a schema of ours")),
        ] {
            assert_eq!(reaction(&SqlState::from_code(code)), expected, "{code}");
        }
    }

    #[test]
    fn what_may_pass_by_itself_is_transient() {
        let silent = Fault::Silence(Duration::from_secs(1)).into_error("committing");
        assert!(silent.is_transient());
        assert_eq!(
            silent.to_string(),
            "the store is not available: committing: no answer within 1s"
        );
        let broken = Fault::unreadable(std::io::Error::other("not JSON")).into_error("reading");
        assert!(!broken.is_transient());
        let busy = Fault::Pool(PoolError::Timeout(TimeoutType::Wait)).into_error("reading");
        assert!(busy.is_transient());
    }
}
