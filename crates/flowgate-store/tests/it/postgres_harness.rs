//! Fresh schemas for the suite on PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use flowgate_store::conformance::Harness;
use flowgate_store::{PostgresOptions, PostgresStore, Store};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls};

/// How long it may take until a call waits that is going to.
const WAITING_MAX: Duration = Duration::from_secs(20);

/// A store in a schema of its own, which goes away with it.
pub(crate) struct PostgresHarness {
    pub(crate) options: PostgresOptions,
    pub(crate) store: Arc<PostgresStore>,
    /// A connection to the server itself.
    pub(crate) client: Client,
    _driver: JoinSet<()>,
}

impl PostgresHarness {
    pub(crate) async fn direct() -> Self {
        Self::at(&variable("FLOWGATE_TEST_POSTGRES")).await
    }

    pub(crate) async fn through_pgbouncer() -> Self {
        Self::at(&variable("FLOWGATE_TEST_PGBOUNCER")).await
    }

    async fn at(url: &str) -> Self {
        let options = options(url);
        let (client, driver) = connect().await;
        let store = PostgresStore::open(options.clone()).await.expect("opening");
        Self { options, store: Arc::new(store), client, _driver: driver }
    }

    /// Runs plain SQL with the schema in the search path.
    pub(crate) async fn sql(&self, sql: &str) {
        let sql = format!("SET search_path TO \"{}\"; {sql}", self.options.schema);
        self.client.batch_execute(&sql).await.expect("plain SQL");
    }

    /// Waits until a call of this function waits for a lock.
    pub(crate) async fn until_waiting(&self, function: &str) {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
             AND query LIKE '%\"{}\".{function}%'",
            self.options.schema
        );
        let waits = async {
            loop {
                let count: i64 = self.client.query_one(&sql, &[]).await.expect("looking").get(0);
                if count > 0 {
                    return;
                }
            }
        };
        timeout(WAITING_MAX, waits).await.expect("somebody waits for a lock");
    }
}

impl Drop for PostgresHarness {
    fn drop(&mut self) {
        let sql = format!("DROP SCHEMA IF EXISTS \"{}\" CASCADE", self.options.schema);
        let drop_schema = async move {
            let (client, _driver) = connect().await;
            client.batch_execute(&sql).await
        };
        let ended = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime for the end").block_on(drop_schema)
        });
        if let Ok(dropped) = ended.join() {
            dropped.expect("dropping the schema");
        }
    }
}

#[async_trait]
impl Harness for PostgresHarness {
    fn store(&self) -> Arc<dyn Store> {
        Arc::<PostgresStore>::clone(&self.store)
    }

    async fn advance(&self, span: Duration) {
        let ms = span.as_millis();
        self.sql(&format!("UPDATE meta SET value = value + {ms} WHERE name = 'clock_offset_ms'"))
            .await;
    }

    async fn reopen(&mut self) -> bool {
        let opened = PostgresStore::open(self.options.clone()).await;
        self.store = Arc::new(opened.expect("opening again"));
        true
    }

    fn is_shared(&self) -> bool {
        true
    }
}

/// Options for a schema that nobody else uses.
pub(crate) fn options(url: &str) -> PostgresOptions {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let schema = format!("case_{}_{number}", std::process::id());
    // A busy machine that runs many cases at a time is slow, not silent.
    let call_timeout = Duration::from_secs(20);
    let options = PostgresOptions::new(url).expect("the URL of a test server");
    PostgresOptions { schema, pool_size: 4, call_timeout, ..options }
}

/// A connection to the server itself.
pub(crate) async fn connect() -> (Client, JoinSet<()>) {
    let connected = tokio_postgres::connect(&variable("FLOWGATE_TEST_POSTGRES"), NoTls).await;
    let (client, connection) = connected.expect("connecting");
    let mut driver = JoinSet::new();
    driver.spawn(async move { connection.await.expect("the connection ends well") });
    (client, driver)
}

/// The address of a private server.
#[expect(clippy::disallowed_methods, reason = "the services tell the tests where they are")]
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "{name} is not set; run `cargo xtask services with cargo nextest run -p flowgate-store`"
        )
    })
}
