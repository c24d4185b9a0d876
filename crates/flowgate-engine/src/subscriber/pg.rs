//! Subscribers whose effect is in tables of the store's own PostgreSQL database.

use std::sync::Arc;

use async_trait::async_trait;
use flowgate_store::PostgresStore;
use flowgate_store::control::{RecordWrite, RecordsOutcome, TermRef};
use flowgate_store::postgres::PostgresConnection;
use flowgate_store::postgres::tokio_postgres::Transaction;

use super::partition::SubscriberContext;
use super::{Delivery, Subscriber};
use crate::executor::worker::HandlerError;

/// Writes to tables of its own because of an event.
#[async_trait]
pub trait PgHandler: Send + Sync + 'static {
    /// Handles one event with statements in `sql`, which is committed together with the checkpoint,
    /// or not at all.
    async fn handle(&self, delivery: &Delivery, sql: &Transaction<'_>) -> Result<(), HandlerError>;
}

/// A subscriber whose handler writes in the transaction of the checkpoint: each event has its
/// effect exactly once, whatever crashes, is delivered again or comes late from one who lost its
/// term.
///
/// The tables are in the database of the store. A transaction lasts as long as the handler works,
/// and the feed waits for it: keep it short.
pub struct PgSubscriber<H> {
    store: Arc<PostgresStore>,
    handler: Arc<H>,
    connection: Option<PostgresConnection>,
}

impl<H: PgHandler> PgSubscriber<H> {
    /// Handles the events of `store`, which the engine must be on too.
    pub fn new(store: Arc<PostgresStore>, handler: H) -> Self {
        Self { store, handler: Arc::new(handler), connection: None }
    }
}

impl<H> Clone for PgSubscriber<H> {
    /// A copy has a connection of its own.
    fn clone(&self) -> Self {
        let (store, handler) = (Arc::clone(&self.store), Arc::clone(&self.handler));
        Self { store, handler, connection: None }
    }
}

impl<H> std::fmt::Debug for PgSubscriber<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PgSubscriber")
    }
}

#[async_trait]
impl<H: PgHandler> Subscriber for PgSubscriber<H> {
    fn kind(&self) -> &'static str {
        "postgres"
    }

    fn is_transactional(&self) -> bool {
        true
    }

    async fn handle(&mut self, _: &Delivery, _: &SubscriberContext) -> Result<(), HandlerError> {
        Err(HandlerError::fatal("its effect belongs in the transaction of its checkpoint"))
    }

    async fn handle_and_commit(
        &mut self,
        delivery: &Delivery,
        _: &SubscriberContext,
        writes: &[RecordWrite],
        under: Option<&TermRef>,
    ) -> Result<RecordsOutcome, HandlerError> {
        // Kept only while all goes well: after an error nobody knows what is left on it.
        let kept = self.connection.take().filter(|connection| !connection.is_closed());
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.store.connect().await?,
        };
        let transaction = connection.begin().await?;
        self.handler.handle(delivery, transaction.sql()).await?;
        let outcome = transaction.commit_with_records(writes, under).await?;
        self.connection = Some(connection);
        Ok(outcome)
    }
}
