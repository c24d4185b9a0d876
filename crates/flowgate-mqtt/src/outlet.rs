//! Messages that steps publish: one connection for all of them, with a clean start.
//!
//! ```text
//!   step ── publish ──► line ── PUBLISH (many at once, as the broker allows) ──► broker
//!                        └──────────────── PUBACK ───────────────────────────────┘
//! ```
//!
//! - A step succeeds when the broker has answered that it has the message, and not before. What was
//!   not answered when a connection ends is published again, with the same `message-id`.
//! - The connection comes about with the first message, and again and again after that. While there
//!   is none, messages wait for it until their deadlines.
//! - Some brokers end the connection over a message that they do not want, and do not say which it
//!   was, if they say anything. So those that were under way when it ended are published again one
//!   at a time: one that is refused fails by itself, and the others do not fail with it.

mod line;

use std::sync::Arc;

use async_trait::async_trait;
use flowgate_engine::{HandlerError, OutgoingMessage, Publisher};
use flowgate_store::LogLevel;
use metrics::Counter;
use rumqttc::{
    ClientError, PubAckReason, Publish, PublishNoticeError, PublishOptions, PublishProperties,
    PublishResult, QoS,
};
use tokio::sync::{Notify, RwLock, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::line::{Keeper, Line, Link, Lost};
use crate::settings::{Broker, ID_PROPERTY_DEFAULT, Settings};
use crate::{BridgeError, connect_options};

/// Bytes that the packet of a message gets for its number when it is sent.
const NUMBER_BYTES: usize = 2;
/// The content type of what is published.
const CONTENT_TYPE: &str = "application/json";
/// Says that a payload is UTF-8.
const IS_UTF8: u8 = 1;

/// Publishes what steps say at the broker of its settings, until it is stopped.
///
/// Hand [`Outlet::publisher`] to the engine, and stop the engine first: then nothing is under way.
#[derive(Debug)]
pub struct Outlet {
    out: Arc<Out>,
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl Outlet {
    /// Publishes from now on. It connects when there is something to publish.
    pub fn start(settings: &Settings) -> Result<Self, BridgeError> {
        // No session is kept, so nobody must find it again, and two processes with one file do not
        // get into each other's way.
        let client_id = settings.client_id.of(&format!("out/{:08x}", fastrand::u32(..)));
        let options = connect_options(settings, client_id)?;
        let stop = CancellationToken::new();
        let (up, link) = watch::channel(Link::Unwanted);
        let wanted = Arc::new(Notify::new());
        let out = Out {
            broker: settings.broker.clone(),
            wanted: Arc::clone(&wanted),
            link,
            turn: RwLock::new(()),
            counts: Counts::new(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(Keeper { options, link: up, wanted, stop: stop.clone() }.keep());
        Ok(Self { out: Arc::new(out), tasks, stop })
    }

    /// Who publishes.
    pub fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::clone(&self.out) as _
    }

    /// Leaves the broker in order, and ends.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

#[derive(Debug)]
struct Out {
    broker: Broker,
    /// Told when there is something to publish.
    wanted: Arc<Notify>,
    link: watch::Receiver<Link>,
    /// Read by those who publish beside others, written by those who must do so alone.
    turn: RwLock<()>,
    counts: Counts,
}

/// How one try ended.
enum Tried {
    /// The broker has it.
    Published,
    /// It never will, or may the next time.
    Failed(HandlerError),
    /// The connection ended before the broker had answered, for this reason if it was not ended
    /// here.
    Unanswered(Option<Arc<Lost>>),
}

#[async_trait]
impl Publisher for Out {
    async fn publish(&self, message: OutgoingMessage) -> Result<(), HandlerError> {
        let sent = tokio::time::timeout_at(message.deadline, self.send(&message)).await;
        let sent = sent.unwrap_or_else(|_| Err(HandlerError::retryable(self.silence())));
        match &sent {
            Ok(()) => self.counts.published.increment(1),
            Err(_) => self.counts.failed.increment(1),
        }
        sent
    }
}

impl Out {
    async fn send(&self, message: &OutgoingMessage) -> Result<(), HandlerError> {
        let packet = packet(message);
        let beside_others = self.turn.read().await;
        let first = self.try_once(message, &packet).await;
        drop(beside_others);
        let tried = match first {
            Tried::Published | Tried::Failed(_) => first,
            Tried::Unanswered(_) => {
                let _alone = self.turn.write().await;
                self.try_once(message, &packet).await
            }
        };
        let why = match tried {
            Tried::Published => return Ok(()),
            Tried::Failed(error) => return Err(error),
            Tried::Unanswered(why) => why,
        };
        // Nothing else was under way, so what the broker said is about this message.
        if let Some(reason) = why.as_deref().and_then(Lost::over_a_message) {
            return Err(HandlerError::fatal(format!("the broker refuses the message: {reason}")));
        }
        let lost = format!("the connection to {} ended before it had answered", self.broker);
        Err(HandlerError::retryable(match why {
            Some(why) => format!("{lost}: {why}"),
            None => lost,
        }))
    }

    async fn try_once(&self, message: &OutgoingMessage, packet: &Publish) -> Tried {
        let Some(line) = self.line().await else {
            return Tried::Failed(HandlerError::retryable("the instance leaves its broker"));
        };
        let bytes = packet.size() + NUMBER_BYTES;
        if let Some(max) = line.packet_bytes_max.filter(|max| bytes > *max) {
            let told = format!(
                "the message is too large: its packet has {bytes} bytes, and the broker takes {max}"
            );
            return Tried::Failed(HandlerError::fatal(told));
        }
        let options = PublishOptions::new(QoS::AtLeastOnce)
            .retain(packet.retain)
            .properties(packet.properties.clone().unwrap_or_default());
        let sent = line.client.publish_tracked(&*message.topic, packet.payload.clone(), options);
        let notice = match sent.await {
            Ok(notice) => notice,
            Err(ClientError::InvalidRequest(_)) => {
                let told = format!("MQTT has no topic `{}`", message.topic);
                return Tried::Failed(HandlerError::fatal(told));
            }
            // Nobody takes requests of a connection that has ended.
            Err(_) => return Tried::Unanswered(line.lost().await),
        };
        match notice.wait_async().await {
            Ok(PublishResult::Qos1(ack)) => answered(message, ack.reason),
            Err(PublishNoticeError::RetainNotSupported) => {
                Tried::Failed(HandlerError::fatal("the broker keeps no retained messages"))
            }
            Ok(
                PublishResult::Qos0Flushed
                | PublishResult::Qos2Completed(_)
                | PublishResult::Qos2PubRecRejected(_),
            )
            | Err(_) => Tried::Unanswered(line.lost().await),
        }
    }

    /// The connection, once there is one; none if there will be none any more.
    async fn line(&self) -> Option<Arc<Line>> {
        self.wanted.notify_one();
        let mut link = self.link.clone();
        let up = link.wait_for(|link| matches!(link, Link::Up(_))).await.ok()?;
        match &*up {
            Link::Up(line) => Some(Arc::clone(line)),
            Link::Unwanted | Link::Away(_) => unreachable!("it was waited for"),
        }
    }

    /// What a message waits for that has waited for too long.
    fn silence(&self) -> String {
        let broker = &self.broker;
        match &*self.link.borrow() {
            Link::Up(_) => format!("{broker} did not answer that it has the message in time"),
            Link::Unwanted => format!("there was no connection to {broker} in time"),
            Link::Away(why) => format!("there was no connection to {broker} in time: {why}"),
        }
    }
}

/// The packet of a message: what it is sent as, but for its number.
fn packet(message: &OutgoingMessage) -> Publish {
    let context = &message.context;
    let own = [
        (ID_PROPERTY_DEFAULT, context.key()),
        ("run-id", context.run_id().to_string()),
        ("flow", context.flow().to_owned()),
        ("revision", context.revision().to_string()),
        ("step", context.step().to_owned()),
        ("attempt", context.attempt().to_string()),
    ];
    let place = context.traceparent().map(|place| ("traceparent", place));
    let named = own.into_iter().chain(place).map(|(name, value)| (name.to_owned(), value));
    let properties = PublishProperties {
        payload_format_indicator: Some(IS_UTF8),
        content_type: Some(CONTENT_TYPE.to_owned()),
        user_properties: named.collect(),
        ..PublishProperties::default()
    };
    let payload = message.payload.clone();
    let packet = Publish::new(&*message.topic, QoS::AtLeastOnce, payload, Some(properties));
    Publish { retain: message.is_retained, ..packet }
}

/// What the broker's answer means.
fn answered(message: &OutgoingMessage, reason: PubAckReason) -> Tried {
    let told = || {
        let code = reason as u8;
        format!("the broker refuses the message for `{}`: {reason:?} ({code})", message.topic)
    };
    match reason {
        PubAckReason::Success => Tried::Published,
        PubAckReason::NoMatchingSubscribers => {
            let text = format!("the broker has it, and nobody subscribes to `{}`", message.topic);
            message.context.log(LogLevel::Warn, &text);
            Tried::Published
        }
        PubAckReason::NotAuthorized
        | PubAckReason::TopicNameInvalid
        | PubAckReason::PayloadFormatInvalid => Tried::Failed(HandlerError::fatal(told())),
        PubAckReason::UnspecifiedError
        | PubAckReason::ImplementationSpecificError
        | PubAckReason::PacketIdentifierInUse
        | PubAckReason::QuotaExceeded => Tried::Failed(HandlerError::retryable(told())),
    }
}

struct Counts {
    published: Counter,
    failed: Counter,
}

impl std::fmt::Debug for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counts").finish_non_exhaustive()
    }
}

impl Counts {
    fn new() -> Self {
        let count = |outcome: &'static str| metrics::counter!("flowgate_mqtt_published_total", "outcome" => outcome);
        Self { published: count("published"), failed: count("failed") }
    }
}
