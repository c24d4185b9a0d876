//! Handing jobs out to workers in other processes.

use std::sync::Arc;

use flowgate_core::commit::{Claimed, Due, JobKind};
use flowgate_core::decide::{Outcome, Report};
use flowgate_core::flow::Action;
use flowgate_core::ids::{InstanceId, is_identifier};
use flowgate_core::run::Run;
use flowgate_store::{Claimant, Queues, StoreError};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{
    CLAIM_MAX, LEASE_MAX, LEASE_MIN, NAMES_MAX, RemoteClaim, RemoteError, RemoteJob, WAIT_MAX,
    WORKER_ID_BYTES_MAX, log, seen,
};
use crate::attempt::Attempt;
use crate::backoff::jittered;
use crate::error::{CommitError, EngineError};
use crate::instance::Instance;
use crate::{clock, foreign, permits, worker};

/// Who waits for jobs.
type Caller = oneshot::Sender<Result<HandedOut, RemoteError>>;

/// Jobs on their way to the caller. If that is gone, they go back.
struct HandedOut {
    jobs: Vec<RemoteJob>,
    attempts: Vec<Arc<Attempt>>,
}

impl HandedOut {
    fn nothing() -> Self {
        Self { jobs: Vec::new(), attempts: Vec::new() }
    }

    /// The caller has them.
    fn take(mut self) -> Vec<RemoteJob> {
        self.attempts.clear();
        std::mem::take(&mut self.jobs)
    }
}

impl Drop for HandedOut {
    fn drop(&mut self) {
        for attempt in self.attempts.drain(..) {
            let report = Report::AttemptReleased { attempt: attempt.for_rules(), due: Due::Now };
            attempt.instance.inbox.push(foreign::item(&attempt, report, None));
        }
    }
}

/// Hands out due jobs, or waits for some.
///
/// It is done by a task of the instance, so that a caller who goes away cuts nothing in half.
pub(super) async fn claim(
    instance: &Arc<Instance>,
    ask: RemoteClaim,
) -> Result<Vec<RemoteJob>, RemoteError> {
    check(&ask)?;
    if instance.config.is_client() {
        let message = "this instance serves no queues, so it hands out no jobs; ask another one";
        return Err(RemoteError::Engine(EngineError::Invalid(message.to_owned())));
    }
    let (caller, answer) = oneshot::channel();
    instance.tasks.spawn(serve(Arc::clone(instance), ask, caller));
    let handed_out = answer.await.unwrap_or(Err(RemoteError::Engine(EngineError::Closed)))?;
    Ok(handed_out.take())
}

fn check(ask: &RemoteClaim) -> Result<(), RemoteError> {
    let invalid = |field, message: String| Err(RemoteError::Invalid { field, message });
    let is_of_id = |c: char| c.is_ascii_alphanumeric() || "._-:@/".contains(c);
    let id = &ask.worker_id;
    if id.is_empty() || id.len() > WORKER_ID_BYTES_MAX || !id.chars().all(is_of_id) {
        let message = format!(
            "a worker id has 1 to {WORKER_ID_BYTES_MAX} letters, digits and `.`, `_`, `-`, `:`, \
             `@`, `/`"
        );
        return invalid("worker_id", message);
    }
    let queues = ask.queues.as_deref().unwrap_or(&ask.workers);
    for (field, names) in [("workers", &ask.workers[..]), ("queues", queues)] {
        if names.is_empty() || names.len() > NAMES_MAX {
            return invalid(field, format!("a claim names 1 to {NAMES_MAX} {field}"));
        }
        if let Some(name) = names.iter().find(|name| !is_identifier(name)) {
            return invalid(field, format!("`{name}` cannot be the name of one of the {field}"));
        }
    }
    if ask.max == 0 || ask.max > CLAIM_MAX {
        return invalid("max", format!("a claim is for 1 to {CLAIM_MAX} jobs"));
    }
    check_lease(ask.lease)?;
    if ask.wait > WAIT_MAX {
        return invalid("wait_ms", format!("a claim waits at most {}", in_ms(WAIT_MAX)));
    }
    Ok(())
}

/// Whether a remote lease may be this long.
pub(super) fn check_lease(lease: std::time::Duration) -> Result<(), RemoteError> {
    if (LEASE_MIN..=LEASE_MAX).contains(&lease) {
        return Ok(());
    }
    let message = format!("a lease lasts {} to {}", in_ms(LEASE_MIN), in_ms(LEASE_MAX));
    Err(RemoteError::Invalid { field: "lease_ms", message })
}

fn in_ms(span: std::time::Duration) -> String {
    format!("{} ms", span.as_millis())
}

/// Answers the caller, unless it goes away.
async fn serve(instance: Arc<Instance>, ask: RemoteClaim, mut caller: Caller) {
    let until = clock::now() + ask.wait;
    let served = async {
        // A paused queue is not to be touched, not even once.
        tokio::select! {
            () = caller.closed() => return None,
            () = instance.stopping.cancelled() => return Some(Ok(HandedOut::nothing())),
            () = instance.queues.known() => {}
        }
        loop {
            let queues = ask.queues.as_ref().unwrap_or(&ask.workers);
            seen::note(&instance, &ask.worker_id, &ask.workers, queues).await;
            let open = instance.queues.unpaused(queues);
            match hand_out(&instance, &ask, open.clone()).await {
                Ok(handed_out) if handed_out.jobs.is_empty() => {}
                answer => return Some(answer),
            }
            if clock::now() >= until {
                return Some(Ok(HandedOut::nothing()));
            }
            tokio::select! {
                biased;
                () = caller.closed() => return None,
                () = instance.stopping.cancelled() => return Some(Ok(HandedOut::nothing())),
                () = instance.queues.changed() => {}
                due = wait_due(&instance, &open, until) => {
                    if let Err(error) = due {
                        return Some(Err(error.into()));
                    }
                }
            }
        }
    };
    if let Some(answer) = served.await {
        // A caller that is gone drops what it was given, and that goes back.
        drop(caller.send(answer));
    }
}

/// Returns when a job may be due, and at `until` at the latest.
async fn wait_due(instance: &Instance, open: &Queues, until: Instant) -> Result<(), StoreError> {
    if matches!(open, Queues::Only(names) if names.is_empty()) {
        tokio::time::sleep_until(until).await;
        return Ok(());
    }
    let left = until.saturating_duration_since(clock::now());
    instance.store.wait_due(open, jittered(instance.config.poll_max).min(left)).await
}

/// Claims what is due and makes it the worker's, without waiting.
async fn hand_out(
    instance: &Arc<Instance>,
    ask: &RemoteClaim,
    queues: Queues,
) -> Result<HandedOut, RemoteError> {
    if instance.stopping.is_cancelled() {
        return Ok(HandedOut::nothing());
    }
    let holder = InstanceId(Arc::clone(&ask.worker_id));
    let claimant = Claimant { instance: holder.clone(), queues, slots: ask.max, lease: ask.lease };
    let claimed = instance.store.claim(&claimant).await?;
    let mut attempts = Vec::with_capacity(claimed.len());
    for claimed in claimed {
        let pinned = (&claimed.run.flow, &claimed.run.revision);
        match instance.flows.load(&*instance.store, &instance.workers, pinned).await {
            Ok(flow) => attempts.push(Attempt::remote(holder.clone(), (instance, &flow), claimed)),
            Err(error) => {
                // The lease is not renewed, so the job is due again when it ends.
                let run_id = claimed.run.run_id;
                tracing::error!(%run_id, %error, "a job cannot be handed out; it is left for later");
            }
        }
    }
    let mut fitting = Vec::with_capacity(attempts.len());
    for attempt in attempts {
        match unfit(&attempt, ask, &claimant.queues).await? {
            None => fitting.push(attempt),
            Some(report) => instance.inbox.push(foreign::item(&attempt, report, None)),
        }
    }
    let granted = permits::ask_remote(instance, fitting, ask.lease).await;
    begin(instance, ask, granted).await
}

/// What becomes of an attempt that is not for the worker, if so.
async fn unfit(
    attempt: &Arc<Attempt>,
    ask: &RemoteClaim,
    queues: &Queues,
) -> Result<Option<Report>, StoreError> {
    if attempt.claimed.job.kind == JobKind::Timer {
        attempt.end_once();
        return Ok(Some(Report::TimerDue(attempt.for_rules())));
    }
    let is_meant =
        matches!(&attempt.step().action, Action::Worker(name) if ask.workers.contains(name));
    if !is_meant {
        return Ok(Some(foreign::hand_back(attempt, queues)));
    }
    if let Some(outcome) = worker::lost_too_often(&attempt.claimed) {
        return Ok(Some(ended(attempt, outcome)));
    }
    lost_by_its_timeout(attempt).await
}

fn ended(attempt: &Arc<Attempt>, outcome: Outcome) -> Report {
    permits::assume(attempt);
    attempt.end_once();
    let (attempt, random) = (attempt.for_rules(), fastrand::f64());
    Report::AttemptEnded { attempt, outcome, elapsed: std::time::Duration::ZERO, random }
}

/// The end of the attempt before, if that was lost and has taken longer than it may.
async fn lost_by_its_timeout(attempt: &Arc<Attempt>) -> Result<Option<Report>, StoreError> {
    let Claimed { lost, run, .. } = &attempt.claimed;
    let ([lost], Some(timeout)) = (lost.as_slice(), attempt.step().timeout) else {
        return Ok(None);
    };
    let store = &*attempt.instance.store;
    let Some(started_at) = log::started_at(store, run, lost.token).await? else {
        return Ok(None);
    };
    let elapsed = store.now().await?.since(started_at);
    if elapsed < timeout {
        return Ok(None);
    }
    permits::assume(attempt);
    attempt.end_once();
    let (attempt, random) = (attempt.for_rules(), fastrand::f64());
    Ok(Some(Report::LostTimedOut { attempt, elapsed, random }))
}

/// Writes down that attempts began, all in one go; those that did are handed out.
async fn begin(
    instance: &Arc<Instance>,
    ask: &RemoteClaim,
    attempts: Vec<Arc<Attempt>>,
) -> Result<HandedOut, RemoteError> {
    let mut answers = Vec::with_capacity(attempts.len());
    let mut started = Vec::with_capacity(attempts.len());
    for attempt in &attempts {
        let (reply, answer) = oneshot::channel();
        let report = Report::AttemptStarted(attempt.for_rules());
        started.push(foreign::item(attempt, report, Some(reply)));
        answers.push(answer);
    }
    instance.inbox.push_all(started);
    let mut handed_out = HandedOut::nothing();
    for (attempt, answer) in attempts.into_iter().zip(answers) {
        let answer = tokio::select! {
            biased;
            answer = answer => answer.unwrap_or(Err(CommitError::Closed)),
            () = instance.giving_up.cancelled() => Err(CommitError::Closed),
        };
        match answer {
            Ok(_) => handed_out.attempts.push(attempt),
            // The run has ended: nobody else can hold what the job held.
            Err(CommitError::Rejected(_)) => instance.permits.give_back(&attempt),
            Err(error) => {
                let run_id = attempt.claimed.run.run_id;
                tracing::debug!(%run_id, ?error, "a job was lost before it was handed out");
            }
        }
    }
    let now = clock::now();
    for attempt in &handed_out.attempts {
        let job = job(instance, ask, attempt).await?;
        instance.remote.note_started(attempt.lease(), now);
        handed_out.jobs.push(job);
    }
    Ok(handed_out)
}

/// An attempt as its worker gets it.
async fn job(
    instance: &Instance,
    ask: &RemoteClaim,
    attempt: &Attempt,
) -> Result<RemoteJob, StoreError> {
    let (claimed, step) = (&attempt.claimed, attempt.step());
    let Run { run_id, flow, revision, state, .. } = &*claimed.run;
    let values = log::payloads(&*instance.store, *run_id, state.values().copied()).await?;
    let state = state.iter().filter_map(|(key, seq)| {
        let value = values.get(seq)?;
        Some((Arc::clone(key), value.clone()))
    });
    let Action::Worker(worker) = &step.action else {
        unreachable!("only steps of workers are handed out")
    };
    let input = RawValue::from_string(attempt.input().into_owned());
    Ok(RemoteJob {
        run_id: *run_id,
        flow: Arc::clone(flow),
        revision: revision.clone(),
        step: Arc::clone(&step.name),
        worker: Arc::clone(worker),
        attempt: claimed.job.attempt,
        token: claimed.token,
        key: attempt.key(),
        input: input.expect("payloads joined as JSON are JSON"),
        state: state.collect(),
        lease: ask.lease,
        expires_at: claimed.expires_at,
        timeout: step.timeout,
        traceparent: attempt.traceparent(),
    })
}
