//! Several instances on one shared store, each with a handle of its own.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::check;
use flowgate_core::event::Event;
use flowgate_core::flow::Flow;
use flowgate_core::ids::{InstanceId, RunId};
use flowgate_engine::{
    Engine, EngineConfig, HandlerError, StartRequest, StepContext, Workers, instance_id,
};
use flowgate_store::{Queues, Store, open_shared};
use flowgate_testbed::FaultProxy;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::recorder::Counts;
use crate::world::payload;

/// A store that nobody else uses, on a private server.
pub(crate) struct Place(String);

impl Place {
    pub(crate) fn postgres() -> Self {
        let url = variable("FLOWGATE_TEST_POSTGRES");
        Self(format!("{url}?schema=engine_{:016x}", fastrand::u64(..)))
    }

    /// PostgreSQL as many instances have it, with fewer connections than they ask for.
    fn pgbouncer() -> Self {
        let url = variable("FLOWGATE_TEST_PGBOUNCER");
        Self(format!("{url}?schema=engine_{:016x}", fastrand::u64(..)))
    }

    pub(crate) fn redis() -> Self {
        let url = variable("FLOWGATE_TEST_REDIS");
        Self(format!("{url}?prefix=engine-{:016x}", fastrand::u64(..)))
    }

    /// One more handle of the store.
    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        open_shared(&self.0).await.expect("opening the store")
    }

    /// One more handle of the store, over connections that can be cut.
    pub(crate) async fn open_behind_proxy(&self) -> (FaultProxy, Arc<dyn Store>) {
        let (proxy, url) = behind_proxy(&self.0);
        (proxy, open_shared(&url).await.expect("opening the store"))
    }

    /// Instances, each with a handle and handlers of its own.
    async fn engines(&self, count: usize, workers: impl Fn() -> Workers) -> Vec<Engine> {
        let mut engines = Vec::new();
        for _ in 0..count {
            let config = EngineConfig::new(instance_id());
            engines.push(Engine::start(self.open().await, workers(), config).unwrap());
        }
        engines
    }
}

/// A proxy before the server of a URL, and the URL that leads through it.
pub(crate) fn behind_proxy(url: &str) -> (FaultProxy, String) {
    let (scheme, rest) = url.split_once("://").expect("a URL");
    let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(user, rest)| (user, rest));
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    let host = host.replace("localhost", "127.0.0.1");
    let upstream: SocketAddr = host.parse().expect("the address of a private server");
    let proxy = FaultProxy::start(upstream).expect("starting a proxy");
    let at = if user.is_empty() { String::new() } else { format!("{user}@") };
    let url = format!("{scheme}://{at}{}{path}", proxy.address());
    (proxy, url)
}

#[expect(clippy::disallowed_methods, reason = "the services tell the tests where they are")]
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run `cargo xtask services with cargo nextest run`")
    })
}

/// The log of a run that has ended, checked.
pub(crate) async fn checked_log(store: &dyn Store, flow: &Flow, run_id: RunId) -> Vec<Event> {
    let log = store.read_events(run_id, 0, 100_000).await.unwrap();
    let detail = store.read_run(run_id).await.unwrap().unwrap();
    let violations = check::check_run(&[flow], run_id, &log, Some(&detail.row.run));
    assert!(violations.is_empty(), "{violations:#?}");
    assert!(check::check_ended(run_id, &log).is_none());
    log.into_iter().map(|stored| stored.event).collect()
}

pub(crate) async fn shut_down(engines: Vec<Engine>) {
    for engine in engines {
        engine.shutdown().await;
    }
}

const RACE: &str = "
flow: race
steps:
  split: { run: { worker: split }, emits: [left, right] }
  one: { subscribes: [left], run: { worker: meet }, emits: [one.done], queue: left }
  other: { subscribes: [right], run: { worker: meet }, emits: [other.done], queue: right }
  join: { subscribes: [one.done, other.done], run: { worker: join } }
";

/// Where the two branches of each run meet, so that both end at the same moment.
#[derive(Clone, Default)]
struct Meetings(Arc<Mutex<HashMap<RunId, Meeting>>>);

#[derive(Clone)]
struct Meeting {
    barrier: Arc<Barrier>,
    ends: Arc<Mutex<Vec<Instant>>>,
}

impl Meetings {
    fn of(&self, run_id: RunId) -> Meeting {
        let new = || Meeting { barrier: Arc::new(Barrier::new(2)), ends: Arc::default() };
        self.0.lock().entry(run_id).or_insert_with(new).clone()
    }

    fn workers(&self) -> Workers {
        let meetings = self.clone();
        let mut workers = Workers::new();
        workers.register("split", async |_: Value, step: StepContext| {
            step.emit("left", &1)?;
            step.emit("right", &1)?;
            Ok::<_, HandlerError>(())
        });
        workers.register("meet", move |_: Value, step: StepContext| {
            let meeting = meetings.of(step.run_id());
            async move {
                meeting.barrier.wait().await;
                step.emit(&format!("{}.done", step.step()), &1)?;
                meeting.ends.lock().push(Instant::now());
                Ok::<_, HandlerError>(())
            }
        });
        workers.register("join", async |_: Value, _: StepContext| Ok::<_, HandlerError>(()));
        workers
    }

    /// How many runs have branches that ended within `span` of each other.
    fn close(&self, span: Duration) -> usize {
        let is_close = |meeting: &&Meeting| {
            let ends = meeting.ends.lock();
            ends.len() == 2 && ends[0].max(ends[1]) - ends[0].min(ends[1]) <= span
        };
        self.0.lock().values().filter(is_close).count()
    }
}

async fn race(place: &Place, times: usize) {
    const IN_FLIGHT: usize = 10;
    const CLOSE: Duration = Duration::from_millis(5);
    let flow = Flow::parse(RACE).unwrap();
    let meetings = Meetings::default();
    let serving = |queues: &[&str]| Queues::Only(queues.iter().map(|q| (*q).into()).collect());
    let mut engines = Vec::new();
    for (name, queues) in [("a", serving(&["default", "left"])), ("b", serving(&["right"]))] {
        let config = EngineConfig { queues, ..EngineConfig::new(InstanceId(name.into())) };
        engines.push(Engine::start(place.open().await, meetings.workers(), config).unwrap());
    }
    engines[0].register(&flow, None).await.unwrap();
    let mut runs = JoinSet::new();
    let mut ended = Vec::new();
    // On a busy machine some races are not close; they do not count.
    while meetings.close(CLOSE) < times {
        assert!(ended.len() < times * 5, "the branches do not end at the same moment");
        if runs.len() >= IN_FLIGHT {
            ended.extend(runs.join_next().await.map(Result::unwrap));
        }
        let (engine, flow) = (engines[0].clone(), flow.clone());
        runs.spawn(async move {
            let request = StartRequest::new(payload(1));
            engine.run_to_end(&flow, request).await.unwrap().run_id
        });
    }
    ended.extend(runs.join_all().await);
    let store = place.open().await;
    for run_id in ended {
        let log = checked_log(&*store, &flow, run_id).await;
        let is = |event: &&Event, name: &str| event.step().is_some_and(|step| **step == *name);
        let due = |event: &&Event| matches!(event, Event::StepQueued { .. }) && is(event, "join");
        assert_eq!(log.iter().filter(due).count(), 1, "the join became due once");
        let done = |name: &'static str| {
            let succeeds = move |event: &&Event| {
                matches!(event, Event::StepSucceeded { .. }) && is(event, name)
            };
            let mut events = log.iter().filter(succeeds);
            let event = events.next().expect("the step succeeded");
            assert!(events.next().is_none(), "{name} succeeded once");
            event.lease().map(|lease| lease.instance.0.to_string())
        };
        assert_eq!((done("one"), done("other")), (Some("a".into()), Some("b".into())));
        done("join");
    }
    shut_down(engines).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_of_two_instances_starts_once_a_thousand_times_on_postgres() {
    race(&Place::postgres(), 1_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_of_two_instances_starts_once_a_thousand_times_on_redis() {
    race(&Place::redis(), 1_000).await;
}

const DIAMOND: &str = "
flow: diamond
steps:
  begin: { run: { worker: work }, emits: [begin.a, begin.b] }
  a: { subscribes: [begin.a], run: { worker: work }, emits: [a.done] }
  b: { subscribes: [begin.b], run: { worker: work }, emits: [b.done] }
  join: { subscribes: [a.done, b.done], run: { worker: work }, emits: [join.done] }
  end: { subscribes: [join.done], run: { worker: work } }
";

fn diamond_workers() -> Workers {
    let mut workers = Workers::new();
    workers.register("work", async |_: Value, step: StepContext| {
        // Others get their turn between two steps of a run.
        for _ in 0..fastrand::u8(1..50) {
            tokio::task::yield_now().await;
        }
        let emits: &[&str] = match step.step() {
            "begin" => &["begin.a", "begin.b"],
            "a" => &["a.done"],
            "b" => &["b.done"],
            "join" => &["join.done"],
            _ => &[],
        };
        for event in emits {
            step.emit(event, &1)?;
        }
        Ok::<_, HandlerError>(())
    });
    workers
}

/// Starts so many runs at once, at each engine in turn: all complete, and their logs are right.
async fn all_complete(place: &Place, engines: &[Engine], flow: &Flow, count: usize) {
    let mut runs = JoinSet::new();
    for number in 0..count {
        let (engine, flow) = (engines[number % engines.len()].clone(), flow.clone());
        runs.spawn(async move {
            engine.run_to_end(&flow, StartRequest::new(payload(number))).await.unwrap()
        });
    }
    let store = place.open().await;
    for run in runs.join_all().await {
        assert_eq!(run.status.as_str(), "completed");
        checked_log(&*store, flow, run.run_id).await;
    }
}

/// Ten runs at once for each instance: all complete, and few commits come second.
async fn runs_over(instances: usize, place: &Place) {
    let flow = Flow::parse(DIAMOND).unwrap();
    let counts = Counts::default();
    metrics::set_global_recorder(counts.clone()).expect("each test has a process of its own");
    let engines = place.engines(instances, diamond_workers).await;
    engines[0].register(&flow, None).await.unwrap();
    all_complete(place, &engines, &flow, 10 * instances).await;
    let commits = counts.sum("flowgate_commits_total");
    let applied = counts.sum_where("flowgate_commits_total", "outcome=applied");
    let refused = counts.sum_where("flowgate_commits_total", "outcome=run_version");
    let steps = u64::try_from(10 * instances * flow.steps.len()).unwrap();
    assert!(applied >= steps, "{applied} of {commits} commits were applied");
    assert!(refused * 100 < commits * 5, "{refused} of {commits} commits came second");
    shut_down(engines).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_runs_over_ten_instances_complete_with_few_refusals_on_postgres() {
    runs_over(10, &Place::postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_runs_over_ten_instances_complete_with_few_refusals_on_redis() {
    runs_over(10, &Place::redis()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_instances_behind_a_pooler_are_rarely_in_each_others_way_on_postgres() {
    runs_over(50, &Place::pgbouncer()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_instances_are_rarely_in_each_others_way_on_redis() {
    runs_over(50, &Place::redis()).await;
}

const CHAIN: &str = "
flow: chain
steps:
  a: { run: { worker: pass }, emits: [a.done] }
  b: { subscribes: [a.done], run: { worker: pass }, emits: [b.done] }
  c: { subscribes: [b.done], run: { worker: pass }, emits: [c.done] }
  d: { subscribes: [c.done], run: { worker: pass }, emits: [d.done] }
  e: { subscribes: [d.done], run: { worker: pass }, emits: [e.done] }
";

fn chain_workers() -> Workers {
    let mut workers = Workers::new();
    workers.register("pass", async |_: Value, step: StepContext| {
        step.emit(&format!("{}.done", step.step()), &1)?;
        Ok::<_, HandlerError>(())
    });
    workers
}

/// The median time of one chain on otherwise idle instances.
async fn idle_chain(place: &Place, instances: usize) -> Duration {
    let flow = Flow::parse(CHAIN).unwrap();
    let engines = place.engines(instances, chain_workers).await;
    engines[0].register(&flow, None).await.unwrap();
    let mut spans = Vec::new();
    for number in 0..31 {
        let began = Instant::now();
        let engine = &engines[number % instances];
        engine.run_to_end(&flow, StartRequest::new(payload(1))).await.unwrap();
        spans.push(began.elapsed());
    }
    shut_down(engines).await;
    spans.sort_unstable();
    spans[spans.len() / 2]
}

async fn overhead(place: fn() -> Place) {
    let (one, three) = (idle_chain(&place(), 1).await, idle_chain(&place(), 3).await);
    let per_step = three.saturating_sub(one) / 5;
    assert!(per_step < Duration::from_millis(20), "{one:?} on one, {three:?} on three instances");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_instances_add_less_than_20_ms_to_a_step_on_postgres() {
    overhead(Place::postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_instances_add_less_than_20_ms_to_a_step_on_redis() {
    overhead(Place::redis).await;
}

/// A step of each run waits until all runs are there, so none ends unless all are executed at once.
async fn all_at_once(place: &Place) {
    const RUNS: usize = 100;
    let flow = Flow::parse(CHAIN).unwrap();
    let barrier = Arc::new(Barrier::new(RUNS));
    let workers = || {
        let mut workers = Workers::new();
        let barrier = Arc::clone(&barrier);
        workers.register("pass", move |_: Value, step: StepContext| {
            let barrier = Arc::clone(&barrier);
            async move {
                barrier.wait().await;
                step.emit(&format!("{}.done", step.step()), &1)?;
                Ok::<_, HandlerError>(())
            }
        });
        workers
    };
    let engines = place.engines(2, workers).await;
    engines[0].register(&flow, None).await.unwrap();
    all_complete(place, &engines, &flow, RUNS).await;
    shut_down(engines).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throughput_grows_with_runs_since_a_hundred_are_executed_at_once_on_postgres() {
    all_at_once(&Place::postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throughput_grows_with_runs_since_a_hundred_are_executed_at_once_on_redis() {
    all_at_once(&Place::redis()).await;
}
