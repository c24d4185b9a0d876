//! From what was committed to spans.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use flowgate_core::event::{ErrorKind, Event, LeaseStamp, StepError};
use flowgate_core::flow::{Action, Flow, Needs};
use flowgate_core::ids::{Revision, RunId, SlotIndex, StepIndex};
use flowgate_core::run::{Run, StepState};
use flowgate_core::trace::SpanRef;
use flowgate_engine::Applied;
use flowgate_store::Store;
use opentelemetry::trace::{
    Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use crate::recent::Recent;

/// Makes spans of commits.
pub(crate) struct SpanMaker {
    store: Arc<dyn Store>,
    scope: InstrumentationScope,
    /// When runs started that started under our eyes.
    runs: Recent<RunId, SystemTime>,
    /// When steps began that are not settled: attempts that run, and waits.
    steps: Recent<(RunId, Arc<str>), SystemTime>,
    /// None for a flow that cannot be read: then its spans have no links.
    flows: Recent<(Arc<str>, Revision), Option<Arc<Flow>>>,
}

/// A span before it is one of the library's.
struct Sketch<'a> {
    place: SpanRef,
    /// None for the run itself.
    step: Option<&'a Arc<str>>,
    status: &'static str,
    began: SystemTime,
    ended: SystemTime,
    lease: Option<&'a LeaseStamp>,
    error: Option<&'a StepError>,
    links: Vec<SpanRef>,
}

impl<'a> Sketch<'a> {
    /// A span of a step of which only the end is known.
    fn of_step(place: SpanRef, step: &'a Arc<str>, status: &'static str, at: SystemTime) -> Self {
        let (step, lease, error) = (Some(step), None, None);
        Self { place, step, status, began: at, ended: at, lease, error, links: Vec::new() }
    }
}

/// How a step was settled.
struct Settled<'a> {
    step: &'a Arc<str>,
    status: &'static str,
    lease: Option<&'a LeaseStamp>,
    error: Option<&'a StepError>,
    elapsed: Duration,
}

impl SpanMaker {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let scope = InstrumentationScope::builder("flowgate")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        Self { store, scope, runs: Recent::new(), steps: Recent::new(), flows: Recent::new() }
    }

    /// The spans that end with a commit.
    pub(crate) async fn make(&mut self, applied: &Applied) -> Vec<SpanData> {
        let mut spans = Vec::new();
        for event in &applied.events {
            if let Some(sketch) = self.note(applied, event).await {
                spans.push(self.finish(&applied.run, &sketch));
            }
        }
        spans
    }

    /// Takes an event over; the span that it ends, if any.
    async fn note<'a>(&mut self, applied: &'a Applied, event: &'a Event) -> Option<Sketch<'a>> {
        let (run_id, at) = (applied.run_id, SystemTime::from(applied.at));
        match event {
            Event::RunStarted(_) => {
                self.runs.note(run_id, at);
                None
            }
            Event::StepStarted { step, .. } | Event::StepWaiting { step, .. } => {
                self.steps.note((run_id, Arc::clone(step)), at);
                None
            }
            Event::AttemptFailed { .. }
            | Event::StepSucceeded { .. }
            | Event::StepFailed { .. } => self.settled(applied, settled(event)?).await,
            Event::StepLost { step, lease } => {
                let place = SpanRef::of_attempt(run_id, step, lease.attempt);
                let sketch = Sketch::of_step(place, step, "lost", at);
                Some(Sketch { lease: Some(lease), ..sketch })
            }
            Event::StepReleased { step, lease } => {
                let place = SpanRef::of_lease(run_id, step, lease.token);
                let began = self.steps.take(&(run_id, Arc::clone(step))).unwrap_or(at);
                let sketch = Sketch::of_step(place, step, "released", at);
                Some(Sketch { began, lease: Some(lease), ..sketch })
            }
            Event::StepCancelled { step } => self.cancelled(applied, step).await,
            Event::RunCompleted {} | Event::RunFailed { .. } | Event::RunCancelled { .. } => {
                Some(self.ended(applied).await)
            }
            Event::RunReleased { .. }
            | Event::RunMigrated(_)
            | Event::RunCheckpointed { .. }
            | Event::StepQueued { .. }
            | Event::StepRepaired { .. }
            | Event::StepParked { .. }
            | Event::EventEmitted { .. }
            | Event::EventRepeated { .. }
            | Event::StateSet { .. }
            | Event::StepSkipped { .. }
            | Event::StepCarried { .. }
            | Event::SignalReceived { .. }
            | Event::SignalTaken { .. } => None,
        }
    }

    /// The attempt or wait that a step ended with; a pure join has no span.
    async fn settled<'a>(
        &mut self,
        applied: &'a Applied,
        settled: Settled<'a>,
    ) -> Option<Sketch<'a>> {
        let Settled { step, status, lease, error, elapsed } = settled;
        let (run_id, at) = (applied.run_id, SystemTime::from(applied.at));
        let seen = self.steps.take(&(run_id, Arc::clone(step)));
        let flow = self.flow(&applied.run).await;
        let found = flow.as_ref().and_then(|flow| Some((flow, flow.step_index(step)?)));
        let is_wait =
            found.is_some_and(|(flow, step)| matches!(flow.step(step).action, Action::Wait(_)));
        let (place, began) = match lease {
            _ if is_wait => (SpanRef::of_wait(run_id, step), seen.unwrap_or(at)),
            Some(lease) => {
                let place = SpanRef::of_attempt(run_id, step, lease.attempt);
                (place, at.checked_sub(elapsed).unwrap_or(at))
            }
            None => return None,
        };
        let links = found.map(|(flow, step)| causes(flow, &applied.run, step)).unwrap_or_default();
        let lease = lease.filter(|_| !is_wait);
        Some(Sketch { began, lease, error, links, ..Sketch::of_step(place, step, status, at) })
    }

    /// A step that the cancellation of its run ended, if it had begun under our eyes.
    async fn cancelled<'a>(
        &mut self,
        applied: &'a Applied,
        step: &'a Arc<str>,
    ) -> Option<Sketch<'a>> {
        let (run_id, at) = (applied.run_id, SystemTime::from(applied.at));
        let began = self.steps.take(&(run_id, Arc::clone(step)))?;
        let index = self.flow(&applied.run).await?.step_index(step)?;
        let place = match applied.run.step(index).attempt {
            0 => SpanRef::of_wait(run_id, step),
            attempt => SpanRef::of_attempt(run_id, step, attempt),
        };
        Some(Sketch { began, ..Sketch::of_step(place, step, "cancelled", at) })
    }

    /// The run itself.
    async fn ended<'a>(&mut self, applied: &'a Applied) -> Sketch<'a> {
        let (run, at) = (&applied.run, SystemTime::from(applied.at));
        let began = match self.runs.take(&run.run_id) {
            Some(began) => began,
            None => self.started_elsewhere(run.run_id).await.unwrap_or(at),
        };
        Sketch {
            place: SpanRef::of_run(run.run_id),
            step: None,
            status: run.status.as_str(),
            // Two clocks may differ, and no span ends before it begins.
            began: began.min(at),
            ended: at,
            lease: None,
            error: run.failure.as_ref().map(|failure| &failure.error),
            links: run.retry_of.map(SpanRef::of_run).into_iter().collect(),
        }
    }

    async fn started_elsewhere(&self, run_id: RunId) -> Option<SystemTime> {
        let detail = self.store.read_run(run_id).await.ok()??;
        let since_epoch = u64::try_from(detail.row.started_at.0).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(since_epoch))
    }

    /// The run's revision, read once.
    async fn flow(&mut self, run: &Run) -> Option<Arc<Flow>> {
        let key = (Arc::clone(&run.flow), run.revision.clone());
        if let Some(flow) = self.flows.get(&key) {
            return flow.clone();
        }
        let stored = self.store.read_revision(&run.flow, Some(&run.revision)).await.ok()?;
        let flow = stored.and_then(|stored| Flow::new(stored.revision.file).ok()).map(Arc::new);
        self.flows.note(key, flow.clone());
        flow
    }

    fn finish(&self, run: &Run, sketch: &Sketch<'_>) -> SpanData {
        let parent = sketch.step.map(|_| context(SpanRef::of_run(run.run_id)).span_id());
        let mut links = SpanLinks::default();
        links.links =
            sketch.links.iter().map(|place| Link::with_context(context(*place))).collect();
        SpanData {
            span_context: context(sketch.place),
            parent_span_id: parent.unwrap_or(SpanId::INVALID),
            // The run's span is often that of another process.
            parent_span_is_remote: parent.is_some(),
            span_kind: SpanKind::Internal,
            name: sketch.step.unwrap_or(&run.flow).to_string().into(),
            start_time: sketch.began,
            end_time: sketch.ended,
            attributes: attributes(run, sketch),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links,
            status: status(sketch),
            instrumentation_scope: self.scope.clone(),
        }
    }
}

fn settled(event: &Event) -> Option<Settled<'_>> {
    if let Event::AttemptFailed { step, lease, error, elapsed_us, .. } = event {
        let elapsed = Duration::from_micros(*elapsed_us);
        let (status, lease, error) = ("retried", Some(lease), Some(error));
        return Some(Settled { step, status, lease, error, elapsed });
    }
    if let Event::StepSucceeded { step, lease, elapsed_us, .. } = event {
        let elapsed = Duration::from_micros(*elapsed_us);
        let (status, lease, error) = ("succeeded", lease.as_ref(), None);
        return Some(Settled { step, status, lease, error, elapsed });
    }
    if let Event::StepFailed { step, lease, error, elapsed_us } = event {
        let elapsed = Duration::from_micros(*elapsed_us);
        let (status, lease, error) = ("failed", lease.as_ref(), Some(error));
        return Some(Settled { step, status, lease, error, elapsed });
    }
    None
}

/// The spans whose events a step started on, as far as the record knows them: an event that two
/// steps may have emitted names none.
fn causes(flow: &Flow, run: &Run, step: StepIndex) -> Vec<SpanRef> {
    let needs: &[SlotIndex] = match &flow.step(step).needs {
        Needs::Start => &[],
        Needs::All(slots) | Needs::Any(slots) => slots,
    };
    let came = needs.iter().filter(|slot| run.slots.get(slot.at()).is_some_and(|seq| *seq > 0));
    let mut causes: Vec<SpanRef> = came.filter_map(|slot| cause(flow, run, *slot)).collect();
    causes.dedup();
    causes
}

fn cause(flow: &Flow, run: &Run, slot: SlotIndex) -> Option<SpanRef> {
    let may_fill = |index: &StepIndex| {
        let step = flow.step(*index);
        let fills =
            step.emits.contains(&slot) || step.succeeded == Some(slot) || step.failed == Some(slot);
        let has_run = match run.step(*index).state {
            StepState::Running | StepState::Succeeded | StepState::Failed => true,
            StepState::Pending
            | StepState::Queued
            | StepState::Waiting
            | StepState::Skipped
            | StepState::Cancelled => false,
        };
        fills && has_run
    };
    let mut fillers = flow.step_indexes().filter(may_fill);
    let (Some(filler), None) = (fillers.next(), fillers.next()) else { return None };
    let step = flow.step(filler);
    match (&step.action, run.step(filler).attempt) {
        (Action::Wait(_), _) => Some(SpanRef::of_wait(run.run_id, &step.name)),
        // It did nothing, or its success was taken over from another run.
        (_, 0) => None,
        (_, attempt) => Some(SpanRef::of_attempt(run.run_id, &step.name, attempt)),
    }
}

fn context(place: SpanRef) -> SpanContext {
    let (trace_id, span_id) =
        (TraceId::from_bytes(place.trace_id), SpanId::from_bytes(place.span_id));
    SpanContext::new(trace_id, span_id, TraceFlags::SAMPLED, false, TraceState::NONE)
}

fn attributes(run: &Run, sketch: &Sketch<'_>) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new("flowgate.run_id", run.run_id.to_string()),
        KeyValue::new("flowgate.flow", Arc::clone(&run.flow)),
        KeyValue::new("flowgate.revision", run.revision.to_string()),
        KeyValue::new("flowgate.status", sketch.status),
    ];
    if let Some(step) = sketch.step {
        attributes.push(KeyValue::new("flowgate.step", Arc::clone(step)));
    }
    if let Some(lease) = sketch.lease {
        attributes.push(KeyValue::new("flowgate.attempt", i64::from(lease.attempt)));
        attributes.push(KeyValue::new("flowgate.instance", Arc::clone(&lease.instance.0)));
    }
    if let Some(error) = sketch.error {
        attributes.push(KeyValue::new("error.type", kind(error.kind)));
        attributes.push(KeyValue::new("flowgate.error", Arc::clone(&error.message)));
    }
    attributes
}

fn status(sketch: &Sketch<'_>) -> Status {
    match (sketch.error, sketch.status) {
        (Some(error), _) => Status::error(error.message.to_string()),
        (None, "lost") => Status::error("its lease ended without an outcome"),
        (None, "succeeded" | "completed") => Status::Ok,
        (None, _) => Status::Unset,
    }
}

fn kind(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Failed => "failed",
        ErrorKind::Final => "final",
        ErrorKind::TimedOut => "timed_out",
        ErrorKind::Invalid => "invalid",
        ErrorKind::Panicked => "panicked",
        ErrorKind::Lost => "lost",
        ErrorKind::WaitTimedOut => "wait_timed_out",
    }
}
