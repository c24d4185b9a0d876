//! What an instance costs that has nothing to do.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use tokio::process::Command;

use super::Ratio;
use super::measure::{cpu_time_of, resident_mib_of};

/// How long an instance is left alone before it is looked at.
const WARM_UP: Duration = Duration::from_secs(1);

/// The share of a core that `flowgate dev` takes over `span`, in percent, and its memory.
pub(crate) async fn dev(folder: &Path, span: Duration) -> anyhow::Result<[Ratio; 2]> {
    let store = format!("sqlite:{}", folder.join("idle-dev.db").display());
    let flows = folder.join("flows");
    std::fs::create_dir_all(&flows)?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["dev", "--quiet", "--store", &store])
        .arg(&flows)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("starting an instance")?;
    let pid = child.id().context("the instance has ended")?.to_string();
    tokio::time::sleep(WARM_UP).await;
    let before = cpu_time_of(&pid);
    tokio::time::sleep(span).await;
    let used = cpu_time_of(&pid).saturating_sub(before);
    let memory = resident_mib_of(&pid);
    anyhow::ensure!(child.try_wait()?.is_none(), "the instance ended by itself");
    child.kill().await?;
    let percent = used.as_secs_f64() / span.as_secs_f64() * 100.0;
    let name = format!("percent of a core, idle for {} s", span.as_secs());
    Ok([
        Ratio::at_most(name, percent, 1.0),
        Ratio::at_most("MiB resident, idle".to_owned(), memory, 40.0),
    ])
}
