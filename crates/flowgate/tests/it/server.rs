//! Verbs that ask an instance over the network.

use serde_json::Value;

use crate::sandbox::{Done, Sandbox, eventually};

/// A worker with the examples in its store, and a place from which it is asked.
struct Both {
    at_work: Sandbox,
    away: Sandbox,
}

impl Both {
    fn new() -> Self {
        let at_work = Sandbox::with_examples();
        for flow in ["approval.yaml", "order.yaml"] {
            at_work.flowgate(&["flows", "validate", flow]).exits(0);
        }
        at_work.flowgate(&["run", "approval.yaml", "--no-wait"]).exits(0);
        at_work.flowgate(&["run", "failing.yaml"]).exits(1);
        Self { at_work, away: Sandbox::new() }
    }
}

#[test]
fn every_verb_of_runs_works_over_the_network() {
    let Both { at_work, away } = Both::new();
    let worker = at_work.worker(&[]);
    let server = format!("http://{}", worker.address);
    let ask = |args: &[&str]| -> Done { away.flowgate(&[args, &["--server", &server]].concat()) };
    let json = |args: &[&str]| -> Value { ask(&[args, &["--json"]].concat()).exits(0).json() };

    assert_eq!(json(&["runs", "list"])["total"], 2);
    assert_eq!(json(&["runs", "list", "--status", "failed"])["total"], 1);
    let started = json(&["runs", "start", "approval", "--key", "k", "--tag", "a=b"]);
    let run_id = started["run_id"].as_str().unwrap().to_owned();
    assert_eq!(json(&["runs", "start", "approval", "--key", "k"])["existed"], true);
    eventually("it waits", || {
        (json(&["runs", "show", &run_id])["status"] == "waiting").then_some(())
    });
    let why = json(&["why", &run_id[..18]]);
    assert_eq!(why["reasons"][0]["cause"], "signal", "{why}");
    assert_eq!(why["reasons"][0]["until"].as_str().map(str::len), Some(24), "{why}");
    let people = ask(&["why", &run_id]).exits(0);
    assert!(people.stdout.contains("waits for the signal `approval`"), "{people:?}");

    let watch = away.spawn(&["runs", "watch", &run_id, "--server", &server]);
    watch.stdout.wait_for("step.waiting");
    let data = r#"{"approved": true}"#;
    let signalled = json(&["runs", "signal", &run_id, "approval", "--data", data]);
    assert_eq!((&signalled["taken"], &signalled["kept"]), (&true.into(), &false.into()));
    let done = watch.end().exits(0);
    assert!(done.stdout.trim_end().ends_with("run.completed"), "{done:?}");
    assert_eq!(json(&["runs", "show", &run_id])["tags"]["a"], "b");

    let events = ask(&["runs", "events", &run_id, "--json"]).exits(0).json_lines();
    assert_eq!(events.last().unwrap()["type"], "run.completed");
    let exported = ask(&["runs", "export", &run_id]).exits(0).json_lines();
    assert_eq!(exported.len(), events.len());
    assert!(ask(&["runs", "export"]).exits(0).json_lines().len() > exported.len());
    ask(&["runs", "logs", &run_id]).exits(0);

    let failed = json(&["runs", "list", "--status", "failed"]);
    let failed_id = failed["items"][0]["run_id"].as_str().unwrap().to_owned();
    let again = json(&["runs", "retry", &failed_id]);
    ask(&["runs", "watch", again["run_id"].as_str().unwrap()]).exits(1);
    ask(&["runs", "cancel", "latest"]).exits(5);
    let waiting = json(&["runs", "start", "approval"]);
    let waiting_id = waiting["run_id"].as_str().unwrap();
    ask(&["runs", "cancel", waiting_id, "--reason", "no longer wanted"]).exits(0);
    assert_eq!(json(&["runs", "cancel", waiting_id])["existed"], true);

    assert!(!away.path(".flowgate").exists(), "nothing is stored where it is asked from");
    worker.terminate().exits(0);
}

#[test]
fn what_another_instance_refuses_has_the_same_exit_codes() {
    let Both { at_work, away } = Both::new();
    let worker = at_work.worker(&[]);
    let server = format!("http://{}", worker.address);
    let ask = |args: &[&str]| -> Done { away.flowgate(&[args, &["--server", &server]].concat()) };
    let nobody = "00000000-0000-0000-0000-000000000000";
    for verb in ["show", "events", "watch", "logs", "export", "cancel", "retry"] {
        let done = ask(&["runs", verb, nobody, "--json"]).exits(4);
        assert_eq!(done.json_error()["code"], "run_not_found", "{verb}");
    }
    ask(&["why", nobody]).exits(4);
    ask(&["runs", "start", "nosuch"]).exits(4);
    ask(&["runs", "signal", nobody, "x"]).exits(4);
    ask(&["runs", "list", "--since", "soon"]).exits(2);
    ask(&["runs", "show", "not-an-id"]).exits(2);
    let waiting = ask(&["runs", "start", "approval", "--json"]).exits(0).json();
    let waiting_id = waiting["run_id"].as_str().unwrap();
    ask(&["runs", "retry", waiting_id]).exits(5);
    ask(&["runs", "signal", waiting_id, "aproval"]).exits(2);
    worker.terminate().exits(0);

    let gone = ask(&["runs", "list", "--json"]).exits(3);
    assert_eq!(gone.json_error()["code"], "server_unreachable");
    away.flowgate(&["runs", "list", "--server", "127.0.0.1:7420"]).exits(2);
    away.flowgate(&["runs", "list", "--server", &server, "--store", "sqlite:a.db"]).exits(2);
    away.flowgate(&["run", "x.yaml", "--server", &server]).exits(2);
    away.flowgate(&["dev", "--server", &server]).exits(2);
    let variables = [("FLOWGATE_SERVER", &*server), ("FLOWGATE_TOKEN", "hunter2")];
    away.flowgate_with(&variables, &["runs", "list"]).exits(3);
    let shown = away.flowgate_with(&variables, &["config", "show"]).exits(0);
    assert!(!shown.stdout.contains("hunter2"), "{shown:?}");
}
