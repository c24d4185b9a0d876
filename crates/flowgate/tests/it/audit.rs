//! `flowgate audit`, and the other verbs that ask what became of messages.

use crate::sandbox::{Sandbox, until};

const ORDER: &str = r#"
flow: order
steps:
  take:
    run: { shell: "echo '{\"emit\": \"taken\", \"data\": {\"id\": 7}}'" }
    emits: [taken]
  ship:
    subscribes: [taken]
    run: { shell: "echo '{\"result\": {\"shipped\": [7, 8]}}'" }
"#;
/// What `printf '%s' TEXT | sha256sum` says of the input and of the result.
const INPUT: &str = r#"{"orderId": 7}"#;
const INPUT_SHA256: &str = "b50f5b0e2fef8564da697f2099ebfc18e7535ddb094b94e50615a74ac0211a47";
const RESULT_SHA256: &str = "e9f5104a445146147e8d836a0358c942afe3e82e9ace5a2ecd45612b2b7d5350";

#[test]
fn what_came_in_and_out_is_listed_counted_and_traced() {
    let sandbox = Sandbox::new();
    sandbox.write("order.yaml", ORDER);
    let dev = sandbox.dev(&[]);
    assert!(sandbox.flowgate(&["audit", "summary"]).exits(0).stderr.contains("nothing came in"));
    assert!(sandbox.flowgate(&["audit", "list"]).exits(0).stderr.contains("there are none"));
    let start = ["runs", "start", "order", "--input", INPUT, "--key", "k-7"];
    let run = sandbox.flowgate(&start).exits(0).stdout.trim().to_owned();
    until("it completes", || {
        let shown = sandbox.flowgate(&["runs", "show", &run, "--json"]).exits(0).json();
        shown["status"] == "completed"
    });
    let listed = ["audit", "list", "--flow", "order", "--since", "1h", "--json"];
    let listed = sandbox.flowgate(&listed).exits(0).json();
    let [came, went] = listed["items"].as_array().unwrap().as_slice() else { panic!("{listed}") };
    assert_eq!((&came["direction"], &came["status"]), (&"inbound".into(), &"accepted".into()));
    assert_eq!(
        (&came["payload_sha256"], &came["payload_bytes"]),
        (&INPUT_SHA256.into(), &14.into())
    );
    assert_eq!((&came["summary"]["keys"][0], &came["key"]), (&"orderId".into(), &"k-7".into()));
    assert_eq!((&went["direction"], &went["status"]), (&"outbound".into(), &"completed".into()));
    assert_eq!((&went["payload_sha256"], &went["step"]), (&RESULT_SHA256.into(), &"ship".into()));
    assert_eq!(went["summary"]["lengths"]["shipped"], 2);
    assert!(went["instance"].is_string() && went["took_ms"].is_u64(), "{went}");
    let out = sandbox.flowgate(&["audit", "list", "--direction", "outbound"]).exits(0);
    assert!(out.stdout.contains("shipped[2]") && !out.stdout.contains("inbound"), "{out:?}");

    let summary = sandbox.flowgate(&["audit", "summary", "--json"]).exits(0).json();
    assert_eq!(
        (&summary["items"][0]["count"], &summary["items"][1]["count"]),
        (&1.into(), &1.into())
    );
    let summary = sandbox.flowgate(&["audit", "summary", "--flow", "order"]).exits(0);
    assert!(summary.stdout.contains("outbound"), "{summary:?}");

    let trail = sandbox.flowgate(&["audit", "run", &run, "--json"]).exits(0).json();
    let whats: Vec<&str> = trail["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|item| item["what"].as_str())
        .collect();
    let expected = ["run.started", "step.succeeded", "step.succeeded", "run.completed"];
    assert_eq!(whats, expected);
    let trail = sandbox.flowgate(&["audit", "run", "latest"]).exits(0);
    assert!(trail.stdout.contains("step.succeeded"), "{trail:?}");
    sandbox.flowgate(&["audit", "list", "--since", "soon"]).exits(2);
    sandbox.flowgate(&["audit", "list", "--direction", "up"]).exits(2);
    sandbox.flowgate(&["audit", "run", "01890a5d-ac96-774b-bcce-b302099a8057"]).exits(4);
    dev.interrupt().exits(130);
}
