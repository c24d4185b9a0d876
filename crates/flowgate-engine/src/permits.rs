//! Permits: what the job of a limited step needs before it runs.
//!
//! ```text
//!   claimed or handed off ──► asks ── granted ──► runs ── its end is committed ──► gives back
//!                              │ ▲                                                    │
//!                   not granted │ │ is due: woken, its turn, or the fallback          │ the next
//!                              ▼ │                                                    ▼ in line
//!                            parked ◄──────────────────── woken ◄──────────────── is granted
//! ```
//!
//! - A job asks for one limit after the other, always in the same order, and holds all of them or
//!   none: what it got is given back when another one is refused. Rates come last, since what they
//!   grant is used up.
//! - A parked job is postponed by a commit and holds no slot. Whoever gives a permit back wakes the
//!   job that has it then. A grant may come between the refusal and the commit, when the job
//!   cannot be woken yet; so a job asks once more after it was parked.
//! - Permits are leased like jobs and renewed with them, so a holder that dies frees them. Nobody
//!   is told of that: an instance that parked a job looks after its line every half lease, until
//!   the line is empty. Should all of that be lost, the fallback is what is left.
//! - A lost lease gives nothing back: another instance may hold the permit of the same job by now.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::commit::Due;
use flowgate_core::decide::Report;
use flowgate_core::flow::{Amount, Span};
use flowgate_core::ids::JobId;
use flowgate_store::StoreError;
use flowgate_store::control::{Limit, PermitAsk, PermitGrant, PermitOutcome, PermitRelease};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::attempt::{Attempt, Ending, Stop};
use crate::backoff::{Backoff, jittered};
use crate::instance::Instance;
use crate::{clock, foreign};

/// When a parked job asks again, whatever happens, before jitter.
const FALLBACK: Duration = Duration::from_mins(5);
/// Asks or releases in one call to the store.
const BATCH_MAX: usize = 512;
/// Lines that are looked at for being empty in one go.
const LINES_READ_MAX: usize = 64;

/// A permit of one limit.
#[derive(Clone, Debug)]
pub(crate) struct Permit {
    pub(crate) key: Arc<str>,
    pub(crate) limit: Limit,
}

impl Permit {
    fn ask(&self, job_id: JobId) -> PermitAsk {
        PermitAsk { key: Arc::clone(&self.key), limit: self.limit, job_id }
    }

    fn release(&self, job_id: Option<JobId>) -> PermitRelease {
        PermitRelease { key: Arc::clone(&self.key), limit: self.limit, job_id }
    }

    fn is_rate(&self) -> bool {
        match self.limit {
            Limit::AtOnce(_) => false,
            Limit::Rate { .. } => true,
        }
    }
}

/// What an attempt was granted before it began.
#[derive(Debug)]
pub(crate) struct Granted {
    /// When.
    pub(crate) at: Instant,
    permits: Vec<Permit>,
}

/// What waits for the permits task of an instance.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    waiting: Mutex<Waiting>,
    /// The lines that this instance looks after.
    lines: Mutex<HashMap<Arc<str>, Limit>>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    asking: Vec<Arc<Attempt>>,
    returned: Vec<PermitRelease>,
    parked: Vec<PermitAsk>,
}

/// What the step and the queue of an attempt limit, in the order in which permits are asked for.
fn wanted(attempt: &Attempt) -> Vec<Permit> {
    let mut input: Option<serde_json::Value> = None;
    let mut parse = || {
        let text = attempt.input();
        input.get_or_insert_with(|| serde_json::from_str(&text).unwrap_or_default()).clone()
    };
    let of_step = attempt.step().limits.iter().map(|limit| Permit {
        key: limit.key(&mut parse),
        limit: match limit.amount {
            Amount::AtOnce(count) => Limit::AtOnce(count),
            Amount::Rate { count, per } => {
                let per_ms = u64::try_from(per.as_millis()).unwrap_or(u64::MAX);
                Limit::Rate { count, per_ms }
            }
        },
    });
    let mut wanted: Vec<Permit> = of_step.collect();
    wanted.extend(attempt.instance.queues.limits(&attempt.claimed.job.queue));
    // The sort is stable: the step's limits stay before those of its queue.
    wanted.sort_by_key(Permit::is_rate);
    wanted
}

/// Whether the step or the queue of an attempt is limited.
pub(crate) fn is_limited(attempt: &Attempt) -> bool {
    !attempt.step().limits.is_empty()
        || attempt.instance.queues.is_limited(&attempt.claimed.job.queue)
}

/// Takes an attempt that executes elsewhere for one that has its permits: whoever handed it out saw
/// to that.
pub(crate) fn assume(attempt: &Attempt) {
    if is_limited(attempt) {
        attempt.grant(Granted { at: clock::now(), permits: wanted(attempt) });
    }
}

impl Permits {
    /// Takes those out of `attempts` that need a permit before they run.
    pub(crate) fn hold_back(&self, attempts: &mut Vec<Arc<Attempt>>) {
        if !attempts.iter().any(|attempt| is_limited(attempt)) {
            return;
        }
        let limited = attempts.extract_if(.., |attempt| is_limited(attempt));
        let mut waiting = self.waiting.lock();
        for attempt in limited {
            attempt.hold_back_started();
            waiting.asking.push(attempt);
        }
        drop(waiting);
        self.arrived.notify_one();
    }

    /// The attempt is over, and so is its right to its permits.
    pub(crate) fn give_back(&self, attempt: &Attempt) {
        let Some(granted) = attempt.granted() else { return };
        let job_id = Some(attempt.claimed.job.job_id);
        let released = granted.permits.iter().map(|permit| permit.release(job_id));
        self.waiting.lock().returned.extend(released);
        self.arrived.notify_one();
    }

    /// A job is parked for good: it may have been granted what it waits for in the meantime.
    pub(crate) fn note_parked(&self, attempt: &Attempt, limit: &Arc<str>) {
        let found = wanted(attempt).into_iter().find(|permit| permit.key == *limit);
        let Some(permit) = found.filter(|permit| !permit.is_rate()) else { return };
        self.lines.lock().insert(Arc::clone(&permit.key), permit.limit);
        self.waiting.lock().parked.push(permit.ask(attempt.claimed.job.job_id));
        self.arrived.notify_one();
    }
}

/// Asks for permits, gives them back and looks after lines until nobody needs them any more.
pub(crate) async fn keep(instance: Arc<Instance>, pollers: usize) {
    let permits = &instance.permits;
    let mut backoff = backoff();
    let mut look_at = clock::now();
    loop {
        let waiting = std::mem::take(&mut *permits.waiting.lock());
        let Waiting { asking, returned, parked } = waiting;
        let is_idle = asking.is_empty() && returned.is_empty() && parked.is_empty();
        let mut answered = give_back(&instance, returned).await;
        answered &= ask(&instance, asking, pollers).await;
        answered &= ask_once_more(&instance, parked).await;
        if clock::now() >= look_at && !permits.lines.lock().is_empty() {
            answered &= look_after_lines(&instance).await;
            look_at = clock::now() + jittered(instance.config.lease / 2);
        }
        if answered {
            backoff = self::backoff();
        } else {
            tokio::select! {
                () = instance.giving_up.cancelled() => return,
                () = backoff.wait() => continue,
            }
        }
        if !is_idle {
            continue;
        }
        let has_lines = !permits.lines.lock().is_empty();
        tokio::select! {
            biased;
            () = permits.arrived.notified() => {}
            () = tokio::time::sleep_until(look_at), if has_lines => {}
            () = instance.giving_up.cancelled() => return,
        }
    }
}

fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(20), Duration::from_secs(2))
}

/// Gives back what the last attempts of an instance that stops have held.
pub(crate) async fn flush(instance: &Instance) {
    let returned = std::mem::take(&mut instance.permits.waiting.lock().returned);
    let answered = tokio::time::timeout(Duration::from_secs(1), give_back(instance, returned));
    if answered.await.is_err() {
        tracing::warn!("the store did not take the last permits back; they end by themselves");
    }
}

/// Renews the permits of attempts that run, for `lease` from now.
pub(crate) async fn renew(instance: &Instance, attempts: &[Arc<Attempt>], lease: Duration) {
    let held = attempts.iter().filter(|attempt| !attempt.is_over()).filter_map(|attempt| {
        let granted = attempt.granted()?;
        let job_id = attempt.claimed.job.job_id;
        let renewed = granted.permits.iter().filter(|permit| !permit.is_rate());
        Some(renewed.map(move |permit| permit.ask(job_id)))
    });
    let asks: Vec<PermitAsk> = held.flatten().collect();
    for asks in asks.chunks(BATCH_MAX) {
        // A store that does not answer must not hold up the leases of jobs.
        let call = instance.store.take_permits(asks, lease);
        let Ok(answer) = tokio::time::timeout(instance.config.lease / 10, call).await else {
            instance.metrics.store_retries.increment(1);
            return;
        };
        match answer {
            Ok(outcomes) => {
                let lost = outcomes.iter().filter(|outcome| **outcome != PermitOutcome::Granted);
                let lost = lost.count();
                if lost > 0 {
                    tracing::warn!(
                        lost,
                        "permits ended before they were renewed: a limit may be exceeded until their attempts end"
                    );
                }
            }
            Err(error) => failed(instance, &error),
        }
    }
}

/// One attempt that asks.
struct Asking {
    attempt: Arc<Attempt>,
    wanted: Vec<Permit>,
}

/// Asks for the permits of attempts, one limit of each after the other; false if the store did not
/// answer.
async fn ask(instance: &Arc<Instance>, attempts: Vec<Arc<Attempt>>, pollers: usize) -> bool {
    let mut answered = true;
    let mut attempts = attempts.into_iter();
    loop {
        let batch: Vec<Asking> = attempts
            .by_ref()
            .filter(|attempt| !end_if_stopped(instance, attempt))
            .take(BATCH_MAX)
            .map(|attempt| Asking { wanted: wanted(&attempt), attempt })
            .collect();
        if batch.is_empty() {
            return answered;
        }
        let mut asked = ask_batch(instance, batch, instance.config.lease).await;
        answered &= asked.answered;
        instance.permits.waiting.lock().asking.append(&mut asked.again);
        instance.ready.push(&mut asked.ready, pollers);
        instance.inbox.wake();
        answered &= give_back(instance, asked.returned).await;
    }
}

/// Asks for the permits of attempts that execute elsewhere; those that may begin. The others are
/// parked, or go back if the store did not answer.
pub(crate) async fn ask_remote(
    instance: &Instance,
    mut attempts: Vec<Arc<Attempt>>,
    lease: Duration,
) -> Vec<Arc<Attempt>> {
    let limited = attempts.extract_if(.., |attempt| is_limited(attempt));
    let batch: Vec<Asking> =
        limited.map(|attempt| Asking { wanted: wanted(&attempt), attempt }).collect();
    if batch.is_empty() {
        return attempts;
    }
    let asked = ask_batch(instance, batch, lease).await;
    attempts.extend(asked.ready);
    for attempt in asked.again {
        let report = Report::AttemptReleased { attempt: attempt.for_rules(), due: Due::Now };
        instance.inbox.push(foreign::item(&attempt, report, None));
    }
    give_back(instance, asked.returned).await;
    attempts
}

/// What became of a batch of asks.
struct Asked {
    /// Those that have all their permits.
    ready: Vec<Arc<Attempt>>,
    /// Those that must ask again: the store did not answer. What they have is theirs then.
    again: Vec<Arc<Attempt>>,
    /// What those gave up that were parked.
    returned: Vec<PermitRelease>,
    /// Whether the store answered.
    answered: bool,
}

/// An attempt that must stop needs no permit. A stopping instance begins nothing.
fn end_if_stopped(instance: &Instance, attempt: &Arc<Attempt>) -> bool {
    let is_stopping = instance.stopping.is_cancelled().then_some(Stop::Shutdown);
    let Some(stop) = attempt.stop_reason().or(is_stopping) else { return false };
    Arc::clone(attempt).end(Ending::Stopped(stop));
    true
}

async fn ask_batch(instance: &Instance, batch: Vec<Asking>, lease: Duration) -> Asked {
    let (mut asking, mut ready, mut returned) = (batch, Vec::new(), Vec::new());
    let mut round = 0;
    while !asking.is_empty() {
        let has_all = |one: &mut Asking| one.wanted.len() == round;
        for Asking { attempt, wanted } in asking.extract_if(.., has_all) {
            attempt.grant(Granted { at: clock::now(), permits: wanted });
            ready.push(attempt);
        }
        if asking.is_empty() {
            break;
        }
        let asks: Vec<PermitAsk> = (asking.iter())
            .map(|one| one.wanted[round].ask(one.attempt.claimed.job.job_id))
            .collect();
        let outcomes = match instance.store.take_permits(&asks, lease).await {
            Ok(outcomes) => outcomes,
            Err(error) => {
                failed(instance, &error);
                let again = asking.into_iter().map(|one| one.attempt).collect();
                return Asked { ready, again, returned, answered: false };
            }
        };
        let mut granted = Vec::with_capacity(asking.len());
        for (one, outcome) in asking.into_iter().zip(outcomes) {
            if outcome == PermitOutcome::Granted {
                granted.push(one);
                continue;
            }
            let job_id = Some(one.attempt.claimed.job.job_id);
            let had = one.wanted[..round].iter().filter(|permit| !permit.is_rate());
            returned.extend(had.map(|permit| permit.release(job_id)));
            park(instance, one.attempt, &one.wanted[round], outcome);
        }
        asking = granted;
        round += 1;
    }
    Asked { ready, again: Vec::new(), returned, answered: true }
}

/// Lets a job wait for its turn, without a slot and without counting the attempt.
fn park(instance: &Instance, attempt: Arc<Attempt>, permit: &Permit, outcome: PermitOutcome) {
    let may = match permit.limit {
        Limit::AtOnce(count) => format!("{count} may run at once"),
        Limit::Rate { count, per_ms } => {
            let per = Span(Duration::from_millis(per_ms));
            format!("{count} may begin in each {per}")
        }
    };
    let (reason, due) = match outcome {
        PermitOutcome::NotBefore(at) => (format!("{may}; its turn is at {at}"), Due::At(at)),
        PermitOutcome::InLine(place) => {
            (format!("{may}; place {place} in line"), Due::After(jittered(FALLBACK)))
        }
        PermitOutcome::Granted => unreachable!("a job with a permit is not parked"),
    };
    if !attempt.end_once() {
        return;
    }
    let (limit, reason) = (Arc::clone(&permit.key), reason.into());
    let report = Report::AttemptParked { attempt: attempt.for_rules(), limit, reason, due };
    if attempt.is_local() {
        instance.inbox.report_quietly(attempt, report);
        instance.slots.free(1);
    } else {
        instance.inbox.push(foreign::item(&attempt, report, None));
    }
}

/// Gives permits back and wakes who has them then; false if the store did not answer.
async fn give_back(instance: &Instance, returned: Vec<PermitRelease>) -> bool {
    let mut answered = true;
    for batch in returned.chunks(BATCH_MAX) {
        if let Err(error) = release(instance, batch.to_vec()).await {
            failed(instance, &error);
            // Those who hold them here will not ask again: it must be tried again.
            instance.permits.waiting.lock().returned.extend_from_slice(batch);
            answered = false;
        }
    }
    answered
}

async fn release(instance: &Instance, mut releases: Vec<PermitRelease>) -> Result<(), StoreError> {
    while !releases.is_empty() {
        let granted = instance.store.release_permits(&releases, instance.config.lease).await?;
        if granted.is_empty() {
            return Ok(());
        }
        let limits: HashMap<&Arc<str>, Limit> =
            releases.iter().map(|release| (&release.key, release.limit)).collect();
        let jobs: Vec<JobId> = granted.iter().map(|grant| grant.job_id).collect();
        let there = instance.store.wake_jobs(&jobs).await?;
        // Somebody in line whose run has ended passes its turn on.
        let gone = granted.into_iter().filter(|grant| !there.contains(&grant.job_id));
        let pass_on = |PermitGrant { key, job_id }: PermitGrant| {
            let limit = *limits.get(&key)?;
            Some(PermitRelease { key, limit, job_id: Some(job_id) })
        };
        releases = gone.filter_map(pass_on).collect();
    }
    Ok(())
}

/// Jobs that were parked ask once more, and are woken if their turn came before they were.
async fn ask_once_more(instance: &Instance, parked: Vec<PermitAsk>) -> bool {
    let mut answered = true;
    for asks in parked.chunks(BATCH_MAX) {
        let outcomes = instance.store.take_permits(asks, instance.config.lease).await;
        let woken = match outcomes {
            Ok(outcomes) => {
                let granted = asks.iter().zip(outcomes);
                let granted = granted.filter(|(_, outcome)| *outcome == PermitOutcome::Granted);
                let jobs: Vec<JobId> = granted.map(|(ask, _)| ask.job_id).collect();
                if jobs.is_empty() { Ok(Vec::new()) } else { instance.store.wake_jobs(&jobs).await }
            }
            Err(error) => Err(error),
        };
        if let Err(error) = woken {
            failed(instance, &error);
            instance.permits.waiting.lock().parked.extend_from_slice(asks);
            answered = false;
        }
    }
    answered
}

/// Lets lines have what holders left behind, and forgets lines that are empty.
async fn look_after_lines(instance: &Instance) -> bool {
    let permits = &instance.permits;
    let lines: Vec<Permit> = (permits.lines.lock().iter())
        .map(|(key, limit)| Permit { key: Arc::clone(key), limit: *limit })
        .collect();
    for batch in lines.chunks(BATCH_MAX) {
        let looks = batch.iter().map(|permit| permit.release(None)).collect();
        if let Err(error) = release(instance, looks).await {
            failed(instance, &error);
            return false;
        }
    }
    for _ in 0..LINES_READ_MAX.min(lines.len()) {
        let key = &lines[fastrand::usize(..lines.len())].key;
        match instance.store.read_permits(key).await {
            Ok(state) if state.in_line == 0 => {
                permits.lines.lock().remove(key);
            }
            Ok(_) => {}
            Err(error) => {
                failed(instance, &error);
                return false;
            }
        }
    }
    true
}

fn failed(instance: &Instance, error: &StoreError) {
    instance.metrics.store_retries.increment(1);
    if let Some(kept_back) = instance.throttles.permits.pass() {
        tracing::warn!(%error, kept_back, "the store hands out no permits; trying on");
    }
}
