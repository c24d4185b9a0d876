//! `cargo xtask test`: every check that CI makes, in order, up to the first failure.

use std::ffi::OsString;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use flowgate_testbed::{Stopwatch, Variables};

use crate::services;
use crate::workspace::{Workspace, run_to_end};
use crate::{
    bench, browser, chaos, clients, crash, launch, load, output, packaging, schemathesis, signals,
    tidy, web,
};

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Run only this stage; may be given more than once
    #[arg(long, value_enum, value_name = "STAGE")]
    only: Vec<Stage>,
    /// Name the stages and run none
    #[arg(long)]
    list: bool,
}

/// One check of CI. The order of the variants is the order of the stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Stage {
    Fmt,
    Clippy,
    Tidy,
    Clients,
    Nextest,
    Doctests,
    Docs,
    Packaging,
    Api,
    Web,
    Browser,
    Crash,
    Chaos,
    Bench,
    Load,
}

/// How a sequence of stages ended.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed { stage: Stage, code: Option<i32> },
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Clippy => "clippy",
            Self::Tidy => "tidy",
            Self::Clients => "clients",
            Self::Nextest => "nextest",
            Self::Doctests => "doctests",
            Self::Docs => "docs",
            Self::Packaging => "packaging",
            Self::Api => "api",
            Self::Web => "web",
            Self::Browser => "browser",
            Self::Crash => "crash",
            Self::Chaos => "chaos",
            Self::Bench => "bench",
            Self::Load => "load",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Fmt => "the source is formatted",
            Self::Clippy => "no lint fires, in any target with any feature",
            Self::Tidy => "the rules that no compiler knows hold",
            Self::Clients => "the clients in TypeScript and Python pass their own tests",
            Self::Nextest => "the tests pass",
            Self::Doctests => "the examples in the documentation run",
            Self::Docs => "the documentation builds without a warning",
            Self::Packaging => "the files in deploy fit the binary and the schemas",
            Self::Api => "the API answers whatever is sent to it, and as it is described",
            Self::Web => "the dashboard passes its tests, and the one that is embedded is in step",
            Self::Browser => "the dashboard does in a real browser what it should",
            Self::Crash => "no run is lost when the process is killed (short form)",
            Self::Chaos => "instances under faults lose and double nothing (short form)",
            Self::Bench => "the benchmark runs (short form)",
            Self::Load => "slow and deaf clients harm nobody (short form)",
        }
    }
}

pub(crate) fn run(workspace: &Workspace, args: &TestArgs) -> anyhow::Result<ExitCode> {
    let stages = chosen(&args.only);
    if args.list {
        for stage in stages {
            output::say(&format!("{:<9} {}", stage.name(), stage.about()));
        }
        return Ok(ExitCode::SUCCESS);
    }
    signals::hold()?;
    services::install(&services::needed())?;
    let servers = services::start(&[])?;
    let whole = Stopwatch::start();
    let outcome = run_stages(&stages, |stage| {
        output::complain(&format!("== {}: {}", stage.name(), stage.about()));
        let watch = Stopwatch::start();
        let code = run_stage(workspace, stage, &servers.variables())?;
        output::complain(&format!("== {}: {}", stage.name(), seconds(watch.elapsed())));
        Ok(code)
    })?;
    match outcome {
        Outcome::Passed => {
            let count = stages.len();
            let elapsed = seconds(whole.elapsed());
            output::complain(&format!("== all {count} stages passed in {elapsed}"));
            Ok(ExitCode::SUCCESS)
        }
        Outcome::Failed { stage, code } => {
            let code =
                code.map_or_else(|| "ended by a signal".into(), |c| format!("exit code {c}"));
            output::complain(&format!("== stage {} failed: {code}", stage.name()));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// The stages to run, always in the order of CI.
fn chosen(only: &[Stage]) -> Vec<Stage> {
    let all = Stage::value_variants().iter().copied();
    all.filter(|stage| only.is_empty() || only.contains(stage)).collect()
}

fn run_stages(
    stages: &[Stage],
    mut run: impl FnMut(Stage) -> anyhow::Result<Option<i32>>,
) -> anyhow::Result<Outcome> {
    for &stage in stages {
        let code = run(stage).with_context(|| format!("stage {} failed", stage.name()))?;
        if code != Some(0) {
            return Ok(Outcome::Failed { stage, code });
        }
    }
    Ok(Outcome::Passed)
}

/// Runs one stage to its end; the code is missing if a signal ended it.
fn run_stage(
    workspace: &Workspace,
    stage: Stage,
    variables: &Variables,
) -> anyhow::Result<Option<i32>> {
    let mut command = match stage {
        Stage::Fmt => workspace.cargo(&["fmt", "--all", "--check"]),
        Stage::Clippy => workspace.cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--locked",
            "--",
            "-D",
            "warnings",
        ]),
        Stage::Tidy => {
            let findings = tidy::check(&workspace.root)?;
            return Ok(Some(i32::from(tidy::report(&findings) > 0)));
        }
        Stage::Nextest => {
            install_nextest(workspace)?;
            clients::build(workspace)?;
            workspace.cargo(&["nextest", "run", "--workspace", "--all-features", "--locked"])
        }
        Stage::Doctests => workspace.cargo(&["test", "--workspace", "--doc", "--locked"]),
        Stage::Docs => {
            let mut docs = workspace.cargo(&["doc", "--workspace", "--no-deps", "--locked"]);
            docs.env("RUSTDOCFLAGS", "-D warnings");
            docs
        }
        Stage::Clients => return clients::stage(workspace).map(Some),
        Stage::Api => return schemathesis::stage(workspace).map(Some),
        Stage::Packaging => return packaging::stage(workspace).map(Some),
        Stage::Web => return web::stage(workspace).map(Some),
        Stage::Browser => return browser::stage(workspace),
        Stage::Crash => return short_form(workspace, crash::VERB, crash::SHORT_FORM, variables),
        Stage::Chaos => return chaos::short_forms(workspace),
        Stage::Bench => return short_form(workspace, bench::VERB, bench::SHORT_FORM, variables),
        Stage::Load => return load::stage(workspace).map(Some),
    };
    command.envs(variables.iter().cloned());
    Ok(run_to_end(&mut command)?.code())
}

fn short_form(
    workspace: &Workspace,
    verb: &str,
    args: &[&str],
    variables: &Variables,
) -> anyhow::Result<Option<i32>> {
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    Ok(launch::flowgate(workspace, verb, &args, variables)?.code())
}

fn install_nextest(workspace: &Workspace) -> anyhow::Result<()> {
    let mut version: Command = workspace.cargo(&["nextest", "--version"]);
    if version.output().is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    output::complain("cargo-nextest is missing: installing it");
    let mut install = workspace.cargo(&["install", "--locked", "cargo-nextest"]);
    if !run_to_end(&mut install)?.success() {
        bail!("cargo-nextest cannot be installed: run `cargo install --locked cargo-nextest`");
    }
    Ok(())
}

fn seconds(elapsed: Duration) -> String {
    format!("{:.1} s", elapsed.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_stages_keep_the_order_of_ci() {
        assert_eq!(chosen(&[Stage::Bench, Stage::Fmt]), [Stage::Fmt, Stage::Bench]);
        assert_eq!(chosen(&[]), Stage::value_variants());
    }

    #[test]
    fn a_stage_is_chosen_by_the_name_that_it_prints() {
        for &stage in Stage::value_variants() {
            assert_eq!(Stage::from_str(stage.name(), false), Ok(stage));
        }
    }

    #[test]
    fn the_first_failure_stops_the_stages() {
        let mut seen = Vec::new();
        let outcome = run_stages(&[Stage::Fmt, Stage::Clippy, Stage::Tidy], |stage| {
            seen.push(stage);
            Ok(Some(if stage == Stage::Clippy { 101 } else { 0 }))
        });
        let failed = Outcome::Failed { stage: Stage::Clippy, code: Some(101) };
        assert_eq!(outcome.unwrap(), failed);
        assert_eq!(seen, [Stage::Fmt, Stage::Clippy]);
    }

    #[test]
    fn a_stage_that_cannot_run_is_an_error_with_its_name() {
        let error = run_stages(&[Stage::Docs], |_| bail!("no cargo")).unwrap_err();
        assert_eq!(format!("{error:#}"), "stage docs failed: no cargo");
    }

    #[test]
    fn a_stage_that_a_signal_ended_has_failed() {
        let outcome = run_stages(&[Stage::Docs], |_| Ok(None)).unwrap();
        assert_eq!(outcome, Outcome::Failed { stage: Stage::Docs, code: None });
    }
}
