//! Single messages: which become runs, which do not, and when they are acknowledged.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::limits::PAYLOAD_BYTES_MAX;
use flowgate_core::run::RunStatus;
use flowgate_engine::{Engine, FirstBytes, HoldRequest, dead_messages};
use flowgate_mqtt::{Bridge, Settings};
use flowgate_store::faulty::{Call, Fault, Faulty};
use flowgate_store::{MemoryStore, Store};
use flowgate_testbed::mqtt::{Message, Publisher};
use flowgate_testbed::{Mosquitto, PrivateServer};
use metrics_exporter_prometheus::PrometheusBuilder;
use rumqttc::QoS;

use crate::world::{
    TOPIC, bridge, dead, engine, eventually, first_left, flow, runs, settings, subscription,
};

struct World {
    broker: Mosquitto,
    publisher: Publisher,
    faults: Arc<Faulty>,
    store: Arc<dyn Store>,
    engine: Engine,
    settings: Settings,
}

impl World {
    async fn new() -> Self {
        let broker = Mosquitto::start().unwrap();
        let publisher = Publisher::new(&broker);
        let faults = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
        let store: Arc<dyn Store> = Arc::clone(&faults) as _;
        let engine = engine(&store).await;
        let settings = settings(&broker, "one");
        Self { broker, publisher, faults, store, engine, settings }
    }

    /// A bridge that has nothing in hand.
    async fn bridge(&self) -> Bridge {
        let bridge = bridge(&self.engine, &self.broker, &self.settings).await;
        let has_hello =
            async || !dead_messages(&*self.store, None, None, 1).await.unwrap().is_empty();
        eventually("the first message is dealt with", has_hello).await;
        bridge
    }

    async fn has_runs(&self, count: usize) {
        let what = format!("{count} runs");
        eventually(&what, async || runs(&*self.store).await.len() == count).await;
    }

    /// Nothing is left of what was published before for the client of the bridge, which is gone.
    async fn has_all_acknowledged(&self) {
        let marker = Message { payload: b"marker", ..Message::new(TOPIC) };
        self.publisher.publish(&marker).await;
        let left = first_left(&self.broker, "one-ingest").await;
        assert_eq!(left.payload, "marker", "a message before it was not acknowledged");
    }
}

#[tokio::test]
async fn a_message_id_has_one_run_however_often_it_comes() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let counts = recorder.handle();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let bridge = world.bridge().await;
    for number in (0..10).chain(0..10).chain(0..10) {
        world.publisher.number(number).await;
    }
    for qos in [QoS::AtMostOnce, QoS::ExactlyOnce] {
        let (payload, id) = (&br#"{"n":3}"#[..], Some("3"));
        world.publisher.publish(&Message { payload, id, qos, ..Message::new(TOPIC) }).await;
    }
    let nameless = Message { payload: br#"{"n":7}"#, ..Message::new(TOPIC) };
    world.publisher.publish(&nameless).await;
    world.publisher.publish(&nameless).await;
    world.has_runs(12).await;
    bridge.stop().await;

    let runs = runs(&*world.store).await;
    let keys: BTreeSet<_> = runs.iter().filter_map(|run| run.key.as_deref()).collect();
    let expected: Vec<_> = (0..10).map(|number| format!("mqtt/ingest/{number}")).collect();
    assert_eq!(keys.into_iter().collect::<Vec<_>>(), expected);
    assert!(runs.iter().all(|run| *run.tags["topic"] == *TOPIC));
    let counts = counts.render();
    for line in [
        r#"flowgate_mqtt_messages_total{subscription="ingest",outcome="started"} 12"#,
        r#"flowgate_mqtt_messages_total{subscription="ingest",outcome="existing"} 22"#,
        r#"flowgate_mqtt_messages_without_id_total{subscription="ingest"} 2"#,
        r#"flowgate_mqtt_connected{subscription="ingest"} 0"#,
    ] {
        assert!(counts.contains(line), "{line} is not in\n{counts}");
    }
    assert_eq!(dead(&*world.store).await, []);
    world.has_all_acknowledged().await;
}

#[tokio::test]
async fn a_message_at_a_closed_gate_is_held_and_acknowledged() {
    let world = World::new().await;
    world.engine.hold("ingest", HoldRequest::default()).await.unwrap();
    let bridge = world.bridge().await;
    for number in 0..5 {
        world.publisher.number(number).await;
    }
    world.has_runs(5).await;
    bridge.stop().await;
    let runs = runs(&*world.store).await;
    assert!(runs.iter().all(|run| run.status == RunStatus::Held), "{runs:?}");
    world.has_all_acknowledged().await;
}

#[tokio::test]
async fn a_message_is_acknowledged_when_its_run_is_stored_and_not_before() {
    let world = World::new().await;
    world.bridge().await.stop().await;
    // The run is written, and the engine does not learn of it.
    world.faults.plan(Call::Commit, Fault::ReplyLost, u32::MAX);
    let bridge = Bridge::start(&world.engine, &world.settings).unwrap();
    world.publisher.number(1).await;
    world.has_runs(1).await;
    drop(bridge);
    let left = first_left(&world.broker, "one-ingest").await;
    assert_eq!((&left.payload[..], left.dup), (&br#"{"n":1}"#[..], true));

    world.faults.plan(Call::Commit, Fault::NotDone, u32::MAX);
    let bridge = Bridge::start(&world.engine, &world.settings).unwrap();
    world.publisher.number(2).await;
    world.faults.plan(Call::Commit, Fault::NotDone, 0);
    world.has_runs(2).await;
    bridge.stop().await;
    world.has_all_acknowledged().await;
}

/// A broker that goes on with a session, sends a message of it, and answers no subscription before
/// that message is acknowledged. Whether it was.
fn slow_to_answer(listener: &TcpListener) -> bool {
    let (mut client, _) = listener.accept().unwrap();
    assert_eq!(packet(&mut client).unwrap().0 >> 4, 1, "CONNECT comes first");
    client.write_all(&[0x20, 3, 1, 0, 0]).unwrap();
    let mut publish = vec![0x32, 0, 0, u8::try_from(TOPIC.len()).unwrap()];
    publish.extend(TOPIC.as_bytes().iter().chain(&[0, 7, 0]).chain(br#"{"n":1}"#));
    publish[1] = u8::try_from(publish.len() - 2).unwrap();
    client.write_all(&publish).unwrap();
    let (mut is_acknowledged, mut unanswered) = (false, Vec::new());
    while let Some((kind, body)) = packet(&mut client) {
        match kind >> 4 {
            4 => is_acknowledged = body[..2] == [0, 7],
            8 => unanswered.push([body[0], body[1]]),
            _ => {}
        }
        if is_acknowledged {
            for [high, low] in unanswered.drain(..) {
                client.write_all(&[0x90, 4, high, low, 0, 1]).unwrap();
            }
        }
    }
    is_acknowledged
}

/// The next packet, the first byte and what is after the length; none if there is no other.
fn packet(client: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    client.read_exact(&mut head).ok()?;
    assert!(head[1] < 0x80, "a packet of this test is short");
    let mut body = vec![0; head[1].into()];
    client.read_exact(&mut body).ok()?;
    Some((head[0], body))
}

#[tokio::test]
async fn what_comes_before_the_subscription_is_answered_is_acknowledged_at_a_stop() {
    let world = World::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let broker = format!("mqtt://{}", listener.local_addr().unwrap()).parse().unwrap();
    let settings = Settings { broker, ..world.settings.clone() };
    let answering = tokio::task::spawn_blocking(move || slow_to_answer(&listener));
    // The run is there, and the bridge learns of it when it has been told to stop.
    let late = Fault::ReplyLate(Duration::from_millis(200));
    world.faults.plan(Call::Commit, late, u32::MAX);
    let bridge = Bridge::start(&world.engine, &settings).unwrap();
    world.has_runs(1).await;
    bridge.stop().await;
    assert!(answering.await.unwrap(), "the broker would send it again");
}

#[tokio::test]
async fn what_cannot_be_a_run_is_a_dead_message_with_its_reason() {
    let world = World::new().await;
    let bridge = world.bridge().await;
    let publish = async |id: Option<&str>, payload: &[u8]| {
        world.publisher.publish(&Message { payload, id, ..Message::new(TOPIC) }).await;
    };
    publish(None, b"{oops").await;
    publish(None, &[0xff, 0x00]).await;
    publish(Some("large"), &vec![b'x'; PAYLOAD_BYTES_MAX + 1]).await;
    publish(None, &vec![b'x'; 32 << 20]).await;
    publish(None, br#"{"n":"text"}"#).await;
    publish(Some("7"), br#"{"n":7}"#).await;
    publish(Some("7"), br#"{"n":8}"#).await;
    publish(Some(&"7".repeat(600)), br#"{"n":7}"#).await;
    let retained = Message {
        payload: br#"{"n":9}"#,
        options: rumqttc::PublishOptions::retained,
        ..Message::new(TOPIC)
    };
    world.publisher.publish(&retained).await;
    publish(Some("10"), br#"{"n":10}"#).await;
    eventually("all are dealt with", async || dead(&*world.store).await.len() == 8).await;
    world.has_runs(2).await;
    bridge.stop().await;

    let mut dead = dead(&*world.store).await;
    dead.reverse();
    let seen: Vec<_> = dead.iter().map(|kept| (&*kept.dead.reason, kept.dead.bytes)).collect();
    let large = PAYLOAD_BYTES_MAX as u64 + 1;
    let expected = [
        ("not_json", 5),
        ("not_json", 2),
        ("too_large", large),
        ("too_large", 32 << 20),
        ("input_invalid", 12),
        ("key_conflict", 7),
        ("start_invalid", 7),
        ("retained", 7),
    ];
    assert_eq!(
        seen.iter().collect::<BTreeSet<_>>(),
        expected.iter().collect::<BTreeSet<_>>(),
        "they are kept as they are settled, which is not quite as they come"
    );
    let oops = dead.iter().find(|kept| kept.dead.bytes == 5).unwrap();
    assert_eq!(oops.dead.topic, TOPIC);
    assert_eq!(oops.dead.first, FirstBytes::Text("{oops".to_owned()));
    assert!(oops.dead.message.starts_with("it is not valid JSON"), "{}", oops.dead.message);
    world.has_all_acknowledged().await;
}

#[tokio::test]
async fn a_dead_message_is_acknowledged_when_it_is_stored_and_not_before() {
    let world = World::new().await;
    world.bridge().await.stop().await;
    let bridge = Bridge::start(&world.engine, &world.settings).unwrap();
    world.faults.plan(Call::Records, Fault::ReplyLost, u32::MAX);
    world.publisher.publish(&Message { payload: b"{oops", ..Message::new(TOPIC) }).await;
    eventually("it is kept", async || dead(&*world.store).await.len() == 1).await;
    drop(bridge);
    let left = first_left(&world.broker, "one-ingest").await;
    assert_eq!((&left.payload[..], left.dup), (&b"{oops"[..], true));
}

#[tokio::test]
async fn messages_wait_for_a_flow_that_is_not_there_and_hold_up_no_other() {
    let mut world = World::new().await;
    world.settings.subscriptions.push(subscription("late", "redforge/late/+", "late"));
    let bridge = Bridge::start(&world.engine, &world.settings).unwrap();
    for number in 0..100 {
        let (payload, id) = (b"{}", number.to_string());
        let message = Message::new("redforge/late/input");
        world.publisher.publish(&Message { payload, id: Some(&id), ..message }).await;
    }
    world.publisher.number(1).await;
    world.has_runs(1).await;
    let late = flow("{flow: late, steps: {take: {run: {worker: take}}}}");
    world.engine.register(&late, None).await.unwrap();
    world.has_runs(101).await;
    bridge.stop().await;
    assert_eq!(dead(&*world.store).await, []);
}

#[tokio::test]
async fn what_comes_while_no_instance_is_there_is_kept_by_the_broker() {
    let mut world = World::new().await;
    world.bridge().await.stop().await;
    for number in 0..100 {
        world.publisher.number(number).await;
    }
    world.broker.restart().unwrap();
    let bridge = Bridge::start(&world.engine, &world.settings).unwrap();
    world.has_runs(100).await;
    // This broker keeps the messages of a shared subscription over a restart, and not the
    // subscription itself: it is answered as taken only because the bridge has subscribed again.
    world.publisher.number(100).await;
    world.has_runs(101).await;
    bridge.stop().await;
    world.has_all_acknowledged().await;
}

#[tokio::test]
async fn a_bridge_without_a_broker_waits_for_it_and_can_be_stopped() {
    let mut world = World::new().await;
    world.broker.kill().unwrap();
    let bridge = Bridge::start(&world.engine, &world.settings).unwrap();
    bridge.stop().await;
    let bridge = Bridge::start(&world.engine, &world.settings).unwrap();
    world.broker.restart().unwrap();
    world.publisher.number(1).await;
    world.has_runs(1).await;
    bridge.stop().await;
}

#[tokio::test]
async fn a_flood_of_retained_messages_is_kept_as_dead_and_holds_up_no_run() {
    const FLOOD: usize = 200;
    let mut world = World::new().await;
    world.settings.subscriptions[0].topic = "redforge/ingest/#".parse().unwrap();
    let bridge = Bridge::start(&world.engine, &world.settings).unwrap();
    for number in 0..FLOOD {
        let topic = format!("{TOPIC}/{number}");
        let options = rumqttc::PublishOptions::retained;
        let message = Message { payload: b"{\"n\":1}", options, ..Message::new(&topic) };
        world.publisher.publish(&message).await;
    }
    world.publisher.number(1).await;
    world.has_runs(1).await;
    eventually("all are kept", async || dead(&*world.store).await.len() >= FLOOD).await;
    // The broker has them still, and they are no news to whoever subscribes now.
    let again = subscription("again", "redforge/ingest/#", "ingest");
    let (subscriptions, client_id) = (vec![again], "two".parse().unwrap());
    let settings = Settings { client_id, subscriptions, ..world.settings.clone() };
    let later = Bridge::start(&world.engine, &settings).unwrap();
    let mut number = 1;
    let is_of_later = |key: &str| key.starts_with("mqtt/again/");
    eventually("it has a message", async || {
        number += 1;
        world.publisher.number(number).await;
        runs(&*world.store).await.iter().any(|run| run.key.as_deref().is_some_and(is_of_later))
    })
    .await;
    bridge.stop().await;
    later.stop().await;
    let dead = dead(&*world.store).await;
    assert_eq!(dead.len(), FLOOD);
    assert!(dead.iter().all(|kept| kept.dead.reason == "retained"));
}

#[tokio::test]
async fn a_payload_that_no_packet_can_hold_ends_with_its_publisher() {
    let world = World::new().await;
    let bridge = world.bridge().await;
    // MQTT writes the length of a packet in four bytes of seven bits: 300 MB do not fit.
    let mut stranger = TcpStream::connect(world.broker.address()).unwrap();
    stranger.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let connect = [0x10, 15, 0, 4, b'M', b'Q', b'T', b'T', 5, 2, 0, 60, 0, 0, 2, b'b', b'y'];
    stranger.write_all(&connect).unwrap();
    let mut answer = [0; 64];
    assert!(stranger.read(&mut answer).unwrap() > 0);
    stranger.write_all(&[0x32, 0xff, 0xff, 0xff, 0xff, 0x01, 0, 1, b'a']).unwrap();
    let ended = std::iter::repeat_with(|| stranger.read(&mut answer))
        .take(10)
        .any(|read| read.map_or(true, |bytes| bytes == 0));
    assert!(ended, "the broker does not go on with it");
    world.publisher.number(1).await;
    world.has_runs(1).await;
    bridge.stop().await;
    assert_eq!(dead(&*world.store).await, []);
}
