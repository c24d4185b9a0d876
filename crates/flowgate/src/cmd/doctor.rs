//! `flowgate doctor`.

use flowgate_server::ops;
use flowgate_server::wire::doctor::{Examination, FindingItem, FindingLevel};
use flowgate_store::Level;

use super::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::Cell;
use crate::reach::Reach;

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
    // A store that cannot be opened is the very thing to look at, so nothing is opened here.
    let examined: Examination = match &app.config.server {
        Some(_) => Reach::read(&app).await?.get("/doctor", &[]).await?,
        None => ops::doctor::examine(&app.config.store).await,
    };
    if app.output.json {
        app.output.json(&examined)?;
    } else {
        app.output.note(format_args!("store {}", examined.store));
        print(&app, &examined.findings)?;
    }
    Ok(if examined.healthy { Exit::Done } else { Exit::RunFailed })
}

fn print(app: &App, findings: &[FindingItem]) -> Result<(), Failure> {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or_default();
    for finding in findings {
        let check = &finding.check;
        let level = Cell::level(match finding.level {
            FindingLevel::Ok => Level::Good,
            FindingLevel::Warning => Level::Warning,
            FindingLevel::Bad => Level::Bad,
        });
        let padding = " ".repeat(LEVEL_WIDTH - level.text().len());
        app.output.line(format_args!("{level}{padding}  {check:<width$}  {}", finding.found))?;
        if let Some(remedy) = &finding.remedy {
            let indent = " ".repeat(LEVEL_WIDTH + width + 4);
            app.output.line(format_args!("{indent}{} {remedy}", Cell::dim("→")))?;
        }
    }
    Ok(())
}
