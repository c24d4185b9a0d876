//! Workers in other processes, on a store in memory: they claim at one instance and settle at any.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::decide::Output;
use flowgate_core::event::Event;
use flowgate_core::ids::{LeaseToken, RunId};
use flowgate_core::run::{RunStatus, StepState};
use flowgate_core::view::{self, Executor, OpenJob, QueuesSeen, Standing};
use flowgate_engine::remote::{
    RemoteClaim, RemoteError, RemoteFailure, RemoteJob, RemoteLease, RemoteLine, RemoteRenewal,
    remote_workers, workers_seen,
};
use flowgate_engine::{
    Engine, EngineConfig, HandlerError, QueueSettings, StepContext, Workers, change_queue,
};
use flowgate_store::{LogLevel, Queues};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::world::{World, config, eventually, is, payload, store};

pub(crate) const ONE: &str = "{flow: f, steps: {a: {run: {worker: score}, emits: [scored]}}}";
const LEASE: Duration = Duration::from_secs(30);

/// A claim of the worker `score` that waits for nothing.
pub(crate) fn claim(worker_id: &str) -> RemoteClaim {
    RemoteClaim {
        worker_id: worker_id.into(),
        workers: vec!["score".into()],
        queues: None,
        max: 10,
        lease: LEASE,
        wait: Duration::ZERO,
    }
}

pub(crate) fn lease(job: &RemoteJob) -> RemoteLease {
    RemoteLease { run_id: job.run_id, step: Arc::clone(&job.step), token: job.token }
}

pub(crate) fn output(emits: &[&str], result: Value) -> Output {
    let emits = emits.iter().map(|event| ((*event).into(), payload(1))).collect();
    Output { emits, result: Some(payload(result)), ..Output::default() }
}

/// The only job of a claim.
pub(crate) async fn one_job(engine: &Engine, worker_id: &str) -> RemoteJob {
    let mut jobs = engine.claim_remote(claim(worker_id)).await.unwrap();
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    jobs.remove(0)
}

/// Two instances without handlers.
async fn two(yaml: &str) -> World {
    let engines = ["a", "b"].map(|name| (Workers::new(), config(name)));
    World::with(store(), yaml, engines.into()).await
}

fn is_fenced(error: &RemoteError) -> bool {
    error.code() == Some("fenced")
}

async fn stands(world: &World, run_id: RunId) -> StepState {
    world.store.read_run(run_id).await.unwrap().unwrap().row.run.steps[0].state
}

#[tokio::test(start_paused = true)]
async fn a_job_is_claimed_at_one_instance_and_settled_at_another() {
    let world = two(ONE).await;
    let run_id = world.start(json!({"n": 7})).await;
    let job = one_job(&world.engines[0], "py-1").await;
    assert_eq!((job.run_id, &*job.step, &*job.worker, job.attempt), (run_id, "a", "score", 1));
    assert_eq!((job.input.get(), job.key.as_str()), ("{\"n\":7}", &*format!("{run_id}/a/1")));
    assert_eq!((job.lease, job.timeout), (LEASE, None));
    assert_eq!(stands(&world, run_id).await, StepState::Running);
    let lines = vec![RemoteLine { level: LogLevel::Info, text: "scored".to_owned() }];
    let done = output(&["scored"], json!({"score": 3}));
    let settled = world.engines[1].complete_remote(&lease(&job), done, lines).await.unwrap();
    assert_eq!((settled.run_id, settled.status), (run_id, RunStatus::Completed));
    is(&world.ended(run_id).await, RunStatus::Completed);
    assert_eq!(world.result(run_id, "a").await, json!({"score": 3}));
    let holder = world.events(run_id).await.into_iter().find_map(|event| {
        let Event::StepSucceeded { lease, .. } = event else { return None };
        lease.map(|lease| lease.instance)
    });
    assert_eq!(&*holder.unwrap().0, "py-1");
    world.engines[1].flush_logs().await;
    let logs = world.store.read_logs(run_id, 0, 10).await.unwrap();
    assert_eq!((logs[0].line.text.as_str(), logs[0].line.attempt), ("scored", 1));
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_dies_loses_its_job_and_its_late_result_is_refused() {
    let world = two(ONE).await;
    let run_id = world.start(1).await;
    let first = one_job(world.engine(), "py-1").await;
    let began = Instant::now();
    let patient = RemoteClaim { wait: LEASE, ..claim("py-2") };
    let second = loop {
        if let Some(job) = world.engines[1].claim_remote(patient.clone()).await.unwrap().pop() {
            break job;
        }
    };
    assert!(began.elapsed() >= LEASE && began.elapsed() < LEASE * 2, "{:?}", began.elapsed());
    assert_eq!((second.run_id, second.attempt), (run_id, 2));
    assert!(second.token > first.token);
    let late = world.engine().complete_remote(&lease(&first), Output::default(), Vec::new()).await;
    assert!(is_fenced(&late.unwrap_err()));
    let renewed = world.engine().renew_remote(LEASE, &[lease(&first), lease(&second)]).await;
    let renewed = renewed.unwrap();
    assert_eq!(renewed[0], RemoteRenewal::LeaseLost);
    assert!(matches!(renewed[1], RemoteRenewal::Held(_)), "{renewed:?}");
    world.engine().complete_remote(&lease(&second), Output::default(), Vec::new()).await.unwrap();
    let ended = world.ended(run_id).await;
    is(&ended, RunStatus::Completed);
    assert_eq!(ended.row.run.steps[0].lost, 1);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_renewed_holds_and_nobody_else_renews_it() {
    let world = two(ONE).await;
    let run_id = world.start(1).await;
    let job = one_job(world.engine(), "py-1").await;
    for _ in 0..10 {
        tokio::time::sleep(LEASE / 2).await;
        let renewed = world.engines[1].renew_remote(LEASE, &[lease(&job)]).await.unwrap();
        assert!(matches!(renewed[..], [RemoteRenewal::Held(_)]), "{renewed:?}");
    }
    world.engine().complete_remote(&lease(&job), Output::default(), Vec::new()).await.unwrap();
    let ended = world.ended(run_id).await;
    assert_eq!((ended.row.run.steps[0].lost, ended.row.run.steps[0].attempt), (0, 1));
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_settled_once_is_answered_again_and_nothing_else_is_taken() {
    let world = two(ONE).await;
    let run_id = world.start(1).await;
    let job = one_job(world.engine(), "py-1").await;
    let held = lease(&job);
    let [a, b] = &world.engines[..] else { panic!("there are two") };
    let other = RemoteLease { token: LeaseToken(job.token.0 + 1), ..held.clone() };
    let refused = a.complete_remote(&other, Output::default(), Vec::new()).await.unwrap_err();
    assert!(is_fenced(&refused), "somebody else's token: {refused}");
    let first = a.complete_remote(&held, output(&["scored"], json!(1)), Vec::new()).await.unwrap();
    let again = b.complete_remote(&held, output(&["scored"], json!(2)), Vec::new()).await.unwrap();
    assert_eq!(first, again);
    let code = |error: RemoteError| error.code();
    let none = Vec::new;
    let failed = RemoteFailure { message: "no".to_owned(), retry: true, retry_after: None };
    let late = b.fail_remote(&held, failed, none()).await.unwrap_err();
    assert_eq!(code(late), Some("run_terminal"), "another outcome of the same token");
    let stale = a.complete_remote(&other, Output::default(), none()).await.unwrap_err();
    assert_eq!(code(stale), Some("run_terminal"));
    let nowhere = RemoteLease { run_id: RunId(uuid::Uuid::from_u128(7)), ..held.clone() };
    let unknown = a.complete_remote(&nowhere, Output::default(), none()).await.unwrap_err();
    assert_eq!(code(unknown), Some("job_not_found"));
    let no_step = RemoteLease { step: "z".into(), ..held };
    let unknown = a.release_remote(&no_step).await.unwrap_err();
    assert_eq!(code(unknown), Some("job_not_found"));
    assert_eq!(world.result(run_id, "a").await, json!(1));
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_release_burns_no_attempt_and_the_next_worker_has_the_job_at_once() {
    let world = two(ONE).await;
    let run_id = world.start(1).await;
    let job = one_job(world.engine(), "py-1").await;
    world.engines[1].release_remote(&lease(&job)).await.unwrap();
    let next = one_job(&world.engines[1], "py-2").await;
    assert_eq!((next.attempt, next.token > job.token), (1, true));
    world.engine().complete_remote(&lease(&next), Output::default(), Vec::new()).await.unwrap();
    let ended = world.ended(run_id).await;
    let step = &ended.row.run.steps[0];
    assert_eq!((step.attempt, step.failures, step.lost), (1, 0, 0));
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_tried_again_when_its_worker_says_and_a_final_one_is_not() {
    let world = two(ONE).await;
    let run_id = world.start(1).await;
    let job = one_job(world.engine(), "py-1").await;
    let wait = Some(Duration::from_secs(5));
    let failed = RemoteFailure { message: "busy".to_owned(), retry: true, retry_after: wait };
    let settled = world.engine().fail_remote(&lease(&job), failed.clone(), Vec::new()).await;
    assert_eq!(settled.unwrap().status, RunStatus::Running);
    let again = world.engines[1].fail_remote(&lease(&job), failed, Vec::new()).await;
    assert_eq!(again.unwrap().status, RunStatus::Running, "the answer got lost");
    let began = Instant::now();
    let patient = RemoteClaim { wait: LEASE, ..claim("py-1") };
    let second = world.engine().claim_remote(patient).await.unwrap().remove(0);
    assert!(began.elapsed() >= Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(second.attempt, 2);
    let last = RemoteFailure { message: "never".to_owned(), retry: false, retry_after: None };
    let settled = world.engine().fail_remote(&lease(&second), last, Vec::new()).await.unwrap();
    assert_eq!(settled.status, RunStatus::Failed);
    assert_eq!(world.failure(run_id).await, ("Final".to_owned(), "never".to_owned()));
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn many_workers_at_two_instances_get_every_job_once() {
    let world = two(ONE).await;
    let mut runs = HashSet::new();
    for number in 0..200 {
        runs.insert(world.start(number).await);
    }
    let claims = (0..40).map(|number| {
        let engine = &world.engines[number % 2];
        engine.claim_remote(claim(&format!("py-{number}")))
    });
    let mut seen = HashSet::new();
    for jobs in futures_util::future::join_all(claims).await {
        for job in jobs.unwrap() {
            assert!(seen.insert(job.run_id), "it was handed out twice");
            let done = Output::default();
            world.engine().complete_remote(&lease(&job), done, Vec::new()).await.unwrap();
        }
    }
    assert_eq!(seen, runs);
    for run_id in runs {
        is(&world.ended(run_id).await, RunStatus::Completed);
    }
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_waits_has_a_job_as_soon_as_it_is_due() {
    let world = two(ONE).await;
    let patient = RemoteClaim { wait: Duration::from_secs(30), ..claim("py-1") };
    let began = Instant::now();
    let (jobs, run_id) = tokio::join!(world.engines[1].claim_remote(patient), world.start(1));
    assert_eq!(jobs.unwrap()[0].run_id, run_id);
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    let nothing = RemoteClaim { wait: Duration::from_secs(3), ..claim("py-2") };
    assert!(world.engine().claim_remote(nothing).await.unwrap().is_empty());
    assert!(began.elapsed() >= Duration::from_secs(3));
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_caller_who_is_gone_was_given_goes_back_uncounted() {
    let world = two(ONE).await;
    let patient = RemoteClaim { wait: Duration::from_secs(30), ..claim("gone") };
    // The caller polls until the claim waits, and then never again.
    let claiming = world.engine().claim_remote(patient);
    drop(tokio::time::timeout(Duration::from_secs(1), claiming).await);
    let run_id = world.start(1).await;
    let job = one_job(&world.engines[1], "py-1").await;
    assert_eq!((job.run_id, job.attempt), (run_id, 1));
    world.engine().release_remote(&lease(&job)).await.unwrap();
    // This one goes away while its job is on the way to it.
    let claiming = world.engine().claim_remote(claim("gone"));
    assert!(tokio::time::timeout(Duration::ZERO, claiming).await.is_err());
    let patient = RemoteClaim { wait: Duration::from_secs(5), ..claim("py-2") };
    let jobs = world.engines[1].claim_remote(patient).await.unwrap();
    assert_eq!(jobs.iter().map(|job| job.attempt).collect::<Vec<_>>(), [1]);
    world.engine().complete_remote(&lease(&jobs[0]), Output::default(), vec![]).await.unwrap();
    world.ended(run_id).await;
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_output_that_breaks_a_rule_changes_nothing() {
    let world = two(ONE).await;
    let run_id = world.start(1).await;
    let held = lease(&one_job(world.engine(), "py-1").await);
    let version = world.store.read_run(run_id).await.unwrap().unwrap().row.run.version;
    let engine = world.engine();
    let undeclared = engine.complete_remote(&held, output(&["other"], json!(1)), vec![]).await;
    assert_eq!(undeclared.unwrap_err().code(), Some("field_invalid"));
    let state = Output { state: vec![("no name".into(), payload(1))], ..Output::default() };
    let state = engine.complete_remote(&held, state, vec![]).await;
    assert_eq!(state.unwrap_err().code(), Some("field_invalid"));
    let emitted = engine.emit_remote(&held, "other", payload(1)).await;
    assert_eq!(emitted.unwrap_err().code(), Some("field_invalid"));
    let detail = world.store.read_run(run_id).await.unwrap().unwrap();
    assert_eq!(detail.row.run.version, version);
    let bad = |change: fn(&mut RemoteClaim)| {
        let mut ask = claim("py-1");
        change(&mut ask);
        engine.claim_remote(ask)
    };
    let fields = [
        ("worker_id", bad(|ask| ask.worker_id = "a;b".into()).await),
        ("workers", bad(|ask| ask.workers.clear()).await),
        ("queues", bad(|ask| ask.queues = Some(vec!["no name".into()])).await),
        ("max", bad(|ask| ask.max = 101).await),
        ("lease_ms", bad(|ask| ask.lease = Duration::from_millis(999)).await),
        ("wait_ms", bad(|ask| ask.wait = Duration::from_secs(31)).await),
    ];
    for (expected, refused) in fields {
        let Err(RemoteError::Invalid { field, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(field, expected);
    }
    world.shutdown().await;
}

const EARLY: &str = "{flow: f, steps: {
    a: {run: {worker: score}, emits: [half, full]},
    b: {subscribes: [half], run: {worker: local}},
    c: {subscribes: [full, \"step:b\"], run: {worker: score}}}}";

/// Handlers for the worker `local`.
fn local() -> Workers {
    let mut workers = Workers::new();
    workers.register("local", |_: Value, ctx: StepContext| async move {
        ctx.state_set("seen", &7)?;
        Ok::<Value, HandlerError>(json!("here"))
    });
    workers
}

#[tokio::test(start_paused = true)]
async fn a_handler_and_a_remote_worker_share_a_flow() {
    let engines = vec![(local(), config("a")), (Workers::new(), config("b"))];
    let world = World::with(store(), EARLY, engines).await;
    let run_id = world.start(1).await;
    let held = lease(&one_job(&world.engines[1], "py-1").await);
    world.engines[1].emit_remote(&held, "half", payload(5)).await.unwrap();
    let line = RemoteLine { level: LogLevel::Warn, text: "half way".to_owned() };
    world.engines[1].log_remote(&held, vec![line]).await.unwrap();
    eventually("the handler ran", async || {
        world.story(run_id).await.contains(&"step.succeeded b".to_owned())
    })
    .await;
    assert_eq!(stands(&world, run_id).await, StepState::Running);
    let done = output(&["full"], json!(1));
    world.engines[1].complete_remote(&held, done, vec![]).await.unwrap();
    let last = one_job(world.engine(), "py-2").await;
    assert_eq!(&*last.step, "c");
    assert_eq!(last.input.get(), "{\"full\":1,\"step:b\":null}");
    assert_eq!(last.state["seen"], payload(7));
    world.engine().complete_remote(&lease(&last), Output::default(), vec![]).await.unwrap();
    is(&world.ended(run_id).await, RunStatus::Completed);
    assert!(!world.story(run_id).await.iter().any(|event| event.starts_with("step.released")));
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_without_the_handler_takes_nothing_of_its_queue() {
    let yaml = "{flow: f, steps: {first: {run: {worker: local}},
        a: {subscribes: [\"step:first\"], run: {worker: score}}}}";
    let world = World::with(store(), yaml, vec![(local(), config("a"))]).await;
    let run_id = world.start(1).await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    let story = world.story(run_id).await;
    assert_eq!(story.last().map(String::as_str), Some("step.queued a"), "{story:?}");
    assert!(!story.iter().any(|event| event.starts_with("step.released")), "{story:?}");
    // One that starts later, and finds the job there, leaves it alone too.
    let late = Engine::start(Arc::clone(&world.store), Workers::new(), config("b")).unwrap();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(world.story(run_id).await, story);
    let job = one_job(&late, "py-1").await;
    assert_eq!(job.attempt, 1);
    world.engine().cancel(run_id, None).await.unwrap();
    late.shutdown().await;
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_mixes_steps_serves_all_of_them_and_nobody_spins() {
    let yaml = "{flow: f, steps: {
        a: {run: {worker: local}, queue: mixed, emits: [go]},
        b: {subscribes: [\"step:a\"], run: {worker: score}, queue: mixed},
        c: {subscribes: [\"step:a\"], run: {worker: local}, queue: mixed}}}";
    let world = World::with(store(), yaml, vec![(local(), config("a"))]).await;
    let run_id = world.start(1).await;
    let began = Instant::now();
    eventually("the steps that can be executed are", async || {
        world.story(run_id).await.contains(&"step.succeeded c".to_owned())
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    tokio::time::sleep(Duration::from_mins(10)).await;
    let story = world.story(run_id).await;
    let released = story.iter().filter(|event| *event == "step.released b").count();
    assert!((5..40).contains(&released), "{released} times in ten minutes");
    let ask = RemoteClaim {
        queues: Some(vec!["mixed".into()]),
        wait: Duration::from_secs(30),
        ..claim("py-1")
    };
    let job = loop {
        if let Some(job) = world.engine().claim_remote(ask.clone()).await.unwrap().pop() {
            break job;
        }
    };
    assert_eq!((&*job.step, job.attempt), ("b", 1));
    world.engine().complete_remote(&lease(&job), Output::default(), vec![]).await.unwrap();
    is(&world.ended(run_id).await, RunStatus::Completed);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_serves_default_serves_its_handlers_and_one_that_does_not_does_not() {
    let yaml = "{flow: f, steps: {a: {run: {worker: local}}}}";
    let only = |name: &str, queue: &str| {
        let queues = Queues::Only(vec![queue.into()]);
        EngineConfig { queues, ..config(name) }
    };
    let world = World::with(store(), yaml, vec![(local(), only("a", "other"))]).await;
    let run_id = world.start(1).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(stands(&world, run_id).await, StepState::Queued);
    let serving = Engine::start(Arc::clone(&world.store), local(), only("b", "default")).unwrap();
    is(&world.ended(run_id).await, RunStatus::Completed);
    serving.shutdown().await;
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_queue_hands_nothing_out() {
    let world = two(ONE).await;
    let pause = |paused: bool| move |settings: &mut QueueSettings| settings.paused = paused;
    change_queue(&*world.store, "score", pause(true)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let run_id = world.start(1).await;
    let patient = RemoteClaim { wait: Duration::from_secs(10), ..claim("py-1") };
    assert!(world.engine().claim_remote(patient.clone()).await.unwrap().is_empty());
    let began = Instant::now();
    let resume = change_queue(&*world.store, "score", pause(false));
    let (jobs, _) = tokio::join!(world.engine().claim_remote(patient), resume);
    assert_eq!(jobs.unwrap()[0].run_id, run_id);
    assert!(began.elapsed() <= Duration::from_secs(2), "{:?}", began.elapsed());
    world.shutdown().await;
}

/// The first reason why a run is where it is.
async fn why(world: &World, run_id: RunId) -> String {
    let detail = world.store.read_run(run_id).await.unwrap().unwrap();
    let jobs: Vec<OpenJob> = (detail.jobs.iter())
        .map(|job| OpenJob {
            step: job.job.job_id.step,
            kind: job.job.kind,
            attempt: job.job.attempt,
            due_at: job.due_at,
            lease: job.lease.as_ref().map(|lease| (lease.instance.clone(), lease.expires_at)),
        })
        .collect();
    let events = world.store.read_events(run_id, 0, 1_000).await.unwrap();
    let workers = workers_seen(&*world.store).await.unwrap();
    let standing = Standing {
        run: &detail.row.run,
        jobs: &jobs,
        events: &events,
        executor: &Executor::Unknown,
        limits: &[],
        workers: Some(&workers),
        gate: None,
        queues: &QueuesSeen::default(),
    };
    view::why(&world.flow, &standing, world.store.now().await.unwrap())[0].to_string()
}

#[tokio::test(start_paused = true)]
async fn why_names_the_worker_that_nobody_is() {
    let world = two(ONE).await;
    let run_id = world.start(1).await;
    let said = why(&world, run_id).await;
    assert!(said.contains("waits for a worker `score`; none has asked for it"), "{said}");
    let ask = RemoteClaim { queues: Some(vec!["gpu".into()]), ..claim("py-9") };
    assert!(world.engine().claim_remote(ask).await.unwrap().is_empty());
    assert!(why(&world, run_id).await.contains("none has asked for it"), "in another queue");
    let job = one_job(world.engine(), "py-1").await;
    assert!(why(&world, run_id).await.contains("attempt 1 on instance py-1"));
    world.engine().release_remote(&lease(&job)).await.unwrap();
    assert!(why(&world, run_id).await.contains("waits in the queue `score`"));
    let listed = remote_workers(&*world.store).await.unwrap();
    let ids: Vec<&str> = listed.iter().map(|worker| &*worker.worker_id).collect();
    assert_eq!(ids, ["py-1", "py-9"]);
    assert_eq!(listed[0].workers.join(","), "score");
    tokio::time::sleep(Duration::from_mins(2)).await;
    let said = why(&world, run_id).await;
    assert!(said.contains("none has asked for it in the last minute, the last one did"), "{said}");
    world.engine().cancel(run_id, None).await.unwrap();
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_step_of_a_handler_that_is_busy_does_not_miss_a_worker() {
    let mut workers = Workers::new();
    workers.register("score", |_: Value, _: StepContext| async {
        std::future::pending::<Result<(), HandlerError>>().await
    });
    let busy = EngineConfig { slots: 1, ..config("a") };
    let world = World::with(store(), ONE, vec![(workers, busy)]).await;
    let first = world.start(1).await;
    eventually("it runs", async || stands(&world, first).await == StepState::Running).await;
    let second = world.start(2).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert!(why(&world, second).await.contains("waits in the queue `score`"));
    world.engine().cancel(first, None).await.unwrap();
    world.engine().cancel(second, None).await.unwrap();
    world.shutdown().await;
}
