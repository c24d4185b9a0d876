//! Terms, records and permits in memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::gate::Gate;
use flowgate_core::ids::JobId;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::payload::Payload;
use flowgate_core::time::Timestamp;

use super::MemoryStore;
use crate::StoreError;
use crate::control::{
    Control, Expect, GATE, GateOutcome, PermitAsk, PermitGrant, PermitOutcome, PermitRelease,
    PermitState, QueueStats, Record, RecordQuery, RecordWrite, RecordsOutcome, TERMS_KEPT_MAX,
    Term, TermAsk, TermOutcome, TermRef, check_key, gate_of, over_limit, prefix_end,
};
use crate::permits::Permits;

/// What instances agree on.
#[derive(Debug, Default)]
pub(super) struct Agreed {
    /// The terms of each name, the last one last.
    terms: BTreeMap<Arc<str>, VecDeque<Term>>,
    records: BTreeMap<&'static str, BTreeMap<Arc<str>, Record>>,
    /// The order in which a sweep comes by.
    expiring: BTreeSet<(Timestamp, &'static str, Arc<str>)>,
    version_last: u64,
    permits: Permits,
}

impl Agreed {
    fn take_term(&mut self, ask: &TermAsk, now: Timestamp) -> TermOutcome {
        let terms = self.terms.get(&ask.name);
        let last = terms.and_then(VecDeque::back);
        let number_last = last.map(|last| last.term.number);
        let outcome = Term::judge(last.cloned(), ask, now);
        if let TermOutcome::Held(held) = &outcome {
            let terms = self.terms.entry(Arc::clone(&ask.name)).or_default();
            if number_last == Some(held.term.number) {
                terms.pop_back();
            }
            terms.push_back(held.clone());
            if terms.len() > TERMS_KEPT_MAX + 1 {
                terms.pop_front();
            }
        }
        outcome
    }

    /// The term, if it is held.
    fn held(&mut self, term: &TermRef, now: Timestamp) -> Option<&mut Term> {
        let last = self.terms.get_mut(&term.name)?.back_mut()?;
        (last.term.number == term.number && last.is_held(now)).then_some(last)
    }

    fn write_records(
        &mut self,
        writes: Vec<RecordWrite>,
        under: Option<&TermRef>,
        now: Timestamp,
    ) -> RecordsOutcome {
        if let Some(term) = under
            && self.held(term, now).is_none()
        {
            return RecordsOutcome::TermLost;
        }
        let changed = writes.iter().position(|write| {
            let version = self.record(write.kind, &write.key).map(|record| record.version);
            match write.expect {
                Expect::Anything => false,
                Expect::Absent => version.is_some(),
                Expect::Version(expected) => version != Some(expected),
            }
        });
        if let Some(index) = changed {
            return RecordsOutcome::Changed(index);
        }
        RecordsOutcome::Written(writes.into_iter().map(|write| self.write(write, now)).collect())
    }

    fn record(&self, kind: &str, key: &str) -> Option<&Record> {
        self.records.get(kind)?.get(key)
    }

    fn write(&mut self, write: RecordWrite, now: Timestamp) -> u64 {
        self.version_last += 1;
        let RecordWrite { kind, key, value, keep, .. } = write;
        self.remove(kind, &key);
        if let Some(value) = value {
            let expires_at = keep.map(|keep| now.plus(keep));
            self.insert(
                kind,
                Record { key, version: self.version_last, value, written_at: now, expires_at },
            );
        }
        self.version_last
    }

    fn insert(&mut self, kind: &'static str, record: Record) {
        let key = Arc::clone(&record.key);
        if let Some(expires_at) = record.expires_at {
            self.expiring.insert((expires_at, kind, Arc::clone(&key)));
        }
        self.records.entry(kind).or_default().insert(key, record);
    }

    fn remove(&mut self, kind: &'static str, key: &str) {
        let removed = self.records.get_mut(kind).and_then(|of_kind| of_kind.remove(key));
        if let Some(Record { key, expires_at: Some(expires_at), .. }) = removed {
            self.expiring.remove(&(expires_at, kind, key));
        }
    }

    fn list(&self, query: &RecordQuery) -> Vec<Record> {
        let Some(of_kind) = self.records.get(query.kind) else { return Vec::new() };
        let prefix: &str = &query.prefix;
        let end = prefix_end(prefix);
        let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let is_past_end = |key: &str| matches!(end, Bound::Excluded(end) if key >= end);
        let limit = query.limit.min(PAGE_MAX);
        let range = match (query.after.as_deref(), query.is_descending) {
            (Some(after), false) if is_past_end(after) => return Vec::new(),
            (Some(after), true) if after <= prefix => return Vec::new(),
            (Some(after), false) if after >= prefix => (Bound::Excluded(after), end),
            (Some(after), true) if !is_past_end(after) => {
                (Bound::Included(prefix), Bound::Excluded(after))
            }
            (Some(_) | None, _) => (Bound::Included(prefix), end),
        };
        let records = of_kind.range::<str, _>(range).map(|(_, record)| record);
        if query.is_descending {
            records.rev().take(limit).cloned().collect()
        } else {
            records.take(limit).cloned().collect()
        }
    }

    /// Removes at most `limit` records that have expired, and forgets permits that are over.
    pub(super) fn sweep(&mut self, limit: usize, now: Timestamp) -> usize {
        self.permits.sweep(now);
        drop(self.permits.take_changes());
        let mut removed = 0;
        while removed < limit
            && let Some((expires_at, kind, key)) = self.expiring.first().cloned()
            && expires_at <= now
        {
            self.remove(kind, &key);
            removed += 1;
        }
        removed
    }
}

#[async_trait]
impl Control for MemoryStore {
    async fn take_term(&self, ask: &TermAsk) -> Result<TermOutcome, StoreError> {
        check_key(&ask.name);
        Ok(self.agreed.lock().take_term(ask, self.clock.now()))
    }

    async fn release_term(&self, term: &TermRef) -> Result<(), StoreError> {
        let mut agreed = self.agreed.lock();
        let now = self.clock.now();
        if let Some(held) = agreed.held(term, now) {
            held.released_at = Some(now);
            held.expires_at = now;
        }
        Ok(())
    }

    async fn list_terms(&self, prefix: &str) -> Result<Vec<Term>, StoreError> {
        let agreed = self.agreed.lock();
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let named = agreed.terms.range::<str, _>(from);
        let named = named.take_while(|(name, _)| name.starts_with(prefix));
        Ok(named.filter_map(|(_, terms)| terms.back().cloned()).collect())
    }

    async fn past_terms(&self, name: &str, limit: usize) -> Result<Vec<Term>, StoreError> {
        let agreed = self.agreed.lock();
        let terms = agreed.terms.get(name).into_iter().flatten();
        Ok(terms.rev().take(limit).cloned().collect())
    }

    async fn write_records(
        &self,
        writes: Vec<RecordWrite>,
        under: Option<&TermRef>,
    ) -> Result<RecordsOutcome, StoreError> {
        if let Some(refused) = over_limit(&writes) {
            return Ok(refused);
        }
        Ok(self.agreed.lock().write_records(writes, under, self.clock.now()))
    }

    async fn read_records(
        &self,
        kind: &str,
        keys: &[Arc<str>],
    ) -> Result<Vec<Option<Record>>, StoreError> {
        let agreed = self.agreed.lock();
        Ok(keys.iter().map(|key| agreed.record(kind, key).cloned()).collect())
    }

    async fn list_records(&self, query: &RecordQuery) -> Result<Vec<Record>, StoreError> {
        Ok(self.agreed.lock().list(query))
    }

    async fn take_permits(
        &self,
        asks: &[PermitAsk],
        lease: Duration,
    ) -> Result<Vec<PermitOutcome>, StoreError> {
        let mut agreed = self.agreed.lock();
        let outcomes = agreed.permits.take(asks, lease, self.clock.now());
        drop(agreed.permits.take_changes());
        Ok(outcomes)
    }

    async fn release_permits(
        &self,
        releases: &[PermitRelease],
        lease: Duration,
    ) -> Result<Vec<PermitGrant>, StoreError> {
        let mut agreed = self.agreed.lock();
        let grants = agreed.permits.release(releases, lease, self.clock.now());
        drop(agreed.permits.take_changes());
        Ok(grants)
    }

    async fn read_permits(&self, key: &str) -> Result<PermitState, StoreError> {
        Ok(self.agreed.lock().permits.state(key, self.clock.now()))
    }

    async fn wake_jobs(&self, jobs: &[JobId]) -> Result<Vec<JobId>, StoreError> {
        let mut state = self.state.lock();
        let now = self.clock.now();
        Ok(jobs.iter().copied().filter(|job| state.open.wake(*job, now).is_some()).collect())
    }

    async fn queue_stats(&self) -> Result<Vec<QueueStats>, StoreError> {
        Ok(self.state.lock().open.stats(self.clock.now()))
    }

    async fn set_gate(
        &self,
        flow: &Arc<str>,
        gate: &Gate,
        only_if_empty: bool,
    ) -> Result<GateOutcome, StoreError> {
        check_key(flow);
        let mut state = self.state.lock();
        let mut agreed = self.agreed.lock();
        let found = agreed.record(GATE, flow);
        let before = gate_of(found)?;
        if found.is_some() && before == *gate {
            return Ok(GateOutcome::Set);
        }
        if before.generation + 1 != gate.generation {
            return Ok(GateOutcome::Changed);
        }
        if only_if_empty && state.open.holds_runs(flow) {
            return Ok(GateOutcome::HoldsRuns);
        }
        let value = Payload::of(gate).expect("a gate's JSON form is within the limits");
        let (key, expect) = (Arc::clone(flow), Expect::Anything);
        let write = RecordWrite { kind: GATE, key, expect, value: Some(value), keep: None };
        agreed.write(write, self.clock.now());
        state.open.set_gate(Arc::clone(flow), gate.stamp());
        Ok(GateOutcome::Set)
    }

    async fn tell(&self, topic: &str) -> Result<(), StoreError> {
        check_key(topic);
        self.told.tell(topic);
        Ok(())
    }

    async fn wait_told(&self, topic: &str, wait_max: Duration) -> Result<(), StoreError> {
        check_key(topic);
        self.told.wait(topic, wait_max).await;
        Ok(())
    }
}
