//! Calls to the server: one statement, one round trip, one answer in time.
//!
//! A pooler may be between, so no call relies on what an earlier one left in its session; a
//! [`Lasting`] statement finds out whether it is there (`docs/adr/0036`).

use std::sync::atomic::{AtomicBool, Ordering};
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

/// A statement that sessions keep, so that they read and plan it once.
///
/// A pooler may have a session answer that knows another statement by the same name, or none. So the
/// statement has a mark that each call names, and does nothing for a call that names another one.
#[derive(Debug)]
pub(super) struct Lasting {
    sql: String,
    mark: String,
    /// The statement as it is sent where sessions are shared.
    plain: String,
}

impl Lasting {
    /// `plain` is a call of a function with so many parameters.
    pub(super) fn new(plain: String, params: usize, mark: String) -> Self {
        let sql = format!("{plain} WHERE ${} = '{}'", params + 1, mark.replace('\'', "''"));
        Self { sql, mark, plain }
    }
}

/// Connections that anybody may use for one statement; each runtime has its own.
#[derive(Debug)]
pub(super) struct Pool {
    endpoint: Endpoint,
    size: usize,
    call_timeout: Duration,
    pools: PerRuntime<deadpool_postgres::Pool>,
    /// Whether a session was met that does not keep what its connection told it.
    is_shared: AtomicBool,
}

impl Pool {
    pub(super) fn new(endpoint: Endpoint, size: usize, call_timeout: Duration) -> Self {
        let (pools, is_shared) = (PerRuntime::new(), AtomicBool::new(false));
        Self { endpoint, size, call_timeout, pools, is_shared }
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

    /// The one row that a lasting statement answers. If the session does not know it, the same
    /// is asked as any other call; if that succeeds, so is all that comes after it.
    pub(super) async fn call_lasting(
        &self,
        doing: &'static str,
        lasting: &Lasting,
        params: &[Param<'_>],
    ) -> Result<Row, StoreError> {
        let mut is_suspect = false;
        if !self.is_shared.load(Ordering::Relaxed) {
            match self.attempt_lasting(lasting, params).await {
                Ok(Some(row)) => return Ok(row),
                Ok(None) => is_suspect = true,
                Err(fault) if fault.is_about_statement() => is_suspect = true,
                Err(fault) if fault.is_repeatable() => {}
                Err(fault) => return Err(fault.into_error(doing)),
            }
        }
        let row = self.call_one(doing, &lasting.plain, params).await?;
        if is_suspect && !self.is_shared.swap(true, Ordering::Relaxed) {
            tracing::info!("sessions do not keep statements, as behind a pooler: they go whole");
        }
        Ok(row)
    }

    async fn attempt(
        &self,
        within: Duration,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Fault> {
        let client = self.session().await?;
        let answer = ask(&client, within, sql, params).await;
        give_back(client, answer)
    }

    /// Nothing if the session knows another statement by that name.
    async fn attempt_lasting(
        &self,
        lasting: &Lasting,
        params: &[Param<'_>],
    ) -> Result<Option<Row>, Fault> {
        let client = self.session().await?;
        let mut types: Vec<Type> = params.iter().map(|(_, r#type)| r#type.clone()).collect();
        types.push(Type::TEXT);
        let mut values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
        values.push(&lasting.mark);
        let asked = async {
            let statement = client.prepare_typed_cached(&lasting.sql, &types).await?;
            count_round_trip();
            client.query_opt(&statement, &values).await
        };
        let answer = within(self.call_timeout, asked).await;
        give_back(client, answer)
    }

    async fn session(&self) -> Result<Object, Fault> {
        self.pools.here(|| self.empty()).get().await.map_err(Fault::Pool)
    }

    /// Ends all connections.
    pub(super) fn close(&self) {
        self.pools.all().iter().for_each(|pool| pool.close());
    }
}

/// Lets others use the connection, unless it did not answer: nobody knows what it would answer next,
/// or whether it ever does.
fn give_back<T>(client: Object, answer: Result<T, Fault>) -> Result<T, Fault> {
    if let Err(Fault::Silence(_)) = answer {
        drop(Object::take(client));
    }
    answer
}

/// The rows that a statement answers on this connection.
pub(super) async fn ask(
    client: &Client,
    time: Duration,
    sql: &str,
    params: &[Param<'_>],
) -> Result<Vec<Row>, Fault> {
    count_round_trip();
    within(time, client.query_typed(sql, params)).await
}

fn count_round_trip() {
    metrics::counter!("flowgate_store_round_trips_total", "store" => "postgres").increment(1);
}

async fn within<T>(
    time: Duration,
    asked: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Fault> {
    Ok(tokio::time::timeout(time, asked).await.map_err(|_| Fault::Silence(time))??)
}
