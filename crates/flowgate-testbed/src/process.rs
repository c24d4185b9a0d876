//! Processes by their ids: their children, their processor time, and signals to them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;

/// How many ticks of the processor times in `/proc` make a second; the same on every Linux.
const TICKS_PER_SECOND: u64 = 100;

/// A signal, by the name that `kill` knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    Terminate,
    Interrupt,
    Quit,
    Kill,
    Stop,
    Continue,
}

impl Signal {
    fn flag(self) -> &'static str {
        match self {
            Self::Terminate => "-TERM",
            Self::Interrupt => "-INT",
            Self::Quit => "-QUIT",
            Self::Kill => "-KILL",
            Self::Stop => "-STOP",
            Self::Continue => "-CONT",
        }
    }
}

/// Sends a signal to each of these processes; one that has ended in the meantime is no fault.
///
/// The caller has started them, or their parent, and has not waited for it yet, so that nobody
/// else can have its id.
pub(crate) fn send(signal: Signal, pids: &[u32]) -> anyhow::Result<()> {
    if pids.is_empty() {
        return Ok(());
    }
    Command::new("kill")
        .arg(signal.flag())
        .args(pids.iter().map(u32::to_string))
        .stderr(Stdio::null())
        .status()
        .map(|_| ())
        .context("starting kill")
}

/// A process and all its descendants, the process first.
pub(crate) fn family(pid: u32) -> Vec<u32> {
    let stats = all_stats();
    let mut family = Vec::new();
    if stats.contains_key(&pid) {
        family.push(pid);
    }
    let mut looked_at = 0;
    while let Some(&parent) = family.get(looked_at) {
        family.extend(stats.iter().filter(|(_, stat)| stat.parent == parent).map(|(pid, _)| *pid));
        looked_at += 1;
    }
    family
}

/// The processor time of these processes and of their children that have ended.
pub(crate) fn cpu_time(pids: &[u32]) -> Duration {
    pids.iter().filter_map(|pid| stat(*pid)).map(|stat| stat.cpu_time).sum()
}

/// Whether every thread of the process is halted, or the process has ended.
pub(crate) fn is_halted(pid: u32) -> bool {
    stat(pid).is_none_or(|stat| matches!(stat.state, 'T' | 'Z' | 'X'))
}

/// Whether this process listens on this port of IPv4, by the kernel's table of sockets.
pub(crate) fn listens(pid: u32, port: u16) -> bool {
    let folder = Path::new("/proc").join(pid.to_string());
    let table = std::fs::read_to_string(folder.join("net/tcp")).unwrap_or_default();
    let Some(inode) = listening_inode(&table, port) else { return false };
    let socket = format!("socket:[{inode}]");
    let files = std::fs::read_dir(folder.join("fd")).into_iter().flatten().filter_map(Result::ok);
    files
        .filter_map(|file| std::fs::read_link(file.path()).ok())
        .any(|target| target.as_os_str() == socket.as_str())
}

/// The inode of the socket that listens on `port`, in a table of sockets.
fn listening_inode(table: &str, port: u16) -> Option<&str> {
    let end = format!(":{port:04X}");
    table.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let is_it = fields.get(1)?.ends_with(&end) && *fields.get(3)? == "0A";
        if is_it { fields.get(9).copied() } else { None }
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    state: char,
    parent: u32,
    cpu_time: Duration,
}

fn all_stats() -> BTreeMap<u32, Stat> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return BTreeMap::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, stat(pid)?))).collect()
}

fn stat(pid: u32) -> Option<Stat> {
    let path = Path::new("/proc").join(pid.to_string()).join("stat");
    parse_stat(&std::fs::read_to_string(path).ok()?)
}

fn parse_stat(line: &str) -> Option<Stat> {
    // The second field is the name in brackets, which may hold anything.
    let (_, fields) = line.rsplit_once(')')?;
    let fields: Vec<_> = fields.split_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>());
    let ticks: u64 = ticks.sum::<Result<_, _>>().ok()?;
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        cpu_time: Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    #[test]
    fn the_name_of_a_process_may_hold_anything() {
        let line = "7 (a) b) S 3 7 7 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 99 0 0";
        let expected = Stat { state: 'S', parent: 3, cpu_time: Duration::from_secs(1) };
        assert_eq!(parse_stat(line), Some(expected));
        assert_eq!(parse_stat("7 (a) S 3"), None);
    }

    #[test]
    fn a_process_listens_on_the_ports_that_it_has_opened_and_on_no_other() {
        let ours = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = ours.local_addr().unwrap().port();
        assert!(listens(std::process::id(), port));
        assert!(!listens(1, port));
        drop(ours);
        assert!(!listens(std::process::id(), port));
    }

    #[test]
    fn a_family_is_a_process_and_its_descendants() {
        let mut shell = Command::new("sh")
            .args(["-c", "tail -f /dev/null >/dev/null & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let child: u32 = line.trim().parse().unwrap();
        assert_eq!(family(shell.id()), [shell.id(), child]);
        send(Signal::Kill, &[child, shell.id()]).unwrap();
        shell.wait().unwrap();
        assert!(family(shell.id()).is_empty());
    }

    #[test]
    fn work_costs_processor_time() {
        let mut busy = Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(busy.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(cpu_time(&family(busy.id())) > Duration::ZERO);
        drop(busy.stdin.take());
        busy.wait().unwrap();
    }
}
