//! `flowgate flows`.

use crate::sandbox::{Sandbox, repository};

#[test]
fn every_broken_file_is_refused_with_its_place_and_a_remedy() {
    let sandbox = Sandbox::new();
    let folder = repository().join("crates/flowgate-core/tests/it/broken");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().display().to_string())
        .filter(|name| [".yaml", ".yml", ".json"].iter().any(|end| name.ends_with(end)))
        .collect();
    files.sort();
    assert!(files.len() >= 25, "{}", files.len());
    let args: Vec<&str> =
        ["flows", "validate"].into_iter().chain(files.iter().map(|file| &**file)).collect();
    let done = sandbox.flowgate(&args).exits(2);
    for file in &files {
        let place = |line: &str| {
            let rest = line.strip_prefix(&format!("{file}:"))?;
            let mut parts = rest.splitn(3, ':');
            let is_number = |part: Option<&str>| part.is_some_and(|p| p.parse::<u64>().is_ok());
            (is_number(parts.next()) && is_number(parts.next())).then_some(())?;
            parts.next().filter(|cause| cause.contains("; ")).map(|_| ())
        };
        assert!(done.stdout.lines().any(|line| place(line).is_some()), "{file}: {}", done.stdout);
        assert!(!done.stdout.contains(&format!("{file}: ok")), "{file}");
    }
    let json = sandbox.flowgate(&[&args[..], &["--json"]].concat()).exits(2).json();
    let results = json["files"].as_array().unwrap();
    assert_eq!(results.len(), files.len());
    for result in results {
        assert_eq!(result["valid"], false, "{result}");
        assert!(result["errors"][0]["line"].is_u64(), "{result}");
    }
}

#[test]
fn validate_reports_all_files_good_and_bad() {
    let sandbox = Sandbox::with_examples();
    sandbox.write("bad.yaml", "flow: bad\nsteps:\n  a: { rum: { shell: x } }\n  b: {}\n");
    let done =
        sandbox.flowgate(&["flows", "validate", "order.yaml", "bad.yaml", "no.yaml"]).exits(2);
    insta::assert_snapshot!("validate", done.shown());
}

#[test]
fn a_flow_is_drawn_in_four_ways() {
    let sandbox = Sandbox::with_examples();
    let starts =
        [("text", "order ("), ("mermaid", "flowchart"), ("dot", "digraph"), ("svg", "<svg")];
    for (format, start) in starts {
        let done = sandbox.flowgate(&["flows", "graph", "order.yaml", "--format", format]).exits(0);
        assert!(done.stdout.starts_with(start), "{format}: {}", done.stdout);
        assert!(done.stdout.contains("payment.done"), "{format}: {}", done.stdout);
    }
    sandbox.flowgate(&["flows", "graph", "order"]).exits(4);
    sandbox.flowgate(&["flows", "graph", "order.yaml", "--format", "png"]).exits(2);
}

#[test]
fn a_flow_is_shown_from_its_file_and_from_the_store() {
    let sandbox = Sandbox::with_examples();
    let file = sandbox.flowgate(&["flows", "show", "approval.yaml"]).exits(0);
    assert!(file.stdout.contains("(not in the store)"), "{file:?}");
    sandbox.flowgate(&["run", "approval.yaml", "--no-wait"]).exits(0);
    let stored = sandbox.flowgate(&["flows", "show", "approval", "--json"]).exits(0).json();
    assert_eq!(stored["active"], true);
    assert_eq!(stored["steps"][1]["does"], "waits for the signal approval");
    let whole = sandbox.flowgate(&["flows", "show", "approval", "--file"]).exits(0);
    sandbox.write("copy.json", &whole.stdout);
    let copy = sandbox.flowgate(&["flows", "show", "copy.json", "--json"]).exits(0).json();
    assert_eq!(copy["revision"], stored["revision"]);
    let list = sandbox.flowgate(&["flows", "list", "--json"]).exits(0).json();
    assert_eq!(list["items"][0]["flow"], "approval");
    assert_eq!(list["items"][0]["revision"], stored["revision"]);
    let done = sandbox.flowgate(&["flows", "show", "aproval"]).exits(4);
    assert!(done.stderr.contains("did you mean `approval`?"), "{done:?}");
    let done = sandbox.flowgate(&["flows", "show", "aproval.yaml"]).exits(4);
    assert!(done.stderr.contains("did you mean approval.yaml?"), "{done:?}");
}

#[test]
fn two_revisions_are_compared() {
    let sandbox = Sandbox::with_examples();
    sandbox.flowgate(&["run", "retry.yaml"]).exits(0);
    let text = std::fs::read_to_string(sandbox.path("retry.yaml")).unwrap();
    sandbox.write("retry.yaml", &text.replace("attempts: 5", "attempts: 4"));
    let done = sandbox.flowgate(&["flows", "diff", "retry", "retry.yaml"]).exits(0);
    insta::assert_snapshot!("diff", done.shown());
    sandbox.flowgate(&["run", "retry.yaml"]).exits(0);
    let list = sandbox.flowgate(&["flows", "list", "--json"]).exits(0).json();
    assert_eq!(list["items"][0]["revisions"], 2);
    let done = sandbox.flowgate(&["flows", "diff", "retry", "retry.yaml", "--json"]).exits(0);
    assert_eq!(done.json(), serde_json::json!({ "changes": [] }));
    let done = sandbox.flowgate(&["flows", "diff", "retry@0000", "retry"]).exits(4);
    assert!(done.stderr.contains("it has "), "{done:?}");
}

#[test]
fn the_schema_is_a_json_schema() {
    let schema = Sandbox::new().flowgate(&["flows", "schema"]).exits(0).json();
    assert!(schema["$schema"].is_string());
    assert!(schema["properties"]["steps"].is_object());
}

#[test]
fn the_schedules_of_a_flow_are_shown() {
    let sandbox = Sandbox::new();
    let file = repository().join("crates/flowgate-core/tests/it/valid/schedules.yaml");
    let file = file.display().to_string();
    let done = sandbox.flowgate(&["flows", "show", &file]).exits(0);
    for text in ["30 2 * * MON-FRI", "Europe/Berlin", "queue_one", "{all:6h}", "every 15m"] {
        assert!(done.stdout.contains(text), "{text}: {}", done.stdout);
    }
    let json = sandbox.flowgate(&["flows", "show", &file, "--json"]).exits(0).json();
    assert_eq!(json["file"]["schedules"]["often"]["every"], "15m");
}
