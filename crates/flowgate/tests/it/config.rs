//! Settings and stores.

use crate::sandbox::Sandbox;

#[test]
fn config_show_says_where_every_value_comes_from() {
    let sandbox = Sandbox::new();
    sandbox.write("flowgate.toml", "concurrency = 8\nqueues = [\"default\", \"mail\"]\n");
    let variables = [("FLOWGATE_LEASE", "5s")];
    let args = ["config", "show", "--set", "retention.runs=1d"];
    let done = sandbox.flowgate_with(&variables, &args).exits(0);
    insta::assert_snapshot!("config_show", done.shown());
    let done = sandbox.flowgate_with(&variables, &["config", "show", "--json"]).exits(0);
    assert_eq!(done.json()["lease"]["origin"], "variable FLOWGATE_LEASE");
    assert_eq!(done.json()["concurrency"]["origin"], "flowgate.toml:1");
    assert_eq!(done.json()["store"]["value"], "sqlite:.flowgate/flowgate.db");
}

#[test]
fn a_setting_that_does_not_exist_is_refused_with_the_nearest_name() {
    let sandbox = Sandbox::new();
    sandbox.write("flowgate.toml", "\nconcurency = 8\n");
    insta::assert_snapshot!("config_unknown", sandbox.flowgate(&["runs", "list"]).exits(2).shown());
    let done = sandbox.flowgate(&["runs", "list", "--json"]).exits(2);
    assert_eq!(done.json_error()["code"], "config_invalid");
    assert_eq!(done.json_error()["path"], "flowgate.toml");
    let other = Sandbox::new();
    let done = other.flowgate_with(&[("FLOWGATE_STOER", "x")], &["runs", "list"]).exits(2);
    assert!(done.stderr.contains("did you mean FLOWGATE_STORE?"), "{done:?}");
    other.flowgate(&["config", "show", "--config", "no.toml"]).exits(4);
}

#[test]
fn the_memory_of_another_process_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.flowgate(&["runs", "list", "--store", "memory:"]).exits(2);
}

#[test]
fn a_store_that_cannot_be_used_is_exit_code_3() {
    let sandbox = Sandbox::with_examples();
    sandbox.write("text.db", &"not a database ".repeat(100));
    let done = sandbox.flowgate(&["runs", "list", "--store", "sqlite:text.db"]).exits(3);
    assert!(done.stderr.contains("text.db"), "{done:?}");
    sandbox.flowgate(&["run", "retry.yaml", "--store", "sqlite:text.db"]).exits(3);
    sandbox.write("file", "");
    let done = sandbox.flowgate(&["run", "retry.yaml", "--store", "sqlite:file/a.db"]).exits(3);
    assert!(done.stderr.starts_with("error: "), "{done:?}");
}

#[test]
fn nothing_is_made_by_reading() {
    let sandbox = Sandbox::new();
    let done = sandbox.flowgate(&["runs", "list", "--json"]).exits(0);
    assert_eq!(done.json(), serde_json::json!({ "items": [], "total": 0, "next": null }));
    sandbox.flowgate(&["flows", "list"]).exits(0);
    sandbox.flowgate(&["why", "latest"]).exits(4);
    assert!(!sandbox.path(".flowgate").exists());
}

#[test]
fn queues_and_synchronous_are_obeyed() {
    let sandbox = Sandbox::new();
    let flow = "flow: q\nsteps:\n  a: { run: { shell: 'true' }, queue: mail }\n";
    sandbox.write("q.yaml", flow);
    let others = ["--set", "queues=default", "--set", "synchronous=normal"];
    let dev = sandbox.dev(&others);
    assert!(dev.stderr.so_far().contains("synchronous=NORMAL"));
    sandbox.flowgate(&["runs", "start", "q"]).exits(0);
    let done = sandbox.flowgate(&["why", "latest"]).exits(0);
    assert!(done.stdout.contains("waits in the queue `mail`"), "{done:?}");
    dev.interrupt().exits(130);
    sandbox.flowgate(&["run", "--resume", "latest", "--set", "queues=mail"]).exits(0);
}

#[test]
fn finished_runs_go_when_their_retention_ends() {
    let sandbox = Sandbox::with_examples();
    sandbox.flowgate(&["run", "retry.yaml"]).exits(0);
    let short = ["--set", "retention.events=0s", "--set", "retention.runs=0s"];
    let dev = sandbox.dev(&short);
    crate::sandbox::eventually("the run is removed", || {
        let listed = sandbox.flowgate(&["runs", "list", "--json"]).exits(0).json();
        listed["items"].as_array().unwrap().is_empty().then_some(())
    });
    dev.interrupt().exits(130);
}
