//! Connections: who is let in, how many, and how long they may take to say what they want.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use self::stall::Stalling;

mod stall;

/// How long nobody is let in after the system could not do so.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The answer to whoever was too slow to ask.
const TOO_SLOW: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// Where requests come in.
#[expect(missing_debug_implementations, reason = "an acceptor of TLS has none")]
pub enum Listener {
    /// From the network, in the clear.
    Tcp(TcpListener),
    /// From the network, encrypted.
    Tls(TcpListener, TlsAcceptor),
    /// From processes of this machine and of this user.
    Unix {
        /// The socket.
        listener: UnixListener,
        /// The user.
        user: u32,
    },
}

/// How a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Tcp,
    Tls,
    Unix,
}

/// What a connection may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at the same time; others wait in the line of the operating system.
    pub connections: usize,
    /// How long the head of a request may take to come.
    pub head_time: Duration,
    /// Bytes of a request's head.
    pub head_bytes: usize,
    /// Headers of a request.
    pub headers: usize,
    /// How long an answer may get nowhere because the caller does not read it.
    pub stall_time: Duration,
    /// How long connections have to end when the listener does.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4_096,
            head_time: Duration::from_secs(10),
            head_bytes: 24 << 10,
            headers: 100,
            stall_time: Duration::from_secs(30),
            grace: Duration::from_secs(2),
        }
    }
}

/// Serves until `stop`; then open connections have the grace of the limits to end.
pub async fn serve(listener: Listener, router: Router, limits: Limits, stop: CancellationToken) {
    let room = Arc::new(Semaphore::new(limits.connections));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener, &room) => accepted,
        };
        let (stream, permit) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (router, stop) = (router.clone(), stop.clone());
        connections.spawn(async move {
            match stream {
                Stream::Tcp(stream) => converse(stream, Peer::Tcp, router, limits, stop).await,
                Stream::Unix(stream) => converse(stream, Peer::Unix, router, limits, stop).await,
                Stream::Tls(stream, acceptor) => {
                    let shaken = tokio::time::timeout(limits.head_time, acceptor.accept(stream));
                    match shaken.await {
                        Ok(Ok(stream)) => converse(stream, Peer::Tls, router, limits, stop).await,
                        Ok(Err(error)) => tracing::debug!(%error, "a handshake failed"),
                        Err(_) => tracing::debug!("a handshake took too long"),
                    }
                }
            }
            drop(permit);
        });
    }
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits.grace, all).await.is_err() {
        connections.shutdown().await;
    }
}

enum Stream {
    Tcp(tokio::net::TcpStream),
    Tls(tokio::net::TcpStream, TlsAcceptor),
    Unix(tokio::net::UnixStream),
}

async fn accept(
    listener: &Listener,
    room: &Arc<Semaphore>,
) -> std::io::Result<(Stream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.map_err(std::io::Error::other)?;
    let stream = match listener {
        Listener::Tcp(listener) => Stream::Tcp(at_once(listener.accept().await?.0)),
        Listener::Tls(listener, acceptor) => {
            Stream::Tls(at_once(listener.accept().await?.0), acceptor.clone())
        }
        Listener::Unix { listener, user } => {
            let stream = listener.accept().await?.0;
            // The mode of the file keeps others out but for a moment after it was made.
            let peer = stream.peer_cred()?.uid();
            if peer != *user && peer != 0 {
                return Err(std::io::ErrorKind::PermissionDenied.into());
            }
            Stream::Unix(stream)
        }
    };
    Ok((stream, permit))
}

/// Answers are small, and whoever asked waits for them.
fn at_once(stream: tokio::net::TcpStream) -> tokio::net::TcpStream {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection sends late");
    }
    stream
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

async fn converse<S>(stream: S, peer: Peer, router: Router, limits: Limits, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = Stalling::new(stream, limits.stall_time);
    let service = service_fn(move |request: Request<Incoming>| -> Answer {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer);
        Box::pin(router.clone().oneshot(request))
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_buf_size(limits.head_bytes)
        .max_headers(limits.headers)
        .serve_connection(TokioIo::new(stream), service);
    let served = tokio::select! {
        served = poll_fn(|context| connection.poll_without_shutdown(context)) => served,
        () = stop.cancelled() => {
            Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|context| connection.poll_without_shutdown(context)).await
        }
    };
    let parts = connection.into_parts();
    let mut stream = parts.io.into_inner();
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
        // Who has begun to ask is told; a connection that waits for its next request just ends.
        if error.is_timeout() && !parts.read_buf.is_empty() {
            // Best effort: it is about to be closed.
            drop(stream.write_all(TOO_SLOW).await);
        }
    }
    drop(stream.shutdown().await);
}
