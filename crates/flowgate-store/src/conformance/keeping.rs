//! Log lines, revisions, instances, what retention removes, and what a copy brings.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::event::StoredEvent;
use flowgate_core::ids::{InstanceId, Position, RunId};
use flowgate_core::limits::LOG_LINES_MAX;
use flowgate_core::run::Run;
use flowgate_core::time::Timestamp;

use super::Harness;
use super::world::{World, chain, single};
use crate::{
    Authored, Beat, Degradation, Imported, InstanceState, LogLevel, NewLogLine, NewRevision,
    Retention, RunCopy, RunQuery, StoreCopy, StoredRevision, Swept,
};

const DAY: Duration = Duration::from_hours(24);
const RETENTION: Retention = Retention { events: DAY, runs: Duration::from_hours(72), batch: 100 };

fn line(run_id: RunId, text: &str) -> NewLogLine {
    let (step, text) = ("first".into(), text.to_owned());
    NewLogLine { run_id, step, attempt: 1, level: LogLevel::Info, text }
}

pub async fn log_lines_are_kept_in_order(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let (one, other) = (world.started(&chain(), "1").await, world.started(&chain(), "1").await);
    let texts = ["a", "b", "c", "d"];
    let both = texts.iter().flat_map(|text| [line(one, text), line(other, text)]).collect();
    world.store().append_logs(both).await.unwrap();
    let warning = NewLogLine { level: LogLevel::Warn, attempt: 7, ..line(one, "e\n\"ü\"") };
    world.store().append_logs(vec![warning.clone()]).await.unwrap();
    world.reopen_if_it_can().await;
    let lines = world.store().read_logs(one, 0, 100).await.unwrap();
    let numbers: Vec<u64> = lines.iter().map(|line| line.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    assert_eq!(lines[1].line, line(one, "b"));
    assert_eq!(lines[4].line, warning);
    let page = world.store().read_logs(one, 2, 2).await.unwrap();
    assert_eq!(page, lines[2..4]);
    assert_eq!(world.store().read_logs(other, 0, 100).await.unwrap().len(), 4);
}

pub async fn log_lines_over_the_limit_are_counted_and_not_kept(harness: &mut impl Harness) {
    let world = World::new(harness);
    let run_id = world.started(&chain(), "1").await;
    let half = usize::try_from(LOG_LINES_MAX / 2).unwrap();
    for _ in 0..2 {
        world.store().append_logs(vec![line(run_id, "x"); half - 1]).await.unwrap();
    }
    world.store().append_logs(vec![line(run_id, "x"); 10]).await.unwrap();
    world.store().append_logs(vec![line(run_id, "x"); 10]).await.unwrap();
    let last = world.store().read_logs(run_id, LOG_LINES_MAX - 2, 100).await.unwrap();
    let numbers: Vec<u64> = last.iter().map(|line| line.number).collect();
    assert_eq!(numbers, [LOG_LINES_MAX - 1, LOG_LINES_MAX]);
}

pub async fn log_lines_leave_the_run_as_it_is(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let claimed = world.started_and_claimed(&flow).await;
    let run_id = claimed.job.job_id.run_id;
    let before = world.run(run_id).await;
    world.store().append_logs(vec![line(run_id, "x")]).await.unwrap();
    assert_eq!(world.run(run_id).await, before);
    world.apply(world.succeed(&flow, &claimed)).await;
    world.finish(&flow, run_id).await;
    world.store().append_logs(vec![line(run_id, "late")]).await.unwrap();
    let lines = world.store().read_logs(run_id, 0, 100).await.unwrap();
    let texts: Vec<&str> = lines.iter().map(|line| line.line.text.as_str()).collect();
    assert_eq!(texts, ["x", "late"]);
}

pub async fn log_lines_of_a_run_that_is_not_there_are_dropped(harness: &mut impl Harness) {
    let world = World::new(harness);
    let (there, gone) = (world.started(&chain(), "1").await, RunId::derived("chain", "gone"));
    let lines = vec![line(gone, "x"), line(there, "y"), line(gone, "z")];
    world.store().append_logs(lines).await.unwrap();
    assert_eq!(world.store().read_logs(gone, 0, 10).await.unwrap(), []);
    assert_eq!(world.store().read_logs(there, 0, 10).await.unwrap().len(), 1);
}

pub async fn a_sweep_removes_events_before_records(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = single("one");
    let run_id = world.started(&flow, "1").await;
    world.store().append_logs(vec![line(run_id, "x")]).await.unwrap();
    world.finish(&flow, run_id).await;
    assert_eq!(world.store().sweep(&RETENTION).await.unwrap(), Swept::default());
    world.harness.advance(DAY).await;
    let swept = world.store().sweep(&RETENTION).await.unwrap();
    assert_eq!(swept, Swept { logs: 1, ..Swept::default() });
    assert_eq!(world.events(run_id).await, []);
    assert_eq!(world.store().read_logs(run_id, 0, 10).await.unwrap(), []);
    assert_eq!(world.feed(0).await, []);
    let row = world.run(run_id).await.row;
    assert!(row.events_removed, "the record says so");
    assert_eq!(world.list(&RunQuery { limit: 10, ..RunQuery::default() }).await, [row]);
    world.store().append_logs(vec![line(run_id, "late")]).await.unwrap();
    assert_eq!(world.store().read_logs(run_id, 0, 10).await.unwrap(), []);
    world.harness.advance(DAY * 2).await;
    let swept = world.store().sweep(&RETENTION).await.unwrap();
    assert_eq!(swept, Swept { runs: 1, ..Swept::default() });
    assert_eq!(world.store().read_run(run_id).await.unwrap(), None);
    assert_eq!(world.list(&RunQuery { limit: 10, ..RunQuery::default() }).await, []);
}

pub async fn a_sweep_never_touches_open_runs(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let run_id = world.started(&flow, "1").await;
    world.harness.advance(DAY * 365).await;
    let now = Retention { events: Duration::ZERO, runs: Duration::ZERO, batch: 100 };
    assert_eq!(world.store().sweep(&now).await.unwrap(), Swept::default());
    assert_eq!(world.events(run_id).await.len(), 2);
    world.finish(&flow, run_id).await;
}

pub async fn a_sweep_works_in_small_batches(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = single("one");
    for _ in 0..5 {
        let run_id = world.started(&flow, "1").await;
        world.finish(&flow, run_id).await;
    }
    world.harness.advance(DAY * 3).await;
    let small = Retention { batch: 2, ..RETENTION };
    let mut total = Swept::default();
    for calls in 1.. {
        let swept = world.store().sweep(&small).await.unwrap();
        assert!(swept.logs + swept.runs <= 2, "a call touches its batch");
        total.logs += swept.logs;
        total.runs += swept.runs;
        if !swept.more {
            assert!(calls >= 5);
            break;
        }
    }
    assert_eq!((total.logs, total.runs), (5, 5));
}

pub async fn records_that_end_before_their_events_take_them_along(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = single("one");
    let run_id = world.started(&flow, "1").await;
    world.finish(&flow, run_id).await;
    world.harness.advance(DAY).await;
    let short = Retention { events: DAY * 7, runs: DAY, batch: 100 };
    let swept = world.store().sweep(&short).await.unwrap();
    assert_eq!((swept.logs, swept.runs), (1, 1));
    assert_eq!(world.feed(0).await, []);
}

pub async fn positions_go_on_after_a_sweep(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let flow = single("one");
    let run_id = world.started(&flow, "1").await;
    world.finish(&flow, run_id).await;
    let count = world.events(run_id).await.len();
    let ends: Vec<Position> = world
        .feeds(count)
        .await
        .iter()
        .map(|feed| feed.last().map_or(Position::START, |event| event.position))
        .collect();
    world.harness.advance(DAY * 3).await;
    let swept = world.store().sweep(&RETENTION).await.unwrap();
    assert_eq!((swept.logs, swept.runs), (1, 1));
    world.reopen_if_it_can().await;
    world.started(&flow, "1").await;
    let feeds = world.feeds(2).await;
    let (index, feed) = feeds.iter().enumerate().find(|(_, feed)| !feed.is_empty()).unwrap();
    assert!(feed[0].position > ends[index], "a reader that was at the end sees what comes");
}

fn revision(name: &str, description: &str) -> NewRevision {
    let mut flow = single(name);
    flow.file.description = Some(description.to_owned());
    let flow = flowgate_core::flow::Flow::new(flow.file).unwrap();
    let folder = Some("/srv/flows".to_owned());
    let authored = by("ann", description);
    NewRevision { revision: flow.revision, file: flow.file, folder, authored }
}

fn by(author: &str, note: &str) -> Authored {
    Authored { author: Some(author.into()), note: Some(note.into()) }
}

pub async fn revisions_are_listed_latest_first_and_the_last_is_active(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let (a, b, other) = (revision("one", "a"), revision("one", "b"), revision("another", "c"));
    for revision in [&a, &b, &other] {
        world.store().register_flow(revision.clone()).await.unwrap();
        world.harness.advance(Duration::from_secs(1)).await;
    }
    world.reopen_if_it_can().await;
    let listed = world.store().list_revisions(None).await.unwrap();
    let shown: Vec<_> = listed.iter().map(|s| (&s.revision, s.active)).collect();
    assert_eq!(shown, [(&other, true), (&b, true), (&a, false)]);
    let listed = world.store().list_revisions(Some("one")).await.unwrap();
    assert_eq!(listed.len(), 2);
    assert!(listed[0].registered_at > listed[1].registered_at);
    assert_eq!(world.store().list_revisions(Some("nobody")).await.unwrap(), []);
}

pub async fn one_revision_is_read_by_its_name_or_because_it_is_active(harness: &mut impl Harness) {
    let world = World::new(harness);
    let (a, b, other) = (revision("one", "a"), revision("one", "b"), revision("another", "c"));
    for revision in [&a, &b, &other] {
        world.store().register_flow(revision.clone()).await.unwrap();
    }
    let listed = world.store().list_revisions(Some("one")).await.unwrap();
    let read = async |flow, revision| world.store().read_revision(flow, revision).await.unwrap();
    for stored in &listed {
        assert_eq!(read("one", Some(&stored.revision.revision)).await.as_ref(), Some(stored));
    }
    let active = listed.iter().find(|stored| stored.active).unwrap();
    assert_eq!((&active.revision, read("one", None).await.as_ref()), (&b, Some(active)));
    world.store().register_flow(a.clone()).await.unwrap();
    assert_eq!(read("one", None).await.unwrap().revision, a);
    assert_eq!(read("one", Some(&other.revision)).await, None);
    assert_eq!(read("nobody", None).await, None);
}

pub async fn a_revision_keeps_who_registered_it_first_and_what_for(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let (a, b) = (revision("one", "a"), revision("one", "b"));
    let unsaid = NewRevision { authored: Authored::default(), ..b.clone() };
    for revision in [&a, &unsaid] {
        world.store().register_flow(revision.clone()).await.unwrap();
        world.harness.advance(Duration::from_secs(1)).await;
    }
    // Whoever comes later has not written it, also where nobody said who did.
    let later = |revision: &NewRevision| NewRevision {
        authored: by("bob", "again, \"é\""),
        folder: Some("/elsewhere".to_owned()),
        ..revision.clone()
    };
    world.store().register_flow(later(&unsaid)).await.unwrap();
    world.store().register_flow(later(&a)).await.unwrap();
    let copy = |revision: NewRevision| {
        let stored = StoredRevision { revision, registered_at: Timestamp(1), active: false };
        StoreCopy { revisions: vec![stored], runs: Vec::new() }
    };
    let third = later(&revision("one", "c"));
    for revision in [later(&a), third.clone(), NewRevision { authored: by("eve", ""), ..third }] {
        world.store().import(copy(revision)).await.unwrap();
    }
    world.reopen_if_it_can().await;
    let listed = world.store().list_revisions(Some("one")).await.unwrap();
    let shown: Vec<_> = listed
        .iter()
        .map(|stored| (&stored.revision.authored, stored.revision.folder.as_deref()))
        .collect();
    let elsewhere = Some("/elsewhere");
    assert_eq!(
        shown,
        [
            (&Authored::default(), elsewhere),
            (&a.authored, elsewhere),
            (&by("bob", "again, \"é\""), elsewhere),
        ]
    );
}

pub async fn a_known_revision_keeps_its_time_and_becomes_active(harness: &mut impl Harness) {
    let world = World::new(harness);
    let (a, b) = (revision("one", "a"), revision("one", "b"));
    world.store().register_flow(a.clone()).await.unwrap();
    let registered_at = world.store().list_revisions(None).await.unwrap()[0].registered_at;
    world.harness.advance(Duration::from_secs(1)).await;
    world.store().register_flow(b.clone()).await.unwrap();
    world.harness.advance(Duration::from_secs(1)).await;
    world.store().register_flow(a.clone()).await.unwrap();
    let listed = world.store().list_revisions(None).await.unwrap();
    let shown: Vec<_> = listed.iter().map(|s| (&s.revision, s.active)).collect();
    assert_eq!(shown, [(&b, false), (&a, true)]);
    assert_eq!(listed[1].registered_at, registered_at);
}

fn beat(name: &str) -> Beat {
    Beat {
        instance: InstanceId(name.into()),
        pid: 7,
        version: "0.1.0".into(),
        role: Some("job-worker".into()),
        pool: None,
        queues: Some(vec!["default".into()]),
        workers: vec!["charge".into()],
        slots: 4,
        running: 1,
        state: InstanceState::Ready,
        degradation: Degradation::Degraded,
        strained_by: Some("the store takes 300ms".into()),
        silent_ms_max: 6_000,
    }
}

pub async fn an_instance_is_listed_from_its_first_beat_until_it_leaves(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    assert_eq!(store.list_instances().await.unwrap(), []);
    let (one, other) =
        (beat("a-1"), Beat { queues: None, pool: Some("gpu".into()), ..beat("b-2") });
    store.beat(&one).await.unwrap();
    world.harness.advance(Duration::from_secs(2)).await;
    store.beat(&other).await.unwrap();
    let first = store.list_instances().await.unwrap();
    assert_eq!(first.iter().map(|row| &row.beat).collect::<Vec<_>>(), [&one, &other]);
    assert_eq!(first[0].started_at, first[0].seen_at);
    world.harness.advance(Duration::from_secs(2)).await;
    let busy = Beat { running: 4, state: InstanceState::Stopping, ..one.clone() };
    store.beat(&busy).await.unwrap();
    let second = store.list_instances().await.unwrap();
    assert_eq!(second[0].beat, busy);
    assert_eq!(second[0].started_at, first[0].started_at);
    assert!(second[0].seen_at.since(first[0].seen_at) >= Duration::from_secs(4));
    assert_eq!(second[1], first[1]);
    store.leave(&one.instance).await.unwrap();
    store.leave(&InstanceId("nobody".into())).await.unwrap();
    assert_eq!(store.list_instances().await.unwrap(), [second[1].clone()]);
}

pub async fn a_silent_instance_is_listed_for_a_day(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    store.beat(&beat("a-1")).await.unwrap();
    world.harness.advance(Duration::from_mins(24 * 60 - 1)).await;
    store.beat(&beat("b-2")).await.unwrap();
    assert_eq!(store.list_instances().await.unwrap().len(), 2);
    world.harness.advance(Duration::from_mins(2)).await;
    store.beat(&beat("b-2")).await.unwrap();
    let left = store.list_instances().await.unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].beat, beat("b-2"));
}

/// All of a run as the store has it, its leases given up.
async fn copy_of<H: Harness>(world: &World<'_, H>, run_id: RunId) -> RunCopy {
    crate::copy::read_run(&*world.store(), run_id).await.unwrap().expect("the run is there")
}

/// A copy of a run under another id, as if it came from another store.
fn renamed(mut copy: RunCopy) -> RunCopy {
    let run_id = RunId(uuid::Uuid::now_v7());
    copy.row.run = Arc::new(Run { run_id, ..(*copy.row.run).clone() });
    copy.jobs.iter_mut().for_each(|job| job.job.job_id.run_id = run_id);
    copy.events.iter_mut().for_each(|event| event.run_id = run_id);
    copy.log_lines.iter_mut().for_each(|line| line.line.run_id = run_id);
    copy
}

pub async fn an_imported_run_is_as_it_was(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let original = world.started(&flow, r#"{"x": 1}"#).await;
    world.store().append_logs(vec![line(original, "one"), line(original, "two")]).await.unwrap();
    world.finish(&flow, original).await;
    let copy = renamed(copy_of(&world, original).await);
    let run_id = copy.row.run.run_id;
    world.harness.advance(Duration::from_mins(1)).await;
    let whole = StoreCopy { revisions: Vec::new(), runs: vec![copy.clone()] };
    let imported = world.store().import(whole).await.unwrap();
    assert_eq!(imported, Imported { revisions: 0, runs: 1 });
    let found = copy_of(&world, run_id).await;
    assert_eq!(found.row, copy.row);
    assert_eq!(found.log_lines, copy.log_lines);
    let shown = |event: &StoredEvent| (event.seq, event.at, event.event.clone());
    assert_eq!(
        found.events.iter().map(shown).collect::<Vec<_>>(),
        copy.events.iter().map(shown).collect::<Vec<_>>()
    );
    assert_eq!(world.feed(copy.events.len() * 2).await.len(), copy.events.len() * 2);
    let query = RunQuery { limit: 10, ..RunQuery::default() };
    assert_eq!(world.list(&query).await.len(), 2);
    world.harness.advance(DAY).await;
    assert_eq!(world.store().sweep(&RETENTION).await.unwrap().logs, 2, "retention knows it");
}

pub async fn an_imported_job_is_claimed_when_it_is_due_with_what_it_lost(
    harness: &mut impl Harness,
) {
    let world = World::new(harness);
    let flow = chain();
    let held = world.started_and_claimed(&flow).await;
    let nap = super::world::later();
    let sleeping = world.started(&nap, "1").await;
    let one = renamed(copy_of(&world, held.job.job_id.run_id).await);
    let other = renamed(copy_of(&world, sleeping).await);
    let run_ids = (one.row.run.run_id, other.row.run.run_id);
    let runs = vec![one, other];
    world.store().import(StoreCopy { revisions: Vec::new(), runs }).await.unwrap();
    let claimed = world.claim_one().await;
    assert_eq!(claimed.job.job_id.run_id, run_ids.0);
    assert_eq!(claimed.lost, [held.stamp(&world.instance)]);
    assert_eq!(claimed.job.attempt, 2);
    assert_eq!(claimed.inputs, held.inputs);
    world.apply(world.succeed(&flow, &claimed)).await;
    let second = world.claim_one().await;
    world.apply(world.release(&flow, &second)).await;
    world.harness.advance(Duration::from_hours(1)).await;
    let due: Vec<_> = world.claim(10).await.iter().map(|c| c.job.job_id.run_id).collect();
    assert!(due.contains(&run_ids.1), "a delay goes on where it was");
}

pub async fn an_import_leaves_what_is_there_alone(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let run_id = world.started(&flow, "1").await;
    let before = copy_of(&world, run_id).await;
    let claimed = world.claim_one().await;
    world.apply(world.succeed(&flow, &claimed)).await;
    let after = world.run(run_id).await;
    let known = revision("one", "a");
    world.store().register_flow(known.clone()).await.unwrap();
    let there = world.store().list_revisions(None).await.unwrap();
    let (fresh, at) = (revision("another", "b"), there[0].registered_at.minus(DAY));
    let revisions = vec![
        StoredRevision { registered_at: at, active: false, ..there[0].clone() },
        StoredRevision { revision: fresh.clone(), registered_at: at, active: true },
    ];
    let copy = StoreCopy { revisions, runs: vec![before] };
    for expected in [1, 0] {
        let imported = world.store().import(copy.clone()).await.unwrap();
        assert_eq!(imported, Imported { revisions: expected, runs: 0 });
    }
    assert_eq!(world.run(run_id).await, after);
    let listed = world.store().list_revisions(None).await.unwrap();
    assert_eq!(listed[0], StoredRevision { revision: fresh, registered_at: at, active: true });
    assert_eq!(listed[1..], there);
}

pub async fn tokens_grow_over_an_import(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let held = world.started_and_claimed(&flow).await;
    let mut copy = renamed(copy_of(&world, held.job.job_id.run_id).await);
    copy.jobs[0].lost[0].token.0 += 1 << 40;
    let old = copy.jobs[0].lost[0].token;
    world.store().import(StoreCopy { revisions: Vec::new(), runs: vec![copy] }).await.unwrap();
    let claimed = world.claim_one().await;
    assert!(claimed.token > old);
    let handed_off = world.apply_and_take(world.succeed(&flow, &claimed), 1).await;
    assert!(handed_off[0].token > claimed.token);
}
