//! `flowgate dev`.

use crate::sandbox::{Sandbox, eventually};

#[test]
fn dev_serves_a_folder_and_stops_gracefully() {
    let sandbox = Sandbox::with_examples();
    sandbox.write("compose.yaml", "services:\n  flow: {}\n");
    let dev = sandbox.dev(&[]);
    let greeting = dev.stderr.so_far();
    for part in ["order@", "(4 steps)", "sqlite:.flowgate/flowgate.db", "synchronous=FULL"] {
        assert!(greeting.contains(part), "{greeting}");
    }
    assert!(!greeting.contains("compose"), "{greeting}");
    let start = ["runs", "start", "order", "--input", r#"{"orderId": 7}"#];
    sandbox.flowgate(&start).exits(0);
    dev.stdout.wait_for("order completed in");
    sandbox.flowgate(&["runs", "start", "failing"]).exits(0);
    dev.stdout.wait_for("charge: attempt 1 failed: the card was declined; next in");
    dev.stdout.wait_for("charge: failed: the card was declined");
    dev.stdout.wait_for("failing failed in");
    let done = dev.interrupt().exits(130);
    assert!(done.stderr.contains("stopped; open runs go on"), "{done:?}");
    assert!(!sandbox.path(".flowgate/flowgate.db.sock").exists());
    let dev = sandbox.dev(&[]);
    dev.signal("TERM");
    dev.end().exits(143);
}

#[test]
fn a_second_owner_is_refused_and_told_who_the_first_is() {
    let sandbox = Sandbox::with_examples();
    let dev = sandbox.dev(&[]);
    let first = format!("process {}", dev.id());
    for args in [&["dev"][..], &["run", "retry.yaml"]] {
        let done = sandbox.flowgate(args).exits(5);
        assert!(done.stderr.contains(&first), "{done:?}");
        assert!(done.stderr.contains("help: stop that process"), "{done:?}");
    }
    let done = sandbox.flowgate(&["dev", "--json"]).exits(5);
    assert_eq!(done.json_error()["code"], "store_in_use");
    dev.interrupt().exits(130);
    sandbox.flowgate(&["run", "retry.yaml"]).exits(0);
}

#[test]
fn a_saved_file_is_served_and_a_broken_one_leaves_the_last_good_revision() {
    let sandbox = Sandbox::new();
    let flow =
        |text: &str| format!("flow: hello\nsteps:\n  say: {{ run: {{ shell: '{text}' }} }}\n");
    sandbox.write("hello.yaml", &flow("echo one >> out.txt"));
    let dev = sandbox.dev(&[]);
    let revision = || {
        let list = sandbox.flowgate(&["flows", "list", "--json"]).exits(0).json();
        list["items"][0]["revision"].as_str().unwrap().to_owned()
    };
    let before = revision();
    sandbox.write("hello.yaml", &flow("echo two >> out.txt"));
    dev.stderr.wait_for("`hello` is now revision");
    assert_ne!(revision(), before);
    sandbox.write("hello.yaml", "flow: hello\nsteps:\n  say: { rum: x }\n");
    dev.stderr.wait_for("hello.yaml:3:10: unknown field `rum`");
    sandbox.flowgate(&["runs", "start", "hello"]).exits(0);
    dev.stdout.wait_for("hello completed");
    assert_eq!(std::fs::read_to_string(sandbox.path("out.txt")).unwrap(), "two\n");
    sandbox.write("other.yaml", "flow: other\nsteps:\n  only: {}\n");
    eventually("the new file is served", || {
        sandbox.flowgate(&["runs", "start", "other"]).code.filter(|code| *code == 0)
    });
    dev.interrupt().exits(130);
}

#[test]
fn a_run_stays_on_the_revision_that_it_started_on() {
    let sandbox = Sandbox::new();
    let flow = |text: &str| {
        format!(
            "flow: pinned\nsteps:\n  wait: {{ wait: {{ signal: go }} }}\n  say:\n    subscribes: \
             ['step:wait']\n    run: {{ shell: 'echo {text} >> out.txt' }}\n"
        )
    };
    sandbox.write("pinned.yaml", &flow("old"));
    let dev = sandbox.dev(&[]);
    let start = || sandbox.flowgate(&["runs", "start", "pinned"]).exits(0).stdout.trim().to_owned();
    let old = start();
    sandbox.write("pinned.yaml", &flow("new"));
    dev.stderr.wait_for("is now revision");
    let new = start();
    for run_id in [&new, &old] {
        sandbox.flowgate(&["runs", "signal", run_id, "go"]).exits(0);
        sandbox.flowgate(&["runs", "watch", run_id]).exits(0);
    }
    assert_eq!(std::fs::read_to_string(sandbox.path("out.txt")).unwrap(), "new\nold\n");
    dev.interrupt().exits(130);
}

#[test]
fn reading_works_beside_the_owner() {
    let sandbox = Sandbox::with_examples();
    let dev = sandbox.dev(&[]);
    sandbox.flowgate(&["runs", "start", "approval", "--key", "a"]).exits(0);
    dev.stdout.wait_for("waits for a signal");
    let verbs: &[&[&str]] = &[
        &["runs", "list"],
        &["runs", "show", "latest"],
        &["runs", "events", "latest"],
        &["runs", "logs", "latest"],
        &["runs", "export"],
        &["why", "latest"],
        &["flows", "list"],
        &["flows", "show", "approval"],
        &["flows", "graph", "approval"],
        &["flows", "diff", "approval", "order"],
    ];
    for verb in verbs {
        for json in [&[][..], &["--json"]] {
            let done = sandbox.flowgate(&[verb, json].concat()).exits(0);
            assert_ne!(done.stdout, "", "{verb:?}");
        }
    }
    let why = sandbox.flowgate(&["why", "latest"]).exits(0);
    assert!(why.stdout.contains("waits for the signal `approval` until"), "{why:?}");
    dev.interrupt().exits(130);
}

#[test]
fn a_folder_that_is_not_there_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.flowgate(&["dev", "nowhere"]).exits(4);
    assert!(!sandbox.path(".flowgate").exists());
}

#[test]
fn a_step_that_nobody_here_can_execute_is_named() {
    let sandbox = Sandbox::new();
    sandbox.write("w.yaml", "flow: w\nsteps:\n  only: { run: { worker: reserve } }\n");
    let dev = sandbox.dev(&[]);
    dev.stderr.wait_for("calls the worker `reserve`");
    dev.interrupt().exits(130);
    let done = sandbox.flowgate(&["run", "w.yaml"]).exits(1);
    assert!(done.stderr.contains("calls the worker `reserve`"), "{done:?}");
    assert!(done.stderr.contains("it waits for the worker `reserve`"), "{done:?}");
    let why = sandbox.flowgate(&["why", "latest"]).exits(0);
    assert!(why.stdout.contains("waits for a worker `reserve`; none has asked for it"), "{why:?}");
}

#[test]
fn a_step_that_outlives_its_lease_is_still_running() {
    let sandbox = Sandbox::new();
    let flow = "flow: long\nsteps:\n  only: { run: { shell: 'sleep 60' } }\n";
    sandbox.write("long.yaml", flow);
    let dev = sandbox.dev(&["--set", "lease=1s", "--set", "shutdown_grace=0s"]);
    sandbox.flowgate(&["runs", "start", "long"]).exits(0);
    let begun = std::time::Instant::now();
    eventually("the lease was renewed", || (begun.elapsed().as_millis() > 1_500).then_some(()));
    let why = sandbox.flowgate(&["why", "latest"]).exits(0);
    assert!(why.stdout.contains("`only` is running: attempt 1 on instance"), "{why:?}");
    dev.interrupt().exits(130);
    let shown = sandbox.flowgate(&["runs", "events", "latest"]).exits(0);
    assert!(shown.stdout.contains("step.released"), "{shown:?}");
}

#[test]
fn concurrency_bounds_the_attempts() {
    let sandbox = Sandbox::new();
    let step = "{ subscribes: ['step:a'], run: { shell: 'mkdir in || echo x >> met; sleep 0.1; \
                rmdir in' } }";
    let flow = format!("flow: wide\nsteps:\n  a: {{}}\n  b: {step}\n  c: {step}\n  d: {step}\n");
    sandbox.write("wide.yaml", &flow);
    sandbox.flowgate(&["run", "wide.yaml", "--concurrency", "1"]).exits(0);
    assert_eq!(sandbox.lines_in("met"), 0);
    sandbox.flowgate(&["run", "wide.yaml", "--concurrency", "3"]).exits(0);
    assert_ne!(sandbox.lines_in("met"), 0);
    sandbox.flowgate(&["run", "wide.yaml", "--concurrency", "0"]).exits(2);
}

#[test]
fn a_second_ctrl_c_stops_at_once() {
    let sandbox = Sandbox::new();
    let flow = "flow: long\nsteps:\n  only: { run: { shell: 'touch begun; sleep 60' } }\n";
    sandbox.write("long.yaml", flow);
    let dev = sandbox.dev(&["--set", "shutdown_grace=1h"]);
    sandbox.flowgate(&["runs", "start", "long"]).exits(0);
    eventually("the step runs", || sandbox.path("begun").exists().then_some(()));
    dev.signal("INT");
    dev.stderr.wait_for("Ctrl-C again stops at once");
    dev.interrupt().exits(130);
    let shown = sandbox.flowgate(&["runs", "show", "latest", "--json"]).exits(0).json();
    assert_eq!(shown["status"], "running");
}

#[test]
fn two_files_with_one_flow_are_reported() {
    let sandbox = Sandbox::new();
    sandbox.write("a.yaml", "flow: same\nsteps:\n  only: {}\n");
    sandbox.write("b.yaml", "flow: same\nsteps:\n  other: {}\n");
    let dev = sandbox.dev(&[]);
    let greeting = dev.stderr.so_far();
    assert!(greeting.contains("flow `same` is in ./a.yaml already"), "{greeting}");
    dev.interrupt().exits(130);
}
