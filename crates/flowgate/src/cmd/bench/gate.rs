//! What the gate of a flow costs its starts.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use flowgate_core::commit::{Commit, Due, Guard};
use flowgate_core::decide::{self, Start};
use flowgate_core::flow::Flow;
use flowgate_core::gate::GateStamp;
use flowgate_core::ids::{CommitId, RunId};
use flowgate_core::payload::Payload;
use flowgate_store::{CommitOutcome, Store};
use tokio::time::Instant;
use uuid::Uuid;

use super::Ratio;
use super::flows::SINGLE;
use super::shared::middle;

/// Starts in one call of the store.
const BATCH: usize = 100;
/// Pairs of calls, one with the gate and one without; the ratio in the middle counts.
const PAIRS: usize = 200;
/// How much of the speed of starts is left with the gate.
const GATED_MIN: f64 = 0.97;

/// Starts with and without the guard of the gate, in turn, so that both meet the same machine.
/// What it leaves in the store is due in an hour.
pub(crate) async fn measure(store: &dyn Store) -> anyhow::Result<Ratio> {
    let flow = SINGLE.flow();
    let mut ratios = Vec::new();
    for number in 0..PAIRS {
        let mut took = [0.0; 2];
        // The one that comes first takes turns, too.
        for is_gated in [number % 2 == 0, number % 2 == 1] {
            let commits: Vec<Commit> = (0..BATCH).map(|_| start(&flow, is_gated)).collect();
            let clock = Instant::now();
            let outcomes = store.commit(commits, None).await?;
            took[usize::from(is_gated)] = clock.elapsed().as_secs_f64();
            let is_applied =
                |outcome: &CommitOutcome| matches!(outcome, CommitOutcome::Applied { .. });
            ensure!(outcomes.iter().all(is_applied), "a start was refused");
        }
        let [without, with] = took;
        ratios.push(without / with);
    }
    let name = format!("{} starts with a gate to those without", store.kind());
    Ok(Ratio::at_least(name, middle(ratios), GATED_MIN))
}

fn start(flow: &Flow, is_gated: bool) -> Commit {
    let start = Start {
        run_id: RunId(Uuid::now_v7()),
        input: Payload::null(),
        key: None,
        tags: BTreeMap::new(),
        priority: None,
        due: Due::After(Duration::from_hours(1)),
        gate: GateStamp::default(),
        instance: None,
        pool: None,
    };
    let mut commit = decide::start(flow, &start, CommitId(Uuid::now_v7()));
    if !is_gated {
        commit.guards.retain(|guard| !matches!(guard, Guard::Gate { .. }));
    }
    commit
}
