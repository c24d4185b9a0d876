//! Log lines, revisions, and what retention removes.

use std::time::Duration;

use flowgate_core::ids::{Position, RunId};
use flowgate_core::limits::LOG_LINES_MAX;

use super::Harness;
use super::world::{World, chain, single};
use crate::{LogLevel, NewLogLine, NewRevision, Retention, RunQuery, Swept};

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
    world.harness.advance(DAY);
    let swept = world.store().sweep(&RETENTION).await.unwrap();
    assert_eq!(swept, Swept { logs: 1, runs: 0, more: false });
    assert_eq!(world.events(run_id).await, []);
    assert_eq!(world.store().read_logs(run_id, 0, 10).await.unwrap(), []);
    assert_eq!(world.store().read_feed(Position(0), 10).await.unwrap(), []);
    let row = world.run(run_id).await.row;
    assert!(row.events_removed, "the record says so");
    assert_eq!(world.list(&RunQuery { limit: 10, ..RunQuery::default() }).await, [row]);
    world.store().append_logs(vec![line(run_id, "late")]).await.unwrap();
    assert_eq!(world.store().read_logs(run_id, 0, 10).await.unwrap(), []);
    world.harness.advance(DAY * 2);
    let swept = world.store().sweep(&RETENTION).await.unwrap();
    assert_eq!(swept, Swept { logs: 0, runs: 1, more: false });
    assert_eq!(world.store().read_run(run_id).await.unwrap(), None);
    assert_eq!(world.list(&RunQuery { limit: 10, ..RunQuery::default() }).await, []);
}

pub async fn a_sweep_never_touches_open_runs(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let run_id = world.started(&flow, "1").await;
    world.harness.advance(DAY * 365);
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
    world.harness.advance(DAY * 3);
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
    world.harness.advance(DAY);
    let short = Retention { events: DAY * 7, runs: DAY, batch: 100 };
    let swept = world.store().sweep(&short).await.unwrap();
    assert_eq!((swept.logs, swept.runs), (1, 1));
    assert_eq!(world.store().read_feed(Position(0), 10).await.unwrap(), []);
}

pub async fn positions_go_on_after_a_sweep(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let flow = single("one");
    let run_id = world.started(&flow, "1").await;
    world.finish(&flow, run_id).await;
    let last = world.store().read_feed(Position(0), 100).await.unwrap().last().unwrap().position;
    world.harness.advance(DAY * 3);
    let swept = world.store().sweep(&RETENTION).await.unwrap();
    assert_eq!((swept.logs, swept.runs), (1, 1));
    world.reopen_if_it_can().await;
    world.started(&flow, "1").await;
    let feed = world.store().read_feed(last, 100).await.unwrap();
    assert_eq!(feed.len(), 2, "a reader that was at the end sees what comes");
    assert_eq!(feed[0].position, Position(last.0 + 1));
}

fn revision(name: &str, description: &str) -> NewRevision {
    let mut flow = single(name);
    flow.file.description = Some(description.to_owned());
    let flow = flowgate_core::flow::Flow::new(flow.file).unwrap();
    let folder = Some("/srv/flows".to_owned());
    NewRevision { revision: flow.revision, file: flow.file, folder }
}

pub async fn revisions_are_listed_latest_first_and_the_last_is_active(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let (a, b, other) = (revision("one", "a"), revision("one", "b"), revision("another", "c"));
    for revision in [&a, &b, &other] {
        world.store().register_flow(revision.clone()).await.unwrap();
        world.harness.advance(Duration::from_secs(1));
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

pub async fn a_known_revision_keeps_its_time_and_becomes_active(harness: &mut impl Harness) {
    let world = World::new(harness);
    let (a, b) = (revision("one", "a"), revision("one", "b"));
    world.store().register_flow(a.clone()).await.unwrap();
    let registered_at = world.store().list_revisions(None).await.unwrap()[0].registered_at;
    world.harness.advance(Duration::from_secs(1));
    world.store().register_flow(b.clone()).await.unwrap();
    world.harness.advance(Duration::from_secs(1));
    world.store().register_flow(a.clone()).await.unwrap();
    let listed = world.store().list_revisions(None).await.unwrap();
    let shown: Vec<_> = listed.iter().map(|s| (&s.revision, s.active)).collect();
    assert_eq!(shown, [(&b, false), (&a, true)]);
    assert_eq!(listed[1].registered_at, registered_at);
}
