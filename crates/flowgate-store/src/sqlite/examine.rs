//! Looking at the file of an embedded store for what may cost runs.

use std::path::Path;

use rusqlite::Connection;
use rustix::fs::{statfs, statvfs};

use super::file::{self, FORMAT, Found};
use super::{blocking, owner};
use crate::{Finding, StoreError};

/// Free bytes under which somebody should look, and under which something is wrong.
const FREE_BYTES_LOW: u64 = 1 << 30;
const FREE_BYTES_MIN: u64 = 100 << 20;
/// Bytes of a write-ahead log that something keeps from being written back.
const WAL_BYTES_HIGH: u64 = 256 << 20;

/// Kinds of file systems, as the kernel numbers them, on which locks or syncs cannot be relied on.
const REMOTE: [(u32, &str); 7] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x0102_1997, "9P"),
    (0x5346_414f, "AFS"),
    (0x00c3_6400, "Ceph"),
];

/// Looks at the store in the file at `path`, without changing it.
pub async fn examine(path: impl AsRef<Path>) -> Vec<Finding> {
    let path = path.as_ref().to_owned();
    let examined = blocking("examining the store", move || Ok(examine_blocking(&path))).await;
    examined.unwrap_or_else(|error| vec![unusable(&error)])
}

fn examine_blocking(path: &Path) -> Vec<Finding> {
    let path = match file::canonical(path) {
        Ok(path) => path,
        Err(error) => return vec![unusable(&error)],
    };
    let mut findings = Vec::new();
    match file::inspect(&path) {
        Err(error) => findings.push(unusable(&error)),
        Ok(Found::Nothing) => {
            let found = format!("nothing is stored at {} yet", path.display());
            findings.push(Finding::good("file", found));
        }
        Ok(Found::Ours { format }) => {
            findings.push(Finding::good("file", path.display().to_string()));
            findings.push(examine_format(format));
            findings.push(examine_owner(&path));
            findings.extend(examine_content(&path));
            findings.push(examine_wal(&path));
        }
    }
    findings.extend(examine_place(path.parent().unwrap_or(Path::new("/"))));
    findings
}

fn unusable(error: &StoreError) -> Finding {
    let remedy = match error {
        StoreError::Corrupt { .. } => "restore a backup; nothing was overwritten",
        StoreError::Incompatible { .. } => "name another file, or use the flowgate that wrote it",
        StoreError::Unavailable { .. }
        | StoreError::Full { .. }
        | StoreError::Owned { .. }
        | StoreError::ReadOnly
        | StoreError::Unsafe { .. } => "check the path, and the permissions of file and folder",
    };
    Finding::bad("file", error.to_string(), remedy)
}

fn examine_format(format: u32) -> Finding {
    let found = format!("format {format}");
    if format == FORMAT {
        return Finding::good("format", found);
    }
    Finding::good("format", format!("{found}; the next owner brings it to {FORMAT}"))
}

fn examine_owner(path: &Path) -> Finding {
    match owner::in_words(path) {
        Ok(Some(owner)) => Finding::good("owner", owner),
        Ok(None) => Finding::good("owner", "nobody; open runs wait for `flowgate dev`"),
        Err(error) => {
            let remedy = "check the permissions of the file with the ending .lock";
            Finding::bad("owner", error.to_string(), remedy)
        }
    }
}

fn examine_content(path: &Path) -> Vec<Finding> {
    let connection = match file::open_for_reading(path) {
        Ok(connection) => connection,
        Err(fault) => return vec![unusable(&fault.into_error("opening the store"))],
    };
    let ask = |connection: &Connection, sql: &str| -> Result<String, rusqlite::Error> {
        connection.query_row(sql, [], |row| row.get(0))
    };
    let journal = match ask(&connection, "PRAGMA journal_mode") {
        Ok(mode) if mode == "wal" => Finding::good("journal", "write-ahead log"),
        Ok(mode) => {
            let found = format!("journal mode {mode}, not wal");
            Finding::bad("journal", found, "put the file on a local disk")
        }
        Err(error) => Finding::bad("journal", error.to_string(), "restore a backup"),
    };
    let integrity = match ask(&connection, "PRAGMA quick_check(1)") {
        Ok(answer) if answer == "ok" => Finding::good("integrity", "every page is sound"),
        Ok(answer) => Finding::bad("integrity", answer, "restore a backup"),
        Err(error) => Finding::bad("integrity", error.to_string(), "restore a backup"),
    };
    vec![journal, integrity]
}

fn examine_wal(path: &Path) -> Finding {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    let bytes = std::fs::metadata(wal).map_or(0, |found| found.len());
    let found = megabytes(bytes);
    if bytes < WAL_BYTES_HIGH {
        return Finding::good("write-ahead log", found);
    }
    let remedy = "a process that reads the file for long keeps it from shrinking; end that one";
    Finding::warning("write-ahead log", found, remedy)
}

/// The disk that a folder is on.
fn examine_place(folder: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Ok(system) = statvfs(folder) {
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        let found = format!("{} free", megabytes(free));
        let remedy = "make room, or shorten the retention";
        findings.push(match free {
            0..FREE_BYTES_MIN => Finding::bad("disk space", found, remedy),
            FREE_BYTES_MIN..FREE_BYTES_LOW => Finding::warning("disk space", found, remedy),
            FREE_BYTES_LOW.. => Finding::good("disk space", found),
        });
    }
    if let Ok(system) = statfs(folder) {
        // The kernel numbers kinds with 32 bits, whatever the width of the field.
        let kind = system.f_type & 0xffff_ffff;
        let remote = REMOTE.iter().find(|(number, _)| kind == i64::from(*number));
        findings.push(match remote {
            Some((_, name)) => {
                let remedy = "put the file on a local disk, or use Redis or PostgreSQL";
                Finding::bad("file system", format!("{name}, over a network"), remedy)
            }
            None => Finding::good("file system", "local"),
        });
    }
    findings
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes >> 20)
}
