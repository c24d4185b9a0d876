//! How the two revisions of a canary do, side by side.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::deploy::machine::CanarySeen;
use flowgate_core::deploy::{Deployment, EndedRun, Figures, Phase, Strategy};
use flowgate_core::limits::PAGE_MAX;
use flowgate_store::{RunCursor, RunQuery, Store, StoreError};
use tokio::time::Instant;

use super::driver::Memo;
use super::look::{ENDS, began, ended};
use crate::clock;

/// Runs that are looked at, the latest first: more of them change no judgement.
const RUNS_MAX: usize = 200_000;
/// How often they are counted at most.
const COUNT_EVERY: Duration = Duration::from_millis(500);
/// How many times as long as a count takes its result is good for.
const GOOD_FOR: u32 = 10;

/// What was counted, and until when it is good.
#[derive(Debug)]
pub(super) struct Counted {
    seen: CanarySeen,
    until: Instant,
}

/// How the revisions of a canary did since it began; none unless it is being watched.
pub async fn canary_figures(
    store: &dyn Store,
    deployment: &Deployment,
) -> Result<Option<CanarySeen>, StoreError> {
    if !is_watched(deployment) {
        return Ok(None);
    }
    let (flow, statuses) = (Some(Arc::clone(&deployment.flow)), ENDS.to_vec());
    let since = Some(began(deployment, Phase::Resume));
    let mut query = RunQuery { flow, statuses, since, limit: PAGE_MAX, ..RunQuery::default() };
    let (mut old, mut new): (Vec<EndedRun>, Vec<EndedRun>) = (Vec::new(), Vec::new());
    while old.len() + new.len() < RUNS_MAX {
        let page = store.list_runs(&query).await?;
        for row in &page {
            if row.run.revision == deployment.to {
                new.extend(ended(row));
            } else if row.run.revision == deployment.from {
                old.extend(ended(row));
            }
        }
        let Some(last) = page.last().filter(|_| page.len() == PAGE_MAX) else { break };
        let (started_at, run_id) = (last.started_at, last.run.run_id);
        query.after = Some(RunCursor { started_at, run_id });
    }
    Ok(Some(CanarySeen { old: Figures::of(&old), new: Figures::of(&new) }))
}

fn is_watched(deployment: &Deployment) -> bool {
    deployment.settings.strategy == Strategy::Canary
        && deployment.phase == Phase::Resume
        && !deployment.is_promoted
}

/// The same for a driver, which need not count at each look.
pub(super) async fn counted(
    store: &dyn Store,
    deployment: &Deployment,
    memo: &mut Memo,
) -> Result<Option<CanarySeen>, StoreError> {
    let asked = clock::now();
    if let Some(counted) = memo.canary.as_ref().filter(|counted| asked < counted.until)
        && is_watched(deployment)
    {
        return Ok(Some(counted.seen.clone()));
    }
    let seen = canary_figures(store, deployment).await?;
    let took = clock::now().saturating_duration_since(asked);
    let until = asked + COUNT_EVERY.max(took * GOOD_FOR);
    memo.canary = seen.clone().map(|seen| Counted { seen, until });
    Ok(seen)
}
