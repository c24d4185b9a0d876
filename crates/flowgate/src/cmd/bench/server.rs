//! The processor time of a server that runs on this machine.

use std::time::Duration;

use super::measure::Stat;

/// A server and all that it started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerProcess {
    pid: u32,
}

impl ServerProcess {
    /// The process with this id, if it runs this program here: a server on another machine has an
    /// id that may be anybody's.
    pub(crate) fn find(pid: u32, program: &str) -> Option<Self> {
        Stat::read(pid).filter(|stat| stat.program.contains(program)).map(|_| Self { pid })
    }

    /// The server that has the process with this id as a session.
    pub(crate) fn find_parent(session: u32, program: &str) -> Option<Self> {
        Self::find(Stat::read(session)?.parent, program)
    }

    /// What the server has used so far, with its children, also those that have ended.
    pub(crate) fn cpu_time(self) -> Duration {
        let Some(server) = Stat::read(self.pid) else { return Duration::ZERO };
        let children = processes().filter_map(Stat::read).filter(|stat| stat.parent == self.pid);
        server.own + server.ended_children + children.map(|child| child.own).sum::<Duration>()
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
