//! Limits: how much of something may happen, for all or for each value that a path finds.
//!
//! A path leads from a step's input to one value in it:
//!
//! ```text
//! PATH = "input" PART*
//! PART = "." NAME | "[" TEXT "]" | "[" NUMBER "]"
//! NAME = one or more letters, digits, "_" and "-"
//! TEXT = a JSON string, such as "payment.done"
//! ```
//!
//! The input of the entry step, and of a flow, is the payload of the start: `input.tenant`. That of
//! any other step has its events by name: `input["payment.done"].tenant`.
//!
//! A text, a number and a boolean are themselves as text, so `7` and `"7"` are the same value.
//! Everything else, and where there is nothing, is the value `null`, which has its limit too: a
//! job without a tenant is not a job without a limit.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::{Span, notation};

/// Bytes of a value in a limit's key; a longer one is named by its beginning and its hash.
const VALUE_BYTES_MAX: usize = 128;

/// How many jobs of a step may run at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "a limit: a mapping such as `{limit: 2}` or `{key: input.tenant, limit: 2}`"
)]
pub struct ConcurrencyFile {
    /// A path into the step's input: each value that it finds has the limit for itself. Without it
    /// the limit is for the step over all runs.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub key: Option<String>,
    /// How many at the same time, over all instances.
    pub limit: u32,
}

/// How many jobs of a step may begin in each span of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "a rate: a mapping such as `{limit: 10, per: 1s}` or `{key: input.tenant, limit: 10, per: 1s}`"
)]
pub struct RateFile {
    /// A path into the step's input: each value that it finds has the rate for itself. Without it
    /// the rate is for the step over all runs.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub key: Option<String>,
    /// How many in each span, evenly, over all instances.
    pub limit: u32,
    /// The span.
    pub per: Span,
}

/// One open run at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping such as `{key: input.tenant}`, or `{}`")]
pub struct SingletonFile {
    /// A path into the input of the start: each value that it finds has an open run of its own.
    /// Without it the flow has one.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub key: Option<String>,
}

/// Starts that follow each other closely become one run, with the last input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "a mapping such as `{window: 5s}` or `{key: input.tenant, window: 5s, max: 1m}`"
)]
pub struct DebounceFile {
    /// A path into the input of the start: each value that it finds has a run of its own. Without
    /// it all starts of the flow count together.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub key: Option<String>,
    /// How long there must be no start before the run begins.
    pub window: Span,
    /// How long after the first start the run begins at the latest, whatever comes.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub max: Option<Span>,
}

/// How much may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// This many at the same time.
    AtOnce(u32),
    /// This many in each span.
    Rate {
        /// How many.
        count: u32,
        /// The span.
        per: Duration,
    },
}

/// A limit of a step of a valid flow.
#[derive(Clone, Debug)]
pub struct StepLimit {
    /// How much.
    pub amount: Amount,
    /// Where the value is that has the limit for itself.
    pub path: Option<KeyPath>,
    /// The key, or what every key of it begins with.
    name: Arc<str>,
}

impl StepLimit {
    pub(super) fn concurrency(flow: &str, step: &str, file: &ConcurrencyFile) -> Self {
        let amount = Amount::AtOnce(file.limit);
        let name = format!("step/{flow}/{step}/concurrency").into();
        Self { amount, path: file.key.as_deref().map(KeyPath::valid), name }
    }

    pub(super) fn rate(flow: &str, step: &str, file: &RateFile) -> Self {
        let amount = Amount::Rate { count: file.limit, per: file.per.0 };
        let name = format!("step/{flow}/{step}/rate").into();
        Self { amount, path: file.key.as_deref().map(KeyPath::valid), name }
    }

    /// What names the limit for a job with this input, over all stores and instances.
    pub fn key(&self, input: impl FnOnce() -> Value) -> Arc<str> {
        match &self.path {
            None => Arc::clone(&self.name),
            Some(path) => {
                let value = path.text_in(&input());
                format!("{}/{}={value}", self.name, path.text).into()
            }
        }
    }
}

/// What names the limit of how many jobs of a queue run at the same time.
pub fn queue_concurrency_key(queue: &str) -> Arc<str> {
    format!("queue/{queue}/concurrency").into()
}

/// What names the limit of how many jobs of a queue begin in a span.
pub fn queue_rate_key(queue: &str) -> Arc<str> {
    format!("queue/{queue}/rate").into()
}

/// A limit's key as people read it: `input.tenant=7`, or whose limit it is.
#[derive(Clone, Copy, Debug)]
pub struct LimitName<'a>(pub &'a str);

impl fmt::Display for LimitName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.0.splitn(5, '/');
        match (parts.next(), parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("step"), Some(_), Some(_), Some(_), Some(value)) => f.write_str(value),
            (Some("step"), Some(flow), Some(step), Some(_), None) => {
                write!(f, "the step `{step}` of `{flow}`")
            }
            (Some("queue"), Some(queue), Some(_), None, None) => write!(f, "the queue `{queue}`"),
            _ => f.write_str(self.0),
        }
    }
}

/// A path into an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPath {
    text: String,
    parts: Vec<KeyPart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum KeyPart {
    Name(String),
    Index(usize),
}

/// A text that is no path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a path into the input: {why}", .text.escape_debug())]
pub struct KeyPathError {
    text: String,
    why: &'static str,
}

impl KeyPath {
    /// Reads a path.
    pub fn parse(text: &str) -> Result<Self, KeyPathError> {
        let wrong = |why| KeyPathError { text: text.to_owned(), why };
        let mut rest = text.strip_prefix("input").ok_or_else(|| wrong("it begins with `input`"))?;
        let mut parts = Vec::new();
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('.') {
                let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
                let end = after.find(|c| !is_name(c)).unwrap_or(after.len());
                if end == 0 {
                    return Err(wrong("a name follows each `.`"));
                }
                parts.push(KeyPart::Name(after[..end].to_owned()));
                rest = &after[end..];
            } else if let Some(after) = rest.strip_prefix('[') {
                let mut inner = serde_json::Deserializer::from_str(after).into_iter::<Value>();
                let part = match inner.next() {
                    Some(Ok(Value::String(name))) => KeyPart::Name(name),
                    Some(Ok(Value::Number(number))) => {
                        let index = number.as_u64().and_then(|index| usize::try_from(index).ok());
                        KeyPart::Index(index.ok_or_else(|| wrong("an index is a whole number"))?)
                    }
                    Some(_) | None => {
                        return Err(wrong("`[` is followed by a text in quotes, or a number"));
                    }
                };
                rest = after[inner.byte_offset()..]
                    .strip_prefix(']')
                    .ok_or_else(|| wrong("`[` is not closed"))?;
                parts.push(part);
            } else {
                return Err(wrong("`.name` or `[\"name\"]` follows `input`"));
            }
        }
        Ok(Self { text: text.to_owned(), parts })
    }

    pub(super) fn valid(text: &str) -> Self {
        Self::parse(text).expect("validation parsed this path")
    }

    /// The name that it begins with, below `input`.
    pub(super) fn first_name(&self) -> Option<&str> {
        match self.parts.first()? {
            KeyPart::Name(name) => Some(name),
            KeyPart::Index(_) => None,
        }
    }

    /// The JSON of the value that it finds, byte for byte.
    pub(super) fn json_in<'a>(&self, input: &'a str) -> Option<&'a str> {
        self.parts.iter().try_fold(input, |value, part| match part {
            KeyPart::Name(name) => {
                let fields = serde_json::from_str::<HashMap<Cow<'_, str>, &RawValue>>(value);
                fields.ok()?.get(name.as_str()).map(|found| found.get())
            }
            KeyPart::Index(index) => {
                let items: Vec<&RawValue> = serde_json::from_str(value).ok()?;
                items.get(*index).map(|found| found.get())
            }
        })
    }

    /// The value that it finds, as text.
    pub fn text_in(&self, input: &Value) -> String {
        let found = self.parts.iter().try_fold(input, |value, part| match part {
            KeyPart::Name(name) => value.get(name),
            KeyPart::Index(index) => value.get(index),
        });
        let text = match found {
            Some(Value::String(text)) => text.clone(),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
            Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => "null".to_owned(),
        };
        if text.len() <= VALUE_BYTES_MAX && !text.contains(char::is_control) {
            return text;
        }
        let mut short: String = text.chars().filter(|c| !c.is_control()).take(16).collect();
        short.push('#');
        for byte in &Sha256::digest(text.as_bytes())[..16] {
            write!(short, "{byte:02x}").expect("a string takes all");
        }
        short
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(path: &str) -> String {
        let input = json!({
            "tenant": 7, "name": "a b", "yes": true, "none": null, "list": [{ "id": "x" }],
            "a.b": { "c-d": 1.5 }, "object": {}, "long": "ä".repeat(100), "control": "a\0b",
        });
        KeyPath::parse(path).unwrap().text_in(&input)
    }

    #[test]
    fn a_path_finds_a_value_as_text() {
        assert_eq!(value("input.tenant"), "7");
        assert_eq!(value("input.name"), "a b");
        assert_eq!(value("input.yes"), "true");
        assert_eq!(value("input[\"a.b\"].c-d"), "1.5");
        assert_eq!(value("input.list[0].id"), "x");
        assert_eq!(KeyPath::parse("input").unwrap().text_in(&json!("all of it")), "all of it");
    }

    #[test]
    fn what_is_not_there_or_is_no_single_value_is_null() {
        for path in ["input.none", "input.nobody", "input.object", "input.list", "input.list[1].id"]
        {
            assert_eq!(value(path), "null", "{path}");
        }
    }

    #[test]
    fn a_value_that_is_long_or_cannot_be_kept_is_named_by_its_hash() {
        let long = value("input.long");
        assert!(long.len() < VALUE_BYTES_MAX && long.starts_with("ääää"), "{long}");
        assert!(value("input.control").starts_with("ab#"));
    }

    #[test]
    fn a_text_that_is_no_path_is_refused() {
        for text in [
            "",
            "tenant",
            "inputs",
            "input.",
            "input..a",
            "input[",
            "input[a]",
            "input[\"a\"",
            "input[-1]",
            "input[1.5]",
            "input a",
            "input.a b",
        ] {
            assert!(KeyPath::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_key_says_whose_limit_it_is() {
        let file = ConcurrencyFile { key: Some("input.tenant".to_owned()), limit: 2 };
        let key =
            StepLimit::concurrency("order", "charge", &file).key(|| json!({ "tenant": "a/b" }));
        assert_eq!(&*key, "step/order/charge/concurrency/input.tenant=a/b");
        assert_eq!(LimitName(&key).to_string(), "input.tenant=a/b");
        let file = RateFile { key: None, limit: 2, per: Span(Duration::from_secs(1)) };
        let key = StepLimit::rate("order", "charge", &file).key(|| unreachable!("it needs none"));
        assert_eq!(LimitName(&key).to_string(), "the step `charge` of `order`");
        assert_eq!(LimitName(&queue_rate_key("mail")).to_string(), "the queue `mail`");
    }
}
