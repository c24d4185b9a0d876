//! `flowgate store copy`.

use crate::sandbox::{Sandbox, eventually};
use crate::shared::Place;

/// A flow whose step hangs in its first process, and ends at once in the next.
const ONCE_SLOW: &str = "\
flow: slow
steps:
  work:
    run: { shell: 'test -e begun || { touch begun; sleep 5; }; echo did it' }
";

/// A file with a finished run, one that waits, one whose process was killed, and one that nobody
/// has begun.
fn filled() -> Sandbox {
    let sandbox = Sandbox::with_examples();
    sandbox.write("slow.yaml", ONCE_SLOW);
    let input = r#"{"orderId": 7}"#;
    sandbox.flowgate(&["run", "order.yaml", "--input", input, "--store", "sqlite:a.db"]).exits(0);
    sandbox.flowgate(&["run", "approval.yaml", "--no-wait", "--store", "sqlite:a.db"]).exits(0);
    let dev = sandbox.dev(&["--store", "sqlite:a.db"]);
    sandbox.flowgate(&["runs", "start", "slow", "--store", "sqlite:a.db"]).exits(0);
    eventually("the step runs", || sandbox.path("begun").exists().then_some(()));
    dev.kill();
    let start = ["runs", "start", "order", "--input", r#"{"orderId": 8}"#];
    sandbox.flowgate(&[&start[..], &["--store", "sqlite:a.db"]].concat()).exits(0);
    sandbox
}

fn a_file_moves_with_its_runs_in_flight(place: &Place) {
    let sandbox = filled();
    let copy = ["store", "copy", "sqlite:a.db", &place.url];
    let dev = sandbox.dev(&["--store", "sqlite:a.db", "--set", "queues=none"]);
    let busy = sandbox.flowgate(&copy).exits(5);
    assert!(busy.stderr.contains(&format!("in use by process {}", dev.id())), "{busy:#?}");
    dev.interrupt().exits(130);
    let before = sandbox.flowgate(&["runs", "list", "--json", "--store", "sqlite:a.db"]).stdout;

    let done = sandbox.flowgate(&[&copy[..], &["--json"]].concat()).exits(0);
    let report = done.json();
    assert_eq!(report["complete"], true, "{report:#}");
    assert_eq!(report["imported"]["runs"], 4);
    assert_eq!(report["source"], report["target"]);
    let runs = &report["target"]["runs"];
    let count = |status: &str| runs[status].as_u64().unwrap();
    assert_eq!((count("completed"), count("running") + count("waiting")), (1, 3), "{report:#}");
    assert_eq!(report["target"]["open_jobs"], 3);
    let after = sandbox.flowgate(&["runs", "list", "--json", "--store", "sqlite:a.db"]).stdout;
    assert_eq!(before, after, "the source stays as it is");

    let refused = sandbox.flowgate(&copy).exits(5);
    assert!(refused.stderr.contains("the target is not empty"), "{refused:#?}");
    assert!(refused.stderr.contains("--continue"), "{refused:#?}");
    let again = sandbox.flowgate(&[&copy[..], &["--continue"]].concat()).exits(0);
    assert!(again.stderr.contains("the target has all that the source has"), "{again:#?}");

    let dev = place.dev(&sandbox);
    let list = ["runs", "list", "--flow", "approval", "--json"];
    let listed = place.flowgate(&sandbox, &list).exits(0).stdout;
    let waiting = listed.split("\"run_id\":\"").nth(1).unwrap().split('"').next().unwrap();
    let data = r#"{"approved": true}"#;
    place.flowgate(&sandbox, &["runs", "signal", waiting, "approval", "--data", data]).exits(0);
    eventually("all runs have ended", || {
        let listed = place.flowgate(&sandbox, &["runs", "list", "--json"]).exits(0).stdout;
        (listed.matches("\"status\":\"completed\"").count() == 4).then_some(())
    });
    let exported = place.flowgate(&sandbox, &["runs", "export", "--flow", "slow"]).exits(0);
    assert!(
        exported.stdout.contains("step.lost"),
        "the killed attempt is on record: {exported:#?}"
    );
    let busy = sandbox.flowgate(&[&copy[..], &["--continue"]].concat()).exits(5);
    assert!(busy.stderr.contains("the target is in use by"), "{busy:#?}");
    dev.interrupt().exits(130);
}

#[test]
fn a_file_moves_to_postgres_with_its_runs_in_flight() {
    a_file_moves_with_its_runs_in_flight(&Place::on_postgres());
}

#[test]
fn a_file_moves_to_redis_with_its_runs_in_flight() {
    a_file_moves_with_its_runs_in_flight(&Place::on_redis());
}

#[test]
fn what_cannot_be_copied_is_refused() {
    let sandbox = Sandbox::new();
    for (from, to, code, error) in [
        ("memory:", "sqlite:b.db", 2, "FROM: a store in memory belongs to one process"),
        ("sqlite:a.db", "memory:", 2, "TO: a store in memory belongs to one process"),
        ("sqlite:a.db", "sqlite:a.db", 2, "FROM and TO are the same store"),
        ("sqlite:a.db", "sqlite:b.db", 4, "there is no store at a.db"),
        ("sqlite:a.db", "postgre://h/db", 2, "TO: there is no store `postgre:`"),
    ] {
        let done = sandbox.flowgate(&["store", "copy", from, to]).exits(code);
        assert!(done.stderr.contains(error), "{done:#?}");
    }
}
