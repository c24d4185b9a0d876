//! The feed under many writers, and claims among the remains of many jobs, each beside the naive
//! way, which fails.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use flowgate_core::event::Event;
use flowgate_core::ids::Position;
use flowgate_core::run::RunStatus;
use flowgate_store::conformance::world::{World, single};
use flowgate_store::{PostgresStore, RunQuery, Store};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::postgres_harness::{PostgresHarness, connect};

const WRITERS: usize = 8;
const APPENDS: usize = 5_000;
/// How long a transaction does nothing while they append.
const IDLE: Duration = Duration::from_secs(10);

/// Appends rows to the log as transactions of their own, which wait a while before they end, and
/// of which some are rolled back.
async fn append(schema: &str) {
    let (client, _driver) = connect().await;
    let events = serde_json::to_string(&[Event::RunCompleted {}]).expect("events have a JSON form");
    for number in 0..APPENDS {
        let run_id = Uuid::now_v7();
        let end = if number % 20 == 0 { "ROLLBACK" } else { "COMMIT" };
        let sql = format!(
            "BEGIN; \
             INSERT INTO {schema}.log (run_id, seq, xid, ordinal, count, commit_id, at, format, \
             events) VALUES ('{run_id}', 1, pg_current_xact_id(), 1, 1, '{run_id}', 0, 1, \
             '{events}'); \
             SELECT pg_sleep(random() * 0.01); {end}"
        );
        client.batch_execute(&sql).await.expect("appending");
    }
}

/// Follows the feed until it has seen as many events as there are in the end.
async fn follow(store: Arc<PostgresStore>, end: Arc<AtomicUsize>) -> Vec<(Position, Uuid, u64)> {
    let mut seen: Vec<(Position, Uuid, u64)> = Vec::new();
    // Other transactions of the server may keep the last ones back for a while.
    while seen.len() < end.load(Ordering::SeqCst) {
        let after = seen.last().map_or(Position::START, |(position, _, _)| *position);
        let page = store.read_feed(0, after, 100).await.expect("reading the feed");
        if page.is_empty() {
            store.wait_feed(0, after, Duration::from_millis(200)).await.expect("waiting");
        }
        seen.extend(page.into_iter().map(|event| (event.position, event.run_id.0, event.seq)));
    }
    seen
}

/// Follows the log in the order of a sequence, as if numbers became visible in their order.
async fn follow_naively(client: Client, schema: String, is_over: Arc<AtomicBool>) -> usize {
    let (mut last, mut count) = (0_i64, 0);
    loop {
        let was_over = is_over.load(Ordering::SeqCst);
        let sql = format!("SELECT number FROM {schema}.log WHERE number > {last} ORDER BY number");
        let rows = client.query(&sql, &[]).await.expect("reading naively");
        if rows.is_empty() {
            if was_over {
                return count;
            }
            client.batch_execute("SELECT pg_sleep(0.001)").await.expect("waiting");
        }
        count += rows.len();
        last = rows.last().map_or(last, |row| row.get(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_the_feed_costs_the_same_however_long_the_log_is() {
    const ROWS: i64 = 20_000;
    let harness = PostgresHarness::direct().await;
    let events = serde_json::to_string(&[Event::RunCompleted {}]).unwrap();
    harness
        .sql(&format!(
            "INSERT INTO log (run_id, seq, xid, ordinal, count, commit_id, at, format, events) \
             SELECT gen_random_uuid(), 1, (n / 1000)::text::xid8, n, 1, gen_random_uuid(), 0, 1, \
             '{events}' FROM generate_series(1, {ROWS}) AS n"
        ))
        .await;
    let page = harness.store.read_feed(0, Position::START, 100).await.unwrap();
    assert_eq!(page.len(), 100);
    let end = harness.store.feed_end(0).await.unwrap();
    assert_eq!((end.major, end.minor), (20, 20_000));
    fetched(&harness, "log", 100..=ROWS / 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_runs_costs_the_same_however_many_there_are() {
    const ROWS: i64 = 20_000;
    const PAGE: usize = 20;
    let mut harness = PostgresHarness::direct().await;
    let run_id = World::new(&mut harness).started(&single("one"), "1").await;
    // One in ten is of another flow, and one in a hundred has not ended.
    harness
        .sql(&format!(
            "INSERT INTO runs (run_id, flow, revision, status, version, started_at, updated_at, \
             ended_at, record) SELECT gen_random_uuid(), CASE n % 10 WHEN 0 THEN 'two' ELSE flow END, \
             revision, CASE n % 100 WHEN 1 THEN 'running' ELSE 'completed' END, version, n, n, \
             CASE n % 100 WHEN 1 THEN NULL ELSE n END, record \
             FROM runs, generate_series(1, {ROWS}) AS n WHERE run_id = '{run_id}'; \
             INSERT INTO incomplete_runs SELECT flow, status, started_at, run_id FROM runs \
             WHERE status <> 'completed' ON CONFLICT DO NOTHING; \
             ANALYZE runs, incomplete_runs; SELECT pg_stat_force_next_flush()"
        ))
        .await;
    harness.sql("SELECT pg_stat_reset_single_table_counters('runs'::regclass)").await;
    let flow = Some("one".into());
    let all = RunQuery { limit: PAGE, ..RunQuery::default() };
    let queries = [
        all.clone(),
        RunQuery { flow: flow.clone(), ..all.clone() },
        RunQuery { statuses: vec![RunStatus::Running], ..all.clone() },
        RunQuery { statuses: vec![RunStatus::Completed], flow: flow.clone(), ..all.clone() },
        RunQuery { statuses: vec![RunStatus::Running, RunStatus::Failed], flow, ..all },
    ];
    let pages = i64::try_from(queries.len() * PAGE).unwrap();
    for query in &queries {
        let page = harness.store.list_runs(query).await.unwrap();
        assert_eq!(page.len(), PAGE, "{query:?}");
    }
    fetched(&harness, "runs", pages..=ROWS / 10).await;
}

/// Waits until the server has noted that so many rows of a table were fetched, and no more.
async fn fetched(harness: &PostgresHarness, table: &str, rows: RangeInclusive<i64>) {
    let schema = &harness.options.schema;
    let sql = format!(
        "SELECT (seq_tup_read + idx_tup_fetch)::bigint FROM pg_stat_user_tables \
         WHERE schemaname = '{schema}' AND relname = '{table}'"
    );
    let began = Instant::now();
    loop {
        let row = harness.client.query_one(&sql, &[]).await.expect("asking what was fetched");
        let fetched: i64 = row.get(0);
        assert!(fetched <= *rows.end(), "{fetched} rows were fetched");
        if rows.contains(&fetched) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "the server never noted it");
        // A session tells what it has read when it ends another statement, a second later or more.
        harness.store.now().await.expect("asking the store");
        harness.client.batch_execute("SELECT pg_sleep(0.1)").await.expect("waiting");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_the_feed_loses_nothing_where_a_sequence_loses_events() {
    let mut harness = PostgresHarness::direct().await;
    let schema = harness.options.schema.clone();
    harness.sql("ALTER TABLE log ADD COLUMN number bigserial; CREATE INDEX ON log (number)").await;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut readers = JoinSet::new();
    let end = Arc::new(AtomicUsize::new(usize::MAX));
    readers.spawn(follow(Arc::clone(&harness.store), Arc::clone(&end)));
    let (naive, _naive_driver) = connect().await;
    let mut naive_readers = JoinSet::new();
    naive_readers.spawn(follow_naively(naive, schema.clone(), Arc::clone(&is_over)));
    // A transaction that has written something elsewhere and then does nothing for a while.
    let (idle, _idle_driver) = connect().await;
    idle.batch_execute(&format!(
        "CREATE TABLE {schema}.elsewhere (); BEGIN; INSERT INTO {schema}.elsewhere DEFAULT VALUES"
    ))
    .await
    .unwrap();
    let idle_since = Instant::now();
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let schema = schema.clone();
        writers.spawn(async move { append(&schema).await });
    }
    let world = World::new(&mut harness);
    for _ in 0..50 {
        let run_id = world.started(&single("one"), "1").await;
        world.finish(&single("one"), run_id).await;
    }
    let rest = IDLE.saturating_sub(idle_since.elapsed());
    timeout(rest, std::future::pending::<()>()).await.unwrap_err();
    assert_eq!(world.store().read_feed(0, Position::START, 1).await.unwrap(), []);
    idle.batch_execute("COMMIT").await.unwrap();
    let began = Instant::now();
    while world.store().read_feed(0, Position::START, 1).await.unwrap().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(5), "the feed goes on after it has ended");
        world.store().wait_feed(0, Position::START, Duration::from_secs(1)).await.unwrap();
    }
    writers.join_all().await;
    is_over.store(true, Ordering::SeqCst);
    let sql = format!("SELECT count(*), sum(count)::bigint FROM {schema}.log");
    let row = harness.client.query_one(&sql, &[]).await.unwrap();
    let (rows, events): (i64, i64) = (row.get(0), row.get(1));
    end.store(usize::try_from(events).unwrap(), Ordering::SeqCst);
    let seen = timeout(Duration::from_secs(30), readers.join_all()).await;
    let seen = seen.expect("nothing is lost").remove(0);
    let naively = naive_readers.join_all().await.remove(0);

    assert!(seen.is_sorted_by(|one, next| one.0 < next.0), "positions only grow");
    let distinct: HashSet<_> = seen.iter().map(|(_, run_id, seq)| (run_id, seq)).collect();
    assert_eq!(distinct.len(), seen.len(), "nothing comes twice");
    let mut last = std::collections::HashMap::new();
    for (_, run_id, seq) in &seen {
        let before = last.insert(run_id, *seq).unwrap_or(0);
        assert_eq!(*seq, before + 1, "the events of a run are in order");
    }
    assert!(naively < usize::try_from(rows).unwrap(), "a naive reader would do as well");
}

/// Jobs that have been added, leased and removed while an old snapshot keeps their remains.
const REMAINS: usize = 200_000;
const ROUNDS: usize = 40;

/// The median time of a claim that finds one job.
async fn claim_median(world: &World<'_, PostgresHarness>) -> Duration {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        world.started(&single("one"), "1").await;
        let began = Instant::now();
        let claimed = world.claim(1).await;
        times.push(began.elapsed());
        assert_eq!(claimed.len(), 1);
        world.apply(world.succeed(&single("one"), &claimed[0])).await;
    }
    times.sort_unstable();
    times[ROUNDS / 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_stay_quick_among_the_remains_of_many_jobs() {
    let mut harness = PostgresHarness::direct().await;
    let healthy = claim_median(&World::new(&mut harness)).await;
    let (reader, _driver) = connect().await;
    let schema = harness.options.schema.clone();
    reader
        .batch_execute(&format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM {schema}.runs"
        ))
        .await
        .unwrap();
    harness
        .sql(&format!(
            "INSERT INTO jobs (run_id, lane, step, number, attempt, due_at, priority, kind, queue, \
             inputs, waits_in, order_at, ticket) SELECT gen_random_uuid(), 0, 0, n, 0, \
             store_now() - 100000 + n, 0, 'execute', 'default', '[1]', 'default', \
             store_now() - 100000 + n, n FROM generate_series(1, {REMAINS}) n; \
             UPDATE jobs SET waits_in = NULL, token = ticket, check_at = due_at, \
             expires_at = due_at; \
             DELETE FROM jobs;"
        ))
        .await;
    let bloated = claim_median(&World::new(&mut harness)).await;
    let naive = format!(
        "SELECT due_us + check_us FROM {schema}.claim_jobs('naive', NULL, NULL, 1, 30000, \
         {min}, {min}, 512)",
        min = "'-9223372036854775808'::bigint"
    );
    let micros: i64 = harness.client.query_one(&naive, &[]).await.unwrap().get(0);
    let naive = Duration::from_micros(u64::try_from(micros).unwrap());
    let bound = healthy * 3 + Duration::from_millis(1);
    assert!(bloated <= bound, "{healthy:?} became {bloated:?}");
    assert!(naive > bound, "a naive claim would do as well: {naive:?} against {healthy:?}");
    reader.batch_execute("COMMIT").await.unwrap();
}
