//! What other projects do with the same work on the same server, as their programs print it.

use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::{Ratio, Report};
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
    /// Our chain to its, which were measured in turns.
    ours_to_it: f64,
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

/// Our chain against the peer, of those that are recommended so, that comes nearest to it, and
/// against every one that comes nearer otherwise. Who comes nearest is told by turns: two rates that
/// were measured minutes apart met two machines.
pub(crate) fn add_ratios(report: &mut Report) {
    for Promise { store, peers, times } in &PROMISES {
        let measured = || report.peers.iter().filter(|peer| peers.contains(&&*peer.peer));
        let recommended = measured().filter(|peer| peer.recommended);
        let Some(best) = recommended.min_by(|a, b| a.ours_to_it.total_cmp(&b.ours_to_it)) else {
            continue;
        };
        let name = |peer: &Peer| format!("{store} chain to {}, {}", peer.peer, peer.setting);
        let mut ratios = vec![Ratio::at_least(name(best), best.ours_to_it, *times)];
        let nearer =
            measured().filter(|peer| !peer.recommended && peer.ours_to_it < best.ours_to_it);
        ratios.extend(nearer.map(|peer| Ratio::told(name(peer), peer.ours_to_it)));
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
        "ours to it",
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
            Cell::plain(format!("{:>7.2}", peer.ours_to_it)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(peer: &str, setting: &str, recommended: bool, ours_to_it: f64) -> Peer {
        Peer {
            peer: peer.to_owned(),
            version: "1".to_owned(),
            setting: setting.to_owned(),
            recommended,
            chain_steps_per_s: 1.0,
            single_jobs_per_s: 1.0,
            idle_chain_p50_ms: 1.0,
            idle_chain_p99_ms: 1.0,
            cpu_us_per_step: 1.0,
            ours_to_it,
        }
    }

    #[test]
    fn the_promise_is_about_the_recommended_peer_that_comes_nearest() {
        let peers = vec![
            peer("dbos", "a", true, 30.0),
            peer("pg-boss", "b", true, 9.0),
            peer("pg-boss", "c", true, 7.5),
            peer("pg-boss", "d", false, 6.0),
            peer("pg-boss", "e", false, 20.0),
        ];
        let mut report = Report { peers, ..Report::default() };
        add_ratios(&mut report);
        let ratios: Vec<_> =
            report.ratios.iter().map(|ratio| (ratio.name.as_str(), ratio.kept)).collect();
        let expected =
            [("postgres chain to pg-boss, c", false), ("postgres chain to pg-boss, d", true)];
        assert_eq!(ratios, expected);
    }
}
