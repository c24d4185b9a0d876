//! `flowgate hold`, and what the other verbs say of a flow that is held.

use crate::sandbox::{Sandbox, until};
use crate::shared::Place;

const WORK: &str = "flow: work\nsteps:\n  only: { run: { shell: 'echo done >> done' } }\n";

#[test]
fn a_flow_is_held_and_let_go_beside_the_process_that_owns_the_store() {
    let sandbox = Sandbox::new();
    sandbox.write("work.yaml", WORK);
    let dev = sandbox.dev(&[]);
    let none = sandbox.flowgate(&["hold", "status"]).exits(0);
    assert!(none.stderr.contains("no flow was ever held"), "{none:?}");
    let on = ["hold", "on", "work", "--reason", "the bank is down", "--max", "2", "--for", "1h"];
    let on = sandbox.flowgate(&on).exits(0);
    assert!(on.stdout.starts_with("work: holding, 0 held, until 20"), "{on:?}");
    assert!(on.stdout.ends_with(" (the bank is down)\n"), "{on:?}");
    assert!(on.stderr.contains("let it go with `flowgate hold off work`"), "{on:?}");
    let again = sandbox.flowgate(&["hold", "on", "work", "--reason", "another"]).exits(0);
    assert!(again.stderr.contains("that was so before"), "{again:?}");
    let first = sandbox.flowgate(&["runs", "start", "work"]).exits(0);
    assert!(first.stderr.contains("the run of flow `work` is held"), "{first:?}");
    assert!(first.stderr.contains("`flowgate hold off work`"), "{first:?}");
    let second = sandbox.flowgate(&["runs", "start", "work", "--json"]).exits(0).json();
    assert_eq!(second["status"], "held");
    let full = sandbox.flowgate(&["runs", "start", "work", "--json"]).exits(5).json_error();
    assert_eq!(full["code"], "hold_full");
    held_is_told(&sandbox, first.stdout.trim());
    let off = sandbox.flowgate(&["hold", "off", "work", "--rate", "1000", "--wait"]).exits(0);
    assert!(off.stdout.starts_with("work: open"), "{off:?}");
    for run in [first.stdout.trim(), second["run_id"].as_str().unwrap()] {
        until("it completes", || {
            let shown = sandbox.flowgate(&["runs", "show", run, "--json"]).exits(0).json();
            shown["status"] == "completed"
        });
    }
    assert_eq!(sandbox.lines_in("done"), 2);
    let open = sandbox.flowgate(&["hold", "off", "work", "--wait"]).exits(0);
    assert!(open.stderr.contains("that was so before"), "{open:?}");
    dev.interrupt().exits(130);
}

/// What each verb says while two runs are held, the first of which is `run`.
fn held_is_told(sandbox: &Sandbox, run: &str) {
    let status = sandbox.flowgate(&["hold", "status", "work", "--json"]).exits(0).json();
    assert_eq!((&status["state"], &status["held"]), (&"holding".into(), &2.into()));
    assert_eq!((&status["hold_max"], &status["reason"]), (&2.into(), &"the bank is down".into()));
    let all = sandbox.flowgate(&["hold", "status", "--json"]).exits(0).json();
    assert_eq!(all["items"][0]["flow"], "work");
    let people = sandbox.flowgate(&["hold", "status"]).exits(0);
    insta::assert_snapshot!("hold_status", people.shown());
    insta::assert_snapshot!(
        "hold_status_of_one",
        sandbox.flowgate(&["hold", "status", "work"]).exits(0).shown()
    );
    insta::assert_snapshot!("why_held", sandbox.flowgate(&["why", run]).exits(0).shown());
    let listed = ["runs", "list", "--status", "held", "--json"];
    assert_eq!(sandbox.flowgate(&listed).exits(0).json()["total"], 2);
}

#[test]
fn a_flow_of_a_store_that_nobody_works_on_is_let_go_by_whoever_does_next() {
    let sandbox = Sandbox::new();
    sandbox.write("work.yaml", WORK);
    sandbox.flowgate(&["run", "work.yaml"]).exits(0);
    sandbox.flowgate(&["hold", "on", "work"]).exits(0);
    let run = sandbox.flowgate(&["run", "work.yaml", "--no-wait"]).exits(0);
    assert!(run.stdout.contains("of flow `work` is held"), "{run:?}");
    assert!(run.stderr.contains("let it go with `flowgate hold off work`"), "{run:?}");
    assert_eq!(sandbox.lines_in("done"), 1);
    let waited = sandbox.flowgate(&["hold", "off", "work", "--wait", "--json"]).exits(5);
    assert_eq!(waited.json()["state"], "replaying");
    assert_eq!(waited.json_error()["code"], "nobody_leads");
    let off = sandbox.flowgate(&["hold", "off", "work"]).exits(0);
    assert_eq!(off.stdout, "work: replaying, 1 held\n");
    assert!(off.stderr.contains("nobody lets it go yet"), "{off:?}");
    let resumed = sandbox.flowgate(&["run", "--resume", "latest"]).exits(0);
    assert!(resumed.stderr.contains("the run is let go"), "{resumed:?}");
    assert_eq!(sandbox.lines_in("done"), 2);
}

#[test]
fn a_flow_that_is_not_there_and_a_number_that_makes_no_sense_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.write("work.yaml", WORK);
    sandbox.flowgate(&["run", "work.yaml"]).exits(0);
    for verb in [["hold", "on", "wrok"], ["hold", "off", "wrok"], ["hold", "status", "wrok"]] {
        let refused = sandbox.flowgate(&verb).exits(4);
        assert!(refused.stderr.contains("did you mean `work`?"), "{refused:?}");
    }
    for wrong in [
        &["on", "work", "--max", "0"][..],
        &["on", "work", "--max", "1000001"],
        &["on", "work", "--for", "soon"],
        &["on", "work", "--for", "0s"],
        &["off", "work", "--rate", "0"],
        &["off", "work", "--rate", "-1"],
    ] {
        sandbox.flowgate(&[&["hold"], wrong].concat()).exits(2);
    }
    assert_eq!(sandbox.flowgate(&["hold", "status", "--json"]).exits(0).stdout, "{\"items\":[]}\n");
}

/// What is held by one process on a shared store is let go by another.
fn a_flow_is_held_on_a_shared_store(place: &Place) {
    let sandbox = Sandbox::new();
    sandbox.write("work.yaml", WORK);
    place.flowgate(&sandbox, &["run", "work.yaml"]).exits(0);
    let dev = place.dev(&sandbox);
    place.flowgate(&sandbox, &["hold", "on", "work", "--reason", "a drill"]).exits(0);
    for _ in 0..3 {
        let started = place.flowgate(&sandbox, &["runs", "start", "work", "--json"]).exits(0);
        assert_eq!(started.json()["status"], "held");
    }
    let status = place.flowgate(&sandbox, &["hold", "status", "work", "--json"]).exits(0).json();
    assert_eq!((&status["held"], &status["reason"]), (&3.into(), &"a drill".into()));
    let off = place.flowgate(&sandbox, &["hold", "off", "work", "--wait"]).exits(0);
    assert_eq!(off.stdout, "work: open\n");
    until("all have completed", || sandbox.lines_in("done") == 4);
    dev.interrupt().exits(130);
}

#[test]
fn a_flow_is_held_on_postgres_and_let_go() {
    a_flow_is_held_on_a_shared_store(&Place::on_postgres());
}

#[test]
fn a_flow_is_held_on_redis_and_let_go() {
    a_flow_is_held_on_a_shared_store(&Place::on_redis());
}

#[test]
fn a_flow_is_held_over_the_network() {
    let (at_work, away) = (Sandbox::new(), Sandbox::new());
    at_work.write("work.yaml", WORK);
    at_work.flowgate(&["run", "work.yaml"]).exits(0);
    let worker = at_work.worker(&[]);
    let server = format!("http://{}", worker.address);
    let ask = |args: &[&str]| away.flowgate(&[args, &["--server", &server]].concat());
    ask(&["hold", "on", "work"]).exits(0);
    assert_eq!(ask(&["runs", "start", "work", "--json"]).exits(0).json()["status"], "held");
    assert_eq!(ask(&["hold", "status", "work", "--json"]).exits(0).json()["held"], 1);
    assert_eq!(ask(&["hold", "off", "work", "--wait"]).exits(0).stdout, "work: open\n");
    ask(&["runs", "watch", "latest"]).exits(0);
    worker.terminate().exits(0);
}
