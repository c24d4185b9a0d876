//! Private servers and faults, for tests, benchmarks and the chores of the workspace.
//!
//! A **server** is started on a free port of the loopback interface, with a data folder of its
//! own that goes away with it, and is ended by its process id: a server that the machine runs for
//! itself is never used and never touched. A handle proves that the server which answers is its
//! own before it is handed out, and it can kill, pause and restart the server at any time.
//!
//! A test that starts a server by itself takes a handle: [`Redis::start`], [`RedisCluster::start`],
//! [`Postgres::start`], [`PgBouncer::start`], [`Mosquitto::start`]. A command that is given servers
//! from outside reads their URLs from the variables of [`Kind`], which [`Running`] provides.
//!
//! A [`FaultProxy`] stands between a client and a server, and breaks what goes through it.

#![warn(missing_docs)]

mod clock;
mod fault_proxy;
mod mosquitto;
#[cfg(feature = "mqtt")]
pub mod mqtt;
mod pgbouncer;
mod ports;
mod postgres;
mod process;
mod redis;
mod redis_cluster;
mod resp;
mod running;
mod site;
mod tool;

use std::time::Duration;

pub use self::clock::Stopwatch;
pub use self::fault_proxy::{Direction, Effects, FaultProxy};
pub use self::mosquitto::{BrokerTerms, Mosquitto};
pub use self::pgbouncer::PgBouncer;
pub use self::postgres::Postgres;
pub use self::redis::Redis;
pub use self::redis_cluster::RedisCluster;
pub use self::resp::Reply;
pub use self::running::{Kind, Running, Variables};
pub use self::tool::{Tool, find};

/// What can be done to every private server. Dropping it ends it and removes its data.
pub trait PrivateServer: Send + std::fmt::Debug {
    /// The URL by which a store finds the server; it stays the same over restarts.
    fn url(&self) -> String;

    /// The ids of all processes of the server, children included.
    fn pids(&self) -> Vec<u32>;

    /// The processor time that the server has used since it was first started, in user and system
    /// mode, children included. What a killed process used in its last moment is not in it.
    fn cpu_time(&self) -> Duration;

    /// Ends the server as a crash would: it gets no chance to finish or to write.
    fn kill(&mut self) -> anyhow::Result<()>;

    /// Ends the server in its own orderly way.
    fn stop(&mut self) -> anyhow::Result<()>;

    /// Halts every process of the server: its connections stay open, and nothing answers.
    fn pause(&mut self) -> anyhow::Result<()>;

    /// Lets a paused server go on.
    fn resume(&mut self) -> anyhow::Result<()>;

    /// Starts the server again on the same port with the same data, and waits until it is ready.
    /// A server that still runs is stopped before.
    fn restart(&mut self) -> anyhow::Result<()>;
}
