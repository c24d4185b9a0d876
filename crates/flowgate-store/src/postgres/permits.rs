//! Permits: limits by key, with a line.

use std::sync::Arc;

use flowgate_core::ids::{JobId, RunId, StepIndex};
use flowgate_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresStore;
use super::fault::Fault;
use super::rows::{column, to_ms, to_number};
use crate::StoreError;
use crate::control::{
    Limit, PERMIT_PLACE_KEPT, PermitAsk, PermitGrant, PermitOutcome, PermitRelease, PermitState,
    check_key,
};

impl PostgresStore {
    pub(super) async fn ask_permits(
        &self,
        asks: &[PermitAsk],
        lease: std::time::Duration,
    ) -> Result<Vec<PermitOutcome>, StoreError> {
        if asks.is_empty() {
            return Ok(Vec::new());
        }
        for ask in asks {
            check_key(&ask.key);
        }
        let doing = "asking for permits";
        let keys: Vec<&str> = asks.iter().map(|ask| &*ask.key).collect();
        let run_ids: Vec<Uuid> = asks.iter().map(|ask| ask.job_id.run_id.0).collect();
        let steps: Vec<i32> = asks.iter().map(|ask| ask.job_id.step.0.into()).collect();
        let at_once: Vec<Option<i64>> = asks.iter().map(|ask| at_once(ask.limit)).collect();
        let shares_us: Vec<Option<i64>> = asks.iter().map(|ask| share_us(ask.limit)).collect();
        let (lease_ms, kept_ms) = (to_ms(lease), to_ms(PERMIT_PLACE_KEPT));
        let params = [
            (&keys as _, Type::TEXT_ARRAY),
            (&run_ids as _, Type::UUID_ARRAY),
            (&steps as _, Type::INT4_ARRAY),
            (&at_once as _, Type::INT8_ARRAY),
            (&shares_us as _, Type::INT8_ARRAY),
            (&lease_ms as _, Type::INT8),
            (&kept_ms as _, Type::INT8),
        ];
        let row = self.pool.call_one(doing, &self.sql.take_permits, &params).await?;
        let places: Vec<Option<i64>> = column(&row, 0).map_err(|fault| fault.into_error(doing))?;
        let outcome = |(ask, place): (&PermitAsk, Option<i64>)| match (place, ask.limit) {
            (None, _) => PermitOutcome::Granted,
            (Some(place), Limit::AtOnce(_)) => PermitOutcome::InLine(to_number(place)),
            (Some(place), Limit::Rate { .. }) => PermitOutcome::NotBefore(Timestamp(place)),
        };
        Ok(asks.iter().zip(places).map(outcome).collect())
    }

    pub(super) async fn give_back(
        &self,
        releases: &[PermitRelease],
        lease: std::time::Duration,
    ) -> Result<Vec<PermitGrant>, StoreError> {
        if releases.is_empty() {
            return Ok(Vec::new());
        }
        for release in releases {
            check_key(&release.key);
        }
        let doing = "releasing permits";
        let job = |release: &PermitRelease| release.job_id;
        let keys: Vec<&str> = releases.iter().map(|release| &*release.key).collect();
        let run_ids: Vec<Option<Uuid>> =
            releases.iter().map(|release| job(release).map(|job_id| job_id.run_id.0)).collect();
        let steps: Vec<Option<i32>> = releases
            .iter()
            .map(|release| job(release).map(|job_id| job_id.step.0.into()))
            .collect();
        let at_once: Vec<Option<i64>> =
            releases.iter().map(|release| at_once(release.limit)).collect();
        let lease_ms = to_ms(lease);
        let params = [
            (&keys as _, Type::TEXT_ARRAY),
            (&run_ids as _, Type::UUID_ARRAY),
            (&steps as _, Type::INT4_ARRAY),
            (&at_once as _, Type::INT8_ARRAY),
            (&lease_ms as _, Type::INT8),
        ];
        let row = self.pool.call_one(doing, &self.sql.release_permits, &params).await?;
        read_grants(&row, releases).map_err(|fault| fault.into_error(doing))
    }

    pub(super) async fn permits_of(&self, key: &str) -> Result<PermitState, StoreError> {
        let doing = "reading permits";
        let schema = &self.options.schema;
        // One row for each holder, and one more that counts who waits.
        let sql = format!(
            "SELECT p.run_id, p.step, p.expires_at, NULL::bigint FROM \"{schema}\".permits p \
             WHERE p.key = $1 AND p.is_held AND p.expires_at > (SELECT \"{schema}\".store_now()) \
             UNION ALL \
             SELECT NULL, NULL, NULL, count(*) FROM \"{schema}\".permits p \
             WHERE p.key = $1 AND NOT p.is_held \
             AND p.expires_at > (SELECT \"{schema}\".store_now()) \
             ORDER BY 3, 1, 2"
        );
        let rows = self.pool.call(doing, &sql, &[(&key, Type::TEXT)]).await?;
        let mut state = PermitState::default();
        let mut read = |row: &Row| -> Result<(), Fault> {
            if let Some(in_line) = column::<Option<i64>>(row, 3)? {
                state.in_line = to_number(in_line);
            } else {
                let job_id = read_job(column(row, 0)?, column(row, 1)?)?;
                state.holders.push((job_id, Timestamp(column(row, 2)?)));
            }
            Ok(())
        };
        let read: Result<(), Fault> = rows.iter().try_for_each(&mut read);
        read.map_err(|fault| fault.into_error(doing))?;
        Ok(state)
    }
}

fn at_once(limit: Limit) -> Option<i64> {
    match limit {
        Limit::AtOnce(count) => Some(count.into()),
        Limit::Rate { .. } => None,
    }
}

fn share_us(limit: Limit) -> Option<i64> {
    match limit {
        Limit::AtOnce(_) => None,
        // Far below where a sum with any time of day would overflow.
        Limit::Rate { count, per_ms } => Some(Limit::share_us(count, per_ms).min(i64::MAX / 4)),
    }
}

fn read_grants(row: &Row, releases: &[PermitRelease]) -> Result<Vec<PermitGrant>, Fault> {
    let of: Vec<i32> = column(row, 0)?;
    let jobs = column::<Vec<Uuid>>(row, 1)?.into_iter().zip(column::<Vec<i32>>(row, 2)?);
    let mut grants = Vec::with_capacity(of.len());
    for (of, (run_id, step)) in of.into_iter().zip(jobs) {
        // Places begin at 1 there.
        let of = usize::try_from(of - 1).map_err(Fault::unreadable)?;
        let key = releases.get(of).map(|release| Arc::clone(&release.key));
        let key = key.ok_or_else(|| {
            Fault::unreadable(std::io::Error::other("a grant of a key that was not named"))
        })?;
        grants.push(PermitGrant { key, job_id: read_job(run_id, step)? });
    }
    Ok(grants)
}

fn read_job(run_id: Uuid, step: i32) -> Result<JobId, Fault> {
    let step = u16::try_from(step).map_err(Fault::unreadable)?;
    Ok(JobId { run_id: RunId(run_id), step: StepIndex(step) })
}
