//! `cargo xtask schemathesis`: requests made up from the description of the API, against a real
//! instance. None may be answered with a fault, or with a status that is not described.

use std::net::TcpListener;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use flowgate_testbed::{Stopwatch, Tool};

use crate::workspace::{Workspace, run_to_end};
use crate::{services, signals};

/// From `PyPI`.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";
const TOOLS: &[Tool] = &[Tool { binary: "python3", packages: &["python3"] }];
/// How long an instance may take to be ready.
const READY_MAX: Duration = Duration::from_secs(30);
/// Seconds after which no more requests are made up.
const TIME_MAX: &str = "60";
/// What does not end by itself: streams, and a claim that waits.
const LEFT_OUT: &str = "/(live|runs/\\{run\\}/stream|jobs/claim)$";

#[derive(Debug, Args)]
pub(crate) struct SchemathesisArgs {
    /// How many requests are made up for each operation
    #[arg(long, default_value_t = 20)]
    examples: u32,
    /// The seed that they follow from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(workspace: &Workspace, args: &SchemathesisArgs) -> anyhow::Result<ExitCode> {
    signals::hold()?;
    Ok(ExitCode::from(u8::from(!pass(workspace, args)?)))
}

/// The check as a stage of CI: its exit code.
pub(crate) fn stage(workspace: &Workspace) -> anyhow::Result<i32> {
    Ok(i32::from(!pass(workspace, &SchemathesisArgs { examples: 20, seed: 1 })?))
}

fn pass(workspace: &Workspace, args: &SchemathesisArgs) -> anyhow::Result<bool> {
    services::install(TOOLS)?;
    let program = services::install_from_pypi(SCHEMATHESIS, "schemathesis")?;
    let built = run_to_end(&mut workspace.cargo(&["build", "--package", "flowgate"]))?;
    ensure!(built.success(), "the binary does not build");
    let binary = services::target_folder()?.join("debug/flowgate");
    let folder = tempfile::tempdir().context("making a folder for an instance")?;
    let free = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
    let address = free.local_addr()?;
    drop(free);
    let document = folder.path().join("openapi.json");
    let described = Command::new(&binary).arg("openapi").output().context("asking the binary")?;
    std::fs::write(&document, described.stdout).context("keeping the description")?;
    let child = Command::new(&binary)
        .args(["worker", "start", "--store", "sqlite:db", "--set", "log=error"])
        .args(["--listen", &address.to_string()])
        .arg(workspace.root.join("examples"))
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .spawn()
        .context("starting an instance")?;
    let mut instance = Instance(child);
    let watch = Stopwatch::start();
    while std::net::TcpStream::connect(address).is_err() {
        ensure!(watch.elapsed() < READY_MAX, "an instance is not there after {READY_MAX:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut command = Command::new(program);
    command
        .arg("run")
        .arg(&document)
        .args(["--url", &format!("http://{address}/api/v1")])
        .args([
            "--checks",
            "not_a_server_error,status_code_conformance,response_schema_conformance",
        ])
        .args(["--exclude-path-regex", LEFT_OUT, "--phases", "examples,fuzzing"])
        .args(["--max-examples", &args.examples.to_string(), "--seed", &args.seed.to_string()])
        .args(["--request-timeout", "10", "--max-time", TIME_MAX, "--no-color"])
        .current_dir(folder.path());
    let passed = run_to_end(&mut command)?.success();
    if let Some(status) = instance.0.try_wait()? {
        bail!("the instance ended by itself: {status}");
    }
    Ok(passed)
}

/// A process that ends with this value.
struct Instance(Child);

impl Drop for Instance {
    fn drop(&mut self) {
        // It may have ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
