//! A worker on an embedded store in a folder of its own.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use flowgate_testbed::Stopwatch;

use super::request::Connection;

/// How long a process may take to serve.
const READY_MAX: Duration = Duration::from_secs(30);

/// A flow whose job nobody takes: a start is a start and nothing else.
const FLOW: &str = "flow: load
steps:
  once:
    run: { process: [\"true\"] }
    queue: nobody
";

/// A process that serves HTTP; it ends with this value.
pub(super) struct Instance {
    child: Child,
    pub(super) address: SocketAddr,
}

/// A folder with the flow of the load in it.
pub(super) fn folder() -> anyhow::Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new().prefix("flowgate-load-").tempdir()?;
    std::fs::create_dir(folder.path().join("flows"))?;
    std::fs::write(folder.path().join("flows/load.yaml"), FLOW)?;
    Ok(folder)
}

/// The settings that every measured process of a folder has.
pub(super) fn command(binary: &Path, folder: &Path) -> Command {
    let mut command = Command::new(binary);
    command
        .args(["--store", "sqlite:load.db", "--set", "queues=none", "--set", "log=error"])
        .current_dir(folder)
        .stdin(Stdio::piped());
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("FLOWGATE_")) {
            command.env_remove(name);
        }
    }
    command
}

impl Instance {
    /// A worker that accepts starts and executes nothing.
    pub(super) fn worker(binary: &Path, folder: &Path) -> anyhow::Result<Self> {
        let address = free_address()?;
        let mut command = command(binary, folder);
        command.args(["worker", "start", "flows", "--listen", &address.to_string()]);
        Self::spawn(command, address)
    }

    /// Runs a command that serves at `address`, and returns once it does.
    pub(super) fn spawn(mut command: Command, address: SocketAddr) -> anyhow::Result<Self> {
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting the process to measure")?;
        let mut instance = Self { child, address };
        let watch = Stopwatch::start();
        loop {
            let answer = Connection::open(address).and_then(|mut c| c.get("/readyz"));
            if matches!(answer, Ok((200, _))) {
                return Ok(instance);
            }
            if let Some(status) = instance.child.try_wait()? {
                bail!("the process to measure ended by itself: {status}");
            }
            if watch.elapsed() > READY_MAX {
                bail!("the process to measure does not serve at {address}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The most memory that it had resident so far, in MB.
    pub(super) fn resident_max_mb(&self) -> anyhow::Result<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).context("reading the memory of the process")?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        Ok(kib.context("the system does not say how much memory the process has")? * 1_024
            / 1_000_000)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // One that has ended by itself needs neither.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// An address that was free a moment ago.
pub(super) fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
