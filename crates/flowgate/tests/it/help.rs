//! What the program says about itself.

use crate::sandbox::Sandbox;

#[test]
fn every_verb_has_a_help_with_an_example() {
    let sandbox = Sandbox::new();
    let verbs: &[&[&str]] = &[
        &[],
        &["run"],
        &["dev"],
        &["worker", "start"],
        &["flows"],
        &["flows", "show"],
        &["flows", "revisions"],
        &["flows", "register"],
        &["flows", "validate"],
        &["flows", "graph"],
        &["flows", "diff"],
        &["runs"],
        &["runs", "start"],
        &["runs", "list"],
        &["runs", "show"],
        &["runs", "events"],
        &["runs", "watch"],
        &["runs", "logs"],
        &["runs", "export"],
        &["runs", "signal"],
        &["runs", "cancel"],
        &["runs", "retry"],
        &["runs", "migrate"],
        &["audit"],
        &["audit", "run"],
        &["audit", "list"],
        &["audit", "summary"],
        &["schedules"],
        &["schedules", "list"],
        &["schedules", "show"],
        &["schedules", "add"],
        &["schedules", "pause"],
        &["schedules", "resume"],
        &["schedules", "remove"],
        &["schedules", "next"],
        &["schedules", "occurrences"],
        &["schedules", "backfill"],
        &["schedules", "trigger"],
        &["why"],
        &["hold"],
        &["hold", "on"],
        &["hold", "off"],
        &["hold", "status"],
        &["checkpoints"],
        &["checkpoints", "replay"],
        &["checkpoints", "discard"],
        &["instances"],
        &["subscribers"],
        &["subscribers", "reset"],
        &["subscribers", "retry-dead"],
        &["doctor"],
        &["store", "copy"],
        &["bench"],
        &["config", "show"],
        &["serve"],
        &["tokens", "new"],
        &["openapi"],
        &["completions"],
    ];
    for verb in verbs {
        let done = sandbox.flowgate(&[verb, &["--help"][..]].concat()).exits(0);
        assert!(done.stdout.contains("Example"), "{verb:?}: {}", done.stdout);
    }
    insta::assert_snapshot!("help", sandbox.flowgate(&["--help"]).shown());
    insta::assert_snapshot!("help_of_run", sandbox.flowgate(&["run", "--help"]).shown());
    insta::assert_snapshot!("help_of_runs", sandbox.flowgate(&["runs", "--help"]).shown());
}

#[test]
fn the_version_names_the_version_of_sqlite() {
    let done = Sandbox::new().flowgate(&["--version"]).exits(0);
    let version = env!("CARGO_PKG_VERSION");
    assert!(done.stdout.starts_with(&format!("flowgate {version} (SQLite 3.")), "{done:?}");
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let sandbox = Sandbox::new();
    for args in [&["rnu"][..], &["run"], &["runs", "list", "--status", "done"], &["why"], &[]] {
        let done = sandbox.flowgate(args).exits(2);
        assert_eq!(done.stdout, "", "{args:?}");
    }
    let done = sandbox.flowgate(&["--json", "rnu"]).exits(2);
    assert_eq!(done.json_error()["code"], "usage");
}

#[test]
fn there_are_completions_for_every_shell() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = sandbox.flowgate(&["completions", shell]).exits(0);
        assert!(done.stdout.contains("flowgate"), "{shell}");
    }
    sandbox.flowgate(&["completions", "tcsh"]).exits(2);
}
