//! Settings of queues: paused, and how much of a queue's work may happen.
//!
//! They are records of kind `queue` in the store, the same for all instances. An instance reads
//! them before it claims anything, when it is told of a change, and every two seconds should the
//! word get lost. A paused queue is left out of claims and of hand-offs; what runs goes on.
//!
//! So is a queue that, as far as the instance knows, holds nothing but steps of workers that it has
//! no handler for, or steps that publish where it has no broker: they are for others. It knows the revisions in the store from its start, and
//! those that it meets; it looks again rarely, should another step have come to such a queue.
//!
//! An instance of a pool takes jobs of its queues that are for its pool, besides those for anybody.
//! What is set for a queue holds for the jobs of all pools together.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flowgate_core::flow::{
    FlowFile, MQTT_WORKER, QUEUE_DEFAULT, QUEUE_MQTT, RunFile, queue_concurrency_key,
    queue_rate_key,
};
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::payload::Payload;
use flowgate_core::pool;
use flowgate_store::control::{Expect, Limit, RecordQuery, RecordWrite, RecordsOutcome};
use flowgate_store::{Queues, Store, StoreError};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backoff::jittered;
use crate::clock;
use crate::executor::worker::Workers;
use crate::instance::Instance;
use crate::permits::Permit;

/// The kind of the records.
const KIND: &str = "queue";
/// What instances are told when a setting has changed.
const TOPIC: &str = "queues";
/// How long an instance goes without looking, before jitter.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// How often an instance that leaves queues to others looks whether they hold something for it,
/// before jitter.
const USES_INTERVAL: Duration = Duration::from_mins(5);

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
    /// The queues that the instance is for.
    served: Queues,
    /// Its pool.
    pool: Option<Arc<str>>,
    current: RwLock<Current>,
    has_limits: AtomicBool,
    changed: Notify,
}

#[derive(Debug)]
struct Current {
    /// The queues that the instance takes jobs of; none before it knows which are paused.
    open: Queues,
    paused: Vec<Arc<str>>,
    uses: HashMap<Arc<str>, Use>,
    limits: HashMap<Arc<str>, Vec<Permit>>,
    is_known: bool,
}

/// Whose steps wait in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Use {
    /// Steps that the instance can execute.
    here: bool,
    /// Steps of workers that it has no handler for.
    elsewhere: bool,
}

impl Current {
    /// The queues of `served` that are neither paused nor for others alone, with those of `pool`.
    fn open_of(&self, served: &Queues, pool: Option<&Arc<str>>) -> Queues {
        let for_others = self.uses.iter().filter(|(_, used)| used.elsewhere && !used.here);
        let mut left_out: Vec<Arc<str>> = for_others.map(|(name, _)| Arc::clone(name)).collect();
        left_out.sort_unstable();
        let paused = self.paused.iter().filter(|name| !left_out.contains(name));
        let paused: Vec<Arc<str>> = paused.cloned().collect();
        left_out.extend(paused);
        with_pool(without(served, left_out), pool)
    }
}

impl QueueBook {
    /// What an instance of `pool` that serves `queues` and has handlers for `workers` knows at its
    /// start.
    pub(crate) fn new(queues: &Queues, pool: Option<&Arc<str>>, workers: &Workers) -> Self {
        let current = Current {
            open: Queues::Only(Vec::new()),
            paused: Vec::new(),
            uses: HashMap::new(),
            limits: HashMap::new(),
            is_known: false,
        };
        Self {
            served: served(queues, workers),
            pool: pool.cloned(),
            current: RwLock::new(current),
            has_limits: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    /// The queues that the instance takes jobs of now.
    pub(crate) fn open(&self) -> Queues {
        self.current.read().open.clone()
    }

    /// The queues that the instance is for, whatever is set for them.
    pub(crate) fn served(&self) -> &Queues {
        &self.served
    }

    /// Whether the instance is for jobs in `queue`, whatever is set for it.
    pub(crate) fn serves(&self, queue: &str) -> bool {
        with_pool(self.served.clone(), self.pool.as_ref()).contains(queue)
    }

    /// Those of `queues` that are not paused, with those of the instance's pool.
    pub(crate) fn unpaused(&self, queues: &[Arc<str>]) -> Queues {
        let current = self.current.read();
        let open = queues.iter().filter(|name| !current.paused.contains(name)).cloned();
        with_pool(Queues::Only(open.collect()), self.pool.as_ref())
    }

    /// Notes steps by their queues, and whether the instance can execute them.
    pub(crate) fn note_uses<'a>(&self, steps: impl Iterator<Item = (&'a str, bool)>) {
        let mut current = self.current.write();
        let mut is_new = false;
        for (queue, is_here) in steps {
            let known = current.uses.get(queue).copied().unwrap_or_default();
            let used = Use { here: known.here || is_here, elsewhere: known.elsewhere || !is_here };
            if used != known {
                current.uses.insert(queue.into(), used);
                is_new = true;
            }
        }
        if !is_new || !current.is_known {
            return;
        }
        let open = current.open_of(&self.served, self.pool.as_ref());
        let is_same = std::mem::replace(&mut current.open, open) == current.open;
        drop(current);
        if !is_same {
            self.changed.notify_waiters();
        }
    }

    /// Whether there are queues that are left to others.
    fn leaves_any(&self) -> bool {
        self.current.read().uses.values().any(|used| used.elsewhere && !used.here)
    }

    /// Whether jobs of `queue` need a permit.
    pub(crate) fn is_limited(&self, queue: &str) -> bool {
        self.has_limits.load(Ordering::Relaxed)
            && self.current.read().limits.contains_key(pool::split(queue).0)
    }

    /// What jobs of `queue` need a permit of.
    pub(crate) fn limits(&self, queue: &str) -> Vec<Permit> {
        if !self.has_limits.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.current.read().limits.get(pool::split(queue).0).cloned().unwrap_or_default()
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

    fn set(&self, settings: &[(Arc<str>, QueueSettings)]) {
        let paused: Vec<Arc<str>> = (settings.iter())
            .filter(|(_, settings)| settings.paused)
            .map(|(name, _)| Arc::clone(name))
            .collect();
        let limits: HashMap<Arc<str>, Vec<Permit>> = (settings.iter())
            .map(|(name, settings)| (Arc::clone(name), limits_of(name, *settings)))
            .filter(|(_, limits)| !limits.is_empty())
            .collect();
        self.has_limits.store(!limits.is_empty(), Ordering::Relaxed);
        let mut current = self.current.write();
        let are_same = current.is_known && current.paused == paused;
        (current.limits, current.paused) = (limits, paused);
        let open = current.open_of(&self.served, self.pool.as_ref());
        // Those who wait for a queue that this instance does not serve are told too.
        let is_same = are_same && current.open == open;
        (current.open, current.is_known) = (open, true);
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

/// `queues`, and the own queues of `workers` where steps without a queue are served at all: whoever
/// names queues and leaves `default` out gets those and no others.
fn served(queues: &Queues, workers: &Workers) -> Queues {
    match queues {
        Queues::All | Queues::AllBut(_) | Queues::AllOf { .. } => queues.clone(),
        Queues::Only(names) if !queues.contains(QUEUE_DEFAULT) => Queues::Only(names.clone()),
        Queues::Only(names) => {
            let own =
                workers.names().map(|name| if name == MQTT_WORKER { QUEUE_MQTT } else { name });
            let own = own.filter(|name| !queues.contains(name)).map(Into::into);
            Queues::Only(names.iter().cloned().chain(own).collect())
        }
    }
}

/// The queues of `queues` but `left_out`.
pub(crate) fn without(queues: &Queues, mut left_out: Vec<Arc<str>>) -> Queues {
    match queues {
        Queues::All if left_out.is_empty() => Queues::All,
        Queues::All => Queues::AllBut(left_out),
        Queues::AllBut(others) => {
            let more = others.iter().filter(|name| !left_out.contains(name));
            let more: Vec<Arc<str>> = more.cloned().collect();
            left_out.extend(more);
            Queues::AllBut(left_out)
        }
        Queues::AllOf { pool, but } => {
            let more = but.iter().filter(|name| !left_out.contains(name));
            let more: Vec<Arc<str>> = more.cloned().collect();
            left_out.extend(more);
            Queues::AllOf { pool: Arc::clone(pool), but: left_out }
        }
        Queues::Only(names) => {
            let open = names.iter().filter(|name| !left_out.contains(name));
            Queues::Only(open.cloned().collect())
        }
    }
}

/// `queues`, none of which is of a pool, and for each of them that of `pool`.
fn with_pool(queues: Queues, pool: Option<&Arc<str>>) -> Queues {
    let Some(pool) = pool else { return queues };
    let both = |names: Vec<Arc<str>>| -> Vec<Arc<str>> {
        names.into_iter().flat_map(|name| [pool::queue_of(&name, pool), name]).collect()
    };
    match queues {
        Queues::All => Queues::AllOf { pool: Arc::clone(pool), but: Vec::new() },
        Queues::AllBut(names) | Queues::AllOf { but: names, .. } => {
            Queues::AllOf { pool: Arc::clone(pool), but: both(names) }
        }
        Queues::Only(names) => Queues::Only(both(names)),
    }
}

/// The steps of a flow that have jobs, by their queues, and whether an instance with `workers` can
/// execute them.
fn uses<'a>(file: &'a FlowFile, workers: &'a Workers) -> impl Iterator<Item = (&'a str, bool)> {
    file.steps.values().map(|step| {
        let is_here = match &step.run {
            Some(RunFile::Worker(name)) => workers.get(name).is_some(),
            Some(RunFile::Mqtt(_)) => workers.get(MQTT_WORKER).is_some(),
            Some(RunFile::Process(_) | RunFile::Shell(_) | RunFile::Http(_)) | None => true,
        };
        (step.queue_name(), is_here)
    })
}

/// Notes whose steps wait in which queue, by all revisions that the store has.
async fn note_revisions(instance: &Instance) -> Result<(), StoreError> {
    match instance.store.list_revisions(None).await {
        Ok(revisions) => {
            for stored in revisions {
                instance.queues.note_uses(uses(&stored.revision.file, &instance.workers));
            }
            Ok(())
        }
        Err(error) if error.is_transient() => Err(error),
        // What cannot be read must not keep the instance from what can.
        Err(error) => {
            tracing::error!(%error, "the revisions of flows cannot be read");
            Ok(())
        }
    }
}

/// Looks at the settings, and when it is time at whose steps wait in which queue.
async fn look(instance: &Instance, uses_at: &mut Option<Instant>) -> Result<(), StoreError> {
    let now = clock::now();
    if uses_at.is_none_or(|at| now >= at && instance.queues.leaves_any()) {
        note_revisions(instance).await?;
        *uses_at = Some(now + jittered(USES_INTERVAL));
    }
    let settings = queue_settings(&*instance.store).await?;
    instance.queues.set(&settings);
    Ok(())
}

/// Keeps the settings current until the instance stops.
pub(crate) async fn follow(instance: Arc<Instance>) {
    let stopping = instance.stopping.clone();
    let mut uses_at: Option<Instant> = None;
    while !stopping.is_cancelled() {
        let pause = match look(&instance, &mut uses_at).await {
            Ok(()) => jittered(LOOK_INTERVAL),
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
