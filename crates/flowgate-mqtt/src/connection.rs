//! The connection of one subscription, again and again.
//!
//! ```text
//!   broker ── PUBLISH ──► read ── queue ──► settle (many at once) ── in their order ──► PUBACK
//!             at most in_flight_max without PUBACK       engine, store
//! ```
//!
//! - Reader and settler are one task: whoever aborts it ends both, and what was not acknowledged
//!   stays with the broker.
//! - A connection has a client of its own. So an acknowledgement never goes to another connection
//!   than its message came by, where the same number may stand for another message.
//! - The queue has room for all that the broker may send without an answer. So the reader does not
//!   wait for the store, and keeps the connection alive while the store is away.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use metrics::{Counter, Gauge};
use rumqttc::{
    AsyncClient, ConnAck, ConnectionError, DisconnectReasonCode, Event, EventLoop, ManualAck,
    MqttOptions, Packet, QoS, RetainForwardRule, StateError, SubAck, SubscribeFilterInput,
    SubscribeReasonCode,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::desk::{Desk, Settled};
use crate::message::{self, Wish};

/// Between two connections.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Requests to the broker that wait besides acknowledgements.
const REQUESTS_SPARE: usize = 16;
/// How long messages in hand have to get into the store when the bridge stops.
const SETTLE_MAX: Duration = Duration::from_secs(5);
/// How long the last acknowledgements and the farewell may take on their way.
const FAREWELL_MAX: Duration = Duration::from_secs(5);

/// The connection of one subscription.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) desk: Desk,
    pub(crate) options: MqttOptions,
    pub(crate) in_flight_max: usize,
    pub(crate) stop: CancellationToken,
}

/// A message and how it is acknowledged, if it can be.
#[derive(Debug)]
struct Delivery {
    wish: Wish,
    ack: Option<ManualAck>,
}

/// Why a connection is over.
enum Lost {
    /// The broker does not want the subscription.
    Refused(SubscribeReasonCode),
    /// It broke, or never came about.
    Broken(Box<ConnectionError>),
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(SubscribeReasonCode::Success(_)) => {
                f.write_str("the broker grants no QoS 1, so it would lose messages")
            }
            Self::Refused(code) => {
                write!(
                    f,
                    "the broker refuses the subscription: {code:?}; a shared one needs MQTT 5"
                )
            }
            Self::Broken(error) if is_taken_over(error) => f.write_str(
                "another client has the same client id; give each instance one of its own",
            ),
            Self::Broken(error) => error.fmt(f),
        }
    }
}

fn is_taken_over(error: &ConnectionError) -> bool {
    let taken_over = DisconnectReasonCode::SessionTakenOver;
    matches!(error, ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. })
        if *reason_code == taken_over)
}

impl Connection {
    /// Listens until it is told to stop.
    pub(crate) async fn listen(self) {
        let name = Arc::clone(&self.desk.subscription.name);
        let of = |name: &Arc<str>| ("subscription", Arc::clone(name));
        let standing = Standing {
            is_let_in: AtomicBool::new(false),
            connected: metrics::gauge!("flowgate_mqtt_connected", &[of(&name)]),
            lost: metrics::counter!("flowgate_mqtt_connections_lost_total", &[of(&name)]),
        };
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        while !self.stop.is_cancelled() {
            let held = self.hold(&standing, &mut backoff).await;
            standing.is_over();
            if let Some(lost) = held {
                standing.lost.increment(1);
                tracing::warn!(subscription = %name, %lost, "no connection to the broker");
                tokio::select! {
                    () = self.stop.cancelled() => {}
                    () = backoff.wait(Duration::ZERO) => {}
                }
            }
        }
    }

    /// Holds one connection to its end; none if it ended because it was told to.
    async fn hold(&self, standing: &Standing, backoff: &mut Backoff) -> Option<Lost> {
        let capacity = self.in_flight_max + REQUESTS_SPARE;
        let (client, mut events) =
            AsyncClient::builder(self.options.clone()).capacity(capacity).build();
        let (queue, mut deliveries) = mpsc::channel(self.in_flight_max);
        let reading = async {
            let lost = self.read(&mut events, &client, queue, (standing, backoff)).await;
            // What is said after a farewell is part of it.
            Some(lost).filter(|_| !self.stop.is_cancelled())
        };
        tokio::select! {
            lost = reading => lost,
            () = async {
                self.settle(&mut deliveries, &client).await;
                if standing.is_let_in.load(Ordering::Relaxed) {
                    self.farewell(&client).await;
                }
            } => None,
        }
    }

    async fn read(
        &self,
        events: &mut EventLoop,
        client: &AsyncClient,
        queue: mpsc::Sender<Delivery>,
        (standing, backoff): (&Standing, &mut Backoff),
    ) -> Lost {
        loop {
            let packet = match events.poll().await {
                Ok(Event::Incoming(packet)) => packet,
                Ok(Event::Outgoing(_) | Event::Auth(_)) => continue,
                Err(error) => return Lost::Broken(Box::new(error)),
            };
            if let Packet::Publish(publish) = &packet {
                let wish = message::read(&self.desk.subscription, publish);
                let delivery = Delivery { wish, ack: client.prepare_ack(publish) };
                queue.send(delivery).await.expect("the queue lasts as long as the reader");
            } else if let Packet::ConnAck(ack) = &packet {
                standing.is_let_in.store(true, Ordering::Relaxed);
                self.subscribe(client, ack).await;
            } else if let Packet::SubAck(SubAck { return_codes, .. }) = &packet {
                let granted = SubscribeReasonCode::Success(QoS::AtLeastOnce);
                if let Some(code) = return_codes.iter().find(|code| **code != granted) {
                    return Lost::Refused(*code);
                }
                standing.connected.set(1.0);
                backoff.reset();
            }
        }
    }

    /// Subscribes, whatever the broker remembers: the settings may have changed since.
    async fn subscribe(&self, client: &AsyncClient, ack: &ConnAck) {
        let subscription = &self.desk.subscription;
        let filter = subscription.shared_filter();
        if ack.session_present {
            tracing::info!(subscription = %subscription.name, filter, "the session goes on");
        } else {
            tracing::info!(subscription = %subscription.name, filter,
                "the session is new: what came before it was not kept for this instance");
        }
        if let Err(error) = client.subscribe_many([self.filter()]).await {
            tracing::error!(subscription = %subscription.name, %error, "cannot subscribe");
        }
    }

    /// Settles what comes until it is told to stop, and then what it has in hand.
    async fn settle(&self, deliveries: &mut mpsc::Receiver<Delivery>, client: &AsyncClient) {
        let mut open = FuturesOrdered::new();
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                Some(ack) = open.next() => acknowledge(client, ack).await,
                Some(delivery) = deliveries.recv(), if open.len() < self.in_flight_max => {
                    open.push_back(self.deliver(delivery));
                }
            }
        }
        let rest = async {
            while let Some(ack) = open.next().await {
                acknowledge(client, ack).await;
            }
        };
        if tokio::time::timeout(SETTLE_MAX, rest).await.is_err() {
            let subscription = &self.desk.subscription.name;
            tracing::warn!(%subscription, "some messages stay with the broker; they come again");
        }
    }

    /// Leaves the broker in order. The session stays.
    ///
    /// The broker answers nothing to an acknowledgement, but it answers to a subscription, also to
    /// one that it has; and it does one thing after the other. So once it has answered, it has
    /// all acknowledgements, and whoever comes next does not get those messages again.
    async fn farewell(&self, client: &AsyncClient) {
        let last = client.subscribe_many_tracked([self.filter()]).await;
        if last.is_ok() && client.disconnect().await.is_ok() {
            // The reader ends when all of it is done, and this with it.
            tokio::time::sleep(FAREWELL_MAX).await;
        }
    }

    fn filter(&self) -> SubscribeFilterInput {
        let filter = self.desk.subscription.shared_filter();
        // What is retained is not news to whoever subscribes once more. What comes is to look as it
        // was published: otherwise a message that is to be retained would look like any other.
        SubscribeFilterInput::new(filter, QoS::AtLeastOnce)
            .retain_forward_rule(RetainForwardRule::Never)
            .preserve_retain(true)
    }

    async fn deliver(&self, delivery: Delivery) -> Option<ManualAck> {
        match self.desk.settle(delivery.wish).await {
            Settled::Kept => delivery.ack,
            Settled::Left => None,
        }
    }
}

/// How a connection stands, and what is measured of it.
struct Standing {
    /// The broker has answered, so it may have sent messages: a session that goes on has some
    /// before the subscription is answered.
    is_let_in: AtomicBool,
    /// Whether the subscription is granted.
    connected: Gauge,
    lost: Counter,
}

impl Standing {
    fn is_over(&self) {
        self.is_let_in.store(false, Ordering::Relaxed);
        self.connected.set(0.0);
    }
}

/// Tells the broker that it may forget a message.
async fn acknowledge(client: &AsyncClient, ack: Option<ManualAck>) {
    let Some(ack) = ack else { return };
    if let Err(error) = client.manual_ack(ack).await {
        tracing::debug!(%error, "the connection is gone; the message comes again");
    }
}
