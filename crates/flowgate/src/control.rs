//! How a verb reaches the process that owns the store.
//!
//! The owner listens on a Unix socket beside the database, `PATH.sock`. A request is one line of
//! JSON, the answer is one line of JSON, and the connection ends. Only the user who owns the socket
//! may speak on it. This is internal and may change with every version; what is meant for other
//! programs is the HTTP API.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::Permissions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::ids::RunId;
use flowgate_core::limits::PAYLOAD_BYTES_MAX;
use flowgate_core::payload::Payload;
use flowgate_core::run::RunStatus;
use flowgate_core::schedule::ScheduleSpec;
use flowgate_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::failure::{Exit, Failure};
use crate::steering::Steer;

/// Bytes of a request: a payload and what goes with it.
const REQUEST_BYTES_MAX: u64 = PAYLOAD_BYTES_MAX as u64 + (64 << 10);
/// Bytes of an answer.
const REPLY_BYTES_MAX: u64 = 1 << 20;
/// How long a client may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an owner may take to answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections that are served at a time; others wait.
const CONNECTIONS_MAX: usize = 32;

/// What can be asked of an owner.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// Start a run.
    Start { flow: String, input: Payload, options: StartOptions },
    /// Send a run a signal.
    Signal { run_id: RunId, signal: String, data: Payload },
    /// Stop a run for good.
    Cancel { run_id: RunId, reason: Option<String> },
    /// Try a finished run again.
    Retry { run_id: RunId, from: Option<String> },
    /// Try a dead letter again.
    RetryDead { run_id: RunId },
    /// Change a schedule.
    Schedule { name: String, change: ScheduleChange },
    /// Change something else that is not about one run.
    Steer(Steer),
}

/// What can be asked of a schedule.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ScheduleChange {
    /// Add it.
    Add { spec: Box<ScheduleSpec>, replaces: bool },
    /// Skip its occurrences.
    Pause,
    /// Skip them no longer.
    Resume,
    /// Remove it.
    Remove,
    /// Start what was due in a range and has no run.
    Backfill { from: Timestamp, to: Timestamp },
    /// Start a run now.
    Trigger,
}

/// What a start may say besides its flow and its input.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartOptions {
    pub(crate) key: Option<String>,
    pub(crate) tags: BTreeMap<String, String>,
    pub(crate) singleton: Option<String>,
    pub(crate) priority: Option<u8>,
    pub(crate) due: Option<StartAt>,
}

/// When a start is due that is put off.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StartAt {
    AfterMs(u64),
    At(Timestamp),
}

/// What an owner answers when it has done what it was asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// About a run.
    Run(RunReply),
    /// About anything else.
    Value(serde_json::Value),
}

impl Reply {
    /// The answer to a request about a run.
    pub(crate) fn run(self) -> Result<RunReply, Failure> {
        match self {
            Self::Run(reply) => Ok(reply),
            Self::Value(_) => Err(Self::misfit()),
        }
    }

    /// The answer to a request about something else.
    pub(crate) fn value(self) -> Result<serde_json::Value, Failure> {
        match self {
            Self::Value(value) => Ok(value),
            Self::Run(_) => Err(Self::misfit()),
        }
    }

    fn misfit() -> Failure {
        Failure::refused("reply_invalid", "the owner of the store answered something else")
            .help("use the same version of flowgate on both sides")
    }
}

/// What became of a request about a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunReply {
    /// The run that it is about; the new one after a start or a retry.
    pub(crate) run_id: RunId,
    pub(crate) flow: Arc<str>,
    pub(crate) status: RunStatus,
    /// Whether a start found the run of its key.
    pub(crate) existed: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Done(Reply),
    Error { exit: u64, code: String, message: String, path: Option<String>, help: Option<String> },
}

/// Whoever does what a request asks.
pub(crate) trait Serve: Send + Sync + 'static {
    fn serve(&self, request: Request) -> impl Future<Output = Result<Reply, Failure>> + Send;
}

/// The socket of an owner. It is gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    user: u32,
    // Keeps the folder open while its number is part of the socket's address.
    _address: Address,
}

impl Socket {
    /// Listens beside the database at `database`. The caller owns the store, so whatever socket
    /// lies there is a dead process's.
    pub(crate) fn bind(database: &Path) -> io::Result<Self> {
        let path = path_of(database);
        let address = Address::of(&path)?;
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&address.path)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let user = std::fs::metadata(&path)?.uid();
        Ok(Self { listener, path, user, _address: address })
    }

    /// Serves requests until `stop`.
    pub(crate) async fn serve<S: Serve>(self, server: Arc<S>, stop: CancellationToken) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = accept(&self.listener, &slots) => accepted,
            };
            while connections.try_join_next().is_some() {}
            let Some((stream, slot)) = accepted else { continue };
            // The mode of the file keeps others out but for a moment after it was made.
            let is_ours =
                stream.peer_cred().is_ok_and(|peer| peer.uid() == self.user || peer.uid() == 0);
            if is_ours {
                let server = Arc::clone(&server);
                connections.spawn(async move {
                    if let Err(error) = converse(stream, &*server).await {
                        tracing::debug!(%error, "a request was broken off");
                    }
                    drop(slot);
                });
            }
        }
        while connections.join_next().await.is_some() {}
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // What is left is replaced by the next owner.
        drop(std::fs::remove_file(&self.path));
    }
}

async fn accept(
    listener: &UnixListener,
    slots: &Arc<Semaphore>,
) -> Option<(UnixStream, tokio::sync::OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, slot)),
        Err(error) => {
            tracing::warn!(%error, "cannot accept a request");
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}

async fn converse(mut stream: UnixStream, server: &impl Serve) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut line = String::new();
    let mut reader = BufReader::new(reader.take(REQUEST_BYTES_MAX));
    tokio::time::timeout(REQUEST_TIMEOUT, reader.read_line(&mut line)).await??;
    let outcome = if line.ends_with('\n') {
        match serde_json::from_str::<Request>(&line) {
            Ok(request) => server.serve(request).await,
            Err(error) => Err(Failure::usage("request_invalid", "the request makes no sense here")
                .source(error)
                .help("use the same version of flowgate on both sides")),
        }
    } else {
        Err(Failure::usage("request_too_large", format!("over {REQUEST_BYTES_MAX} bytes")))
    };
    let answer = match outcome {
        Ok(reply) => Answer::Done(reply),
        Err(failure) => Answer::Error {
            exit: failure.exit as u64,
            message: failure.cause(),
            code: failure.code,
            path: failure.path,
            help: failure.help,
        },
    };
    let mut text = serde_json::to_string(&answer).expect("an answer has a JSON form");
    text.push('\n');
    writer.write_all(text.as_bytes()).await?;
    writer.shutdown().await
}

/// Asks the owner of the database at `database`; none if nobody listens there.
pub(crate) async fn send(database: &Path, request: &Request) -> Result<Option<Reply>, Failure> {
    let path = path_of(database);
    let lost = |error: io::Error| {
        let message = format!("the owner of {} did not answer", database.display());
        Failure::new(Exit::Store, "owner_unreachable", message).source(error).help(
            "it may or may not have been done: look with `flowgate runs list` before trying again",
        )
    };
    let stream = match Address::of(&path) {
        Ok(address) => UnixStream::connect(&address.path).await,
        Err(error) => Err(error),
    };
    let mut stream = match stream {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(error) => {
            let message = format!("cannot reach the owner of {}", database.display());
            return Err(Failure::refused("owner_unreachable", message).source(error));
        }
    };
    let mut text = serde_json::to_string(request).expect("a request has a JSON form");
    text.push('\n');
    let mut line = String::new();
    let exchange = async {
        stream.write_all(text.as_bytes()).await?;
        let mut reader = BufReader::new(stream.take(REPLY_BYTES_MAX));
        reader.read_line(&mut line).await
    };
    let result = tokio::time::timeout(REPLY_TIMEOUT, exchange).await;
    result.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(lost)?;
    let answer = serde_json::from_str(&line).map_err(|error| lost(error.into()))?;
    match answer {
        Answer::Done(reply) => Ok(Some(reply)),
        Answer::Error { exit, code, message, path, help } => {
            let failure = Failure::new(Exit::from_number(exit), &code, message);
            Err(Failure { path, help, ..failure })
        }
    }
}

fn path_of(database: &Path) -> PathBuf {
    let mut path = OsString::from(database);
    path.push(".sock");
    PathBuf::from(path)
}

/// A name for a socket that fits into its address, which has room for about a hundred bytes.
#[derive(Debug)]
struct Address {
    path: PathBuf,
    _folder: Option<std::fs::File>,
}

impl Address {
    fn of(path: &Path) -> io::Result<Self> {
        const BYTES_MAX: usize = 100;
        if path.as_os_str().len() <= BYTES_MAX || !cfg!(target_os = "linux") {
            return Ok(Self { path: path.to_owned(), _folder: None });
        }
        let folder = std::fs::File::open(path.parent().unwrap_or(Path::new(".")))?;
        let name = path.file_name().unwrap_or_default();
        let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
        Ok(Self { path: short, _folder: Some(folder) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo;

    impl Serve for Echo {
        async fn serve(&self, request: Request) -> Result<Reply, Failure> {
            match request {
                Request::Start { flow, .. } => Ok(Reply::Run(RunReply {
                    run_id: RunId::derived(&flow, "k"),
                    flow: flow.into(),
                    status: RunStatus::Running,
                    existed: false,
                })),
                Request::Signal { .. }
                | Request::Cancel { .. }
                | Request::Retry { .. }
                | Request::RetryDead { .. } => {
                    Err(Failure::not_found("run_not_found", "no such run").help("look again"))
                }
                Request::Steer(_) => Ok(Reply::Value(serde_json::json!({ "count": 7 }))),
                Request::Schedule { name, .. } => Ok(Reply::Value(name.into())),
            }
        }
    }

    fn start(input: Payload) -> Request {
        Request::Start { flow: "order".into(), input, options: StartOptions::default() }
    }

    async fn check(folder: &Path) {
        let database = folder.join("a.db");
        let run_id = RunId::derived("order", "k");
        assert_eq!(send(&database, &start(Payload::null())).await.unwrap(), None);
        let stop = CancellationToken::new();
        let socket = Socket::bind(&database).unwrap();
        let mode = std::fs::metadata(path_of(&database)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        let serving = socket.serve(Arc::new(Echo), stop.clone());
        let asking = async {
            let reply = send(&database, &start(Payload::null())).await.unwrap().unwrap();
            assert_eq!(reply.run().unwrap().run_id, run_id);
            let trigger = Request::Schedule { name: "s".into(), change: ScheduleChange::Trigger };
            let reply = send(&database, &trigger).await.unwrap().unwrap();
            assert_eq!(reply.value().unwrap(), "s");
            let steer = Steer::SubscriberRetryDead { id: "p".to_owned(), run_id: None };
            let reply = send(&database, &Request::Steer(steer)).await.unwrap().unwrap();
            assert_eq!(reply.value().unwrap(), serde_json::json!({ "count": 7 }));
            let cancel = Request::Cancel { run_id, reason: None };
            let failure = send(&database, &cancel).await.unwrap_err();
            assert_eq!(failure.exit, Exit::NotFound);
            assert_eq!(failure.help.as_deref(), Some("look again"));
            stop.cancel();
        };
        tokio::join!(serving, asking);
        assert!(!path_of(&database).exists());
    }

    #[tokio::test]
    async fn an_owner_answers_and_its_socket_goes_with_it() {
        let folder = tempfile::tempdir().unwrap();
        check(folder.path()).await;
    }

    #[tokio::test]
    async fn a_socket_may_lie_deep_in_folders() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a".repeat(80)).join("b".repeat(80));
        std::fs::create_dir_all(&deep).unwrap();
        check(&deep).await;
    }

    #[tokio::test]
    async fn a_dead_owners_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("a.db");
        drop(std::os::unix::net::UnixListener::bind(path_of(&database)).unwrap());
        assert_eq!(send(&database, &start(Payload::null())).await.unwrap(), None);
        check(folder.path()).await;
    }
}
