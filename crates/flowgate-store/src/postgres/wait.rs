//! Waiting for a due job or for the feed to grow.

use std::time::Duration;

use flowgate_core::ids::Position;
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::fault::Fault;
use super::rows::{column, encode_queues, to_integer, to_number};
use crate::{Queues, StoreError};

/// How long a wait goes without a look at most: nobody may rely on hints.
const POLL_MAX: Duration = Duration::from_secs(1);
/// The first and the longest pause while an event is written but may not be read yet.
const SETTLE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// What a look at the feed showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grown {
    /// There is an event to read.
    Yes,
    /// There is one, but a transaction that began before it was written has not ended.
    Soon,
    /// There is none.
    No,
}

impl PostgresStore {
    pub(super) async fn wait_for_due(
        &self,
        queues: &Queues,
        wait_max: Duration,
    ) -> Result<(), StoreError> {
        let ready = async {
            loop {
                let hint = self.hints.jobs.notified();
                tokio::pin!(hint);
                // Listens before it looks, so nothing falls between the two.
                hint.as_mut().enable();
                let left = self.until_due(queues).await?;
                if left.is_zero() {
                    return Ok(());
                }
                tokio::select! {
                    () = hint => {}
                    () = tokio::time::sleep(left.min(poll())) => {}
                }
            }
        };
        tokio::time::timeout(wait_max, ready).await.unwrap_or(Ok(()))
    }

    /// How long until a claim may be worth it.
    async fn until_due(&self, queues: &Queues) -> Result<Duration, StoreError> {
        let doing = "waiting for a job";
        let (queues, queues_not) = encode_queues(queues);
        let (floor_due, floor_check) = (self.floor_due.next(), self.floor_check.next());
        let params = [
            (&queues as _, Type::TEXT_ARRAY),
            (&queues_not as _, Type::TEXT_ARRAY),
            (&floor_due as _, Type::INT8),
            (&floor_check as _, Type::INT8),
        ];
        let row = self.pool.call_one(doing, &self.sql.next_due, &params).await?;
        let times = || -> Result<_, Fault> {
            Ok((column::<i64>(&row, 0)?, column::<Option<i64>>(&row, 1)?, column(&row, 2)?))
        };
        let (now, due_at, check_at) = times().map_err(|fault| fault.into_error(doing))?;
        let next: Option<i64> = [due_at, check_at].into_iter().flatten().min();
        let left = |next: i64| Duration::from_millis(to_number(next.saturating_sub(now)));
        Ok(next.map_or(Duration::MAX, left))
    }

    pub(super) async fn wait_for_feed(
        &self,
        after: Position,
        wait_max: Duration,
    ) -> Result<(), StoreError> {
        let grown = async {
            let mut settle = SETTLE.0;
            loop {
                let hint = self.hints.feed.notified();
                tokio::pin!(hint);
                hint.as_mut().enable();
                match self.has_grown(after).await? {
                    Grown::Yes => return Ok(()),
                    Grown::Soon => {
                        tokio::time::sleep(settle).await;
                        settle = (settle * 2).min(SETTLE.1);
                    }
                    Grown::No => tokio::select! {
                        () = hint => {}
                        () = tokio::time::sleep(poll()) => {}
                    },
                }
            }
        };
        tokio::time::timeout(wait_max, grown).await.unwrap_or(Ok(()))
    }

    async fn has_grown(&self, after: Position) -> Result<Grown, StoreError> {
        let doing = "waiting for the feed";
        let (major, minor) = (after.major.to_string(), to_integer(after.minor));
        let params = [(&major as _, Type::TEXT), (&minor as _, Type::INT8)];
        let rows = self.pool.call(doing, &self.sql.feed_grown, &params).await?;
        let Some(row) = rows.first() else { return Ok(Grown::No) };
        let is_settled = column(row, 0).map_err(|fault| fault.into_error(doing))?;
        Ok(if is_settled { Grown::Yes } else { Grown::Soon })
    }
}

/// How long a wait goes without a look, this time: instances do not look in step.
fn poll() -> Duration {
    POLL_MAX.mul_f64(0.25 + 0.75 * fastrand::f64())
}
