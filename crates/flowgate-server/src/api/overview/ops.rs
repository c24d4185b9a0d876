//! Everything at a glance, with a bounded number of reads.

use std::time::Duration;

use flowgate_core::deploy::Deployment;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_engine::{DeadFilter, dead_letters, open_deployments, read_schedules};
use flowgate_store::{RunQuery, RunRow, Store};

use crate::api::runs::ops::{item, why};
use crate::api::{flows, instances, queues, schedules};
use crate::error::ApiError;
use crate::host::Host;
use crate::live::Counts;
use crate::wire::overview::{Minute, NextSchedule, OpenDeployment, Overview, StuckRun};

/// How old an open run is that is told of.
const STUCK_AGE: Duration = Duration::from_mins(1);
const STUCK_SHOWN: usize = 10;
/// Events that are read to know what an open run waits for.
const STUCK_EVENTS: u64 = 100;
const FAILURES_SHOWN: usize = 5;
const SCHEDULES_SHOWN: usize = 5;

pub(super) async fn overview(host: &Host) -> Result<Overview, ApiError> {
    let engine = host.engine()?;
    let store = &**engine.store();
    let now = store.now().await?;
    let minutes = host.live().minutes(&engine, now).await?;
    let stuck_query = RunQuery {
        statuses: vec![RunStatus::Running, RunStatus::Waiting],
        until: Some(now.minus(STUCK_AGE)),
        limit: STUCK_SHOWN,
        ..RunQuery::default()
    };
    let failed_query = RunQuery {
        statuses: vec![RunStatus::Failed],
        limit: FAILURES_SHOWN,
        ..RunQuery::default()
    };
    let mut stuck = Vec::new();
    for row in store.list_runs(&stuck_query).await? {
        stuck.push(stuck_run(host, store, &row, now).await?);
    }
    Ok(Overview {
        now: now.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        store: store.kind().to_owned(),
        instance: engine.config().instance.to_string(),
        runs: flows::ops::counts(store, None).await?,
        minutes: minutes.into_iter().map(minute).collect(),
        stuck,
        stuck_total: store.count_runs(&stuck_query).await?,
        failures: store.list_runs(&failed_query).await?.iter().map(item).collect(),
        dead: dead(store).await?,
        queues: queues::ops::list(store).await?.items,
        leader: instances::ops::leader(store, 1).await?.leader,
        instances: instances::ops::instances(store, None).await?,
        schedules: next_schedules(store, now).await?,
        deployments: open_deployments(store).await?.iter().map(open_deployment).collect(),
    })
}

fn minute((at, counts): (Timestamp, Counts)) -> Minute {
    let Counts { started, completed, failed } = counts;
    Minute { at: at.to_string(), started, completed, failed }
}

fn open_deployment(deployment: &Deployment) -> OpenDeployment {
    OpenDeployment {
        deployment_id: deployment.deployment_id.to_string(),
        flow: deployment.flow.to_string(),
        phase: deployment.phase.to_string(),
        began_at: deployment.began_at.to_string(),
    }
}

/// Where an open run stands. One whose flow cannot be read is told of without a reason.
async fn stuck_run(
    host: &Host,
    store: &dyn Store,
    row: &RunRow,
    now: Timestamp,
) -> Result<StuckRun, ApiError> {
    let run_id = row.run.run_id;
    let mut reason = None;
    if let Some(detail) = store.read_run(run_id).await? {
        let executor = host.executor(store, &detail, now).await?;
        let reasons = why::reasons(store, &detail, (&executor, now), STUCK_EVENTS).await;
        let first = reasons.ok().and_then(|reasons| reasons.into_iter().next());
        reason = first.map(|first| why::reason_item(&first, run_id));
    }
    let age = now.since(row.started_at);
    Ok(StuckRun {
        run_id,
        flow: row.run.flow.clone(),
        status: row.run.status,
        started_at: row.started_at.to_string(),
        age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        step: reason.as_ref().and_then(|reason| reason.step.clone()),
        cause: reason.as_ref().map(|reason| reason.cause.clone()),
        message: reason.as_ref().map(|reason| reason.message.clone()),
        help: reason.and_then(|reason| reason.help),
    })
}

/// How many dead letters there are, if one page holds all failed runs.
async fn dead(store: &dyn Store) -> Result<Option<u64>, ApiError> {
    let (letters, next) = dead_letters(store, &DeadFilter::default(), None).await?;
    let count = u64::try_from(letters.len()).unwrap_or(u64::MAX);
    Ok(next.is_none().then_some(count))
}

async fn next_schedules(store: &dyn Store, now: Timestamp) -> Result<Vec<NextSchedule>, ApiError> {
    let known = read_schedules(store, None, PAGE_MAX).await?;
    let mut items: Vec<_> = known.iter().map(|named| schedules::ops::item(named, now)).collect();
    items.retain(|item| item.next_at.is_some());
    // Times are all written the same way, so their texts are in their order.
    items.sort_by(|a, b| (a.paused, &a.next_at).cmp(&(b.paused, &b.next_at)));
    items.truncate(SCHEDULES_SHOWN);
    let next = items.into_iter().map(|item| NextSchedule {
        name: item.name,
        flow: item.flow,
        next_at: item.next_at,
        paused: item.paused,
    });
    Ok(next.collect())
}
