//! The file of the embedded store: whether it is ours and sound, and how it is opened.

use std::fmt::Display;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::types::FromSql;
use rusqlite::{Connection, OpenFlags};

use super::Synchronous;
use super::fault::Fault;
use crate::StoreError;

/// The form of the tables; a file with a greater number was written by a newer flowgate.
pub(super) const FORMAT: u32 = 4;
/// The first form with a table of tags.
pub(super) const FORMAT_WITH_TAGS: u32 = 2;
/// The first form with tables of terms, records and permits.
pub(super) const FORMAT_WITH_AGREEMENTS: u32 = 3;
/// The first form that knows who registered a revision.
pub(super) const FORMAT_WITH_AUTHORS: u32 = 4;
/// In the header of every file of ours: `flow` in ASCII.
const APPLICATION_ID: u32 = 0x666c_6f77;
/// How long a connection waits for another one's lock.
const BUSY_WAIT_MAX: Duration = Duration::from_secs(10);
/// Bytes of a page. Twice the default: a commit costs a tenth less with half the writes.
const PAGE_BYTES: u32 = 8_192;
/// Pages of the write-ahead log that start a checkpoint.
const CHECKPOINT_PAGES: u32 = 2_000;
/// Bytes of the write-ahead log that are kept on disk after a checkpoint.
const WAL_BYTES_KEPT: u32 = 64 << 20;
/// The page cache of the connection that writes.
const CACHE_KIB: i32 = 16_000;
/// Prepared statements of one connection.
const STATEMENTS_MAX: usize = 64;

mod migrations {
    refinery::embed_migrations!("src/sqlite/migrations");
}

/// What is at the path of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing, or an empty file.
    Nothing,
    /// A file of ours.
    Ours {
        /// The form of its tables.
        format: u32,
    },
}

/// The one name of the file at `path`, so that two names cannot mean two locks.
pub(super) fn canonical(path: &Path) -> Result<PathBuf, StoreError> {
    let whole = match path.canonicalize() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).canonicalize();
            folder.map(|folder| folder.join(path.file_name().unwrap_or_default()))
        }
        other => other,
    };
    whole.map_err(|error| unavailable(path, error))
}

/// Looks at the file without changing it, and refuses what is not ours or not whole.
pub(super) fn inspect(path: &Path) -> Result<Found, StoreError> {
    let mut header = Vec::new();
    let file_bytes = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(unavailable(path, error)),
        Ok(file) => {
            let bytes = file.metadata().map_err(|error| unavailable(path, error))?.len();
            file.take(100).read_to_end(&mut header).map_err(|error| unavailable(path, error))?;
            bytes
        }
    };
    if file_bytes == 0 {
        return Ok(Found::Nothing);
    }
    let not_ours = || StoreError::Incompatible {
        message: format!("{} is not a store of flowgate; name another file", path.display()),
    };
    if header.len() < 100 || !header.starts_with(b"SQLite format 3\0") {
        return Err(not_ours());
    }
    let number = |at: usize| {
        u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes of a header"))
    };
    if number(68) != APPLICATION_ID {
        return Err(not_ours());
    }
    let page_bytes = u64::from(u16::from_be_bytes([header[16], header[17]]));
    // The count of pages is valid when the same change wrote both of these numbers.
    let pages = if number(24) == number(92) { u64::from(number(28)) } else { 0 };
    if page_bytes * pages > file_bytes {
        let message = format!(
            "{} has {file_bytes} bytes, but its header says {pages} pages of {page_bytes} bytes",
            path.display()
        );
        return Err(StoreError::Corrupt { message, source: None });
    }
    Ok(Found::Ours { format: check_format(path)? })
}

/// Refuses the file of a newer flowgate, by a connection that cannot write.
fn check_format(path: &Path) -> Result<u32, StoreError> {
    let format = open_for_reading(path)
        .and_then(|connection| Ok(connection.query_row("PRAGMA user_version", [], |r| r.get(0))?))
        .map_err(|fault: Fault| fault.into_error("opening the store"))?;
    let format: u32 = format;
    if format > FORMAT {
        return Err(StoreError::Incompatible {
            message: format!(
                "{} has format {format}, and this flowgate knows formats up to {FORMAT}; \
                 use the flowgate that wrote it, or a later one",
                path.display()
            ),
        });
    }
    Ok(format)
}

/// The connection that writes, to a file with all tables.
pub(super) fn open_for_writing(
    path: &Path,
    found: Found,
    synchronous: Synchronous,
) -> Result<Connection, StoreError> {
    let opened = connect(path, found, synchronous);
    let mut connection = opened.map_err(|fault| fault.into_error("opening the store"))?;
    let mut format = 0;
    check_pragma::<String>(&connection, "journal_mode", "wal")?;
    check_pragma::<u8>(&connection, "synchronous", synchronous.number())?;
    connection
        .pragma_query_value(None, "user_version", |row| row.get(0).map(|stored| format = stored))
        .map_err(|error| Fault::from(error).into_error("opening the store"))?;
    if format < FORMAT {
        migrations::migrations::runner().run(&mut connection).map_err(|error| {
            let message = format!("bringing {} to format {FORMAT}", path.display());
            StoreError::Unavailable { message, source: Some(Box::new(error)) }
        })?;
    }
    Ok(connection)
}

fn connect(path: &Path, found: Found, synchronous: Synchronous) -> Result<Connection, Fault> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_WAIT_MAX)?;
    if found == Found::Nothing {
        // All three are only taken over by a file without tables.
        connection.pragma_update(None, "page_size", PAGE_BYTES)?;
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", synchronous.number())?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    connection.pragma_update(None, "journal_size_limit", WAL_BYTES_KEPT)?;
    connection.pragma_update(None, "foreign_keys", false)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok(connection)
}

/// Refuses a file whose folder or SQLite does not do what durability needs.
fn check_pragma<T: FromSql + PartialEq + Display>(
    connection: &Connection,
    pragma: &str,
    wanted: impl Into<T>,
) -> Result<(), StoreError> {
    let wanted = wanted.into();
    let kept: T = connection
        .pragma_query_value(None, pragma, |row| row.get(0))
        .map_err(|error| Fault::from(error).into_error("opening the store"))?;
    if kept == wanted {
        return Ok(());
    }
    Err(StoreError::Unsafe {
        message: format!(
            "SQLite keeps {pragma} at {kept}, not at {wanted}; \
             put the file on a local disk, not on a network share"
        ),
    })
}

/// A connection that reads.
pub(super) fn open_for_reading(path: &Path) -> Result<Connection, Fault> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_WAIT_MAX)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok(connection)
}

fn unavailable(path: &Path, error: std::io::Error) -> StoreError {
    StoreError::Unavailable {
        message: format!("opening {}: {error}", path.display()),
        source: Some(Box::new(error)),
    }
}

/// Empty tables, for tests of statements.
#[cfg(test)]
pub(super) fn migrated_in_memory() -> Connection {
    let mut connection = Connection::open_in_memory().expect("opening");
    migrations::migrations::runner().run(&mut connection).expect("migrating");
    connection
}
