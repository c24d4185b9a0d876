//! A private Redis Cluster.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::redis::{Mode, Redis};
use crate::resp::Reply;
use crate::{PrivateServer, site, tool};

/// How many nodes are primaries at first; as many are their replicas.
const PRIMARIES: usize = 3;
const NODES: usize = 2 * PRIMARIES;
/// How many slots a cluster has.
const SLOTS: &str = "16384";

/// A Redis Cluster of our own: three primaries with a replica each, every node a [`Redis`].
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts the nodes, joins them, and waits until every node takes the cluster for whole.
    pub fn start() -> anyhow::Result<Self> {
        let nodes = on_each(0..NODES, |_| Redis::start_node())?;
        let cluster = Self { nodes };
        cluster.form().context("forming redis-cluster")?;
        cluster.wait_until_whole()?;
        Ok(cluster)
    }

    /// The nodes, in the order in which they were started.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The nodes, to kill, pause and restart one by one.
    pub fn nodes_mut(&mut self) -> &mut [Redis] {
        &mut self.nodes
    }

    /// The addresses by which a client finds the cluster: those of the first primaries.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes[..PRIMARIES].iter().map(Redis::address).collect()
    }

    /// Which nodes are primaries now, by their places in [`Self::nodes`]. Nodes that do not answer
    /// are none.
    pub fn primaries(&self) -> Vec<usize> {
        let is_primary = |node: &Redis| match node.ask(&["ROLE"]) {
            Ok(Reply::List(role)) => role.first().and_then(Reply::text) == Some("master"),
            Ok(Reply::Text(_) | Reply::Number(_) | Reply::Nil | Reply::Refused(_)) | Err(_) => {
                false
            }
        };
        (0..NODES).filter(|place| is_primary(&self.nodes[*place])).collect()
    }

    /// Waits until every node sees all nodes and all slots served, and every replica follows.
    pub fn wait_until_whole(&self) -> anyhow::Result<()> {
        site::wait_until("redis-cluster is whole", || self.nodes.iter().all(sees_whole_cluster))
    }

    fn form(&self) -> anyhow::Result<()> {
        let mut command = Command::new(tool::require("redis-cli")?);
        command.args(["--cluster", "create"]);
        for node in &self.nodes {
            let Mode::Node { bus_port } = node.mode() else { bail!("a node has no bus") };
            command.arg(format!("{}@{bus_port}", node.address()));
        }
        command.args(["--cluster-replicas", "1", "--cluster-yes"]);
        let output = command.output().context("starting redis-cli")?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "redis-cli failed ({}):\n{said}", output.status);
        Ok(())
    }
}

impl PrivateServer for RedisCluster {
    fn url(&self) -> String {
        let addresses: Vec<_> = self.addresses().iter().map(SocketAddr::to_string).collect();
        format!("redis-cluster://{}", addresses.join(","))
    }

    fn pids(&self) -> Vec<u32> {
        self.nodes.iter().flat_map(PrivateServer::pids).collect()
    }

    fn cpu_time(&self) -> Duration {
        self.nodes.iter().map(PrivateServer::cpu_time).sum()
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        self.nodes.iter_mut().try_for_each(PrivateServer::kill)
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        self.nodes.iter_mut().try_for_each(PrivateServer::stop)
    }

    fn pause(&mut self) -> anyhow::Result<()> {
        self.nodes.iter_mut().try_for_each(PrivateServer::pause)
    }

    fn resume(&mut self) -> anyhow::Result<()> {
        self.nodes.iter_mut().try_for_each(PrivateServer::resume)
    }

    fn restart(&mut self) -> anyhow::Result<()> {
        on_each(self.nodes.iter_mut(), PrivateServer::restart)?;
        self.wait_until_whole()
    }
}

/// Does the same on a thread each.
fn on_each<T: Send, R: Send>(
    items: impl Iterator<Item = T>,
    act: impl Fn(T) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = items.map(|item| scope.spawn(|| act(item))).collect();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => bail!("starting a node panicked"),
        });
        // All are waited for before the first error counts, so that no thread is left behind.
        let ended: Vec<_> = ended.collect();
        ended.into_iter().collect()
    })
}

fn sees_whole_cluster(node: &Redis) -> bool {
    let has_lines = |section: &[&str], expected: &[&str]| {
        let reply = node.ask(section).ok();
        let text = reply.as_ref().and_then(Reply::text).unwrap_or_default();
        expected.iter().all(|line| text.lines().any(|found| found == *line))
    };
    let slots_ok = format!("cluster_slots_ok:{SLOTS}");
    let known_nodes = format!("cluster_known_nodes:{NODES}");
    let is_whole = has_lines(&["CLUSTER", "INFO"], &["cluster_state:ok", &slots_ok, &known_nodes]);
    let follows = |line| has_lines(&["INFO", "replication"], &[line]);
    is_whole
        && (follows("role:master") && follows("connected_slaves:1")
            || follows("master_link_status:up"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks until the node that has the key's slot answers.
    fn ask(cluster: &RedisCluster, words: &[&str]) -> Reply {
        let mut answers = cluster.nodes().iter().filter_map(|node| node.ask(words).ok());
        let is_answer = |reply: &Reply| !matches!(reply, Reply::Refused(_));
        answers.find(is_answer).expect("one node has the slot of the key")
    }

    #[test]
    fn a_cluster_is_whole_and_outlives_a_kill_and_a_pause_of_all_nodes() {
        let mut cluster = RedisCluster::start().unwrap();
        assert_eq!(cluster.primaries(), [0, 1, 2]);
        assert!(cluster.pids().len() >= NODES, "a node may have a child that writes its file");
        let url = cluster.url();
        assert!(url.starts_with("redis-cluster://127.0.0.1:"), "{url}");
        assert_eq!(ask(&cluster, &["SET", "key", "kept"]), Reply::Text("OK".into()));
        cluster.kill().unwrap();
        assert!(cluster.pids().is_empty());
        cluster.restart().unwrap();
        assert_eq!(ask(&cluster, &["GET", "key"]), Reply::Text("kept".into()));
        cluster.pause().unwrap();
        cluster.resume().unwrap();
        cluster.wait_until_whole().unwrap();
        assert_eq!(ask(&cluster, &["GET", "key"]), Reply::Text("kept".into()));
    }

    #[test]
    fn a_replica_takes_over_from_a_killed_primary() {
        let mut cluster = RedisCluster::start().unwrap();
        cluster.nodes_mut()[0].kill().unwrap();
        let has_successor = || {
            let primaries = cluster.primaries();
            primaries.len() == PRIMARIES && !primaries.contains(&0)
        };
        site::wait_until("a replica has taken over", has_successor).unwrap();
        cluster.nodes_mut()[0].restart().unwrap();
        cluster.wait_until_whole().unwrap();
    }
}
