//! Every example works as its comments say.

use serde_json::json;

use crate::sandbox::{Sandbox, repository};

fn states(report: &serde_json::Value) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let steps = report["steps"].as_array().unwrap();
    steps.iter().map(|step| (text(&step["name"]), text(&step["state"]))).collect()
}

fn expect(report: &serde_json::Value, expected: &[(&str, &str)]) {
    let expected: Vec<(String, String)> =
        expected.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    assert_eq!(states(report), expected);
}

#[test]
fn every_example_is_valid() {
    let sandbox = Sandbox::new();
    let folder = repository().join("examples");
    let mut files: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| path.display().to_string())
        .collect();
    for file in ["polyglot/flow.yaml", "edge/flows/ingest.yaml", "edge/flows/query.yaml"] {
        files.push(folder.join(file).display().to_string());
    }
    assert!(files.len() >= 5);
    let args: Vec<&str> =
        ["flows", "validate"].into_iter().chain(files.iter().map(|f| &**f)).collect();
    let done = sandbox.flowgate(&args).exits(0);
    assert_eq!(done.stdout.lines().filter(|line| line.contains(": ok: ")).count(), files.len());
}

#[test]
fn the_order_example_completes() {
    let sandbox = Sandbox::with_examples();
    let done = sandbox.flowgate(&["run", "order.yaml", "--input", r#"{"orderId":7}"#, "--json"]);
    let report = done.exits(0).json();
    assert_eq!(report["status"], "completed");
    assert_eq!(report["flow"], "order");
    let all = ["start", "charge", "reserve", "ship"].map(|name| (name, "succeeded"));
    expect(&report, &all);
    assert_eq!(report["steps"][3]["result"], json!({ "parcel": "P-1001" }));
    let fields: Vec<&String> = report.as_object().unwrap().keys().collect();
    let expected = [
        "run_id",
        "flow",
        "revision",
        "status",
        "started_at",
        "updated_at",
        "ended_at",
        "duration_ms",
        "key",
        "tags",
        "retry_of",
        "failure",
        "version",
        "steps",
        "steps_complete",
        "input",
        "state",
        "jobs",
        "events_removed",
    ];
    for field in expected {
        assert!(fields.iter().any(|name| *name == field), "{field}");
    }
    assert_eq!(fields.len(), expected.len(), "{fields:?}");
    let logs = sandbox.flowgate(&["runs", "logs", "latest", "--step", "ship"]).exits(0).stdout;
    assert!(logs.contains(r#""payment.done":{"cents": 4200}"#), "{logs}");
}

#[test]
fn the_failing_example_fails_with_its_message() {
    let sandbox = Sandbox::with_examples();
    let report = sandbox.flowgate(&["run", "failing.yaml", "--json"]).exits(1).json();
    assert_eq!(report["status"], "failed");
    let failure = json!({ "step": "charge", "message": "the card was declined", "kind": "failed" });
    assert_eq!(report["failure"], failure);
    assert_eq!(report["steps"][1]["attempts"], 2);
    expect(&report, &[("start", "succeeded"), ("charge", "failed"), ("ship", "skipped")]);
    let done = sandbox.flowgate(&["run", "failing.yaml"]).exits(1);
    insta::assert_snapshot!("run_failing", done.shown());
    insta::assert_snapshot!("why_failed", sandbox.flowgate(&["why", "latest"]).exits(0).shown());
}

#[test]
fn the_approval_example_waits_for_its_signal() {
    let sandbox = Sandbox::with_examples();
    let report = sandbox.flowgate(&["run", "approval.yaml", "--no-wait", "--json"]).exits(0).json();
    assert_eq!(report["status"], "waiting");
    let why = sandbox.flowgate(&["why", "latest"]).exits(0);
    insta::assert_snapshot!("why_waiting", why.shown());
    let no = ["runs", "signal", "latest", "approval", "--data", r#"{"approved": false}"#];
    let told = sandbox.flowgate(&no).exits(0);
    assert!(told.stderr.contains("no wait takes it"), "{told:?}");
    let run = sandbox.spawn(&["run", "--resume", "latest", "--json"]);
    let signal = ["runs", "signal", "latest", "approval", "--data", r#"{"approved": true}"#];
    crate::sandbox::eventually("the owner takes requests", || {
        sandbox.path(".flowgate/flowgate.db.sock").exists().then_some(())
    });
    sandbox.flowgate(&signal).exits(0);
    let done = run.end().exits(0);
    assert_eq!(done.json()["status"], "completed");
    expect(
        &done.json(),
        &[
            ("request", "succeeded"),
            ("approve", "succeeded"),
            ("publish", "succeeded"),
            ("remind", "skipped"),
        ],
    );
}

#[test]
fn the_either_or_example_takes_one_branch() {
    let sandbox = Sandbox::with_examples();
    let run = |amount: u32| {
        let input = format!(r#"{{"amount": {amount}}}"#);
        sandbox.flowgate(&["run", "either-or.yaml", "--input", &input, "--json"]).exits(0).json()
    };
    let small = [
        ("decide", "succeeded"),
        ("accept", "succeeded"),
        ("check", "skipped"),
        ("book", "succeeded"),
    ];
    expect(&run(20), &small);
    let large = [
        ("decide", "succeeded"),
        ("accept", "skipped"),
        ("check", "succeeded"),
        ("book", "succeeded"),
    ];
    expect(&run(2_000), &large);
    insta::assert_snapshot!("why_completed", sandbox.flowgate(&["why", "latest"]).shown());
}

#[test]
fn the_retry_example_succeeds_on_its_third_attempt() {
    let sandbox = Sandbox::with_examples();
    let report = sandbox.flowgate(&["run", "retry.yaml", "--json"]).exits(0).json();
    assert_eq!(report["steps"][0]["attempts"], 3);
    assert_eq!(report["steps"][0]["failures"], 2);
    assert_eq!(report["steps"][0]["result"], json!({ "attempt": 3 }));
    let done = sandbox.flowgate(&["run", "retry.yaml"]).exits(0);
    insta::assert_snapshot!("run_retry", done.shown());
    let events = sandbox.flowgate(&["runs", "events", "latest"]).exits(0);
    insta::assert_snapshot!("events_retry", events.shown());
    insta::assert_snapshot!("show_retry", sandbox.flowgate(&["runs", "show", "latest"]).shown());
}

#[test]
fn the_embedding_example_runs_and_is_short() {
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_flowgate")).parent().unwrap();
    let ended = std::process::Command::new(folder.join("examples/embed")).status().unwrap();
    assert!(ended.success());
    let text = include_str!("../../examples/embed.rs");
    let body = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with("//"));
    assert!(body.count() < 40);
}
