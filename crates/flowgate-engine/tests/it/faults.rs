//! Several instances, and stores that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::commit::{Claimed, Commit};
use flowgate_core::event::StoredEvent;
use flowgate_core::ids::{Position, RunId};
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_engine::{HandlerError, StepContext, Workers};
use flowgate_store::{
    Claimant, CommitOutcome, LeaseRef, LogLine, NewLogLine, NewRevision, Queues, Renewal,
    Retention, RunDetail, RunQuery, RunRow, Store, StoreError, StoredRevision, Swept,
};
use serde_json::{Value, json};

use crate::world::{World, config, eventually, is, store};

const DIAMOND: &str = "{flow: diamond, steps: {
    start: {run: {worker: work}, emits: [go]},
    left: {subscribes: [go], run: {worker: work}, emits: [l]},
    right: {subscribes: [go], run: {worker: work}, emits: [r]},
    join: {subscribes: [l, r], run: {worker: work}}}}";

/// Handlers of the diamond; how often the join ran.
fn workers() -> (Workers, Arc<AtomicU32>) {
    let joins = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&joins);
    let mut workers = Workers::new();
    workers.register("work", move |_: Value, ctx: StepContext| {
        let counted = Arc::clone(&counted);
        async move {
            match ctx.step() {
                "start" => ctx.emit("go", &())?,
                "left" => ctx.emit("l", &())?,
                "right" => ctx.emit("r", &())?,
                _ => {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            }
            // The other instance gets a chance to claim.
            tokio::task::yield_now().await;
            Ok::<(), HandlerError>(())
        }
    });
    (workers, joins)
}

#[tokio::test(start_paused = true)]
async fn two_engines_join_each_of_200_diamonds_once() {
    let (workers, joins) = workers();
    // Two slots each: hand-offs rarely find room, so both instances claim jobs of every run.
    let small = |name| {
        let mut config = config(name);
        config.slots = 2;
        (workers.clone(), config)
    };
    let world = World::with(store(), DIAMOND, vec![small("a"), small("b")]).await;
    let runs = futures_util::future::join_all((0..200).map(|number| world.start(number))).await;
    let mut instances = std::collections::BTreeSet::new();
    for run_id in runs {
        is(&world.ended(run_id).await, RunStatus::Completed);
        let events = world.events(run_id).await;
        let leases = events.iter().filter_map(|event| event.lease());
        instances.extend(leases.map(|lease| lease.instance.to_string()));
    }
    assert_eq!(joins.load(Ordering::SeqCst), 200);
    assert_eq!(instances.len(), 2, "both took part");
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn lost_replies_lose_and_double_nothing() {
    let (workers, joins) = workers();
    let faulty = Arc::new(Faulty::new(store()));
    let world = World::with(faulty.clone(), DIAMOND, vec![(workers, config("a"))]).await;
    faulty.lose_replies_of_every(3);
    let mut runs = Vec::new();
    for number in 0..50 {
        runs.push(world.start(number).await);
    }
    for run_id in runs {
        let ended = world.ended(run_id).await;
        is(&ended, RunStatus::Completed);
        assert!(ended.row.run.steps.iter().all(|step| step.lost == 0 && step.attempt == 1));
    }
    assert_eq!(joins.load(Ordering::SeqCst), 50);
    assert!(faulty.faults() > 10, "{} faults", faulty.faults());
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_pauses_runs_and_they_resume() {
    let (workers, joins) = workers();
    let faulty = Arc::new(Faulty::new(store()));
    let world = World::with(faulty.clone(), DIAMOND, vec![(workers, config("a"))]).await;
    let run_id = world.start(json!(null)).await;
    faulty.set_down(true);
    let second = {
        let (engine, flow) = (world.engine().clone(), world.flow.clone());
        let request = flowgate_engine::StartRequest::new(crate::world::payload(2));
        tokio::task::LocalSet::new()
            .run_until(async {
                let start =
                    tokio::task::spawn_local(async move { engine.start_run(&flow, request).await });
                tokio::time::advance(Duration::from_secs(5)).await;
                faulty.set_down(false);
                start.await.unwrap()
            })
            .await
            .unwrap()
    };
    is(&world.ended(run_id).await, RunStatus::Completed);
    is(&world.ended(second.run_id).await, RunStatus::Completed);
    assert_eq!(joins.load(Ordering::SeqCst), 2);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn reports_of_one_run_that_come_together_are_joined() {
    let mut workers = Workers::new();
    workers.register("work", |_: Value, ctx: StepContext| async move {
        match ctx.step() {
            "start" => ctx.emit("go", &())?,
            step => ctx.emit(&format!("{step}.done"), &())?,
        }
        Ok::<(), HandlerError>(())
    });
    let fan: Vec<String> = (0..20)
        .map(|n| format!("f{n}: {{subscribes: [go], run: {{worker: work}}, emits: [f{n}.done]}}"))
        .collect();
    let all: Vec<String> = (0..20).map(|n| format!("f{n}.done")).collect();
    let yaml = format!(
        "{{flow: f, steps: {{start: {{run: {{worker: work}}, emits: [go]}}, {},
            join: {{subscribes: [{}]}}}}}}",
        fan.join(", "),
        all.join(", ")
    );
    let faulty = Arc::new(Faulty::new(store()));
    let world = World::with(faulty.clone(), &yaml, vec![(workers, config("a"))]).await;
    is(&world.run(json!(null)).await, RunStatus::Completed);
    // The start, the first step, and all twenty at once: on one thread nothing tears them apart.
    assert_eq!(faulty.commits.load(Ordering::SeqCst), 3);
    assert_eq!(faulty.claims.load(Ordering::SeqCst), 1, "hand-offs need no claim");
    eventually("nothing is left", || async { world.engine().is_idle() }).await;
    world.shutdown().await;
}

/// A store that fails when told to, and counts.
#[derive(Debug)]
pub(crate) struct Faulty {
    inner: Arc<dyn Store>,
    is_down: AtomicBool,
    is_renewal_down: AtomicBool,
    lose_every: AtomicU64,
    calls: AtomicU64,
    faults: AtomicU64,
    commits: AtomicU64,
    claims: AtomicU64,
}

impl Faulty {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            is_down: AtomicBool::new(false),
            is_renewal_down: AtomicBool::new(false),
            lose_every: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            commits: AtomicU64::new(0),
            claims: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::SeqCst);
    }

    pub(crate) fn fail_renewals(&self, fail: bool) {
        self.is_renewal_down.store(fail, Ordering::SeqCst);
    }

    /// Every `count`th batch of commits is applied, and its answer is lost.
    fn lose_replies_of_every(&self, count: u64) {
        self.lose_every.store(count, Ordering::SeqCst);
    }

    fn faults(&self) -> u64 {
        self.faults.load(Ordering::SeqCst)
    }

    fn fault(&self) -> StoreError {
        self.faults.fetch_add(1, Ordering::SeqCst);
        StoreError::Unavailable { message: "a planted fault".to_owned(), source: None }
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.is_down.load(Ordering::SeqCst) { Err(self.fault()) } else { Ok(()) }
    }
}

#[async_trait]
impl Store for Faulty {
    fn kind(&self) -> &'static str {
        "faulty"
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.inner.now().await
    }

    async fn commit(
        &self,
        commits: Vec<Commit>,
        claimant: Option<&Claimant>,
    ) -> Result<Vec<CommitOutcome>, StoreError> {
        self.check()?;
        self.commits.fetch_add(1, Ordering::SeqCst);
        let outcomes = self.inner.commit(commits, claimant).await?;
        let every = self.lose_every.load(Ordering::SeqCst);
        if every > 0 && self.calls.fetch_add(1, Ordering::SeqCst).is_multiple_of(every) {
            return Err(self.fault());
        }
        Ok(outcomes)
    }

    async fn claim(&self, claimant: &Claimant) -> Result<Vec<Claimed>, StoreError> {
        self.check()?;
        self.claims.fetch_add(1, Ordering::SeqCst);
        self.inner.claim(claimant).await
    }

    async fn wait_due(&self, queues: &Queues, wait_max: Duration) -> Result<(), StoreError> {
        self.check()?;
        self.inner.wait_due(queues, wait_max).await
    }

    async fn renew(
        &self,
        leases: &[LeaseRef],
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        self.check()?;
        if self.is_renewal_down.load(Ordering::SeqCst) {
            return Err(self.fault());
        }
        self.inner.renew(leases, lease).await
    }

    async fn read_run(&self, run_id: RunId) -> Result<Option<RunDetail>, StoreError> {
        self.check()?;
        self.inner.read_run(run_id).await
    }

    async fn read_events(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.check()?;
        self.inner.read_events(run_id, after, limit).await
    }

    async fn read_feed(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.inner.read_feed(after, limit).await
    }

    async fn list_runs(&self, query: &RunQuery) -> Result<Vec<RunRow>, StoreError> {
        self.inner.list_runs(query).await
    }

    async fn append_logs(&self, lines: Vec<NewLogLine>) -> Result<(), StoreError> {
        self.check()?;
        self.inner.append_logs(lines).await
    }

    async fn read_logs(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LogLine>, StoreError> {
        self.inner.read_logs(run_id, after, limit).await
    }

    async fn register_flow(&self, revision: NewRevision) -> Result<(), StoreError> {
        self.inner.register_flow(revision).await
    }

    async fn list_revisions(&self, flow: Option<&str>) -> Result<Vec<StoredRevision>, StoreError> {
        self.inner.list_revisions(flow).await
    }

    async fn sweep(&self, retention: &Retention) -> Result<Swept, StoreError> {
        self.inner.sweep(retention).await
    }
}
