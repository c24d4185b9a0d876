//! How programs from `PyPI` are installed: each into a virtual environment in the target folder.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::install_packages;
use crate::output;
use crate::workspace::run_to_end;

/// The target folder that this program was built into.
pub(crate) fn target_folder() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("finding the target folder")?;
    Ok(program.ancestors().nth(2).context("xtask has no target folder")?.to_owned())
}

/// Installs `package`, a name with its version, unless it is there; where its `program` is.
pub(crate) fn install_from_pypi(package: &str, program: &str) -> anyhow::Result<PathBuf> {
    let folder = target_folder()?.join("tools").join(package);
    let program = folder.join("bin").join(program);
    if program.is_file() {
        return Ok(program);
    }
    output::complain(&format!("installing {package}"));
    let venv = || -> anyhow::Result<bool> {
        let mut command = Command::new("python3");
        command.args(["-m", "venv"]).arg(&folder).stdout(Stdio::null());
        Ok(run_to_end(&mut command)?.success())
    };
    // Debian has what a virtual environment needs in a package that need not be there.
    if !venv()? {
        install_packages(&["python3-venv"])?;
        ensure!(venv()?, "python3 cannot make a virtual environment");
    }
    let mut pip = Command::new(folder.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", package]);
    ensure!(run_to_end(&mut pip)?.success(), "pip cannot install {package}");
    Ok(program)
}
