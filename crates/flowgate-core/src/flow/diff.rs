//! What changed between two revisions of a flow.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::{FlowFile, StepFile};

/// One difference between two flow files.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Change {
    /// A step that the old file does not have.
    StepAdded {
        /// Its name.
        step: String,
        /// The step.
        now: StepFile,
    },
    /// A step that the new file does not have.
    StepRemoved {
        /// Its name.
        step: String,
        /// The step.
        was: StepFile,
    },
    /// A step that is different.
    StepChanged {
        /// Its name.
        step: String,
        /// The fields that differ: at least one.
        fields: Vec<FieldChange>,
    },
    /// Steps that both files have, in another order.
    StepsReordered {
        /// The order of the new file.
        now: Vec<String>,
    },
    /// A field of the flow itself.
    FlowChanged {
        /// The field that differs.
        #[serde(flatten)]
        field: FieldChange,
    },
}

/// A field that has another value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FieldChange {
    /// The field, with the fields around it: `retry.attempts`.
    pub field: String,
    /// Its value before, if it was there.
    pub was: Option<Value>,
    /// Its value now, if it is there.
    pub now: Option<Value>,
}

/// What is different in `new`: the flow's own fields, then the steps in the order of the files.
pub fn diff(old: &FlowFile, new: &FlowFile) -> Vec<Change> {
    let mut changes: Vec<Change> =
        head(old, new).into_iter().map(|field| Change::FlowChanged { field }).collect();
    for (name, was) in &old.steps {
        let step = name.clone();
        match new.steps.get(name) {
            None => changes.push(Change::StepRemoved { step, was: was.clone() }),
            Some(now) if now == was => {}
            Some(now) => {
                let mut fields = Vec::new();
                compare("", Some(&to_value(was)), Some(&to_value(now)), &mut fields);
                changes.push(Change::StepChanged { step, fields });
            }
        }
    }
    for (name, now) in new.steps.iter().filter(|(name, _)| !old.steps.contains_key(*name)) {
        changes.push(Change::StepAdded { step: name.clone(), now: now.clone() });
    }
    let kept_then: Vec<&String> = old.steps.keys().filter(|n| new.steps.contains_key(*n)).collect();
    let kept_now: Vec<&String> = new.steps.keys().filter(|n| old.steps.contains_key(*n)).collect();
    if kept_then != kept_now {
        changes.push(Change::StepsReordered { now: new.steps.keys().cloned().collect() });
    }
    changes
}

fn to_value(part: &impl Serialize) -> Value {
    serde_json::to_value(part).expect("a flow file has a JSON form")
}

/// The flow's own fields that differ.
fn head(old: &FlowFile, new: &FlowFile) -> Vec<FieldChange> {
    let text = |text: &String| Value::String(text.clone());
    let fields = |file: &FlowFile| {
        [
            Some(text(&file.flow)),
            file.description.as_ref().map(text),
            file.input.clone(),
            file.singleton.as_ref().map(to_value),
            file.debounce.as_ref().map(to_value),
        ]
    };
    let mut changes: Vec<FieldChange> = ["flow", "description", "input", "singleton", "debounce"]
        .into_iter()
        .zip(fields(old).into_iter().zip(fields(new)))
        .filter(|(_, (was, now))| was != now)
        .map(|(field, (was, now))| FieldChange { field: field.to_owned(), was, now })
        .collect();
    let (was, now) = (to_value(&old.schedules), to_value(&new.schedules));
    compare("schedules", Some(&was), Some(&now), &mut changes);
    changes
}

/// Adds the fields that differ, each as deep as both sides are mappings.
fn compare(field: &str, was: Option<&Value>, now: Option<&Value>, changes: &mut Vec<FieldChange>) {
    if was == now {
        return;
    }
    if let (Some(Value::Object(before)), Some(Value::Object(after))) = (was, now) {
        let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        for key in keys {
            let inner = if field.is_empty() { key.clone() } else { format!("{field}.{key}") };
            compare(&inner, before.get(key), after.get(key), changes);
        }
        return;
    }
    let (was, now) = (was.cloned(), now.cloned());
    changes.push(FieldChange { field: field.to_owned(), was, now });
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StepAdded { step, now } => write!(f, "+ step {step}: {}", to_value(now)),
            Self::StepRemoved { step, was } => write!(f, "- step {step}: {}", to_value(was)),
            Self::StepChanged { step, fields } => {
                write!(f, "~ step {step}")?;
                fields.iter().try_for_each(|field| write!(f, "\n    {field}"))
            }
            Self::StepsReordered { now } => write!(f, "~ order of steps: {}", now.join(", ")),
            Self::FlowChanged { field } => write!(f, "~ flow\n    {field}"),
        }
    }
}

impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = &self.field;
        match (&self.was, &self.now) {
            (Some(was), Some(now)) => write!(f, "{field}: {was} -> {now}"),
            (None, Some(now)) => write!(f, "{field}: none -> {now}"),
            (Some(was), None) => write!(f, "{field}: {was} -> none"),
            (None, None) => write!(f, "{field}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "
flow: order
input: { type: object }
steps:
  start: { run: { worker: start }, emits: [a, b] }
  charge: { subscribes: [a], run: { worker: charge }, retry: { attempts: 3 }, timeout: 10s }
  reserve: { subscribes: [b], run: { worker: reserve } }
schedules:
  nightly: { cron: \"0 2 * * *\" }
";
    const NEW: &str = "
flow: order
description: Orders.
input: { type: object, required: [id] }
steps:
  charge: { subscribes: { any: [a] }, run: { shell: charge }, retry: { attempts: 5, backoff: { max: 1m } } }
  start: { run: { worker: start }, emits: [a, b] }
  ship: { subscribes: [\"step:charge\"] }
schedules:
  nightly: { cron: \"0 3 * * *\" }
  often: { every: 10m }
";

    fn read(text: &str) -> FlowFile {
        FlowFile::parse(text).unwrap()
    }

    fn lines(old: &str, new: &str) -> String {
        let lines: Vec<String> =
            diff(&read(old), &read(new)).iter().map(Change::to_string).collect();
        lines.join("\n")
    }

    #[test]
    fn a_diff_names_each_step_and_field() {
        insta::assert_snapshot!(lines(OLD, NEW));
        insta::assert_json_snapshot!(diff(&read(OLD), &read(NEW)));
    }

    #[test]
    fn equal_files_have_no_diff() {
        assert_eq!(diff(&read(OLD), &read(OLD)), []);
    }
}
