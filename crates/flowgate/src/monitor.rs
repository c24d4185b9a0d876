//! What others see of this process over HTTP: the API, the dashboard, health and metrics.
//!
//! It has a thread of its own: steps that block every thread of the runtime neither make a probe
//! fail, nor a watchdog, as long as their leases are renewed. It is there before the store is, so
//! an instance that waits for its store says so.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::view::Brief;
use flowgate_engine::{Engine, Health};
use flowgate_server::auth::Tokens;
use flowgate_server::tls::{TlsAcceptor, TlsError};
use flowgate_server::{Host, HostOptions, Limits, Listener, Process};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use self::exposition::Exposition;
use crate::cmd::App;
use crate::config::{Listen, Origin};
use crate::failure::{Exit, Failure};
use crate::systemd;

mod exposition;
mod queues;

/// Serves until it is dropped.
#[derive(Debug)]
pub(crate) struct Monitor {
    shared: Arc<Shared>,
    address: Option<SocketAddr>,
    is_encrypted: bool,
    end: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

/// What the thread of the monitor knows.
#[derive(Debug)]
struct Shared {
    phase: Mutex<Phase>,
    exposition: Option<Exposition>,
}

/// How far the process has come.
#[derive(Clone, Debug)]
enum Phase {
    /// It has no store yet.
    Waiting(Arc<str>),
    /// It is an instance.
    Working(Engine),
    /// It takes on nothing more.
    Stopping(Option<Engine>),
}

impl Monitor {
    /// Serves at the address of the settings, and feeds the watchdog of a service manager; none if
    /// there is nothing to do.
    ///
    /// Where nobody chose the address and it is taken, it is a free one: several workers on one
    /// machine need no settings.
    pub(crate) fn start(app: &App) -> Result<Option<Self>, Failure> {
        let is_chosen = app.config.origin_of("listen") != &Origin::Default;
        let listener = match app.config.listen {
            Listen::Off => None,
            Listen::At(address) => Some(bind(address, is_chosen)?),
        };
        let watchdog = systemd::watchdog_interval();
        if listener.is_none() && watchdog.is_none() {
            return Ok(None);
        }
        let address = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let options = host_options(app, address)?;
        let listener = match (listener, &app.config.tls) {
            (Some(listener), Some(files)) => {
                let acceptor = flowgate_server::tls::acceptor(&files.cert, &files.key);
                Some((listener, Some(acceptor.map_err(unencrypted)?)))
            }
            (listener, _) => listener.map(|listener| (listener, None)),
        };
        let exposition = listener.is_some().then(Exposition::install).transpose()?;
        let phase = Mutex::new(Phase::Waiting("it is starting".into()));
        let shared = Arc::new(Shared { phase, exposition });
        let end = CancellationToken::new();
        let (served, ended, closing) = (Arc::clone(&shared), end.clone(), end.clone());
        let process: Arc<dyn Process> = Arc::<Shared>::clone(&shared);
        let host = Host::new(process, options);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| failed("cannot make a runtime for the monitor", error))?;
        let work = async move {
            let chores = async { tokio::join!(feed(watchdog, &served), upkeep(&served)) };
            let serving = async {
                if let Some((listener, acceptor)) = listener {
                    serve(listener, acceptor, &host, closing).await;
                }
            };
            tokio::join!(serving, ended.run_until_cancelled(chores));
        };
        let thread = std::thread::Builder::new()
            .name("flowgate-monitor".to_owned())
            .spawn(move || runtime.block_on(work))
            .map_err(|error| failed("cannot start a thread for the monitor", error))?;
        let is_encrypted = app.config.tls.is_some();
        Ok(Some(Self { shared, address, is_encrypted, end, thread: Some(thread) }))
    }

    /// Where it listens, if it does.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The URL of its dashboard, if it listens.
    pub(crate) fn url(&self) -> Option<String> {
        let scheme = if self.is_encrypted { "https" } else { "http" };
        self.address.map(|address| format!("{scheme}://{address}"))
    }

    /// The process waits for its store.
    pub(crate) fn wait(&self, reason: &str) {
        *self.shared.phase.lock() = Phase::Waiting(reason.into());
    }

    /// The process is this instance.
    pub(crate) fn work(&self, engine: &Engine) {
        *self.shared.phase.lock() = Phase::Working(engine.clone());
    }

    /// The process takes on nothing more.
    pub(crate) fn stop(&self) {
        let mut phase = self.shared.phase.lock();
        let engine = match &*phase {
            Phase::Working(engine) => Some(engine.clone()),
            Phase::Waiting(_) | Phase::Stopping(_) => None,
        };
        *phase = Phase::Stopping(engine);
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.end.cancel();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the monitor panicked");
        }
    }
}

impl Shared {
    fn working(&self) -> Option<Engine> {
        match &*self.phase.lock() {
            Phase::Working(engine) | Phase::Stopping(Some(engine)) => Some(engine.clone()),
            Phase::Waiting(_) | Phase::Stopping(None) => None,
        }
    }
}

#[async_trait]
impl Process for Shared {
    fn engine(&self) -> Result<Engine, String> {
        match &*self.phase.lock() {
            Phase::Working(engine) | Phase::Stopping(Some(engine)) => Ok(engine.clone()),
            Phase::Waiting(reason) => Err(reason.to_string()),
            Phase::Stopping(None) => Err("it is stopping".to_owned()),
        }
    }

    fn unhealthy(&self) -> Vec<String> {
        let engine = match &*self.phase.lock() {
            Phase::Working(engine) => engine.clone(),
            Phase::Waiting(_) | Phase::Stopping(_) => return Vec::new(),
        };
        if !engine.is_running() {
            return vec!["the engine has stopped; see the log".to_owned()];
        }
        let stalled = engine.leases_stalled_for().map(Brief);
        let told = stalled.map(|stalled| {
            format!("the thread that renews leases has not been heard of for {stalled}")
        });
        told.into_iter().collect()
    }

    fn unready(&self) -> Vec<String> {
        let engine = match &*self.phase.lock() {
            Phase::Waiting(reason) => return vec![reason.to_string()],
            Phase::Stopping(_) => return vec!["it is stopping".to_owned()],
            Phase::Working(engine) => engine.clone(),
        };
        let store = match &*engine.health().borrow() {
            Health::Ready => None,
            Health::Unready { reason, .. } => Some(reason.to_string()),
            Health::Stopping => Some("it is stopping".to_owned()),
        };
        store.into_iter().chain(self.unhealthy()).collect()
    }

    async fn metrics(&self) -> Option<String> {
        let exposition = self.exposition.as_ref()?;
        Some(exposition.render(self.working().as_ref()).await)
    }
}

fn bind(address: SocketAddr, is_chosen: bool) -> Result<TcpListener, Failure> {
    let bound = TcpListener::bind(address).or_else(|error| {
        if is_chosen || error.kind() != std::io::ErrorKind::AddrInUse {
            return Err(error);
        }
        let ip: IpAddr = address.ip();
        TcpListener::bind((ip, 0))
    });
    let bound = bound.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    bound.map_err(|error| {
        Failure::refused("listen_failed", format!("cannot listen at {address}"))
            .source(error)
            .help("name another address with --listen ADDR, or --listen off")
            .path("listen")
    })
}

fn failed(message: &str, error: std::io::Error) -> Failure {
    Failure::new(Exit::Store, "monitor_failed", message).source(error)
}

/// What the settings say about the API. One that other machines reach needs tokens.
fn host_options(app: &App, address: Option<SocketAddr>) -> Result<HostOptions, Failure> {
    let config = &app.config;
    let public = address.filter(|address| !address.ip().is_loopback());
    if let Some(address) = public
        && config.api
        && config.tokens.is_empty()
    {
        let message = format!("the API at {address} would be open to everybody who reaches it");
        return Err(Failure::usage("api_open", message)
            .help(
                "make a token with `flowgate tokens new NAME --scope admin`, or serve only health \
                 and metrics with `--set api=off`, or listen at 127.0.0.1",
            )
            .path("listen"));
    }
    Ok(HostOptions {
        tokens: Tokens::new(config.tokens.iter().map(|token| token.entry.clone()).collect()),
        allowed_hosts: config.api_hosts.clone(),
        is_public: public.is_some(),
        is_off: !config.api,
        store_url: Some(config.store.clone()),
        webhooks: config.webhooks.clone(),
    })
}

fn unencrypted(error: TlsError) -> Failure {
    Failure::usage("tls_invalid", "the API cannot be encrypted")
        .source(error)
        .help("name PEM files with `tls.cert` and `tls.key`")
        .path("tls")
}

/// Serves the API, the dashboard, health and metrics until `end`.
async fn serve(
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    host: &Host,
    end: CancellationToken,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the API cannot be served"),
    };
    let router = flowgate_server::router(host);
    let listener = match acceptor {
        Some(acceptor) => Listener::Tls(listener, acceptor),
        None => Listener::Tcp(listener),
    };
    flowgate_server::serve(listener, router, Limits::default(), end).await;
}

/// Says that the process lives, as often as the service manager wants to hear it.
async fn feed(interval: Option<Duration>, shared: &Shared) {
    let Some(interval) = interval else { return };
    loop {
        match shared.unhealthy().first() {
            None => systemd::alive(),
            Some(reason) => systemd::status(reason),
        }
        tokio::time::sleep(interval / 2).await;
    }
}

/// Puts measured values where they are counted, so that they do not pile up unread.
async fn upkeep(shared: &Shared) {
    let Some(exposition) = &shared.exposition else { return };
    loop {
        tokio::time::sleep(exposition::UPKEEP_INTERVAL).await;
        exposition.upkeep();
    }
}
