//! Where the workspace is, and how its commands are run.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, bail};

use crate::signals;

/// What a command that a signal ended counts as.
const ENDED_BY_SIGNAL: u8 = 1;

/// The root folder of the workspace that the caller stands in.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub root: PathBuf,
}

impl Workspace {
    /// The nearest folder above the current one whose manifest is a workspace.
    ///
    /// Not the path that xtask was compiled in: worktrees may share one target folder.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let current = std::env::current_dir().context("reading the current folder")?;
        for folder in current.ancestors() {
            if is_workspace(folder) {
                return Ok(Self { root: folder.to_path_buf() });
            }
        }
        bail!("no workspace manifest at or above {}", current.display())
    }

    /// A cargo command that runs in the root.
    ///
    /// What the outer cargo tells xtask about itself is kept from it: build scripts that look at
    /// such variables would run again at each change between `cargo` and `cargo xtask`.
    pub(crate) fn cargo(&self, args: &[&str]) -> Command {
        let mut command = Command::new("cargo");
        command.args(args).current_dir(&self.root);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(is_about_xtask) {
                command.env_remove(name);
            }
        }
        command
    }
}

fn is_about_xtask(variable: &str) -> bool {
    let prefixes =
        ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_", "CARGO_PRIMARY_"];
    prefixes.iter().any(|prefix| variable.starts_with(prefix))
}

fn is_workspace(folder: &Path) -> bool {
    std::fs::read_to_string(folder.join("Cargo.toml"))
        .is_ok_and(|manifest| manifest.lines().any(|line| line.trim() == "[workspace]"))
}

/// Runs a command with our own stdin, stdout and stderr, to its end.
pub(crate) fn run_to_end(command: &mut Command) -> anyhow::Result<ExitStatus> {
    let program = command.get_program().to_string_lossy().into_owned();
    signals::may_go_on()?;
    let mut child = command.spawn().with_context(|| format!("starting {program}"))?;
    signals::while_it_runs(child.id(), || child.wait())
        .with_context(|| format!("waiting for {program}"))
}

/// The exit code to pass on for a command that ended so.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    ExitCode::from(code.unwrap_or(ENDED_BY_SIGNAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_found_from_a_crate_inside_it() {
        let workspace = Workspace::find().unwrap();
        assert!(workspace.root.join("xtask/Cargo.toml").is_file());
    }

    #[test]
    fn what_is_said_of_xtask_is_not_said_to_another_cargo() {
        assert!(is_about_xtask("CARGO_PKG_NAME") && is_about_xtask("CARGO_MANIFEST_DIR"));
        assert!(!is_about_xtask("CARGO_TARGET_DIR") && !is_about_xtask("CARGO_HOME"));
    }

    #[test]
    fn the_exit_code_of_a_command_is_passed_on() {
        let status = run_to_end(Command::new("sh").args(["-c", "exit 7"])).unwrap();
        assert_eq!(exit_code(status), ExitCode::from(7));
    }
}
