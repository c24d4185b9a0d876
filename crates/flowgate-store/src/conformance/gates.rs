//! S11: gates, runs that are held, and runs that are pinned to another revision.

use std::sync::Arc;

use flowgate_core::decide::{self, MovedJob, Renames};
use flowgate_core::flow::Flow;
use flowgate_core::gate::{CanaryShare, Gate, GateStamp, GateState};
use flowgate_core::ids::RunId;
use flowgate_core::run::{RunStatus, StepState};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::Harness;
use super::world::{LEASE, World, applied, chain, lease_of, queued, refused, single};
use crate::control::{GATE, GateOutcome, gate_of};
use crate::{CommitOutcome, JobDetail, Refusal, Renewal, RunQuery};

const OPEN: GateStamp = GateStamp { generation: 0, is_closed: false };
const CLOSED: GateStamp = GateStamp { generation: 1, is_closed: true };

fn closed() -> Gate {
    Gate { reason: Some("a case".into()), ..Gate::default().then(GateState::Holding) }
}

fn held_of(flow: &str) -> RunQuery {
    let (flow, statuses) = (Some(flow.into()), vec![RunStatus::Held]);
    RunQuery { flow, statuses, limit: 1_000, ..RunQuery::default() }
}

impl<H: Harness> World<'_, H> {
    async fn set(&self, flow: &Flow, gate: &Gate, only_if_empty: bool) -> GateOutcome {
        self.store().set_gate(&flow.name, gate, only_if_empty).await.expect("setting a gate")
    }

    async fn gate(&self, flow: &Flow) -> Gate {
        let keys = [Arc::clone(&flow.name)];
        let found = self.store().read_records(GATE, &keys).await.expect("reading");
        gate_of(found[0].as_ref()).expect("a gate can be read")
    }

    async fn count_held(&self, flow: &Flow) -> u64 {
        self.store().count_runs(&held_of(&flow.name)).await.expect("counting")
    }

    /// Starts a run that is held.
    async fn held(&self, flow: &Flow) -> RunId {
        let run_id = RunId(Uuid::now_v7());
        self.apply(self.start_at(flow, run_id, CLOSED)).await;
        run_id
    }
}

pub async fn a_gate_is_set_one_generation_after_the_other(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    assert_eq!(world.gate(&flow).await, Gate::default());
    let (first, second) = (closed(), closed().then(GateState::Open));
    assert_eq!(world.set(&flow, &second, false).await, GateOutcome::Changed);
    assert_eq!(world.set(&flow, &first, false).await, GateOutcome::Set);
    assert_eq!(world.set(&flow, &first, false).await, GateOutcome::Set, "the same again");
    let other = Gate { reason: None, ..first.clone() };
    assert_eq!(world.set(&flow, &other, false).await, GateOutcome::Changed);
    assert_eq!(world.gate(&flow).await, first);
    assert_eq!(world.set(&flow, &second, false).await, GateOutcome::Set);
    assert_eq!(world.gate(&flow).await, second);
    assert_eq!(world.gate(&single("another")).await, Gate::default());
}

pub async fn a_start_that_names_another_generation_is_refused(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    assert_eq!(world.set(&flow, &closed(), false).await, GateOutcome::Set);
    let run_id = RunId(Uuid::now_v7());
    let refusal = world.refused(world.start_at(&flow, run_id, OPEN)).await;
    assert_eq!(refusal, Refusal::GateMoved(CLOSED));
    assert_eq!(world.store().read_run(run_id).await.expect("reading"), None);
    let later = GateStamp { generation: 9, is_closed: false };
    let refusal = world.refused(world.start_at(&single("open"), run_id, later)).await;
    assert_eq!(refusal, Refusal::GateMoved(OPEN));
    world.apply(world.start_at(&flow, run_id, CLOSED)).await;
    assert_eq!(world.run(run_id).await.row.run.status, RunStatus::Held);
    // What was refused leaves nothing behind: the first job of a queue is found.
    let past = GateStamp { is_closed: false, ..CLOSED };
    world.apply(world.start_at(&flow, RunId(Uuid::now_v7()), past)).await;
    assert_eq!(world.claim(10).await.len(), 1);
}

pub async fn what_is_beside_a_start_at_a_moved_gate_is_applied(harness: &mut impl Harness) {
    let world = World::new(harness);
    let (flow, other) = (chain(), single("open"));
    let begun = world.started_and_claimed(&other).await;
    assert_eq!(world.set(&flow, &closed(), false).await, GateOutcome::Set);
    let ids: [RunId; 3] = std::array::from_fn(|_| RunId(Uuid::now_v7()));
    let commits = vec![
        world.start_at(&flow, ids[0], OPEN),
        world.succeed(&other, &begun),
        world.start_at(&other, ids[1], OPEN),
        world.start_at(&flow, ids[2], CLOSED),
    ];
    let outcomes =
        world.store().commit(commits, Some(&world.claimant(10))).await.expect("committing");
    assert_eq!(refused(&outcomes[0]), Refusal::GateMoved(CLOSED));
    let handed_off: Vec<usize> =
        outcomes.into_iter().skip(1).map(|outcome| applied(outcome).len()).collect();
    assert_eq!(handed_off, [0, 1, 0]);
}

pub async fn a_held_run_has_no_job_until_it_is_released(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let flow = chain();
    assert_eq!(world.set(&flow, &closed(), false).await, GateOutcome::Set);
    let (first, second) = (world.held(&flow).await, world.held(&flow).await);
    assert!(world.claim(10).await.is_empty());
    assert_eq!(world.count_held(&flow).await, 2);
    assert_eq!(world.count_held(&single("another")).await, 0);
    let listed: Vec<RunId> =
        world.list(&held_of("chain")).await.iter().map(|row| row.run.run_id).collect();
    assert_eq!(listed, [second, first]);
    world.reopen_if_it_can().await;
    let row = world.run(first).await.row;
    // The revision that it goes on with has more steps than the one that it was held on.
    let to = longer();
    let commit = decide::release((&to, None), &row.run, row.started_at, world.next_id())
        .expect("it is held");
    world.apply(commit).await;
    assert_eq!(world.count_held(&flow).await, 1);
    let detail = world.run(first).await;
    assert_eq!((detail.row.run.status, detail.jobs.len()), (RunStatus::Running, 1));
    assert_eq!(detail.row.run.revision, to.revision);
    world.finish(&to, first).await;
    let waiting = world.run(second).await.row.run;
    world.apply(world.cancel(&flow, &waiting)).await;
    assert_eq!(world.count_held(&flow).await, 0);
}

pub async fn a_gate_opens_only_if_nothing_is_held(harness: &mut impl Harness) {
    let world = World::new(harness);
    let (flow, other) = (chain(), single("other"));
    assert_eq!(world.set(&flow, &closed(), true).await, GateOutcome::Set);
    assert_eq!(world.set(&other, &closed(), false).await, GateOutcome::Set);
    let run_id = world.held(&flow).await;
    world.held(&other).await;
    let open = closed().then(GateState::Open);
    assert_eq!(world.set(&flow, &open, true).await, GateOutcome::HoldsRuns);
    assert_eq!(world.gate(&flow).await, closed());
    let run = world.run(run_id).await.row.run;
    world.apply(world.cancel(&flow, &run)).await;
    assert_eq!(world.set(&flow, &open, true).await, GateOutcome::Set);
    let start = world.start_at(&flow, RunId(Uuid::now_v7()), open.stamp());
    world.apply(start).await;
}

pub async fn a_gate_stays_closed_over_a_reopen(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let flow = chain();
    assert_eq!(world.set(&flow, &closed(), false).await, GateOutcome::Set);
    let held = world.held(&flow).await;
    if !world.reopen().await {
        return;
    }
    assert_eq!(world.gate(&flow).await, closed());
    let refusal = world.refused(world.start_at(&flow, RunId(Uuid::now_v7()), OPEN)).await;
    assert_eq!(refusal, Refusal::GateMoved(CLOSED));
    assert_eq!(world.run(held).await.row.run.status, RunStatus::Held);
    assert_eq!(world.count_held(&flow).await, 1);
    let open = closed().then(GateState::Open);
    assert_eq!(world.set(&flow, &open, true).await, GateOutcome::HoldsRuns);
}

pub async fn once_a_gate_is_set_no_older_start_comes_in(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let mut starts = JoinSet::new();
    for _ in 0..40 {
        let store = world.store();
        let commits: Vec<_> =
            (0..5).map(|_| world.start_at(&flow, RunId(Uuid::now_v7()), OPEN)).collect();
        starts.spawn(async move { store.commit(commits, None).await.expect("committing") });
    }
    let all = RunQuery { flow: Some("chain".into()), limit: 1_000, ..RunQuery::default() };
    // Some are in before the gate closes.
    let first = starts.join_next().await.expect("a start").expect("it ends");
    assert_eq!(world.set(&flow, &closed(), false).await, GateOutcome::Set);
    let counted = world.store().count_runs(&all).await.expect("counting");
    let mut outcomes = first;
    while let Some(more) = starts.join_next().await {
        outcomes.extend(more.expect("it ends"));
    }
    let mut came_in = 0;
    for outcome in outcomes {
        match outcome {
            CommitOutcome::Applied { .. } => came_in += 1,
            CommitOutcome::Refused(refusal) => assert_eq!(refusal, Refusal::GateMoved(CLOSED)),
        }
    }
    assert_eq!(counted, came_in, "a start came in after the gate was closed");
}

pub async fn a_resent_start_is_recognised_when_the_gate_has_moved(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let commit = world.start_at(&flow, RunId(Uuid::now_v7()), OPEN);
    world.apply(commit.clone()).await;
    assert_eq!(world.set(&flow, &closed(), false).await, GateOutcome::Set);
    world.apply(commit.clone()).await;
    let other = world.start_at(&flow, commit.run_id, OPEN);
    assert_eq!(world.refused(other).await, Refusal::RunExists);
}

pub async fn a_moved_run_fences_its_attempts_and_goes_on(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let (flow, to) = (chain(), longer());
    let first = world.started_and_claimed(&flow).await;
    let run_id = first.job.job_id.run_id;
    let second = world.apply_and_take(world.succeed(&flow, &first), 1).await.remove(0);
    let detail = world.run(run_id).await;
    let jobs: Vec<MovedJob> = detail.jobs.iter().map(JobDetail::to_move).collect();
    let run = &detail.row.run;
    let migrated = decide::place((&flow, &to), &Renames::new(), run).expect("it has a place");
    let commit = decide::migrate((&flow, &to), migrated, run, &jobs, world.next_id());
    world.apply(commit.expect("it can be moved")).await;
    // Who had the job does not have it any more, at whatever version it says so.
    let late = world.succeed(&flow, &second);
    assert_eq!(world.refused(late).await, Refusal::RunVersion);
    let renewed = world.store().renew(&[lease_of(&second)], LEASE).await;
    assert_eq!(renewed.expect("renewing"), [Renewal::Lost]);
    world.reopen_if_it_can().await;
    let again = world.claim_one().await;
    assert_eq!(again.run.revision, to.revision);
    assert_eq!(&*to.step(again.job.job_id.step).name, "second");
    assert_eq!(again.job.attempt, 1, "an attempt that was given up does not count");
    assert!(again.token > second.token);
    assert_eq!(again.inputs[0].get(), "1");
    world.apply(world.succeed(&to, &again)).await;
    world.finish(&to, run_id).await;
    let events = world.events(run_id).await;
    let found = flowgate_core::check::check_run(&[&flow, &to], run_id, &events, None);
    assert!(found.is_empty(), "{found:?}");
    let run = world.run(run_id).await.row.run;
    assert!(run.steps.iter().all(|step| step.state == StepState::Succeeded), "{run:?}");
}

/// The chain with a step before its second, which begins with it, and one at the end.
fn longer() -> Flow {
    let file = serde_json::json!({ "flow": "chain", "steps": {
        "aside": { "subscribes": ["two"], "run": { "shell": "true" } },
        "first": { "run": { "shell": "true" }, "emits": ["one"] },
        "second": { "subscribes": ["one"], "run": { "shell": "true" }, "emits": ["two"] },
        "third": { "subscribes": ["two"], "run": { "shell": "true" }, "emits": ["three"] },
        "fourth": { "subscribes": ["three"], "run": { "shell": "true" } },
    } });
    Flow::new(serde_json::from_value(file).expect("a flow")).expect("a valid flow")
}

pub async fn whoever_is_told_of_a_generation_finds_where_its_starts_go(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let flow = chain();
    let canary = CanaryShare { revision: flow.revision.clone(), share: "5%".parse().unwrap() };
    let pools = [(flow.revision.clone(), "green".into())].into();
    let shared = Gate { canary: Some(canary), pools, ..Gate::default().then(GateState::Open) };
    assert_eq!(world.set(&flow, &shared, false).await, GateOutcome::Set);
    world.reopen_if_it_can().await;
    let refusal = world.refused(world.start_at(&flow, RunId(Uuid::now_v7()), OPEN)).await;
    assert_eq!(refusal, Refusal::GateMoved(shared.stamp()));
    assert_eq!(world.gate(&flow).await, shared);
    assert_eq!(world.set(&flow, &shared, false).await, GateOutcome::Set, "the same again");
    let whole = Gate { canary: None, ..shared.then(GateState::Open) };
    assert_eq!(world.set(&flow, &whole, false).await, GateOutcome::Set);
    assert_eq!(world.gate(&flow).await, whole);
}

pub async fn the_queue_of_a_start_that_was_refused_is_found_when_it_comes_again(
    harness: &mut impl Harness,
) {
    let world = World::new(harness);
    let flow = queued("new");
    assert_eq!(world.set(&flow, &closed(), false).await, GateOutcome::Set);
    let open = closed().then(GateState::Open);
    assert_eq!(world.set(&flow, &open, false).await, GateOutcome::Set);
    let run_id = RunId(Uuid::now_v7());
    let refusal = world.refused(world.start_at(&flow, run_id, OPEN)).await;
    assert_eq!(refusal, Refusal::GateMoved(open.stamp()));
    world.apply(world.start_at(&flow, run_id, open.stamp())).await;
    assert_eq!(world.claim(10).await.len(), 1);
}
