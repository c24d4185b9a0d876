use uuid::Uuid;

use super::*;
use crate::deploy::plan::Plan;
use crate::deploy::record::{Request, RollbackReason, SmokeMismatch};
use crate::deploy::settings::Settings;
use crate::deploy::shadow::ShadowResult;

fn run(number: u128) -> RunId {
    RunId(Uuid::from_u128(number))
}

fn figures(count: u64, throughput_per_minute: f64, error_rate: f64, ms: u64) -> Figures {
    Figures {
        count,
        failed: 0,
        throughput_per_minute,
        error_rate,
        latency_avg_ms: ms,
        latency_p50_ms: ms,
        latency_p99_ms: ms * 2,
    }
}

fn deployment() -> Deployment {
    let request = Request {
        deployment_id: DeploymentId("01J".into()),
        flow: "order".into(),
        from: Revision("aaaa".into()),
        to: Revision("bbbb".into()),
        settings: Settings { strategy: Strategy::BlueGreen, ..Settings::default() },
        author: Some("ann".into()),
        note: None,
        is_forced: false,
        plan: Plan::default(),
    };
    let mut record = Deployment::begin(request, Timestamp(1_700_000_000_000));
    let phases =
        [Phase::Drain, Phase::Deploy, Phase::Verify, Phase::Resume, Phase::Audit, Phase::Completed];
    for (seconds, phase) in (1..).zip(phases) {
        record = record.entering(phase, Timestamp(1_700_000_000_000 + seconds * 1_000));
    }
    record.counts =
        Counts { held: 50, released: 49, cancelled_held: 1, checkpointed: 2, pinned: 1 };
    record.before = Some(figures(50, 600.0, 0.02, 10));
    record.after = Some(figures(40, 660.0, 0.0, 12));
    record.verdict = Some(Verdict::Good);
    record.smoke =
        vec![SmokeResult { name: "one".to_owned(), run_id: None, mismatches: Vec::new() }];
    record
}

/// A shadow of which one run is named, and one more is not.
fn shadow(text: &str) -> Shadow {
    let mismatch = SmokeMismatch {
        path: "emits.paid/amount".to_owned(),
        wanted: text.to_owned(),
        found: "8".to_owned(),
    };
    let result = ShadowResult { original: run(1), run_id: run(2), mismatches: vec![mismatch] };
    Shadow {
        compared: 20,
        differing: 2,
        differences: vec![result],
        ..Shadow::of((0..20).map(run).collect(), Timestamp(1_700_000_003_000))
    }
}

fn whole() -> Conservation {
    let found = (0..90).map(|number| {
        let whereabouts = match number {
            0 => Whereabouts::Running,
            1 | 2 => Whereabouts::Held,
            _ => Whereabouts::Finished,
        };
        (run(number), whereabouts)
    });
    Conservation::of((0..90).map(run), found, 10)
}

#[test]
fn nothing_is_lost_where_every_start_is_in_one_place() {
    let sum = whole();
    assert!(sum.holds());
    assert_eq!((sum.received, sum.finished, sum.running), (100, 87, 1));
    assert_eq!((sum.held, sum.refused), (2, 10));
}

#[test]
fn what_was_counted_at_the_end_stands_when_runs_are_not_kept_any_more() {
    let mut record = deployment();
    record.conservation = Some(whole());
    // As many as then: what is counted now is newer.
    let now = Conservation { finished: 90, running: 0, held: 0, ..whole() };
    let report = Report::of(&record, Some(now.clone()));
    assert_eq!((report.conservation, report.counted_at), (Some(now), None));
    for fewer in [None, Some(Conservation::of((0..3).map(run), [], 0))] {
        let report = Report::of(&record, fewer);
        assert_eq!(
            (&report.conservation, report.counted_at),
            (&record.conservation, record.ended_at())
        );
        assert!(report.is_good() && report.to_text().contains("as counted at 2023-"), "{report:?}");
        assert!(report.to_html().contains("As counted at 2023-"));
    }
}

#[test]
fn a_canary_is_reported_beside_the_revision_that_it_was_compared_with() {
    let mut record = deployment();
    assert!(!Report::of(&record, None).to_text().contains("canary"));
    record.canary =
        Some(CanarySeen { old: figures(950, 600.0, 0.01, 10), new: figures(50, 30.0, 0.2, 45) });
    let report = Report::of(&record, None);
    let text = report.to_text();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(rows.contains(&vec!["old", "canary", "delta"]), "{text}");
    assert!(rows.contains(&vec!["runs", "950", "50", "-900"]), "{text}");
    assert!(rows.contains(&vec!["latency", "p50", "ms", "10", "45", "+35"]), "{text}");
    let page = report.to_html();
    assert!(page.contains("<h2>Canary</h2>") && page.contains(": old 10, canary 45"), "{page}");
}

#[test]
fn an_equation_that_fails_names_the_runs() {
    use Whereabouts::{Finished, Held, Running};
    // The sum of these is right, and yet nothing else is.
    let found = [(run(1), Finished), (run(1), Held), (run(9), Running)];
    let sum = Conservation::of([run(1), run(2), run(3)], found, 0);
    assert!(!sum.holds());
    assert_eq!(sum.lost.runs, [run(2), run(3)]);
    assert_eq!(sum.doubled.runs, [run(1)]);
    assert_eq!(sum.unknown.runs, [run(9)]);
    assert_eq!(sum.fault(), "2 lost, 1 doubled, 1 unknown");
    let many = Conservation::of((0..500).map(run), [], 0);
    assert_eq!((many.lost.count, many.lost.runs.len()), (500, NAMED_RUNS_MAX));
}

#[test]
fn a_run_is_finished_or_running_by_its_status() {
    for status in RunStatus::ALL {
        let wanted =
            if status.is_terminal() { Whereabouts::Finished } else { Whereabouts::Running };
        assert_eq!(Whereabouts::of(status), wanted);
    }
}

#[test]
fn a_report_is_a_table_and_a_line() {
    let report = Report::of(&deployment(), Some(whole()));
    assert!(report.is_good());
    insta::assert_snapshot!(report.to_text());
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    insta::assert_json_snapshot!(report);
}

#[test]
fn a_report_says_what_a_shadow_found() {
    let mut record = deployment();
    record.shadow = Some(shadow("7"));
    record.verdict = Some(Verdict::RolledBack);
    record.rollback =
        Some(RollbackReason::ShadowDiffers { compared: 20, differing: 2, differ_max: 1 });
    let report = Report::of(&record, None);
    let text = report.to_text();
    let (_, found) = text.split_once("\nshadow: ").expect("a line for the shadow");
    let wanted = format!(
        "20 of 20 runs compared, 2 differ\n  {} as {}\n    \
         emits.paid/amount: wanted 7, found 8\n  and 1 more\n\n\
         ROLLED BACK: 2 of 20 runs of the shadow differ, and 1 may\n",
        run(1),
        run(2)
    );
    assert_eq!(found, wanted);
    let page = report.to_html();
    for part in ["<h2>Shadow</h2>", &run(1).to_string(), "wanted 7, found 8", "and 1 more"] {
        assert!(page.contains(part), "{part}");
    }
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
}

#[test]
fn a_status_line_says_the_worst() {
    let mut record = deployment();
    let line =
        |record: &Deployment, sum: Option<Conservation>| Report::of(record, sum).status_line();
    assert_eq!(line(&record, None), "OK: the new revision is active");
    let lost = Conservation::of([run(1)], [], 0);
    assert_eq!(line(&record, Some(lost)), "LOSS: 1 lost; OK: the new revision is active");
    record.verdict = Some(Verdict::Alerting);
    record.alerts = vec!["the error rate is 9.00 %, over 5.00 %".to_owned()];
    assert_eq!(
        line(&record, None),
        "ALERT: the new revision is active, and the error rate is 9.00 %, over 5.00 %"
    );
    record.verdict = Some(Verdict::RolledBack);
    record.rollback = Some(RollbackReason::SmokeFailed { tests: vec!["one".to_owned()] });
    assert_eq!(line(&record, None), "ROLLED BACK: smoke tests failed: one");
    assert!(!Report::of(&record, None).is_good());
    record.verdict = None;
    record.phase = Phase::Drain;
    assert_eq!(line(&record, None), "IN PROGRESS: drain");
}

#[test]
fn a_page_needs_nothing_from_elsewhere_and_escapes_what_others_wrote() {
    let mut record = deployment();
    let evil = "<script>alert('x')</script>\" onload=\"y";
    record.flow = evil.into();
    record.deployment_id = DeploymentId(evil.into());
    record.author = Some(evil.into());
    record.note = Some(evil.into());
    record.from = Revision(evil.into());
    record.alerts = vec![evil.to_owned()];
    record.verdict = Some(Verdict::RolledBack);
    record.rollback = Some(RollbackReason::Fault { message: evil.to_owned() });
    let mismatch = SmokeMismatch {
        path: evil.to_owned(),
        wanted: evil.to_owned(),
        found: format!("{evil}\u{1b}[2J"),
    };
    record.smoke =
        vec![SmokeResult { name: evil.to_owned(), run_id: None, mismatches: vec![mismatch] }];
    record.shadow = Some(shadow(&format!("{evil}\u{1b}[2J")));
    let report = Report::of(&record, Some(whole()));
    let page = report.to_html();
    for bad in ["<script", "onload=\"", "src=", "href=", "url(", "http", "\u{1b}"] {
        assert!(!page.contains(bad), "{bad}");
    }
    assert!(page.contains("&lt;script&gt;"));
    assert!(page.contains("<rect class=\"after\" y=\"9\" width=\"160.0\""));
    assert!(!report.to_text().contains('\u{1b}'));
}

#[test]
fn a_report_of_a_deployment_that_has_just_begun_has_no_figures() {
    let mut record = deployment();
    (record.before, record.after, record.verdict) = (None, None, None);
    record.phase = Phase::Plan;
    record.phases.truncate(1);
    let report = Report::of(&record, None);
    assert_eq!(report.delta, None);
    assert!(!report.to_text().contains("before"));
    assert!(!report.to_html().contains("Before and after"));
}
