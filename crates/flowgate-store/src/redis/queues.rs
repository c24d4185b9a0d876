//! What waits in the queues, over all partitions, and making it due.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use flowgate_core::ids::JobId;
use flowgate_core::time::Timestamp;
use futures_util::future::try_join_all;
use redis::Cmd;

use super::RedisStore;
use super::commit::Text;
use super::script::{self, Reply};
use crate::StoreError;
use crate::control::QueueStats;

impl RedisStore {
    /// What waits in each queue.
    pub(super) async fn stats_of_queues(&self) -> Result<Vec<QueueStats>, StoreError> {
        let parts = self.partitions.all().map(|(_, prefix)| {
            self.run("looking at the queues", &script::QUEUE_STATS, prefix, |_| {})
        });
        let mut queues: BTreeMap<Arc<str>, QueueStats> = BTreeMap::new();
        for part in try_join_all(parts).await? {
            for queue in Reply::of(part)? {
                let mut reply = Reply::of(queue)?;
                let queue: Arc<str> = reply.word()?.into();
                let stats = queues.entry(Arc::clone(&queue)).or_insert_with(|| QueueStats {
                    queue,
                    due: 0,
                    later: 0,
                    oldest_due_at: None,
                });
                stats.due += reply.number::<u64>()?;
                stats.later += reply.number::<u64>()?;
                let oldest_us: i64 = reply.number()?;
                let oldest = (oldest_us >= 0).then_some(Timestamp(oldest_us / 1_000));
                stats.oldest_due_at = stats.oldest_due_at.into_iter().chain(oldest).min();
            }
        }
        Ok(queues.into_values().collect())
    }

    /// Makes jobs due that are queued for later, and says which there are.
    pub(super) async fn wake(&self, jobs: &[JobId]) -> Result<Vec<JobId>, StoreError> {
        let items = jobs.iter().enumerate().map(|(at, job_id)| (at, job_id.run_id, *job_id));
        let parts = self.by_partition(items).into_iter().map(|(index, part)| async move {
            let write = |command: &mut Cmd| {
                command.arg(self.hints.channel()).arg(part.len());
                for (_, job_id) in &part {
                    command.arg(Text(job_id.run_id)).arg(job_id.step.0);
                }
            };
            let prefix = self.partitions.prefix(index);
            let answer = self.run("waking jobs", &script::WAKE_JOBS, prefix, write).await?;
            let mut reply = Reply::of(answer)?;
            let mut found = Vec::new();
            for (at, job_id) in part {
                if reply.number::<u8>()? == 1 {
                    found.push((at, job_id));
                }
            }
            Ok::<_, StoreError>(found)
        });
        let mut found: Vec<_> = try_join_all(parts).await?.into_iter().flatten().collect();
        self.hints.committed(true);
        found.sort_unstable_by_key(|(at, _)| *at);
        let mut seen = HashSet::new();
        found.retain(|(_, job_id)| seen.insert(*job_id));
        Ok(found.into_iter().map(|(_, job_id)| job_id).collect())
    }
}
