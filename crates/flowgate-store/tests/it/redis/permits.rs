//! Permits where many connections ask at once or Redis misbehaves.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flowgate_core::ids::{JobId, RunId, StepIndex};
use flowgate_store::conformance::Harness;
use flowgate_store::control::{
    Control, Limit, PermitAsk, PermitGrant, PermitOutcome, PermitRelease, PermitState,
};
use flowgate_store::{RedisStore, Retention, Store, StoreError};
use flowgate_testbed::{FaultProxy, PrivateServer, Redis};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::RedisHarness;
use super::control::{handles, race};

const LEASE: Duration = Duration::from_secs(30);
const THREE: Limit = Limit::AtOnce(3);
const SLOW: Limit = Limit::Rate { count: 1, per_ms: 60_000 };

fn new_job() -> JobId {
    JobId { run_id: RunId(Uuid::now_v7()), step: StepIndex(11) }
}

async fn take(redis: &RedisStore, key: &str, limit: Limit, job_id: JobId) -> PermitOutcome {
    let asks = [PermitAsk { key: key.into(), limit, job_id }];
    let outcomes = redis.take_permits(&asks, LEASE).await.expect("asking");
    assert_eq!(outcomes.len(), 1, "each ask has an outcome");
    outcomes[0]
}

async fn release(
    redis: &RedisStore,
    key: &str,
    limit: Limit,
    job_id: Option<JobId>,
) -> Vec<PermitGrant> {
    let releases = [PermitRelease { key: key.into(), limit, job_id }];
    redis.release_permits(&releases, LEASE).await.expect("releasing")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_than_three_of_many_connections_hold_a_permit_and_all_get_their_turn() {
    for harness in [RedisHarness::divided().await, RedisHarness::cluster().await] {
        let handles = handles(&harness).await;
        let jobs: Vec<JobId> = (0..160).map(|_| new_job()).collect();
        let turns: HashMap<JobId, Notify> = jobs.iter().map(|job| (*job, Notify::new())).collect();
        let (turns, active) = (Arc::new(turns), Arc::new(AtomicUsize::new(0)));
        let mut executing = JoinSet::new();
        for (at, job_id) in jobs.into_iter().enumerate() {
            let store = Arc::clone(&handles[at % handles.len()]);
            let (turns, active) = (Arc::clone(&turns), Arc::clone(&active));
            executing.spawn(async move {
                while take(&store, "one", THREE, job_id).await != PermitOutcome::Granted {
                    turns[&job_id].notified().await;
                }
                let others = active.fetch_add(1, Ordering::SeqCst);
                assert!(others < 3, "{others} others hold a permit");
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                }
                active.fetch_sub(1, Ordering::SeqCst);
                for grant in release(&store, "one", THREE, Some(job_id)).await {
                    turns[&grant.job_id].notify_one();
                }
            });
        }
        executing.join_all().await;
        assert_eq!(harness.redis.read_permits("one").await.unwrap(), PermitState::default());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_eight_connections_that_ask_when_permits_have_expired_three_are_granted() {
    let harness = RedisHarness::divided().await;
    let handles = handles(&harness).await;
    for _ in 0..10 {
        let outcomes =
            race(&handles, |_, store| async move { take(&store, "one", THREE, new_job()).await });
        let outcomes = outcomes.await;
        let granted = outcomes.iter().filter(|outcome| **outcome == PermitOutcome::Granted);
        assert_eq!(granted.count(), 3, "{outcomes:?}");
        for place in 1..=5 {
            assert!(outcomes.contains(&PermitOutcome::InLine(place)), "{outcomes:?}");
        }
        // Those in line come after the ones who asked before: nobody is left for the next round.
        for _ in 0..2 {
            harness.advance(LEASE).await;
            release(&harness.redis, "one", THREE, None).await;
        }
        harness.advance(LEASE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_whose_replies_were_swallowed_are_found_again() {
    let server = Redis::start().unwrap();
    let proxy = FaultProxy::start(server.address()).unwrap();
    let harness = RedisHarness::on(&format!("redis://{}", proxy.address()), "").await;
    let redis = &harness.redis;
    let (first, second) = (new_job(), new_job());
    // The server must know the scripts, or it is the answer to their names that gets lost.
    assert_eq!(take(redis, "known", THREE, first).await, PermitOutcome::Granted);
    release(redis, "known", THREE, Some(first)).await;
    for (key, limit) in [("at-once", Limit::AtOnce(1)), ("rate", SLOW)] {
        let mut outcomes = Vec::new();
        for job_id in [first, second] {
            let asks = [PermitAsk { key: key.into(), limit, job_id }];
            proxy.swallow_replies(1);
            assert!(redis.take_permits(&asks, LEASE).await.unwrap_err().is_transient());
            let again = take(redis, key, limit, job_id).await;
            assert_eq!(take(redis, key, limit, job_id).await, again, "{key}");
            outcomes.push(again);
        }
        assert_eq!(outcomes[0], PermitOutcome::Granted, "{key}");
        assert_ne!(outcomes[1], PermitOutcome::Granted, "{key}");
        let state = redis.read_permits(key).await.unwrap();
        let holders: Vec<_> = state.holders.iter().map(|(job_id, _)| *job_id).collect();
        assert_eq!((holders.as_slice(), state.in_line), (&[first][..], 1), "{key}");
        let releases = [PermitRelease { key: key.into(), limit, job_id: Some(first) }];
        proxy.swallow_replies(1);
        assert!(redis.release_permits(&releases, LEASE).await.unwrap_err().is_transient());
        assert_eq!(redis.release_permits(&releases, LEASE).await.unwrap(), [], "{key}");
    }
    assert_eq!(take(redis, "at-once", Limit::AtOnce(1), second).await, PermitOutcome::Granted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_whose_permits_are_given_back_leaves_nothing_behind() {
    let server = Redis::start().unwrap();
    let harness = RedisHarness::on(&server.url(), "").await;
    let redis = &harness.redis;
    let keys_before = server.ask(&["DBSIZE"]).unwrap();
    let jobs = [new_job(), new_job()];
    let second = Limit::Rate { count: 1, per_ms: 1_000 };
    for job_id in jobs {
        let _outcome = take(redis, "at-once", Limit::AtOnce(1), job_id).await;
        let _outcome = take(redis, "rate", second, job_id).await;
    }
    assert_ne!(server.ask(&["DBSIZE"]).unwrap(), keys_before);
    harness.advance(Duration::from_secs(1)).await;
    for job_id in jobs {
        release(redis, "at-once", Limit::AtOnce(1), Some(job_id)).await;
        release(redis, "rate", second, Some(job_id)).await;
    }
    assert_eq!(server.ask(&["DBSIZE"]).unwrap(), keys_before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_forgets_keys_that_nobody_asks_for_any_more_and_no_others() {
    let server = Redis::start().unwrap();
    let harness = RedisHarness::on(&server.url(), "").await;
    let redis = &harness.redis;
    let keys_before = server.ask(&["DBSIZE"]).unwrap();
    for key in 0..20 {
        for _ in 0..3 {
            let _outcome =
                take(redis, &format!("at-once/{key}"), Limit::AtOnce(1), new_job()).await;
            let _outcome = take(redis, &format!("rate/{key}"), SLOW, new_job()).await;
        }
    }
    harness.advance(Duration::from_hours(23)).await;
    let late = new_job();
    assert_eq!(take(redis, "at-once/0", Limit::AtOnce(1), late).await, PermitOutcome::InLine(3));
    harness.advance(Duration::from_hours(2)).await;
    redis.sweep(&Retention::DEFAULT).await.unwrap();
    let state = redis.read_permits("at-once/0").await.unwrap();
    assert_eq!((state.holders.len(), state.in_line), (0, 1), "it asked two hours ago");
    for key in ["at-once/1", "rate/1"] {
        assert_eq!(redis.read_permits(key).await.unwrap(), PermitState::default(), "{key}");
    }
    harness.advance(Duration::from_hours(24)).await;
    redis.sweep(&Retention::DEFAULT).await.unwrap();
    assert_eq!(server.ask(&["DBSIZE"]).unwrap(), keys_before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_a_wrong_type_is_damage_and_no_permit_of_the_call_is_granted() {
    let server = Redis::start().unwrap();
    let harness = RedisHarness::on(&server.url(), "").await;
    let prefix = harness.url.split("prefix=").nth(1).unwrap().to_owned();
    let sets = ["held:bad", "line:bad", "asked:bad", "places:bad", "last"];
    for damaged in sets.map(|set| format!("permits:{set}")).into_iter().chain(["permits".into()]) {
        let key = format!("{prefix}:{{p0}}:{damaged}");
        server.ask(&["SET", &key, "not ours"]).unwrap();
        for limit in [THREE, SLOW] {
            let asks = ["good", "bad"].map(|key| {
                let key = key.into();
                PermitAsk { key, limit, job_id: new_job() }
            });
            let failed = harness.redis.take_permits(&asks, LEASE).await.unwrap_err();
            assert!(matches!(failed, StoreError::Corrupt { .. }), "{damaged}: {failed}");
            let state = harness.redis.read_permits("good").await.unwrap();
            assert_eq!(state, PermitState::default(), "{damaged}");
        }
        server.ask(&["DEL", &key]).unwrap();
    }
}
