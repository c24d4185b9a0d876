//! `flowgate doctor`.

use flowgate_store::{Finding, Level};
use serde_json::json;

use super::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::Cell;

/// Letters of the longest level.
const LEVEL_WIDTH: usize = "warning".len();

/// Examines the store.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Looks at the configured store without changing it: whether it can be reached, its version, the \
settings that decide what survives, its clock, its room. Exit code 1 if something is bad, 0 if not.

Examples:
  flowgate doctor
  flowgate doctor --store redis://localhost:6379 --json")]
pub(crate) struct Args {}

pub(crate) async fn run(app: App, _args: Args) -> Outcome {
    let findings = app.config.store.examine().await;
    let is_bad = findings.iter().any(|finding| finding.level == Level::Bad);
    if app.output.json {
        let shown: Vec<_> = findings.iter().map(value).collect();
        app.output.json(&json!({
            "store": app.config.store.to_string(), "healthy": !is_bad, "findings": shown,
        }))?;
    } else {
        app.output.note(format_args!("store {}", app.config.store));
        print(&app, &findings)?;
    }
    Ok(if is_bad { Exit::RunFailed } else { Exit::Done })
}

fn print(app: &App, findings: &[Finding]) -> Result<(), Failure> {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or_default();
    for finding in findings {
        let check = finding.check;
        let level = Cell::level(finding.level);
        let padding = " ".repeat(LEVEL_WIDTH - level.text().len());
        app.output.line(format_args!("{level}{padding}  {check:<width$}  {}", finding.found))?;
        if let Some(remedy) = &finding.remedy {
            let indent = " ".repeat(LEVEL_WIDTH + width + 4);
            app.output.line(format_args!("{indent}{} {remedy}", Cell::dim("→")))?;
        }
    }
    Ok(())
}

fn value(finding: &Finding) -> serde_json::Value {
    json!({
        "check": finding.check,
        "level": Cell::level(finding.level).text(),
        "found": finding.found,
        "remedy": finding.remedy,
    })
}
