//! Settling and renewing leases of workers in other processes, at whichever instance they ask.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::commit::Claimed;
use flowgate_core::decide::{self, Outcome, Output, Rejection, Report};
use flowgate_core::event::{ErrorKind, Event};
use flowgate_core::flow::Action;
use flowgate_core::ids::StepIndex;
use flowgate_core::limits;
use flowgate_core::payload::Payload;
use flowgate_core::run::{Run, RunStatus};
use flowgate_store::{JobDetail, LeaseRef, Renewal, RunDetail, StoreError};
use futures_util::{StreamExt, TryStreamExt};
use tokio::sync::oneshot;

use super::claim::check_lease;
use super::{
    RENEWALS_MAX, RemoteError, RemoteFailure, RemoteLease, RemoteLine, RemoteRenewal, Settled, log,
};
use crate::attempt::{Attempt, failure};
use crate::error::{CommitError, EngineError};
use crate::flows::LoadedFlow;
use crate::instance::Instance;
use crate::{clock, foreign, permits};

/// How long after the timeout of its step a lease may still hold, so that who renews can say why
/// the attempt is over.
const TIMEOUT_GRACE: Duration = Duration::from_secs(2);
/// Runs that one renewal reads at a time.
const READS_MAX: usize = 16;

/// What a worker says of its attempt.
#[derive(Debug)]
pub(super) enum Settlement {
    Completed(Output),
    Failed(RemoteFailure),
    Released,
}

/// Whether an event is what a settlement leaves in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trace {
    Succeeded,
    Failed,
    Released,
}

impl Trace {
    fn of(settlement: &Settlement) -> Self {
        match settlement {
            Settlement::Completed(_) => Self::Succeeded,
            Settlement::Failed(_) => Self::Failed,
            Settlement::Released => Self::Released,
        }
    }

    fn is_left_by(self, event: &Event) -> bool {
        match self {
            Self::Succeeded => matches!(event, Event::StepSucceeded { .. }),
            Self::Failed => {
                matches!(event, Event::AttemptFailed { .. } | Event::StepFailed { .. })
            }
            Self::Released => matches!(event, Event::StepReleased { .. }),
        }
    }
}

/// Ends an attempt as its worker says.
pub(super) async fn settle(
    instance: &Arc<Instance>,
    lease: &RemoteLease,
    settlement: Settlement,
    lines: Vec<RemoteLine>,
) -> Result<Settled, RemoteError> {
    let trace = Trace::of(&settlement);
    match settle_once(instance, lease, settlement, lines).await {
        Err(error @ (RemoteError::Fenced { .. } | RemoteError::RunTerminal { .. })) => {
            settled_before(instance, lease, trace).await?.ok_or(error)
        }
        other => other,
    }
}

/// The answer to a settlement that was taken before, if it was.
async fn settled_before(
    instance: &Instance,
    lease: &RemoteLease,
    trace: Trace,
) -> Result<Option<Settled>, RemoteError> {
    let Some(detail) = instance.store.read_run(lease.run_id).await? else { return Ok(None) };
    let run = &detail.row.run;
    let is_it = |event: &Event| {
        trace.is_left_by(event)
            && event.step() == Some(&lease.step)
            && event.lease().is_some_and(|stamp| stamp.token == lease.token)
    };
    let found = log::find(&*instance.store, run, is_it).await?;
    Ok(found.map(|_| Settled { run_id: run.run_id, status: run.status }))
}

async fn settle_once(
    instance: &Arc<Instance>,
    lease: &RemoteLease,
    settlement: Settlement,
    lines: Vec<RemoteLine>,
) -> Result<Settled, RemoteError> {
    let attempt = held(instance, lease).await?;
    let elapsed = in_time(&attempt, lease).await?;
    let report = match settlement {
        Settlement::Completed(output) => {
            let index = attempt.claimed.job.job_id.step;
            let run = &attempt.claimed.run;
            decide::check_output(&attempt.flow.flow, run, index, &output).map_err(|error| {
                RemoteError::Invalid { field: "output", message: error.message.to_string() }
            })?;
            ended(&attempt, Outcome::Succeeded(output), elapsed)
        }
        Settlement::Failed(RemoteFailure { message, retry, retry_after }) => {
            let kind = if retry { ErrorKind::Failed } else { ErrorKind::Final };
            ended(&attempt, failure(kind, &message, retry_after), elapsed)
        }
        Settlement::Released => {
            let due = flowgate_core::commit::Due::Now;
            Report::AttemptReleased { attempt: attempt.for_rules(), due }
        }
    };
    for line in lines {
        attempt.log(line.level, &line.text);
    }
    attempt.end_once();
    let run = commit(&attempt, lease, report).await?;
    instance.remote.forget(attempt.lease());
    Ok(Settled { run_id: run.run_id, status: run.status })
}

fn ended(attempt: &Attempt, outcome: Outcome, elapsed: Duration) -> Report {
    let (attempt, random) = (attempt.for_rules(), fastrand::f64());
    Report::AttemptEnded { attempt, outcome, elapsed, random }
}

/// Emits an event of an attempt that goes on.
pub(super) async fn emit(
    instance: &Arc<Instance>,
    lease: &RemoteLease,
    event: &str,
    data: Payload,
) -> Result<(), RemoteError> {
    let attempt = held(instance, lease).await?;
    in_time(&attempt, lease).await?;
    let event = event.into();
    let report = Report::EmitNow { attempt: attempt.for_rules(), event, data };
    commit(&attempt, lease, report).await.map(drop)
}

/// Keeps log lines of an attempt that goes on.
pub(super) async fn log(
    instance: &Arc<Instance>,
    lease: &RemoteLease,
    lines: Vec<RemoteLine>,
) -> Result<(), RemoteError> {
    if u64::try_from(lines.len()).unwrap_or(u64::MAX) > limits::LOG_LINES_MAX {
        let message = format!("a run keeps {} log lines; send fewer", limits::LOG_LINES_MAX);
        return Err(RemoteError::Invalid { field: "lines", message });
    }
    let attempt = held(instance, lease).await?;
    if attempt.claimed.expires_at <= instance.store.now().await? {
        return Err(fenced(lease));
    }
    for line in lines {
        attempt.log(line.level, &line.text);
    }
    Ok(())
}

/// The attempt under a lease, made from what the store has.
///
/// Whether the lease holds at this moment is for the commit to say.
async fn held(instance: &Arc<Instance>, lease: &RemoteLease) -> Result<Arc<Attempt>, RemoteError> {
    let (detail, flow, index) = find(instance, lease).await?;
    let run = detail.row.run;
    if run.status.is_terminal() {
        return Err(RemoteError::RunTerminal { run_id: run.run_id, status: run.status });
    }
    let job = detail.jobs.into_iter().find(|open| open.job.job_id.step == index);
    let Some(JobDetail { job, lease: Some(current), .. }) = job else {
        return Err(fenced(lease));
    };
    if current.token != lease.token {
        return Err(fenced(lease));
    }
    let mut inputs = Vec::new();
    if !flow.flow.step(index).limits.is_empty() {
        let numbers = job.inputs.iter().copied();
        let found = log::payloads(&*instance.store, run.run_id, numbers).await?;
        inputs.extend(job.inputs.iter().filter_map(|number| found.get(number).cloned()));
    }
    let (token, expires_at) = (current.token, current.expires_at);
    // Its `step.started` has told of those that were lost before it.
    let claimed = Claimed { job, token, expires_at, lost: Vec::new(), run, inputs };
    let attempt = Attempt::remote(current.instance, (instance, &flow), claimed);
    attempt.set_logged();
    permits::assume(&attempt);
    Ok(attempt)
}

async fn find(
    instance: &Instance,
    lease: &RemoteLease,
) -> Result<(RunDetail, Arc<LoadedFlow>, StepIndex), RemoteError> {
    let unknown = || RemoteError::NotFound { run_id: lease.run_id, step: Arc::clone(&lease.step) };
    let detail = instance.store.read_run(lease.run_id).await?.ok_or_else(unknown)?;
    let pinned = (&detail.row.run.flow, &detail.row.run.revision);
    let flow = instance.flows.load(&*instance.store, &instance.workers, pinned).await;
    let flow = flow.map_err(|error| RemoteError::Engine(EngineError::Flow(error)))?;
    let is_worker = |index: &StepIndex| matches!(flow.flow.step(*index).action, Action::Worker(_));
    let index = flow.flow.step_index(&lease.step).filter(is_worker).ok_or_else(unknown)?;
    Ok((detail, flow, index))
}

fn fenced(lease: &RemoteLease) -> RemoteError {
    let RemoteLease { run_id, step, token } = lease;
    RemoteError::Fenced { run_id: *run_id, step: Arc::clone(step), token: *token }
}

/// How long the attempt has taken. One that has taken longer than it may fails by that.
async fn in_time(attempt: &Arc<Attempt>, lease: &RemoteLease) -> Result<Duration, RemoteError> {
    let elapsed = elapsed(attempt).await?;
    if attempt.step().timeout.is_none_or(|timeout| elapsed < timeout) {
        return Ok(elapsed);
    }
    time_out(attempt, lease, elapsed).await?;
    Err(fenced(lease))
}

async fn elapsed(attempt: &Attempt) -> Result<Duration, StoreError> {
    let instance = &attempt.instance;
    if let Some(started) = instance.remote.started(attempt.lease()) {
        return Ok(clock::now().saturating_duration_since(started));
    }
    let store = &*instance.store;
    match log::started_at(store, &attempt.claimed.run, attempt.claimed.token).await? {
        Some(at) => Ok(store.now().await?.since(at)),
        None => Ok(Duration::ZERO),
    }
}

/// Ends an attempt that has taken longer than it may, unless it is over by now.
async fn time_out(
    attempt: &Arc<Attempt>,
    lease: &RemoteLease,
    elapsed: Duration,
) -> Result<(), RemoteError> {
    attempt.end_once();
    let report = ended(attempt, attempt.timed_out(), elapsed);
    match commit(attempt, lease, report).await {
        Ok(_)
        | Err(
            RemoteError::NotFound { .. }
            | RemoteError::Fenced { .. }
            | RemoteError::RunTerminal { .. }
            | RemoteError::Invalid { .. },
        ) => {
            attempt.instance.remote.forget(attempt.lease());
            Ok(())
        }
        Err(error @ RemoteError::Engine(_)) => Err(error),
    }
}

/// Has a report decided and committed; the record after it.
async fn commit(
    attempt: &Arc<Attempt>,
    lease: &RemoteLease,
    report: Report,
) -> Result<Arc<Run>, RemoteError> {
    let instance = &attempt.instance;
    let (reply, answer) = oneshot::channel();
    instance.inbox.push(foreign::item(attempt, report, Some(reply)));
    let answer = tokio::select! {
        biased;
        answer = answer => answer.unwrap_or(Err(CommitError::Closed)),
        () = instance.giving_up.cancelled() => Err(CommitError::Closed),
    };
    let run_id = lease.run_id;
    answer.map_err(|error| match error {
        CommitError::Rejected(Rejection::RunEnded(status)) => {
            RemoteError::RunTerminal { run_id, status }
        }
        CommitError::Rejected(Rejection::OutputInvalid(error)) => {
            RemoteError::Invalid { field: "event", message: error.message.to_string() }
        }
        CommitError::LeaseLost | CommitError::Rejected(_) => fenced(lease),
        CommitError::NoRun => RemoteError::NotFound { run_id, step: Arc::clone(&lease.step) },
        error @ (CommitError::RunExists
        | CommitError::Contended
        | CommitError::Moved
        | CommitError::GateMoved(_)
        | CommitError::TooLarge { .. }
        | CommitError::Store(_)
        | CommitError::Closed) => RemoteError::Engine(EngineError::of_commit(error, run_id)),
    })
}

/// What a renewal finds before it asks the store.
enum Look {
    /// The attempt goes on, for this long at most.
    GoesOn(Arc<Attempt>, Duration),
    Over(RemoteRenewal),
}

/// Extends leases to `lease` from now, but none far beyond the timeout of its step.
pub(super) async fn renew(
    instance: &Arc<Instance>,
    lease: Duration,
    leases: &[RemoteLease],
) -> Result<Vec<RemoteRenewal>, RemoteError> {
    check_lease(lease)?;
    if leases.len() > RENEWALS_MAX {
        let message = format!("one call renews at most {RENEWALS_MAX} leases; send several");
        return Err(RemoteError::Invalid { field: "jobs", message });
    }
    let looks: Vec<_> = leases.iter().map(|held| look(instance, held, lease)).collect();
    let looks = futures_util::stream::iter(looks).buffered(READS_MAX);
    let looks: Vec<Look> = looks.try_collect().await?;
    let mut by_span: BTreeMap<Duration, Vec<(usize, LeaseRef)>> = BTreeMap::new();
    let (mut attempts, mut renewals) = (Vec::new(), Vec::with_capacity(leases.len()));
    for (at, look) in looks.into_iter().enumerate() {
        match look {
            Look::Over(renewal) => renewals.push(renewal),
            Look::GoesOn(attempt, span) => {
                by_span.entry(span).or_default().push((at, attempt.lease()));
                attempts.push(attempt);
                renewals.push(RemoteRenewal::LeaseLost);
            }
        }
    }
    for (span, held) in by_span {
        let refs: Vec<LeaseRef> = held.iter().map(|(_, held)| *held).collect();
        let answers = instance.store.renew(&refs, span).await?;
        for ((at, _), answer) in held.into_iter().zip(answers) {
            if let Renewal::Held(until) = answer {
                renewals[at] = RemoteRenewal::Held(until);
            }
        }
    }
    permits::renew(instance, &attempts, lease).await;
    Ok(renewals)
}

async fn look(
    instance: &Arc<Instance>,
    held_lease: &RemoteLease,
    lease: Duration,
) -> Result<Look, RemoteError> {
    let attempt = match held(instance, held_lease).await {
        Ok(attempt) => attempt,
        Err(RemoteError::RunTerminal { status: RunStatus::Cancelled, .. }) => {
            return Ok(Look::Over(RemoteRenewal::Cancelled));
        }
        Err(
            RemoteError::NotFound { .. }
            | RemoteError::Fenced { .. }
            | RemoteError::RunTerminal { .. }
            | RemoteError::Invalid { .. },
        ) => return Ok(Look::Over(RemoteRenewal::LeaseLost)),
        Err(error @ RemoteError::Engine(_)) => return Err(error),
    };
    let Some(timeout) = attempt.step().timeout else { return Ok(Look::GoesOn(attempt, lease)) };
    let elapsed = elapsed(&attempt).await?;
    if elapsed >= timeout {
        time_out(&attempt, held_lease, elapsed).await?;
        return Ok(Look::Over(RemoteRenewal::LeaseLost));
    }
    let left = timeout.saturating_sub(elapsed) + TIMEOUT_GRACE;
    Ok(Look::GoesOn(attempt, lease.min(left)))
}
