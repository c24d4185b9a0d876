//! Slow and deaf clients beside a normal one.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use flowgate_testbed::Stopwatch;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::Form;
use super::instance::{Instance, folder};
use super::request::{Connection, ms, percentile};
use crate::output;

const SLOW_CLIENTS: u64 = 1_000;
const FOLLOWERS: u64 = 500;
/// Of the followers, those that never read.
const DEAF: u64 = 100;
const MEMORY_MAX_MB: u64 = 256;
/// A short form on a busy machine is not judged below this.
const SHORT_P99_MIN: Duration = Duration::from_millis(25);
/// Parts of a span: of their figures the middle one counts, since other work on the machine comes
/// in bursts.
const PARTS: u32 = 6;
/// Between two normal requests.
const PACE: Duration = Duration::from_millis(4);
/// Between two starts, whose events the followers get.
const START_PACE: Duration = Duration::from_millis(20);
/// Bytes that the system keeps for one who does not read: few, so that it shows soon.
const DEAF_BUFFER: u32 = 4 << 10;

/// What the clients have seen.
#[derive(Debug, Default)]
struct Seen {
    /// Slow clients that are connected.
    slow: AtomicU64,
    /// How often the server ended a slow client.
    cut_off: AtomicU64,
    following: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
}

/// Measures; the promises that were missed.
pub(super) fn measure(binary: &Path, form: Form) -> anyhow::Result<Vec<String>> {
    let span = match form {
        Form::Short => Duration::from_secs(8),
        Form::Full => Duration::from_secs(30),
    };
    let folder = folder()?;
    let instance = Instance::worker(binary, folder.path())?;
    let starts = Starts::begin(instance.address)?;
    let mut before = normal(instance.address, span)?;
    let resident_before = instance.resident_max_mb()?;
    let seen = Arc::new(Seen::default());
    let crowd = Crowd::gather(instance.address, &seen)?;
    let mut during = normal(instance.address, span)?;
    let is_there = crowd.is_there(&seen);
    let resident = instance.resident_max_mb()?;
    drop(crowd);
    let started = starts.end()?;
    let (p99_before, p99_during) = (middle(&mut before, 99), middle(&mut during, 99));
    let of = |seen: &AtomicU64| seen.load(Ordering::Relaxed);
    let line = |name: &str, text: String| output::say(&format!("{name:<16} {text}"));
    for (name, times, p99) in
        [("before", &mut before, p99_before), ("with the crowd", &mut during, p99_during)]
    {
        let (count, p50) = (times.iter().map(Vec::len).sum::<usize>(), middle(times, 50));
        line(name, format!("{count} requests, p50 {}, p99 {}", ms(p50), ms(p99)));
    }
    line("slow clients", format!("{} at a time, {} cut off", SLOW_CLIENTS, of(&seen.cut_off)));
    let read = of(&seen.bytes) / 1_000;
    line("followers", format!("{FOLLOWERS}, {DEAF} of them deaf; the others read {read} kB"));
    line("starts", format!("{started} meanwhile"));
    line("memory", format!("{resident} MB resident at most, {resident_before} MB before"));
    is_there?;
    let bound = match form {
        Form::Full => 2 * p99_before,
        Form::Short => (2 * p99_before).max(SHORT_P99_MIN),
    };
    let mut missed = Vec::new();
    if p99_during > bound {
        missed.push(format!("p99 with the crowd is {}, over {}", ms(p99_during), ms(bound)));
    }
    if resident > MEMORY_MAX_MB {
        missed.push(format!("{resident} MB were resident, over {MEMORY_MAX_MB} MB"));
    }
    Ok(missed)
}

/// How long normal requests take, one after another, in each part of a span.
fn normal(address: SocketAddr, span: Duration) -> anyhow::Result<Vec<Vec<Duration>>> {
    let mut connection = Connection::open(address)?;
    let mut part = || {
        let mut times = Vec::new();
        let whole = Stopwatch::start();
        while whole.elapsed() < span / PARTS {
            let watch = Stopwatch::start();
            let (status, body) = connection.get("/api/v1/runs?limit=20")?;
            times.push(watch.elapsed());
            ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(&body));
            std::thread::sleep(PACE);
        }
        Ok(times)
    };
    (0..PARTS).map(|_| part()).collect()
}

/// The middle one of the percentiles of all parts.
fn middle(parts: &mut [Vec<Duration>], percent: usize) -> Duration {
    let mut figures: Vec<_> = parts.iter_mut().map(|times| percentile(times, percent)).collect();
    percentile(&mut figures, 50)
}

/// Starts runs on a thread of its own, so that there is something to follow.
struct Starts {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<u64>>,
}

impl Starts {
    fn begin(address: SocketAddr) -> anyhow::Result<Self> {
        let mut connection = Connection::open(address)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) {
                let (status, body) = connection.post("/api/v1/runs", r#"{"flow":"load"}"#)?;
                ensure!(status == 201, "{status}: {}", String::from_utf8_lossy(&body));
                count += 1;
                std::thread::sleep(START_PACE);
            }
            Ok(count)
        });
        Ok(Self { stop, thread })
    }

    fn end(self) -> anyhow::Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(count) => count.context("starting runs meanwhile"),
            Err(_) => bail!("the thread that starts runs panicked"),
        }
    }
}

/// All slow clients and followers, on a runtime of their own.
struct Crowd {
    runtime: tokio::runtime::Runtime,
    _clients: JoinSet<()>,
}

impl Crowd {
    /// Returns when all of them are connected.
    fn gather(address: SocketAddr, seen: &Arc<Seen>) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .on_thread_start(step_back)
            .enable_all()
            .build()?;
        let mut clients = JoinSet::new();
        for number in 0..SLOW_CLIENTS {
            clients.spawn_on(slow(address, number, Arc::clone(seen)), runtime.handle());
        }
        for number in 0..FOLLOWERS {
            let seen = Arc::clone(seen);
            if number < DEAF {
                clients.spawn_on(follow_deaf(address, seen), runtime.handle());
            } else {
                clients.spawn_on(follow(address, seen), runtime.handle());
            }
        }
        let crowd = Self { runtime, _clients: clients };
        let watch = Stopwatch::start();
        while crowd.is_there(seen).is_err() {
            ensure!(watch.elapsed() < Duration::from_secs(20), "{:?}", crowd.is_there(seen));
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(crowd)
    }

    /// Whether all of them are connected, but for those that come back after they were cut off.
    fn is_there(&self, seen: &Seen) -> anyhow::Result<()> {
        let of = |seen: &AtomicU64| seen.load(Ordering::Relaxed);
        let (slow, following, failed) = (of(&seen.slow), of(&seen.following), of(&seen.failed));
        let tasks = self.runtime.metrics().num_alive_tasks();
        ensure!(
            slow >= SLOW_CLIENTS * 9 / 10 && following >= FOLLOWERS - DEAF && failed == 0,
            "{slow} slow clients and {following} followers are connected, {failed} were refused \
             ({tasks} tasks)"
        );
        Ok(())
    }
}

/// Such clients have machines of their own: what they do must not take time from the server's.
fn step_back() {
    if let Err(error) = rustix::process::setpriority_process(None, 15) {
        output::complain(&format!("the clients are as urgent as the server: {error}"));
    }
}

/// Sends a byte a second, for ever; every second one the body only.
async fn slow(address: SocketAddr, number: u64, seen: Arc<Seen>) {
    const HEAD: &[u8] = b"POST /api/v1/runs HTTP/1.1\r\nhost: localhost\r\n\
        content-type: application/json\r\ncontent-length: 200\r\n\r\n";
    // Not all in the same moment of a second.
    tokio::time::sleep(Duration::from_millis(number)).await;
    loop {
        let Ok(mut stream) = TcpStream::connect(address).await else {
            seen.failed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        seen.slow.fetch_add(1, Ordering::Relaxed);
        let at_once = if number.is_multiple_of(2) { HEAD.len() } else { 0 };
        let mut sent = stream.write_all(&HEAD[..at_once]).await;
        let rest = HEAD[at_once..].iter().copied().chain(std::iter::repeat(b' '));
        let mut answer = [0; 256];
        for byte in rest {
            if sent.is_err() {
                break;
            }
            // An answer means that the server has had enough.
            let second = Duration::from_secs(1);
            if tokio::time::timeout(second, stream.read(&mut answer)).await.is_ok() {
                break;
            }
            sent = stream.write_all(&[byte]).await;
        }
        seen.slow.fetch_sub(1, Ordering::Relaxed);
        seen.cut_off.fetch_add(1, Ordering::Relaxed);
    }
}

const FOLLOW: &[u8] =
    b"GET /api/v1/live HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n";

/// Reads events; one that the server ends comes back.
async fn follow(address: SocketAddr, seen: Arc<Seen>) {
    loop {
        let Ok(mut stream) = TcpStream::connect(address).await else { break };
        if stream.write_all(FOLLOW).await.is_err() {
            break;
        }
        let mut buffer = vec![0; 16 << 10];
        let Ok(count) = stream.read(&mut buffer).await else { break };
        if !buffer[..count].starts_with(b"HTTP/1.1 200") {
            break;
        }
        seen.following.fetch_add(1, Ordering::Relaxed);
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            seen.bytes.fetch_add(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
        }
        seen.following.fetch_sub(1, Ordering::Relaxed);
    }
    seen.failed.fetch_add(1, Ordering::Relaxed);
}

/// Asks for events and never reads one.
async fn follow_deaf(address: SocketAddr, seen: Arc<Seen>) {
    let connect = async {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(DEAF_BUFFER)?;
        let mut stream = socket.connect(address).await?;
        stream.write_all(FOLLOW).await?;
        std::io::Result::Ok(stream)
    };
    match connect.await {
        Ok(stream) => {
            std::future::pending::<()>().await;
            drop(stream);
        }
        Err(_) => {
            seen.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}
