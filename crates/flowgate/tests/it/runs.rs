//! `flowgate runs` and `flowgate why`.

use serde_json::Value;

use crate::sandbox::{Sandbox, eventually};

const INSTANT: &str = "flow: instant\nsteps:\n  only: {}\n";

fn run_ids(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().unwrap();
    items.iter().map(|item| item["run_id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_list_has_pages_and_filters_that_hold_for_whole_pages() {
    let sandbox = Sandbox::with_examples();
    sandbox.write("instant.yaml", INSTANT);
    sandbox.flowgate(&["run", "instant.yaml"]).exits(0);
    for _ in 0..3 {
        sandbox.flowgate(&["run", "failing.yaml"]).exits(1);
        sandbox.flowgate(&["runs", "start", "instant"]).exits(0);
    }
    let list = |args: &[&str]| {
        sandbox.flowgate(&[&["runs", "list", "--json"], args].concat()).exits(0).json()
    };
    let all = run_ids(&list(&[]));
    assert_eq!(all.len(), 7);
    let mut paged = Vec::new();
    let mut page = list(&["--limit", "3"]);
    loop {
        paged.extend(run_ids(&page));
        let Some(next) = page["next"].as_str() else { break };
        assert_eq!(page["items"].as_array().unwrap().len(), 3);
        assert_eq!(page["total"], 7, "of all pages");
        page = list(&["--limit", "3", "--after", next]);
    }
    assert_eq!(paged, all);
    let failed = list(&["--status", "failed", "--limit", "3"]);
    assert_eq!((run_ids(&failed).len(), &failed["next"]), (3, &Value::Null));
    assert_eq!(failed["total"], 3);
    assert_eq!(failed["items"][0]["failure"]["message"], "the card was declined");
    let both = list(&["--status", "failed", "--status", "completed"]);
    assert_eq!(run_ids(&both), all);
    assert_eq!(run_ids(&list(&["--flow", "instant"])).len(), 4);
    assert_eq!(run_ids(&list(&["--since", "1h"])).len(), 7);
    assert_eq!(run_ids(&list(&["--until", "1h"])).len(), 0);
    assert_eq!(list(&["--until", "1h"])["total"], 0);
    assert_eq!(run_ids(&list(&["--since", "2020-01-01T00:00:00Z"])).len(), 7);
    let people = sandbox.flowgate(&["runs", "list", "--limit", "3"]).exits(0);
    assert_eq!(people.stdout.lines().count(), 4, "{people:?}");
    assert!(people.stderr.starts_with("3 of 7 runs\n"), "{people:?}");
    let next = people.stderr.split("more: flowgate runs list --after ").nth(1).unwrap();
    let next = next.split(' ').next().unwrap();
    let rest = sandbox.flowgate(&["runs", "list", "--after", next]).exits(0);
    assert_eq!((rest.stdout.lines().count(), &*rest.stderr), (5, "4 of 7 runs\n"), "{rest:?}");
    let none = sandbox.flowgate(&["runs", "list", "--flow", "nosuch"]).exits(0);
    assert_eq!((&*none.stdout, &*none.stderr), ("", "no runs\n"));
    for args in [["--since", "soon"], ["--after", "x"], ["--limit", "0"], ["--status", "done"]] {
        sandbox.flowgate(&[&["runs", "list"], &args[..]].concat()).exits(2);
    }
}

#[test]
fn runs_are_found_by_their_tags() {
    let sandbox = Sandbox::new();
    sandbox.write("instant.yaml", INSTANT);
    let start = |args: &[&str], tags: &[&str]| {
        let flags = tags.iter().flat_map(|tag| ["--tag", *tag]);
        let args: Vec<&str> = args.iter().copied().chain(flags).chain(["--json"]).collect();
        sandbox.flowgate(&args).exits(0).json()["run_id"].as_str().unwrap().to_owned()
    };
    let gold = start(&["run", "instant.yaml"], &["customer=42", "tier=gold"]);
    let plain = start(&["runs", "start", "instant"], &["customer=42", "note=a = b, \"c\""]);
    start(&["runs", "start", "instant"], &["customer=7"]);
    start(&["runs", "start", "instant"], &[]);
    let check = |tags: &[&str], rest: &[&str], expected: &[&String]| {
        let flags = tags.iter().flat_map(|tag| ["--tag", *tag]);
        let args: Vec<&str> = ["runs", "list", "--json"].into_iter().chain(flags).collect();
        let page = sandbox.flowgate(&[&args, rest].concat()).exits(0).json();
        assert_eq!(run_ids(&page).iter().collect::<Vec<_>>(), expected, "{tags:?}");
        assert_eq!(
            (page["total"].as_u64(), &page["next"]),
            (Some(expected.len() as u64), &Value::Null)
        );
    };
    check(&["customer=42"], &[], &[&plain, &gold]);
    check(&["tier=gold", "customer=42"], &[], &[&gold]);
    check(&["customer=42"], &["--status", "completed", "--since", "1h"], &[&plain, &gold]);
    check(&["customer=42"], &["--status", "failed"], &[]);
    check(&["note=a = b, \"c\""], &["--flow", "instant"], &[&plain]);
    check(&["customer=4"], &[], &[]);
    check(&["customer=42"], &["--flow", "other"], &[]);
    let page = ["runs", "list", "--tag", "customer=42", "--limit", "1", "--json"];
    let first = sandbox.flowgate(&page).exits(0).json();
    assert_eq!((run_ids(&first), &first["total"]), (vec![plain], &Value::from(2)));
    let rest = [&page[..], &["--after", first["next"].as_str().unwrap()]].concat();
    assert_eq!(run_ids(&sandbox.flowgate(&rest).exits(0).json()), [gold]);
    for verb in [&["runs", "list"][..], &["runs", "start", "instant"], &["run", "instant.yaml"]] {
        for bad in ["customer", "=42", ""] {
            let done = sandbox.flowgate(&[verb, &["--tag", bad]].concat()).exits(2);
            assert!(done.stderr.contains("write NAME=VALUE, such as customer=42"), "{done:?}");
        }
        let twice = ["--tag", "customer=1", "--tag", "customer=2"];
        let done = sandbox.flowgate(&[verb, &twice[..]].concat()).exits(2);
        assert!(done.stderr.contains("write --tag customer=VALUE once"), "{done:?}");
    }
    check(&[], &["--since", "2099-01-01T00:00:00Z"], &[]);
}

#[test]
fn a_run_is_found_by_its_id_its_beginning_and_latest() {
    let sandbox = Sandbox::new();
    sandbox.write("instant.yaml", INSTANT);
    let run = |key: &str| {
        let args = ["run", "instant.yaml", "--key", key, "--json"];
        sandbox.flowgate(&args).exits(0).json()["run_id"].as_str().unwrap().to_owned()
    };
    let (one, two) = (run("a"), run("b"));
    assert_ne!(one[..6], two[..6]);
    let show = |text: &str| sandbox.flowgate(&["runs", "show", text, "--json"]);
    for text in [&one[..], &one[..6], &one[..18], &one.to_uppercase()] {
        assert_eq!(show(text).exits(0).json()["run_id"], *one, "{text}");
    }
    assert_eq!(show("latest").exits(0).json()["run_id"], *two);
    show(&one[..5]).exits(2);
    show("not-an-id").exits(2);
    let done = show("00000000-0000-0000-0000-000000000000").exits(4);
    assert_eq!(done.json_error()["code"], "run_not_found");
    let done = show("000000").exits(4);
    assert_eq!(done.json_error()["code"], "run_not_found");
    for verb in ["events", "watch", "logs", "export", "cancel", "retry"] {
        sandbox.flowgate(&["runs", verb, "000000"]).exits(4);
    }
    sandbox.flowgate(&["runs", "signal", "000000", "x"]).exits(4);
    sandbox.flowgate(&["why", "000000"]).exits(4);
    sandbox.flowgate(&["run", "--resume", "000000"]).exits(4);
}

#[test]
fn an_export_has_exactly_its_fields() {
    let sandbox = Sandbox::with_examples();
    sandbox.flowgate(&["run", "failing.yaml"]).exits(1);
    sandbox.flowgate(&["run", "retry.yaml"]).exits(0);
    let all = sandbox.flowgate(&["runs", "export"]).exits(0).json_lines();
    let mut position = 0;
    for line in &all {
        let fields: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected = [
            "position", "run", "seq", "type", "step", "attempt", "token", "instance", "flow",
            "revision", "data", "time",
        ];
        let mut sorted = fields.clone();
        sorted.sort_unstable();
        expected.sort_unstable();
        assert_eq!(sorted, expected);
        let next: u64 = line["position"].as_str().unwrap().parse().unwrap();
        assert!(next > position);
        position = next;
    }
    let of_flow = |name: &str| all.iter().filter(|line| line["flow"] == name).count();
    let export = |args: &[&str]| {
        sandbox.flowgate(&[&["runs", "export"], args].concat()).exits(0).json_lines().len()
    };
    assert_eq!(export(&["--flow", "failing"]), of_flow("failing"));
    assert_eq!(export(&["latest"]), of_flow("retry"));
    assert_eq!(export(&["--since", "1h"]), all.len());
    let events = sandbox.flowgate(&["runs", "events", "latest", "--json"]).exits(0).json_lines();
    assert_eq!(events.len(), of_flow("retry"));
    assert_eq!(events.last().unwrap()["type"], "run.completed");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let sandbox = Sandbox::with_examples();
    for _ in 0..3 {
        sandbox.flowgate(&["run", "failing.yaml"]).exits(1);
    }
    let done = sandbox.flowgate_cut_short(&["runs", "export"]).exits(0);
    assert_eq!(done.stderr, "");
}

#[test]
fn with_the_store_free_a_request_is_written_down_for_the_next_owner() {
    let sandbox = Sandbox::with_examples();
    sandbox.flowgate(&["run", "approval.yaml", "--no-wait"]).exits(0);
    let done = sandbox.flowgate(&["runs", "start", "approval", "--key", "k"]).exits(0);
    assert!(done.stderr.contains("nobody executes it yet"), "{done:?}");
    let run_id = done.stdout.trim();
    let why = sandbox.flowgate(&["why", run_id]).exits(0);
    insta::assert_snapshot!("why_unowned", why.shown());
    let again = sandbox.flowgate(&["runs", "start", "approval", "--key", "k", "--json"]).exits(0);
    assert_eq!(again.json()["run_id"], run_id);
    assert_eq!(again.json()["existed"], true);
    let signal = ["runs", "signal", run_id, "approval", "--data", r#"{"approved": true}"#];
    sandbox.flowgate(&signal).exits(0);
    let report = sandbox.flowgate(&["run", "--resume", run_id, "--json"]).exits(0).json();
    assert_eq!(report["status"], "completed");
}

#[test]
fn what_cannot_be_done_is_refused_with_a_reason() {
    let sandbox = Sandbox::with_examples();
    sandbox.flowgate(&["run", "approval.yaml", "--no-wait"]).exits(0);
    let done = sandbox.flowgate(&["runs", "signal", "latest", "aproval"]).exits(2);
    assert!(done.stderr.contains("no step of the flow waits for the signal"), "{done:?}");
    sandbox.flowgate(&["runs", "signal", "latest", "approval", "--data", "{"]).exits(2);
    sandbox.flowgate(&["runs", "retry", "latest"]).exits(5);
    sandbox.flowgate(&["runs", "cancel", "latest", "--reason", "no longer wanted"]).exits(0);
    let again = sandbox.flowgate(&["runs", "cancel", "latest"]).exits(0);
    assert!(again.stderr.contains("it was cancelled before"), "{again:?}");
    let done = sandbox.flowgate(&["runs", "signal", "latest", "approval"]).exits(5);
    assert!(done.stderr.contains("the run has ended: it is cancelled"), "{done:?}");
    insta::assert_snapshot!("why_cancelled", sandbox.flowgate(&["why", "latest"]).shown());
    sandbox.flowgate(&["runs", "retry", "latest", "--from", "nosuch"]).exits(2);
    let done = sandbox.flowgate(&["runs", "start", "order"]).exits(4);
    assert_eq!(done.stdout, "");
    sandbox.flowgate(&["runs", "list", "--store", "memory:"]).exits(2);
    sandbox.flowgate(&["runs", "start", "x", "--store", "memory:"]).exits(2);
}

#[test]
fn a_failed_run_is_tried_again_as_a_new_run() {
    let sandbox = Sandbox::with_examples();
    let failed = sandbox.flowgate(&["run", "failing.yaml", "--json"]).exits(1).json();
    let failed_id = failed["run_id"].as_str().unwrap();
    let retry = sandbox.flowgate(&["runs", "retry", failed_id, "--json"]).exits(0).json();
    assert_ne!(retry["run_id"], failed["run_id"]);
    let args = ["run", "--resume", retry["run_id"].as_str().unwrap(), "--json"];
    let report = sandbox.flowgate(&args).exits(1).json();
    assert_eq!(report["steps"][0]["attempts"], 0, "the step that succeeded was taken over");
    let shown = sandbox.flowgate(&["runs", "show", "latest", "--json"]).exits(0).json();
    assert_eq!(shown["retry_of"], *failed_id);
}

#[test]
fn a_watched_run_is_followed_to_its_end() {
    let sandbox = Sandbox::with_examples();
    let dev = sandbox.dev(&[]);
    sandbox.flowgate(&["runs", "start", "approval"]).exits(0);
    let watch = sandbox.spawn(&["runs", "watch", "latest"]);
    watch.stdout.wait_for("step.waiting");
    let signal = ["runs", "signal", "latest", "approval", "--data", r#"{"approved": true}"#];
    sandbox.flowgate(&signal).exits(0);
    let done = watch.end().exits(0);
    assert!(done.stdout.trim_end().ends_with("run.completed"), "{done:?}");
    let done = sandbox.flowgate(&["runs", "watch", "latest", "--json"]).exits(0);
    assert_eq!(done.json_lines().last().unwrap()["type"], "run.completed");
    sandbox.flowgate(&["runs", "start", "failing"]).exits(0);
    sandbox.flowgate(&["runs", "watch", "latest"]).exits(1);
    dev.interrupt().exits(130);
}

#[test]
fn why_says_when_the_next_attempt_is() {
    let sandbox = Sandbox::new();
    let flow = "flow: slow\nsteps:\n  a:\n    run: { shell: 'echo no >&2; exit 3' }\n    \
                retry: { attempts: 5, backoff: { initial: 1h, max: 1h } }\n";
    sandbox.write("slow.yaml", flow);
    let dev = sandbox.dev(&[]);
    sandbox.flowgate(&["runs", "start", "slow"]).exits(0);
    let line = eventually("the attempt fails", || {
        let done = sandbox.flowgate(&["why", "latest"]).exits(0);
        done.stdout.lines().find(|line| line.contains("tries again in")).map(str::to_owned)
    });
    assert!(line.contains("after failure 1 of 5: "), "{line}");
    assert!(line.contains("exit code 3"), "{line}");
    let json = sandbox.flowgate(&["why", "latest", "--json"]).exits(0).json();
    assert_eq!(json["reasons"][0]["cause"], "retrying");
    assert_eq!(json["reasons"][0]["failures"], 1);
    dev.interrupt().exits(130);
}
