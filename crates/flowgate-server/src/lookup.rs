//! Finding runs and flows in a store by what a person types.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::flow::{Flow, Span, nearest};
use flowgate_core::gate::Gate;
use flowgate_core::ids::{Revision, RunId};
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::{Run, RunStatus};
use flowgate_core::time::Timestamp;
use flowgate_engine::{Debounced, find_debounced};
use flowgate_store::control::{GATE, gate_of};
use flowgate_store::{
    InstanceRow, RunCursor, RunDetail, RunQuery, RunRow, Store, StoreError, StoredRevision,
};

use crate::error::ApiError;
use crate::wire::runs::FateItem;

/// Letters that a shortened run id must have.
const PREFIX_LETTERS_MIN: usize = 6;
/// Runs that are looked through for a shortened id, the latest first.
const PREFIX_RUNS_MAX: usize = 20_000;
/// Letters of a shortened revision.
const REVISION_LETTERS_MIN: usize = 4;

/// The run that `text` names: its id, the beginning of it, or `latest`.
pub async fn run_id(store: &dyn Store, text: &str) -> Result<RunId, ApiError> {
    if text == "latest" {
        let latest = store.list_runs(&RunQuery { limit: 1, ..RunQuery::default() }).await?;
        return latest.first().map(|row| row.run.run_id).ok_or_else(|| {
            ApiError::not_found("run_not_found", "the store has no runs")
                .help("start one with `flowgate run FILE`")
        });
    }
    if let Ok(run_id) = text.parse::<RunId>() {
        return Ok(run_id);
    }
    let prefix = text.to_ascii_lowercase();
    let is_hex = prefix.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    if !is_hex || prefix.len() < PREFIX_LETTERS_MIN {
        let message = format!("`{text}` is not a run id");
        return Err(ApiError::invalid("run_id_invalid", message)
            .help(format!(
                "write the id, its first {PREFIX_LETTERS_MIN} letters or more, or latest"
            ))
            .path(text));
    }
    by_prefix(store, &prefix).await
}

async fn by_prefix(store: &dyn Store, prefix: &str) -> Result<RunId, ApiError> {
    let mut found: Vec<RunId> = Vec::new();
    let mut seen = 0;
    let mut query = RunQuery { limit: PAGE_MAX, ..RunQuery::default() };
    while seen < PREFIX_RUNS_MAX && found.len() < 2 {
        let page = store.list_runs(&query).await?;
        seen += page.len();
        let ids = page.iter().map(|row| row.run.run_id);
        found.extend(ids.filter(|run_id| run_id.to_string().starts_with(prefix)));
        match page.last() {
            Some(last) if page.len() == query.limit => query.after = Some(cursor_of(last)),
            Some(_) | None => break,
        }
    }
    if found.len() < 2 {
        let debounced = find_debounced(store, prefix).await?;
        found.extend(debounced.iter().map(|debounced| debounced.run_id));
    }
    match found.as_slice() {
        [run_id] => Ok(*run_id),
        [] => Err(no_run(prefix)),
        many => {
            let message = format!("more than one run begins with `{prefix}`");
            let ids: Vec<String> = many.iter().take(2).map(ToString::to_string).collect();
            Err(ApiError::conflict("run_ambiguous", message)
                .help(format!("write more letters: {}", ids.join(" or ")))
                .path(prefix))
        }
    }
}

fn no_run(text: &str) -> ApiError {
    ApiError::not_found("run_not_found", format!("there is no run {text} in the store"))
        .help("see `flowgate runs list`; `flowgate config show` names the store")
        .path(text)
}

/// Where the page that ends with `row` ends.
pub fn cursor_of(row: &RunRow) -> RunCursor {
    RunCursor { started_at: row.started_at, run_id: row.run.run_id }
}

/// The run and its open jobs.
pub async fn run(store: &dyn Store, run_id: RunId) -> Result<RunDetail, ApiError> {
    if let Some(found) = store.read_run(run_id).await? {
        return Ok(found);
    }
    let text = run_id.to_string();
    let debounced = find_debounced(store, &text).await?.into_iter().next();
    // It may just have begun.
    let found = store.read_run(run_id).await?;
    found.ok_or_else(|| debounced.map_or_else(|| no_run(&text), not_begun))
}

fn not_begun(debounced: Debounced) -> ApiError {
    let Debounced { run_id, flow, due_at, starts, error } = debounced;
    let starts = if starts == 1 { "one start".to_owned() } else { format!("{starts} starts") };
    let message = match error {
        None => format!(
            "run {run_id} of flow `{flow}` is not started yet: debounced until {due_at}, {starts} \
             so far"
        ),
        Some(error) => format!(
            "run {run_id} of flow `{flow}` is not started yet: debounced until {due_at}, then it \
             could not be started: {error}"
        ),
    };
    ApiError::not_found("run_not_found", message)
        .help(
            "it begins when no more starts come, as soon as an instance leads: see `flowgate \
             instances --leader`",
        )
        .path(run_id.to_string())
}

/// The revision that a run is pinned to.
pub async fn flow_of(store: &dyn Store, run: &Run) -> Result<Flow, ApiError> {
    let Some(found) = store.read_revision(&run.flow, Some(&run.revision)).await? else {
        let message = format!("the store has no revision {} of flow `{}`", run.revision, run.flow);
        return Err(ApiError::not_found("revision_not_found", message));
    };
    compile(found)
}

/// The stored revision as the rules use it.
pub fn compile(stored: StoredRevision) -> Result<Flow, ApiError> {
    let name = stored.revision.file.flow.clone();
    Flow::new(stored.revision.file).map_err(|problems| {
        let first = problems.first().map(ToString::to_string).unwrap_or_default();
        let message = format!("flow `{name}` in the store is not valid here: {first}");
        ApiError::conflict("flow_invalid", message).path(name)
    })
}

/// The revision that `text` names: `FLOW` is its active one, `FLOW@REVISION` any.
pub async fn revision(store: &dyn Store, text: &str) -> Result<StoredRevision, ApiError> {
    let (name, wanted) = match text.split_once('@') {
        Some((name, wanted)) => (name, Some(wanted)),
        None => (text, None),
    };
    let revisions = store.list_revisions(Some(name)).await?;
    if revisions.is_empty() {
        return Err(no_flow(store, name).await?);
    }
    let Some(wanted) = wanted else {
        let active = revisions.into_iter().find(|stored| stored.active);
        return Ok(active.expect("a flow with revisions has an active one"));
    };
    let known: Vec<Revision> =
        revisions.iter().map(|stored| stored.revision.revision.clone()).collect();
    let matches = |stored: &StoredRevision| {
        wanted.len() >= REVISION_LETTERS_MIN && stored.revision.revision.0.starts_with(wanted)
    };
    revisions.into_iter().find(matches).ok_or_else(|| {
        let known: Vec<&str> = known.iter().map(|revision| &*revision.0).collect();
        let message = format!("flow `{name}` has no revision `{wanted}`");
        ApiError::not_found("revision_not_found", message)
            .help(format!("it has {}", known.join(", ")))
            .path(text)
    })
}

/// What to say about a flow that the store does not have.
pub async fn no_flow(store: &dyn Store, name: &str) -> Result<ApiError, ApiError> {
    let all = store.list_revisions(None).await?;
    let names: Vec<&str> = all.iter().map(|stored| stored.revision.file.flow.as_str()).collect();
    let help = match nearest(name, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => {
            "see `flowgate flows list`; `flowgate run FILE` and `flowgate dev` add flows".into()
        }
    };
    let error = ApiError::not_found("flow_not_found", format!("there is no flow `{name}`"));
    Ok(error.help(help).path(name))
}

/// A point in time: RFC 3339, or a length of time before `now`.
pub fn time(flag: &str, text: &str, now: Timestamp) -> Result<Timestamp, ApiError> {
    if let Ok(Span(ago)) = text.parse::<Span>() {
        return Ok(now.minus(ago));
    }
    let time: jiff::Timestamp = text.parse().map_err(|_| {
        ApiError::bad_request("time_invalid", format!("{flag}: `{text}` is not a point in time"))
            .help("write `1h` for an hour ago, or a time such as 2026-01-31T12:00:00Z")
            .path(flag)
    })?;
    Ok(Timestamp(time.as_millisecond()))
}

/// How long a run has taken, or took.
pub fn took(row: &RunRow, now: Timestamp) -> Duration {
    row.ended_at.unwrap_or(now).since(row.started_at)
}

/// The name of a flow as stores look for it.
pub fn flow_name(name: Option<&str>) -> Option<Arc<str>> {
    name.map(Into::into)
}

/// What became of a failed run, if somebody has dealt with it.
pub async fn fate(store: &dyn Store, run: &Run) -> Result<Option<FateItem>, ApiError> {
    if run.status != RunStatus::Failed {
        return Ok(None);
    }
    let fate = flowgate_engine::fate_of(store, run.run_id).await?;
    Ok(fate.map(|(fate, at)| FateItem { fate, at: at.to_string() }))
}

/// Whether an instance has not been heard of for longer than it should.
pub fn is_silent(row: &InstanceRow, now: Timestamp) -> bool {
    now.since(row.seen_at).as_millis() > u128::from(row.beat.silent_ms_max)
}

/// The gate of a flow.
pub async fn gate(store: &dyn Store, flow: &Arc<str>) -> Result<Gate, StoreError> {
    let found = store.read_records(GATE, std::slice::from_ref(flow)).await?;
    gate_of(found.first().and_then(Option::as_ref))
}
