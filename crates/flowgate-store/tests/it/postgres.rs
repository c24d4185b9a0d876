//! What only the store on PostgreSQL promises.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::event::Event;
use flowgate_core::ids::RunId;
use flowgate_store::conformance::Harness;
use flowgate_store::conformance::world::{LEASE, World, chain, lease_of, single};
use flowgate_store::{
    CommitOutcome, Finding, Level, PostgresOptions, PostgresStore, Queues, Renewal, RunQuery,
    Store, StoreError, postgres,
};
use flowgate_testbed::FaultProxy;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::postgres_harness::{PostgresHarness, connect, options, variable};

/// Longer than anything here takes.
const SOON: Duration = Duration::from_secs(20);

async fn ten_at_once(url: &str) {
    let options = options(url);
    let (client, _driver) = connect().await;
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let options = options.clone();
        tasks.spawn(async move { PostgresStore::open(options).await });
    }
    let stores: Vec<_> =
        tasks.join_all().await.into_iter().map(|opened| opened.expect("opening")).collect();
    for store in &stores {
        assert_eq!(store.list_runs(&RunQuery::default()).await.expect("listing"), []);
    }
    let sql =
        format!("SELECT count(*), max(version)::bigint FROM {}.schema_versions", options.schema);
    let row = client.query_one(&sql, &[]).await.expect("counting");
    let (versions, last): (i64, i64) = (row.get(0), row.get(1));
    assert_eq!(versions, last, "each migration was applied");
    let drop_schema = format!("DROP SCHEMA {} CASCADE", options.schema);
    client.batch_execute(&drop_schema).await.expect("dropping");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_instances_that_start_at_once_make_one_schema() {
    ten_at_once(&variable("FLOWGATE_TEST_POSTGRES")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_instances_that_start_at_once_through_pgbouncer_make_one_schema() {
    ten_at_once(&variable("FLOWGATE_TEST_PGBOUNCER")).await;
}

#[tokio::test]
async fn a_schema_of_a_later_version_is_refused_with_the_way_out() {
    let harness = PostgresHarness::direct().await;
    harness
        .sql("INSERT INTO schema_versions (version, name, checksum) VALUES (999, 'later', '')")
        .await;
    let error = PostgresStore::open(harness.options.clone()).await.unwrap_err();
    assert!(matches!(error, StoreError::Incompatible { .. }), "{error}");
    assert!(error.to_string().contains("use the flowgate that wrote it"), "{error}");
}

#[tokio::test]
async fn a_database_that_is_not_there_is_told_and_not_waited_for() {
    let url = variable("FLOWGATE_TEST_POSTGRES");
    let (server, _) = url.rsplit_once('/').expect("a URL names a database");
    let options = options(&format!("{server}/nobody_made_this"));
    let error = PostgresStore::open(options).await.unwrap_err();
    assert!(!error.is_transient());
    assert!(error.to_string().contains("create the database"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_may_come_back() {
    let options = options("postgres://me@127.0.0.1:1/db");
    let error = PostgresStore::open(options).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
}

#[test]
fn options_take_what_is_ours_from_the_url() {
    let options =
        PostgresOptions::new("postgres://me:secret@h/db?schema=mine&pool_size=3&sslmode=disable");
    let options = options.unwrap();
    assert_eq!((options.schema.as_str(), options.pool_size), ("mine", 3));
    assert_eq!(options.url, "postgres://me:secret@h/db?sslmode=disable");
    assert!(!format!("{options:?}").contains("secret"));
    for bad in ["postgres://h/db?schema=pg_mine", "postgres://h/db?pool_size=0"] {
        assert!(PostgresOptions::new(bad).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn a_table_that_is_gone_is_damage() {
    let harness = PostgresHarness::direct().await;
    harness.sql("DROP TABLE log CASCADE").await;
    let error = harness.store.read_events(RunId::derived("a", "b"), 0, 1).await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
}

#[tokio::test]
async fn a_server_that_only_reads_is_waited_for_with_its_reason() {
    let mut harness = PostgresHarness::direct().await;
    let url = format!("{}?options=-c%20default_transaction_read_only%3Don", harness.options.url);
    let read_only = PostgresOptions { url, ..harness.options.clone() };
    harness.store = Arc::new(PostgresStore::open(read_only).await.unwrap());
    let start = World::new(&mut harness).start(&chain(), "1");
    let error = harness.store.commit(vec![start], None).await.unwrap_err();
    assert!(error.is_transient());
    assert!(error.to_string().contains("read-only transaction"), "{error}");
}

/// Makes every insert into the log fail with `code` as long as `count` lasts, as a server would.
async fn fail_commits(harness: &PostgresHarness, code: &str, count: u32) {
    let sql = format!(
        "CREATE SEQUENCE failures; \
         CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF nextval('{schema}.failures') <= {count} THEN \
                 RAISE EXCEPTION USING ERRCODE = '{code}', MESSAGE = 'as the test wants'; \
             END IF; \
             RETURN NULL; END $$; \
         CREATE TRIGGER fail BEFORE INSERT ON log EXECUTE FUNCTION fail();",
        schema = harness.options.schema
    );
    harness.sql(&sql).await;
}

#[tokio::test]
async fn a_call_that_the_server_gave_up_for_another_is_made_again() {
    for code in ["40001", "40P01"] {
        let mut harness = PostgresHarness::direct().await;
        fail_commits(&harness, code, 3).await;
        let world = World::new(&mut harness);
        let run_id = world.started(&chain(), "1").await;
        assert_eq!(world.events(run_id).await.len(), 2);
    }
}

#[tokio::test]
async fn a_full_disk_is_told_as_such_and_writes_nothing() {
    let mut harness = PostgresHarness::direct().await;
    fail_commits(&harness, "53100", 1).await;
    let world = World::new(&mut harness);
    let start = world.start(&chain(), "1");
    let error = world.store().commit(vec![start.clone()], None).await.unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert_eq!(world.store().read_run(start.run_id).await.unwrap(), None);
    world.apply(start).await;
}

/// A store behind a proxy, which hears hints from the server itself.
async fn behind_proxy(harness: &mut PostgresHarness, call_timeout: Duration) -> FaultProxy {
    let url = variable("FLOWGATE_TEST_POSTGRES");
    let (start, rest) = url.split_once('@').expect("a URL names a user");
    let (address, database) = rest.split_once('/').expect("a URL names a database");
    let proxy = FaultProxy::start(address.parse().expect("an address")).expect("a proxy");
    let options = PostgresOptions {
        url: format!("{start}@{}/{database}", proxy.address()),
        listen_url: Some(url.clone()),
        call_timeout,
        ..harness.options.clone()
    };
    harness.store = Arc::new(PostgresStore::open(options).await.expect("opening"));
    proxy
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_falls_silent_is_given_up_in_time_and_found_again() {
    let mut harness = PostgresHarness::direct().await;
    let proxy = behind_proxy(&mut harness, Duration::from_millis(400)).await;
    let store = Arc::clone(&harness.store);
    let claimed = World::new(&mut harness).started_and_claimed(&chain()).await;
    let renewed = store.renew(&[lease_of(&claimed)], LEASE).await.unwrap();
    assert!(matches!(renewed[0], Renewal::Held(_)));
    proxy.half_open();
    let began = Instant::now();
    let error = store.now().await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    let error = store.renew(&[lease_of(&claimed)], LEASE).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    proxy.pass();
    for _ in 0..50 {
        if store.now().await.is_ok() {
            break;
        }
    }
    store.now().await.expect("the server is found again");
    let renewed = store.renew(&[lease_of(&claimed)], LEASE).await.unwrap();
    assert!(matches!(renewed[0], Renewal::Held(_)));
    assert!(proxy.effects().bytes_withheld > 0, "the fault had an effect");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_reply_was_lost_can_be_sent_again() {
    const COUNT: u64 = 50;
    let mut harness = PostgresHarness::direct().await;
    let proxy = behind_proxy(&mut harness, SOON).await;
    let world = World::new(&mut harness);
    for number in 0..COUNT {
        let start = world.start(&single("one"), "1");
        proxy.swallow_replies(1);
        let lost = world.store().commit(vec![start.clone()], Some(&world.claimant(1))).await;
        assert!(lost.is_err(), "the reply to commit {number} was not lost");
        proxy.pass();
        let again = world.store().commit(vec![start.clone()], Some(&world.claimant(1))).await;
        let outcome = again.expect("the server is there").remove(0);
        let CommitOutcome::Applied { handed_off } = outcome else { panic!("it was refused") };
        assert_eq!(handed_off.len(), 1, "its job is handed off once more");
        assert_eq!(world.events(start.run_id).await.len(), 2, "it is written once");
    }
    assert_eq!(proxy.effects().replies_swallowed, COUNT);
    assert!(world.claim(10).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_instance_hears_of_a_due_job_before_it_would_look_by_itself() {
    let mut harness = PostgresHarness::direct().await;
    let other = Arc::new(PostgresStore::open(harness.options.clone()).await.unwrap());
    let world = World::new(&mut harness);
    let mut fastest = Duration::MAX;
    for _ in 0..10 {
        let began = Instant::now();
        let waiting = other.wait_due(&Queues::All, Duration::from_hours(1));
        let start = async {
            tokio::task::yield_now().await;
            world.started(&single("one"), "1").await
        };
        let (waited, _) = timeout(SOON, async { tokio::join!(waiting, start) }).await.unwrap();
        waited.unwrap();
        fastest = fastest.min(began.elapsed());
        world.claim_one().await;
    }
    // Nobody looks again by himself within a quarter of a second.
    assert!(fastest < Duration::from_millis(200), "the fastest took {fastest:?}");
}

#[test]
fn leases_are_renewed_while_the_other_runtime_is_busy() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    let (mut harness, claimed) = runtime.block_on(async {
        let mut harness = PostgresHarness::direct().await;
        let claimed = World::new(&mut harness).started_and_claimed(&chain()).await;
        (harness, claimed)
    });
    // Each thread of the runtime is in user code that does not let go.
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(std::sync::Mutex::new(held));
    let (begun, begin) = std::sync::mpsc::channel();
    let mut busy = JoinSet::new();
    for _ in 0..2 {
        let (held, begun) = (Arc::clone(&held), begun.clone());
        busy.spawn_on(
            async move {
                begun.send(()).ok();
                held.lock().map(|held| held.recv().ok()).ok();
            },
            runtime.handle(),
        );
    }
    (0..2).for_each(|_| begin.recv().unwrap());
    let store = Arc::clone(&harness.store);
    let renewed = std::thread::spawn(move || {
        let own = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        own.block_on(async {
            let mut last = Vec::new();
            for _ in 0..3 {
                last = timeout(SOON, store.renew(&[lease_of(&claimed)], LEASE)).await??;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(last)
        })
    });
    let renewed = renewed.join().unwrap();
    drop(release);
    assert!(matches!(renewed.unwrap()[..], [Renewal::Held(_)]));
    runtime.block_on(async { while busy.join_next().await.is_some() {} });
    runtime.block_on(async { harness.reopen().await });
    drop(harness);
}

#[tokio::test]
async fn people_can_read_events_with_any_tool() {
    let mut harness = PostgresHarness::direct().await;
    let world = World::new(&mut harness);
    let run_id = world.started(&chain(), r#"{"x":1}"#).await;
    world.finish(&chain(), run_id).await;
    let (events, run) = (world.events(run_id).await, world.run(run_id).await.row.run);
    let schema = &harness.options.schema;
    let sql = format!(
        "SELECT seq, json_build_object('type', type, 'data', data)::text FROM {schema}.events \
         WHERE run_id = '{run_id}' ORDER BY seq"
    );
    let rows = harness.client.query(&sql, &[]).await.unwrap();
    let shown: Vec<(i64, Event)> = rows
        .iter()
        .map(|row| (row.get(0), serde_json::from_str(row.get::<_, &str>(1)).unwrap()))
        .collect();
    let expected: Vec<_> = (1..).zip(events.into_iter().map(|stored| stored.event)).collect();
    assert_eq!(shown, expected);
    let sql = format!(
        "SELECT {schema}.spelled_out('record', record) FROM {schema}.runs WHERE run_id = '{run_id}'"
    );
    let record: String = harness.client.query_one(&sql, &[]).await.unwrap().get(0);
    assert_eq!(record, serde_json::to_string(&*run).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claimers_of_several_queues_share_no_job_and_leave_none() {
    let mut harness = PostgresHarness::direct().await;
    let world = World::new(&mut harness);
    for queue in ["a", "b", "c"].iter().cycle().take(120) {
        world.started(&flowgate_store::conformance::world::queued(queue), "1").await;
    }
    let mut tasks = JoinSet::new();
    for _ in 0..6 {
        let (store, claimant) = (world.store(), world.claimant(7));
        tasks.spawn(async move {
            let mut taken = Vec::new();
            loop {
                let claimed = store.claim(&claimant).await.unwrap();
                if claimed.is_empty() {
                    return taken;
                }
                taken.extend(claimed.iter().map(|claimed| claimed.job.job_id));
            }
        });
    }
    let mut taken: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    taken.extend(world.claim(200).await.iter().map(|claimed| claimed.job.job_id));
    assert_eq!(taken.len(), 120);
    assert_eq!(taken.into_iter().collect::<HashSet<_>>().len(), 120);
}

fn finding<'f>(findings: &'f [Finding], check: &str) -> &'f Finding {
    findings.iter().find(|finding| finding.check == check).expect("it was looked at")
}

#[tokio::test]
async fn an_examination_finds_a_server_that_is_well() {
    let harness = PostgresHarness::direct().await;
    let findings = postgres::examine(&harness.options).await;
    for check in ["reachable", "server version", "pooler", "clock", "schema", "remains of jobs"] {
        let found = finding(&findings, check);
        assert_eq!((found.level, &found.remedy), (Level::Good, &None), "{found:?}");
    }
    assert_eq!(finding(&findings, "pooler").found, "none");
    let unmade = PostgresOptions { schema: "nobody_made_it".to_owned(), ..harness.options.clone() };
    let findings = postgres::examine(&unmade).await;
    assert!(finding(&findings, "schema").found.contains("is not there yet"));
}

#[tokio::test]
async fn an_examination_says_what_is_wrong_and_what_to_do() {
    let harness = PostgresHarness::direct().await;
    let url = format!("{}?options=-c%20synchronous_commit%3Doff", harness.options.url);
    let unsafe_options = PostgresOptions { url, pool_size: 100_000, ..harness.options.clone() };
    harness
        .sql("INSERT INTO schema_versions (version, name, checksum) VALUES (999, 'later', '')")
        .await;
    let findings = postgres::examine(&unsafe_options).await;
    let commit = finding(&findings, "synchronous_commit");
    assert_eq!(commit.level, Level::Bad);
    assert!(commit.remedy.as_ref().unwrap().starts_with("ALTER SYSTEM SET synchronous_commit"));
    assert_eq!(finding(&findings, "connections").level, Level::Warning);
    assert_eq!(finding(&findings, "schema").level, Level::Bad);
    let nowhere = options("postgres://me@127.0.0.1:1/db");
    let findings = postgres::examine(&nowhere).await;
    assert_eq!((findings.len(), findings[0].level), (1, Level::Bad));
}

#[tokio::test]
async fn an_examination_sees_a_pooler() {
    let harness = PostgresHarness::through_pgbouncer().await;
    let findings = postgres::examine(&harness.options).await;
    let pooler = finding(&findings, "pooler");
    assert_eq!(pooler.level, Level::Warning, "{pooler:?}");
    assert!(pooler.remedy.as_ref().unwrap().contains("listen_url"));
    let listen_url = Some(variable("FLOWGATE_TEST_POSTGRES"));
    let findings =
        postgres::examine(&PostgresOptions { listen_url, ..harness.options.clone() }).await;
    assert_eq!(finding(&findings, "pooler").level, Level::Good);
}
