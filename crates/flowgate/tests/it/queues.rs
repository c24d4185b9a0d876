//! `flowgate queues`, and starts that say when and how.

use crate::sandbox::{Sandbox, until};

const SLOW: &str =
    "flow: work\nsteps:\n  only: { run: { shell: 'echo done >> done' }, queue: slow }\n";

fn status(sandbox: &Sandbox, run: &str) -> String {
    let shown = sandbox.flowgate(&["runs", "show", run, "--json"]).exits(0).json();
    shown["status"].as_str().unwrap().to_owned()
}

#[test]
fn a_queue_is_paused_and_resumed_beside_the_process_that_owns_the_store() {
    let sandbox = Sandbox::new();
    sandbox.write("work.yaml", SLOW);
    let dev = sandbox.dev(&[]);
    let paused = sandbox.flowgate(&["queues", "pause", "slow"]).exits(0);
    assert_eq!(paused.stdout, "slow: paused\n");
    let again = sandbox.flowgate(&["queues", "pause", "slow"]).exits(0);
    assert!(again.stderr.contains("that was so before"), "{again:?}");
    let run = sandbox.flowgate(&["runs", "start", "work"]).exits(0).stdout;
    let list = sandbox.flowgate(&["queues", "list", "--json"]).exits(0).json();
    assert_eq!(list["items"][0]["queue"], "slow");
    assert_eq!((&list["items"][0]["paused"], &list["items"][0]["due"]), (&true.into(), &1.into()));
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(status(&sandbox, run.trim()), "running", "nobody takes it");
    sandbox.flowgate(&["queues", "resume", "slow"]).exits(0);
    until("it completes", || status(&sandbox, run.trim()) == "completed");
    assert_eq!(sandbox.lines_in("done"), 1);
    dev.interrupt().exits(130);
}

#[test]
fn limits_of_a_queue_are_set_shown_and_taken_away() {
    let sandbox = Sandbox::new();
    let set = ["queues", "set", "mail", "--concurrency", "4", "--rate", "10/s"];
    let done = sandbox.flowgate(&set).exits(0);
    assert_eq!(done.stdout, "mail: open, 4 at once, 10/s\n");
    assert!(done.stderr.contains("is its name right?"), "{done:?}");
    let shown = sandbox.flowgate(&["queues", "show", "mail", "--json"]).exits(0).json();
    assert_eq!(shown["concurrency"], 4);
    assert_eq!(shown["rate"], "10/s");
    let people = sandbox.flowgate(&["queues", "show", "mail"]).exits(0).stdout;
    assert!(people.contains("open, 4 at once, 10/s"), "{people}");
    let done = sandbox.flowgate(&["queues", "unset", "mail", "--rate"]).exits(0);
    assert_eq!(done.stdout, "mail: open, 4 at once\n");
    sandbox.flowgate(&["queues", "unset", "mail"]).exits(0);
    let list = sandbox.flowgate(&["queues", "list", "--json"]).exits(0).json();
    assert_eq!(list["items"].as_array().unwrap().len(), 0);
    sandbox.flowgate(&["queues", "show", "mail"]).exits(4);
    for wrong in [&["set", "mail"][..], &["set", "mail", "--rate", "10"], &["pause", "a/b"]] {
        sandbox.flowgate(&[&["queues"], wrong].concat()).exits(2);
    }
}

#[test]
fn a_start_says_when_it_is_due_and_is_one_of_its_kind() {
    let sandbox = Sandbox::new();
    sandbox.write("work.yaml", SLOW);
    sandbox.flowgate(&["run", "work.yaml"]).exits(0);
    let delayed = ["runs", "start", "work", "--delay", "1h", "--priority", "9", "--json"];
    let delayed = sandbox.flowgate(&delayed).exits(0).json();
    let run_id = delayed["run_id"].as_str().unwrap();
    let why = sandbox.flowgate(&["why", run_id]).exits(0);
    assert!(why.stdout.contains("`only` is due at "), "{why:?}");
    let start = ["runs", "start", "work", "--singleton-key", "nightly", "--json"];
    let first = sandbox.flowgate(&start).exits(0).json();
    let again = sandbox.flowgate(&start).exits(0).json();
    assert_eq!((&again["run_id"], &again["existed"]), (&first["run_id"], &true.into()));
    for wrong in [
        &["--priority", "10"][..],
        &["--delay", "soon"],
        &["--at", "soon"],
        &["--delay", "1h", "--at", "2030-01-01T00:00:00Z"],
        &["--key", "k", "--singleton-key", "s"],
        &["--debounce-key", "k"],
        &["--debounce-window", "5s"],
        &["--debounce-key", "k", "--debounce-window", "soon"],
        &["--debounce-key", "k", "--debounce-window", "0s"],
        &["--debounce-key", "k", "--debounce-window", "5s", "--debounce-max", "1s"],
        &["--debounce-key", "k", "--debounce-window", "5s", "--key", "k"],
        &["--debounce-key", "k", "--debounce-window", "5s", "--singleton-key", "k"],
        &["--debounce-key", "k", "--debounce-window", "5s", "--delay", "1s"],
    ] {
        sandbox.flowgate(&[&["runs", "start", "work"], wrong].concat()).exits(2);
    }
}

#[test]
fn debounced_starts_become_one_run_when_no_more_come() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "index.yaml",
        "flow: index\ndebounce: { key: input.path, window: 2s }\nsteps:\n  only: { run: { shell: \
         'cat >> seen; echo >> seen' } }\n",
    );
    // Whoever runs a file wants to see it run.
    sandbox.flowgate(&["run", "index.yaml", "--input", r#"{"path":"now"}"#]).exits(0);
    assert_eq!(sandbox.lines_in("seen"), 1);
    let start = |n: u32| {
        let input = format!(r#"{{"path":"docs","n":{n}}}"#);
        sandbox.flowgate(&["runs", "start", "index", "--input", &input, "--json"]).exits(0).json()
    };
    let first = start(1);
    assert_eq!((&first["existed"], &first["status"]), (&false.into(), &serde_json::Value::Null));
    let run_id = first["run_id"].as_str().unwrap();
    for shown in [["why", run_id], ["why", &run_id[..18]]] {
        let told = sandbox.flowgate(&shown).exits(4).stderr;
        assert!(told.contains("is not started yet: debounced until 20"), "{told}");
        assert!(told.contains("one start so far"), "{told}");
    }
    // Nobody leads, so all of them join.
    for n in 2..6 {
        let next = start(n);
        assert_eq!((&next["run_id"], &next["existed"]), (&first["run_id"], &true.into()));
        assert!(next["debounced_until"].as_str() > first["debounced_until"].as_str());
    }
    let people = ["runs", "start", "index", "--debounce-key", "k", "--debounce-window", "1h"];
    let people = sandbox.flowgate(&people).exits(0);
    assert!(people.stderr.contains("debounced: begins at 20"), "{people:?}");
    assert!(people.stderr.contains("nobody begins it yet"), "{people:?}");
    let dev = sandbox.dev(&[]);
    until("it has completed", || {
        let shown = sandbox.flowgate(&["runs", "show", run_id, "--json"]);
        shown.code == Some(0) && shown.json()["status"] == "completed"
    });
    let shown = sandbox.flowgate(&["runs", "show", run_id, "--json"]).exits(0).json();
    assert_eq!(shown["input"]["n"], 5);
    assert_eq!(sandbox.lines_in("seen"), 2);
    dev.interrupt().exits(130);
}

#[test]
fn a_job_that_waits_for_a_permit_says_whose_it_is() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "work.yaml",
        "flow: work\nsteps:\n  only:\n    run: { shell: 'while [ ! -f go ]; do sleep 0.05; done' }\n    \
         concurrency: { key: input.tenant, limit: 1 }\n",
    );
    let dev = sandbox.dev(&[]);
    let start = ["runs", "start", "work", "--input", r#"{"tenant": 7}"#];
    let first = sandbox.flowgate(&start).exits(0).stdout;
    until("it runs", || sandbox.flowgate(&["why", first.trim()]).stdout.contains("is running"));
    let second = sandbox.flowgate(&start).exits(0).stdout;
    let said = format!("1 may run at once; place 1 in line; in use by {}", first.trim());
    until("it is parked", || {
        let why = sandbox.flowgate(&["why", second.trim()]).exits(0).stdout;
        why.contains("waits for a permit of input.tenant=7") && why.contains(&said)
    });
    sandbox.write("go", "");
    until("both complete", || {
        [&first, &second].iter().all(|run| status(&sandbox, run.trim()) == "completed")
    });
    dev.interrupt().exits(130);
}
