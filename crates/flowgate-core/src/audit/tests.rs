use super::*;
use crate::event::{Hold, LeaseStamp, RunStarted, StepError};
use crate::flow::Flow;
use crate::ids::{LeaseToken, Position};

const RUN: RunId = RunId(uuid::Uuid::from_u128(7));
const FLOW: &str = "
flow: order
steps:
  take: { run: { worker: take }, emits: [taken] }
  ship: { subscribes: [taken], run: { worker: ship } }
";

fn flow() -> Flow {
    Flow::parse(FLOW).unwrap()
}

fn payload(text: &str) -> Payload {
    Payload::parse(text).unwrap()
}

fn started(input: &str, hold: Option<Hold>) -> Event {
    Event::RunStarted(RunStarted {
        flow: "order".into(),
        revision: flow().revision,
        input: payload(input),
        key: Some("k-1".into()),
        tags: BTreeMap::new(),
        retry_of: None,
        priority: None,
        hold,
        pool: None,
        instance: Some(InstanceId("door".into())),
    })
}

fn lease(attempt: u32, instance: &str) -> LeaseStamp {
    LeaseStamp { attempt, token: LeaseToken(attempt.into()), instance: InstanceId(instance.into()) }
}

fn queued(step: &str) -> Event {
    Event::StepQueued { step: step.into(), inputs: vec![1] }
}

fn succeeded(step: &str, instance: &str, result: Option<&str>) -> Event {
    let (lease, result) = (Some(lease(1, instance)), result.map(payload));
    Event::StepSucceeded { step: step.into(), lease, elapsed_us: 1_500, result }
}

fn emitted(data: &str) -> Event {
    Event::EventEmitted { step: "take".into(), event: "taken".into(), data: payload(data) }
}

/// The events as a store has them, ten milliseconds apart.
fn stored(events: Vec<Event>) -> Vec<StoredEvent> {
    let numbered = (1_u64..).zip(events);
    let store = |(seq, event)| StoredEvent {
        position: Position::START,
        run_id: RUN,
        seq,
        at: Timestamp(i64::try_from(seq).unwrap() * 10),
        event,
    };
    numbered.map(store).collect()
}

/// The record of a run with this log.
fn record(log: &[StoredEvent]) -> Run {
    let flow = flow();
    let Some(Event::RunStarted(first)) = log.first().map(|first| &first.event) else {
        panic!("a log begins with a start")
    };
    let mut run = Run::new(RUN, &flow, first);
    let last = &log.last().unwrap().event;
    assert!(last.is_terminal(), "{} is no end", last.kind());
    run.status = if let Event::RunFailed { step } = last {
        let error = StepError { kind: ErrorKind::TimedOut, message: "late".into() };
        run.failure = Some(crate::run::Failure { step: Arc::clone(step), error });
        RunStatus::Failed
    } else if let Event::RunCancelled { .. } = last {
        RunStatus::Cancelled
    } else {
        RunStatus::Completed
    };
    run
}

#[test]
fn an_inbound_entry_has_the_hash_of_the_raw_bytes_and_no_values() {
    // As `printf '{"b": [1, 2], "a": "secret"}' | sha256sum` says.
    let text = r#"{"b": [1, 2], "a": "secret"}"#;
    let hash = "d19b51fc0195049e376fa8da41e3122c5ff2d65a112173430d8f2f158d162645";
    let log = stored(vec![started(text, None), queued("take")]);
    let entry = inbound(&log).unwrap();
    let content = entry.content.as_ref().unwrap();
    assert_eq!((&*content.sha256, content.bytes), (hash, 28));
    let summary = &content.summary;
    assert_eq!(
        (&*summary.kind, summary.length, &summary.keys[..]),
        ("object", Some(2), &["a".to_owned(), "b".to_owned()][..])
    );
    assert_eq!(summary.lengths, BTreeMap::from([("b".to_owned(), 2)]));
    assert_eq!((entry.status, entry.took_ms), (EntryStatus::Accepted, None));
    assert_eq!((entry.step.as_deref(), entry.key.as_deref()), (Some("take"), Some("k-1")));
    assert_eq!(entry.instance, Some(InstanceId("door".into())));
    assert!(!serde_json::to_string(&entry).unwrap().contains("secret"));
    // Other bytes are another payload, though they mean the same.
    let other = Content::of(&payload(r#"{"b":[1,2],"a":"secret"}"#));
    assert_ne!(other.sha256, content.sha256);
    assert_eq!(other.summary, content.summary);
}

#[test]
fn a_held_start_says_how_long_it_was_held() {
    let released = Event::RunReleased { revision: flow().revision, pool: None };
    let log = stored(vec![started("1", Some(Hold::default())), released, queued("take")]);
    let entry = inbound(&log).unwrap();
    assert_eq!((entry.status, entry.took_ms), (EntryStatus::Held, Some(10)));
    assert_eq!(entry.step.as_deref(), Some("take"));
    assert_eq!(inbound(&log[..1]).unwrap().took_ms, None);
    assert_eq!(inbound(&log[1..]), None);
}

#[test]
fn what_a_run_puts_out_is_its_last_result_or_what_it_emitted_last() {
    let rows = [
        (vec![emitted("1"), succeeded("take", "a", Some("2"))], Some("2"), "take"),
        (vec![emitted("1"), succeeded("take", "a", None)], Some("1"), "take"),
        (vec![emitted("1"), succeeded("take", "a", Some("null"))], Some("1"), "take"),
        (
            vec![succeeded("take", "b", Some("2")), succeeded("ship", "a", Some("[3]"))],
            Some("[3]"),
            "ship",
        ),
        (vec![succeeded("take", "a", None)], None, "take"),
    ];
    for (events, expected, step) in rows {
        let whole = [vec![started("0", None)], events, vec![Event::RunCompleted {}]].concat();
        let log = stored(whole);
        let run = record(&log);
        let entry = outbound(&run, log[0].at, &log).unwrap();
        let expected = expected.map(|text| Content::of(&payload(text)));
        assert_eq!((&entry.content, entry.step.as_deref()), (&expected, Some(step)), "{log:?}");
        assert_eq!(entry.instance, Some(InstanceId("a".into())));
        assert_eq!(entry.took_ms, Some(u64::try_from(log.len() - 1).unwrap() * 10));
        // Whatever part of the log is at hand, it says the same or nothing.
        for from in 0..log.len() {
            if let Some(part) = outbound(&run, log[0].at, &log[from..]) {
                assert_eq!(part, entry, "from {from} of {log:?}");
            }
        }
    }
}

#[test]
fn a_run_that_failed_or_was_cancelled_puts_nothing_out() {
    let error = StepError { kind: ErrorKind::TimedOut, message: "late".into() };
    let failed =
        Event::StepFailed { step: "ship".into(), lease: Some(lease(2, "b")), error, elapsed_us: 9 };
    let end = Event::RunFailed { step: "ship".into() };
    let log = stored(vec![started("0", None), succeeded("take", "a", Some("1")), failed, end]);
    let entry = outbound(&record(&log), log[0].at, &log[1..]).unwrap();
    assert_eq!((entry.status, &entry.content), (EntryStatus::Failed, &None));
    let error = EntryError { step: "ship".into(), kind: ErrorKind::TimedOut };
    assert_eq!((entry.error, entry.instance), (Some(error), Some(InstanceId("b".into()))));
    assert_eq!(outbound(&record(&log), log[0].at, &log[3..]), None);
    let log = stored(vec![started("0", None), Event::RunCancelled { reason: None }]);
    let entry = outbound(&record(&log), log[0].at, &log).unwrap();
    assert_eq!((entry.status, entry.content), (EntryStatus::Cancelled, None));
    let open = Run { status: RunStatus::Running, ..record(&log) };
    assert_eq!(outbound(&open, log[0].at, &log[..1]), None);
}

#[test]
fn a_summary_is_bounded() {
    let fields: Vec<String> =
        (0..100).map(|at| format!("\"{at:02}{}\":[]", "x".repeat(200))).collect();
    let summary = Content::of(&payload(&format!("{{{}}}", fields.join(",")))).summary;
    assert_eq!((summary.length, summary.keys.len(), summary.lengths.len()), (Some(100), 32, 32));
    assert!(summary.keys.iter().all(|key| key.len() == 64), "{summary:?}");
    for (text, kind, length) in
        [("[1,[2]]", "array", Some(2)), ("\"a\"", "string", None), ("-1", "number", None)]
    {
        let summary = Content::of(&payload(text)).summary;
        assert_eq!((&*summary.kind, summary.length), (kind, length), "{text}");
    }
}

#[test]
fn lines_count_what_came_in_and_what_came_out_of_that() {
    let run = |at: i64, took: Option<i64>, status| Accepted {
        flow: "order".into(),
        started_at: Timestamp(at),
        ended: took.map(|took| (Timestamp(at + took), status)),
    };
    let mut runs: Vec<Accepted> =
        (0..9).map(|at| run(at, Some(10), RunStatus::Completed)).collect();
    runs.push(run(9, Some(60), RunStatus::Failed));
    runs.push(run(10, None, RunStatus::Running));
    runs.push(Accepted { flow: "bill".into(), ..run(1, None, RunStatus::Held) });
    let lines = lines(&runs, Duration::from_mins(2));
    let of = |flow: &str, direction| {
        let found = lines.iter().find(|line| *line.flow == *flow && line.direction == direction);
        found.unwrap().clone()
    };
    assert_eq!(lines.len(), 4);
    let (inbound, outbound) = (of("order", Direction::Inbound), of("order", Direction::Outbound));
    assert_eq!((inbound.count, outbound.count, outbound.errors), (11, 10, 1));
    assert!((inbound.per_minute - 5.5).abs() < 1e-9 && (outbound.per_minute - 5.0).abs() < 1e-9);
    let took = (outbound.took_avg_ms, outbound.took_p50_ms, outbound.took_p99_ms);
    assert_eq!(took, (Some(15), Some(10), Some(60)));
    assert_eq!(of("bill", Direction::Outbound).took_avg_ms, None);
}

#[test]
fn a_trail_names_every_attempt_with_who_and_on_which_revision() {
    let moved = Event::RunReleased { revision: Revision("bb".into()), pool: None };
    let begun = |attempt| Event::StepStarted { step: "ship".into(), lease: lease(attempt, "b") };
    let error = StepError { kind: ErrorKind::Failed, message: "no".into() };
    let again = Event::AttemptFailed {
        step: "ship".into(),
        lease: lease(1, "b"),
        error,
        elapsed_us: 3,
        retry_after_ms: 1,
    };
    let log = stored(vec![
        started("0", Some(Hold::default())),
        moved,
        queued("ship"),
        begun(1),
        again,
        begun(2),
    ]);
    let mut trail = Trail::default();
    for stored in &log {
        trail.note(stored);
    }
    let marks = trail.into_marks();
    let whats: Vec<&str> = marks.iter().map(|mark| &*mark.what).collect();
    assert_eq!(whats, ["run.started", "run.released", "attempt.failed", "step.started"]);
    let [first, .., failed, open] = marks.as_slice() else { panic!("{marks:?}") };
    assert_eq!(
        (first.note.as_deref(), first.revision.clone()),
        (Some("held"), Some(flow().revision))
    );
    assert_eq!(
        (failed.attempt, failed.took_us, failed.note.as_deref()),
        (Some(1), Some(3), Some("no"))
    );
    assert_eq!((open.attempt, &open.instance), (Some(2), &Some(InstanceId("b".into()))));
    assert_eq!(open.revision, Some(Revision("bb".into())));
}
