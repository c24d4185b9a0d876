//! A run as a whole.

use std::sync::Arc;

use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::flow::Flow;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::Run;
use flowgate_core::view::{self, StepView};
use flowgate_store::{JobDetail, RunDetail, Store, StoreError};
use futures_util::future::try_join_all;

use super::item;
use crate::error::ApiError;
use crate::lookup;
use crate::wire::runs::{JobItem, RunFacts, RunItem, StepItem};

/// Events that are read to show a run: of a longer log, the last ones.
const EVENTS_READ_MAX: u64 = 1_000;

/// All that the store knows about the run that `text` names, but its log.
pub async fn show(store: &dyn Store, text: &str) -> Result<RunFacts, ApiError> {
    let run_id = lookup::run_id(store, text).await?;
    let detail = lookup::run(store, run_id).await?;
    let run = &detail.row.run;
    let flow = lookup::flow_of(store, run).await?;
    let events = events_to_show(store, run).await?;
    let mut facts = facts(&flow, &detail, &events);
    facts.steps_complete = run.version <= EVENTS_READ_MAX;
    facts.fate = lookup::fate(store, run).await?;
    Ok(facts)
}

/// The last events of a run, with those before them that its input and its state are in.
async fn events_to_show(store: &dyn Store, run: &Run) -> Result<Vec<StoredEvent>, StoreError> {
    let after = run.version.saturating_sub(EVENTS_READ_MAX);
    let mut earlier: Vec<u64> = run.state.values().copied().chain([1]).collect();
    earlier.retain(|seq| *seq <= after);
    earlier.sort_unstable();
    earlier.dedup();
    let one = |seq: u64| store.read_events(run.run_id, seq - 1, 1);
    let found = try_join_all(earlier.into_iter().map(one)).await?;
    let mut events: Vec<StoredEvent> = found.into_iter().flatten().collect();
    events.extend(recent_events(store, run, EVENTS_READ_MAX).await?);
    Ok(events)
}

/// The last events of a run, at most `max`, up to where its record stands.
///
/// A store may keep the events of a commit together, and a read that begins or ends within a large
/// one costs as much as all of it: so there are as few reads as possible.
pub(crate) async fn recent_events(
    store: &dyn Store,
    run: &Run,
    max: u64,
) -> Result<Vec<StoredEvent>, StoreError> {
    let mut after = run.version.saturating_sub(max);
    let mut events = Vec::new();
    while after < run.version {
        let page = store.read_events(run.run_id, after, PAGE_MAX).await?;
        let Some(last) = page.last() else { break };
        after = last.seq;
        events.extend(page);
    }
    Ok(events)
}

/// What is to be told of a run of `flow` whose events are these.
pub fn facts(flow: &Flow, detail: &RunDetail, events: &[StoredEvent]) -> RunFacts {
    let run = &detail.row.run;
    let is_start = |stored: &&StoredEvent| matches!(stored.event, Event::RunStarted(_));
    let input = events.first().filter(is_start).map(|stored| stored.event.payload());
    let value = |seq: u64| {
        let at = events.binary_search_by_key(&seq, |stored| stored.seq).ok()?;
        Some(events[at].event.payload())
    };
    let state = run.state.iter();
    let RunItem {
        run_id,
        flow: name,
        revision,
        status,
        started_at,
        updated_at,
        ended_at,
        duration_ms,
        key,
        tags,
        retry_of,
        failure,
    } = item(&detail.row);
    RunFacts {
        run_id,
        flow: name,
        revision,
        status,
        started_at,
        updated_at,
        ended_at,
        duration_ms,
        key,
        tags,
        retry_of,
        failure,
        version: run.version,
        steps: steps(flow, run, events),
        steps_complete: true,
        input,
        state: state.filter_map(|(key, seq)| Some((Arc::clone(key), value(*seq)?))).collect(),
        jobs: detail.jobs.iter().map(|detail| job(flow, detail)).collect(),
        fate: None,
        events_removed: detail.row.events_removed,
    }
}

fn steps(flow: &Flow, run: &Run, events: &[StoredEvent]) -> Vec<StepItem> {
    let mut items: Vec<StepItem> = view::steps(flow, run, events).into_iter().map(step).collect();
    for stored in events {
        let Some(index) = stored.event.step().and_then(|name| flow.step_index(name)) else {
            continue;
        };
        note_times(&mut items[index.at()], stored);
    }
    items
}

fn step(view: StepView) -> StepItem {
    let StepView { name, state, attempts, failures, duration_ms, error, result } = view;
    let (started_at, ended_at) = (None, None);
    StepItem { name, state, attempts, failures, duration_ms, error, result, started_at, ended_at }
}

fn note_times(item: &mut StepItem, stored: &StoredEvent) {
    let began = |at: flowgate_core::time::Timestamp| at.to_string();
    match &stored.event {
        Event::StepStarted { .. } | Event::StepWaiting { .. } => {
            item.started_at.get_or_insert_with(|| began(stored.at));
        }
        Event::StepSucceeded { .. }
        | Event::StepFailed { .. }
        | Event::StepCancelled { .. }
        | Event::StepSkipped { .. } => item.ended_at = Some(stored.at.to_string()),
        Event::RunReleased { .. }
        | Event::RunMigrated(_)
        | Event::RunCheckpointed { .. }
        | Event::RunStarted(_)
        | Event::StepQueued { .. }
        | Event::StepRepaired { .. }
        | Event::StepLost { .. }
        | Event::StepReleased { .. }
        | Event::StepParked { .. }
        | Event::EventEmitted { .. }
        | Event::EventRepeated { .. }
        | Event::StateSet { .. }
        | Event::AttemptFailed { .. }
        | Event::StepCarried { .. }
        | Event::SignalReceived { .. }
        | Event::SignalTaken { .. }
        | Event::RunCompleted {}
        | Event::RunFailed { .. }
        | Event::RunCancelled { .. } => {}
    }
}

fn job(flow: &Flow, detail: &JobDetail) -> JobItem {
    let lease = detail.lease.as_ref();
    JobItem {
        step: Arc::clone(&flow.step(detail.job.job_id.step).name),
        queue: Arc::clone(&detail.job.queue),
        attempt: detail.job.attempt,
        due_at: detail.due_at.to_string(),
        instance: lease.map(|lease| Arc::clone(&lease.instance.0)),
        expires_at: lease.map(|lease| lease.expires_at.to_string()),
    }
}
