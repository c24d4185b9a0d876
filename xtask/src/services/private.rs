//! Private servers: started for one command, on loopback, and ended in any case.
//!
//! A server that is interrupted together with xtask (Ctrl-C) gets the same signal from the
//! terminal, because it stays in our process group.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, bail};
use tempfile::TempDir;

use super::packages::Tool;
use crate::clock::Stopwatch;
use crate::output;

/// How long a server may take until it is ready.
const READY_WAIT_MAX: Duration = Duration::from_secs(30);
/// How long a server may take to end by itself after it was asked to.
const END_WAIT_MAX: Duration = Duration::from_secs(10);
/// The pause between two looks at a server that is not there yet, or not gone yet.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// How long one attempt to connect may take.
const CONNECT_WAIT_MAX: Duration = Duration::from_millis(500);
/// How many lines of a server's log an error shows.
const LOG_LINES_MAX: usize = 20;

/// The environment variables that tell a command where the servers are.
pub(crate) type Variables = Vec<(String, String)>;

/// How one kind of server is installed, started and recognised as ready.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Server {
    pub name: &'static str,
    pub tool: Tool,
    /// The environment variable that carries the address.
    pub variable: &'static str,
    /// Starts the processes of the server, and returns its address.
    pub start: fn(&mut Site) -> anyhow::Result<String>,
    /// Whether the server at this address answers.
    pub is_ready: fn(&str) -> bool,
}

/// The data folder of one server and the processes that were started for it.
#[derive(Debug)]
pub(crate) struct Site {
    folder: TempDir,
    processes: Vec<Child>,
}

impl Site {
    fn new(name: &str) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(&format!("flowgate-{name}-"))
            .tempdir()
            .with_context(|| format!("making the data folder of {name}"))?;
        Ok(Self { folder, processes: Vec::new() })
    }

    /// The data folder, which is removed when the server has ended.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts a process of the server; its output goes to a log in the data folder.
    pub(crate) fn spawn(&mut self, command: &mut Command) -> anyhow::Result<()> {
        let number = self.processes.len();
        let log = File::create(self.folder().join(format!("{number}.log")))
            .context("making the log of a server")?;
        let errors = log.try_clone().context("sharing the log of a server")?;
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let program = command.get_program().to_string_lossy().into_owned();
        self.processes.push(command.spawn().with_context(|| format!("starting {program}"))?);
        Ok(())
    }

    /// Waits until `is_ready`, and fails as soon as a process has ended instead.
    fn wait_until_ready(&mut self, is_ready: &dyn Fn() -> bool) -> anyhow::Result<()> {
        let watch = Stopwatch::start();
        while !is_ready() {
            for number in 0..self.processes.len() {
                let process = &mut self.processes[number];
                if let Some(status) = process.try_wait().context("looking at a server")? {
                    bail!("ended too early ({status}):\n{}", self.log_end(number));
                }
            }
            if watch.elapsed() > READY_WAIT_MAX {
                bail!("not ready after {READY_WAIT_MAX:?}:\n{}", self.log_end(0));
            }
            sleep(LOOK_PAUSE);
        }
        Ok(())
    }

    fn log_end(&self, number: usize) -> String {
        let path = self.folder().join(format!("{number}.log"));
        let log = std::fs::read(path).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n")
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            if let Err(error) = end(process, END_WAIT_MAX) {
                output::complain(&format!("process {} may still run: {error:#}", process.id()));
            }
        }
    }
}

/// Servers that run. Dropping this ends precisely the processes that were started for it.
#[derive(Debug, Default)]
pub(crate) struct Running {
    variables: Variables,
    /// Held for its drop.
    sites: Vec<Site>,
}

impl Running {
    /// Starts the servers in order; if one fails, those before it are ended.
    pub(crate) fn start(servers: &[Server]) -> anyhow::Result<Self> {
        let mut running = Self::default();
        for server in servers {
            let mut site = Site::new(server.name)?;
            let address = (server.start)(&mut site)
                .and_then(|address| {
                    site.wait_until_ready(&|| (server.is_ready)(&address))?;
                    Ok(address)
                })
                .with_context(|| format!("starting {}", server.name))?;
            running.variables.push((server.variable.into(), address));
            running.sites.push(site);
        }
        Ok(running)
    }

    pub(crate) fn variables(&self) -> Variables {
        self.variables.clone()
    }
}

/// A port of the loopback interface that nobody listens on.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("looking for a port")?;
    Ok(listener.local_addr().context("reading the port")?.port())
}

/// Whether something accepts connections on this port of the loopback interface.
pub(crate) fn accepts_connections(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpStream::connect_timeout(&address, CONNECT_WAIT_MAX).is_ok()
}

/// Asks a process to end, waits up to `wait_max` for it, and kills it if it does not.
fn end(process: &mut Child, wait_max: Duration) -> anyhow::Result<()> {
    if process.try_wait().context("looking at a server")?.is_some() {
        return Ok(());
    }
    // We have not waited for the process yet, so that nobody else can have its id.
    let id = process.id().to_string();
    let asked = Command::new("kill").args(["-TERM", &id]).status();
    let is_asked = asked.is_ok_and(|status| status.success());
    let watch = Stopwatch::start();
    while is_asked && watch.elapsed() < wait_max {
        if process.try_wait().context("looking at a server")?.is_some() {
            return Ok(());
        }
        sleep(LOOK_PAUSE);
    }
    process.kill().context("killing a server")?;
    process.wait().context("waiting for a killed server")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    const PYTHON: Tool = Tool { binary: "python3", packages: &["python3"] };

    const FILES: Server = Server {
        name: "files",
        tool: PYTHON,
        variable: "FLOWGATE_TEST_FILES",
        start: |site| {
            let port = free_port()?.to_string();
            let mut command = Command::new("python3");
            command.args(["-m", "http.server", &port, "--bind", "127.0.0.1"]);
            command.current_dir(site.folder());
            site.spawn(&mut command)?;
            Ok(port)
        },
        is_ready: |port| port.parse().is_ok_and(accepts_connections),
    };

    const BROKEN: Server = Server {
        name: "broken",
        start: |site| {
            site.spawn(Command::new("sh").args(["-c", "echo no luck today; exit 3"]))?;
            Ok(String::new())
        },
        is_ready: |_| false,
        ..FILES
    };

    fn is_alive(id: u32) -> bool {
        Path::new("/proc").join(id.to_string()).exists()
    }

    #[test]
    fn a_private_server_answers_until_it_is_dropped() {
        let running = Running::start(&[FILES]).unwrap();
        let [(variable, port)] = &running.variables()[..] else {
            panic!("one server, one variable")
        };
        assert_eq!(variable, "FLOWGATE_TEST_FILES");
        let port: u16 = port.parse().unwrap();
        assert!(accepts_connections(port));
        let id = running.sites[0].processes[0].id();
        let folder = running.sites[0].folder().to_path_buf();
        assert!(is_alive(id) && folder.is_dir());

        drop(running);
        assert!(!accepts_connections(port));
        assert!(!is_alive(id), "the process is gone");
        assert!(!folder.exists(), "so is its data folder");
    }

    #[test]
    fn two_servers_of_a_kind_have_ports_and_folders_of_their_own() {
        let running = Running::start(&[FILES, FILES]).unwrap();
        let variables = running.variables();
        assert_ne!(variables[0].1, variables[1].1);
        assert_ne!(running.sites[0].folder(), running.sites[1].folder());
    }

    #[test]
    fn a_server_that_ends_at_once_is_an_error_with_its_log() {
        let error = format!("{:#}", Running::start(&[FILES, BROKEN]).unwrap_err());
        assert!(error.starts_with("starting broken: ended too early"), "{error}");
        assert!(error.contains("no luck today"), "{error}");
    }

    #[test]
    fn a_process_that_was_spawned_before_a_failed_start_is_ended() {
        let mut site = Site::new("half").unwrap();
        site.spawn(&mut Command::new("true")).unwrap();
        site.spawn(Command::new("sh").args(["-c", "exec tail -f /dev/null"])).unwrap();
        let id = site.processes[1].id();
        assert!(is_alive(id));
        drop(site);
        assert!(!is_alive(id));
    }

    #[test]
    fn ending_a_process_that_has_ended_is_no_fault() {
        let mut process = Command::new("true").spawn().unwrap();
        process.wait().unwrap();
        end(&mut process, END_WAIT_MAX).unwrap();
    }

    #[test]
    fn a_process_that_does_not_want_to_end_is_killed() {
        const STUBBORN: &str = "import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('ready', flush=True)
signal.pause()";
        let mut command = Command::new("python3");
        let mut process = command.args(["-c", STUBBORN]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        end(&mut process, Duration::from_millis(100)).unwrap();
        assert!(!is_alive(process.id()));
    }
}
