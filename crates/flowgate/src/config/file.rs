//! The settings file.

use std::collections::BTreeMap;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::api::{self, Token};
use super::mqtt::{self, Mqtt};
use super::sinks::{self, Sink};
use super::webhooks::{self, Hook};
use super::{Origin, known};
use crate::failure::{Exit, Failure};

/// Tables whose keys are settings of their own.
const TABLES: [&str; 10] = [
    "api",
    "degradation",
    "http",
    "leader",
    "otlp",
    "process",
    "retention",
    "secrets",
    "store",
    "tls",
];

/// What a settings file says.
#[derive(Clone, Debug, Default)]
pub(super) struct FileSettings {
    pub(super) settings: BTreeMap<&'static str, (String, Origin)>,
    pub(super) sinks: Vec<Sink>,
    pub(super) hooks: Vec<Hook>,
    pub(super) mqtt: Option<Mqtt>,
    pub(super) tokens: Vec<Token>,
}

/// Reads the settings in the file at `path`.
pub(super) fn read(path: &Path) -> Result<FileSettings, Failure> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        let exit =
            if error.kind() == std::io::ErrorKind::NotFound { Exit::NotFound } else { Exit::Usage };
        Failure::new(exit, "config_invalid", format!("cannot read {name}"))
            .source(error)
            .path(name.clone())
    })?;
    parse(&name, &text)
}

/// The settings that `text` holds, with their lines.
pub(super) fn parse(name: &str, text: &str) -> Result<FileSettings, Failure> {
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_at(text, span.start));
        Failure::usage("config_invalid", format!("{name}:{line}: {}", error.message())).path(name)
    })?;
    let mut settings = BTreeMap::new();
    flatten(&Reading { name, text }, "", table.get_ref(), &mut settings)?;
    let (sinks, hooks) = (sinks::parse(name, text)?, webhooks::parse(name, text)?);
    let (mqtt, tokens) = (mqtt::parse(name, text)?, api::parse(name, text)?);
    Ok(FileSettings { settings, sinks, hooks, mqtt, tokens })
}

struct Reading<'a> {
    name: &'a str,
    text: &'a str,
}

impl Reading<'_> {
    fn wrong(&self, line: usize, failure: Failure) -> Failure {
        let message = format!("{}:{line}: {}", self.name, failure.message);
        Failure { message, ..failure }.path(self.name)
    }
}

fn flatten(
    reading: &Reading<'_>,
    prefix: &str,
    table: &DeTable<'_>,
    settings: &mut BTreeMap<&'static str, (String, Origin)>,
) -> Result<(), Failure> {
    for (key, value) in table {
        let line = line_at(reading.text, key.span().start);
        let key = format!("{prefix}{}", key.get_ref());
        let is_of_names = matches!(key.as_str(), "mqtt" | "subscribers" | "tokens" | "webhooks");
        if is_of_names && matches!(value.get_ref(), DeValue::Table(_)) {
            continue;
        }
        if let DeValue::Table(inner) = value.get_ref()
            && prefix.is_empty()
            && TABLES.contains(&key.as_str())
        {
            flatten(reading, &format!("{key}."), inner, settings)?;
            continue;
        }
        // A table cannot be a text too, so the URL has a name in it.
        let key = match key.as_str() {
            "store.url" => "store".to_owned(),
            "api.serve" => "api".to_owned(),
            _ => key,
        };
        let key = known(&key).map_err(|failure| reading.wrong(line, failure))?;
        let value = scalar(key, value.get_ref()).map_err(|f| reading.wrong(line, f))?;
        settings.insert(key, (value, Origin::File { path: reading.name.to_owned(), line }));
    }
    Ok(())
}

/// The text that a flag or a variable would have for this value.
fn scalar(key: &str, value: &DeValue<'_>) -> Result<String, Failure> {
    let wrong = || Failure::usage("config_invalid", format!("`{key}` cannot have such a value"));
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Boolean(value) if key.contains(".allow_") => Ok(value.to_string()),
        DeValue::Integer(number) if key == "concurrency" => Ok(number.as_str().to_owned()),
        DeValue::Integer(number) => {
            let number = number.as_str();
            Err(wrong().help(format!("write it in quotes and with a unit, such as \"{number}s\"")))
        }
        DeValue::Array(list)
            if matches!(key, "queues" | "api.hosts" | "http.allow_private" | "process.allow")
                || key.starts_with("degradation.") =>
        {
            let names: Option<Vec<&str>> =
                list.iter().map(|name| name.get_ref().as_str()).collect();
            names
                .map(|names| names.join(","))
                .ok_or_else(|| wrong().help("write a list of names, such as [\"default\"]"))
        }
        DeValue::Array(_)
        | DeValue::Table(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_) => Err(wrong().help("see `flowgate config show` for an example")),
    }
}

pub(super) fn line_at(text: &str, offset: usize) -> usize {
    1 + text.get(..offset).unwrap_or(text).matches('\n').count()
}
