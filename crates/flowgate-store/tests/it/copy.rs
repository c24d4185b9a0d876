//! Moving a store to another one.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::event::StoredEvent;
use flowgate_core::ids::RunId;
use flowgate_core::payload::Payload;
use flowgate_store::conformance::Harness;
use flowgate_store::conformance::world::{World, chain, later};
use flowgate_store::control::{
    Expect, RECORD_KINDS, RECORD_KINDS_OF_ONE_STORE, Record, RecordQuery, RecordWrite,
    RecordsOutcome, TermAsk, TermOutcome,
};
use flowgate_store::copy::{CopyError, CopyReport, Occupied, Phase, Progress, copy, read_run};
use flowgate_store::faulty::{Call, Fault, Faulty};
use flowgate_store::{
    Authored, Clock, Control, Imported, LogLevel, MemoryStore, NewLogLine, NewRevision, RunCopy,
    Store,
};
use serde_json::json;

use crate::harness::{MemoryHarness, SqliteHarness};

/// A finished run, one that is due, one whose job is leased, one that waits, and their flows.
async fn filled(harness: &mut impl Harness) -> Vec<RunId> {
    let world = World::new(harness);
    let (flow, nap) = (chain(), later());
    for flow in [&flow, &nap] {
        let (revision, file) = (flow.revision.clone(), flow.file.clone());
        let folder = Some("/srv".to_owned());
        let authored = Authored { author: Some("ann".into()), note: Some("é\n\"1\"".into()) };
        let revision = NewRevision { revision, file, folder, authored };
        world.store().register_flow(revision).await.expect("registering");
    }
    let ended = world.started(&flow, r#"{"x": 1}"#).await;
    let line = |number: u32| NewLogLine {
        run_id: ended,
        step: "a".into(),
        attempt: 1,
        level: LogLevel::Info,
        text: format!("line {number}"),
    };
    // More lines than fit on a page.
    world.store().append_logs((0..1_500).map(line).collect()).await.expect("logging");
    world.finish(&flow, ended).await;
    let leased = world.started(&flow, "2").await;
    assert_eq!(world.claim_one().await.job.job_id.run_id, leased);
    let due = world.started(&flow, "3").await;
    let waiting = world.started(&nap, "4").await;
    vec![ended, leased, due, waiting]
}

async fn copied(from: &dyn Store, to: &dyn Store, occupied: Occupied) -> CopyReport {
    copy(from, to, occupied, &mut |_| {}).await.expect("copying")
}

/// What a copy must keep of a run: all but the positions.
fn kept(run: RunCopy) -> impl PartialEq + std::fmt::Debug {
    let shown = |stored: StoredEvent| (stored.seq, stored.at, stored.event);
    let events: Vec<_> = run.events.into_iter().map(shown).collect();
    let jobs: Vec<_> = run.jobs.into_iter().map(|job| (job.job, job.due_at, job.lost)).collect();
    (run.row, jobs, events, run.log_lines)
}

async fn assert_same(from: &dyn Store, to: &dyn Store, run_ids: &[RunId]) {
    for run_id in run_ids {
        let before = read_run(from, *run_id).await.expect("reading").map(kept);
        let after = read_run(to, *run_id).await.expect("reading").map(kept);
        assert!(before.is_some());
        assert_eq!(before, after);
    }
    let (before, after) = (from.list_revisions(None).await, to.list_revisions(None).await);
    assert_eq!(before.expect("reading"), after.expect("reading"));
}

#[tokio::test]
async fn a_store_is_the_same_after_a_move_there_and_back() {
    let mut source = MemoryHarness::on(Clock::wall());
    let run_ids = filled(&mut source).await;
    let file = SqliteHarness::plain().await;
    let back = MemoryStore::new();
    let report = copied(&*source.store(), &*file.sqlite, Occupied::Refuse).await;
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(report.imported, Imported { revisions: 2, runs: 4 });
    assert_eq!((report.target.log_lines, report.target.open_jobs), (1_500, 3));
    assert_eq!(report.target.runs["completed"], 1);
    assert_same(&*source.store(), &*file.sqlite, &run_ids).await;
    let report = copied(&*file.sqlite, &back, Occupied::Refuse).await;
    assert!(report.is_complete(), "{report:?}");
    assert_same(&*file.sqlite, &back, &run_ids).await;
}

#[tokio::test]
async fn runs_in_flight_go_on_in_the_target_and_the_lease_is_lost() {
    let mut source = MemoryHarness::plain();
    let run_ids = filled(&mut source).await;
    let mut target = SqliteHarness::plain().await;
    let report = copied(&*source.store(), &*target.sqlite, Occupied::Refuse).await;
    assert!(report.is_complete(), "{report:?}");
    let held = source.store().read_run(run_ids[1]).await.unwrap().unwrap().jobs[0].clone();
    let world = World::new(&mut target);
    let claimed = world.claim(10).await;
    let of_leased = claimed.iter().find(|claimed| claimed.job.job_id.run_id == run_ids[1]).unwrap();
    assert_eq!(of_leased.lost.len(), 1);
    assert_eq!(of_leased.lost[0].token, held.lease.unwrap().token);
    assert!(of_leased.token > of_leased.lost[0].token);
    assert!(claimed.iter().any(|claimed| claimed.job.job_id.run_id == run_ids[2]));
    world.harness.advance(Duration::from_hours(24)).await;
    let claimed = world.claim(10).await;
    assert!(claimed.iter().any(|claimed| claimed.job.job_id.run_id == run_ids[3]));
}

#[tokio::test]
async fn a_target_with_something_in_it_is_refused_and_left_alone() {
    let mut source = MemoryHarness::plain();
    filled(&mut source).await;
    let mut target = MemoryHarness::plain();
    World::new(&mut target).started(&chain(), "1").await;
    let refused = copy(&*source.store(), &*target.store(), Occupied::Refuse, &mut |_| {}).await;
    assert!(matches!(refused, Err(CopyError::Occupied { runs: 1, revisions: 0, records: 0 })));
    let report = copied(&*source.store(), &*target.store(), Occupied::Continue).await;
    assert!(!report.is_complete(), "it holds a run that the source does not have");
}

#[tokio::test]
async fn a_copy_that_was_broken_off_goes_on() {
    let mut source = MemoryHarness::plain();
    let world = World::new(&mut source);
    let flow = chain();
    let mut run_ids = Vec::new();
    for number in 0..250 {
        run_ids.push(world.started(&flow, &number.to_string()).await);
    }
    let store = source.store();
    let target = Arc::new(MemoryStore::new());
    let faulty = Faulty::new(Arc::clone(&target) as Arc<dyn Store>);
    let mut break_it = |progress: Progress| {
        if progress.runs_done > 0 {
            faulty.plan(Call::Import, Fault::ReplyLost, 1);
        }
    };
    let broken = copy(&*store, &faulty, Occupied::Refuse, &mut break_it).await;
    assert!(matches!(broken, Err(CopyError::Target(_))));
    let mut phases = Vec::new();
    let mut note = |progress: Progress| {
        phases.push((progress.phase, progress.runs_done, progress.runs));
    };
    let report = copy(&*store, &*target, Occupied::Continue, &mut note).await.unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(report.imported.runs, 50, "two hundred were there, also those without a reply");
    assert!(phases.contains(&(Phase::Copying, 250, 250)));
    assert_eq!(phases.last(), Some(&(Phase::Checking, 250, 250)));
    assert_same(&*store, &*target, &run_ids).await;
}

/// A record of each kind, one of them with an end, and more of one kind than fit on a page.
async fn with_records(store: &dyn Store) -> usize {
    let write = |kind: &'static str, key: &str, keep: Option<Duration>| RecordWrite {
        kind,
        key: key.into(),
        expect: Expect::Absent,
        value: Some(Payload::of(&json!({ "kind": kind, "key": key })).expect("it is JSON")),
        keep,
    };
    let day = Some(Duration::from_hours(24));
    let mut writes: Vec<_> = RECORD_KINDS.iter().map(|kind| write(kind, "é/1", None)).collect();
    writes.extend((0..2_500).map(|number| write("occurrence", &format!("{number:05}"), day)));
    let count = writes.len();
    while !writes.is_empty() {
        let rest = writes.split_off(writes.len().min(1_000));
        let written = store.write_records(std::mem::replace(&mut writes, rest), None).await;
        assert!(matches!(written.expect("writing"), RecordsOutcome::Written(_)));
    }
    count
}

async fn records(store: &dyn Store, kind: &'static str) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    loop {
        let after = records.last().map(|record| Arc::clone(&record.key));
        let (prefix, is_descending) = ("".into(), false);
        let query = RecordQuery { kind, prefix, after, is_descending, limit: 1_000 };
        let page = store.list_records(&query).await.expect("listing");
        if page.is_empty() {
            return records;
        }
        records.extend(page);
    }
}

#[tokio::test]
async fn records_are_copied_but_for_those_of_one_store() {
    let mut source = MemoryHarness::plain();
    World::new(&mut source).started(&chain(), "1").await;
    let source = source.store();
    let count = with_records(&*source).await;
    let term = TermAsk {
        name: "leader".into(),
        holder: "a/1".into(),
        span: Duration::from_hours(1),
        renews: None,
    };
    assert!(matches!(source.take_term(&term).await.unwrap(), TermOutcome::Held(_)));
    let file = SqliteHarness::plain().await;
    let report = copied(&*source, &*file.sqlite, Occupied::Refuse).await;
    assert!(report.is_complete(), "{report:?}");
    let expected = u64::try_from(count - RECORD_KINDS_OF_ONE_STORE.len()).unwrap();
    assert_eq!((report.records, report.target.records), (expected, expected));
    for kind in RECORD_KINDS {
        let (before, after) = (records(&*source, kind).await, records(&*file.sqlite, kind).await);
        if RECORD_KINDS_OF_ONE_STORE.contains(&kind) {
            assert_eq!((before.len(), after.len()), (1, 0), "{kind}");
            continue;
        }
        assert_eq!(before.len(), after.len(), "{kind}");
        for (before, after) in before.iter().zip(&after) {
            assert_eq!((&before.key, &before.value), (&after.key, &after.value));
            let ends = before.expires_at.zip(after.expires_at);
            assert_eq!(ends.is_some(), before.expires_at.is_some());
            assert!(ends.is_none_or(|(one, other)| one.0.abs_diff(other.0) < 60_000), "{ends:?}");
        }
    }
    assert_eq!(file.sqlite.list_terms("").await.unwrap(), [], "terms end with their holders");
}

#[tokio::test]
async fn records_that_are_there_are_left_alone() {
    let (source, target) = (MemoryStore::new(), MemoryStore::new());
    let count = with_records(&source).await;
    let change = RecordWrite {
        kind: "queue",
        key: "é/1".into(),
        expect: Expect::Absent,
        value: Some(Payload::null()),
        keep: None,
    };
    assert!(matches!(
        target.write_records(vec![change], None).await.unwrap(),
        RecordsOutcome::Written(_)
    ));
    let refused = copy(&source, &target, Occupied::Refuse, &mut |_| {}).await;
    assert!(matches!(refused, Err(CopyError::Occupied { runs: 0, revisions: 0, records: 1 })));
    let copied_before = RECORD_KINDS_OF_ONE_STORE.len() + 1;
    for expected in [count - copied_before, 0] {
        let report = copied(&source, &target, Occupied::Continue).await;
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(report.records, u64::try_from(expected).unwrap());
    }
    assert_eq!(records(&target, "queue").await[0].value, Payload::null());
}
