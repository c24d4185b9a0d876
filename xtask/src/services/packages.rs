//! Programs that come from Debian packages, and how the missing ones are installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;

use crate::output;
use crate::workspace::run_to_end;

/// A program, and the Debian packages that make it usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tool {
    pub binary: &'static str,
    pub packages: &'static [&'static str],
}

/// By what right packages are installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    Root,
    Sudo,
    None,
}

/// Installs the packages of those tools that cannot be found.
pub(crate) fn install(tools: &[Tool]) -> anyhow::Result<()> {
    let packages = packages_of(&missing(tools, &|binary| find(binary).is_some()));
    if packages.is_empty() {
        return Ok(());
    }
    output::complain(&format!("installing {}", packages.join(" ")));
    for mut command in commands(right(), &packages)? {
        if !run_to_end(&mut command)?.success() {
            bail!("cannot install these Debian packages: {}", packages.join(" "));
        }
    }
    match missing(tools, &|binary| find(binary).is_some()).first() {
        None => Ok(()),
        Some(tool) => bail!("{} is not on the path, even though installed", tool.binary),
    }
}

/// The file that a program name stands for on this machine.
pub(crate) fn find(binary: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .map(|folder| folder.join(binary))
        .find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

fn missing(tools: &[Tool], is_there: &dyn Fn(&str) -> bool) -> Vec<Tool> {
    tools.iter().copied().filter(|tool| !is_there(tool.binary)).collect()
}

fn packages_of(tools: &[Tool]) -> Vec<&'static str> {
    let mut packages: Vec<_> = tools.iter().flat_map(|tool| tool.packages).copied().collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

fn right() -> Right {
    let succeeds = |program: &str, args: &[&str]| {
        Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
    };
    if succeeds("sh", &["-c", "test \"$(id -u)\" = 0"]) {
        Right::Root
    } else if succeeds("sudo", &["-n", "true"]) {
        Right::Sudo
    } else {
        Right::None
    }
}

/// The commands that install the packages, in order.
fn commands(right: Right, packages: &[&str]) -> anyhow::Result<Vec<Command>> {
    if right == Right::None {
        bail!(
            "these Debian packages are missing, and neither root nor sudo is at hand: {}",
            packages.join(" ")
        );
    }
    let apt_get = |args: &[&str]| {
        let mut command = match right {
            Right::Sudo => {
                let mut sudo = Command::new("sudo");
                sudo.args(["-n", "env"]);
                sudo
            }
            Right::Root | Right::None => Command::new("env"),
        };
        command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]).args(args);
        command
    };
    let mut install = apt_get(&["install", "--yes", "--no-install-recommends"]);
    install.args(packages);
    Ok(vec![apt_get(&["update"]), install])
}

#[cfg(test)]
mod tests {
    use super::*;

    const CC: Tool = Tool { binary: "cc", packages: &["gcc", "libc6-dev"] };
    const CPP: Tool = Tool { binary: "cpp", packages: &["gcc"] };
    const SH: Tool = Tool { binary: "sh", packages: &["dash"] };

    fn line(command: &Command) -> String {
        let mut words = vec![command.get_program().to_string_lossy()];
        words.extend(command.get_args().map(|arg| arg.to_string_lossy()));
        words.join(" ")
    }

    #[test]
    fn only_the_packages_of_missing_tools_are_installed_and_each_once() {
        let missing = missing(&[CC, CPP, SH], &|binary| binary == "sh");
        assert_eq!(missing, [CC, CPP]);
        assert_eq!(packages_of(&missing), ["gcc", "libc6-dev"]);
    }

    #[test]
    fn a_program_on_the_path_is_found_and_another_is_not() {
        assert!(find("sh").is_some());
        assert_eq!(find("flowgate-has-no-such-program"), None);
    }

    #[test]
    fn the_index_is_updated_before_packages_are_installed() {
        let lines =
            |right| -> Vec<_> { commands(right, &["gcc"]).unwrap().iter().map(line).collect() };
        let apt_get = "env DEBIAN_FRONTEND=noninteractive apt-get";
        let install = "install --yes --no-install-recommends gcc";
        let plain = [format!("{apt_get} update"), format!("{apt_get} {install}")];
        assert_eq!(lines(Right::Root), plain);
        assert_eq!(lines(Right::Sudo), plain.map(|line| format!("sudo -n {line}")));
    }

    #[test]
    fn without_the_right_to_install_the_error_names_the_packages() {
        let error = commands(Right::None, &["gcc", "procps"]).unwrap_err();
        assert!(error.to_string().ends_with("gcc procps"), "{error}");
    }
}
