//! `flowgate tokens`.

use clap::Subcommand;
use flowgate_core::flow::Span;
use flowgate_core::ids::is_identifier;
use flowgate_core::time::Timestamp;
use flowgate_server::auth::{Scope, digest, hex, new_token};
use serde_json::json;

use super::App;
use crate::failure::{Exit, Failure, Outcome};

/// Makes tokens for the API.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a token, and say what to write into flowgate.toml
    #[command(after_help = "\
The token is printed once, and nowhere kept: the settings hold its SHA-256 only. Scopes, each of \
which holds those before it:
  read    look at everything
  run     start, stop and signal runs, execute jobs, pause schedules, deal with dead letters
  deploy  change flows and schedules, hold flows and let them go
  admin   change queues and subscribers

Examples:
  flowgate tokens new ci --scope run --expires 90d
  flowgate tokens new ops --scope admin --json")]
    New(New),
}

#[derive(Debug, clap::Args)]
struct New {
    /// Whose it is, for the settings and the log
    name: String,
    /// What it allows: read, run, deploy or admin
    #[arg(long, value_name = "SCOPE", value_parser = scopes())]
    scope: String,
    /// How long it is good for, such as 90d [default: for ever]
    #[arg(long, value_name = "SPAN")]
    expires: Option<Span>,
}

fn scopes() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(Scope::ALL.map(Scope::as_str))
}

pub(crate) fn run(app: &App, args: &Args) -> Outcome {
    match &args.verb {
        Verb::New(args) => new(app, args),
    }
}

fn new(app: &App, New { name, scope, expires }: &New) -> Outcome {
    if !is_identifier(name) {
        let message = format!("a token cannot be called `{}`", name.escape_debug());
        return Err(Failure::usage("identifier_invalid", message)
            .help("write letters, digits, `-`, `_` and `.`")
            .path("NAME"));
    }
    let token = new_token().ok_or_else(|| {
        Failure::new(Exit::Store, "no_randomness", "the system has no randomness to give")
    })?;
    let sha256 = hex(&digest(&token));
    let now = Timestamp(jiff::Timestamp::now().as_millisecond());
    let expires = expires.map(|Span(span)| now.plus(span).to_string());
    let mut lines = format!("[tokens.{name}]\nsha256 = \"{sha256}\"\nscope = \"{scope}\"\n");
    if let Some(at) = &expires {
        lines.extend(["expires = \"", at, "\"\n"]);
    }
    if app.output.json {
        app.output.json(&json!({
            "name": name, "token": token, "sha256": sha256, "scope": scope, "expires": expires,
            "settings": lines,
        }))?;
        return Ok(Exit::Done);
    }
    app.output.note("the token, which is not shown again; send it as `Authorization: Bearer`:");
    app.output.line(&token)?;
    app.output.note("the lines for flowgate.toml of every instance, which is then started again:");
    app.output.text(&lines)?;
    Ok(Exit::Done)
}
