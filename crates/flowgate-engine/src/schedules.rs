//! Schedules as their users see them: adding, steering and reading them.
//!
//! A change is one write of a record, with the version that was read: whoever changes the schedule
//! in between, the leader among them, makes it start over. Only what is written down is ever
//! started, so each of these can be done by any process, whoever leads.

use std::sync::Arc;

use flowgate_core::flow::Flow;
use flowgate_core::ids::is_identifier;
use flowgate_core::limits;
use flowgate_core::payload::Payload;
use flowgate_core::schedule::{
    Asked, Occurrence, Plan, Range, Schedule, ScheduleRecord, ScheduleSpec, Source, due_at_of_key,
    ledger_key,
};
use flowgate_core::time::Timestamp;
use flowgate_store::control::{Expect, Record, RecordQuery, RecordWrite, RecordsOutcome};
use flowgate_store::{Store, StoreError};
use serde::de::DeserializeOwned;

use crate::error::EngineError;
use crate::supervisor::Engine;

/// The kind of the records of schedules.
pub const SCHEDULE: &str = "schedule";
/// The kind of the records of the ledger.
pub const OCCURRENCE: &str = "occurrence";
/// The topic by which the leader is told that schedules have changed.
pub(crate) const TOPIC: &str = "schedules";
/// How long the ledger entry of something that somebody asked for is kept.
const ASKED_KEEP: std::time::Duration = std::time::Duration::from_hours(30 * 24);
/// How often a change is tried again because others were faster.
const TRIES_MAX: usize = 20;

/// A schedule in a store.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedSchedule {
    /// Its name: `FLOW/NAME` if it comes with a flow file.
    pub name: Arc<str>,
    /// What the store has of it.
    pub record: ScheduleRecord,
    /// The version of the record.
    pub version: u64,
}

/// What somebody wants of a schedule.
#[derive(Clone, Copy, Debug)]
enum Wish {
    Backfill { from: Timestamp, to: Timestamp },
    Trigger,
}

impl NamedSchedule {
    /// Reads a record of kind [`SCHEDULE`].
    pub fn read(stored: Record) -> Result<Self, StoreError> {
        let record = read(&stored, "schedule")?;
        Ok(Self { name: stored.key, record, version: stored.version })
    }
}

fn read<T: DeserializeOwned>(stored: &Record, what: &str) -> Result<T, StoreError> {
    stored.value.read().map_err(|error| StoreError::Corrupt {
        message: format!("the {what} `{}` cannot be read", stored.key),
        source: Some(error.into()),
    })
}

/// Schedules in the order of their names: those after `after`, at most `limit`; fewer only if there
/// are no more. One that this version cannot read is left out, and must not keep the others.
pub async fn read_schedules(
    store: &dyn Store,
    mut after: Option<Arc<str>>,
    limit: usize,
) -> Result<Vec<NamedSchedule>, StoreError> {
    let mut found = Vec::new();
    loop {
        let query = RecordQuery {
            kind: SCHEDULE,
            prefix: "".into(),
            after,
            is_descending: false,
            limit: (limit - found.len()).min(limits::PAGE_MAX),
        };
        let page = store.list_records(&query).await?;
        let is_last = page.len() < query.limit;
        after = page.last().map(|stored| Arc::clone(&stored.key));
        for stored in page {
            match NamedSchedule::read(stored) {
                Ok(named) => found.push(named),
                Err(error) => tracing::warn!(%error, "a schedule is left out"),
            }
        }
        if is_last || found.len() >= limit {
            return Ok(found);
        }
    }
}

/// The ledger of a schedule, the latest first: what was due before `before`, at most `limit`.
pub async fn read_ledger(
    store: &dyn Store,
    schedule: &str,
    before: Option<Timestamp>,
    limit: usize,
) -> Result<Vec<Occurrence>, StoreError> {
    let before = before.map(|at| ledger_key(schedule, at).into());
    page_of_ledger(store, schedule, before, (true, limit)).await
}

/// A part of the ledger in one direction. Keys of schedules whose names begin with this one's name
/// are among those that the store lists, and are left out.
async fn page_of_ledger(
    store: &dyn Store,
    schedule: &str,
    mut after: Option<Arc<str>>,
    (is_descending, limit): (bool, usize),
) -> Result<Vec<Occurrence>, StoreError> {
    let mut rows = Vec::new();
    loop {
        let query = RecordQuery {
            kind: OCCURRENCE,
            // Until the year 5138 every due time begins so.
            prefix: format!("{schedule}/0").into(),
            after,
            is_descending,
            limit: limits::PAGE_MAX.min(limit),
        };
        let page = store.list_records(&query).await?;
        let is_last = page.len() < query.limit;
        after = page.last().map(|stored| Arc::clone(&stored.key));
        for stored in &page {
            if due_at_of_key(schedule, &stored.key).is_some() && rows.len() < limit {
                rows.push(read(stored, "occurrence")?);
            }
        }
        if is_last || rows.len() >= limit {
            return Ok(rows);
        }
    }
}

pub(crate) fn write_of(
    name: &Arc<str>,
    expect: Expect,
    record: Option<&ScheduleRecord>,
) -> Result<RecordWrite, EngineError> {
    let value = record.map(payload).transpose()?;
    Ok(RecordWrite { kind: SCHEDULE, key: Arc::clone(name), expect, value, keep: None })
}

pub(crate) fn write_of_row(
    name: &str,
    row: &Occurrence,
    keep: std::time::Duration,
) -> Result<RecordWrite, EngineError> {
    Ok(RecordWrite {
        kind: OCCURRENCE,
        key: ledger_key(name, row.due_at).into(),
        expect: Expect::Anything,
        value: Some(payload(row)?),
        keep: Some(keep),
    })
}

fn payload(value: &impl serde::Serialize) -> Result<Payload, EngineError> {
    Payload::of(value).map_err(|error| {
        EngineError::Invalid(format!("the schedule is too large to be kept: {error}"))
    })
}

impl Engine {
    /// A schedule.
    pub async fn schedule(&self, name: &str) -> Result<NamedSchedule, EngineError> {
        let keys: [Arc<str>; 1] = [name.into()];
        let found = self.store().read_records(SCHEDULE, &keys).await?;
        let found = found.into_iter().flatten().next();
        let found = found.ok_or_else(|| EngineError::NoSchedule(name.into()))?;
        Ok(NamedSchedule::read(found)?)
    }

    /// Adds a schedule; with `replaces` it may take the place of one that was added before. Its
    /// occurrences count from now on; one that is replaced with the same times goes on where it was.
    pub async fn add_schedule(
        &self,
        name: &str,
        spec: ScheduleSpec,
        replaces: bool,
    ) -> Result<NamedSchedule, EngineError> {
        if !is_identifier(name) {
            return Err(EngineError::Invalid(format!(
                "a schedule cannot be called `{}`; begin with an ASCII letter or digit and go on \
                 with letters, digits, `_`, `-` and single `.`",
                name.escape_debug()
            )));
        }
        let schedule = Schedule::new(&spec.file).map_err(|problems| {
            let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
            EngineError::Invalid(told.join("\n"))
        })?;
        let flow = self.active_flow(&spec.flow).await?;
        flow.check_input(&schedule.input).map_err(EngineError::Input)?;
        let key: Arc<str> = name.into();
        for _ in 0..TRIES_MAX {
            let now = self.store().now().await?;
            let found = match self.schedule(name).await {
                Ok(found) if !replaces => {
                    return Err(EngineError::Invalid(format!(
                        "there is a schedule `{}` already; replace it, or choose another name",
                        found.name
                    )));
                }
                Ok(found) => Some(found),
                Err(EngineError::NoSchedule(_)) => None,
                Err(error) => return Err(error),
            };
            let (expect, record) = replaced(found, spec.clone(), (Source::Hand, now));
            let write = write_of(&key, expect, Some(&record))?;
            if let Some(version) = self.change(vec![write]).await? {
                return Ok(NamedSchedule { name: key, record, version });
            }
        }
        Err(EngineError::Contended)
    }

    /// Skips the occurrences of a schedule from now on, or no longer.
    pub async fn pause_schedule(
        &self,
        name: &str,
        is_paused: bool,
    ) -> Result<NamedSchedule, EngineError> {
        for _ in 0..TRIES_MAX {
            let mut found = self.schedule(name).await?;
            if found.record.is_paused == is_paused {
                return Ok(found);
            }
            found.record.is_paused = is_paused;
            let expect = Expect::Version(found.version);
            let write = write_of(&found.name, expect, Some(&found.record))?;
            if let Some(version) = self.change(vec![write]).await? {
                return Ok(NamedSchedule { version, ..found });
            }
        }
        Err(EngineError::Contended)
    }

    /// Removes a schedule that was added by hand. Its ledger and its runs stay.
    pub async fn remove_schedule(&self, name: &str) -> Result<NamedSchedule, EngineError> {
        for _ in 0..TRIES_MAX {
            let found = self.schedule(name).await?;
            if found.record.source == Source::FlowFile {
                return Err(EngineError::Invalid(format!(
                    "the schedule `{name}` comes with the flow `{}`; remove it from its file, or \
                     pause it",
                    found.record.spec.flow
                )));
            }
            let write = write_of(&found.name, Expect::Version(found.version), None)?;
            if self.change(vec![write]).await?.is_some() {
                return Ok(found);
            }
        }
        Err(EngineError::Contended)
    }

    /// Has what was due in a range started, as far as it has no run; what that is.
    pub async fn backfill_schedule(
        &self,
        name: &str,
        (from, to): (Timestamp, Timestamp),
    ) -> Result<Vec<Occurrence>, EngineError> {
        self.ask_of_schedule(name, Wish::Backfill { from, to }).await
    }

    /// Has an occurrence started that is due now; its run.
    pub async fn trigger_schedule(&self, name: &str) -> Result<Occurrence, EngineError> {
        let rows = self.ask_of_schedule(name, Wish::Trigger).await?;
        Ok(rows.into_iter().next().expect("a trigger has one occurrence"))
    }

    /// What a wish makes of a schedule.
    async fn plan_of(
        &self,
        found: &NamedSchedule,
        wish: Wish,
        now: Timestamp,
    ) -> Result<Plan, EngineError> {
        let schedule = usable(found)?;
        let max = limits::OCCURRENCES_MAX;
        match wish {
            Wish::Backfill { from, to } => {
                let after = Timestamp(from.0.saturating_sub(1).max(0));
                let after = Some(ledger_key(&found.name, after).into());
                let store = &**self.store();
                let ledger = page_of_ledger(store, &found.name, after, (false, max * 2)).await?;
                let range = Range { from, to, ledger: &ledger };
                found.record.backfill(&found.name, &schedule, range, now).ok_or_else(|| {
                    EngineError::Invalid(format!(
                        "the range has more than {max} occurrences, or so many wait to be \
                         started; choose a shorter one"
                    ))
                })
            }
            Wish::Trigger => found.record.trigger(&found.name, now).ok_or_else(|| {
                EngineError::Invalid(format!("{max} occurrences wait to be started; wait"))
            }),
        }
    }

    /// Writes what a wish makes of a schedule: its record and the ledger.
    async fn ask_of_schedule(
        &self,
        name: &str,
        wish: Wish,
    ) -> Result<Vec<Occurrence>, EngineError> {
        for _ in 0..TRIES_MAX {
            let found = self.schedule(name).await?;
            let now = self.store().now().await?;
            let plan = self.plan_of(&found, wish, now).await?;
            if plan.rows.is_empty() {
                return Ok(plan.rows);
            }
            let expect = Expect::Version(found.version);
            let mut writes = vec![write_of(&found.name, expect, Some(&plan.record))?];
            for row in &plan.rows {
                let mut write = write_of_row(name, row, ASKED_KEEP)?;
                if row.asked == Asked::Trigger {
                    // Two triggers within a millisecond are two.
                    write.expect = Expect::Absent;
                }
                writes.push(write);
            }
            if self.change(writes).await?.is_some() {
                return Ok(plan.rows);
            }
        }
        Err(EngineError::Contended)
    }

    /// Makes the schedules of a flow file those of its flow, and leaves those added by hand alone.
    pub async fn register_schedules(&self, flow: &Flow) -> Result<(), EngineError> {
        for _ in 0..TRIES_MAX {
            let writes = self.changes_of(flow).await?;
            if writes.is_empty() || self.change(writes).await?.is_some() {
                return Ok(());
            }
        }
        Err(EngineError::Contended)
    }

    async fn changes_of(&self, flow: &Flow) -> Result<Vec<RecordWrite>, EngineError> {
        let query = RecordQuery {
            kind: SCHEDULE,
            prefix: format!("{}/", flow.name).into(),
            after: None,
            is_descending: false,
            limit: limits::PAGE_MAX,
        };
        let mut found = Vec::new();
        for stored in self.store().list_records(&query).await? {
            let named = NamedSchedule::read(stored)?;
            if named.record.source == Source::FlowFile {
                found.push(named);
            }
        }
        let mut writes = Vec::new();
        for (name, file) in &flow.file.schedules {
            let name: Arc<str> = format!("{}/{name}", flow.name).into();
            let spec = ScheduleSpec { flow: flow.name.to_string(), file: file.clone() };
            let at = found.iter().position(|known| known.name == name);
            let known = at.map(|at| found.swap_remove(at));
            if known.as_ref().is_some_and(|known| known.record.spec == spec) {
                continue;
            }
            let now = self.store().now().await?;
            let (expect, record) = replaced(known, spec, (Source::FlowFile, now));
            writes.push(write_of(&name, expect, Some(&record))?);
        }
        for gone in found {
            writes.push(write_of(&gone.name, Expect::Version(gone.version), None)?);
        }
        Ok(writes)
    }

    /// Writes, and tells the leader. The version of the first record, unless somebody was faster.
    async fn change(&self, writes: Vec<RecordWrite>) -> Result<Option<u64>, EngineError> {
        let store = self.store();
        match store.write_records(writes, None).await? {
            RecordsOutcome::Written(versions) => {
                if let Err(error) = store.tell(TOPIC).await {
                    tracing::debug!(%error, "the leader was not told; it looks by itself");
                }
                Ok(versions.first().copied())
            }
            RecordsOutcome::Changed(_) => Ok(None),
            RecordsOutcome::TooLarge(_) => {
                Err(EngineError::Invalid("the schedule is too large to be kept".to_owned()))
            }
            RecordsOutcome::TermLost => unreachable!("the write named no term"),
        }
    }
}

/// The record that takes the place of another, and what must be there before.
fn replaced(
    found: Option<NamedSchedule>,
    spec: ScheduleSpec,
    (source, now): (Source, Timestamp),
) -> (Expect, ScheduleRecord) {
    let Some(found) = found else {
        return (Expect::Absent, ScheduleRecord::new(spec, source, now));
    };
    let mut record = found.record;
    if !record.spec.file.has_times_of(&spec.file) {
        record.fired_through = now;
    }
    (record.spec, record.source) = (spec, source);
    (Expect::Version(found.version), record)
}

/// The schedule of a record, which a newer version may have written.
fn usable(found: &NamedSchedule) -> Result<Schedule, EngineError> {
    Schedule::new(&found.record.spec.file).map_err(|_| {
        let message = format!("this version cannot read the schedule `{}`", found.name);
        EngineError::Invalid(message)
    })
}
