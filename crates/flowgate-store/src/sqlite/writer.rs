//! The thread that writes.
//!
//! It owns the connection that writes and the open runs. Callers send it work and wait; it takes
//! all that has queued up, does it within one transaction, and answers when that is durable:
//!
//! ```text
//!   callers ──work──▶ queue ──▶ work, work, … ──▶ COMMIT (one fsync) ──▶ answer, answer, …
//!                       ▲                                    │
//!                       └── what comes meanwhile is the next group
//! ```
//!
//! There is no timer: at idle a commit goes at once, under load groups grow by themselves. If the
//! transaction fails, every caller of the group gets the error and the open runs are read anew
//! from the file, so memory never runs ahead of it; the next group is tried as if nothing had
//! been.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flowgate_core::ids::RunId;
use flowgate_core::time::Timestamp;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot, watch};

use super::fault::{Fault, closed};
use super::owner::Ownership;
use super::payloads::Payloads;
use super::rows::{RUN_COLUMNS, read_open, to_integer, to_number};
use super::{permits, records, terms};
use crate::StoreError;
use crate::clock::Clock;
use crate::instances::Instances;
use crate::open::hash::IdMap;
use crate::open::{OpenJob, OpenRuns};
use crate::permits::Permits;

/// Requests that may wait for the writer; more callers wait to be let in.
const REQUESTS_MAX: usize = 1_024;
/// Weight of the requests that share a transaction.
const GROUP_WEIGHT_MAX: usize = 2_048;

/// How long a lease holds that a failed group would have ended.
const LEASE_GRACE: Duration = Duration::from_secs(30);

/// Where the writer thread takes its work from.
#[derive(Debug)]
pub(super) struct WriterHandle {
    requests: mpsc::Sender<Request>,
}

/// Work for the writer, with the caller's answer inside.
pub(super) struct Request {
    /// About how many rows it writes.
    weight: usize,
    work: Work,
}

/// Does the work, or hears that the group has failed already.
type Work = Box<dyn FnOnce(Result<&mut Writer, Fault>) -> (Answer, Result<(), Fault>) + Send>;

/// Tells a caller what became of its group.
type Answer = Box<dyn FnOnce(Result<(), Fault>) + Send>;

/// How much has been written.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) commits: AtomicU64,
    pub(super) transactions: AtomicU64,
}

/// The state of the writer thread.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) clock: Clock,
    pub(super) open: OpenRuns,
    /// What is known of each open run besides.
    pub(super) kept: IdMap<RunId, Kept>,
    pub(super) payload_bytes: usize,
    pub(super) position_last: u64,
    /// The upper half of the tokens that the file knows of.
    epoch: u64,
    is_in_transaction: bool,
    pub(super) written: Arc<Written>,
    /// The last position that is durable.
    pub(super) feed_end: watch::Sender<u64>,
    pub(super) instances: Instances,
    pub(super) permits: Permits,
    /// The last field: the file is given up when nothing of ours has it open any more.
    pub(super) ownership: Ownership,
}

/// An open run as the writer keeps it.
#[derive(Debug)]
pub(super) struct Kept {
    /// Its row.
    pub(super) run_number: i64,
    pub(super) payloads: Payloads,
}

impl WriterHandle {
    /// Starts the thread. It ends when the handle is dropped or told to.
    pub(super) fn start(writer: Writer) -> std::io::Result<(Self, std::thread::JoinHandle<()>)> {
        let (requests, queue) = mpsc::channel(REQUESTS_MAX);
        let thread = std::thread::Builder::new()
            .name("flowgate-sqlite".to_owned())
            .spawn(move || run(writer, queue))?;
        Ok((Self { requests }, thread))
    }

    /// Has `work` done, and returns what it made once that is durable.
    pub(super) async fn submit<T: Send + 'static>(
        &self,
        doing: &'static str,
        weight: usize,
        work: impl FnOnce(&mut Writer) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answered) = oneshot::channel();
        let work: Work = Box::new(move |writer| {
            let (value, result) = match writer.and_then(work) {
                Ok(value) => (Some(value), Ok(())),
                Err(fault) => (None, Err(fault)),
            };
            let answer = move |group: Result<(), Fault>| {
                let value = group.map(|()| value.expect("a group with a fault does not commit"));
                // A caller that has gone away needs no answer.
                reply.send(value).ok();
            };
            (Box::new(answer) as Answer, result)
        });
        self.requests.send(Request { weight, work }).await.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?.map_err(|fault| fault.into_error(doing))
    }
}

fn run(mut writer: Writer, mut queue: mpsc::Receiver<Request>) {
    let mut unsound = None;
    while let Some(first) = queue.blocking_recv() {
        let mut weight = first.weight;
        let mut group = vec![first];
        while weight < GROUP_WEIGHT_MAX
            && let Ok(next) = queue.try_recv()
        {
            weight += next.weight;
            group.push(next);
        }
        if unsound.is_some() {
            unsound = writer.reload().err();
        }
        let sound = unsound.clone().map_or(Ok(()), Err);
        let (answers, result) = writer.work_off(group, sound);
        if let Err(fault) = &result {
            tracing::warn!(error = %fault, "a group of writes failed");
            unsound = writer.reload().err();
        }
        for answer in answers {
            answer(result.clone());
        }
    }
    // What is left in the log would only make the next start slower.
    let checkpoint = writer.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    if let Err(error) = checkpoint {
        tracing::debug!(%error, "the last checkpoint failed");
    }
}

impl Writer {
    /// Reads the open runs; leases, terms and permits of earlier owners are void.
    pub(super) fn new(
        connection: Connection,
        clock: Clock,
        ownership: Ownership,
    ) -> Result<Self, Fault> {
        let epoch: i64 =
            connection
                .query_row("SELECT value FROM meta WHERE name = 'epoch'", [], |r| r.get(0))?;
        let mut writer = Self {
            connection,
            clock,
            open: OpenRuns::default(),
            kept: IdMap::default(),
            payload_bytes: 0,
            position_last: 0,
            epoch: to_number(epoch) + 1,
            is_in_transaction: false,
            written: Arc::default(),
            feed_end: watch::Sender::default(),
            instances: Instances::default(),
            permits: Permits::default(),
            ownership,
        };
        terms::end_all(&writer.connection, writer.clock.now())?;
        permits::end_all(&writer.connection)?;
        writer.load(None)?;
        writer.write_epoch()?;
        writer.feed_end.send_replace(writer.position_last);
        Ok(writer)
    }

    /// The connection, within the group's transaction.
    pub(super) fn transaction(&mut self) -> Result<&Connection, Fault> {
        if !self.is_in_transaction {
            self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
            self.is_in_transaction = true;
        }
        Ok(&self.connection)
    }

    fn work_off(
        &mut self,
        group: Vec<Request>,
        mut result: Result<(), Fault>,
    ) -> (Vec<Answer>, Result<(), Fault>) {
        let mut answers = Vec::with_capacity(group.len());
        for request in group {
            let (answer, worked) = (request.work)(result.map(|()| &mut *self));
            answers.push(answer);
            result = worked;
        }
        (answers, result.and_then(|()| self.end_transaction()))
    }

    fn end_transaction(&mut self) -> Result<(), Fault> {
        if !self.is_in_transaction {
            return Ok(());
        }
        if self.open.token_last() >> 32 > self.epoch {
            self.epoch = self.open.token_last() >> 32;
            self.write_epoch()?;
        }
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        self.is_in_transaction = false;
        self.written.transactions.fetch_add(1, Ordering::Relaxed);
        let position_last = self.position_last;
        self.feed_end
            .send_if_modified(|end| std::mem::replace(end, position_last) != position_last);
        Ok(())
    }

    fn write_epoch(&self) -> Result<(), Fault> {
        let sql = "UPDATE meta SET value = ?1 WHERE name = 'epoch'";
        self.connection.execute(sql, [to_integer(self.epoch)])?;
        Ok(())
    }

    /// Gives up the transaction and goes back to what the file says.
    fn reload(&mut self) -> Result<(), Fault> {
        self.is_in_transaction = false;
        if !self.connection.is_autocommit() {
            self.connection.execute_batch("ROLLBACK")?;
        }
        let before = std::mem::take(&mut self.open);
        let loaded = self.load(Some(&before));
        if loaded.is_err() {
            // Its leases are needed by the next try.
            self.open = before;
        }
        loaded
    }

    /// Reads the open runs. With `before`, the state that this owner had, leases go on; without
    /// it they were granted by an owner that is gone, and are lost.
    fn load(&mut self, before: Option<&OpenRuns>) -> Result<(), Fault> {
        let now = self.clock.now();
        let token_last = before.map_or(0, OpenRuns::token_last).max(self.epoch << 32);
        let mut open = OpenRuns::new(token_last);
        let mut kept = IdMap::default();
        {
            let sql = format!(
                "SELECT {RUN_COLUMNS}, jobs, run_number FROM runs \
                 WHERE status IN ('held', 'running', 'waiting') ORDER BY run_number"
            );
            let mut statement = self.connection.prepare_cached(&sql)?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let (run, mut jobs) = read_open(row)?;
                for job in &mut jobs {
                    restore_lease(job, before, now);
                }
                let payloads = Payloads::InLog;
                kept.insert(run.run.run_id, Kept { run_number: row.get(6)?, payloads });
                open.load(run, jobs, now);
            }
        }
        for (flow, gate) in records::gates(&self.connection)? {
            open.set_gate(flow, gate);
        }
        let position_last: i64 = self.connection.query_row(
            "SELECT max(value, ifnull((SELECT position + count - 1 FROM log \
             ORDER BY position DESC LIMIT 1), 0)) FROM meta WHERE name = 'position_last'",
            [],
            |row| row.get(0),
        )?;
        self.position_last = to_number(position_last);
        self.permits = permits::load(&self.connection)?;
        self.open = open;
        self.kept = kept;
        self.payload_bytes = 0;
        Ok(())
    }

    /// The time of this request.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

fn restore_lease(job: &mut OpenJob, before: Option<&OpenRuns>, now: Timestamp) {
    let stamp = job.stamp();
    let Some(lease) = &mut job.lease else { return };
    let Some(before) = before else {
        job.lost.extend(stamp);
        job.lease = None;
        return;
    };
    match before.lease(job.job.job_id) {
        // Renewals are in memory only.
        Some(known) if known.token == lease.token => *lease = known.clone(),
        // Somebody claimed the job in the group that failed, so this lease has expired.
        Some(_) => {}
        // The group that failed would have ended this lease. Its holder will try again.
        None => lease.expires_at = lease.expires_at.max(now.plus(LEASE_GRACE)),
    }
}
