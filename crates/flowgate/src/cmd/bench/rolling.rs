//! What a rolling deployment costs the runs beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use flowgate_core::deploy::{Phase, Settings};
use flowgate_core::flow::Flow;
use flowgate_core::payload::Payload;
use flowgate_engine::{
    DeployRequest, Engine, EngineConfig, SchedulerConfig, StartRequest, Workers, find_deployment,
    instance_id,
};
use flowgate_store::Queues;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::flows::CHAIN;
use super::shared::middle;
use super::{IN_FLIGHT, Ratio, Rig};

/// How much of the throughput is left while a deployment is under way.
const DEPLOYING_MIN: f64 = 0.9;
/// The lease of whoever drives it.
const LEASE: Duration = Duration::from_secs(5);
/// How often a deployment is looked at, and how long it may take.
const LOOK: Duration = Duration::from_millis(50);
const ENDED_MAX: Duration = Duration::from_mins(1);

/// How long runs are counted, with and without a deployment.
const WINDOW: Duration = Duration::from_millis(500);

/// Counts the runs that end while one rolling deployment follows the other and while there is none,
/// in turn, so that both meet the same machine; each round begins when the server is `at_rest`. An
/// instance that executes nothing drives them.
pub(crate) async fn measure(
    rig: &Rig,
    rounds: usize,
    at_rest: impl AsyncFn() -> anyhow::Result<()>,
) -> anyhow::Result<Ratio> {
    // Whoever serves no queue is a client, and leads nothing.
    let queues = Queues::Only(vec!["no-step-has-this".into()]);
    let schedules = Some(SchedulerConfig::with_lease(LEASE));
    let config = EngineConfig { queues, schedules, ..EngineConfig::new(instance_id()) };
    let driver = Engine::start(Arc::clone(&rig.store), Workers::new(), config)?;
    rig.engine.register(&CHAIN.flow(), None).await?;
    let load = Load::start(&rig.engine);
    let measured = in_turn(&load, &driver, rounds, at_rest).await;
    load.stop().await?;
    driver.shutdown().await;
    let name = format!("{} chain beside rolling deployments", rig.store.kind());
    Ok(Ratio::at_least(name, middle(measured?), DEPLOYING_MIN))
}

async fn in_turn(
    load: &Load,
    driver: &Engine,
    rounds: usize,
    at_rest: impl AsyncFn() -> anyhow::Result<()>,
) -> anyhow::Result<Vec<f64>> {
    // The first has the driver take its lease.
    deploy(driver).await?;
    let mut ratios = Vec::new();
    for _ in 0..rounds {
        at_rest().await?;
        let mut speeds = [0.0; 2];
        // In this order a machine that grows slower, or faster, does so for both.
        for is_deploying in [false, true, true, false] {
            let clock = load.clock();
            while clock.at.elapsed() < WINDOW {
                if is_deploying {
                    deploy(driver).await?;
                } else {
                    tokio::time::sleep(WINDOW).await;
                }
            }
            speeds[usize::from(is_deploying)] += load.speed_since(clock);
        }
        let [without, with] = speeds;
        ratios.push(with / without);
    }
    Ok(ratios)
}

/// Runs of the active revision, many at a time, until it is stopped.
struct Load {
    drivers: JoinSet<anyhow::Result<()>>,
    ended: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

/// A moment, and how many runs had ended by then.
#[derive(Clone, Copy)]
struct Clock {
    at: Instant,
    ended: u64,
}

impl Load {
    fn start(engine: &Engine) -> Self {
        let (ended, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut drivers = JoinSet::new();
        for _ in 0..IN_FLIGHT {
            let (engine, ended, is_over) =
                (engine.clone(), Arc::clone(&ended), Arc::clone(&is_over));
            drivers.spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    engine.run_to_end(CHAIN.name, StartRequest::new(Payload::null())).await?;
                    ended.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            });
        }
        Self { drivers, ended, is_over }
    }

    fn clock(&self) -> Clock {
        Clock { at: Instant::now(), ended: self.ended.load(Ordering::Relaxed) }
    }

    fn speed_since(&self, clock: Clock) -> f64 {
        let ended = u32::try_from(self.ended.load(Ordering::Relaxed) - clock.ended);
        f64::from(ended.unwrap_or(u32::MAX)) / clock.at.elapsed().as_secs_f64()
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(driven) = self.drivers.join_next().await {
            driven??;
        }
        Ok(())
    }
}

/// Deploys another revision of the chain, which differs in its description alone.
async fn deploy(driver: &Engine) -> anyhow::Result<()> {
    let mut file = CHAIN.flow().file;
    file.description = Some(format!("revision {}", fastrand::u64(..)));
    let flow = Flow::new(file).map_err(|_| anyhow::anyhow!("the flow is not valid"))?;
    let request = DeployRequest {
        flow,
        folder: None,
        settings: Settings::default(),
        author: None,
        note: None,
        is_forced: false,
    };
    let begun = driver.start_deployment(request).await?;
    let clock = Instant::now();
    loop {
        let id = Some(&*begun.deployment_id.0);
        let found = find_deployment(&**driver.store(), CHAIN.name, id).await?;
        match found.context("the deployment is gone")?.phase {
            Phase::Completed => return Ok(()),
            Phase::RolledBack => anyhow::bail!("the deployment was rolled back"),
            phase @ (Phase::Plan
            | Phase::Drain
            | Phase::Deploy
            | Phase::Verify
            | Phase::Resume
            | Phase::Audit
            | Phase::RollingBack) => {
                ensure!(clock.elapsed() < ENDED_MAX, "the deployment stays in {phase}");
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
