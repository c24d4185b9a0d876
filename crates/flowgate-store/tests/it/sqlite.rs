//! What only the embedded store promises: its file.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::event::LeaseStamp;
use flowgate_core::ids::{JobId, LeaseToken, Position, RunId, StepIndex};
use flowgate_core::payload::Payload;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_store::conformance::Harness;
use flowgate_store::conformance::world::{World, applied, chain, later, nothing, queued, single};
use flowgate_store::control::{
    Expect, Limit, PermitAsk, PermitOutcome, PermitState, RecordWrite, RecordsOutcome, TermAsk,
    TermOutcome,
};
use flowgate_store::{
    Authored, Clock, Control, JobCopy, NewRevision, Retention, RunCopy, RunQuery, SqliteStore,
    Store, StoreCopy, StoreError,
};
use rusqlite::Connection;

use crate::harness::{SqliteHarness, options};

async fn open(path: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(path, options(&Clock::wall())).await
}

#[tokio::test]
async fn a_second_owner_is_refused_by_the_name_of_the_first() {
    let harness = SqliteHarness::plain().await;
    let error = open(&harness.path()).await.unwrap_err();
    assert!(matches!(error, StoreError::Owned { .. }));
    let text = error.to_string();
    let first = format!("process {} (host-ab12), since 20", std::process::id());
    assert!(text.contains(&first), "{text}");
    assert!(text.contains("flowgate.db is in use"), "{text}");
    harness.sqlite.close().await.unwrap();
    open(&harness.path()).await.unwrap();
}

#[cfg(unix)]
#[tokio::test]
async fn another_name_of_the_file_is_the_same_file() {
    let harness = SqliteHarness::plain().await;
    let other = harness.path().with_file_name("other.db");
    std::os::unix::fs::symlink(harness.path(), &other).unwrap();
    assert!(matches!(open(&other).await, Err(StoreError::Owned { .. })));
}

#[tokio::test]
async fn a_reader_beside_an_owner_sees_its_writes_and_writes_nothing() {
    let mut harness = SqliteHarness::plain().await;
    let path = harness.path();
    let world = World::new(&mut harness);
    let flow = single("one");
    let reader = SqliteStore::open_read_only(&path).await.unwrap();
    for count in 1..=3 {
        let claimed = world.started_and_claimed(&flow).await;
        let seen = reader.read_run(claimed.job.job_id.run_id).await.unwrap().unwrap();
        assert_eq!(seen, world.run(claimed.job.job_id.run_id).await);
        let query = RunQuery { limit: 10, ..RunQuery::default() };
        assert_eq!(reader.list_runs(&query).await.unwrap().len(), count);
        assert_eq!(reader.read_feed(0, Position::START, 100).await.unwrap().len(), count * 2);
    }
    let is_read_only = |error: StoreError| matches!(error, StoreError::ReadOnly);
    let claimant = world.claimant(1);
    let start = world.start(&flow, "1");
    assert!(is_read_only(reader.commit(vec![start], None).await.unwrap_err()));
    assert!(is_read_only(reader.claim(&claimant).await.unwrap_err()));
    assert!(is_read_only(reader.renew(&[], Duration::from_secs(1)).await.unwrap_err()));
    assert!(is_read_only(reader.append_logs(Vec::new()).await.unwrap_err()));
    assert!(is_read_only(reader.sweep(&Retention::DEFAULT).await.unwrap_err()));
}

#[tokio::test]
async fn a_reader_makes_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nothing.db");
    let error = SqliteStore::open_read_only(&path).await.unwrap_err();
    assert!(error.to_string().contains("there is no store at"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn what_was_acknowledged_survives_an_end_without_a_word() {
    let mut harness = SqliteHarness::plain().await;
    let path = harness.path();
    let world = World::new(&mut harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    let taken = world.apply_and_take(world.succeed(&flow, &claimed), 1).await;
    // The files as a killed process leaves them: nothing closed, nothing checkpointed.
    let folder = tempfile::tempdir().unwrap();
    for ending in ["", "-wal", "-shm"] {
        let name = format!("flowgate.db{ending}");
        fs::copy(path.with_file_name(&name), folder.path().join(&name)).unwrap();
    }
    let store = open(&folder.path().join("flowgate.db")).await.unwrap();
    let run_id = claimed.job.job_id.run_id;
    let left = store.read_run(run_id).await.unwrap().unwrap();
    assert_eq!(left.row, world.run(run_id).await.row);
    assert_eq!(left.jobs[0].lease, None, "the lease ended with its owner");
    let again = store.claim(&world.claimant(1)).await.unwrap();
    assert_eq!(again[0].lost, [taken[0].stamp(&world.instance)]);
    assert_eq!(again[0].inputs, taken[0].inputs);
    assert!(again[0].token > taken[0].token);
}

/// A closed store with a run in it.
async fn closed_store(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("flowgate.db");
    let store = open(&path).await.expect("opening");
    let mut harness = SqliteHarness::plain().await;
    let world = World::new(&mut harness);
    for _ in 0..100 {
        let start = world.start(&chain(), "1");
        applied(store.commit(vec![start], None).await.expect("committing").remove(0));
    }
    store.close().await.expect("closing");
    path
}

/// The file is refused with an error that says `words`, by both ways of opening, and unchanged.
async fn refused(path: &Path, words: &str) {
    let before = fs::read(path).expect("reading");
    for read_only in [false, true] {
        let opened =
            if read_only { SqliteStore::open_read_only(path).await } else { open(path).await };
        let error = opened.expect_err("the file is refused");
        let fits = matches!(error, StoreError::Incompatible { .. } | StoreError::Corrupt { .. });
        assert!(fits, "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(!error.is_transient());
    }
    assert_eq!(fs::read(path).expect("reading"), before, "the file is as it was");
}

#[tokio::test]
async fn a_file_of_somebody_else_is_refused_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.db");
    let other = Connection::open(&path).unwrap();
    other.execute_batch("CREATE TABLE runs (id); INSERT INTO runs VALUES (1)").unwrap();
    drop(other);
    refused(&path, "is not a store of flowgate").await;
    fs::write(&path, "a letter, and no database at all").unwrap();
    refused(&path, "is not a store of flowgate").await;
    fs::write(&path, vec![0x5a; 100_000]).unwrap();
    refused(&path, "is not a store of flowgate").await;
}

#[tokio::test]
async fn a_file_of_a_newer_flowgate_is_refused_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = closed_store(folder.path()).await;
    let newer = Connection::open(&path).unwrap();
    newer.pragma_update(None, "user_version", 5).unwrap();
    drop(newer);
    refused(&path, "format 5, and this flowgate knows formats up to 4").await;
}

#[tokio::test]
async fn a_truncated_file_is_refused_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = closed_store(folder.path()).await;
    let whole = fs::read(&path).unwrap();
    // A start need not read the last page, so only the header tells that it is missing.
    for left in [whole.len() / 2, whole.len() - 8_192, whole.len() - 1] {
        fs::write(&path, &whole[..left]).unwrap();
        refused(&path, "but its header says").await;
    }
}

#[tokio::test]
async fn a_file_with_damaged_pages_is_refused_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = closed_store(folder.path()).await;
    let mut bytes = fs::read(&path).unwrap();
    bytes[8192..].fill(0xa5);
    fs::write(&path, &bytes).unwrap();
    let error = open(&path).await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
    assert_eq!(fs::read(&path).unwrap(), bytes, "the file is as it was");
}

#[tokio::test]
async fn a_full_disk_is_told_and_recovers_by_itself() {
    let mut harness = SqliteHarness::plain().await;
    let sqlite = Arc::clone(&harness.sqlite);
    let world = World::new(&mut harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    let run_id = claimed.job.job_id.run_id;
    let before = world.run(run_id).await;
    sqlite.limit_pages(Some(1)).await.unwrap();
    let large = format!("\"{}\"", "x".repeat(500_000));
    let commit = world.succeed_with(&flow, &claimed, &large);
    for _ in 0..3 {
        let error = world.store().commit(vec![commit.clone()], None).await.unwrap_err();
        assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
        assert!(error.is_transient());
        let after = world.run(run_id).await;
        assert_eq!(after.row, before.row, "memory does not run ahead of the file");
        assert_eq!(after.jobs[0].job, before.jobs[0].job);
        let token = after.jobs[0].lease.as_ref().map(|lease| lease.token);
        assert_eq!(token, Some(claimed.token), "its lease can still settle it");
    }
    assert_eq!(world.events(run_id).await.len(), 2, "reading goes on");
    sqlite.limit_pages(None).await.unwrap();
    world.apply(commit).await;
    assert_eq!(world.claim_one().await.inputs[0].get(), large);
    let feed = world.store().read_feed(0, Position::START, 100).await.unwrap();
    let positions: Vec<u64> = feed.iter().map(|event| event.position.minor).collect();
    assert_eq!(positions, (1..=feed.len() as u64).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_lease_outlives_a_full_disk_and_its_renewals_count() {
    let mut harness = SqliteHarness::plain().await;
    let sqlite = Arc::clone(&harness.sqlite);
    let world = World::new(&mut harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    let lease = flowgate_store::conformance::world::lease_of(&claimed);
    for _ in 0..3 {
        world.harness.advance(Duration::from_secs(20)).await;
        let renewals = world.store().renew(&[lease], Duration::from_secs(30)).await.unwrap();
        assert!(matches!(renewals[0], flowgate_store::Renewal::Held(_)));
    }
    sqlite.limit_pages(Some(1)).await.unwrap();
    let large = format!("\"{}\"", "x".repeat(500_000));
    let failed = world.store().commit(vec![world.start(&flow, &large)], None).await;
    assert!(matches!(failed, Err(StoreError::Full { .. })));
    sqlite.limit_pages(None).await.unwrap();
    assert!(world.claim(10).await.is_empty(), "the lease is not lost");
    world.apply(world.succeed(&flow, &claimed)).await;
}

#[tokio::test]
async fn the_file_is_written_as_durability_needs() {
    let harness = SqliteHarness::plain().await;
    let pragmas = harness.sqlite.pragmas().await.unwrap();
    let expected = [
        ("journal_mode", "wal"),
        ("synchronous", "2"),
        ("foreign_keys", "0"),
        ("wal_autocheckpoint", "2000"),
        ("auto_vacuum", "2"),
        ("user_version", "4"),
    ];
    for (name, value) in expected {
        assert_eq!(pragmas[name], value, "{name}");
    }
    let version: Vec<u32> =
        rusqlite::version().split('.').map(|part| part.parse().unwrap()).collect();
    assert!(version >= vec![3, 51, 3], "earlier versions can damage a write-ahead log");
}

#[tokio::test]
async fn a_start_reads_no_finished_run() {
    let mut harness = SqliteHarness::plain().await;
    let path = harness.path();
    let world = World::new(&mut harness);
    for _ in 0..40 {
        let batch = (0..500).map(|_| world.start(&nothing(), "1")).collect();
        for outcome in world.store().commit(batch, None).await.unwrap() {
            applied(outcome);
        }
    }
    let open_run = world.started(&chain(), "1").await;
    harness.sqlite.close().await.unwrap();
    // A finished run that cannot be read any more hurts nobody who does not read it.
    let file = Connection::open(&path).unwrap();
    let changed = file.execute("UPDATE runs SET record = 'x' WHERE status = 'completed'", []);
    assert_eq!(changed.unwrap(), 20_000);
    drop(file);
    let store = open(&path).await.unwrap();
    let query = RunQuery { statuses: vec![RunStatus::Running], limit: 10, ..RunQuery::default() };
    assert_eq!(store.list_runs(&query).await.unwrap()[0].run.run_id, open_run);
}

#[tokio::test]
async fn people_can_query_events_with_any_tool() {
    let mut harness = SqliteHarness::plain().await;
    let path = harness.path();
    let world = World::new(&mut harness);
    let flow = single("one");
    let run_id = world.started(&flow, r#"{"order": 7}"#).await;
    world.finish(&flow, run_id).await;
    let file = Connection::open(&path).unwrap();
    let mut statement = file
        .prepare("SELECT position, seq, at, type, step FROM events WHERE run_id = ?1 ORDER BY seq")
        .unwrap();
    let rows: Vec<(u64, u64, i64, String, Option<String>)> = statement
        .query_map([run_id.to_string()], |row| {
            let (position, seq): (i64, i64) = (row.get(0)?, row.get(1)?);
            let (position, seq) = (position.cast_unsigned(), seq.cast_unsigned());
            Ok((position, seq, row.get(2)?, row.get(3)?, row.get(4)?))
        })
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let events = world.events(run_id).await;
    assert_eq!(rows.len(), events.len());
    for (row, event) in rows.iter().zip(&events) {
        assert_eq!((row.0, row.1, row.2), (event.position.minor, event.seq, event.at.0));
        assert_eq!(row.3, event.event.kind());
        assert_eq!(row.4.as_deref(), event.event.step().map(|step| &**step));
    }
}

#[tokio::test]
async fn a_sweep_gives_space_back() {
    let mut harness = SqliteHarness::plain().await;
    let path = harness.path();
    let world = World::new(&mut harness);
    let flow = single("one");
    let large = format!("\"{}\"", "x".repeat(100_000));
    for _ in 0..50 {
        let run_id = world.started(&flow, &large).await;
        world.finish(&flow, run_id).await;
    }
    let now = Retention { events: Duration::ZERO, runs: Duration::ZERO, batch: 10 };
    while world.store().sweep(&now).await.unwrap().more {}
    harness.sqlite.close().await.unwrap();
    let bytes = fs::metadata(path).unwrap().len();
    assert!(bytes < 1_000_000, "{bytes} bytes are left of 5,000,000");
}

#[tokio::test]
async fn a_closed_store_refuses_every_call() {
    let mut harness = SqliteHarness::plain().await;
    harness.sqlite.close().await.unwrap();
    harness.sqlite.close().await.unwrap();
    let world = World::new(&mut harness);
    let start = world.start(&chain(), "1");
    let error = world.store().commit(vec![start], None).await.unwrap_err();
    assert!(error.to_string().contains("the store is closed"), "{error}");
    assert!(world.store().read_feed(0, Position::START, 1).await.is_err());
}

/// A store with two runs, the first of them with a tag.
async fn tagged(world: &World<'_, SqliteHarness>) -> RunId {
    let flow = single("one");
    let start = world.start_tagged(&flow, &[("team", "it's \"a\"")]);
    let run_id = start.run_id;
    world.apply(start).await;
    world.finish(&flow, run_id).await;
    world.started(&flow, "1").await;
    run_id
}

fn by_tag() -> RunQuery {
    let tags = vec![("team".into(), "it's \"a\"".into())];
    RunQuery { tags, limit: 10, ..RunQuery::default() }
}

/// Makes a file one that an earlier flowgate wrote, one format at a time.
fn earlier(formats: &[&str]) -> String {
    formats.join("; ")
}

const TO_FORMAT_3: &str = "ALTER TABLE revisions DROP COLUMN author; \
     ALTER TABLE revisions DROP COLUMN note; \
     DELETE FROM refinery_schema_history WHERE version = 4; PRAGMA user_version = 3";
const TO_FORMAT_2: &str = "DROP TABLE terms; DROP TABLE records; DROP TABLE permits; \
     DROP TABLE rates; DELETE FROM meta WHERE name = 'record_version_last'; \
     DELETE FROM refinery_schema_history WHERE version = 3; PRAGMA user_version = 2";

#[tokio::test]
async fn a_file_of_the_third_format_is_read_and_learns_who_registers_revisions() {
    let harness = SqliteHarness::plain().await;
    let path = harness.path();
    let flow = queued("other");
    let said = Authored { author: Some("ann".into()), note: Some("first".into()) };
    let revision = NewRevision {
        revision: flow.revision.clone(),
        file: flow.file.clone(),
        folder: None,
        authored: said.clone(),
    };
    harness.sqlite.register_flow(revision.clone()).await.unwrap();
    harness.sqlite.close().await.unwrap();
    Connection::open(&path).unwrap().execute_batch(TO_FORMAT_3).unwrap();
    let reader = SqliteStore::open_read_only(&path).await.unwrap();
    let listed = reader.list_revisions(None).await.unwrap();
    assert_eq!(listed[0].revision.authored, Authored::default(), "it does not know");
    let store = open(&path).await.unwrap();
    store.register_flow(revision).await.unwrap();
    let listed = store.list_revisions(None).await.unwrap();
    assert_eq!(listed[0].revision.authored, Authored::default(), "nobody said at the first time");
    let other = queued("another");
    let (file, authored) = (other.file, said.clone());
    let revision = NewRevision { revision: other.revision, file, folder: None, authored };
    store.register_flow(revision).await.unwrap();
    let listed = store.list_revisions(Some(&other.name)).await.unwrap();
    assert_eq!(listed[0].revision.authored, said);
}

#[tokio::test]
async fn a_file_of_the_second_format_gets_its_terms_records_and_permits() {
    let mut harness = SqliteHarness::plain().await;
    let path = harness.path();
    World::new(&mut harness).started(&queued("other"), "1").await;
    harness.sqlite.close().await.unwrap();
    Connection::open(&path).unwrap().execute_batch(&earlier(&[TO_FORMAT_3, TO_FORMAT_2])).unwrap();
    let reader = SqliteStore::open_read_only(&path).await.unwrap();
    assert_eq!(reader.list_terms("").await.unwrap(), [], "it has none");
    assert_eq!(reader.read_permits("key").await.unwrap(), PermitState::default());
    assert_eq!(reader.read_records("queue", &["a".into()]).await.unwrap(), [None]);
    assert_eq!(reader.queue_stats().await.unwrap().len(), 1);
    let store = open(&path).await.unwrap();
    assert_eq!(store.list_terms("").await.unwrap(), []);
    let ask = TermAsk {
        name: "leader".into(),
        holder: "a/1".into(),
        span: Duration::from_mins(1),
        renews: None,
    };
    assert!(matches!(store.take_term(&ask).await.unwrap(), TermOutcome::Held(_)));
    let reader = SqliteStore::open_read_only(&path).await.unwrap();
    assert_eq!(reader.list_terms("").await.unwrap(), store.list_terms("").await.unwrap());
    let refused = reader.take_term(&ask).await;
    assert!(matches!(refused, Err(StoreError::ReadOnly)), "{refused:?}");
}

#[tokio::test]
async fn a_reader_beside_the_owner_counts_queues_as_the_owner_does() {
    let mut harness = SqliteHarness::plain().await;
    let path = harness.path();
    let world = World::new(&mut harness);
    world.started(&queued("other"), "1").await;
    world.started_and_claimed_of(&queued("mine"), "mine").await;
    for _ in 0..2 {
        world.started(&single("one"), "1").await;
        world.started(&later(), "1").await;
    }
    let reader = SqliteStore::open_read_only(&path).await.unwrap();
    let counted = reader.queue_stats().await.unwrap();
    assert_eq!(counted, world.store().queue_stats().await.unwrap());
    let shown: Vec<_> = counted.iter().map(|q| (&*q.queue, q.due, q.later)).collect();
    assert_eq!(shown, [("default", 2, 2), ("other", 1, 0)]);
}

#[tokio::test]
async fn a_full_disk_leaves_permits_records_and_terms_as_they_were() {
    let mut harness = SqliteHarness::plain().await;
    let sqlite = Arc::clone(&harness.sqlite);
    let world = World::new(&mut harness);
    let store = world.store();
    let claimed = world.started_and_claimed(&single("one")).await;
    let (limit, lease) = (Limit::AtOnce(1), Duration::from_mins(1));
    let ask = |job_id| PermitAsk { key: "key".into(), limit, job_id };
    let mine = ask(claimed.job.job_id);
    assert_eq!(
        store.take_permits(std::slice::from_ref(&mine), lease).await.unwrap(),
        [PermitOutcome::Granted]
    );
    sqlite.limit_pages(Some(1)).await.unwrap();
    let job_id = || JobId { run_id: RunId(uuid::Uuid::now_v7()), step: StepIndex(0) };
    let many: Vec<_> = (0..2_000).map(|_| ask(job_id())).collect();
    let error = store.take_permits(&many, lease).await.unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    let write = |number: u32| RecordWrite {
        kind: "queue",
        key: number.to_string().into(),
        expect: Expect::Absent,
        value: Some(Payload::of(&"x".repeat(1_000)).unwrap()),
        keep: None,
    };
    let refused = store.write_records((0..500).map(write).collect(), None).await;
    assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
    sqlite.limit_pages(None).await.unwrap();
    let outcomes = store.take_permits(&[mine, ask(job_id())], lease).await.unwrap();
    assert_eq!(outcomes, [PermitOutcome::Granted, PermitOutcome::InLine(1)]);
    let written = store.write_records(vec![write(0)], None).await.unwrap();
    assert_eq!(written, RecordsOutcome::Written(vec![1]));
}

#[tokio::test]
async fn a_file_of_the_first_format_gets_its_tags() {
    let mut harness = SqliteHarness::plain().await;
    let path = harness.path();
    let run_id = tagged(&World::new(&mut harness)).await;
    harness.sqlite.close().await.unwrap();
    let file = Connection::open(&path).unwrap();
    file.execute_batch(&earlier(&[TO_FORMAT_3, TO_FORMAT_2])).unwrap();
    file.execute_batch(
        "DROP TABLE tags; DELETE FROM refinery_schema_history WHERE version = 2; \
         PRAGMA user_version = 1",
    )
    .unwrap();
    drop(file);
    let reader = SqliteStore::open_read_only(&path).await.unwrap();
    let all = RunQuery { tags: Vec::new(), ..by_tag() };
    assert_eq!(reader.list_runs(&all).await.unwrap().len(), 2, "the rest can be read");
    let error = reader.list_runs(&by_tag()).await.unwrap_err();
    assert!(error.to_string().contains("format 1, which knows no tags"), "{error}");
    assert!(reader.count_runs(&by_tag()).await.is_err());
    let store = open(&path).await.unwrap();
    let listed = store.list_runs(&by_tag()).await.unwrap();
    assert_eq!(listed.iter().map(|row| row.run.run_id).collect::<Vec<_>>(), [run_id]);
}

#[tokio::test]
async fn a_sweep_takes_tags_along() {
    let mut harness = SqliteHarness::plain().await;
    let path = harness.path();
    let world = World::new(&mut harness);
    tagged(&world).await;
    let tags = |expected: u32| {
        let file = Connection::open(&path).unwrap();
        let count = file.query_row("SELECT count(*) FROM tags", [], |row| row.get(0));
        assert_eq!(count, Ok(expected));
    };
    tags(1);
    let now = Retention { events: Duration::ZERO, runs: Duration::ZERO, batch: 10 };
    assert_eq!(world.store().sweep(&now).await.unwrap().runs, 1);
    tags(0);
    assert_eq!(world.store().count_runs(&by_tag()).await.unwrap(), 0);
}

/// A copy of an open run with one job, whose last lease had this token.
async fn copy(world: &World<'_, SqliteHarness>, token: LeaseToken) -> RunCopy {
    let claimed = world.started_and_claimed(&chain()).await;
    let run_id = claimed.job.job_id.run_id;
    let lost = LeaseStamp { token, ..claimed.stamp(&world.instance) };
    let job = claimed.job.clone();
    RunCopy {
        row: world.run(run_id).await.row,
        jobs: vec![JobCopy { job, due_at: Timestamp(0), lost: vec![lost] }],
        events: world.events(run_id).await,
        log_lines: Vec::new(),
    }
}

#[tokio::test]
async fn an_import_lasts_and_its_tokens_stay_behind() {
    let mut harness = SqliteHarness::plain().await;
    let old = LeaseToken(7 << 40);
    let copy = copy(&World::new(&mut harness), old).await;
    let mut other = SqliteHarness::plain().await;
    let mut world = World::new(&mut other);
    let run_id = copy.row.run.run_id;
    let inputs = vec![copy.events[0].event.payload()];
    world.store().import(StoreCopy { revisions: Vec::new(), runs: vec![copy] }).await.unwrap();
    for _ in 0..2 {
        assert!(world.reopen().await);
        let claimed = world.claim_one().await;
        assert_eq!(claimed.job.job_id.run_id, run_id);
        assert!(claimed.token > old);
        assert_eq!(claimed.lost[0].token, old);
        assert_eq!(claimed.inputs, inputs);
    }
}

#[tokio::test]
async fn an_import_that_finds_no_room_leaves_nothing() {
    let mut harness = SqliteHarness::plain().await;
    let world = World::new(&mut harness);
    let small = copy(&world, LeaseToken(1)).await;
    let large = format!("\"{}\"", "x".repeat(500_000));
    let start = world.apply_and_take(world.start(&chain(), &large), 1).await.remove(0);
    let mut copies = vec![small];
    let run_id = start.job.job_id.run_id;
    copies.push(RunCopy {
        row: world.run(run_id).await.row,
        jobs: vec![JobCopy { job: start.job, due_at: Timestamp(0), lost: Vec::new() }],
        events: world.events(run_id).await,
        log_lines: Vec::new(),
    });
    let mut other = SqliteHarness::plain().await;
    let sqlite = Arc::clone(&other.sqlite);
    let world = World::new(&mut other);
    sqlite.limit_pages(Some(1)).await.unwrap();
    let whole = StoreCopy { revisions: Vec::new(), runs: copies };
    let error = world.store().import(whole.clone()).await.unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    assert_eq!(world.store().count_runs(&RunQuery::default()).await.unwrap(), 0);
    assert!(world.claim(10).await.is_empty());
    sqlite.limit_pages(None).await.unwrap();
    assert_eq!(world.store().import(whole).await.unwrap().runs, 2);
    assert_eq!(world.claim(10).await.len(), 2);
    let feed = world.store().read_feed(0, Position::START, 100).await.unwrap();
    let positions: Vec<u64> = feed.iter().map(|event| event.position.minor).collect();
    assert_eq!(positions, (1..=feed.len() as u64).collect::<Vec<_>>());
}
