//! Claiming due jobs, renewing leases, and the payloads that jobs need.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::commit::Claimed;
use flowgate_core::event::Event;
use flowgate_core::ids::{LeaseToken, RunId};
use flowgate_core::limits::CLAIM_BATCH_MAX;
use flowgate_core::payload::Payload;
use flowgate_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresStore;
use super::fault::Fault;
use super::rows::{
    JobColumns, column, decode, decode_events, decode_run, encode_queues, to_int4, to_integer,
    to_ms, to_number,
};
use crate::{Claimant, LeaseRef, Renewal, StoreError};

/// Leases that one claim looks at, to see whether they are over.
const CHECKS_MAX: i32 = 512;

impl PostgresStore {
    pub(super) async fn claim_due(&self, claimant: &Claimant) -> Result<Vec<Claimed>, StoreError> {
        let doing = "claiming";
        let slots = claimant.slots.min(CLAIM_BATCH_MAX);
        let (queues, queues_not) = encode_queues(&claimant.queues);
        if slots == 0 || queues.as_ref().is_some_and(Vec::is_empty) {
            return Ok(Vec::new());
        }
        let (floor_due, floor_check) = (self.floor_due.next(), self.floor_check.next());
        let (instance, lease_ms) = (&*claimant.instance.0, to_ms(claimant.lease));
        let slots = to_int4(slots);
        let row = self
            .pool
            .call_one(
                doing,
                &self.sql.claim,
                &[
                    (&instance, Type::TEXT),
                    (&queues, Type::TEXT_ARRAY),
                    (&queues_not, Type::TEXT_ARRAY),
                    (&slots, Type::INT4),
                    (&lease_ms, Type::INT8),
                    (&floor_due, Type::INT8),
                    (&floor_check, Type::INT8),
                    (&CHECKS_MAX, Type::INT4),
                ],
            )
            .await?;
        let claimed = self.read_claim(&row, claimant, (floor_due, floor_check));
        let claimed = claimed.map_err(|fault| fault.into_error(doing))?;
        if claimed.is_empty() { Ok(claimed) } else { self.with_inputs(doing, claimed).await }
    }

    fn read_claim(
        &self,
        row: &Row,
        claimant: &Claimant,
        (floor_due, floor_check): (i64, i64),
    ) -> Result<Vec<Claimed>, Fault> {
        let claimed_at: i64 = column(row, 0)?;
        let micros = |at| column(row, at).map(|us: i64| Duration::from_micros(to_number(us)));
        self.floor_due.note(floor_due, micros(1)?);
        self.floor_check.note(floor_check, micros(2)?);
        if !column::<bool>(row, 3)? {
            self.floor_check.reach(claimed_at);
        }
        let Some(order_last) = column::<Option<i64>>(row, 4)? else { return Ok(Vec::new()) };
        self.floor_due.reach(order_last);
        let expires_at = Timestamp(claimed_at).plus(claimant.lease);
        let mut jobs = column::<Vec<Uuid>>(row, 5)?.into_iter();
        let mut steps = column::<Vec<i32>>(row, 6)?.into_iter();
        let mut kinds = column::<Vec<String>>(row, 7)?.into_iter();
        let mut queues = column::<Vec<&str>>(row, 8)?.into_iter();
        let mut priorities = column::<Vec<i16>>(row, 9)?.into_iter();
        let mut attempts = column::<Vec<i64>>(row, 10)?.into_iter();
        let mut inputs = column::<Vec<String>>(row, 11)?.into_iter();
        let mut tokens = column::<Vec<i64>>(row, 12)?.into_iter();
        let mut lost = column::<Vec<Option<&str>>>(row, 13)?.into_iter();
        let mut records = column::<Vec<Option<&str>>>(row, 14)?.into_iter();
        let mut next = || -> Result<Option<Option<Claimed>>, Fault> {
            let Some(run_id) = jobs.next() else { return Ok(None) };
            let short = || Fault::unreadable(std::io::Error::other("the answer is too short"));
            let job = JobColumns {
                run_id: RunId(run_id),
                step: u16::try_from(steps.next().ok_or_else(short)?).map_err(Fault::unreadable)?,
                kind: kinds.next().ok_or_else(short)?,
                queue: queues.next().ok_or_else(short)?.into(),
                priority: u8::try_from(priorities.next().ok_or_else(short)?)
                    .map_err(Fault::unreadable)?,
                attempt: u32::try_from(attempts.next().ok_or_else(short)?)
                    .map_err(Fault::unreadable)?,
                inputs: inputs.next().ok_or_else(short)?,
            };
            let token = LeaseToken(to_number(tokens.next().ok_or_else(short)?));
            let lost = lost.next().flatten().map(decode).transpose()?.unwrap_or_default();
            // Without its run a job is of no use to anybody.
            let Some(record) = records.next().flatten() else { return Ok(Some(None)) };
            let run = Arc::new(decode_run(record)?);
            let inputs = Vec::new();
            Ok(Some(Some(Claimed { job: job.job()?, token, expires_at, lost, run, inputs })))
        };
        let mut claimed = Vec::new();
        while let Some(job) = next()? {
            claimed.extend(job);
        }
        Ok(claimed)
    }

    /// `claimed` with the payloads that the jobs name, but for jobs whose run has gone since.
    pub(super) async fn with_inputs(
        &self,
        doing: &'static str,
        claimed: Vec<Claimed>,
    ) -> Result<Vec<Claimed>, StoreError> {
        let (mut run_ids, mut seqs) = (Vec::new(), Vec::new());
        for job in claimed.iter().map(|claimed| &claimed.job) {
            for seq in &job.inputs {
                run_ids.push(job.job_id.run_id.0);
                seqs.push(to_integer(*seq));
            }
        }
        let params = [(&run_ids as _, Type::UUID_ARRAY), (&seqs as _, Type::INT8_ARRAY)];
        let rows = self.pool.call(doing, &self.sql.log_rows, &params).await?;
        let mut log: HashMap<Uuid, Vec<(u64, Vec<Event>)>> = HashMap::new();
        for row in &rows {
            let (run_id, seq, events) =
                read_log_row(row).map_err(|fault| fault.into_error(doing))?;
            log.entry(run_id).or_default().push((seq, events));
        }
        let payload = |run_id: RunId, seq: u64| -> Option<Payload> {
            let rows = log.get(&run_id.0)?;
            rows.iter().find_map(|(first, events)| {
                let at = usize::try_from(seq.checked_sub(*first)?).ok()?;
                events.get(at).map(Event::payload)
            })
        };
        let fill = |mut claimed: Claimed| {
            let run_id = claimed.job.job_id.run_id;
            let inputs = claimed.job.inputs.iter().map(|seq| payload(run_id, *seq));
            claimed.inputs = inputs.collect::<Option<Vec<_>>>()?;
            Some(claimed)
        };
        Ok(claimed.into_iter().filter_map(fill).collect())
    }

    pub(super) async fn renew_all(
        &self,
        leases: &[LeaseRef],
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let doing = "renewing leases";
        let mut named: Vec<LeaseRef> = leases.to_vec();
        named.sort_unstable_by_key(|held| (held.job_id, held.token));
        named.dedup();
        let run_ids: Vec<Uuid> = named.iter().map(|held| held.job_id.run_id.0).collect();
        let steps: Vec<i32> = named.iter().map(|held| held.job_id.step.0.into()).collect();
        let tokens: Vec<i64> = named.iter().map(|held| to_integer(held.token.0)).collect();
        let lease_ms = to_ms(lease);
        let params = [
            (&run_ids as _, Type::UUID_ARRAY),
            (&steps as _, Type::INT4_ARRAY),
            (&tokens as _, Type::INT8_ARRAY),
            (&lease_ms as _, Type::INT8),
        ];
        let row = self.pool.call_one(doing, &self.sql.renew, &params).await?;
        let until = column::<Vec<Option<i64>>>(&row, 0).map_err(|fault| fault.into_error(doing))?;
        let until: HashMap<LeaseRef, i64> = named
            .into_iter()
            .zip(until)
            .filter_map(|(held, until)| until.map(|until| (held, until)))
            .collect();
        let renewal = |held: &LeaseRef| {
            until.get(held).map_or(Renewal::Lost, |until| Renewal::Held(Timestamp(*until)))
        };
        Ok(leases.iter().map(renewal).collect())
    }
}

fn read_log_row(row: &Row) -> Result<(Uuid, u64, Vec<Event>), Fault> {
    Ok((column(row, 0)?, to_number(column(row, 1)?), decode_events(column(row, 2)?)?))
}
