//! What instances agree on besides runs. The layout:
//!
//! ```text
//! PREFIX:{p0}:terms         last term of each name; `terms:names` has the names in their order
//!             terms:past:NAME   terms before it, the latest first
//!             record:KIND   version and times of each record; `value:KIND` its value, `keys:KIND`
//!                           the keys in their order
//!             records:expiring  records by when they expire
//! PREFIX:{pN}:permits…      see `permits.lua`; N follows from the key of the permits
//! ```
//!
//! A lost reply does no harm: a name that is taken again by its holder is extended, one that is
//! released again stays so; for records see `records.rs`, for permits `permits.rs`.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::gate::Gate;
use flowgate_core::ids::JobId;

use super::RedisStore;
use crate::StoreError;
use crate::control::{
    Control, GateOutcome, PermitAsk, PermitGrant, PermitOutcome, PermitRelease, PermitState,
    QueueStats, Record, RecordQuery, RecordWrite, RecordsOutcome, Term, TermAsk, TermOutcome,
    TermRef, check_key, over_limit,
};

#[async_trait]
impl Control for RedisStore {
    async fn take_term(&self, ask: &TermAsk) -> Result<TermOutcome, StoreError> {
        check_key(&ask.name);
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
        match over_limit(&writes) {
            Some(refused) => Ok(refused),
            None => self.put_records(&writes, under).await,
        }
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

    async fn take_permits(
        &self,
        asks: &[PermitAsk],
        lease: Duration,
    ) -> Result<Vec<PermitOutcome>, StoreError> {
        for ask in asks {
            check_key(&ask.key);
        }
        self.ask_for_permits(asks, lease).await
    }

    async fn release_permits(
        &self,
        releases: &[PermitRelease],
        lease: Duration,
    ) -> Result<Vec<PermitGrant>, StoreError> {
        self.give_permits_back(releases, lease).await
    }

    async fn read_permits(&self, key: &str) -> Result<PermitState, StoreError> {
        self.permits(key).await
    }

    async fn wake_jobs(&self, jobs: &[JobId]) -> Result<Vec<JobId>, StoreError> {
        self.wake(jobs).await
    }

    async fn queue_stats(&self) -> Result<Vec<QueueStats>, StoreError> {
        self.stats_of_queues().await
    }

    async fn set_gate(
        &self,
        flow: &Arc<str>,
        gate: &Gate,
        only_if_empty: bool,
    ) -> Result<GateOutcome, StoreError> {
        check_key(flow);
        self.put_gate(flow, gate, only_if_empty).await
    }

    async fn tell(&self, topic: &str) -> Result<(), StoreError> {
        check_key(topic);
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
