//! A connection to Redis that is made when it is needed, and made anew when it failed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use redis::aio::{ConnectionLike, MultiplexedConnection, PubSub};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError,
    RedisResult, TlsCertificates, TlsMode, Value,
};
use tokio::time::timeout;

use super::fault::ends_connection;
use super::options::{Servers, ServersKind};
use crate::per_runtime::PerRuntime;

/// The longest pause before another try at a connection.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often the cluster's client follows a redirection or waits for a failover in one call.
const CLUSTER_RETRIES: u32 = 3;

/// A way to the servers. The calls of a runtime share one connection.
pub(super) struct Link {
    servers: Arc<Servers>,
    call_timeout: Duration,
    slots: PerRuntime<Mutex<Slot>>,
}

#[derive(Default)]
struct Slot {
    /// Counts connections, so that a late failure of one does not end its successor.
    number: u64,
    connection: Option<Connecting>,
    failures: u32,
}

/// A connection that is being made, or has been. Whoever needs it drives it on, from where the one
/// before left it: callers with little patience, one after the other, get there as well.
type Connecting = Shared<BoxFuture<'static, RedisResult<Connection>>>;

#[derive(Clone)]
enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("servers", &self.servers).finish_non_exhaustive()
    }
}

impl Link {
    /// A way to `servers` that is not taken yet.
    pub(super) fn new(servers: Arc<Servers>, call_timeout: Duration) -> Self {
        Self { servers, call_timeout, slots: PerRuntime::new() }
    }

    /// The same way with a connection of its own.
    pub(super) fn another(&self) -> Self {
        Self::new(Arc::clone(&self.servers), self.call_timeout)
    }

    /// Sends a command and waits for the answer.
    pub(super) async fn call(&self, command: &Cmd) -> RedisResult<Value> {
        let (number, connection) = self.connection().await?;
        let answer = async {
            match connection {
                Connection::Single(mut single) => single.req_packed_command(command).await?,
                Connection::Cluster(mut cluster) => cluster.req_packed_command(command).await?,
            }
            .extract_error()
        };
        self.watch(number, answer).await
    }

    /// Sends a command to every primary; each answer comes with the address of its server.
    pub(super) async fn call_each(&self, command: &Cmd) -> RedisResult<Vec<(String, Value)>> {
        let (number, connection) = self.connection().await?;
        let mut cluster = match connection {
            Connection::Single(mut single) => {
                let answer = async { single.req_packed_command(command).await?.extract_error() };
                return Ok(vec![(self.servers.name(), self.watch(number, answer).await?)]);
            }
            Connection::Cluster(cluster) => cluster,
        };
        let primaries = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let answers = self.watch(number, cluster.route_command(command.clone(), primaries)).await?;
        let answers = answers.into_map_iter().map_err(|_| no_map())?;
        answers.map(|(address, answer)| Ok((redis::from_redis_value(address)?, answer))).collect()
    }

    /// A connection that listens. A cluster passes what is published on to all of its nodes.
    pub(super) async fn listen(&self, channel: &str) -> RedisResult<PubSub> {
        let listening = async {
            let client = match &self.servers.kind {
                ServersKind::Single(_) | ServersKind::Sentinel { .. } => {
                    self.servers.client().await?
                }
                ServersKind::Cluster(nodes) => {
                    let node = fastrand::choice(nodes).ok_or_else(no_map)?;
                    self.servers.client_of(node.clone())?
                }
            };
            let mut listener = client.get_async_pubsub().await?;
            listener.subscribe(channel).await?;
            Ok(listener)
        };
        timeout(self.call_timeout, listening).await.unwrap_or_else(|_| Err(no_answer()))
    }

    async fn connection(&self) -> RedisResult<(u64, Connection)> {
        let slot = self.slots.here(Mutex::default);
        let (number, connecting) = {
            let mut slot = slot.lock();
            let connecting = if let Some(connecting) = &slot.connection {
                connecting.clone()
            } else {
                slot.number += 1;
                let connecting = self.connect(slot.failures);
                slot.connection.insert(connecting).clone()
            };
            (slot.number, connecting)
        };
        if let Some(Ok(connection)) = connecting.peek() {
            return Ok((number, connection.clone()));
        }
        let made = connecting.await;
        let mut slot = slot.lock();
        if slot.number == number {
            if made.is_ok() {
                slot.failures = 0;
            } else {
                slot.give_up();
            }
        }
        made.map(|connection| (number, connection))
    }

    /// Begins a connection, after as many that failed.
    fn connect(&self, failures: u32) -> Connecting {
        let (servers, call_timeout) = (Arc::clone(&self.servers), self.call_timeout);
        let connecting = async move {
            if failures > 0 {
                // Whoever lost the connection together with us should not come back together with us.
                let longest = Duration::from_millis(50 << failures.min(6)).min(PAUSE_MAX);
                tokio::time::sleep(longest.mul_f64(fastrand::f64())).await;
            }
            let made = timeout(call_timeout, servers.connect(call_timeout)).await;
            made.unwrap_or_else(|_| Err(no_answer()))
        };
        connecting.boxed().shared()
    }

    /// The answer, in time; a connection that failed is given up.
    async fn watch<T>(
        &self,
        number: u64,
        answer: impl Future<Output = RedisResult<T>>,
    ) -> RedisResult<T> {
        // The client has the same limit for one answer; in a cluster it may try several servers.
        let longest = self.call_timeout * 2;
        metrics::counter!("flowgate_store_round_trips_total", "store" => "redis").increment(1);
        let answer = timeout(longest, answer).await.unwrap_or_else(|_| Err(no_answer()));
        if let Err(error) = &answer
            && ends_connection(error)
        {
            let slot = self.slots.here(Mutex::default);
            let mut slot = slot.lock();
            if slot.number == number && slot.give_up() {
                tracing::warn!(%error, "the connection to Redis is given up");
            }
        }
        answer
    }
}

impl Slot {
    /// Has the next caller make another connection; whether there was one to give up.
    fn give_up(&mut self) -> bool {
        let had = self.connection.take().is_some();
        self.failures = self.failures.saturating_add(u32::from(had));
        had
    }
}

impl Servers {
    /// As messages name them.
    pub(super) fn name(&self) -> String {
        match &self.kind {
            ServersKind::Single(info) => info.addr().to_string(),
            ServersKind::Cluster(nodes) => names(nodes),
            ServersKind::Sentinel { sentinels, primary, .. } => {
                format!("{primary} of the Sentinels {}", names(sentinels))
            }
        }
    }

    async fn connect(&self, call_timeout: Duration) -> RedisResult<Connection> {
        if let ServersKind::Cluster(nodes) = &self.kind {
            let client = self.cluster(nodes, call_timeout)?;
            return client.get_async_connection().await.map(Connection::Cluster);
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(call_timeout))
            .set_response_timeout(Some(call_timeout));
        let client = self.client().await?;
        let made = client.get_multiplexed_async_connection_with_config(&config).await;
        made.map(Connection::Single)
    }

    fn cluster(&self, nodes: &[ConnectionInfo], longest: Duration) -> RedisResult<ClusterClient> {
        let mut builder = ClusterClientBuilder::new(nodes.iter().cloned())
            .retries(CLUSTER_RETRIES)
            .min_retry_wait(20)
            .max_retry_wait(500)
            .connection_timeout(longest)
            .response_timeout(longest);
        if let Some(certificates) = self.certificates()? {
            builder = builder.certs(certificates);
        }
        builder.build()
    }

    /// A client of the one server, or of the primary that the Sentinels name.
    async fn client(&self) -> RedisResult<Client> {
        let (sentinels, primary, node) = match &self.kind {
            ServersKind::Single(info) => return self.client_of((**info).clone()),
            ServersKind::Cluster(_) => return Err(no_map()),
            ServersKind::Sentinel { sentinels, primary, node } => (sentinels, primary, node),
        };
        let addresses = sentinels.iter().map(|sentinel| sentinel.addr().clone());
        let mut builder =
            SentinelClientBuilder::new(addresses, primary, SentinelServerType::Master)?
                .set_client_to_redis_db(node.redis_settings().db());
        if let Some(user) = node.redis_settings().username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = node.redis_settings().password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if let Some(user) = sentinels.first().and_then(|s| s.redis_settings().username()) {
            builder = builder.set_client_to_sentinel_username(user);
        }
        if let Some(password) = sentinels.first().and_then(|s| s.redis_settings().password()) {
            builder = builder.set_client_to_sentinel_password(password);
        }
        if matches!(node.addr(), ConnectionAddr::TcpTls { .. }) {
            builder = builder
                .set_client_to_redis_tls_mode(TlsMode::Secure)
                .set_client_to_sentinel_tls_mode(TlsMode::Secure);
        }
        if let Some(certificates) = self.certificates()? {
            builder = builder
                .set_client_to_redis_certificates(certificates.clone())
                .set_client_to_sentinel_certificates(certificates);
        }
        builder.build()?.async_get_client().await
    }

    fn client_of(&self, info: ConnectionInfo) -> RedisResult<Client> {
        match self.certificates()? {
            Some(certificates) => Client::build_with_tls(info, certificates),
            None => Client::open(info),
        }
    }

    fn certificates(&self) -> RedisResult<Option<TlsCertificates>> {
        let Some(path) = &self.authorities else { return Ok(None) };
        let root_cert = std::fs::read(path).map_err(|error| {
            let detail = format!("{}: {error}", path.display());
            RedisError::from((ErrorKind::InvalidClientConfig, "reading the certificates", detail))
        })?;
        Ok(Some(TlsCertificates { client_tls: None, root_cert: Some(root_cert) }))
    }
}

fn names(infos: &[ConnectionInfo]) -> String {
    let names: Vec<_> = infos.iter().map(|info| info.addr().to_string()).collect();
    names.join(", ")
}

fn no_answer() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

fn no_map() -> RedisError {
    (ErrorKind::UnexpectedReturnType, "the answer is not one for each server").into()
}
