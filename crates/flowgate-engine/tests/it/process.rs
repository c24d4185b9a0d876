//! Steps that start programs. Programs live in real time, so these tests do too.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::run::RunStatus;
use flowgate_engine::{EngineConfig, Workers};
use flowgate_store::{LogLevel, MemoryStore};
use serde_json::json;

use crate::world::{World, config, eventually, is};

/// A world whose one step runs `line` in a shell.
async fn shell(line: &str) -> World {
    let rest = "emits: [done], retry: {attempts: 1}";
    step(&format!("{{run: {{shell: {}}}, {rest}}}", json!(line))).await
}

async fn step(step: &str) -> World {
    with(step, config("a")).await
}

async fn with(step: &str, config: EngineConfig) -> World {
    let yaml = format!(
        "{{flow: f, steps: {{a: {step}, b: {{subscribes: [done], run: {{shell: cat}}}}}}}}"
    );
    World::with(Arc::new(MemoryStore::new()), &yaml, vec![(Workers::new(), config)]).await
}

#[tokio::test]
async fn a_program_reads_its_input_and_says_what_it_did() {
    let world = shell(
        r#"read input; echo "got $input"; echo 'to stderr' >&2
           echo '{"emit":"done","data":{"n":1}}'
           echo '{"state":{"k":[1,2]}}'
           echo '{"log":"careful","level":"error"}'
           echo "{\"result\":{\"key\":\"$FLOWGATE_KEY\",\"step\":\"$FLOWGATE_STEP\",\"secret\":\"$CARGO\"}}""#,
    )
    .await;
    let ended = world.run(json!({ "x": "y" })).await;
    is(&ended, RunStatus::Completed);
    let run_id = ended.row.run.run_id;
    let result = world.result(run_id, "a").await;
    assert_eq!(result, json!({ "key": format!("{run_id}/a/1"), "step": "a", "secret": "" }));
    assert!(ended.row.run.state.contains_key("k"));
    world.engine().flush_logs().await;
    let lines = world.store.read_logs(run_id, 0, 100).await.unwrap();
    let has =
        |level, text: &str| lines.iter().any(|l| l.line.level == level && l.line.text == text);
    assert!(has(LogLevel::Info, r#"got {"x":"y"}"#), "{lines:#?}");
    assert!(has(LogLevel::Warn, "to stderr") && has(LogLevel::Error, "careful"));
    // The second step is `cat`: its input is its output.
    assert!(has(LogLevel::Info, r#"{"done":{"n":1}}"#));
    world.shutdown().await;
}

#[tokio::test]
async fn each_way_to_fail_is_told_apart() {
    let rows = [
        ("echo first >&2; echo last >&2; exit 3", "Failed", "exit code 3: first\nlast"),
        ("kill -9 $$", "Failed", "signal 9"),
        (r#"echo '{"fail":"no","retry":false}'"#, "Final", "no"),
        (r#"echo '{"fail":{"message":"later"}}'; exit 1"#, "Failed", "later"),
        (r#"echo '{"emit":"other"}'"#, "Invalid", "`other`"),
        (r#"echo '{"emit":7}'"#, "Invalid", "not the name of an event"),
        ("yes x", "Invalid", "more than 1000000 bytes"),
        ("cat /dev/zero", "Invalid", "more than 1000000 bytes"),
    ];
    for (line, kind, message) in rows {
        let mut config = config("a");
        config.process.stdout_bytes_max = 1_000_000;
        let step =
            format!("{{run: {{shell: {}}}, emits: [done], retry: {{attempts: 1}}}}", json!(line));
        let world = with(&step, config).await;
        let ended = world.run(json!(null)).await;
        is(&ended, RunStatus::Failed);
        let failure = world.failure(ended.row.run.run_id).await;
        assert_eq!(failure.0, kind, "{line}: {}", failure.1);
        assert!(failure.1.contains(message), "{line}: {}", failure.1);
        world.shutdown().await;
    }
}

#[tokio::test]
async fn a_program_that_is_not_there_is_not_tried_again() {
    let world = step("{run: {process: [no-such-program]}, emits: [done]}").await;
    let ended = world.run(json!(null)).await;
    let (kind, message) = world.failure(ended.row.run.run_id).await;
    assert_eq!(kind, "Invalid");
    assert!(message.contains("`no-such-program`") && message.contains("PATH="), "{message}");
    assert_eq!(ended.row.run.steps[0].failures, 1);
    world.shutdown().await;
}

#[tokio::test]
async fn arguments_are_passed_as_they_are() {
    let step = r#"{run: {process: {command: [printf, "%s|", "$(id)", "; rm -rf /", "`id`", "*"],
        env: {A: "b c"}}}, emits: [done]}"#;
    let world = self::step(step).await;
    let ended = world.run(json!(null)).await;
    is(&ended, RunStatus::Completed);
    world.engine().flush_logs().await;
    let lines = world.store.read_logs(ended.row.run.run_id, 0, 10).await.unwrap();
    assert_eq!(lines[0].line.text, "$(id)|; rm -rf /|`id`|*|");
    world.shutdown().await;
}

#[tokio::test]
async fn a_program_that_the_settings_forbid_is_not_started() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("mark");
    let touch = format!("{{run: {{process: [touch, {}]}}, emits: [done]}}", mark.display());
    let mut listed = config("a");
    listed.process.allowed = Arc::new(["/bin/sh".to_owned()]);
    let mut from_files = config("a");
    from_files.process.without_folder = false;
    for (config, beginning) in
        [(listed, "program_forbidden: "), (from_files, "process_forbidden: ")]
    {
        let world = with(&touch, config).await;
        let ended = world.run(json!(null)).await;
        is(&ended, RunStatus::Failed);
        let (kind, message) = world.failure(ended.row.run.run_id).await;
        assert_eq!(kind, "Invalid");
        assert!(message.starts_with(beginning), "{message}");
        world.shutdown().await;
    }
    assert!(!mark.exists());
}

#[tokio::test]
async fn a_flood_on_standard_error_ends_with_its_step_and_its_lines_are_bounded() {
    let world = shell("yes 0123456789 | head -c 20000000 >&2; echo end").await;
    let ended = world.run(json!(null)).await;
    is(&ended, RunStatus::Completed);
    world.engine().flush_logs().await;
    let lines = world.store.read_logs(ended.row.run.run_id, 0, 100_000).await.unwrap();
    assert!(lines.len() <= 10_002, "{}", lines.len());
    world.shutdown().await;
}

#[tokio::test]
async fn a_program_that_does_not_read_its_input_is_fine() {
    let world = shell("exec <&-; exit 0").await;
    let ended = world.run("x".repeat(500_000)).await;
    is(&ended, RunStatus::Completed);
    world.shutdown().await;
}

#[tokio::test]
async fn nothing_of_a_group_survives_its_timeout() {
    // The shell and its child ignore SIGTERM; both write where they live.
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let line = format!(
        "trap '' TERM; (trap '' TERM; echo $$ >> {0}; while :; do sleep 1; done) &
         sh -c 'echo $$ >> {0}; exec sleep 1000' & echo $$ >> {0}; wait",
        pids.display()
    );
    let mut config = config("a");
    config.process.kill_grace = Duration::from_millis(200);
    let step = format!(
        "{{run: {{shell: {}}}, emits: [done], timeout: 500ms, retry: {{attempts: 1}}}}",
        json!(line)
    );
    let world = with(&step, config).await;
    let ended = world.run(json!(null)).await;
    is(&ended, RunStatus::Failed);
    assert_eq!(world.failure(ended.row.run.run_id).await.0, "TimedOut");
    let written = std::fs::read_to_string(&pids).unwrap();
    assert!(written.lines().count() >= 3, "{written}");
    eventually("no process is left", || async { written.lines().all(|pid| !is_alive(pid.trim())) })
        .await;
    world.shutdown().await;
}

#[tokio::test]
async fn what_a_program_leaves_behind_ends_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let world = shell(&format!("sleep 1000 & echo $! > {}; exit 0", pid.display())).await;
    is(&world.run(json!(null)).await, RunStatus::Completed);
    let pid = std::fs::read_to_string(pid).unwrap();
    eventually("it is gone", || async { !is_alive(pid.trim()) }).await;
    world.shutdown().await;
}

#[tokio::test]
async fn cancelling_a_run_ends_its_program() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let world = shell(&format!("echo $$ > {}; exec sleep 1000", pid.display())).await;
    let run_id = world.start(json!(null)).await;
    eventually("it runs", || async {
        std::fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n'))
    })
    .await;
    world.engine().cancel(run_id, None).await.unwrap();
    let pid = std::fs::read_to_string(pid).unwrap();
    eventually("it is gone", || async { !is_alive(pid.trim()) }).await;
    is(&world.ended(run_id).await, RunStatus::Cancelled);
    world.shutdown().await;
}

/// Whether there is such a process, and not only its exit status.
fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start().chars().next();
    state.is_some_and(|state| state != 'Z' && state != 'X')
}
