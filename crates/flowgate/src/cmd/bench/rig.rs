//! An engine under measured load.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use flowgate_core::flow::Flow;
use flowgate_core::payload::Payload;
use flowgate_engine::{Engine, EngineConfig, Health, StartRequest, Workers, instance_id};
use flowgate_store::Store;
use flowgate_store::sqlite::{SqliteOptions, SqliteStore};
use tokio::task::JoinSet;

use super::measure::Meter;
use super::server::ServerProcess;
use super::{Figure, IN_FLIGHT, flows, growth};

/// An engine with the no-op handlers of the scenarios.
pub(crate) struct Rig {
    pub(super) engine: Engine,
    pub(super) store: Arc<dyn Store>,
    sqlite: Option<Arc<SqliteStore>>,
}

impl Rig {
    pub(super) fn new(store: Arc<dyn Store>) -> anyhow::Result<Self> {
        // It measures runs; schedules of a store that it is pointed at are not its business.
        let schedules = None;
        let config = EngineConfig { slots: 1_024, schedules, ..EngineConfig::new(instance_id()) };
        let engine = Engine::start(Arc::clone(&store), workers(), config)?;
        Ok(Self { engine, store, sqlite: None })
    }

    /// Returns when the engine takes jobs.
    pub(super) async fn ready(&self) -> anyhow::Result<()> {
        let mut health = self.engine.health();
        health.wait_for(|health| *health == Health::Ready).await.context("starting an engine")?;
        Ok(())
    }

    pub(super) async fn on_file(file: &Path) -> anyhow::Result<Self> {
        let options = SqliteOptions::new(instance_id());
        let sqlite = Arc::new(SqliteStore::open(file, options).await?);
        let mut rig = Self::new(Arc::clone(&sqlite) as Arc<dyn Store>)?;
        rig.sqlite = Some(sqlite);
        Ok(rig)
    }

    /// How many commits the file took in one transaction, on average.
    pub(super) fn batch(&self) -> usize {
        let stats = self.sqlite.as_ref().map(|sqlite| sqlite.stats()).unwrap_or_default();
        usize::try_from(stats.commits / stats.transactions.max(1)).unwrap_or(1).max(1)
    }

    pub(super) async fn throughput(
        &self,
        scenario: &flows::Scenario,
        runs: usize,
    ) -> anyhow::Result<Figure> {
        let flow = Arc::new(scenario.flow());
        self.engine.register(&flow, None).await?;
        // The first runs load the revision, grow the maps and warm the file's cache.
        self.drive(&flow, runs / 20, IN_FLIGHT).await?;
        let meter = Meter::start();
        let latencies = self.drive(&flow, runs, IN_FLIGHT).await?;
        Ok(meter.stop(self.store.kind(), scenario.name, runs * flow.steps.len(), latencies))
    }

    /// One chain at a time.
    pub(super) async fn idle_chain(
        &self,
        runs: usize,
        server: Option<ServerProcess>,
    ) -> anyhow::Result<Figure> {
        let flow = Arc::new(flows::CHAIN.flow());
        self.engine.register(&flow, None).await?;
        self.drive(&flow, 10, 1).await?;
        let meter = Meter::start_with(server);
        let latencies = self.drive(&flow, runs, 1).await?;
        Ok(meter.stop(self.store.kind(), "idle chain", runs * flow.steps.len(), latencies))
    }

    /// Starts `runs` runs, `in_flight` at a time, and waits for them; how long each took.
    pub(crate) async fn drive(
        &self,
        flow: &Arc<Flow>,
        runs: usize,
        in_flight: usize,
    ) -> anyhow::Result<Vec<Duration>> {
        let left = Arc::new(AtomicUsize::new(runs));
        let mut drivers = JoinSet::new();
        for _ in 0..in_flight.min(runs) {
            let (engine, flow, left) = (self.engine.clone(), Arc::clone(flow), Arc::clone(&left));
            drivers.spawn(async move { drive_one_by_one(&engine, &flow, &left).await });
        }
        let mut latencies = Vec::with_capacity(runs);
        while let Some(driven) = drivers.join_next().await {
            latencies.extend(driven??);
        }
        Ok(latencies)
    }
}

async fn drive_one_by_one(
    engine: &Engine,
    flow: &Flow,
    left: &AtomicUsize,
) -> anyhow::Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
        let clock = tokio::time::Instant::now();
        let request = StartRequest::new(Payload::null());
        engine.run_to_end(flow, request).await?;
        latencies.push(clock.elapsed());
    }
    Ok(latencies)
}

fn workers() -> Workers {
    let mut workers = Workers::new();
    for scenario in flows::ALL {
        scenario.register(&mut workers);
    }
    growth::register(&mut workers);
    workers
}
