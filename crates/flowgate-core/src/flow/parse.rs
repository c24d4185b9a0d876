//! From text to a flow, with a line and a column for everything that is wrong.
//!
//! JSON is read by the same reader as YAML, whose subset it is.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{Error, MessageFormatter, Options, UserMessageFormatter};

use super::nearest::nearest;
use super::{Flow, FlowFile, Path, PathPart, Problem, locate};
use crate::limits::FLOW_FILE_BYTES_MAX;

/// Events of the YAML reader that aliases may add in all.
const ALIAS_EVENTS_MAX: usize = 100_000;
/// Levels that a flow file may nest.
const DEPTH_MAX: usize = 64;

/// Something wrong with a flow file, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowError {
    /// The line, from 1.
    pub line: u64,
    /// The character in the line, from 1.
    pub column: u64,
    /// What is wrong.
    #[serde(flatten)]
    pub problem: Problem,
}

impl fmt::Display for FlowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { path: _, message, remedy } = &self.problem;
        write!(f, "{}:{}: {message}; {remedy}", self.line, self.column)
    }
}

/// Everything that is wrong with a flow file, in the order of its lines: at least one error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct FlowErrors(Vec<FlowError>);

impl FlowErrors {
    /// The errors.
    pub fn as_slice(&self) -> &[FlowError] {
        &self.0
    }

    /// Shows each error on a line of its own as `file:LINE:COLUMN: cause; remedy`.
    pub fn in_file<'a>(&'a self, file: &'a str) -> impl fmt::Display + 'a {
        fmt::from_fn(move |f| {
            for (at, error) in self.0.iter().enumerate() {
                let end = if at == 0 { "" } else { "\n" };
                write!(f, "{end}{file}:{error}")?;
            }
            Ok(())
        })
    }
}

impl fmt::Display for FlowErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            let end = if at == 0 { "" } else { "\n" };
            write!(f, "{end}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for FlowErrors {}

impl Flow {
    /// Reads a flow file in YAML or JSON.
    pub fn parse(text: &str) -> Result<Self, FlowErrors> {
        let file = FlowFile::parse(text)?;
        Self::new(file).map_err(|problems| placed(text, problems))
    }
}

impl FlowFile {
    /// Reads the form of a flow file, without the rules of [`FlowFile::validate`].
    pub fn parse(text: &str) -> Result<Self, FlowErrors> {
        read(text, &Words { what: "flow", top: "a mapping with `flow` and `steps`", belongs })
    }
}

/// How errors speak of a kind of file.
pub(crate) struct Words {
    /// What it is.
    pub(crate) what: &'static str,
    /// What stands at its top.
    pub(crate) top: &'static str,
    /// What belongs at a place that holds a mapping.
    pub(crate) belongs: fn(&[&str]) -> Option<&'static str>,
}

/// Reads the form of a file.
pub(crate) fn read<T: DeserializeOwned>(text: &str, words: &Words) -> Result<T, FlowErrors> {
    if text.len() > FLOW_FILE_BYTES_MAX {
        let message = format!("{} bytes are over the limit of {FLOW_FILE_BYTES_MAX}", text.len());
        return Err(one(1, 1, message, format!("split the {}", words.what)));
    }
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| {
        let (line, column) =
            error.location().map_or((1, 1), |at| (at.line().max(1), at.column().max(1)));
        let (message, remedy) = match misfit(&error) {
            Some(wanted) => explain_misfit(text, (line, column), wanted, words),
            None => explain(&error, words),
        };
        one(line, column, message, remedy)
    })
}

/// Gives each problem its place in the text.
pub(crate) fn placed(text: &str, problems: Vec<Problem>) -> FlowErrors {
    let places = locate::places(text);
    let mut errors: Vec<FlowError> = problems
        .into_iter()
        .map(|problem| {
            let (line, column) = places.find(&problem.path);
            FlowError { line, column, problem }
        })
        .collect();
    errors.sort_by_key(|error| (error.line, error.column));
    FlowErrors(errors)
}

fn one(line: u64, column: u64, message: String, remedy: impl Into<String>) -> FlowErrors {
    let problem = Problem { path: Path::default(), message, remedy: remedy.into() };
    FlowErrors(vec![FlowError { line, column, problem }])
}

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: DEPTH_MAX, max_documents: 1 },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: ALIAS_EVENTS_MAX },
        duplicate_keys: DuplicateKeyPolicy::Error,
        emit_comments: false,
        // `yes` and `on` are texts, as they are in JSON.
        strict_booleans: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

/// What the reader wanted, where it found a value of another kind and does not say which.
fn misfit(error: &Error) -> Option<&'static str> {
    if let Error::AliasError { error, .. } = error {
        return misfit(error);
    }
    if let Error::InvalidScalar { ty: wanted, .. } | Error::Unexpected { expected: wanted, .. } =
        error
    {
        return Some(wanted);
    }
    matches!(error, Error::NullIntoString { .. }).then_some("a string")
}

/// Names the value at this place, and what belongs there.
fn explain_misfit(
    text: &str,
    (line, column): (u64, u64),
    wanted: &str,
    words: &Words,
) -> (String, String) {
    let path = locate::places(text).path_at((line, column));
    let at = |number: u64| usize::try_from(number - 1).unwrap_or(usize::MAX);
    let rest: String =
        text.lines().nth(at(line)).unwrap_or_default().chars().skip(at(column)).collect();
    let end = rest.find([',', '}', ']', '#']).unwrap_or(rest.len());
    let found = match rest.trim_start().chars().next() {
        None | Some(':') => "an empty value".to_owned(),
        Some('[') => "a list".to_owned(),
        Some('-') if rest.starts_with("- ") => "a list".to_owned(),
        Some('{') => "a mapping".to_owned(),
        Some(_) => format!("`{}`", rest[..end].trim().escape_debug()),
    };
    let belongs = path.as_ref().and_then(|path| (words.belongs)(&keys(path)));
    let remedy = belongs.map_or_else(|| request(wanted), str::to_owned);
    (format!("{found} does not fit here"), remedy)
}

/// The keys of a path, with an empty one for a place in a list.
fn keys(path: &Path) -> Vec<&str> {
    let parts = path.0.iter().map(|part| match part {
        PathPart::Key(key) => key.as_str(),
        PathPart::Index(_) => "",
    });
    parts.collect()
}

/// What belongs at a place of a flow file that holds a mapping.
fn belongs(keys: &[&str]) -> Option<&'static str> {
    match keys {
        [] => Some("write a flow: a mapping with `flow` and `steps`"),
        ["steps"] => {
            Some("write the steps by their names, such as `start: {run: {worker: start}}`")
        }
        ["steps", _] => Some("write a step, such as `{subscribes: [event], run: {worker: name}}`"),
        ["steps", _, "wait"] => Some("write a wait, such as `{delay: 10s}` or `{signal: name}`"),
        ["steps", _, "wait", "match"] => Some("write fields and their values, such as `{id: 7}`"),
        ["steps", _, "retry"] => Some("write retries, such as `{attempts: 5}`"),
        ["steps", _, "retry", "backoff"] => {
            Some("write delays, such as `{initial: 200ms, factor: 2, max: 1m, jitter: 0.2}`")
        }
        ["singleton"] => Some("write `{}`, or `{key: input.tenant}`"),
        ["debounce"] => Some("write `{window: 5s}`, or `{key: input.tenant, window: 5s, max: 1m}`"),
        ["steps", _, "concurrency"] => {
            Some("write a limit, such as `{limit: 2}` or `{key: input.tenant, limit: 2}`")
        }
        ["steps", _, "rate"] => Some("write a rate, such as `{limit: 10, per: 1s}`"),
        ["steps", _, "run", "http"] => {
            Some("write a request, such as `{url: \"http://127.0.0.1:9000/\"}`")
        }
        ["steps", _, "run", "mqtt"] => {
            Some("write a message, such as `{topic: redforge/ingest/output}`")
        }
        ["schedules"] => {
            Some("write the schedules by their names, such as `nightly: {cron: \"0 2 * * *\"}`")
        }
        ["schedules", _] => Some("write a schedule, such as `{cron: \"0 2 * * *\"}`"),
        ["schedules", _, "tags"] => Some("write names and values, such as `{team: billing}`"),
        _ => None,
    }
}

/// The cause and the way out of an error of the reader.
#[expect(clippy::wildcard_enum_match_arm, reason = "the reader's errors grow with its versions")]
fn explain(error: &Error, words: &Words) -> (String, String) {
    let what = words.what;
    match error {
        Error::AliasError { error, .. } => explain(error, words),
        Error::SerdeUnknownField { field, expected, .. } => {
            (format!("unknown field `{}`", field.escape_debug()), known(field, expected))
        }
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            (format!("unknown kind `{}`", variant.escape_debug()), known(variant, expected))
        }
        Error::SerdeMissingField { field, .. } => {
            let remedy = match *field {
                "flow" => "add `flow: NAME` at the top",
                "steps" => "add `steps:` with at least one step",
                "topic" => "add the `topic` to publish it to",
                "url" => "add the `url` to send the request to",
                "command" => "add `command: [program, argument, …]`",
                "limit" => "add `limit: N`: how many there may be",
                "window" => "add how long there must be no start, such as `window: 5s`",
                "per" => "add the span that the limit is for, such as `per: 1s`",
                _ => "add it",
            };
            (format!("`{field}` is missing"), remedy.to_owned())
        }
        Error::SerdeInvalidType { unexpected, expected, .. }
        | Error::SerdeInvalidValue { unexpected, expected, .. } => {
            (format!("{} does not fit here", found(unexpected)), request(expected))
        }
        Error::DuplicateMappingKey { key, .. } => {
            let key =
                key.as_ref().map_or(String::new(), |key| format!(" `{}`", key.escape_debug()));
            (format!("the key{key} is there twice"), "remove one, or rename it".to_owned())
        }
        Error::Eof { .. } => {
            (format!("the file ends before the {what} does"), format!("write {}", words.top))
        }
        Error::MultipleDocuments { .. } => too_many_documents(what),
        Error::UnknownAnchor { .. } => (
            "the alias has no anchor".to_owned(),
            "set it before with `&name`, or quote the text".to_owned(),
        ),
        Error::Budget { breach, .. } => explain_budget(breach, what),
        Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. }
        | Error::AliasReplayCounterOverflow { .. } => too_many_aliases(),
        _ => explain_text(&UserMessageFormatter.format_message(error)),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the reader's limits grow with its versions")]
fn explain_budget(breach: &BudgetBreach, what: &str) -> (String, String) {
    match breach {
        BudgetBreach::Depth { .. } => {
            (format!("the file nests more than {DEPTH_MAX} levels deep"), "flatten it".to_owned())
        }
        BudgetBreach::Documents { .. } => too_many_documents(what),
        BudgetBreach::Aliases { .. }
        | BudgetBreach::Anchors { .. }
        | BudgetBreach::AliasAnchorRatio { .. }
        | BudgetBreach::RecordedAnchorEvents { .. }
        | BudgetBreach::RecordedAnchorBytes { .. }
        | BudgetBreach::MergeKeys { .. } => too_many_aliases(),
        _ => ("the file has too many parts".to_owned(), format!("split the {what}")),
    }
}

fn too_many_documents(what: &str) -> (String, String) {
    (
        "there is more than one document".to_owned(),
        format!("keep one {what} in a file, without `---` between"),
    )
}

fn too_many_aliases() -> (String, String) {
    (
        "the aliases make the file too large".to_owned(),
        "write out what they stand for, or use fewer of them".to_owned(),
    )
}

/// The ways out of what YAML files most often get wrong, by the reader's words for it.
const SYNTAX: [(&str, &str); 10] = [
    ("mapping values are not allowed", "put quotes around a text that holds `: `"),
    ("tabs disallowed", "indent with spaces"),
    ("unclosed bracket", "close it"),
    ("unsupported tag", "remove the tag, or put quotes around the text"),
    ("expected ',' or", "put a comma between the entries, or close the bracket"),
    ("did not find expected key", "indent the line as those that it belongs with"),
    ("quoted scalar", "close the quotes, and indent a text that goes on over lines"),
    ("unexpected character", "take out what is not text"),
    ("finite number", "write a number that JSON has too"),
    ("invalid boolean", "write `true` or `false`"),
];

/// A message of ours is `cause; remedy`; one of the reader's is a cause alone.
fn explain_text(text: &str) -> (String, String) {
    if let Some((cause, remedy)) = text.rsplit_once("; ") {
        return (cause.to_owned(), remedy.to_owned());
    }
    let remedy = SYNTAX
        .iter()
        .find(|(words, _)| text.contains(words))
        .map_or("correct the YAML or JSON here or on the line before", |(_, remedy)| remedy);
    (format!("the file cannot be read: {text}"), remedy.to_owned())
}

fn known(name: &str, expected: &[&'static str]) -> String {
    if let Some(meant) = nearest(name, expected.iter().copied()) {
        return format!("did you mean `{meant}`?");
    }
    let list: Vec<String> = expected.iter().map(|name| format!("`{name}`")).collect();
    match list.as_slice() {
        [only] => format!("only {only} is known here"),
        _ => format!("known here are {}", list.join(", ")),
    }
}

/// Serde's word for what it found, in the words of a flow file.
fn found(unexpected: &str) -> String {
    match unexpected {
        "unit value" | "Option value" | "null" => "an empty value".to_owned(),
        "sequence" => "a list".to_owned(),
        "map" => "a mapping".to_owned(),
        other => format!("the {}", other.trim_start_matches("the ")),
    }
}

/// Serde's word for what it wants, as a request.
fn request(expected: &str) -> String {
    let kind = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number",
        "f32" | "f64" | "float" | "floating point" => "a number",
        "a sequence" | "sequence" | "sequence start" => "a list",
        "a map" | "map" | "mapping start" => "a mapping",
        "string scalar" | "string" | "scalar" => "a string",
        other => other,
    };
    format!("write {kind}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_over_the_limit_is_refused_unread() {
        let text = format!("flow: order\n#{}", "x".repeat(FLOW_FILE_BYTES_MAX));
        let errors = Flow::parse(&text).unwrap_err();
        insta::assert_snapshot!(errors, @"1:1: 1048589 bytes are over the limit of 1048576; split the flow");
    }

    #[test]
    fn errors_come_in_the_order_of_lines_and_serialize() {
        let text = "flow: a\nsteps:\n  s:\n    timeout: 0s\n  t:\n    subscribes: [x]\n";
        let errors = Flow::parse(text).unwrap_err();
        insta::assert_snapshot!(errors.in_file("a.yaml"), @r"
        a.yaml:4:5: `timeout` does nothing on a step without `run`: it bounds an attempt of `run`; remove `timeout`, or give the step a `run`
        a.yaml:4:5: `0s` is no time at all; write at least `1ms`, or leave it out
        a.yaml:6:18: no step emits `x`; declare it in the `emits` of a step
        ");
        insta::assert_json_snapshot!(errors.as_slice().last(), @r#"
        {
          "line": 6,
          "column": 18,
          "path": "steps.t.subscribes[0]",
          "message": "no step emits `x`",
          "remedy": "declare it in the `emits` of a step"
        }
        "#);
    }

    #[test]
    fn texts_that_yaml_1_1_would_change_stay_texts() {
        let text = "flow: a\ninput: {enum: [yes, on, off, n, true, ~, 7]}\nsteps: {s: {}}\n";
        let flow = Flow::parse(text).unwrap();
        let json = serde_json::to_string(&flow.file.input).unwrap();
        assert_eq!(json, r#"{"enum":["yes","on","off","n",true,null,7]}"#);
    }
}
