//! Flows: as they are written ([`FlowFile`]) and as the rules use them ([`Flow`]).
//!
//! A [`Flow`] is only made from a valid [`FlowFile`], so whoever holds one need not check again:
//! its steps form a graph without cycles, one step is the entry, and every event that a step
//! subscribes to is declared by a step that can emit it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::debounce::Window;
use crate::ids::{Revision, SlotIndex, StepIndex};
use crate::retry::RetryPolicy;
use crate::schedule::ScheduleFile;

mod build;
mod compile;
mod diff;
pub mod graph;
mod input;
mod limit;
mod locate;
mod mqtt;
mod nearest;
pub(crate) mod notation;
mod parse;
mod schema;
mod secret;
mod validate;

pub use build::{FlowBuilder, StepBuilder};
pub use diff::{Change, FieldChange, diff};
pub use input::{InputProblem, Violation};
pub(crate) use input::{compile_schema, shortened};
pub use limit::{
    Amount, ConcurrencyFile, DebounceFile, KeyPath, KeyPathError, LimitName, RateFile,
    SingletonFile, StepLimit, queue_concurrency_key, queue_rate_key,
};
pub use mqtt::{MQTT_WORKER, MqttFile, Publication, QUEUE_MQTT};
pub use nearest::nearest;
pub use notation::SpanError;
pub use parse::{FlowError, FlowErrors};
pub(crate) use parse::{Words, placed, read};
pub use schema::schema;
pub use secret::{SecretError, SecretPart, is_secret_name, secret_parts};

/// The queue of steps that name none, call no worker and publish nothing.
pub const QUEUE_DEFAULT: &str = "default";

/// A flow as it is written in a file or built in Rust.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a flow: a mapping with `flow` and `steps`")]
pub struct FlowFile {
    /// The flow's name.
    pub flow: String,
    /// What the flow is for, for people.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub description: Option<String>,
    /// A JSON Schema that a start's input must meet.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub input: Option<serde_json::Value>,
    /// One open run at a time, of the flow or for each value of a key: a start while it is open
    /// gives that run.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub singleton: Option<SingletonFile>,
    /// Starts that follow each other closely become one run, with the last input.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub debounce: Option<DebounceFile>,
    /// The steps by name. The one without `subscribes` is the entry.
    #[schemars(with = "BTreeMap<String, StepFile>")]
    pub steps: IndexMap<String, StepFile>,
    /// When runs start by themselves, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub schedules: BTreeMap<String, ScheduleFile>,
}

/// A step as it is written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "a step: a mapping such as `{subscribes: [event], run: {worker: name}}`, or `{}`"
)]
pub struct StepFile {
    /// What the step is for, for people.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub description: Option<String>,
    /// What the step waits for: a list means all of them. Without it the step is the entry.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub subscribes: Option<Subscribes>,
    /// What the step does. A step without `run` and `wait` completes at once.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub run: Option<RunFile>,
    /// What the step waits for without holding a worker.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub wait: Option<WaitFile>,
    /// The events that the step may emit.
    #[serde(
        default,
        deserialize_with = "notation::strings",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub emits: Vec<String>,
    /// How often and when a failed attempt is tried again.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub retry: Option<RetryFile>,
    /// How long one attempt may take.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub timeout: Option<Span>,
    /// The queue that the step's jobs wait in. If absent, that of a step with `run: {worker: NAME}`
    /// is `NAME`, that of one with `run: {mqtt: …}` is `mqtt`, and that of any other is `default`.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub queue: Option<String>,
    /// How far ahead the step's jobs are of others that became due when they did, from 0 to 9.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub priority: Option<u8>,
    /// How many of the step's jobs may run at the same time.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub concurrency: Option<ConcurrencyFile>,
    /// How many of the step's jobs may begin in each span of time.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub rate: Option<RateFile>,
    /// Whether the step changes something outside, such as a payment or a mail. Where a revision is
    /// tried on the inputs of earlier runs, such a step is not executed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub effect: bool,
}

/// What a step subscribes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subscribes {
    /// It starts once all of these have happened.
    All(Vec<String>),
    /// It starts once the first of these has happened.
    Any(Vec<String>),
}

impl Subscribes {
    /// The names, whichever way they count.
    pub fn names(&self) -> &[String] {
        match self {
            Self::All(names) | Self::Any(names) => names,
        }
    }
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum RunFile {
    /// Starts a program; no shell is involved.
    Process(ProcessFile),
    /// Runs a line in `sh -c`.
    Shell(String),
    /// Sends an HTTP POST.
    Http(HttpFile),
    /// Publishes a message at the MQTT broker of the instance that executes it.
    Mqtt(MqttFile),
    /// Calls the handler that is registered under this name.
    Worker(String),
}

/// A program to start: its arguments, or those with a folder and variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFile {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The folder to start it in; the flow file's folder if absent.
    pub cwd: Option<String>,
    /// Variables to add to its environment.
    pub env: BTreeMap<String, String>,
}

/// An HTTP request to send.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "a request: a mapping such as `{url: \"http://127.0.0.1:9000/\"}`"
)]
pub struct HttpFile {
    /// Where to send it.
    pub url: String,
    /// Headers to add.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

/// A wait: exactly one of `delay`, `until` and `signal`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "a wait: one of `{delay: 10s}`, `{until: \"2030-01-01T00:00:00Z\"}` and `{signal: name}`"
)]
pub struct WaitFile {
    /// Waits this long.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub delay: Option<Span>,
    /// Waits until this point in time (RFC 3339).
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub until: Option<String>,
    /// Waits for a signal of this name.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub signal: Option<String>,
    /// Fields that the signal's data must have, with these values.
    #[serde(
        default,
        rename = "match",
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub matches: Option<serde_json::Map<String, serde_json::Value>>,
    /// How long to wait for the signal; for ever if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub timeout: Option<Span>,
    /// What a timeout does; `fail` if absent.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub on_timeout: Option<OnTimeout>,
}

/// What happens when a wait times out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnTimeout {
    /// The step fails.
    Fail,
    /// The step completes as if the wait had ended well.
    Continue,
    /// The step completes and emits this event alone.
    Emit(String),
}

/// Retries as they are written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "retries: a mapping such as `{attempts: 5, backoff: {initial: 200ms}}`"
)]
pub struct RetryFile {
    /// How many attempts in all.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub attempts: Option<u32>,
    /// How long to wait between them.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub backoff: Option<BackoffFile>,
}

/// The delays between attempts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "delays: a mapping such as `{initial: 200ms, factor: 2, max: 1m, jitter: 0.2}`"
)]
pub struct BackoffFile {
    /// Before the second attempt.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub initial: Option<Span>,
    /// By how much each delay is longer than the one before.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub factor: Option<f64>,
    /// The longest delay.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub max: Option<Span>,
    /// The share of a delay that is random, from 0 to 1.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub jitter: Option<f64>,
}

/// A length of time, written as `200ms`, `10s`, `5m`, `48h` or `7d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// A valid flow, indexed for the rules.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Its name.
    pub name: Arc<str>,
    /// Its content address.
    pub revision: Revision,
    /// As it was written.
    pub file: FlowFile,
    /// Its steps, in the order of the file.
    pub steps: Vec<Step>,
    /// The step that a start begins with.
    pub entry: StepIndex,
    /// Everything that a step can subscribe to, or emit.
    pub slots: Vec<Slot>,
    /// What has one open run at a time, if anything does.
    pub singleton: Option<Singleton>,
    /// Which starts become one run, if any do.
    pub debounce: Option<Debounce>,
    input_schema: Option<Arc<jsonschema::Validator>>,
    step_by_name: HashMap<Arc<str>, StepIndex>,
    slot_by_name: HashMap<Arc<str>, SlotIndex>,
}

/// What has one open run at a time.
#[derive(Clone, Debug)]
pub enum Singleton {
    /// The flow.
    Flow,
    /// Each value that the input has there.
    Value(KeyPath),
}

/// Which starts become one run.
#[derive(Clone, Debug)]
pub struct Debounce {
    /// Where the value is whose starts count together; all of the flow do if there is none.
    pub path: Option<KeyPath>,
    /// For how long.
    pub window: Window,
}

/// A step of a valid flow.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its name.
    pub name: Arc<str>,
    /// What it starts on.
    pub needs: Needs,
    /// What it does.
    pub action: Action,
    /// What it may emit.
    pub emits: Vec<SlotIndex>,
    /// The slot `step:NAME`, if a step subscribes to it.
    pub succeeded: Option<SlotIndex>,
    /// The slot `step.failed:NAME`, if a step subscribes to it.
    pub failed: Option<SlotIndex>,
    /// When a failed attempt is tried again.
    pub retry: RetryPolicy,
    /// How long one attempt may take.
    pub timeout: Option<Duration>,
    /// The queue of its jobs.
    pub queue: Arc<str>,
    /// The priority of its jobs, unless their run has one.
    pub priority: u8,
    /// What its jobs need a permit of before they run, in the order in which they ask.
    pub limits: Vec<StepLimit>,
    /// Whether it changes something outside.
    pub is_effect: bool,
}

impl Step {
    /// Whether a shadow run does not do it, but takes over what it left in the original run: it
    /// changes something outside, or waits for something that comes from there.
    pub fn is_stubbed(&self) -> bool {
        self.is_effect || matches!(self.action, Action::Wait(_))
    }
}

/// What a step starts on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needs {
    /// The start of the run.
    Start,
    /// All of these.
    All(Vec<SlotIndex>),
    /// The first of these.
    Any(Vec<SlotIndex>),
}

/// What a step of a valid flow does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Nothing: it completes at once, as a pure join.
    Nothing,
    /// Starts a program.
    Process(ProcessFile),
    /// Runs a line in a shell.
    Shell(String),
    /// Sends an HTTP POST.
    Http(HttpFile),
    /// Publishes a message.
    Mqtt(Publication),
    /// Calls a handler.
    Worker(Arc<str>),
    /// Waits without holding a worker.
    Wait(Wait),
}

impl Action {
    /// Whether it starts a program on the instance that executes it.
    pub fn is_process(&self) -> bool {
        match self {
            Self::Process(_) | Self::Shell(_) => true,
            Self::Nothing | Self::Http(_) | Self::Mqtt(_) | Self::Worker(_) | Self::Wait(_) => {
                false
            }
        }
    }

    /// The name of the handler without which no instance can do it, if there is one.
    pub fn worker(&self) -> Option<&str> {
        match self {
            Self::Worker(name) => Some(name),
            Self::Mqtt(_) => Some(MQTT_WORKER),
            Self::Nothing | Self::Process(_) | Self::Shell(_) | Self::Http(_) | Self::Wait(_) => {
                None
            }
        }
    }
}

/// A wait of a valid flow.
#[derive(Clone, Debug, PartialEq)]
pub enum Wait {
    /// For this long.
    Delay(Duration),
    /// Until this point in time.
    Until(crate::time::Timestamp),
    /// For a signal.
    Signal {
        /// The signal's name.
        signal: Arc<str>,
        /// Fields that its data must have, with these values.
        matches: serde_json::Map<String, serde_json::Value>,
        /// How long at most.
        timeout: Option<Duration>,
        /// What a timeout does.
        on_timeout: OnTimeout,
    },
}

/// One thing that a step can subscribe to: an event, `step:NAME` or `step.failed:NAME`.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The name that subscribers write, and their input's key.
    pub name: Arc<str>,
    /// The steps that subscribe to it.
    pub subscribers: Vec<StepIndex>,
}

impl Flow {
    /// The step at `index`.
    pub fn step(&self, index: StepIndex) -> &Step {
        &self.steps[index.at()]
    }

    /// The slot at `index`.
    pub fn slot(&self, index: SlotIndex) -> &Slot {
        &self.slots[index.at()]
    }

    /// The indexes of all steps.
    pub fn step_indexes(&self) -> impl Iterator<Item = StepIndex> + use<> {
        (0..self.steps.len())
            .map(|at| StepIndex(u16::try_from(at).expect("validation bounds the steps")))
    }

    /// The index of the step called `name`.
    pub fn step_index(&self, name: &str) -> Option<StepIndex> {
        self.step_by_name.get(name).copied()
    }

    /// The steps that start a program on the instance that executes them.
    pub fn process_steps(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.action.is_process())
    }

    /// The index of the slot called `name`.
    pub fn slot_index(&self, name: &str) -> Option<SlotIndex> {
        self.slot_by_name.get(name).copied()
    }
}

/// Whether a step of `flow` starts a program on the instance that executes it.
pub fn needs_process(flow: &Flow) -> bool {
    flow.process_steps().next().is_some()
}

/// Something wrong with a flow: where, what, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{path}: {message}; {remedy}")]
pub struct Problem {
    /// The place, as keys and indexes from the top: `steps.charge.subscribes[0]`.
    pub path: Path,
    /// What is wrong.
    pub message: String,
    /// The way out.
    pub remedy: String,
}

/// A place in a flow file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(pub Vec<PathPart>);

/// One part of a [`Path`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPart {
    /// A key of a mapping.
    Key(String),
    /// A place in a list.
    Index(usize),
}

impl Path {
    /// The path of `key` below this one.
    pub fn key(&self, key: &str) -> Self {
        self.with(PathPart::Key(key.to_owned()))
    }

    /// The path of item `index` below this one.
    pub fn index(&self, index: usize) -> Self {
        self.with(PathPart::Index(index))
    }

    fn with(&self, part: PathPart) -> Self {
        let mut parts = self.0.clone();
        parts.push(part);
        Self(parts)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, part) in self.0.iter().enumerate() {
            match part {
                PathPart::Key(key) if at == 0 => f.write_str(key)?,
                PathPart::Key(key) => write!(f, ".{key}")?,
                PathPart::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

impl Serialize for Path {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
