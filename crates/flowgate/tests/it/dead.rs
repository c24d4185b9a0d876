//! `flowgate dead`.

use serde_json::Value;

use crate::sandbox::{Sandbox, until};

fn total(sandbox: &Sandbox) -> Value {
    sandbox.flowgate(&["dead", "list", "--json"]).exits(0).json()["total"].clone()
}

#[test]
fn dead_letters_are_grouped_retried_once_and_dropped() {
    let sandbox = Sandbox::with_examples();
    for number in 0..3 {
        let tag = format!("number={number}");
        sandbox.flowgate(&["run", "failing.yaml", "--tag", &tag]).exits(1);
    }
    let list = sandbox.flowgate(&["dead", "list", "--json"]).exits(0).json();
    assert_eq!(list["total"], 3);
    let first = list["items"][2]["run_id"].as_str().unwrap();
    let groups = sandbox.flowgate(&["dead", "list", "--group", "--json"]).exits(0).json();
    let group = &groups["items"][0];
    assert_eq!(groups["items"].as_array().unwrap().len(), 1);
    assert_eq!((&group["count"], &group["flow"]), (&3.into(), &"failing".into()));
    assert_eq!(
        (&group["step"], &group["reason"]),
        (&"charge".into(), &"the card was declined".into())
    );
    assert_eq!(group["kind"], "failed");
    let people = sandbox.flowgate(&["dead", "list", "--group"]).exits(0).stdout;
    assert!(people.contains("the card was declined"), "{people}");

    // What would be done is said, and nothing is done without a yes.
    let dry = sandbox.flowgate(&["dead", "retry", "--dry-run"]).exits(0);
    assert!(dry.stderr.contains("nothing was changed"), "{dry:?}");
    sandbox.flowgate(&["dead", "retry"]).exits(2);
    assert_eq!(total(&sandbox), 3);
    let none = ["dead", "retry", "--yes", "--reason", "no such reason"];
    assert!(sandbox.flowgate(&none).exits(0).stderr.contains("no dead letters"));

    let one = ["dead", "retry", "--tag", "number=0", "--reason", "CARD", "--yes", "--json"];
    let one = sandbox.flowgate(&one).exits(0).json();
    assert_eq!(one["done"][0]["run_id"], first);
    let new = one["done"][0]["new_run_id"].as_str().unwrap();
    assert_eq!(total(&sandbox), 2);
    let shown = sandbox.flowgate(&["runs", "show", first, "--json"]).exits(0).json();
    assert_eq!(
        (&shown["fate"]["fate"], &shown["fate"]["run_id"]),
        (&"retried".into(), &new.into())
    );
    let why = sandbox.flowgate(&["why", first]).exits(0).stdout;
    assert!(why.contains(&format!("as run {new}")), "{why}");
    sandbox.flowgate(&["dead", "retry", first]).exits(5);

    // A retry by hand is a fate too.
    let second = list["items"][1]["run_id"].as_str().unwrap();
    sandbox.flowgate(&["runs", "retry", second]).exits(0);
    assert_eq!(total(&sandbox), 1);

    let dropped = ["dead", "drop", "--flow", "failing", "--step", "charge", "--yes"];
    assert_eq!(sandbox.flowgate(&dropped).exits(0).stdout, "1 of 1 dropped\n");
    assert_eq!(total(&sandbox), 0);
    let third = list["items"][0]["run_id"].as_str().unwrap();
    let why = sandbox.flowgate(&["why", third]).exits(0).stdout;
    assert!(why.contains("dropped at"), "{why}");
}

#[test]
fn dead_letters_are_dealt_with_beside_the_process_that_owns_the_store() {
    let sandbox = Sandbox::with_examples();
    let dev = sandbox.dev(&[]);
    for _ in 0..4 {
        sandbox.flowgate(&["runs", "start", "failing"]).exits(0);
    }
    until("all fail", || total(&sandbox) == 4);
    let dropped = sandbox.flowgate(&["dead", "drop", "--yes", "--since", "1h", "--json"]).exits(0);
    assert_eq!(dropped.json()["done"].as_array().unwrap().len(), 4);
    sandbox.flowgate(&["runs", "start", "failing"]).exits(0);
    until("it fails", || total(&sandbox) == 1);
    let retried = sandbox.flowgate(&["dead", "retry", "--yes", "--rate", "10/s"]).exits(0);
    assert_eq!(retried.stdout, "1 of 1 retried\n");
    dev.stdout.wait_for("a retry of");
    // The retry fails as well, and is a dead letter of its own.
    until("it fails again", || total(&sandbox) == 1);
    dev.interrupt().exits(130);
}

#[test]
fn a_stop_between_two_says_how_many_were_done() {
    let sandbox = Sandbox::with_examples();
    for _ in 0..3 {
        sandbox.flowgate(&["run", "failing.yaml"]).exits(1);
    }
    let slow = sandbox.spawn(&["dead", "drop", "--yes", "--rate", "1/h"]);
    until("the first is done", || total(&sandbox) == 2);
    let done = slow.interrupt().exits(130);
    assert!(done.stdout.contains("1 of 3 dropped"), "{done:?}");
    assert!(done.stderr.contains("2 are left as they were"), "{done:?}");
    assert_eq!(total(&sandbox), 2);
}
