//! Writing what another store had.

use flowgate_core::ids::CommitId;
use flowgate_core::time::Timestamp;
use rusqlite::params;

use super::fault::Fault;
use super::payloads::Payloads;
use super::read::has_run;
use super::write::{NewLogRow, write_line};
use super::writer::{Kept, Writer};
use crate::open::{OpenJob, OpenRun};
use crate::{Imported, JobCopy, RunCopy, StoreCopy, StoredRevision};

impl Writer {
    /// Writes the revisions and runs that are not there.
    pub(super) fn import(&mut self, copy: StoreCopy) -> Result<Imported, Fault> {
        let mut imported = Imported::default();
        for revision in &copy.revisions {
            imported.revisions += u64::from(self.import_revision(revision)?);
        }
        for run in copy.runs {
            if !has_run(self.transaction()?, run.row.run.run_id)? {
                self.import_run(run)?;
                imported.runs += 1;
            }
        }
        Ok(imported)
    }

    /// Writes a revision, active only where its flow has no active one; false if it is there.
    fn import_revision(&mut self, stored: &StoredRevision) -> Result<bool, Fault> {
        let revision = &stored.revision;
        let file = serde_json::to_string(&revision.file).expect("a flow file has a JSON form");
        let mut statement = self.transaction()?.prepare_cached(
            "INSERT INTO revisions \
             (flow, revision, file, folder, registered_at, active, author, note) \
             SELECT ?1, ?2, ?3, ?4, ?5, \
             ?6 AND NOT EXISTS (SELECT 1 FROM revisions WHERE flow = ?1 AND active), ?7, ?8 \
             WHERE TRUE ON CONFLICT (flow, revision) DO NOTHING",
        )?;
        let written = statement.execute(params![
            revision.file.flow,
            &*revision.revision.0,
            file,
            revision.folder,
            stored.registered_at.0,
            stored.active,
            revision.authored.author.as_deref(),
            revision.authored.note.as_deref(),
        ])?;
        Ok(written > 0)
    }

    fn import_run(&mut self, copy: RunCopy) -> Result<(), Fault> {
        self.open.raise_tokens(copy.token_max());
        let RunCopy { row, jobs, events, log_lines } = copy;
        let run_id = row.run.run_id;
        let is_open = row.ended_at.is_none();
        if is_open {
            let run = OpenRun::new(row.run.clone(), row.started_at, row.updated_at);
            let now = self.now();
            self.open.load(run, jobs.into_iter().map(|job| open_job(job, now)).collect(), now);
        }
        let record = serde_json::to_string(&*row.run).expect("a record has a JSON form");
        let lines_counted = log_lines.last().map_or(0, |line| line.number);
        let run_number = self.write_run(&row, &record, lines_counted)?;
        if is_open {
            self.kept.insert(run_id, Kept { run_number, payloads: Payloads::InLog });
        }
        for stored in events {
            let event = [stored.event];
            let events = serde_json::to_string(&event).expect("events have a JSON form");
            self.write_events(&NewLogRow {
                run_id,
                seq: stored.seq,
                count: 1,
                // No commit has this id, so none is taken for one that was applied.
                commit_id: CommitId(uuid::Uuid::nil()),
                at: stored.at,
                events: &events,
            })?;
        }
        let connection = self.transaction()?;
        for line in log_lines {
            write_line(connection, line.number, line.at, &line.line)?;
        }
        Ok(())
    }
}

fn open_job(copy: JobCopy, now: Timestamp) -> OpenJob {
    let mut open = OpenJob::new(copy.job, copy.due_at, 0);
    open.lost = copy.lost;
    open.queue(now);
    open
}
