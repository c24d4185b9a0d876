//! The rules that a flow file must meet.
//!
//! A rule names the place, the cause and the way out, and all problems of a file are found at
//! once. What follows from a problem that is already reported is not reported again: the rules
//! about the graph are only asked once every name in it is known.

use serde_json::Value;

use super::nearest::nearest;
use super::{Flow, FlowFile, Path, Problem, StepFile, Subscribes};
use crate::ids::is_identifier;
use crate::limits::{
    DESCRIPTION_BYTES_MAX, EVENTS_PER_STEP_MAX, FLOW_FILE_BYTES_MAX, NAME_BYTES_MAX, SLOTS_MAX,
    STEPS_MAX,
};

mod action;
mod graph;
mod limit;
mod mqtt;
mod schedules;
mod times;

impl Flow {
    /// Checks `file` and indexes it.
    pub fn new(file: FlowFile) -> Result<Self, Vec<Problem>> {
        let problems = file.validate();
        if problems.is_empty() { Ok(Self::compile(file)) } else { Err(problems) }
    }
}

impl FlowFile {
    /// Everything that is wrong with the file; nothing if it is valid.
    pub fn validate(&self) -> Vec<Problem> {
        let mut problems = Problems::default();
        let top = Path::default();
        problems.name(&top.key("flow"), "flow", &self.flow);
        problems.description(&top.key("description"), self.description.as_deref());
        if let Some(input) = &self.input {
            super::input::validate_schema(&top.key("input"), input, &mut problems);
        }
        if let Some(key) = self.singleton.as_ref().and_then(|file| file.key.as_deref()) {
            limit::validate_key(&top.key("singleton").key("key"), key, None, &mut problems);
        }
        if let Some(debounce) = &self.debounce {
            limit::validate_debounce(&top.key("debounce"), debounce, &mut problems);
            if self.singleton.is_some() {
                problems.add(
                    &top.key("debounce"),
                    "a flow with `singleton` cannot have `debounce`: both say which run a start \
                     gives",
                    "remove one of them",
                );
            }
        }
        let steps = top.key("steps");
        if self.steps.is_empty() {
            problems.add(
                &steps,
                "the flow has no steps",
                "add one without `subscribes` to start with",
            );
        } else if self.steps.len() > STEPS_MAX {
            problems.add(
                &steps,
                format!("{} steps are over the limit of {STEPS_MAX}", self.steps.len()),
                "split the flow",
            );
        }
        for (name, step) in &self.steps {
            validate_step(&steps.key(name), name, step, &mut problems);
        }
        graph::validate(self, &mut problems);
        schedules::validate(self, &mut problems);
        if problems.0.is_empty() {
            validate_size(self, &mut problems);
        }
        problems.0
    }
}

/// The problems found so far.
#[derive(Default)]
pub(super) struct Problems(Vec<Problem>);

impl Problems {
    pub(super) fn add(
        &mut self,
        path: &Path,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let (message, remedy) = (message.into(), remedy.into());
        self.0.push(Problem { path: path.clone(), message, remedy });
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Checks that `name` can name a `kind` of thing.
    fn name(&mut self, path: &Path, kind: &str, name: &str) {
        if is_identifier(name) {
            return;
        }
        if name.is_empty() {
            self.add(path, format!("the name of this {kind} is empty"), "give it a name");
        } else if name.len() > NAME_BYTES_MAX {
            let bytes = name.len();
            self.add(
                path,
                format!(
                    "the name of this {kind} has {bytes} bytes, over the limit of {NAME_BYTES_MAX}"
                ),
                "shorten it, and keep the rest for the description",
            );
        } else {
            let name = name.escape_debug();
            self.add(
                path,
                format!("this {kind} cannot be called `{name}`"),
                "begin with an ASCII letter or digit and go on with letters, digits, `_`, `-` and \
                 single `.`",
            );
        }
    }

    fn description(&mut self, path: &Path, text: Option<&str>) {
        let Some(text) = text else { return };
        if text.len() > DESCRIPTION_BYTES_MAX {
            self.add(
                path,
                format!(
                    "a description of {} bytes is over the limit of {DESCRIPTION_BYTES_MAX}",
                    text.len()
                ),
                "shorten it, and link to the rest",
            );
        }
        self.no_nul(path, "the description", text);
    }

    /// Refuses the character that neither an operating system nor every store can keep.
    fn no_nul(&mut self, path: &Path, what: &str, text: &str) {
        if text.contains('\0') {
            self.add(path, format!("{what} holds the character NUL"), "take it out");
        }
    }

    /// Refuses NUL in every string of a JSON value, and nesting that a reader might not follow.
    pub(super) fn json(&mut self, path: &Path, what: &str, value: &Value) {
        /// Levels of a JSON value in a flow file; readers of JSON stop at 128 in all.
        const DEPTH_MAX: usize = 64;
        let mut open = vec![(value, 1)];
        while let Some((value, depth)) = open.pop() {
            if depth > DEPTH_MAX {
                self.add(
                    path,
                    format!("{what} nests more than {DEPTH_MAX} levels deep"),
                    "flatten it",
                );
                return;
            }
            match value {
                Value::String(text) => self.no_nul(path, what, text),
                Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
                Value::Object(map) => {
                    for (key, value) in map {
                        self.no_nul(path, what, key);
                        open.push((value, depth + 1));
                    }
                }
                Value::Null | Value::Bool(_) | Value::Number(_) => {}
            }
        }
    }
}

/// The nearest of the known names as a remedy, or `otherwise`.
fn did_you_mean<'a>(
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
    otherwise: impl FnOnce() -> String,
) -> String {
    match nearest(name, known) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => otherwise(),
    }
}

fn validate_step(path: &Path, name: &str, step: &StepFile, problems: &mut Problems) {
    problems.name(path, "step", name);
    problems.description(&path.key("description"), step.description.as_deref());
    if let Some(queue) = &step.queue {
        problems.name(&path.key("queue"), "queue", queue);
        if step.run.is_none() {
            problems.add(
                &path.key("queue"),
                "`queue` does nothing on a step without `run`: it has no work for a worker to take",
                "remove `queue`, or give the step a `run`",
            );
        }
    }
    if let Some(subscribes) = &step.subscribes {
        validate_subscribes(&path.key("subscribes"), subscribes, problems);
    }
    validate_emits(&path.key("emits"), step, problems);
    action::validate(path, step, problems);
    times::validate(path, step, problems);
    limit::validate(path, step, problems);
}

/// Checks the list itself; whether its names exist is the graph's rule.
fn validate_subscribes(path: &Path, subscribes: &Subscribes, problems: &mut Problems) {
    let names = subscribes.names();
    if names.is_empty() {
        problems.add(
            path,
            "`subscribes` is empty, so the step could never start",
            "name an event, or remove `subscribes` to make it the entry",
        );
    }
    if too_many_events(path, names, problems) {
        return;
    }
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            problems.add(
                &subscribes.path(path, at),
                format!("`{name}` is listed twice"),
                "remove one",
            );
        }
    }
}

fn validate_emits(path: &Path, step: &StepFile, problems: &mut Problems) {
    if !step.emits.is_empty() && step.run.is_none() && step.wait.is_none() {
        problems.add(
            path,
            "a step without `run` and `wait` only joins others and emits nothing",
            "remove `emits` and let others subscribe to `step:NAME`, or give the step a `run`",
        );
    }
    if too_many_events(path, &step.emits, problems) {
        return;
    }
    for (at, name) in step.emits.iter().enumerate() {
        let path = path.index(at);
        if name.contains(':') {
            problems.add(
                &path,
                format!("this event cannot be called `{}`", name.escape_debug()),
                "leave out the `:` (`step:NAME` and `step.failed:NAME` happen by themselves)",
            );
        } else {
            problems.name(&path, "event", name);
        }
        if step.emits[..at].contains(name) {
            problems.add(&path, format!("`{name}` is listed twice"), "remove one");
        }
    }
}

fn too_many_events(path: &Path, names: &[String], problems: &mut Problems) -> bool {
    let too_many = names.len() > EVENTS_PER_STEP_MAX;
    if too_many {
        problems.add(
            path,
            format!("{} events are over the limit of {EVENTS_PER_STEP_MAX}", names.len()),
            "split the step, or tell cases apart by an event's data",
        );
    }
    too_many
}

/// Bounds what aliases or the builder may have blown up.
fn validate_size(file: &FlowFile, problems: &mut Problems) {
    let bytes = serde_json::to_vec(file).map_or(0, |json| json.len());
    if bytes > FLOW_FILE_BYTES_MAX {
        problems.add(
            &Path::default(),
            format!("the flow has {bytes} bytes as JSON, over the limit of {FLOW_FILE_BYTES_MAX}"),
            "split the flow, or move its long texts out of it",
        );
    }
    let mut names: Vec<&String> = file
        .steps
        .values()
        .flat_map(|step| {
            step.emits.iter().chain(step.subscribes.iter().flat_map(Subscribes::names))
        })
        .collect();
    names.sort_unstable();
    names.dedup();
    if names.len() > SLOTS_MAX {
        problems.add(
            &Path::default().key("steps"),
            format!("{} names of events are over the limit of {SLOTS_MAX}", names.len()),
            "split the flow",
        );
    }
}

impl Subscribes {
    /// The place of the name number `at`, where `path` is that of the whole.
    fn path(&self, path: &Path, at: usize) -> Path {
        match self {
            Self::All(_) => path.index(at),
            Self::Any(_) => path.key("any").index(at),
        }
    }
}
