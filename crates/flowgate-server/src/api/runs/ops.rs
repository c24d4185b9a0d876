//! What can be asked about runs, for whoever has an engine or a store at hand.

use std::time::Duration;

use flowgate_core::commit::Due;
use flowgate_core::ids::RunId;
use flowgate_core::limits::PAYLOAD_BYTES_MAX;
use flowgate_core::payload::Payload;
use flowgate_core::run::{Run, RunStatus};
use flowgate_core::time::Timestamp;
use flowgate_engine::{Engine, EngineError, StartDebounce, StartRequest, Started};
use flowgate_store::{RunCursor, RunQuery, RunRow, Store};

use crate::error::ApiError;
use crate::identifier;
use crate::lookup;
use crate::query::{LIMIT_MAX, invalid};
use crate::wire::CountedPage;
use crate::wire::runs::{Failure, RunItem, RunRef, RunsQuery, StartRun};

pub mod bulk;
pub mod export;
pub mod log;
pub mod moves;
pub mod of_flow;
mod search;
pub mod show;
pub mod steer;
pub mod timeline;
pub mod why;

/// Starts a run. The answer means that it is stored.
pub async fn start(engine: &Engine, request: StartRun) -> Result<RunRef, ApiError> {
    let StartRun { flow, input, key, tags, singleton, priority, delay_ms, at, debounce } = request;
    identifier::check("flow", &flow)?;
    let due = match (delay_ms, at) {
        (None, None) => Due::Now,
        (Some(ms), None) => Due::After(Duration::from_millis(ms)),
        (None, Some(at)) => Due::At(point_in_time("at", &at)?),
        (Some(_), Some(_)) => {
            let message = "a start has `delay_ms` or `at`, not both";
            return Err(ApiError::invalid("field_invalid", message).path("at"));
        }
    };
    let input = payload("input", input)?;
    let request = StartRequest {
        key: key.map(Into::into),
        tags: tags.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        singleton: singleton.map(Into::into),
        priority,
        due,
        debounce: debounce.map_or(StartDebounce::OfFlow, |debounce| StartDebounce::By {
            key: debounce.key.into(),
            window: Duration::from_millis(debounce.window_ms),
            max: debounce.max_ms.map(Duration::from_millis),
        }),
        ..StartRequest::new(input)
    };
    let store = &**engine.store();
    match engine.start_run(&*flow, request).await {
        Ok(Started { run: Some(run), .. }) => Ok(run_ref(&run, false)),
        Ok(Started { run_id, existing: existed, debounced_until: Some(until), .. }) => Ok(RunRef {
            run_id,
            flow: flow.into(),
            revision: None,
            status: None,
            existed,
            debounced_until: Some(until.to_string()),
        }),
        Ok(started) => {
            let run = lookup::run(store, started.run_id).await?.row.run;
            Ok(run_ref(&run, started.existing))
        }
        Err(EngineError::NoFlow(name)) => Err(lookup::no_flow(store, &name).await?),
        Err(error) => Err(error.into()),
    }
}

/// What a request sends to a step; `{}` if it sends nothing.
fn payload(field: &str, given: Option<Payload>) -> Result<Payload, ApiError> {
    let Some(given) = given else { return Ok(Payload::parse("{}").expect("it is JSON")) };
    if given.bytes() > PAYLOAD_BYTES_MAX {
        let message = format!("`{field}` has more than {PAYLOAD_BYTES_MAX} bytes");
        let status = axum::http::StatusCode::PAYLOAD_TOO_LARGE;
        return Err(ApiError::new(status, "body_too_large", message).path(field));
    }
    Ok(given)
}

/// A run that a request was about.
pub fn run_ref(run: &Run, existed: bool) -> RunRef {
    RunRef {
        run_id: run.run_id,
        flow: run.flow.clone(),
        revision: Some(run.revision.clone()),
        status: Some(run.status),
        existed,
        debounced_until: None,
    }
}

fn point_in_time(field: &str, text: &str) -> Result<Timestamp, ApiError> {
    let time: jiff::Timestamp = text.parse().map_err(|_| {
        ApiError::invalid("field_invalid", format!("`{text}` is not a point in time"))
            .help("write a time such as 2026-01-31T12:00:00Z")
            .path(field)
    })?;
    Ok(Timestamp(time.as_millisecond()))
}

/// A page of runs, the latest started first.
pub async fn list(store: &dyn Store, wanted: &RunsQuery) -> Result<CountedPage<RunItem>, ApiError> {
    let limit = wanted.limit.unwrap_or(50).clamp(1, LIMIT_MAX);
    let mut query = run_query(wanted, store.now().await?)?;
    if let Some(text) = &wanted.search {
        let rows = search::search(store, &query, text, limit).await?;
        let total = u64::try_from(rows.len()).unwrap_or(u64::MAX);
        return Ok(CountedPage { items: rows.iter().map(item).collect(), total, next: None });
    }
    // One row more than the page, to know whether there is another.
    query.limit = limit + 1;
    let mut rows = store.list_runs(&query).await?;
    let total = store.count_runs(&query).await?;
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| has_more).map(|row| show_cursor(lookup::cursor_of(row)));
    Ok(CountedPage { items: rows.iter().map(item).collect(), total, next })
}

/// The store's form of a query.
fn run_query(wanted: &RunsQuery, now: Timestamp) -> Result<RunQuery, ApiError> {
    let time = |name: &str, text: &Option<String>| {
        text.as_deref().map(|text| lookup::time(name, text, now)).transpose()
    };
    let status = |name: &String| {
        RunStatus::ALL.into_iter().find(|status| status.as_str() == name).ok_or_else(|| {
            let known = RunStatus::ALL.map(RunStatus::as_str).join(", ");
            invalid("status", &format!("`{name}` is none of {known}"))
        })
    };
    let tag = |text: &String| match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        Some(_) | None => Err(invalid("tag", &format!("`{text}` is not name=value"))),
    };
    Ok(RunQuery {
        flow: lookup::flow_name(wanted.flow.as_deref()),
        statuses: wanted.status.iter().map(status).collect::<Result<_, _>>()?,
        since: time("since", &wanted.since)?,
        until: time("until", &wanted.until)?,
        tags: wanted.tag.iter().map(tag).collect::<Result<_, _>>()?,
        after: wanted.after.as_deref().map(parse_cursor).transpose()?,
        limit: 0,
    })
}

/// A run in a list.
pub fn item(row: &RunRow) -> RunItem {
    let run = &row.run;
    let took = row.ended_at.map(|ended| ended.since(row.started_at));
    RunItem {
        run_id: run.run_id,
        flow: run.flow.clone(),
        revision: run.revision.clone(),
        status: run.status,
        started_at: row.started_at.to_string(),
        updated_at: row.updated_at.to_string(),
        ended_at: row.ended_at.map(|at| at.to_string()),
        duration_ms: took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
        key: run.key.clone(),
        tags: run.tags.clone(),
        retry_of: run.retry_of,
        failure: run.failure.as_ref().map(|failure| Failure {
            step: failure.step.clone(),
            message: failure.error.message.clone(),
            kind: failure.error.kind,
        }),
    }
}

/// A cursor as callers pass it on without looking into it.
pub(crate) fn show_cursor(cursor: RunCursor) -> String {
    format!("{:x}.{}", cursor.started_at.0, cursor.run_id.0.simple())
}

pub(crate) fn parse_cursor(text: &str) -> Result<RunCursor, ApiError> {
    let read = || {
        let (time, run_id) = text.split_once('.')?;
        let started_at = Timestamp(i64::from_str_radix(time, 16).ok()?);
        let run_id: RunId = run_id.parse().ok()?;
        Some(RunCursor { started_at, run_id })
    };
    read().ok_or_else(|| {
        ApiError::bad_request("cursor_invalid", format!("`{text}` is not a cursor"))
            .help("pass on the `next` of the last page, as it is")
            .path("after")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_being_shown() {
        let cursor = RunCursor {
            started_at: Timestamp(1_700_000_000_123),
            run_id: RunId::derived("a", "b"),
        };
        assert_eq!(parse_cursor(&show_cursor(cursor)).unwrap(), cursor);
        for bad in ["", "x", "1.2", "-1"] {
            assert_eq!(parse_cursor(bad).unwrap_err().code, "cursor_invalid", "{bad}");
        }
    }
}
