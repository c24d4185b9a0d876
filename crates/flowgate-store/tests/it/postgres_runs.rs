//! How the store on PostgreSQL keeps runs: an end is written in place, and found all the same.

use std::time::Duration;

use flowgate_core::flow::Flow;
use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use flowgate_store::conformance::Harness;
use flowgate_store::conformance::world::{World, chain, nap, single};
use flowgate_store::{Retention, RunQuery, RunRow, Swept};
use serde_json::json;

use crate::postgres_harness::PostgresHarness;

const DAY: Duration = Duration::from_hours(24);
const RETENTION: Retention = Retention { events: DAY, runs: Duration::from_hours(72), batch: 100 };

/// What is listed of each flow and of all, by each status and by several, and by a tag.
async fn listings(world: &World<'_, PostgresHarness>) -> Vec<Vec<RunRow>> {
    let statuses = RunStatus::ALL.map(|status| vec![status]);
    let several = [vec![], RunStatus::OPEN.to_vec(), RunStatus::ALL.to_vec()];
    let tags = [vec![], vec![("for".into(), "ann".into())]];
    let mut listings = Vec::new();
    for statuses in statuses.into_iter().chain(several) {
        for flow in [None, Some("one"), Some("chain")] {
            for tags in tags.clone() {
                let (flow, statuses) = (flow.map(Into::into), statuses.clone());
                let query = RunQuery { statuses, flow, tags, limit: 100, ..RunQuery::default() };
                let rows = world.list(&query).await;
                let count = world.store().count_runs(&query).await.expect("counting");
                assert_eq!(rows.len() as u64, count, "{query:?}");
                listings.push(rows);
            }
        }
    }
    listings
}

/// A step that has one attempt.
fn fails() -> Flow {
    let only = json!({ "run": { "shell": "true" }, "retry": { "attempts": 1 } });
    let file = serde_json::from_value(json!({ "flow": "fails", "steps": { "only": only } }));
    Flow::new(file.expect("a flow file")).expect("a valid flow")
}

/// Three runs that have ended, one of which has completed, and two that go on.
async fn some_runs(world: &World<'_, PostgresHarness>) -> Vec<RunId> {
    let one = single("one");
    let completed = world.apply_and_take(world.start(&one, "1"), 1).await.remove(0);
    world.apply(world.succeed(&one, &completed)).await;
    let fails = fails();
    let failed = world.apply_and_take(world.start(&fails, "1"), 1).await.remove(0);
    world.apply(world.fail(&fails, &failed)).await;
    let cancelled = world.started(&one, "2").await;
    let run = world.run(cancelled).await.row.run;
    world.apply(world.cancel(&one, &run)).await;
    let waiting = world.apply_and_take(world.start(&nap(), "1"), 1).await.remove(0);
    world.apply(world.succeed(&nap(), &waiting)).await;
    let running = world.start_tagged(&chain(), &[("for", "ann")]);
    let ids = vec![
        completed.run.run_id,
        failed.run.run_id,
        cancelled,
        waiting.run.run_id,
        running.run_id,
    ];
    world.apply(running).await;
    ids
}

#[tokio::test]
async fn the_end_of_a_run_writes_no_index_of_the_runs() {
    let mut harness = PostgresHarness::direct().await;
    let world = World::new(&mut harness);
    let run_id = world.started(&chain(), "1").await;
    let before = world.harness.indexed("runs").await;
    assert_eq!(before.len(), 1);
    world.finish(&chain(), run_id).await;
    assert_eq!(world.run(run_id).await.row.run.status, RunStatus::Completed);
    // PostgreSQL leaves indexes alone if none of their columns changes and the page has room.
    assert_eq!(world.harness.indexed("runs").await, before);
}

#[tokio::test]
async fn runs_are_listed_and_swept_after_the_migration_as_before() {
    let mut harness = PostgresHarness::direct().await;
    let world = World::new(&mut harness);
    // Of the first ones only the records are left.
    let bare = some_runs(&world).await;
    world.harness.advance(DAY).await;
    assert_eq!(world.store().sweep(&RETENTION).await.unwrap().logs, 3);
    let whole = some_runs(&world).await;
    let before = listings(&world).await;
    let columns = "run_id, step, number, attempt, due_at, priority, kind, queue, inputs, waits_in, \
                   order_at, ticket, check_at, token, expires_at, instance, granted_by, lost";
    let jobs =
        |source: &str| format!("INSERT INTO jobs ({columns}) SELECT {columns} FROM {source}.jobs;");
    let offset = world.store().now().await.unwrap();
    world.harness.go_back_to(10, jobs).await;
    world.harness.advance(offset.since(world.store().now().await.unwrap())).await;
    assert_eq!(listings(&world).await, before);
    let none = world.store().sweep(&RETENTION).await.unwrap();
    assert_eq!(none, Swept::default(), "nothing is due");
    world.harness.advance(DAY).await;
    let swept = world.store().sweep(&RETENTION).await.unwrap();
    assert_eq!(swept, Swept { logs: 3, ..Swept::default() });
    assert_eq!(world.events(whole[0]).await, []);
    assert!(!world.events(whole[4]).await.is_empty(), "what goes on is kept");
    world.harness.advance(DAY).await;
    let swept = world.store().sweep(&RETENTION).await.unwrap();
    assert_eq!(swept, Swept { runs: 3, ..Swept::default() });
    for ended in &bare[..3] {
        assert_eq!(world.store().read_run(*ended).await.unwrap(), None);
    }
    let left = world.store().count_runs(&RunQuery::default()).await.unwrap();
    assert_eq!(left, (bare.len() + whole.len() - 3) as u64);
}
