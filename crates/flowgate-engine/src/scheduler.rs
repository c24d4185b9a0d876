//! Firing schedules, in the term of a leader.
//!
//! ```text
//!   what has come due since the mark
//!     -> a plan           pure: the fate of each occurrence
//!     -> written          record (mark, pending) and ledger, all or nothing, under the term
//!     -> started          each pending one, by the run id that it has whoever starts it
//!     -> written          no longer pending; what was there already, or could not be started
//! ```
//!
//! - A leader that dies before the first write has done nothing: its successor finds the same due.
//! - One that dies after it leaves pending occurrences: its successor starts them again, and those
//!   that had been started are there already (`suppressed`).
//! - One that lost its term cannot write, and starts nothing that was not written down in its term.
//! - The store's time decides what is due; local timers only wake.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::ids::RunId;
use flowgate_core::limits;
use flowgate_core::schedule::{
    Fate, Occurrence, Overlap, Pending, Schedule, ScheduleRecord, ledger_key, plan,
};
use flowgate_core::time::Timestamp;
use flowgate_store::StoreError;
use flowgate_store::control::{Expect, RecordWrite, RecordsOutcome};
use futures_util::StreamExt;
use metrics::{Counter, Histogram};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::clock;
use crate::config::SchedulerConfig;
use crate::debounce::StartDebounce;
use crate::degradation::Pause;
use crate::error::EngineError;
use crate::instance::Instance;
use crate::leadership::Reign;
use crate::schedules::{self, NamedSchedule, OCCURRENCE, SCHEDULE, TOPIC};
use crate::supervisor::{Engine, StartRequest, WeakEngine};

/// How long a change of schedules may go unnoticed if its hint is lost.
const RELOAD_MAX: Duration = Duration::from_secs(3);
/// How often it is looked whether the run ended that an occurrence waits for.
const QUEUED_POLL: Duration = Duration::from_millis(500);
/// Schedules that are worked on at a time, and runs of one that are started at a time.
const AT_ONCE: usize = 32;
/// What is this late is caught up; what is less late is only late.
const CATCH_UP: Duration = Duration::from_secs(10);
/// How often the record of a schedule is written again because somebody changed it.
const TRIES_MAX: usize = 20;
/// Bytes of an error in the ledger.
const ERROR_BYTES_MAX: usize = 500;

/// Why a round ended early.
enum Trouble {
    /// The term is over.
    Lost,
    /// Something failed that may work later.
    Failed(EngineError),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<EngineError> for Trouble {
    fn from(error: EngineError) -> Self {
        Self::Failed(error)
    }
}

/// A schedule as the leader knows it.
#[derive(Clone)]
struct Known {
    named: NamedSchedule,
    /// None if this version cannot read it.
    schedule: Option<Arc<Schedule>>,
    /// When there is something to do.
    due_at: Option<Timestamp>,
}

struct Scheduler {
    instance: Arc<Instance>,
    engine: WeakEngine,
    reign: Arc<Reign>,
    config: SchedulerConfig,
    metrics: Metrics,
}

/// Fires what comes due, until the term is over.
pub(crate) async fn run(
    instance: Arc<Instance>,
    engine: WeakEngine,
    reign: Arc<Reign>,
    config: SchedulerConfig,
) {
    let scheduler = Scheduler { instance, engine, reign, config, metrics: Metrics::new() };
    let mut known = HashMap::new();
    let mut reload_at = clock::now();
    let mut backoff = new_backoff();
    loop {
        match scheduler.round(&mut known, &mut reload_at).await {
            Ok(wake_at) => {
                backoff = new_backoff();
                if scheduler.wait(wake_at.min(reload_at)).await {
                    reload_at = clock::now();
                }
            }
            Err(Trouble::Lost) => return,
            Err(Trouble::Failed(error)) => {
                if backoff.tries() == 0 {
                    tracing::warn!(%error, "schedules could not be fired; trying again");
                }
                reload_at = clock::now();
                backoff.wait().await;
            }
        }
    }
}

fn new_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(50), Duration::from_secs(1))
}

impl Scheduler {
    /// Does what is due on every schedule; when to look again.
    async fn round(
        &self,
        known: &mut HashMap<Arc<str>, Known>,
        reload_at: &mut Instant,
    ) -> Result<Instant, Trouble> {
        if clock::now() >= *reload_at {
            self.load(known).await?;
            *reload_at = clock::now() + RELOAD_MAX;
        }
        let began = clock::now();
        let now = self.instance.store.now().await?;
        let pause = self.instance.strain.pauses();
        let is_due = |known: &&Known| known.is_due(now) && !known.is_paused(pause, now);
        let due: Vec<Known> = known.values().filter(is_due).cloned().collect();
        let mut done = futures_util::stream::iter(due)
            .map(|known| async move {
                let name = Arc::clone(&known.named.name);
                (name, self.fire(known, now).await)
            })
            .buffer_unordered(AT_ONCE);
        let mut trouble = None;
        while let Some((name, fired)) = done.next().await {
            match fired {
                Ok(Some(after)) => {
                    known.insert(name, after.timed());
                }
                // It is gone, or somebody changes it: it is read again.
                Ok(None) => {
                    known.remove(&name);
                    *reload_at = began;
                }
                Err(Trouble::Lost) => return Err(Trouble::Lost),
                Err(failed) => trouble = Some(failed),
            }
        }
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        let active = known.values().filter(|known| !known.is_paused(pause, now));
        let wake_at = active.filter_map(|known| known.wakes_at(now)).min();
        let wait = wake_at.map_or(RELOAD_MAX, |at| at.since(now).min(RELOAD_MAX));
        Ok(began + wait)
    }

    /// Waits until a time; whether somebody told of changes before.
    async fn wait(&self, until: Instant) -> bool {
        let wait = until.saturating_duration_since(clock::now());
        if wait.is_zero() {
            return false;
        }
        let told = async {
            match self.instance.store.wait_told(TOPIC, wait).await {
                Ok(()) => {}
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            () = told => clock::now() < until,
            () = tokio::time::sleep_until(until) => false,
        }
    }

    /// Reads all schedules; those that have not changed are not read again.
    async fn load(&self, known: &mut HashMap<Arc<str>, Known>) -> Result<(), Trouble> {
        let mut all: HashMap<Arc<str>, Known> = HashMap::new();
        let mut after = None;
        loop {
            let store = &*self.instance.store;
            let page = schedules::read_schedules(store, after, limits::PAGE_MAX).await?;
            after = page.last().map(|named| Arc::clone(&named.name));
            let is_last = page.len() < limits::PAGE_MAX;
            for named in page {
                let name = Arc::clone(&named.name);
                let kept = known.remove(&name).filter(|kept| kept.named.version == named.version);
                all.insert(name, kept.unwrap_or_else(|| Known::new(named)));
            }
            if is_last {
                *known = all;
                return Ok(());
            }
        }
    }

    /// Does what is due on one schedule; none if it is to be read again.
    async fn fire(&self, mut known: Known, mut now: Timestamp) -> Result<Option<Known>, Trouble> {
        let Some(schedule) = known.schedule.clone() else { return Ok(Some(known)) };
        let name = Arc::clone(&known.named.name);
        loop {
            if !known.named.record.pending.is_empty() {
                match self.start_pending(known.named, &schedule).await? {
                    Some(named) => known.named = named,
                    None => return Ok(None),
                }
            }
            let record = &known.named.record;
            let is_open = self.is_open(&schedule, record).await?;
            let term = self.reign.term.number;
            let plan = plan(&name, &schedule, record, (now, term), is_open);
            if plan.rows.is_empty() && plan.record == *record {
                return Ok(Some(known));
            }
            let expect = Expect::Version(known.named.version);
            let mut writes = vec![schedules::write_of(&name, expect, Some(&plan.record))?];
            for row in &plan.rows {
                writes.push(schedules::write_of_row(&name, row, self.config.ledger_keep)?);
            }
            let Some(version) = self.write(writes).await? else { return Ok(None) };
            self.metrics.count(&plan.rows);
            known.named.version = version;
            known.named.record = plan.record;
            if known.named.record.pending.is_empty() && !plan.has_more {
                return Ok(Some(known));
            }
            now = self.instance.store.now().await?;
        }
    }

    /// Whether the run that the schedule started last has not ended, if that matters.
    async fn is_open(&self, schedule: &Schedule, record: &ScheduleRecord) -> Result<bool, Trouble> {
        let matters = match schedule.overlap {
            Overlap::Allow => false,
            Overlap::Skip | Overlap::QueueOne | Overlap::CancelRunning => true,
        };
        let Some(run_id) = record.last_run.filter(|_| matters) else { return Ok(false) };
        let found = self.instance.store.read_run(run_id).await?;
        Ok(found.is_some_and(|detail| !detail.row.run.status.is_terminal()))
    }

    /// Starts what is written down to be started, and writes down that it is; none if the schedule
    /// is gone.
    async fn start_pending(
        &self,
        named: NamedSchedule,
        schedule: &Schedule,
    ) -> Result<Option<NamedSchedule>, Trouble> {
        let Some(engine) = self.engine.upgrade() else { return Err(Trouble::Lost) };
        let mut starts = futures_util::stream::iter(named.record.pending.clone())
            .map(|pending| {
                let (engine, named) = (&engine, &named);
                async move { (pending, self.start(engine, named, schedule, pending).await) }
            })
            .buffered(AT_ONCE);
        let (mut settled, mut corrections, mut trouble) = (Vec::new(), Vec::new(), None);
        while let Some((pending, started)) = starts.next().await {
            match started {
                Ok(None) => settled.push(pending),
                Ok(Some(correction)) => {
                    settled.push(pending);
                    corrections.push((pending.due_at, correction));
                }
                Err(error) => trouble = Some(error),
            }
        }
        drop(starts);
        if settled.is_empty()
            && let Some(trouble) = trouble
        {
            return Err(trouble);
        }
        let settled = self.settle(named, &settled, &corrections).await?;
        match trouble {
            Some(trouble) => Err(trouble),
            None => Ok(settled),
        }
    }

    /// Starts one occurrence; what the ledger must say if it is not what was planned.
    async fn start(
        &self,
        engine: &Engine,
        named: &NamedSchedule,
        schedule: &Schedule,
        pending: Pending,
    ) -> Result<Option<(Fate, Option<String>)>, Trouble> {
        if !self.reign.is_held() {
            return Err(Trouble::Lost);
        }
        if let Some(run_id) = pending.cancels {
            cancel(engine, run_id).await?;
        }
        let name = &named.name;
        let mut request = StartRequest::new(schedule.input.clone());
        request.run_id = Some(RunId::of_occurrence(name, pending.due_at));
        request.tags.clone_from(&schedule.tags);
        request.debounce = StartDebounce::Never;
        if name.len() <= limits::NAME_BYTES_MAX {
            request.tags.insert("schedule".into(), Arc::clone(name));
        }
        match engine.start_accepted(named.record.spec.flow.as_str(), request).await {
            Ok(started) if started.existing => Ok(Some((Fate::Suppressed, None))),
            Ok(_) => Ok(None),
            // It was started with the input that the schedule had before.
            Err(EngineError::KeyConflict { .. }) => Ok(Some((Fate::Suppressed, None))),
            Err(
                error @ (EngineError::Store(_)
                | EngineError::Contended
                | EngineError::Overloaded { .. }
                | EngineError::Closed
                | EngineError::Flow(crate::error::FlowError::Store(_))),
            ) => Err(error.into()),
            Err(error) => {
                tracing::warn!(schedule = %name, due_at = %pending.due_at, %error, "not started");
                let mut text = error.to_string();
                let end = (0..=ERROR_BYTES_MAX.min(text.len())).rev();
                let end = end.into_iter().find(|at| text.is_char_boundary(*at));
                text.truncate(end.unwrap_or(0));
                Ok(Some((Fate::Failed, Some(text))))
            }
        }
    }

    /// Writes down that pending occurrences are started.
    async fn settle(
        &self,
        mut named: NamedSchedule,
        settled: &[Pending],
        corrections: &[(Timestamp, (Fate, Option<String>))],
    ) -> Result<Option<NamedSchedule>, Trouble> {
        let rows = self.corrected(&named.name, corrections).await?;
        for _ in 0..TRIES_MAX {
            named.record.pending.retain(|pending| !settled.contains(pending));
            let expect = Expect::Version(named.version);
            let mut writes = vec![schedules::write_of(&named.name, expect, Some(&named.record))?];
            writes.extend(rows.iter().cloned());
            if let Some(version) = self.write(writes).await? {
                return Ok(Some(NamedSchedule { version, ..named }));
            }
            let keys = [Arc::clone(&named.name)];
            let found = self.instance.store.read_records(SCHEDULE, &keys).await?;
            let Some(found) = found.into_iter().flatten().next() else { return Ok(None) };
            named = NamedSchedule::read(found)?;
        }
        Err(EngineError::Contended.into())
    }

    /// The entries of the ledger that say something else now.
    async fn corrected(
        &self,
        name: &str,
        corrections: &[(Timestamp, (Fate, Option<String>))],
    ) -> Result<Vec<RecordWrite>, Trouble> {
        if corrections.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<Arc<str>> =
            corrections.iter().map(|(due_at, _)| ledger_key(name, *due_at).into()).collect();
        let found = self.instance.store.read_records(OCCURRENCE, &keys).await?;
        let mut rows = Vec::new();
        for (stored, (_, (fate, error))) in found.into_iter().zip(corrections) {
            let Some(row) = stored.and_then(|stored| stored.value.read::<Occurrence>().ok()) else {
                continue;
            };
            let run_id = row.run_id.filter(|_| fate.has_run());
            let row = Occurrence { fate: *fate, error: error.clone(), run_id, ..row };
            self.metrics.fate(*fate).increment(1);
            rows.push(schedules::write_of_row(name, &row, self.config.ledger_keep)?);
        }
        Ok(rows)
    }

    /// Writes under the term; the version of the first record, unless somebody changed one.
    async fn write(&self, writes: Vec<RecordWrite>) -> Result<Option<u64>, Trouble> {
        if !self.reign.is_held() {
            return Err(Trouble::Lost);
        }
        match self.instance.store.write_records(writes, Some(&self.reign.term)).await? {
            RecordsOutcome::Written(versions) => Ok(versions.first().copied()),
            RecordsOutcome::Changed(_) => Ok(None),
            RecordsOutcome::TermLost => Err(Trouble::Lost),
            RecordsOutcome::TooLarge(_) => {
                let message = "the ledger of a schedule is too large to be written".to_owned();
                Err(EngineError::Invalid(message).into())
            }
        }
    }
}

async fn cancel(engine: &Engine, run_id: RunId) -> Result<(), Trouble> {
    match engine.cancel(run_id, Some("the next occurrence of its schedule is due")).await {
        // It has ended, or was removed long ago.
        Ok(_) | Err(EngineError::Rejected(_) | EngineError::NoRun(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Known {
    fn new(named: NamedSchedule) -> Self {
        let schedule = match Schedule::new(&named.record.spec.file) {
            Ok(schedule) => Some(Arc::new(schedule)),
            Err(problems) => {
                let problem = problems.first().map(ToString::to_string).unwrap_or_default();
                tracing::warn!(schedule = %named.name, %problem, "cannot be read by this version");
                None
            }
        };
        Self { named, schedule, due_at: None }.timed()
    }

    /// The same with its next due time, which takes a search to find.
    fn timed(self) -> Self {
        let record = &self.named.record;
        let due_at = self.schedule.as_ref();
        let due_at = due_at.and_then(|schedule| record.wakes_at(&self.named.name, schedule));
        Self { due_at, ..self }
    }

    fn is_due(&self, now: Timestamp) -> bool {
        self.named.record.queued.is_some() || self.due_at.is_some_and(|at| at <= now)
    }

    /// Whether it is left for later, since this instance is strained. What was due meanwhile gets
    /// its fate by the schedule's policy when the strain is over.
    fn is_paused(&self, pause: Pause, now: Timestamp) -> bool {
        match pause {
            Pause::Nothing => false,
            // What is pending was promised.
            Pause::CatchUp if !self.named.record.pending.is_empty() => false,
            Pause::CatchUp => self.due_at.is_some_and(|at| now.since(at) > CATCH_UP),
            Pause::Everything => true,
        }
    }

    fn wakes_at(&self, now: Timestamp) -> Option<Timestamp> {
        let polled = self.named.record.queued.map(|_| now.plus(QUEUED_POLL));
        self.due_at.into_iter().chain(polled).min()
    }
}

/// What is counted about occurrences.
struct Metrics {
    fates: Vec<(Fate, Counter)>,
    delay_seconds: Histogram,
}

impl Metrics {
    fn new() -> Self {
        let counter = |fate: &Fate| {
            (*fate, metrics::counter!("flowgate_occurrences_total", "fate" => fate.as_str()))
        };
        Self {
            fates: Fate::ALL.iter().map(counter).collect(),
            delay_seconds: metrics::histogram!("flowgate_occurrence_delay_seconds"),
        }
    }

    fn fate(&self, fate: Fate) -> &Counter {
        let found = self.fates.iter().find(|(known, _)| *known == fate);
        &found.expect("every fate has its counter").1
    }

    fn count(&self, rows: &[Occurrence]) {
        for row in rows {
            self.fate(row.fate).increment(1);
            if row.fate.has_run() {
                self.delay_seconds.record(row.decided_at.since(row.due_at));
            }
        }
    }
}
