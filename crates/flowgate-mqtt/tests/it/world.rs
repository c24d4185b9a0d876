//! A broker, somebody who publishes, and an engine whose runs do nothing but end.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::flow::Flow;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::payload::Payload;
use flowgate_core::run::Run;
use flowgate_engine::{
    Engine, EngineConfig, HandlerError, KeptMessage, StepContext, Workers, dead_messages,
    instance_id,
};
use flowgate_mqtt::{
    Bridge, GROUP_DEFAULT, ID_PROPERTY_DEFAULT, SESSION_EXPIRY_DEFAULT, Settings, Subscription,
};
use flowgate_store::{RunCursor, RunQuery, Store};
use flowgate_testbed::mqtt::{Message, Publisher};
use flowgate_testbed::{Mosquitto, PrivateServer};
use rumqttc::{
    AckMode, AsyncClient, BrokerSessionResumePolicy, Event, MqttOptions, Packet, Publish,
};
use serde_json::Value;

pub(crate) use flowgate_testbed::mqtt::INPUT as TOPIC;

/// A flow that wants a number.
pub(crate) const INGEST: &str = "
flow: ingest
input: { type: object, required: [n], properties: { n: { type: integer } } }
steps:
  take: { run: { worker: take } }
";

/// An engine on a store, with the flow registered.
pub(crate) async fn engine(store: &Arc<dyn Store>) -> Engine {
    let mut workers = Workers::new();
    workers.register("take", async |_: Value, _: StepContext| Ok::<_, HandlerError>(()));
    let config = EngineConfig::new(instance_id());
    let engine = Engine::start(Arc::clone(store), workers, config).unwrap();
    engine.register(&flow(INGEST), None).await.unwrap();
    engine
}

pub(crate) fn payload(json: &str) -> Payload {
    Payload::parse(json).unwrap()
}

pub(crate) fn flow(yaml: &str) -> Flow {
    Flow::parse(yaml).unwrap()
}

/// What to listen to at the broker, as this client.
pub(crate) fn settings(broker: &Mosquitto, client_id: &str) -> Settings {
    Settings {
        broker: broker.url().parse().unwrap(),
        client_id: client_id.parse().unwrap(),
        credentials: None,
        session_expiry: SESSION_EXPIRY_DEFAULT,
        in_flight_max: NonZeroU16::new(32).unwrap(),
        subscriptions: vec![subscription("ingest", TOPIC, "ingest")],
    }
}

pub(crate) fn subscription(name: &str, topic: &str, flow: &str) -> Subscription {
    Subscription {
        name: name.into(),
        topic: topic.parse().unwrap(),
        group: GROUP_DEFAULT.parse().unwrap(),
        flow: flow.into(),
        id_property: Some(ID_PROPERTY_DEFAULT.to_owned()),
        tags: BTreeMap::from([("topic".into(), "topic".parse().unwrap())]),
    }
}

/// A bridge that has subscribed: before that a broker keeps nothing for it.
pub(crate) async fn bridge(engine: &Engine, broker: &Mosquitto, settings: &Settings) -> Bridge {
    let bridge = Bridge::start(engine, settings).unwrap();
    let publisher = Publisher::new(broker);
    for subscription in &settings.subscriptions {
        // It is answered as taken when somebody has subscribed, and is no input of any flow.
        let topic = subscription.topic.to_string();
        publisher.publish(&Message { payload: b"hello?", ..Message::new(&topic) }).await;
    }
    bridge
}

/// The first message that the broker has for this client, which is no bridge any more.
pub(crate) async fn first_left(broker: &Mosquitto, client_id: &str) -> Publish {
    let address = broker.address();
    let mut options = MqttOptions::new(client_id, (address.ip().to_string(), address.port()));
    options.set_session_expiry_interval(Some(3_600));
    options
        .set_clean_start(false)
        .set_broker_session_resume_policy(BrokerSessionResumePolicy::AllowBrokerOnly)
        .set_ack_mode(AckMode::Manual);
    let (_client, mut events) = AsyncClient::builder(options).capacity(10).build();
    loop {
        if let Event::Incoming(Packet::Publish(publish)) = events.poll().await.unwrap() {
            return publish;
        }
    }
}

/// All runs of a flow.
pub(crate) async fn runs(store: &dyn Store) -> Vec<Arc<Run>> {
    let mut runs = Vec::new();
    let mut after: Option<RunCursor> = None;
    loop {
        let query = RunQuery { after, limit: PAGE_MAX, ..RunQuery::default() };
        let page = store.list_runs(&query).await.unwrap();
        let Some(last) = page.last() else { return runs };
        after = Some(RunCursor { started_at: last.started_at, run_id: last.run.run_id });
        runs.extend(page.into_iter().map(|row| row.run));
    }
}

/// The dead messages, but for those by which a test knew that a bridge was there.
pub(crate) async fn dead(store: &dyn Store) -> Vec<KeptMessage> {
    let all = dead_messages(store, None, None, PAGE_MAX).await.unwrap();
    all.into_iter().filter(|kept| kept.dead.bytes != b"hello?".len() as u64).collect()
}

/// Waits until `holds`, a little time at a time, and at most two minutes.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let mut pause = tokio::time::interval(Duration::from_millis(10));
    for _ in 0..12_000 {
        if holds().await {
            return;
        }
        pause.tick().await;
    }
    panic!("{what}: not within two minutes");
}
