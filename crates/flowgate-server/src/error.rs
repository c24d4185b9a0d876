//! Why a request was refused, as the wire tells it.

use std::borrow::Cow;
use std::fmt;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flowgate_core::decide::Rejection;
use flowgate_core::deploy::Refusal;
use flowgate_engine::EngineError;
use flowgate_store::StoreError;

use crate::wire::{ErrorBody, ErrorDetail};

/// A refusal: a status, a stable code, the cause in words, and the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The status.
    pub status: StatusCode,
    /// The code, which programs may branch on; `docs/guide/api.md` has a heading for each.
    pub code: Cow<'static, str>,
    /// The cause.
    pub message: String,
    /// The field, parameter or name that it is about.
    pub path: Option<String>,
    /// What to do about it.
    pub help: Option<String>,
    /// When to try again, in seconds.
    pub retry_after: Option<u64>,
}

/// Seconds after which an overloaded instance, or one without its store, may be asked again.
const RETRY_AFTER: u64 = 2;

impl ApiError {
    /// A refusal with this status.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let (code, message) = (Cow::Borrowed(code), message.into());
        Self { status, code, message, path: None, help: None, retry_after: None }
    }

    /// 400: it cannot be read.
    pub fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// 422: it can be read, and makes no sense.
    pub fn invalid(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, message)
    }

    /// 404.
    pub fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, message)
    }

    /// 409.
    pub fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, message)
    }

    /// 503.
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message);
        Self { retry_after: Some(RETRY_AFTER), ..error }
    }

    /// The same about a field of a body instead of a parameter.
    pub(crate) fn of_field(self) -> Self {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Self { status, code: "field_invalid".into(), ..self }
    }

    /// With the place.
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// With the way out.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { status, code, message, path, help, retry_after } = self;
        let detail = ErrorDetail { code: code.into_owned(), message, path, help };
        let mut response = (status, Json(ErrorBody { error: detail })).into_response();
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        // What a store says may name its hosts and paths, which are for the log and not for callers.
        if error.is_transient() {
            tracing::warn!(%error, "a request met a store that does not answer");
            return Self::unavailable("store_unavailable", "the store does not answer")
                .help("try again; `flowgate doctor` says what is wrong");
        }
        tracing::error!(%error, "a request met a fault of the store");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "store_failed", "the store failed")
            .help("see the log of the instance, and `flowgate doctor`")
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::NoFlow(ref name) => {
                Self::not_found("flow_not_found", format!("there is no flow `{name}`"))
                    .path(&**name)
                    .help("`GET /api/v1/flows` lists them")
            }
            EngineError::NoRun(run_id) => {
                Self::not_found("run_not_found", message).path(run_id.to_string())
            }
            EngineError::NoSchedule(ref name) => {
                Self::not_found("schedule_not_found", message).path(&**name)
            }
            EngineError::NoSubscriber(ref id) => {
                Self::not_found("subscriber_not_found", message).path(&**id)
            }
            EngineError::NotDead(run_id) => {
                Self::conflict("not_dead", message).path(run_id.to_string())
            }
            EngineError::NoStep { .. } => Self::invalid("step_not_found", message),
            EngineError::Input(ref problem) => {
                Self::invalid("input_invalid", problem.to_string()).path("input")
            }
            EngineError::Invalid(_) => Self::invalid("field_invalid", message),
            EngineError::KeyConflict { run_id, .. } => {
                Self::conflict("idempotency_conflict", message)
                    .path("key")
                    .help(format!("use another key; that run is {run_id}"))
            }
            EngineError::Rejected(ref rejection) => rejected(rejection),
            EngineError::Overloaded { retry_after, .. } => Self {
                retry_after: Some(retry_after.as_secs().max(1)),
                ..Self::unavailable("overloaded", message)
            },
            EngineError::GateClosed { ref flow } => {
                Self::conflict("gate_closed", message).path(&**flow)
            }
            EngineError::NoDeployment(ref id) => {
                Self::not_found("deployment_not_found", message).path(&**id)
            }
            EngineError::Deploy(ref refusal) => deploy_refused(refusal, message),
            EngineError::NoCheckpoint(run_id) => {
                Self::not_found("checkpoint_not_found", message).path(run_id.to_string())
            }
            EngineError::NoPlace { .. }
            | EngineError::Checkpointed { .. }
            | EngineError::CheckpointSettled { .. }
            | EngineError::Undecided { .. } => not_moved(&error, message),
            EngineError::HoldFull { ref flow, .. } => Self {
                retry_after: Some(5),
                ..Self::new(StatusCode::TOO_MANY_REQUESTS, "hold_full", message).path(&**flow)
            },
            EngineError::Contended => {
                Self { retry_after: Some(1), ..Self::unavailable("contended", message) }
            }
            EngineError::Closed => Self::unavailable("stopping", message),
            EngineError::Flow(_) => Self::conflict("flow_invalid", with_sources(&error)),
            EngineError::Store(ref store) if store.is_transient() => {
                Self::unavailable("store_unavailable", "the store does not answer")
                    .help("try again; `flowgate doctor` says what is wrong")
            }
            EngineError::Store(_) => {
                tracing::error!(error = with_sources(&error), "a request met a fault of the store");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "store_failed", "the store failed")
                    .help("see the log of the instance, and `flowgate doctor`")
            }
        }
    }
}

/// Why a run stays where it is, or its checkpoint as it is.
fn not_moved(error: &EngineError, message: String) -> ApiError {
    if let EngineError::NoPlace { run_id, .. } = error {
        ApiError::conflict("run_unmappable", message)
            .path(run_id.to_string())
            .help("map its steps with `steps`, or let it finish where it is")
    } else if let EngineError::Checkpointed { run_id, .. } = error {
        ApiError::conflict("run_checkpointed", message)
            .path(run_id.to_string())
            .help("wait for the deployment, or `POST /api/v1/checkpoints/{run}/replay`")
    } else if let EngineError::CheckpointSettled { run_id, .. } = error {
        ApiError::conflict("checkpoint_settled", message)
            .path(run_id.to_string())
            .help("`GET /api/v1/runs/{run}` says where the run is")
    } else {
        ApiError::conflict("deploy_undecided", message)
            .help("it lets them go on by itself; wait for it, or roll it back")
    }
}

fn deploy_refused(refusal: &Refusal, message: String) -> ApiError {
    match refusal {
        Refusal::InProgress { deployment_id } => {
            ApiError::conflict("deploy_in_progress", message).path(deployment_id.to_string())
        }
        Refusal::Active { revision } => {
            ApiError::conflict("revision_active", message).path(revision.to_string())
        }
        Refusal::Older { revision, .. } => {
            ApiError::conflict("revision_older", message).path(revision.to_string())
        }
        Refusal::StepMap { remedy, .. } => {
            ApiError::invalid("deploy_invalid", message).path("steps").help(remedy.clone())
        }
        Refusal::Unmappable { .. } => ApiError::invalid("runs_unmappable", message).path("migrate"),
    }
}

fn rejected(rejection: &Rejection) -> ApiError {
    let message = rejection.to_string();
    match rejection {
        Rejection::RunEnded(_) => ApiError::conflict("run_terminal", message)
            .help("try it again as a new run: `POST /api/v1/runs/{run}/retry`"),
        Rejection::RunOpen(_) => {
            ApiError::conflict("run_open", message).help("wait for its end, or cancel it")
        }
        Rejection::RunHeld => ApiError::conflict("run_held", message)
            .help("`GET /api/v1/runs/{run}/why` says what it waits for"),
        Rejection::RunNotHeld(_) => ApiError::conflict("run_not_held", message),
        Rejection::SignalUnknown { .. } => ApiError::invalid("signal_unknown", message),
        Rejection::SignalsFull => ApiError::conflict("signals_full", message),
        Rejection::NothingToRetry => ApiError::conflict("nothing_to_retry", message)
            .help("name the step to do again with `from`"),
        Rejection::RunShadow => ApiError::conflict("run_shadow", message),
        Rejection::StepNotOpen(_) => ApiError::conflict("fenced", message),
        Rejection::OutputInvalid(_) => ApiError::invalid("output_invalid", message),
        Rejection::NothingToDo => ApiError::conflict("nothing_to_do", message),
    }
}

/// An error and what it came from, in one line.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
