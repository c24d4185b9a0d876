//! `flowgate config`.

use clap::Subcommand;
use serde_json::json;

use super::App;
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
        for sink in &app.config.sinks {
            let value = json!({ "value": sink.shown(), "origin": sink.origin.to_string() });
            values.insert(format!("subscribers.{}", sink.id), value);
        }
        for hook in &app.config.hooks {
            let value = json!({ "value": hook.shown(), "origin": hook.origin.to_string() });
            values.insert(format!("webhooks.{}", hook.name), value);
        }
        for token in &app.config.tokens {
            let value = json!({ "value": token.shown(), "origin": token.origin.to_string() });
            values.insert(format!("tokens.{}", token.entry.name), value);
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
    for sink in &app.config.sinks {
        table.row(vec![
            Cell::bold(format_args!("subscribers.{}", sink.id)),
            Cell::plain(sink.shown()),
            Cell::plain(&sink.origin),
            Cell::dim("a sink for events"),
        ]);
    }
    for hook in &app.config.hooks {
        table.row(vec![
            Cell::bold(format_args!("webhooks.{}", hook.name)),
            Cell::plain(hook.shown()),
            Cell::plain(&hook.origin),
            Cell::dim("what a signed message does"),
        ]);
    }
    for token in &app.config.tokens {
        table.row(vec![
            Cell::bold(format_args!("tokens.{}", token.entry.name)),
            Cell::plain(token.shown()),
            Cell::plain(&token.origin),
            Cell::dim("who may call the API"),
        ]);
    }
    table.print(app.output)?;
    Ok(Exit::Done)
}
