//! One process owns a file: an advisory lock on the file beside it, `PATH.lock`.
//!
//! The lock ends with its process, however that ends. The file stays and says in words who took
//! the lock last; only the lock itself counts.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use flowgate_core::ids::InstanceId;
use flowgate_core::time::Timestamp;

use crate::StoreError;

/// The lock on a store's file, held until it is dropped.
#[derive(Debug)]
pub(super) struct Ownership {
    _locked: File,
}

/// Bytes of a lock file that are read.
const OWNER_BYTES_MAX: u64 = 1_000;

/// Takes the lock on the store at `path`, or says who has it.
pub(super) fn take(
    path: &Path,
    owner: &InstanceId,
    now: Timestamp,
) -> Result<Ownership, StoreError> {
    let lock_path = lock_path(path);
    let fault = |doing: &str, error: std::io::Error| StoreError::Unavailable {
        message: format!("{doing} {}: {error}", lock_path.display()),
        source: Some(Box::new(error)),
    };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&lock_path)
        .map_err(|error| fault("opening", error))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let owner = read_owner(&mut file).unwrap_or_else(|| "another process".to_owned());
            return Err(StoreError::Owned { path: path.display().to_string(), owner });
        }
        Err(TryLockError::Error(error)) => return Err(fault("locking", error)),
    }
    let text = format!("process {} ({owner}), since {now}", std::process::id());
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| file.write_all(text.as_bytes()))
        .map_err(|error| fault("writing", error))?;
    Ok(Ownership { _locked: file })
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

fn read_owner(file: &mut File) -> Option<String> {
    let mut text = String::new();
    file.take(OWNER_BYTES_MAX).read_to_string(&mut text).ok()?;
    (!text.is_empty()).then_some(text)
}
