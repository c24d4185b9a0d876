//! `/hooks`: signed messages of other services.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use flowgate_core::payload::Payload;
use utoipa_axum::routes;

use crate::body::{self, BODY_BYTES_MAX};
use crate::error::ApiError;
use crate::host::Host;
use crate::lookup;
use crate::path::Path;
use crate::routes::{Needs, Routes};
use crate::shield;
use crate::webhooks::signature::{self, SignatureError, Signed};
use crate::webhooks::{Effect, Webhook};
use crate::wire::runs::RunRef;

mod ops;

pub(super) fn add(routes: Routes) -> Routes {
    routes.add(Needs::Signature, routes!(start)).add(Needs::Signature, routes!(signal))
}

/// Start a run by a webhook
///
/// The body is the input of the run. The headers `webhook-id`, `webhook-timestamp` and
/// `webhook-signature` are those of Standard Webhooks. A message that comes again gives the run that
/// it started.
#[utoipa::path(post, path = "/hooks/{name}", tag = "hooks",
    params(("name" = String, Path, description = "The webhook, as the settings call it")),
    request_body(content = serde_json::Value, description = "The input"),
    responses((status = 201, description = "The run is stored.", body = RunRef), (status = 200, description = "The message came before; this is its run.", body = RunRef)))]
async fn start(
    State(host): State<Host>,
    Path(name): Path<String>,
    request: Request,
) -> Result<(StatusCode, Json<RunRef>), ApiError> {
    let hook = host.options().webhooks.get(&name);
    let Some((hook, Effect::Start(flow))) = hook.map(|hook| (hook, &hook.effect)) else {
        return Err(no_hook(&name, "starts a run"));
    };
    let message = receive(&host, &name, hook, request).await?;
    let started = ops::start(&host.engine()?, flow, &name, message).await?;
    let status = if started.existed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(started)))
}

/// Send a signal by a webhook
///
/// The body is the data of the signal. A message counts once, whichever run its address names.
#[utoipa::path(post, path = "/hooks/{name}/{run}", tag = "hooks",
    params(
        ("name" = String, Path, description = "The webhook, as the settings call it"),
        ("run" = String, Path, description = "The run: its id, the beginning of it, or `latest`"),
    ),
    request_body(content = serde_json::Value, description = "The data of the signal"),
    responses((status = 200, description = "The run has the signal.", body = RunRef)))]
async fn signal(
    State(host): State<Host>,
    Path((name, run)): Path<(String, String)>,
    request: Request,
) -> Result<Json<RunRef>, ApiError> {
    let hook = host.options().webhooks.get(&name);
    let Some((hook, Effect::Signal(signal))) = hook.map(|hook| (hook, &hook.effect)) else {
        return Err(no_hook(&name, "sends a signal"));
    };
    let message = receive(&host, &name, hook, request).await?;
    let engine = host.engine()?;
    let run_id = lookup::run_id(&**engine.store(), &run).await?;
    let sent = ops::Sent { hook: &name, signal, run_id, tolerance: hook.tolerance };
    ops::signal(&engine, &sent, message).await.map(Json)
}

/// A message whose signature is that of the webhook.
struct Message {
    id: String,
    data: Payload,
}

async fn receive(
    host: &Host,
    name: &str,
    hook: &Webhook,
    request: Request,
) -> Result<Message, ApiError> {
    let (parts, sent) = request.into_parts();
    let signed = signed(&parts.headers)?;
    let body = body::read(&parts.headers, sent, BODY_BYTES_MAX).await?;
    let (keys, fault) = hook.keys(&host.engine()?.config().secrets).await;
    if let Some(fault) = fault {
        tracing::warn!(webhook = name, %fault, "a secret of a webhook cannot be used");
    }
    let now = (shield::now(), hook.tolerance);
    let id = signature::verify(signed, &body, &keys, now).map_err(|error| unsigned(error, hook))?;
    Ok(Message { id: id.to_owned(), data: data(&body)? })
}

fn data(body: &Bytes) -> Result<Payload, ApiError> {
    body::parse(body)
}

/// What the headers say. Each is there once: of two, others might read the other one.
fn signed(headers: &HeaderMap) -> Result<Signed<'_>, ApiError> {
    let one = |name: &str| {
        let mut values = headers.get_all(name).iter();
        let value = values.next().ok_or_else(|| {
            let message = format!("the request has no header `{name}`");
            ApiError::new(StatusCode::UNAUTHORIZED, "signature_missing", message)
                .help("sign it as Standard Webhooks says; see docs/guide/webhooks.md")
        })?;
        if values.next().is_some() {
            let message = format!("the request has more than one header `{name}`");
            return Err(ApiError::new(StatusCode::UNAUTHORIZED, "signature_invalid", message));
        }
        Ok(value.as_bytes())
    };
    Ok(Signed {
        id: one("webhook-id")?,
        timestamp: one("webhook-timestamp")?,
        signatures: one("webhook-signature")?,
    })
}

fn unsigned(error: SignatureError, hook: &Webhook) -> ApiError {
    let message = error.to_string();
    match error {
        SignatureError::Timestamp => ApiError::new(StatusCode::UNAUTHORIZED, "timestamp", message)
            .help(format!(
                "send the seconds since 1970 of now; the clocks may differ by {:?}",
                hook.tolerance
            )),
        SignatureError::Invalid => {
            ApiError::new(StatusCode::UNAUTHORIZED, "signature_invalid", message)
                .help("sign `ID.TIMESTAMP.BODY` byte by byte as it is sent, with an active secret")
        }
    }
}

fn no_hook(name: &str, does: &str) -> ApiError {
    let name: String = name.chars().take(100).collect();
    ApiError::not_found("webhook_not_found", format!("there is no webhook `{name}` that {does}"))
        .help("the settings name them: `[webhooks.NAME]`")
        .path(name)
}
