//! Violations that are planted, and found.

use super::*;
use crate::deploys::load::key_of;

/// Four messages in two lanes; the second of each was held by the one deployment.
fn clean() -> Left {
    let mut left = Left { messages: 4, ..Left::default() };
    let mut feed = Vec::new();
    for (number, lane, seq) in [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)] {
        let run_id = run(number);
        let key = key_of(lane, seq);
        let took = Duration::from_millis(5);
        left.runs.push((run_id, Some(key.as_str().into()), RunStatus::Completed));
        let runs = vec![run_id];
        left.sent.push(Sent { key, lane, seq, runs, asked: 1, took, late: Duration::ZERO });
        left.executions.insert(run_id, 1);
        let mark = if seq == 0 { Mark::Started } else { Mark::Held };
        feed.push(Entry { run_id, at: Timestamp(1_000 + i64::from(number)), mark });
    }
    for number in [2, 3] {
        let at = Timestamp(2_000 + i64::from(number));
        feed.push(Entry { run_id: run(number), at, mark: Mark::Released });
    }
    left.feeds.push(feed);
    left.deployments.push(Window {
        name: "plain".to_owned(),
        began_at: Timestamp(1_001),
        resumed_at: Timestamp(1_900),
        ended_at: Timestamp(3_000),
        received: 3,
        held: 2,
        released: 2,
        is_conserved: true,
    });
    left
}

fn run(number: u32) -> RunId {
    RunId(uuid::Uuid::from_u128(u128::from(number) + 1))
}

/// What is found after something was changed.
#[track_caller]
fn check(change: impl FnOnce(&mut Left), expected: &[&str]) {
    let mut left = clean();
    change(&mut left);
    let found = judge(&left).violations;
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.contains(expected), "{found:#?}");
    }
}

#[test]
fn nothing_is_wrong_where_all_is_well() {
    check(|_| {}, &[]);
    let verdict = judge(&clean());
    assert_eq!((verdict.acknowledged, verdict.effects, verdict.executions), (4, 4, 4));
    assert_eq!((verdict.held, verdict.acceptance_p99_ms), (2, 5));
    assert_eq!(verdict.hold_ms, [103]);
}

#[test]
fn a_message_that_is_lost_is_found() {
    check(|left| left.runs.truncate(3), &["is not there"]);
    check(|left| left.runs[1].2 = RunStatus::Failed, &["is failed"]);
    check(|left| left.sent[3].runs.clear(), &["in vain", "3 of 4", "received", "held", "let go"]);
    check(|left| left.executions.retain(|run_id, _| *run_id != run(0)), &["3 effects of 4"]);
    check(|left| left.feeds[0].truncate(5), &["never let go", "let go"]);
}

#[test]
fn a_message_that_is_doubled_is_found() {
    let key = Some(key_of(0, 0).as_str().into());
    check(|left| left.runs.push((run(9), key, RunStatus::Completed)), &["also run"]);
    check(|left| left.runs.push((run(9), None, RunStatus::Completed)), &["nobody asked"]);
    check(|left| left.sent[0].runs.push(run(9)), &["also told of run"]);
    check(|left| left.executions.extend([(run(9), 1)]), &["5 effects of 4", "5 executions"]);
    check(|left| left.executions.extend([(run(0), 2)]), &["5 executions of 4"]);
}

#[test]
fn an_order_that_is_broken_is_found() {
    // What was held is due after what came later.
    let overtake = |left: &mut Left| {
        let sent = Sent { key: key_of(0, 2), seq: 2, runs: vec![run(9)], ..left.sent[0].clone() };
        left.runs.push((run(9), Some(sent.key.as_str().into()), RunStatus::Completed));
        left.executions.insert(run(9), 1);
        left.sent.push(sent);
        left.messages += 1;
        let at = Timestamp(1_500);
        left.feeds[0].insert(4, Entry { run_id: run(9), at, mark: Mark::Started });
        left.deployments[0].received += 1;
    };
    check(overtake, &["message-0-1 became due after message-0-2"]);
    // Another lane may be first.
    check(|left| left.feeds[0].swap(4, 5), &[]);
    check(|left| left.sent[2].seq = 0, &["became due after"]);
}

#[test]
fn what_takes_too_long_is_found() {
    check(|left| left.sent[2].took = Duration::from_secs(3), &["took over 3s"]);
    let late = |left: &mut Left| {
        left.feeds[0][5].at = Timestamp(40_000);
        left.deployments[0].ended_at = Timestamp(50_000);
    };
    check(late, &["empty only after"]);
}

#[test]
fn a_gate_that_opens_only_when_no_more_messages_come_is_found() {
    let starve = |left: &mut Left| {
        let (lane, seq, run_id) = (0, 2, run(9));
        let key = key_of(lane, seq);
        left.runs.push((run_id, Some(key.as_str().into()), RunStatus::Completed));
        left.sent.push(Sent { key, lane, seq, runs: vec![run_id], ..left.sent[0].clone() });
        left.executions.insert(run_id, 1);
        left.messages += 1;
        left.feeds[0].push(Entry { run_id, at: Timestamp(9_000), mark: Mark::Held });
        left.feeds[0].push(Entry { run_id, at: Timestamp(9_001), mark: Mark::Released });
        let window = &mut left.deployments[0];
        window.ended_at = Timestamp(9_500);
        (window.received, window.held, window.released) = (4, 3, 3);
    };
    check(starve, &["every message was held for 7.1s after the resume"]);
}

#[test]
fn a_report_that_is_wrong_is_found() {
    check(|left| left.deployments[0].is_conserved = false, &["something was lost"]);
    check(|left| left.deployments[0].received = 4, &["4 were received, the ledger 3"]);
    check(|left| left.deployments[0].held = 1, &["1 were held, the ledger 2"]);
    check(|left| left.deployments[0].released = 1, &["1 were let go, the ledger 2"]);
}
