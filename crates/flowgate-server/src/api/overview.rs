//! `/overview`.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use tokio::sync::Mutex;
use tokio::time::Instant;
use utoipa_axum::routes;

use crate::auth::Scope;
use crate::error::ApiError;
use crate::host::Host;
use crate::query::Query;
use crate::routes::Routes;
use crate::wire::overview::Overview;

mod ops;

/// How long an answer is given again.
const KEPT: Duration = Duration::from_secs(1);

/// The last answer. Whoever asks while one is made waits for it.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<Option<(Instant, Arc<Overview>)>>);

pub(super) fn add(routes: Routes) -> Routes {
    routes.add(Scope::Read, routes!(show))
}

/// Show everything at a glance
///
/// It costs the store a bounded number of reads, whatever its history, and at most one set of them
/// a second.
#[utoipa::path(get, path = "/overview", operation_id = "show_overview", tag = "overview",
    responses((status = 200, description = "Everything at a glance.", body = Overview)))]
async fn show(State(host): State<Host>, query: Query) -> Result<Json<Arc<Overview>>, ApiError> {
    query.end()?;
    let mut last = host.overview().0.lock().await;
    if let Some((made, overview)) = &*last
        && made.elapsed() < KEPT
    {
        return Ok(Json(Arc::clone(overview)));
    }
    let overview = Arc::new(ops::overview(&host).await?);
    *last = Some((Instant::now(), Arc::clone(&overview)));
    Ok(Json(overview))
}
