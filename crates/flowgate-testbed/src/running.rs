//! The servers that a command is given, and the variables by which it finds them.

use anyhow::{Context, anyhow};

use crate::tool::Tool;
use crate::{PgBouncer, Postgres, PrivateServer, Redis, RedisCluster};

/// The environment variables that tell a command where the servers are.
pub type Variables = Vec<(String, String)>;

/// A kind of server that a test talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A single [`Redis`].
    Redis,
    /// A [`RedisCluster`].
    RedisCluster,
    /// A [`Postgres`].
    Postgres,
    /// A [`PgBouncer`], which brings the server behind it.
    PgBouncer,
}

impl Kind {
    /// Every kind; one that needs another comes after it.
    pub const ALL: &[Self] = &[Self::Redis, Self::RedisCluster, Self::Postgres, Self::PgBouncer];

    /// The name by which the kind is chosen.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::RedisCluster => "redis-cluster",
            Self::Postgres => "postgres",
            Self::PgBouncer => "pgbouncer",
        }
    }

    /// The environment variable that carries the URL.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Redis => "FLOWGATE_TEST_REDIS",
            Self::RedisCluster => "FLOWGATE_TEST_REDIS_CLUSTER",
            Self::Postgres => "FLOWGATE_TEST_POSTGRES",
            Self::PgBouncer => "FLOWGATE_TEST_PGBOUNCER",
        }
    }

    /// The programs that the kind consists of.
    pub fn tools(self) -> &'static [Tool] {
        const REDIS_SERVER: Tool = Tool { binary: "redis-server", packages: &["redis-server"] };
        const REDIS_CLI: Tool = Tool { binary: "redis-cli", packages: &["redis-tools"] };
        const SETPRIV: Tool = Tool { binary: "setpriv", packages: &["util-linux"] };
        const POSTGRES: Tool = Tool { binary: "postgres", packages: &["postgresql"] };
        const PSQL: Tool = Tool { binary: "psql", packages: &["postgresql"] };
        const PGBOUNCER: Tool = Tool { binary: "pgbouncer", packages: &["pgbouncer"] };
        match self {
            Self::Redis => &[REDIS_SERVER],
            Self::RedisCluster => &[REDIS_SERVER, REDIS_CLI],
            Self::Postgres => &[POSTGRES, PSQL, SETPRIV],
            Self::PgBouncer => &[POSTGRES, PSQL, SETPRIV, PGBOUNCER],
        }
    }
}

/// Servers that run. Dropping this ends precisely the processes that were started for it.
#[derive(Debug, Default)]
pub struct Running {
    variables: Variables,
    /// Held for their drop, which happens in this order: PgBouncer goes before its server.
    servers: Vec<Box<dyn PrivateServer>>,
}

impl Running {
    /// Starts the servers side by side; if one fails, the others are ended.
    pub fn start(kinds: &[Kind]) -> anyhow::Result<Self> {
        let wants = |kind| kinds.contains(&kind);
        let groups: [StartGroup; 3] = [start_redis, start_redis_cluster, start_postgres];
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                groups.into_iter().map(|group| scope.spawn(move || group(&wants))).collect();
            let ended: Vec<_> = threads
                .into_iter()
                .map(|thread| {
                    thread.join().unwrap_or_else(|_| Err(anyhow!("starting a server panicked")))
                })
                .collect();
            let mut running = Self::default();
            for group in ended {
                let group = group?;
                running.variables.extend(group.variables);
                running.servers.extend(group.servers);
            }
            Ok(running)
        })
    }

    /// Where the servers are.
    pub fn variables(&self) -> Variables {
        self.variables.clone()
    }

    fn add(&mut self, kind: Kind, server: &dyn PrivateServer) {
        self.variables.push((kind.variable().into(), server.url()));
    }
}

/// Starts those servers of a group that are wanted, one after the other.
type StartGroup = fn(&dyn Fn(Kind) -> bool) -> anyhow::Result<Running>;

fn start_redis(wants: &dyn Fn(Kind) -> bool) -> anyhow::Result<Running> {
    let mut running = Running::default();
    if wants(Kind::Redis) {
        let redis = Redis::start()?;
        running.add(Kind::Redis, &redis);
        running.servers.push(Box::new(redis));
    }
    Ok(running)
}

fn start_redis_cluster(wants: &dyn Fn(Kind) -> bool) -> anyhow::Result<Running> {
    let mut running = Running::default();
    if wants(Kind::RedisCluster) {
        let cluster = RedisCluster::start()?;
        running.add(Kind::RedisCluster, &cluster);
        running.servers.push(Box::new(cluster));
    }
    Ok(running)
}

fn start_postgres(wants: &dyn Fn(Kind) -> bool) -> anyhow::Result<Running> {
    let mut running = Running::default();
    if !wants(Kind::Postgres) && !wants(Kind::PgBouncer) {
        return Ok(running);
    }
    let postgres = Postgres::start()?;
    if wants(Kind::Postgres) {
        running.add(Kind::Postgres, &postgres);
    }
    if wants(Kind::PgBouncer) {
        let pgbouncer = PgBouncer::start(&postgres).context("in front of postgres")?;
        running.add(Kind::PgBouncer, &pgbouncer);
        running.servers.push(Box::new(pgbouncer));
    }
    running.servers.push(Box::new(postgres));
    Ok(running)
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use super::*;
    use crate::FaultProxy;

    fn check_taken_port(server: &mut dyn PrivateServer, address: SocketAddr) {
        server.kill().unwrap();
        let stranger = FaultProxy::start_on(TcpListener::bind(address).unwrap(), address).unwrap();
        // It hangs up on whoever looks whether it is ours.
        stranger.cut();
        let error = format!("{:#}", server.restart().unwrap_err());
        assert!(error.contains("again on port") && error.contains("already in use"), "{error}");
        drop(stranger);
        server.restart().unwrap();
    }

    #[test]
    fn every_server_says_that_its_port_is_taken_and_comes_back_when_it_is_free() {
        let mut redis = Redis::start().unwrap();
        let address = redis.address();
        check_taken_port(&mut redis, address);
        let mut postgres = Postgres::start().unwrap();
        let address = postgres.address();
        check_taken_port(&mut postgres, address);
        let mut pgbouncer = PgBouncer::start(&postgres).unwrap();
        let address = pgbouncer.address();
        check_taken_port(&mut pgbouncer, address);
    }

    #[test]
    fn a_command_is_told_of_the_servers_that_it_wants_and_of_no_other() {
        let running = Running::start(&[Kind::PgBouncer, Kind::Redis]).unwrap();
        let variables = running.variables();
        let names: Vec<_> = variables.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["FLOWGATE_TEST_REDIS", "FLOWGATE_TEST_PGBOUNCER"]);
        assert_eq!(running.servers.len(), 3, "pgbouncer brings its server");
        let pids: Vec<_> = running.servers.iter().flat_map(|server| server.pids()).collect();
        drop(running);
        assert!(pids.into_iter().all(|pid| crate::process::family(pid).is_empty()));
    }
}
