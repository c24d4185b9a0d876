//! Open runs that somebody moves to another revision, and stopped ones that somebody lets go on or
//! gives up, on every store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use flowgate_core::decide::Rejection;
use flowgate_core::deploy::{Deployment, Phase, Refusal};
use flowgate_core::flow::Flow;
use flowgate_core::ids::RunId;
use flowgate_core::run::{Run, RunStatus};
use flowgate_engine::{
    Ask, Checkpoint, CheckpointState, EngineError, HoldRequest, Move, MoveTo, checkpoints,
    find_checkpoint,
};
use flowgate_store::{Authored, Store};

use crate::deploys::{FAST, NEW, Scene, on_every_store};
use crate::shared::shut_down;
use crate::world::eventually;

fn to(flow: &Flow, steps: &[(&str, &str)]) -> MoveTo {
    let owned = |(old, new): &(&str, &str)| ((*old).to_owned(), (*new).to_owned());
    MoveTo { revision: flow.revision.clone(), steps: steps.iter().map(owned).collect() }
}

async fn run(scene: &Scene, run_id: RunId) -> Arc<Run> {
    scene.engine().store().read_run(run_id).await.unwrap().unwrap().row.run
}

/// Runs whose step `ship` is under way on the old revision, and does not end.
async fn under_way(scene: &Scene, count: u64) -> Vec<RunId> {
    *scene.floor.slow_from.lock() = Some(0);
    let mut runs = Vec::new();
    for n in 0..count {
        runs.push(scene.start(n).await);
    }
    let expected = usize::try_from(count).unwrap();
    let are_there = async || scene.floor.waiting.load(Ordering::SeqCst) == expected;
    eventually("the steps are under way", are_there).await;
    runs
}

async fn moves_of(scene: &Scene, run_id: RunId) -> usize {
    scene.kinds(run_id).await.iter().filter(|kind| **kind == "run.migrated").count()
}

async fn a_run_goes_on_on_another_revision_and_its_late_result_is_refused(
    stores: Vec<Arc<dyn Store>>,
) {
    let scene = Scene::new(stores).await;
    let run_id = under_way(&scene, 1).await[0];
    let new = Flow::parse(NEW).unwrap();
    let said = Authored { author: Some("ann".into()), note: Some("mended".into()) };
    scene.engine().register_by(&new, None, said.clone()).await.unwrap();
    let revisions = scene.engine().store().list_revisions(Some("orders")).await.unwrap();
    assert_eq!(revisions[0].revision.authored, said);
    let to = to(&new, &[]);
    let planned = scene.engine().plan_move(&*run(&scene, run_id).await, &to).await.unwrap();
    let expected = Move {
        run_id,
        flow: "orders".into(),
        from: scene.old.revision.clone(),
        to: new.revision.clone(),
        at: vec!["ship".into()],
        steps: vec!["ship".into()],
        starts: Vec::new(),
    };
    assert_eq!(planned, expected);
    assert_eq!(run(&scene, run_id).await.revision, scene.old.revision, "a plan changes nothing");
    assert_eq!(scene.engine().move_run(run_id, &to).await.unwrap(), expected);
    scene.check(&[run_id], &[&scene.old, &new]).await;
    scene.floor.let_go.notify_waiters();
    let ended = run(&scene, run_id).await;
    assert_eq!((ended.status, &ended.revision), (RunStatus::Completed, &new.revision));
    assert_eq!((scene.floor.of("take", 0), scene.floor.of("ship-new", 0)), (1, 1));
    assert_eq!(moves_of(&scene, run_id).await, 1);
    let refused = scene.engine().move_run(run_id, &to).await.unwrap_err();
    let ended = Rejection::RunEnded(RunStatus::Completed);
    assert!(matches!(&refused, EngineError::Rejected(why) if *why == ended), "{refused:?}");
    shut_down(scene.engines).await;
}

async fn what_has_no_place_stays_and_is_told_why(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    let run_id = under_way(&scene, 1).await[0];
    let renamed = Flow::parse(&NEW.replace("ship:", "send:")).unwrap();
    scene.engine().register(&renamed, None).await.unwrap();
    let refused = scene.engine().move_run(run_id, &to(&renamed, &[])).await.unwrap_err();
    assert!(
        matches!(&refused, EngineError::NoPlace { reason, .. } if reason.contains("`ship`")),
        "{refused:?}"
    );
    let slip = scene.engine().move_run(run_id, &to(&renamed, &[("shop", "send")])).await;
    let slip = slip.unwrap_err();
    assert!(matches!(&slip, EngineError::Deploy(Refusal::StepMap { .. })), "{slip:?}");
    assert!(slip.to_string().contains("did you mean `ship`?"), "{slip}");
    assert_eq!(moves_of(&scene, run_id).await, 0);
    let unknown =
        MoveTo { revision: flowgate_core::ids::Revision("none".into()), steps: BTreeMap::new() };
    let refused = scene.engine().move_run(run_id, &unknown).await.unwrap_err();
    assert!(matches!(refused, EngineError::Flow(_)), "{refused:?}");

    scene.engine().hold("orders", HoldRequest::default()).await.unwrap();
    let held = scene.start(1).await;
    let refused = scene.engine().move_run(held, &to(&renamed, &[])).await.unwrap_err();
    assert!(matches!(refused, EngineError::Rejected(Rejection::RunHeld)), "{refused:?}");

    let to = to(&renamed, &[("ship", "send")]);
    let moved = scene.engine().move_run(run_id, &to).await.unwrap();
    assert_eq!((&*moved.at[0], &*moved.steps[0]), ("ship", "send"));
    scene.check(&[run_id], &[&scene.old, &renamed]).await;
    let cancelled = scene.engine().cancel(held, None).await.unwrap();
    assert_eq!(cancelled.status, RunStatus::Cancelled);
    shut_down(scene.engines).await;
}

/// A deployment that has stopped some runs, and where it stands.
async fn stopped(
    scene: &Scene,
    count: u64,
    (flow, settings): (&str, &str),
) -> (Deployment, Vec<Checkpoint>) {
    under_way(scene, count).await;
    *scene.floor.slow_from.lock() = None;
    let settings = settings.replace("drain_timeout: 5s", "drain_timeout: 200ms");
    let deployment = scene.deploy(flow, &settings).await;
    let pending = async || checkpoints(&**scene.engine().store(), Some("orders")).await.unwrap();
    let are_all = async || u64::try_from(pending().await.len()).unwrap() == count;
    eventually("all are stopped", are_all).await;
    (deployment, pending().await)
}

async fn a_stopped_run_is_given_up_and_nobody_lets_it_go_on(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    let hanging = NEW.replace("ship-new", "hangs");
    let settings = FAST.replace("verify_timeout: 5s", "verify_timeout: 50s");
    let (deployment, found) = stopped(&scene, 2, (&hanging, &settings)).await;
    scene.reached(&deployment, Phase::Verify).await;
    let (engine, store) = (scene.engine(), &**scene.engine().store());
    let [one, other] = found.as_slice() else { panic!("{found:?}") };
    let broken = Flow::parse(&hanging).unwrap();
    let refused = engine.move_run(one.run_id, &to(&broken, &[])).await.unwrap_err();
    assert!(matches!(refused, EngineError::Checkpointed { .. }), "{refused:?}");
    let refused = engine.replay_checkpoint(one).await.unwrap_err();
    assert!(matches!(refused, EngineError::Undecided { phase: Phase::Verify, .. }), "{refused:?}");
    for _ in 0..2 {
        let discarded = engine.discard_checkpoint(one, Some("not wanted")).await.unwrap();
        assert_eq!(discarded.state, CheckpointState::Discarded);
        assert_eq!(run(&scene, one.run_id).await.status, RunStatus::Cancelled);
    }
    engine.ask_deployment("orders", &Ask::Rollback { note: None }).await.unwrap();
    let ended = scene.ended(&deployment).await;
    assert_eq!((ended.phase, ended.counts.checkpointed), (Phase::RolledBack, 2), "{ended:?}");
    scene.check(&[one.run_id, other.run_id], &[&scene.old]).await;
    assert_eq!(run(&scene, other.run_id).await.status, RunStatus::Completed);
    let state = async |one: &Checkpoint| {
        find_checkpoint(store, &*run(&scene, one.run_id).await).await.unwrap().state
    };
    assert_eq!(state(one).await, CheckpointState::Discarded);
    assert_eq!(state(other).await, CheckpointState::Pinned);
    let refused = engine.replay_checkpoint(one).await.unwrap_err();
    assert!(matches!(refused, EngineError::CheckpointSettled { .. }), "{refused:?}");
    let refused = engine.discard_checkpoint(other, None).await.unwrap_err();
    assert!(matches!(refused, EngineError::CheckpointSettled { .. }), "{refused:?}");
    let again = engine.replay_checkpoint(other).await.unwrap();
    assert_eq!(again.state, CheckpointState::Pinned, "to repeat it changes nothing");
    let free = scene.start(9).await;
    let refused = find_checkpoint(store, &*run(&scene, free).await).await.unwrap_err();
    assert!(matches!(refused, EngineError::NoCheckpoint(_)), "{refused:?}");
    shut_down(scene.engines).await;
}

async fn stopped_runs_go_on_once_whoever_lets_them(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    // The driver lets one go on a second, so that somebody can be quicker.
    let settings = FAST.replace("replay_rate: unlimited", "replay_rate: 1");
    let (deployment, found) = stopped(&scene, 6, (NEW, &settings)).await;
    scene.reached(&deployment, Phase::Resume).await;
    for one in &found {
        let replayed = async || match scene.engines[0].replay_checkpoint(one).await {
            Ok(replayed) => replayed.state == CheckpointState::Resumed,
            // The phase begins a moment before the revision is active.
            Err(EngineError::Undecided { .. }) => false,
            Err(error) => panic!("{error:?}"),
        };
        eventually("it goes on", replayed).await;
    }
    let ended = scene.ended(&deployment).await;
    assert_eq!((ended.phase, ended.counts.checkpointed), (Phase::Completed, 6), "{ended:?}");
    let runs: Vec<RunId> = found.iter().map(|one| one.run_id).collect();
    scene.check(&runs, &[&scene.old, &Flow::parse(NEW).unwrap()]).await;
    for (n, run_id) in (0..).zip(&runs) {
        assert_eq!(moves_of(&scene, *run_id).await, 1);
        assert_eq!(scene.floor.of("ship-new", n), 1);
    }
    scene.floor.let_go.notify_waiters();
    shut_down(scene.engines).await;
}

async fn of_two_who_move_a_run_one_does(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    let runs = under_way(&scene, 4).await;
    let new = Flow::parse(NEW).unwrap();
    scene.engine().register(&new, None).await.unwrap();
    let to = to(&new, &[]);
    for run_id in &runs {
        let (one, other) = tokio::join!(
            scene.engines[0].move_run(*run_id, &to),
            scene.engines[1].move_run(*run_id, &to),
        );
        let (moved, late) = if one.is_ok() { (one, other) } else { (other, one) };
        moved.unwrap();
        let late = late.unwrap_err();
        assert!(matches!(late, EngineError::Rejected(_)), "{late:?}");
    }
    scene.check(&runs, &[&scene.old, &new]).await;
    for run_id in &runs {
        assert_eq!(moves_of(&scene, *run_id).await, 1);
    }
    scene.floor.let_go.notify_waiters();
    shut_down(scene.engines).await;
}

on_every_store!(
    a_run_goes_on_on_another_revision_and_its_late_result_is_refused,
    what_has_no_place_stays_and_is_told_why,
    a_stopped_run_is_given_up_and_nobody_lets_it_go_on,
    stopped_runs_go_on_once_whoever_lets_them,
    ;
    shared:
    of_two_who_move_a_run_one_does,
);
