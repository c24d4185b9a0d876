//! `cargo xtask browser`: the dashboard in a real Chromium against a real instance.
//!
//! The tests are in `web/e2e`. They leave pictures of every page in `web/shots`, which git does
//! not know.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;
use flowgate_testbed::Tool;

use crate::workspace::{Workspace, exit_code, run_to_end};
use crate::{launch, services, signals, web};

const TOOLS: &[Tool] = &[Tool { binary: "chromium", packages: &["chromium", "fonts-dejavu-core"] }];
const TESTS: &str = "e2e/dashboard.test.mjs";
/// The picture of the README, from the root.
const PICTURE: &str = "docs/images/run.png";

#[derive(Debug, Args)]
pub(crate) struct BrowserArgs {
    /// Use this binary instead of one that is built for release; its times are printed, not judged
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Run only tests whose name has this in it
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Make the picture of a run for the README, docs/images/run.png
    #[arg(long)]
    picture: bool,
}

pub(crate) fn run(workspace: &Workspace, args: &BrowserArgs) -> anyhow::Result<ExitCode> {
    signals::hold()?;
    let mut command = tests(workspace, args.binary.clone())?;
    if let Some(only) = &args.only {
        command.arg(format!("--test-name-pattern={only}"));
    }
    if args.picture {
        command.env("FLOWGATE_PICTURE", workspace.root.join(PICTURE));
    }
    command.arg(TESTS);
    run_to_end(&mut command).map(exit_code)
}

/// The tests as a stage of CI: their exit code.
pub(crate) fn stage(workspace: &Workspace) -> anyhow::Result<Option<i32>> {
    let mut command = tests(workspace, None)?;
    command.arg(TESTS);
    Ok(run_to_end(&mut command)?.code())
}

/// Node's test runner on a binary, with everything that the tests need in place.
fn tests(workspace: &Workspace, binary: Option<PathBuf>) -> anyhow::Result<Command> {
    services::install(TOOLS)?;
    web::install(workspace)?;
    let mut command = Command::new("node");
    let binary = match binary {
        // It may be one for debugging, which is not judged by the clock.
        Some(path) => {
            command.env("FLOWGATE_UNTIMED", "1");
            std::path::absolute(path)?
        }
        None => launch::build(workspace, "flowgate")?,
    };
    command.args(["--test", "--test-reporter=spec"]).current_dir(workspace.root.join(web::FOLDER));
    command.env("FLOWGATE", binary);
    Ok(command)
}
