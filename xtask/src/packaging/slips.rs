//! Slips, planted into a copy of the files: a check that does not find them checks nothing.

use std::path::Path;

use anyhow::{Context, ensure};

use super::{Checks, read};

/// A file, what is written there, what is written instead, and what a finding says about it.
const SLIPS: [(&str, &str, &str, &str); 12] = [
    ("kubernetes/job-workers.yaml", "--concurrency", "--concurency", "--concurency"),
    ("kubernetes/cron-workers.yaml", "--role, cron-worker", "--role, cron-wroker", "cron-wroker"),
    ("kubernetes/job-workers.yaml", "FLOWGATE_LOG", "FLOWGATE_LOUD", "FLOWGATE_LOUD"),
    ("kubernetes/cron-workers.yaml", "path: /readyz", "path: /ready", "at /ready"),
    ("kubernetes/job-workers.yaml", "containerPort: 7420", "containerPort: 7421", "7421"),
    (
        "kubernetes/cron-workers.yaml",
        "FLOWGATE_API, value: \"off\"",
        "FLOWGATE_API, value: \"on\"",
        "no tokens",
    ),
    ("kubernetes/service.yaml", "clusterIP", "clusterIp", "clusterIp"),
    ("compose/redis.yaml", "stop_grace_period", "stop_grace", "stop_grace"),
    ("compose/edge/nginx.conf", "http://flowgate/readyz", "http://flowgate/ready", "/health"),
    ("helm/flowgate/templates/workers.yaml", "- --queues", "- --queue", "--queue"),
    ("prometheus/alerts.yaml", "flowgate_leader_active", "flowgate_leader_alive", "leader_alive"),
    ("systemd/flowgate.service", "WatchdogSec", "WatchDogSec", "WatchDogSec"),
];

/// Plants every slip and makes sure that each is found; how many there were.
pub(super) fn find(checks: &Checks, folder: &Path) -> anyhow::Result<usize> {
    let copy = tempfile::tempdir().context("making a folder for planted slips")?;
    copy_all(folder, copy.path())?;
    for (file, right, slip, _) in SLIPS {
        let path = copy.path().join(file);
        let text = read(&path)?;
        ensure!(text.contains(right), "{file} does not hold {right:?}, so no slip can be planted");
        std::fs::write(&path, text.replace(right, slip)).context("planting a slip")?;
    }
    let findings = checks.all(copy.path())?;
    for (file, _, slip, said) in SLIPS {
        let place = file.rsplit('/').next().unwrap_or(file);
        let is_found = findings
            .iter()
            .any(|finding| finding.place.contains(place) && finding.what.contains(said));
        ensure!(is_found, "{slip:?} was planted into {file}, and nothing said so: {findings:#?}");
    }
    Ok(SLIPS.len())
}

fn copy_all(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
