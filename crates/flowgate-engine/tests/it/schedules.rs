//! Leadership and schedules on a store in memory, whose time is tokio's.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::flow::Flow;
use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use flowgate_core::schedule::{
    Asked, Fate, Occurrence, Pending, Reason, ScheduleFile, ScheduleRecord, ScheduleSpec, Source,
    ledger_key,
};
use flowgate_core::time::Timestamp;
use flowgate_engine::{
    Degradation, DegradationConfig, Engine, EngineConfig, EngineError, Leadership, OCCURRENCE,
    SCHEDULE, SchedulerConfig, Workers, read_ledger, read_schedules,
};
use flowgate_store::control::{Expect, RecordWrite, RecordsOutcome};
use flowgate_store::faulty::{Call, Fault, Faulty};
use flowgate_store::{Instrumented, Queues, RunQuery, Store};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::recorder::{Counts, Lines};
use crate::world::{EPOCH, config, eventually, payload, store};

const LEASE: Duration = Duration::from_secs(10);

/// A flow that completes at once, with a schedule.
fn flow(schedules: &str) -> Flow {
    Flow::parse(&format!("{{flow: f, steps: {{a: {{}}}}, schedules: {{{schedules}}}}}")).unwrap()
}

/// A flow whose runs wait for somebody.
fn waiting(schedules: &str) -> Flow {
    let steps = "{a: {wait: {signal: go}}}";
    Flow::parse(&format!("{{flow: f, steps: {steps}, schedules: {{{schedules}}}}}")).unwrap()
}

fn engine(store: &Arc<dyn Store>, name: &str) -> Engine {
    Engine::start(Arc::clone(store), Workers::new(), config(name)).unwrap()
}

fn leads(engine: &Engine) -> bool {
    matches!(*engine.leadership().borrow(), Leadership::Leading(_))
}

async fn ledger(store: &Arc<dyn Store>, name: &str) -> Vec<Occurrence> {
    let mut rows = read_ledger(&**store, name, None, 1_000).await.unwrap();
    rows.reverse();
    rows
}

/// The ledger in seconds after the epoch of the tests.
async fn shown(store: &Arc<dyn Store>, name: &str) -> String {
    let rows = ledger(store, name).await;
    let rows: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {}", row.due_at.since(EPOCH).as_secs(), row.fate))
        .collect();
    rows.join(", ")
}

fn seconds(after: u64) -> Timestamp {
    EPOCH.plus(Duration::from_secs(after))
}

async fn runs(store: &Arc<dyn Store>) -> BTreeSet<RunId> {
    let rows = store.list_runs(&RunQuery { limit: 1_000, ..RunQuery::default() }).await.unwrap();
    rows.iter().map(|row| row.run.run_id).collect()
}

/// Every run is that of an entry of the ledger, and the other way round.
async fn check_runs(store: &Arc<dyn Store>, name: &str) -> usize {
    let rows = ledger(store, name).await;
    let started: BTreeSet<RunId> = rows.iter().filter_map(|row| row.run_id).collect();
    for row in &rows {
        let expected = row.fate.has_run().then(|| RunId::of_occurrence(name, row.due_at));
        assert_eq!(row.run_id, expected, "{row:?}");
    }
    assert_eq!(runs(store).await, started);
    started.len()
}

#[tokio::test(start_paused = true)]
async fn a_schedule_starts_a_run_at_each_due_time() {
    let counts = Counts::default();
    let _metrics = counts.record();
    let store = store();
    let engine = engine(&store, "a");
    let flow = flow("tick: {every: 10s, input: {a: 1}, tags: {team: x}}");
    engine.register(&flow, None).await.unwrap();
    sleep(Duration::from_secs(35)).await;
    assert_eq!(shown(&store, "f/tick").await, "10 fired, 20 fired, 30 fired");
    assert_eq!(check_runs(&store, "f/tick").await, 3);
    assert_eq!(counts.sum_where("flowgate_occurrences_total", "fate=fired"), 3);
    assert_eq!(counts.sum("flowgate_occurrence_delay_seconds"), 3);
    let detail = engine.wait(RunId::of_occurrence("f/tick", seconds(20))).await.unwrap();
    assert_eq!(detail.row.run.status, RunStatus::Completed);
    assert!(detail.row.started_at.since(seconds(20)) < Duration::from_millis(100));
    let tags: Vec<String> = detail.row.run.tags.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(tags, ["schedule=f/tick", "team=x"]);
    let first = store.read_events(detail.row.run.run_id, 0, 1).await.unwrap();
    assert_eq!(first[0].event.payload().value(), json!({"a": 1}));
    engine.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn of_several_instances_one_leads_and_each_occurrence_has_one_run() {
    let store = store();
    let engines: Vec<Engine> = ["a", "b", "c"].map(|name| engine(&store, name)).into();
    engines[0].register(&flow("tick: {every: 1s}"), None).await.unwrap();
    sleep(Duration::from_millis(30_500)).await;
    assert_eq!(engines.iter().filter(|engine| leads(engine)).count(), 1);
    assert_eq!(check_runs(&store, "f/tick").await, 30);
    let terms = store.past_terms("leader", 10).await.unwrap();
    assert_eq!(terms.len(), 1, "{terms:?}");
    for engine in &engines {
        engine.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_standby_asks_once_in_five_seconds_and_still_takes_over_in_time() {
    for phase in 0..10 {
        let counts = Counts::default();
        let _metrics = counts.record();
        let store = store();
        let first = engine(&store, "a");
        eventually("a leads", || async { leads(&first) }).await;
        let counted: Arc<dyn Store> = Arc::new(Instrumented::new(Arc::clone(&store)));
        let second = engine(&counted, "b");
        sleep(Duration::from_mins(5) + Duration::from_millis(777 * phase)).await;
        let asks = counts.sum_where("flowgate_store_calls_total", "call=take_term");
        assert!((50..=62).contains(&asks), "{asks} in 300 seconds");
        let began = Instant::now();
        drop(first);
        eventually("b leads", || async { leads(&second) }).await;
        assert!(began.elapsed() < LEASE + Duration::from_secs(2), "{:?}", began.elapsed());
        second.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_stops_is_followed_at_once() {
    let store = store();
    let first = engine(&store, "a");
    eventually("a leads", || async { leads(&first) }).await;
    let second = engine(&store, "b");
    first.register(&flow("tick: {every: 1s}"), None).await.unwrap();
    sleep(Duration::from_millis(5_500)).await;
    let began = Instant::now();
    first.shutdown().await;
    eventually("b leads", || async { leads(&second) }).await;
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    sleep(Duration::from_secs(5)).await;
    let rows = ledger(&store, "f/tick").await;
    assert!(rows.iter().all(|row| row.fate == Fate::Fired), "{rows:?}");
    assert_eq!(check_runs(&store, "f/tick").await, 10);
    assert_eq!(rows.last().unwrap().term, Some(2));
    second.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_given_to_an_instance_that_stops_is_given_up_at_once() {
    let faulty = Arc::new(Faulty::new(store()));
    let store: Arc<dyn Store> = faulty.clone();
    faulty.plan(Call::Terms, Fault::ReplyLate(Duration::from_millis(300)), 1);
    let first = engine(&store, "a");
    eventually("it has asked", || async {
        !store.past_terms("leader", 1).await.unwrap().is_empty()
    })
    .await;
    first.shutdown().await;
    let term = store.past_terms("leader", 1).await.unwrap().remove(0);
    assert!(term.released_at.is_some(), "{term:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_stops_before_its_lease_ends_and_nothing_is_lost() {
    let store = store();
    let faulty = Arc::new(Faulty::new(Arc::clone(&store)));
    let shared: Arc<dyn Store> = Arc::clone(&faulty) as Arc<dyn Store>;
    let first = engine(&shared, "a");
    eventually("a leads", || async { leads(&first) }).await;
    let second = engine(&store, "b");
    let text = "tick: {every: 1s, catch_up: all}";
    second.register(&flow(text), None).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    for call in [Call::Terms, Call::Records, Call::Read, Call::Commit, Call::Now, Call::WaitTold] {
        faulty.plan(call, Fault::NotDone, u32::MAX);
    }
    let began = Instant::now();
    eventually("a does not lead", || async { !leads(&first) }).await;
    assert!(began.elapsed() < LEASE, "{:?}", began.elapsed());
    assert!(!leads(&second), "the lease of the first is not over");
    eventually("b leads", || async { leads(&second) }).await;
    assert!(began.elapsed() < LEASE + Duration::from_secs(2), "{:?}", began.elapsed());
    sleep(Duration::from_millis(5_500)).await;
    let rows = ledger(&store, "f/tick").await;
    let due: Vec<u64> = rows.iter().map(|row| row.due_at.since(EPOCH).as_secs()).collect();
    let expected: Vec<u64> = (due[0]..=*due.last().unwrap()).collect();
    assert_eq!(due, expected, "every second has its fate");
    assert!(rows.iter().any(|row| row.fate == Fate::Late), "{rows:?}");
    assert!(rows.iter().all(|row| row.fate.has_run()), "{rows:?}");
    check_runs(&store, "f/tick").await;
    for call in [Call::Terms, Call::Records, Call::Read, Call::Commit, Call::Now, Call::WaitTold] {
        faulty.plan(call, Fault::NotDone, 0);
    }
    first.shutdown().await;
    second.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_old_leader_writes_nothing_in_the_term_of_another() {
    let store = store();
    let first = engine(&store, "a");
    eventually("a leads", || async { leads(&first) }).await;
    let term = store.past_terms("leader", 1).await.unwrap().remove(0);
    first.shutdown().await;
    let second = engine(&store, "b");
    eventually("b leads", || async { leads(&second) }).await;
    let write = RecordWrite {
        kind: OCCURRENCE,
        key: ledger_key("x", EPOCH).into(),
        expect: Expect::Anything,
        value: Some(payload(1)),
        keep: None,
    };
    let written = store.write_records(vec![write], Some(&term.term)).await.unwrap();
    assert_eq!(written, RecordsOutcome::TermLost);
    second.shutdown().await;
}

/// Puts a schedule there whose leader died after it had written down what it would start.
async fn leave_pending(store: &Arc<dyn Store>, due: &[u64]) {
    let file = ScheduleFile { at: Some("2023-01-01T00:00:00Z".into()), ..ScheduleFile::default() };
    let spec = ScheduleSpec { flow: "f".to_owned(), file };
    let mut record = ScheduleRecord::new(spec, Source::Hand, EPOCH);
    let mut writes = Vec::new();
    for due in due {
        let plan = record.trigger("left", seconds(*due)).unwrap();
        let row = &plan.rows[0];
        writes.push(RecordWrite {
            kind: OCCURRENCE,
            key: ledger_key("left", row.due_at).into(),
            expect: Expect::Absent,
            value: Some(payload(row)),
            keep: None,
        });
        record = plan.record;
    }
    assert_eq!(record.pending[0], Pending { due_at: seconds(due[0]), cancels: None });
    let value = Some(payload(&record));
    let expect = Expect::Absent;
    writes.push(RecordWrite { kind: SCHEDULE, key: "left".into(), expect, value, keep: None });
    let written = store.write_records(writes, None).await.unwrap();
    assert!(matches!(written, RecordsOutcome::Written(_)));
}

#[tokio::test(start_paused = true)]
async fn what_a_leader_left_behind_is_started_once_by_the_next() {
    let store = store();
    let client = EngineConfig { queues: Queues::Only(Vec::new()), ..config("client") };
    let client = Engine::start(Arc::clone(&store), Workers::new(), client).unwrap();
    client.register(&flow(""), None).await.unwrap();
    leave_pending(&store, &[1, 2]).await;
    // It had started the first.
    let mut request = flowgate_engine::StartRequest::new(payload(json!(null)));
    request.run_id = Some(RunId::of_occurrence("left", seconds(1)));
    client.start_run("f", request).await.unwrap();
    let next = engine(&store, "b");
    eventually("nothing is pending", || async {
        let found = next.schedule("left").await.unwrap();
        found.record.pending.is_empty()
    })
    .await;
    assert_eq!(shown(&store, "left").await, "1 suppressed, 2 fired");
    assert_eq!(check_runs(&store, "left").await, 2);
    assert_eq!(*client.leadership().borrow(), Leadership::Never);
    client.shutdown().await;
    next.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn whoever_must_not_lead_never_does() {
    let store = store();
    let never = EngineConfig { schedules: None, ..config("a") };
    let never = Engine::start(Arc::clone(&store), Workers::new(), never).unwrap();
    never.register(&flow("tick: {every: 1s}"), None).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(*never.leadership().borrow(), Leadership::Never);
    assert_eq!(store.past_terms("leader", 1).await.unwrap(), []);
    let other = engine(&store, "b");
    sleep(Duration::from_millis(5_500)).await;
    // What nobody fired in time is not forgotten.
    let fates = shown(&store, "f/tick").await;
    assert!(fates.starts_with("1 skipped, 2 skipped"), "{fates}");
    assert!(fates.ends_with("9 fired, 10 fired"), "{fates}");
    never.shutdown().await;
    other.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_open_run_is_skipped_queued_for_or_cancelled() {
    for (overlap, expected) in [
        ("allow", "10 fired, 20 fired, 30 fired"),
        ("skip", "10 fired, 20 skipped, 30 skipped"),
        ("queue_one", "10 fired, 20 queued, 30 skipped"),
        ("cancel_running", "10 fired, 20 fired, 30 fired"),
    ] {
        let store = store();
        let engine = engine(&store, "a");
        let flow = waiting(&format!("tick: {{every: 10s, overlap: {overlap}}}"));
        engine.register(&flow, None).await.unwrap();
        sleep(Duration::from_secs(35)).await;
        assert_eq!(shown(&store, "f/tick").await, expected, "{overlap}");
        let first = RunId::of_occurrence("f/tick", seconds(10));
        let is_cancelled = overlap == "cancel_running";
        let status = store.read_run(first).await.unwrap().unwrap().row.run.status;
        assert_eq!(status == RunStatus::Cancelled, is_cancelled, "{overlap}: {status:?}");
        if overlap == "queue_one" {
            engine.signal(first, "go", payload(1)).await.unwrap();
            sleep(Duration::from_secs(2)).await;
            assert_eq!(shown(&store, "f/tick").await, "10 fired, 20 late, 30 skipped");
            let second = store.read_run(RunId::of_occurrence("f/tick", seconds(20))).await.unwrap();
            assert_eq!(second.unwrap().row.run.status, RunStatus::Waiting);
        }
        engine.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_schedule_is_added_paused_resumed_and_removed() {
    let store = store();
    let engine = engine(&store, "a");
    engine.register(&flow(""), None).await.unwrap();
    let spec = |file: ScheduleFile| ScheduleSpec { flow: "f".to_owned(), file };
    let every =
        |text: &str| ScheduleFile { every: Some(text.parse().unwrap()), ..ScheduleFile::default() };
    let wrong = engine.add_schedule("tick", spec(ScheduleFile::default()), false).await;
    assert!(matches!(wrong, Err(EngineError::Invalid(_))), "{wrong:?}");
    let nowhere = ScheduleSpec { flow: "g".to_owned(), file: every("10s") };
    let wrong = engine.add_schedule("tick", nowhere, false).await;
    assert!(matches!(wrong, Err(EngineError::NoFlow(_))), "{wrong:?}");
    let wrong = engine.add_schedule("a/b", spec(every("10s")), false).await;
    assert!(matches!(wrong, Err(EngineError::Invalid(_))), "{wrong:?}");
    engine.add_schedule("tick", spec(every("10s")), false).await.unwrap();
    let twice = engine.add_schedule("tick", spec(every("10s")), false).await;
    assert!(matches!(twice, Err(EngineError::Invalid(_))), "{twice:?}");
    sleep(Duration::from_secs(15)).await;
    engine.pause_schedule("tick", true).await.unwrap();
    sleep(Duration::from_secs(20)).await;
    engine.pause_schedule("tick", false).await.unwrap();
    sleep(Duration::from_secs(10)).await;
    assert_eq!(shown(&store, "tick").await, "10 fired, 20 skipped, 30 skipped, 40 fired");
    let rows = ledger(&store, "tick").await;
    assert_eq!(rows[1].reason, Some(Reason::Paused));
    // New times count from now on.
    engine.add_schedule("tick", spec(every("7s")), true).await.unwrap();
    engine.remove_schedule("tick").await.unwrap();
    sleep(Duration::from_secs(30)).await;
    assert_eq!(ledger(&store, "tick").await.len(), 4);
    let gone = engine.pause_schedule("tick", true).await;
    assert!(matches!(gone, Err(EngineError::NoSchedule(_))), "{gone:?}");
    engine.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_backfill_and_a_trigger_start_what_they_are_asked() {
    let store = store();
    let engine = engine(&store, "a");
    engine.register(&flow("tick: {every: 10s}"), None).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    engine.pause_schedule("f/tick", true).await.unwrap();
    sleep(Duration::from_secs(30)).await;
    let filled = engine.backfill_schedule("f/tick", (seconds(10), seconds(25))).await.unwrap();
    assert_eq!(filled.len(), 2);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(shown(&store, "f/tick").await, "10 late, 20 late, 30 skipped");
    // Nothing is started twice, and what lies before the schedule may be filled in too.
    let again = engine.backfill_schedule("f/tick", (seconds(0), seconds(25))).await.unwrap();
    assert_eq!(again.len(), 1);
    let row = engine.trigger_schedule("f/tick").await.unwrap();
    assert_eq!(row.asked, Asked::Trigger);
    eventually("the trigger has its run", || async {
        store.read_run(row.run_id.unwrap()).await.unwrap().is_some()
    })
    .await;
    assert_eq!(check_runs(&store, "f/tick").await, 4);
    let long = engine.backfill_schedule("f/tick", (Timestamp(0), seconds(25))).await;
    assert!(matches!(long, Err(EngineError::Invalid(_))), "{long:?}");
    engine.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_flow_file_brings_its_schedules_and_takes_them_away() {
    let store = store();
    let engine = engine(&store, "a");
    engine.register(&flow("one: {every: 10s}, two: {every: 20s}"), None).await.unwrap();
    let file = ScheduleFile { every: Some("30s".parse().unwrap()), ..ScheduleFile::default() };
    let spec = ScheduleSpec { flow: "f".to_owned(), file };
    engine.add_schedule("mine", spec, false).await.unwrap();
    engine.pause_schedule("f/one", true).await.unwrap();
    sleep(Duration::from_secs(15)).await;
    let before = engine.schedule("f/one").await.unwrap();
    engine.register(&flow("one: {every: 10s, input: 1}, three: {every: 5s}"), None).await.unwrap();
    let names = || async {
        let found = read_schedules(&*store, None, 100).await.unwrap();
        found.iter().map(|named| named.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["f/one", "f/three", "mine"]);
    let after = engine.schedule("f/one").await.unwrap();
    assert_eq!(after.record.fired_through, before.record.fired_through);
    assert!(after.record.is_paused);
    assert_eq!(after.record.spec.file.input, Some(json!(1)));
    // The same file again changes nothing.
    engine.register(&flow("one: {every: 10s, input: 1}, three: {every: 5s}"), None).await.unwrap();
    assert_eq!(engine.schedule("f/one").await.unwrap().version, after.version);
    let refused = engine.remove_schedule("f/one").await;
    assert!(matches!(refused, Err(EngineError::Invalid(_))), "{refused:?}");
    engine.register(&flow(""), None).await.unwrap();
    assert_eq!(names().await, ["mine"]);
    engine.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_occurrence_that_cannot_be_started_says_why() {
    let store = store();
    let engine = engine(&store, "a");
    let text = "{flow: f, steps: {a: {}}, input: {type: integer}}";
    engine.register(&flow(""), None).await.unwrap();
    let file = ScheduleFile { every: Some("10s".parse().unwrap()), ..ScheduleFile::default() };
    let spec = ScheduleSpec { flow: "f".to_owned(), file };
    engine.add_schedule("tick", spec, false).await.unwrap();
    engine.register(&Flow::parse(text).unwrap(), None).await.unwrap();
    sleep(Duration::from_secs(15)).await;
    let rows = ledger(&store, "tick").await;
    assert_eq!(rows[0].fate, Fate::Failed);
    assert!(rows[0].error.as_ref().unwrap().contains("integer"), "{:?}", rows[0]);
    assert_eq!(check_runs(&store, "tick").await, 0);
    engine.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_one_time_schedule_fires_once() {
    let store = store();
    let engine = engine(&store, "a");
    engine.register(&flow(""), None).await.unwrap();
    let file = ScheduleFile { at: Some(seconds(10).to_string()), ..ScheduleFile::default() };
    let spec = ScheduleSpec { flow: "f".to_owned(), file };
    engine.add_schedule("once", spec, false).await.unwrap();
    sleep(Duration::from_mins(1)).await;
    assert_eq!(shown(&store, "once").await, "10 fired");
    assert_eq!(runs(&store).await.len(), 1);
    engine.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn leaders_that_come_and_go_are_seen_in_the_history_and_counted() {
    let (lines, counts) = (Lines::default(), Counts::default());
    let (_logs, _metrics) = (lines.record(), counts.record());
    let store = store();
    for name in ["a", "b", "c", "d"] {
        let engine = engine(&store, name);
        eventually("it leads", || async { leads(&engine) }).await;
        let label = format!("instance={name}");
        assert_eq!(counts.sum_where("flowgate_leader_active", &label), 1_f64.to_bits());
        let left = || counts.sum_where("flowgate_leader_lease_remaining_seconds", &label);
        eventually("it says how long it may lead", || async { f64::from_bits(left()) > 8.0 }).await;
        engine.shutdown().await;
        assert_eq!(counts.sum_where("flowgate_leader_active", &label), 0);
        assert_eq!(left(), 0);
    }
    assert_eq!(counts.sum_where("flowgate_leader_changes_total", "to=leading"), 4);
    assert_eq!(counts.sum_where("flowgate_leader_changes_total", "to=standby"), 4);
    assert_eq!(counts.sum("flowgate_leader_acquisition_seconds"), 4);
    assert_eq!(counts.sum("flowgate_leader_flaps_total"), 1);
    assert_eq!(lines.with(&["WARN", "leadership flaps", "terms=4"]).len(), 1);
    let terms = store.past_terms("leader", 10).await.unwrap();
    assert_eq!(terms.len(), 4);
    assert!(terms.iter().all(|term| term.released_at.is_some()));
    assert_eq!(flowgate_engine::flapping_terms(&terms), 4);
    assert!(terms[0].holder.starts_with("d/"));
    assert_eq!(SchedulerConfig::default().lease, LEASE);
}

#[tokio::test(start_paused = true)]
async fn a_critical_leader_holds_schedules_back_unless_it_is_told_not_to() {
    for pauses_schedules in [true, false] {
        let store = store();
        let faulty = Arc::new(Faulty::new(Arc::clone(&store)));
        let degradation = DegradationConfig { pauses_schedules, ..DegradationConfig::DEFAULT };
        let config = EngineConfig { degradation, ..config("a") };
        let shared: Arc<dyn Store> = Arc::clone(&faulty) as Arc<dyn Store>;
        let engine = Engine::start(shared, Workers::new(), config).unwrap();
        engine.register(&flow("tick: {every: 1s, catch_up: skip}"), None).await.unwrap();
        faulty.plan(Call::Beat, Fault::Delayed(Duration::from_millis(1_200)), u32::MAX);
        let mut level = engine.degradation();
        drop(level.wait_for(|level| *level == Degradation::Critical).await.unwrap());
        let before = ledger(&store, "f/tick").await.len();
        sleep(Duration::from_secs(10)).await;
        let after = ledger(&store, "f/tick").await.len();
        let is_held = after <= before + 1;
        assert_eq!(is_held, pauses_schedules, "{before} {after}");
        faulty.plan(Call::Beat, Fault::NotDone, 0);
        drop(level.wait_for(|level| *level == Degradation::Normal).await.unwrap());
        sleep(Duration::from_secs(5)).await;
        let rows = ledger(&store, "f/tick").await;
        let missed = rows.iter().filter(|row| row.fate == Fate::Missed).count();
        assert_eq!(missed > 5, pauses_schedules, "{rows:?}");
        check_runs(&store, "f/tick").await;
        engine.shutdown().await;
    }
}
