//! `flowgate openapi`.

use super::App;
use crate::failure::{Exit, Outcome};

/// Prints the description of the API.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
An instance answers the same at /api/v1/openapi.json.

Example:
  flowgate openapi > openapi.json")]
pub(crate) struct Args {}

pub(crate) fn run(app: &App, _args: &Args) -> Outcome {
    let document = flowgate_server::document();
    let text = serde_json::to_string_pretty(&document).expect("a document is JSON");
    app.output.line(text)?;
    Ok(Exit::Done)
}
