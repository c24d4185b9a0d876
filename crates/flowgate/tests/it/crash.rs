//! A process that ends without a word loses nothing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::sandbox::{Sandbox, eventually};

const RUNS: usize = 4;

/// Every step leaves a line behind; the second is in the middle when the process is killed.
const WORK: &str = r"
flow: work
steps:
  first: { run: { shell: 'echo x >> first.txt' } }
  second:
    subscribes: ['step:first']
    run: { shell: 'echo x >> begun.txt; sleep 0.7' }
  third: { subscribes: ['step:second'], run: { shell: 'echo x >> third.txt' } }
";

/// The runs with an event that `matches`.
fn runs_with(sandbox: &Sandbox, matches: impl Fn(&serde_json::Value) -> bool) -> BTreeSet<String> {
    let lines = sandbox.flowgate(&["runs", "export"]).exits(0).json_lines();
    let found = lines.iter().filter(|line| matches(line));
    found.map(|line| line["run"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_killed_owner_is_replaced_and_every_open_run_goes_on() {
    let sandbox = Sandbox::new();
    sandbox.write("work.yaml", WORK);
    let dev = sandbox.dev(&[]);
    for _ in 0..RUNS {
        sandbox.flowgate(&["runs", "start", "work"]).exits(0);
    }
    eventually("every run is in its second step", || {
        (sandbox.lines_in("begun.txt") == RUNS).then_some(())
    });
    dev.kill();
    assert_eq!(sandbox.lines_in("first.txt"), RUNS);
    let restarted = Instant::now();
    let dev = sandbox.dev(&[]);
    assert!(dev.stderr.so_far().contains(&format!("{RUNS} runs go on")));
    eventually("every second step is tried again", || {
        (sandbox.lines_in("begun.txt") == 2 * RUNS).then_some(())
    });
    assert!(restarted.elapsed() < Duration::from_secs(2), "{:?}", restarted.elapsed());
    eventually("every run completes", || {
        let done = runs_with(&sandbox, |line| line["type"] == "run.completed");
        (done.len() == RUNS).then_some(())
    });
    dev.interrupt().exits(130);
    assert_eq!(sandbox.lines_in("first.txt"), RUNS, "a completed step is not run again");
    assert_eq!(sandbox.lines_in("third.txt"), RUNS);
    let lost = runs_with(&sandbox, |line| line["type"] == "step.lost" && line["step"] == "second");
    assert_eq!(lost.len(), RUNS, "every lost lease is in the log");
    let numbers = sandbox.flowgate(&["runs", "events", "latest", "--json"]).exits(0).json_lines();
    for (at, line) in numbers.iter().enumerate() {
        assert_eq!(line["seq"], at + 1);
    }
}

#[test]
fn a_killed_run_goes_on_with_resume() {
    let sandbox = Sandbox::new();
    sandbox.write("work.yaml", WORK);
    let run = sandbox.spawn(&["run", "work.yaml"]);
    eventually("the second step runs", || (sandbox.lines_in("begun.txt") == 1).then_some(()));
    run.kill();
    let report = sandbox.flowgate(&["run", "--resume", "latest", "--json"]).exits(0).json();
    assert_eq!(report["status"], "completed");
    assert_eq!((sandbox.lines_in("first.txt"), sandbox.lines_in("third.txt")), (1, 1));
}
