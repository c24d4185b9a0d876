//! How many steps one remote worker executes: the programs in `xtask/workers`, each against a
//! server of its own on an embedded store.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde::Deserialize;

use crate::workspace::Workspace;
use crate::{clients, output, signals};

/// Handlers at a time.
const SLOTS: u32 = 50;
const RUNS: u32 = 2_000;
const RUNS_QUICK: u32 = 200;

/// What a worker is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Language {
    Typescript,
    Python,
}

impl Language {
    fn name(self) -> &'static str {
        match self {
            Self::Typescript => "typescript",
            Self::Python => "python",
        }
    }
}

/// What the program printed.
#[derive(Debug, Deserialize)]
struct Figures {
    language: String,
    slots: u32,
    runs: u32,
    steps_per_s: f64,
    worker_cpu_us_per_step: f64,
    server_cpu_us_per_step: f64,
}

/// Measures one worker of each language after the other, and prints the figures.
pub(crate) fn measure(
    workspace: &Workspace,
    binary: &Path,
    languages: &[Language],
    quick: bool,
) -> anyhow::Result<()> {
    clients::build(workspace)?;
    output::say("WORKER       SLOTS   RUNS   STEPS/S   CPU µS/STEP   SERVER µS/STEP");
    for language in languages {
        output::say(&line(&measure_one(workspace, binary, language.name(), quick)?));
    }
    Ok(())
}

fn measure_one(
    workspace: &Workspace,
    binary: &Path,
    language: &str,
    quick: bool,
) -> anyhow::Result<Figures> {
    output::complain(&format!("measuring a worker in {language}"));
    let runs = if quick { RUNS_QUICK } else { RUNS };
    let mut node = Command::new("node");
    node.arg(workspace.root.join("xtask/workers/measure.mjs"));
    node.arg("--binary").arg(binary).arg("--clients").arg(workspace.root.join("clients"));
    node.args(["--language", language, "--runs", &runs.to_string()]);
    node.args(["--slots", &SLOTS.to_string()]).stdout(Stdio::piped());
    signals::may_go_on()?;
    let child = node.spawn().context("starting node")?;
    let id = child.id();
    let ended = signals::while_it_runs(id, || child.wait_with_output()).context("measuring")?;
    ensure!(ended.status.success(), "a worker in {language} could not be measured");
    serde_json::from_slice(&ended.stdout).context("reading what was measured")
}

fn line(figures: &Figures) -> String {
    let Figures { language, slots, runs, steps_per_s, .. } = figures;
    let (worker, server) = (figures.worker_cpu_us_per_step, figures.server_cpu_us_per_step);
    format!(
        "{language:<11}  {slots:>5}  {runs:>5}  {steps_per_s:>8.0}  {worker:>12.0}  {server:>15.0}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_a_worker_are_one_line() {
        let printed = r#"{"language":"python","slots":50,"runs":2000,"steps_per_s":812,
            "worker_cpu_us_per_step":900,"server_cpu_us_per_step":210}"#;
        let figures: Figures = serde_json::from_str(printed).unwrap();
        let expected = "python          50   2000       812           900              210";
        assert_eq!(line(&figures), expected);
    }
}
