//! PostgreSQL by itself: a batch of steps is two transactions, one that leases its jobs and one
//! that writes outputs, records and the jobs that follow.

use std::sync::Arc;

use anyhow::Context;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls, Statement};
use uuid::Uuid;

use super::{Left, OUTPUT, RECORD, STEPS, Upkeep, Worked};

/// Steps in two transactions.
const BATCH: usize = 100;

/// Connections, each with a batch of its own.
const CONNECTIONS: usize = 4;

/// Jobs that are due or leased: enough that no batch is short.
const JOBS: usize = 2 * CONNECTIONS * BATCH;

/// A PostgreSQL that is used without a store.
pub(crate) struct BarePostgres {
    url: String,
    schema: String,
}

impl BarePostgres {
    /// Makes its tables in a schema whose name begins with `prefix`.
    pub(crate) async fn open(url: &str, prefix: &str) -> anyhow::Result<Self> {
        let bare = Self { url: url.to_owned(), schema: format!("{prefix}_raw") };
        let (client, _driver) = bare.connect().await?;
        let schema = &bare.schema;
        client
            .batch_execute(&format!(
                "CREATE SCHEMA {schema};
                 CREATE TABLE {schema}.runs (run_id uuid PRIMARY KEY, version int, record text);
                 CREATE TABLE {schema}.log (run_id uuid, step int, output text,
                     PRIMARY KEY (run_id, step));
                 CREATE TABLE {schema}.jobs (run_id uuid, step int, token bigint,
                     due_at timestamptz, leased_until timestamptz, PRIMARY KEY (run_id, step));
                 CREATE INDEX ON {schema}.jobs (due_at);"
            ))
            .await?;
        Ok(bare)
    }

    /// What `found` says of the process id of a session, while that session is there.
    pub(crate) async fn with_session<T>(&self, found: impl FnOnce(u32) -> T) -> anyhow::Result<T> {
        let (client, _driver) = self.connect().await?;
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
        Ok(found(u32::try_from(pid).context("reading the process id of a session")?))
    }

    /// Does `steps` steps.
    pub(crate) async fn steps(&self, steps: usize) -> anyhow::Result<Worked> {
        let (client, _driver) = self.connect().await?;
        let schema = &self.schema;
        let runs: Vec<Uuid> = (0..JOBS).map(|_| Uuid::now_v7()).collect();
        client.batch_execute(&format!("TRUNCATE {schema}.jobs")).await?;
        let insert = format!(
            "WITH run AS (INSERT INTO {schema}.runs SELECT r, 0, $2 FROM unnest($1::uuid[]) AS r)
             INSERT INTO {schema}.jobs SELECT r, 0, 0, clock_timestamp(), '-infinity'
             FROM unnest($1::uuid[]) AS r"
        );
        client.execute(&insert, &[&runs, &RECORD]).await?;
        let left = Arc::new(Left::new(steps));
        let mut workers = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let (client, driver) = self.connect().await?;
            let worker = Worker::prepare(client, driver, schema).await?;
            workers.spawn(worker.work(Arc::clone(&left)));
        }
        let mut all = Worked::default();
        while let Some(worked) = workers.join_next().await {
            all.add(worked??);
        }
        Ok(all)
    }

    /// Has the server bring to its files now what it would bring there sooner or later, and so not
    /// within the next 500 MB of its log. Whoever may not ask for that measures without.
    pub(crate) async fn checkpoint(&self) -> anyhow::Result<()> {
        let (client, _driver) = self.connect().await?;
        match client.batch_execute("CHECKPOINT").await {
            Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Ok(()),
            done => done.context("asking PostgreSQL for a checkpoint"),
        }
    }

    /// How often the server cleaned up its tables by itself.
    pub(crate) async fn upkeep(&self) -> anyhow::Result<Upkeep> {
        let (client, _driver) = self.connect().await?;
        let asked = "SELECT
                 (SELECT coalesce(sum(autovacuum_count + autoanalyze_count), 0)::bigint
                  FROM pg_stat_all_tables),
                 EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'autovacuum worker')";
        let row = client.query_one(asked, &[]).await.context("asking PostgreSQL for its upkeep")?;
        let times: i64 = row.get(0);
        Ok(Upkeep { times: times.unsigned_abs(), is_under_way: row.get(1) })
    }

    /// Does what the server does by itself within a minute, on the tables of a store that grow.
    pub(crate) async fn vacuum(&self, schema: &str) -> anyhow::Result<()> {
        let (client, _driver) = self.connect().await?;
        let tables = ["runs", "log", "jobs"].map(|table| format!("{schema}.{table}"));
        client.batch_execute(&format!("VACUUM (ANALYZE) {}", tables.join(", "))).await?;
        Ok(())
    }

    /// Removes its own schema and `schema`.
    pub(crate) async fn remove(&self, schema: &str) -> anyhow::Result<()> {
        let (client, _driver) = self.connect().await?;
        for schema in [schema, &self.schema] {
            client.batch_execute(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE")).await?;
        }
        Ok(())
    }

    /// A session, and the task that drives it.
    async fn connect(&self) -> anyhow::Result<(Client, JoinSet<()>)> {
        let connected = tokio_postgres::connect(&self.url, NoTls).await;
        let (client, connection) = connected.context("connecting to PostgreSQL")?;
        let mut driver = JoinSet::new();
        driver.spawn(async {
            if let Err(error) = connection.await {
                tracing::warn!(%error, "a bare session has ended");
            }
        });
        Ok((client, driver))
    }
}

struct Worker {
    client: Client,
    _driver: JoinSet<()>,
    lease: Statement,
    settle: Statement,
}

impl Worker {
    async fn prepare(client: Client, driver: JoinSet<()>, schema: &str) -> anyhow::Result<Self> {
        let lease = format!(
            "UPDATE {schema}.jobs AS job
             SET token = job.token + 1, leased_until = clock_timestamp() + interval '30 s'
             FROM (SELECT run_id, step FROM {schema}.jobs WHERE leased_until < clock_timestamp()
                   ORDER BY due_at LIMIT {BATCH} FOR UPDATE SKIP LOCKED) AS due
             WHERE job.run_id = due.run_id AND job.step = due.step
             RETURNING job.run_id, job.step, job.token"
        );
        let settle = format!(
            "WITH ended AS (
                 DELETE FROM {schema}.jobs AS job
                 USING unnest($1::uuid[], $2::int[], $3::bigint[]) AS held (run_id, step, token)
                 WHERE job.run_id = held.run_id AND job.step = held.step
                     AND job.token = held.token AND job.leased_until > clock_timestamp()
                 RETURNING job.run_id, job.step),
             logged AS (INSERT INTO {schema}.log SELECT run_id, step, $4 FROM ended),
             moved AS (UPDATE {schema}.runs AS run SET version = ended.step + 1, record = $5
                 FROM ended WHERE run.run_id = ended.run_id),
             started AS (INSERT INTO {schema}.runs SELECT r, 0, $5 FROM unnest($6::uuid[]) AS r),
             follower AS (
                 SELECT run_id, step + 1 AS step FROM ended WHERE step + 1 < {STEPS}
                 UNION ALL SELECT r, 0 FROM unnest($6::uuid[]) AS r)
             INSERT INTO {schema}.jobs
             SELECT run_id, step, 0, clock_timestamp(), '-infinity' FROM follower"
        );
        let lease = client.prepare(&lease).await?;
        let settle = client.prepare(&settle).await?;
        Ok(Self { client, _driver: driver, lease, settle })
    }

    async fn work(self, left: Arc<Left>) -> anyhow::Result<Worked> {
        let mut worked = Worked::default();
        while left.takes(BATCH) {
            let clock = Instant::now();
            worked.steps += self.batch().await?;
            worked.latencies.push(clock.elapsed());
        }
        Ok(worked)
    }

    /// Leases jobs and ends them; how many.
    async fn batch(&self) -> anyhow::Result<usize> {
        let leased = self.client.query(&self.lease, &[]).await?;
        anyhow::ensure!(!leased.is_empty(), "nothing was due");
        let run_ids: Vec<Uuid> = leased.iter().map(|row| row.get(0)).collect();
        let steps: Vec<i32> = leased.iter().map(|row| row.get(1)).collect();
        let tokens: Vec<i64> = leased.iter().map(|row| row.get(2)).collect();
        let last = i32::try_from(STEPS - 1).context("counting steps")?;
        // A run that has ended makes room for another one.
        let ended = steps.iter().filter(|step| **step == last);
        let new_runs: Vec<Uuid> = ended.map(|_| Uuid::now_v7()).collect();
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
            [&run_ids, &steps, &tokens, &OUTPUT, &RECORD, &new_runs];
        self.client.execute(&self.settle, &values).await?;
        Ok(leased.len())
    }
}
