//! `flowgate schedules` and `instances --leader`, on every kind of store.

use serde_json::Value;

use crate::sandbox::{Done, Running, Sandbox, eventually};
use crate::shared::Place;

const FLOW: &str = "
flow: tick
input: { type: object }
steps: { done: {} }
schedules:
  often: { every: 1s, input: { a: 1 } }
  yearly: { cron: '0 0 1 1 *', zone: Europe/Berlin, input: {} }
";

/// Where a command finds the store.
enum Where {
    Here,
    There(Place),
}

impl Where {
    fn flowgate(&self, sandbox: &Sandbox, args: &[&str]) -> Done {
        match self {
            Self::Here => sandbox.flowgate(args),
            Self::There(place) => place.flowgate(sandbox, args),
        }
    }

    fn dev(&self, sandbox: &Sandbox) -> Running {
        match self {
            Self::Here => sandbox.dev(&[]),
            Self::There(place) => place.dev(sandbox),
        }
    }

    fn json(&self, sandbox: &Sandbox, args: &[&str]) -> Value {
        self.flowgate(sandbox, &[args, &["--json"]].concat()).exits(0).json()
    }
}

fn items(value: &Value) -> &[Value] {
    value["items"].as_array().unwrap()
}

fn schedules_are_seen_and_steered(place: &Where) {
    let sandbox = Sandbox::new();
    sandbox.write("tick.yaml", FLOW);
    let dev = place.dev(&sandbox);
    let names = |value: &Value| -> Vec<String> {
        items(value).iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    };
    let listed = place.json(&sandbox, &["schedules", "list"]);
    assert_eq!(names(&listed), ["tick/often", "tick/yearly"]);
    let add = ["schedules", "add", "mine", "--flow", "tick", "--every", "1h", "--input", "{}"];
    place.flowgate(&sandbox, &add).exits(0);
    place.flowgate(&sandbox, &add).exits(5);
    place.flowgate(&sandbox, &[&add[..], &["--replace", "--overlap", "skip"]].concat()).exits(0);
    let first = place.json(&sandbox, &["schedules", "list", "--limit", "2"]);
    assert_eq!(
        (names(&first), &first["next"]),
        (vec!["mine".into(), "tick/often".into()], &"tick/often".into())
    );
    let rest =
        place.json(&sandbox, &["schedules", "list", "--limit", "2", "--after", "tick/often"]);
    assert_eq!((names(&rest), &rest["next"]), (vec!["tick/yearly".into()], &Value::Null));

    // The leader fires, and says so in the ledger.
    let fired = eventually("two occurrences are fired", || {
        let rows = place.json(&sandbox, &["schedules", "occurrences", "tick/often"]);
        (items(&rows).len() >= 2).then_some(rows)
    });
    let run_id = items(&fired)[1]["run_id"].as_str().unwrap();
    place.flowgate(&sandbox, &["runs", "watch", run_id]).exits(0);
    let tagged = place.json(&sandbox, &["runs", "list", "--tag", "schedule=tick/often"]);
    assert!(items(&tagged).len() >= 2, "{tagged}");

    place.flowgate(&sandbox, &["schedules", "pause", "tick/often"]).exits(0);
    let paused = place.json(&sandbox, &["schedules", "show", "tick/often"]);
    assert_eq!(paused["paused"], true);
    eventually("an occurrence is skipped", || {
        let args = ["schedules", "occurrences", "tick/often", "--fate", "skipped"];
        let rows = place.json(&sandbox, &args);
        items(&rows).iter().any(|row| row["reason"] == "paused").then_some(())
    });
    let filled = place.json(&sandbox, &["schedules", "backfill", "tick/often", "--from", "1m"]);
    let filled: Vec<&str> =
        items(&filled).iter().map(|row| row["run_id"].as_str().unwrap()).collect();
    assert!(!filled.is_empty());
    eventually("what was skipped has its run", || {
        (place.flowgate(&sandbox, &["runs", "show", filled[0]]).code == Some(0)).then_some(())
    });
    place.flowgate(&sandbox, &["schedules", "resume", "tick/often"]).exits(0);
    let run_id = place.flowgate(&sandbox, &["schedules", "trigger", "tick/yearly"]).exits(0);
    let run_id = run_id.stdout.trim();
    eventually("it is started", || {
        (place.flowgate(&sandbox, &["runs", "show", run_id]).code == Some(0)).then_some(())
    });

    let args = ["schedules", "next", "tick/yearly", "-n", "2", "--from", "2026-06-01T00:00:00Z"];
    let next = place.json(&sandbox, &args);
    let expected = ["2026-12-31T23:00:00.000Z", "2027-12-31T23:00:00.000Z"];
    assert_eq!(items(&next), expected.map(Value::from));
    place.flowgate(&sandbox, &["schedules", "remove", "mine"]).exits(0);
    place.flowgate(&sandbox, &["schedules", "remove", "tick/often"]).exits(5);
    let slip = place.flowgate(&sandbox, &["schedules", "show", "tick/ofen"]).exits(4);
    assert!(slip.stderr.contains("did you mean `tick/often`?"), "{slip:#?}");

    let leader = place.json(&sandbox, &["instances", "--leader"]);
    assert_eq!((&leader["leader"]["end"], &leader["flapping"]), (&"leads".into(), &false.into()));
    dev.interrupt().exits(130);
    what_is_asked_of_nobody_is_done_by_the_next(place, &sandbox);
}

fn what_is_asked_of_nobody_is_done_by_the_next(place: &Where, sandbox: &Sandbox) {
    let leader = place.json(sandbox, &["instances", "--leader"]);
    assert_eq!(leader["leader"], Value::Null);
    assert_eq!(leader["terms"][0]["end"], "released");
    // With nobody there it is written down all the same.
    let done = place.flowgate(sandbox, &["schedules", "trigger", "tick/yearly"]).exits(0);
    assert!(done.stderr.contains("no instance leads now"), "{done:#?}");
    let dev = place.dev(sandbox);
    eventually("what was asked for is started", || {
        let run_id = done.stdout.trim();
        (place.flowgate(sandbox, &["runs", "show", run_id]).code == Some(0)).then_some(())
    });
    // A file without schedules takes them away.
    sandbox.write("tick.yaml", "flow: tick\nsteps: { done: {} }\n");
    eventually("they are gone", || {
        items(&place.json(sandbox, &["schedules", "list"])).is_empty().then_some(())
    });
    dev.interrupt().exits(130);
}

#[test]
fn schedules_are_seen_and_steered_beside_the_owner_of_a_file() {
    schedules_are_seen_and_steered(&Where::Here);
}

#[test]
fn schedules_are_seen_and_steered_on_postgres() {
    schedules_are_seen_and_steered(&Where::There(Place::on_postgres()));
}

#[test]
fn schedules_are_seen_and_steered_on_redis() {
    schedules_are_seen_and_steered(&Where::There(Place::on_redis()));
}

#[test]
fn a_wrong_schedule_is_refused_before_anything_is_written() {
    let sandbox = Sandbox::new();
    let rows: [(&[&str], &str); 7] = [
        (&["--cron", "*/0 * * * *"], "--cron: `*/0` does not fit the minute"),
        (&["--cron", "0 0 30 2 *"], "is never due"),
        (&["--cron", "@daily", "--zone", "Europe/Berln"], "did you mean `Europe/Berlin`?"),
        (&["--every", "1h", "--overlap", "queue"], "--overlap: `queue` is not a policy"),
        (&["--every", "soon"], "--every: `soon` is not a length of time"),
        (&["--every", "1h", "--catch-up", "some"], "--catch-up: `some` is not a policy"),
        (&[], "the schedule does not say when"),
    ];
    for (flags, message) in rows {
        let args = [&["schedules", "add", "x", "--flow", "f"], flags].concat();
        let done = sandbox.flowgate(&args).exits(2);
        assert!(done.stderr.contains(message), "{message}: {done:#?}");
    }
    assert!(!sandbox.path(".flowgate").exists());
    sandbox.flowgate(&["schedules", "add", "x", "--flow", "f", "--every", "1h"]).exits(4);
}
