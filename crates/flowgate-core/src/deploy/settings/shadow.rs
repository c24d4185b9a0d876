//! How a revision is tried on the inputs of earlier runs, and what may differ.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use crate::flow::Span;

/// The new revision on the inputs of earlier runs, before it becomes active.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShadowRules {
    /// How many of the last runs that completed.
    pub runs: u32,
    /// What may differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignore: Vec<Ignored>,
    /// How many of the runs may differ.
    pub differ_max: u32,
    /// How long they may take together.
    pub timeout: Span,
}

impl ShadowRules {
    /// The most runs that a shadow may have.
    pub const RUNS_MAX: u32 = 200;
}

impl Default for ShadowRules {
    fn default() -> Self {
        let timeout = Span(Duration::from_mins(1));
        Self { runs: 20, ignore: Vec::new(), differ_max: 0, timeout }
    }
}

/// A place that may differ: an event's data, a step's result, a part of one, or a step's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ignored {
    /// `emits.EVENT`, `result.STEP` or `steps.STEP`.
    whole: String,
    /// The way from there to the part; all of it if empty.
    part: Vec<String>,
}

/// A text that is not a place that a shadow compares.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a place that is compared; write one such as `emits.order.done/at`, \
     `result.ship/items/*/id` or `steps.notify`"
)]
pub struct IgnoredError(String);

impl Ignored {
    /// Whether it is all of what `path` names.
    pub fn is_all_of(&self, path: &str) -> bool {
        self.part.is_empty() && self.whole == path
    }

    /// Takes the part out of a value that `path` names, if it is one of that.
    pub fn take_out(&self, path: &str, value: &mut Value) {
        if self.whole == path {
            take_out(&self.part, value);
        }
    }
}

fn take_out(part: &[String], value: &mut Value) {
    let Some((key, rest)) = part.split_first() else { return };
    let is_all = key == "*";
    match value {
        Value::Object(fields) if rest.is_empty() => {
            fields.retain(|name, _| !is_all && name != key);
        }
        Value::Object(fields) => {
            let found = fields.iter_mut().filter(|(name, _)| is_all || *name == key);
            found.for_each(|(_, value)| take_out(rest, value));
        }
        Value::Array(items) => {
            let at: Option<usize> = key.parse().ok();
            let found = items.iter_mut().enumerate().filter(|(n, _)| is_all || Some(*n) == at);
            for (_, item) in found {
                // An item keeps its place, so that those behind it are compared with their like.
                if rest.is_empty() {
                    *item = Value::Null;
                } else {
                    take_out(rest, item);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

impl FromStr for Ignored {
    type Err = IgnoredError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || IgnoredError(text.escape_debug().to_string());
        let (whole, part) = match text.split_once('/') {
            Some((whole, part)) => (whole, part.split('/').map(unescaped).collect()),
            None => (text, Vec::new()),
        };
        let (kind, name) = whole.split_once('.').ok_or_else(error)?;
        let may_have_part = match kind {
            "emits" | "result" => true,
            "steps" => false,
            _ => return Err(error()),
        };
        let is_part = part.iter().all(|key: &String| !key.is_empty());
        if name.is_empty() || !is_part || (!part.is_empty() && !may_have_part) {
            return Err(error());
        }
        Ok(Self { whole: whole.to_owned(), part })
    }
}

/// A part of a JSON pointer as it was before it was written.
fn unescaped(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.whole)?;
        let escaped = |key: &String| key.replace('~', "~0").replace('/', "~1");
        self.part.iter().try_for_each(|key| write!(f, "/{}", escaped(key)))
    }
}

impl Serialize for Ignored {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Ignored {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'_, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_place_reads_as_it_is_written() {
        for text in ["emits.order.done", "emits.order.done/at", "result.a/b~1c/0/*", "steps.a"] {
            assert_eq!(text.parse::<Ignored>().unwrap().to_string(), text);
        }
        for text in ["status", "emits", "emits.", "at", "steps.a/at", "emits.a/", "input.a", ""] {
            assert!(text.parse::<Ignored>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_ignored_is_taken_out_of_a_value() {
        let value = json!({ "at": 1, "items": [{ "id": 1, "n": 2 }, { "id": 3 }], "a/b": 4 });
        let rows = [
            ("emits.a/at", json!({ "items": [{ "id": 1, "n": 2 }, { "id": 3 }], "a/b": 4 })),
            ("emits.a/items/*/id", json!({ "at": 1, "items": [{ "n": 2 }, {}], "a/b": 4 })),
            ("emits.a/items/1", json!({ "at": 1, "items": [{ "id": 1, "n": 2 }, null], "a/b": 4 })),
            ("emits.a/a~1b/c", value.clone()),
            ("emits.a/*", json!({})),
            ("emits.b/at", value.clone()),
        ];
        for (path, wanted) in rows {
            let mut found = value.clone();
            path.parse::<Ignored>().unwrap().take_out("emits.a", &mut found);
            assert_eq!(found, wanted, "{path}");
        }
    }
}
