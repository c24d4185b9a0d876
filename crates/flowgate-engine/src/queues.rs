//! Settings of queues: paused, and how much of a queue's work may happen.
//!
//! They are records of kind `queue` in the store, the same for all instances. An instance reads
//! them before it claims anything, when it is told of a change, and every two seconds should the
//! word get lost. A paused queue is left out of claims and of hand-offs; what runs goes on.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flowgate_core::flow::{queue_concurrency_key, queue_rate_key};
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::payload::Payload;
use flowgate_store::control::{Expect, Limit, RecordQuery, RecordWrite, RecordsOutcome};
use flowgate_store::{Queues, Store, StoreError};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::backoff::jittered;
use crate::instance::Instance;
use crate::permits::Permit;

/// The kind of the records.
const KIND: &str = "queue";
/// What instances are told when a setting has changed.
const TOPIC: &str = "queues";
/// How long an instance goes without looking, before jitter.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// What is set for a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSettings {
    /// Nobody takes its jobs.
    #[serde(default)]
    pub paused: bool,
    /// How many of its jobs may run at the same time, over all instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// How many of its jobs may begin in each span, over all instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<QueueRate>,
}

/// How many jobs may begin in each span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRate {
    /// How many.
    pub count: u32,
    /// In how many milliseconds.
    pub per_ms: u64,
}

/// The settings of all queues that have any, by name.
pub async fn queue_settings(
    store: &dyn Store,
) -> Result<Vec<(Arc<str>, QueueSettings)>, StoreError> {
    let mut all: Vec<(Arc<str>, QueueSettings)> = Vec::new();
    loop {
        let after = all.last().map(|(name, _)| Arc::clone(name));
        let prefix = "".into();
        let query =
            RecordQuery { kind: KIND, prefix, after, is_descending: false, limit: PAGE_MAX };
        let page = store.list_records(&query).await?;
        let is_last = page.len() < PAGE_MAX;
        for record in page {
            all.push((Arc::clone(&record.key), read(&record.key, &record.value)?));
        }
        if is_last {
            return Ok(all);
        }
    }
}

fn read(queue: &str, value: &Payload) -> Result<QueueSettings, StoreError> {
    value.read().map_err(|error| StoreError::Corrupt {
        message: format!("the settings of the queue `{queue}` cannot be read: {error}"),
        source: None,
    })
}

/// Changes what is set for a queue, and tells all instances; what was and what is set.
///
/// A queue that nothing is set for any more has no record.
pub async fn change_queue(
    store: &dyn Store,
    queue: &str,
    change: impl Fn(&mut QueueSettings) + Send + Sync,
) -> Result<(QueueSettings, QueueSettings), StoreError> {
    let key: Arc<str> = queue.into();
    loop {
        let found = store.read_records(KIND, &[Arc::clone(&key)]).await?.into_iter().next();
        let record = found.flatten();
        let (was, expect) = match &record {
            None => (QueueSettings::default(), Expect::Absent),
            Some(record) => (read(queue, &record.value)?, Expect::Version(record.version)),
        };
        let mut now = was;
        change(&mut now);
        if now == was {
            return Ok((was, now));
        }
        let value = (now != QueueSettings::default())
            .then(|| Payload::of(&now).expect("settings are small"));
        let write = RecordWrite { kind: KIND, key: Arc::clone(&key), expect, value, keep: None };
        match store.write_records(vec![write], None).await? {
            RecordsOutcome::Written(_) => {
                store.tell(TOPIC).await?;
                return Ok((was, now));
            }
            RecordsOutcome::Changed(_) => {}
            RecordsOutcome::TermLost | RecordsOutcome::TooLarge(_) => {
                unreachable!("settings are small and under no term")
            }
        }
    }
}

/// The settings as an instance knows them.
#[derive(Debug)]
pub(crate) struct QueueBook {
    current: RwLock<Current>,
    has_limits: AtomicBool,
    changed: Notify,
}

#[derive(Debug)]
struct Current {
    /// The queues that the instance takes jobs of; none before it knows which are paused.
    open: Queues,
    limits: HashMap<Arc<str>, Vec<Permit>>,
    is_known: bool,
}

impl QueueBook {
    pub(crate) fn new() -> Self {
        let open = Queues::Only(Vec::new());
        let current = Current { open, limits: HashMap::new(), is_known: false };
        Self {
            current: RwLock::new(current),
            has_limits: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    /// The queues that the instance takes jobs of now.
    pub(crate) fn open(&self) -> Queues {
        self.current.read().open.clone()
    }

    /// Whether jobs of `queue` need a permit.
    pub(crate) fn is_limited(&self, queue: &str) -> bool {
        self.has_limits.load(Ordering::Relaxed) && self.current.read().limits.contains_key(queue)
    }

    /// What jobs of `queue` need a permit of.
    pub(crate) fn limits(&self, queue: &str) -> Vec<Permit> {
        if !self.has_limits.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.current.read().limits.get(queue).cloned().unwrap_or_default()
    }

    /// Returns once the settings are known.
    pub(crate) async fn known(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.current.read().is_known {
                return;
            }
            changed.await;
        }
    }

    /// Returns when the queues that the instance takes jobs of may have changed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn set(&self, served: &Queues, settings: &[(Arc<str>, QueueSettings)]) {
        let paused: Vec<Arc<str>> = (settings.iter())
            .filter(|(_, settings)| settings.paused)
            .map(|(name, _)| Arc::clone(name))
            .collect();
        let limits: HashMap<Arc<str>, Vec<Permit>> = (settings.iter())
            .map(|(name, settings)| (Arc::clone(name), limits_of(name, *settings)))
            .filter(|(_, limits)| !limits.is_empty())
            .collect();
        let open = without(served, paused);
        self.has_limits.store(!limits.is_empty(), Ordering::Relaxed);
        let mut current = self.current.write();
        let is_same = current.is_known && current.open == open;
        *current = Current { open, limits, is_known: true };
        drop(current);
        if !is_same {
            self.changed.notify_waiters();
        }
    }
}

fn limits_of(queue: &str, settings: QueueSettings) -> Vec<Permit> {
    let concurrency = settings
        .concurrency
        .map(|count| Permit { key: queue_concurrency_key(queue), limit: Limit::AtOnce(count) });
    let rate = settings.rate.map(|QueueRate { count, per_ms }| Permit {
        key: queue_rate_key(queue),
        limit: Limit::Rate { count, per_ms },
    });
    concurrency.into_iter().chain(rate).collect()
}

fn without(served: &Queues, mut paused: Vec<Arc<str>>) -> Queues {
    match served {
        Queues::All if paused.is_empty() => Queues::All,
        Queues::All => Queues::AllBut(paused),
        Queues::AllBut(others) => {
            paused.extend_from_slice(others);
            Queues::AllBut(paused)
        }
        Queues::Only(names) => {
            let open = names.iter().filter(|name| !paused.contains(name));
            Queues::Only(open.cloned().collect())
        }
    }
}

/// Keeps the settings current until the instance stops.
pub(crate) async fn follow(instance: Arc<Instance>) {
    let stopping = instance.stopping.clone();
    while !stopping.is_cancelled() {
        let pause = match queue_settings(&*instance.store).await {
            Ok(settings) => {
                instance.queues.set(&instance.config.queues, &settings);
                jittered(LOOK_INTERVAL)
            }
            Err(error) => {
                if let Some(kept_back) = instance.throttles.queues.pass() {
                    tracing::warn!(%error, kept_back, "the settings of queues cannot be read; trying on");
                }
                tokio::select! {
                    () = stopping.cancelled() => {}
                    () = tokio::time::sleep(jittered(LOOK_INTERVAL / 4)) => {}
                }
                continue;
            }
        };
        tokio::select! {
            () = stopping.cancelled() => {}
            told = instance.store.wait_told(TOPIC, pause) => {
                if told.is_err() {
                    tokio::select! {
                        () = stopping.cancelled() => {}
                        () = tokio::time::sleep(pause) => {}
                    }
                }
            }
        }
    }
}
