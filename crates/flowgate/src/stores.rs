//! Opening the store that the settings name.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flowgate_core::ids::InstanceId;
use flowgate_store::{MemoryStore, SqliteOptions, SqliteStore, Store, StoreUrl};

use crate::cmd::App;
use crate::config::Synchronous;
use crate::failure::{Exit, Failure};

/// The folder of the default store; what it holds belongs to this machine.
const FOLDER: &str = ".flowgate";

/// A store that this process writes to: a file or memory that it owns, or a share of a server.
#[derive(Debug)]
pub(crate) struct OwnStore {
    pub(crate) store: Arc<dyn Store>,
    file: Option<Arc<SqliteStore>>,
}

impl OwnStore {
    /// Gives the file up, with all that was written in it.
    pub(crate) async fn close(&self) {
        if let Some(file) = &self.file
            && let Err(error) = file.close().await
        {
            tracing::warn!(%error, "the store did not close well; nothing acknowledged is lost");
        }
    }
}

/// Opens the store for reading, also beside a process that owns it.
///
/// A store that nobody has written to yet is empty, not an error.
pub(crate) async fn open_local(app: &App) -> Result<Arc<dyn Store>, Failure> {
    let path = match &app.config.store {
        StoreUrl::Sqlite(path) => path,
        StoreUrl::Memory => return Err(memory_is_private()),
        shared @ (StoreUrl::Redis(_) | StoreUrl::Postgres(_)) => return open_shared(shared).await,
    };
    let is_empty = match std::fs::metadata(path) {
        Ok(found) => found.len() == 0,
        Err(error) if error.kind() == ErrorKind::NotFound => true,
        Err(error) => return Err(unusable(path, error)),
    };
    if is_empty {
        app.output.note(format_args!("nothing is stored at {} yet", path.display()));
        return Ok(Arc::new(MemoryStore::new()));
    }
    Ok(Arc::new(SqliteStore::open_read_only(path).await?))
}

/// Opens the store to write, an embedded one as its only owner, and makes it if there is none.
pub(crate) async fn open_to_write(
    app: &App,
    url: &StoreUrl,
    owner: &InstanceId,
) -> Result<OwnStore, Failure> {
    let path = match url {
        StoreUrl::Sqlite(path) => path,
        StoreUrl::Memory => {
            return Ok(OwnStore { store: Arc::new(MemoryStore::new()), file: None });
        }
        StoreUrl::Redis(_) | StoreUrl::Postgres(_) => {
            return Ok(OwnStore { store: open_shared(url).await?, file: None });
        }
    };
    make_folder(path)?;
    let options = SqliteOptions {
        synchronous: match app.config.synchronous {
            Synchronous::Full => flowgate_store::Synchronous::Full,
            Synchronous::Normal => flowgate_store::Synchronous::Normal,
        },
        ..SqliteOptions::new(owner.clone())
    };
    let file = Arc::new(SqliteStore::open(path, options).await?);
    Ok(OwnStore { store: Arc::clone(&file) as Arc<dyn Store>, file: Some(file) })
}

/// Opens a store on a server.
async fn open_shared(url: &StoreUrl) -> Result<Arc<dyn Store>, Failure> {
    url.open_shared().await.map_err(|error| Failure::from(error).at_store(url))
}

fn make_folder(path: &Path) -> Result<(), Failure> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else {
        return Ok(());
    };
    if folder.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(folder).map_err(|error| unusable(folder, error))?;
    if folder.file_name().is_some_and(|name| name == FOLDER) {
        let ignore = folder.join(".gitignore");
        std::fs::write(&ignore, "*\n").map_err(|error| unusable(&ignore, error))?;
    }
    Ok(())
}

fn unusable(path: &Path, error: std::io::Error) -> Failure {
    Failure::new(Exit::Store, "store_unavailable", format!("cannot use {}", path.display()))
        .source(error)
        .help("check its permissions, or name another place with --store sqlite:PATH")
        .path(path.display().to_string())
}

/// What to say to who asks for the memory of another process.
pub(crate) fn memory_is_private() -> Failure {
    Failure::usage("store_private", "a store in memory cannot be reached by another process")
        .help("name a file with --store sqlite:PATH, or leave it out for the default")
        .path("--store")
}

/// The one name of a database, however it was written.
pub(crate) fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
