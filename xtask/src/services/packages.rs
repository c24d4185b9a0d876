//! How missing programs are installed from Debian packages.

use std::process::Command;

use anyhow::bail;
use flowgate_testbed::{Tool, find};

use crate::output;
use crate::workspace::run_to_end;

/// Installs the packages that it is given, and starts no service that they bring: a policy that
/// forbids it is in place meanwhile, unless the machine has a policy of its own.
const INSTALL: &str = r#"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  printf '#!/bin/sh\nexit 101\n' > "$policy" && chmod 755 "$policy" || exit 1
fi
apt-get install --yes --no-install-recommends "$@"
"#;

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
    install_packages(&packages)?;
    match missing(tools, &|binary| find(binary).is_some()).first() {
        None => Ok(()),
        Some(tool) => bail!("{} is not on the path, even though installed", tool.binary),
    }
}

/// Installs these packages.
pub(crate) fn install_packages(packages: &[&str]) -> anyhow::Result<()> {
    output::complain(&format!("installing {}", packages.join(" ")));
    for mut command in commands(right(), packages)? {
        if !run_to_end(&mut command)?.success() {
            bail!("cannot install these Debian packages: {}", packages.join(" "));
        }
    }
    Ok(())
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
    let mut install = as_root(right, &["sh", "-c", INSTALL, "sh"]);
    install.args(packages);
    Ok(vec![as_root(right, &["apt-get", "update"]), install])
}

fn as_root(right: Right, words: &[&str]) -> Command {
    let mut command = match right {
        Right::Sudo => {
            let mut sudo = Command::new("sudo");
            sudo.args(["-n", "env"]);
            sudo
        }
        Right::Root | Right::None => Command::new("env"),
    };
    command.arg("DEBIAN_FRONTEND=noninteractive").args(words);
    command
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
    fn the_index_is_updated_before_packages_are_installed() {
        let lines =
            |right| -> Vec<_> { commands(right, &["gcc"]).unwrap().iter().map(line).collect() };
        let env = "env DEBIAN_FRONTEND=noninteractive";
        let plain = [format!("{env} apt-get update"), format!("{env} sh -c {INSTALL} sh gcc")];
        assert_eq!(lines(Right::Root), plain);
        assert_eq!(lines(Right::Sudo), plain.map(|line| format!("sudo -n {line}")));
    }

    /// Runs the script with a policy in a folder of its own and an installer that shows it.
    fn install_with(before: Option<&str>) -> (String, Option<String>) {
        let folder = tempfile::tempdir().unwrap();
        let policy = folder.path().join("policy-rc.d");
        if let Some(before) = before {
            std::fs::write(&policy, before).unwrap();
        }
        let path = policy.display().to_string();
        let script = INSTALL
            .replace("/usr/sbin/policy-rc.d", &path)
            .replace("apt-get install --yes --no-install-recommends", &format!("cat '{path}'; :"));
        let output = Command::new("sh").args(["-c", &script, "sh", "gcc"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let during = String::from_utf8(output.stdout).unwrap();
        (during, std::fs::read_to_string(&policy).ok())
    }

    #[test]
    fn no_service_starts_while_packages_are_installed_and_the_policy_of_the_machine_stands() {
        assert_eq!(install_with(None), ("#!/bin/sh\nexit 101\n".into(), None));
        assert_eq!(install_with(Some("mine")), ("mine".into(), Some("mine".into())));
    }

    #[test]
    fn without_the_right_to_install_the_error_names_the_packages() {
        let error = commands(Right::None, &["gcc", "procps"]).unwrap_err();
        assert!(error.to_string().ends_with("gcc procps"), "{error}");
    }
}
