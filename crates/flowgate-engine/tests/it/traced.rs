//! Steps learn their place in the run's trace, if spans are exported.

use std::sync::Arc;

use flowgate_core::run::RunStatus;
use flowgate_core::trace::SpanRef;
use flowgate_engine::{EngineConfig, PrivateTargets, Workers};
use flowgate_store::MemoryStore;
use serde_json::json;
use wiremock::matchers::method;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::remote::claim;
use crate::world::{World, config, is};

#[tokio::test]
async fn programs_and_requests_are_told_their_span_only_where_spans_are_exported() {
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(200)).mount(&server).await;
    let line = r#"echo "{\"result\": \"$TRACEPARENT\"}"; echo '{"emit": "done"}'"#;
    let yaml = format!(
        "{{flow: f, steps: {{
            a: {{run: {{shell: {}}}, emits: [done]}},
            b: {{subscribes: [done], run: {{http: {{url: '{}/'}}}}}}}}}}",
        json!(line),
        server.uri()
    );
    for is_traced in [false, true] {
        let mut config = EngineConfig { is_traced, ..config("a") };
        config.http.allow_private = PrivateTargets::Only(vec!["127.0.0.1".parse().unwrap()]);
        let store = Arc::new(MemoryStore::new());
        let world = World::with(store, &yaml, vec![(Workers::new(), config)]).await;
        let ended = world.run(json!({})).await;
        is(&ended, RunStatus::Completed);
        let run_id = ended.row.run.run_id;
        let place = |step| SpanRef::of_attempt(run_id, step, 1).to_string();
        let told = world.result(run_id, "a").await;
        let requests = server.received_requests().await.unwrap();
        let header = requests.last().unwrap().headers.get("traceparent");
        let header = header.map(|value| value.to_str().unwrap().to_owned());
        if is_traced {
            assert_eq!((told, header), (json!(place("a")), Some(place("b"))));
        } else {
            assert_eq!((told, header), (json!(""), None));
        }
        world.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_remote_worker_is_told_its_span_only_where_spans_are_exported() {
    for is_traced in [false, true] {
        let config = EngineConfig { is_traced, ..config("a") };
        let store = Arc::new(MemoryStore::new());
        let yaml = "{flow: f, steps: {a: {run: {worker: score}}}}";
        let world = World::with(store, yaml, vec![(Workers::new(), config)]).await;
        let run_id = world.start(1).await;
        let job = world.engine().claim_remote(claim("py-1")).await.unwrap().remove(0);
        let place = SpanRef::of_attempt(run_id, "a", 1).to_string();
        assert_eq!(job.traceparent, is_traced.then_some(place));
        world.shutdown().await;
    }
}
