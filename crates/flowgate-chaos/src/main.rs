//! Chaos: real instances on a real server, faults of many kinds, and a judge.
//!
//! The driver starts a private server, a sink for effects and a number of instances, each behind a
//! proxy of its own. While it starts runs through the instances it injects faults. Then it heals
//! everything, waits until every run has ended, and judges what is left:
//!
//! ```text
//!            start, read                    commits, claims
//!   driver ──────────────▶ instance 1..n ──▶ proxy 1..n ──▶ server
//!     │ ledger                 │ effects                      ▲
//!     │                        ▼                              │
//!     │                       sink (its own process)          │ kill, stop, restart,
//!     └── faults ────────────────────────────────────────────┘ cut, swallow, clock
//! ```
//!
//! The judge trusts nothing that the engine says of itself: it reads the log, the driver's ledger
//! of what was acknowledged, and the sink's file of what was really done.

mod cluster;
mod deploys;
mod doom;
mod drive;
mod faults;
mod flows;
mod instance;
mod judge;
mod ledger;
mod plant;
mod report;
mod scenario;
mod server;
mod sink;
mod tally;

use std::process::ExitCode;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "flowgate-chaos", about = "Faults under load, and a judge of what is left")]
enum Cli {
    /// Run instances under faults and judge the log
    Drive(drive::Args),
    /// One of the situations that must hold, with real processes
    Scenario(scenario::Args),
    /// Deployments of a flow that is under load, with faults
    Deploys(deploys::Args),
    /// Be one instance; its commands come on standard input
    #[command(hide = true)]
    Instance(instance::Args),
    /// Be the sink of effects
    #[command(hide = true)]
    Sink(sink::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse() {
        Cli::Drive(args) => drive::run(&args),
        Cli::Scenario(args) => scenario::run(&args),
        Cli::Deploys(args) => deploys::run(&args),
        Cli::Instance(args) => instance::run(&args).map(|()| ExitCode::SUCCESS),
        Cli::Sink(args) => sink::run(&args).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        report::complain(&format!("error: {error:#}"));
        ExitCode::from(2)
    })
}
