//! Jobs, as workers in other processes claim and settle them.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowgate_core::ids::{Revision, RunId};
use flowgate_core::payload::Payload;
use flowgate_core::run::RunStatus;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// Asks for jobs.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Who asks: the same text from one process, another from every other.
    pub worker_id: String,
    /// The workers that it has handlers for.
    pub workers: Vec<String>,
    /// The queues to take jobs from; without it, the workers' own.
    #[serde(default)]
    pub queues: Option<Vec<String>>,
    /// How many at most.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 100)]
    pub max: u32,
    /// How long to wait for one.
    #[serde(default)]
    #[schema(maximum = 30_000)]
    pub wait_ms: u64,
    /// How long a job stays with it unless it is renewed.
    #[serde(default = "lease_ms")]
    #[schema(minimum = 1_000, maximum = 600_000)]
    pub lease_ms: u64,
}

fn one() -> u32 {
    1
}

fn lease_ms() -> u64 {
    30_000
}

/// Jobs that were handed out.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Claimed {
    /// Them; none if none became due.
    pub jobs: Vec<Job>,
}

/// A job: one attempt at a step.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// Its flow.
    #[schema(value_type = String)]
    pub flow: Arc<str>,
    /// The revision that it is pinned to.
    #[schema(value_type = String)]
    pub revision: Revision,
    /// The step.
    #[schema(value_type = String)]
    pub step: Arc<str>,
    /// The worker that the step calls.
    #[schema(value_type = String)]
    pub worker: Arc<str>,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The token of its lease; whoever settles it shows it.
    pub token: String,
    /// The idempotency key: the same for every attempt of this step in this run.
    pub key: String,
    /// The input.
    #[schema(value_type = serde_json::Value)]
    pub input: Box<RawValue>,
    /// The state values of the run.
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    pub state: BTreeMap<Arc<str>, Payload>,
    /// How long the lease lasts unless it is renewed.
    pub lease_ms: u64,
    /// When it ends, by the clock of the store.
    #[schema(format = DateTime)]
    pub expires_at: String,
    /// How long the attempt may take in all.
    pub timeout_ms: Option<u64>,
    /// Its place in the run's trace, as the header `traceparent` has it; null unless spans are
    /// exported.
    pub traceparent: Option<String>,
}

/// A job that somebody holds.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeldJob {
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// The step.
    pub step: String,
    /// The token of its lease.
    pub token: String,
}

/// Asks for more time.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Renew {
    /// Who asks.
    pub worker_id: String,
    /// How long the jobs are to stay from now.
    #[serde(default = "lease_ms")]
    #[schema(minimum = 1_000, maximum = 600_000)]
    pub lease_ms: u64,
    /// The jobs.
    pub jobs: Vec<HeldJob>,
}

/// What became of renewals.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Renewed {
    /// In the order in which they were asked for.
    pub jobs: Vec<RenewedJob>,
}

/// What became of a renewal.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RenewedJob {
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// The step.
    pub step: String,
    /// The token.
    pub token: String,
    /// Whether the worker may go on.
    pub held: bool,
    /// Why it must stop: `cancelled` or `lease_lost`.
    pub stop: Option<String>,
    /// When the lease ends, if it is held.
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
}

/// An attempt ended well.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Complete {
    /// The token of the lease.
    pub token: String,
    /// Events, in the order in which they were emitted.
    #[serde(default)]
    pub emits: Vec<Emitted>,
    /// State values.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    pub state: BTreeMap<String, Payload>,
    /// The result of the step.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Payload>,
    /// Log lines.
    #[serde(default)]
    pub logs: Vec<Line>,
}

/// An event that a step emitted.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Emitted {
    /// The event.
    pub event: String,
    /// Its data; null without.
    #[serde(default = "Payload::null")]
    #[schema(value_type = serde_json::Value)]
    pub data: Payload,
}

/// A log line.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// `debug`, `info`, `warn` or `error`.
    #[serde(default = "info")]
    pub level: String,
    /// What it says.
    pub text: String,
}

fn info() -> String {
    "info".to_owned()
}

/// An attempt failed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Fail {
    /// The token of the lease.
    pub token: String,
    /// Why.
    pub message: String,
    /// Whether it may be tried again.
    #[serde(default = "yes")]
    pub retry: bool,
    /// When to try again, whatever the step says.
    #[serde(default)]
    pub retry_after_ms: Option<u64>,
    /// Log lines.
    #[serde(default)]
    pub logs: Vec<Line>,
}

fn yes() -> bool {
    true
}

/// A job is given back.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// The token of the lease.
    pub token: String,
}

/// An event that is emitted at once.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EmitNow {
    /// The token of the lease.
    pub token: String,
    /// The event.
    pub event: String,
    /// Its data; null without.
    #[serde(default = "Payload::null")]
    #[schema(value_type = serde_json::Value)]
    pub data: Payload,
}

/// Log lines of an attempt that goes on.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// The token of the lease.
    pub token: String,
    /// The lines.
    pub lines: Vec<Line>,
}

/// A job that was settled.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Settled {
    /// The run.
    #[schema(value_type = String, format = Uuid)]
    pub run_id: RunId,
    /// Its status now.
    #[schema(value_type = String, example = "running")]
    pub status: RunStatus,
}

/// The lease is held.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct Held {
    /// True.
    pub held: bool,
}
