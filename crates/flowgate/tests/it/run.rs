//! `flowgate run`.

use crate::sandbox::{Sandbox, eventually};

/// Its second step ends when the file `go` appears.
const GATED: &str = r"
flow: gated
steps:
  first: { run: { shell: 'echo x >> first.txt' } }
  second:
    subscribes: ['step:first']
    run: { shell: 'touch waiting; while [ ! -f go ]; do sleep 0.02; done; echo x >> second.txt' }
  third: { subscribes: ['step:second'], run: { shell: 'echo x >> third.txt' } }
";

#[test]
fn an_input_may_come_from_a_file_or_from_stdin() {
    let sandbox = Sandbox::with_examples();
    sandbox.write("input.json", r#"{"amount": 3}"#);
    sandbox.flowgate(&["run", "either-or.yaml", "--input", "@input.json"]).exits(0);
    let args = ["run", "either-or.yaml", "--input", "-"];
    sandbox.flowgate_reading(r#"{"amount": 3}"#, &args).exits(0);
}

#[test]
fn a_wrong_input_is_exit_code_2_and_starts_nothing() {
    let sandbox = Sandbox::with_examples();
    let rows = [
        ("{", "not valid JSON"),
        ("{}", "orderId"),
        (r#"{"orderId": "seven"}"#, "orderId"),
        (r#"{"orderId": 0}"#, "/orderId"),
    ];
    for (input, cause) in rows {
        let done = sandbox.flowgate(&["run", "order.yaml", "--input", input]).exits(2);
        assert!(done.stderr.contains(cause), "{done:?}");
        assert!(done.stderr.contains("help: "), "{done:?}");
        let done = sandbox.flowgate(&["run", "order.yaml", "--input", input, "--json"]).exits(2);
        assert_eq!(done.json_error()["code"], "input_invalid");
        assert_eq!(done.stdout, "");
    }
    sandbox.flowgate(&["run", "order.yaml", "--input", "@no.json"]).exits(4);
    assert!(!sandbox.path(".flowgate").exists());
}

#[test]
fn a_flow_that_is_not_there_or_broken_is_refused() {
    let sandbox = Sandbox::with_examples();
    let done = sandbox.flowgate(&["run", "oder.yaml"]).exits(4);
    assert!(done.stderr.contains("did you mean order.yaml?"), "{done:?}");
    sandbox.flowgate(&["run", "retry.yaml"]).exits(0);
    let done = sandbox.flowgate(&["run", "rety"]).exits(4);
    assert!(done.stderr.contains("did you mean `retry`?"), "{done:?}");
    sandbox.flowgate(&["run", "retry"]).exits(0);
    sandbox.write("bad.yaml", "flow: bad\nsteps:\n  a: { rum: x }\n");
    let done = sandbox.flowgate(&["run", "bad.yaml"]).exits(2);
    assert!(done.stderr.starts_with("error: bad.yaml:3:8: unknown field `rum`; "), "{done:?}");
    let done = sandbox.flowgate(&["run", "bad.yaml", "--json"]).exits(2);
    assert_eq!(done.json_error()["path"], "bad.yaml");
}

#[test]
fn the_same_key_gives_the_same_run() {
    let sandbox = Sandbox::with_examples();
    let args = ["run", "retry.yaml", "--key", "k1", "--tag", "customer=42", "--json"];
    let (one, two) = (sandbox.flowgate(&args).exits(0), sandbox.flowgate(&args).exits(0));
    assert_eq!(one.json()["run_id"], two.json()["run_id"]);
    assert_eq!(one.json()["key"], "k1");
    let other = ["run", "retry.yaml", "--key", "k1", "--input", "[1]"];
    let done = sandbox.flowgate(&other).exits(5);
    assert!(done.stderr.contains("the key `k1` was used with another input"), "{done:?}");
    let shown = sandbox.flowgate(&["runs", "show", "latest", "--json"]).exits(0).json();
    assert_eq!(shown["tags"]["customer"], "42");
}

#[test]
fn a_run_that_was_stopped_goes_on_with_resume() {
    let sandbox = Sandbox::new();
    sandbox.write("gated.yaml", GATED);
    let run = sandbox.spawn(&["run", "gated.yaml", "--set", "shutdown_grace=100ms"]);
    eventually("the second step runs", || sandbox.path("waiting").exists().then_some(()));
    let done = run.interrupt().exits(130);
    assert!(done.stderr.contains("nothing is lost"), "{done:?}");
    let help = done.stderr.lines().last().unwrap();
    let run_id = help.split("--resume ").nth(1).unwrap().trim_end_matches('`');
    let why = sandbox.flowgate(&["why", "latest"]).exits(0);
    assert!(why.stdout.contains("no process works on the store"), "{why:?}");
    sandbox.write("go", "");
    let report = sandbox.flowgate(&["run", "--resume", run_id, "--json"]).exits(0).json();
    assert_eq!(report["status"], "completed");
    assert_eq!(report["steps"][1]["failures"], 0);
    assert_eq!((sandbox.lines_in("first.txt"), sandbox.lines_in("third.txt")), (1, 1));
    let done = sandbox.flowgate(&["run", "--resume", run_id]).exits(5);
    assert!(done.stderr.contains("has ended: it is completed"), "{done:?}");
}

#[test]
fn a_run_in_memory_leaves_nothing_behind() {
    let sandbox = Sandbox::with_examples();
    let store = ["--store", "memory:"];
    sandbox.flowgate(&[&["run", "retry.yaml"][..], &store].concat()).exits(0);
    assert!(!sandbox.path(".flowgate").exists());
    let run = sandbox.spawn(&[&["run", "approval.yaml"][..], &store].concat());
    run.stderr.wait_for("waiting for the signal");
    let done = run.interrupt().exits(130);
    assert!(done.stderr.contains("in memory only and is gone"), "{done:?}");
}

#[test]
fn a_quiet_run_prints_its_data_only() {
    let sandbox = Sandbox::with_examples();
    let done = sandbox.flowgate(&["run", "retry.yaml", "-q"]).exits(0);
    assert_eq!(done.stderr, "");
    assert!(done.stdout.contains("completed"), "{done:?}");
    let done = sandbox.flowgate(&["run", "retry.yaml", "--json"]).exits(0);
    assert_eq!((done.stderr.as_str(), done.stdout.lines().count()), ("", 1));
}

#[test]
fn log_lines_are_json_where_nobody_watches() {
    let sandbox = Sandbox::with_examples();
    let done = sandbox.flowgate(&["run", "retry.yaml", "-v", "--json"]).exits(0);
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert!(!lines.is_empty());
    for line in lines {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(value["level"].is_string(), "{line}");
    }
}

#[test]
fn colours_are_for_terminals_unless_asked_for() {
    let sandbox = Sandbox::with_examples();
    assert!(!sandbox.flowgate(&["run", "retry.yaml"]).exits(0).stdout.contains('\u{1b}'));
    let always = sandbox.flowgate(&["run", "retry.yaml", "--color", "always"]).exits(0);
    assert!(always.stdout.contains('\u{1b}'));
}

#[test]
fn spans_of_a_run_reach_the_collector_that_the_settings_name_and_nobody_otherwise() {
    let collector = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = collector.accept().unwrap();
        let mut head = [0; 512];
        let count = std::io::Read::read(&mut stream, &mut head).unwrap();
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        std::io::Write::write_all(&mut stream, answer).unwrap();
        String::from_utf8_lossy(&head[..count]).into_owned()
    });
    let sandbox = Sandbox::with_examples();
    sandbox.flowgate(&["run", "retry.yaml"]).exits(0);
    assert!(!heard.is_finished(), "nobody asked for spans");
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())];
    sandbox.flowgate_with(&variables, &["run", "retry.yaml"]).exits(0);
    let head = heard.join().unwrap();
    assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
}
