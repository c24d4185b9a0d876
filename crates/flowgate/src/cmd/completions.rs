//! `flowgate completions`.

use clap_complete::Shell;

use super::App;
use crate::failure::{Exit, Outcome};

/// Prints completions.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  flowgate completions bash > ~/.local/share/bash-completion/completions/flowgate
  flowgate completions zsh > \"${fpath[1]}/_flowgate\"")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(app: &App, args: &Args) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::command(), "flowgate", &mut script);
    app.output.text(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}
