//! Listing runs: filters, order, and pages that stay true while runs are added.

use std::collections::HashSet;
use std::time::Duration;

use flowgate_core::ids::RunId;
use flowgate_core::limits::{COMMIT_BATCH_MAX, PAGE_MAX};
use flowgate_core::run::RunStatus;

use super::Harness;
use super::world::{World, applied, chain, nap, single};
use crate::{RunCursor, RunQuery, RunRow};

fn query() -> RunQuery {
    RunQuery { limit: 100, ..RunQuery::default() }
}

fn ids(rows: &[RunRow]) -> Vec<RunId> {
    rows.iter().map(|row| row.run.run_id).collect()
}

fn cursor(row: &RunRow) -> RunCursor {
    RunCursor { started_at: row.started_at, run_id: row.run.run_id }
}

pub async fn runs_are_listed_latest_first(harness: &mut impl Harness) {
    let world = World::new(harness);
    let mut started = Vec::new();
    for _ in 0..5 {
        started.push(world.started(&chain(), "1").await);
        world.harness.advance(Duration::from_millis(5)).await;
    }
    started.reverse();
    assert_eq!(ids(&world.list(&query()).await), started);
    let limited = RunQuery { limit: 2, ..query() };
    assert_eq!(ids(&world.list(&limited).await), started[..2]);
    let none = RunQuery { limit: 0, ..query() };
    assert_eq!(world.list(&none).await, []);
}

pub async fn a_listing_shows_where_each_run_stands(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = single("one");
    let run_id = world.started(&flow, "1").await;
    world.harness.advance(Duration::from_secs(1)).await;
    let row = world.list(&query()).await.remove(0);
    assert_eq!(row, world.run(run_id).await.row);
    assert_eq!((row.ended_at, row.events_removed), (None, false));
    world.finish(&flow, run_id).await;
    let row = world.list(&query()).await.remove(0);
    assert_eq!(row, world.run(run_id).await.row);
    assert_eq!(row.ended_at, Some(row.updated_at));
    assert!(row.updated_at.since(row.started_at) >= Duration::from_secs(1));
    assert_eq!(row.run.status, RunStatus::Completed);
}

pub async fn runs_are_listed_by_flow_and_status(harness: &mut impl Harness) {
    let world = World::new(harness);
    let (one, other, napping) = (single("one"), single("other"), nap());
    let completed = world.started(&one, "1").await;
    world.finish(&one, completed).await;
    let cancelled = world.started(&one, "1").await;
    let run = world.run(cancelled).await.row.run;
    world.apply(world.cancel(&one, &run)).await;
    let waiting = world.started_and_claimed(&napping).await;
    world.apply(world.succeed(&napping, &waiting)).await;
    let waiting = waiting.job.job_id.run_id;
    let running = world.started(&other, "1").await;
    let check = async |flow: Option<&str>, statuses: &[RunStatus], expected: &[RunId]| {
        let query = RunQuery { flow: flow.map(Into::into), statuses: statuses.to_vec(), ..query() };
        let listed: HashSet<_> = ids(&world.list(&query).await).into_iter().collect();
        assert_eq!(listed, expected.iter().copied().collect(), "{flow:?} {statuses:?}");
    };
    let open = RunStatus::OPEN;
    check(None, &[], &[completed, cancelled, waiting, running]).await;
    check(Some("one"), &[], &[completed, cancelled]).await;
    check(Some("nobody"), &[], &[]).await;
    check(None, &[RunStatus::Waiting], &[waiting]).await;
    check(None, &open, &[waiting, running]).await;
    check(None, &RunStatus::ALL, &[completed, cancelled, waiting, running]).await;
    check(Some("one"), &[RunStatus::Cancelled], &[cancelled]).await;
    check(Some("one"), &open, &[]).await;
    check(Some("other"), &[RunStatus::Failed, RunStatus::Running], &[running]).await;
}

pub async fn runs_are_listed_by_the_time_of_their_start(harness: &mut impl Harness) {
    let world = World::new(harness);
    let mut rows = Vec::new();
    for _ in 0..4 {
        let run_id = world.started(&chain(), "1").await;
        rows.push(world.run(run_id).await.row);
        world.harness.advance(Duration::from_secs(1)).await;
    }
    let check = async |since: Option<usize>, until: Option<usize>, expected: &[usize]| {
        let at = |index: Option<usize>| index.map(|at| rows[at].started_at);
        let query = RunQuery { since: at(since), until: at(until), ..query() };
        let expected: Vec<_> = expected.iter().map(|at| rows[*at].run.run_id).collect();
        assert_eq!(ids(&world.list(&query).await), expected, "{since:?} {until:?}");
    };
    check(Some(2), None, &[3, 2]).await;
    check(None, Some(2), &[1, 0]).await;
    check(Some(1), Some(3), &[2, 1]).await;
    check(Some(3), Some(1), &[]).await;
}

pub async fn runs_are_listed_by_their_tags(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = single("one");
    let mut started = Vec::new();
    for tags in [&[("team", "a"), ("tier", "gold")][..], &[("team", "b")], &[("team", "a")], &[]] {
        let commit = world.start_tagged(&flow, tags);
        started.push(commit.run_id);
        world.apply(commit).await;
        world.harness.advance(Duration::from_millis(5)).await;
    }
    let check = async |tags: &[(&str, &str)], expected: &[usize]| {
        let tags = tags.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let query = RunQuery { tags, ..query() };
        let expected: Vec<_> = expected.iter().map(|at| started[*at]).collect();
        assert_eq!(ids(&world.list(&query).await), expected);
        assert_eq!(world.store().count_runs(&query).await.unwrap(), expected.len() as u64);
    };
    check(&[("team", "a")], &[2, 0]).await;
    check(&[("team", "a"), ("tier", "gold")], &[0]).await;
    check(&[("team", "b"), ("tier", "gold")], &[]).await;
    check(&[("team", "A")], &[]).await;
    check(&[("tea", "m=a")], &[]).await;
    world.finish(&flow, started[0]).await;
    check(&[("tier", "gold")], &[0]).await;
}

pub async fn runs_are_counted_as_they_are_listed(harness: &mut impl Harness) {
    let world = World::new(harness);
    let (one, other) = (single("one"), single("other"));
    for at in 0..30 {
        let flow = if at % 3 == 0 { &other } else { &one };
        let run_id = world.started(flow, "1").await;
        if at % 2 == 0 {
            world.finish(flow, run_id).await;
        }
        world.harness.advance(Duration::from_millis(5)).await;
    }
    let middle = world.list(&query()).await[14].started_at;
    let (completed, running) = (vec![RunStatus::Completed], vec![RunStatus::Running]);
    let flow = Some("other".into());
    for query in [
        query(),
        RunQuery { statuses: completed.clone(), ..query() },
        RunQuery { statuses: vec![RunStatus::Failed, RunStatus::Running], ..query() },
        RunQuery { flow: flow.clone(), ..query() },
        RunQuery { flow: flow.clone(), statuses: running, ..query() },
        RunQuery { since: Some(middle), ..query() },
        RunQuery { until: Some(middle), statuses: completed, flow, ..query() },
        RunQuery { flow: Some("nobody".into()), ..query() },
    ] {
        let listed = world.list(&query).await.len() as u64;
        assert_eq!(world.store().count_runs(&query).await.unwrap(), listed, "{query:?}");
        let small = RunQuery { limit: 1, ..query.clone() };
        assert_eq!(world.store().count_runs(&small).await.unwrap(), listed, "pages do not count");
    }
}

pub async fn pages_of_runs_started_at_the_same_time_miss_none(harness: &mut impl Harness) {
    let world = World::new(harness);
    let batch: Vec<_> = (0..50).map(|_| world.start(&chain(), "1")).collect();
    let all: HashSet<_> = batch.iter().map(|commit| commit.run_id).collect();
    for outcome in world.store().commit(batch, None).await.unwrap() {
        applied(outcome);
    }
    for flow in [None, Some("chain".into())] {
        let mut seen = Vec::new();
        let mut page = RunQuery { limit: 7, flow, ..query() };
        loop {
            let rows = world.list(&page).await;
            let Some(last) = rows.last() else { break };
            page.after = Some(cursor(last));
            seen.extend(ids(&rows));
        }
        assert_eq!(seen.len(), 50);
        assert_eq!(seen.into_iter().collect::<HashSet<_>>(), all);
    }
}

pub async fn pages_cover_ten_thousand_runs_once_while_runs_are_added(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = single("one");
    let mut all = HashSet::new();
    while all.len() < 10_000 {
        let batch: Vec<_> = (0..COMMIT_BATCH_MAX.min(10_000 - all.len()))
            .map(|_| world.start(&flow, "1"))
            .collect();
        all.extend(batch.iter().map(|commit| commit.run_id));
        for outcome in world.store().commit(batch, None).await.unwrap() {
            applied(outcome);
        }
        world.harness.advance(Duration::from_millis(1)).await;
    }
    let mut seen = Vec::new();
    let mut page = RunQuery { limit: 900, ..query() };
    loop {
        let rows = world.list(&page).await;
        let Some(last) = rows.last() else { break };
        page.after = Some(cursor(last));
        seen.extend(ids(&rows));
        world.harness.advance(Duration::from_millis(1)).await;
        world.started(&flow, "2").await;
    }
    assert_eq!(seen.len(), 10_000, "a run that is added comes before the pages to come");
    assert_eq!(seen.into_iter().collect::<HashSet<_>>(), all);
}

pub async fn a_page_of_runs_is_bounded(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = single("one");
    for _ in 0..3 {
        let batch = (0..COMMIT_BATCH_MAX).map(|_| world.start(&flow, "1")).collect();
        for outcome in world.store().commit(batch, None).await.unwrap() {
            applied(outcome);
        }
    }
    let all = RunQuery { limit: usize::MAX, ..query() };
    assert_eq!(world.list(&all).await.len(), PAGE_MAX);
}
