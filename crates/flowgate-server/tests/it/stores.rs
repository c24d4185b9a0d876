//! A new store of each kind.

use std::path::Path;
use std::sync::Arc;

use flowgate_engine::instance_id;
use flowgate_store::{SqliteOptions, SqliteStore, Store, open_shared};

/// One in a file of this folder.
pub(crate) async fn sqlite(folder: &Path) -> Arc<dyn Store> {
    let store = SqliteStore::open(folder.join("a.db"), SqliteOptions::new(instance_id())).await;
    Arc::new(store.expect("the file can be made"))
}

/// One on the Redis server of the tests.
pub(crate) async fn redis() -> Arc<dyn Store> {
    shared("FLOWGATE_TEST_REDIS", "prefix").await
}

/// One on the PostgreSQL server of the tests.
pub(crate) async fn postgres() -> Arc<dyn Store> {
    shared("FLOWGATE_TEST_POSTGRES", "schema").await
}

#[expect(clippy::disallowed_methods, reason = "the services tell the tests where they are")]
async fn shared(variable: &str, parameter: &str) -> Arc<dyn Store> {
    let url = std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run `cargo xtask services with cargo nextest run`")
    });
    let url = format!("{url}?{parameter}=api_{:016x}", fastrand::u64(..));
    open_shared(&url).await.expect("the server is there")
}
