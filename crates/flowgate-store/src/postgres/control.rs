//! The part of the store that is not about runs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::gate::Gate;
use flowgate_core::ids::JobId;

use super::PostgresStore;
use crate::StoreError;
use crate::control::{
    Control, GateOutcome, PermitAsk, PermitGrant, PermitOutcome, PermitRelease, PermitState,
    QueueStats, Record, RecordQuery, RecordWrite, RecordsOutcome, Term, TermAsk, TermOutcome,
    TermRef, check_key,
};
use crate::session::SessionLock;

#[async_trait]
impl Control for PostgresStore {
    async fn take_term(&self, ask: &TermAsk) -> Result<TermOutcome, StoreError> {
        self.take(ask).await
    }

    async fn release_term(&self, term: &TermRef) -> Result<(), StoreError> {
        self.release(term).await
    }

    async fn list_terms(&self, prefix: &str) -> Result<Vec<Term>, StoreError> {
        self.terms_of(prefix).await
    }

    async fn past_terms(&self, name: &str, limit: usize) -> Result<Vec<Term>, StoreError> {
        self.terms_before(name, limit).await
    }

    async fn write_records(
        &self,
        writes: Vec<RecordWrite>,
        under: Option<&TermRef>,
    ) -> Result<RecordsOutcome, StoreError> {
        self.write_all(&writes, under).await
    }

    async fn read_records(
        &self,
        kind: &str,
        keys: &[Arc<str>],
    ) -> Result<Vec<Option<Record>>, StoreError> {
        self.records_at(kind, keys).await
    }

    async fn list_records(&self, query: &RecordQuery) -> Result<Vec<Record>, StoreError> {
        self.records_of(query).await
    }

    async fn take_permits(
        &self,
        asks: &[PermitAsk],
        lease: Duration,
    ) -> Result<Vec<PermitOutcome>, StoreError> {
        self.ask_permits(asks, lease).await
    }

    async fn release_permits(
        &self,
        releases: &[PermitRelease],
        lease: Duration,
    ) -> Result<Vec<PermitGrant>, StoreError> {
        self.give_back(releases, lease).await
    }

    async fn read_permits(&self, key: &str) -> Result<PermitState, StoreError> {
        self.permits_of(key).await
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
        self.hints.tell(topic).await;
        Ok(())
    }

    async fn wait_told(&self, topic: &str, wait_max: Duration) -> Result<(), StoreError> {
        check_key(topic);
        self.hints.told.wait(topic, wait_max).await;
        Ok(())
    }

    async fn lock_session(&self, name: &str) -> Result<SessionLock, StoreError> {
        self.lock(name).await
    }

    async fn end_session(&self, name: &str) -> Result<bool, StoreError> {
        self.end_lock(name).await
    }
}
