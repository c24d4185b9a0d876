//! How much memory the process has, and how much it may have.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use super::controller::Reading;

const GROUPS: &str = "/sys/fs/cgroup";

/// What is resident, as a share of `limit`, or else of that of the control group.
pub(super) fn share(limit: Option<u64>) -> Reading {
    let Some(limit) = limit.or_else(|| group_limit(&PathBuf::from(GROUPS))) else {
        return Reading::None;
    };
    let status = read_to_string("/proc/self/status").ok();
    #[expect(clippy::cast_precision_loss, reason = "nobody has 2^52 bytes of memory")]
    let share = |resident: u64| Reading::Value(resident as f64 / limit.max(1) as f64);
    status.as_deref().and_then(resident_bytes).map_or(Reading::Failed, share)
}

/// What is resident, from `/proc/self/status`.
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The lowest limit from the control group of this process up to the root.
///
/// In a container its own group usually is the root.
fn group_limit(root: &Path) -> Option<u64> {
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let limits = Path::new(own).ancestors().filter_map(|group| {
        let text = read_to_string(root.join(group).join("memory.max")).ok()?;
        text.trim().parse().ok()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_from_the_status_of_the_process() {
        let rows = [
            ("Name:\tx\nVmRSS:\t   20 kB\nThreads:\t1\n", Some(20 * 1024)),
            ("Name:\tx\n", None),
            ("VmRSS:\t20 pages\n", None),
        ];
        for (status, expected) in rows {
            assert_eq!(resident_bytes(status), expected, "{status}");
        }
    }

    #[test]
    fn a_share_of_a_given_limit_is_measured_here() {
        let Reading::Value(share) = share(Some(1 << 40)) else { panic!("Linux tells") };
        assert!(share > 0.0 && share < 1.0, "{share}");
    }

    #[test]
    fn a_group_without_a_limit_has_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(group_limit(folder.path()), None);
        std::fs::write(folder.path().join("memory.max"), "max\n").unwrap();
        assert_eq!(group_limit(folder.path()), None);
        std::fs::write(folder.path().join("memory.max"), "1048576\n").unwrap();
        assert_eq!(group_limit(folder.path()), Some(1 << 20));
    }
}
