//! One attempt in flight: what it works on, and how it is told to stop.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flowgate_core::commit::{Claimed, Due};
use flowgate_core::decide::{self, Outcome, Output, Report};
use flowgate_core::event::{ErrorKind, LeaseStamp, StepError};
use flowgate_core::flow::{Needs, Step};
use flowgate_core::ids::InstanceId;
use flowgate_core::limits;
use flowgate_core::payload::Payload;
use flowgate_core::trace::SpanRef;
use flowgate_store::{LeaseRef, LogLevel, NewLogLine};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock;
use crate::flows::LoadedFlow;
use crate::instance::Instance;
use crate::permits::Granted;
use crate::secrets::{Masks, Secret};
use crate::text::fit;

/// Why an attempt must stop before its own end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The run was cancelled.
    Cancelled,
    /// Its lease is gone: somebody else may be executing the step.
    LeaseLost,
    /// The instance shuts down; another one will execute the step.
    Shutdown,
}

impl Stop {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cancelled => "the run was cancelled",
            Self::LeaseLost => "the lease was lost",
            Self::Shutdown => "the instance is shutting down",
        }
    }
}

/// How an attempt came to its end on this instance.
#[derive(Debug)]
pub(crate) enum Ending {
    /// By itself.
    Outcome(Outcome),
    /// It was told to stop.
    Stopped(Stop),
}

impl Ending {
    pub(crate) fn failed(kind: ErrorKind, message: &str) -> Self {
        Self::Outcome(failure(kind, message, None))
    }
}

/// A failed attempt, with a message within its limit.
pub(crate) fn failure(kind: ErrorKind, message: &str, retry_after: Option<Duration>) -> Outcome {
    let message = fit(message, limits::ERROR_BYTES_MAX).into();
    Outcome::Failed { error: StepError { kind, message }, retry_after }
}

/// An attempt in flight on this instance.
///
/// It is *over* from the moment that its end is reported: then its output is fixed, and nothing but
/// the committer decides about it.
pub(crate) struct Attempt {
    pub(crate) instance: Arc<Instance>,
    /// Who executes it, if that is not this instance.
    holder: Option<InstanceId>,
    pub(crate) flow: Arc<LoadedFlow>,
    pub(crate) claimed: Claimed,
    pub(crate) began: Instant,
    over: AtomicBool,
    /// Whether the log has its `step.started`.
    logged: AtomicBool,
    started_reported: AtomicBool,
    stop: AtomicU8,
    stop_changed: Notify,
    /// When its lease was last known to hold, in microseconds after `began`.
    held_us: AtomicU64,
    /// What its commit will hold; none once that is fixed.
    output: Mutex<Option<Output>>,
    lines_dropped: AtomicU64,
    /// What it was granted before it began, if its step or queue is limited.
    granted: OnceLock<Granted>,
    /// What must not show in anything that it says.
    masks: OnceLock<Masks>,
}

impl Attempt {
    pub(crate) fn new(
        instance: &Arc<Instance>,
        flow: &Arc<LoadedFlow>,
        claimed: Claimed,
        now: Instant,
    ) -> Arc<Self> {
        Self::held_by(None, (instance, flow), claimed, now)
    }

    /// An attempt that `holder` executes, elsewhere. It takes no slot, and its lease is renewed by
    /// its holder alone.
    pub(crate) fn remote(
        holder: InstanceId,
        (instance, flow): (&Arc<Instance>, &Arc<LoadedFlow>),
        claimed: Claimed,
    ) -> Arc<Self> {
        Self::held_by(Some(holder), (instance, flow), claimed, clock::now())
    }

    fn held_by(
        holder: Option<InstanceId>,
        (instance, flow): (&Arc<Instance>, &Arc<LoadedFlow>),
        claimed: Claimed,
        now: Instant,
    ) -> Arc<Self> {
        Arc::new(Self {
            instance: Arc::clone(instance),
            holder,
            flow: Arc::clone(flow),
            claimed,
            began: now,
            over: AtomicBool::new(false),
            logged: AtomicBool::new(false),
            started_reported: AtomicBool::new(false),
            stop: AtomicU8::new(0),
            stop_changed: Notify::new(),
            held_us: AtomicU64::new(0),
            output: Mutex::new(Some(Output::default())),
            lines_dropped: AtomicU64::new(0),
            granted: OnceLock::new(),
            masks: OnceLock::new(),
        })
    }

    pub(crate) fn step(&self) -> &Step {
        self.flow.flow.step(self.claimed.job.job_id.step)
    }

    pub(crate) fn lease(&self) -> LeaseRef {
        LeaseRef { job_id: self.claimed.job.job_id, token: self.claimed.token }
    }

    pub(crate) fn stamp(&self) -> LeaseStamp {
        self.claimed.stamp(self.holder.as_ref().unwrap_or(&self.instance.config.instance))
    }

    /// Whether it executes here.
    pub(crate) fn is_local(&self) -> bool {
        self.holder.is_none()
    }

    /// As the rules know it.
    pub(crate) fn for_rules(&self) -> decide::Attempt {
        decide::Attempt {
            job_id: self.claimed.job.job_id,
            stamp: self.stamp(),
            lost: self.claimed.lost.clone(),
            logged: self.is_logged(),
        }
    }

    /// The same for all attempts of this step, for the user's own systems.
    ///
    /// The last part is the iteration: a step is executed once in a run, so it is 1.
    pub(crate) fn key(&self) -> String {
        format!("{}/{}/1", self.claimed.run.run_id, self.step().name)
    }

    /// Its place in the run's trace, as the header `traceparent` has it, if anybody exports it.
    pub(crate) fn traceparent(&self) -> Option<String> {
        let span = || {
            let (run_id, number) = (self.claimed.run.run_id, self.claimed.job.attempt);
            SpanRef::of_attempt(run_id, &self.step().name, number).to_string()
        };
        self.instance.config.is_traced.then(span)
    }

    /// The input as JSON text.
    pub(crate) fn input(&self) -> Cow<'_, str> {
        let inputs = &self.claimed.inputs;
        let slots = match &self.step().needs {
            Needs::Start => {
                return Cow::Borrowed(inputs.first().map_or("null", |input| input.get()));
            }
            Needs::All(slots) | Needs::Any(slots) => slots,
        };
        let numbers = &self.claimed.job.inputs;
        let size: usize = inputs.iter().map(|input| input.bytes() + 24).sum();
        let mut text = String::with_capacity(size + 2);
        text.push('{');
        let mut next = 0;
        for slot in slots {
            // A step that starts on any of its events has those that were there when it started.
            if numbers.get(next) != Some(&self.claimed.run.slots[slot.at()]) {
                continue;
            }
            if next > 0 {
                text.push(',');
            }
            text.push('"');
            // Names of events hold nothing that JSON would escape.
            text.push_str(&self.flow.flow.slot(*slot).name);
            text.push_str("\":");
            text.push_str(inputs.get(next).map_or("null", |input| input.get()));
            next += 1;
        }
        text.push('}');
        Cow::Owned(text)
    }

    /// Tells it to stop. The first reason counts.
    pub(crate) fn stop(&self, stop: Stop) {
        let code = match stop {
            Stop::Cancelled => 1,
            Stop::LeaseLost => 2,
            Stop::Shutdown => 3,
        };
        if self.stop.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.stop_changed.notify_waiters();
        }
    }

    pub(crate) fn stop_reason(&self) -> Option<Stop> {
        match self.stop.load(Ordering::Acquire) {
            1 => Some(Stop::Cancelled),
            2 => Some(Stop::LeaseLost),
            3 => Some(Stop::Shutdown),
            _ => None,
        }
    }

    /// Returns when it is told to stop.
    pub(crate) async fn stopped(&self) -> Stop {
        loop {
            let changed = self.stop_changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(stop) = self.stop_reason() {
                return stop;
            }
            changed.await;
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Whether the caller is the one who may report the end.
    pub(crate) fn end_once(&self) -> bool {
        !self.over.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_logged(&self) -> bool {
        self.logged.load(Ordering::Acquire)
    }

    pub(crate) fn set_logged(&self) {
        self.logged.store(true, Ordering::Release);
    }

    /// Keeps it from being shown as running while it waits for its permits.
    pub(crate) fn hold_back_started(&self) {
        self.started_reported.store(true, Ordering::Release);
    }

    /// It has its permits, and its work begins.
    pub(crate) fn grant(&self, granted: Granted) {
        let is_first = self.granted.set(granted).is_ok();
        assert!(is_first, "an attempt is granted its permits once");
        self.started_reported.store(false, Ordering::Release);
    }

    /// What it was granted, if it needed permits.
    pub(crate) fn granted(&self) -> Option<&Granted> {
        self.granted.get()
    }

    /// When its work began, or could have.
    pub(crate) fn work_began(&self) -> Instant {
        self.granted.get().map_or(self.began, |granted| granted.at)
    }

    /// Reports that it runs, once, unless it is over.
    pub(crate) fn report_started(self: &Arc<Self>) {
        if !self.is_over() && !self.started_reported.swap(true, Ordering::AcqRel) {
            let report = Report::AttemptStarted(self.for_rules());
            self.instance.inbox.report(Arc::clone(self), report, None);
        }
    }

    pub(crate) fn note_held(&self, at: Instant) {
        let us = at.saturating_duration_since(self.began).as_micros();
        self.held_us.store(u64::try_from(us).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// How long ago its lease was last known to hold.
    pub(crate) fn unheld_for(&self, now: Instant) -> Duration {
        let held = Duration::from_micros(self.held_us.load(Ordering::Acquire));
        now.saturating_duration_since(self.began).saturating_sub(held)
    }

    /// Keeps an output for the attempt's commit; false if that is fixed.
    pub(crate) fn add_output(&self, add: impl FnOnce(&mut Output)) -> bool {
        match self.output.lock().as_mut() {
            Some(output) if !self.is_over() => {
                add(output);
                true
            }
            Some(_) | None => false,
        }
    }

    /// The latest value that this attempt set under `key`.
    pub(crate) fn state_of_attempt(&self, key: &str) -> Option<Payload> {
        let output = self.output.lock();
        let mut values = output.as_ref()?.state.iter();
        values.find(|(name, _)| **name == *key).map(|(_, value)| value.clone())
    }

    pub(crate) fn take_output(&self, result: Option<Payload>) -> Output {
        let mut output = self.output.lock().take().unwrap_or_default();
        output.result = result;
        output
    }

    /// Gives it these secrets: from now on they are masked in what it says.
    pub(crate) fn hide(&self, secrets: &[Secret]) {
        if !secrets.is_empty() {
            let is_first = self.masks.set(Masks::new(secrets)).is_ok();
            assert!(is_first, "an attempt is given its secrets once");
        }
    }

    /// `text` without the secrets that it was given.
    pub(crate) fn masked<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.masks.get().map_or(Cow::Borrowed(text), |masks| masks.mask(text))
    }

    /// Its end as a failure, with a message that shows none of its secrets.
    pub(crate) fn failure(
        &self,
        kind: ErrorKind,
        message: &str,
        retry_after: Option<Duration>,
    ) -> Outcome {
        failure(kind, &self.masked(message), retry_after)
    }

    /// Keeps a log line. Never waits: a line that finds no room is counted, and the next one that
    /// does says how many were dropped.
    pub(crate) fn log(&self, level: LogLevel, text: &str) {
        self.log_dropped();
        if !self.instance.logs.write(self.line(level, text)) {
            self.lines_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn log_dropped(&self) {
        if self.lines_dropped.load(Ordering::Relaxed) == 0 {
            return;
        }
        let dropped = self.lines_dropped.swap(0, Ordering::Relaxed);
        let text = format!(
            "{dropped} log lines were dropped here: they came faster than the store takes them"
        );
        if !self.instance.logs.write(self.line(LogLevel::Warn, &text)) {
            self.lines_dropped.fetch_add(dropped, Ordering::Relaxed);
        }
    }

    fn line(&self, level: LogLevel, text: &str) -> NewLogLine {
        NewLogLine {
            run_id: self.claimed.run.run_id,
            step: Arc::clone(&self.step().name),
            attempt: self.claimed.job.attempt,
            level,
            text: fit(&self.masked(text), limits::LOG_LINE_BYTES_MAX).into_owned(),
        }
    }

    /// Returns when the attempt, which began its work at `began`, must end: its time is over, or it
    /// is told to stop.
    ///
    /// Its timers are armed by the first poll, so an attempt that is quicker has none. It also
    /// reports that the attempt runs, once it has for long enough.
    pub(crate) async fn interrupted(self: &Arc<Self>, began: Instant) -> Interrupt {
        let config = &self.instance.config;
        let stopped = self.stopped();
        let timed_out = async {
            match self.step().timeout {
                Some(timeout) => tokio::time::sleep_until(began + timeout).await,
                None => std::future::pending().await,
            }
        };
        let started = async {
            tokio::time::sleep_until(self.work_began() + config.started_after).await;
            self.report_started();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            stop = stopped => Interrupt::Stopped(stop),
            () = timed_out => Interrupt::TimedOut,
            () = started => unreachable!("it never ends"),
        }
    }

    /// How the attempt ends when `interrupt` ended it.
    pub(crate) fn ending_of(&self, interrupt: Interrupt) -> Ending {
        match interrupt {
            Interrupt::Stopped(stop) => Ending::Stopped(stop),
            Interrupt::TimedOut => Ending::Outcome(self.timed_out()),
        }
    }

    /// The outcome of an attempt that took longer than its step allows.
    pub(crate) fn timed_out(&self) -> Outcome {
        let timeout = self.step().timeout.unwrap_or_default();
        let message = format!("the attempt was ended after its timeout of {timeout:?}");
        failure(ErrorKind::TimedOut, &message, None)
    }

    /// Hands its end to the committer and frees its slot.
    pub(crate) fn end(self: Arc<Self>, ending: Ending) {
        let instance = Arc::clone(&self.instance);
        self.end_quietly(ending);
        instance.inbox.wake();
    }

    /// Like [`Self::end`], by somebody who wakes the committer a little later.
    pub(crate) fn end_quietly(self: Arc<Self>, ending: Ending) {
        if !self.end_once() {
            return;
        }
        self.log_dropped();
        let elapsed = clock::now().saturating_duration_since(self.work_began());
        let instance = Arc::clone(&self.instance);
        match ending {
            Ending::Outcome(outcome) => {
                let (attempt, random) = (self.for_rules(), fastrand::f64());
                let report = Report::AttemptEnded { attempt, outcome, elapsed, random };
                instance.inbox.report_quietly(self, report);
            }
            Ending::Stopped(Stop::Shutdown) => {
                let report = Report::AttemptReleased { attempt: self.for_rules(), due: Due::Now };
                instance.inbox.report_quietly(self, report);
            }
            Ending::Stopped(stop @ (Stop::Cancelled | Stop::LeaseLost)) => {
                instance.forget(self.lease());
                if stop == Stop::Cancelled {
                    instance.permits.give_back(&self);
                }
            }
        }
        instance.slots.free(1);
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt").field("lease", &self.lease()).finish_non_exhaustive()
    }
}

/// What ends an attempt from outside.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Interrupt {
    /// It took longer than its step allows.
    TimedOut,
    /// It was told to stop.
    Stopped(Stop),
}
