//! The socket by which a verb reaches the process that owns the store.
//!
//! The owner serves the API on a Unix socket beside the database, `PATH.sock`. Only the user who
//! owns the socket may speak on it, and needs no token.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use axum::Router;
use flowgate_server::{Limits, Listener};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;

/// Connections that are served at a time; others wait.
const CONNECTIONS_MAX: usize = 64;

/// The socket of an owner. It is gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    user: u32,
    file: SocketFile,
    // Keeps the folder open while its number is part of the socket's address.
    address: Address,
}

#[derive(Debug)]
struct SocketFile(PathBuf);

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
        Ok(Self { listener, user, file: SocketFile(path), address })
    }

    /// Serves requests until `stop`.
    pub(crate) async fn serve(self, router: Router, stop: CancellationToken) {
        let Self { listener, user, file, address } = self;
        let limits = Limits { connections: CONNECTIONS_MAX, ..Limits::default() };
        let listener = Listener::Unix { listener, user };
        flowgate_server::serve(listener, router, limits, stop).await;
        drop((file, address));
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // What is left is replaced by the next owner.
        drop(std::fs::remove_file(&self.0));
    }
}

/// The socket of the owner of the database at `database`; none if nobody listens there.
pub(crate) async fn find(database: &Path) -> Result<Option<Address>, Failure> {
    let connected = match Address::of(&path_of(database)) {
        Ok(address) => UnixStream::connect(&address.path).await.map(|_| address),
        Err(error) => Err(error),
    };
    match connected {
        Ok(address) => Ok(Some(address)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            Ok(None)
        }
        Err(error) => {
            let message = format!("cannot reach the owner of {}", database.display());
            Err(Failure::refused("owner_unreachable", message).source(error))
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
pub(crate) struct Address {
    pub(crate) path: PathBuf,
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

    async fn check(folder: &Path) {
        let database = folder.join("a.db");
        assert!(find(&database).await.unwrap().is_none());
        let stop = CancellationToken::new();
        let socket = Socket::bind(&database).unwrap();
        let mode = std::fs::metadata(path_of(&database)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        let router = Router::new().route("/hello", axum::routing::get(|| async { "hello" }));
        let serving = socket.serve(router, stop.clone());
        let asking = async {
            let address = find(&database).await.unwrap().unwrap();
            crate::reach::install_tls();
            let client = reqwest::Client::builder().unix_socket(&*address.path).build().unwrap();
            let answer = client.get("http://localhost/hello").send().await.unwrap();
            assert_eq!(answer.text().await.unwrap(), "hello");
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
        assert!(find(&database).await.unwrap().is_none());
        check(folder.path()).await;
    }
}
