//! What the writer thread does with each kind of request.

use flowgate_core::commit::Claimed;
use flowgate_core::event::FORMAT;
use flowgate_core::ids::{CommitId, JobId, RunId};
use flowgate_core::limits::LOG_LINES_MAX;
use flowgate_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::fault::Fault;
use super::payloads::{PAYLOAD_BYTES_MAX, Payloads};
use super::read;
use super::rows::{Encoded, commit_id, encode_jobs, to_integer, to_number};
use super::writer::{Kept, Writer};
use crate::open::{Taker, Verdict, Written};
use crate::{Claimant, CommitOutcome, NewLogLine, NewRevision, Refusal, Retention, RunRow, Swept};

/// Pages that a sweep gives back to the file system at most.
const PAGES_FREED_MAX: u32 = 2_000;

/// Removes the tags of a run by their exact keys.
const REMOVE_TAGS: &str = "DELETE FROM tags WHERE (name, value, started_at, run_id) IN \
     (SELECT tag.key, tag.value, runs.started_at, runs.run_id \
     FROM runs, json_each(runs.record, '$.tags') AS tag WHERE runs.run_number = ?1)";

/// What the file says, for a verdict.
struct FileWritten<'a>(&'a Connection);

impl Written for FileWritten<'_> {
    type Fault = Fault;

    fn has_ended(&self, run_id: RunId) -> Result<bool, Fault> {
        read::has_run(self.0, run_id)
    }

    fn commit_at(&self, run_id: RunId, seq: u64) -> Result<Option<CommitId>, Fault> {
        Ok(read::commit_at(self.0, run_id, seq)?.map(commit_id))
    }
}

/// A row of the log to write.
#[derive(Debug)]
pub(super) struct NewLogRow<'a> {
    pub(super) run_id: RunId,
    /// The number of its first event.
    pub(super) seq: u64,
    pub(super) count: u64,
    pub(super) commit_id: CommitId,
    pub(super) at: Timestamp,
    /// The events as a JSON array.
    pub(super) events: &'a str,
}

impl Writer {
    /// Applies or refuses each commit.
    pub(super) fn commit(
        &mut self,
        commits: Vec<Result<Encoded, Refusal>>,
        claimant: Option<&Claimant>,
    ) -> Result<Vec<CommitOutcome>, Fault> {
        let mut taker = claimant.map(Taker::new);
        let now = self.now();
        let outcomes = commits.into_iter().map(|encoded| match encoded {
            Ok(encoded) => self.commit_one(&encoded, now, taker.as_mut()),
            Err(refusal) => Ok(CommitOutcome::Refused(refusal)),
        });
        outcomes.collect()
    }

    fn commit_one(
        &mut self,
        encoded: &Encoded,
        now: Timestamp,
        taker: Option<&mut Taker<'_>>,
    ) -> Result<CommitOutcome, Fault> {
        let commit = &encoded.commit;
        let handed_off = match self.open.judge(commit, now, &FileWritten(&self.connection))? {
            Verdict::Refuse(refusal) => return Ok(CommitOutcome::Refused(refusal)),
            Verdict::Again => self.open.hand_off_again(commit, now, taker),
            Verdict::Apply => {
                let status_before = self.open.get(commit.run_id).map(|open| open.run.status);
                let handed_off = self.open.apply(commit, now, taker);
                self.write_log(encoded, now)?;
                match status_before {
                    None => self.insert_run(encoded, now)?,
                    Some(before) => {
                        self.update_run(encoded, before != commit.record.status, now)?;
                    }
                }
                self.keep_payloads(encoded);
                self.written.commits.fetch_add(1, Ordering::Relaxed);
                handed_off
            }
        };
        Ok(CommitOutcome::Applied { handed_off: self.with_inputs(handed_off) })
    }

    fn write_log(&mut self, encoded: &Encoded, now: Timestamp) -> Result<(), Fault> {
        let commit = &encoded.commit;
        self.write_events(&NewLogRow {
            run_id: commit.run_id,
            seq: commit.version_before() + 1,
            count: u64::try_from(commit.events.len()).expect("events fit in memory"),
            commit_id: commit.commit_id,
            at: now,
            events: &encoded.events,
        })
    }

    /// Writes a row of the log at the next positions.
    pub(super) fn write_events(&mut self, row: &NewLogRow<'_>) -> Result<(), Fault> {
        let position = self.position_last + 1;
        self.position_last += row.count;
        let mut statement = self.transaction()?.prepare_cached(
            "INSERT INTO log (position, run_id, seq, count, commit_id, at, format, events) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?;
        statement.execute(params![
            to_integer(position),
            row.run_id.0.as_bytes(),
            to_integer(row.seq),
            to_integer(row.count),
            row.commit_id.0.as_bytes(),
            row.at.0,
            FORMAT,
            row.events,
        ])?;
        Ok(())
    }

    fn insert_run(&mut self, encoded: &Encoded, now: Timestamp) -> Result<(), Fault> {
        let run = &encoded.commit.record;
        let ended_at = run.status.is_terminal().then_some(now);
        let row = RunRow {
            run: Arc::clone(run),
            started_at: now,
            updated_at: now,
            ended_at,
            events_removed: false,
        };
        let run_number = self.write_run(&row, &encoded.record, 0)?;
        if ended_at.is_none() {
            self.kept.insert(run.run_id, Kept { run_number, payloads: Payloads::new() });
        }
        Ok(())
    }

    /// Writes a run that is not in the file, and returns its number.
    pub(super) fn write_run(
        &mut self,
        row: &RunRow,
        record: &str,
        log_lines: u64,
    ) -> Result<i64, Fault> {
        let run = &row.run;
        let jobs = self.jobs_of(run.run_id);
        let connection = self.transaction()?;
        let mut statement = connection.prepare_cached(
            "INSERT INTO runs (run_id, flow, revision, status, version, started_at, updated_at, \
             ended_at, key, events_removed, log_lines, record, jobs) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        )?;
        statement.execute(params![
            run.run_id.0.as_bytes(),
            &*run.flow,
            &*run.revision.0,
            run.status.as_str(),
            to_integer(run.version),
            row.started_at.0,
            row.updated_at.0,
            row.ended_at.map(|at| at.0),
            run.key.as_deref(),
            row.events_removed,
            to_integer(log_lines),
            record,
            jobs,
        ])?;
        let run_number = connection.last_insert_rowid();
        for (name, value) in &run.tags {
            let sql = "INSERT INTO tags (name, value, started_at, run_id) VALUES (?1, ?2, ?3, ?4)";
            connection.prepare_cached(sql)?.execute(params![
                &**name,
                &**value,
                row.started_at.0,
                run.run_id.0.as_bytes()
            ])?;
        }
        Ok(run_number)
    }

    fn update_run(
        &mut self,
        encoded: &Encoded,
        status_changed: bool,
        now: Timestamp,
    ) -> Result<(), Fault> {
        let run = &encoded.commit.record;
        let run_number = self.kept[&run.run_id].run_number;
        let jobs = self.jobs_of(run.run_id);
        let (version, ended_at) =
            (to_integer(run.version), run.status.is_terminal().then_some(now.0));
        let connection = self.transaction()?;
        if status_changed {
            let mut statement = connection.prepare_cached(
                "UPDATE runs SET version = ?2, updated_at = ?3, record = ?4, jobs = ?5, \
                 status = ?6, ended_at = ?7 WHERE run_number = ?1",
            )?;
            let status = run.status.as_str();
            let params =
                params![run_number, version, now.0, encoded.record, jobs, status, ended_at];
            statement.execute(params)?;
        } else {
            // Without the status no index is touched.
            let mut statement = connection.prepare_cached(
                "UPDATE runs SET version = ?2, updated_at = ?3, record = ?4, jobs = ?5 \
                 WHERE run_number = ?1",
            )?;
            statement.execute(params![run_number, version, now.0, encoded.record, jobs])?;
        }
        Ok(())
    }

    fn jobs_of(&self, run_id: RunId) -> String {
        let jobs = self.open.get(run_id).map(|open| encode_jobs(open.jobs()));
        jobs.unwrap_or_else(|| "[]".to_owned())
    }

    fn keep_payloads(&mut self, encoded: &Encoded) {
        let commit = &encoded.commit;
        if commit.record.status.is_terminal() {
            let kept = self.kept.remove(&commit.run_id);
            self.payload_bytes -= kept.map_or(0, |kept| kept.payloads.bytes());
        } else if let Some(kept) = self.kept.get_mut(&commit.run_id) {
            let others = self.payload_bytes - kept.payloads.bytes();
            let room = PAYLOAD_BYTES_MAX.saturating_sub(others);
            kept.payloads.add(commit.version_before() + 1, &commit.events, room);
            self.payload_bytes = others + kept.payloads.bytes();
        }
    }

    /// The claimed jobs with those payloads that are in memory.
    fn with_inputs(&self, mut claimed: Vec<Claimed>) -> Vec<Claimed> {
        for claimed in &mut claimed {
            self.kept[&claimed.job.job_id.run_id].payloads.fill(claimed);
        }
        claimed
    }

    /// Leases due jobs.
    pub(super) fn claim(&mut self, claimant: &Claimant) -> Result<Vec<Claimed>, Fault> {
        let now = self.now();
        let claimed = self.open.claim(claimant, now);
        self.write_jobs(claimed.iter().map(|c| c.job.job_id.run_id).collect())?;
        Ok(self.with_inputs(claimed))
    }

    /// Makes delayed jobs due; returns those that exist.
    pub(super) fn wake_jobs(&mut self, jobs: &[JobId]) -> Result<Vec<JobId>, Fault> {
        let now = self.now();
        let (mut found, mut changed) = (Vec::new(), Vec::new());
        for job_id in jobs {
            let Some(is_changed) = self.open.wake(*job_id, now) else { continue };
            found.push(*job_id);
            if is_changed {
                changed.push(job_id.run_id);
            }
        }
        self.write_jobs(changed)?;
        Ok(found)
    }

    /// Writes the open jobs of these runs.
    fn write_jobs(&mut self, mut run_ids: Vec<RunId>) -> Result<(), Fault> {
        run_ids.sort_unstable();
        run_ids.dedup();
        for run_id in run_ids {
            let (run_number, jobs) = (self.kept[&run_id].run_number, self.jobs_of(run_id));
            let sql = "UPDATE runs SET jobs = ?2 WHERE run_number = ?1";
            self.transaction()?.prepare_cached(sql)?.execute(params![run_number, jobs])?;
        }
        Ok(())
    }

    /// Keeps log lines of runs that have theirs.
    pub(super) fn append_logs(&mut self, mut lines: Vec<NewLogLine>) -> Result<(), Fault> {
        let now = self.now();
        // The lines of a run stay in order, as the sort is stable.
        lines.sort_by_key(|line| line.run_id);
        for lines in lines.chunk_by(|one, other| one.run_id == other.run_id) {
            self.append_logs_of(lines[0].run_id, lines, now)?;
        }
        Ok(())
    }

    fn append_logs_of(
        &mut self,
        run_id: RunId,
        lines: &[NewLogLine],
        now: Timestamp,
    ) -> Result<(), Fault> {
        let connection = self.transaction()?;
        let sql = "SELECT log_lines FROM runs WHERE run_id = ?1 AND events_removed = 0";
        let mut statement = connection.prepare_cached(sql)?;
        let counted: Option<i64> =
            statement.query_row([run_id.0.as_bytes()], |row| row.get(0)).optional()?;
        let Some(counted) = counted.map(to_number) else { return Ok(()) };
        for (number, line) in (counted + 1..=LOG_LINES_MAX).zip(lines) {
            write_line(connection, number, now, line)?;
        }
        let counted = counted + u64::try_from(lines.len()).expect("lines fit in memory");
        connection
            .prepare_cached("UPDATE runs SET log_lines = ?2 WHERE run_id = ?1")?
            .execute(params![run_id.0.as_bytes(), to_integer(counted)])?;
        Ok(())
    }

    /// Keeps a revision and makes it the active one of its flow.
    pub(super) fn register_flow(&mut self, revision: &NewRevision) -> Result<(), Fault> {
        let now = self.now();
        let file = serde_json::to_string(&revision.file).expect("a flow file has a JSON form");
        let connection = self.transaction()?;
        connection
            .prepare_cached("UPDATE revisions SET active = 0 WHERE flow = ?1")?
            .execute([&revision.file.flow])?;
        connection
            .prepare_cached(
                "INSERT INTO revisions \
                 (flow, revision, file, folder, registered_at, active, author, note) \
                 VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6, ?7) \
                 ON CONFLICT (flow, revision) DO UPDATE SET active = 1, folder = excluded.folder",
            )?
            .execute(params![
                revision.file.flow,
                &*revision.revision.0,
                file,
                revision.folder,
                now.0,
                revision.authored.author.as_deref(),
                revision.authored.note.as_deref(),
            ])?;
        Ok(())
    }

    /// Removes what is older than `retention`, at most its batch.
    pub(super) fn sweep(&mut self, retention: &Retention) -> Result<Swept, Fault> {
        let now = self.now();
        // Events never outlive the record that they belong to.
        let events_before = now.minus(retention.events.min(retention.runs));
        let mut swept = Swept::default();
        let ended = self.ended(false, events_before, retention.batch)?;
        swept.logs = u64::try_from(ended.len()).expect("a batch fits in memory");
        if !ended.is_empty() {
            let position_last = to_integer(self.position_last);
            let connection = self.transaction()?;
            connection.execute(
                "UPDATE meta SET value = ?1 WHERE name = 'position_last'",
                [position_last],
            )?;
            for (run_number, run_id) in ended {
                connection
                    .prepare_cached("DELETE FROM log WHERE run_id = ?1")?
                    .execute([run_id])?;
                connection
                    .prepare_cached("DELETE FROM log_lines WHERE run_id = ?1")?
                    .execute([run_id])?;
                connection
                    .prepare_cached("UPDATE runs SET events_removed = 1 WHERE run_number = ?1")?
                    .execute([run_number])?;
            }
        }
        let left = retention.batch - usize::try_from(swept.logs).expect("a batch fits in memory");
        let ended = self.ended(true, now.minus(retention.runs), left)?;
        swept.runs = u64::try_from(ended.len()).expect("a batch fits in memory");
        for (run_number, _) in &ended {
            let connection = self.transaction()?;
            connection.prepare_cached(REMOVE_TAGS)?.execute([run_number])?;
            let sql = "DELETE FROM runs WHERE run_number = ?1";
            connection.prepare_cached(sql)?.execute([run_number])?;
        }
        let left = left - ended.len();
        let records = self.sweep_records(left)?;
        self.sweep_permits()?;
        swept.records = u64::try_from(records).expect("a batch fits in memory");
        swept.more = left == records;
        if swept.logs + swept.runs + swept.records > 0 {
            free_pages(self.transaction()?)?;
        }
        Ok(swept)
    }

    /// Runs that ended at or before a time, the first ended first.
    fn ended(
        &mut self,
        events_removed: bool,
        before: Timestamp,
        limit: usize,
    ) -> Result<Vec<(i64, [u8; 16])>, Fault> {
        let mut statement = self.connection.prepare_cached(
            "SELECT run_number, run_id FROM runs WHERE events_removed = ?1 AND ended_at <= ?2 \
             AND ended_at IS NOT NULL ORDER BY ended_at LIMIT ?3",
        )?;
        let limit = to_integer(u64::try_from(limit).unwrap_or(u64::MAX));
        let rows = statement.query_map(params![events_removed, before.0, limit], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

/// Writes a log line.
pub(super) fn write_line(
    connection: &Connection,
    number: u64,
    at: Timestamp,
    line: &NewLogLine,
) -> Result<(), Fault> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO log_lines (run_id, number, at, step, attempt, level, text) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    insert.execute(params![
        line.run_id.0.as_bytes(),
        to_integer(number),
        at.0,
        &*line.step,
        line.attempt,
        line.level.as_str(),
        line.text,
    ])?;
    Ok(())
}

/// Gives free pages back to the file system, a bounded number.
fn free_pages(connection: &Connection) -> Result<(), Fault> {
    let mut statement =
        connection.prepare(&format!("PRAGMA incremental_vacuum({PAGES_FREED_MAX})"))?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    Ok(())
}
