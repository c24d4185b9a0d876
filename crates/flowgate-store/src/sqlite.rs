//! The embedded store: one SQLite file, one process that owns it.
//!
//! The open runs are in memory, with the file behind them; finished runs are in the file only.
//! Whatever changes something goes through one thread, which groups it into transactions (see
//! `sqlite/writer.rs`). Reading goes past it, by connections of its own.
//!
//! The file is ordinary SQLite: its tables are those of `sqlite/migrations`, and the view `events`
//! shows one row an event to any tool.

#[cfg(feature = "testing")]
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::commit::{Claimed, Commit};
use flowgate_core::event::StoredEvent;
use flowgate_core::ids::{InstanceId, Position, Revision, RunId};
use flowgate_core::limits::COMMIT_BATCH_MAX;
use flowgate_core::time::Timestamp;
use parking_lot::RwLock;
use tokio::sync::watch;

pub use self::examine::examine;
use self::fault::closed;
use self::file::{FORMAT, FORMAT_WITH_TAGS, Found};
use self::read::Readers;
use self::writer::{Writer, WriterHandle, Written};
use crate::clock::Clock;
use crate::instances::Instances;
use crate::open::{OpenRun, Waiting};
use crate::told::Told;
use crate::wait::{Ask, wait_due};
use crate::{
    Beat, Claimant, CommitOutcome, Imported, InstanceRow, LeaseRef, LogLine, NewLogLine,
    NewRevision, Queues, Renewal, Retention, RunCopy, RunDetail, RunQuery, RunRow, Store,
    StoreCopy, StoreError, StoredRevision, Swept,
};

mod control;
mod examine;
mod fault;
mod file;
mod import;
mod listing;
mod owner;
mod payloads;
mod permits;
mod read;
mod records;
mod rows;
mod terms;
mod write;
mod writer;

/// How often a reader looks whether the feed has grown.
const FEED_POLL: Duration = Duration::from_millis(100);

/// A store in an SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    clock: Clock,
    readers: Arc<Readers>,
    told: Told,
    access: Access,
}

#[derive(Debug)]
enum Access {
    /// This process owns the file; nothing once the store is closed.
    Owner(RwLock<Option<Owner>>),
    /// Another process may own it.
    Reader {
        /// The form of its tables when it was opened.
        format: u32,
    },
}

#[derive(Debug)]
struct Owner {
    writer: Arc<WriterHandle>,
    thread: std::thread::JoinHandle<()>,
    written: Arc<Written>,
    feed_end: watch::Receiver<u64>,
}

/// How much this owner has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SqliteStats {
    /// Commits that were applied.
    pub commits: u64,
    /// Transactions that they, and the other writes, took: one fsync each.
    pub transactions: u64,
}

/// How a file is opened.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// Who opens it, for whoever tries to do so too.
    pub owner: InstanceId,
    /// What survives a loss of power.
    pub synchronous: Synchronous,
    /// What tells the store the time.
    pub clock: Clock,
}

impl SqliteOptions {
    /// Everything survives, on the wall clock.
    pub fn new(owner: InstanceId) -> Self {
        Self { owner, synchronous: Synchronous::default(), clock: Clock::wall() }
    }
}

/// What survives a loss of power. The end of the process, however it ends, loses nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Synchronous {
    /// All that was acknowledged.
    #[default]
    Full,
    /// All but the last moments.
    Normal,
}

impl Synchronous {
    fn number(self) -> u8 {
        match self {
            Self::Full => 2,
            Self::Normal => 1,
        }
    }
}

impl SqliteStore {
    /// Opens the file as its owner, and makes it if there is none.
    pub async fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, StoreError> {
        let path = path.as_ref().to_owned();
        blocking("opening the store", move || Self::open_blocking(&path, options)).await
    }

    fn open_blocking(path: &Path, options: SqliteOptions) -> Result<Self, StoreError> {
        let SqliteOptions { owner, synchronous, clock } = options;
        let path = file::canonical(path)?;
        let ownership = owner::take(&path, &owner, clock.now())?;
        let found = file::inspect(&path)?;
        let connection = file::open_for_writing(&path, found, synchronous)?;
        let writer = Writer::new(connection, clock.clone(), ownership)
            .map_err(|fault| fault.into_error("reading the open runs"))?;
        let written = Arc::clone(&writer.written);
        let feed_end = writer.feed_end.subscribe();
        let (writer, thread) = WriterHandle::start(writer).map_err(|error| {
            let message = "starting the thread that writes".to_owned();
            StoreError::Unavailable { message, source: Some(Box::new(error)) }
        })?;
        let owner = Owner { writer: Arc::new(writer), thread, written, feed_end };
        let readers = Readers::new(path.clone());
        let access = Access::Owner(RwLock::new(Some(owner)));
        Ok(Self { path, clock, readers, told: Told::default(), access })
    }

    /// Opens the file for reading only, also beside a process that owns it.
    pub async fn open_read_only(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref().to_owned();
        let inspect = move || {
            let path = file::canonical(&path)?;
            file::inspect(&path).map(|found| (path, found))
        };
        let (path, found) = blocking("opening the store", inspect).await?;
        let format = match found {
            Found::Ours { format } => format,
            Found::Nothing => {
                let message = format!("there is no store at {}", path.display());
                return Err(StoreError::Unavailable { message, source: None });
            }
        };
        let readers = Readers::new(path.clone());
        let access = Access::Reader { format };
        Ok(Self { path, clock: Clock::wall(), readers, told: Told::default(), access })
    }

    /// Who owns the file at `path`, in words; nobody if no process has it open to write.
    pub fn owner_of(path: impl AsRef<Path>) -> Result<Option<String>, StoreError> {
        owner::in_words(&file::canonical(path.as_ref())?)
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How much this owner has written; nothing where the file is not owned.
    pub fn stats(&self) -> SqliteStats {
        match &self.access {
            Access::Owner(owner) => {
                owner.read().as_ref().map_or_else(SqliteStats::default, |o| SqliteStats {
                    commits: o.written.commits.load(Ordering::Relaxed),
                    transactions: o.written.transactions.load(Ordering::Relaxed),
                })
            }
            Access::Reader { .. } => SqliteStats::default(),
        }
    }

    /// Finishes what was begun, checkpoints the write-ahead log and gives up the file. Every call
    /// after it fails.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.readers.close();
        let Some(owner) = self.take_owner() else { return Ok(()) };
        drop(owner.writer);
        let joined = tokio::task::spawn_blocking(move || owner.thread.join()).await;
        match joined {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(StoreError::Unavailable {
                message: "the thread that writes did not end well".to_owned(),
                source: None,
            }),
        }
    }

    fn take_owner(&self) -> Option<Owner> {
        match &self.access {
            Access::Owner(owner) => owner.write().take(),
            Access::Reader { .. } => None,
        }
    }

    fn writer(&self) -> Result<Arc<WriterHandle>, StoreError> {
        match &self.access {
            Access::Owner(owner) => {
                let owner = owner.read();
                owner.as_ref().map(|owner| Arc::clone(&owner.writer)).ok_or_else(closed)
            }
            Access::Reader { .. } => Err(StoreError::ReadOnly),
        }
    }

    /// Returns when there is an event over `after`.
    async fn grown(&self, after: Position) -> Result<(), StoreError> {
        let feed_end = match &self.access {
            Access::Owner(owner) => {
                Some(owner.read().as_ref().ok_or_else(closed)?.feed_end.clone())
            }
            Access::Reader { .. } => None,
        };
        if let Some(mut feed_end) = feed_end {
            let grown = feed_end.wait_for(|end| Position::counted(*end) > after).await;
            return grown.map(drop).map_err(|_| closed());
        }
        // Another process writes the file, and nothing tells us when.
        while self.readers.read("reading the feed", read::feed_end).await? <= after {
            tokio::time::sleep(FEED_POLL).await;
        }
        Ok(())
    }

    /// Changes what is known of instances, and tells other processes.
    async fn note_instances(
        &self,
        change: impl FnOnce(&mut Instances, Timestamp) + Send + 'static,
    ) -> Result<(), StoreError> {
        let work = move |writer: &mut Writer| {
            change(&mut writer.instances, writer.clock.now());
            if let Err(error) = writer.ownership.note(writer.instances.list()) {
                tracing::warn!(%error, "other processes cannot see this instance");
            }
            Ok(())
        };
        self.writer()?.submit("noting an instance", 0, work).await
    }

    /// Refuses to look for tags in a file that an earlier flowgate wrote, and that only its owner
    /// can bring up to date.
    fn check_tags(&self, query: &RunQuery) -> Result<(), StoreError> {
        match self.access {
            Access::Reader { format } if format < FORMAT_WITH_TAGS && !query.tags.is_empty() => {
                Err(StoreError::Incompatible {
                    message: format!(
                        "{} has format {format}, which knows no tags; \
                         start `flowgate dev` of this version on it once",
                        self.path.display()
                    ),
                })
            }
            Access::Reader { .. } | Access::Owner(_) => Ok(()),
        }
    }

    /// Fills in the payloads that were not in memory.
    async fn with_inputs(&self, claimed: Vec<Claimed>) -> Result<Vec<Claimed>, StoreError> {
        let lacks = |claimed: &Claimed| claimed.inputs.len() < claimed.job.inputs.len();
        if !claimed.iter().any(lacks) {
            return Ok(claimed);
        }
        let fill = move |connection: &rusqlite::Connection| {
            let filled = claimed.into_iter().map(|claimed| {
                if lacks(&claimed) {
                    read::with_inputs(connection, claimed)
                } else {
                    Ok(Some(claimed))
                }
            });
            filled.filter_map(Result::transpose).collect()
        };
        self.readers.read("reading the inputs of jobs", fill).await
    }
}

/// What `work` gives, done where it may block.
async fn blocking<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| StoreError::Unavailable {
        message: format!("{doing} did not end"),
        source: Some(Box::new(error)),
    })?
}

impl SqliteStore {
    /// The format of the file.
    fn format(&self) -> u32 {
        match self.access {
            Access::Reader { format } => format,
            Access::Owner(_) => FORMAT,
        }
    }
}

/// What tests of the file need.
#[cfg(feature = "testing")]
impl SqliteStore {
    /// Lets the file have at most this many pages, as a full disk would.
    pub async fn limit_pages(&self, pages: Option<u32>) -> Result<(), StoreError> {
        let work = move |writer: &mut Writer| {
            let pages = pages.unwrap_or(u32::MAX - 1);
            writer.connection.pragma_update(None, "max_page_count", pages)?;
            Ok(())
        };
        self.writer()?.submit("limiting pages", 0, work).await
    }

    /// The settings of the connection that writes.
    pub async fn pragmas(&self) -> Result<BTreeMap<&'static str, String>, StoreError> {
        let names = [
            "journal_mode",
            "synchronous",
            "foreign_keys",
            "wal_autocheckpoint",
            "auto_vacuum",
            "user_version",
        ];
        let work = move |writer: &mut Writer| {
            let read = |name| {
                let value = writer.connection.pragma_query_value(None, name, |row| {
                    let value: rusqlite::types::Value = row.get(0)?;
                    Ok(match value {
                        rusqlite::types::Value::Integer(number) => number.to_string(),
                        rusqlite::types::Value::Text(text) => text,
                        rusqlite::types::Value::Null
                        | rusqlite::types::Value::Real(_)
                        | rusqlite::types::Value::Blob(_) => String::new(),
                    })
                })?;
                Ok((name, value))
            };
            names.into_iter().map(read).collect()
        };
        self.writer()?.submit("reading settings", 0, work).await
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.readers.close();
        if let Some(Owner { writer, thread, .. }) = self.take_owner() {
            drop(writer);
            // What was begun is finished before the file is given up.
            if thread.join().is_err() {
                tracing::error!("the thread that writes did not end well");
            }
        }
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    fn is_shared(&self) -> bool {
        false
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.clock.now())
    }

    async fn commit(
        &self,
        commits: Vec<Commit>,
        claimant: Option<&Claimant>,
    ) -> Result<Vec<CommitOutcome>, StoreError> {
        assert!(commits.len() <= COMMIT_BATCH_MAX, "a batch is within its limit");
        let writer = self.writer()?;
        let weight = commits.len();
        let claimant = claimant.cloned();
        let commits: Vec<_> = commits.into_iter().map(rows::encode).collect();
        let work = move |writer: &mut Writer| writer.commit(commits, claimant.as_ref());
        let mut outcomes = writer.submit("committing", weight, work).await?;
        for outcome in &mut outcomes {
            if let CommitOutcome::Applied { handed_off } = outcome {
                *handed_off = self.with_inputs(std::mem::take(handed_off)).await?;
            }
        }
        Ok(outcomes)
    }

    async fn claim(&self, claimant: &Claimant) -> Result<Vec<Claimed>, StoreError> {
        let claimant = claimant.clone();
        let weight = claimant.slots;
        let work = move |writer: &mut Writer| writer.claim(&claimant);
        let claimed = self.writer()?.submit("claiming", weight, work).await?;
        self.with_inputs(claimed).await
    }

    async fn wait_due(&self, queues: &Queues, wait_max: Duration) -> Result<(), StoreError> {
        wait_due(self, &self.clock, queues, wait_max).await
    }

    async fn renew(
        &self,
        leases: &[LeaseRef],
        lease: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        let leases = leases.to_vec();
        let work = move |writer: &mut Writer| {
            let now = writer.now();
            Ok(leases.into_iter().map(|held| writer.open.renew(held, lease, now)).collect())
        };
        self.writer()?.submit("renewing leases", 0, work).await
    }

    async fn read_run(&self, run_id: RunId) -> Result<Option<RunDetail>, StoreError> {
        if let Access::Owner(_) = self.access {
            let work = move |writer: &mut Writer| Ok(writer.open.get(run_id).map(OpenRun::detail));
            let open = self.writer()?.submit("reading a run", 0, work).await?;
            if open.is_some() {
                return Ok(open);
            }
        }
        self.readers.read("reading a run", move |file| read::run(file, run_id)).await
    }

    async fn read_events(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let work = move |file: &rusqlite::Connection| read::events(file, run_id, after, limit);
        self.readers.read("reading events", work).await
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
        self.readers.read("reading the feed", move |file| read::feed(file, after, limit)).await
    }

    async fn feed_end(&self, _feed: u16) -> Result<Position, StoreError> {
        self.readers.read("reading the end of the feed", read::feed_end).await
    }

    async fn wait_feed(
        &self,
        _feed: u16,
        after: Position,
        wait_max: Duration,
    ) -> Result<(), StoreError> {
        tokio::time::timeout(wait_max, self.grown(after)).await.unwrap_or(Ok(()))
    }

    async fn list_runs(&self, query: &RunQuery) -> Result<Vec<RunRow>, StoreError> {
        self.check_tags(query)?;
        let query = query.clone();
        self.readers.read("listing runs", move |file| listing::list(file, &query)).await
    }

    async fn count_runs(&self, query: &RunQuery) -> Result<u64, StoreError> {
        self.check_tags(query)?;
        let query = query.clone();
        self.readers.read("counting runs", move |file| listing::count(file, &query)).await
    }

    async fn append_logs(&self, lines: Vec<NewLogLine>) -> Result<(), StoreError> {
        let weight = lines.len();
        let work = move |writer: &mut Writer| writer.append_logs(lines);
        self.writer()?.submit("keeping log lines", weight, work).await
    }

    async fn read_logs(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LogLine>, StoreError> {
        let work = move |file: &rusqlite::Connection| read::log_lines(file, run_id, after, limit);
        self.readers.read("reading log lines", work).await
    }

    async fn register_flow(&self, revision: NewRevision) -> Result<(), StoreError> {
        let work = move |writer: &mut Writer| writer.register_flow(&revision);
        self.writer()?.submit("registering a flow", 1, work).await
    }

    async fn list_revisions(&self, flow: Option<&str>) -> Result<Vec<StoredRevision>, StoreError> {
        let (flow, format) = (flow.map(str::to_owned), self.format());
        let work =
            move |file: &rusqlite::Connection| read::revisions(file, format, flow.as_deref());
        self.readers.read("listing revisions", work).await
    }

    async fn read_revision(
        &self,
        flow: &str,
        revision: Option<&Revision>,
    ) -> Result<Option<StoredRevision>, StoreError> {
        let (flow, revision, format) = (flow.to_owned(), revision.cloned(), self.format());
        let work = move |file: &rusqlite::Connection| {
            read::revision(file, format, (&flow, revision.as_ref()))
        };
        self.readers.read("reading a revision", work).await
    }

    async fn sweep(&self, retention: &Retention) -> Result<Swept, StoreError> {
        let retention = *retention;
        let work = move |writer: &mut Writer| writer.sweep(&retention);
        self.writer()?.submit("sweeping", retention.batch, work).await
    }

    async fn beat(&self, beat: &Beat) -> Result<(), StoreError> {
        let beat = beat.clone();
        self.note_instances(move |instances, now| instances.beat(&beat, now)).await
    }

    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError> {
        let instance = instance.clone();
        self.note_instances(move |instances, _| instances.leave(&instance)).await
    }

    async fn list_instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        match &self.access {
            Access::Owner(_) => {
                let work = |writer: &mut Writer| Ok(writer.instances.list());
                self.writer()?.submit("listing instances", 0, work).await
            }
            Access::Reader { .. } => {
                let path = self.path.clone();
                blocking("asking for the owner", move || owner::instances(&path)).await
            }
        }
    }

    async fn import(&self, copy: StoreCopy) -> Result<Imported, StoreError> {
        let rows = |run: &RunCopy| 1 + run.events.len() + run.log_lines.len();
        let weight = copy.revisions.len() + copy.runs.iter().map(rows).sum::<usize>();
        let work = move |writer: &mut Writer| writer.import(copy);
        self.writer()?.submit("importing", weight, work).await
    }
}

impl Ask for SqliteStore {
    async fn ask(&self, queues: &Queues) -> Result<Waiting, StoreError> {
        let queues = queues.clone();
        let work = move |writer: &mut Writer| {
            let now = writer.now();
            Ok(writer.open.wait(&queues, now))
        };
        self.writer()?.submit("waiting", 0, work).await
    }
}
