//! `/schedules`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use flowgate_core::schedule::Fate;
use utoipa_axum::routes;

use crate::auth::Scope;
use crate::body;
use crate::error::ApiError;
use crate::host::Host;
use crate::path::Path;
use crate::query::{Query, invalid};
use crate::routes::Routes;
use crate::wire::schedules::{
    AddSchedule, Backfill, DueTimes, OccurrenceItem, OccurrencesQuery, ScheduleDetail,
    ScheduleItem, SchedulesQuery,
};
use crate::wire::{Items, Page};

pub mod ops;

/// Due times that are told at most.
const NEXT_MAX: usize = 1_000;
const NEXT_DEFAULT: usize = 10;

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(Scope::Read, routes!(list))
        .add(Scope::Deploy, routes!(create))
        .add(Scope::Read, routes!(show))
        .add(Scope::Deploy, routes!(remove))
        .add(Scope::Read, routes!(next))
        .add(Scope::Read, routes!(occurrences))
        .add(Scope::Run, routes!(pause))
        .add(Scope::Run, routes!(resume))
        .add(Scope::Run, routes!(trigger))
        .add(Scope::Run, routes!(backfill))
}

/// List schedules
#[utoipa::path(get, path = "/schedules", tag = "schedules",
    params(
        ("flow" = Option<String>, Query, description = "Only those of this flow"),
        ("limit" = Option<u64>, Query, description = "At most this many; never more than 200", minimum = 1),
        ("after" = Option<String>, Query, description = "Go on after the one of this name"),
    ),
    responses((status = 200, description = "Schedules by name.", body = Page<ScheduleItem>)))]
async fn list(
    State(host): State<Host>,
    mut query: Query,
) -> Result<Json<Page<ScheduleItem>>, ApiError> {
    let wanted = SchedulesQuery {
        flow: query.one("flow")?,
        limit: query.limit()?,
        after: query.one("after")?,
    };
    query.end()?;
    ops::list(&*host.store()?, &wanted).await.map(Json)
}

/// Add a schedule
#[utoipa::path(post, path = "/schedules", tag = "schedules", request_body = AddSchedule,
    responses((status = 201, description = "It is stored.", body = ScheduleItem)))]
async fn create(
    State(host): State<Host>,
    body::Json(request): body::Json<AddSchedule>,
) -> Result<(StatusCode, Json<ScheduleItem>), ApiError> {
    Ok((StatusCode::CREATED, Json(ops::add(&host.engine()?, request).await?)))
}

/// Show a schedule
#[utoipa::path(get, path = "/schedules/{name}", tag = "schedules",
    params(("name" = String, Path, description = "The schedule; a `/` in it is `%2F`")),
    responses((status = 200, description = "It, what comes next and what became of the last.", body = ScheduleDetail)))]
async fn show(
    State(host): State<Host>,
    Path(name): Path<String>,
    query: Query,
) -> Result<Json<ScheduleDetail>, ApiError> {
    query.end()?;
    ops::show(&*host.store()?, &name).await.map(Json)
}

/// Remove a schedule
///
/// Its ledger and its runs stay. One that comes with a flow file is removed there.
#[utoipa::path(delete, path = "/schedules/{name}", tag = "schedules",
    params(("name" = String, Path, description = "The schedule")),
    responses((status = 200, description = "As it was.", body = ScheduleItem)))]
async fn remove(
    State(host): State<Host>,
    Path(name): Path<String>,
) -> Result<Json<ScheduleItem>, ApiError> {
    ops::remove(&host.engine()?, &name).await.map(Json)
}

/// Say when a schedule is due
#[utoipa::path(get, path = "/schedules/{name}/next", tag = "schedules",
    params(
        ("name" = String, Path, description = "The schedule"),
        ("n" = Option<u64>, Query, description = "How many times; 10 without, never more than 1000", minimum = 1),
        ("from" = Option<String>, Query, description = "After this time, or this long ago; now without"),
    ),
    responses((status = 200, description = "The next due times.", body = DueTimes)))]
async fn next(
    State(host): State<Host>,
    Path(name): Path<String>,
    mut query: Query,
) -> Result<Json<DueTimes>, ApiError> {
    let n = match query.number::<u64>("n")? {
        None => NEXT_DEFAULT,
        Some(0) => return Err(invalid("n", "it is at least 1")),
        Some(n) => usize::try_from(n).unwrap_or(usize::MAX).min(NEXT_MAX),
    };
    let from = query.one("from")?;
    query.end()?;
    ops::next(&*host.store()?, &name, (from.as_deref(), n)).await.map(Json)
}

/// List the occurrences of a schedule
#[utoipa::path(get, path = "/schedules/{name}/occurrences", tag = "schedules",
    params(
        ("name" = String, Path, description = "The schedule; also one that was removed"),
        ("fate" = Option<String>, Query, description = "Only those with one of these fates, with commas between"),
        ("limit" = Option<u64>, Query, description = "At most this many; never more than 200", minimum = 1),
        ("after" = Option<String>, Query, description = "Go on with those due before this time"),
    ),
    responses((status = 200, description = "The ledger, the latest first.", body = Page<OccurrenceItem>)))]
async fn occurrences(
    State(host): State<Host>,
    Path(name): Path<String>,
    mut query: Query,
) -> Result<Json<Page<OccurrenceItem>>, ApiError> {
    let fate = |name: &String| {
        Fate::ALL.into_iter().find(|fate| fate.as_str() == name).ok_or_else(|| {
            let known = Fate::ALL.map(Fate::as_str).join(", ");
            invalid("fate", &format!("`{name}` is none of {known}"))
        })
    };
    let wanted = OccurrencesQuery {
        fates: query.list("fate").iter().map(fate).collect::<Result<_, _>>()?,
        limit: query.limit()?,
        after: query.one("after")?,
    };
    query.end()?;
    ops::occurrences(&*host.store()?, &name, &wanted).await.map(Json)
}

/// Pause a schedule
///
/// Its occurrences are skipped until it is resumed.
#[utoipa::path(post, path = "/schedules/{name}/pause", tag = "schedules",
    params(("name" = String, Path, description = "The schedule")),
    responses((status = 200, description = "As it is now.", body = ScheduleItem)))]
async fn pause(
    State(host): State<Host>,
    Path(name): Path<String>,
) -> Result<Json<ScheduleItem>, ApiError> {
    ops::pause(&host.engine()?, &name, true).await.map(Json)
}

/// Resume a schedule
///
/// What was due while it was paused stays skipped.
#[utoipa::path(post, path = "/schedules/{name}/resume", tag = "schedules",
    params(("name" = String, Path, description = "The schedule")),
    responses((status = 200, description = "As it is now.", body = ScheduleItem)))]
async fn resume(
    State(host): State<Host>,
    Path(name): Path<String>,
) -> Result<Json<ScheduleItem>, ApiError> {
    ops::pause(&host.engine()?, &name, false).await.map(Json)
}

/// Start a run of a schedule now
///
/// Whichever instance leads starts it.
#[utoipa::path(post, path = "/schedules/{name}/trigger", tag = "schedules",
    params(("name" = String, Path, description = "The schedule")),
    responses((status = 200, description = "The occurrence, with the id of its run.", body = OccurrenceItem)))]
async fn trigger(
    State(host): State<Host>,
    Path(name): Path<String>,
) -> Result<Json<OccurrenceItem>, ApiError> {
    ops::trigger(&host.engine()?, &name).await.map(Json)
}

/// Start what was due in a range and has no run
#[utoipa::path(post, path = "/schedules/{name}/backfill", tag = "schedules", request_body = Backfill,
    params(("name" = String, Path, description = "The schedule")),
    responses((status = 200, description = "The occurrences that are started.", body = Items<OccurrenceItem>)))]
async fn backfill(
    State(host): State<Host>,
    Path(name): Path<String>,
    body::Json(range): body::Json<Backfill>,
) -> Result<Json<Items<OccurrenceItem>>, ApiError> {
    ops::backfill(&host.engine()?, &name, &range).await.map(Json)
}
