//! Log lines, revisions, beats, retention and imports.

use std::sync::Arc;

use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::ids::InstanceId;
use flowgate_core::limits::LOG_LINES_MAX;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresStore;
use super::fault::Fault;
use super::rows::{
    column, encode_kind, encode_tags, storable, to_int4, to_integer, to_ms, to_number,
};
use crate::instances::SILENCE_MAX;
use crate::shorthand::{encode_events, encode_record};
use crate::{
    Authored, Beat, Imported, NewLogLine, NewRevision, Retention, RunCopy, StoreCopy, StoreError,
    StoredRevision, Swept,
};

/// Events in one row of an imported log.
const ROW_EVENTS_MAX: usize = 1_000;
/// Bytes of payloads in one row of an imported log, but for a single event that has more.
const ROW_BYTES_MAX: usize = 1 << 20;

impl PostgresStore {
    pub(super) async fn append_lines(&self, lines: Vec<NewLogLine>) -> Result<(), StoreError> {
        if lines.is_empty() {
            return Ok(());
        }
        let run_ids: Vec<Uuid> = lines.iter().map(|line| line.run_id.0).collect();
        let steps: Vec<&str> = lines.iter().map(|line| &*line.step).collect();
        let attempts: Vec<i64> = lines.iter().map(|line| line.attempt.into()).collect();
        let levels: Vec<&str> = lines.iter().map(|line| line.level.as_str()).collect();
        let texts: Vec<_> = lines.iter().map(|line| storable(&line.text)).collect();
        let texts: Vec<&str> = texts.iter().map(|text| &**text).collect();
        let lines_max = to_integer(LOG_LINES_MAX);
        let params = [
            (&run_ids as _, Type::UUID_ARRAY),
            (&steps as _, Type::TEXT_ARRAY),
            (&attempts as _, Type::INT8_ARRAY),
            (&levels as _, Type::TEXT_ARRAY),
            (&texts as _, Type::TEXT_ARRAY),
            (&lines_max as _, Type::INT8),
        ];
        self.pool.call("keeping log lines", &self.sql.append_lines, &params).await?;
        Ok(())
    }

    pub(super) async fn register(&self, revision: &NewRevision) -> Result<(), StoreError> {
        let file = serde_json::to_string(&revision.file).expect("a flow has a JSON form");
        let (author, note) = texts_of(&revision.authored);
        let params = [
            (&revision.file.flow as _, Type::TEXT),
            (&&*revision.revision.0 as _, Type::TEXT),
            (&file as _, Type::TEXT),
            (&revision.folder as _, Type::TEXT),
            (&author as _, Type::TEXT),
            (&note as _, Type::TEXT),
        ];
        self.pool.call("registering a flow", &self.sql.register, &params).await?;
        Ok(())
    }

    pub(super) async fn sweep_ended(&self, retention: &Retention) -> Result<Swept, StoreError> {
        // Events never outlive the record that they belong to.
        let events_ms = to_ms(retention.events.min(retention.runs));
        let (runs_ms, batch) = (to_ms(retention.runs), to_int4(retention.batch));
        let params =
            [(&events_ms as _, Type::INT8), (&runs_ms as _, Type::INT8), (&batch as _, Type::INT4)];
        let within = self.options.call_timeout * super::LONG_FACTOR;
        let rows = self.pool.call_within(within, "sweeping", &self.sql.sweep, &params).await?;
        let count = |at| rows.first().map_or(Ok(0), |row| column(row, at).map(to_number));
        let read = || -> Result<_, Fault> { Ok((count(0)?, count(1)?, count(2)?)) };
        let (logs, runs, records) = read().map_err(|fault| fault.into_error("sweeping"))?;
        let more = logs + runs + records >= retention.batch as u64;
        Ok(Swept { logs, runs, records, more })
    }

    pub(super) async fn note_beat(&self, beat: &Beat) -> Result<(), StoreError> {
        let text = serde_json::to_string(beat).expect("a beat has a JSON form");
        let silence_ms = to_ms(SILENCE_MAX);
        let params = [
            (&&*beat.instance.0 as _, Type::TEXT),
            (&text as _, Type::TEXT),
            (&silence_ms as _, Type::INT8),
        ];
        self.pool.call("noting a beat", &self.sql.beat, &params).await?;
        Ok(())
    }

    pub(super) async fn forget(&self, instance: &InstanceId) -> Result<(), StoreError> {
        let schema = &self.options.schema;
        let sql = format!("DELETE FROM \"{schema}\".instances WHERE instance = $1");
        self.pool.call("leaving", &sql, &[(&&*instance.0, Type::TEXT)]).await?;
        Ok(())
    }

    pub(super) async fn import_copy(&self, copy: StoreCopy) -> Result<Imported, StoreError> {
        let mut imported = Imported::default();
        for revision in &copy.revisions {
            imported.revisions += u64::from(self.import_revision(revision).await?);
        }
        for run in &copy.runs {
            imported.runs += u64::from(self.import_run(run).await?);
        }
        if imported.runs > 0 {
            self.hints.committed(true);
        }
        Ok(imported)
    }

    async fn import_revision(&self, stored: &StoredRevision) -> Result<bool, StoreError> {
        let NewRevision { revision, file, folder, authored } = &stored.revision;
        let (author, note) = texts_of(authored);
        let text = serde_json::to_string(file).expect("a flow has a JSON form");
        let params = [
            (&file.flow as _, Type::TEXT),
            (&&*revision.0 as _, Type::TEXT),
            (&text as _, Type::TEXT),
            (folder as _, Type::TEXT),
            (&stored.registered_at.0 as _, Type::INT8),
            (&stored.active as _, Type::BOOL),
            (&author as _, Type::TEXT),
            (&note as _, Type::TEXT),
        ];
        let doing = "importing a revision";
        let row = self.pool.call_one(doing, &self.sql.import_revision, &params).await?;
        column(&row, 0).map_err(|fault| fault.into_error(doing))
    }

    async fn import_run(&self, copy: &RunCopy) -> Result<bool, StoreError> {
        let doing = "importing a run";
        let run = &copy.row.run;
        let record = encode_record(run);
        let key = run.key.as_deref().map(|key| storable(key).into_owned());
        let (tags, version) = (encode_tags(run), to_integer(run.version));
        let ended_at = copy.row.ended_at.map(|at| at.0);
        let lines_last = to_integer(copy.log_lines.last().map_or(0, |line| line.number));
        let token_max = to_integer(copy.token_max().0);
        let (jobs, log, lines) = (Jobs::of(copy), Log::of(&copy.events), Lines::of(copy));
        let params = [
            (&run.run_id.0 as _, Type::UUID),
            (&&*run.flow as _, Type::TEXT),
            (&&*run.revision.0 as _, Type::TEXT),
            (&run.status.as_str() as _, Type::TEXT),
            (&version as _, Type::INT8),
            (&copy.row.started_at.0 as _, Type::INT8),
            (&copy.row.updated_at.0 as _, Type::INT8),
            (&ended_at as _, Type::INT8),
            (&key as _, Type::TEXT),
            (&tags as _, Type::TEXT),
            (&copy.row.events_removed as _, Type::BOOL),
            (&lines_last as _, Type::INT8),
            (&record as _, Type::TEXT),
            (&token_max as _, Type::INT8),
            (&jobs.steps as _, Type::INT4_ARRAY),
            (&jobs.kinds as _, Type::TEXT_ARRAY),
            (&jobs.queues as _, Type::TEXT_ARRAY),
            (&jobs.priorities as _, Type::INT2_ARRAY),
            (&jobs.attempts as _, Type::INT8_ARRAY),
            (&jobs.inputs as _, Type::TEXT_ARRAY),
            (&jobs.due_at as _, Type::INT8_ARRAY),
            (&jobs.lost as _, Type::TEXT_ARRAY),
            (&log.seqs as _, Type::INT8_ARRAY),
            (&log.counts as _, Type::INT4_ARRAY),
            (&log.at as _, Type::INT8_ARRAY),
            (&log.events as _, Type::TEXT_ARRAY),
            (&lines.numbers as _, Type::INT8_ARRAY),
            (&lines.at as _, Type::INT8_ARRAY),
            (&lines.steps as _, Type::TEXT_ARRAY),
            (&lines.attempts as _, Type::INT8_ARRAY),
            (&lines.levels as _, Type::TEXT_ARRAY),
            (&lines.texts as _, Type::TEXT_ARRAY),
        ];
        let within = self.options.call_timeout * super::LONG_FACTOR;
        let rows = self.pool.call_within(within, doing, &self.sql.import_run, &params).await?;
        let is_new = rows.first().map_or(Ok(false), |row| column(row, 0));
        is_new.map_err(|fault| fault.into_error(doing))
    }
}

/// Who registered a revision and what for, as columns.
fn texts_of(authored: &Authored) -> (Option<String>, Option<String>) {
    let text = |text: &Option<Arc<str>>| text.as_deref().map(|text| storable(text).into_owned());
    (text(&authored.author), text(&authored.note))
}

/// The jobs of a copy, as columns.
#[derive(Default)]
struct Jobs<'a> {
    steps: Vec<i32>,
    kinds: Vec<&'static str>,
    queues: Vec<&'a str>,
    priorities: Vec<i16>,
    attempts: Vec<i64>,
    inputs: Vec<String>,
    due_at: Vec<i64>,
    lost: Vec<Option<String>>,
}

impl<'a> Jobs<'a> {
    fn of(copy: &'a RunCopy) -> Self {
        let mut jobs = Self::default();
        for open in &copy.jobs {
            let job = &open.job;
            jobs.steps.push(job.job_id.step.0.into());
            jobs.kinds.push(encode_kind(job.kind));
            jobs.queues.push(&job.queue);
            jobs.priorities.push(job.priority.into());
            jobs.attempts.push(job.attempt.into());
            jobs.inputs.push(serde_json::to_string(&job.inputs).expect("numbers have a JSON form"));
            jobs.due_at.push(open.due_at.0);
            let lost = || serde_json::to_string(&open.lost).expect("leases have a JSON form");
            jobs.lost.push((!open.lost.is_empty()).then(lost));
        }
        jobs
    }
}

/// The events of a copy, as rows of the log: one for each commit, as far as that can be told.
#[derive(Default)]
struct Log {
    seqs: Vec<i64>,
    counts: Vec<i32>,
    at: Vec<i64>,
    events: Vec<String>,
}

impl Log {
    fn of(events: &[StoredEvent]) -> Self {
        let mut log = Self::default();
        let mut rest = events;
        while let Some(first) = rest.first() {
            let mut bytes = 0;
            let fits = |(at, event): &(usize, &StoredEvent)| {
                bytes += event.event.payload_bytes();
                *at == 0 || (event.at == first.at && *at < ROW_EVENTS_MAX && bytes <= ROW_BYTES_MAX)
            };
            let count = rest.iter().enumerate().take_while(fits).count();
            let (row, after) = rest.split_at(count);
            let row: Vec<&Event> = row.iter().map(|stored| &stored.event).collect();
            log.seqs.push(to_integer(first.seq));
            log.counts.push(to_int4(count));
            log.at.push(first.at.0);
            log.events.push(encode_events(&row));
            rest = after;
        }
        log
    }
}

/// The log lines of a copy, as columns.
#[derive(Default)]
struct Lines<'a> {
    numbers: Vec<i64>,
    at: Vec<i64>,
    steps: Vec<&'a str>,
    attempts: Vec<i64>,
    levels: Vec<&'static str>,
    texts: Vec<String>,
}

impl<'a> Lines<'a> {
    fn of(copy: &'a RunCopy) -> Self {
        let mut lines = Self::default();
        for kept in &copy.log_lines {
            lines.numbers.push(to_integer(kept.number));
            lines.at.push(kept.at.0);
            lines.steps.push(&kept.line.step);
            lines.attempts.push(kept.line.attempt.into());
            lines.levels.push(kept.line.level.as_str());
            lines.texts.push(storable(&kept.line.text).into_owned());
        }
        lines
    }
}
