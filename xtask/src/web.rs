//! `cargo xtask dist`: builds the dashboard into `web/dist`, which the binary embeds.
//!
//! The built files are committed, so that nobody needs Node to build flowgate. The stage `web`
//! builds them anew somewhere else and holds them against those, byte for byte.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use clap::Args;

use crate::output;
use crate::workspace::{Workspace, run_to_end};

pub(crate) const FOLDER: &str = "web";
const BUILT: &str = "web/dist";
const LOCK: &str = "web/package-lock.json";
/// Holds the lock file whose packages are installed, among the packages.
const INSTALLED: &str = "web/node_modules/.installed-lock.json";

/// The version of Node that the build needs at least.
const NODE_MIN: (u32, u32) = (20, 19);

#[derive(Debug, Args)]
pub(crate) struct DistArgs {}

pub(crate) fn run(workspace: &Workspace, _: &DistArgs) -> anyhow::Result<ExitCode> {
    let built = workspace.root.join(BUILT);
    build(workspace, &built)?;
    Ok(ExitCode::SUCCESS)
}

/// The check as a stage of CI: its exit code.
pub(crate) fn stage(workspace: &Workspace) -> anyhow::Result<i32> {
    let folder = tempfile::tempdir().context("making a folder to build into")?;
    build(workspace, folder.path())?;
    let committed = files(&workspace.root.join(BUILT))?;
    let findings = differences(&files(folder.path())?, &committed);
    for finding in &findings {
        output::complain(&format!("{BUILT}/{finding}"));
    }
    if !findings.is_empty() {
        output::complain(&format!(
            "{BUILT} is not in step with its source: run `cargo xtask dist`"
        ));
    }
    Ok(i32::from(!findings.is_empty()))
}

/// Installs what the dashboard is built with, as its lock file says.
pub(crate) fn install(workspace: &Workspace) -> anyhow::Result<()> {
    let version = Command::new("node").arg("--version").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let found = version.unwrap_or_default();
    if node_version(&found).is_none_or(|version| version < NODE_MIN) {
        let (major, minor) = NODE_MIN;
        let found = if found.is_empty() { "there is none" } else { &found };
        bail!("Node {major}.{minor} or later is needed, with npm, and {found}: install it");
    }
    let lock = workspace.root.join(LOCK);
    let text = std::fs::read_to_string(&lock).with_context(|| format!("reading {LOCK}"))?;
    if let Some(line) = names_registry(&text) {
        bail!("{LOCK}:{line} names a registry: keep `omit-lockfile-registry-resolved` in .npmrc");
    }
    let installed = workspace.root.join(INSTALLED);
    if std::fs::read_to_string(&installed).is_ok_and(|found| found == text) {
        return Ok(());
    }
    // Not `npm ci`: it refuses a lock file without the packages of every platform, and a registry
    // may not have them all. Versions and checksums are those of the lock file here too.
    npm(workspace, &["install", "--no-save", "--no-audit", "--no-fund", "--loglevel=error"])?;
    std::fs::write(&installed, text).context("noting what npm installed")
}

fn build(workspace: &Workspace, target: &Path) -> anyhow::Result<()> {
    let target = target.to_str().context("the path of the folder to build into is not UTF-8")?;
    install(workspace)?;
    npm(workspace, &["run", "--silent", "typecheck"])?;
    npm(workspace, &["test", "--silent"])?;
    let build = ["run", "--silent", "build", "--", "--emptyOutDir", "--outDir", target];
    npm(workspace, &build)?;
    npm(workspace, &["run", "--silent", "size", "--", target])
}

fn npm(workspace: &Workspace, args: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new("npm");
    command.args(args).current_dir(workspace.root.join(FOLDER));
    if !run_to_end(&mut command)?.success() {
        bail!("`npm {}` failed in {FOLDER}", args.join(" "));
    }
    Ok(())
}

/// The first two parts of what `node --version` says.
fn node_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.strip_prefix('v')?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The first line of a lock file that says where a package came from.
fn names_registry(lock: &str) -> Option<usize> {
    let is_place = |line: &str| line.trim_start().starts_with("\"resolved\": \"http");
    lock.lines().position(is_place).map(|at| at + 1)
}

type Files = BTreeMap<String, Vec<u8>>;

/// The files of a folder without folders.
fn files(folder: &Path) -> anyhow::Result<Files> {
    let mut files = Files::new();
    let entries = std::fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("reading {}", folder.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let bytes = std::fs::read(entry.path()).with_context(|| format!("reading {name}"))?;
        files.insert(name, bytes);
    }
    Ok(files)
}

/// What is different between the files as they are built and as they are committed.
fn differences(built: &Files, committed: &Files) -> Vec<String> {
    let mut findings = Vec::new();
    for (name, bytes) in built {
        match committed.get(name) {
            None => findings.push(format!("{name} is missing")),
            Some(other) if other != bytes => findings.push(format!("{name} differs")),
            Some(_) => {}
        }
    }
    let extra = committed.keys().filter(|name| !built.contains_key(*name));
    findings.extend(extra.map(|name| format!("{name} is not built from the source")));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(rows: &[(&str, &str)]) -> Files {
        rows.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect()
    }

    #[test]
    fn every_difference_of_a_built_folder_is_found() {
        let built = files(&[("app.js", "1"), ("app.css", "2"), ("index.html", "3")]);
        let committed = files(&[("app.js", "1"), ("app.css", "old"), ("gone.js", "4")]);
        let expected =
            ["app.css differs", "index.html is missing", "gone.js is not built from the source"];
        assert_eq!(differences(&built, &committed), expected);
        assert!(differences(&built, &built).is_empty());
    }

    #[test]
    fn a_lock_file_that_names_a_registry_is_found() {
        let clean = "{\n  \"node_modules/a\": {\n    \"version\": \"1.0.0\"\n  }\n}\n";
        assert_eq!(names_registry(clean), None);
        let named =
            clean.replace("\"version\"", "\"resolved\": \"https://x/a.tgz\",\n \"version\"");
        assert_eq!(names_registry(&named), Some(3));
    }

    #[test]
    fn the_version_of_node_is_read() {
        assert_eq!(node_version("v20.19.4"), Some((20, 19)));
        assert!(node_version("v18.19.0").is_some_and(|version| version < NODE_MIN));
        assert_eq!(node_version(""), None);
    }
}
