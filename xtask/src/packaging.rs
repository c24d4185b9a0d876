//! `cargo xtask packaging`: what is in `deploy/` fits the binary and the schemas of its formats.
//!
//! No container engine is needed. Every command line in the files is given to the binary, every
//! variable is set for it, every port, path and metric is looked up on an instance that really
//! runs; and each format is judged by what others use for it: the schemas of Kubernetes, `promtool`,
//! `systemd-analyze` and nginx.

mod binary;
mod helm;
mod launches;
mod nginx;
mod slips;
mod tools;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::Value;

use self::binary::{Binary, Found};
use self::launches::Launch;
use self::tools::Tools;
use crate::output;
use crate::workspace::Workspace;

#[derive(Debug, Args)]
pub(crate) struct PackagingArgs {
    /// Check the files in this folder instead of `deploy`
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    place: String,
    what: String,
}

impl Finding {
    fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), what: what.into() }
    }
}

pub(crate) fn run(workspace: &Workspace, args: &PackagingArgs) -> anyhow::Result<ExitCode> {
    let folder = args.folder.clone().unwrap_or_else(|| workspace.root.join("deploy"));
    Ok(ExitCode::from(u8::from(!fits(workspace, &folder)?)))
}

/// The check as a stage of CI: its exit code.
pub(crate) fn stage(workspace: &Workspace) -> anyhow::Result<i32> {
    Ok(i32::from(!fits(workspace, &workspace.root.join("deploy"))?))
}

/// Whether the files in a folder fit; says what does not.
fn fits(workspace: &Workspace, folder: &Path) -> anyhow::Result<bool> {
    let binary = Binary::build(workspace)?;
    let tools = Tools::install(&binary.target)?;
    let mut running = binary.start()?;
    // Some are there only once they have moved; tidy holds the guide's table against the code.
    running.metrics.extend(metrics_in(&read(&workspace.root.join("docs/guide/operating.md"))?));
    let checks = Checks { binary, tools, running };
    let findings = checks.all(folder)?;
    for finding in &findings {
        output::complain(&format!("{}: {}", finding.place, finding.what));
    }
    if !findings.is_empty() {
        output::complain(&format!("{} findings in {}", findings.len(), folder.display()));
        return Ok(false);
    }
    let found = slips::find(&checks, folder)?;
    output::say(&format!(
        "{} fits the binary and the schemas; each of {found} planted slips was found",
        folder.display()
    ));
    Ok(true)
}

/// All that files are judged by.
#[derive(Debug)]
struct Checks {
    binary: Binary,
    tools: Tools,
    running: Found,
}

impl Checks {
    fn all(&self, folder: &Path) -> anyhow::Result<Vec<Finding>> {
        let rendered = tempfile::tempdir().context("making a folder for the rendered chart")?;
        let manifests = manifests(folder, rendered.path())?;
        let mut findings = self.formats(folder, &manifests)?;
        for launch in launches(folder, &manifests)? {
            findings.extend(judge(&launch, &self.binary, &self.running.paths)?);
        }
        findings.extend(metrics(folder, &self.running.metrics)?);
        Ok(findings)
    }

    /// What others say to files of their formats.
    fn formats(&self, folder: &Path, manifests: &[Manifest]) -> anyhow::Result<Vec<Finding>> {
        let Self { tools, binary, .. } = self;
        let mut findings = Vec::new();
        for manifest in manifests {
            findings.extend(tools.check_kubernetes(manifest)?);
        }
        for file in files(&folder.join("compose"), "yaml")? {
            findings.extend(tools.check_compose(&name(folder, &file), &file)?);
        }
        for unit in files(&folder.join("systemd"), "service")? {
            findings.extend(tools::check_unit(&unit, &binary.path)?);
        }
        findings.extend(tools::check_rules(&folder.join("prometheus/alerts.yaml"))?);
        findings.extend(tools::check_board(&folder.join("grafana/flowgate.json"))?);
        findings
            .extend(nginx::check(&folder.join("compose/edge/nginx.conf"), &self.running.address)?);
        findings.extend(tools::check_image(&folder.join("rootfs.sh"), &binary.path)?);
        Ok(findings)
    }
}

/// Every way in which a file starts the binary.
fn launches(folder: &Path, manifests: &[Manifest]) -> anyhow::Result<Vec<Launch>> {
    let mut launches = Vec::new();
    for manifest in manifests {
        launches.extend(launches::in_manifest(&manifest.place, &documents(&manifest.path)?));
    }
    for file in files(&folder.join("compose"), "yaml")? {
        launches.extend(launches::in_compose(&name(folder, &file), &documents(&file)?));
    }
    for file in files(&folder.join("systemd"), "service")? {
        launches.push(launches::in_unit(&name(folder, &file), &read(&file)?));
    }
    launches.push(launches::in_image("Dockerfile", &read(&folder.join("Dockerfile"))?));
    Ok(launches)
}

/// A file of Kubernetes, and how to name it to people.
#[derive(Debug)]
struct Manifest {
    place: String,
    path: PathBuf,
}

/// The manifests as they are, and the chart with its defaults and with all that can be turned on.
fn manifests(folder: &Path, rendered: &Path) -> anyhow::Result<Vec<Manifest>> {
    let mut manifests: Vec<_> = files(&folder.join("kubernetes"), "yaml")?
        .into_iter()
        .map(|path| Manifest { place: name(folder, &path), path })
        .collect();
    let chart = folder.join("helm/flowgate");
    for (label, changes) in [("defaults", "{}"), ("keda", r#"{"keda": {"enabled": true}}"#)] {
        let changes: Value = serde_json::from_str(changes)?;
        for (template, text) in helm::render(&chart, &changes)? {
            if text.trim().is_empty() {
                continue;
            }
            let path = rendered.join(format!("{label}-{template}"));
            std::fs::write(&path, text).context("writing a rendered template")?;
            let place = format!("helm/flowgate/templates/{template} ({label})");
            manifests.push(Manifest { place, path });
        }
    }
    Ok(manifests)
}

/// What is wrong with one way to start the binary.
fn judge(launch: &Launch, binary: &Binary, paths: &[String]) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut wrong = |what: String| findings.push(Finding::new(&launch.place, what));
    if let Some(complaint) = binary.complaint_about_arguments(&launch.args)? {
        wrong(format!("`flowgate {}`: {complaint}", launch.args.join(" ")));
    }
    for (variable, _) in &launch.env {
        if variable.starts_with("FLOWGATE_") && !binary.variables.contains(variable) {
            wrong(format!("the binary knows no variable {variable}"));
        }
    }
    if let Some(complaint) = binary.complaint_about_values(&launch.args, &launch.env)? {
        wrong(complaint);
    }
    let value = |name: &str| launch.env.iter().find(|(known, _)| known == name);
    let is_public = value("FLOWGATE_LISTEN")
        .and_then(|(_, at)| at.as_deref())
        .is_some_and(|at| !at.starts_with("127."));
    if is_public && value("FLOWGATE_API").and_then(|(_, api)| api.as_deref()) != Some("off") {
        wrong("other machines reach its API, for which it has no tokens".to_owned());
    }
    let port = launch.listens_on();
    for other in &launch.ports {
        if Some(*other) != port {
            let port = port.map_or_else(|| "none".to_owned(), |port| port.to_string());
            wrong(format!("port {other} is used, but FLOWGATE_LISTEN has {port}"));
        }
    }
    for path in &launch.paths {
        if !paths.contains(path) {
            wrong(format!("an instance answers nothing at {path}"));
        }
    }
    Ok(findings)
}

/// Every metric that a file names is one that an instance has.
fn metrics(folder: &Path, known: &BTreeSet<String>) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut paths = files(&folder.join("kubernetes"), "yaml")?;
    paths.extend(files(&folder.join("helm/flowgate/templates"), "yaml")?);
    paths.push(folder.join("prometheus/alerts.yaml"));
    paths.push(folder.join("grafana/flowgate.json"));
    for path in paths {
        for metric in metrics_in(&read(&path)?) {
            if !known.contains(&metric) {
                findings.push(Finding::new(name(folder, &path), format!("no metric {metric}")));
            }
        }
    }
    Ok(findings)
}

/// The names of our metrics in a text; those of a histogram's parts are that of the histogram.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let words = text.split(|c: char| !is_part(c)).filter(|word| word.starts_with("flowgate_"));
    words
        .map(|word| {
            let parts = ["_bucket", "_sum", "_count"];
            parts.iter().find_map(|part| word.strip_suffix(part)).unwrap_or(word).to_owned()
        })
        .collect()
}

/// The documents of a YAML file.
fn documents(path: &Path) -> anyhow::Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(&read(path)?)
        .with_context(|| format!("{} is not YAML", path.display()))?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// The files in a folder whose names end so, in order.
fn files(folder: &Path, ending: &str) -> anyhow::Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == ending) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

fn name(folder: &Path, path: &Path) -> String {
    path.strip_prefix(folder).unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_histogram_are_named_by_the_histogram() {
        let text = "rate(flowgate_commit_seconds_bucket[5m]) / flowgate_ready{x=\"flowgate\"}";
        let found: Vec<_> = metrics_in(text).into_iter().collect();
        assert_eq!(found, ["flowgate_commit_seconds", "flowgate_ready"]);
    }
}
