//! How the types with a notation of their own are written: lists that may be mappings, lengths of
//! time, and what a timeout does.
//!
//! Each is read by a visitor, so that an error keeps its place and says what is accepted. A
//! message of ours is `cause; remedy`, with the last `; ` between the two.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeStruct};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{OnTimeout, ProcessFile, RunFile, Span, Subscribes};

/// Reads a value that may be left out but not be empty: `timeout:` with nothing behind it would
/// otherwise be read, and do nothing.
pub(crate) fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// Reads a list of strings and nothing that a reader might take for one.
pub(super) fn strings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    deserializer.deserialize_any(Strings)
}

struct Strings;

impl<'de> Visitor<'de> for Strings {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list such as `[first, second]`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut names = Vec::new();
        while let Some(name) = list.next_element()? {
            names.push(name);
        }
        Ok(names)
    }
}

/// A list that is the value of a key.
struct Listed(Vec<String>);

impl<'de> Deserialize<'de> for Listed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        strings(deserializer).map(Self)
    }
}

impl Serialize for Subscribes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All(names) => names.serialize(serializer),
            Self::Any(names) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("any", names)?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Subscribes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SubscribesVisitor)
    }
}

struct SubscribesVisitor;

impl<'de> Visitor<'de> for SubscribesVisitor {
    type Value = Subscribes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events, `{all: [event, …]}` or `{any: [event, …]}`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        Strings.visit_seq(list).map(Subscribes::All)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Some(key) = map.next_key::<String>()? else {
            return Err(de::Error::custom(
                "`subscribes` is an empty mapping; write a list of events, `{all: [event, …]}` or \
                 `{any: [event, …]}`",
            ));
        };
        let subscribes = match key.as_str() {
            "all" => Subscribes::All(map.next_value::<Listed>()?.0),
            "any" => Subscribes::Any(map.next_value::<Listed>()?.0),
            other => return Err(de::Error::unknown_field(other, &["all", "any"])),
        };
        match map.next_key::<String>()? {
            None => Ok(subscribes),
            Some(_) => Err(de::Error::custom(
                "`subscribes` has more than one key; write either `all` or `any`, and put a step \
                 between if you need both",
            )),
        }
    }
}

impl JsonSchema for Subscribes {
    fn schema_name() -> Cow<'static, str> {
        "Subscribes".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let list = json_schema!({
            "type": "array", "minItems": 1, "uniqueItems": true, "items": { "type": "string" },
        });
        json_schema!({
            "description": "What a step subscribes to: a list or `all` starts it once all have \
                            happened, `any` on the first. `step:NAME` is the completion of a step, \
                            `step.failed:NAME` its failure.",
            "oneOf": [
                list.clone(),
                {
                    "type": "object", "required": ["all"], "additionalProperties": false,
                    "properties": { "all": list.clone() },
                },
                {
                    "type": "object", "required": ["any"], "additionalProperties": false,
                    "properties": { "any": list },
                },
            ],
        })
    }
}

impl<'de> Deserialize<'de> for RunFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RunVisitor)
    }
}

struct RunVisitor;

impl<'de> Visitor<'de> for RunVisitor {
    type Value = RunFile;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "one of `process`, `shell`, `http`, `mqtt` and `worker`, such as `{worker: name}`",
        )
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        const KINDS: &[&str] = &["process", "shell", "http", "mqtt", "worker"];
        let Some(key) = map.next_key::<String>()? else {
            return Err(de::Error::custom(
                "`run` does not say what to run; write one of `process`, `shell`, `http`, \
                 `mqtt` and `worker`, such as `{worker: name}`",
            ));
        };
        let run = match key.as_str() {
            "process" => RunFile::Process(map.next_value()?),
            "shell" => RunFile::Shell(map.next_value()?),
            "http" => RunFile::Http(map.next_value()?),
            "mqtt" => RunFile::Mqtt(map.next_value()?),
            "worker" => RunFile::Worker(map.next_value()?),
            other => return Err(de::Error::unknown_field(other, KINDS)),
        };
        match map.next_key::<String>()? {
            None => Ok(run),
            Some(_) => Err(de::Error::custom(
                "`run` says more than one thing to do; keep one and make the other a step of its own",
            )),
        }
    }
}

impl Serialize for ProcessFile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.cwd.is_none() && self.env.is_empty() {
            return self.command.serialize(serializer);
        }
        let fields = 1 + usize::from(self.cwd.is_some()) + usize::from(!self.env.is_empty());
        let mut map = serializer.serialize_struct("ProcessFile", fields)?;
        map.serialize_field("command", &self.command)?;
        match &self.cwd {
            Some(cwd) => map.serialize_field("cwd", cwd)?,
            None => map.skip_field("cwd")?,
        }
        if self.env.is_empty() {
            map.skip_field("env")?;
        } else {
            map.serialize_field("env", &self.env)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for ProcessFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ProcessVisitor)
    }
}

struct ProcessVisitor;

impl<'de> Visitor<'de> for ProcessVisitor {
    type Value = ProcessFile;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the program and its arguments as a list, such as `[python3, start.py]`, or \
             `{command: […], cwd: …, env: {…}}`, or use `shell` for a line of shell",
        )
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        let command = Strings.visit_seq(list)?;
        Ok(ProcessFile { command, cwd: None, env: BTreeMap::new() })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut command, mut cwd, mut env) = (None, None, None);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "command" if command.is_none() => command = Some(map.next_value::<Listed>()?.0),
                "cwd" if cwd.is_none() => cwd = Some(map.next_value()?),
                "env" if env.is_none() => env = Some(map.next_value()?),
                "command" => return Err(de::Error::duplicate_field("command")),
                "cwd" => return Err(de::Error::duplicate_field("cwd")),
                "env" => return Err(de::Error::duplicate_field("env")),
                other => return Err(de::Error::unknown_field(other, &["command", "cwd", "env"])),
            }
        }
        let command = command.ok_or_else(|| de::Error::missing_field("command"))?;
        Ok(ProcessFile { command, cwd, env: env.unwrap_or_default() })
    }
}

impl JsonSchema for ProcessFile {
    fn schema_name() -> Cow<'static, str> {
        "ProcessFile".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let command = json_schema!({
            "type": "array", "minItems": 1, "items": { "type": "string" },
            "description": "The program and its arguments.",
        });
        json_schema!({
            "description": "A program to start: its arguments, or those with a folder and variables.",
            "oneOf": [
                command.clone(),
                {
                    "type": "object", "required": ["command"], "additionalProperties": false,
                    "properties": {
                        "command": command,
                        "cwd": {
                            "type": "string",
                            "description": "The folder to start it in; the flow file's if absent.",
                        },
                        "env": {
                            "type": "object", "additionalProperties": { "type": "string" },
                            "description": "Variables to add to its environment.",
                        },
                    },
                },
            ],
        })
    }
}

impl Serialize for OnTimeout {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fail => serializer.serialize_str("fail"),
            Self::Continue => serializer.serialize_str("continue"),
            Self::Emit(event) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("emit", event)?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for OnTimeout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OnTimeoutVisitor)
    }
}

struct OnTimeoutVisitor;

impl<'de> Visitor<'de> for OnTimeoutVisitor {
    type Value = OnTimeout;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`fail`, `continue` or `{emit: EVENT}`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        match text {
            "fail" => Ok(OnTimeout::Fail),
            "continue" => Ok(OnTimeout::Continue),
            "emit" => Err(E::custom(
                "`on_timeout: emit` does not say which event; write `on_timeout: {emit: EVENT}`",
            )),
            other => Err(E::custom(format_args!(
                "`{other}` is not something a timeout can do; write `fail`, `continue` or \
                 `{{emit: EVENT}}`"
            ))),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Some(key) = map.next_key::<String>()? else {
            return Err(de::Error::custom(
                "`on_timeout` is an empty mapping; write `fail`, `continue` or `{emit: EVENT}`",
            ));
        };
        if key != "emit" {
            return Err(de::Error::unknown_field(&key, &["emit"]));
        }
        let event = map.next_value()?;
        match map.next_key::<String>()? {
            None => Ok(OnTimeout::Emit(event)),
            Some(_) => Err(de::Error::custom(
                "`on_timeout` has more than one key; write `{emit: EVENT}` alone",
            )),
        }
    }
}

impl JsonSchema for OnTimeout {
    fn schema_name() -> Cow<'static, str> {
        "OnTimeout".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "What happens when a wait times out.",
            "oneOf": [
                { "const": "fail", "description": "The step fails." },
                {
                    "const": "continue",
                    "description": "The step completes as if the wait had ended well.",
                },
                {
                    "type": "object", "required": ["emit"], "additionalProperties": false,
                    "properties": { "emit": { "type": "string" } },
                    "description": "The step completes and emits this event alone.",
                },
            ],
        })
    }
}

/// The units of a length of time, the longest first, in milliseconds.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// A text that is not a length of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a length of time; write whole numbers with the units d, h, m, s and ms, such \
     as `200ms`, `10s` or `1h30m`"
)]
pub struct SpanError {
    text: String,
}

impl FromStr for Span {
    type Err = SpanError;

    /// Reads `1h30m`: numbers with a unit each, the longest unit first and each at most once.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || SpanError { text: text.to_owned() };
        let mut rest = text;
        let mut total = 0_u64;
        let mut units = UNITS.iter();
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let number: u64 = rest[..digits].parse().map_err(|_| error())?;
            rest = &rest[digits..];
            let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
            let (_, unit) = units.find(|(name, _)| *name == &rest[..letters]).ok_or_else(error)?;
            rest = &rest[letters..];
            total =
                number.checked_mul(*unit).and_then(|ms| total.checked_add(ms)).ok_or_else(error)?;
        }
        if text.is_empty() { Err(error()) } else { Ok(Self(Duration::from_millis(total))) }
    }
}

impl fmt::Display for Span {
    /// The notation that is read; what is shorter than a millisecond is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_millis();
        if rest == 0 {
            return f.write_str("0s");
        }
        for (name, unit) in UNITS {
            let count = rest / u128::from(unit);
            if count > 0 {
                write!(f, "{count}{name}")?;
            }
            rest %= u128::from(unit);
        }
        Ok(())
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SpanVisitor)
    }
}

struct SpanVisitor;

impl Visitor<'_> for SpanVisitor {
    type Value = Span;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a length of time such as `200ms`, `10s`, `5m`, `48h` or `7d`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        Err(E::custom(format_args!(
            "`{number}` is a length of time without a unit; write `{number}s` for seconds, or use \
             ms, m, h or d"
        )))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        match u64::try_from(number) {
            Ok(number) => self.visit_u64(number),
            Err(_) => Err(E::custom(SpanError { text: number.to_string() })),
        }
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
        Err(E::custom(SpanError { text: number.to_string() }))
    }
}

impl JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^(?=.)([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$",
            "description": "A length of time: `200ms`, `10s`, `5m`, `48h`, `7d`, `1h30m`.",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_time_is_read_and_written_in_one_notation() {
        let rows = [
            ("200ms", 200, "200ms"),
            ("10s", 10_000, "10s"),
            ("90m", 5_400_000, "1h30m"),
            ("48h", 172_800_000, "2d"),
            ("1d2h3m4s5ms", 93_784_005, "1d2h3m4s5ms"),
            ("0s", 0, "0s"),
        ];
        for (text, ms, written) in rows {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.0, Duration::from_millis(ms), "{text}");
            assert_eq!(span.to_string(), written);
        }
        for bad in
            ["", "10", "s", "1.5s", "-1s", "1s1h", "1s1s", "1 s", "10sec", "99999999999999999999s"]
        {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }

    #[test]
    fn each_notation_is_written_as_its_shortest_form() {
        let rows = [r#"["a","b"]"#, r#"{"any":["a"]}"#];
        for text in rows {
            let value: Subscribes = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&value).unwrap(), text);
        }
        let all: Subscribes = serde_json::from_str(r#"{"all":["a"]}"#).unwrap();
        assert_eq!(serde_json::to_string(&all).unwrap(), r#"["a"]"#);
        for text in [r#"["sh","-c"]"#, r#"{"command":["sh"],"env":{"A":"b"}}"#] {
            let value: ProcessFile = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&value).unwrap(), text);
        }
        for text in [r#""fail""#, r#""continue""#, r#"{"emit":"late"}"#] {
            let value: OnTimeout = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&value).unwrap(), text);
        }
    }
}
