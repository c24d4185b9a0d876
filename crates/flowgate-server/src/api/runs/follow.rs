//! What happens, as it happens.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use utoipa_axum::routes;

use crate::auth::Scope;
use crate::error::ApiError;
use crate::host::Host;
use crate::live::stream;
use crate::lookup;
use crate::path::Path;
use crate::query::{Query, invalid};
use crate::routes::Routes;

pub(super) fn add(routes: Routes) -> Routes {
    routes.add(Scope::Read, routes!(follow_run)).add(Scope::Read, routes!(look))
}

/// Follow a run
///
/// Server-sent events: `event` with an event of the run, and its number as the id; `end` with the
/// status after the last one, and then the stream ends; `lagged` if the caller did not read for too
/// long, and then too. Whoever comes back goes on after the header `Last-Event-ID`.
#[utoipa::path(get, path = "/runs/{run}/stream", operation_id = "follow_run", tag = "runs",
    params(
        ("run" = String, Path, description = "A run id, its first 6 letters or more, or `latest`"),
        ("after" = Option<u64>, Query, description = "Only events with greater numbers"),
        ("last-event-id" = Option<u64>, Header, description = "The same, as browsers send it"),
    ),
    responses((status = 200, description = "Server-sent events.", body = String, content_type = "text/event-stream"), (status = 409, description = "More than one run begins like this.", body = crate::wire::ErrorBody)))]
async fn follow_run(
    State(host): State<Host>,
    Path(run): Path<String>,
    headers: HeaderMap,
    mut query: Query,
) -> Result<Response, ApiError> {
    let mut after = query.number::<u64>("after")?.unwrap_or(0);
    query.end()?;
    if let Some(last) = headers.get("last-event-id") {
        let read = last.to_str().ok().and_then(|text| text.trim().parse().ok());
        after = read.ok_or_else(|| invalid("last-event-id", "it is not the number of an event"))?;
    }
    let engine = host.engine()?;
    let store = engine.store();
    let run_id = lookup::run_id(&**store, &run).await?;
    let run = lookup::run(&**store, run_id).await?.row.run;
    let name = (run.flow.clone(), run.revision.clone());
    // From here on the hub tells what happens, so what the log has not got yet is not missed.
    let following = host.live().follow(&engine, run_id, name).await?;
    Ok(stream::answer(stream::run_stream(store.clone(), following, after)))
}

/// Look at all runs
///
/// Server-sent events: `runs` with the runs that something happened to, at most four times a second;
/// `tick` with the time, every five seconds; `lagged` if the caller did not read for too long, and
/// then the stream ends.
#[utoipa::path(get, path = "/live", operation_id = "look_at_runs", tag = "runs",
    params(("flow" = Option<String>, Query, description = "Only runs of this flow")),
    responses((status = 200, description = "Server-sent events.", body = String, content_type = "text/event-stream")))]
async fn look(State(host): State<Host>, mut query: Query) -> Result<Response, ApiError> {
    let flow = query.one("flow")?;
    query.end()?;
    let looking = host.live().look(&host.engine()?, flow.map(Into::into)).await?;
    Ok(stream::answer(stream::look_stream(looking)))
}
