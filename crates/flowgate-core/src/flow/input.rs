//! The JSON Schema that a start's input must meet.

use std::fmt;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

use super::validate::Problems;
use super::{Flow, Path};
use crate::payload::Payload;

/// Violations that are told apart; the rest is counted.
const VIOLATIONS_MAX: usize = 5;
/// Bytes of a violation's text: it may quote the value that is wrong.
const VIOLATION_BYTES_MAX: usize = 300;

/// An input that does not meet its flow's schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct InputProblem {
    /// The flow's name.
    pub flow: String,
    /// The first few violations.
    pub violations: Vec<Violation>,
    /// How many more there are.
    pub more: usize,
}

/// One place of an input that does not meet the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The place as a JSON pointer; empty for the whole input.
    pub pointer: String,
    /// What is wrong there.
    pub message: String,
}

impl fmt::Display for InputProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the input does not meet the schema of flow `{}`", self.flow)?;
        for (at, violation) in self.violations.iter().enumerate() {
            let separator = if at == 0 { ": " } else { "; " };
            let place = if violation.pointer.is_empty() { "input" } else { &violation.pointer };
            write!(f, "{separator}{place}: {}", violation.message)?;
        }
        if self.more > 0 { write!(f, "; and {} more", self.more) } else { Ok(()) }
    }
}

impl Flow {
    /// Checks the input of a start against the flow's schema; any input will do without one.
    pub fn check_input(&self, input: &Payload) -> Result<(), InputProblem> {
        let Some(schema) = &self.input_schema else { return Ok(()) };
        let value = input.value();
        let mut errors = schema.iter_errors(&value);
        let violations: Vec<Violation> = errors
            .by_ref()
            .take(VIOLATIONS_MAX)
            .map(|error| Violation {
                pointer: error.instance_path().to_string(),
                message: shortened(error.to_string()),
            })
            .collect();
        if violations.is_empty() {
            return Ok(());
        }
        Err(InputProblem { flow: self.name.to_string(), violations, more: errors.count() })
    }
}

/// Reports what is wrong with a schema.
pub(super) fn validate_schema(path: &Path, schema: &Value, problems: &mut Problems) {
    let before = problems.count();
    problems.json(path, "the schema", schema);
    if problems.count() > before {
        return;
    }
    if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
        problems.add(
            path,
            "`input` is not a JSON Schema",
            "write a mapping such as `{type: object, required: [orderId]}`",
        );
        return;
    }
    if let Err(error) = compile_schema(schema) {
        let pointer = error.instance_path().to_string();
        if pointer.ends_with("/type") {
            let value = error.instance();
            problems.add(
                &follow(path, schema, &pointer),
                format!("`{value}` is not a type of JSON Schema"),
                "the types are array, boolean, integer, null, number, object and string",
            );
            return;
        }
        let remedy = if matches!(error.kind(), ValidationErrorKind::Referencing(_)) {
            "refer only to parts of this schema, such as `#/$defs/name`: nothing is fetched"
        } else {
            "correct it as https://json-schema.org/understanding-json-schema describes"
        };
        problems.add(
            &follow(path, schema, &pointer),
            format!("`input` is not a valid JSON Schema: {}", shortened(error.to_string())),
            remedy,
        );
    }
}

/// The place of a JSON pointer into `value`, which stands at `path`.
fn follow(path: &Path, value: &Value, pointer: &str) -> Path {
    let mut path = path.clone();
    let mut value = Some(value);
    for part in pointer.split('/').skip(1) {
        let part = part.replace("~1", "/").replace("~0", "~");
        let in_list = value.and_then(Value::as_array);
        path = match part.parse() {
            Ok(index) if in_list.is_some() => path.index(index),
            Ok(_) | Err(_) => path.key(&part),
        };
        value = match in_list {
            Some(items) => part.parse().ok().and_then(|index: usize| items.get(index)),
            None => value.and_then(|value| value.get(&part)),
        };
    }
    path
}

/// The check that a schema describes. It fetches nothing, and its patterns take time in proportion
/// to the text they look at.
pub(crate) fn compile_schema(
    schema: &Value,
) -> Result<Validator, jsonschema::ValidationError<'static>> {
    jsonschema::options().offline().with_pattern_options(PatternOptions::regex()).build(schema)
}

pub(crate) fn shortened(mut text: String) -> String {
    if text.len() > VIOLATION_BYTES_MAX {
        let end = (0..=VIOLATION_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::flow::FlowBuilder;
    use crate::flow::StepBuilder;

    fn flow(schema: Value) -> Result<Flow, Vec<crate::flow::Problem>> {
        FlowBuilder::new("order")
            .input_schema(schema)
            .step(StepBuilder::new("start").worker("start"))
            .build()
    }

    #[test]
    fn an_input_is_checked_and_each_violation_has_its_place() {
        let schema = json!({
            "type": "object", "required": ["orderId"],
            "properties": { "items": { "items": { "type": "integer" } } },
        });
        let flow = flow(schema).unwrap();
        assert_eq!(flow.check_input(&Payload::parse(r#"{"orderId":1}"#).unwrap()), Ok(()));
        let problem =
            flow.check_input(&Payload::parse(r#"{"items":[1,"a"]}"#).unwrap()).unwrap_err();
        insta::assert_snapshot!(problem, @r#"the input does not meet the schema of flow `order`: input: "orderId" is a required property; /items/1: "a" is not of type "integer""#);
    }

    #[test]
    fn many_violations_are_counted() {
        let flow = flow(json!({ "items": { "type": "integer" } })).unwrap();
        let input = Payload::of(&vec!["x"; 20]).unwrap();
        let problem = flow.check_input(&input).unwrap_err();
        assert_eq!((problem.violations.len(), problem.more), (5, 15));
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let rows = [
            json!({ "$ref": "#" }),
            json!({ "allOf": [{ "$ref": "#" }] }),
            json!({ "$dynamicRef": "#" }),
            json!({ "type": "object", "properties": { "children": { "items": { "$ref": "#" } } } }),
        ];
        for schema in rows {
            let flow = flow(schema.clone()).unwrap();
            let input = Payload::parse(r#"{"children":[{}]}"#).unwrap();
            assert_eq!(flow.check_input(&input), Ok(()), "{schema}");
        }
    }

    #[test]
    fn a_schema_that_is_wrong_or_would_fetch_is_refused() {
        let rows = [
            json!({ "$ref": "https://example.com/schema.json" }),
            json!({ "$ref": "file:///etc/passwd" }),
            json!({ "$ref": "#/nowhere" }),
            json!({ "pattern": "(a" }),
            json!({ "type": "objekt" }),
            json!("object"),
            json!(null),
        ];
        for schema in rows {
            assert!(flow(schema.clone()).is_err(), "{schema}");
        }
    }
}
