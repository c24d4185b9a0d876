//! Events for other programs.

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use utoipa_axum::routes;

use super::ops::export::{self, Wanted};
use crate::auth::Scope;
use crate::error::ApiError;
use crate::host::Host;
use crate::lookup;
use crate::path::Path;
use crate::query::Query;
use crate::routes::Routes;

pub(super) fn add(routes: Routes) -> Routes {
    routes.add(Scope::Read, routes!(export_run)).add(Scope::Read, routes!(export_all))
}

/// Export the events of a run
///
/// One line of JSON for each event.
#[utoipa::path(get, path = "/runs/{run}/export", operation_id = "export_run", tag = "runs",
    params(
        ("run" = String, Path, description = "A run id, its first 6 letters or more, or `latest`"),
        ("since" = Option<String>, Query, description = "Only events since: a time, or a span such as `1h`"),
    ),
    responses((status = 200, description = "Lines of JSON.", body = String, content_type = "application/x-ndjson"), (status = 409, description = "More than one run begins like this.", body = crate::wire::ErrorBody)))]
async fn export_run(
    State(host): State<Host>,
    Path(run): Path<String>,
    mut query: Query,
) -> Result<Response, ApiError> {
    let since = query.one("since")?;
    query.end()?;
    let store = host.store()?;
    let run_id = lookup::run_id(&*store, &run).await?;
    lookup::run(&*store, run_id).await?;
    let wanted = Wanted { run_id: Some(run_id), flow: None, since: None };
    answer(&host, wanted, since.as_deref(), &format!("run-{run_id}")).await
}

/// Export all events
///
/// One line of JSON for each event, in commit order; where a store has several feeds, one feed
/// comes after the other, and a run is in one of them.
#[utoipa::path(get, path = "/runs/export", operation_id = "export_runs", tag = "runs",
    params(
        ("flow" = Option<String>, Query, description = "Only runs of this flow"),
        ("since" = Option<String>, Query, description = "Only events since: a time, or a span such as `1h`"),
    ),
    responses((status = 200, description = "Lines of JSON.", body = String, content_type = "application/x-ndjson")))]
async fn export_all(State(host): State<Host>, mut query: Query) -> Result<Response, ApiError> {
    let (flow, since) = (query.one("flow")?, query.one("since")?);
    query.end()?;
    answer(&host, Wanted { flow, ..Wanted::default() }, since.as_deref(), "runs").await
}

async fn answer(
    host: &Host,
    wanted: Wanted,
    since: Option<&str>,
    name: &str,
) -> Result<Response, ApiError> {
    let store = host.store()?;
    let since = match since {
        Some(text) => Some(lookup::time("since", text, store.now().await?)?),
        None => None,
    };
    let lines = export::export(store, Wanted { since, ..wanted });
    let headers = [
        (header::CONTENT_TYPE, "application/x-ndjson".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}.ndjson\"")),
    ];
    Ok((headers, Body::from_stream(lines)).into_response())
}
