//! The scripts, and what they answer.

use std::sync::OnceLock;

use redis::{Cmd, RedisResult, Value};

use super::fault::{is_unknown_script, unreadable};
use super::link::Link;
use crate::StoreError;

const SHARED: &str = include_str!("scripts/shared.lua");

/// A script that the servers run alone and whole.
#[derive(Debug)]
pub(super) struct Script {
    body: &'static str,
    loaded: OnceLock<redis::Script>,
}

macro_rules! scripts {
    ($($name:ident: $($file:literal)+),+ $(,)?) => {
        $(pub(super) static $name: Script = Script {
            body: concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+),
            loaded: OnceLock::new(),
        };)+
    };
}

scripts! {
    APPEND_LOGS: "append_logs",
    BEAT: "beat",
    CLAIM: "claim",
    COMMIT: "commit",
    COUNT_RUNS: "count_runs",
    FEED_END: "feed_end",
    FORGET_PERMITS: "permits" "forget_permits",
    IMPORT_REVISION: "import_revision",
    IMPORT_RUN: "import_run",
    LEAVE: "leave",
    LIST_RECORDS: "list_records",
    LIST_REVISIONS: "list_revisions",
    LIST_RUNS: "list_runs",
    LIST_TERMS: "list_terms",
    NOW: "now",
    OPEN: "open",
    PAST_TERMS: "past_terms",
    PEEK: "peek",
    QUEUE_STATS: "queue_stats",
    RAISE_TOKENS: "raise_tokens",
    READ_EVENTS: "read_events",
    READ_FEED: "read_feed",
    READ_PERMITS: "permits" "read_permits",
    READ_RECORDS: "read_records",
    READ_RUN: "read_run",
    REGISTER_FLOW: "register_flow",
    RELEASE_PERMITS: "permits" "release_permits",
    RELEASE_TERM: "release_term",
    RENEW: "renew",
    SET_GATE: "set_gate",
    SWEEP: "sweep",
    SWEEP_RECORDS: "sweep_records",
    TAKE_PERMITS: "permits" "take_permits",
    TAKE_TERM: "take_term",
    WAKE_JOBS: "wake_jobs",
    WRITE_RECORDS: "write_records",
}

impl Script {
    fn loaded(&self) -> &redis::Script {
        self.loaded.get_or_init(|| redis::Script::new(&format!("{SHARED}{}", self.body)))
    }

    /// Runs it on the partition with this prefix; `write` adds the arguments.
    ///
    /// A server that does not know the script gets its text: one that was restarted or told to
    /// forget, and each node of a cluster the first time.
    pub(super) async fn run(
        &self,
        link: &Link,
        prefix: &str,
        write: impl Fn(&mut Cmd),
    ) -> RedisResult<Value> {
        let mut by_hash = redis::cmd("EVALSHA");
        by_hash.arg(self.loaded().get_hash()).arg(1).arg(prefix);
        write(&mut by_hash);
        let answer = link.call(&by_hash).await;
        match answer {
            Err(error) if is_unknown_script(&error) => {
                let mut by_text = redis::cmd("EVAL");
                by_text.arg(SHARED.to_owned() + self.body).arg(1).arg(prefix);
                write(&mut by_text);
                link.call(&by_text).await
            }
            Ok(_) | Err(_) => answer,
        }
    }
}

/// An answer, read value by value.
#[derive(Debug)]
pub(super) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    /// The values of an array.
    #[expect(clippy::wildcard_enum_match_arm, reason = "every other kind is as wrong")]
    pub(super) fn of(value: Value) -> Result<Self, StoreError> {
        match value {
            Value::Array(values) | Value::Set(values) => Ok(Self(values.into_iter())),
            Value::Map(pairs) => {
                let values: Vec<_> = pairs.into_iter().flat_map(|(key, of)| [key, of]).collect();
                Ok(Self(values.into_iter()))
            }
            Value::Nil => Ok(Self(Vec::new().into_iter())),
            // The content stays out of messages: it may be a payload.
            _ => Err(unreadable("another kind of value in place of an array")),
        }
    }

    /// How many values are left.
    pub(super) fn left(&self) -> usize {
        self.0.len()
    }

    /// The next value as an array.
    pub(super) fn array(&mut self) -> Result<Self, StoreError> {
        Self::of(self.value()?)
    }

    /// The next value as bytes; none if it is nil.
    #[expect(clippy::wildcard_enum_match_arm, reason = "every other kind is as wrong")]
    fn bytes(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        match self.value()? {
            Value::Nil | Value::Boolean(false) => Ok(None),
            Value::BulkString(bytes) => Ok(Some(bytes)),
            Value::SimpleString(text) => Ok(Some(text.into_bytes())),
            Value::Int(number) => Ok(Some(number.to_string().into_bytes())),
            // The content stays out of messages: it may be a payload.
            _ => Err(unreadable("another kind of value in place of a text")),
        }
    }

    /// The next value as text; none if it is nil.
    pub(super) fn text(&mut self) -> Result<Option<String>, StoreError> {
        let text = self.bytes()?.map(String::from_utf8).transpose();
        text.map_err(|_| unreadable("bytes in place of a text"))
    }

    /// The next value as text, which is there.
    pub(super) fn word(&mut self) -> Result<String, StoreError> {
        self.text()?.ok_or_else(|| unreadable("nothing in place of a text"))
    }

    /// The next value as a number, which is there.
    pub(super) fn number<N: std::str::FromStr>(&mut self) -> Result<N, StoreError> {
        parse(&self.word()?)
    }

    /// The next value.
    fn value(&mut self) -> Result<Value, StoreError> {
        self.0.next().ok_or_else(|| unreadable("less than was asked for"))
    }
}

impl Iterator for Reply {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        self.0.next()
    }
}

/// A number as it is stored.
pub(super) fn parse<N: std::str::FromStr>(text: &str) -> Result<N, StoreError> {
    text.parse().map_err(|_| unreadable(format_args!("`{text}` in place of a number")))
}

#[cfg(test)]
mod tests {
    use crate::control::PRIORITY_HEAD_START;

    #[test]
    fn the_scripts_know_the_head_start_of_a_priority() {
        let line = format!("local HEAD_START_US = {}\n", PRIORITY_HEAD_START.as_micros());
        assert!(super::SHARED.contains(&line), "{line}");
    }
}
