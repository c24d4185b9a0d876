//! Limits, settings of queues, singletons and starts that are put off, on a store in memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::commit::Due;
use flowgate_core::event::Event;
use flowgate_core::flow::Flow;
use flowgate_core::ids::{Position, RunId};
use flowgate_core::run::RunStatus;
use flowgate_engine::{
    Engine, EngineConfig, EngineError, HandlerError, QueueRate, QueueSettings, StartRequest,
    StepContext, Workers, change_queue, queue_settings,
};
use flowgate_store::{Queues, Store};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::world::{World, config, eventually, is, payload, store};

/// How long the work of one job takes.
const WORK: Duration = Duration::from_millis(10);

pub(crate) const TENANTS: &str = "{flow: tenants, steps: {
    work: {run: {worker: work}, concurrency: {key: input.tenant, limit: 2}}}}";

/// What handlers saw: how many of each tenant ran at once, and when each ended.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<Sight>>);

#[derive(Default)]
struct Sight {
    running: HashMap<String, u32>,
    most: HashMap<String, u32>,
    began: Vec<(String, Instant)>,
    ended: Vec<(String, Instant)>,
}

impl Seen {
    /// A handler that takes `span` for the tenant of its input.
    pub(crate) fn workers(&self, span: Duration) -> Workers {
        let seen = self.clone();
        let mut workers = Workers::new();
        workers.register("work", move |input: Value, _: StepContext| {
            let seen = seen.clone();
            async move {
                let tenant = input["tenant"].to_string();
                seen.begin(&tenant);
                // The work itself, not a test that waits.
                tokio::time::sleep_until(Instant::now() + span).await;
                seen.end(&tenant);
                Ok::<_, HandlerError>(())
            }
        });
        workers
    }

    fn begin(&self, tenant: &str) {
        let mut sight = self.0.lock();
        sight.began.push((tenant.to_owned(), Instant::now()));
        let running = sight.running.entry(tenant.to_owned()).or_default();
        *running += 1;
        let running = *running;
        let most = sight.most.entry(tenant.to_owned()).or_default();
        *most = running.max(*most);
    }

    fn end(&self, tenant: &str) {
        let mut sight = self.0.lock();
        *sight.running.get_mut(tenant).expect("it began") -= 1;
        sight.ended.push((tenant.to_owned(), Instant::now()));
    }

    /// The most that ran at once of any tenant.
    pub(crate) fn most(&self) -> u32 {
        self.0.lock().most.values().copied().max().unwrap_or(0)
    }

    pub(crate) fn began(&self) -> Vec<Instant> {
        self.0.lock().began.iter().map(|(_, at)| *at).collect()
    }

    /// The order in which tenants began.
    fn order(&self) -> Vec<String> {
        self.0.lock().began.iter().map(|(tenant, _)| tenant.clone()).collect()
    }

    /// When all but one in a hundred had ended, of those that `which` chooses, after `since`.
    pub(crate) fn p99(&self, since: Instant, which: impl Fn(&str) -> bool) -> Duration {
        let sight = self.0.lock();
        let chosen = sight.ended.iter().filter(|(tenant, _)| which(tenant));
        let mut ends: Vec<Duration> = chosen.map(|(_, at)| *at - since).collect();
        ends.sort_unstable();
        ends[(ends.len() * 99).div_ceil(100) - 1]
    }
}

/// An engine that only starts runs.
pub(crate) fn client() -> EngineConfig {
    EngineConfig { queues: Queues::Only(Vec::new()), ..config("client") }
}

/// Starts `count` runs of the one limited tenant, then as many of others; who they are for.
pub(crate) async fn start_tenants(
    client: &Engine,
    flow: &Flow,
    count: usize,
) -> HashMap<RunId, String> {
    let mut runs = HashMap::new();
    let big = (0..count).map(|_| "big".to_owned());
    let others = (0..count).map(|number| format!("t{}", number % (count / 2)));
    let tenants: Vec<String> = big.chain(others).collect();
    for some in tenants.chunks(100) {
        let starts = some.iter().map(|tenant| {
            client.start_run(flow, StartRequest::new(payload(json!({ "tenant": tenant }))))
        });
        let started = futures_util::future::join_all(starts).await;
        let ids = started.into_iter().map(|started| started.unwrap().run_id);
        runs.extend(ids.zip(some.iter().cloned()));
    }
    runs
}

/// The most attempts of one tenant that were running at once, by the order of the log.
pub(crate) async fn most_by_log(store: &dyn Store, runs: &HashMap<RunId, String>) -> i32 {
    let mut running: HashMap<&str, i32> = HashMap::new();
    let (mut after, mut most) = (Position::default(), 0);
    loop {
        let page = store.read_feed(0, after, 1_000).await.unwrap();
        let Some(last) = page.last() else { return most };
        after = last.position;
        for stored in page {
            let count = running.entry(&runs[&stored.run_id]).or_default();
            if matches!(stored.event, Event::StepStarted { .. }) {
                *count += 1;
            } else if matches!(stored.event, Event::StepSucceeded { .. }) {
                *count -= 1;
            }
            most = most.max(*count);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn never_more_than_two_of_a_key_run_at_once_and_other_keys_are_not_starved() {
    let (seen, store) = (Seen::default(), store());
    let flow = Flow::parse(TENANTS).unwrap();
    let starter = Engine::start(Arc::clone(&store), Workers::new(), client()).unwrap();
    starter.register(&flow, None).await.unwrap();
    let runs = start_tenants(&starter, &flow, 1_000).await;
    let began = Instant::now();
    let engine = |name: &str| {
        let config = EngineConfig { started_after: Duration::from_millis(1), ..config(name) };
        Engine::start(Arc::clone(&store), seen.workers(WORK), config).unwrap()
    };
    let engines = ["a", "b", "c"].map(engine);
    for run_id in runs.keys() {
        let detail = starter.wait(*run_id).await.unwrap();
        is(&detail, RunStatus::Completed);
    }
    assert_eq!(seen.most(), 2, "as the handlers saw it");
    assert_eq!(most_by_log(&*store, &runs).await, 2, "as the log has it");
    // A thousand jobs, two at a time, take 500 times as long as one. The others need not wait for
    // them: all but the last in a hundred have ended in a tenth of that.
    let (big, others) = (seen.p99(began, |t| t == "\"big\""), seen.p99(began, |t| t != "\"big\""));
    assert!(big >= WORK * 490, "{big:?}");
    assert!(others < big / 10, "others {others:?}, limited {big:?}");
    for run_id in runs.keys() {
        let log = flowgate_store::whole_log(&*store, *run_id).await.unwrap();
        assert_eq!(flowgate_core::check::check_run(&[&flow], *run_id, &log, None), []);
    }
    let keys = ["big", "t0"].map(|t| format!("step/tenants/work/concurrency/input.tenant={t}"));
    for key in keys {
        let left = store.read_permits(&key).await.unwrap();
        assert_eq!((left.holders.len(), left.in_line), (0, 0), "{key}");
    }
    for engine in engines {
        engine.shutdown().await;
    }
}

const ONE: &str = "{flow: one, steps: {work: {run: {worker: work}, concurrency: {limit: 1}}}}";

/// A handler that never ends for the tenant "stuck", and ends at once for others.
fn sticky() -> (Workers, Seen) {
    let seen = Seen::default();
    let mut workers = Workers::new();
    let sight = seen.clone();
    workers.register("work", move |input: Value, _: StepContext| {
        let seen = sight.clone();
        async move {
            let tenant = input["tenant"].as_str().unwrap_or_default().to_owned();
            seen.begin(&tenant);
            if tenant == "stuck" {
                std::future::pending::<()>().await;
            }
            seen.end(&tenant);
            Ok::<_, HandlerError>(())
        }
    });
    (workers, seen)
}

fn tenant(name: &str) -> Value {
    json!({ "tenant": name })
}

async fn parked(world: &World, run_id: RunId) -> bool {
    world.story(run_id).await.contains(&"step.parked work".to_owned())
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_dies_frees_its_permit_for_the_next_in_line() {
    let (workers, seen) = sticky();
    let store = store();
    let (dying, other) = (workers.clone(), workers);
    let world = World::with(Arc::clone(&store), ONE, vec![(dying, config("a"))]).await;
    let stuck = world.start(tenant("stuck")).await;
    eventually("the first runs", async || seen.order() == ["stuck"]).await;
    let others = Engine::start(Arc::clone(&store), other, config("b")).unwrap();
    let next = world.start(tenant("next")).await;
    eventually("the second is parked", async || parked(&world, next).await).await;
    // It ends like a process that is killed: without a word.
    let died = Instant::now();
    drop(world);
    let detail = others.wait(next).await.unwrap();
    is(&detail, RunStatus::Completed);
    let lease = EngineConfig::new(flowgate_engine::instance_id()).lease;
    assert!(died.elapsed() <= lease * 2, "{:?}", died.elapsed());
    others.cancel(stuck, None).await.unwrap();
    others.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_kept_as_long_as_its_attempt_runs() {
    let (workers, seen) = sticky();
    let world = World::new(ONE, workers).await;
    let stuck = world.start(tenant("stuck")).await;
    let next = world.start(tenant("next")).await;
    tokio::time::sleep(world.engine().config().lease * 20).await;
    assert_eq!(seen.order(), ["stuck"]);
    assert!(parked(&world, next).await);
    // Cancelling the run frees it at once.
    let cancelled = Instant::now();
    world.engine().cancel(stuck, None).await.unwrap();
    is(&world.ended(next).await, RunStatus::Completed);
    assert!(cancelled.elapsed() < Duration::from_secs(1), "{:?}", cancelled.elapsed());
    let story = world.story(next).await;
    assert!(story.contains(&"step.parked work".to_owned()), "{story:?}");
    assert_eq!(world.store.read_run(next).await.unwrap().unwrap().row.run.steps[0].attempt, 1);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_job_in_line_whose_run_was_cancelled_passes_its_turn_on() {
    let (workers, seen) = sticky();
    let world = World::new(ONE, workers).await;
    let stuck = world.start(tenant("stuck")).await;
    let gone = world.start(tenant("gone")).await;
    eventually("it is in line", async || parked(&world, gone).await).await;
    let next = world.start(tenant("next")).await;
    eventually("it is in line", async || parked(&world, next).await).await;
    world.engine().cancel(gone, None).await.unwrap();
    let began = Instant::now();
    world.engine().cancel(stuck, None).await.unwrap();
    is(&world.ended(next).await, RunStatus::Completed);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(seen.order(), ["stuck", "next"]);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_gives_permits_back() {
    let (workers, seen) = sticky();
    let quick = EngineConfig { shutdown_grace: Duration::from_millis(10), ..config("a") };
    let engines = vec![(workers.clone(), quick), (workers, config("b"))];
    let world = World::with(store(), ONE, engines).await;
    // Whoever runs it hands it back; the other must wait for its turn behind the next.
    let stuck = world.start(tenant("stuck")).await;
    eventually("it runs", async || seen.order().len() == 1).await;
    let next = world.start(tenant("next")).await;
    eventually("it is in line", async || parked(&world, next).await).await;
    let began = Instant::now();
    world.engines[0].shutdown().await;
    if world.engines[1].is_idle() {
        world.engines[1].wait(next).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
    world.engines[1].cancel(stuck, None).await.unwrap();
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_rate_holds_over_two_instances() {
    let yaml = "{flow: f, steps: {work: {run: {worker: work}, rate: {limit: 10, per: 1s}}}}";
    let seen = Seen::default();
    let engines = ["a", "b"].map(|name| (seen.workers(WORK), config(name)));
    let world = World::with(store(), yaml, engines.into()).await;
    let mut runs = Vec::new();
    for _ in 0..31 {
        runs.push(world.start(tenant("any")).await);
    }
    for run_id in runs {
        is(&world.ended(run_id).await, RunStatus::Completed);
    }
    let mut began = seen.began();
    began.sort_unstable();
    for (earlier, later) in began.iter().zip(&began[10..]) {
        assert!(*later - *earlier >= Duration::from_millis(990), "{:?}", *later - *earlier);
    }
    let all = began[30] - began[0];
    assert!(all < Duration::from_secs(5), "31 jobs at 10 a second took {all:?}");
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_step_with_a_limit_and_a_rate_on_a_limited_queue_meets_all_of_them() {
    let yaml = "{flow: f, steps: {work: {run: {worker: work}, queue: slow,
        concurrency: {key: input.tenant, limit: 2}, rate: {limit: 100, per: 1s}}}}";
    let seen = Seen::default();
    let store = store();
    let set = |settings: &mut QueueSettings| settings.concurrency = Some(3);
    change_queue(&*store, "slow", set).await.unwrap();
    let engines = ["a", "b"].map(|name| (seen.workers(WORK * 5), config(name)));
    let world = World::with(store, yaml, engines.into()).await;
    let mut runs = Vec::new();
    for number in 0..40 {
        runs.push(world.start(tenant(["x", "y"][number % 2])).await);
    }
    for run_id in runs {
        is(&world.ended(run_id).await, RunStatus::Completed);
    }
    assert_eq!(seen.most(), 2);
    let mut began = seen.began();
    began.sort_unstable();
    for (earlier, later) in began.iter().zip(&began[3..]) {
        assert!(*later - *earlier >= WORK * 5, "three at once in the queue");
    }
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_queue_rests_on_all_instances_and_goes_on_when_it_is_resumed() {
    let yaml = "{flow: f, steps: {first: {run: {worker: work}},
        work: {subscribes: [\"step:first\"], run: {worker: work}, queue: slow}}}";
    let seen = Seen::default();
    let engines = ["a", "b"].map(|name| (seen.workers(WORK), config(name)));
    let world = World::with(store(), yaml, engines.into()).await;
    is(&world.run(tenant("before")).await, RunStatus::Completed);
    let pause = |paused: bool| move |settings: &mut QueueSettings| settings.paused = paused;
    let (was, now) = change_queue(&*world.store, "slow", pause(true)).await.unwrap();
    assert_eq!((was.paused, now.paused), (false, true));
    // Two seconds are enough even where the word of it gets lost.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let run_id = world.start(tenant("paused")).await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(seen.order().len(), 3, "the first step ran, the second rests");
    let resumed = Instant::now();
    change_queue(&*world.store, "slow", pause(false)).await.unwrap();
    is(&world.ended(run_id).await, RunStatus::Completed);
    assert!(resumed.elapsed() <= Duration::from_secs(2), "{:?}", resumed.elapsed());
    assert_eq!(queue_settings(&*world.store).await.unwrap(), []);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_starts_leaves_a_paused_queue_alone() {
    let yaml = "{flow: f, steps: {work: {run: {worker: work}}}}";
    let (seen, store) = (Seen::default(), store());
    change_queue(&*store, "work", |settings| settings.paused = true).await.unwrap();
    let world = World::with(store, yaml, vec![(seen.workers(WORK), config("a"))]).await;
    let run_id = world.start(tenant("any")).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(seen.order().len(), 0);
    change_queue(&*world.store, "work", |settings| settings.paused = false).await.unwrap();
    is(&world.ended(run_id).await, RunStatus::Completed);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn settings_of_a_queue_change_one_by_one() {
    let store = store();
    let rate = QueueRate { count: 10, per_ms: 1_000 };
    change_queue(&*store, "mail", |settings| settings.paused = true).await.unwrap();
    change_queue(&*store, "mail", |settings| settings.rate = Some(rate)).await.unwrap();
    change_queue(&*store, "mail", |settings| settings.paused = false).await.unwrap();
    let expected = QueueSettings { paused: false, concurrency: None, rate: Some(rate) };
    assert_eq!(queue_settings(&*store).await.unwrap(), [("mail".into(), expected)]);
}

#[tokio::test(start_paused = true)]
async fn a_higher_priority_goes_first_and_starves_nobody() {
    let yaml = "{flow: f, steps: {work: {run: {worker: work}}}}";
    let (seen, store) = (Seen::default(), store());
    let flow = Flow::parse(yaml).unwrap();
    let starter = Engine::start(Arc::clone(&store), Workers::new(), client()).unwrap();
    starter.register(&flow, None).await.unwrap();
    let start = async |name: &str, priority: Option<u8>| {
        let request = StartRequest { priority, ..StartRequest::new(payload(tenant(name))) };
        starter.start_run(&flow, request).await.unwrap().run_id
    };
    start("old", None).await;
    // Ten minutes are more than what the highest priority is ahead.
    tokio::time::sleep(Duration::from_mins(10)).await;
    start("low", None).await;
    start("middle", Some(3)).await;
    let last = start("high", Some(9)).await;
    let one = EngineConfig { slots: 1, ..config("a") };
    let engine = Engine::start(Arc::clone(&store), seen.workers(WORK), one).unwrap();
    engine.wait(last).await.unwrap();
    eventually("all ran", async || seen.order().len() == 4).await;
    assert_eq!(seen.order(), ["\"old\"", "\"high\"", "\"middle\"", "\"low\""]);
    let refused = StartRequest { priority: Some(10), ..StartRequest::new(payload(1)) };
    let refused = starter.start_run(&flow, refused).await;
    assert!(matches!(refused, Err(EngineError::Invalid(_))), "{refused:?}");
    engine.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_put_off_runs_when_its_time_has_come() {
    let yaml = "{flow: f, steps: {work: {run: {worker: work}}}}";
    let seen = Seen::default();
    let world = World::new(yaml, seen.workers(WORK)).await;
    let delay = Duration::from_mins(5);
    let request =
        StartRequest { due: Due::After(delay), ..StartRequest::new(payload(tenant("any"))) };
    let began = Instant::now();
    let started = world.engine().start_run(&world.flow, request).await.unwrap();
    is(&world.ended(started.run_id).await, RunStatus::Completed);
    let waited = seen.began()[0] - began;
    assert!(waited >= delay && waited < delay + Duration::from_secs(2), "{waited:?}");
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_that_begins_with_a_wait_cannot_be_put_off() {
    let yaml = "{flow: f, steps: {pause: {wait: {delay: 1s}}}}";
    let world = World::new(yaml, Workers::new()).await;
    let due = Due::After(Duration::from_mins(5));
    let request = StartRequest { due, ..StartRequest::new(payload(1)) };
    let refused = world.engine().start_run(&world.flow, request).await;
    assert!(matches!(refused, Err(EngineError::Invalid(_))), "{refused:?}");
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_singleton_has_one_open_run_for_each_key_however_many_start_it() {
    let yaml = "{flow: f, singleton: {key: input.tenant}, steps: {work: {run: {worker: work}}}}";
    let (workers, seen) = sticky();
    let engines = ["a", "b"].map(|name| (workers.clone(), config(name)));
    let world = World::with(store(), yaml, engines.into()).await;
    let starts = (0..50_usize).map(|number| {
        let input = json!({ "tenant": "stuck", "number": number });
        let (engine, flow) = (&world.engines[number % 2], &world.flow);
        engine.start_run(flow, StartRequest::new(payload(input)))
    });
    let started: Vec<_> = futures_util::future::join_all(starts).await;
    let started: Vec<_> = started.into_iter().map(Result::unwrap).collect();
    let first = started[0].run_id;
    assert!(started.iter().all(|one| one.run_id == first));
    assert_eq!(started.iter().filter(|one| !one.existing).count(), 1);
    let other = world.start(tenant("other")).await;
    assert_ne!(other, first);
    // When it has ended, the next start begins another one.
    world.engine().cancel(first, None).await.unwrap();
    let second = world.start(tenant("stuck")).await;
    assert_ne!(second, first);
    eventually("it runs", async || seen.order().iter().filter(|t| *t == "stuck").count() == 2)
        .await;
    world.engine().cancel(second, None).await.unwrap();
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_singleton_key_of_a_start_counts_where_the_flow_has_none() {
    let yaml = "{flow: f, steps: {pause: {wait: {signal: go}}}}";
    let world = World::new(yaml, Workers::new()).await;
    let start = async |key: Option<&str>, singleton: &str| {
        let request = StartRequest {
            key: key.map(Into::into),
            singleton: Some(singleton.into()),
            ..StartRequest::new(payload(1))
        };
        world.engine().start_run(&world.flow, request).await
    };
    let first = start(None, "import").await.unwrap();
    let again = start(None, "import").await.unwrap();
    assert_eq!((again.run_id, again.existing), (first.run_id, true));
    assert_ne!(start(None, "export").await.unwrap().run_id, first.run_id);
    let refused = start(Some("k"), "import").await;
    assert!(matches!(refused, Err(EngineError::Invalid(_))), "{refused:?}");
    world.shutdown().await;
}
