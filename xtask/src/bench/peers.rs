//! Other projects on the same work: programs for Node.js in `xtask/peers`, each on a server that is
//! started for it alone. They and flowgate take turns.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use flowgate_testbed::{Kind, Running, Tool};
use serde::Deserialize;
use serde_json::Value;

use crate::workspace::{Workspace, run_to_end};
use crate::{output, services};

/// What the programs need.
const TOOLS: &[Tool] =
    &[Tool { binary: "node", packages: &["nodejs"] }, Tool { binary: "npm", packages: &["npm"] }];

/// A project that does the same work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    Bullmq,
    Dbos,
    PgBoss,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Self::Bullmq => "bullmq",
            Self::Dbos => "dbos",
            Self::PgBoss => "pg-boss",
        }
    }

    /// The store that it is compared on.
    fn store(self) -> &'static str {
        match self {
            Self::Bullmq => "redis",
            Self::Dbos | Self::PgBoss => "postgres",
        }
    }

    fn server(self) -> Kind {
        match self {
            Self::Bullmq => Kind::Redis,
            Self::Dbos | Self::PgBoss => Kind::Postgres,
        }
    }
}

/// Measures the peers one after the other; the file that holds what they printed.
pub(crate) fn measure(
    workspace: &Workspace,
    binary: &Path,
    peers: &[Peer],
    quick: bool,
) -> anyhow::Result<PathBuf> {
    services::install(TOOLS)?;
    // The binary is in a folder of the target folder.
    let target = binary.ancestors().nth(2).context("the binary has no target folder")?;
    let folder = target.join("peers");
    install(&workspace.root.join("xtask/peers"), &folder)?;
    let mut figures = Vec::new();
    for peer in peers {
        output::complain(&format!("measuring {}", peer.name()));
        let turns = Turns {
            binary,
            store: peer.store(),
            quick,
            server: services::start(&[peer.server()])?,
        };
        for figure in measure_one(&folder, *peer, &turns)? {
            writeln!(figures, "{figure}").context("noting a figure")?;
        }
    }
    let file = folder.join("figures.jsonl");
    std::fs::write(&file, figures).context("writing the figures of the peers")?;
    Ok(file)
}

/// Copies the programs and installs what they need, in the versions of their lock file.
fn install(programs: &Path, folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).context("making the folder of the peers")?;
    for entry in std::fs::read_dir(programs).context("reading the programs of the peers")? {
        let entry = entry?;
        std::fs::copy(entry.path(), folder.join(entry.file_name()))
            .with_context(|| format!("copying {}", entry.path().display()))?;
    }
    let mut npm = Command::new("npm");
    // No script of a package runs: none of them needs one.
    npm.args(["install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund"]);
    // What it says is not for our standard output.
    npm.args(["--loglevel", "error"]).stdout(Stdio::null()).current_dir(folder);
    ensure!(run_to_end(&mut npm)?.success(), "npm could not install the peers");
    Ok(())
}

/// Measures a peer; what it printed of each setting, with our chain to its in the middle turn.
fn measure_one(folder: &Path, peer: Peer, turns: &Turns<'_>) -> anyhow::Result<Vec<Value>> {
    let server = services::start(&[peer.server()])?;
    let mut node = Command::new("node");
    // Their libraries warn of things that are theirs to mend.
    node.arg("--no-deprecation").arg(format!("{}.mjs", peer.name()));
    if turns.quick {
        node.arg("--quick");
    }
    node.envs(server.variables()).current_dir(folder);
    let mut node =
        node.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting node")?;
    let mut answers = node.stdin.take().context("node has no input")?;
    let lines = BufReader::new(node.stdout.take().context("node has no output")?).lines();
    let mut ratios: HashMap<String, Vec<f64>> = HashMap::new();
    let mut figures = Vec::new();
    for line in lines {
        let line = line.context("reading what a peer prints")?;
        if let Ok(Turn { setting, turn }) = serde_json::from_str(&line) {
            // Each of us is measured while both servers have nothing else to do.
            turns.rest(&server)?;
            ratios.entry(setting).or_default().push(turns.ours()? / turn);
            turns.rest(&turns.server)?;
            turns.rest(&server)?;
            writeln!(answers).context("telling a peer that it is its turn")?;
            continue;
        }
        let mut figure: Value =
            serde_json::from_str(&line).with_context(|| format!("a peer printed {line}"))?;
        let setting = figure["setting"].as_str().unwrap_or_default();
        let ratio = ratios.remove(setting).map(middle).context("a setting without turns")?;
        figure["ours_to_it"] = ratio.into();
        figures.push(figure);
    }
    ensure!(node.wait()?.success(), "{} could not be measured", peer.name());
    Ok(figures)
}

/// What a peer says when it is our turn.
#[derive(Debug, Deserialize)]
struct Turn {
    setting: String,
    /// Steps of a chain per second.
    turn: f64,
}

/// Our turns.
struct Turns<'a> {
    binary: &'a Path,
    store: &'static str,
    quick: bool,
    server: Running,
}

impl Turns<'_> {
    /// Steps of a chain per second, measured once.
    fn ours(&self) -> anyhow::Result<f64> {
        #[derive(Deserialize)]
        struct Figure {
            steps_per_s: f64,
        }
        let output = self.flowgate("turn", &self.server)?;
        let figure: Figure = serde_json::from_slice(&output).context("reading our own figure")?;
        Ok(figure.steps_per_s)
    }

    /// Returns when a server has no work of its own.
    fn rest(&self, server: &Running) -> anyhow::Result<()> {
        self.flowgate("rest", server).map(drop)
    }

    /// What flowgate prints of a part of its bench on a server.
    fn flowgate(&self, part: &str, server: &Running) -> anyhow::Result<Vec<u8>> {
        let mut flowgate = Command::new(self.binary);
        flowgate.args([super::VERB, "--part", part, "--on", self.store]).envs(server.variables());
        if self.quick {
            flowgate.arg("--quick");
        }
        let output = flowgate.stderr(Stdio::inherit()).output().context("starting flowgate")?;
        ensure!(output.status.success(), "flowgate bench --part {part} failed");
        Ok(output.stdout)
    }
}

/// The value in the middle; of two, the higher one.
fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_has_a_program_and_an_exact_version() {
        let programs = Workspace::find().unwrap().root.join("xtask/peers");
        for peer in Peer::value_variants() {
            assert!(programs.join(format!("{}.mjs", peer.name())).is_file(), "{peer:?}");
            assert_eq!(Peer::from_str(peer.name(), false), Ok(*peer));
        }
        let manifest = std::fs::read_to_string(programs.join("package.json")).unwrap();
        let manifest: Value = serde_json::from_str(&manifest).unwrap();
        for (module, version) in manifest["dependencies"].as_object().unwrap() {
            let version = version.as_str().unwrap();
            assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{module} {version}");
        }
    }

    #[test]
    fn a_line_of_a_peer_is_a_turn_or_a_figure() {
        let turn: Turn = serde_json::from_str(r#"{"setting":"s","turn":2.5}"#).unwrap();
        assert_eq!((turn.setting.as_str(), middle(vec![3.0, 1.0, turn.turn])), ("s", 2.5));
        let figure = r#"{"peer":"p","setting":"s","chain_steps_per_s":1}"#;
        assert!(serde_json::from_str::<Turn>(figure).is_err());
    }

    #[test]
    fn the_lock_file_names_no_registry() {
        let programs = Workspace::find().unwrap().root.join("xtask/peers");
        let lock = std::fs::read_to_string(programs.join("package-lock.json")).unwrap();
        assert!(!lock.contains("\"resolved\""));
    }
}
