use std::time::Duration;

use super::*;
use crate::limits::OCCURRENCES_MAX;

mod calendar;

/// A schedule as it would be written in a flow file.
fn file(text: &str) -> ScheduleFile {
    serde_saphyr::from_str(text).expect("the form is right")
}

fn schedule(text: &str) -> Schedule {
    Schedule::new(&file(text)).expect("the schedule is valid")
}

/// A record of a schedule whose mark is at second `mark`.
fn record(text: &str, mark: i64) -> ScheduleRecord {
    let spec = ScheduleSpec { flow: "f".to_owned(), file: file(text) };
    ScheduleRecord::new(spec, Source::Hand, Timestamp(mark * 1_000))
}

/// The entries of a plan, with seconds.
fn shown(rows: &[Occurrence]) -> String {
    let shown: Vec<String> = rows
        .iter()
        .map(|row| {
            let through = row.through.map_or(String::new(), |at| format!("-{}", at.0 / 1_000));
            let reason = row.reason.map_or(String::new(), |reason| {
                format!(
                    "({})",
                    serde_json::to_string(&reason).expect("a reason is a text").replace('"', "")
                )
            });
            assert_eq!(row.run_id.is_some(), row.fate.has_run(), "{row:?}");
            format!("{}{through} {}{reason}", row.due_at.0 / 1_000, row.fate)
        })
        .collect();
    shown.join(", ")
}

fn check(text: &str, mark: i64, now: i64, is_open: bool, expected: &str) -> ScheduleRecord {
    let before = record(text, mark);
    check_from(&before, now, is_open, expected)
}

fn check_from(before: &ScheduleRecord, now: i64, is_open: bool, expected: &str) -> ScheduleRecord {
    let schedule = Schedule::new(&before.spec.file).expect("the schedule is valid");
    let plan = plan("s", &schedule, before, (Timestamp(now * 1_000), 7), is_open);
    assert_eq!(shown(&plan.rows), expected, "at {now}: {:?}", before.spec.file);
    assert!(!plan.has_more);
    plan.record
}

fn seconds(times: &[Timestamp]) -> Vec<i64> {
    times.iter().map(|at| at.0 / 1_000).collect()
}

#[test]
fn an_interval_does_not_drift_from_its_anchor() {
    let every = schedule("{every: 10s}");
    assert_eq!(seconds(&every.between(Timestamp(9_999), Timestamp(30_000), 9)), [10, 20, 30]);
    assert_eq!(every.next_after(Timestamp(10_001)), Some(Timestamp(20_000)));
    let anchored = schedule("{every: 7s, start: \"1970-01-01T00:00:05Z\"}");
    assert_eq!(seconds(&anchored.between(Timestamp(0), Timestamp(30_000), 9)), [5, 12, 19, 26]);
    assert_eq!(anchored.last_until(Timestamp(18_999)), Some(Timestamp(12_000)));
    assert_eq!(anchored.last_until(Timestamp(4_999)), None);
}

#[test]
fn start_and_end_bound_the_due_times() {
    let bounded = schedule(
        "{cron: \"* * * * *\", start: \"2026-01-01T00:01:00Z\", end: \"2026-01-01T00:03:00Z\"}",
    );
    let year = Timestamp(1_767_225_600_000);
    let due = bounded.between(Timestamp(0), Timestamp(i64::MAX), 9);
    assert_eq!(due, [60, 120, 180].map(|s| year.plus(Duration::from_secs(s))));
    assert_eq!(bounded.next_after(due[2]), None);
    assert_eq!(bounded.last_until(Timestamp(i64::MAX / 2)), Some(due[2]));
    let once = schedule("{at: \"1970-01-01T00:00:10+00:00\"}");
    assert_eq!(once.next_after(Timestamp(9_999)), Some(Timestamp(10_000)));
    assert_eq!(once.next_after(Timestamp(10_000)), None);
}

#[test]
fn an_occurrence_in_time_is_fired_and_one_that_is_not_yet_due_waits() {
    let after = check("{every: 10s}", 10, 20, false, "20 fired");
    assert_eq!(after.fired_through, Timestamp(20_000));
    assert_eq!(after.pending, [Pending { due_at: Timestamp(20_000), cancels: None }]);
    assert_eq!(after.last_run, Some(RunId::of_occurrence("s", Timestamp(20_000))));
    check("{every: 10s}", 10, 22, false, "20 fired");
    check("{every: 10s}", 10, 19, false, "");
    check("{every: 10s}", 20, 20, false, "");
}

#[test]
fn what_was_late_follows_the_catch_up_policy() {
    let rows = [
        ("{every: 10s, catch_up: skip}", "10 missed(no_leader), 20 missed(no_leader), 30 fired"),
        ("{every: 10s}", "10 skipped(catch_up), 20 skipped(catch_up), 30 fired"),
        ("{every: 10s, catch_up: all}", "10 late, 20 late, 30 fired"),
        ("{every: 10s, catch_up: {all: 11s}}", "10 missed(no_leader), 20 late, 30 fired"),
    ];
    for (text, expected) in rows {
        check(text, 0, 30, false, expected);
    }
    check("{every: 10s}", 0, 27, false, "10 skipped(catch_up), 20 late");
    check("{every: 10s, catch_up: skip}", 0, 13, false, "10 missed(no_leader)");
}

#[test]
fn an_open_run_follows_the_overlap_policy() {
    check("{every: 10s}", 0, 10, true, "10 fired");
    check("{every: 10s, overlap: skip}", 0, 10, true, "10 skipped(overlap)");
    let all = "catch_up: all";
    check(
        &format!("{{every: 10s, overlap: skip, {all}}}"),
        0,
        30,
        false,
        "10 late, 20 skipped(overlap), 30 skipped(overlap)",
    );
    let queue = format!("{{every: 10s, overlap: queue_one, {all}}}");
    let waiting = check(&queue, 0, 30, true, "10 queued, 20 skipped(overlap), 30 skipped(overlap)");
    assert!(waiting.pending.is_empty());
    let waiting = check_from(&waiting, 40, true, "40 skipped(overlap)");
    let after = check_from(&waiting, 44, false, "10 late");
    assert_eq!(after.queued, None);
    assert_eq!(after.pending.len(), 1);
}

#[test]
fn a_running_one_is_cancelled_only_for_what_is_really_started() {
    let text = "{every: 10s, overlap: cancel_running, catch_up: all}";
    let mut before = record(text, 0);
    let open = RunId::of_occurrence("s", Timestamp(1));
    before.last_run = Some(open);
    let after = check_from(&before, 20, true, "10 skipped(overlap), 20 fired");
    assert_eq!(after.pending, [Pending { due_at: Timestamp(20_000), cancels: Some(open) }]);
    check_from(&before, 10, false, "10 fired");
}

#[test]
fn a_paused_schedule_skips() {
    let mut before = record("{every: 10s, catch_up: all}", 0);
    before.is_paused = true;
    let mut after = check_from(&before, 20, false, "10 skipped(paused), 20 skipped(paused)");
    after.is_paused = false;
    check_from(&after, 30, false, "30 fired");
}

#[test]
fn jitter_puts_a_start_off_and_changes_nothing_else() {
    let text = "{every: 1h, jitter: 30m}";
    let jittered = schedule(text);
    let hour = 3_600;
    let due_at = Timestamp(hour * 1_000);
    let delay = jittered.delay("s", due_at);
    assert!(delay <= Duration::from_mins(30));
    assert_eq!(delay, jittered.delay("s", due_at));
    let starts = hour + i64::try_from(delay.as_secs()).unwrap();
    check(text, 10, starts, false, "");
    let after = check(text, 10, starts + 1, false, "3600 fired");
    assert_eq!(after.last_run, Some(RunId::of_occurrence("s", due_at)));
    let plain = check("{every: 1h}", 10, hour, false, "3600 fired");
    assert_eq!(plain.last_run, after.last_run);
    let some: std::collections::BTreeSet<Duration> =
        (0..50).map(|n| jittered.delay("s", Timestamp(n * 3_600_000))).collect();
    assert!(some.len() > 40, "{some:?}");
    assert_eq!(record(text, 10).wakes_at("s", &jittered), Some(due_at.plus(delay)));
}

#[test]
fn a_long_backlog_has_one_entry_for_what_nobody_wants() {
    let day = 86_400;
    check(
        "{every: 1s}",
        0,
        day,
        false,
        "1-86397 skipped(catch_up), 86398 fired, 86399 fired, 86400 fired",
    );
    check(
        "{cron: \"* * * * * 0\"}",
        259_200,
        1_000_000,
        false,
        "259201-950398 skipped(catch_up), 950399 late",
    );
    check(
        "{every: 1s, catch_up: skip}",
        0,
        day,
        false,
        &format!("1-{} missed(no_leader), 86398 fired, 86399 fired, 86400 fired", day - 3),
    );
    let before = record("{every: 1s, catch_up: {all: 1h}}", 0);
    let every = Schedule::new(&before.spec.file).unwrap();
    let mut current = before;
    let (mut fates, mut rounds) = (0, 0);
    loop {
        let plan = plan("s", &every, &current, (Timestamp(day * 1_000), 1), false);
        rounds += 1;
        fates += plan.rows.iter().filter(|row| row.fate.has_run()).count();
        current = plan.record;
        assert!(current.pending.len() <= OCCURRENCES_MAX);
        current.pending.clear();
        if !plan.has_more {
            break;
        }
    }
    assert_eq!((fates, rounds), (3_601, 8));
    assert_eq!(current.fired_through, Timestamp(day * 1_000));
}

#[test]
fn what_cannot_be_started_yet_holds_back_what_comes_after() {
    let mut before = record("{every: 1s, catch_up: all}", 0);
    before.pending = (0..500).map(|n| Pending { due_at: Timestamp(n), cancels: None }).collect();
    let every = Schedule::new(&before.spec.file).unwrap();
    let plan = plan("s", &every, &before, (Timestamp(5_000), 1), false);
    assert!(plan.has_more && plan.rows.is_empty());
    assert_eq!(plan.record, before);
}

#[test]
fn a_backfill_starts_what_has_no_run() {
    let before = record("{every: 10s}", 50);
    let every = Schedule::new(&before.spec.file).unwrap();
    let known = |due: i64, fate| Occurrence {
        run_id: None,
        ..before.trigger("s", Timestamp(due * 1_000)).unwrap().rows.remove(0).with(fate)
    };
    let ledger = [known(20, Fate::Fired), known(30, Fate::Missed), known(40, Fate::Suppressed)];
    let range = Range { from: Timestamp(10_000), to: Timestamp(90_000), ledger: &ledger };
    let plan = before.backfill("s", &every, range, Timestamp(60_000)).unwrap();
    assert_eq!(shown(&plan.rows), "10 late, 30 late, 50 late");
    assert!(plan.rows.iter().all(|row| row.asked == Asked::Backfill));
    assert_eq!(plan.record.pending.len(), 3);
    assert_eq!(plan.record.fired_through, before.fired_through);
    let long = ScheduleRecord { fired_through: Timestamp(9_000_000), ..before };
    let range = Range { from: Timestamp(0), to: Timestamp(9_000_000), ledger: &[] };
    assert_eq!(long.backfill("s", &every, range, Timestamp(0)), None);
}

impl Occurrence {
    fn with(mut self, fate: Fate) -> Self {
        self.fate = fate;
        self
    }
}

#[test]
fn the_run_of_an_occurrence_is_that_of_no_other() {
    let at = Timestamp(1_000);
    let one = RunId::of_occurrence("a", at);
    assert_eq!(one, RunId::of_occurrence("a", at));
    assert_ne!(one, RunId::of_occurrence("b", at));
    assert_ne!(one, RunId::of_occurrence("a", Timestamp(2_000)));
    assert_ne!(one, RunId::derived("a", "000000000001000"));
    // A stored form: it never changes.
    assert_eq!(one.to_string(), "6a8ad389-38bf-8058-b284-1dcf5c0610aa");
    assert_eq!(due_at_of_key("a", &ledger_key("a", at)), Some(at));
    assert_eq!(due_at_of_key("a", &ledger_key("a/b", at)), None);
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let text = "{cron: \"0 2 * * *\", zone: Europe/Berlin, input: {a: [1, x]}, overlap: queue_one, \
                catch_up: {all: 6h}, jitter: 30s, tags: {team: a}}";
    let mut before = record(text, 9);
    before.pending =
        vec![Pending { due_at: Timestamp(5), cancels: Some(RunId::derived("f", "k")) }];
    before.queued = Some(Timestamp(7));
    let json = serde_json::to_string(&before).unwrap();
    assert_eq!(serde_json::from_str::<ScheduleRecord>(&json).unwrap(), before);
    insta::assert_snapshot!(json, @r#"{"spec":{"flow":"f","cron":"0 2 * * *","zone":"Europe/Berlin","input":{"a":[1,"x"]},"overlap":"queue_one","catch_up":{"all":"6h"},"jitter":"30s","tags":{"team":"a"}},"source":"hand","added_at":9000,"is_paused":false,"fired_through":9000,"pending":[{"due_at":5,"cancels":"a742a3ac-6bc9-8b10-a670-f908887b463b"}],"queued":7}"#);
    let row = before.trigger("s", Timestamp(9)).unwrap().rows.remove(0);
    let json = serde_json::to_string(&row).unwrap();
    assert_eq!(serde_json::from_str::<Occurrence>(&json).unwrap(), row);
    let json = json.replace(&RunId::of_occurrence("s", Timestamp(9)).to_string(), "RUN");
    insta::assert_snapshot!(json, @r#"{"due_at":9,"fate":"fired","run_id":"RUN","decided_at":9,"asked":"trigger"}"#);
}

#[test]
fn a_wrong_schedule_names_the_cause_and_the_way_out() {
    let many_tags: Vec<String> = (0..32).map(|n| format!("t{n}: x")).collect();
    let rows = [
        "{}".to_owned(),
        "{cron: \"* * * * *\", every: 1s}".to_owned(),
        "{every: 1s, zone: UTC}".to_owned(),
        "{at: \"2030-01-01T00:00:00Z\", start: \"2030-01-01T00:00:00Z\"}".to_owned(),
        "{at: tomorrow}".to_owned(),
        "{every: 1s, start: \"2030-01-01T00:00:00Z\", end: \"2029-01-01T00:00:00Z\"}".to_owned(),
        "{every: 500ms}".to_owned(),
        "{every: 1s, jitter: 1s}".to_owned(),
        "{every: 1s, catch_up: {all: 90d}}".to_owned(),
        format!("{{every: 1s, tags: {{{}}}}}", many_tags.join(", ")),
        "{every: 1s, tags: {schedule: x}}".to_owned(),
        "{every: 1s, input: \"a\\0b\"}".to_owned(),
    ];
    let crons = [
        "",
        "* * * *",
        "* * * * * * *",
        "*/0 * * * *",
        "61 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "60 * * * * *",
        "5-1 * * * *",
        "1-5/0 * * * *",
        "/5 * * * *",
        "a * * * *",
        "0 0 31 2 *",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "@reboot",
        "@dayly",
        "0 0 * FOO *",
        "0 0 * * MOO",
        "0 0 * * 1#6",
        "-1 * * * *",
        "1,,2 * * * *",
        "* * * * *; rm",
        "١ * * * *",
    ];
    let crons = crons.iter().map(|cron| format!("{{cron: {cron:?}}}"));
    let zones = ["Mars/Base", "Europe/Berln", "CEST", ""];
    let zones = zones.iter().map(|zone| format!("{{cron: \"@daily\", zone: {zone:?}}}"));
    let long = format!("{{cron: {:?}}}", "1,".repeat(5_000));
    let told: Vec<String> = rows
        .into_iter()
        .chain(crons)
        .chain(zones)
        .chain([long])
        .map(|text| {
            let problems = file(&text).validate();
            assert!(!problems.is_empty(), "{text}");
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            let short: String = text.chars().take(60).collect();
            format!("{short}\n    {}", problems.join("\n    "))
        })
        .collect();
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn every_documented_expression_is_accepted() {
    let good = [
        "* * * * *",
        "0 9-17 * * 1-5",
        "0/15 * * * *",
        "*/5 * * * * *",
        "0 0 * * 7",
        "0  0 1,2 * *",
        "0 0 L * *",
        "0 0 15W * *",
        "0 12 * * FRI#2",
        "0 0 29 2 *",
        "30 6 * JAN-MAR,DEC MON-FRI",
        "1-59/2 * * * *",
        "@hourly",
        "@DAILY",
        "@weekly",
        "@monthly",
        "@yearly",
        "@annually",
    ];
    for cron in good {
        let file = ScheduleFile { cron: Some(cron.to_owned()), ..ScheduleFile::default() };
        assert_eq!(file.validate(), [], "{cron}");
    }
    for zone in ["UTC", "Europe/Berlin", "america/new_york", "Etc/GMT+5"] {
        let file = ScheduleFile {
            cron: Some("@daily".to_owned()),
            zone: Some(zone.to_owned()),
            ..ScheduleFile::default()
        };
        assert_eq!(file.validate(), [], "{zone}");
    }
}
