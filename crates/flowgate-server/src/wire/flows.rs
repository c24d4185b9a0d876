//! Flows.

use flowgate_core::flow::FlowFile;
use flowgate_core::flow::{Change, FlowErrors};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// How many runs there are in each status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunCounts {
    /// Held at the gate of their flow.
    pub held: u64,
    /// Running.
    pub running: u64,
    /// Waiting.
    pub waiting: u64,
    /// Completed.
    pub completed: u64,
    /// Failed.
    pub failed: u64,
    /// Cancelled.
    pub cancelled: u64,
}

/// How many open runs there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpenCounts {
    /// Held at the gate of their flow.
    pub held: u64,
    /// Running.
    pub running: u64,
    /// Waiting.
    pub waiting: u64,
}

/// A flow in a list: its active revision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowItem {
    /// Its name.
    pub flow: String,
    /// The revision that new runs start on.
    pub revision: String,
    /// How many revisions it has.
    pub revisions: usize,
    /// How many steps.
    pub steps: usize,
    /// What it is for.
    pub description: Option<String>,
    /// The folder that its programs start in.
    pub folder: Option<String>,
    /// When the revision was first registered.
    #[schema(format = DateTime)]
    pub registered_at: String,
    /// Who registered the revision first, if they said so.
    pub author: Option<String>,
    /// What for.
    pub note: Option<String>,
    /// How many schedules start it.
    pub schedules: usize,
    /// Its runs; null where there are too many flows to count the runs of each.
    pub runs: Option<RunCounts>,
}

/// A revision of a flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowDetail {
    /// The flow.
    pub flow: String,
    /// The revision.
    pub revision: String,
    /// Whether new runs start on it; null if it is not in the store.
    pub active: Option<bool>,
    /// The folder that its programs start in.
    pub folder: Option<String>,
    /// When it was first registered.
    #[schema(format = DateTime)]
    pub registered_at: Option<String>,
    /// Who registered the revision first, if they said so.
    pub author: Option<String>,
    /// What for.
    pub note: Option<String>,
    /// What it is for.
    pub description: Option<String>,
    /// Its steps, in the order of the file.
    pub steps: Vec<StepItem>,
    /// What leads from step to step.
    pub edges: Vec<EdgeItem>,
    /// The flow file; the order of its steps is part of it.
    #[schema(value_type = Object)]
    pub file: Box<FlowFile>,
    /// The names of the schedules that start it.
    pub schedules: Vec<String>,
    /// The JSON Schema of its input.
    #[schema(value_type = Option<Object>)]
    pub input_schema: Option<Value>,
}

/// A step of a flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StepItem {
    /// Its name.
    pub name: String,
    /// What it does, for people.
    pub does: String,
    /// What kind of thing it does.
    pub action: ActionKind,
    /// The worker that it calls.
    pub worker: Option<String>,
    /// What it starts on.
    pub starts_on: StartsOn,
    /// The events that it may emit.
    pub emits: Vec<String>,
    /// The queue that its jobs wait in.
    pub queue: String,
    /// Whether it changes something outside, so that a shadow does not execute it.
    pub effect: bool,
}

/// What kind of thing a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActionKind {
    /// It starts a program.
    Process,
    /// It runs a line in a shell.
    Shell,
    /// It sends an HTTP request.
    Http,
    /// It publishes a message.
    Mqtt,
    /// It calls a worker.
    Worker,
    /// It waits.
    Wait,
    /// It completes at once.
    Nothing,
}

/// What a step starts on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StartsOn {
    /// The start of the run, all of the events, or any of them.
    pub kind: StartKind,
    /// The events.
    pub events: Vec<String>,
}

/// How many of its events a step starts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartKind {
    /// It is the first step.
    Start,
    /// All of them.
    All,
    /// The first of them.
    Any,
}

/// What leads from one step to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EdgeItem {
    /// The step that makes it happen.
    pub from: String,
    /// The step that starts on it.
    pub to: String,
    /// The event, or the end of the step.
    pub event: String,
}

/// A revision in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RevisionItem {
    /// The revision.
    pub revision: String,
    /// Whether new runs start on it.
    pub active: bool,
    /// When it was first registered.
    #[schema(format = DateTime)]
    pub registered_at: String,
    /// Who registered the revision first, if they said so.
    pub author: Option<String>,
    /// What for.
    pub note: Option<String>,
    /// How many steps it has.
    pub steps: usize,
    /// What the flow is for.
    pub description: Option<String>,
    /// The folder that its programs start in.
    pub folder: Option<String>,
    /// Open runs that are pinned to it; null if the flow has too many to look through.
    pub runs: Option<OpenCounts>,
}

/// A drawing of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowGraph {
    /// The flow.
    pub flow: String,
    /// The revision.
    pub revision: String,
    /// How it is drawn.
    pub format: GraphFormat,
    /// The drawing.
    pub graph: String,
}

/// How a flow is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GraphFormat {
    /// For a terminal.
    Text,
    /// For Mermaid.
    Mermaid,
    /// For Graphviz.
    Dot,
    /// A picture.
    Svg,
}

impl GraphFormat {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Text, Self::Mermaid, Self::Dot, Self::Svg];

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Mermaid => "mermaid",
            Self::Dot => "dot",
            Self::Svg => "svg",
        }
    }
}

/// What is different between two revisions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowDiff {
    /// A line for each difference, for people.
    pub changes: Vec<String>,
}

impl FlowDiff {
    /// These.
    pub fn new(changes: &[Change]) -> Self {
        Self { changes: changes.iter().map(ToString::to_string).collect() }
    }
}

/// A flow to register.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewFlow {
    /// YAML or JSON.
    pub text: String,
    /// Who registers it; the name of the token without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The text of a flow file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FlowText {
    /// YAML or JSON.
    pub text: String,
}

/// Whether a flow file is valid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Validation {
    /// Whether it is.
    pub valid: bool,
    /// The flow that it is, if it is valid.
    pub flow: Option<String>,
    /// Its revision.
    pub revision: Option<String>,
    /// How many steps it has.
    pub steps: Option<usize>,
    /// What is wrong, in the order of the lines.
    pub errors: Vec<FlowProblem>,
}

/// Something wrong with a flow file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowProblem {
    /// The line, from 1.
    pub line: u64,
    /// The character in the line, from 1.
    pub column: u64,
    /// What is wrong.
    pub message: String,
    /// The way out.
    pub remedy: String,
    /// The place, as keys from the top.
    pub path: String,
}

impl FlowProblem {
    /// All that is wrong with a file.
    pub fn of(errors: &FlowErrors) -> Vec<Self> {
        let one = |error: &flowgate_core::flow::FlowError| Self {
            line: error.line,
            column: error.column,
            message: error.problem.message.clone(),
            remedy: error.problem.remedy.clone(),
            path: error.problem.path.to_string(),
        };
        errors.as_slice().iter().map(one).collect()
    }
}

/// A revision that was registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Registered {
    /// The flow.
    pub flow: String,
    /// The revision, which new runs start on.
    pub revision: String,
    /// Whether the store had it before.
    pub existed: bool,
}
