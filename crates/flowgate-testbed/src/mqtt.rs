//! Clients of a broker: somebody who publishes, and somebody who listens.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use rumqttc::{
    AsyncClient, Event, MqttOptions, Packet, PubAckReason, Publish, PublishOptions,
    PublishProperties, PublishResult, QoS,
};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;

use crate::Mosquitto;

/// Where [`Publisher::number`] publishes.
pub const INPUT: &str = "redforge/ingest/input";
/// Messages that a publisher of many has on their way at the same time.
const AT_ONCE: usize = 16;

/// What somebody publishes.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Where.
    pub topic: &'a str,
    /// What.
    pub payload: &'a [u8],
    /// The user property `message-id`.
    pub id: Option<&'a str>,
    /// More of its options.
    pub options: fn(PublishOptions) -> PublishOptions,
    /// How surely.
    pub qos: QoS,
}

impl<'a> Message<'a> {
    /// An empty message without an id, with QoS 1.
    pub fn new(topic: &'a str) -> Self {
        Self { topic, payload: b"", id: None, options: |options| options, qos: QoS::AtLeastOnce }
    }
}

/// Somebody who holds each message until the broker has taken it.
#[derive(Debug)]
pub struct Publisher {
    client: AsyncClient,
    _tasks: JoinSet<()>,
}

impl Publisher {
    /// Connects as a client of its own, again and again.
    pub fn new(broker: &Mosquitto) -> Self {
        let client_id = format!("publisher-{:016x}", fastrand::u64(..));
        let address = broker.address();
        let options = MqttOptions::new(client_id, (address.ip().to_string(), address.port()));
        let (client, mut events) = AsyncClient::builder(options).capacity(64).build();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut pause = tokio::time::interval(Duration::from_millis(20));
            loop {
                if events.poll().await.is_err() {
                    pause.tick().await;
                }
            }
        });
        Self { client, _tasks: tasks }
    }

    /// Publishes until the broker answers that it has somebody to give it to.
    pub async fn publish(&self, message: &Message<'_>) {
        let mut pause = tokio::time::interval(Duration::from_millis(5));
        while !self.is_taken(message).await {
            pause.tick().await;
        }
    }

    async fn is_taken(&self, message: &Message<'_>) -> bool {
        let user_properties =
            message.id.iter().map(|id| ("message-id".to_owned(), (*id).to_owned())).collect();
        let properties = PublishProperties { user_properties, ..PublishProperties::default() };
        let options = (message.options)(PublishOptions::new(message.qos).properties(properties));
        let payload = message.payload.to_vec();
        let sent = self
            .client
            .publish_tracked(message.topic, payload, options)
            .await
            .expect("the client lasts as long as its task");
        match sent.wait_async().await {
            Ok(PublishResult::Qos1(ack)) => ack.reason == PubAckReason::Success,
            Ok(PublishResult::Qos0Flushed | PublishResult::Qos2Completed(_)) => true,
            Ok(PublishResult::Qos2PubRecRejected(_)) | Err(_) => false,
        }
    }

    /// Publishes a message with an id that is its number.
    pub async fn number(&self, number: usize) {
        let (payload, id) = (format!("{{\"n\":{number}}}"), number.to_string());
        let payload = payload.as_bytes();
        self.publish(&Message { payload, id: Some(&id), ..Message::new(INPUT) }).await;
    }

    /// Publishes messages by their numbers. When half of them are answered, `at_half` is done while
    /// the others go on.
    pub async fn numbers(&self, numbers: Range<usize>, at_half: impl AsyncFnOnce()) {
        let (answered, is_half) = (AtomicUsize::new(0), Notify::new());
        let half = numbers.len() / 2;
        let all = stream::iter(numbers).for_each_concurrent(AT_ONCE, async |number| {
            self.number(number).await;
            if answered.fetch_add(1, Ordering::SeqCst) + 1 == half {
                is_half.notify_one();
            }
        });
        tokio::join!(all, async {
            is_half.notified().await;
            at_half().await;
        });
    }
}

/// Somebody who gets all messages of some topics, and keeps their session.
#[derive(Debug)]
pub struct Listener {
    messages: mpsc::UnboundedReceiver<Publish>,
    _tasks: JoinSet<()>,
}

impl Listener {
    /// Returns when the broker has granted the subscription.
    pub async fn new(broker: &Mosquitto, filter: &str) -> Self {
        let client_id = format!("listener-{:016x}", fastrand::u64(..));
        let address = broker.address();
        let mut options = MqttOptions::new(client_id, (address.ip().to_string(), address.port()));
        options.set_clean_start(false).set_session_expiry_interval(Some(3_600));
        let (client, mut events) = AsyncClient::builder(options).capacity(16).build();
        let (sender, messages) = mpsc::unbounded_channel();
        let (granted, is_granted) = oneshot::channel();
        let (filter, mut granted) = (filter.to_owned(), Some(granted));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut pause = tokio::time::interval(Duration::from_millis(20));
            loop {
                match events.poll().await {
                    Ok(Event::Incoming(Packet::ConnAck(ack))) if !ack.session_present => {
                        client
                            .subscribe(&filter, QoS::AtLeastOnce)
                            .await
                            .expect("the client lasts as long as its task");
                    }
                    Ok(Event::Incoming(Packet::SubAck(_))) => drop(granted.take()),
                    Ok(Event::Incoming(Packet::Publish(publish))) => drop(sender.send(publish)),
                    Ok(_) => {}
                    Err(_) => drop(pause.tick().await),
                }
            }
        });
        // It is told by being dropped.
        is_granted.await.unwrap_or(());
        Self { messages, _tasks: tasks }
    }

    /// The next message.
    pub async fn next(&mut self) -> Publish {
        self.messages.recv().await.expect("the client lasts as long as its task")
    }

    /// The next message, if there is one yet.
    pub fn try_next(&mut self) -> Option<Publish> {
        self.messages.try_recv().ok()
    }
}
