//! Log lines go to stderr: for people on a terminal, as JSON anywhere else.

use std::io::IsTerminal;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Where lines of figures go; they are shown wherever warnings are.
pub(crate) const SUMMARY: &str = "flowgate::summary";

/// Starts logging at `level`; other people's crates only warn.
pub(crate) fn start(level: LevelFilter) {
    let others = level.min(LevelFilter::WARN);
    let summary = if level >= LevelFilter::WARN { level.max(LevelFilter::INFO) } else { level };
    let filter = Targets::new()
        .with_default(others)
        .with_target("flowgate", level)
        .with_target(SUMMARY, summary)
        // It warns of every connection that it replaces, and a shutdown closes some.
        .with_target("deadpool", LevelFilter::ERROR.min(level));
    let registry = tracing_subscriber::registry().with(filter);
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false);
    // It can only be set once, and whoever set it before us wants it so.
    let started = if std::io::stderr().is_terminal() {
        registry.with(lines.compact()).try_init()
    } else {
        registry.with(lines.json().flatten_event(true)).try_init()
    };
    drop(started);
}
