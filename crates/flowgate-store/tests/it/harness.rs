//! Fresh stores for the suite.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::ids::InstanceId;
use flowgate_store::conformance::Harness;
use flowgate_store::faulty::Faulty;
use flowgate_store::{
    Breaker, Clock, Instrumented, MemoryStore, SqliteOptions, SqliteStore, Store,
};
use tempfile::TempDir;

pub(crate) struct MemoryHarness {
    clock: Clock,
    store: Arc<dyn Store>,
}

impl MemoryHarness {
    pub(crate) fn plain() -> Self {
        Self::on(Clock::wall())
    }

    pub(crate) fn on(clock: Clock) -> Self {
        Self { store: Arc::new(MemoryStore::with_clock(clock.clone())), clock }
    }

    pub(crate) fn faulty() -> Self {
        let plain = Self::plain();
        Self { store: Arc::new(Faulty::new(plain.store)), ..plain }
    }

    pub(crate) fn behind_a_breaker() -> Self {
        let plain = Self::plain();
        Self { store: Arc::new(Breaker::new(plain.store)), ..plain }
    }
}

#[async_trait]
impl Harness for MemoryHarness {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    async fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }

    async fn reopen(&mut self) -> bool {
        false
    }
}

pub(crate) struct SqliteHarness {
    pub(crate) clock: Clock,
    pub(crate) sqlite: Arc<SqliteStore>,
    is_instrumented: bool,
    folder: TempDir,
}

impl SqliteHarness {
    pub(crate) async fn plain() -> Self {
        Self::on(Clock::wall()).await
    }

    pub(crate) async fn on(clock: Clock) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the file");
        let path = folder.path().join("flowgate.db");
        let sqlite = SqliteStore::open(path, options(&clock)).await.expect("opening");
        Self { clock, sqlite: Arc::new(sqlite), is_instrumented: false, folder }
    }

    pub(crate) async fn instrumented() -> Self {
        Self { is_instrumented: true, ..Self::plain().await }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("flowgate.db")
    }
}

pub(crate) fn options(clock: &Clock) -> SqliteOptions {
    SqliteOptions { clock: clock.clone(), ..SqliteOptions::new(InstanceId("host-ab12".into())) }
}

#[async_trait]
impl Harness for SqliteHarness {
    fn store(&self) -> Arc<dyn Store> {
        let sqlite: Arc<dyn Store> = Arc::<SqliteStore>::clone(&self.sqlite);
        if self.is_instrumented { Arc::new(Instrumented::new(sqlite)) } else { sqlite }
    }

    async fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }

    async fn reopen(&mut self) -> bool {
        self.sqlite.close().await.expect("closing");
        let opened = SqliteStore::open(self.path(), options(&self.clock)).await;
        self.sqlite = Arc::new(opened.expect("opening again"));
        true
    }
}
