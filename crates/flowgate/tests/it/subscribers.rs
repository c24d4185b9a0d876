//! Sinks of the settings, and the verbs about subscribers.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::sandbox::{Running, Sandbox, eventually};
use crate::shared::Place;

const TICK: &str = "flow: tick\nsteps:\n  one: { run: { shell: 'true' } }\n";
const ARCHIVE: &str = "
[subscribers.archive]
sink = \"file\"
path = \"events.ndjson\"
mode = \"coordinated\"
lease = \"1500ms\"
";

fn sandbox(settings: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("tick.yaml", TICK);
    sandbox.write("flowgate.toml", settings);
    sandbox
}

/// The events in the file, by run.
fn lines(path: &Path) -> BTreeMap<String, Vec<u64>> {
    let mut runs: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
        let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
        let run = line["run"].as_str().unwrap().to_owned();
        runs.entry(run).or_default().push(line["seq"].as_u64().unwrap());
    }
    runs
}

/// The events that the store has, by run.
fn exported(lines: &[Value]) -> BTreeMap<String, Vec<u64>> {
    let mut runs: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for line in lines {
        let run = line["run"].as_str().unwrap().to_owned();
        runs.entry(run).or_default().push(line["seq"].as_u64().unwrap());
    }
    for events in runs.values_mut() {
        events.sort_unstable();
    }
    runs
}

#[test]
fn a_file_gets_every_event_and_the_verbs_say_so() {
    let sandbox = sandbox(ARCHIVE);
    let none = sandbox.flowgate(&["subscribers", "list"]).exits(0);
    assert!(none.stderr.contains("no subscriber has begun"), "{none:?}");
    let shown = sandbox.flowgate(&["config", "show"]).exits(0).stdout;
    assert!(shown.contains("subscribers.archive"), "{shown}");
    let dev = sandbox.dev(&[]);
    for _ in 0..3 {
        sandbox.flowgate(&["runs", "start", "tick"]).exits(0);
    }
    let path = sandbox.path("events.ndjson");
    let all = || exported(&sandbox.flowgate(&["runs", "export"]).exits(0).json_lines());
    eventually("the file has all", || {
        let all = all();
        (all.len() == 3 && lines(&path) == all).then_some(())
    });
    let listed = sandbox.flowgate(&["subscribers", "list", "--json"]).exits(0).json();
    let row = &listed["items"][0];
    assert_eq!((&row["subscriber"], &row["kind"]), (&"archive".into(), &"file".into()));
    assert_eq!((&row["state"], &row["mode"]), (&"active".into(), &"coordinated".into()));
    let shown = sandbox.flowgate(&["subscribers", "show", "archive"]).exits(0);
    assert!(shown.stdout.contains("PARTITION") && shown.stdout.contains("has 1"), "{shown:?}");
    // Set to the start by its owner, it writes all of them once more.
    sandbox.flowgate(&["subscribers", "reset", "archive", "--to", "start"]).exits(0);
    eventually("the file has all twice", || {
        let twice = |events: Vec<u64>| [events.clone(), events].concat();
        let all: BTreeMap<_, _> = all().into_iter().map(|(run, e)| (run, twice(e))).collect();
        (lines(&path) == all).then_some(())
    });
    dev.interrupt();
    // With nobody there it is written at once.
    let told = sandbox.flowgate(&["subscribers", "reset", "archive", "--to", "end", "--json"]);
    assert_eq!(told.exits(0).json()["reset"], true);
    let told = sandbox.flowgate(&["subscribers", "retry-dead", "archive", "--json"]).exits(0);
    assert_eq!(told.json()["retried"], 0);
    let missing = sandbox.flowgate(&["subscribers", "show", "nobody", "--json"]).exits(4);
    assert_eq!(missing.json_error()["code"], "subscriber_not_found");
    sandbox.flowgate(&["subscribers", "retry-dead", "nobody"]).exits(4);
    sandbox.flowgate(&["subscribers", "reset", "archive", "--to", "nowhere"]).exits(2);
}

#[test]
fn what_nobody_takes_is_a_dead_letter() {
    let settings =
        "[subscribers.hook]\nsink = \"http\"\nurl = \"http://127.0.0.1:9/\"\nattempts = 1\n";
    let sandbox = sandbox(settings);
    let dev = sandbox.dev(&[]);
    sandbox.flowgate(&["runs", "start", "tick"]).exits(0);
    let show = || sandbox.flowgate(&["subscribers", "show", "hook", "--json"]).exits(0).json();
    let shown = eventually("its events are put aside", || {
        let shown = show();
        let is_over = shown["caught_up"] == true && shown["dead"].as_u64() > Some(2);
        is_over.then_some(shown)
    });
    let letters = shown["dead_letters"].as_array().unwrap();
    assert!(letters.iter().all(|letter| letter["attempts"] == 1), "{letters:?}");
    let told = sandbox.flowgate(&["subscribers", "retry-dead", "hook", "--json"]).exits(0).json();
    assert_eq!(told["retried"].as_u64(), Some(letters.len() as u64));
    eventually("they were tried again", || {
        let letters = show()["dead_letters"].as_array().unwrap().clone();
        letters.iter().all(|letter| letter["attempts"] == 2).then_some(())
    });
    dev.interrupt();
}

#[test]
fn a_sink_that_cannot_work_is_refused_with_its_line() {
    let rows = [
        ("sink = \"http\"", "flowgate.toml:2: subscriber `a`: the sink `http` has a `url`"),
        ("sink = \"http\"\nurl = \"ftp://x\"", "is no URL to post to"),
        ("sink = \"file\"\npath = \"x\"\ntimeout = \"1s\"", "are for the sink `http`"),
        ("sink = \"file\"\npath = \"x\"\npartitions = 2", "a file has one partition"),
        ("sink = \"smtp\"", "flowgate.toml:3: unknown variant `smtp`"),
        ("sink = \"file\"\npath = \"x\"\nmode = \"both\"", "unknown variant `both`"),
        ("sink = \"file\"\npath = \"x\"\nlease = \"1ms\"", "the lease of a subscriber is 1ms"),
        ("sink = \"file\"\npaht = \"x\"", "unknown field `paht`"),
    ];
    for (settings, message) in rows {
        let sandbox = sandbox(&format!("\n[subscribers.a]\n{settings}\n"));
        let refused = sandbox.flowgate(&["dev"]).exits(2);
        assert!(refused.stderr.contains(message), "{settings}: {}", refused.stderr);
    }
}

/// The process that has the only partition.
fn active<'a>(place: &Place, sandbox: &Sandbox, devs: &'a [Running]) -> Option<&'a Running> {
    let shown = place.flowgate(sandbox, &["subscribers", "show", "archive", "--json"]);
    let shown = shown.exits(0).json();
    let name = shown["partitions"][0]["active_on"].as_str()?.to_owned();
    let listed = place.flowgate(sandbox, &["instances", "--json"]).exits(0).json();
    let rows = listed["items"].as_array().unwrap();
    let row = rows.iter().find(|row| row["instance"] == name.as_str())?;
    devs.iter().find(|dev| row["pid"].as_u64() == Some(u64::from(dev.id())))
}

fn no_line_is_lost_or_doubled_when_processes_are_paused_and_killed(place: &Place) {
    let sandbox = sandbox(ARCHIVE);
    let mut devs = vec![place.dev(&sandbox), place.dev(&sandbox), place.dev(&sandbox)];
    let path = sandbox.path("events.ndjson");
    let mut count = 0;
    for signal in ["STOP", "KILL"] {
        for _ in 0..3 {
            place.flowgate(&sandbox, &["runs", "start", "tick"]).exits(0);
            count += 1;
        }
        let victim = eventually("one is active", || active(place, &sandbox, &devs)).id();
        let at = devs.iter().position(|dev| dev.id() == victim).unwrap();
        devs[at].signal(signal);
        let others: Vec<Running> = devs.extract_if(.., |dev| dev.id() != victim).collect();
        eventually("another is active", || active(place, &sandbox, &others));
        for _ in 0..3 {
            place.flowgate(&sandbox, &["runs", "start", "tick"]).exits(0);
            count += 1;
        }
        if signal == "STOP" {
            devs[0].signal("CONT");
            devs.extend(others);
        } else {
            devs = others;
        }
    }
    eventually("the file has every event once", || {
        let export = place.flowgate(&sandbox, &["runs", "export"]).exits(0);
        let all = exported(&export.json_lines());
        let is_over = |events: &Vec<u64>| events.len() >= 4;
        (all.len() == count && all.values().all(is_over) && lines(&path) == all).then_some(())
    });
    for dev in devs {
        dev.interrupt();
    }
}

#[test]
fn no_line_is_lost_or_doubled_when_processes_are_paused_and_killed_on_postgres() {
    no_line_is_lost_or_doubled_when_processes_are_paused_and_killed(&Place::on_postgres());
}

#[test]
fn no_line_is_lost_or_doubled_when_processes_are_paused_and_killed_on_redis() {
    no_line_is_lost_or_doubled_when_processes_are_paused_and_killed(&Place::on_redis());
}
