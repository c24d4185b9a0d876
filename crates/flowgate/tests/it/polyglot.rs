//! One run through a shell, Python, TypeScript and Rust, with each worker killed in the middle of
//! its step. The workers are those of `examples/polyglot`.

use std::path::Path;

use serde_json::{Value, json};

use crate::sandbox::{Running, Sandbox, eventually, repository};
use crate::shared::Place;

/// How long each worker takes for its step: long enough to be killed meanwhile on a busy machine.
const WORK_MS: u64 = 5_000;

/// Where the programs of the workers talk to.
struct Site<'a> {
    sandbox: &'a Sandbox,
    server: String,
    store: &'a str,
}

impl Site<'_> {
    /// The worker that executes a step.
    fn worker_of(&self, step: &str) -> Running {
        let folder = repository().join("examples/polyglot");
        let text = |path: &Path| path.display().to_string();
        match step {
            "score" => {
                let client = text(&repository().join("clients/python/src"));
                let variables = [("PYTHONPATH", &*client), ("PYTHONDONTWRITEBYTECODE", "1")];
                let program = text(&folder.join("worker.py"));
                self.sandbox.program("python3", &variables, &[&program, &self.server])
            }
            "price" => {
                let program = folder.join("build/worker.js");
                assert!(program.is_file(), "build it with `cargo xtask clients --build-only`");
                self.sandbox.program("node", &[], &[&text(&program), &self.server])
            }
            "decide" => {
                let built = Path::new(env!("CARGO_BIN_EXE_flowgate")).parent().unwrap();
                let program = text(&built.join("examples/polyglot"));
                self.sandbox.program(&program, &[], &[self.store])
            }
            other => panic!("no worker executes {other}"),
        }
    }
}

fn each_worker_is_killed_once_and_the_run_completes(place: &Place) {
    let sandbox = Sandbox::new();
    let flow = repository().join("examples/polyglot/flow.yaml");
    std::fs::copy(flow, sandbox.path("flow.yaml")).unwrap();
    let server = sandbox.worker(&[".", "--store", &place.url]);
    let site =
        Site { sandbox: &sandbox, server: format!("http://{}", server.address), store: &place.url };
    let input = json!({ "orderId": 7, "workMs": WORK_MS }).to_string();
    let start = ["runs", "start", "polyglot", "--input", &input];
    let run_id = place.flowgate(&sandbox, &start).exits(0).stdout.trim().to_owned();
    let shown = || place.flowgate(&sandbox, &["runs", "show", &run_id, "--json"]).exits(0).json();

    let mut living = Vec::new();
    for step in ["score", "price", "decide"] {
        let mut worker = site.worker_of(step);
        eventually(&format!("{step} runs"), || {
            assert!(worker.is_alive(), "{step}: {}", worker.stderr.so_far());
            (state(&shown(), step) == "running").then_some(())
        });
        worker.kill();
        assert_eq!(state(&shown(), step), "running", "it was killed in the middle of its step");
        living.push(site.worker_of(step));
        eventually(&format!("{step} succeeds"), || {
            (state(&shown(), step) == "succeeded").then_some(())
        });
    }
    let run = eventually("the run ends", || Some(shown()).filter(|run| run["status"] != "running"));
    assert_eq!(run["status"], "completed", "{run:#}");
    let decided = json!({ "order.decided": { "accepted": true, "points": 70 } });
    assert_eq!(step_of(&run, "tell")["result"], decided);

    let events = place.flowgate(&sandbox, &["runs", "export", &run_id]).exits(0).json_lines();
    let count = |kind: &str, step: &str| {
        events.iter().filter(|event| event["type"] == kind && event["step"] == step).count()
    };
    for step in ["score", "price", "decide"] {
        assert_eq!((count("step.lost", step), count("step.succeeded", step)), (1, 1), "{step}");
        let logs = ["runs", "logs", &run_id, "--step", step];
        let lines = place.flowgate(&sandbox, &logs).exits(0).stdout;
        let key = format!("key {run_id}/{step}/1");
        assert_eq!(lines.lines().filter(|line| line.contains(&key)).count(), 1, "{lines}");
    }
    for step in ["intake", "tell"] {
        assert_eq!(count("step.succeeded", step), 1, "{step}");
    }
    drop(living);
    server.terminate().exits(0);
}

fn step_of<'a>(run: &'a Value, name: &str) -> &'a Value {
    let steps = run["steps"].as_array().unwrap();
    steps.iter().find(|step| step["name"] == name).unwrap()
}

fn state(run: &Value, step: &str) -> String {
    step_of(run, step)["state"].as_str().unwrap().to_owned()
}

#[test]
fn a_run_in_four_languages_survives_the_kill_of_each_worker_on_redis() {
    each_worker_is_killed_once_and_the_run_completes(&Place::on_redis());
}

#[test]
fn a_run_in_four_languages_survives_the_kill_of_each_worker_on_postgres() {
    each_worker_is_killed_once_and_the_run_completes(&Place::on_postgres());
}
