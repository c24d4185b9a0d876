//! What no decision leaves behind, planted by hand.

use std::collections::BTreeMap;

use flowgate_core::decide::{Start, start};
use flowgate_core::ids::{CommitIds, RunId};
use flowgate_core::run::RunStatus;
use flowgate_engine::{HandlerError, StepContext, Workers};
use flowgate_store::CommitOutcome;
use serde_json::Value;

use crate::world::{World, is, payload};

#[tokio::test(start_paused = true)]
async fn an_open_step_without_a_job_is_repaired() {
    let mut workers = Workers::new();
    workers.register("work", |_: Value, _: StepContext| async { Ok::<(), HandlerError>(()) });
    let world = World::new("{flow: f, steps: {a: {run: {worker: work}}}}", workers).await;
    let run_id = RunId::derived("f", "planted");
    let (input, tags) = (payload(1), BTreeMap::new());
    let request = Start { run_id, input, key: None, tags };
    let mut commit = start(&world.flow, &request, CommitIds::new(1).next());
    commit.jobs.clear();
    let outcomes = world.store.commit(vec![commit], None).await.unwrap();
    assert!(matches!(outcomes[..], [CommitOutcome::Applied { .. }]));
    is(&world.ended(run_id).await, RunStatus::Completed);
    assert!(world.story(run_id).await.contains(&"step.repaired a".to_owned()));
    world.shutdown().await;
}
