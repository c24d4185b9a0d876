//! The store on PostgreSQL: any number of instances, one schema.
//!
//! The rules of a call are functions in the schema, so a call is one statement, one transaction
//! and one round trip, and no connection keeps anything between two of them: they work through a
//! pooler in transaction mode. All times are those of the server's clock.
//!
//! ```text
//!   commit_batch    gates > lock and write runs > now > judge leases > log, jobs > hand off
//!   claim_jobs      lock runs, end leases that are over > lock due jobs in their order > lease them
//!   the feed        rows of the log by (xid, ordinal), below the snapshot's xmin
//! ```
//!
//! A commit is judged and written with its run locked, so versions decide. Its place in the feed
//! is its transaction's id and its place in the transaction. Whoever decided on a version has seen
//! the commit that made it, and began his transaction after that one had ended: so within a run
//! positions grow with the numbers of events, without any lock that runs share.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::commit::{Claimed, Commit};
use flowgate_core::event::StoredEvent;
use flowgate_core::ids::{InstanceId, Position, Revision, RunId};
use flowgate_core::limits::COMMIT_BATCH_MAX;
use flowgate_core::time::Timestamp;
use parking_lot::Mutex;
use tokio::task::JoinSet;

pub use self::examine::examine;
pub use self::transaction::{PostgresConnection, PostgresTransaction};
/// The driver, whose transactions callers write in.
pub use tokio_postgres;

use self::commit::COMMIT_PARAMS;
use self::endpoint::{Endpoint, Kept, split_parameters};
use self::floor::Floor;
use self::hints::Hints;
use self::pool::{Lasting, Pool};
use self::rows::column;
use crate::{
    Beat, Claimant, CommitOutcome, Imported, InstanceRow, LeaseRef, LogLine, NewLogLine,
    NewRevision, Queues, Renewal, Retention, RunDetail, RunQuery, RunRow, Store, StoreCopy,
    StoreError, StoredRevision, Swept,
};

mod claim;
mod commit;
mod control;
mod endpoint;
mod examine;
mod fault;
mod floor;
mod hints;
mod keep;
mod permits;
mod pool;
mod queues;
mod read;
mod records;
mod rows;
mod schema;
mod session;
mod terms;
mod transaction;
mod wait;

/// The schema, unless the URL names one.
const SCHEMA: &str = "flowgate";
/// How much longer a call may take that has a lot to do.
const LONG_FACTOR: u32 = 10;

/// How a store on PostgreSQL is opened.
#[derive(Clone)]
pub struct PostgresOptions {
    /// Server, database and user, as `postgres://USER:PASSWORD@HOST:PORT/DATABASE`.
    pub url: String,
    /// Where hints from other instances are listened for and sessions are locked; `url` if there is
    /// none. Behind a pooler in transaction mode this has to be the server itself; without,
    /// polling goes on, and sessions cannot be locked.
    pub listen_url: Option<String>,
    /// The schema that holds everything; it is made if it is not there.
    pub schema: String,
    /// Connections for calls. One more listens, and one more renews leases.
    pub pool_size: usize,
    /// How long a call may go without an answer before its connection is given up.
    pub call_timeout: Duration,
}

impl PostgresOptions {
    /// Options from a URL, whose parameters may also be `schema`, `pool_size` and
    /// `listen_url`, whose value is percent-encoded.
    pub fn new(url: &str) -> Result<Self, StoreError> {
        let mut options = Self {
            url: String::new(),
            listen_url: None,
            schema: SCHEMA.to_owned(),
            pool_size: 8,
            call_timeout: Duration::from_millis(2_500),
        };
        let mut wrong_size = None;
        options.url = split_parameters(url, |name, value| match name {
            "schema" => {
                value.clone_into(&mut options.schema);
                Kept::No
            }
            "listen_url" => {
                options.listen_url = Some(value.to_owned());
                Kept::No
            }
            "pool_size" => {
                match value.parse() {
                    Ok(size) if (1..=1_000).contains(&size) => options.pool_size = size,
                    Ok(_) | Err(_) => wrong_size = Some(value.to_owned()),
                }
                Kept::No
            }
            _ => Kept::Yes,
        });
        if let Some(size) = wrong_size {
            let message = format!("pool_size={size} in the URL is not a number from 1 to 1000");
            return Err(StoreError::Incompatible { message });
        }
        schema::check_name(&options.schema)?;
        Ok(options)
    }
}

impl std::fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A URL may hold a password.
        f.debug_struct("PostgresOptions")
            .field("schema", &self.schema)
            .field("pool_size", &self.pool_size)
            .field("call_timeout", &self.call_timeout)
            .finish_non_exhaustive()
    }
}

/// A store on PostgreSQL.
#[derive(Debug)]
pub struct PostgresStore {
    options: PostgresOptions,
    endpoint: Endpoint,
    /// The server itself, also if a pooler is before it.
    listen: Endpoint,
    /// Whether it has turned out to be that.
    is_direct: AtomicBool,
    pool: Pool,
    sql: Statements,
    hints: Arc<Hints>,
    floor_due: Floor,
    floor_check: Floor,
    /// Queues that are in their table for sure.
    queues_known: Mutex<HashSet<String>>,
    _in_touch: JoinSet<()>,
}

impl PostgresStore {
    /// Opens the store, and makes its schema if there is none.
    pub async fn open(options: PostgresOptions) -> Result<Self, StoreError> {
        schema::check_name(&options.schema)?;
        let endpoint = Endpoint::parse(&options.url, options.call_timeout)?;
        let listen_url = options.listen_url.as_ref().unwrap_or(&options.url);
        let listen = Endpoint::parse(listen_url, options.call_timeout)?;
        schema::migrate(&endpoint, &options.schema, options.call_timeout).await?;
        let hints = Arc::<Hints>::default();
        let channel = format!("flowgate_{}", options.schema);
        let in_touch =
            hints::keep_in_touch(Arc::clone(&hints), listen.clone(), channel, options.call_timeout);
        Ok(Self {
            pool: Pool::new(endpoint.clone(), options.pool_size, options.call_timeout),
            sql: Statements::in_schema(&options.schema),
            endpoint,
            listen,
            is_direct: AtomicBool::new(false),
            options,
            hints,
            floor_due: Floor::new(),
            floor_check: Floor::new(),
            queues_known: Mutex::default(),
            _in_touch: in_touch,
        })
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.pool.close();
    }
}

/// The statements of calls that happen often, each one function of the schema.
#[derive(Debug)]
struct Statements {
    now: String,
    commit: Lasting,
    set_gate: String,
    leased_again: String,
    claim: String,
    log_rows: String,
    renew: String,
    next_due: String,
    feed_grown: String,
    append_lines: String,
    register: String,
    sweep: String,
    beat: String,
    import_revision: String,
    import_run: String,
    take_term: String,
    release_term: String,
    write_records: String,
    take_permits: String,
    release_permits: String,
    wake_jobs: String,
    queue_stats: String,
}

impl Statements {
    fn in_schema(schema: &str) -> Self {
        let call = |function: &str, count: usize| {
            let places: Vec<String> = (1..=count).map(|at| format!("${at}")).collect();
            format!("SELECT * FROM \"{schema}\".{function}({})", places.join(", "))
        };
        Self {
            now: call("store_now", 0),
            commit: Lasting::new(
                call("commit_batch", COMMIT_PARAMS),
                COMMIT_PARAMS,
                schema.to_owned(),
            ),
            set_gate: call("set_gate", 4),
            leased_again: format!(
                "SELECT row_to_json(j)::text, r.record \
                 FROM unnest($1, $2) AS c (run_id, commit_id) \
                 JOIN \"{schema}\".jobs j ON j.run_id = c.run_id \
                 JOIN \"{schema}\".runs r ON r.run_id = c.run_id \
                 WHERE j.granted_by = c.commit_id AND j.instance = $3 AND j.waits_in IS NULL \
                 AND j.expires_at > \"{schema}\".store_now() ORDER BY j.run_id, j.step"
            ),
            claim: call("claim_jobs", 8),
            log_rows: call("log_rows", 2),
            renew: call("renew_leases", 4),
            next_due: call("next_due", 4),
            feed_grown: format!(
                "SELECT xid < pg_snapshot_xmin(pg_current_snapshot()) FROM \"{schema}\".log \
                 WHERE xid >= $1::xid8 AND (xid > $1::xid8 OR ordinal + count > $2 + 1) \
                 ORDER BY xid, ordinal LIMIT 1"
            ),
            append_lines: call("append_lines", 6),
            register: call("register_revision", 6),
            sweep: call("sweep_runs", 3),
            beat: call("note_beat", 3),
            import_revision: call("import_revision", 8),
            import_run: call("import_run", 32),
            take_term: call("take_term", 5),
            release_term: call("release_term", 2),
            write_records: call("write_records", 7),
            take_permits: call("take_permits", 7),
            release_permits: call("release_permits", 5),
            wake_jobs: call("wake_jobs", 2),
            queue_stats: call("queue_stats", 1),
        }
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn kind(&self) -> &'static str {
        "postgres"
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        let doing = "reading the time";
        let row = self.pool.call_one(doing, &self.sql.now, &[]).await?;
        column(&row, 0).map(Timestamp).map_err(|fault| fault.into_error(doing))
    }

    async fn commit(
        &self,
        commits: Vec<Commit>,
        claimant: Option<&Claimant>,
    ) -> Result<Vec<CommitOutcome>, StoreError> {
        assert!(commits.len() <= COMMIT_BATCH_MAX, "a batch is within its limit");
        self.commit_all(commits, claimant).await
    }

    async fn claim(&self, claimant: &Claimant) -> Result<Vec<Claimed>, StoreError> {
        self.claim_due(claimant).await
    }

    async fn wait_due(&self, queues: &Queues, wait_max: Duration) -> Result<(), StoreError> {
        self.wait_for_due(queues, wait_max).await
    }

    async fn renew(
        &self,
        leases: &[LeaseRef],
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        self.renew_all(leases, lease).await
    }

    async fn read_run(&self, run_id: RunId) -> Result<Option<RunDetail>, StoreError> {
        self.run_detail(run_id).await
    }

    async fn read_events(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.events_of(run_id, after, limit).await
    }

    fn feeds(&self) -> u16 {
        1
    }

    async fn read_feed(
        &self,
        _feed: u16,
        after: Position,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.feed_after(after, limit).await
    }

    async fn feed_end(&self, _feed: u16) -> Result<Position, StoreError> {
        self.end_of_feed().await
    }

    async fn wait_feed(
        &self,
        _feed: u16,
        after: Position,
        wait_max: Duration,
    ) -> Result<(), StoreError> {
        self.wait_for_feed(after, wait_max).await
    }

    async fn list_runs(&self, query: &RunQuery) -> Result<Vec<RunRow>, StoreError> {
        self.list(query).await
    }

    async fn count_runs(&self, query: &RunQuery) -> Result<u64, StoreError> {
        self.count(query).await
    }

    async fn append_logs(&self, lines: Vec<NewLogLine>) -> Result<(), StoreError> {
        self.append_lines(lines).await
    }

    async fn read_logs(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LogLine>, StoreError> {
        self.lines_of(run_id, after, limit).await
    }

    async fn register_flow(&self, revision: NewRevision) -> Result<(), StoreError> {
        self.register(&revision).await
    }

    async fn list_revisions(&self, flow: Option<&str>) -> Result<Vec<StoredRevision>, StoreError> {
        self.revisions(flow).await
    }

    async fn read_revision(
        &self,
        flow: &str,
        revision: Option<&Revision>,
    ) -> Result<Option<StoredRevision>, StoreError> {
        self.revision(flow, revision).await
    }

    async fn sweep(&self, retention: &Retention) -> Result<Swept, StoreError> {
        self.sweep_ended(retention).await
    }

    async fn beat(&self, beat: &Beat) -> Result<(), StoreError> {
        self.note_beat(beat).await
    }

    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError> {
        self.forget(instance).await
    }

    async fn list_instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.instances().await
    }

    async fn import(&self, copy: StoreCopy) -> Result<Imported, StoreError> {
        self.import_copy(copy).await
    }
}
