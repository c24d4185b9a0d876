//! A private PgBouncer.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use crate::process::Signal;
use crate::site::{Endings, Site};
use crate::{Postgres, PrivateServer, postgres, tool};

const ENDINGS: Endings = Endings { stop: Signal::Terminate, kill: Signal::Kill };

/// A PgBouncer of our own in transaction mode, in front of a [`Postgres`] that it does not hold:
/// whoever started both decides which of them fails.
#[derive(Debug)]
pub struct PgBouncer {
    site: Site,
    port: u16,
    /// Where the server behind it listens.
    server: SocketAddr,
    /// Where the server behind it has its data.
    data: PathBuf,
}

impl PgBouncer {
    /// Starts in front of a server, and waits until a session gets through to it.
    pub fn start(postgres: &Postgres) -> anyhow::Result<Self> {
        Self::start_before(postgres.address(), postgres.data()).context("starting pgbouncer")
    }

    fn start_before(server: SocketAddr, data: PathBuf) -> anyhow::Result<Self> {
        let mut site = Site::new("pgbouncer", ENDINGS)?;
        postgres::give_to_system_user(site.folder())?;
        let [port] = site.start_on_free_ports(
            |site, [port]| command(site, port, server),
            |_, [port]| postgres::serves(port, &data),
        )?;
        Ok(Self { site, port, server, data })
    }

    /// Where PgBouncer listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// What the server behind it answers to one statement, a row a line, without a header.
    pub fn ask(&self, sql: &str) -> anyhow::Result<String> {
        postgres::ask(self.port, sql)
    }
}

impl PrivateServer for PgBouncer {
    fn url(&self) -> String {
        postgres::url(self.address())
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
        let (port, server, data) = (self.port, self.server, &self.data);
        self.site
            .start_again(|site| command(site, port, server), |_| postgres::serves(port, data))
            .with_context(|| format!("starting pgbouncer again on port {}", self.port))
    }
}

fn command(site: &Site, port: u16, server: SocketAddr) -> anyhow::Result<Command> {
    let users = site.folder().join("users.txt");
    std::fs::write(&users, "\"postgres\" \"\"\n").context("writing the users of pgbouncer")?;
    let settings = site.folder().join("pgbouncer.ini");
    std::fs::write(&settings, settings_for(port, server, &users.display().to_string()))
        .context("writing the settings of pgbouncer")?;
    let mut command = postgres::as_system_user(&tool::require("pgbouncer")?)?;
    command.arg(settings).current_dir(site.folder());
    Ok(command)
}

fn settings_for(port: u16, server: SocketAddr, users: &str) -> String {
    let (server_ip, server_port) = (server.ip(), server.port());
    format!(
        "[databases]
* = host={server_ip} port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
admin_users = postgres
pool_mode = transaction
max_client_conn = 1000
default_pool_size = 20
ignore_startup_parameters = extra_float_digits,options
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_get_through_to_our_server_and_outlive_faults() {
        let mut postgres = Postgres::start().unwrap();
        let mut pgbouncer = PgBouncer::start(&postgres).unwrap();
        assert_ne!(pgbouncer.url(), postgres.url());
        pgbouncer.ask("create table kept as select 7 as seven").unwrap();

        pgbouncer.kill().unwrap();
        pgbouncer.ask("select 1").unwrap_err();
        pgbouncer.restart().unwrap();
        assert_eq!(pgbouncer.ask("select seven from kept").unwrap(), "7");

        pgbouncer.pause().unwrap();
        pgbouncer.ask("select 1").unwrap_err();
        pgbouncer.resume().unwrap();
        assert_eq!(pgbouncer.ask("select 1").unwrap(), "1");

        postgres.kill().unwrap();
        postgres.restart().unwrap();
        pgbouncer.restart().unwrap();
        assert_eq!(pgbouncer.ask("select seven from kept").unwrap(), "7");
    }

    #[test]
    fn the_pool_is_shared_by_transaction() {
        let postgres = Postgres::start().unwrap();
        let pgbouncer = PgBouncer::start(&postgres).unwrap();
        let mut show = Command::new(tool::require_postgres("psql").unwrap());
        let port = pgbouncer.port.to_string();
        show.args(["-X", "-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-d", "pgbouncer"]);
        let output = show.args(["-At", "-c", "show config"]).output().unwrap();
        let config = String::from_utf8_lossy(&output.stdout);
        for expected in ["pool_mode|transaction", "max_client_conn|1000", "default_pool_size|20"] {
            assert!(config.lines().any(|line| line.starts_with(expected)), "{expected}: {config}");
        }
    }
}
