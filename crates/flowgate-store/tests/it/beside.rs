//! What a process sees that reads the file beside its owner.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::ids::{InstanceId, Position};
use flowgate_store::conformance::world::{World, single};
use flowgate_store::{Beat, Clock, Degradation, InstanceState, SqliteStore, Store, StoreError};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::harness::{SqliteHarness, options};

fn beat() -> Beat {
    Beat {
        instance: InstanceId("host-ab12".into()),
        pid: std::process::id(),
        version: "0.1.0".into(),
        role: None,
        pool: Some("gpu".into()),
        queues: Some(vec!["default".into()]),
        workers: Vec::new(),
        slots: 4,
        running: 10,
        state: InstanceState::Ready,
        degradation: Degradation::Normal,
        strained_by: None,
        silent_ms_max: 6_000,
    }
}

#[tokio::test]
async fn a_reader_sees_the_instances_of_the_owner_while_there_is_one() {
    let harness = SqliteHarness::plain().await;
    let owner = &harness.sqlite;
    let reader = SqliteStore::open_read_only(harness.path()).await.unwrap();
    assert_eq!(reader.list_instances().await.unwrap(), []);
    owner.beat(&beat()).await.unwrap();
    assert_eq!(reader.list_instances().await.unwrap(), owner.list_instances().await.unwrap());
    // A shorter note leaves nothing of the one before.
    owner.beat(&Beat { running: 0, queues: None, ..beat() }).await.unwrap();
    let listed = reader.list_instances().await.unwrap();
    assert_eq!(listed, owner.list_instances().await.unwrap());
    assert_eq!(listed[0].beat.running, 0);
    let is_read_only = |error: StoreError| matches!(error, StoreError::ReadOnly);
    assert!(is_read_only(reader.beat(&beat()).await.unwrap_err()));
    assert!(is_read_only(reader.leave(&beat().instance).await.unwrap_err()));
    owner.leave(&beat().instance).await.unwrap();
    assert_eq!(reader.list_instances().await.unwrap(), []);
    owner.beat(&beat()).await.unwrap();
    owner.close().await.unwrap();
    assert_eq!(reader.list_instances().await.unwrap(), [], "the lock counts, not the note");
    fs::remove_file(harness.path().with_file_name("flowgate.db.lock")).unwrap();
    assert_eq!(reader.list_instances().await.unwrap(), []);
}

#[tokio::test]
async fn the_owner_is_named_while_there_is_one() {
    let harness = SqliteHarness::plain().await;
    let owner = SqliteStore::owner_of(harness.path()).unwrap().unwrap();
    assert!(owner.starts_with(&format!("process {} (host-ab12), since 20", std::process::id())));
    let lock = harness.path().with_file_name("flowgate.db.lock");
    fs::write(&lock, "process 7 (host-cd34), since yesterday").unwrap();
    let owner = SqliteStore::owner_of(harness.path()).unwrap().unwrap();
    assert_eq!(owner, "process 7 (host-cd34), since yesterday", "as the first versions wrote it");
    let reader = SqliteStore::open_read_only(harness.path()).await.unwrap();
    let error = reader.list_instances().await.unwrap_err();
    assert!(error.to_string().contains("does not say more"), "{error}");
    fs::write(&lock, "{\"pid\":").unwrap();
    assert_eq!(SqliteStore::owner_of(harness.path()).unwrap().unwrap(), "another process");
    harness.sqlite.close().await.unwrap();
    assert_eq!(SqliteStore::owner_of(harness.path()).unwrap(), None);
}

#[tokio::test]
async fn whoever_asks_for_the_owner_keeps_nobody_from_owning() {
    let harness = SqliteHarness::plain().await;
    harness.sqlite.close().await.unwrap();
    let asking = fs::File::open(harness.path().with_file_name("flowgate.db.lock")).unwrap();
    asking.lock_shared().unwrap();
    let mut opening = Box::pin(SqliteStore::open(harness.path(), options(&Clock::wall())));
    timeout(Duration::from_millis(10), &mut opening).await.expect_err("it tries again");
    drop(asking);
    opening.await.unwrap();
}

#[tokio::test]
async fn a_reader_beside_an_owner_follows_its_feed() {
    let mut harness = SqliteHarness::plain().await;
    let reader = Arc::new(SqliteStore::open_read_only(harness.path()).await.unwrap());
    let world = World::new(&mut harness);
    let mut waits = JoinSet::new();
    let waiting = Arc::clone(&reader);
    waits.spawn(async move {
        waiting.wait_feed(0, Position::START, Duration::from_hours(1)).await.unwrap();
        waiting.read_feed(0, Position::START, 10).await.unwrap().len()
    });
    world.started(&single("one"), "1").await;
    let seen = timeout(Duration::from_secs(20), waits.join_next()).await.unwrap();
    assert_eq!(seen.unwrap().unwrap(), 2);
    let wait = reader.wait_feed(0, Position::counted(2), Duration::from_millis(30));
    timeout(Duration::from_secs(20), wait).await.expect("it ends by itself").unwrap();
}

#[tokio::test]
async fn closing_the_store_ends_every_wait_for_its_feed() {
    let harness = SqliteHarness::plain().await;
    let mut waits = JoinSet::new();
    let waiting = Arc::clone(&harness.sqlite);
    waits.spawn(async move {
        waiting.wait_feed(0, Position::START, Duration::from_hours(1)).await.unwrap_err()
    });
    tokio::task::yield_now().await;
    harness.sqlite.close().await.unwrap();
    let error = timeout(Duration::from_secs(20), waits.join_next()).await.unwrap();
    assert!(error.unwrap().unwrap().to_string().contains("the store is closed"));
}
