//! Shadow runs: a revision on the input of a run that has ended, with nothing changed outside.
//!
//! A step that changes something outside, and a wait, is never executed in such a run: when its
//! time comes it waits without a job, so that nobody can claim it, and whoever drives the shadow
//! ends it with what the step left in the original run.

use super::{Draft, Output, Rejection, output};
use crate::commit::{Commit, Guard};
use crate::event::{Event, StepError};
use crate::flow::Flow;
use crate::ids::{CommitId, StepIndex};
use crate::run::{Run, StepState};

/// How a step of a shadow run ends that is not executed.
#[derive(Clone, Debug)]
pub enum Stub {
    /// Well, with this.
    Succeeded(Output),
    /// Not well.
    Failed(StepError),
}

/// The first step of a shadow run, in the order of its revision, that is to be ended by [`stub`].
pub fn unstubbed(flow: &Flow, run: &Run) -> Option<StepIndex> {
    if !run.is_shadow() || run.status.is_terminal() {
        return None;
    }
    flow.step_indexes().find(|index| is_unstubbed(flow, run, *index))
}

/// Ends a step of a shadow run that is not executed.
pub fn stub(
    flow: &Flow,
    run: &Run,
    index: StepIndex,
    stub: &Stub,
    commit_id: CommitId,
) -> Result<Commit, Rejection> {
    if run.status.is_terminal() {
        return Err(Rejection::RunEnded(run.status));
    }
    if !run.is_shadow() || !is_unstubbed(flow, run, index) {
        return Err(Rejection::StepNotOpen(run.step(index).state));
    }
    let mut draft = Draft::resume(flow, run);
    match stub {
        Stub::Succeeded(output) => match output::check(flow, flow.step(index), run, output) {
            Ok(()) => draft.hand_over(index, None, output, 0),
            Err(error) => draft.fail_stub(index, error),
        },
        Stub::Failed(error) => draft.fail_stub(index, error.clone()),
    }
    Ok(draft.finish(commit_id, vec![Guard::RunVersion(run.version)]))
}

fn is_unstubbed(flow: &Flow, run: &Run, index: StepIndex) -> bool {
    flow.step(index).is_stubbed() && run.step(index).state == StepState::Waiting
}

impl Draft<'_> {
    /// Whether the step is not executed in this run.
    pub(super) fn is_stubbed(&self, index: StepIndex) -> bool {
        self.flow.step(index).is_stubbed() && self.run.is_shadow()
    }

    fn fail_stub(&mut self, index: StepIndex, error: StepError) {
        let step = self.name(index);
        self.push(Event::StepFailed { step, lease: None, error, elapsed_us: 0 });
        self.start_subscribers(self.flow.step(index).failed);
    }
}
