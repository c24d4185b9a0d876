//! Transactions of the caller that also write records.
//!
//! A handler that writes to tables of its own in this database, and its checkpoint in the same
//! transaction, has its effect exactly once: both are there or neither is.
//!
//! ```no_run
//! # use flowgate_store::control::{Expect, RecordWrite, RecordsOutcome, TermRef};
//! # async fn example(
//! #     store: &flowgate_store::PostgresStore,
//! #     checkpoint: RecordWrite,
//! #     term: &TermRef,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let mut connection = store.connect().await?;
//! let transaction = connection.begin().await?;
//! transaction.sql().execute("UPDATE totals SET orders = orders + 1", &[]).await?;
//! match transaction.commit_with_records(&[checkpoint], Some(term)).await? {
//!     RecordsOutcome::Written(_) => {}
//!     refused => println!("nothing is written: {refused:?}"),
//! }
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_postgres::{Client, IsolationLevel, Transaction};

use super::PostgresStore;
use super::fault::Fault;
use super::records::{DOING, Writes, read_outcome};
use crate::StoreError;
use crate::control::{RecordWrite, RecordsOutcome, TermRef, over_limit};

/// A connection for transactions of the caller, beside those of the store.
///
/// After an error that is transient it may be of no use any more: make another one.
#[derive(Debug)]
pub struct PostgresConnection {
    client: Client,
    write_records: String,
    call_timeout: Duration,
    _driver: JoinSet<()>,
}

/// A transaction in which the caller writes to tables of its own. Dropped, it is rolled back.
///
/// Behind PgBouncer use statements without a name, such as `query_typed`.
pub struct PostgresTransaction<'c> {
    transaction: Transaction<'c>,
    write_records: &'c str,
    call_timeout: Duration,
}

impl PostgresStore {
    /// A connection for transactions of the caller.
    pub async fn connect(&self) -> Result<PostgresConnection, StoreError> {
        let connected = self.endpoint.connect(self.options.call_timeout).await;
        let (client, driver) = connected.map_err(|fault| fault.into_error("connecting"))?;
        let write_records = self.sql.write_records.clone();
        let call_timeout = self.options.call_timeout;
        Ok(PostgresConnection { client, write_records, call_timeout, _driver: driver })
    }
}

impl PostgresConnection {
    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Begins a transaction, whose statements each see what others have committed before them.
    pub async fn begin(&mut self) -> Result<PostgresTransaction<'_>, StoreError> {
        let call_timeout = self.call_timeout;
        let builder = self.client.build_transaction();
        let start = builder.isolation_level(IsolationLevel::ReadCommitted).start();
        let transaction = in_time(call_timeout, start).await;
        let transaction =
            transaction.map_err(|fault| fault.into_error("beginning a transaction"))?;
        let write_records = &self.write_records;
        Ok(PostgresTransaction { transaction, write_records, call_timeout })
    }
}

impl std::fmt::Debug for PostgresTransaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresTransaction").finish_non_exhaustive()
    }
}

impl<'c> PostgresTransaction<'c> {
    /// The transaction of the driver, for statements of the caller. Each waits as long as the
    /// caller lets it.
    pub fn sql(&self) -> &Transaction<'c> {
        &self.transaction
    }

    /// Writes records under `under`, and commits them with all that the caller has written; or
    /// rolls all of it back, if the outcome is anything but `Written`.
    ///
    /// The term is held against a take-over from here to the end of the commit, not while the
    /// caller works. After an error the records tell whether the transaction was committed.
    pub async fn commit_with_records(
        self,
        writes: &[RecordWrite],
        under: Option<&TermRef>,
    ) -> Result<RecordsOutcome, StoreError> {
        let done = self.finish(writes, under).await;
        done.map_err(|fault| fault.into_error(DOING))
    }

    /// Undoes all of it.
    pub async fn rollback(self) -> Result<(), StoreError> {
        let undone = in_time(self.call_timeout, self.transaction.rollback()).await;
        undone.map_err(|fault| fault.into_error("rolling back"))
    }

    async fn finish(
        self,
        writes: &[RecordWrite],
        under: Option<&TermRef>,
    ) -> Result<RecordsOutcome, Fault> {
        let outcome = if let Some(refused) = over_limit(writes) {
            refused
        } else {
            let writes = Writes::of(writes, under);
            let params = writes.params();
            let call = self.transaction.query_typed(self.write_records, &params);
            let rows = in_time(self.call_timeout, call).await?;
            let missing = || Fault::unreadable(std::io::Error::other("the server answered no row"));
            read_outcome(rows.first().ok_or_else(missing)?)?
        };
        if matches!(outcome, RecordsOutcome::Written(_)) {
            in_time(self.call_timeout, self.transaction.commit()).await?;
        } else {
            in_time(self.call_timeout, self.transaction.rollback()).await?;
        }
        Ok(outcome)
    }
}

async fn in_time<T>(
    within: Duration,
    call: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Fault> {
    let answer = tokio::time::timeout(within, call).await;
    Ok(answer.map_err(|_| Fault::Silence(within))??)
}
