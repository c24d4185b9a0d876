//! `flowgate runs migrate`, `checkpoints`, `flows revisions`, and retries on a newer revision.

use serde_json::Value;

use crate::sandbox::{Sandbox, eventually, until};

const OLD: &str = "
flow: order
steps:
  hold: { wait: { signal: go } }
  ship: { subscribes: ['step:hold'], run: { shell: 'echo one >> shipped.txt' } }
";

fn with_flow(text: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("flows")).unwrap();
    sandbox.write("flows/order.yaml", text);
    sandbox
}

fn revisions(sandbox: &Sandbox) -> Vec<Value> {
    let listed = sandbox.flowgate(&["flows", "revisions", "order", "--json"]).exits(0).json();
    listed["items"].as_array().unwrap().clone()
}

/// Rewrites the flow file, and waits until it has been taken over.
fn replace(sandbox: &Sandbox, text: &str) {
    let before = revisions(sandbox).len();
    sandbox.write("flows/order.yaml", text);
    until("the new revision is active", || revisions(sandbox).len() == before + 1);
}

fn started(sandbox: &Sandbox, tag: &str) -> String {
    let done = sandbox.flowgate(&["runs", "start", "order", "--tag", tag]).exits(0);
    let run = done.stdout.trim().to_owned();
    until("it waits", || status(sandbox, &run) == "waiting");
    run
}

fn shown(sandbox: &Sandbox, run: &str) -> Value {
    sandbox.flowgate(&["runs", "show", run, "--json"]).exits(0).json()
}

fn status(sandbox: &Sandbox, run: &str) -> String {
    shown(sandbox, run)["status"].as_str().unwrap().to_owned()
}

#[test]
fn open_runs_are_moved_with_a_plan_first() {
    let sandbox = with_flow(OLD);
    let dev = sandbox.dev(&["flows"]);
    let (one, other, last) =
        (started(&sandbox, "n=1"), started(&sandbox, "n=2"), started(&sandbox, "n=3"));
    let old = shown(&sandbox, &one)["revision"].as_str().unwrap().to_owned();
    replace(&sandbox, &OLD.replace("one", "two"));
    let open = revisions(&sandbox);
    assert_eq!((&open[0]["active"], &open[1]["runs"]["waiting"]), (&true.into(), &3.into()));
    let people = sandbox.flowgate(&["flows", "revisions", "order"]).exits(0).stdout;
    assert!(people.contains(&old), "{people}");

    let migrate = |more: &[&str]| {
        sandbox.flowgate(&[&["runs", "migrate"], more, &["--revision", "active"]].concat())
    };
    let plan = migrate(&[&one, "--dry-run"]).exits(0);
    assert!(plan.stdout.contains("goes on at hold"), "{plan:?}");
    assert!(plan.stderr.contains("nothing was changed"), "{plan:?}");
    assert_eq!(shown(&sandbox, &one)["revision"], old);
    let moved = migrate(&[&one, "--json"]).exits(0).json();
    assert_eq!(moved["existed"], false);
    assert_eq!(shown(&sandbox, &one)["revision"], moved["to"]);
    assert_eq!(migrate(&[&one, "--json"]).exits(0).json()["existed"], true);

    // By filter it asks, and a program cannot answer.
    let of_flow = ["--flow", "order", "--from", &old, "--tag", "n=2"];
    let asked = migrate(&of_flow).exits(2);
    assert!(asked.stderr.contains("--yes"), "{asked:?}");
    assert_eq!(shown(&sandbox, &other)["revision"], old);
    let done = migrate(&[&of_flow[..], &["--yes", "--json"]].concat()).exits(0).json();
    assert_eq!(done["moved"][0]["run_id"], other.as_str());
    assert_eq!(done["moved"].as_array().unwrap().len(), 1, "{done}");
    assert_eq!(shown(&sandbox, &last)["revision"], old);

    for run in [&one, &other, &last] {
        sandbox.flowgate(&["runs", "signal", run, "go"]).exits(0);
        until("it has ended", || status(&sandbox, run) == "completed");
    }
    let mut shipped: Vec<String> = std::fs::read_to_string(sandbox.path("flows/shipped.txt"))
        .unwrap()
        .lines()
        .map(ToOwned::to_owned)
        .collect();
    shipped.sort();
    assert_eq!(shipped, ["one", "two", "two"]);
    let late = sandbox.flowgate(&["runs", "migrate", &one, "--revision", &old]).exits(5);
    assert!(late.stderr.contains("has ended"), "{late:?}");
    drop(dev);
}

#[test]
fn a_run_without_a_place_stays_and_a_map_gives_it_one() {
    let sandbox = with_flow(OLD);
    let dev = sandbox.dev(&["flows"]);
    let run = started(&sandbox, "n=1");
    replace(&sandbox, &OLD.replace("hold", "pause"));
    let one = ["runs", "migrate", &run, "--revision", "active"];
    let refused = sandbox.flowgate(&one).exits(5);
    assert!(refused.stderr.contains("`hold`"), "{refused:?}");
    let many = ["runs", "migrate", "--flow", "order", "--revision", "active", "--yes"];
    let counted = sandbox.flowgate(&many).exits(0);
    assert!(counted.stdout.contains("stays: "), "{counted:?}");
    assert!(counted.stderr.contains("nothing was changed"), "{counted:?}");
    let rows: [(&[&str], i32); 4] = [
        (&["--map", "hold=paus"], 2),
        (&["--map", "hold"], 2),
        (&["--map", "hold=pause", "--map", "hold=ship"], 2),
        (&["--flow", "order"], 2),
    ];
    for (more, code) in rows {
        sandbox.flowgate(&[&one[..], more].concat()).exits(code);
    }
    sandbox.flowgate(&["runs", "migrate", "--revision", "active"]).exits(2);
    sandbox.flowgate(&["runs", "migrate", &run, "--revision", "ffff"]).exits(4);
    let moved = sandbox.flowgate(&[&one[..], &["--map", "hold=pause"]].concat()).exits(0);
    assert!(moved.stdout.contains("goes on at pause"), "{moved:?}");
    sandbox.flowgate(&["runs", "signal", &run, "go"]).exits(0);
    until("it has ended", || status(&sandbox, &run) == "completed");
    let log = sandbox.flowgate(&["runs", "events", &run]).exits(0).stdout;
    assert!(log.contains("run.migrated"), "{log}");
    drop(dev);
}

#[test]
fn a_finished_run_is_done_again_from_a_step_on_a_newer_revision() {
    let text = "
flow: order
steps:
  take: { run: { shell: 'echo take >> done.txt' } }
  bill: { subscribes: ['step:take'], run: { shell: 'echo bill >> done.txt' } }
  ship: { subscribes: ['step:bill'], run: { shell: 'echo ship >> done.txt; exit 3' }, retry: { attempts: 1 } }
";
    let sandbox = with_flow(text);
    let dev = sandbox.dev(&["flows"]);
    let done = sandbox.flowgate(&["runs", "start", "order"]).exits(0);
    let run = done.stdout.trim().to_owned();
    until("it fails", || status(&sandbox, &run) == "failed");
    replace(&sandbox, &text.replace("; exit 3", ""));
    let again = ["runs", "retry", &run, "--from", "bill", "--revision", "active"];
    let new = sandbox.flowgate(&again).exits(0).stdout.trim().to_owned();
    until("it ends well", || status(&sandbox, &new) == "completed");
    let lines = std::fs::read_to_string(sandbox.path("flows/done.txt")).unwrap();
    assert_eq!(lines, "take\nbill\nship\nbill\nship\n", "what comes before is taken over");
    assert_eq!(shown(&sandbox, &new)["revision"], revisions(&sandbox)[0]["revision"]);
    let wrong = ["runs", "retry", &run, "--from", "bil", "--revision", "active"];
    assert!(sandbox.flowgate(&wrong).exits(2).stderr.contains("`bill`"));
    drop(dev);
}

const SLOW: &str = "
flow: order
steps:
  ship: { run: { shell: 'sleep 60' }, retry: { attempts: 1 } }
";
/// A deployment that stops what is open, and then waits for its smoke test.
const STOPS: &str = "
strategy: blue-green
drain_timeout: 200ms
verify_timeout: 60s
replay_rate: unlimited
smoke_tests: [{ name: hangs }]
";

#[test]
fn stopped_runs_are_listed_given_up_and_let_go() {
    let sandbox = with_flow(SLOW);
    sandbox.write("new.yaml", &SLOW.replace("attempts: 1", "attempts: 2"));
    sandbox.write("deploy.yaml", STOPS);
    let dev = sandbox.dev(&["flows"]);
    for _ in 0..2 {
        sandbox.flowgate(&["runs", "start", "order"]).exits(0);
    }
    let start = ["deploy", "start", "new.yaml", "--deploy", "deploy.yaml", "--no-wait"];
    let told = ["--author", "ann", "--note", "more tries"];
    sandbox.flowgate(&[&start[..], &told].concat()).exits(0);
    let pending = || {
        let listed = ["checkpoints", "list", "order", "--pending", "--json"];
        let listed = sandbox.flowgate(&listed).exits(0).json();
        listed["items"].as_array().unwrap().clone()
    };
    let stopped = eventually("both are stopped", || {
        let found = pending();
        (found.len() == 2).then_some(found)
    });
    let revision = &revisions(&sandbox)[0];
    assert_eq!((&revision["author"], &revision["note"]), (&"ann".into(), &"more tries".into()));
    assert_eq!(revision["active"], false, "nothing starts on it before it is tried");
    let item = &stopped[0];
    let run = item["run_id"].as_str().unwrap();
    let id = format!("{}/{run}", item["deployment_id"].as_str().unwrap());
    assert_eq!((&item["checkpoint_id"], &item["state"]), (&id.into(), &"pending".into()));
    assert_eq!((&item["steps"][0]["step"], &item["settled_at"]), (&"ship".into(), &Value::Null));

    let early = sandbox.flowgate(&["checkpoints", "replay", run]).exits(5);
    assert!(early.stderr.contains("has not decided"), "{early:?}");
    let many = sandbox.flowgate(&["checkpoints", "replay", "--flow", "order", "--json"]).exits(5);
    assert_eq!(many.json()["failed"].as_array().unwrap().len(), 2);
    let moved = sandbox.flowgate(&["runs", "migrate", run, "--revision", "active"]);
    assert_eq!(moved.code, Some(0), "it is on the active one: {moved:?}");
    let new = revision["revision"].as_str().unwrap();
    let moved = sandbox.flowgate(&["runs", "migrate", run, "--revision", new]).exits(5);
    assert!(moved.stderr.contains("is stopped by deployment"), "{moved:?}");
    let unasked = sandbox.flowgate(&["checkpoints", "discard", run]).exits(2);
    assert!(unasked.stderr.contains("--yes"), "{unasked:?}");
    assert_eq!(pending().len(), 2, "nothing has changed");

    let discard = ["checkpoints", "discard", run, "--reason", "not wanted", "--yes"];
    for _ in 0..2 {
        let given_up = sandbox.flowgate(&discard).exits(0);
        assert!(given_up.stdout.contains("discarded"), "{given_up:?}");
    }
    assert_eq!(status(&sandbox, run), "cancelled");
    let log = sandbox.flowgate(&["runs", "events", run]).exits(0).stdout;
    assert!(log.contains("run.checkpointed") && log.contains("not wanted"), "{log}");
    sandbox.flowgate(&["deploy", "rollback", "order"]).exits(0);
    assert_eq!(pending().len(), 0);
    let other = stopped[1]["run_id"].as_str().unwrap();
    let again = sandbox.flowgate(&["checkpoints", "replay", other, "--json"]).exits(0).json();
    assert_eq!(again["done"][0]["state"], "pinned", "the deployment let it go on");
    assert!(again["done"][0]["settled_at"].is_string(), "{again}");
    assert!(
        sandbox
            .flowgate(&["checkpoints", "discard", other, "--yes"])
            .exits(5)
            .stderr
            .contains("pinned already")
    );
    let none = sandbox.flowgate(&["checkpoints", "replay", "--flow", "order"]).exits(0);
    assert!(none.stderr.contains("no run is stopped"), "{none:?}");
    sandbox.flowgate(&["runs", "cancel", other]).exits(0);
    drop(dev);
}

#[test]
fn a_revision_is_registered_with_its_author() {
    let sandbox = Sandbox::new();
    sandbox.write("one.yaml", "flow: order\nsteps:\n  only: {}\n");
    let register = ["flows", "register", "one.yaml", "--author", "ann", "--note", "the first"];
    let done = sandbox.flowgate(&register).exits(0);
    let shown = sandbox.flowgate(&["flows", "show", "order", "--json"]).exits(0).json();
    assert_eq!(shown["revision"], done.stdout.trim());
    assert_eq!((&shown["author"], &shown["note"]), (&"ann".into(), &"the first".into()));
    let again = ["flows", "register", "one.yaml", "--author", "bob", "--json"];
    assert_eq!(sandbox.flowgate(&again).exits(0).json()["existed"], true);
    assert_eq!(revisions(&sandbox)[0]["author"], "ann");
    let people = sandbox.flowgate(&["flows", "show", "order"]).exits(0).stdout;
    assert!(people.contains("author    ann"), "{people}");
    let long = "x".repeat(300);
    sandbox.flowgate(&["flows", "register", "one.yaml", "--author", &long]).exits(2);
    sandbox.write("wrong.yaml", "flow: order\nsteps:\n  only: { rum: 1 }\n");
    let wrong = sandbox.flowgate(&["flows", "register", "wrong.yaml"]).exits(2);
    assert!(wrong.stderr.contains("wrong.yaml:3"), "{wrong:?}");
}
