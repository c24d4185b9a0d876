//! Terms, records, permits and hints, which have no bug; who writes a record may be doomed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::gate::Gate;
use flowgate_core::ids::JobId;
use flowgate_store::control::{
    Control, GateOutcome, PermitAsk, PermitGrant, PermitOutcome, PermitRelease, PermitState,
    QueueStats, Record, RecordQuery, RecordWrite, RecordsOutcome, Term, TermAsk, TermOutcome,
    TermRef,
};
use flowgate_store::{SessionLock, StoreError};

use super::Planted;
use crate::doom::{self, Side};

#[async_trait]
impl Control for Planted {
    async fn take_term(&self, ask: &TermAsk) -> Result<TermOutcome, StoreError> {
        self.inner.take_term(ask).await
    }

    async fn release_term(&self, term: &TermRef) -> Result<(), StoreError> {
        self.inner.release_term(term).await
    }

    async fn list_terms(&self, prefix: &str) -> Result<Vec<Term>, StoreError> {
        self.inner.list_terms(prefix).await
    }

    async fn past_terms(&self, name: &str, limit: usize) -> Result<Vec<Term>, StoreError> {
        self.inner.past_terms(name, limit).await
    }

    async fn write_records(
        &self,
        writes: Vec<RecordWrite>,
        under: Option<&TermRef>,
    ) -> Result<RecordsOutcome, StoreError> {
        let entered = doom::phases(&writes);
        self.doom.pass(Side::Before, &entered);
        let outcome = self.inner.write_records(writes, under).await;
        self.doom.pass(Side::After, &entered);
        outcome
    }

    async fn read_records(
        &self,
        kind: &str,
        keys: &[Arc<str>],
    ) -> Result<Vec<Option<Record>>, StoreError> {
        self.inner.read_records(kind, keys).await
    }

    async fn list_records(&self, query: &RecordQuery) -> Result<Vec<Record>, StoreError> {
        self.inner.list_records(query).await
    }

    async fn take_permits(
        &self,
        asks: &[PermitAsk],
        lease: Duration,
    ) -> Result<Vec<PermitOutcome>, StoreError> {
        self.inner.take_permits(asks, lease).await
    }

    async fn release_permits(
        &self,
        releases: &[PermitRelease],
        lease: Duration,
    ) -> Result<Vec<PermitGrant>, StoreError> {
        self.inner.release_permits(releases, lease).await
    }

    async fn read_permits(&self, key: &str) -> Result<PermitState, StoreError> {
        self.inner.read_permits(key).await
    }

    async fn wake_jobs(&self, jobs: &[JobId]) -> Result<Vec<JobId>, StoreError> {
        self.inner.wake_jobs(jobs).await
    }

    async fn queue_stats(&self) -> Result<Vec<QueueStats>, StoreError> {
        self.inner.queue_stats().await
    }

    async fn set_gate(
        &self,
        flow: &Arc<str>,
        gate: &Gate,
        only_if_empty: bool,
    ) -> Result<GateOutcome, StoreError> {
        self.inner.set_gate(flow, gate, only_if_empty).await
    }

    async fn tell(&self, topic: &str) -> Result<(), StoreError> {
        self.inner.tell(topic).await
    }

    async fn wait_told(&self, topic: &str, wait_max: Duration) -> Result<(), StoreError> {
        self.inner.wait_told(topic, wait_max).await
    }

    async fn lock_session(&self, name: &str) -> Result<SessionLock, StoreError> {
        self.inner.lock_session(name).await
    }

    async fn end_session(&self, name: &str) -> Result<bool, StoreError> {
        self.inner.end_session(name).await
    }
}
