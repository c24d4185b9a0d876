//! From the reports of a run to one commit.

use std::sync::Arc;

use flowgate_core::commit::Commit;
use flowgate_core::decide::{self, Rejection, Report};
use flowgate_core::event::Event;
use flowgate_core::flow::Flow;
use flowgate_core::ids::{CommitId, JobId};
use flowgate_core::limits::COMMIT_BYTES_MAX;
use flowgate_core::run::Run;

use super::settle;
use crate::attempt::Stop;
use crate::error::CommitError;
use crate::in_flight::Entry;
use crate::inbox::Item;
use crate::instance::Instance;

/// Decides what `entry` has pending; the commit and what is in it. Reports that the rules refuse
/// are answered here. Those that would make the commit too large stay pending.
pub(super) fn decide(instance: &Instance, entry: &mut Entry) -> Option<(Commit, Vec<Item>)> {
    let commit_id = instance.commit_ids.next();
    let mut joined: Option<Commit> = None;
    let mut items: Vec<Item> = Vec::new();
    let mut pending = std::mem::take(&mut entry.pending).into_iter();
    let mut bytes = 0;
    for mut item in pending.by_ref() {
        if let Some(attempt) = item.attempt.as_ref().filter(|attempt| !entry.is_of(&attempt.flow)) {
            // Its run was moved to another revision, where its step may be another one.
            entry.take_attempt(attempt.lease());
            settle::give_back_if_cancelled(attempt);
            instance.metrics.dropped.increment(1);
            settle::refuse(item, CommitError::LeaseLost);
            continue;
        }
        if !prepare(&mut item, &items) {
            continue;
        }
        let run = joined.as_ref().map_or(&entry.run, |commit| &commit.record);
        match decide::decide(&entry.flow.flow, run, &item.report, commit_id) {
            Ok(next) => {
                bytes += next.events.iter().map(Event::payload_bytes).sum::<usize>();
                if joined.is_some() && (bytes > COMMIT_BYTES_MAX || entry.is_split) {
                    entry.pending.push(item);
                    break;
                }
                joined = Some(match joined {
                    Some(commit) => commit.then(next),
                    None => next,
                });
                items.push(item);
            }
            Err(rejection) => reject(instance, entry, item, rejection),
        }
    }
    entry.pending.extend(pending);
    joined.map(|commit| (commit, items))
}

/// The commit that `items` gave before, on the same record.
///
/// The record may have moved on since: whether the commit was applied is the store's to say, and
/// it knows the commit by its id and by the version that it was decided on.
pub(super) fn again(flow: &Flow, base: &Arc<Run>, items: &[Item], commit_id: CommitId) -> Commit {
    let mut joined: Option<Commit> = None;
    for item in items {
        let run: &Arc<Run> = joined.as_ref().map_or(base, |commit| &commit.record);
        let next = decide::decide(flow, run, &item.report, commit_id)
            .expect("the same report gives the same decision on the same record");
        joined = Some(match joined {
            Some(commit) => commit.then(next),
            None => next,
        });
    }
    joined.expect("a commit has at least one report")
}

/// Tells the rules what the log has of the attempt by now; false if there is nothing to decide.
fn prepare(item: &mut Item, before: &[Item]) -> bool {
    let Some(attempt) = &item.attempt else { return true };
    let job_id = attempt.claimed.job.job_id;
    let is_logged = attempt.is_logged() || before.iter().any(|item| logs(&item.report, job_id));
    match &mut item.report {
        // The end of the attempt says all that this would.
        Report::AttemptStarted(_) if is_logged || attempt.is_over() => false,
        Report::AttemptStarted(of)
        | Report::AttemptReleased { attempt: of, .. }
        | Report::LostTimedOut { attempt: of, .. }
        | Report::AttemptParked { attempt: of, .. }
        | Report::TimerDue(of)
        | Report::EmitNow { attempt: of, .. }
        | Report::AttemptEnded { attempt: of, .. } => {
            of.logged = is_logged;
            true
        }
        Report::Signal { .. } | Report::Reconcile { .. } | Report::Cancel { .. } => true,
    }
}

/// Whether a report writes `step.started` of the job's attempt.
fn logs(report: &Report, job_id: JobId) -> bool {
    match report {
        Report::AttemptStarted(of) | Report::EmitNow { attempt: of, .. } => of.job_id == job_id,
        Report::AttemptEnded { .. }
        | Report::AttemptReleased { .. }
        | Report::LostTimedOut { .. }
        | Report::AttemptParked { .. }
        | Report::TimerDue(_)
        | Report::Signal { .. }
        | Report::Reconcile { .. }
        | Report::Cancel { .. } => false,
    }
}

/// The run is past it: an attempt is dropped, anybody else is told.
fn reject(instance: &Instance, entry: &mut Entry, item: Item, rejection: Rejection) {
    if let Rejection::RunEnded(_) = rejection {
        instance.metrics.reports_late.increment(1);
        let Run { run_id, flow, .. } = &*entry.run;
        let instance = &instance.config.instance;
        tracing::debug!(%run_id, %flow, %instance, "the run has ended already");
    }
    let stop = match &rejection {
        Rejection::RunEnded(_) => Some(Stop::Cancelled),
        Rejection::StepNotOpen(_) => Some(Stop::LeaseLost),
        Rejection::RunOpen(_)
        | Rejection::RunHeld
        | Rejection::RunNotHeld(_)
        | Rejection::SignalUnknown { .. }
        | Rejection::SignalsFull
        | Rejection::OutputInvalid(_)
        | Rejection::NothingToDo
        | Rejection::NothingToRetry => None,
    };
    if let (Some(stop), Some(attempt)) = (stop, &item.attempt) {
        attempt.stop(stop);
        entry.take_attempt(attempt.lease());
        if stop == Stop::Cancelled && attempt.is_over() {
            instance.permits.give_back(attempt);
        }
        instance.metrics.dropped.increment(1);
    }
    settle::refuse(item, CommitError::Rejected(rejection));
}
