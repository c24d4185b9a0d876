//! Sinks in the settings file: `[subscribers.NAME]`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use flowgate_core::flow::Span;
use flowgate_core::ids::is_identifier;
use flowgate_core::retry::RetryPolicy;
use flowgate_engine::subscriber::{HttpSink, InstanceMode, OnFailure, StartFrom, SubscribeOptions};
use flowgate_store::url::masked;
use serde::Deserialize;
use toml::Spanned;

use super::Origin;
use crate::failure::Failure;

/// A subscriber that the settings ask for.
#[derive(Clone, Debug)]
pub(crate) struct Sink {
    pub(crate) id: String,
    pub(crate) target: Target,
    pub(crate) options: SubscribeOptions,
    pub(crate) origin: Origin,
}

/// Where its events go.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Http { sink: HttpSink, url: String },
    File(PathBuf),
}

impl Sink {
    /// What it is, as anybody may see it.
    pub(crate) fn shown(&self) -> String {
        let mode = self.options.mode.as_str();
        match &self.target {
            Target::Http { url, .. } => format!("http {} ({mode})", masked(url)),
            Target::File(path) => format!("file {} ({mode})", path.display()),
        }
    }
}

/// The part of the file that is about subscribers.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    subscribers: BTreeMap<Spanned<String>, Spanned<SinkFile>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SinkFile {
    sink: Kind,
    url: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    timeout: Option<Span>,
    path: Option<PathBuf>,
    #[serde(default)]
    mode: InstanceMode,
    #[serde(default)]
    on_failure: OnFailure,
    from: Option<From>,
    attempts: Option<u32>,
    lease: Option<Span>,
    partitions: Option<u16>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Http,
    File,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum From {
    Start,
    Now,
}

/// The sinks that `text`, the file called `name`, asks for.
pub(super) fn parse(name: &str, text: &str) -> Result<Vec<Sink>, Failure> {
    let line = |offset: usize| super::file::line_at(text, offset);
    let wrong = |line: usize, message: &str| {
        Failure::usage("config_invalid", format!("{name}:{line}: {message}")).path(name)
    };
    let file: File = toml::from_str(text).map_err(|error| {
        wrong(error.span().map_or(1, |span| line(span.start)), error.message())
            .help("see docs/guide/subscribers.md for the settings of a subscriber")
    })?;
    let sinks = file.subscribers.into_iter().map(|(id, sink)| {
        let line = line(id.span().start);
        let id = id.into_inner();
        let origin = Origin::File { path: name.to_owned(), line };
        read(&id, sink.into_inner(), origin)
            .map_err(|message| wrong(line, &format!("subscriber `{id}`: {message}")))
    });
    sinks.collect()
}

fn read(id: &str, file: SinkFile, origin: Origin) -> Result<Sink, String> {
    if !is_identifier(id) {
        return Err("it cannot be called that: letters, digits, `.`, `_` and `-`".to_owned());
    }
    let timeout = file.timeout.map(|span| span.0);
    let target = match (file.sink, file.url, file.path) {
        (Kind::Http, Some(url), None) => {
            let sink = HttpSink::new(&url).map_err(|error| error.to_string())?;
            let sink = sink.headers(&file.headers.unwrap_or_default());
            let sink = sink.map_err(|error| error.to_string())?;
            let sink = timeout.map_or(sink.clone(), |timeout| sink.timeout(timeout));
            Target::Http { sink, url }
        }
        (Kind::File, None, Some(path)) => {
            if file.headers.is_some() || timeout.is_some() {
                return Err("`headers` and `timeout` are for the sink `http`".to_owned());
            }
            if file.partitions.is_some_and(|count| count != 1) {
                return Err("a file has one partition".to_owned());
            }
            Target::File(path)
        }
        (Kind::Http, _, _) => return Err("the sink `http` has a `url` and no `path`".to_owned()),
        (Kind::File, _, _) => return Err("the sink `file` has a `path` and no `url`".to_owned()),
    };
    let defaults = SubscribeOptions::default();
    let options = SubscribeOptions {
        mode: file.mode,
        from: match file.from {
            Some(From::Now) => StartFrom::Now,
            Some(From::Start) | None => StartFrom::Start,
        },
        retry: RetryPolicy {
            attempts_max: file.attempts.unwrap_or(defaults.retry.attempts_max),
            ..defaults.retry
        },
        on_failure: file.on_failure,
        partitions: file.partitions.unwrap_or(1),
        lease: file.lease.map_or(defaults.lease, |span| span.0),
        // An attempt of the sink ends by itself before.
        timeout: timeout.unwrap_or_default().max(Duration::from_mins(1)) * 2,
        ..defaults
    };
    options.validate().map_err(|error| error.to_string())?;
    Ok(Sink { id: id.to_owned(), target, options, origin })
}
