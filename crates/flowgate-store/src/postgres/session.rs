//! Session locks: `pg_advisory_lock` on a connection of its own.
//!
//! A term is what guards writes; a session lock beside it ends as soon as the server notices that
//! its holder is gone, without waiting for a lease. The lock belongs to a session of the server,
//! so its connection is not one of the pool and serves nothing else.
//!
//! ```text
//!   free --lock_session--> held --release, drop--> free
//!                           |
//!                           +-- connection ends, no answer in time, not in pg_locks --> lost
//! ```
//!
//! The key is the first and the second half of the first 64 bits of the md5 of the name. Sessions
//! carry all of it in their application name, so two names that share a key can be told apart.
//!
//! A pooler in transaction mode gives every transaction another session, and a lock would stay
//! with whichever came by. So the connection goes to `listen_url`, as that for hints does; one that
//! turns out to be pooled is refused.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::endpoint::Endpoint;
use super::fault::Fault;
use super::pool::ask;
use super::rows::column;
use super::{PostgresStore, SCHEMA};
use crate::StoreError;
use crate::control::check_key;
use crate::session::{HeldSession, SessionLock};

/// How often a holder looks whether it still has the lock.
const CHECK_PAUSE: Duration = Duration::from_secs(1);
/// How often a second connection looks whether it shares a session with the first.
const PROBES: usize = 3;
const DOING: &str = "locking a session";

/// How soon the server notices that a holder was cut off, and that no setting of the server ends a
/// session that only holds a lock.
const SETTINGS: &str = "SELECT set_config(s.name, v.value, false) \
    FROM (VALUES ('tcp_keepalives_idle', '3'), ('tcp_keepalives_interval', '1'), \
    ('tcp_keepalives_count', '3'), ('tcp_user_timeout', '6000'), ('idle_session_timeout', '0'), \
    ('application_name', 'flowgate lock ' || md5($1))) AS v (name, value) \
    JOIN pg_settings s ON s.name = v.name";
const LOCK: &str = "SELECT pg_try_advisory_lock(\
    ('x' || substr(md5($1), 1, 8))::bit(32)::int, ('x' || substr(md5($1), 9, 8))::bit(32)::int)";
const UNLOCK: &str = "SELECT pg_advisory_unlock(\
    ('x' || substr(md5($1), 1, 8))::bit(32)::int, ('x' || substr(md5($1), 9, 8))::bit(32)::int)";
/// The sessions that hold the lock, as `pg_locks` shows them: keys have no sign there.
const HOLDERS: &str = "SELECT l.pid FROM pg_locks l \
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 \
    AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) \
    AND l.classid = ('x' || substr(md5($1), 1, 8))::bit(32)::bigint::oid \
    AND l.objid = ('x' || substr(md5($1), 9, 8))::bit(32)::bigint::oid";

impl PostgresStore {
    pub(super) async fn lock(&self, name: &str) -> Result<SessionLock, StoreError> {
        check_key(name);
        let locked = self.try_lock(&self.seed(name)).await;
        locked.map_err(|fault| fault.into_error(DOING))?
    }

    async fn try_lock(&self, seed: &str) -> Result<Result<SessionLock, StoreError>, Fault> {
        let within = self.options.call_timeout;
        let (client, driver) = self.listen.connect(within).await?;
        if !self.is_direct.load(Ordering::Relaxed) {
            if is_pooled(&client, &self.listen, within).await? {
                let message = "a session lock needs a session of its own, and a pooler in \
                               transaction mode is before the server; name the server itself as \
                               listen_url in the store's URL";
                return Ok(Err(StoreError::Incompatible { message: message.to_owned() }));
            }
            self.is_direct.store(true, Ordering::Relaxed);
        }
        let params = [(&seed as _, Type::TEXT)];
        ask(&client, within, SETTINGS, &params).await?;
        let rows = ask(&client, within, LOCK, &params).await?;
        if !rows.first().map_or(Ok(false), |row| column(row, 0))? {
            return Ok(Ok(SessionLock::Elsewhere));
        }
        let (lost_sender, lost) = watch::channel(false);
        let client = Arc::new(client);
        let mut tasks = JoinSet::new();
        let (watched, seed) = (Arc::clone(&client), seed.to_owned());
        let session = Session { client, seed: seed.clone(), within, lost, _tasks: JoinSet::new() };
        tasks.spawn(async move {
            until_lost(&watched, driver, &seed, within).await;
            lost_sender.send_replace(true);
        });
        Ok(Ok(SessionLock::Held(Box::new(Session { _tasks: tasks, ..session }))))
    }

    /// Ends the session of flowgate that holds the lock, if there is one; whether there was.
    pub(super) async fn end_lock(&self, name: &str) -> Result<bool, StoreError> {
        check_key(name);
        let sql = format!(
            "SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a \
             WHERE a.application_name = 'flowgate lock ' || md5($1) AND a.pid IN ({HOLDERS})"
        );
        let seed = self.seed(name);
        let rows = self.pool.call("ending a session", &sql, &[(&seed, Type::TEXT)]).await?;
        Ok(!rows.is_empty())
    }

    /// The text whose md5 is the key: the name as it is in a schema that is called as usual, so
    /// that anybody can compute it. Schemas of one database do not share locks.
    fn seed(&self, name: &str) -> String {
        if self.options.schema == SCHEMA {
            name.to_owned()
        } else {
            format!("{}/{name}", self.options.schema)
        }
    }
}

/// A session of the server that holds a lock.
#[derive(Debug)]
struct Session {
    client: Arc<Client>,
    seed: String,
    within: Duration,
    lost: watch::Receiver<bool>,
    /// Ends with it, and the connection with the task.
    _tasks: JoinSet<()>,
}

#[async_trait]
impl HeldSession for Session {
    async fn lost(&self) {
        let mut lost = self.lost.clone();
        // Without somebody who looks, nobody knows whether it is held.
        lost.wait_for(|is_lost| *is_lost).await.ok();
    }

    async fn release(self: Box<Self>) {
        let params = [(&self.seed as _, Type::TEXT)];
        if let Err(fault) = ask(&self.client, self.within, UNLOCK, &params).await {
            let error = fault.into_error("unlocking a session");
            tracing::debug!(%error, "the lock ends with its connection");
        }
    }
}

/// Returns when the connection has ended or the lock is not there any more.
async fn until_lost(client: &Client, mut driver: JoinSet<()>, seed: &str, within: Duration) {
    let sql = format!("SELECT pg_backend_pid() IN ({HOLDERS})");
    let params = [(&seed as _, Type::TEXT)];
    loop {
        tokio::select! {
            _ = driver.join_next() => return,
            () = tokio::time::sleep(CHECK_PAUSE) => {}
        }
        let held = async {
            let rows = ask(client, within, &sql, &params).await?;
            rows.first().map_or(Ok(false), |row| column(row, 0))
        };
        match held.await {
            Ok(true) => {}
            Ok(false) => return tracing::warn!(seed, "the lock of a session is gone"),
            Err(fault) => {
                let error = fault.into_error("looking for the lock of a session");
                return tracing::warn!(seed, %error, "the lock of a session counts as lost");
            }
        }
    }
}

/// Whether two connections are given one session in turn.
async fn is_pooled(client: &Client, endpoint: &Endpoint, within: Duration) -> Result<bool, Fault> {
    for _ in 0..PROBES {
        let before = session_of(client, within).await?;
        let (second, _driver) = endpoint.connect(within).await?;
        let begun = tokio::time::timeout(within, second.batch_execute("BEGIN")).await;
        begun.map_err(|_| Fault::Silence(within))??;
        let other = session_of(&second, within).await?;
        if before == other || session_of(client, within).await? != before {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn session_of(client: &Client, within: Duration) -> Result<i32, Fault> {
    let rows = ask(client, within, "SELECT pg_backend_pid()", &[]).await?;
    rows.first().map_or(Ok(0), |row| column(row, 0))
}
