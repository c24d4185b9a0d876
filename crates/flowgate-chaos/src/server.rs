//! The private server under test, the ways to it, and its clock.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, ensure};
use flowgate_engine::instance_id;
use flowgate_store::{SqliteOptions, SqliteStore, Store};
use flowgate_testbed::{Postgres, PrivateServer, Redis, RedisCluster};
use tempfile::TempDir;

/// Partitions of a store on a cluster, unless its URL says otherwise.
const CLUSTER_PARTITIONS: u16 = 16;
const SQLITE: &str = "sqlite:";

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    Redis,
    RedisCluster,
    Postgres,
    /// A file, and so for one instance only; not for whoever breaks servers.
    #[value(skip)]
    Sqlite,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::RedisCluster => "redis-cluster",
            Self::Postgres => "postgres",
            Self::Sqlite => "sqlite",
        }
    }

    /// Whether a proxy can stand before the server. The nodes of a cluster tell their clients
    /// their own addresses, so a client would go past it, and there is no way to a file.
    pub(crate) fn takes_proxy(self) -> bool {
        match self {
            Self::Redis | Self::Postgres => true,
            Self::RedisCluster | Self::Sqlite => false,
        }
    }
}

/// A server of one of the kinds.
#[derive(Debug)]
pub(crate) enum Server {
    Redis(Redis),
    RedisCluster(RedisCluster),
    Postgres(Postgres),
    Sqlite(TempDir),
}

impl Server {
    pub(crate) fn start(kind: Kind) -> anyhow::Result<Self> {
        Ok(match kind {
            Kind::Redis => Self::Redis(Redis::start()?),
            Kind::RedisCluster => Self::RedisCluster(RedisCluster::start()?),
            Kind::Postgres => Self::Postgres(Postgres::start()?),
            Kind::Sqlite => {
                let folder = tempfile::Builder::new().prefix("flowgate-sqlite-").tempdir();
                Self::Sqlite(folder.context("making a folder for the store")?)
            }
        })
    }

    /// What can be done to it.
    pub(crate) fn control(&mut self) -> &mut dyn PrivateServer {
        match self {
            Self::Redis(server) => server,
            Self::RedisCluster(server) => server,
            Self::Postgres(server) => server,
            Self::Sqlite(_) => unreachable!("whoever breaks servers is not offered a file"),
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::RedisCluster(server) => server.url(),
            Self::Postgres(server) => server.url(),
            Self::Sqlite(folder) => format!("{SQLITE}{}", folder.path().join("store.db").display()),
        }
    }

    /// Moves the clock of the store on it.
    pub(crate) fn shift_clock(&self, by_ms: i64) -> anyhow::Result<()> {
        let by = by_ms.to_string();
        let shift = |partition: u16| format!("fg:{{p{partition}}}:meta");
        match self {
            Self::Postgres(server) => {
                let sql = format!(
                    "UPDATE flowgate.meta SET value = value + {by} WHERE name = 'clock_offset_ms'"
                );
                server.ask(&sql)?;
            }
            Self::Sqlite(_) => unreachable!("whoever moves clocks is not offered a file"),
            Self::Redis(server) => {
                server.ask(&["HINCRBY", &shift(0), "clock_ms", &by])?;
            }
            Self::RedisCluster(server) => {
                let port = server.addresses()[0].port().to_string();
                for partition in 0..CLUSTER_PARTITIONS {
                    let done = Command::new("redis-cli")
                        .args(["-c", "-p", &port, "HINCRBY", &shift(partition), "clock_ms", &by])
                        .stdout(Stdio::null())
                        .status()
                        .context("starting redis-cli")?;
                    ensure!(done.success(), "redis-cli failed: {done}");
                }
            }
        }
        Ok(())
    }
}

/// The address in a server's URL.
pub(crate) fn address_of(url: &str) -> anyhow::Result<SocketAddr> {
    let (_, rest) = url.split_once("://").context("a server has a URL")?;
    let host = rest.split(['/', '?']).next().unwrap_or(rest);
    let host = host.rsplit('@').next().unwrap_or(host);
    host.parse().with_context(|| format!("the address in {url}"))
}

/// `url` with another address in it.
pub(crate) fn through(url: &str, address: SocketAddr) -> anyhow::Result<String> {
    Ok(url.replacen(&address_of(url)?.to_string(), &address.to_string(), 1))
}

/// Opens the store at `url`, as an instance does.
pub(crate) async fn open(url: &str) -> anyhow::Result<Arc<dyn Store>> {
    if let Some(path) = url.strip_prefix(SQLITE) {
        return Ok(Arc::new(SqliteStore::open(path, SqliteOptions::new(instance_id())).await?));
    }
    Ok(flowgate_store::open_shared(url).await?)
}

/// Opens the store at `url` beside the instances, to look at it.
pub(crate) async fn look_at(url: &str) -> anyhow::Result<Arc<dyn Store>> {
    match url.strip_prefix(SQLITE) {
        Some(path) => Ok(Arc::new(SqliteStore::open_read_only(path).await?)),
        None => open(url).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_takes_the_place_of_the_address_alone() {
        let proxy: SocketAddr = "127.0.0.1:9".parse().unwrap();
        for (url, expected) in [
            ("redis://127.0.0.1:7000", "redis://127.0.0.1:9"),
            ("postgres://a@127.0.0.1:70/b?c=d", "postgres://a@127.0.0.1:9/b?c=d"),
        ] {
            assert_eq!(through(url, proxy).unwrap(), expected);
        }
    }
}
