//! Terms, records and hints where many connections ask at once or Redis misbehaves.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::payload::Payload;
use flowgate_store::conformance::Harness;
use flowgate_store::control::{
    Control, Expect, RecordQuery, RecordWrite, RecordsOutcome, Term, TermAsk, TermOutcome, TermRef,
};
use flowgate_store::{RedisStore, StoreError};
use flowgate_testbed::{FaultProxy, PrivateServer, Redis};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::RedisHarness;

const SPAN: Duration = Duration::from_secs(10);
/// Connections that race.
const CONNECTIONS: usize = 8;

fn ask(holder: &str, renews: Option<u64>) -> TermAsk {
    TermAsk { name: "leader".into(), holder: holder.into(), span: SPAN, renews }
}

fn held(outcome: TermOutcome) -> Option<Term> {
    match outcome {
        TermOutcome::Held(term) => Some(term),
        TermOutcome::NotHeld(_) => None,
    }
}

fn put(key: &str, expect: Expect, value: &str) -> RecordWrite {
    let value = Some(Payload::parse(value).expect("the case wrote JSON"));
    RecordWrite { kind: "schedule", key: key.into(), expect, value, keep: None }
}

fn written(outcome: RecordsOutcome) -> Vec<u64> {
    let RecordsOutcome::Written(versions) = outcome else { panic!("not written: {outcome:?}") };
    versions
}

fn all(kind: &'static str) -> RecordQuery {
    RecordQuery { kind, prefix: "".into(), after: None, is_descending: false, limit: 1_000 }
}

/// Handles of one data set, each with a connection of its own.
pub(super) async fn handles(harness: &RedisHarness) -> Vec<Arc<RedisStore>> {
    let mut handles = Vec::new();
    for _ in 0..CONNECTIONS {
        handles.push(Arc::new(harness.reopened().await));
    }
    handles
}

/// What each handle gets that does the same thing at the same time.
pub(super) async fn race<T: Send + 'static, F>(
    handles: &[Arc<RedisStore>],
    act: impl Fn(usize, Arc<RedisStore>) -> F,
) -> Vec<T>
where
    F: Future<Output = T> + Send + 'static,
{
    let barrier = Arc::new(Barrier::new(handles.len()));
    let mut racers = JoinSet::new();
    for (index, handle) in handles.iter().enumerate() {
        let (acting, barrier) = (act(index, Arc::clone(handle)), Arc::clone(&barrier));
        racers.spawn(async move {
            barrier.wait().await;
            acting.await
        });
    }
    racers.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_eight_connections_that_ask_for_a_name_one_holds_it_and_numbers_only_grow() {
    let harness = RedisHarness::single().await;
    let handles = handles(&harness).await;
    for number in 1..=20 {
        let outcomes = race(&handles, |index, store| async move {
            store.take_term(&ask(&format!("host/{index}"), None)).await.unwrap()
        });
        let terms: Vec<Term> = outcomes.await.into_iter().filter_map(held).collect();
        assert_eq!(terms.len(), 1, "{terms:?}");
        assert_eq!(terms[0].term.number, number);
        if number % 2 == 0 {
            harness.redis.release_term(&terms[0].term).await.unwrap();
        } else {
            harness.advance(SPAN).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_eight_connections_that_write_one_version_of_a_record_one_does() {
    let harness = RedisHarness::single().await;
    let handles = handles(&harness).await;
    let mut expect = Expect::Absent;
    for _ in 0..20 {
        let outcomes = race(&handles, |index, store| async move {
            // The others of the batch are written with it or not at all.
            let beside = put(&format!("beside/{index}"), Expect::Anything, "1");
            let writes = vec![beside, put("one", expect, &index.to_string())];
            store.write_records(writes, None).await.unwrap()
        });
        let mut winners = Vec::new();
        for outcome in outcomes.await {
            if let RecordsOutcome::Written(versions) = outcome {
                winners.push(versions);
            } else {
                assert_eq!(outcome, RecordsOutcome::Changed(1));
            }
        }
        assert_eq!(winners.len(), 1, "{winners:?}");
        let found = harness.redis.list_records(&all("schedule")).await.unwrap();
        let one = found.iter().find(|record| *record.key == *"one").unwrap();
        assert_eq!(one.version, winners[0][1]);
        let latest = found.iter().map(|record| record.version).max();
        assert_eq!(latest, Some(one.version), "nobody else wrote a thing");
        expect = Expect::Version(one.version);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_term_whose_reply_was_swallowed_is_extended_by_its_holder() {
    let server = Redis::start().unwrap();
    let proxy = FaultProxy::start(server.address()).unwrap();
    let harness = RedisHarness::on(&format!("redis://{}", proxy.address()), "").await;
    let redis = &harness.redis;
    assert!(held(redis.take_term(&ask("before", None)).await.unwrap()).is_some());
    harness.advance(SPAN).await;
    proxy.swallow_replies(1);
    assert!(redis.take_term(&ask("me", None)).await.unwrap_err().is_transient());
    let again = held(redis.take_term(&ask("me", None)).await.unwrap()).unwrap();
    assert_eq!(again.term.number, 2, "the first sending began it");
    assert_eq!(held(redis.take_term(&ask("other", None)).await.unwrap()), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_whose_reply_was_swallowed_are_recognised_by_reading() {
    let server = Redis::start().unwrap();
    let proxy = FaultProxy::start(server.address()).unwrap();
    let harness = RedisHarness::on(&format!("redis://{}", proxy.address()), "").await;
    let redis = &harness.redis;
    let first =
        written(redis.write_records(vec![put("a", Expect::Absent, "1")], None).await.unwrap());
    let next = vec![put("a", Expect::Version(first[0]), "2")];
    proxy.swallow_replies(1);
    assert!(redis.write_records(next.clone(), None).await.unwrap_err().is_transient());
    let again = redis.write_records(next, None).await.unwrap();
    assert_eq!(again, RecordsOutcome::Changed(0), "the first sending wrote it");
    let found = redis.read_records("schedule", &["a".into()]).await.unwrap();
    assert_eq!(found[0].as_ref().unwrap().value.get(), "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_a_wrong_type_is_damage_and_no_record_of_the_batch_is_written() {
    let server = Redis::start().unwrap();
    let harness = RedisHarness::on(&server.url(), "").await;
    let prefix = harness.url.split("prefix=").nth(1).unwrap().to_owned();
    for damaged in ["record:queue", "value:queue", "keys:queue", "records:expiring"] {
        let key = format!("{prefix}:{{p0}}:{damaged}");
        server.ask(&["SET", &key, "not ours"]).unwrap();
        let bad = RecordWrite { kind: "queue", ..put("b", Expect::Absent, "1") };
        let writes = vec![put("a", Expect::Absent, "1"), bad];
        let failed = harness.redis.write_records(writes, None).await.unwrap_err();
        assert!(matches!(failed, StoreError::Corrupt { .. }), "{damaged}: {failed}");
        assert_eq!(harness.redis.list_records(&all("schedule")).await.unwrap(), [], "{damaged}");
        server.ask(&["DEL", &key]).unwrap();
    }
    for damaged in ["terms:names", "terms:past:leader"] {
        let key = format!("{prefix}:{{p0}}:{damaged}");
        server.ask(&["SET", &key, "not ours"]).unwrap();
        let failed = harness.redis.take_term(&ask("me", None)).await.unwrap_err();
        assert!(matches!(failed, StoreError::Corrupt { .. }), "{damaged}: {failed}");
        assert_eq!(harness.redis.past_terms("leader", 10).await.unwrap(), [], "{damaged}");
        server.ask(&["DEL", &key]).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_are_removed_leave_no_key_behind() {
    let server = Redis::start().unwrap();
    let harness = RedisHarness::on(&server.url(), "").await;
    let keys_before = server.ask(&["DBSIZE"]).unwrap();
    let kept = RecordWrite { keep: Some(SPAN), ..put("a", Expect::Absent, "1") };
    written(
        harness.redis.write_records(vec![kept, put("b", Expect::Absent, "2")], None).await.unwrap(),
    );
    assert_ne!(server.ask(&["DBSIZE"]).unwrap(), keys_before);
    let gone = |key| RecordWrite { value: None, ..put(key, Expect::Anything, "0") };
    written(harness.redis.write_records(vec![gone("a"), gone("b")], None).await.unwrap());
    assert_eq!(server.ask(&["DBSIZE"]).unwrap(), keys_before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_records_are_read_and_listed_whole_both_ways() {
    let harness = RedisHarness::single().await;
    let large = format!("\"{}\"", "x".repeat(900_000));
    let keys: Vec<Arc<str>> = (0..12).map(|at| format!("{at:02}").into()).collect();
    for key in &keys {
        written(
            harness
                .redis
                .write_records(vec![put(key, Expect::Absent, &large)], None)
                .await
                .unwrap(),
        );
    }
    let read = harness.redis.read_records("schedule", &keys).await.unwrap();
    let read: Vec<_> = read.into_iter().flatten().map(|record| record.key).collect();
    assert_eq!(read, keys);
    for is_descending in [false, true] {
        let query = RecordQuery { limit: 11, is_descending, ..all("schedule") };
        let listed = harness.redis.list_records(&query).await.unwrap();
        let listed: Vec<_> = listed.into_iter().map(|record| record.key).collect();
        let mut expected = keys.clone();
        if is_descending {
            expected.reverse();
        }
        assert_eq!(listed, expected[..11]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_names_than_one_call_lists_are_listed() {
    let harness = RedisHarness::single().await;
    let asks =
        (0..1_100).map(|at| TermAsk { name: format!("name/{at:04}").into(), ..ask("me", None) });
    for ask in asks {
        assert!(held(harness.redis.take_term(&ask).await.unwrap()).is_some());
    }
    let listed = harness.redis.list_terms("name/").await.unwrap();
    assert_eq!(listed.len(), 1_100);
    assert!(listed.is_sorted_by_key(|term| term.term.name.clone()));
    assert_eq!(harness.redis.list_terms("name/07").await.unwrap().len(), 100);
    assert_eq!(harness.redis.list_terms("other/").await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_instance_tells_ends_a_wait_for_that_topic_alone() {
    for harness in [RedisHarness::single().await, RedisHarness::cluster().await] {
        let other = harness.reopened().await;
        let waiting = Arc::clone(&harness.redis);
        let mut waits = JoinSet::new();
        waits.spawn(async move {
            waiting.wait_told("schedules", Duration::from_hours(1)).await.unwrap();
            let wrong = waiting.wait_told("queues", Duration::from_millis(300));
            let begun = tokio::time::Instant::now();
            wrong.await.unwrap();
            assert!(begun.elapsed() >= Duration::from_millis(300), "nobody told of that");
            waiting.wait_told("schedules", Duration::from_hours(1)).await.unwrap();
        });
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        while waits.try_join_next().is_none() {
            ticks.tick().await;
            other.tell("schedules").await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_under_a_term_that_another_took_over_is_refused() {
    let harness = RedisHarness::single().await;
    let redis = &harness.redis;
    let mine = held(redis.take_term(&ask("me", None)).await.unwrap()).unwrap();
    written(
        redis.write_records(vec![put("a", Expect::Absent, "1")], Some(&mine.term)).await.unwrap(),
    );
    harness.advance(SPAN).await;
    let late = vec![put("a", Expect::Anything, "2")];
    let refused = redis.write_records(late.clone(), Some(&mine.term)).await.unwrap();
    assert_eq!(refused, RecordsOutcome::TermLost, "it is over, though nobody else has it");
    let other = held(redis.take_term(&ask("other", None)).await.unwrap()).unwrap();
    for lost in [mine.term, TermRef { number: 3, ..other.term.clone() }] {
        let refused = redis.write_records(late.clone(), Some(&lost)).await.unwrap();
        assert_eq!(refused, RecordsOutcome::TermLost);
    }
    let unknown = TermRef { name: "nobody".into(), number: 1 };
    let refused = redis.write_records(late.clone(), Some(&unknown)).await.unwrap();
    assert_eq!(refused, RecordsOutcome::TermLost);
    written(redis.write_records(late, Some(&other.term)).await.unwrap());
}

/// A store that one runtime made, which then stands still, as under handlers that block every thread.
#[test]
fn a_runtime_that_stands_still_holds_up_no_other_and_one_that_ends_takes_nothing_with_it() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let harness = first.block_on(RedisHarness::single());
    let redis = Arc::clone(&harness.redis);
    assert_eq!(first.block_on(redis.list_terms("")).unwrap(), []);
    let answer = second.block_on(async {
        tokio::time::timeout(Duration::from_secs(5), redis.take_term(&ask("a", None))).await
    });
    assert!(held(answer.expect("it is not held up").unwrap()).is_some());
    drop(second);
    let again = first.block_on(redis.take_term(&ask("a", None))).expect("its connection is there");
    assert!(held(again).is_some());
    let _entered = first.enter();
    drop((redis, harness));
}
