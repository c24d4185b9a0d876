//! A private Redis.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use crate::process::Signal;
use crate::resp::{Connection, Reply};
use crate::site::{Endings, Site};
use crate::{PrivateServer, tool};

const ENDINGS: Endings = Endings { stop: Signal::Terminate, kill: Signal::Kill };

/// After what time without an answer the nodes of a cluster take one for dead.
///
/// Short, so that a test sees a failover soon; not so short that a busy machine causes one.
const NODE_TIMEOUT_MS: &str = "2000";

/// A Redis of our own: it writes every command to its append-only file, syncs it each second, and
/// never evicts a key.
#[derive(Debug)]
pub struct Redis {
    site: Site,
    mode: Mode,
    port: u16,
}

/// What a Redis is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Single,
    /// One node of a cluster, which talks to the others on a port of its own.
    Node {
        bus_port: u16,
    },
}

impl Redis {
    /// Starts a single server, and waits until it is ready.
    pub fn start() -> anyhow::Result<Self> {
        let mut site = Site::new("redis", ENDINGS)?;
        let [port] = site
            .start_on_free_ports(
                |site, [port]| command(site, Mode::Single, port),
                |site, [port]| is_ours_and_ready(site, port),
            )
            .context("starting redis")?;
        Ok(Self { site, mode: Mode::Single, port })
    }

    /// Starts a node that knows no other node yet.
    pub(crate) fn start_node() -> anyhow::Result<Self> {
        let mut site = Site::new("redis-node", ENDINGS)?;
        let [port, bus_port] = site
            .start_on_free_ports(
                |site, [port, bus_port]| command(site, Mode::Node { bus_port }, port),
                |site, [port, _]| is_ours_and_ready(site, port),
            )
            .context("starting a node of redis-cluster")?;
        Ok(Self { site, mode: Mode::Node { bus_port }, port })
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        address(self.port)
    }

    /// Sends one command, on a connection of its own, and reads its answer.
    pub fn ask(&self, words: &[&str]) -> anyhow::Result<Reply> {
        Connection::open(self.address())?.ask(words)
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }
}

impl PrivateServer for Redis {
    fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    fn pids(&self) -> Vec<u32> {
        self.site.pids()
    }

    fn cpu_time(&self) -> Duration {
        self.site.cpu_time()
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        self.site.kill()
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        self.site.stop()
    }

    fn pause(&mut self) -> anyhow::Result<()> {
        self.site.pause()
    }

    fn resume(&mut self) -> anyhow::Result<()> {
        self.site.resume()
    }

    fn restart(&mut self) -> anyhow::Result<()> {
        self.stop()?;
        let (mode, port) = (self.mode, self.port);
        self.site
            .start_again(|site| command(site, mode, port), |site| is_ours_and_ready(site, port))
            .with_context(|| format!("starting redis again on port {port}"))
    }
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn command(site: &Site, mode: Mode, port: u16) -> anyhow::Result<Command> {
    let mut command = Command::new(tool::require("redis-server")?);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    command.arg("--dir").arg(site.folder());
    command.args(["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]);
    command.args(["--maxmemory-policy", "noeviction", "--daemonize", "no"]);
    if let Mode::Node { bus_port } = mode {
        command.args(["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"]);
        command.args(["--cluster-port", &bus_port.to_string()]);
        command.args(["--cluster-node-timeout", NODE_TIMEOUT_MS]);
        // By default a primary waits some seconds for more replicas before it sends its data.
        command.args(["--repl-diskless-sync-delay", "0"]);
    }
    Ok(command)
}

/// Whether the process of this site answers on this port, and not somebody else.
fn is_ours_and_ready(site: &Site, port: u16) -> bool {
    asked(site, port).is_ok_and(|is_ours| is_ours)
}

fn asked(site: &Site, port: u16) -> anyhow::Result<bool> {
    let mut connection = Connection::open(address(port))?;
    let info = connection.ask(&["INFO", "server"])?;
    let pid = info.text().and_then(|info| {
        let mut lines = info.lines();
        lines.find_map(|line| line.strip_prefix("process_id:")?.parse().ok())
    });
    let folder = match connection.ask(&["CONFIG", "GET", "dir"])? {
        Reply::List(pair) => pair.get(1).and_then(Reply::text).map(PathBuf::from),
        Reply::Text(_) | Reply::Number(_) | Reply::Nil | Reply::Refused(_) => None,
    };
    let is_ours = pid == site.pid()
        && folder.and_then(|folder| folder.canonicalize().ok())
            == site.folder().canonicalize().ok();
    // A server that still reads its data refuses this, and answers the questions before.
    Ok(is_ours && connection.ask(&["PING"])?.text() == Some("PONG"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Reply {
        Reply::Text(text.into())
    }

    #[test]
    fn a_key_outlives_a_kill() {
        let mut redis = Redis::start().unwrap();
        let url = redis.url();
        assert_eq!(redis.ask(&["SET", "key", "kept"]).unwrap(), text("OK"));
        // An answer comes after the write to the file, and the kernel outlives the process.
        redis.kill().unwrap();
        assert!(redis.pids().is_empty());
        redis.ask(&["PING"]).unwrap_err();
        redis.restart().unwrap();
        assert_eq!(redis.ask(&["GET", "key"]).unwrap(), text("kept"));
        assert_eq!(redis.url(), url);
        redis.restart().unwrap();
        assert_eq!(redis.ask(&["GET", "key"]).unwrap(), text("kept"));
    }

    #[test]
    fn a_paused_redis_does_not_answer_until_it_goes_on() {
        let mut redis = Redis::start().unwrap();
        redis.pause().unwrap();
        redis.ask(&["PING"]).unwrap_err();
        redis.resume().unwrap();
        assert_eq!(redis.ask(&["PING"]).unwrap(), text("PONG"));
        redis.pause().unwrap();
        redis.kill().unwrap();
        redis.restart().unwrap();
        assert_eq!(redis.ask(&["PING"]).unwrap(), text("PONG"));
    }

    #[test]
    fn a_stranger_on_the_port_does_not_pass_for_ours() {
        let stranger = Redis::start().unwrap();
        let ours = Redis::start().unwrap();
        assert!(is_ours_and_ready(&ours.site, ours.port));
        assert!(!is_ours_and_ready(&ours.site, stranger.port));
    }

    #[test]
    fn a_redis_is_set_up_to_keep_what_it_is_told() {
        let redis = Redis::start().unwrap();
        for (setting, expected) in [
            ("appendonly", "yes"),
            ("appendfsync", "everysec"),
            ("maxmemory-policy", "noeviction"),
            ("bind", "127.0.0.1"),
            ("save", ""),
        ] {
            let reply = redis.ask(&["CONFIG", "GET", setting]).unwrap();
            assert_eq!(reply, Reply::List(vec![text(setting), text(expected)]));
        }
    }

    #[test]
    fn the_processor_time_grows_over_work_and_restarts() {
        let mut redis = Redis::start().unwrap();
        let before = redis.cpu_time();
        let busy = "local n = 0 for i = 1, 3000000 do n = n + i end return 1";
        // It is told in hundredths of a second, and one script may take less.
        let works = || {
            assert_eq!(redis.ask(&["EVAL", busy, "0"]).unwrap(), Reply::Number(1));
            before < redis.cpu_time()
        };
        assert!((0..100).any(|_| works()));
        let after = redis.cpu_time();
        redis.restart().unwrap();
        assert!(after <= redis.cpu_time());
    }
}
