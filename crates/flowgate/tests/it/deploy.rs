//! `flowgate deploy`, with a process that works on the store.

use serde_json::Value;

use crate::sandbox::{Sandbox, eventually};

const OLD: &str = "
flow: order
steps:
  ship: { run: { shell: 'echo one >> shipped.txt' }, retry: { attempts: 1 } }
";
const DEPLOY: &str = "
strategy: blue-green
drain_timeout: 5s
verify_timeout: 500ms
replay_rate: unlimited
smoke_tests: [{ name: ships, input: { n: 1 } }]
";

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_flow_is_deployed_and_a_broken_revision_is_rolled_back() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("flows")).unwrap();
    sandbox.write("flows/order.yaml", OLD);
    sandbox.write("new.yaml", &OLD.replace("one", "two"));
    sandbox.write("broken.yaml", &OLD.replace("echo one >> shipped.txt", "exit 3"));
    sandbox.write("deploy.yaml", DEPLOY);
    let dev = sandbox.dev(&["flows"]);

    let plan = sandbox.flowgate(&["deploy", "plan", "new.yaml", "--deploy", "deploy.yaml"]);
    assert_eq!(plan.code, Some(0), "{plan:?}");
    assert!(plan.stdout.contains("0 runs finish"), "{plan:?}");
    assert!(sandbox.flowgate(&["deploy", "status"]).stderr.contains("nothing was deployed yet"));

    let start = ["deploy", "start", "new.yaml", "--deploy", "deploy.yaml", "--author", "ann"];
    let done = sandbox.flowgate(&start);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("completed"), "{done:?}");
    assert!(done.stderr.contains("[##····] drain"), "{done:?}");
    let run = sandbox.flowgate(&["runs", "start", "order"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    eventually("the smoke test and the run have shipped", || {
        (sandbox.lines_in("flows/shipped.txt") == 2).then_some(())
    });
    let text = std::fs::read_to_string(sandbox.path("flows/shipped.txt")).unwrap();
    assert_eq!(text, "two\ntwo\n");

    let broken =
        sandbox.flowgate(&["deploy", "start", "broken.yaml", "--deploy", "deploy.yaml", "--json"]);
    assert_eq!(broken.code, Some(1), "{broken:?}");
    let deployment = parsed(&broken.stdout);
    assert_eq!(deployment["phase"], "rolled_back", "{broken:?}");
    assert_eq!(deployment["rollback"], "smoke tests failed: ships", "{broken:?}");
    let report = sandbox.flowgate(&["deploy", "report", "order"]);
    assert_eq!(report.code, Some(1), "{report:?}");
    assert!(report.stdout.contains("rolled back"), "{report:?}");
    let listed = parsed(&sandbox.flowgate(&["deploy", "status", "--json"]).stdout);
    assert_eq!(listed["items"].as_array().unwrap().len(), 2);
    let active = sandbox.flowgate(&["deploy", "status", "--active"]).exits(0);
    assert!(active.stderr.contains("none is under way"), "{active:?}");
    let pending = sandbox.flowgate(&["checkpoints", "list", "order", "--pending"]).exits(0);
    assert!(pending.stderr.contains("there are none"), "{pending:?}");
    dev.interrupt().exits(130);
    // Nobody is there to drive it, so it is under way until somebody is.
    sandbox.write("later.yaml", &OLD.replace("one", "three"));
    sandbox.flowgate(&["deploy", "start", "later.yaml"]).exits(0);
    let active = sandbox.flowgate(&["deploy", "status", "--active", "--json"]).exits(0).json();
    let [one] = active["items"].as_array().unwrap().as_slice() else { panic!("{active}") };
    assert_eq!((&one["phase"], &one["ended_at"]), (&"plan".into(), &Value::Null));
}

#[test]
fn a_deployment_that_cannot_begin_says_why() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("flows")).unwrap();
    sandbox.write("flows/order.yaml", OLD);
    sandbox.write("wrong.yaml", &OLD.replace("shell", "shel"));
    sandbox.write("new.yaml", &OLD.replace("one", "two"));
    sandbox.write("other.yaml", &OLD.replace("order", "unknown"));
    sandbox.write("slip.yaml", "drain_timeot: 3s\n");
    let dev = sandbox.dev(&["flows"]);
    let rows: [(&[&str], i32, &str); 7] = [
        (&["flows/order.yaml"], 5, "is active already"),
        (&["wrong.yaml"], 2, "wrong.yaml:4:"),
        (&["nowhere.yaml"], 2, "nowhere.yaml cannot be read"),
        (&["other.yaml"], 4, "there is no flow `unknown`"),
        (&["new.yaml", "--deploy", "slip.yaml"], 2, "drain_timeot"),
        (&["new.yaml", "--strategy", "swift"], 2, "there is no strategy `swift`"),
        (&["new.yaml", "--pool", "a@b"], 2, "`a@b` cannot be the name of a pool"),
    ];
    for (args, code, message) in rows {
        let done = sandbox.flowgate(&[&["deploy", "start"], args].concat());
        assert_eq!(done.code, Some(code), "{args:?}: {done:?}");
        assert!(done.stderr.contains(message), "{args:?}: {done:?}");
    }
    assert!(sandbox.flowgate(&["deploy", "status"]).stderr.contains("nothing was deployed yet"));
    assert_eq!(sandbox.flowgate(&["deploy", "report", "order"]).code, Some(4));
    drop(dev);
}

#[test]
fn a_canary_shows_its_share_and_samples_and_is_promoted() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("flows")).unwrap();
    sandbox.write("flows/order.yaml", OLD);
    sandbox.write("new.yaml", &OLD.replace("one", "two"));
    sandbox.write(
        "deploy.yaml",
        "strategy: canary\nverify_timeout: 1s\ncanary: { share: 100%, samples_min: 1000 }\n",
    );
    let dev = sandbox.dev(&["flows"]);
    let planned = sandbox.flowgate(&["deploy", "plan", "new.yaml", "--pool", "canary"]);
    assert!(planned.stderr.contains("no instance of the pool `canary` is alive"), "{planned:?}");
    let start = ["deploy", "start", "new.yaml", "--deploy", "deploy.yaml", "--no-wait"];
    let begun = sandbox.flowgate(&start);
    assert_eq!(begun.code, Some(0), "{begun:?}");
    let status = || sandbox.flowgate(&["deploy", "status", "order"]).stdout;
    eventually("it is watched", || status().contains("[#####·] resume").then_some(()));
    eventually("a run of it has ended", || {
        let run = sandbox.flowgate(&["runs", "start", "order"]);
        assert_eq!(run.code, Some(0), "{run:?}");
        let shown = status();
        assert!(shown.contains("canary: 100% of what starts, "), "{shown}");
        assert!(shown.contains(" runs of 1000 ended, 0 failed"), "{shown}");
        (!shown.contains(" 0 runs of 1000 ended")).then_some(())
    });
    let promoted = sandbox.flowgate(&["deploy", "promote", "order"]);
    assert_eq!(promoted.code, Some(0), "{promoted:?}");
    eventually("it has ended", || status().contains("completed, from").then_some(()));
    assert!(status().contains("canary: promoted"), "{}", status());
    drop(dev);
}

#[test]
fn deploy_flow_does_it_in_one_line() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("flows")).unwrap();
    sandbox.write("flows/order.yaml", OLD);
    std::fs::create_dir(sandbox.path("next")).unwrap();
    sandbox.write("next/order.yaml", &OLD.replace("one", "two"));
    let dev = sandbox.dev(&["flows"]);
    let line = ["deploy-flow", "--flow-tab", "order", "--flow-file", "next/order.yaml"];
    let with = |more: &[&str]| sandbox.flowgate(&[&line[..], more].concat());
    let refused = with(&["--verify"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("nothing to verify"), "{refused:?}");
    sandbox.write("next/deploy.yaml", DEPLOY);
    let planned = with(&["--dry-run"]);
    assert_eq!(planned.code, Some(0), "{planned:?}");
    assert!(sandbox.flowgate(&["deploy", "status"]).stderr.contains("nothing was deployed yet"));
    let dead = with(&["--target", "green", "--drain-timeout", "30"]);
    assert_eq!(dead.code, Some(1), "{dead:?}");
    assert!(dead.stdout.contains("no instance of the pool `green` is alive"), "{dead:?}");
    let done = with(&["--drain-timeout", "30", "--verify"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let late = sandbox.flowgate(&["deploy-flow", "--flow-tab", "order", "--rollback"]);
    assert_eq!(late.code, Some(5), "{late:?}");
    assert!(late.stderr.contains("has ended"), "{late:?}");
    drop(dev);
}

#[test]
fn a_revision_is_tried_on_earlier_inputs_before_it_is_deployed() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("flows")).unwrap();
    let flow = "
flow: order
steps:
  price: { run: { shell: 'echo \"{\\\"emit\\\": \\\"priced\\\", \\\"data\\\": 7}\"' }, emits: [priced] }
  pay: { subscribes: [priced], run: { shell: 'echo paid >> paid.txt' }, effect: true }
";
    sandbox.write("flows/order.yaml", flow);
    sandbox.write("same.yaml", &flow.replace("steps:", "description: The same.\nsteps:"));
    sandbox.write("dear.yaml", &flow.replace(": 7", ": 8"));
    let dev = sandbox.dev(&["flows"]);
    for _ in 0..2 {
        let run = sandbox.flowgate(&["runs", "start", "order"]);
        assert_eq!(run.code, Some(0), "{run:?}");
    }
    eventually("both have completed", || {
        let listed = sandbox.flowgate(&["runs", "list", "--status", "completed", "--json"]);
        (parsed(&listed.stdout)["items"].as_array()?.len() == 2).then_some(())
    });

    let plan = sandbox.flowgate(&["deploy", "plan", "dear.yaml", "--shadow", "5"]);
    assert!(plan.stdout.contains("shadow of 2 runs: executed price; not executed pay"), "{plan:?}");
    assert!(plan.stderr.contains("executes `price` for real"), "{plan:?}");
    let too_many = sandbox.flowgate(&["deploy", "shadow", "dear.yaml", "--runs", "9999"]);
    assert_eq!(too_many.code, Some(2), "{too_many:?}");

    let same = sandbox.flowgate(&["deploy", "shadow", "same.yaml", "--runs", "5"]);
    assert_eq!(same.code, Some(0), "{same:?}");
    assert!(same.stdout.contains("shadow: 2 of 2 runs compared, 0 differ"), "{same:?}");
    assert!(same.stdout.contains("nothing was changed: it was only to be tried"), "{same:?}");
    let dear = sandbox.flowgate(&["deploy", "start", "dear.yaml", "--shadow", "5"]);
    assert_eq!(dear.code, Some(1), "{dear:?}");
    assert!(dear.stdout.contains("emits.priced: wanted 7, found 8"), "{dear:?}");
    assert!(dear.stdout.contains("rolled back: 2 of 2 runs of the shadow differ"), "{dear:?}");
    let report = sandbox.flowgate(&["deploy", "report", "order"]);
    assert!(report.stdout.contains("shadow: 2 of 2 runs compared, 2 differ"), "{report:?}");
    assert_eq!(sandbox.lines_in("flows/paid.txt"), 2, "as often as before");
    drop(dev);
}
