//! Log lines, revisions, instances, retention and imports.

use std::collections::BTreeMap;

use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::ids::{InstanceId, Revision, RunId};
use flowgate_core::limits::LOG_LINES_MAX;
use flowgate_core::time::Timestamp;
use futures_util::future::try_join_all;
use redis::Cmd;
use serde::{Deserialize, Serialize};

use super::commit::{Text, indexes_of};
use super::read::encode_line;
use super::rows::{TIME_MS_MAX, damaged, encode_free, encode_lost};
use super::script::{self, Reply, parse};
use super::{RedisStore, fault, millis};
use crate::instances::SILENCE_MAX;
use crate::shorthand::{encode_events, encode_record};
use crate::{
    Authored, Beat, Imported, InstanceRow, LogLine, NewLogLine, NewRevision, Retention, RunCopy,
    StoreCopy, StoreError, StoredRevision, Swept,
};

/// Log lines in one call of the script.
const LINES_MAX: usize = 1_000;
/// Events in one row of an imported log.
const ROW_EVENTS_MAX: usize = 64;

impl RedisStore {
    /// Keeps log lines, those of a run in order.
    pub(super) async fn keep_lines(&self, lines: Vec<NewLogLine>) -> Result<(), StoreError> {
        let mut of_partition: Vec<Vec<NewLogLine>> = Vec::new();
        of_partition.resize_with(usize::from(self.partitions.count()), Vec::new);
        for line in lines {
            of_partition[self.partitions.of(line.run_id)].push(line);
        }
        let kept = self.partitions.all().zip(of_partition).map(|((_, prefix), lines)| async move {
            for part in lines.chunks(LINES_MAX) {
                let mut of_run: BTreeMap<RunId, Vec<String>> = BTreeMap::new();
                for line in part {
                    of_run.entry(line.run_id).or_default().push(encode_line(line));
                }
                let write = |command: &mut Cmd| {
                    command.arg(LOG_LINES_MAX).arg(of_run.len());
                    for (run_id, lines) in &of_run {
                        command.arg(Text(*run_id)).arg(lines.len()).arg(lines);
                    }
                };
                self.run("keeping log lines", &script::APPEND_LOGS, prefix, write).await?;
            }
            Ok::<_, StoreError>(())
        });
        try_join_all(kept).await.map(drop)
    }

    /// Keeps a revision and makes it the active one.
    pub(super) async fn keep_revision(&self, revision: &NewRevision) -> Result<(), StoreError> {
        let (json, authored) = encode_revision(revision);
        let write = |command: &mut Cmd| {
            command.arg(&revision.file.flow).arg(&*revision.revision.0).arg(&json);
            command.arg(&authored);
        };
        let prefix = self.partitions.prefix(0);
        self.run("registering a flow", &script::REGISTER_FLOW, prefix, write).await.map(drop)
    }

    /// The revisions of a flow or of all flows.
    pub(super) async fn revisions(
        &self,
        flow: Option<&str>,
    ) -> Result<Vec<StoredRevision>, StoreError> {
        self.revisions_that("listing revisions", (flow.unwrap_or_default(), "")).await
    }

    /// The revision of this name, or else the active one.
    pub(super) async fn revision(
        &self,
        flow: &str,
        revision: Option<&Revision>,
    ) -> Result<Option<StoredRevision>, StoreError> {
        let wanted = revision.map_or("=", |revision| &*revision.0);
        Ok(self.revisions_that("reading a revision", (flow, wanted)).await?.into_iter().next())
    }

    async fn revisions_that(
        &self,
        doing: &'static str,
        (flow, wanted): (&str, &str),
    ) -> Result<Vec<StoredRevision>, StoreError> {
        let write = |command: &mut Cmd| {
            command.arg(flow).arg(wanted);
        };
        let prefix = self.partitions.prefix(0);
        let answer = self.run(doing, &script::LIST_REVISIONS, prefix, write).await?;
        let mut of_flows = BTreeMap::new();
        for of_flow in Reply::of(answer)? {
            let mut reply = Reply::of(of_flow)?;
            let (flow, active) = (reply.word()?, reply.word()?);
            let mut revisions = Vec::new();
            while reply.left() > 0 {
                let (name, kept, authored) = (reply.word()?, reply.word()?, reply.word()?);
                revisions.push(decode_revision((&name, &active), &kept, &authored)?);
            }
            revisions.sort_by_key(|(order, _)| std::cmp::Reverse(*order));
            of_flows.insert(flow, revisions);
        }
        Ok(of_flows.into_values().flatten().map(|(_, revision)| revision).collect())
    }

    /// Removes what is older than `retention`, partition by partition until its batch is used.
    pub(super) async fn remove_old(&self, retention: &Retention) -> Result<Swept, StoreError> {
        let mut swept = Swept::default();
        let mut left = super::count(retention.batch);
        // Events never outlive the record that they belong to.
        let events = millis(retention.events.min(retention.runs));
        for (_, prefix) in self.partitions.all() {
            if left == 0 {
                break;
            }
            let write = |command: &mut Cmd| {
                command.arg(events).arg(millis(retention.runs)).arg(left);
            };
            let answer = self.run("sweeping", &script::SWEEP, prefix, write).await?;
            let mut reply = Reply::of(answer)?;
            let (logs, runs) = (reply.number::<u64>()?, reply.number::<u64>()?);
            swept.logs += logs;
            swept.runs += runs;
            swept.more |= reply.number::<u8>()? == 1;
            left = left.saturating_sub(logs + runs);
        }
        if left > 0 {
            swept.records = self.sweep_records(left).await?;
            left = left.saturating_sub(swept.records);
        }
        swept.more |= left == 0;
        self.forget_permits().await?;
        Ok(swept)
    }

    /// Notes that an instance is there.
    pub(super) async fn note(&self, beat: &Beat) -> Result<(), StoreError> {
        let json = serde_json::to_string(beat).expect("a beat has a JSON form");
        let write = |command: &mut Cmd| {
            command.arg(&*beat.instance.0).arg(&json).arg(millis(SILENCE_MAX));
        };
        self.run("noting a beat", &script::BEAT, self.partitions.prefix(0), write).await.map(drop)
    }

    /// Forgets an instance.
    pub(super) async fn forget(&self, instance: &InstanceId) -> Result<(), StoreError> {
        let write = |command: &mut Cmd| {
            command.arg(&*instance.0);
        };
        let prefix = self.partitions.prefix(0);
        self.run("forgetting an instance", &script::LEAVE, prefix, write).await.map(drop)
    }

    /// The instances in the order of their first beats.
    pub(super) async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        let mut command = redis::cmd("HGETALL");
        command.arg(format!("{}instances", self.partitions.prefix(0)));
        let mut reply = Reply::of(self.call("listing instances", &command).await?)?;
        let mut rows = Vec::new();
        while reply.left() > 0 {
            let (_, kept) = (reply.word()?, reply.word()?);
            let mut parts = kept.splitn(4, ';');
            let mut part = || parts.next().ok_or_else(|| fault::unreadable("half an instance"));
            let (started_at, order) = (Timestamp(parse(part()?)?), parse::<u64>(part()?)?);
            let seen_at = Timestamp(parse(part()?)?);
            let beat = serde_json::from_str(part()?);
            let beat = beat.map_err(|error| damaged("an instance", error))?;
            rows.push((order, InstanceRow { beat, started_at, seen_at }));
        }
        rows.sort_by_key(|(order, _)| *order);
        Ok(rows.into_iter().map(|(_, row)| row).collect())
    }

    /// Writes revisions and runs that are not there.
    pub(super) async fn take_over(&self, copy: StoreCopy) -> Result<Imported, StoreError> {
        let mut imported = Imported::default();
        for stored in &copy.revisions {
            imported.revisions += self.take_over_revision(stored).await?;
        }
        let token_max = copy.runs.iter().map(RunCopy::token_max).max();
        if let Some(token_max) = token_max {
            let granted = token_max.0 / u64::from(self.partitions.count());
            let write = |command: &mut Cmd| {
                command.arg(granted);
            };
            let raised = self.partitions.all().map(|(_, prefix)| {
                self.run("raising tokens", &script::RAISE_TOKENS, prefix, write)
            });
            try_join_all(raised).await?;
        }
        for run in &copy.runs {
            imported.runs += self.take_over_run(run).await?;
        }
        self.hints.committed(true);
        Ok(imported)
    }

    async fn take_over_revision(&self, stored: &StoredRevision) -> Result<u64, StoreError> {
        let (json, authored) = encode_revision(&stored.revision);
        let write = |command: &mut Cmd| {
            command.arg(&stored.revision.file.flow).arg(&*stored.revision.revision.0).arg(&json);
            command.arg(stored.registered_at.0).arg(u8::from(stored.active)).arg(&authored);
        };
        let prefix = self.partitions.prefix(0);
        let answer =
            self.run("importing a revision", &script::IMPORT_REVISION, prefix, write).await?;
        read_count(answer)
    }

    async fn take_over_run(&self, copy: &RunCopy) -> Result<u64, StoreError> {
        let run = &copy.row.run;
        let (fields, rows) = (fields_of(copy), rows_of(&copy.events));
        let indexes = indexes_of(run);
        let write = |command: &mut Cmd| {
            command.arg(Text(run.run_id)).arg(copy.row.started_at.0);
            command.arg(copy.row.ended_at.map(|at| at.0.to_string()).unwrap_or_default());
            command.arg(run.status.as_str()).arg(u8::from(copy.row.events_removed));
            let counts = [fields.len(), copy.jobs.len(), rows.len(), copy.log_lines.len()];
            let counts = counts.map(|count| count.to_string()).join(",");
            command.arg(format!("{counts},{}", indexes.len()));
            for (name, value) in &fields {
                command.arg(name).arg(value);
            }
            for job in &copy.jobs {
                command.arg(job.job.job_id.step.0).arg(&*job.job.queue).arg(due_us(job.due_at));
                command.arg(job.job.priority);
            }
            for row in &rows {
                command.arg(row.last).arg(row.count).arg(row.at.0).arg(&row.events);
            }
            for LogLine { number, at, line } in &copy.log_lines {
                command.arg(format!("{number};{};{}", at.0, encode_line(line)));
            }
            command.arg(&indexes);
        };
        let prefix = self.partitions.prefix_of(run.run_id);
        read_count(self.run("importing a run", &script::IMPORT_RUN, prefix, write).await?)
    }
}

fn read_count(answer: redis::Value) -> Result<u64, StoreError> {
    Reply::of(redis::Value::Array(vec![answer]))?.number()
}

/// The fields of an imported run.
fn fields_of(copy: &RunCopy) -> Vec<(String, String)> {
    let run = &copy.row.run;
    let record = encode_record(run);
    let indexes = serde_json::to_string(&indexes_of(run)).expect("names have a JSON form");
    let lines = copy.log_lines.last().map_or(0, |line| line.number);
    let mut fields = vec![
        ("version", run.version.to_string()),
        ("record", record),
        ("status", run.status.as_str().to_owned()),
        ("started_at", copy.row.started_at.0.to_string()),
        ("updated_at", copy.row.updated_at.0.to_string()),
        ("steps", run.steps.len().to_string()),
        ("indexes", indexes),
        ("log_lines", lines.to_string()),
    ];
    fields.extend(copy.row.ended_at.map(|at| ("ended_at", at.0.to_string())));
    fields.extend(copy.row.events_removed.then(|| ("events_removed", "1".to_owned())));
    let mut fields: Vec<_> =
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    for open in &copy.jobs {
        let step = open.job.job_id.step.0;
        let has_lost = !open.lost.is_empty();
        let state = encode_free(&open.job, due_us(open.due_at), has_lost);
        fields.push((format!("job:{step}"), state));
        if has_lost {
            fields.push((format!("lost:{step}"), encode_lost(&open.lost)));
        }
    }
    fields
}

/// A row of an imported log: events that were stored at the same time.
struct ImportedRow {
    /// The number of its last event.
    last: u64,
    count: usize,
    at: Timestamp,
    events: String,
}

fn rows_of(events: &[StoredEvent]) -> Vec<ImportedRow> {
    let together = events.chunk_by(|one, next| one.at == next.at && one.seq + 1 == next.seq);
    let parts = together.flat_map(|events| events.chunks(ROW_EVENTS_MAX));
    let row = |part: &[StoredEvent]| {
        let events: Vec<&Event> = part.iter().map(|stored| &stored.event).collect();
        let events = encode_events(&events);
        let last = part[part.len() - 1].seq;
        ImportedRow { last, count: part.len(), at: part[0].at, events }
    };
    parts.map(row).collect()
}

fn due_us(due_at: Timestamp) -> u128 {
    u128::try_from(due_at.0).unwrap_or(0).min(TIME_MS_MAX) * 1_000
}

/// A revision as it is kept.
#[derive(Serialize, Deserialize)]
struct KeptRevision<F> {
    file: F,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    folder: Option<String>,
}

/// A revision as it is kept, and beside it who registered it: that stays when the rest is written
/// anew.
fn encode_revision(revision: &NewRevision) -> (String, String) {
    let kept = KeptRevision { file: &revision.file, folder: revision.folder.clone() };
    let kept = serde_json::to_string(&kept).expect("a flow has a JSON form");
    (kept, serde_json::to_string(&revision.authored).expect("texts have a JSON form"))
}

/// `TIME;ORDER;JSON`, and by what the revision is ordered.
fn decode_revision(
    (name, active): (&str, &str),
    kept: &str,
    authored: &str,
) -> Result<((Timestamp, u64), StoredRevision), StoreError> {
    let mut parts = kept.splitn(3, ';');
    let mut part = || parts.next().ok_or_else(|| fault::unreadable("half a revision"));
    let (registered_at, order) = (Timestamp(parse(part()?)?), parse(part()?)?);
    let KeptRevision { file, folder } =
        serde_json::from_str(part()?).map_err(|error| damaged("a revision", error))?;
    let authored = if authored.is_empty() {
        Authored::default()
    } else {
        serde_json::from_str(authored).map_err(|error| damaged("an author", error))?
    };
    let revision = NewRevision { revision: Revision(name.into()), file, folder, authored };
    let stored = StoredRevision { revision, registered_at, active: name == active };
    Ok(((registered_at, order), stored))
}
