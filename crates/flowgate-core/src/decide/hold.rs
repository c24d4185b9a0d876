//! Letting a run go on that was held.

use std::sync::Arc;
use std::time::Duration;

use super::{Draft, Rejection};
use crate::commit::{Commit, Due, Guard};
use crate::event::{Event, Hold};
use crate::flow::Flow;
use crate::ids::CommitId;
use crate::run::{Run, RunStatus};
use crate::time::Timestamp;

/// What is kept of a start that is due then, for the time when it is released.
pub(super) fn hold(due: Due) -> Hold {
    match due {
        Due::Now => Hold::default(),
        Due::After(span) => {
            Hold { after_ms: Some(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)), at: None }
        }
        Due::At(at) => Hold { after_ms: None, at: Some(at) },
    }
}

/// The commit with which a held run, accepted at `accepted_at`, begins on `flow`, the revision that
/// it is pinned to from then on, for instances of `pool` or for any.
pub fn release(
    (flow, pool): (&Flow, Option<&Arc<str>>),
    run: &Run,
    accepted_at: Timestamp,
    commit_id: CommitId,
) -> Result<Commit, Rejection> {
    let (RunStatus::Held, Some(hold)) = (run.status, run.hold) else {
        return Err(Rejection::RunNotHeld(run.status));
    };
    let due = match (hold.at, hold.after_ms) {
        (Some(at), _) => Due::At(at),
        (None, Some(after)) => Due::At(accepted_at.plus(Duration::from_millis(after))),
        (None, None) => Due::Now,
    };
    let mut draft = Draft::resume(flow, run);
    draft.push(Event::RunReleased { revision: flow.revision.clone(), pool: pool.cloned() });
    draft.open_step(flow.entry, vec![1], due);
    Ok(draft.finish(commit_id, vec![Guard::RunVersion(run.version)]))
}
