//! What other projects do with the same work on the same server, as their programs print it.

use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::{Ratio, Report, figure};
use crate::output::{Cell, Table};

/// What the program of a peer printed of one of its settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Peer {
    peer: String,
    version: String,
    setting: String,
    /// Whether its documents recommend it so.
    recommended: bool,
    chain_steps_per_s: f64,
    single_jobs_per_s: f64,
    idle_chain_p50_ms: f64,
    idle_chain_p99_ms: f64,
    cpu_us_per_step: f64,
}

/// A promise about our chain and that of the best of some peers, each as its documents recommend it.
struct Promise {
    store: &'static str,
    peers: &'static [&'static str],
    times: f64,
}

const PROMISES: [Promise; 2] = [
    Promise { store: "redis", peers: &["bullmq"], times: 5.0 },
    Promise { store: "postgres", peers: &["dbos", "pg-boss"], times: 8.0 },
];

/// Reads one peer a line.
pub(crate) fn read(file: &Path) -> anyhow::Result<Vec<Peer>> {
    let text = std::fs::read_to_string(file).context("reading the figures of peers")?;
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().context("reading the figures of a peer")
}

/// Our chain against the best peer that was measured on the same store as it is recommended, and
/// against every one that is faster otherwise.
pub(crate) fn add_ratios(report: &mut Report) {
    for Promise { store, peers, times } in &PROMISES {
        let Some(ours) = figure(&report.results, store, "chain") else { continue };
        let ours = ours.steps_per_s;
        let measured = || report.peers.iter().filter(|peer| peers.contains(&&*peer.peer));
        let recommended = measured().filter(|peer| peer.recommended);
        let best = recommended.max_by(|a, b| a.chain_steps_per_s.total_cmp(&b.chain_steps_per_s));
        let Some(best) = best else { continue };
        let name = |peer: &Peer| format!("{store} chain to {}, {}", peer.peer, peer.setting);
        let mut ratios = vec![Ratio::at_least(name(best), ours / best.chain_steps_per_s, *times)];
        let faster = measured()
            .filter(|peer| !peer.recommended && peer.chain_steps_per_s > best.chain_steps_per_s);
        ratios.extend(faster.map(|peer| Ratio::told(name(peer), ours / peer.chain_steps_per_s)));
        report.ratios.extend(ratios);
    }
}

pub(crate) fn table(peers: &[Peer]) -> Table {
    let head = [
        "peer",
        "setting",
        "chain steps/s",
        "single/s",
        "idle chain p50 ms",
        "p99 ms",
        "CPU µs/step",
    ];
    let mut table = Table::new(&head);
    for peer in peers {
        table.row(vec![
            Cell::plain(format!("{} {}", peer.peer, peer.version)),
            Cell::plain(&peer.setting),
            Cell::plain(format!("{:>8.0}", peer.chain_steps_per_s)),
            Cell::plain(format!("{:>8.0}", peer.single_jobs_per_s)),
            Cell::plain(format!("{:>7.2}", peer.idle_chain_p50_ms)),
            Cell::plain(format!("{:>7.2}", peer.idle_chain_p99_ms)),
            Cell::plain(format!("{:>7.1}", peer.cpu_us_per_step)),
        ]);
    }
    table
}
