//! Steps that are given secrets: they get them, and nobody else sees them.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowgate_core::run::RunStatus;
use flowgate_engine::{EngineConfig, PrivateTargets, Secret, Secrets, Workers};
use flowgate_store::{MemoryStore, RunDetail};
use serde_json::json;
use wiremock::matchers::{header, method};
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::world::{World, config, is};

const CANARY: &str = "canary-8d1f \"quoted\"";

fn with_secret() -> EngineConfig {
    let values = BTreeMap::from([("TOKEN".to_owned(), Secret::new(CANARY))]);
    let mut config = config("a");
    config.secrets = Secrets::new(values, None);
    config.http.allow_private = PrivateTargets::Only(vec!["127.0.0.1".parse().unwrap()]);
    config
}

async fn world(step: &str, config: EngineConfig) -> World {
    let yaml = format!("{{flow: f, steps: {{a: {step}, b: {{subscribes: [done]}}}}}}");
    World::with(Arc::new(MemoryStore::new()), &yaml, vec![(Workers::new(), config)]).await
}

/// Everything that is kept of a run, as text.
async fn kept(world: &World, ended: &RunDetail) -> String {
    world.engine().flush_logs().await;
    let run_id = ended.row.run.run_id;
    let lines = world.store.read_logs(run_id, 0, 1_000).await.unwrap();
    let flows = world.store.list_revisions(None).await.unwrap();
    format!("{:?} {ended:?} {lines:?} {flows:?}", world.events(run_id).await)
}

#[tokio::test]
async fn a_program_gets_its_secret_and_nothing_that_it_says_shows_it() {
    let folder = tempfile::tempdir().unwrap();
    let seen = folder.path().join("seen");
    let line = format!(
        r#"printf %s "$TOKEN" > {}
           echo "the token is $LONGER"; echo "$TOKEN" >&2
           J=$(printf %s "$TOKEN" | sed 's/"/\\"/g')
           printf '{{"emit":"done","data":"%s"}}\n{{"state":{{"k":"%s"}}}}\n' "$J" "$J"
           printf '{{"log":"%s"}}\n{{"result":"%s"}}\n' "$J" "$J""#,
        seen.display()
    );
    let step = |line: &str| {
        let env = r#"{TOKEN: "${secret:TOKEN}", LONGER: "<${secret:TOKEN}>"}"#;
        let line = json!(line);
        format!(
            "{{run: {{process: {{command: [sh, -c, {line}], env: {env}}}}}, emits: [done],
               retry: {{attempts: 1}}}}"
        )
    };
    let told = world(&step(&line), with_secret()).await;
    let ended = told.run(json!(null)).await;
    is(&ended, RunStatus::Completed);
    assert_eq!(std::fs::read_to_string(&seen).unwrap(), CANARY);
    let kept_of_run = kept(&told, &ended).await;
    assert!(!kept_of_run.contains("canary"), "{kept_of_run}");
    assert!(kept_of_run.contains("the token is <***>"), "{kept_of_run}");
    assert_eq!(told.result(ended.row.run.run_id, "a").await, json!("***"));
    told.shutdown().await;

    let fails = r#"echo "cannot log in with $TOKEN" >&2; exit 3"#;
    let told = world(&step(fails), with_secret()).await;
    let ended = told.run(json!(null)).await;
    let (_, message) = told.failure(ended.row.run.run_id).await;
    assert_eq!(message, "the program ended with exit code 3: cannot log in with ***");
    assert!(!kept(&told, &ended).await.contains("canary"));
    told.shutdown().await;
}

#[tokio::test]
async fn a_service_gets_its_secret_and_an_answer_that_repeats_it_is_masked() {
    // Quotation marks are fine within a header.
    let expected = format!("Bearer {CANARY}");
    let echo = json!({ "result": { "you_sent": CANARY } });
    let rows = [
        (ResponseTemplate::new(200).set_body_json(&echo), RunStatus::Completed),
        (ResponseTemplate::new(400).set_body_string(CANARY), RunStatus::Failed),
        (ResponseTemplate::new(200).set_body_json(json!({ CANARY: 1 })), RunStatus::Failed),
    ];
    for (answer, status) in rows {
        let server = MockServer::start().await;
        let sent = Mock::given(method("POST")).and(header("authorization", expected.as_str()));
        sent.respond_with(answer).expect(1).mount(&server).await;
        let step = format!(
            r#"{{run: {{http: {{url: '{}', headers: {{Authorization: "Bearer ${{secret:TOKEN}}"}}}}}},
                emits: [done]}}"#,
            server.uri()
        );
        let world = world(&step, with_secret()).await;
        let ended = world.run(json!(null)).await;
        is(&ended, status);
        let kept = kept(&world, &ended).await;
        assert!(!kept.contains("canary") && kept.contains("***"), "{kept}");
        world.shutdown().await;
    }
}

#[tokio::test]
async fn a_missing_secret_fails_the_attempt_which_is_tried_again() {
    let steps = [
        r#"process: {command: ["true"], env: {A: "${secret:ABSENT}"}}"#,
        r#"http: {url: "http://127.0.0.1:1/", headers: {A: "${secret:ABSENT}"}}"#,
    ];
    for run in steps {
        let rest = "emits: [done], retry: {attempts: 2, backoff: {initial: 1ms}}";
        let world = world(&format!("{{run: {{{run}}}, {rest}}}"), with_secret()).await;
        let ended = world.run(json!(null)).await;
        let (kind, message) = world.failure(ended.row.run.run_id).await;
        assert_eq!(kind, "Failed");
        assert!(message.starts_with("secret_missing: "), "{message}");
        assert!(message.contains("FLOWGATE_SECRET_ABSENT"), "{message}");
        assert_eq!(ended.row.run.steps[0].failures, 2);
        world.shutdown().await;
    }
}

#[tokio::test]
async fn a_secret_that_no_header_can_carry_is_not_sent_and_not_shown() {
    let mut config = with_secret();
    let values = BTreeMap::from([("TOKEN".to_owned(), Secret::new("canary\r\nX-Evil: 1"))]);
    config.secrets = Secrets::new(values, None);
    let step = r#"{run: {http: {url: "http://127.0.0.1:1/", headers: {X-A: "${secret:TOKEN}"}}},
        emits: [done]}"#;
    let world = world(step, config).await;
    let ended = world.run(json!(null)).await;
    let (kind, message) = world.failure(ended.row.run.run_id).await;
    assert_eq!((kind.as_str(), message.starts_with("header_invalid: ")), ("Invalid", true));
    assert!(!kept(&world, &ended).await.contains("canary"));
    world.shutdown().await;
}
