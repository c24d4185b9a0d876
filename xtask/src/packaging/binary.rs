//! The binary, and an instance of it.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use flowgate_testbed::Stopwatch;
use serde_json::Value;
use tempfile::TempDir;

use super::metrics_in;
use crate::launch;
use crate::workspace::Workspace;

/// How long an instance may take to be ready.
const READY_MAX: Duration = Duration::from_secs(20);
/// What an instance may answer at.
const PATHS: [&str; 4] = ["/healthz", "/readyz", "/metrics", "/version"];

/// The binary that the files start.
#[derive(Debug)]
pub(super) struct Binary {
    pub(super) path: PathBuf,
    pub(super) target: PathBuf,
    /// Every variable that it reads.
    pub(super) variables: BTreeSet<String>,
    /// Every setting that it has.
    settings: BTreeSet<String>,
}

/// What an instance that runs was found to have.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) paths: Vec<String>,
    pub(super) metrics: BTreeSet<String>,
    /// Where it answers, as long as this is kept.
    pub(super) address: String,
    _instance: Process,
    _folder: TempDir,
}

impl Binary {
    pub(super) fn build(workspace: &Workspace) -> anyhow::Result<Self> {
        let path = launch::build(workspace, "flowgate")?;
        let target = path.ancestors().nth(2).context("the binary has no target folder")?.to_owned();
        let shown = bare(&path).args(["config", "show", "--json"]).output()?;
        let settings: Value = serde_json::from_slice(&shown.stdout).context("reading settings")?;
        let settings = settings.as_object().context("settings are an object")?;
        let variables = settings.values().filter_map(|value| value["variable"].as_str());
        let variables = variables.map(str::to_owned).collect();
        let settings = settings.keys().cloned().collect();
        Ok(Self { path, target, variables, settings })
    }

    /// What it says to these arguments, if it does not take them.
    ///
    /// The help comes last, so everything before it is read first and nothing is done.
    pub(super) fn complaint_about_arguments(
        &self,
        args: &[String],
    ) -> anyhow::Result<Option<String>> {
        let output = bare(&self.path).args(args).arg("--help").output()?;
        Ok(first_line(&output))
    }

    /// What it says to the values of these variables, and of those arguments that are settings, if
    /// it does not take them.
    pub(super) fn complaint_about_values(
        &self,
        args: &[String],
        variables: &[(String, Option<String>)],
    ) -> anyhow::Result<Option<String>> {
        let mut command = bare(&self.path);
        for pair in args.windows(2) {
            let name = pair[0].strip_prefix("--").unwrap_or_default();
            if self.settings.contains(name) {
                command.arg("--set").arg(format!("{name}={}", pair[1]));
            }
        }
        let known = variables.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        command.envs(known).args(["config", "show"]);
        Ok(first_line(&command.output()?))
    }

    /// Starts an instance on a store of its own and looks at what it answers.
    pub(super) fn start(&self) -> anyhow::Result<Found> {
        let folder = tempfile::tempdir().context("making a folder for an instance")?;
        let free = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
        let address = free.local_addr()?.to_string();
        drop(free);
        let child = bare(&self.path)
            .args(["worker", "start", "."])
            .env("FLOWGATE_STORE", format!("sqlite:{}", folder.path().join("db").display()))
            .env("FLOWGATE_LISTEN", &address)
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting an instance")?;
        let instance = Process(child);
        let watch = Stopwatch::start();
        while get(&address, "/readyz").ok().is_none_or(|(status, _)| status != 200) {
            ensure!(watch.elapsed() < READY_MAX, "an instance is not ready after {READY_MAX:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        let (mut paths, mut metrics) = (Vec::new(), BTreeSet::new());
        for path in PATHS {
            let (status, body) = get(&address, path)?;
            if status == 200 {
                paths.push(path.to_owned());
            }
            if path == "/metrics" {
                metrics = metrics_in(&body);
            }
        }
        Ok(Found { paths, metrics, address, _instance: instance, _folder: folder })
    }
}

/// A process that ends with this.
#[derive(Debug)]
pub(super) struct Process(pub(super) Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It is gone either way.
        self.0.kill().unwrap_or_default();
        self.0.wait().map(drop).unwrap_or_default();
    }
}

/// The binary with no variable of ours around it.
fn bare(path: &Path) -> Command {
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FLOWGATE_") {
            command.env_remove(name);
        }
    }
    command
}

fn first_line(output: &std::process::Output) -> Option<String> {
    if output.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Some(text.lines().next().unwrap_or("it fails without a word").to_owned())
}

pub(super) fn get(address: &str, path: &str) -> anyhow::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { bail!("no answer") };
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.context("an answer without a status")?, body.to_owned()))
}
