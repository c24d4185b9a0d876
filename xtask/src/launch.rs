//! Builds a release binary and runs one of its verbs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::workspace::{Workspace, run_to_end};

/// Builds `flowgate` for release and runs `flowgate VERB ARGS…`.
pub(crate) fn flowgate(
    workspace: &Workspace,
    verb: &str,
    args: &[OsString],
    variables: &[(String, String)],
) -> anyhow::Result<ExitStatus> {
    run(workspace, &build(workspace, "flowgate")?, verb, args, variables)
}

/// Runs `BINARY VERB ARGS…` from a binary that was built.
pub(crate) fn run(
    workspace: &Workspace,
    binary: &Path,
    verb: &str,
    args: &[OsString],
    variables: &[(String, String)],
) -> anyhow::Result<ExitStatus> {
    let mut command = Command::new(binary);
    command.arg(verb).args(args).envs(variables.iter().cloned()).current_dir(&workspace.root);
    run_to_end(&mut command)
}

/// Builds the binary of `package` for release. Cargo says where it put it, so every way to move the
/// target folder works.
///
/// Both binaries are built together, whichever is asked for: alone, each would have its dependencies
/// built with features of its own, and all of them twice.
pub(crate) fn build(workspace: &Workspace, package: &str) -> anyhow::Result<PathBuf> {
    let built = workspace
        .cargo(&["build", "--release", "--locked", "--bins"])
        .args(["--package", "flowgate", "--package", "flowgate-chaos"])
        .args(["--message-format", "json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo build")?;
    if !built.status.success() {
        bail!("the release build of {package} failed");
    }
    executable(&String::from_utf8_lossy(&built.stdout), package)
        .with_context(|| format!("cargo build named no executable for {package}"))
}

#[derive(Debug, Deserialize)]
struct Message {
    executable: Option<PathBuf>,
}

fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .filter_map(|message| message.executable)
        .find(|path| path.file_stem().is_some_and(|stem| stem == name))
}

/// The arguments of a verb that makes stores of its own: here `--store` names their kind, which
/// the binary calls `--on`, since its `--store` is the URL of a store that exists.
pub(crate) fn with_kind(args: &[OsString]) -> Vec<OsString> {
    args.iter()
        .map(|argument| match argument.to_str() {
            Some("--store") => "--on".into(),
            Some(text) => match text.strip_prefix("--store=") {
                Some(kind) => format!("--on={kind}").into(),
                None => argument.clone(),
            },
            None => argument.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_read_from_the_messages_of_cargo() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","executable":"/t/release/flowgate-chaos"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","executable":"/t/release/flowgate"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        assert_eq!(executable(messages, "flowgate"), Some(PathBuf::from("/t/release/flowgate")));
        assert_eq!(executable(r#"{"reason":"build-finished","success":true}"#, "flowgate"), None);
    }

    #[test]
    fn the_kind_of_store_is_handed_on_under_the_name_that_the_binary_knows() {
        let given = ["--store", "sqlite", "--store=memory", "--runs", "5"].map(OsString::from);
        let handed_on = ["--on", "sqlite", "--on=memory", "--runs", "5"].map(OsString::from);
        assert_eq!(with_kind(&given), handed_on);
    }
}
