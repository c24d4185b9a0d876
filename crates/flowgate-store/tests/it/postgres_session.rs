//! Locks of sessions, and transactions of the caller, which only PostgreSQL has.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::payload::Payload;
use flowgate_store::conformance::Harness;
use flowgate_store::control::{
    Control, Expect, RecordWrite, RecordsOutcome, TermAsk, TermOutcome, TermRef,
};
use flowgate_store::postgres::{PostgresConnection, PostgresTransaction};
use flowgate_store::{HeldSession, PostgresOptions, PostgresStore, SessionLock, StoreError};
use flowgate_testbed::FaultProxy;
use tokio::time::timeout;

use crate::postgres_harness::{PostgresHarness, variable};

/// Longer than anything here takes.
const SOON: Duration = Duration::from_secs(20);
const NAME: &str = "subscriber/orders/0";

async fn locked(store: &PostgresStore, name: &str) -> Box<dyn HeldSession> {
    match store.lock_session(name).await.expect("locking") {
        SessionLock::Held(session) => session,
        SessionLock::Unneeded | SessionLock::Elsewhere => panic!("{name} is not free"),
    }
}

/// The lock, as soon as the server has noticed that its holder is gone.
async fn locked_in_time(store: &PostgresStore, name: &str) -> Box<dyn HeldSession> {
    let trying = async {
        loop {
            if let SessionLock::Held(session) = store.lock_session(name).await.expect("locking") {
                return session;
            }
        }
    };
    timeout(SOON, trying).await.expect("the lock comes free")
}

async fn second(harness: &PostgresHarness) -> PostgresStore {
    PostgresStore::open(harness.options.clone()).await.expect("opening")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_session_at_a_time_has_the_lock_until_it_is_released_or_dropped() {
    let harness = PostgresHarness::direct().await;
    let other = second(&harness).await;
    let session = locked(&harness.store, NAME).await;
    assert!(matches!(other.lock_session(NAME).await.unwrap(), SessionLock::Elsewhere));
    assert!(matches!(harness.store.lock_session(NAME).await.unwrap(), SessionLock::Elsewhere));
    let neighbour = locked(&other, "subscriber/orders/1").await;
    session.release().await;
    let session = locked(&other, NAME).await;
    drop((session, neighbour));
    drop(locked_in_time(&harness.store, NAME).await);
}

#[tokio::test]
async fn the_key_of_a_lock_is_the_first_half_of_the_md5_of_its_name_as_two_integers() {
    const LOCK: &str = "SELECT pg_try_advisory_lock(('x' || substr(md5($1), 1, 8))::bit(32)::int, \
                        ('x' || substr(md5($1), 9, 8))::bit(32)::int)";
    let harness = PostgresHarness::direct().await;
    let seed = format!("{}/{NAME}", harness.options.schema);
    let session = locked(&harness.store, NAME).await;
    let is_free: bool = harness.client.query_one(LOCK, &[&seed]).await.unwrap().get(0);
    assert!(!is_free, "anybody who computes it finds it taken");
    session.release().await;
    let is_free: bool = harness.client.query_one(LOCK, &[&seed]).await.unwrap().get(0);
    assert!(is_free);
    assert!(matches!(harness.store.lock_session(NAME).await.unwrap(), SessionLock::Elsewhere));
    // It is a stranger's session, not one of ours.
    assert!(!harness.store.end_session(NAME).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_whose_session_the_server_ends_is_lost_at_once() {
    let harness = PostgresHarness::direct().await;
    let other = second(&harness).await;
    let session = locked(&harness.store, NAME).await;
    assert!(!other.end_session("subscriber/orders/1").await.unwrap(), "nobody has that one");
    assert!(other.end_session(NAME).await.unwrap());
    timeout(SOON, session.lost()).await.expect("its loss is told");
    let taken = locked_in_time(&other, NAME).await;
    assert!(!harness.store.end_session("subscriber/orders/1").await.unwrap());
    timeout(Duration::from_millis(1), taken.lost()).await.expect_err("this one is held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_behind_a_connection_that_falls_silent_is_lost_in_time() {
    let harness = PostgresHarness::direct().await;
    let url = variable("FLOWGATE_TEST_POSTGRES");
    let (start, rest) = url.split_once('@').expect("a URL names a user");
    let (address, database) = rest.split_once('/').expect("a URL names a database");
    let proxy = FaultProxy::start(address.parse().unwrap()).unwrap();
    let options = PostgresOptions {
        listen_url: Some(format!("{start}@{}/{database}", proxy.address())),
        call_timeout: Duration::from_millis(500),
        ..harness.options.clone()
    };
    let store = PostgresStore::open(options).await.unwrap();
    let session = locked(&store, NAME).await;
    proxy.half_open();
    timeout(SOON, session.lost()).await.expect("its loss is told");
    assert!(proxy.effects().bytes_withheld > 0, "the fault had an effect");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_behind_pgbouncer_is_not_locked_unless_the_server_itself_is_named() {
    let harness = PostgresHarness::through_pgbouncer().await;
    let error = harness.store.lock_session(NAME).await.unwrap_err();
    assert!(matches!(error, StoreError::Incompatible { .. }), "{error}");
    assert!(error.to_string().contains("listen_url"), "{error}");
    let listen_url = Some(variable("FLOWGATE_TEST_POSTGRES"));
    let options = PostgresOptions { listen_url, ..harness.options.clone() };
    let store = PostgresStore::open(options).await.unwrap();
    locked(&store, NAME).await.release().await;
}

fn checkpoint(expect: Expect, value: u64) -> Vec<RecordWrite> {
    let value = Payload::of(&value).expect("a number is JSON");
    let key = "orders/0".into();
    vec![RecordWrite { kind: "checkpoint", key, expect, value: Some(value), keep: None }]
}

/// How many rows a handler has written, and the checkpoint.
async fn effects(harness: &PostgresHarness) -> (i64, Option<u64>) {
    let sql = format!("SELECT count(*) FROM {}.orders", harness.options.schema);
    let rows = harness.client.query_one(&sql, &[]).await.expect("counting").get(0);
    let records = harness.store.read_records("checkpoint", &["orders/0".into()]).await;
    let record = records.expect("reading").remove(0);
    (rows, record.map(|record| record.value.read().expect("a number")))
}

/// Begins a transaction in which a handler writes a row.
async fn handled<'c>(
    connection: &'c mut PostgresConnection,
    schema: &str,
) -> PostgresTransaction<'c> {
    let transaction = connection.begin().await.expect("beginning");
    let insert = format!("INSERT INTO {schema}.orders VALUES (1)");
    transaction.sql().batch_execute(&insert).await.expect("inserting");
    transaction
}

async fn all_or_nothing(harness: PostgresHarness) {
    harness.sql("CREATE TABLE orders (number bigint)").await;
    let span = Duration::from_secs(30);
    let ask = TermAsk { name: NAME.into(), holder: "me".into(), span, renews: None };
    let taken = harness.store.take_term(&ask).await.expect("asking");
    let TermOutcome::Held(term) = taken else { panic!("it is free: {taken:?}") };
    let (term, schema): (TermRef, &str) = (term.term, &harness.options.schema);
    let store = Arc::clone(&harness.store);
    let mut connection = store.connect().await.expect("connecting");

    let transaction = handled(&mut connection, schema).await;
    let written = checkpoint(Expect::Absent, 1);
    let outcome = transaction.commit_with_records(&written, Some(&term)).await.expect("writing");
    assert!(matches!(outcome, RecordsOutcome::Written(_)), "{outcome:?}");
    assert_eq!(effects(&harness).await, (1, Some(1)));

    let transaction = handled(&mut connection, schema).await;
    let broken = checkpoint(Expect::Absent, 2);
    let outcome = transaction.commit_with_records(&broken, Some(&term)).await.expect("writing");
    assert_eq!(outcome, RecordsOutcome::Changed(0));
    assert_eq!(effects(&harness).await, (1, Some(1)), "neither is there");

    drop(handled(&mut connection, schema).await);
    handled(&mut connection, schema).await.rollback().await.expect("rolling back");
    assert_eq!(effects(&harness).await, (1, Some(1)), "what is not committed is not there");

    harness.advance(span).await;
    let transaction = handled(&mut connection, schema).await;
    let late = checkpoint(Expect::Anything, 2);
    let outcome = transaction.commit_with_records(&late, Some(&term)).await.expect("writing");
    assert_eq!(outcome, RecordsOutcome::TermLost);
    assert_eq!(effects(&harness).await, (1, Some(1)), "the term is over");
}

#[tokio::test]
async fn what_a_handler_writes_and_its_checkpoint_are_there_together_or_not_at_all() {
    all_or_nothing(PostgresHarness::direct().await).await;
}

#[tokio::test]
async fn what_a_handler_writes_through_pgbouncer_is_there_with_its_checkpoint_or_not_at_all() {
    all_or_nothing(PostgresHarness::through_pgbouncer().await).await;
}
