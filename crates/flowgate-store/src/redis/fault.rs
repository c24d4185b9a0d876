//! What Redis says when something fails, sorted by what the caller does about it.

use redis::{ErrorKind, RedisError};

use crate::StoreError;

/// The error for a caller who was `doing` this.
pub(super) fn error(doing: &str, error: RedisError) -> StoreError {
    let class = class(&error);
    let message = match class {
        Class::Denied => format!(
            "{doing}: Redis refused the credentials or the command ({error}); give the user and \
             password in the URL of the store, and allow that user all commands on its keys"
        ),
        Class::Unavailable | Class::Full | Class::Corrupt => format!("{doing}: {error}"),
    };
    let source: Option<Box<dyn std::error::Error + Send + Sync>> = Some(Box::new(error));
    match class {
        Class::Unavailable => StoreError::Unavailable { message, source },
        Class::Full => StoreError::Full { message, source },
        Class::Corrupt => StoreError::Corrupt { message, source },
        Class::Denied => StoreError::Incompatible { message },
    }
}

/// A reply or a stored value that is not what was written.
pub(super) fn unreadable(what: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt { message: format!("Redis holds {what}"), source: None }
}

/// Whether a connection that failed so is of no more use.
pub(super) fn ends_connection(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || error.is_unrecoverable_error()
        || error.kind() == ErrorKind::ClusterConnectionNotFound
        // The primary that this connection leads to is none any more.
        || matches!(error.code(), Some("READONLY" | "MASTERDOWN"))
}

/// Whether the server does not know the script.
pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Trying again may help.
    Unavailable,
    /// It helps once there is room.
    Full,
    /// It holds what we cannot have written.
    Corrupt,
    /// Trying again does not help.
    Denied,
}

fn class(error: &RedisError) -> Class {
    if error.kind() == ErrorKind::AuthenticationFailed {
        return Class::Denied;
    }
    match error.code() {
        Some("OOM" | "MISCONF") => Class::Full,
        Some("WRONGTYPE") => Class::Corrupt,
        Some("NOAUTH" | "WRONGPASS" | "NOPERM") => Class::Denied,
        // An error inside a script is reported under its own code or, by older servers, in its
        // text.
        Some("ERR") | None => {
            let text = error.to_string();
            if text.contains("WRONGTYPE") || text.contains("user_script") {
                Class::Corrupt
            } else if text.contains("OOM ") || text.contains("MISCONF") {
                Class::Full
            } else if text.contains("WRONGPASS") || text.contains("NOAUTH") {
                Class::Denied
            } else {
                Class::Unavailable
            }
        }
        Some(_) => Class::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> RedisError {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
        match value.and_then(redis::Value::extract_error) {
            Ok(value) => panic!("{value:?} is no error"),
            Err(error) => error,
        }
    }

    #[test]
    fn what_redis_says_is_sorted_by_what_to_do_about_it() {
        for (line, expected) in [
            ("READONLY You can't write against a read only replica.", Class::Unavailable),
            ("LOADING Redis is loading the dataset in memory", Class::Unavailable),
            ("CLUSTERDOWN The cluster is down", Class::Unavailable),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Class::Unavailable),
            ("MASTERDOWN Link with MASTER is down", Class::Unavailable),
            ("BUSY Redis is busy running a script.", Class::Unavailable),
            ("NOREPLICAS Not enough good replicas to write.", Class::Unavailable),
            ("UNBLOCKED force unblock from blocking operation", Class::Unavailable),
            ("NOSCRIPT No matching script. Please use EVAL.", Class::Unavailable),
            ("ERR max number of clients reached", Class::Unavailable),
            ("OOM command not allowed when used memory > 'maxmemory'.", Class::Full),
            ("MISCONF Errors writing to the AOF file: No space left on device", Class::Full),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Class::Corrupt),
            ("ERR Error running script: user_script:9: attempt to index nil", Class::Corrupt),
            ("NOAUTH Authentication required.", Class::Denied),
            ("WRONGPASS invalid username-password pair or user is disabled.", Class::Denied),
            ("NOPERM this user has no permissions to run the 'evalsha' command", Class::Denied),
        ] {
            assert_eq!(class(&said(line)), expected, "{line}");
        }
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert_eq!(class(&RedisError::from(refused)), Class::Unavailable);
    }

    #[test]
    fn a_connection_to_a_primary_that_stepped_down_is_given_up() {
        assert!(ends_connection(&said("READONLY You can't write against a read only replica.")));
        assert!(ends_connection(&std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()));
        assert!(!ends_connection(&said("OOM command not allowed")));
        assert!(!ends_connection(&said("NOSCRIPT No matching script.")));
    }
}
