//! The process that does the work, as the one that shows it sees it.

use std::process::Stdio;
use std::time::Duration;

use flowgate_core::ids::RunId;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

use super::judge::Judge;
use super::{Demo, store_url};
use crate::config;
use crate::failure::{Exit, Failure};

/// How long it has to stop by itself.
const STOP_MAX: Duration = Duration::from_secs(15);

/// What the process says, a line each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// It serves.
    Ready,
    /// A start was acknowledged.
    Started(RunId),
    /// A run has ended.
    Finished,
}

/// What is heard of the process.
#[derive(Debug)]
pub(super) enum Told {
    Ready,
    Started(RunId),
    Finished,
    /// It has ended, as this says.
    Gone(String),
}

/// The process, which ends with this value whatever happens.
pub(super) struct Child {
    process: tokio::process::Child,
    /// It stops when this is closed, also by the death of this process.
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    id: u32,
}

impl Child {
    pub(super) fn start(demo: &Demo<'_>) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::new(Exit::RunFailed, "demo_failed", "cannot start the process of the demo")
                .source(error)
        };
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        // A demo is the same whatever the settings of this folder and this shell say.
        for name in config::variables_to_hide() {
            command.env_remove(name);
        }
        command
            .args(["--store", &store_url(&demo.database)])
            .args(["--set", &format!("listen={}", demo.address)])
            .args(["--set", &format!("log={}", log_level(demo))])
            .args(["--set", "retention.events=1h", "--set", "retention.runs=1h"])
            .arg("demo-instance")
            .args(demo.args.crash.then_some("--busy"))
            .args(demo.args.redeploy.then_some("--steady"))
            .current_dir(&demo.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the process that shows: it says when to stop.
            .process_group(0)
            .kill_on_drop(true);
        let mut process = command.spawn().map_err(failed)?;
        let stdin = process.stdin.take();
        let stdout = process.stdout.take().expect("the child's stdout is a pipe");
        let id = process.id().unwrap_or_default();
        Ok(Self { process, stdin, lines: BufReader::new(stdout).lines(), id })
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// What it says next. May be dropped before it is done.
    pub(super) async fn told(&mut self) -> Told {
        loop {
            let Ok(Some(line)) = self.lines.next_line().await else {
                let status = self.process.wait().await;
                return Told::Gone(status.map_or_else(|e| e.to_string(), |s| s.to_string()));
            };
            // A kill may cut a line short.
            match serde_json::from_str(&line) {
                Ok(Line::Ready) => return Told::Ready,
                Ok(Line::Started(run_id)) => return Told::Started(run_id),
                Ok(Line::Finished) => return Told::Finished,
                Err(_) => {}
            }
        }
    }

    /// Lets it start no more runs, and go on with those that there are.
    pub(super) async fn rest(&mut self) {
        if let Some(stdin) = &mut self.stdin {
            // One that is gone starts nothing either.
            drop(stdin.write_all(b"rest\n").await);
        }
    }

    /// Ends it with SIGKILL.
    pub(super) async fn kill(&mut self) {
        // One that has ended needs no kill.
        drop(self.process.kill().await);
    }

    /// What it said before it ended, and nobody has heard.
    pub(super) async fn last_words(&mut self) -> Vec<Told> {
        let mut words = Vec::new();
        loop {
            match self.told().await {
                Told::Gone(_) => return words,
                told @ (Told::Ready | Told::Started(_) | Told::Finished) => words.push(told),
            }
        }
    }

    /// Lets it stop gracefully.
    pub(super) async fn stop(&mut self, judge: &mut Judge) {
        self.stdin = None;
        let words = tokio::time::timeout(STOP_MAX, self.last_words()).await.unwrap_or_default();
        for told in words {
            if let Told::Started(run_id) = told {
                judge.note_started(run_id);
            }
        }
        self.kill().await;
    }
}

fn log_level(demo: &Demo<'_>) -> String {
    let level = demo.app.config.log;
    // Warnings about what a kill left behind would hide what is shown about it.
    if level == tracing_subscriber::filter::LevelFilter::WARN {
        return "error".to_owned();
    }
    level.to_string()
}
