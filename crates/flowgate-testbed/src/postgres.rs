//! A private PostgreSQL.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::process::Signal;
use crate::site::{Endings, Site};
use crate::{PrivateServer, tool};

/// The user that Debian runs PostgreSQL and PgBouncer as; both refuse to run as root.
const SYSTEM_USER: &str = "postgres";

/// A fast shutdown ends sessions instead of waiting for them. A crash is an immediate shutdown,
/// as by `pg_ctl stop -m immediate`: a postmaster that is killed outright would leave its children
/// and its shared memory behind.
const ENDINGS: Endings = Endings { stop: Signal::Interrupt, kill: Signal::Quit };

/// A PostgreSQL of our own, with a database and a superuser `postgres` that needs no password.
#[derive(Debug)]
pub struct Postgres {
    site: Site,
    port: u16,
}

impl Postgres {
    /// Makes a database cluster, starts its server, and waits until it is ready.
    pub fn start() -> anyhow::Result<Self> {
        Self::start_in_new_folder().context("starting postgres")
    }

    fn start_in_new_folder() -> anyhow::Result<Self> {
        let mut site = Site::new("postgres", ENDINGS)?;
        give_to_system_user(site.folder())?;
        initdb(&site)?;
        let [port] = site.start_on_free_ports(
            |site, [port]| command(site, port),
            |site, [port]| is_ours_and_ready(site, port),
        )?;
        Ok(Self { site, port })
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// What the server answers to one statement, a row a line, without a header.
    pub fn ask(&self, sql: &str) -> anyhow::Result<String> {
        ask(self.port, sql)
    }

    /// The folder of the server's data.
    pub(crate) fn data(&self) -> PathBuf {
        data(&self.site)
    }
}

impl PrivateServer for Postgres {
    fn url(&self) -> String {
        url(self.address())
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
        let port = self.port;
        self.site
            .start_again(|site| command(site, port), |site| is_ours_and_ready(site, port))
            .with_context(|| format!("starting postgres again on port {port}"))
    }
}

pub(crate) fn url(address: SocketAddr) -> String {
    format!("postgres://postgres@{address}/postgres")
}

/// A command that runs as the system user of PostgreSQL if we are root, and as ourselves if not.
pub(crate) fn as_system_user(program: &Path) -> anyhow::Result<Command> {
    if !is_root() {
        return Ok(Command::new(program));
    }
    // It becomes the program, so that the process we start is the server itself.
    let mut command = Command::new(tool::require("setpriv")?);
    command.arg(format!("--reuid={SYSTEM_USER}")).arg(format!("--regid={SYSTEM_USER}"));
    command.args(["--init-groups", "--"]).arg(program);
    Ok(command)
}

/// Lets the system user of PostgreSQL write to the folder, if we are root.
pub(crate) fn give_to_system_user(folder: &Path) -> anyhow::Result<()> {
    if !is_root() {
        return Ok(());
    }
    let users = std::fs::read_to_string("/etc/passwd").context("reading the users")?;
    let (uid, gid) = ids_of(SYSTEM_USER, &users)
        .with_context(|| format!("there is no user {SYSTEM_USER}: is PostgreSQL installed?"))?;
    chown(folder, Some(uid), Some(gid)).context("giving a data folder away")
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|data| data.uid() == 0)
}

fn ids_of(user: &str, users: &str) -> Option<(u32, u32)> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_user = fields.next() == Some(user);
        let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        is_user.then_some((uid, gid))
    })
}

/// What the server on this port answers to one statement.
pub(crate) fn ask(port: u16, sql: &str) -> anyhow::Result<String> {
    let mut command = Command::new(tool::require_postgres("psql")?);
    let port = port.to_string();
    command.args(["-X", "-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-d", "postgres"]);
    command.args(["-v", "ON_ERROR_STOP=1", "-At", "-c", sql]).env("PGCONNECT_TIMEOUT", "2");
    let output = without_settings(&mut command).output().context("starting psql")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "psql failed: {}", errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Keeps what the environment says about other servers from a client.
fn without_settings(command: &mut Command) -> &mut Command {
    for name in ["PGSERVICE", "PGOPTIONS", "PGHOSTADDR", "PGSSLMODE", "PGPASSWORD", "PGPASSFILE"] {
        command.env_remove(name);
    }
    command
}

fn data(site: &Site) -> PathBuf {
    site.folder().join("data")
}

fn initdb(site: &Site) -> anyhow::Result<()> {
    let mut command = as_system_user(&tool::require_postgres("initdb")?)?;
    command.arg("--pgdata").arg(data(site)).args(["--username", "postgres", "--auth", "trust"]);
    command.args(["--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions"]);
    command.current_dir(site.folder());
    let output = command.output().context("starting initdb")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "initdb failed: {}", errors.trim());
    Ok(())
}

fn command(site: &Site, port: u16) -> anyhow::Result<Command> {
    let mut command = as_system_user(&tool::require_postgres("postgres")?)?;
    command.arg("-D").arg(data(site)).args(["-p", &port.to_string()]);
    command.arg("-k").arg(site.folder());
    for setting in [
        "listen_addresses=127.0.0.1",
        "fsync=on",
        "max_connections=300",
        "shared_buffers=128MB",
        "logging_collector=off",
    ] {
        command.args(["-c", setting]);
    }
    command.current_dir(site.folder());
    Ok(command)
}

/// Whether the server of this site answers on this port, and not somebody else.
fn is_ours_and_ready(site: &Site, port: u16) -> bool {
    accepts_sessions(port) && serves(port, &data(site))
}

/// Whether the server on this port, or behind it, has its data in this folder.
pub(crate) fn serves(port: u16, data: &Path) -> bool {
    let folder = ask(port, "show data_directory").ok().map(PathBuf::from);
    folder.is_some_and(|folder| folder.canonicalize().ok() == data.canonicalize().ok())
}

fn accepts_sessions(port: u16) -> bool {
    let Ok(program) = tool::require_postgres("pg_isready") else { return false };
    let mut command = Command::new(program);
    command.args(["-q", "-h", "127.0.0.1", "-p", &port.to_string(), "-t", "2"]);
    let status = without_settings(&mut command).stdout(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_outlives_a_kill() {
        let mut postgres = Postgres::start().unwrap();
        let url = postgres.url();
        postgres.ask("create table kept as select 7 as seven").unwrap();
        postgres.kill().unwrap();
        assert!(postgres.pids().is_empty());
        postgres.ask("select 1").unwrap_err();
        postgres.restart().unwrap();
        assert_eq!(postgres.ask("select seven from kept").unwrap(), "7");
        assert_eq!(postgres.url(), url);
        assert!(postgres.cpu_time() > Duration::ZERO);
    }

    #[test]
    fn a_paused_postgres_halts_with_all_its_children_until_it_goes_on() {
        let mut postgres = Postgres::start().unwrap();
        let pids = postgres.pids();
        assert!(pids.len() > 1, "a postmaster has children: {pids:?}");
        postgres.pause().unwrap();
        assert!(postgres.pids().into_iter().all(crate::process::is_halted));
        assert!(!accepts_sessions(postgres.port));
        postgres.resume().unwrap();
        assert_eq!(postgres.ask("select 1").unwrap(), "1");
        postgres.pause().unwrap();
        postgres.kill().unwrap();
        postgres.restart().unwrap();
        assert_eq!(postgres.ask("select 1").unwrap(), "1");
    }

    #[test]
    fn a_stranger_on_the_port_does_not_pass_for_ours() {
        let stranger = Postgres::start().unwrap();
        let ours = Postgres::start().unwrap();
        assert!(is_ours_and_ready(&ours.site, ours.port));
        assert!(!is_ours_and_ready(&ours.site, stranger.port));
    }

    #[test]
    fn a_postgres_is_set_up_to_keep_what_it_is_told() {
        let postgres = Postgres::start().unwrap();
        for (setting, expected) in [
            ("fsync", "on"),
            ("synchronous_commit", "on"),
            ("max_connections", "300"),
            ("shared_buffers", "128MB"),
            ("listen_addresses", "127.0.0.1"),
        ] {
            assert_eq!(postgres.ask(&format!("show {setting}")).unwrap(), expected);
        }
    }

    #[test]
    fn the_ids_of_a_user_are_read_by_its_whole_name() {
        let users = "postgres2:x:1:2::/:/bin/sh\npostgres:x:103:110:a,b:/var:/bin/sh\n";
        assert_eq!(ids_of("postgres", users), Some((103, 110)));
        assert_eq!(ids_of("nobody", users), None);
    }
}
