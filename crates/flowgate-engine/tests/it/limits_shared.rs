//! Limits over several instances on one shared store, each with a handle of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::event::Event;
use flowgate_core::flow::Flow;
use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use flowgate_engine::{
    Engine, EngineConfig, QueueSettings, StartRequest, Workers, change_queue, instance_id,
};
use flowgate_store::Store;
use serde_json::json;
use tokio::time::Instant;

use crate::limits::{Seen, TENANTS, client, most_by_log, start_tenants};
use crate::shared::{Place, checked_log, shut_down};
use crate::world::{eventually, payload};

async fn engines(place: &Place, seen: &Seen, count: usize, work: Duration) -> Vec<Engine> {
    let mut engines = Vec::new();
    for _ in 0..count {
        let started_after = Duration::from_millis(1);
        let config = EngineConfig { started_after, ..EngineConfig::new(instance_id()) };
        engines.push(Engine::start(place.open().await, seen.workers(work), config).unwrap());
    }
    engines
}

async fn starter(place: &Place, yaml: &str) -> (Engine, Flow) {
    let flow = Flow::parse(yaml).unwrap();
    let engine = Engine::start(place.open().await, Workers::new(), client()).unwrap();
    engine.register(&flow, None).await.unwrap();
    (engine, flow)
}

/// The most attempts of one tenant that overlap, by the times and durations in the log.
async fn most_by_times(store: &dyn Store, flow: &Flow, runs: &HashMap<RunId, String>) -> i32 {
    let mut moments: HashMap<&str, Vec<(i64, i32)>> = HashMap::new();
    for (run_id, tenant) in runs {
        checked_log(store, flow, *run_id).await;
        for stored in store.read_events(*run_id, 0, 1_000).await.unwrap() {
            let change = if matches!(stored.event, Event::StepStarted { .. }) {
                1
            } else if matches!(stored.event, Event::StepSucceeded { .. }) {
                -1
            } else {
                continue;
            };
            moments.entry(tenant).or_default().push((stored.at.0, change));
        }
    }
    let most = moments.into_values().map(|mut moments| {
        moments.sort_unstable();
        let mut running = 0;
        moments
            .iter()
            .map(|(_, change)| {
                running += change;
                running
            })
            .max()
            .unwrap_or(0)
    });
    most.max().unwrap_or(0)
}

/// A thousand jobs of one key and a thousand of others, over three instances.
async fn thousand_and_thousand(place: &Place) {
    let seen = Seen::default();
    let (starter, flow) = starter(place, TENANTS).await;
    let runs = start_tenants(&starter, &flow, 1_000).await;
    let began = Instant::now();
    let engines = engines(place, &seen, 3, Duration::from_millis(2)).await;
    for run_id in runs.keys() {
        let detail = starter.wait(*run_id).await.unwrap();
        assert_eq!(detail.row.run.status, RunStatus::Completed);
    }
    assert_eq!(seen.most(), 2, "as the handlers saw it");
    let store = place.open().await;
    assert!(most_by_times(&*store, &flow, &runs).await <= 2, "as the log has it");
    if store.feeds() == 1 {
        assert!(most_by_log(&*store, &runs).await <= 2, "as the feed has it");
    }
    // Others are behind the limited key in the queue, and need not wait for its jobs: their p99
    // comes before the limited key's.
    let (big, others) = (seen.p99(began, |t| t == "\"big\""), seen.p99(began, |t| t != "\"big\""));
    assert!(others < big, "others {others:?}, limited {big:?}");
    tracing::info!(?big, ?others, "p99 of the limited key and of the others");
    shut_down(engines).await;
    starter.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_a_key_at_once_beside_a_thousand_others_on_postgres() {
    thousand_and_thousand(&Place::postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_a_key_at_once_beside_a_thousand_others_on_redis() {
    thousand_and_thousand(&Place::redis()).await;
}

/// Two instances together begin no more than the rate allows, and a pause by one is seen by both.
async fn rate_and_pause(place: &Place) {
    let yaml = "{flow: f, steps: {work: {run: {worker: work}, rate: {limit: 20, per: 1s}}}}";
    let seen = Seen::default();
    let (starter, flow) = starter(place, yaml).await;
    let engines = engines(place, &seen, 2, Duration::from_millis(1)).await;
    let start = async || {
        let request = StartRequest::new(payload(json!({ "tenant": 1 })));
        starter.start_run(&flow, request).await.unwrap().run_id
    };
    let mut runs = Vec::new();
    for _ in 0..41 {
        runs.push(start().await);
    }
    for run_id in runs {
        starter.wait(run_id).await.unwrap();
    }
    let mut began = seen.began();
    began.sort_unstable();
    // A handler may begin late and the next one in time; half a second is more than that.
    let all = began[40] - began[0];
    assert!(all >= Duration::from_millis(1_500), "41 jobs at 20 a second took {all:?}");
    let store = place.open().await;
    let pause = |paused: bool| move |settings: &mut QueueSettings| settings.paused = paused;
    change_queue(&*store, "work", pause(true)).await.unwrap();
    let paused = Instant::now();
    // Within two seconds both know of it: from then on nothing begins.
    let run_id = loop {
        let run_id = start().await;
        if tokio::time::timeout(Duration::from_secs(2), starter.wait(run_id)).await.is_err() {
            break run_id;
        }
        assert!(paused.elapsed() < Duration::from_secs(3), "{:?}", paused.elapsed());
    };
    change_queue(&*store, "work", pause(false)).await.unwrap();
    let resumed = Instant::now();
    starter.wait(run_id).await.unwrap();
    assert!(resumed.elapsed() < Duration::from_secs(4), "{:?}", resumed.elapsed());
    shut_down(engines).await;
    starter.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_and_a_pause_hold_over_two_instances_on_postgres() {
    rate_and_pause(&Place::postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_and_a_pause_hold_over_two_instances_on_redis() {
    rate_and_pause(&Place::redis()).await;
}

/// A holder that dies without a word frees its permit when its lease ends.
async fn dead_holder(place: &Place) {
    let yaml = "{flow: f, steps: {work: {run: {worker: work}, concurrency: {limit: 1}}}}";
    let (starter, flow) = starter(place, yaml).await;
    let lease = Duration::from_secs(2);
    let config = || EngineConfig { lease, ..EngineConfig::new(instance_id()) };
    let (stuck, seen) = (Seen::default(), Seen::default());
    let dying = Engine::start(place.open().await, stuck.workers(Duration::from_hours(1)), config())
        .unwrap();
    let start = async |tenant: &str| {
        let request = StartRequest::new(payload(json!({ "tenant": tenant })));
        starter.start_run(&flow, request).await.unwrap().run_id
    };
    let first = start("first").await;
    eventually("it runs", async || !stuck.began().is_empty()).await;
    let store: Arc<dyn Store> = place.open().await;
    let other = Engine::start(place.open().await, seen.workers(Duration::ZERO), config()).unwrap();
    let next = start("next").await;
    eventually("it is parked", async || {
        let log = store.read_events(next, 0, 100).await.unwrap();
        log.iter().any(|stored| matches!(stored.event, Event::StepParked { .. }))
    })
    .await;
    let died = Instant::now();
    drop(dying);
    starter.wait(next).await.unwrap();
    starter.wait(first).await.unwrap();
    assert!(died.elapsed() < lease * 10, "{:?}", died.elapsed());
    other.shutdown().await;
    starter.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_holder_frees_its_permit_on_postgres() {
    dead_holder(&Place::postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_holder_frees_its_permit_on_redis() {
    dead_holder(&Place::redis()).await;
}
