//! The load balancer of `compose/edge.yaml`, really in front of an instance.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use flowgate_testbed::Stopwatch;

use super::binary::{Process, get};
use super::tools::said;
use super::{Finding, read};

/// How long nginx may take until it listens.
const READY_MAX: Duration = Duration::from_secs(10);
/// What it is asked for, and where an instance has that.
const PATHS: [(&str, &str); 4] = [
    ("/health", "/readyz"),
    ("/flows", "/api/v1/flows"),
    ("/version", "/version"),
    ("/api/v1/instances", "/api/v1/instances"),
];

/// What is wrong with a configuration, with the instance at `address` as one of the two that it
/// names and nobody as the other.
pub(super) fn check(file: &Path, address: &str) -> anyhow::Result<Vec<Finding>> {
    let place = file.display().to_string();
    let folder = tempfile::tempdir().context("making a folder for nginx")?;
    let (front, gone) = (free_address()?, free_address()?);
    let text = here(&read(file)?, [("blue:7420", address), ("green:7420", &gone)], &front)?;
    let path = folder.path().join("nginx.conf");
    std::fs::write(&path, text).context("writing a configuration of nginx")?;
    let nginx = || {
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder.path()).arg("-c").arg(&path);
        command.args(["-g", "daemon off; pid nginx.pid; error_log stderr;"]);
        command
    };
    let tested = nginx().arg("-t").output().context("starting nginx")?;
    if !tested.status.success() {
        return Ok(vec![Finding::new(place, said(&tested))]);
    }
    let child = nginx().stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let _running = Process(child.context("starting nginx")?);
    let watch = Stopwatch::start();
    while std::net::TcpStream::connect(&front).is_err() {
        ensure!(watch.elapsed() < READY_MAX, "nginx does not listen after {READY_MAX:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut findings = Vec::new();
    for (path, there) in PATHS {
        let (direct, through) = (get(address, there)?, get(&front, path)?);
        // Where there is no such path, the dashboard answers.
        if direct.0 != through.0 || direct.1.starts_with('{') != through.1.starts_with('{') {
            let what = format!(
                "{path} answers {} {:.40?}, and {there} of an instance {} {:.40?}",
                through.0, through.1, direct.0, direct.1
            );
            findings.push(Finding::new(&place, what));
        }
    }
    Ok(findings)
}

/// The same configuration with addresses of this machine.
fn here(text: &str, servers: [(&str, &str); 2], front: &str) -> anyhow::Result<String> {
    let listen = ("listen 80;".to_owned(), format!("listen {front};"));
    // What it would write elsewhere goes into its own folder.
    let folders = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let folders = folders.map(|name| format!("{name}_temp_path {name};"));
    let http = ("http {".to_owned(), format!("http {{ access_log off; {}", folders.join(" ")));
    let servers = servers.map(|(name, address)| (name.to_owned(), address.to_owned()));
    let mut text = text.to_owned();
    for (found, instead) in servers.into_iter().chain([listen, http]) {
        ensure!(text.contains(&found), "the configuration of nginx does not hold {found:?}");
        text = text.replace(&found, &instead);
    }
    Ok(text)
}

fn free_address() -> anyhow::Result<String> {
    let free = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
    Ok(free.local_addr()?.to_string())
}
