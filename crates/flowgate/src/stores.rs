//! Opening the store that the settings name.

use std::sync::Arc;

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

/// Who executes the jobs of the store.
pub(crate) async fn executor(_app: &App) -> Executor {
    Executor::Unknown
}
