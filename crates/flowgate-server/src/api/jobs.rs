//! `/jobs`: workers in other processes, in any language.
//!
//! Nothing here is kept between two requests: a job that was claimed here may be settled anywhere,
//! since its token is all that counts.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use flowgate_core::decide::Output;
use flowgate_core::ids::{LeaseToken, RunId};
use flowgate_core::limits::COMMIT_BYTES_MAX;
use flowgate_core::payload::Payload;
use flowgate_engine::remote::{
    RemoteClaim, RemoteError, RemoteFailure, RemoteJob, RemoteLease, RemoteLine, RemoteRenewal,
};
use flowgate_store::LogLevel;
use utoipa_axum::routes;

use crate::auth::Scope;
use crate::body;
use crate::error::ApiError;
use crate::host::Host;
use crate::path::Path;
use crate::routes::Routes;
use crate::wire::jobs::{
    Claim, Claimed, Complete, EmitNow, Fail, Held, HeldJob, Job, Line, Log, Release, Renew,
    Renewed, RenewedJob, Settled,
};

/// Why a worker must stop.
const CANCELLED: &str = "cancelled";
const LEASE_LOST: &str = "lease_lost";
/// Bytes of a body that holds the output of an attempt: that of a commit.
const OUTPUT_BYTES_MAX: usize = COMMIT_BYTES_MAX;

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(Scope::Run, routes!(claim))
        .add(Scope::Run, routes!(renew))
        .add(Scope::Run, routes!(complete))
        .add(Scope::Run, routes!(fail))
        .add(Scope::Run, routes!(release))
        .add(Scope::Run, routes!(emit))
        .add(Scope::Run, routes!(log))
}

impl From<RemoteError> for ApiError {
    fn from(error: RemoteError) -> Self {
        let message = error.to_string();
        match error {
            RemoteError::NotFound { run_id, step } => {
                Self::not_found("job_not_found", message).path(format!("{run_id}/{step}"))
            }
            RemoteError::Fenced { .. } => Self::conflict("fenced", message).path("token"),
            RemoteError::RunTerminal { run_id, .. } => {
                Self::conflict("run_terminal", message).path(run_id.to_string())
            }
            RemoteError::Invalid { field, .. } => {
                Self::invalid("field_invalid", message).path(field)
            }
            RemoteError::Engine(error) => error.into(),
        }
    }
}

/// Claim jobs
///
/// Waits until a job is due, or for `wait_ms`. A job stays with the worker for `lease_ms`; whoever
/// needs longer renews it. A claim whose caller has gone gives its jobs back.
#[utoipa::path(post, path = "/jobs/claim", tag = "jobs", request_body = Claim,
    responses((status = 200, body = Claimed)))]
async fn claim(
    State(host): State<Host>,
    body::Json(claim): body::Json<Claim>,
) -> Result<Json<Claimed>, ApiError> {
    let texts = |all: Vec<String>| all.into_iter().map(Into::into).collect();
    let engine = host.engine()?;
    let jobs = engine.claim_remote(RemoteClaim {
        worker_id: claim.worker_id.into(),
        workers: texts(claim.workers),
        queues: claim.queues.map(texts),
        max: usize::try_from(claim.max).unwrap_or(usize::MAX),
        lease: Duration::from_millis(claim.lease_ms),
        wait: Duration::from_millis(claim.wait_ms),
    });
    let jobs = jobs.await?.into_iter().map(job).collect();
    Ok(Json(Claimed { jobs }))
}

fn job(job: RemoteJob) -> Job {
    Job {
        run_id: job.run_id,
        flow: job.flow,
        revision: job.revision,
        step: job.step,
        worker: job.worker,
        attempt: job.attempt,
        token: job.token.to_string(),
        key: job.key,
        input: job.input,
        state: job.state,
        lease_ms: millis(job.lease),
        expires_at: job.expires_at.to_string(),
        timeout_ms: job.timeout.map(millis),
        traceparent: job.traceparent,
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Ask for more time
#[utoipa::path(post, path = "/jobs/renew", tag = "jobs", request_body = Renew,
    responses((status = 200, body = Renewed)))]
async fn renew(
    State(host): State<Host>,
    body::Json(renew): body::Json<Renew>,
) -> Result<Json<Renewed>, ApiError> {
    let lease = |job: &HeldJob| held_lease(job.run_id, &job.step, &job.token);
    let leases = renew.jobs.iter().map(lease).collect::<Result<Vec<_>, _>>()?;
    let lease = Duration::from_millis(renew.lease_ms);
    let renewals = host.engine()?.renew_remote(lease, &leases).await?;
    let jobs = renew.jobs.into_iter().zip(renewals).map(|(job, renewal)| {
        let (held_until, stop) = match renewal {
            RemoteRenewal::Held(until) => (Some(until.to_string()), None),
            RemoteRenewal::Cancelled => (None, Some(CANCELLED.to_owned())),
            RemoteRenewal::LeaseLost => (None, Some(LEASE_LOST.to_owned())),
        };
        let HeldJob { run_id, step, token } = job;
        RenewedJob { run_id, step, token, held: stop.is_none(), stop, expires_at: held_until }
    });
    Ok(Json(Renewed { jobs: jobs.collect() }))
}

/// Complete an attempt
///
/// Sent again with the same token it is answered as the first time.
#[utoipa::path(post, path = "/jobs/{run_id}/{step}/complete", tag = "jobs", request_body = Complete,
    params(("run_id" = String, Path), ("step" = String, Path)),
    responses((status = 200, body = Settled)))]
async fn complete(
    State(host): State<Host>,
    Path((run_id, step)): Path<(String, String)>,
    body::Json(done): body::Json<Complete, OUTPUT_BYTES_MAX>,
) -> Result<Json<Settled>, ApiError> {
    let lease = lease(&run_id, &step, &done.token)?;
    let data = |place: &str, data: &Payload| {
        Payload::parse(data.get())
            .map_err(|error| ApiError::invalid("field_invalid", error.to_string()).path(place))
    };
    let mut output = Output::default();
    for (at, emit) in done.emits.into_iter().enumerate() {
        let checked = data(&format!("emits[{at}].data"), &emit.data)?;
        output.emits.push((emit.event.into(), checked));
    }
    for (name, value) in done.state {
        let checked = data(&format!("state.{name}"), &value)?;
        output.state.push((name.into(), checked));
    }
    output.result = done.result.as_ref().map(|result| data("result", result)).transpose()?;
    let lines = lines(done.logs)?;
    let settled = host.engine()?.complete_remote(&lease, output, lines).await?;
    Ok(Json(Settled { run_id: settled.run_id, status: settled.status }))
}

/// Fail an attempt
#[utoipa::path(post, path = "/jobs/{run_id}/{step}/fail", tag = "jobs", request_body = Fail,
    params(("run_id" = String, Path), ("step" = String, Path)),
    responses((status = 200, body = Settled)))]
async fn fail(
    State(host): State<Host>,
    Path((run_id, step)): Path<(String, String)>,
    body::Json(failed): body::Json<Fail>,
) -> Result<Json<Settled>, ApiError> {
    let lease = lease(&run_id, &step, &failed.token)?;
    let failure = RemoteFailure {
        message: failed.message,
        retry: failed.retry,
        retry_after: failed.retry_after_ms.map(Duration::from_millis),
    };
    let settled = host.engine()?.fail_remote(&lease, failure, lines(failed.logs)?).await?;
    Ok(Json(Settled { run_id: settled.run_id, status: settled.status }))
}

/// Give a job back
///
/// The attempt does not count: this is what a worker does that stops.
#[utoipa::path(post, path = "/jobs/{run_id}/{step}/release", tag = "jobs", request_body = Release,
    params(("run_id" = String, Path), ("step" = String, Path)),
    responses((status = 200, body = Settled)))]
async fn release(
    State(host): State<Host>,
    Path((run_id, step)): Path<(String, String)>,
    body::Json(Release { token }): body::Json<Release>,
) -> Result<Json<Settled>, ApiError> {
    let settled = host.engine()?.release_remote(&lease(&run_id, &step, &token)?).await?;
    Ok(Json(Settled { run_id: settled.run_id, status: settled.status }))
}

/// Emit an event at once
///
/// Whoever subscribes to it starts while the step runs, and it stays even if the attempt fails.
#[utoipa::path(post, path = "/jobs/{run_id}/{step}/emit", tag = "jobs", request_body = EmitNow,
    params(("run_id" = String, Path), ("step" = String, Path)),
    responses((status = 200, body = Held)))]
async fn emit(
    State(host): State<Host>,
    Path((run_id, step)): Path<(String, String)>,
    body::Json(EmitNow { token, event, data }): body::Json<EmitNow>,
) -> Result<Json<Held>, ApiError> {
    host.engine()?.emit_remote(&lease(&run_id, &step, &token)?, &event, data).await?;
    Ok(Json(Held { held: true }))
}

/// Keep log lines
#[utoipa::path(post, path = "/jobs/{run_id}/{step}/log", tag = "jobs", request_body = Log,
    params(("run_id" = String, Path), ("step" = String, Path)),
    responses((status = 200, body = Held)))]
async fn log(
    State(host): State<Host>,
    Path((run_id, step)): Path<(String, String)>,
    body::Json(log): body::Json<Log>,
) -> Result<Json<Held>, ApiError> {
    let lease = lease(&run_id, &step, &log.token)?;
    host.engine()?.log_remote(&lease, lines(log.lines)?).await?;
    Ok(Json(Held { held: true }))
}

fn lease(run_id: &str, step: &str, token: &str) -> Result<RemoteLease, ApiError> {
    let run_id: RunId = run_id.parse().map_err(|_| {
        ApiError::not_found("job_not_found", format!("`{run_id}` is not the id of a run"))
            .path(run_id)
    })?;
    held_lease(run_id, step, token)
}

fn held_lease(run_id: RunId, step: &str, token: &str) -> Result<RemoteLease, ApiError> {
    let token = token.parse().map(LeaseToken).map_err(|_| {
        ApiError::invalid("field_invalid", format!("`{token}` is not a token"))
            .help("send back the `token` of the job, as it is")
            .path("token")
    })?;
    Ok(RemoteLease { run_id, step: step.into(), token })
}

fn lines(lines: Vec<Line>) -> Result<Vec<RemoteLine>, ApiError> {
    let line = |Line { level, text }: Line| {
        if let Some(level) = LogLevel::parse(&level) {
            Ok(RemoteLine { level, text })
        } else {
            let message = format!("`{level}` is none of debug, info, warn and error");
            Err(ApiError::invalid("field_invalid", message).path("level"))
        }
    };
    lines.into_iter().map(line).collect()
}
