//! `flowgate why`.

use flowgate_server::wire::why::Why;

use super::App;
use crate::failure::{Exit, Outcome};
use crate::output::{Cell, short, status_phrase};
use crate::reach::{Reach, segment};

/// Explains a run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  flowgate why latest
  flowgate why 019a8b2c-1f3e --json")]
pub(crate) struct Args {
    /// The run's id, its first 6 letters or more, or `latest`
    run: String,
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    let reach = Reach::read(&app).await?;
    let why: Why = reach.get(&format!("/runs/{}/why", segment(&args.run)), &[]).await?;
    if app.output.json {
        app.output.json(&why)?;
        return Ok(Exit::Done);
    }
    let run_id = why.run_id;
    app.output.line(format_args!(
        "run {run_id} of flow `{}` {}:",
        why.flow,
        status_phrase(why.status)
    ))?;
    for reason in &why.reasons {
        app.output.line(format_args!("  {}", reason.message))?;
        // What was tried again or dropped needs no other remedy.
        if let Some(help) = reason.help.as_deref().filter(|_| why.fate.is_none()) {
            let help = help.replace(&run_id.to_string(), &short(run_id));
            app.output.line(format_args!("    {} {help}", Cell::dim("→")))?;
        }
    }
    for strained in &why.strained {
        app.output.line(format_args!("  {strained}"))?;
    }
    if let Some(fate) = &why.fate {
        app.output.line(format_args!("  {fate}"))?;
    }
    Ok(Exit::Done)
}
