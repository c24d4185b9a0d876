//! How the store on PostgreSQL keeps jobs: a row goes on with its chain.

use std::sync::Arc;

use flowgate_core::commit::{Claimed, Due, Job, JobChange};
use flowgate_core::flow::Flow;
use flowgate_core::ids::{JobId, RunId, StepIndex};
use flowgate_store::conformance::Harness;
use flowgate_store::conformance::world::{LEASE, World, applied, chain, fan, lease_of, refused};
use flowgate_store::{Refusal, Renewal};
use serde_json::{Map, json};
use tokio::task::JoinSet;
use tokio::time::{Duration, timeout};

use crate::postgres_harness::{PostgresHarness, connect};

/// Longer than anything here takes.
const SOON: Duration = Duration::from_secs(20);

/// `count` steps, one after another.
fn chain_of(count: usize) -> Flow {
    let step = |at: usize| {
        let mut step = json!({ "run": { "shell": "true" } });
        if at > 0 {
            step["subscribes"] = json!([format!("e{at:03}")]);
        }
        if at + 1 < count {
            step["emits"] = json!([format!("e{:03}", at + 1)]);
        }
        (format!("s{at:03}"), step)
    };
    let steps: Map<String, _> = (0..count).map(step).collect();
    let file = serde_json::from_value(json!({ "flow": "long", "steps": steps }));
    Flow::new(file.expect("a flow file")).expect("a valid flow")
}

/// Sends the success of `claimed`, and takes what follows.
async fn go_on(world: &World<'_, PostgresHarness>, flow: &Flow, claimed: &Claimed) -> Vec<Claimed> {
    world.apply_and_take(world.succeed(flow, claimed), 10).await
}

#[tokio::test]
async fn a_step_that_is_handed_off_writes_no_index_of_the_jobs() {
    let mut harness = PostgresHarness::direct().await;
    let world = World::new(&mut harness);
    let flow = chain_of(5);
    let start = world.start(&flow, "1");
    let mut claimed = world.apply_and_take(start, 10).await.remove(0);
    let before = world.harness.indexed("jobs").await;
    assert_eq!(before.len(), 1);
    for _ in 1..5 {
        claimed = go_on(&world, &flow, &claimed).await.remove(0);
        // PostgreSQL leaves indexes alone if none of their columns changes and the page has room.
        assert_eq!(world.harness.indexed("jobs").await, before);
    }
    assert!(go_on(&world, &flow, &claimed).await.is_empty());
    assert_eq!(world.harness.indexed("jobs").await, []);
}

#[tokio::test]
async fn a_chain_over_many_steps_has_one_job_at_a_time() {
    let mut harness = PostgresHarness::direct().await;
    let world = World::new(&mut harness);
    let flow = chain_of(40);
    let start = world.start(&flow, "1");
    let run_id = start.run_id;
    let mut claimed = world.apply_and_take(start, 10).await;
    for step in 0..40 {
        let [job] = claimed.try_into().expect("one job is handed off");
        assert_eq!(job.job.job_id.step, StepIndex(step));
        let open = world.run(run_id).await.jobs;
        assert_eq!(open.len(), 1);
        assert_eq!(open[0].job.job_id, job.job.job_id);
        claimed = go_on(&world, &flow, &job).await;
    }
    assert_eq!(world.run(run_id).await.jobs, []);
}

#[tokio::test]
async fn a_job_takes_the_place_of_the_one_that_its_step_has() {
    let mut harness = PostgresHarness::direct().await;
    let world = World::new(&mut harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    let next = JobId { step: StepIndex(1), ..claimed.job.job_id };
    let mut begun = world.begin(&flow, &claimed);
    let job = Job { job_id: next, ..claimed.job.clone() };
    begun.jobs.push(JobChange::Add { job, due: Due::After(LEASE) });
    let run = Arc::clone(&begun.record);
    world.apply(begun).await;
    assert_eq!(world.run(run.run_id).await.jobs.len(), 2);
    let claimed = Claimed { run, ..claimed };
    let second = go_on(&world, &flow, &claimed).await.remove(0);
    let open = world.run(claimed.job.job_id.run_id).await.jobs;
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].job.job_id, next);
    assert_eq!(open[0].lease.as_ref().map(|lease| lease.token), Some(second.token));
}

#[tokio::test]
async fn a_renewal_waits_for_nobody_who_writes_the_job() {
    let mut harness = PostgresHarness::direct().await;
    let world = World::new(&mut harness);
    let claimed = world.started_and_claimed(&chain()).await;
    let (writing, _driver) = connect().await;
    let lock = format!("BEGIN; SELECT FROM {}.jobs FOR UPDATE", world.harness.options.schema);
    writing.batch_execute(&lock).await.unwrap();
    let leases = [lease_of(&claimed)];
    let store = world.store();
    let renewed = timeout(SOON, store.renew(&leases, LEASE * 2)).await;
    let renewed = renewed.expect("it waits for nobody").unwrap();
    assert_eq!(renewed, [Renewal::Held(claimed.expires_at)]);
    writing.batch_execute("COMMIT").await.unwrap();
    let renewed = store.renew(&leases, LEASE * 2).await.unwrap();
    assert!(matches!(renewed[..], [Renewal::Held(until)] if until > claimed.expires_at));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_runs_out_while_its_commit_waits_is_lost() {
    let mut harness = PostgresHarness::direct().await;
    let world = World::new(&mut harness);
    let claimed = world.started_and_claimed(&chain()).await;
    let commit = world.succeed(&chain(), &claimed);
    let (writing, _driver) = connect().await;
    let lock = format!("BEGIN; SELECT FROM {}.runs FOR UPDATE", world.harness.options.schema);
    writing.batch_execute(&lock).await.unwrap();
    let store = world.store();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { store.commit(vec![commit], None).await });
    world.harness.until_waiting("commit_batch").await;
    world.harness.advance(LEASE).await;
    // Whoever lets a lease end needs the run, so that nobody does so behind the back of a commit.
    assert!(world.claim(1).await.is_empty());
    writing.batch_execute("COMMIT").await.unwrap();
    let outcome = tasks.join_next().await.unwrap().unwrap().unwrap().remove(0);
    assert_eq!(refused(&outcome), Refusal::LeaseLost(claimed.job.job_id));
    assert_eq!(world.claim_one().await.job.job_id, claimed.job.job_id);
}

/// Brings the jobs of a schema to that of the migrations before the one that lets a row go on.
fn jobs_of_before(source: &str) -> String {
    format!(
        "INSERT INTO jobs (run_id, step, kind, queue, attempt, inputs, due_at, ticket, is_leased, \
         token, instance, expires_at, check_at, granted_by, lost, priority, order_at) \
         SELECT run_id, step, kind, queue, attempt, inputs, due_at, coalesce(ticket, token), \
         waits_in IS NULL, token, instance, expires_at, check_at, granted_by, lost, priority, \
         coalesce(order_at, due_at) FROM {source}.jobs;"
    )
}

#[tokio::test]
async fn jobs_that_wait_and_jobs_that_are_leased_outlive_the_migration() {
    let mut harness = PostgresHarness::direct().await;
    let world = World::new(&mut harness);
    let leased = world.started_and_claimed(&fan()).await;
    let over = world.started_and_claimed(&fan()).await;
    let waits: RunId = world.started(&chain(), "1").await;
    let later = world.start(&chain_of(2), "1");
    let handed_off = applied(world.send(later, Some(&world.claimant(1))).await).remove(0);
    let mut before = Vec::new();
    for run_id in [leased.run.run_id, over.run.run_id, waits, handed_off.run.run_id] {
        before.push(world.run(run_id).await);
    }
    world.harness.go_back_to(8, jobs_of_before).await;
    for run in before {
        assert_eq!(world.run(run.row.run.run_id).await, run);
    }
    let renewed = world.store().renew(&[lease_of(&leased), lease_of(&handed_off)], LEASE * 3).await;
    assert!(renewed.unwrap().iter().all(|renewal| matches!(renewal, Renewal::Held(_))));
    world.harness.advance(LEASE).await;
    let claimed = world.claim(10).await;
    let mut runs: Vec<RunId> = claimed.iter().map(|claimed| claimed.run.run_id).collect();
    runs.sort_unstable();
    let mut expected = [waits, over.run.run_id];
    expected.sort_unstable();
    assert_eq!(runs, expected);
    let lost: usize = claimed.iter().map(|claimed| claimed.lost.len()).sum();
    assert_eq!(lost, 1, "the lease that is over is not forgotten");
    assert_eq!(go_on(&world, &fan(), &leased).await.len(), 4);
    assert_eq!(go_on(&world, &chain_of(2), &handed_off).await.len(), 1);
}
