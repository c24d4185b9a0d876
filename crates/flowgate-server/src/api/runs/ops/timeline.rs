//! The attempts of a run, one after the other.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::event::{Event, LeaseStamp, StepError, StoredEvent};
use flowgate_core::flow::Flow;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::time::Timestamp;
use flowgate_store::{JobDetail, Store};

use crate::error::ApiError;
use crate::lookup;
use crate::wire::Items;
use crate::wire::events::AttemptItem;

/// Attempts that are told.
const ATTEMPTS_MAX: usize = 1_000;
/// Pages of events that are read for them.
const PAGES_MAX: usize = 20;

/// The attempts and waits of the run that `name` names, in the order in which they began; the
/// first of them if there are very many.
pub async fn timeline(store: &dyn Store, name: &str) -> Result<Items<AttemptItem>, ApiError> {
    let run_id = lookup::run_id(store, name).await?;
    let detail = lookup::run(store, run_id).await?;
    let flow = lookup::flow_of(store, &detail.row.run).await?;
    let mut fold = Fold::default();
    let mut after = 0;
    for _ in 0..PAGES_MAX {
        let page = store.read_events(run_id, after, PAGE_MAX).await?;
        for stored in &page {
            fold.note(stored);
        }
        match page.last() {
            Some(last) if page.len() == PAGE_MAX && fold.items.len() < ATTEMPTS_MAX => {
                after = last.seq;
            }
            Some(_) | None => {
                detail.jobs.iter().for_each(|job| fold.note_job(&flow, job));
                break;
            }
        }
    }
    fold.items.truncate(ATTEMPTS_MAX);
    Ok(Items { items: fold.items })
}

#[derive(Default)]
struct Fold {
    items: Vec<AttemptItem>,
    /// Where the attempt of a step is that has not ended.
    open: HashMap<Arc<str>, usize>,
    /// When a step became due.
    due: HashMap<Arc<str>, Timestamp>,
}

/// How an attempt ended.
struct End<'a> {
    lease: Option<&'a LeaseStamp>,
    state: &'static str,
    error: Option<&'a StepError>,
    elapsed: Option<Duration>,
}

impl<'a> End<'a> {
    fn of(lease: &'a LeaseStamp, state: &'static str) -> Self {
        Self { lease: Some(lease), state, error: None, elapsed: None }
    }
}

impl Fold {
    fn note(&mut self, stored: &StoredEvent) {
        let at = stored.at;
        let micros = |us: &u64| Some(Duration::from_micros(*us));
        match &stored.event {
            Event::StepQueued { step, .. } | Event::StepRepaired { step } => {
                self.due.insert(Arc::clone(step), at);
            }
            Event::StepWaiting { step, .. } => {
                let began = self.begin(step, 1, "waiting");
                began.queued_at = Some(at.to_string());
                began.started_at = Some(at.to_string());
            }
            Event::StepStarted { step, lease } => {
                let began = self.begin(step, lease.attempt, "running");
                began.started_at = Some(at.to_string());
                began.instance = Some(lease.instance.clone());
            }
            Event::StepLost { step, lease } => self.end(step, at, &End::of(lease, "lost")),
            Event::StepReleased { step, lease } => self.end(step, at, &End::of(lease, "released")),
            Event::StepParked { step, lease, .. } => self.end(step, at, &End::of(lease, "parked")),
            Event::AttemptFailed { step, lease, error, elapsed_us, retry_after_ms } => {
                let (error, elapsed) = (Some(error), micros(elapsed_us));
                self.end(step, at, &End { error, elapsed, ..End::of(lease, "retried") });
                let due = at.plus(Duration::from_millis(*retry_after_ms));
                self.due.insert(Arc::clone(step), due);
            }
            Event::StepSucceeded { step, lease, elapsed_us, .. } => {
                let (lease, elapsed) = (lease.as_ref(), micros(elapsed_us));
                self.end(step, at, &End { lease, state: "succeeded", error: None, elapsed });
            }
            Event::StepFailed { step, lease, error, elapsed_us } => {
                let (lease, error) = (lease.as_ref(), Some(error));
                let elapsed = micros(elapsed_us);
                self.end(step, at, &End { lease, state: "failed", error, elapsed });
            }
            Event::StepCancelled { step } => {
                if self.open.contains_key(step) {
                    let end = End { lease: None, state: "cancelled", error: None, elapsed: None };
                    self.end(step, at, &end);
                }
            }
            Event::RunReleased { .. }
            | Event::RunMigrated(_)
            | Event::RunCheckpointed { .. }
            | Event::RunStarted(_)
            | Event::EventEmitted { .. }
            | Event::EventRepeated { .. }
            | Event::StateSet { .. }
            | Event::StepSkipped { .. }
            | Event::StepCarried { .. }
            | Event::SignalReceived { .. }
            | Event::SignalTaken { .. }
            | Event::RunCompleted {}
            | Event::RunFailed { .. }
            | Event::RunCancelled { .. } => {}
        }
    }

    /// An attempt that has not ended.
    fn begin(&mut self, step: &Arc<str>, attempt: u32, state: &'static str) -> &mut AttemptItem {
        self.open.insert(Arc::clone(step), self.items.len());
        self.items.push(AttemptItem {
            step: Arc::clone(step),
            attempt,
            state: Cow::Borrowed(state),
            queued_at: self.due.get(step).map(ToString::to_string),
            started_at: None,
            ended_at: None,
            instance: None,
            error: None,
        });
        self.items.last_mut().expect("one was just pushed")
    }

    fn end(&mut self, step: &Arc<str>, at: Timestamp, end: &End<'_>) {
        let attempt = end.lease.map(|lease| lease.attempt);
        let is_ours = |item: &AttemptItem| attempt.is_none_or(|number| item.attempt == number);
        let open = self.open.get(step).copied().filter(|index| is_ours(&self.items[*index]));
        let index = open.unwrap_or_else(|| {
            self.begin(step, attempt.unwrap_or(1), end.state);
            self.items.len() - 1
        });
        self.open.remove(step);
        let item = &mut self.items[index];
        item.state = Cow::Borrowed(end.state);
        item.ended_at = Some(at.to_string());
        item.error = end.error.cloned();
        if let Some(lease) = end.lease {
            item.instance = Some(lease.instance.clone());
        }
        // The start of a short attempt is written down with its end.
        let began = end.elapsed.map(|elapsed| at.minus(elapsed).to_string());
        item.started_at = match (item.started_at.take(), began) {
            // Both are written the same way, so the lesser text is the earlier time.
            (Some(noted), Some(began)) if end.lease.is_some() => Some(noted.min(began)),
            (Some(noted), _) => Some(noted),
            (None, began) => began,
        };
    }

    /// A job that the log does not tell of yet.
    fn note_job(&mut self, flow: &Flow, job: &JobDetail) {
        let step = &flow.step(job.job.job_id.step).name;
        if self.open.contains_key(step) {
            return;
        }
        let (state, attempt) = match &job.lease {
            Some(_) => ("running", job.job.attempt),
            None => ("queued", job.job.attempt.saturating_add(1)),
        };
        let item = self.begin(step, attempt, state);
        item.queued_at = Some(job.due_at.to_string());
        item.instance = job.lease.as_ref().map(|lease| lease.instance.clone());
    }
}
