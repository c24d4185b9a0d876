//! Remote workers at several instances of one shared store.

use std::collections::HashSet;
use std::time::Duration;

use flowgate_core::decide::Output;
use flowgate_core::flow::Flow;
use flowgate_engine::remote::{RemoteClaim, RemoteRenewal, remote_workers};
use flowgate_engine::{Engine, EngineConfig, StartRequest, Workers, instance_id};

use crate::remote::{claim, lease};
use crate::shared::{Place, checked_log, shut_down};
use crate::world::payload;

const FLOW: &str = "{flow: f, steps: {
    a: {run: {worker: score}, concurrency: {key: input.tenant, limit: 3}, emits: [scored]},
    b: {subscribes: [scored], run: {worker: score}}}}";
const LEASE: Duration = Duration::from_secs(2);

/// Workers claim at one instance and settle at the other; one of them never settles anything.
async fn claim_here_settle_there(place: &Place) {
    const RUNS: usize = 30;
    let flow = Flow::parse(FLOW).unwrap();
    let mut engines = Vec::new();
    for _ in 0..2 {
        let config = EngineConfig::new(instance_id());
        engines.push(Engine::start(place.open().await, Workers::new(), config).unwrap());
    }
    engines[0].register(&flow, None).await.unwrap();
    let mut runs = HashSet::new();
    for number in 0..RUNS {
        let request = StartRequest::new(payload(serde_json::json!({ "tenant": number % 2 })));
        runs.insert(engines[0].start_run(&flow, request).await.unwrap().run_id);
    }
    let dead = RemoteClaim { max: 2, lease: LEASE, wait: LEASE, ..claim("dead") };
    let lost = engines[1].claim_remote(dead).await.unwrap();
    assert!(!lost.is_empty());
    let serve = async |number: usize| {
        let (here, there) = (&engines[number % 2], &engines[(number + 1) % 2]);
        let mut tokens = Vec::new();
        let mut idle = 0;
        while idle < 3 {
            let wait = Duration::from_secs(2);
            let ask = RemoteClaim { wait, lease: LEASE, ..claim(&format!("py-{number}")) };
            let jobs = here.claim_remote(ask).await.unwrap();
            idle = if jobs.is_empty() { idle + 1 } else { 0 };
            let held: Vec<_> = jobs.iter().map(lease).collect();
            let renewed = there.renew_remote(LEASE, &held).await.unwrap();
            assert!(renewed.iter().all(|one| matches!(one, RemoteRenewal::Held(_))));
            for job in jobs {
                let emits =
                    if &*job.step == "a" { vec![("scored".into(), payload(1))] } else { vec![] };
                let done = Output { emits, ..Output::default() };
                there.complete_remote(&lease(&job), done, vec![]).await.unwrap();
                tokens.push((job.run_id, job.step));
            }
        }
        tokens
    };
    let served: Vec<_> = futures_util::future::join_all((0..4).map(serve)).await.concat();
    let once: HashSet<_> = served.iter().cloned().collect();
    assert_eq!((once.len(), served.len()), (RUNS * 2, RUNS * 2), "each step was settled once");
    for job in lost {
        let late = engines[0].complete_remote(&lease(&job), Output::default(), vec![]).await;
        let code = late.unwrap_err().code();
        assert!(matches!(code, Some("fenced" | "run_terminal")), "{code:?}");
    }
    let store = place.open().await;
    for run_id in runs {
        engines[1].wait(run_id).await.unwrap();
        checked_log(&*store, &flow, run_id).await;
    }
    let workers = remote_workers(&*store).await.unwrap();
    assert_eq!(workers.len(), 5);
    shut_down(engines).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_workers_claim_here_and_settle_there_on_postgres() {
    claim_here_settle_there(&Place::postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_workers_claim_here_and_settle_there_on_redis() {
    claim_here_settle_there(&Place::redis()).await;
}
