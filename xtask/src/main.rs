//! The chores of this workspace, run as `cargo xtask VERB`.
//!
//! One file per verb. Everything that CI does is here, so that `.ci/run` and a developer
//! run the same thing.

mod bench;
mod browser;
mod chaos;
mod clients;
mod crash;
mod launch;
mod load;
mod output;
mod packaging;
mod schemathesis;
mod services;
mod signals;
mod test;
mod tidy;
mod web;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "The chores of this workspace")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Check everything that CI checks, and stop at the first failure
    Test(test::TestArgs),
    /// List, install or run the tools and private servers that the tests need
    Services(services::ServicesArgs),
    /// Check the rules of this tree that no compiler knows
    Tidy(tidy::TidyArgs),
    /// Build the dashboard that the binary embeds
    Dist(web::DistArgs),
    /// Test the dashboard in a real browser against a real instance
    Browser(browser::BrowserArgs),
    /// Build the release binary and run its benchmark
    Bench(bench::BenchArgs),
    /// Build the release binary and run its crash test
    Crash(crash::CrashArgs),
    /// Put the release binary under slow, deaf and many clients, and measure
    Load(load::LoadArgs),
    /// Run instances on a private server under faults, and judge what is left
    Chaos(chaos::ChaosArgs),
    /// Check that the files in `deploy` fit the binary and the schemas of their formats
    Packaging(packaging::PackagingArgs),
    /// Check the types and run the tests of the clients in TypeScript and Python
    Clients(clients::ClientsArgs),
    /// Send requests made up from the description of the API to a real instance
    Schemathesis(schemathesis::SchemathesisArgs),
    /// Run one situation that must hold: fourth-instance, rolling-restart, outage
    Scenario(chaos::ChaosArgs),
    /// Deploy a flow again and again while it is under load and its drivers die, and judge
    DeployChaos(chaos::ChaosArgs),
}

fn main() -> ExitCode {
    match run(&Cli::parse().verb) {
        Ok(code) => code,
        Err(error) => {
            output::complain(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(verb: &Verb) -> anyhow::Result<ExitCode> {
    let workspace = Workspace::find()?;
    match verb {
        Verb::Test(args) => test::run(&workspace, args),
        Verb::Services(args) => services::run(&workspace, args),
        Verb::Tidy(args) => tidy::run(&workspace, args),
        Verb::Packaging(args) => packaging::run(&workspace, args),
        Verb::Browser(args) => browser::run(&workspace, args),
        Verb::Dist(args) => web::run(&workspace, args),
        Verb::Clients(args) => clients::run(&workspace, args),
        Verb::Schemathesis(args) => schemathesis::run(&workspace, args),
        Verb::Bench(args) => bench::run(&workspace, args),
        Verb::Crash(args) => crash::run(&workspace, args),
        Verb::Load(args) => load::run(&workspace, args),
        Verb::Chaos(args) => chaos::run(&workspace, "drive", args),
        Verb::DeployChaos(args) => chaos::run(&workspace, "deploys", args),
        Verb::Scenario(args) => chaos::run(&workspace, "scenario", args),
    }
}
