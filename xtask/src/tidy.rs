//! `cargo xtask tidy`: the rules of this tree that no compiler knows.
//!
//! A check reads the [`Tree`] and returns its findings; it has no other effect.
//! The checks run as a stage of `cargo xtask test` and as a unit test.

mod attributes;
mod crates;
mod documents;
mod invariants;
mod marks;
mod metrics;
mod migrations;
mod paths;
mod requirements;
mod sizes;
mod sleeps;
mod test_names;
mod tree;

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;

use self::tree::Tree;
use crate::output;
use crate::workspace::Workspace;

#[derive(Debug, Args)]
pub(crate) struct TidyArgs {
    /// Record the checksums of new migrations; those on record never change
    #[arg(long)]
    bless: bool,
    /// Name the checks and run none
    #[arg(long)]
    list: bool,
}

/// One rule, with the name by which ARCHITECTURE.md refers to it.
#[derive(Debug)]
struct Check {
    name: &'static str,
    about: &'static str,
    run: fn(&Tree) -> Vec<Finding>,
}

const CHECKS: &[Check] = &[
    Check {
        name: "crate_direction",
        about: "a crate depends only on crates below it",
        run: crates::crate_direction,
    },
    Check {
        name: "unfinished_marks",
        about: "nothing is marked as to be done later",
        run: marks::unfinished_marks,
    },
    Check {
        name: "sleeping_tests",
        about: "no test sleeps, but for those of whole processes",
        run: sleeps::sleeping_tests,
    },
    Check {
        name: "refused_attributes",
        about: "no test is skipped or expects a panic, and no lint is allowed without a reason",
        run: attributes::refused_attributes,
    },
    Check {
        name: "file_sizes",
        about: "a large file has a reason in xtask/tidy.toml",
        run: sizes::file_sizes,
    },
    Check {
        name: "decision_records",
        about: "the records in docs/adr are numbered, complete and short",
        run: documents::decision_records,
    },
    Check {
        name: "requirements",
        about: "docs/requirements.md names every requirement, and what it names exists",
        run: requirements::requirements,
    },
    Check { name: "migrations", about: "a migration never changes", run: migrations::migrations },
    Check {
        name: "machine_paths",
        about: "no file names a folder of one machine",
        run: paths::machine_paths,
    },
    Check {
        name: "root_documents",
        about: "the root has no other documents than the agreed ones",
        run: documents::root_documents,
    },
    Check {
        name: "invariants",
        about: "every invariant in ARCHITECTURE.md names the check that guards it",
        run: invariants::invariants,
    },
    Check {
        name: "metric_names",
        about: "the guide lists the metrics that the code records, and no others",
        run: metrics::metric_names,
    },
];

/// A place that breaks a rule. Lines count from 1; 0 is the file as a whole.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.into(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.path, self.line, self.message)
    }
}

pub(crate) fn run(workspace: &Workspace, args: &TidyArgs) -> anyhow::Result<ExitCode> {
    if args.list {
        for check in CHECKS {
            output::say(&format!("{:<19} {}", check.name, check.about));
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.bless {
        for path in migrations::bless(&Tree::read(&workspace.root)?)? {
            output::complain(&format!("recorded {path}"));
        }
    }
    let findings = check(&workspace.root)?;
    Ok(if report(&findings) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What every check finds in the tree at `root`.
pub(crate) fn check(root: &Path) -> anyhow::Result<Vec<Finding>> {
    let tree = Tree::read(root)?;
    Ok(CHECKS.iter().flat_map(|check| (check.run)(&tree)).collect())
}

/// Prints the findings and returns their number.
pub(crate) fn report(findings: &[Finding]) -> usize {
    for finding in findings {
        output::say(&finding.to_string());
    }
    findings.len()
}

/// Runs one check on a planted tree and compares what it says, sorted.
#[cfg(test)]
fn assert_findings(run: fn(&Tree) -> Vec<Finding>, files: &[(&str, &str)], expected: &[&str]) {
    let planted = tree::Planted::new(files);
    let mut findings = run(&planted.tree);
    findings.sort();
    let findings: Vec<_> = findings.iter().map(ToString::to_string).collect();
    assert_eq!(findings, expected);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        let findings = check(&Workspace::find().unwrap().root).unwrap();
        let lines: Vec<_> = findings.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "\n{}", lines.join("\n"));
    }

    #[test]
    fn every_check_has_its_own_name() {
        let mut names: Vec<_> = CHECKS.iter().map(|check| check.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CHECKS.len());
    }
}
