//! Why a run is not finished, or ended as it did.

use std::borrow::Cow;

use flowgate_core::event::StoredEvent;
use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_core::view::{
    self, Executor, LimitUse, OpenJob, PoolSeen, QueuesSeen, Reason, Standing,
};
use flowgate_engine::queue_settings;
use flowgate_engine::remote::workers_seen;
use flowgate_store::{Degradation, InstanceRow, JobDetail, RunDetail, Store, StoreError};

use super::show::recent_events;
use crate::error::ApiError;
use crate::host::Host;
use crate::lookup;
use crate::wire::why::{ReasonItem, StrainedItem, Why};

/// Events that are read for it, the last ones.
const EVENTS_READ_MAX: u64 = 1_000;
/// What holds a point in time in a reason.
const TIMES: [&str; 5] = ["since", "due_at", "until", "expired_at", "asked_at"];

/// Why the run that `name` names is where it is.
pub async fn why(host: &Host, name: &str) -> Result<Why, ApiError> {
    let store = host.store()?;
    let store = &*store;
    let run_id = lookup::run_id(store, name).await?;
    let detail = lookup::run(store, run_id).await?;
    let run = &detail.row.run;
    let now = store.now().await?;
    let executor = host.executor(store, &detail, now).await?;
    let reasons = reasons(store, &detail, (&executor, now), EVENTS_READ_MAX).await?;
    Ok(Why {
        run_id,
        flow: run.flow.clone(),
        status: run.status,
        reasons: reasons.iter().map(|reason| reason_item(reason, run_id)).collect(),
        strained: strained(store, run.status, now).await?,
        fate: lookup::fate(store, run).await?,
    })
}

/// The reasons, from at most `events_max` of the run's last events.
pub(crate) async fn reasons(
    store: &dyn Store,
    detail: &RunDetail,
    (executor, now): (&Executor, Timestamp),
    events_max: u64,
) -> Result<Vec<Reason>, ApiError> {
    let run = &detail.row.run;
    let flow = lookup::flow_of(store, run).await?;
    let events = recent_events(store, run, events_max).await?;
    let jobs: Vec<OpenJob> = detail.jobs.iter().map(open_job).collect();
    let limits = limits_in_use(store, &events).await?;
    let workers = workers_seen(store).await?;
    let workers = Some(&*workers);
    let queues = &queues_seen(store, now).await?;
    let (jobs, events, limits) = (&*jobs, &*events, &*limits);
    let gate = match run.status {
        RunStatus::Held => Some(lookup::gate(store, &run.flow).await?),
        RunStatus::Running
        | RunStatus::Waiting
        | RunStatus::Completed
        | RunStatus::Failed
        | RunStatus::Cancelled => None,
    };
    let gate = gate.as_ref();
    let standing = Standing { run, jobs, events, executor, limits, workers, queues, gate };
    Ok(view::why(&flow, &standing, now))
}

/// A reason as the wire tells it.
pub(crate) fn reason_item(reason: &Reason, run_id: RunId) -> ReasonItem {
    let value = serde_json::to_value(reason).expect("a reason is JSON");
    let serde_json::Value::Object(mut rest) = value else { unreachable!("a reason is an object") };
    for name in TIMES {
        if let Some(time) = rest.get_mut(name)
            && let Some(ms) = time.as_i64()
        {
            *time = Timestamp(ms).to_string().into();
        }
    }
    let cause = rest.remove("cause").and_then(|cause| cause.as_str().map(str::to_owned));
    rest.remove("step");
    // What the last attempt said is in the words of the whole.
    rest.remove("message");
    let remedy = reason.remedy();
    ReasonItem {
        step: reason.step.clone(),
        cause: cause.unwrap_or_default(),
        message: reason.to_string(),
        help: remedy.map(|text| format!("flowgate {}", text.replace("RUN", &run_id.to_string()))),
        rest,
    }
}

/// Which queues are paused, and which ones instances take jobs of.
async fn queues_seen(store: &dyn Store, now: Timestamp) -> Result<QueuesSeen, StoreError> {
    let settings = queue_settings(store).await?.into_iter();
    let paused = settings.filter(|(_, set)| set.paused).map(|(queue, _)| queue).collect();
    let rows = store.list_instances().await?.into_iter();
    let heard: Vec<_> = rows.filter(|row| !lookup::is_silent(row, now)).collect();
    let pools = heard.iter().filter_map(|row| {
        let (pool, queues) = (row.beat.pool.clone()?, row.beat.queues.clone());
        Some(PoolSeen { pool, queues })
    });
    let pools = Some(pools.collect());
    // Of nobody nothing is known; one that has no queues takes those of all.
    let served = heard.into_iter().map(|row| row.beat.queues).reduce(|all, of_one| {
        let (mut all, of_one) = (all?, of_one?);
        all.extend(of_one);
        Some(all)
    });
    Ok(QueuesSeen { paused, served: served.flatten(), pools })
}

/// Who uses the limits that steps of the run may be waiting for.
async fn limits_in_use(
    store: &dyn Store,
    events: &[StoredEvent],
) -> Result<Vec<LimitUse>, StoreError> {
    let mut used = Vec::new();
    for limit in view::parked_limits(events) {
        let state = store.read_permits(&limit).await?;
        let holders = state.holders.into_iter().map(|(job_id, _)| job_id).collect();
        used.push(LimitUse { limit, holders, in_line: state.in_line });
    }
    Ok(used)
}

/// Instances that are strained, if the run is open: then it may wait for them.
async fn strained(
    store: &dyn Store,
    status: RunStatus,
    now: Timestamp,
) -> Result<Vec<StrainedItem>, StoreError> {
    if status.is_terminal() {
        return Ok(Vec::new());
    }
    let rows = store.list_instances().await?;
    let is_strained = |row: &InstanceRow| {
        row.beat.degradation > Degradation::Normal && !lookup::is_silent(row, now)
    };
    let item = |row: InstanceRow| StrainedItem {
        instance: row.beat.instance,
        degradation: Cow::Borrowed(row.beat.degradation.as_str()),
        strained_by: row.beat.strained_by,
    };
    Ok(rows.into_iter().filter(is_strained).map(item).collect())
}

fn open_job(job: &JobDetail) -> OpenJob {
    OpenJob {
        step: job.job.job_id.step,
        kind: job.job.kind,
        attempt: job.job.attempt,
        due_at: job.due_at,
        lease: job.lease.as_ref().map(|lease| (lease.instance.clone(), lease.expires_at)),
    }
}
