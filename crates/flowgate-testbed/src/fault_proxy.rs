//! A TCP proxy between a client and a server that breaks their connections on command.
//!
//! Two threads pump each connection, one a direction. A pump asks the shared state before it
//! forwards a chunk, so that a change of mode takes effect at once, also on connections that are
//! open. What the faults did is counted: a run in which no fault had an effect proves nothing.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Scope};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::clock::Stopwatch;
use crate::ports;

/// How much is forwarded at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// How long connecting to the server may take.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(2);
/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// How many ports the proxy may lose to somebody else before that is an error.
const PORTS_MAX: usize = 5;

/// Which way a chunk goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// What faults did since the proxy was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effects {
    /// Connections that were open and were closed by [`FaultProxy::cut`].
    pub connections_cut: u64,
    /// Connections that were closed as soon as they were made.
    pub connections_refused: u64,
    /// Connections that were made while a direction was silent.
    pub connections_silent: u64,
    /// Bytes that arrived while their direction was silent, whether forwarded later or never.
    pub bytes_withheld: u64,
    /// Replies that the client never got.
    pub replies_swallowed: u64,
    /// Chunks that were forwarded late.
    pub chunks_delayed: u64,
}

impl Effects {
    /// Whether any fault had an effect.
    pub fn is_any(self) -> bool {
        self != Self::default()
    }
}

/// A proxy in front of one server. Dropping it closes every connection and ends its threads.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts a proxy that forwards everything to the server at `upstream`.
    pub fn start(upstream: SocketAddr) -> anyhow::Result<Self> {
        Self::start_on(listen()?, upstream)
    }

    pub(crate) fn start_on(listener: TcpListener, upstream: SocketAddr) -> anyhow::Result<Self> {
        let address = listener.local_addr().context("reading the port of the proxy")?;
        let shared = Arc::new(Shared::default());
        let for_acceptor = Arc::clone(&shared);
        let acceptor = thread::spawn(move || {
            thread::scope(|scope| accept(scope, &listener, upstream, &for_acceptor));
        });
        Ok(Self { address, shared, acceptor: Some(acceptor) })
    }

    /// Where the proxy listens, in place of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Heals every fault: all is forwarded, also what was withheld, and at once.
    pub fn pass(&self) {
        self.shared.change(|state| {
            state.mode = Mode::Pass;
            state.delay = Duration::ZERO;
            state.replies_to_swallow = 0;
        });
    }

    /// Closes every connection, and every new one as soon as it is made.
    ///
    /// So the refusals can be counted; a server that does not listen at all is one that is killed.
    pub fn cut(&self) {
        self.shared.change(|state| {
            state.mode = Mode::Cut;
            let connections = std::mem::take(&mut state.connections);
            state.effects.connections_cut +=
                u64::try_from(connections.len()).expect("connections fit into memory");
            connections.values().for_each(Connection::close);
        });
    }

    /// Forwards nothing in either direction; connections stay open, and new ones are accepted.
    pub fn half_open(&self) {
        self.shared.change(|state| state.mode = Mode::Silent);
    }

    /// Forwards nothing in one direction; connections stay open, and new ones are accepted.
    pub fn silence(&self, direction: Direction) {
        self.shared.change(|state| state.mode = Mode::OneWay { silent: direction });
    }

    /// Swallows the next `replies` replies: the server has done the work, and the client sees its
    /// connection end instead. A reply is the first chunk that the server sends after a request.
    pub fn swallow_replies(&self, replies: u64) {
        self.shared.change(|state| state.replies_to_swallow = replies);
    }

    /// Forwards each chunk so much later, in both directions. A chunk waits for the one before it.
    pub fn delay(&self, delay: Duration) {
        self.shared.change(|state| state.delay = delay);
    }

    /// What faults did since the start.
    pub fn effects(&self) -> Effects {
        self.shared.lock().effects
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.shared.lock().connections.len()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.change(|state| {
            state.mode = Mode::Ended;
            std::mem::take(&mut state.connections).values().for_each(Connection::close);
        });
        // A connection of our own wakes the acceptor, which then sees the end.
        drop(TcpStream::connect(self.address));
        if let Some(acceptor) = self.acceptor.take() {
            // If it panicked, that is on stderr, and its threads have ended all the same.
            acceptor.join().unwrap_or_default();
        }
    }
}

/// What the proxy does with connections and chunks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Pass,
    Cut,
    Silent,
    OneWay {
        silent: Direction,
    },
    Ended,
}

impl Mode {
    fn is_silent(self, direction: Direction) -> bool {
        match self {
            Self::Silent => true,
            Self::OneWay { silent } => silent == direction,
            Self::Pass | Self::Cut | Self::Ended => false,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    mode: Mode,
    delay: Duration,
    replies_to_swallow: u64,
    effects: Effects,
    connections: BTreeMap<u64, Connection>,
    connections_made: u64,
}

/// A connection that is open. One that is closed is not in [`State::connections`] any more.
#[derive(Debug)]
struct Connection {
    client: TcpStream,
    /// Missing until the way to the server is open.
    server: Option<TcpStream>,
    /// Whether a request has gone to the server since its last reply.
    is_asked: bool,
    /// Whether one of the two directions has come to its end.
    is_half_ended: bool,
}

impl Connection {
    /// Ends both sides, which also wakes their pumps. A side that has ended is no fault.
    fn close(&self) {
        for side in [Some(&self.client), self.server.as_ref()].into_iter().flatten() {
            side.shutdown(Shutdown::Both).unwrap_or_default();
        }
    }
}

/// What becomes of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Forwarded,
    /// The connection has been closed, or is closed now.
    Lost,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is made under one lock and cannot panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_at_most<'a>(
        &self,
        state: MutexGuard<'a, State>,
        wait_max: Duration,
    ) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, wait_max).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Takes a new connection in, or refuses it.
    fn admit(&self, client: &TcpStream) -> Option<u64> {
        let mut state = self.lock();
        match state.mode {
            Mode::Pass => {}
            Mode::Silent | Mode::OneWay { .. } => state.effects.connections_silent += 1,
            Mode::Cut => {
                state.effects.connections_refused += 1;
                return None;
            }
            Mode::Ended => return None,
        }
        let client = client.try_clone().ok()?;
        state.connections_made += 1;
        let number = state.connections_made;
        let connection = Connection { client, server: None, is_asked: false, is_half_ended: false };
        state.connections.insert(number, connection);
        Some(number)
    }

    /// Waits while nothing at all would get through; then whether the connection is still open.
    fn wait_for_way(&self, number: u64) -> bool {
        let mut state = self.lock();
        while state.mode == Mode::Silent {
            state = self.wait(state);
        }
        state.connections.contains_key(&number)
    }

    /// Notes the way to the server, unless the connection was closed meanwhile.
    fn join(&self, number: u64, server: &TcpStream) -> Fate {
        match (self.lock().connections.get_mut(&number), server.try_clone()) {
            (Some(connection), Ok(server)) => {
                connection.server = Some(server);
                Fate::Forwarded
            }
            (Some(_) | None, _) => Fate::Lost,
        }
    }

    /// Waits until the chunk may go on, and decides whether it does. No bytes are the end.
    fn pass_chunk(&self, number: u64, direction: Direction, bytes: usize) -> Fate {
        let watch = Stopwatch::start();
        let (mut is_withheld, mut is_delayed) = (false, false);
        let mut state = self.lock();
        while state.connections.contains_key(&number) {
            if state.mode.is_silent(direction) {
                if !std::mem::replace(&mut is_withheld, true) {
                    state.effects.bytes_withheld += u64::try_from(bytes).expect("a chunk is small");
                }
                state = self.wait(state);
                continue;
            }
            let delay_left = state.delay.saturating_sub(watch.elapsed());
            if delay_left.is_zero() {
                return state.release_chunk(number, direction, bytes);
            }
            if !std::mem::replace(&mut is_delayed, true) {
                state.effects.chunks_delayed += 1;
            }
            state = self.wait_at_most(state, delay_left);
        }
        Fate::Lost
    }

    fn close(&self, number: u64) {
        self.lock().close(number);
    }

    /// One direction has ended; with the second one the connection has.
    fn end_direction(&self, number: u64) {
        let mut state = self.lock();
        let Some(connection) = state.connections.get_mut(&number) else { return };
        if std::mem::replace(&mut connection.is_half_ended, true) {
            state.close(number);
        }
    }
}

impl State {
    fn release_chunk(&mut self, number: u64, direction: Direction, bytes: usize) -> Fate {
        let Some(connection) = self.connections.get_mut(&number) else { return Fate::Lost };
        match direction {
            Direction::ToServer => connection.is_asked |= bytes > 0,
            Direction::ToClient => {
                let is_reply = bytes > 0 && std::mem::take(&mut connection.is_asked);
                if is_reply && self.replies_to_swallow > 0 {
                    self.replies_to_swallow -= 1;
                    self.effects.replies_swallowed += 1;
                    self.close(number);
                    return Fate::Lost;
                }
            }
        }
        Fate::Forwarded
    }

    fn close(&mut self, number: u64) {
        if let Some(connection) = self.connections.remove(&number) {
            connection.close();
        }
    }
}

fn listen() -> anyhow::Result<TcpListener> {
    for _ in 0..PORTS_MAX {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, ports::free_port()?)) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error).context("listening as a proxy"),
        }
    }
    bail!("every port was taken by somebody else")
}

fn accept<'scope>(
    scope: &'scope Scope<'scope, '_>,
    listener: &TcpListener,
    upstream: SocketAddr,
    shared: &'scope Shared,
) {
    while shared.lock().mode != Mode::Ended {
        let Ok((client, _)) = listener.accept() else {
            thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        if let Some(number) = shared.admit(&client) {
            scope.spawn(move || serve(scope, number, client, upstream, shared));
        }
    }
}

/// Connects to the server, and pumps both ways until the connection ends.
fn serve<'scope>(
    scope: &'scope Scope<'scope, '_>,
    number: u64,
    client: TcpStream,
    upstream: SocketAddr,
    shared: &'scope Shared,
) {
    if !shared.wait_for_way(number) {
        return;
    }
    // A server that is down shows in the same way as it would without us: the connection ends.
    let Ok((server, to_client, to_server)) = connect(upstream, &client) else {
        return shared.close(number);
    };
    if shared.join(number, &server) == Fate::Lost {
        return;
    }
    scope.spawn(move || pump(server, to_client, number, Direction::ToClient, shared));
    pump(client, to_server, number, Direction::ToServer, shared);
}

/// The connection to the server, and what to write to on either side.
fn connect(
    upstream: SocketAddr,
    client: &TcpStream,
) -> std::io::Result<(TcpStream, TcpStream, TcpStream)> {
    let server = TcpStream::connect_timeout(&upstream, CONNECT_WAIT_MAX)?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let to_client = client.try_clone()?;
    let to_server = server.try_clone()?;
    Ok((server, to_client, to_server))
}

fn pump(
    mut from: TcpStream,
    mut to: TcpStream,
    number: u64,
    direction: Direction,
    shared: &Shared,
) {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let bytes = match from.read(&mut chunk) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => 0,
        };
        if shared.pass_chunk(number, direction, bytes) == Fate::Lost {
            return;
        }
        if bytes == 0 {
            // If the other side has gone as well, there is nothing left to tell it.
            to.shutdown(Shutdown::Write).unwrap_or_default();
            return shared.end_direction(number);
        }
        if to.write_all(&chunk[..bytes]).is_err() {
            return shared.close(number);
        }
    }
}

#[cfg(test)]
mod tests;
