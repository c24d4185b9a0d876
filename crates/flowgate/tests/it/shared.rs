//! Many processes on one store: PostgreSQL and Redis.

use crate::sandbox::{Done, Running, Sandbox, eventually};

/// A place of its own on a private server, by the URL of a store.
pub(crate) struct Place {
    pub(crate) url: String,
}

impl Place {
    pub(crate) fn on_postgres() -> Self {
        Self { url: format!("{}?schema=cli_{}", server("FLOWGATE_TEST_POSTGRES"), unique()) }
    }

    pub(crate) fn on_redis() -> Self {
        Self { url: format!("{}?prefix=cli_{}", server("FLOWGATE_TEST_REDIS"), unique()) }
    }

    pub(crate) fn flowgate(&self, sandbox: &Sandbox, args: &[&str]) -> Done {
        sandbox.flowgate(&[args, &["--store", &self.url]].concat())
    }

    pub(crate) fn spawn(&self, sandbox: &Sandbox, args: &[&str]) -> Running {
        sandbox.spawn(&[args, &["--store", &self.url]].concat())
    }

    pub(crate) fn dev(&self, sandbox: &Sandbox) -> Running {
        sandbox.dev(&["--store", &self.url])
    }

    /// The states of the instances, in their order.
    fn states(&self, sandbox: &Sandbox) -> Vec<String> {
        let listed = self.flowgate(sandbox, &["instances", "--json"]).exits(0).json();
        let rows = listed["items"].as_array().unwrap();
        rows.iter().map(|row| row["state"].as_str().unwrap().to_owned()).collect()
    }
}

pub(crate) fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} names no server; run the tests with \
             `cargo xtask services with cargo nextest run -p flowgate`"
        )
    })
}

fn unique() -> String {
    format!("{:016x}", fastrand::u64(..))
}

fn started(done: Done) -> String {
    done.exits(0).stdout.trim().to_owned()
}

fn instances_are_equal_and_a_run_is_watched_from_anywhere(place: &Place) {
    let (here, there) = (Sandbox::with_examples(), Sandbox::with_examples());
    let none = place.flowgate(&here, &["instances"]).exits(0);
    assert!(none.stderr.contains("no instance has been heard of; start one with `flowgate dev`"));
    let (one, other) = (place.dev(&here), place.dev(&there));
    eventually("both are listed", || (place.states(&here) == ["ready", "ready"]).then_some(()));
    let listed = place.flowgate(&here, &["instances", "--json"]).json();
    let pids: Vec<u64> = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            assert_eq!(row["queues"], serde_json::Value::Null);
            assert_eq!((&row["slots"], &row["running"]), (&256.into(), &0.into()));
            row["pid"].as_u64().unwrap()
        })
        .collect();
    assert!([one.id(), other.id()].iter().all(|pid| pids.contains(&u64::from(*pid))));
    assert!(place.flowgate(&here, &["instances"]).stdout.contains("0/256"));

    let run_id = started(place.flowgate(&here, &["runs", "start", "approval"]));
    let watch = place.spawn(&there, &["runs", "watch", &run_id]);
    watch.stdout.wait_for("step.waiting");
    let data = ["--data", r#"{"approved": true}"#];
    place.flowgate(&here, &[&["runs", "signal", &run_id, "approval"][..], &data].concat()).exits(0);
    let watched = watch.end().exits(0);
    assert!(watched.stdout.contains("run.completed"), "{watched:#?}");
    let failing = started(place.flowgate(&here, &["runs", "start", "failing"]));
    place.flowgate(&there, &["runs", "watch", &failing]).exits(1);

    one.interrupt().exits(130);
    assert_eq!(place.states(&here), ["ready"]);
    // A killed one leaves without a word, and nobody takes it for ended before its time.
    other.kill();
    assert_eq!(place.states(&here), ["ready"]);
    eventually("it is silent", || (place.states(&here) == ["silent"]).then_some(()));
}

#[test]
fn instances_on_postgres_are_equal_and_a_run_is_watched_from_anywhere() {
    instances_are_equal_and_a_run_is_watched_from_anywhere(&Place::on_postgres());
}

#[test]
fn instances_on_redis_are_equal_and_a_run_is_watched_from_anywhere() {
    instances_are_equal_and_a_run_is_watched_from_anywhere(&Place::on_redis());
}

fn every_verb_works_without_an_instance(place: &Place) {
    let sandbox = Sandbox::with_examples();
    let ran = place.flowgate(&sandbox, &["run", "order.yaml", "--input", r#"{"orderId": 7}"#]);
    assert!(ran.exits(0).stdout.contains("completed after"));
    let started_here =
        place.flowgate(&sandbox, &["runs", "start", "order", "--input", r#"{"orderId": 8}"#]);
    assert!(started_here.stderr.contains("nobody executes it yet"), "{started_here:#?}");
    let run_id = started(started_here);
    assert!(place.states(&sandbox).is_empty(), "a client is no instance");
    let why = place.flowgate(&sandbox, &["why", &run_id]).exits(0);
    assert!(why.stdout.contains("no process works on the store"), "{why:#?}");
    place.flowgate(&sandbox, &["runs", "cancel", &run_id]).exits(0);
    place.flowgate(&sandbox, &["runs", "cancel", &run_id]).exits(0);
    let again = started(place.flowgate(&sandbox, &["runs", "retry", &run_id]));
    place.flowgate(&sandbox, &["run", "--resume", &again]).exits(0);
    for verb in ["show", "events", "logs", "export", "watch"] {
        place.flowgate(&sandbox, &["runs", verb, &again]).exits(0);
    }
    let listed = place.flowgate(&sandbox, &["runs", "list", "--json"]).exits(0);
    assert_eq!(listed.stdout.matches("\"run_id\"").count(), 3, "{listed:#?}");
    place.flowgate(&sandbox, &["flows", "list"]).exits(0);
    place.flowgate(&sandbox, &["runs", "start", "nobody"]).exits(4);
}

#[test]
fn every_verb_works_on_postgres_without_an_instance() {
    every_verb_works_without_an_instance(&Place::on_postgres());
}

#[test]
fn every_verb_works_on_redis_without_an_instance() {
    every_verb_works_without_an_instance(&Place::on_redis());
}

/// What is steered on one process is seen by others, on any store.
fn queues_and_dead_letters_are_steered(place: &Place) {
    let sandbox = Sandbox::with_examples();
    sandbox.write(
        "mail.yaml",
        "flow: mail\nsteps:\n  only: { run: { shell: 'echo done >> done' }, queue: slow }\n",
    );
    place.flowgate(&sandbox, &["run", "mail.yaml"]).exits(0);
    let set = ["queues", "set", "slow", "--concurrency", "2", "--rate", "10/s"];
    assert_eq!(place.flowgate(&sandbox, &set).exits(0).stdout, "slow: open, 2 at once, 10/s\n");
    place.flowgate(&sandbox, &["queues", "pause", "slow"]).exits(0);
    let run_id = started(place.flowgate(&sandbox, &["runs", "start", "mail"]));
    let listed = place.flowgate(&sandbox, &["queues", "list", "--json"]).exits(0).json();
    let queue = &listed["items"][0];
    assert_eq!((&queue["queue"], &queue["paused"]), (&"slow".into(), &true.into()));
    assert_eq!((&queue["due"], &queue["concurrency"]), (&1.into(), &2.into()));
    place.flowgate(&sandbox, &["queues", "resume", "slow"]).exits(0);
    place.flowgate(&sandbox, &["queues", "unset", "slow", "--rate"]).exits(0);
    let shown = place.flowgate(&sandbox, &["queues", "show", "slow"]).exits(0).stdout;
    assert!(shown.contains("open, 2 at once"), "{shown}");
    place.flowgate(&sandbox, &["run", "--resume", &run_id]).exits(0);
    assert_eq!(sandbox.lines_in("done"), 2);

    for _ in 0..3 {
        place.flowgate(&sandbox, &["run", "failing.yaml"]).exits(1);
    }
    let total = || {
        let listed = place.flowgate(&sandbox, &["dead", "list", "--json"]).exits(0).json();
        listed["total"].clone()
    };
    assert_eq!(total(), 3);
    let groups = place.flowgate(&sandbox, &["dead", "list", "--group", "--json"]).exits(0).json();
    let group = &groups["items"][0];
    assert_eq!((&group["count"], &group["step"]), (&3.into(), &"charge".into()));
    let listed = place.flowgate(&sandbox, &["dead", "list", "--json"]).exits(0).json();
    let first = listed["items"][0]["run_id"].as_str().unwrap();
    let retried = ["dead", "retry", first, "--yes", "--json"];
    let retried = place.flowgate(&sandbox, &retried).exits(0).json();
    let new_run = retried["done"][0]["new_run_id"].as_str().unwrap();
    let shown = place.flowgate(&sandbox, &["runs", "show", first, "--json"]).exits(0).json();
    assert_eq!(shown["fate"]["run_id"], new_run);
    assert_eq!(total(), 2);
    let dropped = ["dead", "drop", "--flow", "failing", "--yes"];
    assert_eq!(place.flowgate(&sandbox, &dropped).exits(0).stdout, "2 of 2 dropped\n");
    assert_eq!(total(), 0);
}

#[test]
fn queues_and_dead_letters_are_steered_on_postgres() {
    queues_and_dead_letters_are_steered(&Place::on_postgres());
}

#[test]
fn queues_and_dead_letters_are_steered_on_redis() {
    queues_and_dead_letters_are_steered(&Place::on_redis());
}

#[test]
fn a_server_that_is_not_there_is_told_with_the_way_out_and_without_the_password() {
    let sandbox = Sandbox::new();
    for url in ["postgres://me:hunter2@127.0.0.1:1/db", "redis://me:hunter2@127.0.0.1:1"] {
        for verb in [&["runs", "list"][..], &["dev"], &["instances"], &["runs", "start", "a"]] {
            let done = sandbox.flowgate(&[verb, &["--store", url]].concat()).exits(3);
            assert!(done.stderr.contains("error: the store is not available"), "{done:#?}");
            assert!(done.stderr.contains("help: check that the server runs"), "{done:#?}");
            assert!(!done.stderr.contains("hunter2"), "{done:#?}");
        }
        let doctor = sandbox.flowgate(&["doctor", "--store", url]).exits(1);
        assert!(doctor.stdout.contains("bad "), "{doctor:#?}");
        let shown = sandbox.flowgate(&["config", "show", "--store", url]).exits(0);
        assert!(!format!("{shown:?}{doctor:?}").contains("hunter2"), "{shown:#?}{doctor:#?}");
    }
}

#[test]
fn a_url_that_names_no_store_is_refused_with_the_nearest() {
    let sandbox = Sandbox::new();
    for (url, error, help) in [
        ("postgress://h/db", "there is no store `postgress:`", "did you mean `postgres:`"),
        ("redis-cluser://h", "there is no store `redis-cluser:`", "did you mean `redis-cluster:`"),
        ("redis://h?prefx=a", "`prefx` is no parameter of a Redis store", "write it as redis://"),
        ("redis+sentinel://h:1", "names the primary", "redis+sentinel://one:26379"),
        ("postgres://h/db?pool_size=0", "pool_size=0", "write it as postgres://"),
        ("postgres:h", "comes `//` and a host", "write it as postgres://"),
    ] {
        let done = sandbox.flowgate(&["runs", "list", "--store", url]).exits(2);
        assert!(done.stderr.contains(error), "{done:#?}");
        assert!(done.stderr.contains(help), "{done:#?}");
    }
}
