//! What a program says on its standard output.
//!
//! A line that is a JSON object with one of these keys is a message; one line may carry several:
//!
//! | line | meaning |
//! |---|---|
//! | `{"emit": "EVENT", "data": …}` | emit an event; `data` is `null` if absent |
//! | `{"state": {"KEY": …}}` | set state values of the run |
//! | `{"log": "TEXT", "level": "warn"}` | a log line; `info` if there is no level |
//! | `{"result": …}` | the step's result; the last one counts |
//! | `{"fail": "TEXT", "retry": false}` | the attempt failed; `{"fail": {"message": …, "retry": …}}` says the same |
//!
//! Any other line is a log line of level `info`. A `log` that is not a text is such a line too:
//! many programs write their own logs as JSON. The other keys with a value of the wrong shape fail
//! the attempt, for otherwise an event would get lost in silence.

use std::collections::HashMap;

use flowgate_core::payload::Payload;
use flowgate_store::LogLevel;
use serde::Deserialize;
use serde_json::value::RawValue;

/// One line.
#[derive(Debug, PartialEq)]
pub(crate) enum Line {
    /// A log line.
    Text,
    /// Messages, in the order in which they count.
    Messages(Vec<Message>),
}

/// Something that a program tells the engine.
#[derive(Debug, PartialEq)]
pub(crate) enum Message {
    State(String, Payload),
    Emit(String, Payload),
    Log(LogLevel, String),
    Result(Payload),
    Fail { message: String, retry: bool },
}

/// Keys of which each makes an object a message.
const KEYS: [&str; 5] = ["state", "emit", "log", "result", "fail"];

/// Reads a line; an error says what is wrong with a message.
pub(crate) fn read(line: &str) -> Result<Line, String> {
    let line = line.trim();
    if !line.starts_with('{') {
        return Ok(Line::Text);
    }
    let Ok(fields) = serde_json::from_str::<HashMap<String, &RawValue>>(line) else {
        return Ok(Line::Text);
    };
    if !KEYS.iter().any(|key| fields.contains_key(*key)) {
        return Ok(Line::Text);
    }
    let mut messages = Vec::new();
    if let Some(state) = fields.get("state") {
        let values: HashMap<String, &RawValue> = shaped("state", "an object", state)?;
        for (key, value) in values {
            messages.push(Message::State(key, payload("state", value)?));
        }
    }
    if let Some(event) = fields.get("emit") {
        let data = fields.get("data").map_or_else(|| Ok(Payload::null()), |d| payload("data", d));
        messages.push(Message::Emit(shaped("emit", "the name of an event", event)?, data?));
    }
    if let Some(text) = fields.get("log")
        && let Ok(text) = serde_json::from_str(text.get())
    {
        let level = fields.get("level").and_then(|level| serde_json::from_str(level.get()).ok());
        let level = level.and_then(LogLevel::parse).unwrap_or(LogLevel::Info);
        messages.push(Message::Log(level, text));
    }
    if let Some(result) = fields.get("result") {
        messages.push(Message::Result(payload("result", result)?));
    }
    if let Some(fail) = fields.get("fail") {
        messages.push(read_fail(fail, fields.get("retry").copied())?);
    }
    Ok(if messages.is_empty() { Line::Text } else { Line::Messages(messages) })
}

/// Whether a line that is too long to be read was meant to be a message.
pub(crate) fn is_message_start(line: &str) -> bool {
    let Some(rest) = line.trim_start().strip_prefix('{') else { return false };
    let Some(key) = rest.trim_start().strip_prefix('"') else { return false };
    KEYS.iter().any(|name| key.strip_prefix(name).is_some_and(|rest| rest.starts_with('"')))
}

fn read_fail(fail: &RawValue, retry: Option<&RawValue>) -> Result<Message, String> {
    #[derive(Deserialize)]
    struct Fail {
        message: String,
        retry: Option<bool>,
    }
    let retry = retry.map(|retry| shaped("retry", "true or false", retry)).transpose()?;
    if let Ok(message) = serde_json::from_str::<String>(fail.get()) {
        return Ok(Message::Fail { message, retry: retry.unwrap_or(true) });
    }
    let fail: Fail = shaped("fail", "a text, or an object with `message` and `retry`", fail)?;
    Ok(Message::Fail { message: fail.message, retry: fail.retry.or(retry).unwrap_or(true) })
}

fn shaped<'a, T: Deserialize<'a>>(key: &str, shape: &str, raw: &'a RawValue) -> Result<T, String> {
    serde_json::from_str(raw.get())
        .map_err(|error| format!("the step wrote a message whose `{key}` is not {shape}: {error}"))
}

fn payload(key: &str, raw: &RawValue) -> Result<Payload, String> {
    Payload::parse(raw.get())
        .map_err(|error| format!("the step wrote a message whose `{key}` cannot be kept: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &str) -> Payload {
        Payload::parse(text).unwrap()
    }

    fn check(line: &str, expected: Vec<Message>) {
        assert_eq!(read(line), Ok(Line::Messages(expected)), "{line}");
    }

    #[test]
    fn a_line_with_a_known_key_is_a_message() {
        let fail = |message: &str, retry| Message::Fail { message: message.into(), retry };
        check(
            r#"{"emit":"a.b","data":{"n":1}}"#,
            vec![Message::Emit("a.b".into(), data(r#"{"n":1}"#))],
        );
        check(r#" {"emit":"a"} "#, vec![Message::Emit("a".into(), Payload::null())]);
        check(r#"{"state":{"k":[1]}}"#, vec![Message::State("k".into(), data("[1]"))]);
        check(r#"{"log":"x","level":"warn"}"#, vec![Message::Log(LogLevel::Warn, "x".into())]);
        check(r#"{"log":"x","level":7}"#, vec![Message::Log(LogLevel::Info, "x".into())]);
        check(r#"{"result":null}"#, vec![Message::Result(Payload::null())]);
        check(r#"{"fail":"no"}"#, vec![fail("no", true)]);
        check(r#"{"fail":"no","retry":false}"#, vec![fail("no", false)]);
        check(r#"{"fail":{"message":"no","retry":false}}"#, vec![fail("no", false)]);
        check(
            r#"{"result":1,"emit":"a"}"#,
            vec![Message::Emit("a".into(), Payload::null()), Message::Result(data("1"))],
        );
    }

    #[test]
    fn any_other_line_is_a_log_line() {
        let lines =
            ["", "done", "{", "{}", "[1]", r#"{"level":"info"}"#, r#"{"log":{"file":"x"}}"#];
        for line in lines {
            assert_eq!(read(line), Ok(Line::Text), "{line}");
        }
    }

    #[test]
    fn a_message_of_the_wrong_shape_is_refused() {
        for line in
            [r#"{"emit":1}"#, r#"{"state":1}"#, r#"{"fail":[]}"#, r#"{"fail":"a","retry":1}"#]
        {
            assert!(read(line).is_err(), "{line}");
        }
        assert!(is_message_start(r#" { "emit":"a","data":"xxx"#));
        assert!(!is_message_start(r#"{"emitter":1"#));
    }
}
