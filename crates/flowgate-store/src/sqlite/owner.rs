//! One process owns a file: an advisory lock on the file beside it, `PATH.lock`.
//!
//! The lock ends with its process, however that ends. The file stays and says who took the lock
//! last and which instances that process has; only while the lock is held does that count.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flowgate_core::ids::InstanceId;
use flowgate_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{InstanceRow, StoreError};

/// Bytes of a lock file that are read.
const NOTE_BYTES_MAX: u64 = 1 << 20;
/// How often a lock is tried for: whoever asks who holds it has it for a moment. A note that is
/// being written is read again as often.
const TRIES_MAX: u32 = 10;
/// The pause between two tries.
const TRY_PAUSE: Duration = Duration::from_millis(20);

/// The lock on a store's file, held until it is dropped.
#[derive(Debug)]
pub(super) struct Ownership {
    locked: File,
    note: Note,
}

/// What a lock file says.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Note {
    pid: u32,
    owner: InstanceId,
    since: Timestamp,
    instances: Vec<InstanceRow>,
}

impl Note {
    fn in_words(&self) -> String {
        format!("process {} ({}), since {}", self.pid, self.owner, self.since)
    }
}

impl Ownership {
    /// Lets other processes know of these instances. A reader may see the old ones and the new
    /// ones mixed, and then reads again.
    pub(super) fn note(&mut self, instances: Vec<InstanceRow>) -> std::io::Result<()> {
        self.note.instances = instances;
        let text = serde_json::to_vec(&self.note).map_err(std::io::Error::other)?;
        self.locked.rewind()?;
        self.locked.write_all(&text)?;
        self.locked.set_len(u64::try_from(text.len()).expect("a note fits in memory"))
    }
}

/// Takes the lock on the store at `path`, or says who has it.
pub(super) fn take(
    path: &Path,
    owner: &InstanceId,
    now: Timestamp,
) -> Result<Ownership, StoreError> {
    let lock_path = lock_path(path);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&lock_path)
        .map_err(|error| fault("opening", &lock_path, error))?;
    let mut tries = 1;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if tries < TRIES_MAX => {
                tries += 1;
                std::thread::sleep(TRY_PAUSE);
            }
            Err(TryLockError::WouldBlock) => {
                let owner = owner_in_words(read(&mut file).unwrap_or_default());
                return Err(StoreError::Owned { path: path.display().to_string(), owner });
            }
            Err(TryLockError::Error(error)) => return Err(fault("locking", &lock_path, error)),
        }
    }
    let note =
        Note { pid: std::process::id(), owner: owner.clone(), since: now, instances: Vec::new() };
    let mut ownership = Ownership { locked: file, note };
    ownership.note(Vec::new()).map_err(|error| fault("writing", &lock_path, error))?;
    Ok(ownership)
}

/// Who owns the store at `path`, in words; nobody if its lock is not held.
pub(super) fn in_words(path: &Path) -> Result<Option<String>, StoreError> {
    let Some(mut file) = held(path)? else { return Ok(None) };
    Ok(Some(owner_in_words(read(&mut file).unwrap_or_default())))
}

/// The instances of the process that owns the store at `path`; none if nobody does.
pub(super) fn instances(path: &Path) -> Result<Vec<InstanceRow>, StoreError> {
    for _ in 0..TRIES_MAX {
        let Some(mut file) = held(path)? else { return Ok(Vec::new()) };
        let text = read(&mut file).map_err(|error| fault("reading", &lock_path(path), error))?;
        if let Ok(note) = serde_json::from_str::<Note>(&text) {
            return Ok(note.instances);
        }
        std::thread::sleep(TRY_PAUSE);
    }
    let message = format!("{} is in use by a flowgate that does not say more", path.display());
    Err(StoreError::Unavailable { message, source: None })
}

/// The lock file of the store at `path` if somebody holds the lock.
fn held(path: &Path) -> Result<Option<File>, StoreError> {
    let lock_path = lock_path(path);
    let file = match File::open(&lock_path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fault("opening", &lock_path, error)),
    };
    match file.try_lock_shared() {
        // It is given back with the file.
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(Some(file)),
        Err(TryLockError::Error(error)) => Err(fault("locking", &lock_path, error)),
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

fn read(file: &mut File) -> std::io::Result<String> {
    file.rewind()?;
    let mut text = String::new();
    file.take(NOTE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Who wrote a lock file. The first versions wrote words, not JSON.
fn owner_in_words(text: String) -> String {
    match serde_json::from_str::<Note>(&text) {
        Ok(note) => note.in_words(),
        Err(_) if text.is_empty() || text.starts_with('{') => "another process".to_owned(),
        Err(_) => text,
    }
}

fn fault(doing: &str, lock_path: &Path, error: std::io::Error) -> StoreError {
    StoreError::Unavailable {
        message: format!("{doing} {}: {error}", lock_path.display()),
        source: Some(Box::new(error)),
    }
}
