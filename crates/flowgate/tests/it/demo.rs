//! `flowgate demo`.

use std::path::Path;
use std::time::Instant;

use serde_json::Value;

use crate::sandbox::{Running, Sandbox, ask, eventually};

/// A demo at a free port, and where it is.
fn demo(sandbox: &Sandbox, args: &[&str]) -> (Running, std::net::SocketAddr) {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = probe.local_addr().unwrap();
    drop(probe);
    let listen = address.to_string();
    (sandbox.spawn(&[&["demo", "--json", "--listen", &listen][..], args].concat()), address)
}

fn events(stdout: &str) -> Vec<Value> {
    stdout.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

fn find<'a>(events: &'a [Value], name: &str) -> &'a Value {
    let found = events.iter().find(|event| event["event"] == name);
    found.unwrap_or_else(|| panic!("there is no `{name}` in {events:#?}"))
}

#[test]
fn a_demo_serves_runs_that_finish_and_leaves_nothing_behind() {
    let sandbox = Sandbox::new();
    // Settings of the folder are not those of the demo.
    sandbox.write("flowgate.toml", "queues = [\"nothing\"]\n");
    let began = Instant::now();
    let (demo, address) = demo(&sandbox, &[]);
    demo.stdout.wait_for("\"ready\"");
    let (status, page) = eventually("the page is there", || {
        ask(address, "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    });
    assert_eq!(status, 200);
    assert!(page.contains("<html"), "{page}");
    demo.stdout.wait_for("first_run");
    println!("the first run ended {:?} after the start of the program", began.elapsed());
    let done = demo.interrupt().exits(0);
    let events = events(&done.stdout);
    assert!(find(&events, "first_run")["took_ms"].as_u64().unwrap() < 5_000, "{events:#?}");
    let verdict = &find(&events, "ended")["verdict"];
    assert_eq!((&verdict["lost"], &verdict["violations"]), (&0.into(), &Value::Array(Vec::new())));
    assert!(verdict["finished"].as_u64().unwrap() >= 1, "{verdict}");
    let folder = find(&events, "ready")["folder"].as_str().unwrap();
    assert!(!Path::new(folder).exists(), "{folder} is left behind");
    assert!(std::net::TcpStream::connect(address).is_err(), "the process of the demo is gone");
}

#[test]
fn a_demo_that_is_killed_again_and_again_loses_and_doubles_nothing() {
    let sandbox = Sandbox::new();
    let (demo, _) = demo(&sandbox, &["--crash", "--for", "12s"]);
    demo.stdout.wait_for("\"killed\"");
    demo.stdout.wait_for("\"recovered\"");
    let done = demo.end().exits(0);
    let events = events(&done.stdout);
    let in_flight = find(&events, "killed")["in_flight"].as_u64().unwrap();
    assert!(in_flight > 0, "the kill hit nothing");
    let recovered = find(&events, "recovered");
    let verdict = &recovered["verdict"];
    assert_eq!(verdict["finished"].as_u64().unwrap(), in_flight, "{verdict}");
    assert_eq!((&verdict["lost"], &verdict["doubled"]), (&0.into(), &0.into()));
    assert!(verdict["repeated"].as_u64().unwrap() > 0, "no attempt was under way: {verdict}");
    println!("{in_flight} runs in flight all ended {} ms after the kill", recovered["took_ms"]);
}

#[test]
fn a_demo_has_a_store_of_its_own_and_keeps_it_if_asked() {
    let sandbox = Sandbox::new();
    let done = sandbox.flowgate(&["demo", "--store", "sqlite:mine.db"]).exits(2);
    assert!(done.stderr.contains("a demo makes a store of its own"), "{done:?}");
    assert!(!sandbox.path("mine.db").exists());
    let (demo, _) = demo(&sandbox, &["--keep", "--for", "1s"]);
    let done = demo.end().exits(0);
    let folder = find(&events(&done.stdout), "ready")["folder"].as_str().unwrap().to_owned();
    let store = format!("sqlite:{folder}/flowgate.db");
    let listed = sandbox.flowgate(&["runs", "list", "--json", "--store", &store]).exits(0).json();
    assert!(listed["total"].as_u64().unwrap() >= 1, "{listed}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_demo_replaces_a_flow_under_load_and_loses_and_doubles_nothing() {
    let sandbox = Sandbox::new();
    let (demo, address) = demo(&sandbox, &["--redeploy"]);
    demo.stdout.wait_for("\"deployed\"");
    let listed = ask(
        address,
        "GET /api/v1/deployments HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    );
    let (status, listed) = listed.expect("it serves the dashboard meanwhile");
    assert_eq!(status, 200);
    assert!(listed.contains("every order gets an invoice"), "{listed}");
    demo.stdout.wait_for("rolled_back");
    demo.stdout.wait_for("\"counted\"");
    let done = demo.end().exits(0);
    let events = events(&done.stdout);
    let deployed: Vec<&Value> =
        events.iter().filter(|event| event["event"] == "deployed").collect();
    let verdicts: Vec<&Value> = deployed.iter().map(|event| &event["report"]["verdict"]).collect();
    assert_eq!(verdicts, ["good", "rolled_back"], "{events:#?}");
    for event in &deployed {
        assert!(event["deployment"]["held"].as_u64().unwrap() > 0, "nothing came in: {event:#}");
    }
    assert_eq!(deployed[1]["deployment"]["rollback"], "smoke tests failed: ships");
    let counted = &find(&events, "counted")["verdict"];
    let (sent, ended) = (counted["runs"].as_u64().unwrap(), counted["finished"].as_u64().unwrap());
    assert!(sent > 100, "there was no load: {counted}");
    assert_eq!(sent, ended, "{counted}");
    assert_eq!((&counted["lost"], &counted["doubled"]), (&0.into(), &0.into()), "{counted}");
    let held: u64 = deployed.iter().map(|e| e["deployment"]["held"].as_u64().unwrap()).sum();
    println!("{sent} orders sent and ended, {held} of them held by two deployments");
    let refused = sandbox.flowgate(&["demo", "--redeploy", "--crash"]).exits(2);
    assert!(refused.stderr.contains("cannot be used with"), "{refused:?}");
}
