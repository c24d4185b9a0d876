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

/// The migrations, but for the last.
const MIGRATIONS: [&str; 10] = [
    include_str!("../../src/postgres/migrations/V1__init.sql"),
    include_str!("../../src/postgres/migrations/V2__terms.sql"),
    include_str!("../../src/postgres/migrations/V3__permits.sql"),
    include_str!("../../src/postgres/migrations/V4__priority.sql"),
    include_str!("../../src/postgres/migrations/V5__gates.sql"),
    include_str!("../../src/postgres/migrations/V6__pools.sql"),
    include_str!("../../src/postgres/migrations/V7__authors.sql"),
    include_str!("../../src/postgres/migrations/V8__gates_by_flow.sql"),
    include_str!("../../src/postgres/migrations/V9__jobs_in_place.sql"),
    include_str!("../../src/postgres/migrations/V10__shorthand.sql"),
];

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

    /// What the indexes of a table hold, of all its rows, and the pages that these are in.
    pub(crate) async fn indexed(&self, table: &str) -> Vec<(String, i64)> {
        let schema = &self.options.schema;
        let columns = format!(
            "SELECT string_agg(DISTINCT format('t.%I', a.attname), ', ') \
             FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum > 0 \
             WHERE i.indrelid = '{schema}.{table}'::regclass \
             AND (a.attnum = ANY (i.indkey) OR i.indexprs IS NOT NULL \
                 OR pg_get_expr(i.indpred, i.indrelid) ~ ('\\m' || a.attname || '\\M'))"
        );
        let columns: String = self.client.query_one(&columns, &[]).await.expect("looking").get(0);
        let sql = format!(
            "SELECT ROW({columns})::text, (ctid::text::point)[0]::bigint \
             FROM {schema}.{table} t ORDER BY 1"
        );
        let rows = self.client.query(&sql, &[]).await.expect("looking");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// Copies the runs, the log, the queues and what `jobs` brings into a schema of its own as
    /// that many migrations made it, and goes on with the store there.
    pub(crate) async fn go_back_to(&mut self, version: usize, jobs: impl Fn(&str) -> String) {
        let old = options(&variable("FLOWGATE_TEST_POSTGRES"));
        let (schema, source) = (&old.schema, &self.options.schema);
        let same = |table: &str| {
            format!(
                "INSERT INTO {table} SELECT (json_populate_record(NULL::{table}, row_to_json(s))).* \
                 FROM {source}.{table} s;"
            )
        };
        let sql = format!(
            "BEGIN; CREATE SCHEMA {schema}; SET LOCAL search_path TO {schema}, pg_temp; \
             CREATE TABLE schema_versions (version integer PRIMARY KEY, name text NOT NULL, \
             checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now()); \
             INSERT INTO schema_versions SELECT n, '', '' FROM generate_series(1, {version}) n; \
             {migrations} {runs} {log} {queues} {jobs} \
             SELECT setval('tickets', nextval('{source}.tickets')); COMMIT",
            migrations = MIGRATIONS[..version].concat(),
            runs = same("runs"),
            log = same("log"),
            queues = same("queues"),
            jobs = jobs(source),
        );
        self.client.batch_execute(&sql).await.expect("the schema before");
        self.store = Arc::new(PostgresStore::open(old.clone()).await.expect("migrating"));
        let first = std::mem::replace(&mut self.options, old);
        self.sql(&format!("DROP SCHEMA {} CASCADE", first.schema)).await;
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
        let schema = self.options.schema.clone();
        let drop_schema = async move {
            let (client, _driver) = connect().await;
            let misplaced = misplaced(&client, &schema).await;
            let sql = format!("DROP SCHEMA IF EXISTS \"{schema}\" CASCADE");
            client.batch_execute(&sql).await.map(|()| misplaced)
        };
        let ended = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime for the end").block_on(drop_schema)
        });
        if let Ok(dropped) = ended.join() {
            let misplaced = dropped.expect("dropping the schema");
            if !std::thread::panicking() {
                assert_eq!(misplaced, (0, 0), "runs and jobs that are not where they belong");
            }
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

/// How many runs are listed as incomplete and are not, or the other way around, and how many jobs
/// are in another lane than that of their step.
async fn misplaced(client: &Client, schema: &str) -> (i64, i64) {
    let exists = format!("SELECT to_regclass('{schema}.runs') IS NOT NULL");
    if !client.query_one(&exists, &[]).await.expect("looking").get::<_, bool>(0) {
        return (0, 0);
    }
    let runs = "SELECT flow, status, started_at, run_id FROM";
    let sql = format!(
        "SELECT (SELECT count(*) FROM ({runs} {schema}.runs WHERE status <> 'completed') r \
         FULL JOIN ({runs} {schema}.incomplete_runs) i USING (flow, status, started_at, run_id) \
         WHERE r IS NULL OR i IS NULL), \
         (SELECT count(*) FROM {schema}.jobs WHERE lane <> {schema}.lane_of(step))"
    );
    let row = client.query_one(&sql, &[]).await.expect("comparing");
    (row.get(0), row.get(1))
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
