//! Every metric of the seeds, as a scraper sees it.

use std::collections::BTreeMap;

use crate::sandbox::{Sandbox, Worker, eventually, sum_of};
use crate::shared::Place;

const GUIDE: &str = include_str!("../../../../docs/guide/operating.md");

const HOLD: &str = r#"
flow: hold
steps:
  start: {}
  nap:
    subscribes: ["step:start"]
    run: { shell: 'echo > began; until [ -e go ]; do sleep 0.05; done; echo "{\"emit\": \"done\"}"' }
    emits: [done]
  ask: { subscribes: ["step:start"], wait: { signal: go } }
"#;

/// The metrics that the seeds ask for.
fn ids() -> impl Iterator<Item = String> {
    let first = (94..=105).map(|number| format!("C0-{number:03}"));
    first.chain((34..=42).map(|number| format!("C1-{number:03}")))
}

/// The series of each of them, from the guide's table: a name and the labels that matter.
fn series() -> BTreeMap<String, (String, Vec<String>)> {
    let rows = GUIDE.lines().filter(|line| line.starts_with("| C"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let key = cells[3].trim_matches('`');
        let (name, labels) = key.split_once('{').unwrap_or((key, ""));
        let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
        let labels = labels.filter(|label| !label.contains('…')).map(ToOwned::to_owned).collect();
        (cells[1].to_owned(), (name.to_owned(), labels))
    })
    .collect()
}

/// The value of a counter or gauge, or how often a histogram was written to.
fn value(text: &str, (name, labels): &(String, Vec<String>)) -> Option<f64> {
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    sum_of(text, name, &labels).or_else(|| sum_of(text, &format!("{name}_count"), &labels))
}

fn scrape(worker: &Worker) -> String {
    let (status, text) = worker.get("/metrics");
    assert_eq!(status, 200);
    text
}

#[test]
fn every_metric_of_the_seeds_is_there_from_the_start_and_moves() {
    let (place, sandbox, series) = (Place::on_redis(), Sandbox::with_examples(), series());
    sandbox.write("hold.yaml", HOLD);
    let worker = sandbox.worker(&[".", "--concurrency", "1", "--store", &place.url]);
    let before = scrape(&worker);
    for id in ids() {
        let named = series.get(&id).unwrap_or_else(|| panic!("the guide has no row for {id}"));
        let found = value(&before, named);
        assert!(found.is_some(), "{id} {named:?} is not there at the start");
        // It may lead by now.
        let is_zero = id.starts_with("C1-03") && id != "C1-039" || found == Some(0.0);
        assert!(is_zero, "{id} {named:?} is {found:?} at the start");
    }
    let start = |flow: &str| {
        place.flowgate(&sandbox, &["runs", "start", flow]).exits(0).stdout.trim().to_owned()
    };
    let held = || {
        let run_id = start("hold");
        eventually("the step runs", || sandbox.path("began").exists().then_some(()));
        run_id
    };
    let let_go = |run_id: &str| {
        sandbox.write("go", "");
        eventually("the step ends", || {
            let shown = place.flowgate(&sandbox, &["runs", "show", run_id, "--json"]).json();
            let is_over = shown["jobs"].as_array().unwrap().is_empty();
            is_over.then_some(())
        });
        for name in ["go", "began"] {
            std::fs::remove_file(sandbox.path(name)).unwrap();
        }
    };
    // Another process changes the run under the attempt, and a job waits behind it.
    let run_id = held();
    let behind = start("retry");
    place.flowgate(&sandbox, &["runs", "signal", &run_id, "go"]).exits(0);
    // What was read a moment ago is good for a second.
    eventually("one job runs and one waits", || {
        let text = scrape(&worker);
        let both = [&series["C1-039"], &series["C1-042"]].map(|series| value(&text, series));
        (both == [Some(1.0), Some(1.0)]).then_some(())
    });
    let_go(&run_id);
    place.flowgate(&sandbox, &["runs", "watch", &run_id]).exits(0);
    place.flowgate(&sandbox, &["runs", "watch", &behind]).exits(0);
    // Another process ends the run under the attempt, which comes too late with what it emits.
    let run_id = held();
    // A report that it runs would be late too, and end it before it emits anything.
    eventually("the log says that it runs", || {
        let events = place.flowgate(&sandbox, &["runs", "events", &run_id]).stdout;
        events.contains("step.started").then_some(())
    });
    place.flowgate(&sandbox, &["runs", "cancel", &run_id]).exits(0);
    sandbox.write("go", "");
    for late in ["flowgate_reports_after_end_total", "flowgate_emits_dropped_total"] {
        eventually("what comes late is counted", || {
            worker.metric(late, &[]).filter(|late| *late > 0.0)
        });
    }
    let failing = start("failing");
    place.flowgate(&sandbox, &["runs", "watch", &failing]).exits(1);
    let after = eventually("nothing is under way", || {
        let text = scrape(&worker);
        (value(&text, &series["C1-042"]) == Some(0.0)).then_some(text)
    });
    for id in ids() {
        let moved = value(&after, &series[&id]);
        match id.as_str() {
            // What is under way now, which is nothing, and what cannot happen.
            "C0-098" | "C0-103" | "C1-037" | "C1-039" | "C1-042" => {
                assert_eq!(moved, Some(0.0), "{id}");
            }
            _ => assert!(moved.is_some_and(|moved| moved > 0.0), "{id} did not move: {after}"),
        }
    }
    assert_eq!(sum_of(&after, "flowgate_steps_total", &["outcome=\"retried\""]), Some(3.0));
    worker.terminate().exits(0);
}
