//! `flowgate config`.

use clap::Subcommand;
use serde_json::json;

use super::App;
use crate::config::mqtt::Mqtt;
use crate::config::{KEYS, Origin};
use crate::failure::{Exit, Outcome};
use crate::output::{Cell, Table};

/// Looks at settings.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print every setting, its value and where it comes from
    #[command(after_help = "\
A setting is taken from the first of: a flag (--store, --set KEY=VALUE), its variable \
(FLOWGATE_STORE, FLOWGATE_RETENTION_EVENTS, …), flowgate.toml in the current folder, its default.

Examples:
  flowgate config show
  FLOWGATE_LEASE=5s flowgate config show --json")]
    Show,
}

pub(crate) fn run(app: &App, args: &Args) -> Outcome {
    match args.verb {
        Verb::Show => show(app),
    }
}

fn show(app: &App) -> Outcome {
    let settings = app.config.settings.iter().zip(&KEYS);
    if app.output.json {
        let mut values: serde_json::Map<_, _> = settings
            .map(|(setting, key)| {
                let value = json!({
                    "value": setting.shown(),
                    "origin": setting.origin.to_string(),
                    "variable": key.variable,
                    "default": key.default,
                });
                (setting.key.to_owned(), value)
            })
            .collect();
        for named in named(app) {
            let value = json!({ "value": named.value, "origin": named.origin.to_string() });
            values.insert(named.name, value);
        }
        app.output.json(&values)?;
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["setting", "value", "from", "what"]);
    for (setting, key) in settings {
        let origin = match setting.origin {
            Origin::Default => Cell::dim(&setting.origin),
            Origin::Flag(_) | Origin::Variable(_) | Origin::File { .. } => {
                Cell::plain(&setting.origin)
            }
        };
        table.row(vec![
            Cell::bold(setting.key),
            Cell::plain(setting.shown()),
            origin,
            Cell::dim(key.what),
        ]);
    }
    for named in named(app) {
        table.row(vec![
            Cell::bold(named.name),
            Cell::plain(named.value),
            Cell::plain(named.origin),
            Cell::dim(named.what),
        ]);
    }
    table.print(app.output)?;
    Ok(Exit::Done)
}

/// A part of the settings file that the user has given a name.
struct Named<'a> {
    name: String,
    value: String,
    origin: &'a Origin,
    what: &'static str,
}

/// All of them, as anybody may see them.
fn named(app: &App) -> Vec<Named<'_>> {
    let named = |table: &str, name: &str, value: String, origin, what| {
        let name = format!("{table}.{name}");
        Named { name, value, origin, what }
    };
    let config = &app.config;
    let sinks = config.sinks.iter().map(|sink| {
        named("subscribers", &sink.id, sink.shown(), &sink.origin, "a sink for events")
    });
    let hooks = config.hooks.iter().map(|hook| {
        named("webhooks", &hook.name, hook.shown(), &hook.origin, "what a signed message does")
    });
    let subscriptions = config.mqtt.iter().flat_map(|mqtt| &mqtt.subscriptions);
    let subscriptions = subscriptions.map(|(one, origin)| {
        named("mqtt.subscriptions", &one.name, Mqtt::shown(one), origin, "what a message starts")
    });
    let tokens = config.tokens.iter().map(|token| {
        named("tokens", &token.entry.name, token.shown(), &token.origin, "who may call the API")
    });
    sinks.chain(hooks).chain(subscriptions).chain(tokens).collect()
}
