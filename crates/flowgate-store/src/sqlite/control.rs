//! Terms, records, permits and hints of the embedded store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::gate::Gate;
use flowgate_core::ids::JobId;
use flowgate_core::time::Timestamp;
use rusqlite::Connection;

use super::fault::Fault;
use super::file::FORMAT_WITH_AGREEMENTS;
use super::rows::decode_jobs;
use super::writer::Writer;
use super::{Access, SqliteStore, permits, records, terms};
use crate::StoreError;
use crate::control::{
    Control, GateOutcome, PermitAsk, PermitGrant, PermitOutcome, PermitRelease, PermitState,
    QueueStats, Record, RecordQuery, RecordWrite, RecordsOutcome, Term, TermAsk, TermOutcome,
    TermRef, check_key, over_limit,
};

impl SqliteStore {
    /// What `work` reads of what instances agree on; `none` where an earlier flowgate wrote the
    /// file, which knew nothing of it.
    async fn read_agreed<T: Send + 'static>(
        &self,
        doing: &'static str,
        none: T,
        work: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        match self.access {
            Access::Reader { format } if format < FORMAT_WITH_AGREEMENTS => Ok(none),
            Access::Reader { .. } | Access::Owner(_) => self.readers.read(doing, work).await,
        }
    }
}

#[async_trait]
impl Control for SqliteStore {
    async fn take_term(&self, ask: &TermAsk) -> Result<TermOutcome, StoreError> {
        check_key(&ask.name);
        let ask = ask.clone();
        let work = move |writer: &mut Writer| writer.take_term(&ask);
        self.writer()?.submit("taking a term", 1, work).await
    }

    async fn release_term(&self, term: &TermRef) -> Result<(), StoreError> {
        let term = term.clone();
        let work = move |writer: &mut Writer| writer.release_term(&term);
        self.writer()?.submit("releasing a term", 1, work).await
    }

    async fn list_terms(&self, prefix: &str) -> Result<Vec<Term>, StoreError> {
        let prefix = prefix.to_owned();
        self.read_agreed("listing terms", Vec::new(), move |file| terms::list(file, &prefix)).await
    }

    async fn past_terms(&self, name: &str, limit: usize) -> Result<Vec<Term>, StoreError> {
        let name = name.to_owned();
        let work = move |file: &Connection| terms::past(file, &name, limit);
        self.read_agreed("listing terms", Vec::new(), work).await
    }

    async fn write_records(
        &self,
        writes: Vec<RecordWrite>,
        under: Option<&TermRef>,
    ) -> Result<RecordsOutcome, StoreError> {
        if let Some(refused) = over_limit(&writes) {
            return Ok(refused);
        }
        let (weight, under) = (writes.len(), under.cloned());
        let work = move |writer: &mut Writer| writer.write_records(&writes, under.as_ref());
        self.writer()?.submit("writing records", weight, work).await
    }

    async fn read_records(
        &self,
        kind: &str,
        keys: &[Arc<str>],
    ) -> Result<Vec<Option<Record>>, StoreError> {
        let (kind, keys) = (kind.to_owned(), keys.to_vec());
        let none = vec![None; keys.len()];
        let work = move |file: &Connection| records::read(file, &kind, &keys);
        self.read_agreed("reading records", none, work).await
    }

    async fn list_records(&self, query: &RecordQuery) -> Result<Vec<Record>, StoreError> {
        let query = query.clone();
        let work = move |file: &Connection| records::list(file, &query);
        self.read_agreed("listing records", Vec::new(), work).await
    }

    async fn take_permits(
        &self,
        asks: &[PermitAsk],
        lease: Duration,
    ) -> Result<Vec<PermitOutcome>, StoreError> {
        let asks = asks.to_vec();
        let weight = asks.len();
        let work = move |writer: &mut Writer| writer.take_permits(&asks, lease);
        self.writer()?.submit("asking for permits", weight, work).await
    }

    async fn release_permits(
        &self,
        releases: &[PermitRelease],
        lease: Duration,
    ) -> Result<Vec<PermitGrant>, StoreError> {
        let releases = releases.to_vec();
        let weight = releases.len();
        let work = move |writer: &mut Writer| writer.release_permits(&releases, lease);
        self.writer()?.submit("releasing permits", weight, work).await
    }

    async fn read_permits(&self, key: &str) -> Result<PermitState, StoreError> {
        let (key, now) = (key.to_owned(), self.clock.now());
        let work = move |file: &Connection| permits::state(file, &key, now);
        self.read_agreed("reading permits", PermitState::default(), work).await
    }

    async fn wake_jobs(&self, jobs: &[JobId]) -> Result<Vec<JobId>, StoreError> {
        let jobs = jobs.to_vec();
        let weight = jobs.len();
        let work = move |writer: &mut Writer| writer.wake_jobs(&jobs);
        self.writer()?.submit("waking jobs", weight, work).await
    }

    async fn queue_stats(&self) -> Result<Vec<QueueStats>, StoreError> {
        match self.access {
            Access::Owner(_) => {
                let work = |writer: &mut Writer| Ok(writer.open.stats(writer.clock.now()));
                self.writer()?.submit("counting jobs", 0, work).await
            }
            Access::Reader { .. } => {
                let now = self.clock.now();
                self.readers.read("counting jobs", move |file| queue_stats(file, now)).await
            }
        }
    }

    async fn set_gate(
        &self,
        flow: &Arc<str>,
        gate: &Gate,
        only_if_empty: bool,
    ) -> Result<GateOutcome, StoreError> {
        check_key(flow);
        let (flow, gate) = (Arc::clone(flow), gate.clone());
        let work = move |writer: &mut Writer| writer.set_gate(&flow, &gate, only_if_empty);
        self.writer()?.submit("setting a gate", 1, work).await
    }

    async fn tell(&self, topic: &str) -> Result<(), StoreError> {
        check_key(topic);
        // Fails where the file is not ours: nobody here could be told.
        self.writer()?;
        self.told.tell(topic);
        Ok(())
    }

    async fn wait_told(&self, topic: &str, wait_max: Duration) -> Result<(), StoreError> {
        check_key(topic);
        self.told.wait(topic, wait_max).await;
        Ok(())
    }
}

/// What waits in each queue, by the file. A lease that its owner has renewed since the last write
/// of its run may look expired.
fn queue_stats(connection: &Connection, now: Timestamp) -> Result<Vec<QueueStats>, Fault> {
    let sql = "SELECT jobs FROM runs WHERE status IN ('running', 'waiting')";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    let mut queues = BTreeMap::new();
    while let Some(row) = rows.next()? {
        for open in decode_jobs(row.get_ref(0)?.as_str().map_err(Fault::unreadable)?)? {
            if open.lease.is_some_and(|lease| lease.expires_at > now) {
                continue;
            }
            let queue = &open.job.queue;
            let stats = queues.entry(Arc::clone(queue)).or_insert_with(|| QueueStats {
                queue: Arc::clone(queue),
                due: 0,
                later: 0,
                oldest_due_at: None,
            });
            if open.due_at > now {
                stats.later += 1;
            } else {
                stats.due += 1;
                let oldest = stats.oldest_due_at.unwrap_or(open.due_at);
                stats.oldest_due_at = Some(oldest.min(open.due_at));
            }
        }
    }
    Ok(queues.into_values().collect())
}
