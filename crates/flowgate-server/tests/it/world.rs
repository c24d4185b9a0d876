//! An engine on a store in memory, and the routes before it.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use flowgate_core::flow::Flow;
use flowgate_core::run::RunStatus;
use flowgate_engine::{
    Engine, EngineConfig, HandlerError, ProcessConfig, StepContext, Workers, instance_id,
};
use flowgate_server::{Host, HostOptions, router};
use flowgate_store::{MemoryStore, Store};
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

/// A flow of one step that does nothing.
pub(crate) const ONE_STEP: &str = "flow: one\nsteps:\n  only: {}\n";

/// An instance that can be asked.
pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) router: Router,
}

impl World {
    /// With these options and flows.
    pub(crate) async fn with(options: HostOptions, flows: &[&str]) -> Self {
        let store = Arc::new(MemoryStore::new());
        let defaults = EngineConfig::new(instance_id());
        let process = ProcessConfig { without_folder: false, ..defaults.process.clone() };
        let config = EngineConfig { process, ..defaults };
        Self::on(store, config, options, flows).await
    }

    /// On this store.
    pub(crate) async fn on(
        store: Arc<dyn Store>,
        config: EngineConfig,
        options: HostOptions,
        flows: &[&str],
    ) -> Self {
        let engine = Engine::start(store, workers(), config).expect("the settings work");
        for text in flows {
            engine.register(&flow(text), None).await.expect("the store is there");
        }
        let host = Host::new(Arc::new(engine.clone()), options);
        Self { engine, router: router(&host) }
    }

    pub(crate) async fn new(flows: &[&str]) -> Self {
        Self::with(HostOptions::default(), flows).await
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.send(Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> (StatusCode, Value) {
        self.send(Method::POST, path, Some(body)).await
    }

    /// Starts a run; its id.
    pub(crate) async fn start(&self, flow: &str) -> String {
        let (status, started) = self.post("/runs", &format!(r#"{{"flow":"{flow}"}}"#)).await;
        assert_eq!(status, StatusCode::CREATED, "{started}");
        started["run_id"].as_str().expect("it has an id").to_owned()
    }

    /// Returns when the run has ended.
    pub(crate) async fn ended(&self, run_id: &str) {
        let run_id = run_id.parse().expect("it is an id");
        self.engine.wait(run_id).await.expect("the run is there");
    }

    /// Returns when the run is in this status.
    pub(crate) async fn reaches(&self, run_id: &str, status: RunStatus) {
        let run_id = run_id.parse().expect("it is an id");
        let mut news = self.engine.events();
        loop {
            let detail = self.engine.store().read_run(run_id).await.expect("the store is there");
            if detail.is_some_and(|detail| detail.row.run.status == status) {
                return;
            }
            drop(news.recv().await);
        }
    }

    /// The answer to a GET as it comes.
    pub(crate) async fn listen(&self, path: &str, headers: &[(&str, &str)]) -> Sse {
        let mut request =
            Request::builder().uri(format!("/api/v1{path}")).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).expect("it is a request");
        let response = self.router.clone().oneshot(request).await.expect("routes do not fail");
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Sse { body: response.into_body(), text: String::new() }
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&str>,
    ) -> (StatusCode, Value) {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/api/v1{path}"))
            .header("host", "localhost");
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let body = Body::from(body.unwrap_or_default().to_owned());
        self.ask(request.body(body).expect("it is a request")).await
    }

    /// The status and the JSON of the answer; null if it has none.
    pub(crate) async fn ask(&self, request: Request<Body>) -> (StatusCode, Value) {
        let response = self.router.clone().oneshot(request).await.expect("routes do not fail");
        let status = response.status();
        let bytes = response.into_body().collect().await.expect("the body is there").to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }
}

pub(crate) fn flow(text: &str) -> Flow {
    Flow::parse(text).expect("the flow is valid")
}

/// What steps call: `chatty` emits one event many times, `broken` fails.
fn workers() -> Workers {
    let mut workers = Workers::new();
    workers.register("chatty", async |count: u64, step: StepContext| {
        step.state_set("first", &count)?;
        for number in 0..count {
            step.emit("tick", &number)?;
        }
        Ok::<_, HandlerError>(())
    });
    workers.register("broken", async |_: Value, _: StepContext| {
        Err::<(), _>(HandlerError::retryable("it is broken"))
    });
    workers
}

/// Server-sent events.
pub(crate) struct Sse {
    body: Body,
    text: String,
}

/// One of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Message {
    pub(crate) id: Option<u64>,
    pub(crate) event: String,
    pub(crate) data: Value,
}

impl Sse {
    /// The next one that is no comment; none at the end.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some((whole, rest)) = self.text.split_once("\n\n") {
                let mut message = Message::default();
                for line in whole.lines() {
                    let (field, value) = line.split_once(": ").unwrap_or((line, ""));
                    match field {
                        "id" => message.id = value.parse().ok(),
                        "event" => value.clone_into(&mut message.event),
                        "data" => message.data = serde_json::from_str(value).unwrap_or_default(),
                        _ => {}
                    }
                }
                let rest = self.text.len() - rest.len();
                self.text.drain(..rest);
                if !message.event.is_empty() {
                    return Some(message);
                }
                continue;
            }
            let frame = self.body.frame().await?.expect("the body does not break");
            let data = frame.into_data().expect("there are no trailers");
            self.text.push_str(std::str::from_utf8(&data).expect("it is UTF-8"));
        }
    }

    /// The next one with this name.
    pub(crate) async fn next_of(&mut self, event: &str) -> Message {
        loop {
            let message = self.next().await.expect("the stream goes on");
            if message.event == event {
                return message;
            }
        }
    }

    /// All events up to and with the first of this type.
    pub(crate) async fn until(&mut self, r#type: &str) -> Vec<Message> {
        let mut all = Vec::new();
        loop {
            let message = self.next_of("event").await;
            let is_it = message.data["type"] == *r#type;
            all.push(message);
            if is_it {
                return all;
            }
        }
    }
}
