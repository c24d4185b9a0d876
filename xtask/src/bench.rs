//! `cargo xtask bench`: the benchmark of the release binary, on private servers where a store
//! needs one, and beside the peers that are named.

mod peers;
mod workers;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use flowgate_testbed::{Kind, Running};

use self::peers::Peer;
use self::workers::Language;
use crate::workspace::{Workspace, exit_code};
use crate::{launch, services, signals};

/// The verb of the binary that does the work.
pub(crate) const VERB: &str = "bench";

/// The short form, a stage of `cargo xtask test`.
pub(crate) const SHORT_FORM: &[&str] = &["--quick"];

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Measure these stores only; without, the embedded ones are measured
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND")]
    store: Vec<StoreKind>,
    /// Measure these peers, too, on the same kind of server, and compare
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PEER")]
    peers: Vec<Peer>,
    /// Measure one remote worker in each of these languages, or in all, and nothing else
    #[arg(long, value_enum, value_delimiter = ',', num_args = 0..=1, value_name = "LANGUAGE")]
    #[arg(default_missing_value = "typescript,python")]
    #[arg(conflicts_with_all = ["store", "peers", "json", "check"])]
    workers: Vec<Language>,
    /// Fewer runs: rough figures
    #[arg(long)]
    quick: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Fail if a promised ratio is missed
    #[arg(long)]
    check: bool,
}

/// A store, as the binary calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StoreKind {
    Memory,
    Sqlite,
    Redis,
    Postgres,
}

impl StoreKind {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
        }
    }

    /// The server that it needs.
    fn server(self) -> Option<Kind> {
        match self {
            Self::Memory | Self::Sqlite => None,
            Self::Redis => Some(Kind::Redis),
            Self::Postgres => Some(Kind::Postgres),
        }
    }
}

pub(crate) fn run(workspace: &Workspace, args: &BenchArgs) -> anyhow::Result<ExitCode> {
    signals::hold()?;
    // First, so that nothing is built between two measurements.
    let binary = launch::build(workspace, "flowgate")?;
    if !args.workers.is_empty() {
        workers::measure(workspace, &binary, &args.workers, args.quick)?;
        return Ok(ExitCode::SUCCESS);
    }
    let figures = match &*args.peers {
        [] => None,
        peers => Some(peers::measure(workspace, &binary, peers, args.quick)?),
    };
    let servers: Vec<Kind> = args.store.iter().filter_map(|store| store.server()).collect();
    let running = match &*servers {
        [] => None,
        servers => Some(services::start(servers)?),
    };
    let variables = running.as_ref().map(Running::variables).unwrap_or_default();
    let args = args.for_binary(figures.as_deref());
    launch::run(workspace, &binary, VERB, &args, &variables).map(exit_code)
}

impl BenchArgs {
    /// The arguments of the binary, which compares with the figures of peers in a file.
    fn for_binary(&self, figures: Option<&Path>) -> Vec<OsString> {
        let mut args: Vec<OsString> = Vec::new();
        for store in &self.store {
            args.extend(["--on".into(), store.name().into()]);
        }
        if let Some(file) = figures {
            args.extend(["--peers".into(), file.into()]);
        }
        for (is_set, flag) in
            [(self.quick, "--quick"), (self.json, "--json"), (self.check, "--check")]
        {
            if is_set {
                args.push(flag.into());
            }
        }
        args
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        bench: BenchArgs,
    }

    #[test]
    fn the_binary_is_told_what_to_measure() {
        let cli = Cli::parse_from(["bench", "--store", "redis,postgres", "--quick", "--check"]);
        let expected = ["--on", "redis", "--on", "postgres", "--quick", "--check"];
        assert_eq!(cli.bench.for_binary(None), expected);
        let cli = Cli::parse_from(["bench", "--peers", "bullmq,pg-boss", "--json"]);
        assert_eq!(cli.bench.peers, [Peer::Bullmq, Peer::PgBoss]);
        let with_figures = cli.bench.for_binary(Some(Path::new("f")));
        assert_eq!(with_figures, ["--peers", "f", "--json"]);
    }

    #[test]
    fn workers_of_all_languages_are_measured_unless_one_is_named() {
        let workers = |args: &[&str]| Cli::parse_from([&["bench"], args].concat()).bench.workers;
        assert_eq!(workers(&["--quick"]), []);
        assert_eq!(workers(&["--workers", "--quick"]), Language::value_variants());
        assert_eq!(workers(&["--workers", "python"]), [Language::Python]);
    }

    #[test]
    fn a_store_is_chosen_by_the_name_that_the_binary_knows() {
        for store in StoreKind::value_variants() {
            assert_eq!(StoreKind::from_str(store.name(), false), Ok(*store));
        }
    }
}
