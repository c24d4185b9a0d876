//! The data folder of one server, and the processes that run for it.
//!
//! A server that is interrupted together with us (Ctrl-C) gets the same signal from the terminal,
//! because it stays in our process group.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::clock::Stopwatch;
use crate::ports;
use crate::process::{self, Signal};

/// How long a server may take until it is ready.
const READY_WAIT_MAX: Duration = Duration::from_secs(30);
/// How long a server may take to end by itself after it was asked to.
const END_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long the processes of a server may take until all of them are halted.
const PAUSE_WAIT_MAX: Duration = Duration::from_secs(10);
/// The pause between two looks at a server that is not there yet, or not gone yet.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// How many lines of a server's log an error shows.
const LOG_LINES_MAX: usize = 20;
/// How often a server may find a port taken before that is an error.
const TRIES_MAX: usize = 5;
/// What the log of every server says about a port that is taken.
const PORT_IS_TAKEN: &str = "Address already in use";

/// The signals by which a kind of server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Endings {
    /// In its own orderly way.
    pub stop: Signal,
    /// As a crash would.
    pub kill: Signal,
}

/// The data folder of one server and the process that was started for it.
///
/// Dropping it ends the process and its children, and then removes the folder.
#[derive(Debug)]
pub(crate) struct Site {
    folder: TempDir,
    endings: Endings,
    process: Option<Child>,
    is_paused: bool,
    /// What processes that have ended used.
    cpu_time_ended: Duration,
}

impl Site {
    pub(crate) fn new(name: &str, endings: Endings) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(&format!("flowgate-{name}-"))
            .tempdir()
            .with_context(|| format!("making the data folder of {name}"))?;
        Ok(Self {
            folder,
            endings,
            process: None,
            is_paused: false,
            cpu_time_ended: Duration::ZERO,
        })
    }

    /// The data folder, which is removed when the server has ended.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The id of the process, while it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.pid().map(process::family).unwrap_or_default()
    }

    pub(crate) fn cpu_time(&self) -> Duration {
        self.cpu_time_ended + process::cpu_time(&self.pids())
    }

    /// Starts the server on ports that are free, and waits until it is ready.
    ///
    /// If somebody else took one of them in the meantime, others are tried.
    pub(crate) fn start_on_free_ports<const N: usize>(
        &mut self,
        command: impl Fn(&Self, [u16; N]) -> anyhow::Result<Command>,
        is_ready: impl Fn(&Self, [u16; N]) -> bool,
    ) -> anyhow::Result<[u16; N]> {
        let mut ports = [0; N];
        self.start_until_ports_are_free(|site| {
            for port in &mut ports {
                *port = ports::free_port()?;
            }
            site.start(&mut command(site, ports)?, |site| is_ready(site, ports))
        })?;
        Ok(ports)
    }

    /// Starts the server on the ports that it had, and waits until it is ready.
    ///
    /// If somebody else has just looked whether one of them is free, it is tried again.
    pub(crate) fn start_again(
        &mut self,
        command: impl Fn(&Self) -> anyhow::Result<Command>,
        is_ready: impl Fn(&Self) -> bool,
    ) -> anyhow::Result<()> {
        self.start_until_ports_are_free(|site| site.start(&mut command(site)?, &is_ready))
    }

    fn start_until_ports_are_free(
        &mut self,
        mut start: impl FnMut(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for _ in 1..TRIES_MAX {
            match start(self) {
                Err(error) if self.process.is_none() && is_about_ports(&error) => sleep(LOOK_PAUSE),
                outcome => return outcome,
            }
        }
        start(self)
    }

    /// Starts the process of the server, and waits until it is ready.
    ///
    /// Its output goes to the end of a log in the data folder.
    pub(crate) fn start(
        &mut self,
        command: &mut Command,
        is_ready: impl Fn(&Self) -> bool,
    ) -> anyhow::Result<()> {
        assert!(self.process.is_none(), "a site has one process at a time");
        let log = File::options().create(true).append(true).open(self.log());
        let log = log.context("opening the log of a server")?;
        let log_start = log.metadata().context("reading the log of a server")?.len();
        let errors = log.try_clone().context("sharing the log of a server")?;
        // In the language in which errors are looked for.
        command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(log).stderr(errors);
        let program = command.get_program().to_string_lossy().into_owned();
        self.process = Some(command.spawn().with_context(|| format!("starting {program}"))?);
        let watch = Stopwatch::start();
        loop {
            // Also before the first look: by then a server that cannot start has mostly ended.
            sleep(LOOK_PAUSE);
            if let Some(process) = &mut self.process
                && let Some(status) = process.try_wait().context("looking at a server")?
            {
                self.process = None;
                bail!("ended too early ({status}):\n{}", self.log_end());
            }
            if self.log_since(log_start).contains(PORT_IS_TAKEN) {
                // Some servers go on all the same, and listen nowhere.
                self.kill()?;
                bail!("a port is taken:\n{}", self.log_end());
            }
            if is_ready(self) {
                return Ok(());
            }
            if watch.elapsed() > READY_WAIT_MAX {
                bail!("not ready after {READY_WAIT_MAX:?}:\n{}", self.log_end());
            }
        }
    }

    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        self.end(self.endings.stop, END_WAIT_MAX)
    }

    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.end(self.endings.kill, END_WAIT_MAX)
    }

    /// Halts the process, then its children: a halted process makes no new ones.
    pub(crate) fn pause(&mut self) -> anyhow::Result<()> {
        let pid = self.pid().context("a server that does not run cannot be paused")?;
        process::send(Signal::Stop, &[pid])?;
        self.is_paused = true;
        let watch = Stopwatch::start();
        loop {
            let running: Vec<_> =
                self.pids().into_iter().filter(|pid| !process::is_halted(*pid)).collect();
            if running.is_empty() {
                return Ok(());
            }
            if watch.elapsed() > PAUSE_WAIT_MAX {
                bail!("processes {running:?} do not halt");
            }
            process::send(Signal::Stop, &running)?;
        }
    }

    pub(crate) fn resume(&mut self) -> anyhow::Result<()> {
        self.is_paused = false;
        process::send(Signal::Continue, &self.pids())
    }

    /// Sends the signal, waits up to `wait_max` for the end, and kills what is left.
    fn end(&mut self, signal: Signal, wait_max: Duration) -> anyhow::Result<()> {
        let pids = self.pids();
        let cpu_time = process::cpu_time(&pids);
        let Some(process) = &mut self.process else { return Ok(()) };
        if process.try_wait().context("looking at a server")?.is_none() {
            let is_paused = std::mem::take(&mut self.is_paused);
            if is_paused {
                // A signal waits for a halted process, so that it does nothing else before it.
                process::send(signal, &pids)?;
                process::send(Signal::Continue, &pids)?;
            } else if signal == Signal::Kill {
                process::send(signal, &pids)?;
            } else {
                process::send(signal, &[process.id()])?;
            }
            let watch = Stopwatch::start();
            while process.try_wait().context("looking at a server")?.is_none() {
                if watch.elapsed() > wait_max {
                    process::send(Signal::Kill, &process::family(process.id()))?;
                    process.wait().context("waiting for a killed server")?;
                    break;
                }
                sleep(LOOK_PAUSE);
            }
        }
        self.cpu_time_ended += cpu_time;
        self.process = None;
        Ok(())
    }

    fn log(&self) -> std::path::PathBuf {
        self.folder().join("server.log")
    }

    fn log_since(&self, start: u64) -> String {
        let log = std::fs::read(self.log()).unwrap_or_default();
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        String::from_utf8_lossy(log.get(start..).unwrap_or_default()).into_owned()
    }

    fn log_end(&self) -> String {
        let log = self.log_since(0);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n")
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            complain(&format!("the processes {:?} may still run: {error:#}", self.pids()));
        }
    }
}

/// Whether a server has ended because a port was taken, as the end of its log in the error says.
fn is_about_ports(error: &anyhow::Error) -> bool {
    error.to_string().contains(PORT_IS_TAKEN)
}

#[expect(clippy::print_stderr, reason = "a drop has nobody else to tell")]
fn complain(line: &str) {
    eprintln!("{line}");
}

/// Waits until `holds`, for as long as a server may take to be ready.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) -> anyhow::Result<()> {
    let watch = Stopwatch::start();
    while !holds() {
        if watch.elapsed() > READY_WAIT_MAX {
            bail!("{what} not after {READY_WAIT_MAX:?}");
        }
        sleep(LOOK_PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    const POLITE: Endings = Endings { stop: Signal::Terminate, kill: Signal::Kill };

    fn accepts_connections(port: u16) -> bool {
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
    }

    fn file_server(site: &Site, port: u16) -> Command {
        let mut command = Command::new("python3");
        command.args(["-m", "http.server", &port.to_string(), "--bind", "127.0.0.1"]);
        command.current_dir(site.folder());
        command
    }

    fn start(site: &mut Site) -> anyhow::Result<u16> {
        let [port] = site.start_on_free_ports(
            |site, [port]| Ok(file_server(site, port)),
            |_, [port]| accepts_connections(port),
        )?;
        Ok(port)
    }

    fn is_alive(id: u32) -> bool {
        Path::new("/proc").join(id.to_string()).exists()
    }

    #[test]
    fn a_private_server_answers_until_it_is_dropped() {
        let mut site = Site::new("files", POLITE).unwrap();
        let port = start(&mut site).unwrap();
        let id = site.pid().unwrap();
        let folder = site.folder().to_path_buf();
        assert!(accepts_connections(port) && is_alive(id) && folder.is_dir());

        drop(site);
        assert!(!accepts_connections(port));
        assert!(!is_alive(id), "the process is gone");
        assert!(!folder.exists(), "so is its data folder");
    }

    #[test]
    fn two_servers_of_a_kind_have_ports_and_folders_of_their_own() {
        let mut first = Site::new("files", POLITE).unwrap();
        let mut second = Site::new("files", POLITE).unwrap();
        assert_ne!(start(&mut first).unwrap(), start(&mut second).unwrap());
        assert_ne!(first.folder(), second.folder());
    }

    #[test]
    fn a_port_that_somebody_took_meanwhile_is_given_up_for_another() {
        let stranger = Cell::new(None);
        let mut site = Site::new("files", POLITE).unwrap();
        let [port] = site
            .start_on_free_ports(
                |site, [port]| {
                    if stranger.take().is_none() {
                        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
                        stranger.set(Some((port, listener)));
                    }
                    Ok(file_server(site, port))
                },
                |site, [port]| {
                    let pid = site.pid().unwrap_or_default();
                    let log = std::fs::read_to_string(site.log()).unwrap_or_default();
                    is_alive(pid) && log.contains("Serving") && accepts_connections(port)
                },
            )
            .unwrap();
        assert!(accepts_connections(port));
    }

    #[test]
    fn a_server_that_ends_at_once_is_an_error_with_its_log() {
        let mut site = Site::new("broken", POLITE).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no luck today; exit 3"]);
        let error = site.start(&mut command, |_| false).unwrap_err().to_string();
        assert!(error.starts_with("ended too early"), "{error}");
        assert!(error.contains("no luck today"), "{error}");
    }

    #[test]
    fn the_children_of_a_killed_server_end_with_it() {
        let mut site = Site::new("parent", POLITE).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "tail -f /dev/null & wait"]);
        site.start(&mut command, |site| site.pids().len() == 2).unwrap();
        let pids = site.pids();
        drop(site);
        wait_until("all have ended", || pids.iter().all(|pid| process::is_halted(*pid))).unwrap();
    }

    #[test]
    fn ending_a_server_that_has_ended_is_no_fault() {
        let mut site = Site::new("brief", POLITE).unwrap();
        site.start(Command::new("tail").args(["-f", "/dev/null"]), |_| true).unwrap();
        let pid = site.pid().unwrap();
        process::send(Signal::Kill, &[pid]).unwrap();
        wait_until("it has ended", || process::is_halted(pid)).unwrap();
        site.stop().unwrap();
        site.kill().unwrap();
        assert_eq!(site.pid(), None);
    }

    #[test]
    fn a_process_that_does_not_want_to_end_is_killed() {
        const STUBBORN: &str = "import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('ready', flush=True)
signal.pause()";
        let mut site = Site::new("stubborn", POLITE).unwrap();
        let mut command = Command::new("python3");
        let is_ready =
            |site: &Site| std::fs::read_to_string(site.log()).is_ok_and(|l| l == "ready\n");
        site.start(command.args(["-c", STUBBORN]), is_ready).unwrap();
        let id = site.pid().unwrap();
        site.end(Signal::Terminate, Duration::from_millis(100)).unwrap();
        assert!(!is_alive(id));
    }

    #[test]
    fn a_paused_server_is_halted_and_can_still_be_stopped() {
        let mut site = Site::new("files", POLITE).unwrap();
        start(&mut site).unwrap();
        let id = site.pid().unwrap();
        site.pause().unwrap();
        assert!(process::is_halted(id));
        site.resume().unwrap();
        wait_until("it goes on", || !process::is_halted(id)).unwrap();
        site.pause().unwrap();
        site.stop().unwrap();
        assert!(!is_alive(id));
    }
}
