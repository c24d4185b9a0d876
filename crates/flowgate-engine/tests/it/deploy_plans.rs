//! What a plan promises of open runs, and what becomes of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowgate_core::deploy::plan::open_steps;
use flowgate_core::deploy::{Fate, Phase};
use flowgate_core::flow::Flow;
use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use flowgate_engine::{
    Engine, HandlerError, StartRequest, StepContext, Workers, deployment_report, find_deployment,
};
use flowgate_store::{RunDetail, Store};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::deploys::{config, on_every_store, request};
use crate::shared::shut_down;
use crate::world::{eventually, payload};

/// Five places at which a run can stay as long as the test wants.
const OLD: &str = "
flow: orders
steps:
  take: { run: { worker: place }, emits: [taken] }
  check: { subscribes: [taken], wait: { signal: checked, timeout: 1h } }
  pack: { subscribes: ['step:check'], run: { worker: place }, emits: [packed] }
  rest: { subscribes: [packed], wait: { delay: 1h } }
  wrap: { subscribes: [packed], run: { worker: place }, emits: [wrapped] }
  label: { subscribes: [wrapped], run: { worker: place } }
";
/// The last but one is called otherwise, and the last is gone.
const NEW: &str = "
flow: orders
steps:
  take: { run: { worker: place }, emits: [taken] }
  check: { subscribes: [taken], wait: { signal: checked, timeout: 1h } }
  pack: { subscribes: ['step:check'], run: { worker: place }, emits: [packed] }
  rest: { subscribes: [packed], wait: { delay: 1h } }
  box: { subscribes: [packed], run: { worker: place }, emits: [wrapped] }
";
const SETTINGS: &str = "
strategy: blue-green
drain_timeout: 100ms
verify_timeout: 1s
replay_rate: unlimited
steps: { wrap: box }
";

/// The places, and at which steps a run at each of them is open.
const PLACES: [(&str, &[&str]); 5] = [
    ("take", &["take"]),
    ("check", &["check"]),
    ("pack", &["pack"]),
    ("wrap", &["rest", "wrap"]),
    ("label", &["rest", "label"]),
];

/// A handler that stays at the step that the input names, until it may go on.
fn workers(go_on: &Arc<Semaphore>) -> Workers {
    let (mut workers, go_on) = (Workers::new(), Arc::clone(go_on));
    workers.register("place", move |input: Value, step: StepContext| {
        let go_on = Arc::clone(&go_on);
        async move {
            // The entry step alone sees the input; the others are told by the run's state.
            let stay: Value = match input.get("stay") {
                Some(stay) => stay.clone(),
                None => step.state_get("stay").await?.unwrap_or_default(),
            };
            let name = step.step().to_owned();
            // On the new revision it is in the same place, under another name.
            let place = if name == "box" { "wrap" } else { name.as_str() };
            if stay == place {
                drop(go_on.acquire().await.expect("nobody closes it"));
            }
            step.state_set("stay", &stay)?;
            let emitted = match name.as_str() {
                "take" => Some("taken"),
                "pack" => Some("packed"),
                "wrap" | "box" => Some("wrapped"),
                _ => None,
            };
            if let Some(event) = emitted {
                step.emit(event, &json!(null))?;
            }
            Ok::<_, HandlerError>(())
        }
    });
    workers
}

async fn detail(engine: &Engine, run_id: RunId) -> RunDetail {
    engine.store().read_run(run_id).await.unwrap().unwrap()
}

async fn a_plan_of_runs_in_five_places_is_what_happens(stores: Vec<Arc<dyn Store>>) {
    let go_on = Arc::new(Semaphore::new(0));
    let start = |store| Engine::start(store, workers(&go_on), config()).unwrap();
    let engines: Vec<Engine> = stores.into_iter().map(start).collect();
    let engine = engines.last().unwrap();
    let (old, new) = (Flow::parse(OLD).unwrap(), Flow::parse(NEW).unwrap());
    engine.register(&old, None).await.unwrap();
    let mut runs: BTreeMap<RunId, (&str, &[&str])> = BTreeMap::new();
    for (place, at) in PLACES {
        let request = StartRequest::new(payload(json!({ "stay": place })));
        let run_id = engine.start_run("orders", request).await.unwrap().run_id;
        if place != "take" && place != "check" {
            let waits = async || detail(engine, run_id).await.row.run.status == RunStatus::Waiting;
            eventually("it waits", waits).await;
            engine.signal(run_id, "checked", payload(json!(null))).await.unwrap();
        }
        let is_there =
            async || names(&open_steps(&old, &detail(engine, run_id).await.row.run)) == at;
        eventually(place, is_there).await;
        runs.insert(run_id, (place, at));
    }

    let planned = engine.plan_deployment(&request(NEW, SETTINGS)).await.unwrap().plan;
    assert_eq!(planned.runs.len(), PLACES.len(), "{planned:?}");
    for run in &planned.runs {
        let (place, at) = runs[&run.run_id];
        assert_eq!(names(&run.at), at, "{place}");
        match (&run.fate, place) {
            (Fate::Pinned { reason }, "label") => assert!(reason.contains("label"), "{reason}"),
            (Fate::Resumes { steps, starts }, "take" | "check" | "pack" | "wrap") => {
                let there: Vec<&str> =
                    at.iter().map(|step| if *step == "wrap" { "box" } else { *step }).collect();
                assert_eq!(names(steps), there, "{place}");
                assert_eq!(starts, &Vec::<Arc<str>>::new(), "{place}");
            }
            (fate, _) => panic!("{place}: {fate:?}"),
        }
    }

    let deployment = engine.start_deployment(request(NEW, SETTINGS)).await.unwrap();
    let id = deployment.deployment_id.0;
    let read = async || find_deployment(&**engine.store(), "orders", Some(&id)).await.unwrap();
    let is_over = async || read().await.unwrap().phase.is_terminal();
    eventually("the deployment ends", is_over).await;
    let ended = read().await.unwrap();
    assert_eq!(ended.phase, Phase::Completed, "{ended:?}");
    assert_eq!((ended.counts.checkpointed, ended.plan.pinned), (4, 1), "{ended:?}");
    for run in &planned.runs {
        let (place, at) = runs[&run.run_id];
        let found = detail(engine, run.run_id).await;
        let (flow, expected) = match &run.fate {
            Fate::Resumes { steps, .. } => (&new, steps.clone()),
            Fate::Finishes | Fate::Pinned { .. } => {
                (&old, at.iter().map(|step| Arc::from(*step)).collect())
            }
        };
        assert_eq!(found.row.run.revision, flow.revision, "{place}");
        assert_eq!(open_steps(flow, &found.row.run), expected, "{place}");
    }
    let report = deployment_report(&**engine.store(), &ended).await.unwrap();
    assert!(report.conservation.as_ref().unwrap().holds(), "{report:?}");

    // Whatever could go on does, and the rest ends when it is told to.
    go_on.add_permits(100);
    for run_id in runs.keys() {
        engine.cancel(*run_id, None).await.unwrap();
        assert_eq!(engine.wait(*run_id).await.unwrap().row.run.status, RunStatus::Cancelled);
    }
    shut_down(engines).await;
}

fn names(steps: &[Arc<str>]) -> Vec<&str> {
    steps.iter().map(|step| &**step).collect()
}

on_every_store!(a_plan_of_runs_in_five_places_is_what_happens);
