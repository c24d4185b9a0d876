//! What waits in queues, and waking it.

use flowgate_core::ids::JobId;
use flowgate_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresStore;
use super::fault::Fault;
use super::rows::{column, to_number};
use crate::StoreError;
use crate::control::QueueStats;

/// Jobs that are counted in a queue, of those that are due and of those that are not: a count of
/// this many means at least so many. Of more, the oldest is that of the first in their order.
const COUNT_MAX: i64 = 100_000;

impl PostgresStore {
    pub(super) async fn wake(&self, jobs: &[JobId]) -> Result<Vec<JobId>, StoreError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let doing = "waking jobs";
        let run_ids: Vec<Uuid> = jobs.iter().map(|job_id| job_id.run_id.0).collect();
        let steps: Vec<i32> = jobs.iter().map(|job_id| job_id.step.0.into()).collect();
        let params = [(&run_ids as _, Type::UUID_ARRAY), (&steps as _, Type::INT4_ARRAY)];
        let row = self.pool.call_one(doing, &self.sql.wake_jobs, &params).await?;
        let found: Vec<i32> = column(&row, 0).map_err(|fault| fault.into_error(doing))?;
        if !found.is_empty() {
            self.hints.queued();
        }
        // Places begin at 1 there.
        let place = |at: i32| usize::try_from(at - 1).ok().and_then(|at| jobs.get(at).copied());
        Ok(found.into_iter().filter_map(place).collect())
    }

    pub(super) async fn stats_of_queues(&self) -> Result<Vec<QueueStats>, StoreError> {
        let doing = "counting what waits";
        let within = self.options.call_timeout * super::LONG_FACTOR;
        let params = [(&COUNT_MAX as _, Type::INT8)];
        let rows = self.pool.call_within(within, doing, &self.sql.queue_stats, &params).await?;
        let stats: Result<Vec<QueueStats>, Fault> = rows.iter().map(read_stats).collect();
        stats.map_err(|fault| fault.into_error(doing))
    }
}

fn read_stats(row: &Row) -> Result<QueueStats, Fault> {
    Ok(QueueStats {
        queue: column::<&str>(row, 0)?.into(),
        due: to_number(column(row, 1)?),
        later: to_number(column(row, 2)?),
        oldest_due_at: column::<Option<i64>>(row, 3)?.map(Timestamp),
    })
}
