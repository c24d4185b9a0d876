//! `cargo xtask clients`: the clients in `clients/` pass the type checks and tests of their own
//! languages.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::Args;
use flowgate_testbed::Tool;

use crate::workspace::{Workspace, run_to_end};
use crate::{output, services, signals};

const TOOLS: &[Tool] = &[
    Tool { binary: "node", packages: &["nodejs"] },
    Tool { binary: "npm", packages: &["npm"] },
    Tool { binary: "python3", packages: &["python3"] },
];
/// The type checker of Python, from `PyPI`.
const MYPY: &str = "mypy==2.4.1";
/// Holds the lock file that is installed, inside the folder of the packages.
const INSTALLED: &str = "node_modules/.installed-lock.json";

#[derive(Debug, Args)]
pub(crate) struct ClientsArgs {
    /// Build the TypeScript client and the worker of the polyglot example, and check nothing
    #[arg(long)]
    build_only: bool,
}

pub(crate) fn run(workspace: &Workspace, args: &ClientsArgs) -> anyhow::Result<ExitCode> {
    signals::hold()?;
    if args.build_only {
        build(workspace)?;
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::from(u8::from(!pass(workspace)?)))
}

/// The checks as a stage of CI: their exit code.
pub(crate) fn stage(workspace: &Workspace) -> anyhow::Result<i32> {
    Ok(i32::from(!pass(workspace)?))
}

/// Builds the TypeScript client and the worker of the polyglot example: tests of whole processes
/// start it.
pub(crate) fn build(workspace: &Workspace) -> anyhow::Result<()> {
    services::install(TOOLS)?;
    let typescript = workspace.root.join("clients/typescript");
    install_packages(&typescript)?;
    ensure!(npm(&typescript, &["run", "-s", "build"])?, "the TypeScript client is not built");
    let example = workspace.root.join("examples/polyglot");
    if !example.join("node_modules/flowgate").exists() {
        let args =
            ["install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"];
        ensure!(npm(&example, &args)?, "npm could not link the client into {}", example.display());
    }
    ensure!(
        npm(&example, &["run", "-s", "build"])?,
        "the worker in {} is not built",
        example.display()
    );
    Ok(())
}

/// Whether every check passes; says which does not.
fn pass(workspace: &Workspace) -> anyhow::Result<bool> {
    build(workspace)?;
    let typescript = workspace.root.join("clients/typescript");
    let python = workspace.root.join("clients/python");
    let mypy = services::install_from_pypi(MYPY, "mypy")?;
    let checks: [(&str, Command); 4] = [
        ("the types of the TypeScript client", npm_command(&typescript, &["run", "-s", "check"])),
        ("the tests of the TypeScript client", npm_command(&typescript, &["test", "-s"])),
        ("the types of the Python client", in_folder(Command::new(mypy), &python)),
        ("the tests of the Python client", python_tests(&python)),
    ];
    for (name, mut command) in checks {
        output::complain(&format!("-- {name}"));
        if !run_to_end(&mut command)?.success() {
            output::complain(&format!("{name} do not pass"));
            return Ok(false);
        }
    }
    Ok(true)
}

fn python_tests(folder: &Path) -> Command {
    let mut command = in_folder(Command::new("python3"), folder);
    command.args(["-m", "unittest", "discover", "--start-directory", "tests"]);
    command.args(["--top-level-directory", "."]).env("PYTHONPATH", folder.join("src"));
    // What it compiles would lie among the sources.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Installs the packages of the lock file, unless they are there.
fn install_packages(folder: &Path) -> anyhow::Result<()> {
    let lock = std::fs::read_to_string(folder.join("package-lock.json"))
        .context("reading package-lock.json")?;
    let installed = folder.join(INSTALLED);
    if std::fs::read_to_string(&installed).is_ok_and(|found| found == lock) {
        return Ok(());
    }
    // No script of a package runs: none of them needs one.
    let args = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"];
    ensure!(npm(folder, &args)?, "npm could not install the packages of {}", folder.display());
    std::fs::write(&installed, lock).context("noting what npm installed")
}

fn npm(folder: &Path, args: &[&str]) -> anyhow::Result<bool> {
    Ok(run_to_end(&mut npm_command(folder, args))?.success())
}

fn npm_command(folder: &Path, args: &[&str]) -> Command {
    let mut npm = in_folder(Command::new("npm"), folder);
    npm.args(args);
    npm
}

fn in_folder(mut command: Command, folder: &Path) -> Command {
    command.current_dir(folder);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typescript() -> std::path::PathBuf {
        Workspace::find().unwrap().root.join("clients/typescript")
    }

    #[test]
    fn the_typescript_client_has_no_runtime_dependency_and_exact_versions_else() {
        let manifest = std::fs::read_to_string(typescript().join("package.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
        for kind in ["dependencies", "peerDependencies", "optionalDependencies"] {
            assert!(manifest.get(kind).is_none(), "{kind}");
        }
        for (module, version) in manifest["devDependencies"].as_object().unwrap() {
            let version = version.as_str().unwrap();
            assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{module} {version}");
        }
    }

    #[test]
    fn the_lock_file_of_the_typescript_client_names_no_registry() {
        let lock = std::fs::read_to_string(typescript().join("package-lock.json")).unwrap();
        assert!(!lock.contains("\"resolved\""));
    }

    #[test]
    fn the_python_client_depends_on_nothing() {
        let file = Workspace::find().unwrap().root.join("clients/python/pyproject.toml");
        let manifest: toml::Table =
            toml::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        assert!(manifest["project"]["dependencies"].as_array().unwrap().is_empty());
    }
}
