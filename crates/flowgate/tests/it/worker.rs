//! `flowgate worker start`.

use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use flowgate_testbed::FaultProxy;
use serde_json::{Value, json};

use crate::sandbox::{Sandbox, ask, eventually};
use crate::shared::{Place, server};

const SLEEPS: &str = "flow: slow\nsteps:\n  nap: { run: { shell: 'echo > began; sleep 2' } }\n";
const STUCK: &str = "flow: slow\nsteps:\n  nap: { run: { shell: 'echo >> began; sleep 600' } }\n";

fn reasons(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap();
    body["reasons"].to_string()
}

#[test]
fn a_worker_serves_a_folder_and_says_how_it_is() {
    let sandbox = Sandbox::with_examples();
    let worker = sandbox.worker(&["."]);
    let greeting = worker.process.stderr.so_far();
    for part in ["role   all", "order@", "sqlite:.flowgate/flowgate.db", "/healthz, /readyz"] {
        assert!(greeting.contains(part), "{greeting}");
    }
    assert_eq!(worker.get("/healthz"), (200, r#"{"healthy":true,"reasons":[]}"#.to_owned()));
    assert_eq!(worker.get("/readyz"), (200, r#"{"ready":true,"reasons":[]}"#.to_owned()));
    assert_eq!(worker.metric("flowgate_ready", &[]), Some(1.0));
    sandbox.flowgate(&["runs", "start", "order", "--input", r#"{"orderId": 7}"#]).exits(0);
    eventually("the run ends", || {
        let completed = worker.metric("flowgate_runs_ended_total", &["status=\"completed\""]);
        (completed == Some(1.0)).then_some(())
    });
    let done = worker.terminate().exits(0);
    assert!(done.stderr.contains("stopped; open runs go on with the next worker"), "{done:?}");
    // Without a folder it serves what the store has.
    let worker = sandbox.worker(&[]);
    assert!(worker.process.stderr.so_far().contains("flows  those of the store"));
    sandbox.flowgate(&["runs", "start", "order", "--input", r#"{"orderId": 8}"#]).exits(0);
    eventually("the run ends", || {
        let list = sandbox.flowgate(&["runs", "list", "--status", "completed", "--json"]).json();
        (list["total"] == 2).then_some(())
    });
    worker.process.interrupt().exits(0);
}

#[test]
fn a_worker_that_stops_is_unready_at_once_and_lets_steps_end() {
    let sandbox = Sandbox::new();
    sandbox.write("slow.yaml", SLEEPS);
    let worker = sandbox.worker(&["."]);
    sandbox.flowgate(&["runs", "start", "slow"]).exits(0);
    eventually("the step runs", || sandbox.path("began").exists().then_some(()));
    worker.process.signal("TERM");
    eventually("it is unready", || {
        let (status, body) = worker.get("/readyz");
        (status == 503 && body.contains("it is stopping")).then_some(())
    });
    assert_eq!(worker.get("/healthz").0, 200, "what stops is not to be killed");
    worker.process.end().exits(0);
    let shown = sandbox.flowgate(&["runs", "show", "latest", "--json"]).exits(0).json();
    assert_eq!(shown["status"], "completed");
}

#[test]
fn what_does_not_end_within_the_grace_is_handed_back_and_burns_no_attempt() {
    let sandbox = Sandbox::new();
    sandbox.write("slow.yaml", STUCK);
    let grace = Duration::from_secs(4);
    let worker = sandbox.worker(&[".", "--set", "shutdown_grace=4s"]);
    sandbox.flowgate(&["runs", "start", "slow"]).exits(0);
    eventually("the step runs", || sandbox.path("began").exists().then_some(()));
    let told = Instant::now();
    worker.terminate().exits(0);
    assert!(told.elapsed() < grace + Duration::from_millis(500), "{:?}", told.elapsed());
    let events = sandbox.flowgate(&["runs", "events", "latest"]).exits(0).stdout;
    assert!(events.contains("step.released"), "{events}");
    let worker = sandbox.worker(&[]);
    eventually("the step runs again", || (sandbox.lines_in("began") == 2).then_some(()));
    let shown = sandbox.flowgate(&["runs", "show", "latest", "--json"]).exits(0).json();
    assert_eq!(shown["jobs"][0]["attempt"], 1, "{shown}");
    // A second signal ends it at once.
    worker.process.signal("TERM");
    worker.process.stderr.wait_for("a second signal stops at once");
    let told = Instant::now();
    worker.process.signal("TERM");
    worker.process.end().exits(143);
    assert!(told.elapsed() < Duration::from_secs(3), "{:?}", told.elapsed());
    let worker = sandbox.worker(&[]);
    worker.process.signal("INT");
    worker.process.stderr.wait_for("a second signal stops at once");
    worker.process.signal("INT");
    assert!(matches!(worker.process.end().code, Some(0 | 130)), "nothing ran, so it may be first");
}

#[test]
fn a_broken_file_keeps_a_worker_from_starting_and_nothing_is_registered() {
    let sandbox = Sandbox::with_examples();
    sandbox.write("zz.yaml", "flow: zz\nsteps:\n  a: { rum: x }\n");
    let done = sandbox.flowgate(&["worker", "start", ".", "--listen", "off"]).exits(2);
    assert!(done.stderr.contains("zz.yaml:3:8: unknown field `rum`"), "{done:?}");
    sandbox.write("zz.yaml", "flow: order\nsteps:\n  a: {}\n");
    let done = sandbox.flowgate(&["worker", "start", ".", "--listen", "off"]).exits(2);
    assert!(done.stderr.contains("flow `order` is in ./order.yaml already"), "{done:?}");
    assert!(!sandbox.path(".flowgate").exists());
    sandbox.flowgate(&["worker", "start", "nowhere"]).exits(4);
    sandbox.flowgate(&["worker", "start", "--watch"]).exits(2);
}

#[test]
fn a_watching_worker_takes_over_saved_files() {
    let sandbox = Sandbox::new();
    sandbox.write("a.yaml", "flow: a\nsteps:\n  only: {}\n");
    std::fs::create_dir(sandbox.path("more")).unwrap();
    sandbox.write("more/b.yaml", "flow: b\nsteps:\n  only: {}\n");
    let worker = sandbox.worker(&[".", "more", "--watch"]);
    let greeting = worker.process.stderr.so_far();
    assert!(greeting.contains("a@") && greeting.contains("b@"), "{greeting}");
    sandbox.write("more/b.yaml", "flow: b\nsteps:\n  other: {}\n");
    worker.process.stderr.wait_for("`b` is now revision");
    worker.terminate().exits(0);
}

fn waits_for_its_store(place: &Place, variable: &str) {
    let sandbox = Sandbox::with_examples();
    let server = server(variable);
    let upstream = server.split('@').next_back().unwrap().trim_start_matches("redis://");
    let upstream = upstream.split('/').next().unwrap();
    let proxy = FaultProxy::start(upstream.parse().unwrap()).unwrap();
    proxy.cut();
    let url = place.url.replace(upstream, &proxy.address().to_string());
    let worker = sandbox.worker_soon(&[".", "--role", "auto", "--store", &url]);
    let waiting = worker.process.stderr.wait_for("waiting for the store; unready");
    assert!(waiting.contains("not available"), "{waiting}");
    let (status, body) = worker.get("/readyz");
    assert_eq!(status, 503);
    assert!(reasons(&body).contains("the store is not available"), "{body}");
    assert_eq!(worker.get("/healthz").0, 200);
    assert_eq!(worker.get("/metrics").0, 200);
    assert!(!worker.process.stderr.so_far().contains("ready in"));
    assert!(!sandbox.path(".flowgate").exists(), "it falls back to nothing");
    proxy.pass();
    worker.process.stderr.wait_for("role   cron-worker (by auto)");
    eventually("it is ready", || (worker.get("/readyz").0 == 200).then_some(()));
    assert_eq!(worker.process.stderr.so_far().matches("waiting for the store").count(), 1);
    // And when the store goes away later it is unready, too.
    proxy.cut();
    eventually("it is unready", || (worker.get("/readyz").0 == 503).then_some(()));
    proxy.pass();
    eventually("it is ready", || (worker.get("/readyz").0 == 200).then_some(()));
    worker.terminate().exits(0);
}

#[test]
fn a_worker_waits_unready_for_postgres_and_goes_on_when_it_is_there() {
    waits_for_its_store(&Place::on_postgres(), "FLOWGATE_TEST_POSTGRES");
}

#[test]
fn a_worker_waits_unready_for_redis_and_goes_on_when_it_is_there() {
    waits_for_its_store(&Place::on_redis(), "FLOWGATE_TEST_REDIS");
}

#[test]
fn a_worker_that_waits_can_be_stopped_and_one_that_may_not_wait_exits_with_3() {
    let sandbox = Sandbox::new();
    for url in ["redis://127.0.0.1:1", "postgres://me@127.0.0.1:1/db"] {
        for role in ["all", "job-worker", "cron-worker", "auto"] {
            let args = ["worker", "start", "--no-wait", "--listen", "off", "--role", role];
            sandbox.flowgate(&[&args[..], &["--store", url]].concat()).exits(3);
        }
        let worker = sandbox.worker_soon(&["--store", url]);
        worker.process.stderr.wait_for("waiting for the store; unready");
        worker.terminate().exits(0);
    }
    // A file does not come back by itself.
    sandbox.write("file", "");
    let store = ["--store", "sqlite:file/a.db"];
    sandbox.flowgate(&[&["worker", "start", "--listen", "off"][..], &store].concat()).exits(3);
}

fn roles_start_with_their_defaults(sandbox: &Sandbox, store: &[&str]) {
    for role in ["all", "job-worker", "cron-worker", "auto"] {
        let args = [&["worker", "start", "--role", role][..], store].concat();
        let worker = sandbox.spawn(&args);
        worker.stderr.wait_for("ready in");
        let list = [&["instances", "--json"][..], store].concat();
        let row = eventually("it is listed", || {
            let listed = sandbox.flowgate(&list).exits(0).json();
            listed["items"].as_array().unwrap().first().cloned()
        });
        let expected = match (role, store) {
            ("auto", []) => "all",
            ("auto", _) => "cron-worker",
            (role, _) => role,
        };
        assert_eq!(row["role"], expected);
        assert_eq!(row["state"], "ready");
        worker.interrupt().exits(0);
    }
}

#[test]
fn each_role_starts_with_its_defaults_on_sqlite() {
    roles_start_with_their_defaults(&Sandbox::with_examples(), &[]);
}

#[test]
fn each_role_starts_with_its_defaults_on_postgres() {
    let place = Place::on_postgres();
    roles_start_with_their_defaults(&Sandbox::with_examples(), &["--store", &place.url]);
}

#[test]
fn each_role_starts_with_its_defaults_on_redis() {
    let place = Place::on_redis();
    roles_start_with_their_defaults(&Sandbox::with_examples(), &["--store", &place.url]);
}

#[test]
fn workers_are_equal_and_listed_with_role_queues_and_pool() {
    let (place, sandbox) = (Place::on_redis(), Sandbox::with_examples());
    let store = ["--store", place.url.as_str()];
    let one =
        sandbox.worker(&[&[".", "--pool", "gpu", "--queues", "default"], &store[..]].concat());
    let other = sandbox.worker(&[&["--role", "job-worker"], &store[..]].concat());
    let list = |more: &[&str]| {
        let listed = place.flowgate(&sandbox, &[&["instances", "--json"], more].concat()).json();
        listed["items"].as_array().unwrap().clone()
    };
    eventually("both are listed", || (list(&[]).len() == 2).then_some(()));
    let [row] = &list(&["--pool", "gpu"])[..] else { panic!("there is one") };
    assert_eq!((&row["role"], &row["pool"]), (&json!("all"), &json!("gpu")));
    assert_eq!(row["queues"], json!(["default"]));
    assert!(list(&["--pool", "cpu"]).is_empty());
    let table = place.flowgate(&sandbox, &["instances"]).exits(0).stdout;
    assert!(table.contains("gpu") && table.contains("job-worker"), "{table}");
    one.terminate().exits(0);
    let run_id = place.flowgate(&sandbox, &["runs", "start", "retry"]).exits(0).stdout;
    place.flowgate(&sandbox, &["runs", "watch", run_id.trim()]).exits(0);
    other.terminate().exits(0);
}

#[test]
fn a_service_manager_hears_when_it_is_ready_alive_and_stopping() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let path = path.display().to_string();
    let variables = [("NOTIFY_SOCKET", path.as_str()), ("WATCHDOG_USEC", "400000")];
    let worker = sandbox.spawn_with(&variables, &["worker", "start", "--listen", "off"]);
    let hears = |text: &str| {
        let mut bytes = [0; 4096];
        loop {
            let length = socket.recv(&mut bytes).unwrap();
            if String::from_utf8_lossy(&bytes[..length]).lines().any(|line| line == text) {
                return;
            }
        }
    };
    hears("READY=1");
    hears("WATCHDOG=1");
    hears("WATCHDOG=1");
    worker.signal("TERM");
    hears("STOPPING=1");
    worker.end().exits(0);
}

#[test]
fn a_taken_address_is_another_one_unless_it_was_chosen() {
    let sandbox = Sandbox::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let done = sandbox.flowgate(&["worker", "start", "--listen", &address]).exits(5);
    assert!(done.stderr.contains(&format!("cannot listen at {address}")), "{done:?}");
    assert!(done.stderr.contains("--listen off"), "{done:?}");
    // Two workers on one machine need no settings: at most one of them has the usual port.
    let other = Sandbox::new();
    let workers = [&sandbox, &other].map(|sandbox| sandbox.spawn(&["worker", "start"]));
    let listening = workers.each_ref().map(|worker| worker.stderr.wait_for("http://127.0.0.1:"));
    assert_ne!(listening[0], listening[1]);
    for worker in workers {
        worker.signal("TERM");
        worker.end().exits(0);
    }
}

#[test]
fn who_is_slow_to_ask_or_asks_for_something_else_is_told_off() {
    let sandbox = Sandbox::new();
    let worker = sandbox.worker(&[]);
    let (status, body) = worker.get("/api/v1/nothing");
    assert_eq!(status, 404);
    assert!(body.contains("/api/v1/openapi.json"), "{body}");
    let post = "POST /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello";
    assert_eq!(ask(worker.address, post).unwrap().0, 405);
    let (status, body) = ask(
        worker.address,
        "HEAD /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    )
    .unwrap();
    assert_eq!((status, body.as_str()), (200, ""));
    let large =
        format!("GET /readyz HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(100_000));
    assert!(ask(worker.address, &large).is_none_or(|(status, _)| status == 431));
    let began = Instant::now();
    let mut slow = std::net::TcpStream::connect(worker.address).unwrap();
    slow.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    std::io::Write::write_all(&mut slow, b"GET /readyz HTTP/1.1\r\nho").unwrap();
    let mut rest = Vec::new();
    drop(slow.read_to_end(&mut rest));
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert_eq!(worker.get("/readyz").0, 200);
    worker.terminate().exits(0);
}

#[test]
fn a_worker_tells_its_figures_now_and_then() {
    let sandbox = Sandbox::with_examples();
    let worker = sandbox.worker(&[".", "--set", "summary_interval=1s"]);
    sandbox.flowgate(&["runs", "start", "failing"]).exits(0);
    let line = worker.process.stderr.wait_for(r#""failed":1"#);
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["message"], &line["level"]), (&json!("summary"), &json!("INFO")));
    assert_eq!((&line["active"], &line["completed"]), (&json!(0), &json!(1)));
    assert_eq!((&line["retried"], &line["queued"]), (&json!(1), &json!("0")));
    assert_eq!((&line["degradation"], &line["leadership"]), (&json!("normal"), &json!("leader")));
    assert!(line["store_ms"].as_str().unwrap().parse::<f64>().unwrap() >= 0.0);
    worker.terminate().exits(0);
}

#[test]
fn a_critical_worker_refuses_new_runs_and_says_why() {
    let sandbox = Sandbox::with_examples();
    let worker = sandbox.worker(&[".", "--set", "degradation.memory_limit=1MiB"]);
    sandbox.flowgate(&["runs", "start", "approval"]).exits(0);
    worker.process.stderr.wait_for("the instance is strained");
    let done = sandbox.flowgate(&["runs", "start", "retry", "--json"]).exits(5);
    assert_eq!(done.json_error()["code"], "overloaded");
    assert!(done.stderr.contains("of the memory is in use"), "{done:?}");
    assert!(done.stderr.contains("try again in "), "{done:?}");
    assert_eq!(worker.metric("flowgate_degradation_level", &[]), Some(2.0));
    assert_eq!(worker.get("/readyz").0, 200, "what was accepted goes on");
    let row = eventually("it is listed so", || {
        let row = sandbox.flowgate(&["instances", "--json"]).json()["items"][0].clone();
        (row["state"] == "critical").then_some(row)
    });
    assert!(row["strained_by"].as_str().unwrap().contains("of the memory"), "{row}");
    let why = sandbox.flowgate(&["why", "latest"]).exits(0).stdout;
    assert!(why.contains("is critical, so it may take longer:"), "{why}");
    let signal = ["runs", "signal", "latest", "approval", "--data", r#"{"approved": true}"#];
    sandbox.flowgate(&signal).exits(0);
    eventually("the run ends", || {
        let shown = sandbox.flowgate(&["runs", "show", "latest", "--json"]).json();
        (shown["status"] == "completed").then_some(())
    });
    worker.terminate().exits(0);
}

#[test]
fn a_step_that_aborts_its_process_uses_up_its_attempts_and_is_a_dead_letter() {
    let sandbox = Sandbox::new();
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_flowgate")).parent().unwrap();
    let path = sandbox.path("abort.db");
    let start = || {
        let mut command = std::process::Command::new(folder.join("examples/abort"));
        command.arg(&path).stderr(std::process::Stdio::null()).status().unwrap()
    };
    // A step may be lost that often.
    let aborts = (0..100).take_while(|_| !start().success()).count();
    assert_eq!(aborts, 25);
    let store = ["--store", "sqlite:abort.db"];
    let show = sandbox.flowgate(&[&["runs", "show", "latest", "--json"], &store[..]].concat());
    let shown = show.exits(0).json();
    assert_eq!((&shown["status"], &shown["failure"]["kind"]), (&json!("failed"), &json!("lost")));
    assert_eq!(shown["steps"][0]["attempts"], 26);
    let why = sandbox.flowgate(&[&["why", "latest"], &store[..]].concat()).exits(0).stdout;
    assert!(why.contains("was lost 25 times, and it may not be lost again"), "{why}");
    let dead =
        sandbox.flowgate(&[&["dead", "list", "--json"], &store[..]].concat()).exits(0).json();
    assert_eq!((&dead["total"], &dead["items"][0]["run_id"]), (&json!(1), &shown["run_id"]));
    assert_eq!(
        (&dead["items"][0]["kind"], &dead["items"][0]["step"]),
        (&json!("lost"), &json!("end"))
    );
}

/// The commands in the examples of a document that start a worker.
fn documented(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines().filter(|line| line.starts_with("flowgate worker start"));
    let commands = lines.map(|line| line.split(" #").next().unwrap_or(line));
    commands.map(|command| command.split_whitespace().skip(1).collect()).collect()
}

#[test]
fn every_documented_worker_starts_as_it_is_written() {
    let guide = documented(include_str!("../../../../docs/guide/deploying.md"));
    assert!(guide.len() >= 5, "{guide:?}");
    let readme = documented(include_str!("../../../../README.md"));
    assert!(!readme.is_empty());
    let (postgres, redis) = (Place::on_postgres(), Place::on_redis());
    for args in guide.into_iter().chain(readme) {
        let sandbox = Sandbox::new();
        let flows = sandbox.path("flows");
        std::fs::create_dir(&flows).unwrap();
        sandbox.write("flows/a.yaml", "flow: a\nsteps:\n  only: {}\n");
        let here = |arg| match arg {
            "postgres://user@db/flowgate" => postgres.url.as_str(),
            "redis://cache:6379" => redis.url.as_str(),
            other => other,
        };
        let worker = sandbox.spawn(&args.iter().copied().map(here).collect::<Vec<_>>());
        worker.stderr.wait_for("ready in");
        worker.interrupt().exits(0);
    }
}
