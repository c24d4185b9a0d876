//! Limits, timeouts and ends of runs, with holders in other processes.

use std::time::Duration;

use flowgate_core::decide::Output;
use flowgate_core::event::Event;
use flowgate_core::limits::LOST_MAX;
use flowgate_core::run::RunStatus;
use flowgate_engine::remote::{RemoteClaim, RemoteJob, RemoteRenewal};
use flowgate_engine::{Workers, change_queue};
use serde_json::json;
use tokio::time::Instant;

use crate::remote::{ONE, claim, lease, one_job};
use crate::world::{World, config, is, store};

const LIMITED: &str = "{flow: f, steps: {
    a: {run: {worker: score}, concurrency: {key: input.tenant, limit: 2}}}}";
const TIMED: &str = "{flow: f, steps: {
    a: {run: {worker: score}, timeout: 10s, retry: {attempts: 2, backoff: {initial: 1s}}}}}";

async fn two(yaml: &str) -> World {
    let engines = ["a", "b"].map(|name| (Workers::new(), config(name)));
    World::with(store(), yaml, engines.into()).await
}

/// All that can be claimed now, at both instances.
async fn claim_all(world: &World) -> Vec<RemoteJob> {
    let mut all = Vec::new();
    for engine in &world.engines {
        all.extend(engine.claim_remote(claim("py-1")).await.unwrap());
    }
    all
}

#[tokio::test(start_paused = true)]
async fn no_more_remote_holders_than_a_limit_allows_and_the_next_is_woken() {
    let world = two(LIMITED).await;
    let mut runs = Vec::new();
    for tenant in ["x", "x", "x", "x", "y"] {
        runs.push(world.start(json!({ "tenant": tenant })).await);
    }
    let mut jobs = claim_all(&world).await;
    let of = |jobs: &[RemoteJob], tenant: &str| {
        jobs.iter().filter(|job| job.input.get().contains(tenant)).count()
    };
    assert_eq!((of(&jobs, "x"), of(&jobs, "y")), (2, 1));
    assert!(claim_all(&world).await.is_empty());
    // Permits are held for as long as the leases are, wherever these are renewed.
    for number in 0..10 {
        tokio::time::sleep(Duration::from_secs(15)).await;
        let held: Vec<_> = jobs.iter().map(lease).collect();
        let engine = &world.engines[number % 2];
        let renewed = engine.renew_remote(Duration::from_secs(30), &held).await.unwrap();
        assert!(renewed.iter().all(|one| matches!(one, RemoteRenewal::Held(_))), "{renewed:?}");
        assert!(claim_all(&world).await.is_empty());
    }
    let began = Instant::now();
    while let Some(job) = jobs.pop() {
        let done = Output::default();
        world.engines[1].complete_remote(&lease(&job), done, Vec::new()).await.unwrap();
        let patient = RemoteClaim { wait: Duration::from_secs(5), ..claim("py-2") };
        if of(&[job], "x") == 1 {
            jobs.extend(world.engine().claim_remote(patient).await.unwrap());
        }
        assert!(of(&jobs, "x") <= 2);
    }
    // The last two find nobody in line, and wait for it in vain.
    assert!(began.elapsed() < Duration::from_secs(11), "{:?}", began.elapsed());
    for run_id in runs {
        is(&world.ended(run_id).await, RunStatus::Completed);
    }
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_the_queue_holds_and_a_dead_holder_frees_its_permit() {
    let world = two(ONE).await;
    change_queue(&*world.store, "score", |set| set.concurrency = Some(1)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let runs = [world.start(1).await, world.start(2).await];
    let first = claim_all(&world).await;
    assert_eq!(first.len(), 1);
    let began = Instant::now();
    // Its worker never comes back. Either job may be next: both are due when it is noticed.
    for _ in runs {
        let job = loop {
            let patient = RemoteClaim { max: 1, wait: Duration::from_secs(30), ..claim("py-2") };
            if let Some(job) = world.engine().claim_remote(patient).await.unwrap().pop() {
                break job;
            }
        };
        world.engine().complete_remote(&lease(&job), Output::default(), vec![]).await.unwrap();
    }
    assert!(began.elapsed() < Duration::from_mins(2), "{:?}", began.elapsed());
    for run_id in runs {
        is(&world.ended(run_id).await, RunStatus::Completed);
    }
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_takes_longer_than_its_timeout_fails_by_it_when_it_is_renewed() {
    let world = two(TIMED).await;
    let run_id = world.start(1).await;
    let held = lease(&one_job(world.engine(), "py-1").await);
    let renew = async |engine: usize| {
        world.engines[engine]
            .renew_remote(Duration::from_secs(30), std::slice::from_ref(&held))
            .await
            .unwrap()
    };
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(matches!(renew(1).await[..], [RemoteRenewal::Held(_)]));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(renew(1).await, [RemoteRenewal::LeaseLost]);
    assert_eq!(world.failure(run_id).await.0, "TimedOut");
    let late = world.engine().complete_remote(&held, Output::default(), vec![]).await;
    assert_eq!(late.unwrap_err().code(), Some("fenced"));
    let patient = RemoteClaim { wait: Duration::from_secs(5), ..claim("py-2") };
    let second = world.engine().claim_remote(patient).await.unwrap().remove(0);
    assert_eq!((second.attempt, second.timeout), (2, Some(Duration::from_secs(10))));
    // A result that comes too late is not taken, though the lease holds.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let late = world.engines[1].complete_remote(&lease(&second), Output::default(), vec![]).await;
    assert_eq!(late.unwrap_err().code(), Some("fenced"));
    let ended = world.ended(run_id).await;
    is(&ended, RunStatus::Failed);
    assert_eq!((ended.row.run.steps[0].failures, ended.row.run.steps[0].lost), (2, 0));
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_whose_worker_died_past_its_timeout_fails_by_it_when_the_job_is_claimed() {
    let world = two(TIMED).await;
    let run_id = world.start(1).await;
    one_job(world.engine(), "py-1").await;
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert!(world.engines[1].claim_remote(claim("py-2")).await.unwrap().is_empty());
    let patient = RemoteClaim { wait: Duration::from_secs(5), ..claim("py-2") };
    let second = world.engine().claim_remote(patient).await.unwrap().remove(0);
    assert_eq!(second.attempt, 2);
    assert_eq!(world.failure(run_id).await.0, "TimedOut");
    world.engine().complete_remote(&lease(&second), Output::default(), vec![]).await.unwrap();
    let ended = world.ended(run_id).await;
    assert_eq!((ended.row.run.steps[0].failures, ended.row.run.steps[0].lost), (1, 0));
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_learns_of_a_cancelled_run_when_it_renews() {
    let world = two(ONE).await;
    let run_id = world.start(1).await;
    let held = lease(&one_job(world.engine(), "py-1").await);
    world.engine().cancel(run_id, None).await.unwrap();
    let renewed =
        world.engines[1].renew_remote(Duration::from_secs(30), std::slice::from_ref(&held)).await;
    assert_eq!(renewed.unwrap(), [RemoteRenewal::Cancelled]);
    let late = world.engines[1].complete_remote(&held, Output::default(), vec![]).await;
    assert_eq!(late.unwrap_err().code(), Some("run_terminal"));
    is(&world.ended(run_id).await, RunStatus::Cancelled);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_step_whose_workers_die_again_and_again_fails() {
    let world = two(ONE).await;
    let run_id = world.start(1).await;
    let mut handed_out = 0;
    for _ in 0..100 {
        handed_out += world.engine().claim_remote(claim("py-1")).await.unwrap().len();
        tokio::time::sleep(Duration::from_secs(31)).await;
    }
    assert_eq!(handed_out, usize::try_from(LOST_MAX).unwrap());
    is(&world.ended(run_id).await, RunStatus::Failed);
    assert_eq!(world.failure(run_id).await.0, "Lost");
    let lost = world.events(run_id).await;
    let lost = lost.iter().filter(|event| matches!(event, Event::StepLost { .. })).count();
    assert_eq!(lost, handed_out);
    world.shutdown().await;
}
