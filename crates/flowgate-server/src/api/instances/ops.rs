//! What can be asked about instances, for whoever has a store at hand.

use std::sync::Arc;

use flowgate_core::time::Timestamp;
use flowgate_engine::flapping_terms;
use flowgate_engine::remote::{RemoteWorker, remote_workers};
use flowgate_store::control::Term;
use flowgate_store::{Degradation, InstanceRow, InstanceState, Store};

use crate::error::ApiError;
use crate::lookup;
use crate::wire::instances::{
    InstanceItem, InstanceList, LeaderReport, TermEnd, TermItem, WorkerItem,
};

/// The name that the leader holds.
const LEADER: &str = "leader";

/// All instances that were heard of within a day, and the remote workers of the last hour; only
/// those of a pool if one is named.
pub async fn list(store: &dyn Store, pool: Option<&str>) -> Result<InstanceList, ApiError> {
    let items = instances(store, pool).await?;
    let mut workers = remote_workers(store).await?;
    workers.retain(|worker| pool.is_none() || worker.pool.as_deref() == pool);
    Ok(InstanceList { items, workers: workers.iter().map(worker_item).collect() })
}

fn worker_item(worker: &RemoteWorker) -> WorkerItem {
    let texts = |names: &[Arc<str>]| names.iter().map(ToString::to_string).collect();
    WorkerItem {
        worker_id: worker.worker_id.to_string(),
        workers: texts(&worker.workers),
        queues: texts(&worker.queues),
        instance: worker.instance.to_string(),
        seen_at: worker.seen_at.to_string(),
    }
}

/// The instances alone.
pub(crate) async fn instances(
    store: &dyn Store,
    pool: Option<&str>,
) -> Result<Vec<InstanceItem>, ApiError> {
    let now = store.now().await?;
    let mut rows = store.list_instances().await?;
    rows.retain(|row| pool.is_none() || row.beat.pool.as_deref() == pool);
    rows.sort_by(|a, b| a.beat.instance.0.cmp(&b.beat.instance.0));
    let term = store.past_terms(LEADER, 1).await?.into_iter().next();
    let term = term.filter(|term| term.is_held(now));
    let leader = term.as_ref().map(holder);
    Ok(rows.iter().map(|row| item(row, now, leader)).collect())
}

fn item(row: &InstanceRow, now: Timestamp, leader: Option<&str>) -> InstanceItem {
    let beat = &row.beat;
    let name = &beat.instance.0;
    InstanceItem {
        instance: name.to_string(),
        // An instance is named after its host, with a random part behind it.
        host: name.rsplit_once('-').map_or(&**name, |(host, _)| host).to_owned(),
        pid: beat.pid,
        version: beat.version.to_string(),
        role: beat.role.as_deref().map(Into::into),
        pool: beat.pool.as_deref().map(Into::into),
        state: state(row, now).to_owned(),
        degradation: beat.degradation.as_str().to_owned(),
        strained_by: beat.strained_by.as_deref().map(Into::into),
        running: beat.running,
        slots: beat.slots,
        queues: beat.queues.as_ref().map(|names| names.iter().map(ToString::to_string).collect()),
        started_at: row.started_at.to_string(),
        seen_at: row.seen_at.to_string(),
        leads: leader == Some(&**name),
    }
}

fn state(row: &InstanceRow, now: Timestamp) -> &'static str {
    match row.beat.state {
        _ if lookup::is_silent(row, now) => "silent",
        InstanceState::Ready => match row.beat.degradation {
            Degradation::Normal => "ready",
            strained @ (Degradation::Degraded | Degradation::Critical) => strained.as_str(),
        },
        InstanceState::Stopping => "stopping",
    }
}

/// Who leads, and who did before: the last `limit` terms.
pub async fn leader(store: &dyn Store, limit: usize) -> Result<LeaderReport, ApiError> {
    let now = store.now().await?;
    let terms = store.past_terms(LEADER, limit).await?;
    let flapping = flapping_terms(&terms) > 0;
    let current = terms.first().filter(|term| term.is_held(now));
    Ok(LeaderReport {
        leader: current.map(|term| term_item(term, now)),
        terms: terms.iter().map(|term| term_item(term, now)).collect(),
        flapping,
    })
}

fn term_item(term: &Term, now: Timestamp) -> TermItem {
    let (end, ended_at) = match term.released_at {
        Some(at) => (TermEnd::Released, Some(at)),
        None if term.is_held(now) => (TermEnd::Leads, None),
        None => (TermEnd::Expired, Some(term.expires_at)),
    };
    TermItem {
        term: term.term.number,
        instance: holder(term).to_owned(),
        began_at: term.began_at.to_string(),
        expires_at: term.expires_at.to_string(),
        ended_at: ended_at.map(|at| at.to_string()),
        end,
    }
}

/// The instance that asked for the term; a random part behind its name tells its asks apart.
fn holder(term: &Term) -> &str {
    term.holder.rsplit_once('/').map_or(&term.holder, |(instance, _)| instance)
}
