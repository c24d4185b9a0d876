//! What can be asked about queues, for whoever has a store at hand.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use flowgate_core::flow::{Flow, queue_concurrency_key, queue_rate_key};
use flowgate_core::ids::{JobId, Revision, is_identifier};
use flowgate_core::limits::LIMIT_MAX;
use flowgate_core::pool;
use flowgate_core::time::Timestamp;
use flowgate_engine::{QueueSettings, change_queue, queue_settings};
use flowgate_store::control::QueueStats;
use flowgate_store::{InstanceRow, Store};

use crate::error::ApiError;
use crate::lookup;
use crate::wire::Items;
use crate::wire::queues::{
    Change, PermitHolder, QueueChange, QueueChanged, QueueDetail, QueueItem, parse_rate, say_rate,
};

/// Holders of permits that are told.
const HOLDERS_MAX: usize = 100;

/// Every queue that has jobs or settings, by name.
pub async fn list(store: &dyn Store) -> Result<Items<QueueItem>, ApiError> {
    let now = store.now().await?;
    let mut rows: BTreeMap<Arc<str>, (QueueStats, QueueSettings)> = BTreeMap::new();
    for stats in store.queue_stats().await? {
        rows.insert(Arc::clone(&stats.queue), (stats, QueueSettings::default()));
    }
    for (queue, settings) in queue_settings(store).await? {
        let empty =
            || QueueStats { queue: Arc::clone(&queue), due: 0, later: 0, oldest_due_at: None };
        rows.entry(Arc::clone(&queue)).or_insert_with(|| (empty(), settings));
        // What is set for a queue holds for those of its pools too.
        let of_it = rows.iter_mut().filter(|(name, _)| *pool::split(name).0 == *queue);
        of_it.for_each(|(_, (_, set))| *set = settings);
    }
    let instances = store.list_instances().await?;
    let items = rows.into_values().map(|(stats, settings)| QueueItem {
        served_by: served_by(&instances, &stats.queue, now),
        ..item(&stats, settings, now)
    });
    Ok(Items { items: items.collect() })
}

fn item(stats: &QueueStats, settings: QueueSettings, now: Timestamp) -> QueueItem {
    let age = |at| u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX);
    QueueItem {
        queue: stats.queue.to_string(),
        paused: settings.paused,
        concurrency: settings.concurrency,
        rate: settings.rate.map(say_rate),
        due: stats.due,
        later: stats.later,
        oldest_due_at: stats.oldest_due_at.map(|at| at.to_string()),
        oldest_age_ms: stats.oldest_due_at.map(age),
        served_by: Vec::new(),
    }
}

fn served_by(instances: &[InstanceRow], queue: &str, now: Timestamp) -> Vec<String> {
    let (queue, pool) = pool::split(queue);
    let serves = |row: &&InstanceRow| {
        let queues = row.beat.queues.as_ref();
        !lookup::is_silent(row, now)
            && (pool.is_none() || row.beat.pool.as_deref() == pool)
            && queues.is_none_or(|names| names.iter().any(|name| **name == *queue))
    };
    instances.iter().filter(serves).map(|row| row.beat.instance.to_string()).collect()
}

/// A queue and who holds its permits.
pub async fn show(store: &dyn Store, queue: &str) -> Result<QueueDetail, ApiError> {
    let found = list(store).await?.items.into_iter().find(|item| item.queue == queue);
    let item = found.ok_or_else(|| {
        let message = format!("no job waits in the queue `{queue}`, and nothing is set for it");
        ApiError::not_found("queue_not_found", message)
            .help("see `flowgate queues list`; the queue of a step is in its flow file")
            .path(queue)
    })?;
    let (limited, _) = pool::split(queue);
    let running = store.read_permits(&queue_concurrency_key(limited)).await?;
    let begun = store.read_permits(&queue_rate_key(limited)).await?;
    let mut holders = Vec::new();
    let mut flows = HashMap::new();
    for (job, _) in running.holders.iter().take(HOLDERS_MAX) {
        holders.push(holder(store, *job, &mut flows).await?);
    }
    Ok(QueueDetail { item, holders, in_line: running.in_line + begun.in_line })
}

/// Who holds a permit; flows that were read before are not read again.
async fn holder(
    store: &dyn Store,
    job: JobId,
    flows: &mut HashMap<(Arc<str>, Revision), Flow>,
) -> Result<PermitHolder, ApiError> {
    let run_id = job.run_id;
    let Some(detail) = store.read_run(run_id).await? else {
        return Ok(PermitHolder { run_id, step: None });
    };
    let run = &detail.row.run;
    let key = (Arc::clone(&run.flow), run.revision.clone());
    if !flows.contains_key(&key) {
        flows.insert(key.clone(), lookup::flow_of(store, run).await?);
    }
    let step = flows[&key].steps.get(job.step.at());
    Ok(PermitHolder { run_id, step: step.map(|step| step.name.to_string()) })
}

/// Changes what is set for a queue.
pub async fn change(
    store: &dyn Store,
    queue: &str,
    change: QueueChange,
) -> Result<QueueChanged, ApiError> {
    if let (name, Some(_)) = pool::split(queue) {
        let message = format!("`{queue}` is where jobs of `{name}` wait for a pool");
        return Err(ApiError::invalid("identifier_invalid", message)
            .help(format!("name `{name}`: what is set for it holds for all pools together"))
            .path(queue));
    }
    if !is_identifier(queue) {
        let shown: String = queue.chars().take(200).collect();
        let message = format!("`{}` cannot be the name of a queue", shown.escape_debug());
        return Err(ApiError::invalid("identifier_invalid", message)
            .help("see the names with `flowgate queues list`")
            .path(shown));
    }
    let QueueChange { paused, concurrency, rate } = change;
    if let Change::Set(count) = concurrency
        && !(1..=LIMIT_MAX).contains(&count)
    {
        let message = format!("a concurrency of {count} is not from 1 to {LIMIT_MAX}");
        return Err(ApiError::invalid("out_of_range", message)
            .help("pause the queue instead, or take the limit away with null")
            .path("concurrency"));
    }
    let rate = match rate {
        Change::Keep => Change::Keep,
        Change::Unset => Change::Unset,
        Change::Set(text) => Change::Set(parse_rate(&text).map_err(|help| {
            ApiError::invalid("field_invalid", format!("`{text}` is not a rate"))
                .help(help)
                .path("rate")
        })?),
    };
    let set = |settings: &mut QueueSettings| {
        settings.paused = paused.unwrap_or(settings.paused);
        settings.concurrency = concurrency.of(settings.concurrency);
        settings.rate = rate.of(settings.rate);
    };
    let (was, now) = change_queue(store, queue, set).await?;
    Ok(QueueChanged { queue: queue.to_owned(), was: was.into(), now: now.into() })
}
