//! Canaries: a share of the starts goes to the new revision until enough of them decide.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use flowgate_core::deploy::{Deployment, Phase, RollbackReason};
use flowgate_core::flow::Flow;
use flowgate_core::ids::{Revision, RunId};
use flowgate_core::run::{Run, RunStatus};
use flowgate_engine::{Ask, Engine, EngineError, StartRequest, canary_figures};
use flowgate_store::Store;
use serde_json::json;

use crate::deploys::{Floor, Leader, NEW, OLD, Scene, config, on_every_store, request};
use crate::shared::shut_down;
use crate::world::{eventually, payload};

/// Few samples, and latency says nothing on a machine that does much else.
const QUICK: &str = "
strategy: canary
verify_timeout: 1s
canary: { share: 40%, samples_min: 10, error_rate_max: 0.3, latency_ratio_max: 1000 }
";
/// One that nobody decides about but a person.
const LONG: &str = "
strategy: canary
verify_timeout: 1s
canary: { share: 20%, samples_min: 1000000 }
";

impl Scene {
    async fn run(&self, run_id: RunId) -> Arc<Run> {
        self.engine().store().read_run(run_id).await.unwrap().unwrap().row.run
    }

    /// Waits until starts are shared.
    async fn shared(&self) {
        let has_canary = async || self.engine().gate("orders").await.unwrap().gate.canary.is_some();
        eventually("starts are shared", has_canary).await;
    }

    /// Starts runs until the deployment has ended.
    async fn start_until_ended(&self, deployment: &Deployment) -> (Vec<RunId>, Deployment) {
        let (mut runs, mut n) = (Vec::new(), 0);
        let id = &deployment.deployment_id.0;
        loop {
            for _ in 0..5 {
                runs.push(self.start(n).await);
                n += 1;
            }
            // They come about as fast as they end.
            self.engine().wait(runs[runs.len() - 1]).await.unwrap();
            let now = self.read(id).await;
            if now.phase.is_terminal() {
                return (runs, now);
            }
        }
    }

    /// How many of these runs are on a revision, and how many of them ended well.
    async fn count_on(&self, runs: &[RunId], revision: &Revision) -> (usize, usize) {
        let (mut count, mut well) = (0, 0);
        for run_id in runs {
            let run = self.run(*run_id).await;
            if run.revision == *revision {
                count += 1;
                well += usize::from(run.status == RunStatus::Completed);
            }
        }
        (count, well)
    }
}

async fn a_good_canary_is_promoted_by_itself(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    let new = Flow::parse(NEW).unwrap();
    let deployment = scene.deploy(NEW, QUICK).await;
    let (runs, ended) = scene.start_until_ended(&deployment).await;
    assert_eq!(ended.phase, Phase::Completed, "{ended:?}");
    assert!(ended.is_promoted);
    let decided = ended.canary.clone().expect("what was decided by is kept");
    assert!(decided.new.count >= 10 && decided.old.count > 0, "{decided:?}");
    assert_eq!(scene.active().await, new.revision.to_string());
    assert_eq!(scene.engine().gate("orders").await.unwrap().gate.canary, None);
    scene.check(&runs, &[&scene.old, &new]).await;
    let (on_old, on_new) = (&scene.old.revision, &new.revision);
    let ((old, old_well), (new_count, new_well)) =
        (scene.count_on(&runs, on_old).await, scene.count_on(&runs, on_new).await);
    assert_eq!((old_well, new_well, old + new_count), (old, new_count, runs.len()));
    assert!(old > 0 && new_count >= 10, "{old} and {new_count}");
    let report = scene.report(&ended).await;
    assert!(report.conservation.as_ref().unwrap().holds(), "{report:?}");
    let mut after = Vec::new();
    for n in 0..20 {
        after.push(scene.start(n).await);
    }
    assert_eq!(scene.count_on(&after, &new.revision).await.0, 20, "all go to the new one now");
    shut_down(scene.engines).await;
}

async fn a_canary_that_fails_more_goes_back_by_itself_and_nothing_is_lost(
    stores: Vec<Arc<dyn Store>>,
) {
    let scene = Scene::new(stores).await;
    let text = NEW.replace("ship-new", "throws");
    let new = Flow::parse(&text).unwrap();
    let deployment = scene.deploy(&text, QUICK).await;
    let (runs, ended) = scene.start_until_ended(&deployment).await;
    assert_eq!(ended.phase, Phase::RolledBack, "{ended:?}");
    assert!(matches!(ended.rollback, Some(RollbackReason::CanaryWorse { .. })), "{ended:?}");
    let decided = ended.canary.clone().expect("what was decided by is kept");
    assert!(decided.new.error_rate > 0.9 && decided.old.error_rate < 0.1, "{decided:?}");
    assert_eq!(scene.active().await, scene.old.revision.to_string());
    assert_eq!(scene.engine().gate("orders").await.unwrap().gate.canary, None);
    scene.check(&runs, &[&scene.old, &new]).await;
    let (old, old_well) = scene.count_on(&runs, &scene.old.revision).await;
    let (bad, bad_well) = scene.count_on(&runs, &new.revision).await;
    assert_eq!((old, bad_well, old + bad), (old_well, 0, runs.len()), "each is where it began");
    let report = scene.report(&ended).await;
    assert!(report.conservation.as_ref().unwrap().holds(), "{report:?}");
    let mut after = Vec::new();
    for n in 0..20 {
        after.push(scene.start(n).await);
    }
    scene.check(&after, &[&scene.old]).await;
    assert_eq!(scene.count_on(&after, &scene.old.revision).await, (20, 20));
    shut_down(scene.engines).await;
}

async fn the_share_of_a_thousand_starts_is_about_its_part_until_somebody_promotes(
    stores: Vec<Arc<dyn Store>>,
) {
    let scene = Scene::new(stores).await;
    let new = Flow::parse(NEW).unwrap();
    let rolling = scene.engine().ask_deployment("orders", &Ask::Promote {}).await;
    assert!(matches!(rolling, Err(EngineError::NoDeployment(_))), "{rolling:?}");
    let deployment = scene.deploy(NEW, LONG).await;
    scene.shared().await;
    let mut runs = Vec::new();
    for first in (0..1_000).step_by(50) {
        let some = (first..first + 50).map(|n| scene.start(n));
        runs.extend(futures_util::future::join_all(some).await);
    }
    let (count, _) = scene.count_on(&runs, &new.revision).await;
    assert!((140..260).contains(&count), "{count} of a thousand, for 20 %");
    // The same key is the same run, whatever becomes of the share.
    let keyed = |engine: &Engine| {
        let request = StartRequest {
            key: Some("one".into()),
            ..StartRequest::new(payload(json!({ "n": 5_000 })))
        };
        let engine = engine.clone();
        async move { engine.start_run("orders", request).await.unwrap() }
    };
    let first = keyed(&scene.engines[0]).await;
    let revision = scene.run(first.run_id).await.revision.clone();
    let held = scene.read(&deployment.deployment_id.0).await;
    let seen = canary_figures(&**scene.engine().store(), &held).await.unwrap().unwrap();
    assert!(seen.new.count <= 261 && seen.old.count + seen.new.count <= 1_001, "{seen:?}");
    scene.engine().ask_deployment("orders", &Ask::Promote {}).await.unwrap();
    let ended = scene.ended(&deployment).await;
    assert_eq!((ended.phase, ended.is_promoted), (Phase::Completed, true), "{ended:?}");
    let again = keyed(scene.engine()).await;
    assert_eq!((again.run_id, again.existing), (first.run_id, true));
    assert_eq!(scene.run(first.run_id).await.revision, revision);
    scene.check(&runs, &[&scene.old, &new]).await;
    shut_down(scene.engines).await;
}

async fn runs_of_a_canary_that_goes_back_finish_where_they_are(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    let text = OLD.replace("attempts: 1", "attempts: 2");
    let new = Flow::parse(&text).unwrap();
    let deployment = scene.deploy(&text, &LONG.replace("20%", "50%")).await;
    scene.shared().await;
    *scene.floor.slow_from.lock() = Some(0);
    let mut runs = Vec::new();
    for n in 0..8 {
        runs.push(scene.start(n).await);
    }
    let waits = async || scene.floor.waiting.load(Ordering::SeqCst) == 8;
    eventually("all are under way", waits).await;
    let (on_new, _) = scene.count_on(&runs, &new.revision).await;
    let note = Some("no good".into());
    scene.engine().ask_deployment("orders", &Ask::Rollback { note }).await.unwrap();
    let ended = scene.ended(&deployment).await;
    assert_eq!(ended.phase, Phase::RolledBack, "{ended:?}");
    assert_eq!(scene.engine().gate("orders").await.unwrap().gate.canary, None);
    assert_eq!(scene.count_on(&runs, &new.revision).await, (on_new, 0));
    *scene.floor.slow_from.lock() = None;
    scene.floor.let_go.notify_waiters();
    scene.check(&runs, &[&scene.old, &new]).await;
    assert_eq!(scene.count_on(&runs, &new.revision).await, (on_new, on_new));
    shut_down(scene.engines).await;
}

async fn what_the_canary_does_not_take_starts_on_the_active_revision(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    let text = format!("{NEW}input: {{ type: object, required: [customer] }}\n");
    let deployment = scene.deploy(&text, &LONG.replace("20%", "100%")).await;
    scene.shared().await;
    let run_id = scene.start(1).await;
    assert_eq!(scene.run(run_id).await.revision, scene.old.revision);
    let request = StartRequest::new(payload(json!({ "n": 2, "customer": "c" })));
    let suits = scene.engine().start_run("orders", request).await.unwrap().run_id;
    assert_eq!(scene.run(suits).await.revision, Flow::parse(&text).unwrap().revision);
    scene.engine().ask_deployment("orders", &Ask::Rollback { note: None }).await.unwrap();
    scene.ended(&deployment).await;
    shut_down(scene.engines).await;
}

async fn only_a_canary_that_is_watched_is_promoted(stores: Vec<Arc<dyn Store>>) {
    let scene = Scene::new(stores).await;
    let hanging = NEW.replace("ship-new", "hangs");
    let settings = "
strategy: blue-green
verify_timeout: 50s
smoke_tests: [{ name: hangs, input: { n: 1 } }]
";
    let deployment = scene.deploy(&hanging, settings).await;
    let refused = scene.engine().ask_deployment("orders", &Ask::Promote {}).await.unwrap_err();
    assert!(refused.to_string().contains("only a canary is promoted"), "{refused}");
    scene.engine().ask_deployment("orders", &Ask::Rollback { note: None }).await.unwrap();
    assert_eq!(scene.ended(&deployment).await.phase, Phase::RolledBack);
    let canary = settings.replace("blue-green", "canary");
    let deployment = scene.deploy(&hanging, &canary).await;
    scene.reached(&deployment, Phase::Verify).await;
    let refused = scene.engine().ask_deployment("orders", &Ask::Promote {}).await.unwrap_err();
    assert!(refused.to_string().contains("a canary is promoted in resume"), "{refused}");
    scene.engine().ask_deployment("orders", &Ask::Rollback { note: None }).await.unwrap();
    assert_eq!(scene.ended(&deployment).await.phase, Phase::RolledBack);
    shut_down(scene.engines).await;
}

async fn a_canary_whose_driver_dies_goes_on(stores: Vec<Arc<dyn Store>>) {
    let floor = Floor::default();
    let (old, new) = (Flow::parse(OLD).unwrap(), Flow::parse(NEW).unwrap());
    let mut stores = stores.into_iter();
    let (first, second) = (stores.next().unwrap(), stores.next().unwrap());
    let leader = Leader::start(Arc::clone(&first), floor.workers());
    let leads = async || !first.list_terms("leader").await.unwrap().is_empty();
    eventually("somebody leads", leads).await;
    let standby = Engine::start(second, floor.workers(), config()).unwrap();
    standby.register(&old, None).await.unwrap();
    let scene = Scene { engines: vec![standby], floor, old };
    let plan = scene.engine().plan_deployment(&request(NEW, QUICK)).await.unwrap();
    assert_eq!(plan.plan.warnings, [""; 0]);
    let deployment = scene.deploy(NEW, QUICK).await;
    scene.shared().await;
    leader.kill();
    let (runs, ended) = scene.start_until_ended(&deployment).await;
    assert_eq!((ended.phase, ended.is_promoted), (Phase::Completed, true), "{ended:?}");
    assert_eq!(scene.engine().gate("orders").await.unwrap().gate.canary, None);
    scene.check(&runs, &[&scene.old, &new]).await;
    shut_down(scene.engines).await;
}

on_every_store!(
    a_good_canary_is_promoted_by_itself,
    a_canary_that_fails_more_goes_back_by_itself_and_nothing_is_lost,
    the_share_of_a_thousand_starts_is_about_its_part_until_somebody_promotes,
    runs_of_a_canary_that_goes_back_finish_where_they_are,
    what_the_canary_does_not_take_starts_on_the_active_revision,
    only_a_canary_that_is_watched_is_promoted,
    ;
    shared:
    a_canary_whose_driver_dies_goes_on,
);
