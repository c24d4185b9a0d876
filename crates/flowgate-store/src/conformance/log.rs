//! S5: events by number and by position, and the payloads that they hold.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::commit::Commit;
use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::ids::{Position, RunId};
use flowgate_core::run::Run;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Harness;
use super::world::{World, chain, join, rescued, single};
use crate::{CommitOutcome, RunQuery};

/// Events in one page of these cases.
const PAGE: usize = 7;

pub async fn event_numbers_are_gapless(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let run_id = world.started(&flow, "1").await;
    world.finish(&flow, run_id).await;
    let events = world.events(run_id).await;
    let seqs: Vec<u64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=world.run(run_id).await.row.run.version).collect::<Vec<_>>());
    assert!(events.iter().all(|event| event.run_id == run_id));
    assert!(events.last().unwrap().event.is_terminal());
}

pub async fn events_are_read_in_pages_that_begin_anywhere(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let run_id = world.started(&flow, "1").await;
    world.finish(&flow, run_id).await;
    let all = world.events(run_id).await;
    for after in 0..=all.len() {
        for limit in [0, 1, 2, 5, 100] {
            let page = world.store().read_events(run_id, after as u64, limit).await.unwrap();
            let expected: Vec<_> = all.iter().skip(after).take(limit).cloned().collect();
            assert_eq!(page, expected, "{limit} after {after}");
        }
    }
}

pub async fn folding_the_log_gives_the_record(harness: &mut impl Harness) {
    let world = World::new(harness);
    for flow in [chain(), join(3)] {
        let run_id = world.started(&flow, "1").await;
        world.finish(&flow, run_id).await;
        let events = world.events(run_id).await;
        let folded = Run::fold(run_id, &[&flow], events.iter().map(|e| &e.event)).unwrap();
        assert_eq!(folded, *world.run(run_id).await.row.run);
    }
}

pub async fn each_feed_is_in_commit_order(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let mut started = Vec::new();
    for _ in 0..3 {
        let claimed = world.started_and_claimed(&flow).await;
        world.apply(world.begin(&flow, &claimed)).await;
        started.push(claimed.job.job_id.run_id);
    }
    for feed in world.feeds(9).await {
        assert!(feed.is_sorted_by(|one, next| one.position < next.position));
        let mut run_ids: Vec<_> = feed.iter().map(|event| event.run_id).collect();
        run_ids.dedup();
        let expected: Vec<_> =
            started.iter().copied().filter(|run_id| run_ids.contains(run_id)).collect();
        assert_eq!(run_ids, expected);
        for event in &feed {
            let alone = world.store().read_events(event.run_id, event.seq - 1, 1).await.unwrap();
            assert_eq!(alone, std::slice::from_ref(event), "both ways of reading agree");
        }
    }
}

pub async fn refused_commits_leave_nothing_in_a_feed(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = single("one");
    let store = world.store();
    let mut run_ids = BTreeSet::new();
    for round in 0..5 {
        let (one, other) = (world.start(&flow, "1"), world.start(&flow, "2"));
        let twice = |start: &Commit| world.start_as(&flow, start.run_id, "3");
        run_ids.extend([one.run_id, other.run_id]);
        // Refused are the second, the fourth and the last.
        let batch = vec![one.clone(), twice(&one), other.clone(), twice(&one), twice(&other)];
        let outcomes = store.commit(batch, None).await.unwrap();
        let is_refused = |outcome: &CommitOutcome| matches!(outcome, CommitOutcome::Refused(_));
        let refused: Vec<_> = outcomes.iter().map(is_refused).collect();
        assert_eq!(refused, [false, true, false, true, true]);
        for (index, feed) in (0..).zip(world.feeds(4 * (round + 1)).await) {
            assert!(feed.is_sorted_by(|one, next| one.position < next.position));
            let last = feed.last().map_or(Position::START, |event| event.position);
            assert_eq!(store.feed_end(index).await.unwrap(), last);
            for event in &feed {
                let alone = store.read_events(event.run_id, event.seq - 1, 1).await.unwrap();
                assert_eq!(alone, std::slice::from_ref(event), "both ways of reading agree");
            }
        }
    }
    let found = world.feed(20).await.iter().map(|event| event.run_id).collect::<BTreeSet<_>>();
    assert_eq!(found, run_ids);
}

pub async fn a_run_is_in_one_feed(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = single("one");
    let mut count = 0;
    for _ in 0..20 {
        let run_id = world.started(&flow, "1").await;
        world.finish(&flow, run_id).await;
        count += world.events(run_id).await.len();
    }
    let feeds = world.feeds(count).await;
    let of = |feed: &Vec<StoredEvent>| feed.iter().map(|e| e.run_id).collect::<BTreeSet<_>>();
    let runs: Vec<BTreeSet<RunId>> = feeds.iter().map(of).collect();
    assert_eq!(runs.iter().map(BTreeSet::len).sum::<usize>(), 20);
    for feed in feeds {
        for run_id in of(&feed) {
            let seqs = feed.iter().filter(|e| e.run_id == run_id).map(|e| e.seq);
            assert!(seqs.eq(1..=world.run(run_id).await.row.run.version));
        }
    }
}

pub async fn the_feed_is_read_in_pages_that_begin_anywhere(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = chain();
    let mut count = 0;
    for _ in 0..3 {
        let run_id = world.started(&flow, "1").await;
        world.finish(&flow, run_id).await;
        count += world.events(run_id).await.len();
    }
    for (index, all) in (0..).zip(world.feeds(count).await) {
        let positions = all.iter().map(|event| event.position);
        for (skipped, after) in std::iter::once(Position::START).chain(positions).enumerate() {
            let page = world.store().read_feed(index, after, PAGE).await.unwrap();
            let expected: Vec<_> = all.iter().skip(skipped).take(PAGE).cloned().collect();
            assert_eq!(page, expected, "after {after}");
        }
    }
}

pub async fn the_end_of_a_feed_is_where_it_grows(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    for index in 0..store.feeds() {
        assert_eq!(store.feed_end(index).await.unwrap(), Position::START);
    }
    let flow = single("one");
    for round in 0..10 {
        let before = world.feeds(2 * round).await;
        for (index, feed) in (0..).zip(&before) {
            let last = feed.last().map_or(Position::START, |event| event.position);
            assert_eq!(store.feed_end(index).await.unwrap(), last);
        }
        world.started(&flow, "1").await;
        for (index, (before, after)) in
            (0..).zip(before.iter().zip(world.feeds(2 * round + 2).await))
        {
            let end = before.last().map_or(Position::START, |event| event.position);
            let grown = store.read_feed(index, end, 10).await.unwrap();
            assert_eq!(grown, after[before.len()..]);
        }
    }
}

pub async fn a_commit_wakes_a_reader_of_the_feed(harness: &mut impl Harness) {
    let world = World::new(harness);
    let run_id = world.started(&single("one"), "1").await;
    let feeds = world.feeds(2).await;
    let (index, feed) = (0..).zip(&feeds).find(|(_, feed)| !feed.is_empty()).unwrap();
    let (store, after) = (world.store(), feed[1].position);
    let mut waits = JoinSet::new();
    waits.spawn(async move {
        while store.read_feed(index, after, 10).await.unwrap().is_empty() {
            store.wait_feed(index, after, Duration::from_hours(1)).await.unwrap();
        }
    });
    let claimed = world.claim_one().await;
    assert_eq!(claimed.job.job_id.run_id, run_id);
    world.apply(world.begin(&single("one"), &claimed)).await;
    let ended = timeout(Duration::from_secs(20), waits.join_next()).await.expect("it is woken");
    ended.expect("there is one reader").expect("it ends well");
}

pub async fn a_wait_for_a_feed_that_has_grown_ends_at_once(harness: &mut impl Harness) {
    let world = World::new(harness);
    world.started(&single("one"), "1").await;
    let feeds = world.feeds(2).await;
    let (index, feed) = (0..).zip(&feeds).find(|(_, feed)| !feed.is_empty()).unwrap();
    let store = world.store();
    for after in [Position::START, feed[0].position] {
        let wait = store.wait_feed(index, after, Duration::from_hours(1));
        timeout(Duration::from_secs(20), wait).await.expect("there is something").unwrap();
    }
}

pub async fn a_wait_for_the_feed_ends_after_its_longest_time(harness: &mut impl Harness) {
    let world = World::new(harness);
    let store = world.store();
    let wait = store.wait_feed(0, Position::START, Duration::from_millis(30));
    timeout(Duration::from_secs(20), wait).await.expect("it ends by itself").unwrap();
}

pub async fn the_feed_never_grows_behind_a_reader(harness: &mut impl Harness) {
    const COUNT: usize = 16 * 20 * 2;
    let world = World::new(harness);
    let flow = Arc::new(single("one"));
    let mut readers = JoinSet::new();
    for _ in 0..2 {
        let store = world.store();
        readers.spawn(async move {
            let mut feeds = vec![Vec::new(); usize::from(store.feeds())];
            while feeds.iter().map(Vec::len).sum::<usize>() < COUNT {
                for (index, seen) in (0..).zip(&mut feeds) {
                    let after = seen.last().map_or(Position::START, |(position, _, _)| *position);
                    let page = store.read_feed(index, after, PAGE).await.unwrap();
                    seen.extend(page.into_iter().map(|e| (e.position, e.run_id, e.seq)));
                }
                tokio::task::yield_now().await;
            }
            feeds
        });
    }
    let mut writers = JoinSet::new();
    for _ in 0..16 {
        let starts: Vec<_> = (0..20).map(|_| world.start(&flow, "1")).collect();
        let store = world.store();
        writers.spawn(async move {
            for start in starts {
                let outcomes = store.commit(vec![start], None).await.unwrap();
                for outcome in outcomes {
                    super::world::applied(outcome);
                }
            }
        });
    }
    writers.join_all().await;
    let all = world.feeds(COUNT).await;
    let shown = |event: StoredEvent| (event.position, event.run_id, event.seq);
    let all: Vec<Vec<_>> =
        all.into_iter().map(|feed| feed.into_iter().map(shown).collect()).collect();
    let seen = timeout(Duration::from_mins(1), readers.join_all()).await;
    for seen in seen.expect("a reader that follows misses nothing") {
        assert_eq!(seen, all, "a reader that follows sees what is there in the end");
    }
}

pub async fn the_log_and_its_positions_survive_a_reopen(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let flow = chain();
    let run_id = world.started(&flow, "1").await;
    let before = world.feed(2).await;
    if world.reopen().await {
        world.finish(&flow, run_id).await;
        let after = world.feed(world.events(run_id).await.len()).await;
        assert_eq!(after[..before.len()], before);
        assert!(after.is_sorted_by(|one, next| one.position < next.position));
    }
}

pub async fn payloads_are_kept_byte_for_byte(harness: &mut impl Harness) {
    let world = World::new(harness);
    for text in ["[1, 2]", "18446744073709551616", r#"{"b":1,"a":1.0}"#, "\"ü\\u0001\"", "null"] {
        let run_id = world.started(&single("one"), text).await;
        assert_eq!(world.claim_one().await.inputs[0].get(), text);
        let event = &world.events(run_id).await[0].event;
        assert_eq!(event.payload().get(), text);
    }
}

pub async fn a_payload_of_one_mebibyte_reaches_its_job(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let flow = chain();
    let large = format!("\"{}\"", "x".repeat((1 << 20) - 2));
    let first = world.apply_and_take(world.start(&flow, &large), 1).await;
    assert_eq!(first[0].inputs[0].get(), large);
    world.apply(world.succeed_with(&flow, &first[0], &large)).await;
    let second = world.claim_one().await;
    assert_eq!(second.inputs[0].get(), large);
    world.apply(world.release(&flow, &second)).await;
    if world.reopen().await {
        assert_eq!(world.claim_one().await.inputs[0].get(), large);
    }
}

pub async fn payloads_beyond_the_memory_budget_reach_their_jobs(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = join(8);
    let mut kept = Vec::new();
    // More than 64 MiB in open runs, and more than a run may keep in memory by itself.
    for number in 0..10 {
        let claimed = world.apply_and_take(world.start(&flow, "1"), 1).await.remove(0);
        let data = format!("\"{}\"", number.to_string().repeat((1 << 20) - 2));
        let commit = world.succeed_with(&flow, &claimed, &data);
        if number % 2 == 0 {
            kept.extend(world.apply_and_take(commit, 1).await);
        } else {
            world.apply(commit).await;
            kept.push(world.claim_one().await);
        }
        assert_eq!(kept[number].inputs.len(), 8);
        assert!(kept[number].inputs.iter().all(|input| input.get() == data));
    }
    for claimed in kept {
        world.apply(world.succeed(&flow, &claimed)).await;
    }
}

pub async fn inputs_survive_a_reopen(harness: &mut impl Harness) {
    let mut world = World::new(harness);
    let flow = join(3);
    let first = world.started_and_claimed(&flow).await;
    world.apply(world.succeed_with(&flow, &first, "[7]")).await;
    if world.reopen().await {
        let joined = world.claim_one().await;
        assert_eq!(joined.inputs.len(), 3);
        assert!(joined.inputs.iter().all(|input| input.get() == "[7]"));
    }
}

pub async fn the_payload_of_a_failed_step_is_its_error(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = rescued();
    let claimed = world.started_and_claimed(&flow).await;
    world.apply(world.fail(&flow, &claimed)).await;
    let rescue = world.claim_one().await;
    assert_eq!(rescue.inputs[0].value()["message"], "no");
}

pub async fn a_write_is_seen_by_the_next_read(harness: &mut impl Harness) {
    let world = World::new(harness);
    let flow = single("one");
    for count in 1..=50 {
        let run_id = world.started(&flow, "1").await;
        assert_eq!(world.run(run_id).await.row.run.version, 2);
        assert_eq!(world.events(run_id).await.len(), 2);
        let claimed = world.claim_one().await;
        world.apply(world.succeed(&flow, &claimed)).await;
        assert!(world.run(run_id).await.row.ended_at.is_some());
        let query = RunQuery { limit: 1_000, ..RunQuery::default() };
        assert_eq!(world.list(&query).await.len(), count);
    }
}

pub async fn events_carry_the_stores_time(harness: &mut impl Harness) {
    let world = World::new(harness);
    let before = world.store().now().await.unwrap();
    world.harness.advance(Duration::from_hours(1)).await;
    let run_id = world.started(&single("one"), "1").await;
    let after = world.store().now().await.unwrap();
    assert!(after.since(before) >= Duration::from_hours(1));
    let events = world.events(run_id).await;
    let in_time = |at| at > before && at <= after;
    assert!(events.iter().all(|event| in_time(event.at)));
    let row = world.run(run_id).await.row;
    assert_eq!((row.started_at, row.updated_at), (events[0].at, events[0].at));
    assert!(matches!(events[0].event, Event::RunStarted(_)));
}
