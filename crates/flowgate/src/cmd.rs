//! The command line: what it accepts, and which verb does what.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{Config, Flags, Origin};
use crate::failure::{Exit, Failure, Outcome};
use crate::logging;
use crate::output::{Color, Output};

mod audit;
mod bench;
mod checkpoints;
mod completions;
mod config;
mod crash_test;
mod dead;
mod demo;
mod deploy;
mod deploy_flow;
mod dev;
mod doctor;
mod flows;
mod hold;
mod instances;
mod openapi;
mod queues;
mod run;
pub(crate) mod runs;
mod schedules;
mod serve;
mod store;
mod subscribers;
mod tokens;
mod why;
mod worker;

const AFTER_HELP: &str = "\
Exit codes: 0 done, 1 the run failed, 2 wrong usage or invalid input, 3 store unreachable, \
4 not found, 5 refused, 130 stopped with Ctrl-C.

Data goes to stdout, everything else to stderr. With --json an error is one line of JSON on \
stderr: {\"error\": {\"code\", \"message\", \"path\", \"help\"}}.

Examples:
  flowgate run examples/order.yaml --input '{\"orderId\": 7}'
  flowgate dev
  flowgate runs list --status failed --since 1h
  flowgate why latest";

/// How long the process waits for what does not stop.
const SHUTDOWN_MAX: Duration = Duration::from_millis(500);

const STORE_HELP: &str = "Where runs live: sqlite:PATH, postgres://…, redis://…, \
                          redis-cluster://…, redis+sentinel://… or memory: [env: FLOWGATE_STORE] \
                          [default: sqlite:.flowgate/flowgate.db]";

const SERVER_HELP: &str = "Ask the instance at this address, such as http://127.0.0.1:7420, \
                           instead of the store [env: FLOWGATE_SERVER]";

const TOKEN_HELP: &str = "The token to show that instance [env: FLOWGATE_TOKEN]";

/// Runs flows: graphs of steps that subscribe to events and emit events.
#[derive(Debug, Parser)]
#[command(name = "flowgate", after_help = AFTER_HELP, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every verb understands.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
struct Global {
    #[arg(long, global = true, value_name = "URL", help = STORE_HELP)]
    store: Option<String>,
    #[arg(long, global = true, value_name = "URL", conflicts_with = "store", help = SERVER_HELP)]
    server: Option<String>,
    #[arg(long, global = true, value_name = "TOKEN", help = TOKEN_HELP)]
    token: Option<String>,
    /// Print data as JSON
    #[arg(long, global = true)]
    json: bool,
    /// Read settings from this file [default: flowgate.toml in the current folder, if it exists]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set any setting of `flowgate config show`
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = crate::input::pair)]
    set: Vec<(String, String)>,
    /// Log more: -v info, -vv debug, -vvv trace
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    /// Print data and errors only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    color: Color,
}

/// The verbs, in the order of the help.
#[derive(Debug, Subcommand)]
enum Command {
    /// Show flowgate at work, on a store that goes away with it
    Demo(demo::Args),
    /// Be the process that does the work of a demo
    #[command(hide = true)]
    DemoInstance(demo::instance::Args),
    /// Run a flow once, here, until it ends
    Run(run::Args),
    /// Serve the flows of a folder: run, watch and resume them
    Dev(dev::Args),
    /// Execute runs in a process that stays
    Worker(worker::Args),
    /// Serve the API and the dashboard of a store, and execute nothing
    Serve(serve::Args),
    /// Look at flows: list, show, validate, graph, diff, schema
    Flows(flows::Args),
    /// Replace a live flow without losing anything
    Deploy(deploy::Args),
    /// Replace a live flow, in one line
    DeployFlow(deploy_flow::Args),
    /// Look at runs that deployments have stopped
    Checkpoints(checkpoints::Args),
    /// Start, watch and steer runs
    Runs(runs::Args),
    /// Look at what came into flows and what came out of them
    Audit(audit::Args),
    /// Look at schedules and their occurrences, add and steer them
    Schedules(schedules::Args),
    /// Say why a run is not finished, or ended as it did
    Why(why::Args),
    /// Hold what starts of a flow, and let it go again
    Hold(hold::Args),
    /// Look at queues, pause and resume them, and limit them
    Queues(queues::Args),
    /// Look at failed runs that nobody has dealt with, try them again or drop them
    Dead(dead::Args),
    /// List the instances that work on the store
    Instances(instances::Args),
    /// Look at subscribers, and say where they go on
    Subscribers(subscribers::Args),
    /// Look at the store for what may cost runs, and say the remedy
    Doctor(doctor::Args),
    /// Copy a store to another one
    Store(store::Args),
    /// Measure how fast flows run here
    Bench(bench::Args),
    /// Kill a worker process again and again while runs go on, and check what is left
    #[command(hide = true)]
    CrashTest(crash_test::Args),
    /// Be the process that `crash-test` kills
    #[command(hide = true)]
    CrashWorker(crash_test::worker::Args),
    /// Show the settings and where they come from
    Config(config::Args),
    /// Make tokens for the API
    Tokens(tokens::Args),
    /// Print the `OpenAPI` description of the API
    Openapi(openapi::Args),
    /// Print completions for a shell
    Completions(completions::Args),
}

/// What every verb gets.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) config: Config,
    pub(crate) output: Output,
}

/// Reads the command line, does what it says and returns how that ended.
pub(crate) fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(exit) => return exit,
    };
    let Cli { global, command } = cli;
    let output = Output { json: global.json, quiet: global.quiet, color: global.color };
    let outcome = Config::load(&global.flags(&command)).and_then(|config| {
        logging::start(config.log);
        dispatch(App { config, output }, command)
    });
    match outcome {
        Ok(exit) => exit.into(),
        Err(failure) => {
            if failure.exit != Exit::Done {
                output.failure(&failure);
            }
            failure.exit.into()
        }
    }
}

fn dispatch(app: App, command: Command) -> Outcome {
    let is_here = matches!(
        command,
        Command::Run(_)
            | Command::Dev(_)
            | Command::Worker(_)
            | Command::Serve(_)
            | Command::Store(_)
            | Command::Bench(_)
    );
    if is_here && matches!(app.config.origin_of("server"), Origin::Flag(_)) {
        let message = "this verb does its work here, and asks no other instance";
        return Err(Failure::usage("server_unsupported", message)
            .help("leave out --server; `flowgate runs start` asks another instance")
            .path("--server"));
    }
    match command {
        Command::Demo(args) => block_on(demo::run(app, args)),
        Command::DemoInstance(args) => block_on(demo::instance::run(app, args)),
        Command::Run(args) => block_on(run::run(app, args)),
        Command::Dev(args) => block_on(dev::run(app, args)),
        Command::Worker(args) => block_on(worker::run(app, args)),
        Command::Flows(args) => block_on(flows::run(app, args)),
        Command::Deploy(args) => block_on(deploy::run(app, args)),
        Command::DeployFlow(args) => block_on(deploy_flow::run(app, args)),
        Command::Checkpoints(args) => block_on(checkpoints::run(app, args)),
        Command::Runs(args) => block_on(runs::run(app, args)),
        Command::Audit(args) => block_on(audit::run(app, args)),
        Command::Schedules(args) => block_on(schedules::run(app, args)),
        Command::Why(args) => block_on(why::run(app, args)),
        Command::Hold(args) => block_on(hold::run(app, args)),
        Command::Queues(args) => block_on(queues::run(app, args)),
        Command::Dead(args) => block_on(dead::run(app, args)),
        Command::Instances(args) => block_on(instances::run(app, args)),
        Command::Subscribers(args) => block_on(subscribers::run(app, args)),
        Command::Doctor(args) => block_on(doctor::run(app, args)),
        Command::Store(args) => block_on(store::run(app, args)),
        Command::Bench(args) => block_on(bench::run(app, args)),
        Command::CrashTest(args) => block_on(crash_test::run(app, args)),
        Command::CrashWorker(args) => block_on(crash_test::worker::run(app, args)),
        Command::Serve(args) => block_on(serve::run(app, args)),
        Command::Config(args) => config::run(&app, &args),
        Command::Tokens(args) => tokens::run(&app, &args),
        Command::Openapi(args) => openapi::run(&app, &args),
        Command::Completions(args) => completions::run(&app, &args),
    }
}

/// Waits for a verb on a runtime of its own.
fn block_on(verb: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Failure::new(Exit::Store, "runtime_failed", "cannot start threads").source(error)
    })?;
    let outcome = runtime.block_on(Box::pin(verb));
    // What a second Ctrl-C left behind is dropped here, and programs end with their attempts;
    // whatever still blocks a thread must not keep the process.
    runtime.shutdown_timeout(SHUTDOWN_MAX);
    outcome
}

impl Global {
    fn flags(&self, command: &Command) -> Flags {
        let mut values: Vec<_> =
            (self.set.iter()).map(|(key, value)| (key.clone(), value.clone(), "--set")).collect();
        if let Some(store) = &self.store {
            values.push(("store".to_owned(), store.clone(), "--store"));
        }
        let asked = [("server", &self.server, "--server"), ("token", &self.token, "--token")];
        for (key, value, flag) in asked {
            values.extend(value.clone().map(|value| (key.to_owned(), value, flag)));
        }
        let level = match (self.quiet, self.verbose) {
            (true, _) => Some("error"),
            (false, 0) => None,
            (false, 1) => Some("info"),
            (false, 2) => Some("debug"),
            (false, _) => Some("trace"),
        };
        let flag = if self.quiet { "-q" } else { "-v" };
        values.extend(level.map(|level| ("log".to_owned(), level.to_owned(), flag)));
        let concurrency =
            |n: Option<usize>| n.map(|n| ("concurrency", n.to_string(), "--concurrency"));
        let own: Vec<_> = match command {
            Command::Run(args) => concurrency(args.concurrency).into_iter().collect(),
            Command::Demo(args) => {
                let listen = args.listen.clone().map(|address| ("listen", address, "--listen"));
                listen.into_iter().collect()
            }
            Command::Serve(args) => {
                let listen = args.listen.clone().map(|address| ("listen", address, "--listen"));
                listen.into_iter().collect()
            }
            Command::Dev(args) => {
                let listen = args.listen.clone().map(|address| ("listen", address, "--listen"));
                concurrency(args.concurrency).into_iter().chain(listen).collect()
            }
            Command::Worker(args) => {
                let worker::Verb::Start(args) = &args.verb;
                args.settings()
            }
            Command::DemoInstance(_)
            | Command::Flows(_)
            | Command::Deploy(_)
            | Command::Checkpoints(_)
            | Command::DeployFlow(_)
            | Command::Runs(_)
            | Command::Audit(_)
            | Command::Schedules(_)
            | Command::Why(_)
            | Command::Hold(_)
            | Command::Queues(_)
            | Command::Dead(_)
            | Command::Instances(_)
            | Command::Subscribers(_)
            | Command::Doctor(_)
            | Command::Store(_)
            | Command::Bench(_)
            | Command::CrashTest(_)
            | Command::CrashWorker(_)
            | Command::Config(_)
            | Command::Tokens(_)
            | Command::Openapi(_)
            | Command::Completions(_) => Vec::new(),
        };
        values.extend(own.into_iter().map(|(key, value, flag)| (key.to_owned(), value, flag)));
        Flags { values, file: self.config.clone() }
    }
}

/// The whole command line, with the versions that this program was built with.
fn command() -> clap::Command {
    static VERSION: OnceLock<String> = OnceLock::new();
    let version = VERSION
        .get_or_init(|| format!("{} (SQLite {})", env!("CARGO_PKG_VERSION"), rusqlite::version()));
    Cli::command().version(version.as_str())
}

fn parse() -> Result<Cli, ExitCode> {
    let matches = command().try_get_matches();
    matches.and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches)).map_err(|error| {
        let wants_json = std::env::args_os().any(|argument| argument == "--json");
        if error.use_stderr() && wants_json {
            let text = error.render().to_string();
            let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            let failure = Failure::usage("usage", message).help("see `flowgate --help`");
            Output { json: true, ..Output::default() }.failure(&failure);
            return Exit::Usage.into();
        }
        // Whoever closed the pipe does not want to read the help.
        drop(error.print());
        if error.use_stderr() { Exit::Usage.into() } else { Exit::Done.into() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }
}
