//! What a store does when Redis forgets, breaks off or holds something else.

use flowgate_store::conformance::Harness;
use flowgate_store::conformance::world::{World, applied, chain, single};
use flowgate_store::{Queues, RedisOptions, RedisStore, RunQuery, Store, StoreError};
use flowgate_testbed::{FaultProxy, PrivateServer, Redis};

use super::{RedisHarness, open, options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_forgot_the_scripts_is_told_again() {
    let mut harness = RedisHarness::single().await;
    let redis = harness.redis.clone();
    let world = World::new(&mut harness);
    let flow = chain();
    let run_id = world.started(&flow, "1").await;
    redis.ask_each(&["SCRIPT", "FLUSH"]).await.unwrap();
    world.finish(&flow, run_id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_a_wrong_type_is_damage_and_the_rest_of_the_batch_is_not_half_written() {
    let mut harness = RedisHarness::single().await;
    let redis = harness.redis.clone();
    let world = World::new(&mut harness);
    let (good, bad) = (world.start(&chain(), "1"), world.start(&chain(), "1"));
    redis.ask(&["SET", "not ours"], bad.run_id, "run").await.unwrap();
    let failed = redis.commit(vec![good.clone(), bad.clone()], None).await.unwrap_err();
    assert!(matches!(failed, StoreError::Corrupt { .. }), "{failed}");
    assert!(!failed.is_transient());
    assert!(world.store().read_run(good.run_id).await.unwrap().is_none());
    assert!(world.claim(10).await.is_empty());
    let failed = redis.read_run(bad.run_id).await.unwrap_err();
    assert!(matches!(failed, StoreError::Corrupt { .. }), "{failed}");
    world.apply(good).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_whose_replies_were_swallowed_are_written_once() {
    let server = Redis::start().unwrap();
    let proxy = FaultProxy::start(server.address()).unwrap();
    let url = format!("redis://{}", proxy.address());
    let mut harness = RedisHarness::on(&url, "").await;
    let world = World::new(&mut harness);
    let flow = single("one");
    let claimant = world.claimant(1);
    let mut lost = 0;
    for round in 0..200 {
        let start = world.start(&flow, "1");
        if round % 2 == 0 {
            proxy.swallow_replies(1);
        }
        let taken = loop {
            match world.store().commit(vec![start.clone()], Some(&claimant)).await {
                Ok(mut outcomes) => break applied(outcomes.remove(0)),
                Err(error) => {
                    assert!(error.is_transient(), "{error}");
                    lost += 1;
                }
            }
        };
        assert_eq!(taken.len(), 1, "the lease of the first sending is found again");
        assert_eq!(taken[0].job.attempt, 1);
        world.apply(world.succeed(&flow, &taken[0])).await;
    }
    assert_eq!(lost, 100);
    let all = RunQuery { limit: 1_000, ..RunQuery::default() };
    let rows = world.list(&all).await;
    assert_eq!(rows.len(), 200);
    assert!(rows.iter().all(|row| row.ended_at.is_some()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_or_restarted_server_is_unavailable_and_then_used_again() {
    let mut server = Redis::start().unwrap();
    let mut short: RedisOptions = format!("{}?prefix=pause", server.url()).parse().unwrap();
    short.call_timeout = std::time::Duration::from_millis(300);
    let redis = Box::pin(RedisStore::open(short)).await.unwrap();
    let before = redis.now().await.unwrap();
    server.pause().unwrap();
    let failed = redis.now().await.unwrap_err();
    assert!(failed.is_transient(), "{failed}");
    server.resume().unwrap();
    assert!(until_it_works(&redis).await >= before);
    server.kill().unwrap();
    assert!(redis.now().await.unwrap_err().is_transient());
    server.restart().unwrap();
    until_it_works(&redis).await;
}

async fn until_it_works(redis: &RedisStore) -> flowgate_core::time::Timestamp {
    for _ in 0..100 {
        match redis.now().await {
            Ok(now) => return now,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    }
    panic!("the store did not come back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_with_little_patience_go_on_with_one_attempt_to_connect() {
    const PATIENCE: std::time::Duration = std::time::Duration::from_millis(50);
    let server = Redis::start().unwrap();
    let proxy = FaultProxy::start(server.address()).unwrap();
    let redis = open(&format!("redis://{}?prefix=patience", proxy.address())).await;
    proxy.cut();
    assert!(redis.now().await.unwrap_err().is_transient());
    proxy.half_open();
    for _ in 0..40 {
        tokio::time::timeout(PATIENCE, redis.now()).await.unwrap_err();
    }
    assert_eq!(proxy.effects().connections_silent, 1);
    proxy.pass();
    until_it_works(&redis).await;
    assert_eq!(proxy.connections(), 1, "it is the one that they had begun");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_outlives_a_killed_server() {
    let mut server = Redis::start().unwrap();
    let url = server.url();
    let mut harness = RedisHarness::on(&url, "").await;
    let redis = harness.redis.clone();
    let world = World::new(&mut harness);
    let flow = chain();
    let mut taken = world.apply_and_take(world.start(&flow, "1"), 1).await;
    server.kill().unwrap();
    server.restart().unwrap();
    until_it_works(&redis).await;
    taken = world.apply_and_take(world.succeed(&flow, &taken[0]), 1).await;
    assert_eq!(world.events(taken[0].run.run_id).await.len(), 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_of_another_instance_ends_a_wait() {
    let mut harness = RedisHarness::single().await;
    let other = harness.reopened().await;
    let world = World::new(&mut harness);
    let store = world.store();
    let mut waits = tokio::task::JoinSet::new();
    waits.spawn(async move {
        let queues = Queues::All;
        other.wait_due(&queues, std::time::Duration::from_hours(1)).await.unwrap();
        other
            .claim(&flowgate_store::Claimant {
                instance: flowgate_core::ids::InstanceId("host-2".into()),
                queues,
                slots: 1,
                lease: flowgate_store::conformance::world::LEASE,
            })
            .await
            .unwrap()
            .len()
    });
    let start = world.start(&single("one"), "1");
    store.commit(vec![start], None).await.unwrap().into_iter().for_each(|o| {
        applied(o);
    });
    assert_eq!(waits.join_next().await.unwrap().unwrap(), 1);
}

/// How many scripts a server has run.
async fn scripts_run(server: &Redis) -> u64 {
    let client = redis::Client::open(server.url()).expect("the URL of a server");
    let mut connection = client.get_multiplexed_async_connection().await.expect("connecting");
    let mut info = redis::cmd("INFO");
    let stats: String = info.arg("commandstats").query_async(&mut connection).await.expect("stats");
    let calls = stats.split_once("cmdstat_evalsha:calls=").map_or("0", |(_, rest)| rest);
    let digits = calls.split(',').next().expect("a split has a first part");
    digits.parse().expect("a number of calls")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_handed_off_has_nobody_look_for_it() {
    let server = Redis::start().unwrap();
    let mut harness = RedisHarness::on(&server.url(), "").await;
    let redis = harness.redis.clone();
    let world = World::new(&mut harness);
    let mut waits = tokio::task::JoinSet::new();
    waits.spawn(async move {
        redis.wait_due(&Queues::All, std::time::Duration::from_hours(1)).await.unwrap();
    });
    let flow = chain();
    world.apply_and_take(world.start(&flow, "1"), 1).await;
    let before = scripts_run(&server).await;
    for _ in 0..50 {
        let taken = world.apply_and_take(world.start(&flow, "1"), 1).await;
        world.apply_and_take(world.succeed(&flow, &taken[0]), 1).await;
    }
    let run = scripts_run(&server).await - before;
    // The waiter looks by itself about every second, too.
    assert!((100..150).contains(&run), "100 commits took {run} calls");
    assert!(waits.try_join_next().is_none(), "nothing was to be claimed");
    world.apply(world.start(&flow, "1")).await;
    waits.join_next().await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_number_of_partitions_is_refused() {
    let mut harness = RedisHarness::single().await;
    let url = harness.url.clone();
    harness.reopen().await;
    let refused = Box::pin(RedisStore::open(options(&format!("{url}&partitions=4")))).await;
    let Err(StoreError::Incompatible { message }) = refused else { panic!("{refused:?}") };
    assert!(message.contains("divided into 1 partitions and not into 4"), "{message}");
    open(&format!("{url}&partitions=1")).await;
}
