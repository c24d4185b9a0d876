//! What instances agree on besides runs. The layout:
//!
//! ```text
//! PREFIX:{p0}:terms         last term of each name; `terms:names` has the names in their order
//!             terms:past:NAME   terms before it, the latest first
//!             record:KIND   version and times of each record; `value:KIND` its value, `keys:KIND`
//!                           the keys in their order
//!             records:expiring  records by when they expire
//! ```
//!
//! A lost reply does no harm: a name that is taken again by its holder is extended, one that is
//! released again stays so; for records see `records.rs`.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::RedisStore;
use crate::StoreError;
use crate::control::{
    Control, Record, RecordQuery, RecordWrite, RecordsOutcome, Term, TermAsk, TermOutcome, TermRef,
};

#[async_trait]
impl Control for RedisStore {
    async fn take_term(&self, ask: &TermAsk) -> Result<TermOutcome, StoreError> {
        self.take_name(ask).await
    }

    async fn release_term(&self, term: &TermRef) -> Result<(), StoreError> {
        self.release_name(term).await
    }

    async fn list_terms(&self, prefix: &str) -> Result<Vec<Term>, StoreError> {
        self.names(prefix).await
    }

    async fn past_terms(&self, name: &str, limit: usize) -> Result<Vec<Term>, StoreError> {
        self.terms_of(name, limit).await
    }

    async fn write_records(
        &self,
        writes: Vec<RecordWrite>,
        under: Option<&TermRef>,
    ) -> Result<RecordsOutcome, StoreError> {
        self.put_records(&writes, under).await
    }

    async fn read_records(
        &self,
        kind: &str,
        keys: &[Arc<str>],
    ) -> Result<Vec<Option<Record>>, StoreError> {
        self.records(kind, keys).await
    }

    async fn list_records(&self, query: &RecordQuery) -> Result<Vec<Record>, StoreError> {
        self.page_of_records(query).await
    }

    async fn tell(&self, topic: &str) -> Result<(), StoreError> {
        let message = self.hints.tell(topic);
        let mut command = redis::cmd("PUBLISH");
        command.arg(self.hints.channel()).arg(message);
        self.call("telling others", &command).await.map(drop)
    }

    async fn wait_told(&self, topic: &str, wait_max: Duration) -> Result<(), StoreError> {
        let told = self.hints.told(&self.link, topic);
        // At the latest time it does not matter whether somebody has told.
        drop(tokio::time::timeout(wait_max, told).await);
        Ok(())
    }
}
