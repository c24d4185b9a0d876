//! Messages that steps publish: what arrives, what is refused, and what happens when the broker goes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flowgate_core::event::{ErrorKind, Event as RunEvent};
use flowgate_core::ids::RunId;
use flowgate_core::run::RunStatus;
use flowgate_engine::{Engine, EngineConfig, StartRequest, Workers, instance_id};
use flowgate_mqtt::{Credentials, Outlet, Settings};
use flowgate_store::{MemoryStore, Store, whole_log};
use flowgate_testbed::mqtt::Listener;
use flowgate_testbed::{BrokerTerms, Direction, FaultProxy, Mosquitto, PrivateServer};
use metrics_exporter_prometheus::PrometheusBuilder;
use rumqttc::Publish;

use crate::world::{eventually, flow, payload, runs, settings};

const OUTPUT: &str = "redforge/ingest/output";

/// An engine whose steps publish.
struct World {
    store: Arc<dyn Store>,
    engine: Engine,
    outlet: Outlet,
}

impl World {
    fn new(settings: &Settings) -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let outlet = Outlet::start(settings).unwrap();
        let mut workers = Workers::new();
        workers.publish_by(outlet.publisher());
        let config = EngineConfig::new(instance_id());
        let engine = Engine::start(Arc::clone(&store), workers, config).unwrap();
        Self { store, engine, outlet }
    }

    /// A flow whose one step publishes what it is started with.
    async fn register(&self, step: &str) {
        let text = format!("{{flow: out, steps: {{tell: {step}}}}}");
        self.engine.register(&flow(&text), None).await.unwrap();
    }

    async fn start(&self, input: &str) -> RunId {
        let request = StartRequest::new(payload(input));
        self.engine.start_run("out", request).await.unwrap().run_id
    }

    async fn ends(&self, run_id: RunId) -> RunStatus {
        self.engine.wait(run_id).await.unwrap().row.run.status
    }

    /// The kind of the failure that ended the run's step, and what it said.
    async fn failure(&self, run_id: RunId) -> (ErrorKind, String) {
        assert_eq!(self.ends(run_id).await, RunStatus::Failed);
        let log = whole_log(&*self.store, run_id).await.unwrap();
        let failed = log.iter().find_map(|stored| {
            let RunEvent::StepFailed { error, .. } = &stored.event else { return None };
            Some((error.kind, error.message.to_string()))
        });
        failed.unwrap()
    }

    async fn stop(self) {
        self.engine.shutdown().await;
        self.outlet.stop().await;
    }
}

fn property<'a>(message: &'a Publish, name: &str) -> &'a str {
    let properties = message.properties.as_ref().unwrap();
    let mut named = properties.user_properties.iter().filter(|(key, _)| key == name);
    let (_, value) = named.next().unwrap();
    assert_eq!(named.next(), None, "{name} is there once");
    value
}

#[tokio::test]
async fn a_message_arrives_as_it_is_with_what_tells_it_from_others() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let counts = recorder.handle();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let broker = Mosquitto::start().unwrap();
    let mut listener = Listener::new(&broker, "redforge/#").await;
    let world = World::new(&settings(&broker, "one"));
    world.register(&format!("{{run: {{mqtt: {{topic: {OUTPUT}}}}}}}")).await;
    let run_id = world.start(r#"{"n": 1.50, "ä": ["x"]}"#).await;
    let message = listener.next().await;
    assert_eq!(world.ends(run_id).await, RunStatus::Completed);
    assert_eq!((&message.topic[..], message.retain), (OUTPUT.as_bytes(), false));
    assert_eq!(message.payload, r#"{"n": 1.50, "ä": ["x"]}"#.as_bytes());
    let properties = message.properties.as_ref().unwrap();
    assert_eq!(properties.content_type.as_deref(), Some("application/json"));
    assert_eq!(properties.payload_format_indicator, Some(1));
    assert_eq!(property(&message, "message-id"), format!("{run_id}/tell/1"));
    assert_eq!(property(&message, "run-id"), run_id.to_string());
    let [run] = &runs(&*world.store).await[..] else { panic!("there is one run") };
    assert_eq!(property(&message, "revision"), run.revision.to_string());
    let facts = ["flow", "step", "attempt"].map(|name| property(&message, name));
    assert_eq!(facts, ["out", "tell", "1"]);
    world.stop().await;
    let counts = counts.render();
    assert!(counts.contains(r#"flowgate_mqtt_published_total{outcome="published"} 1"#), "{counts}");
    assert!(counts.contains("flowgate_mqtt_publisher_connected 0"), "{counts}");
}

#[tokio::test]
async fn a_payload_is_the_part_of_the_input_that_the_step_names() {
    let broker = Mosquitto::start().unwrap();
    let mut listener = Listener::new(&broker, OUTPUT).await;
    let world = World::new(&settings(&broker, "one"));
    world.register(&format!("{{run: {{mqtt: {{topic: {OUTPUT}, payload: input.a.b}}}}}}")).await;
    let run_id = world.start(r#"{"a": {"b": {"c": 1e3}}}"#).await;
    assert_eq!(listener.next().await.payload, r#"{"c": 1e3}"#);
    assert_eq!(world.ends(run_id).await, RunStatus::Completed);
    let without = world.start(r#"{"a": 7}"#).await;
    let (kind, told) = world.failure(without).await;
    assert_eq!((kind, &*told), (ErrorKind::Invalid, "the input of the step has no `input.a.b`"));
    world.stop().await;
}

#[tokio::test]
async fn a_retained_message_is_there_for_those_who_come_later() {
    let broker = Mosquitto::start().unwrap();
    let world = World::new(&settings(&broker, "one"));
    world.register("{run: {mqtt: {topic: redforge/ingest/last, retain: true}}}").await;
    for number in 1..=3 {
        let run_id = world.start(&number.to_string()).await;
        assert_eq!(world.ends(run_id).await, RunStatus::Completed);
    }
    let kept = Listener::new(&broker, "redforge/ingest/last").await.next().await;
    assert_eq!((&kept.payload[..], kept.retain), (&b"3"[..], true));
    world.stop().await;
}

#[tokio::test]
async fn a_message_that_is_too_large_for_the_broker_fails_for_good_and_holds_up_no_other() {
    // The broker tells its clients how large a packet may be.
    let told = BrokerTerms { settings: &["max_packet_size 2000"], ..BrokerTerms::default() };
    // It does not, and answers with a reason that is none of an acknowledgement.
    let untold = BrokerTerms { settings: &["message_size_limit 1000"], ..BrokerTerms::default() };
    for (terms, expected) in [
        (told, "the message is too large: its packet has"),
        (untold, "the broker refuses the message: PacketTooLarge (149)"),
    ] {
        let broker = Mosquitto::start_with(terms).unwrap();
        let world = World::new(&settings(&broker, "one"));
        world.register(&format!("{{run: {{mqtt: {{topic: {OUTPUT}}}}}}}")).await;
        let large = format!("\"{}\"", "x".repeat(3_000));
        let mut runs = Vec::new();
        for number in 0..50 {
            let is_large = number % 20 == 7;
            let run_id = world.start(if is_large { &large } else { "1" }).await;
            runs.push((run_id, is_large));
        }
        for (run_id, is_large) in runs {
            if is_large {
                let (kind, message) = world.failure(run_id).await;
                assert!(message.starts_with(expected), "{message}");
                assert_eq!(kind, ErrorKind::Final);
            } else {
                let status = world.ends(run_id).await;
                assert_eq!(status, RunStatus::Completed, "{:?}", world.failure(run_id).await);
            }
        }
        world.stop().await;
    }
}

#[tokio::test]
async fn a_message_that_the_broker_does_not_allow_fails_for_good_with_its_reason() {
    let access = &["user flowgate", "topic write redforge/ingest/+"];
    let user = Some(("flowgate", "canary"));
    let terms = BrokerTerms { user, access, ..BrokerTerms::default() };
    let broker = Mosquitto::start_with(terms).unwrap();
    let (user, password) = ("flowgate".to_owned(), "canary".to_owned());
    let credentials = Some(Credentials { user, password });
    let world = World::new(&Settings { credentials, ..settings(&broker, "one") });
    world.register(&format!("{{run: {{mqtt: {{topic: {OUTPUT}}}}}}}")).await;
    let allowed = world.start("1").await;
    assert_eq!(world.ends(allowed).await, RunStatus::Completed);
    world.register("{run: {mqtt: {topic: redforge/secret}}}").await;
    let forbidden = world.start("1").await;
    let (kind, message) = world.failure(forbidden).await;
    let expected = "the broker refuses the message for `redforge/secret`: NotAuthorized (135)";
    assert_eq!((kind, &*message), (ErrorKind::Final, expected));
    world.stop().await;
}

#[tokio::test]
async fn a_broker_that_lets_nobody_in_is_named_with_its_reason_and_tried_again() {
    let terms = BrokerTerms { user: Some(("flowgate", "canary")), ..BrokerTerms::default() };
    let broker = Mosquitto::start_with(terms).unwrap();
    let world = World::new(&settings(&broker, "one"));
    let retry = "retry: {attempts: 2, backoff: {initial: 10ms}}, timeout: 400ms";
    world.register(&format!("{{run: {{mqtt: {{topic: {OUTPUT}}}}}, {retry}}}")).await;
    let run_id = world.start("1").await;
    let (kind, message) = world.failure(run_id).await;
    assert_eq!(kind, ErrorKind::Failed, "it may be let in the next time");
    let expected = format!("there was no connection to {} in time: ", broker.url());
    assert!(message.starts_with(&expected), "{message}");
    assert!(message.contains("NotAuthorized"), "{message}");
    let [run] = &runs(&*world.store).await[..] else { panic!("there is one run") };
    assert_eq!(run.steps[0].failures, 2);
    world.stop().await;
}

/// What has arrived, by the ids of the messages.
#[derive(Default)]
struct Arrived {
    by_id: BTreeMap<String, BTreeSet<Vec<u8>>>,
    count: usize,
}

impl Arrived {
    fn take(&mut self, listener: &mut Listener) {
        while let Some(message) = listener.try_next() {
            self.count += 1;
            let id = property(&message, "message-id").to_owned();
            self.by_id.entry(id).or_default().insert(message.payload.to_vec());
        }
    }

    async fn are(&mut self, count: usize, listener: &mut Listener) {
        let what = format!("{count} messages");
        eventually(&what, async || {
            self.take(listener);
            self.by_id.len() >= count
        })
        .await;
    }
}

#[tokio::test]
async fn nothing_is_lost_when_the_broker_is_killed_and_what_is_repeated_has_the_same_id() {
    let mut broker = Mosquitto::start().unwrap();
    let proxy = FaultProxy::start(broker.address()).unwrap();
    let through = format!("mqtt://{}", proxy.address()).parse().unwrap();
    let world = World::new(&Settings { broker: through, ..settings(&broker, "one") });
    let retry = "retry: {attempts: 50, backoff: {initial: 20ms, max: 100ms}}, timeout: 5s";
    world.register(&format!("{{run: {{mqtt: {{topic: {OUTPUT}}}}}, {retry}}}")).await;
    let mut listener = Listener::new(&broker, OUTPUT).await;
    let (mut started, mut arrived) = (Vec::new(), Arrived::default());
    for number in 0..50 {
        started.push((number, world.start(&number.to_string()).await));
    }
    arrived.are(50, &mut listener).await;
    // These reach the broker, and its answers do not come back; then it is gone.
    proxy.silence(Direction::ToClient);
    for number in 50..80 {
        started.push((number, world.start(&number.to_string()).await));
    }
    arrived.are(51, &mut listener).await;
    broker.kill().unwrap();
    proxy.cut();
    for number in 80..100 {
        started.push((number, world.start(&number.to_string()).await));
    }
    broker.restart().unwrap();
    proxy.pass();
    for (_, run_id) in &started {
        assert_eq!(world.ends(*run_id).await, RunStatus::Completed);
    }
    arrived.are(100, &mut listener).await;
    for (number, run_id) in started {
        let payloads = &arrived.by_id[&format!("{run_id}/tell/1")];
        assert_eq!(payloads.iter().collect::<Vec<_>>(), [number.to_string().as_bytes()]);
    }
    assert!(arrived.count > 100, "what was not answered came again");
    world.stop().await;
}

#[tokio::test]
async fn a_broker_that_does_not_answer_in_time_is_waited_for_by_the_next_attempt() {
    let mut broker = Mosquitto::start().unwrap();
    let world = World::new(&settings(&broker, "one"));
    let retry = "retry: {attempts: 100, backoff: {initial: 20ms, max: 50ms}}, timeout: 200ms";
    world.register(&format!("{{run: {{mqtt: {{topic: {OUTPUT}}}}}, {retry}}}")).await;
    let first = world.start("1").await;
    assert_eq!(world.ends(first).await, RunStatus::Completed);
    broker.pause().unwrap();
    let run_id = world.start("2").await;
    let said = || async {
        let log = whole_log(&*world.store, run_id).await.unwrap();
        log.iter().any(|stored| {
            matches!(&stored.event, RunEvent::AttemptFailed { error, .. }
                if error.message.ends_with("did not answer that it has the message in time"))
        })
    };
    eventually("an attempt has waited in vain", said).await;
    broker.resume().unwrap();
    assert_eq!(world.ends(run_id).await, RunStatus::Completed);
    world.stop().await;
}

#[tokio::test]
async fn a_shutdown_waits_for_what_is_under_way_within_its_grace() {
    let mut broker = Mosquitto::start().unwrap();
    let world = World::new(&settings(&broker, "one"));
    world.register(&format!("{{run: {{mqtt: {{topic: {OUTPUT}}}}}}}")).await;
    let first = world.start("1").await;
    assert_eq!(world.ends(first).await, RunStatus::Completed);
    broker.pause().unwrap();
    let run_id = world.start("2").await;
    eventually("it is under way", async || world.engine.stats().running == 1).await;
    let World { store, engine, outlet } = world;
    tokio::join!(engine.shutdown(), async {
        eventually("it is told to stop", async || !engine.is_running()).await;
        broker.resume().unwrap();
    });
    outlet.stop().await;
    let run = store.read_run(run_id).await.unwrap().unwrap().row.run;
    assert_eq!(run.status, RunStatus::Completed);
}
