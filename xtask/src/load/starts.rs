//! How many starts a second the API accepts.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use flowgate_testbed::Tool;
use serde::Deserialize;

use super::Form;
use super::instance::{Instance, command, folder, free_address};
use crate::output;
use crate::services;

const WRK: Tool = Tool { binary: "wrk", packages: &["wrk"] };
const CONNECTIONS: u32 = 64;
/// What the API must reach of the engine's own rate.
const SHARE_MIN: f64 = 0.5;
const SCRIPT: &str = r#"wrk.method = "POST"
wrk.body = '{"flow":"load","input":{"orderId":7}}'
wrk.headers["content-type"] = "application/json"
"#;

/// A rate, and how long the slowest but one in a hundred took.
#[derive(Debug, PartialEq, Deserialize)]
struct Figure {
    starts_per_s: f64,
    p99_ms: f64,
}

/// Measures; the promises that were missed.
pub(super) fn measure(binary: &Path, form: Form) -> anyhow::Result<Vec<String>> {
    services::install(&[WRK])?;
    let seconds = match form {
        Form::Short => 4,
        Form::Full => 15,
    };
    let engine = of_engine(binary, seconds)?;
    let bare = of_bare(binary, seconds)?;
    let api = of_api(binary, seconds)?;
    // Once more, since the machine may not be the same as a minute ago.
    let again = of_engine(binary, seconds)?;
    let rows = [("engine", &engine), ("bare handler", &bare), ("API", &api), ("engine", &again)];
    for (name, Figure { starts_per_s, p99_ms }) in rows {
        output::say(&format!("{name:<14} {starts_per_s:>8.0} a second, p99 {p99_ms:.2} ms"));
    }
    let own = f64::midpoint(engine.starts_per_s, again.starts_per_s);
    let share = api.starts_per_s / own;
    output::say(&format!("the API reaches {share:.2} of the engine's own rate"));
    let mut missed = Vec::new();
    if share < SHARE_MIN && form == Form::Full {
        missed.push(format!("{share:.2} of the engine's own rate, under {SHARE_MIN}"));
    }
    Ok(missed)
}

/// Starts by calls in the process that owns the store, with the settings of a worker.
fn of_engine(binary: &Path, seconds: u32) -> anyhow::Result<Figure> {
    let folder = folder()?;
    let output = command(binary, folder.path())
        .args(["bench", "--starts", "flows/load.yaml"])
        .args(["--seconds", &seconds.to_string(), "--callers", &CONNECTIONS.to_string()])
        .stdin(Stdio::null())
        .output()
        .context("starting the benchmark of starts")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("reading the figure of the engine")
}

fn of_bare(binary: &Path, seconds: u32) -> anyhow::Result<Figure> {
    let folder = folder()?;
    let address = free_address()?;
    let mut command = command(binary, folder.path());
    command.args(["bench", "--bare", &address.to_string()]);
    let instance = Instance::spawn(command, address)?;
    wrk(instance.address, folder.path(), seconds)
}

fn of_api(binary: &Path, seconds: u32) -> anyhow::Result<Figure> {
    let folder = folder()?;
    let instance = Instance::worker(binary, folder.path())?;
    wrk(instance.address, folder.path(), seconds)
}

fn wrk(address: SocketAddr, folder: &Path, seconds: u32) -> anyhow::Result<Figure> {
    std::fs::write(folder.join("start.lua"), SCRIPT)?;
    let output = Command::new(WRK.binary)
        .args(["--threads", "1", "--connections", &CONNECTIONS.to_string(), "--latency"])
        .args(["--duration", &format!("{seconds}s"), "--script", "start.lua"])
        .arg(format!("http://{address}/api/v1/runs"))
        .current_dir(folder)
        .output()
        .context("starting wrk")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "wrk failed: {text}");
    read(&text)
}

/// What `wrk` says; answers that are no success are not to be counted as starts.
fn read(text: &str) -> anyhow::Result<Figure> {
    if let Some(line) = text.lines().find(|line| line.contains("Non-2xx")) {
        bail!("not every start was accepted: {}", line.trim());
    }
    let after = |name: &str| {
        let mut lines = text.lines().map(str::trim);
        lines.find_map(|line| line.strip_prefix(name)).map(str::trim)
    };
    let rate = after("Requests/sec:").and_then(|rate| rate.parse().ok());
    let p99 = after("99%").and_then(milliseconds);
    Ok(Figure {
        starts_per_s: rate.with_context(|| format!("wrk says no rate: {text}"))?,
        p99_ms: p99.with_context(|| format!("wrk says no latency: {text}"))?,
    })
}

fn milliseconds(text: &str) -> Option<f64> {
    let units = [("us", 1e-3), ("ms", 1.0), ("s", 1e3)];
    units.iter().find_map(|(unit, factor)| {
        text.strip_suffix(unit)?.parse::<f64>().ok().map(|number| number * factor)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_wrk_is_read_and_refused_starts_are_no_figure() {
        let report = "  Latency Distribution\n     50%  4.10ms\n     99%   12.34ms\n\
                      \x20 10 requests in 1.00s, 1.00MB read\nRequests/sec:  15234.50\n";
        let figure = read(report).unwrap();
        assert_eq!(figure, Figure { starts_per_s: 15_234.5, p99_ms: 12.34 });
        let refused = format!("{report}  Non-2xx or 3xx responses: 3\n");
        assert!(read(&refused).is_err());
        let rows = [("870.00us", Some(0.87)), ("1.50s", Some(1_500.0)), ("fast", None)];
        for (text, expected) in rows {
            assert_eq!(milliseconds(text), expected, "{text}");
        }
    }
}
