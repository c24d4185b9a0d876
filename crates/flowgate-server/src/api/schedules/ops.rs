//! What can be asked about schedules, for whoever has an engine or a store at hand.

use std::sync::Arc;

use flowgate_core::flow::{Problem, nearest};
use flowgate_core::ids::is_identifier;
use flowgate_core::limits::{PAGE_MAX, SCHEDULE_NAME_BYTES_MAX};
use flowgate_core::schedule::{Occurrence, Schedule, ScheduleFile, ScheduleSpec, Source};
use flowgate_core::time::Timestamp;
use flowgate_engine::{Engine, EngineError, NamedSchedule, read_ledger, read_schedules};
use flowgate_store::Store;

use crate::body::misfit;
use crate::error::ApiError;
use crate::wire::schedules::{
    AddSchedule, Backfill, DueTimes, OccurrenceItem, OccurrencesQuery, ScheduleBody,
    ScheduleDetail, ScheduleItem, ScheduleSource, SchedulesQuery,
};
use crate::wire::{Items, Page};
use crate::{lookup, problem};

/// Due times and entries of the ledger that a schedule is shown with.
const NEXT_SHOWN: usize = 10;
const LEDGER_SHOWN: usize = 20;
/// Entries that are looked through for a fate.
const SEARCHED_MAX: usize = 20_000;

/// Schedules by name.
pub async fn list(
    store: &dyn Store,
    wanted: &SchedulesQuery,
) -> Result<Page<ScheduleItem>, ApiError> {
    let now = store.now().await?;
    let mut after: Option<Arc<str>> = wanted.after.as_deref().map(Into::into);
    let mut found: Vec<NamedSchedule> = Vec::new();
    loop {
        let page = read_schedules(store, after, PAGE_MAX).await?;
        let is_last = page.len() < PAGE_MAX;
        after = page.last().map(|named| Arc::clone(&named.name));
        let is_meant = |named: &NamedSchedule| {
            wanted.flow.as_ref().is_none_or(|flow| named.record.spec.flow == *flow)
        };
        found.extend(page.into_iter().filter(is_meant));
        if is_last || found.len() > wanted.limit {
            break;
        }
    }
    let has_more = found.len() > wanted.limit;
    found.truncate(wanted.limit);
    let next = found.last().filter(|_| has_more).map(|named| named.name.to_string());
    Ok(Page { items: found.iter().map(|named| item(named, now)).collect(), next })
}

/// A schedule as programs read it.
pub fn item(named: &NamedSchedule, now: Timestamp) -> ScheduleItem {
    let record = &named.record;
    ScheduleItem {
        name: named.name.to_string(),
        flow: record.spec.flow.clone(),
        schedule: record.spec.file.clone(),
        source: match record.source {
            Source::FlowFile => ScheduleSource::File,
            Source::Hand => ScheduleSource::Added,
        },
        paused: record.is_paused,
        next_at: next_at(named, now).map(|at| at.to_string()),
        decided_through: record.fired_through.to_string(),
        added_at: record.added_at.to_string(),
        last_run: record.last_run,
        queued: record.queued.map(|at| at.to_string()),
        pending: record.pending.len(),
    }
}

/// The next due time after now; what is past and not decided yet is not waited for.
fn next_at(named: &NamedSchedule, now: Timestamp) -> Option<Timestamp> {
    let schedule = Schedule::new(&named.record.spec.file).ok()?;
    schedule.next_after(named.record.fired_through.max(now))
}

/// An entry of the ledger as programs read it.
pub fn occurrence(row: &Occurrence) -> OccurrenceItem {
    OccurrenceItem {
        due_at: row.due_at.to_string(),
        fate: row.fate,
        reason: row.reason,
        run_id: row.run_id,
        decided_at: row.decided_at.to_string(),
        term: row.term,
        asked: row.asked,
        through: row.through.map(|at| at.to_string()),
        error: row.error.clone(),
    }
}

/// The schedule called `name`.
pub async fn find(store: &dyn Store, name: &str) -> Result<NamedSchedule, ApiError> {
    if !can_be_name(name) {
        return Err(unknown(store, name).await?);
    }
    let found = store.read_records(flowgate_engine::SCHEDULE, &[name.into()]).await?;
    match found.into_iter().flatten().next() {
        Some(record) => Ok(NamedSchedule::read(record)?),
        None => Err(unknown(store, name).await?),
    }
}

/// Whether stores can be asked for such a name at all.
fn can_be_name(name: &str) -> bool {
    (1..=SCHEDULE_NAME_BYTES_MAX).contains(&name.len()) && !name.contains('\0')
}

/// What to say about a schedule that the store does not have.
pub async fn unknown(store: &dyn Store, name: &str) -> Result<ApiError, ApiError> {
    let known = read_schedules(store, None, PAGE_MAX).await?;
    let help = match nearest(name, known.iter().map(|named| &*named.name)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "see `flowgate schedules list`; those of a flow file are FLOW/NAME".to_owned(),
    };
    let name: String = name.chars().take(SCHEDULE_NAME_BYTES_MAX).collect();
    let message = format!("there is no schedule `{name}`");
    Ok(ApiError::not_found("schedule_not_found", message).help(help).path(name))
}

/// A schedule with what comes next and what became of the last.
pub async fn show(store: &dyn Store, name: &str) -> Result<ScheduleDetail, ApiError> {
    let now = store.now().await?;
    let named = find(store, name).await?;
    let next = upcoming(&named, now, NEXT_SHOWN)?;
    let rows = read_ledger(store, &named.name, None, LEDGER_SHOWN).await?;
    let occurrences = rows.iter().map(occurrence).collect();
    Ok(ScheduleDetail { item: item(&named, now), next, occurrences })
}

fn upcoming(named: &NamedSchedule, from: Timestamp, n: usize) -> Result<Vec<String>, ApiError> {
    let schedule = Schedule::new(&named.record.spec.file).map_err(|_| {
        let message = format!("this version cannot read the schedule `{}`", named.name);
        ApiError::conflict("schedule_invalid", message).help("use the version that wrote it")
    })?;
    let due = schedule.between(from, Timestamp(i64::MAX), n);
    Ok(due.iter().map(ToString::to_string).collect())
}

/// The next `n` due times, from now or from a time.
pub async fn next(
    store: &dyn Store,
    name: &str,
    (from, n): (Option<&str>, usize),
) -> Result<DueTimes, ApiError> {
    let now = store.now().await?;
    let named = find(store, name).await?;
    let from = from.map(|text| lookup::time("from", text, now)).transpose()?;
    let items = upcoming(&named, from.unwrap_or(now), n)?;
    Ok(DueTimes { name: named.name.to_string(), paused: named.record.is_paused, items })
}

/// A page of the ledger, the latest first; also of a schedule that was removed.
pub async fn occurrences(
    store: &dyn Store,
    name: &str,
    wanted: &OccurrencesQuery,
) -> Result<Page<OccurrenceItem>, ApiError> {
    let now = store.now().await?;
    let cursor = |text: &str| {
        lookup::time("after", text, now)
            .map_err(|error| ApiError { code: "cursor_invalid".into(), ..error })
    };
    let mut before = wanted.after.as_deref().map(cursor).transpose()?;
    if !can_be_name(name) {
        return Err(unknown(store, name).await?);
    }
    let mut found: Vec<Occurrence> = Vec::new();
    let mut searched = 0;
    let is_all = loop {
        let page = read_ledger(store, name, before, PAGE_MAX).await?;
        let is_last = page.len() < PAGE_MAX;
        searched += page.len();
        before = page.last().map(|row| row.due_at);
        let is_meant =
            |row: &Occurrence| wanted.fates.is_empty() || wanted.fates.contains(&row.fate);
        found.extend(page.into_iter().filter(is_meant));
        if is_last || found.len() > wanted.limit || searched >= SEARCHED_MAX {
            break is_last;
        }
    };
    if searched == 0 && wanted.after.is_none() {
        // A slip in the name is more likely than a schedule that was never due.
        find(store, name).await?;
    }
    let next = if found.len() > wanted.limit {
        found.truncate(wanted.limit);
        found.last().map(|row| row.due_at)
    } else {
        before.filter(|_| !is_all)
    };
    let items = found.iter().map(occurrence).collect();
    Ok(Page { items, next: next.map(|at| at.to_string()) })
}

/// Adds a schedule.
pub async fn add(engine: &Engine, request: AddSchedule) -> Result<ScheduleItem, ApiError> {
    let AddSchedule { name, spec, replace } = request;
    if !is_identifier(&name) {
        let name: String = name.chars().take(200).collect();
        let message = format!("a schedule cannot be called `{}`", name.escape_debug());
        return Err(ApiError::invalid("identifier_invalid", message).path("name").help(
            "begin with an ASCII letter or digit and go on with letters, digits, `_`, `-` and \
             single `.`",
        ));
    }
    let spec = read_spec(spec)?;
    if let Some(problem) = spec.file.validate().first() {
        return Err(invalid(problem));
    }
    let store = &**engine.store();
    let found = store.read_records(flowgate_engine::SCHEDULE, &[name.as_str().into()]).await?;
    if !replace && found.into_iter().flatten().next().is_some() {
        let message = format!("there is a schedule `{name}` already");
        return Err(ApiError::conflict("conflict", message).path("name").help(
            "replace it with `replace` (`--replace` on the command line), or choose another name",
        ));
    }
    let added = engine.add_schedule(&name, spec, replace).await;
    changed(store, added).await
}

/// The spec that a body stands for.
fn read_spec(body: ScheduleBody) -> Result<ScheduleSpec, ApiError> {
    let flow = body.flow.clone();
    let mut value = serde_json::to_value(body).expect("it came as JSON");
    if let Some(object) = value.as_object_mut() {
        object.remove("flow");
    }
    let file: ScheduleFile = serde_path_to_error::deserialize(value).map_err(|error| {
        let path = format!("spec.{}", error.path());
        misfit(&error.inner().to_string()).path(path)
    })?;
    Ok(ScheduleSpec { flow, file })
}

fn invalid(wrong: &Problem) -> ApiError {
    let path = wrong.path.to_string();
    let code = problem::code(&path, &wrong.message).unwrap_or("field_invalid");
    let path = if path.is_empty() { "spec".to_owned() } else { format!("spec.{path}") };
    ApiError::invalid(code, wrong.message.clone()).path(path).help(wrong.remedy.clone())
}

/// The item of a schedule that was changed, or why it was not.
async fn changed(
    store: &dyn Store,
    result: Result<NamedSchedule, EngineError>,
) -> Result<ScheduleItem, ApiError> {
    match result {
        Ok(named) => Ok(item(&named, store.now().await?)),
        Err(error) => Err(refused(store, error).await),
    }
}

async fn refused(store: &dyn Store, error: EngineError) -> ApiError {
    let told = if let EngineError::NoSchedule(name) = &error {
        unknown(store, name).await
    } else if let EngineError::NoFlow(name) = &error {
        lookup::no_flow(store, name).await
    } else {
        return error.into();
    };
    told.unwrap_or_else(|failed| failed)
}

/// Skips the occurrences of a schedule from now on, or no longer.
pub async fn pause(engine: &Engine, name: &str, is_paused: bool) -> Result<ScheduleItem, ApiError> {
    let store = &**engine.store();
    find(store, name).await?;
    changed(store, engine.pause_schedule(name, is_paused).await).await
}

/// Removes a schedule that was added by hand.
pub async fn remove(engine: &Engine, name: &str) -> Result<ScheduleItem, ApiError> {
    let store = &**engine.store();
    let found = find(store, name).await?;
    if found.record.source == Source::FlowFile {
        let flow = &found.record.spec.flow;
        let message = format!("the schedule `{name}` comes with the flow `{flow}`");
        return Err(ApiError::conflict("conflict", message)
            .path(name)
            .help("remove it from its file, or pause it"));
    }
    changed(store, engine.remove_schedule(name).await).await
}

/// Has an occurrence started that is due now.
pub async fn trigger(engine: &Engine, name: &str) -> Result<OccurrenceItem, ApiError> {
    let store = &**engine.store();
    find(store, name).await?;
    match engine.trigger_schedule(name).await {
        Ok(row) => Ok(occurrence(&row)),
        Err(error) => Err(refused(store, error).await),
    }
}

/// Has what was due in a range started, as far as it has no run.
pub async fn backfill(
    engine: &Engine,
    name: &str,
    Backfill { from, to }: &Backfill,
) -> Result<Items<OccurrenceItem>, ApiError> {
    let store = &**engine.store();
    let now = store.now().await?;
    let time = |field: &str, text: &str| {
        lookup::time(field, text, now)
            .map_err(|error| ApiError::invalid("field_invalid", error.message).path(field))
    };
    let from = time("from", from)?;
    let to = to.as_deref().map_or(Ok(now), |text| time("to", text))?;
    if from > to {
        let message = "the range ends before it begins";
        return Err(ApiError::invalid("out_of_range", message).path("to"));
    }
    find(store, name).await?;
    match engine.backfill_schedule(name, (from, to)).await {
        Ok(rows) => Ok(Items { items: rows.iter().map(occurrence).collect() }),
        Err(error) => Err(refused(store, error).await),
    }
}
