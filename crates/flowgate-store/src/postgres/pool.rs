//! Calls to the server: one statement, one round trip, one answer in time.

use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, QueueMode, RecyclingMethod, Runtime};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::endpoint::Endpoint;
use super::fault::Fault;
use crate::StoreError;
use crate::per_runtime::PerRuntime;

/// How often a call that the server gave up for another one is made in all.
const TRIES_MAX: u32 = 5;
/// The longest pause before such a call is made again.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// A value and its type. With both, a statement needs neither a name nor a round trip before it,
/// and a connection keeps nothing that the next user of it could miss.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// Connections that anybody may use for one statement; each runtime has its own.
#[derive(Debug)]
pub(super) struct Pool {
    endpoint: Endpoint,
    size: usize,
    call_timeout: Duration,
    pools: PerRuntime<deadpool_postgres::Pool>,
}

impl Pool {
    pub(super) fn new(endpoint: Endpoint, size: usize, call_timeout: Duration) -> Self {
        Self { endpoint, size, call_timeout, pools: PerRuntime::new() }
    }

    /// A pool without a connection yet.
    fn empty(&self) -> deadpool_postgres::Pool {
        let config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let Endpoint { config: server, tls } = self.endpoint.clone();
        deadpool_postgres::Pool::builder(Manager::from_config(server, tls, config))
            .max_size(self.size.max(1))
            // The server has at hand what the session needs that was used last.
            .queue_mode(QueueMode::Lifo)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(self.call_timeout))
            .create_timeout(Some(self.call_timeout))
            .recycle_timeout(Some(self.call_timeout))
            .build()
            .expect("a pool with a runtime can be built")
    }

    /// The rows that a statement answers.
    pub(super) async fn call(
        &self,
        doing: &'static str,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.call_within(self.call_timeout, doing, sql, params).await
    }

    /// The same, with a time for statements that have more to do.
    pub(super) async fn call_within(
        &self,
        within: Duration,
        doing: &'static str,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let mut tries = 1;
        loop {
            match self.attempt(within, sql, params).await {
                Ok(rows) => return Ok(rows),
                Err(fault) if fault.is_repeatable() && tries < TRIES_MAX => {
                    tries += 1;
                    tokio::time::sleep(PAUSE_MAX.mul_f64(fastrand::f64())).await;
                }
                Err(fault) => return Err(fault.into_error(doing)),
            }
        }
    }

    /// The one row that a statement answers.
    pub(super) async fn call_one(
        &self,
        doing: &'static str,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Row, StoreError> {
        let rows = self.call(doing, sql, params).await?;
        rows.into_iter().next().ok_or_else(|| {
            Fault::unreadable(std::io::Error::other("the server answered no row")).into_error(doing)
        })
    }

    async fn attempt(
        &self,
        within: Duration,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Fault> {
        let pool = self.pools.here(|| self.empty());
        let client = pool.get().await.map_err(Fault::Pool)?;
        let answer = ask(&client, within, sql, params).await;
        if let Err(Fault::Silence(_)) = answer {
            // Nobody knows what this connection would answer next, or whether it ever does.
            drop(Object::take(client));
        }
        answer
    }

    /// Ends all connections.
    pub(super) fn close(&self) {
        self.pools.all().iter().for_each(|pool| pool.close());
    }
}

/// The rows that a statement answers on this connection.
pub(super) async fn ask(
    client: &Client,
    within: Duration,
    sql: &str,
    params: &[Param<'_>],
) -> Result<Vec<Row>, Fault> {
    metrics::counter!("flowgate_store_round_trips_total", "store" => "postgres").increment(1);
    let answer = tokio::time::timeout(within, client.query_typed(sql, params)).await;
    Ok(answer.map_err(|_| Fault::Silence(within))??)
}
