//! The connection that messages go out by, again and again.
//!
//! Each connection has a client of its own: what was not answered when one ends is told so, and
//! never goes out by the next one behind its step's back.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge};
use rumqttc::{
    AsyncClient, ConnAck, ConnectionError, DisconnectReasonCode, Event, MqttOptions, Packet,
    StateError,
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;

/// Between two connections: steps wait for them.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Messages that may be under way at the same time, if the broker takes as many.
const IN_FLIGHT_MAX: u16 = 1_024;
/// Messages that wait for their turn on a connection; the others wait at their steps.
const REQUESTS_MAX: usize = 64;
/// How long the farewell may take.
const FAREWELL_MAX: Duration = Duration::from_secs(5);

/// How the connection stands.
#[derive(Clone, Debug)]
pub(super) enum Link {
    /// Nothing was published yet, or the first connection is on its way.
    Unwanted,
    /// It is there.
    Up(Arc<Line>),
    /// It is tried for again.
    Away(Arc<Lost>),
}

/// One connection.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) client: AsyncClient,
    /// Bytes of a packet that the broker takes, if it says so.
    pub(super) packet_bytes_max: Option<usize>,
    ended: watch::Receiver<Option<Arc<Lost>>>,
}

impl Line {
    /// Why it ended, once it has; none if it was ended here.
    pub(super) async fn lost(&self) -> Option<Arc<Lost>> {
        let mut ended = self.ended.clone();
        let why = ended.wait_for(Option::is_some).await.ok()?;
        why.clone()
    }
}

/// Why a connection is over.
#[derive(Debug)]
pub(super) struct Lost(Box<ConnectionError>);

impl Lost {
    /// What the broker said if it ended the connection over a message.
    ///
    /// One way is a DISCONNECT with a reason. Another is an acknowledgement with a reason that no
    /// acknowledgement has, such as 149, *packet too large*, which the client cannot read.
    pub(super) fn over_a_message(&self) -> Option<String> {
        let ConnectionError::MqttState(error) = &*self.0 else { return None };
        if let StateError::ServerDisconnect { reason_code, .. } = error {
            let is_over_it = matches!(
                reason_code,
                DisconnectReasonCode::PacketTooLarge
                    | DisconnectReasonCode::TopicNameInvalid
                    | DisconnectReasonCode::PayloadFormatInvalid
                    | DisconnectReasonCode::RetainNotSupported
                    | DisconnectReasonCode::QoSNotSupported
                    | DisconnectReasonCode::NotAuthorized
            );
            return is_over_it.then(|| format!("{reason_code:?} ({})", *reason_code as u8));
        }
        let StateError::Deserialization(rumqttc::Error::InvalidConnectReturnCode(code)) = error
        else {
            return None;
        };
        let is_too_large = *code == DisconnectReasonCode::PacketTooLarge as u8;
        Some(if is_too_large { format!("PacketTooLarge ({code})") } else { format!("code {code}") })
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Keeps a connection while there is something to publish.
#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) options: MqttOptions,
    pub(super) link: watch::Sender<Link>,
    pub(super) wanted: Arc<Notify>,
    pub(super) stop: CancellationToken,
}

impl Keeper {
    /// Connects when it is wanted, and keeps on until it is told to stop.
    pub(super) async fn keep(mut self) {
        self.options.set_clean_start(true).set_outgoing_inflight_upper_limit(IN_FLIGHT_MAX);
        let standing = Standing {
            connected: metrics::gauge!("flowgate_mqtt_publisher_connected"),
            lost: metrics::counter!("flowgate_mqtt_publisher_connections_lost_total"),
        };
        let stop = self.stop.clone();
        if stop.run_until_cancelled(self.wanted.notified()).await.is_none() {
            return;
        }
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        while !stop.is_cancelled() {
            let held = self.hold(&standing, &mut backoff).await;
            standing.connected.set(0);
            let Some(lost) = held else { return };
            standing.lost.increment(1);
            tracing::warn!(%lost, "no connection to the broker to publish by");
            stop.run_until_cancelled(backoff.wait(Duration::ZERO)).await;
        }
    }

    /// Holds one connection to its end; none if it ended because it was told to.
    async fn hold(&self, standing: &Standing, backoff: &mut Backoff) -> Option<Arc<Lost>> {
        let (client, mut events) =
            AsyncClient::builder(self.options.clone()).capacity(REQUESTS_MAX).build();
        let (end, ended) = watch::channel(None);
        let reading = async {
            let mut next = Some((client.clone(), ended));
            let lost = loop {
                match events.poll().await {
                    Ok(Event::Incoming(Packet::ConnAck(ack))) => {
                        let Some((client, ended)) = next.take() else { continue };
                        let line = Line { client, packet_bytes_max: bytes_max(&ack), ended };
                        self.link.send_replace(Link::Up(Arc::new(line)));
                        standing.connected.set(1);
                        backoff.reset();
                    }
                    Ok(_) => {}
                    Err(error) => break Arc::new(Lost(Box::new(error))),
                }
            };
            // Whoever learns that this one has ended must not find it as the current one.
            self.link.send_replace(Link::Away(Arc::clone(&lost)));
            end.send_replace(Some(Arc::clone(&lost)));
            lost
        };
        tokio::select! {
            lost = reading => Some(lost),
            () = async {
                self.stop.cancelled().await;
                if client.disconnect().await.is_ok() {
                    // The reader ends when that is done, and this with it.
                    tokio::time::sleep(FAREWELL_MAX).await;
                }
            } => None,
        }
    }
}

/// Bytes of a packet that the broker takes, if it says so.
fn bytes_max(ack: &ConnAck) -> Option<usize> {
    let max = ack.properties.as_ref()?.max_packet_size?;
    usize::try_from(max).ok()
}

/// What is measured of the connection.
struct Standing {
    connected: Gauge,
    lost: Counter,
}
