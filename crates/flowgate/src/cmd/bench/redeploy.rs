//! What the gate of a flow costs its starts, and a rolling deployment the runs beside it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use flowgate_core::commit::{Commit, Due, Guard};
use flowgate_core::decide::{self, Start};
use flowgate_core::deploy::{Phase, Settings};
use flowgate_core::flow::Flow;
use flowgate_core::gate::GateStamp;
use flowgate_core::ids::{CommitId, RunId};
use flowgate_core::payload::Payload;
use flowgate_engine::{
    DeployRequest, Engine, EngineConfig, SchedulerConfig, StartRequest, Workers, find_deployment,
    instance_id,
};
use flowgate_store::{CommitOutcome, Queues, Store};
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use super::flows::{CHAIN, SINGLE};
use super::{IN_FLIGHT, Ratio, Rig};

/// Starts in one call of the store.
const BATCH: usize = 100;
/// How much of the speed of starts is left with the gate.
const GATED_MIN: f64 = 0.97;
/// How much of the throughput is left while a deployment is under way.
const DEPLOYING_MIN: f64 = 0.9;
/// How often a deployment is looked at, and how long it may take.
const LOOK: Duration = Duration::from_millis(20);
const ENDED_MAX: Duration = Duration::from_mins(1);

/// Measures both on a store. What it leaves there is due in an hour.
pub(crate) async fn measure(rig: &Rig, runs: usize, rounds: usize) -> anyhow::Result<Vec<Ratio>> {
    let gate = gate(&*rig.store, runs * 2 / BATCH).await.context("measuring starts")?;
    let rolling = rolling(rig, runs, rounds).await.context("measuring a deployment")?;
    Ok(vec![gate, rolling])
}

/// Starts with and without the guard of the gate, in turn, so that both meet the same machine.
async fn gate(store: &dyn Store, batches: usize) -> anyhow::Result<Ratio> {
    let flow = SINGLE.flow();
    let mut took = [Duration::ZERO; 2];
    for number in 0..batches.max(4) {
        // The one that comes first takes turns, too.
        for is_gated in [number % 2 == 0, number % 2 == 1] {
            let commits: Vec<Commit> = (0..BATCH).map(|_| start(&flow, is_gated)).collect();
            let clock = Instant::now();
            let outcomes = store.commit(commits, None).await?;
            took[usize::from(is_gated)] += clock.elapsed();
            let is_applied =
                |outcome: &CommitOutcome| matches!(outcome, CommitOutcome::Applied { .. });
            ensure!(outcomes.iter().all(is_applied), "a start was refused");
        }
    }
    let [without, with] = took.map(|took| took.as_secs_f64());
    let name = format!("{} starts with a gate to those without", store.kind());
    Ok(Ratio::at_least(name, without / with, GATED_MIN))
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

/// Runs beside a rolling deployment and without one, in turn.
async fn rolling(rig: &Rig, runs: usize, rounds: usize) -> anyhow::Result<Ratio> {
    let queues = Queues::Only(Vec::new());
    let schedules = Some(SchedulerConfig::with_lease(Duration::from_secs(5)));
    let config = EngineConfig { queues, schedules, ..EngineConfig::new(instance_id()) };
    let leader = Engine::start(Arc::clone(&rig.store), Workers::new(), config)?;
    rig.engine.register(&CHAIN.flow(), None).await?;
    drive(&rig.engine, runs / 10).await?;
    let mut ratios = Vec::new();
    for round in 0..rounds {
        let without = drive(&rig.engine, runs).await?;
        let (with, deployed) = tokio::join!(drive(&rig.engine, runs), deploy(&leader, round));
        deployed?;
        ratios.push(without.as_secs_f64() / with?.as_secs_f64());
    }
    leader.shutdown().await;
    ratios.sort_by(f64::total_cmp);
    let name = format!("{} chain beside a rolling deployment", rig.store.kind());
    Ok(Ratio::at_least(name, ratios[ratios.len() / 2], DEPLOYING_MIN))
}

/// Starts runs of the active revision, many at a time; how long all of them took.
async fn drive(engine: &Engine, runs: usize) -> anyhow::Result<Duration> {
    let left = Arc::new(AtomicUsize::new(runs));
    let clock = Instant::now();
    let mut drivers = JoinSet::new();
    for _ in 0..IN_FLIGHT {
        let (engine, left) = (engine.clone(), Arc::clone(&left));
        drivers.spawn(async move {
            let next = |n: usize| n.checked_sub(1);
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok() {
                engine.run_to_end(CHAIN.name, StartRequest::new(Payload::null())).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(driven) = drivers.join_next().await {
        driven??;
    }
    Ok(clock.elapsed())
}

async fn deploy(leader: &Engine, round: usize) -> anyhow::Result<()> {
    let mut file = CHAIN.flow().file;
    file.description = Some(format!("revision {} of round {round}", fastrand::u64(..)));
    let flow = Flow::new(file).map_err(|_| anyhow::anyhow!("the flow is not valid"))?;
    let request = DeployRequest {
        flow,
        folder: None,
        settings: Settings::default(),
        author: None,
        note: None,
        is_forced: false,
    };
    let begun = leader.start_deployment(request).await?;
    let clock = Instant::now();
    loop {
        let id = Some(&*begun.deployment_id.0);
        let found = find_deployment(&**leader.store(), CHAIN.name, id).await?;
        match found.map(|found| found.phase) {
            Some(Phase::Completed) => return Ok(()),
            Some(Phase::RolledBack) | None => anyhow::bail!("the deployment was rolled back"),
            Some(_) => ensure!(clock.elapsed() < ENDED_MAX, "the deployment does not end"),
        }
        tokio::time::sleep(LOOK).await;
    }
}
