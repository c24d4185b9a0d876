//! `/dead`.

use axum::Json;
use axum::extract::State;
use utoipa_axum::routes;

use crate::auth::Scope;
use crate::body;
use crate::error::ApiError;
use crate::host::Host;
use crate::query::{Query, invalid};
use crate::routes::Routes;
use crate::wire::dead::{DeadGroups, DeadMessagePage, DeadPage, DeadWanted, DealRequest, Dealt};

pub mod ops;

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(Scope::Read, routes!(list))
        .add(Scope::Read, routes!(groups))
        .add(Scope::Read, routes!(messages))
        .add(Scope::Run, routes!(retry))
        .add(Scope::Run, routes!(discard))
}

fn wanted(query: &mut Query) -> Result<DeadWanted, ApiError> {
    let tag = |text: String| match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err(invalid("tag", &format!("`{text}` is not name=value"))),
    };
    Ok(DeadWanted {
        flow: query.one("flow")?,
        step: query.one("step")?,
        kind: query.one("kind")?,
        reason: query.one("reason")?,
        since: query.one("since")?,
        tags: query.all("tag").into_iter().map(tag).collect::<Result<_, _>>()?,
    })
}

/// List dead letters
///
/// A dead letter is a failed run that nobody has tried again or dropped.
#[utoipa::path(get, path = "/dead", tag = "dead letters",
    params(
        ("flow" = Option<String>, Query, description = "Only those of this flow"),
        ("step" = Option<String>, Query, description = "Only those whose failed step is this one"),
        ("kind" = Option<String>, Query, description = "Only those with this kind of failure"),
        ("reason" = Option<String>, Query, description = "Only those whose kind or message holds this"),
        ("since" = Option<String>, Query, description = "Only those started since: a time, or a span such as `1h`"),
        ("tag" = Option<String>, Query, description = "Only those with this tag, `name=value`; may be repeated"),
        ("limit" = Option<u64>, Query, description = "At most this many; never more than 200", minimum = 1),
        ("after" = Option<String>, Query, description = "Go on after this cursor"),
    ),
    responses((status = 200, description = "The latest first.", body = DeadPage)))]
async fn list(State(host): State<Host>, mut query: Query) -> Result<Json<DeadPage>, ApiError> {
    let wanted = wanted(&mut query)?;
    let (limit, after) = (query.limit()?, query.one("after")?);
    query.end()?;
    let store = host.store()?;
    ops::list(&*store, &wanted, (limit, after.as_deref())).await.map(Json)
}

/// Count dead letters by reason
#[utoipa::path(get, path = "/dead/groups", tag = "dead letters",
    params(
        ("flow" = Option<String>, Query, description = "Only those of this flow"),
        ("step" = Option<String>, Query, description = "Only those whose failed step is this one"),
        ("kind" = Option<String>, Query, description = "Only those with this kind of failure"),
        ("reason" = Option<String>, Query, description = "Only those whose kind or message holds this"),
        ("since" = Option<String>, Query, description = "Only those started since: a time, or a span such as `1h`"),
        ("tag" = Option<String>, Query, description = "Only those with this tag, `name=value`; may be repeated"),
    ),
    responses((status = 200, description = "The most first.", body = DeadGroups)))]
async fn groups(State(host): State<Host>, mut query: Query) -> Result<Json<DeadGroups>, ApiError> {
    let wanted = wanted(&mut query)?;
    query.end()?;
    ops::groups(&*host.store()?, &wanted).await.map(Json)
}

/// List dead messages
///
/// A dead message came from outside, such as from a broker of MQTT, and could not become a run.
/// It is kept for 7 days, with the first 64 KiB of its payload.
#[utoipa::path(get, path = "/dead/messages", tag = "dead letters",
    params(
        ("subscription" = Option<String>, Query, description = "Only those that came by this subscription"),
        ("limit" = Option<u64>, Query, description = "At most this many; never more than 200", minimum = 1),
        ("after" = Option<String>, Query, description = "Go on after this cursor"),
    ),
    responses((status = 200, description = "The last of each subscription first.", body = DeadMessagePage)))]
async fn messages(
    State(host): State<Host>,
    mut query: Query,
) -> Result<Json<DeadMessagePage>, ApiError> {
    let subscription: Option<String> = query.one("subscription")?;
    let (limit, after) = (query.limit()?, query.one("after")?);
    query.end()?;
    let store = host.store()?;
    ops::messages(&*store, subscription.as_deref(), (limit, after)).await.map(Json)
}

/// Try dead letters again
///
/// Each as a new run, which takes over what succeeded.
#[utoipa::path(post, path = "/dead/retry", tag = "dead letters", request_body = DealRequest,
    responses((status = 200, description = "What became of them.", body = Dealt)))]
async fn retry(
    State(host): State<Host>,
    body::Json(request): body::Json<DealRequest>,
) -> Result<Json<Dealt>, ApiError> {
    let deal = ops::Deal::Retry(ops::retry_on(&request)?);
    ops::deal(&host.engine()?, &request, deal).await.map(Json)
}

/// Drop dead letters
///
/// Their runs stay as they are.
#[utoipa::path(post, path = "/dead/drop", tag = "dead letters", request_body = DealRequest,
    responses((status = 200, description = "What became of them.", body = Dealt)))]
async fn discard(
    State(host): State<Host>,
    body::Json(request): body::Json<DealRequest>,
) -> Result<Json<Dealt>, ApiError> {
    if request.revision.is_some() {
        let message = "what is dropped is on no revision";
        return Err(ApiError::invalid("field_invalid", message).path("revision"));
    }
    ops::deal(&host.engine()?, &request, ops::Deal::Drop).await.map(Json)
}
