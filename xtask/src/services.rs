//! `cargo xtask services`: the tools and private servers that the tests need.
//!
//! A **tool** is a program that some test calls; `install` gets it from Debian.
//! A **server** is a program that the tests talk to. Each is started on a free port of the
//! loopback interface, with a data folder of its own that goes away with it, and is ended by
//! its process id: a server that the machine runs for itself is never used and never touched.
//! The tests learn the address from an environment variable.
//!
//! To add a server, add one entry to [`SERVERS`].

mod packages;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the servers come with the stores that need them; tests use all")
)]
mod private;

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use clap::{Args, Subcommand};

use self::packages::Tool;
use self::private::{Running, Server};
use crate::output;
use crate::workspace::{Workspace, exit_code, run_to_end};

pub(crate) use self::packages::install;
pub(crate) use self::private::Variables;

/// Every program that a test calls and that is not one of [`SERVERS`].
const TOOLS: &[Tool] = &[
    Tool { binary: "cc", packages: &["gcc", "libc6-dev"] },
    Tool { binary: "python3", packages: &["python3"] },
    Tool { binary: "ps", packages: &["procps"] },
];

/// Every server that a test talks to.
const SERVERS: &[Server] = &[];

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
        /// The command and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
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
        Some(ServicesVerb::With { command }) => with(workspace, command),
    }
}

/// The tools and the programs of the servers.
pub(crate) fn needed() -> Vec<Tool> {
    let servers = SERVERS.iter().map(|server| server.tool);
    TOOLS.iter().copied().chain(servers).collect()
}

/// Starts every server; dropping the result ends them.
pub(crate) fn start_all() -> anyhow::Result<Running> {
    Running::start(SERVERS)
}

fn with(workspace: &Workspace, command: &[OsString]) -> anyhow::Result<ExitCode> {
    let Some((program, args)) = command.split_first() else {
        anyhow::bail!("there is no command to run");
    };
    install(&needed())?;
    let servers = start_all()?;
    let mut command = Command::new(program);
    command.args(args).envs(servers.variables()).current_dir(&workspace.root);
    run_to_end(&mut command).map(exit_code)
}

fn list() {
    for tool in needed() {
        let found = packages::find(tool.binary);
        let place = found.map_or_else(|| "missing".into(), |path| path.display().to_string());
        output::say(&format!("{:<14} {:<18} {place}", tool.binary, tool.packages.join(" ")));
    }
}
