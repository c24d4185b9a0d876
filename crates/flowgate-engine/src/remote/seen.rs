//! Who asks for the steps of workers, so that a step which nobody asks for can say so.
//!
//! A claim of a remote worker leaves a record of kind `worker` under its id, at most every
//! [`NOTE_INTERVAL`] and instance. Instances with handlers say in their beats which they have.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::ids::InstanceId;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::payload::Payload;
use flowgate_core::time::Timestamp;
use flowgate_core::view::WorkerSeen;
use flowgate_store::control::{Expect, RecordQuery, RecordWrite};
use flowgate_store::{Store, StoreError};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::clock;
use crate::instance::Instance;

/// The kind of the records.
const KIND: &str = "worker";
/// How often the same claim leaves a trace.
const NOTE_INTERVAL: Duration = Duration::from_secs(15);
/// How long a trace is kept.
const KEPT: Duration = Duration::from_hours(1);
/// Workers that an instance remembers to have noted.
const NOTED_MAX: usize = 10_000;

/// A worker in another process that has claimed within the last hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteWorker {
    /// Its id.
    pub worker_id: Arc<str>,
    /// The workers whose steps it executes.
    pub workers: Vec<Arc<str>>,
    /// The queues that it takes them from.
    pub queues: Vec<Arc<str>>,
    /// The instance that it last asked.
    pub instance: InstanceId,
    /// The pool of that instance, and so its own.
    pub pool: Option<Arc<str>>,
    /// When it last asked, give or take fifteen seconds.
    pub seen_at: Timestamp,
}

/// What was noted of a worker, and when.
#[derive(Debug)]
pub(super) struct Noted {
    at: Instant,
    workers: Vec<Arc<str>>,
    queues: Vec<Arc<str>>,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    workers: Vec<Arc<str>>,
    queues: Vec<Arc<str>>,
    instance: InstanceId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pool: Option<Arc<str>>,
}

/// Leaves a trace of a claim, unless there is a fresh one.
pub(super) async fn note(
    instance: &Instance,
    worker_id: &Arc<str>,
    workers: &[Arc<str>],
    queues: &[Arc<str>],
) {
    let now = clock::now();
    if !is_due(instance, now, worker_id, (workers, queues)) {
        return;
    }
    let stored = Stored {
        workers: workers.to_vec(),
        queues: queues.to_vec(),
        instance: instance.config.instance.clone(),
        pool: instance.config.pool.clone(),
    };
    let write = RecordWrite {
        kind: KIND,
        key: Arc::clone(worker_id),
        expect: Expect::Anything,
        value: Some(Payload::of(&stored).expect("names are short")),
        keep: Some(KEPT),
    };
    if let Err(error) = instance.store.write_records(vec![write], None).await {
        tracing::debug!(%error, %worker_id, "a claim left no trace");
    }
}

fn is_due(
    instance: &Instance,
    now: Instant,
    worker_id: &Arc<str>,
    (workers, queues): (&[Arc<str>], &[Arc<str>]),
) -> bool {
    let mut seen = instance.remote.seen.lock();
    let is_fresh = |noted: &Noted| {
        now.saturating_duration_since(noted.at) < NOTE_INTERVAL
            && noted.workers == workers
            && noted.queues == queues
    };
    if seen.get(worker_id).is_some_and(is_fresh) {
        return false;
    }
    if seen.len() >= NOTED_MAX {
        seen.retain(|_, noted| now.saturating_duration_since(noted.at) < NOTE_INTERVAL);
    }
    let noted = Noted { at: now, workers: workers.to_vec(), queues: queues.to_vec() };
    seen.insert(Arc::clone(worker_id), noted);
    true
}

/// The workers in other processes that have claimed within the last hour, by their ids.
pub async fn remote_workers(store: &dyn Store) -> Result<Vec<RemoteWorker>, StoreError> {
    let now = store.now().await?;
    let mut all: Vec<RemoteWorker> = Vec::new();
    let mut after = None;
    loop {
        let prefix = "".into();
        let query =
            RecordQuery { kind: KIND, prefix, after, is_descending: false, limit: PAGE_MAX };
        let page = store.list_records(&query).await?;
        after = page.last().map(|record| Arc::clone(&record.key));
        let is_last = page.len() < PAGE_MAX;
        for record in page.into_iter().filter(|record| record.expires_at.is_none_or(|at| at > now))
        {
            let stored: Stored = record.value.read().map_err(|error| StoreError::Corrupt {
                message: format!("the record of the worker `{}` cannot be read", record.key),
                source: Some(Box::new(error)),
            })?;
            all.push(RemoteWorker {
                worker_id: record.key,
                workers: stored.workers,
                queues: stored.queues,
                instance: stored.instance,
                pool: stored.pool,
                seen_at: record.written_at,
            });
        }
        if is_last {
            return Ok(all);
        }
    }
}

/// Who was seen to take the steps of workers: instances with handlers, and remote workers.
pub async fn workers_seen(store: &dyn Store) -> Result<Vec<WorkerSeen>, StoreError> {
    let mut seen = Vec::new();
    for row in store.list_instances().await? {
        let (queues, pool, seen_at) = (row.beat.queues, row.beat.pool, row.seen_at);
        seen.extend(row.beat.workers.into_iter().map(|worker| WorkerSeen {
            worker,
            queues: queues.clone(),
            pool: pool.clone(),
            seen_at,
        }));
    }
    for remote in remote_workers(store).await? {
        let (queues, pool, seen_at) = (remote.queues, remote.pool, remote.seen_at);
        seen.extend(remote.workers.into_iter().map(|worker| WorkerSeen {
            worker,
            queues: Some(queues.clone()),
            pool: pool.clone(),
            seen_at,
        }));
    }
    Ok(seen)
}
