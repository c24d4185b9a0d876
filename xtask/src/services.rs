//! `cargo xtask services`: the tools and private servers that the tests need.
//!
//! A **tool** is a program that some test calls; `install` gets it from Debian.
//! A **server** is a program that the tests talk to: flowgate-testbed starts each on loopback,
//! with a data folder of its own, and ends it. The tests learn the URL from an environment
//! variable.
//!
//! To add a server, add a kind to flowgate-testbed.

mod packages;
mod pypi;

use std::ffi::OsString;
use std::io::Read;
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};
use flowgate_testbed::{Kind, Running, Tool, find};

use crate::workspace::{Workspace, exit_code, run_to_end};
use crate::{output, signals};

pub(crate) use self::packages::{install, install_packages};
pub(crate) use self::pypi::{install_from_pypi, target_folder};

/// Every program that a test calls and that is no server which a command is given.
const TOOLS: &[Tool] = &[
    Tool { binary: "cc", packages: &["gcc", "libc6-dev"] },
    Tool { binary: "python3", packages: &["python3"] },
    Tool { binary: "ps", packages: &["procps"] },
    Tool { binary: "openssl", packages: &["openssl"] },
    Tool { binary: "mosquitto", packages: &["mosquitto"] },
];

#[derive(Debug, Args)]
pub(crate) struct ServicesArgs {
    #[command(subcommand)]
    verb: Option<ServicesVerb>,
}

#[derive(Debug, Subcommand)]
enum ServicesVerb {
    /// Name what is known, and whether it is installed (the default)
    List,
    /// Install what is missing
    Install,
    /// Run a command while the private servers run
    #[command(alias = "start")]
    With {
        #[command(flatten)]
        chosen: Chosen,
        /// The command and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
    /// Run the private servers, and print their variables, until Ctrl-C or the end of stdin
    Up {
        #[command(flatten)]
        chosen: Chosen,
    },
}

#[derive(Debug, Args)]
struct Chosen {
    /// Start only these servers
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SERVER")]
    only: Vec<Server>,
}

/// A kind of server, as an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Server(Kind);

/// Every server that a test talks to.
const SERVERS: &[Server] = &[
    Server(Kind::Redis),
    Server(Kind::RedisCluster),
    Server(Kind::Postgres),
    Server(Kind::PgBouncer),
];

impl ValueEnum for Server {
    fn value_variants<'a>() -> &'a [Self] {
        SERVERS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()))
    }
}

impl Chosen {
    fn kinds(&self) -> Vec<Kind> {
        self.only.iter().map(|server| server.0).collect()
    }
}

pub(crate) fn run(workspace: &Workspace, args: &ServicesArgs) -> anyhow::Result<ExitCode> {
    match &args.verb {
        None | Some(ServicesVerb::List) => {
            list();
            Ok(ExitCode::SUCCESS)
        }
        Some(ServicesVerb::Install) => {
            install(&needed())?;
            Ok(ExitCode::SUCCESS)
        }
        Some(ServicesVerb::With { chosen, command }) => with(workspace, &chosen.kinds(), command),
        Some(ServicesVerb::Up { chosen }) => up(&chosen.kinds()),
    }
}

/// The tools and the programs of the servers.
pub(crate) fn needed() -> Vec<Tool> {
    let mut tools = TOOLS.to_vec();
    for tool in Kind::ALL.iter().flat_map(|kind| kind.tools()) {
        if !tools.contains(tool) {
            tools.push(*tool);
        }
    }
    tools
}

/// Starts these servers, or every server if none is named; dropping the result ends them.
pub(crate) fn start(only: &[Kind]) -> anyhow::Result<Running> {
    Running::start(if only.is_empty() { Kind::ALL } else { only })
}

fn with(workspace: &Workspace, only: &[Kind], command: &[OsString]) -> anyhow::Result<ExitCode> {
    let Some((program, args)) = command.split_first() else {
        anyhow::bail!("there is no command to run");
    };
    signals::hold()?;
    install(&needed())?;
    let servers = start(only)?;
    let mut command = Command::new(program);
    command.args(args).envs(servers.variables()).current_dir(&workspace.root);
    run_to_end(&mut command).map(exit_code)
}

fn up(only: &[Kind]) -> anyhow::Result<ExitCode> {
    let (ended, end) = signals::hold()?;
    install(&needed())?;
    let servers = start(only)?;
    for (name, value) in servers.variables() {
        output::say(&format!("export {name}={value}"));
    }
    std::thread::spawn(move || {
        // An unreadable stdin is one that has ended.
        std::io::stdin().lock().read_to_end(&mut Vec::new()).unwrap_or_default();
        ended.send(()).unwrap_or_default();
    });
    end.recv().context("waiting for a signal or the end of stdin")?;
    drop(servers);
    Ok(ExitCode::SUCCESS)
}

fn list() {
    for tool in needed() {
        let place =
            find(tool.binary).map_or_else(|| "missing".into(), |path| path.display().to_string());
        output::say(&format!("{:<14} {:<18} {place}", tool.binary, tool.packages.join(" ")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_server_can_be_chosen_and_its_programs_are_installed() {
        let kinds: Vec<_> = SERVERS.iter().map(|server| server.0).collect();
        assert_eq!(kinds, Kind::ALL);
        for server in SERVERS {
            assert_eq!(Server::from_str(server.0.name(), false), Ok(*server));
            assert!(server.0.tools().iter().all(|tool| needed().contains(tool)));
        }
    }
}
