//! What a collector sees of runs that several engines execute.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::flow::Flow;
use flowgate_core::ids::{InstanceId, RunId};
use flowgate_core::payload::Payload;
use flowgate_core::run::RunStatus;
use flowgate_core::trace::SpanRef;
use flowgate_engine::{
    Engine, EngineConfig, HandlerError, RetryOn, StartRequest, StepContext, Workers,
};
use flowgate_store::{MemoryStore, Queues, Store};
use flowgate_traces::{Endpoint, Traces};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use wiremock::matchers::{header, method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

const ORDER: &str = "{flow: order, steps: {
    start: {run: {worker: work}, queue: left, emits: [pay, stock]},
    charge: {subscribes: [pay], run: {worker: flaky}, queue: right, emits: [paid],
        retry: {attempts: 3, backoff: {initial: 1ms}}},
    reserve: {subscribes: [stock], run: {worker: work}, queue: left, emits: [reserved]},
    joined: {subscribes: [paid, reserved]},
    ship: {subscribes: ['step:joined', paid], run: {worker: work}, queue: right}}}";

/// A collector that takes everything.
async fn collector() -> MockServer {
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .and(path("/v1/traces"))
        .and(header("content-type", "application/x-protobuf"))
        .respond_with(ResponseTemplate::new(200))
        .mount(&server)
        .await;
    server
}

/// What it was sent, with the instance that each span came from.
async fn spans(server: &MockServer) -> Vec<(String, Span)> {
    let requests = server.received_requests().await.unwrap();
    let mut spans = Vec::new();
    for request in requests {
        let sent = ExportTraceServiceRequest::decode(request.body.as_slice()).unwrap();
        for of_resource in sent.resource_spans {
            let resource = of_resource.resource.unwrap();
            let named = |key: &str| {
                let found = resource.attributes.iter().find(|pair| pair.key == key);
                text(found.unwrap().value.as_ref().unwrap().value.as_ref().unwrap())
            };
            assert_eq!(named("service.name"), "flowgate");
            let instance = named("service.instance.id");
            let of_scopes = of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            spans.extend(of_scopes.map(|span| (instance.clone(), span)));
        }
    }
    spans
}

fn text(value: &Value) -> String {
    if let Value::StringValue(text) = value {
        return text.clone();
    }
    let Value::IntValue(number) = value else { panic!("no attribute of ours is {value:?}") };
    number.to_string()
}

fn attributes(span: &Span) -> BTreeMap<&str, String> {
    let pairs = span.attributes.iter();
    pairs
        .map(|pair| {
            let value = pair.value.as_ref().and_then(|value| value.value.as_ref());
            (pair.key.as_str(), text(value.unwrap()))
        })
        .collect()
}

fn workers() -> Workers {
    let mut workers = Workers::new();
    workers.register("work", async |_: serde_json::Value, ctx: StepContext| {
        let place = ctx.traceparent().expect("the engine is traced");
        assert!(place.contains(&ctx.run_id().to_string().replace('-', "")), "{place}");
        if ctx.step() == "start" {
            ctx.emit("pay", &())?;
            ctx.emit("stock", &())?;
        } else if ctx.step() == "reserve" {
            ctx.emit("reserved", &())?;
        }
        Ok::<_, HandlerError>(())
    });
    workers.register("flaky", async |_: serde_json::Value, ctx: StepContext| {
        if ctx.attempt() == 1 {
            return Err(HandlerError::retryable("the terminal is busy"));
        }
        ctx.emit("paid", &())?;
        Ok(())
    });
    workers.register("refuse", async |_: serde_json::Value, _: StepContext| {
        Err::<(), _>(HandlerError::fatal("not today"))
    });
    workers
}

fn engine(store: &Arc<dyn Store>, name: &str, queue: &str) -> Engine {
    let config = EngineConfig {
        queues: Queues::Only(vec![queue.into()]),
        is_traced: true,
        ..EngineConfig::new(InstanceId(name.into()))
    };
    Engine::start(Arc::clone(store), workers(), config).unwrap()
}

/// Two engines on one store, each with one of the queues of a flow.
struct Pair {
    engines: [Engine; 2],
    traces: [Traces; 2],
}

impl Pair {
    async fn start(flow: &str, endpoint: &Endpoint) -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let engines = [engine(&store, "a", "left"), engine(&store, "b", "right")];
        engines[0].register(&Flow::parse(flow).unwrap(), None).await.unwrap();
        let traces = [0, 1].map(|at| Traces::start(&engines[at], endpoint).unwrap());
        Self { engines, traces }
    }

    async fn finish(self) {
        for (engine, traces) in self.engines.into_iter().zip(self.traces) {
            engine.shutdown().await;
            traces.finish().await;
        }
    }
}

fn bytes(place: SpanRef) -> (Vec<u8>, Vec<u8>) {
    (place.trace_id.to_vec(), place.span_id.to_vec())
}

fn endpoint(server: &MockServer) -> Endpoint {
    server.uri().parse().unwrap()
}

#[tokio::test]
async fn a_run_on_two_engines_is_one_trace_with_the_run_above_its_attempts() {
    let server = collector().await;
    let pair = Pair::start(ORDER, &endpoint(&server)).await;
    let request = StartRequest::new(Payload::null());
    let run_id = pair.engines[0].start_run("order", request).await.unwrap().run_id;
    let run = pair.engines[0].wait(run_id).await.unwrap().row.run;
    assert_eq!(run.status, RunStatus::Completed);
    pair.finish().await;

    let sent = spans(&server).await;
    let (trace_id, run_span) = bytes(SpanRef::of_run(run_id));
    let of = |step: &str, attempt| bytes(SpanRef::of_attempt(run_id, step, attempt)).1;
    let seen: BTreeMap<Vec<u8>, &(String, Span)> =
        sent.iter().map(|sent| (sent.1.span_id.clone(), sent)).collect();
    assert_eq!(seen.len(), sent.len(), "no span comes twice");
    assert!(sent.iter().all(|(_, span)| span.trace_id == trace_id), "there is one trace");
    let expected = [
        (run_span.clone(), "b", "order", "completed"),
        (of("start", 1), "a", "start", "succeeded"),
        (of("charge", 1), "b", "charge", "retried"),
        (of("charge", 2), "b", "charge", "succeeded"),
        (of("reserve", 1), "a", "reserve", "succeeded"),
        (of("ship", 1), "b", "ship", "succeeded"),
    ];
    assert_eq!(sent.len(), expected.len(), "{sent:#?}");
    for (id, instance, name, status) in &expected {
        let (exported_by, span) = seen[id];
        assert_eq!((exported_by.as_str(), span.name.as_str()), (*instance, *name));
        let attributes = attributes(span);
        assert_eq!(attributes["flowgate.status"], *status);
        assert_eq!(attributes["flowgate.run_id"], run_id.to_string());
        assert_eq!(attributes["flowgate.revision"], run.revision.to_string());
        let parent = if *id == run_span { Vec::new() } else { run_span.clone() };
        assert_eq!(span.parent_span_id, parent, "the parent of {name}");
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
        if *id != run_span {
            assert_eq!(attributes["flowgate.instance"], *instance);
        }
    }
    let failed = attributes(&seen[&of("charge", 1)].1);
    assert_eq!(failed["error.type"], "failed");
    assert_eq!(failed["flowgate.error"], "the terminal is busy");
    assert_eq!(failed["flowgate.attempt"], "1");
    let linked =
        |id: &Vec<u8>| seen[id].1.links.iter().map(|link| link.span_id.clone()).collect::<Vec<_>>();
    assert_eq!(linked(&of("charge", 2)), [of("start", 1)]);
    assert_eq!(linked(&of("ship", 1)), [of("charge", 2)], "a join has no span to link to");
    // The run began on `a`, and `b` ended it: its time comes from the store.
    let run = &seen[&run_span].1;
    let first = &seen[&of("start", 1)].1;
    let slack = u64::try_from(Duration::from_millis(50).as_nanos()).unwrap();
    assert!(run.start_time_unix_nano <= first.start_time_unix_nano + slack);
}

#[tokio::test]
async fn a_wait_that_a_signal_ends_and_a_failed_run_have_spans() {
    let flow = "{flow: asked, steps: {
        ask: {wait: {signal: answer}},
        act: {subscribes: ['step:ask'], run: {worker: refuse}, queue: left}}}";
    let server = collector().await;
    let pair = Pair::start(flow, &endpoint(&server)).await;
    let request = StartRequest::new(Payload::null());
    let engine = &pair.engines[0];
    let run_id = engine.start_run("asked", request).await.unwrap().run_id;
    engine.signal(run_id, "answer", Payload::null()).await.unwrap();
    let run = engine.wait(run_id).await.unwrap().row.run;
    assert_eq!(run.status, RunStatus::Failed);
    let again: RunId = engine.retry(run_id, None, &RetryOn::Pinned).await.unwrap().run_id;
    engine.wait(again).await.unwrap();
    pair.finish().await;

    let sent = spans(&server).await;
    let find = |place: SpanRef| {
        let (trace_id, span_id) = bytes(place);
        let is_it = |span: &&Span| span.trace_id == trace_id && span.span_id == span_id;
        sent.iter().map(|(_, span)| span).find(is_it).expect("the span was exported")
    };
    let wait = find(SpanRef::of_wait(run_id, "ask"));
    assert_eq!(attributes(wait)["flowgate.status"], "succeeded");
    let act = find(SpanRef::of_attempt(run_id, "act", 1));
    assert_eq!(act.links[0].span_id, wait.span_id, "it started on the end of the wait");
    let ended = find(SpanRef::of_run(run_id));
    assert_eq!(attributes(ended)["flowgate.status"], "failed");
    assert_eq!(ended.status.as_ref().unwrap().code, 2, "an error");
    let retried = find(SpanRef::of_run(again));
    assert_eq!(retried.links[0].trace_id, ended.trace_id, "a retry is linked to what it retries");
}

#[tokio::test]
async fn runs_go_on_while_the_collector_is_away_or_refuses() {
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(400)).mount(&server).await;
    let nobody: Endpoint = "http://127.0.0.1:9".parse().unwrap();
    for endpoint in [nobody, endpoint(&server)] {
        let pair = Pair::start(ORDER, &endpoint).await;
        for _ in 0..20 {
            let request = StartRequest::new(Payload::null());
            let run = pair.engines[0].run_to_end("order", request).await.unwrap();
            assert_eq!(run.status, RunStatus::Completed);
        }
        pair.finish().await;
    }
    assert!(!server.received_requests().await.unwrap().is_empty());
}
