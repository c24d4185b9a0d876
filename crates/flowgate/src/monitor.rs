//! What others see of this process: health, readiness and metrics over HTTP.
//!
//! It has a thread of its own: steps that block every thread of the runtime neither make a probe
//! fail, nor a watchdog, as long as their leases are renewed. It is there before the store is, so
//! an instance that waits for its store says so.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use flowgate_core::view::Brief;
use flowgate_engine::{Engine, Health};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use self::exposition::Exposition;
use crate::cmd::App;
use crate::config::{Listen, Origin};
use crate::failure::{Exit, Failure};
use crate::systemd;

mod exposition;
mod http;
mod queues;

/// Serves until it is dropped.
#[derive(Debug)]
pub(crate) struct Monitor {
    shared: Arc<Shared>,
    address: Option<SocketAddr>,
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
        if let Some(address) = address.filter(|address| !address.ip().is_loopback()) {
            tracing::info!(%address, "health and metrics can be read from other machines");
        }
        let exposition = listener.is_some().then(Exposition::install).transpose()?;
        let phase = Mutex::new(Phase::Waiting("it is starting".into()));
        let shared = Arc::new(Shared { phase, exposition });
        let end = CancellationToken::new();
        let (served, ended) = (Arc::clone(&shared), end.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| failed("cannot make a runtime for the monitor", error))?;
        let work = async move {
            let tasks = async {
                tokio::join!(
                    async {
                        if let Some(listener) = listener {
                            http::serve(listener, Arc::clone(&served)).await;
                        }
                    },
                    feed(watchdog, &served),
                    upkeep(&served),
                )
            };
            ended.run_until_cancelled(tasks).await;
        };
        let thread = std::thread::Builder::new()
            .name("flowgate-monitor".to_owned())
            .spawn(move || runtime.block_on(work))
            .map_err(|error| failed("cannot start a thread for the monitor", error))?;
        Ok(Some(Self { shared, address, end, thread: Some(thread) }))
    }

    /// Where it listens, if it does.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
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
    fn engine(&self) -> Option<Engine> {
        match &*self.phase.lock() {
            Phase::Working(engine) | Phase::Stopping(Some(engine)) => Some(engine.clone()),
            Phase::Waiting(_) | Phase::Stopping(None) => None,
        }
    }

    /// Why the process should be ended and started again, if it should.
    fn unhealthy(&self) -> Option<String> {
        let engine = match &*self.phase.lock() {
            Phase::Working(engine) => engine.clone(),
            Phase::Waiting(_) | Phase::Stopping(_) => return None,
        };
        if !engine.is_running() {
            return Some("the engine has stopped; see the log".to_owned());
        }
        let stalled = engine.leases_stalled_for()?;
        let stalled = Brief(stalled);
        Some(format!("the thread that renews leases has not been heard of for {stalled}"))
    }

    /// Why the process should get no work, if it should not.
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

/// Says that the process lives, as often as the service manager wants to hear it.
async fn feed(interval: Option<Duration>, shared: &Shared) {
    let Some(interval) = interval else { return };
    loop {
        match shared.unhealthy() {
            None => systemd::alive(),
            Some(reason) => systemd::status(&reason),
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
