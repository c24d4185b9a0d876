//! What the log of a run tells about its attempts.

use std::collections::BTreeMap;

use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::ids::{LeaseToken, RunId};
use flowgate_core::payload::Payload;
use flowgate_core::run::Run;
use flowgate_core::time::Timestamp;
use flowgate_store::{Store, StoreError};

/// Events that are read in one go.
const PAGE: u64 = 200;
/// How many times, from the end of a log back.
const PAGES_MAX: u64 = 50;

/// When the attempt under `token` began.
pub(super) async fn started_at(
    store: &dyn Store,
    run: &Run,
    token: LeaseToken,
) -> Result<Option<Timestamp>, StoreError> {
    let found = find(
        store,
        run,
        |event| matches!(event, Event::StepStarted { lease, .. } if lease.token == token),
    );
    Ok(found.await?.map(|stored| stored.at))
}

/// The last event of the run that `is_meant`, as far back as anybody can have waited for it.
pub(super) async fn find(
    store: &dyn Store,
    run: &Run,
    is_meant: impl Fn(&Event) -> bool,
) -> Result<Option<StoredEvent>, StoreError> {
    let mut end = run.version;
    for _ in 0..PAGES_MAX {
        let after = end.saturating_sub(PAGE);
        let mut page = read(store, run.run_id, after, end).await?;
        if let Some(at) = page.iter().rposition(|stored| is_meant(&stored.event)) {
            return Ok(Some(page.swap_remove(at)));
        }
        if after == 0 {
            break;
        }
        end = after;
    }
    Ok(None)
}

/// The payloads of the events with these numbers, which are in the log; by their numbers.
pub(super) async fn payloads(
    store: &dyn Store,
    run_id: RunId,
    numbers: impl Iterator<Item = u64>,
) -> Result<BTreeMap<u64, Payload>, StoreError> {
    let mut wanted: Vec<u64> = numbers.collect();
    wanted.sort_unstable();
    let mut found = BTreeMap::new();
    let mut wanted = wanted.into_iter().peekable();
    while let Some(first) = wanted.next() {
        let mut last = first;
        // What is close together is read together.
        while let Some(next) = wanted.next_if(|next| next - first < PAGE) {
            last = next;
        }
        let page = read(store, run_id, first - 1, last).await?;
        found.extend(page.into_iter().map(|stored| (stored.seq, stored.event.payload())));
    }
    Ok(found)
}

async fn read(
    store: &dyn Store,
    run_id: RunId,
    after: u64,
    end: u64,
) -> Result<Vec<StoredEvent>, StoreError> {
    let count = usize::try_from(end - after).unwrap_or(usize::MAX);
    if count == 0 {
        return Ok(Vec::new());
    }
    store.read_events(run_id, after, count).await
}
