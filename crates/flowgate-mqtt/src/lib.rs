//! Messages of an MQTT broker that start runs, and messages that steps publish there.
//!
//! Each [`Subscription`] has a connection of its own, with MQTT 5, QoS 1, a shared subscription and
//! a session that the broker keeps.
//!
//! - A message is acknowledged after the store has what becomes of it: a run, or a dead message
//!   with the reason. Until then the broker keeps it, and sends it again.
//! - The message id, a user property, is the key of the run. So a message that comes twice, to any
//!   instance, starts one run.
//! - While the store is away, the broker has sent all that it may without an answer, and keeps the
//!   rest. Nothing is dropped here.
//! - A subscription that cannot go on holds up no other.
//!
//! What steps publish goes out by an [`Outlet`].
#![warn(missing_docs)]

mod backoff;
mod connection;
mod desk;
mod message;
mod outlet;
mod session;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use flowgate_engine::Engine;
use rumqttc::{
    AckMode, ConnectProperties, IncomingPacketSizeLimit, MqttOptions, TlsConfiguration, Transport,
};
use rustls::{ClientConfig, RootCertStore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use outlet::Outlet;
pub use settings::{
    Broker, ClientId, Credentials, GROUP_DEFAULT, Group, ID_PROPERTY_DEFAULT, IN_FLIGHT_DEFAULT,
    SESSION_EXPIRY_DEFAULT, Settings, SettingsError, Subscription, TagSource, TopicFilter,
    check_tags,
};

use crate::connection::Connection;
use crate::desk::Desk;
use crate::session::EmptySession;

/// After what time without a word we ask the broker whether it is there.
const KEEP_ALIVE_SECONDS: u16 = 15;
/// How long a connection may take to come about.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Why there is no bridge.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// The broker is to be reached over TLS, and this machine trusts nobody.
    #[error(
        "no certificates of authorities are found; install them, or name a file of them in SSL_CERT_FILE"
    )]
    NoAuthorities,
    /// TLS cannot be used.
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
}

/// Listens to the subscriptions of its settings until it is stopped.
///
/// One that is dropped ends at once, as if its process had: what it had not acknowledged comes
/// again.
#[derive(Debug)]
pub struct Bridge {
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl Bridge {
    /// Listens from now on. Whether the broker is there does not matter: it is waited for.
    pub fn start(engine: &Engine, settings: &Settings) -> Result<Self, BridgeError> {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for subscription in &settings.subscriptions {
            let connection = Connection {
                options: options(settings, &subscription.name)?,
                desk: Desk::new(engine.clone(), subscription.clone()),
                in_flight_max: settings.in_flight_max.get().into(),
                stop: stop.clone(),
            };
            tasks.spawn(connection.listen());
        }
        Ok(Self { tasks, stop })
    }

    /// Takes no more messages, settles and acknowledges those in hand, and ends. Call it before
    /// the engine shuts down.
    ///
    /// A store or a broker that does not answer is waited for a few seconds at most; then the
    /// broker keeps what was not acknowledged.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// How the connection of a subscription is made.
fn options(settings: &Settings, subscription: &str) -> Result<MqttOptions, BridgeError> {
    let mut options = connect_options(settings, settings.client_id.of(subscription))?;
    let expiry = u32::try_from(settings.session_expiry.as_secs()).unwrap_or(u32::MAX);
    options.set_connect_properties(ConnectProperties {
        session_expiry_interval: Some(expiry),
        receive_maximum: Some(settings.in_flight_max.get()),
        ..ConnectProperties::new()
    });
    options
        .set_clean_start(false)
        .set_session_store(EmptySession { expiry })
        .set_ack_mode(AckMode::Manual)
        // A broker discards in silence what is larger than its client says that it takes.
        .set_incoming_packet_size_limit(IncomingPacketSizeLimit::Unlimited);
    Ok(options)
}

/// How every connection to the broker is made.
fn connect_options(settings: &Settings, client_id: String) -> Result<MqttOptions, BridgeError> {
    let Settings { broker, credentials, .. } = settings;
    let mut options = MqttOptions::new(client_id, (broker.host.clone(), broker.port));
    options.set_keep_alive(KEEP_ALIVE_SECONDS).set_connect_timeout(CONNECT_MAX);
    if let Some(credentials) = credentials {
        options.set_credentials(credentials.user.clone(), credentials.password.clone());
    }
    if broker.is_encrypted {
        let config = TlsConfiguration::Rustls(tls()?);
        options.set_transport(Transport::tls_with_config(config));
    }
    Ok(options)
}

/// TLS with whatever authorities this machine trusts.
fn tls() -> Result<Arc<ClientConfig>, BridgeError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(BridgeError::NoAuthorities);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(BridgeError::Tls)?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}
