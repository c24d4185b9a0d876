//! S1 to S4, S7 and S10: what a commit does, and when it does nothing.

use std::sync::Arc;

use flowgate_core::decide::Report;
use flowgate_core::event::Event;
use flowgate_core::ids::RunId;
use flowgate_core::limits::COMMIT_BYTES_MAX;
use flowgate_core::payload::Payload;
use flowgate_core::run::RunStatus;
use tokio::task::JoinSet;

use super::Harness;
use super::world::{World, applied, chain, fan, join, lease_of, nothing, refused, single};
use crate::{CommitOutcome, Refusal, Renewal, RunQuery};

pub async fn a_start_makes_a_run_with_its_first_events(harness: &mut impl Harness) {
    let world = World::new(harness);
    let run_id = world.started(&chain(), r#"{"x":1}"#).await;
    let kinds: Vec<_> = world.events(run_id).await.iter().map(|e| e.event.kind()).collect();
    assert_eq!(kinds, ["run.started", "step.queued"]);
    let detail = world.run(run_id).await;
    assert_eq!(detail.row.run.version, 2);
    assert_eq!(detail.row.run.status, RunStatus::Running);
    assert_eq!(detail.row.ended_at, None);
    assert_eq!(detail.jobs.len(), 1);
    assert_eq!(detail.jobs[0].job.attempt, 0);
    assert_eq!(detail.jobs[0].lease, None);
}

pub async fn a_run_that_was_never_started_is_not_there(harness: &mut impl Harness) {
    let world = World::new(harness);
    let run_id = RunId::derived("chain", "nobody");
    assert_eq!(world.store().read_run(run_id).await.unwrap(), None);
    assert_eq!(world.events(run_id).await, []);
    assert_eq!(world.store().read_logs(run_id, 0, 10).await.unwrap(), []);
}

pub async fn a_second_start_of_a_run_is_refused(harness: &mut impl Harness) {
    let world = World::new(harness);
    let run_id = world.started(&chain(), "1").await;
    let second = world.start_as(&chain(), run_id, "2");
    assert_eq!(world.refused(second).await, Refusal::RunExists);
    world.finish(&chain(), run_id).await;
    let third = world.start_as(&chain(), run_id, "3");
    assert_eq!(world.refused(third).await, Refusal::RunExists);
}

pub async fn a_start_with_the_same_key_finds_the_same_run(harness: &mut impl Harness) {
    let world = World::new(harness);
    let run_id = RunId::derived("chain", "order-7");
    world.apply(world.start_as(&chain(), run_id, "1")).await;
    let again = world.start_as(&chain(), RunId::derived("chain", "order-7"), "2");
    assert_eq!(world.refused(again).await, Refusal::RunExists);
    assert_eq!(world.claim_one().await.inputs[0].get(), "1");
}

pub async fn a_refused_commit_writes_nothing(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    let run_id = claimed.job.job_id.run_id;
    let stale = world.succeed(&flow, &claimed);
    world.apply(world.begin(&flow, &claimed)).await;
    let before = (world.run(run_id).await, world.events(run_id).await);
    let feed = world.feed(before.1.len()).await;
    assert_eq!(world.refused(stale).await, Refusal::RunVersion);
    assert_eq!((world.run(run_id).await, world.events(run_id).await), before);
    assert_eq!(world.feed(feed.len()).await, feed);
    assert!(world.claim(10).await.is_empty(), "the refused commit made no job due");
}

pub async fn a_commit_with_one_guard_of_two_broken_writes_nothing(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    let run_id = claimed.job.job_id.run_id;
    let before = world.run(run_id).await;
    let mut commit = world.succeed(&flow, &claimed);
    commit.guards.push(flowgate_core::commit::Guard::LeaseHeld {
        job_id: claimed.job.job_id,
        token: flowgate_core::ids::LeaseToken(claimed.token.0 + 1),
    });
    assert_eq!(world.refused(commit).await, Refusal::LeaseLost(claimed.job.job_id));
    assert_eq!(world.run(run_id).await, before);
}

pub async fn a_commit_on_an_old_version_is_refused(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    let (one, other) = (world.begin(&flow, &claimed), world.succeed(&flow, &claimed));
    world.apply(one).await;
    assert_eq!(world.refused(other).await, Refusal::RunVersion);
}

pub async fn a_commit_on_a_run_that_is_not_there_is_refused(harness: &mut impl Harness) {
    let world = World::new(harness);
    let start = world.start(&chain(), "1");
    let cancel = world.cancel(&chain(), &start.record);
    assert_eq!(world.refused(cancel).await, Refusal::RunVersion);
}

pub async fn of_many_commits_on_one_version_exactly_one_applies(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    let mut tasks = JoinSet::new();
    for _ in 0..32 {
        let (store, commit) = (world.store(), world.succeed(&flow, &claimed));
        tasks.spawn(async move { store.commit(vec![commit], None).await.unwrap().remove(0) });
    }
    let outcomes = tasks.join_all().await;
    let count = outcomes.iter().filter(|o| matches!(o, CommitOutcome::Applied { .. })).count();
    assert_eq!(count, 1);
    let events = world.events(claimed.job.job_id.run_id).await;
    let ends = events.iter().filter(|e| matches!(e.event, Event::StepSucceeded { .. })).count();
    assert_eq!(ends, 1);
}

pub async fn of_many_starts_of_one_run_exactly_one_applies(harness: &mut impl Harness) {
    let world = World::new(harness);
    let run_id = RunId::derived("chain", "one");
    let mut tasks = JoinSet::new();
    for number in 0..32 {
        let commit = world.start_as(&chain(), run_id, &number.to_string());
        let store = world.store();
        tasks.spawn(async move { store.commit(vec![commit], None).await.unwrap().remove(0) });
    }
    let outcomes = tasks.join_all().await;
    let count = outcomes.iter().filter(|o| matches!(o, CommitOutcome::Applied { .. })).count();
    assert_eq!(count, 1);
    assert_eq!(world.events(run_id).await.len(), 2);
}

pub async fn a_resent_start_is_recognised(harness: &mut impl Harness) {
    let world = World::new(harness);
    let start = world.start(&chain(), "1");
    world.apply(start.clone()).await;
    world.apply(start.clone()).await;
    assert_eq!(world.events(start.run_id).await.len(), 2, "it is written once");
    assert_eq!(world.claim(10).await.len(), 1);
}

pub async fn a_resent_commit_is_recognised(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    let commit = world.succeed(&flow, &claimed);
    world.apply(commit.clone()).await;
    let before = world.events(commit.run_id).await;
    world.apply(commit.clone()).await;
    assert_eq!(world.events(commit.run_id).await, before, "it is written once");
    assert_eq!(world.claim(10).await.len(), 1, "its job is there once");
}

pub async fn a_resent_commit_is_recognised_under_later_commits(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    let commit = world.succeed(&flow, &claimed);
    world.apply(commit.clone()).await;
    let next = world.claim_one().await;
    world.apply(world.succeed(&flow, &next)).await;
    let before = world.events(commit.run_id).await;
    world.apply(commit.clone()).await;
    assert_eq!(world.events(commit.run_id).await, before);
}

pub async fn a_resent_last_commit_of_a_run_is_recognised(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = single("one");
    let claimed = world.started_and_claimed(&flow).await;
    let last = world.succeed(&flow, &claimed);
    world.apply(last.clone()).await;
    world.apply(last.clone()).await;
    let start = world.start(&nothing(), "1");
    world.apply(start.clone()).await;
    world.apply(start).await;
}

pub async fn a_resent_commit_is_recognised_after_a_reopen(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    let commit = world.succeed(&flow, &claimed);
    world.apply(commit.clone()).await;
    if world.reopen().await {
        let before = world.events(commit.run_id).await;
        world.apply(commit.clone()).await;
        assert_eq!(world.events(commit.run_id).await, before);
    }
}

pub async fn a_resent_commit_hands_off_the_same_leases_again(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = fan();
    let claimed = world.started_and_claimed(&flow).await;
    let commit = world.succeed(&flow, &claimed);
    let first = world.apply_and_take(commit.clone(), 3).await;
    let again = world.apply_and_take(commit, 3).await;
    let leases = |taken: &[_]| taken.iter().map(lease_of).collect::<Vec<_>>();
    assert_eq!(leases(&first).len(), 3);
    assert_eq!(leases(&again), leases(&first));
    assert_eq!(again[0].inputs, first[0].inputs);
    assert_eq!(again[0].job, first[0].job, "it is the same attempt");
    assert_eq!(world.claim(10).await.len(), 1, "the fourth is free");
}

pub async fn a_resent_commit_hands_off_only_what_is_still_leased(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = fan();
    let claimed = world.started_and_claimed(&flow).await;
    let commit = world.succeed(&flow, &claimed);
    let first = world.apply_and_take(commit.clone(), 4).await;
    world.apply(world.succeed(&flow, &first[0])).await;
    let again = world.apply_and_take(commit.clone(), 4).await;
    assert_eq!(again.len(), 3, "one is settled");
    world.harness.advance(super::world::LEASE).await;
    assert_eq!(world.claim(1).await.len(), 1);
    assert!(world.apply_and_take(commit, 4).await.is_empty(), "the leases have expired");
}

pub async fn a_resent_commit_hands_off_nothing_to_somebody_else(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = fan();
    let claimed = world.started_and_claimed(&flow).await;
    let commit = world.succeed(&flow, &claimed);
    assert_eq!(world.apply_and_take(commit.clone(), 4).await.len(), 4);
    let mut other = world.claimant(4);
    other.instance = flowgate_core::ids::InstanceId("host-2".into());
    assert!(applied(world.send(commit.clone(), Some(&other)).await).is_empty());
    assert!(applied(world.send(commit, None).await).is_empty());
}

pub async fn another_commit_on_the_same_version_is_not_taken_for_a_resent_one(
    harness: &mut impl Harness,
) {
    let world = World::new(harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    let (one, other) = (world.succeed(&flow, &claimed), world.succeed(&flow, &claimed));
    assert_eq!(one.events, other.events);
    world.apply(one).await;
    assert_eq!(world.refused(other).await, Refusal::RunVersion);
}

pub async fn a_batch_has_an_outcome_for_each_commit_in_order(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    let (good, stale) = (world.start(&flow, "1"), world.succeed(&flow, &claimed));
    world.apply(world.begin(&flow, &claimed)).await;
    let twice = world.start_as(&flow, good.run_id, "2");
    let large = world.start(&flow, "1");
    let large = oversized(large);
    let other = world.start(&flow, "3");
    let run_ids = [good.run_id, other.run_id];
    let batch = vec![good, stale, twice, large, other];
    let outcomes = world.store().commit(batch, None).await.unwrap();
    let shown = outcomes.into_iter().map(|outcome| match outcome {
        CommitOutcome::Applied { .. } => None,
        CommitOutcome::Refused(refusal) => Some(refusal),
    });
    let shown: Vec<_> = shown.collect();
    assert_eq!(shown[..3], [None, Some(Refusal::RunVersion), Some(Refusal::RunExists)]);
    assert!(matches!(shown[3], Some(Refusal::TooLarge { .. })));
    assert_eq!(shown[4], None);
    for run_id in run_ids {
        assert_eq!(world.events(run_id).await.len(), 2);
    }
}

pub async fn an_empty_batch_has_no_outcomes(harness: &mut impl Harness) {
    let world = World::new(harness);
    let claimant = world.claimant(1);
    assert!(world.store().commit(Vec::new(), Some(&claimant)).await.unwrap().is_empty());
    assert!(world.store().renew(&[], super::world::LEASE).await.unwrap().is_empty());
    world.store().append_logs(Vec::new()).await.unwrap();
}

pub async fn commits_of_one_run_in_one_batch_build_on_each_other(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let start = world.start(&flow, "1");
    let cancel = world.cancel(&flow, &start.record);
    let run_id = start.run_id;
    let outcomes = world.store().commit(vec![start, cancel], None).await.unwrap();
    for outcome in outcomes {
        applied(outcome);
    }
    let detail = world.run(run_id).await;
    assert_eq!(detail.row.run.status, RunStatus::Cancelled);
    assert!(detail.row.ended_at.is_some());
    let seqs: Vec<u64> = world.events(run_id).await.iter().map(|e| e.seq).collect();
    assert_eq!(seqs, (1..=detail.row.run.version).collect::<Vec<_>>());
}

/// A start with one more byte of payload than a commit may have.
fn oversized(mut start: flowgate_core::commit::Commit) -> flowgate_core::commit::Commit {
    let mebibyte = Payload::parse(&format!("\"{}\"", "x".repeat((1 << 20) - 2))).unwrap();
    let event = Event::SignalReceived { signal: "large".into(), data: mebibyte };
    let count = COMMIT_BYTES_MAX / (1 << 20);
    start.events.extend(vec![event; count]);
    let mut record = (*start.record).clone();
    record.version += count as u64;
    start.record = Arc::new(record);
    start
}

pub async fn a_commit_over_the_size_limit_is_refused_before_writing(harness: &mut impl Harness) {
    let world = World::new(harness);
    let large = oversized(world.start(&chain(), "1"));
    let run_id = large.run_id;
    let refusal = world.refused(large).await;
    assert_eq!(refusal, Refusal::TooLarge { bytes: COMMIT_BYTES_MAX + 1 });
    assert_eq!(world.store().read_run(run_id).await.unwrap(), None);
    assert!(world.claim(10).await.is_empty());
}

pub async fn a_commit_at_the_size_limit_is_applied(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = join(16);
    let claimed = world.started_and_claimed(&flow).await;
    let mebibyte = format!("\"{}\"", "x".repeat((1 << 20) - 2));
    let commit = world.succeed_with(&flow, &claimed, &mebibyte);
    let bytes: usize = commit.events.iter().map(Event::payload_bytes).sum();
    assert_eq!(bytes, COMMIT_BYTES_MAX);
    let taken = world.apply_and_take(commit, 1).await;
    assert_eq!(taken[0].inputs.len(), 16);
    assert!(taken[0].inputs.iter().all(|input| input.get() == mebibyte));
}

pub async fn a_run_that_ended_has_no_jobs(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let run_id = world.started(&flow, "1").await;
    world.finish(&flow, run_id).await;
    let detail = world.run(run_id).await;
    assert_eq!(detail.row.run.status, RunStatus::Completed);
    assert_eq!(detail.jobs, []);
    assert_eq!(detail.row.ended_at, Some(detail.row.updated_at));
    assert!(world.claim(10).await.is_empty());
}

pub async fn a_cancelled_run_fences_its_attempts(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    let late = world.succeed(&flow, &claimed);
    world.apply(world.cancel(&flow, &claimed.run)).await;
    assert_eq!(world.run(late.run_id).await.jobs, []);
    let renewals = world.store().renew(&[lease_of(&claimed)], super::world::LEASE).await;
    assert_eq!(renewals.unwrap(), [Renewal::Lost]);
    assert_eq!(world.refused(late).await, Refusal::RunVersion);
    world.harness.advance(super::world::LEASE).await;
    assert!(world.claim(10).await.is_empty(), "its job does not come back");
}

pub async fn a_run_that_ended_takes_no_further_commit(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let start = world.start(&flow, "1");
    world.apply(start.clone()).await;
    let run = world.run(start.run_id).await.row.run;
    world.apply(world.cancel(&flow, &run)).await;
    assert_eq!(world.refused(world.cancel(&flow, &run)).await, Refusal::RunVersion);
    let ended = world.run(start.run_id).await.row.run;
    let mut forged = world.cancel(&flow, &run);
    let mut record = (*forged.record).clone();
    record.version = ended.version + forged.events.len() as u64;
    forged.record = Arc::new(record);
    forged.guards = vec![flowgate_core::commit::Guard::RunVersion(ended.version)];
    assert_eq!(world.refused(forged).await, Refusal::RunVersion);
}

pub async fn a_run_that_ends_in_its_first_commit_is_kept(harness: &mut impl Harness) {
    let world = World::new(harness);
    let run_id = world.started(&nothing(), "1").await;
    let detail = world.run(run_id).await;
    assert_eq!(detail.row.run.status, RunStatus::Completed);
    assert!(detail.row.ended_at.is_some());
    let query = RunQuery { statuses: vec![RunStatus::Completed], limit: 10, ..RunQuery::default() };
    assert_eq!(world.list(&query).await.len(), 1);
    assert_eq!(world.refused(world.start_as(&nothing(), run_id, "2")).await, Refusal::RunExists);
}

pub async fn a_signal_commits_without_a_lease(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let run_id = world.started(&flow, "1").await;
    let run = world.run(run_id).await.row.run;
    let cancel = Report::Cancel { reason: Some("enough".into()) };
    let outcome = world.send(world.decide(&flow, &run, &cancel), None).await;
    assert!(applied(outcome).is_empty());
    let again = world.send(world.decide(&flow, &run, &cancel), None).await;
    assert_eq!(refused(&again), Refusal::RunVersion);
}
