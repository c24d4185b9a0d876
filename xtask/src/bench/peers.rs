//! Other projects on the same work: programs for Node.js in `xtask/peers`, each on a server that is
//! started for it alone.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use flowgate_testbed::{Kind, Tool};

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
    let mut figures = String::new();
    for peer in peers {
        output::complain(&format!("measuring {}", peer.name()));
        figures.push_str(&measure_one(&folder, *peer, quick)?);
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

fn measure_one(folder: &Path, peer: Peer, quick: bool) -> anyhow::Result<String> {
    let servers = services::start(&[peer.server()])?;
    let mut node = Command::new("node");
    // Their libraries warn of things that are theirs to mend.
    node.arg("--no-deprecation").arg(format!("{}.mjs", peer.name()));
    if quick {
        node.arg("--quick");
    }
    node.envs(servers.variables()).current_dir(folder).stderr(Stdio::inherit());
    let output = node.output().context("starting node")?;
    ensure!(output.status.success(), "{} could not be measured", peer.name());
    String::from_utf8(output.stdout).context("reading what a peer printed")
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
        let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
        for (module, version) in manifest["dependencies"].as_object().unwrap() {
            let version = version.as_str().unwrap();
            assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{module} {version}");
        }
    }

    #[test]
    fn the_lock_file_names_no_registry() {
        let programs = Workspace::find().unwrap().root.join("xtask/peers");
        let lock = std::fs::read_to_string(programs.join("package-lock.json")).unwrap();
        assert!(!lock.contains("\"resolved\""));
    }
}
