//! `/audit`, and the trail of a run.

use axum::Json;
use axum::extract::State;
use utoipa_axum::routes;

use crate::auth::Scope;
use crate::error::ApiError;
use crate::host::Host;
use crate::path::Path;
use crate::query::Query;
use crate::routes::Routes;
use crate::wire::Page;
use crate::wire::audit::{AuditEntry, AuditFigures, RunTrail};

mod ops;

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(Scope::Read, routes!(list))
        .add(Scope::Read, routes!(summary))
        .add(Scope::Read, routes!(trail))
}

/// List audit entries
///
/// Each run has an inbound entry and, once it has ended, an outbound one. They are read from its
/// log, and kept as long as that is.
#[utoipa::path(get, path = "/audit", tag = "audit",
    params(
        ("flow" = Option<String>, Query, description = "Only those of this flow"),
        ("direction" = Option<String>, Query, description = "Only `inbound` or `outbound` ones"),
        ("since" = Option<String>, Query, description = "Only those of runs accepted since: a time, or a span such as `1h`"),
        ("until" = Option<String>, Query, description = "Only those of runs accepted before"),
        ("limit" = Option<u64>, Query, description = "Those of at most this many runs; never more than 200", minimum = 1),
        ("after" = Option<String>, Query, description = "Go on after this cursor"),
    ),
    responses((status = 200, description = "Entries, those of the run that was accepted last first.", body = Page<AuditEntry>)))]
async fn list(
    State(host): State<Host>,
    mut query: Query,
) -> Result<Json<Page<AuditEntry>>, ApiError> {
    let wanted = ops::Wanted {
        flow: query.one("flow")?,
        direction: query.one("direction")?,
        since: query.one("since")?,
        until: query.one("until")?,
        limit: query.limit()?,
        after: query.one("after")?,
    };
    query.end()?;
    ops::list(&*host.store()?, &wanted).await.map(Json)
}

/// Say how flows did
///
/// Of each flow how many runs were accepted since a time, how many of them have ended, how long
/// they took and how many failed.
#[utoipa::path(get, path = "/audit/summary", tag = "audit",
    params(
        ("flow" = Option<String>, Query, description = "Only this flow"),
        ("since" = Option<String>, Query, description = "Runs accepted since: a time, or a span such as `1h`, which it is without"),
    ),
    responses((status = 200, description = "Two lines of each flow.", body = AuditFigures)))]
async fn summary(
    State(host): State<Host>,
    mut query: Query,
) -> Result<Json<AuditFigures>, ApiError> {
    let (flow, since) = (query.one("flow")?, query.one("since")?);
    query.end()?;
    ops::summary(&*host.store()?, flow.as_deref(), since.as_deref()).await.map(Json)
}

/// Show what was done with a run
///
/// Its entries, and every attempt with its instance, its revision and how long it took, and when it
/// was held, released, stopped and moved.
#[utoipa::path(get, path = "/runs/{run}/audit", tag = "audit",
    params(("run" = String, Path, description = "A run id, its first 6 letters or more, or `latest`")),
    responses((status = 200, description = "Its trail.", body = RunTrail), (status = 409, description = "More than one run begins like this.", body = crate::wire::ErrorBody)))]
async fn trail(
    State(host): State<Host>,
    Path(run): Path<String>,
    query: Query,
) -> Result<Json<RunTrail>, ApiError> {
    query.end()?;
    ops::trail(&*host.store()?, &run).await.map(Json)
}
