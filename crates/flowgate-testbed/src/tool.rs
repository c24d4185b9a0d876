//! Programs that come from Debian packages, and where they are.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// Where Debian keeps the programs of each version of PostgreSQL; only its clients are on the path.
const POSTGRES_VERSIONS: &str = "/usr/lib/postgresql";

/// A program, and the Debian packages that make it usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tool {
    /// The name of the program.
    pub binary: &'static str,
    /// The packages that bring it.
    pub packages: &'static [&'static str],
}

/// The file that a program name stands for on this machine.
pub fn find(binary: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .chain(postgres_folder(Path::new(POSTGRES_VERSIONS)))
        .map(|folder| folder.join(binary))
        .find(|path| is_executable(path))
}

/// The file of a program that a server cannot do without.
pub(crate) fn require(binary: &str) -> anyhow::Result<PathBuf> {
    find(binary).with_context(|| format!("{binary} is missing: run `cargo xtask services install`"))
}

/// The file of a program of PostgreSQL, all from one version: the highest.
pub(crate) fn require_postgres(binary: &str) -> anyhow::Result<PathBuf> {
    let of_version =
        postgres_folder(Path::new(POSTGRES_VERSIONS)).map(|folder| folder.join(binary));
    of_version.filter(|path| is_executable(path)).map_or_else(|| require(binary), Ok)
}

fn postgres_folder(versions: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(versions).ok()?.filter_map(Result::ok);
    let numbered = versions.filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        let folder = entry.path().join("bin");
        is_executable(&folder.join("postgres")).then_some((version, folder))
    });
    numbered.max().map(|(_, folder)| folder)
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_program_on_the_path_is_found_and_another_is_not() {
        assert!(find("sh").is_some());
        assert_eq!(find("flowgate-has-no-such-program"), None);
    }

    #[test]
    fn a_missing_program_is_an_error_that_says_how_to_get_it() {
        let error = require("flowgate-has-no-such-program").unwrap_err().to_string();
        assert!(error.ends_with("run `cargo xtask services install`"), "{error}");
    }

    #[test]
    fn the_highest_version_of_postgresql_that_has_a_server_is_taken() {
        let versions = tempfile::tempdir().unwrap();
        for (version, has_server) in [("9", true), ("15", true), ("16", false), ("old", true)] {
            let bin = versions.path().join(version).join("bin");
            std::fs::create_dir_all(&bin).unwrap();
            if has_server {
                let server = bin.join("postgres");
                std::fs::write(&server, "").unwrap();
                std::fs::set_permissions(&server, PermissionsExt::from_mode(0o755)).unwrap();
            }
        }
        assert_eq!(postgres_folder(versions.path()), Some(versions.path().join("15/bin")));
    }
}
