//! Who may call the API of a process, and the verbs of all nouns over it.

use serde_json::Value;

use crate::sandbox::{Done, Sandbox};

#[test]
fn a_token_opens_what_its_scope_allows() {
    let sandbox = Sandbox::with_examples();
    let new = |name: &str, scope: &str| -> Value {
        sandbox.flowgate(&["tokens", "new", name, "--scope", scope, "--json"]).exits(0).json()
    };
    let (read, admin) = (new("eyes", "read"), new("hands", "admin"));
    let lines = |token: &Value| token["settings"].as_str().unwrap().to_owned();
    let file = format!("{}\n{}", lines(&read), lines(&admin));
    assert!(!file.contains(read["token"].as_str().unwrap()), "{file}");
    sandbox.write("flowgate.toml", &file);
    let shown = sandbox.flowgate(&["config", "show", "--json"]).exits(0).json();
    assert_eq!(shown["tokens.eyes"]["value"], "read");
    let worker = sandbox.worker(&["."]);
    let server = format!("http://{}", worker.address);
    let away = Sandbox::new();
    let ask = |token: &Value, args: &[&str]| -> Done {
        let token = token["token"].as_str().unwrap();
        away.flowgate(&[args, &["--server", &server, "--token", token]].concat())
    };
    ask(&read, &["queues", "list"]).exits(0);
    let refused = ask(&read, &["queues", "pause", "slow", "--json"]).exits(5);
    assert_eq!(refused.json_error()["code"], "scope_missing");
    ask(&admin, &["queues", "pause", "slow"]).exits(0);
    let nobody = away.flowgate(&["queues", "list", "--json", "--server", &server]).exits(5);
    assert_eq!(nobody.json_error()["code"], "token_missing");
    assert_eq!(worker.get("/healthz").0, 200);
    assert_eq!(worker.get("/metrics").0, 401);
    worker.terminate().exits(0);
}

#[test]
fn an_api_that_other_machines_reach_needs_tokens() {
    let sandbox = Sandbox::new();
    let refused =
        sandbox.flowgate(&["worker", "start", "--listen", "0.0.0.0:0", "--json"]).exits(2);
    assert_eq!(refused.json_error()["code"], "api_open");
    let refused = sandbox.flowgate(&["serve", "--listen", "0.0.0.0:0"]).exits(2);
    assert!(refused.stderr.contains("flowgate tokens new"), "{refused:?}");
    sandbox.flowgate(&["serve", "--listen", "off"]).exits(2);
}

#[test]
fn without_the_api_only_health_and_metrics_are_served() {
    let sandbox = Sandbox::with_examples();
    let worker = sandbox.worker(&["--api", "off"]);
    for (path, status) in [
        ("/healthz", 200),
        ("/readyz", 200),
        ("/metrics", 200),
        ("/version", 200),
        ("/", 404),
        ("/api/v1/runs", 404),
    ] {
        assert_eq!(worker.get(path).0, status, "{path}");
    }
    worker.terminate().exits(0);
}

#[test]
fn serve_answers_and_executes_nothing() {
    let sandbox = Sandbox::with_examples();
    sandbox.flowgate(&["flows", "validate", "order.yaml"]).exits(0);
    sandbox.flowgate(&["run", "retry.yaml"]).exits(0);
    let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = probe.local_addr().unwrap().to_string();
    drop(probe);
    let serve = sandbox.spawn(&["serve", "--listen", &address]);
    serve.stderr.wait_for("ready in");
    let server = format!("http://{address}");
    let away = Sandbox::new();
    let json = |args: &[&str]| -> Value {
        away.flowgate(&[args, &["--server", &server, "--json"]].concat()).exits(0).json()
    };
    let started = json(&["runs", "start", "retry"]);
    assert_eq!(started["status"], "running");
    assert_eq!(json(&["instances", "--leader"])["leader"], Value::Null);
    let run = json(&["runs", "show", started["run_id"].as_str().unwrap()]);
    assert_eq!(run["status"], "running", "{run}");
    serve.signal("TERM");
    serve.end().exits(0);
}

#[test]
fn every_verb_of_the_other_nouns_works_over_the_network() {
    let sandbox = Sandbox::with_examples();
    sandbox.flowgate(&["run", "failing.yaml"]).exits(1);
    sandbox.flowgate(&["run", "retry.yaml"]).exits(0);
    let worker = sandbox.worker(&[]);
    let server = format!("http://{}", worker.address);
    let away = Sandbox::new();
    let ask = |args: &[&str]| -> Done { away.flowgate(&[args, &["--server", &server]].concat()) };
    let json = |args: &[&str]| -> Value { ask(&[args, &["--json"]].concat()).exits(0).json() };

    assert_eq!(json(&["flows", "list"])["items"].as_array().unwrap().len(), 2);
    assert_eq!(json(&["flows", "show", "retry"])["active"], true);
    assert_eq!(json(&["flows", "graph", "retry", "--format", "dot"])["format"], "dot");
    assert_eq!(json(&["flows", "diff", "retry", "retry"])["changes"], Value::Array(Vec::new()));
    ask(&["flows", "show", "none"]).exits(4);

    let add = ["schedules", "add", "often", "--flow", "retry", "--every", "1h"];
    assert_eq!(json(&add)["name"], "often");
    ask(&add).exits(5);
    assert_eq!(json(&["schedules", "pause", "often"])["paused"], true);
    assert_eq!(json(&["schedules", "resume", "often"])["paused"], false);
    assert!(json(&["schedules", "next", "often", "-n", "3"])["items"][2].is_string());
    assert!(json(&["schedules", "trigger", "often"])["run_id"].is_string());
    let rows = json(&["schedules", "occurrences", "often"]);
    assert_eq!(rows["items"][0]["asked"], "trigger", "{rows}");
    assert_eq!(json(&["schedules", "list"])["items"][0]["source"], "added");
    json(&["schedules", "backfill", "often", "--from", "2h"]);
    json(&["schedules", "remove", "often"]);
    ask(&["schedules", "show", "often"]).exits(4);

    assert_eq!(json(&["queues", "set", "mail", "--rate", "10/s"])["now"]["rate"], "10/s");
    assert_eq!(json(&["queues", "show", "mail"])["rate"], "10/s");
    assert_eq!(json(&["queues", "unset", "mail"])["now"]["rate"], Value::Null);

    assert_eq!(json(&["dead", "list"])["total"], 1);
    assert_eq!(json(&["dead", "list", "--group"])["items"][0]["count"], 1);
    assert_eq!(json(&["dead", "drop", "--yes"])["done"].as_array().unwrap().len(), 1);
    assert_eq!(json(&["subscribers", "list"])["items"], Value::Array(Vec::new()));
    ask(&["subscribers", "show", "none"]).exits(4);
    assert_eq!(json(&["doctor"])["healthy"], true);
    worker.terminate().exits(0);
}

#[test]
fn the_description_of_the_api_is_printed() {
    let document = Sandbox::new().flowgate(&["openapi"]).exits(0).json();
    assert!(document["paths"]["/runs"]["post"].is_object());
}
