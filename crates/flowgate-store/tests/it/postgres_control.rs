//! Terms, records and permits on PostgreSQL, with many who ask at the same time.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flowgate_core::commit::JobChange;
use flowgate_core::ids::{JobId, RunId, StepIndex};
use flowgate_core::payload::Payload;
use flowgate_store::conformance::Harness;
use flowgate_store::conformance::world::{World, single};
use flowgate_store::control::{
    Control, Expect, Limit, PRIORITY_HEAD_START, PermitAsk, PermitOutcome, PermitRelease,
    RecordQuery, RecordWrite, RecordsOutcome, TermAsk, TermOutcome, TermRef,
};
use flowgate_store::{PostgresOptions, PostgresStore, Retention, Store};
use parking_lot::Mutex;
use tokio::sync::{Barrier, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::postgres_harness::{PostgresHarness, connect};

/// Longer than anything here takes.
const SOON: Duration = Duration::from_secs(20);
const LEASE: Duration = Duration::from_secs(30);
const CONNECTIONS: usize = 8;

/// Stores on the schema of `harness`, each with one connection for its calls.
async fn instances(harness: &PostgresHarness) -> Vec<Arc<PostgresStore>> {
    let mut stores = Vec::new();
    for _ in 0..CONNECTIONS {
        let options = PostgresOptions { pool_size: 1, ..harness.options.clone() };
        stores.push(Arc::new(PostgresStore::open(options).await.expect("opening")));
    }
    stores
}

fn ask(name: &str, holder: &str, renews: Option<u64>) -> TermAsk {
    TermAsk { name: name.into(), holder: holder.into(), span: LEASE, renews }
}

fn write(key: &str, expect: Expect, value: u64) -> RecordWrite {
    let value = Payload::of(&value).expect("a number is JSON");
    RecordWrite { kind: "queue", key: key.into(), expect, value: Some(value), keep: None }
}

fn job(number: usize) -> JobId {
    JobId { run_id: RunId::derived("permits", &number.to_string()), step: StepIndex(0) }
}

async fn held(store: &PostgresStore, name: &str, holder: &str) -> TermRef {
    match store.take_term(&ask(name, holder, None)).await.expect("asking") {
        TermOutcome::Held(term) => term.term,
        TermOutcome::NotHeld(term) => panic!("it is held: {term:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_eight_connections_that_ask_for_a_name_one_gets_it_each_time() {
    const ROUNDS: u64 = 20;
    let harness = PostgresHarness::direct().await;
    let stores = instances(&harness).await;
    for round in 1..=ROUNDS {
        let barrier = Arc::new(Barrier::new(CONNECTIONS));
        let mut tasks = JoinSet::new();
        for (number, store) in stores.iter().enumerate() {
            let (store, barrier) = (Arc::clone(store), Arc::clone(&barrier));
            tasks.spawn(async move {
                barrier.wait().await;
                store.take_term(&ask("leader", &format!("i{number}"), None)).await.expect("asking")
            });
        }
        let outcomes = tasks.join_all().await;
        let mut winners = outcomes.iter().filter_map(|outcome| match outcome {
            TermOutcome::Held(term) => Some(term),
            TermOutcome::NotHeld(_) => None,
        });
        let winner = winners.next().expect("one of them holds it");
        assert_eq!((winners.next(), winner.term.number), (None, round));
        for outcome in &outcomes {
            let (TermOutcome::Held(term) | TermOutcome::NotHeld(term)) = outcome;
            assert_eq!(term, winner, "all are told of the same term");
        }
        stores[0].release_term(&winner.term).await.expect("releasing");
    }
    let past = stores[0].past_terms("leader", 100).await.expect("reading");
    let numbers: Vec<u64> = past.iter().map(|term| term.term.number).collect();
    assert_eq!(numbers, (1..=ROUNDS).rev().collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_take_over_waits_for_writes_under_the_term_and_a_renewal_does_not() {
    let harness = PostgresHarness::direct().await;
    let term = held(&harness.store, "leader", "old").await;
    let (writing, _driver) = connect().await;
    writing.batch_execute("BEGIN").await.unwrap();
    let sql = format!(
        "SELECT is_term_lost FROM \"{}\".write_records(ARRAY['queue'], ARRAY['q'], \
         ARRAY[NULL]::bigint[], ARRAY['1'], ARRAY[NULL]::bigint[], 'leader', {})",
        harness.options.schema, term.number
    );
    let is_term_lost: bool = writing.query_one(&sql, &[]).await.unwrap().get(0);
    assert!(!is_term_lost);

    let renewal = ask("leader", "old", Some(term.number));
    let renewed = timeout(SOON, harness.store.take_term(&renewal)).await;
    let renewed = renewed.expect("it waits for nobody").unwrap();
    assert!(matches!(renewed, TermOutcome::Held(_)), "{renewed:?}");

    harness.advance(LEASE * 2).await;
    let store = Arc::clone(&harness.store);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { store.take_term(&ask("leader", "new", None)).await });
    harness.until_waiting("take_term").await;
    assert!(tasks.try_join_next().is_none(), "the write under the old term is not over");
    writing.batch_execute("COMMIT").await.unwrap();
    let taken = tasks.join_next().await.unwrap().unwrap().unwrap();
    let TermOutcome::Held(taken) = taken else { panic!("the term was over: {taken:?}") };
    assert_eq!(taken.term.number, term.number + 1);

    let late = vec![write("q", Expect::Anything, 2)];
    let late = harness.store.write_records(late, Some(&term)).await.unwrap();
    assert_eq!(late, RecordsOutcome::TermLost);
    let record = harness.store.read_records("queue", &["q".into()]).await.unwrap().remove(0);
    assert_eq!(record.unwrap().value.get(), "1");
}

/// Adds one to the record, however often somebody else is faster.
async fn add_one(store: &PostgresStore) {
    loop {
        let record = store.read_records("queue", &["sum".into()]).await.expect("reading").remove(0);
        let (expect, value) = match &record {
            None => (Expect::Absent, 0),
            Some(record) => {
                (Expect::Version(record.version), record.value.read().expect("a number"))
            }
        };
        let outcome = store.write_records(vec![write("sum", expect, value + 1)], None).await;
        match outcome.expect("writing") {
            RecordsOutcome::Written(_) => return,
            RecordsOutcome::Changed(place) => assert_eq!(place, 0),
            RecordsOutcome::TermLost | RecordsOutcome::TooLarge(_) => panic!("it needs no term"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_write_that_names_a_version_is_lost_among_eight_connections() {
    const EACH: usize = 25;
    let harness = PostgresHarness::direct().await;
    let mut tasks = JoinSet::new();
    for store in instances(&harness).await {
        tasks.spawn(async move {
            for _ in 0..EACH {
                add_one(&store).await;
            }
        });
    }
    tasks.join_all().await;
    let record = harness.store.read_records("queue", &["sum".into()]).await.unwrap().remove(0);
    assert_eq!(record.unwrap().value.get(), (CONNECTIONS * EACH).to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_are_written_together_in_any_order_stay_together() {
    let harness = PostgresHarness::direct().await;
    let mut tasks = JoinSet::new();
    for (number, store) in (0..).zip(instances(&harness).await) {
        tasks.spawn(async move {
            let mut keys: Vec<String> = (0..10).map(|key| key.to_string()).collect();
            for round in 0..30 {
                fastrand::shuffle(&mut keys);
                let value = number * 1_000 + round;
                let mut writes: Vec<RecordWrite> =
                    keys.iter().map(|key| write(key, Expect::Anything, value)).collect();
                // From time to time all of them go, so that there is something to add.
                if round % 5 == 4 {
                    for write in &mut writes {
                        write.value = None;
                    }
                }
                let outcome = store.write_records(writes, None).await.expect("no deadlock");
                assert!(matches!(outcome, RecordsOutcome::Written(_)), "{outcome:?}");
                let query = RecordQuery {
                    kind: "queue",
                    prefix: "".into(),
                    after: None,
                    is_descending: false,
                    limit: 100,
                };
                let records = store.list_records(&query).await.expect("listing");
                let values: BTreeSet<&str> =
                    records.iter().map(|record| record.value.get()).collect();
                let is_whole = matches!((records.len(), values.len()), (0, 0) | (10, 1));
                assert!(is_whole, "{} records with {values:?}", records.len());
            }
        });
    }
    tasks.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_eight_that_add_a_record_one_does_and_the_others_write_nothing() {
    for _ in 0..10 {
        let harness = PostgresHarness::direct().await;
        let barrier = Arc::new(Barrier::new(CONNECTIONS));
        let mut tasks = JoinSet::new();
        for (number, store) in instances(&harness).await.into_iter().enumerate() {
            let barrier = Arc::clone(&barrier);
            tasks.spawn(async move {
                let own = write(&format!("own{number}"), Expect::Absent, 1);
                barrier.wait().await;
                let writes = vec![own, write("shared", Expect::Absent, 1)];
                store.write_records(writes, None).await.expect("writing")
            });
        }
        let outcomes = tasks.join_all().await;
        let written = |outcome: &&RecordsOutcome| matches!(outcome, RecordsOutcome::Written(_));
        assert_eq!(outcomes.iter().filter(written).count(), 1);
        let changed = |outcome: &&RecordsOutcome| matches!(outcome, RecordsOutcome::Changed(1));
        assert_eq!(outcomes.iter().filter(changed).count(), CONNECTIONS - 1);
        let sql = format!("SELECT count(*) FROM {}.records", harness.options.schema);
        let count: i64 = harness.client.query_one(&sql, &[]).await.unwrap().get(0);
        assert_eq!(count, 2, "the shared one and that of the winner");
    }
}

/// What two hundred jobs that want one of three permits have in common.
#[derive(Default)]
struct Race {
    running: AtomicUsize,
    running_max: AtomicUsize,
    done: AtomicUsize,
    waiting: Mutex<HashMap<JobId, oneshot::Sender<()>>>,
    /// Grants of jobs that are not waiting yet.
    early: Mutex<BTreeSet<JobId>>,
}

impl Race {
    fn wake(&self, job_id: JobId) {
        let mut waiting = self.waiting.lock();
        match waiting.remove(&job_id) {
            Some(waits) => waits.send(()).expect("it waits"),
            None => assert!(self.early.lock().insert(job_id), "it is granted once"),
        }
    }

    async fn wait(&self, job_id: JobId) {
        let woken = {
            let mut waiting = self.waiting.lock();
            if self.early.lock().remove(&job_id) {
                return;
            }
            let (wake, woken) = oneshot::channel();
            waiting.insert(job_id, wake);
            woken
        };
        woken.await.expect("somebody wakes it");
    }
}

async fn hold_once(store: &PostgresStore, race: &Race, job_id: JobId, limit: Limit) {
    let asked = PermitAsk { key: "key".into(), limit, job_id };
    let outcome = store.take_permits(std::slice::from_ref(&asked), LEASE).await.expect("asking");
    match outcome[0] {
        PermitOutcome::Granted => {}
        PermitOutcome::InLine(_) => race.wait(job_id).await,
        PermitOutcome::NotBefore(at) => panic!("this is no rate: {at:?}"),
    }
    let running = race.running.fetch_add(1, Ordering::SeqCst) + 1;
    race.running_max.fetch_max(running, Ordering::SeqCst);
    let state = store.read_permits("key").await.expect("reading");
    assert!(state.holders.len() <= 3, "{state:?}");
    assert!(state.holders.iter().any(|(holder, _)| *holder == job_id), "{state:?}");
    race.running.fetch_sub(1, Ordering::SeqCst);
    let release = PermitRelease { key: "key".into(), limit, job_id: Some(job_id) };
    let grants = store.release_permits(&[release], LEASE).await.expect("releasing");
    race.done.fetch_add(1, Ordering::SeqCst);
    for grant in grants {
        race.wake(grant.job_id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_hundred_jobs_that_race_for_three_permits_never_more_than_three_hold_one() {
    const JOBS: usize = 200;
    let harness = PostgresHarness::direct().await;
    let stores = instances(&harness).await;
    let race = Arc::<Race>::default();
    let mut tasks = JoinSet::new();
    for (number, store) in (0..JOBS).zip(stores.iter().cycle()) {
        let (store, race) = (Arc::clone(store), Arc::clone(&race));
        tasks.spawn(async move {
            hold_once(&store, &race, job(number), Limit::AtOnce(3)).await;
        });
    }
    timeout(SOON * 3, tasks.join_all()).await.expect("everybody's turn comes");
    assert_eq!(race.done.load(Ordering::SeqCst), JOBS);
    assert!(race.running_max.load(Ordering::SeqCst) <= 3);
    let state = harness.store.read_permits("key").await.unwrap();
    assert_eq!((state.holders, state.in_line), (Vec::new(), 0));
    let sql = format!("SELECT held, in_line FROM {}.permit_keys", harness.options.schema);
    let row = harness.client.query_one(&sql, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (0, 0), "the counts are true");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_of_many_keys_are_asked_for_in_any_order_without_a_deadlock() {
    let harness = PostgresHarness::direct().await;
    let mut tasks = JoinSet::new();
    for (number, store) in instances(&harness).await.into_iter().enumerate() {
        tasks.spawn(async move {
            let mut keys: Vec<Arc<str>> = (0..10).map(|key| format!("k{key}").into()).collect();
            let (limit, job_id) = (Limit::AtOnce(100), job(number));
            for _ in 0..30 {
                fastrand::shuffle(&mut keys);
                let asks: Vec<PermitAsk> = keys
                    .iter()
                    .map(|key| PermitAsk { key: Arc::clone(key), limit, job_id })
                    .collect();
                let outcomes = store.take_permits(&asks, LEASE).await.expect("no deadlock");
                assert!(outcomes.iter().all(|outcome| *outcome == PermitOutcome::Granted));
                fastrand::shuffle(&mut keys);
                let releases: Vec<PermitRelease> = keys
                    .iter()
                    .map(|key| PermitRelease { key: Arc::clone(key), limit, job_id: Some(job_id) })
                    .collect();
                store.release_permits(&releases, LEASE).await.expect("no deadlock");
            }
        });
    }
    tasks.join_all().await;
    let sql = format!("SELECT count(*) FROM {}.permits", harness.options.schema);
    let left: i64 = harness.client.query_one(&sql, &[]).await.unwrap().get(0);
    assert_eq!(left, 0, "all are given back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_of_a_rate_are_a_share_apart_whoever_asks() {
    const ASKS: usize = 48;
    let harness = PostgresHarness::direct().await;
    let stores = instances(&harness).await;
    let before = harness.store.now().await.unwrap();
    let limit = Limit::Rate { count: 1, per_ms: 60_000 };
    let mut tasks = JoinSet::new();
    for (number, store) in (0..ASKS).zip(stores.iter().cycle()) {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            let asked = PermitAsk { key: "rate".into(), limit, job_id: job(number) };
            store.take_permits(&[asked], LEASE).await.expect("asking").remove(0)
        });
    }
    let mut places: Vec<i64> = Vec::new();
    let mut granted = 0;
    for outcome in tasks.join_all().await {
        match outcome {
            PermitOutcome::Granted => granted += 1,
            PermitOutcome::NotBefore(at) => places.push(at.0),
            PermitOutcome::InLine(place) => panic!("this is a rate: {place}"),
        }
    }
    places.sort_unstable();
    assert_eq!((granted, places.len()), (1, ASKS - 1));
    assert!(places[0] >= before.0 + 60_000);
    assert!(places.is_sorted_by(|one, next| one + 60_000 == *next), "{places:?}");
}

#[tokio::test]
async fn keys_of_no_use_are_forgotten_by_a_sweep_and_others_stay() {
    let harness = PostgresHarness::direct().await;
    let limit = Limit::AtOnce(1);
    for key in ["released", "over", "held"] {
        let asked = PermitAsk { key: key.into(), limit, job_id: job(1) };
        let _outcomes = harness.store.take_permits(&[asked], LEASE).await.unwrap();
    }
    let release = PermitRelease { key: "released".into(), limit, job_id: Some(job(1)) };
    harness.store.release_permits(&[release], LEASE).await.unwrap();
    harness.advance(Duration::from_hours(3)).await;
    let asked = PermitAsk { key: "held".into(), limit, job_id: job(2) };
    let outcomes = harness.store.take_permits(&[asked], LEASE).await.unwrap();
    assert_eq!(outcomes, [PermitOutcome::Granted], "the lease of the first is over");
    harness.store.sweep(&Retention::DEFAULT).await.unwrap();
    for (table, left) in [("permit_keys", "held"), ("permits", "held")] {
        let sql = format!("SELECT string_agg(key, ' ') FROM {}.{table}", harness.options.schema);
        let keys: Option<String> = harness.client.query_one(&sql, &[]).await.unwrap().get(0);
        assert_eq!(keys.as_deref(), Some(left), "{table}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_instance_hears_of_a_topic_and_of_no_other() {
    const FOREVER: Duration = Duration::from_hours(1);
    let harness = PostgresHarness::direct().await;
    let other = PostgresStore::open(harness.options.clone()).await.unwrap();
    let telling = async {
        loop {
            harness.store.tell("queues").await.expect("telling");
            // What is told before somebody listens is lost.
            harness.store.now().await.expect("a moment passes");
        }
    };
    let told = async {
        // Once its connection for hints is there, everybody is woken who waited before.
        for _ in 0..2 {
            other.wait_told("queues", FOREVER).await.expect("waiting");
        }
        let again = async {
            for _ in 0..5 {
                other.wait_told("queues", FOREVER).await.expect("waiting");
            }
        };
        tokio::select! {
            () = again => {}
            _ = other.wait_told("leader", FOREVER) => panic!("nobody told of it"),
        }
    };
    tokio::select! {
        told = timeout(SOON, told) => told.expect("it hears"),
        () = telling => unreachable!("it tells for ever"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_told_right_before_an_end_is_heard() {
    const FOREVER: Duration = Duration::from_hours(1);
    let harness = PostgresHarness::direct().await;
    for round in 0..3 {
        let teller = PostgresStore::open(harness.options.clone()).await.unwrap();
        // Both are connected once a word is heard, and the teller has just said something.
        let heard = harness.store.wait_told("ready", FOREVER);
        let telling = async {
            loop {
                teller.tell("ready").await.expect("telling");
            }
        };
        tokio::select! {
            heard = timeout(SOON, heard) => heard.expect("it hears").expect("waiting"),
            () = telling => unreachable!("it tells for ever"),
        }
        let last_word = async {
            teller.tell("leader").await.expect("telling");
            drop(teller);
        };
        let heard = timeout(SOON, harness.store.wait_told("leader", FOREVER));
        let (heard, ()) = tokio::join!(heard, last_word);
        assert!(heard.is_ok(), "the last word of round {round} is lost");
    }
}

/// Starts a run whose first job has this priority.
async fn started_with(world: &World<'_, PostgresHarness>, priority: u8) -> RunId {
    let mut start = world.start(&single("one"), "1");
    for change in &mut start.jobs {
        if let JobChange::Add { job, .. } = change {
            job.priority = priority;
        }
    }
    let run_id = start.run_id;
    world.apply(start).await;
    run_id
}

#[tokio::test]
async fn priority_is_a_head_start_of_a_minute_for_each_step_and_no_more() {
    let mut harness = PostgresHarness::direct().await;
    let world = World::new(&mut harness);
    let first = started_with(&world, 0).await;
    world.harness.advance(PRIORITY_HEAD_START + Duration::from_secs(1)).await;
    let (second, ahead) = (started_with(&world, 1).await, started_with(&world, 2).await);
    let detail = world.store().read_run(ahead).await.unwrap().unwrap();
    assert_eq!(detail.jobs[0].job.priority, 2);
    assert!(detail.jobs[0].due_at >= detail.row.started_at, "its due time stays the true one");
    let claimed = world.claim(10).await;
    let order: Vec<RunId> = claimed.iter().map(|claimed| claimed.job.job_id.run_id).collect();
    assert_eq!(order, [ahead, first, second]);
    assert_eq!(claimed.iter().map(|claimed| claimed.job.priority).collect::<Vec<_>>(), [2, 0, 1]);
}

#[tokio::test]
async fn a_claim_takes_its_jobs_from_the_index_of_their_order() {
    let harness = PostgresHarness::direct().await;
    let schema = &harness.options.schema;
    harness
        .sql(
            "INSERT INTO queues VALUES ('default'); \
             INSERT INTO jobs (run_id, lane, step, number, attempt, due_at, priority, kind, queue, \
             inputs, waits_in, order_at, ticket) SELECT gen_random_uuid(), 0, 0, n, 0, n, 0, \
             'execute', 'default', '[1]', 'default', n, n FROM generate_series(1, 20000) n; \
             ANALYZE jobs",
        )
        .await;
    let claim = format!(
        "SELECT cardinality(run_ids) FROM {schema}.claim_jobs('me', NULL, NULL, 10, 30000, \
         '-9223372036854775808', '-9223372036854775808', 512)"
    );
    // What this transaction alone has done.
    let scans = format!(
        "SELECT pg_stat_get_xact_numscans(oid), pg_stat_get_xact_tuples_returned(oid) \
         FROM (SELECT '{schema}.jobs_by_order'::regclass::oid AS oid) AS i"
    );
    harness.client.batch_execute("BEGIN").await.unwrap();
    let count: i32 = harness.client.query_one(&claim, &[]).await.unwrap().get(0);
    assert_eq!(count, 10);
    let row = harness.client.query_one(&scans, &[]).await.unwrap();
    let (count, rows): (i64, i64) = (row.get(0), row.get(1));
    harness.client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(count, 1, "it is scanned");
    assert!(rows <= 20, "and only its head: {rows} rows");
}

/// A store that one runtime made, which then stands still, as under handlers that block every thread.
#[test]
fn a_runtime_that_stands_still_holds_up_no_other_and_one_that_ends_takes_nothing_with_it() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let harness = first.block_on(PostgresHarness::direct());
    let store = Arc::clone(&harness.store);
    first.block_on(store.now()).expect("asking");
    let answer = second.block_on(async { timeout(SOON / 4, store.now()).await });
    answer.expect("it is not held up").expect("asking");
    let asked = second.block_on(store.take_term(&ask("leader", "a", None))).expect("asking");
    assert!(matches!(asked, TermOutcome::Held(_)));
    drop(second);
    first.block_on(async {
        for _ in 0..4 {
            store
                .release_term(&TermRef { name: "leader".into(), number: 1 })
                .await
                .expect("it ends");
        }
    });
    let _entered = first.enter();
    drop((store, harness));
}
