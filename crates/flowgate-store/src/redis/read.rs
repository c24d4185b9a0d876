//! Reading runs, events and log lines.

use flowgate_core::commit::Claimed;
use flowgate_core::event::StoredEvent;
use flowgate_core::ids::{Position, RunId};
use flowgate_core::time::Timestamp;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use redis::Cmd;
use uuid::Uuid;

use super::commit::Text;
use super::rows::{LogRow, Needy, decode_detail, encode_run};
use super::script::{self, Reply, parse};
use super::{RedisStore, fault};
use crate::{LogLevel, LogLine, NewLogLine, RunDetail, StoreError};

/// Bytes of events that one call brings, but for the last row.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Log lines that one call brings.
const LINES_MAX: usize = 1_000;
/// Jobs whose missing payloads are read at the same time.
const NEEDY_MAX: usize = 8;

impl RedisStore {
    /// A run with its open jobs.
    pub(super) async fn detail(&self, run_id: RunId) -> Result<Option<RunDetail>, StoreError> {
        let prefix = self.partitions.prefix_of(run_id);
        let write = |command: &mut Cmd| {
            command.arg(Text(run_id));
        };
        let answer = self.run("reading a run", &script::READ_RUN, prefix, write).await?;
        decode_detail(run_id, Reply::of(answer)?)
    }

    /// Events of a run with numbers over `after`.
    pub(super) async fn events(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let prefix = self.partitions.prefix_of(run_id);
        let (mut events, mut after) = (Vec::new(), after);
        while events.len() < limit {
            let left = limit - events.len();
            let write = |command: &mut Cmd| {
                command.arg(Text(run_id)).arg(after.saturating_add(1));
                command.arg(left).arg(PAGE_BYTES_MAX);
            };
            let answer = self.run("reading events", &script::READ_EVENTS, prefix, write).await?;
            let before = events.len();
            for row in Reply::of(answer)? {
                let row = LogRow::read(run_id, Reply::of(row)?)?;
                events.extend(row.stored().filter(|event| event.seq > after));
            }
            if events.len() == before {
                break;
            }
            after = events.last().map_or(after, |event: &StoredEvent| event.seq);
        }
        events.truncate(limit);
        Ok(events)
    }

    /// Events of a feed at positions over `after`.
    pub(super) async fn feed(
        &self,
        feed: u16,
        after: Position,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let prefix = self.partitions.prefix(usize::from(feed));
        let (mut events, mut first) = (Vec::new(), after.minor.saturating_add(1));
        while events.len() < limit {
            let left = limit - events.len();
            let write = |command: &mut Cmd| {
                command.arg(first).arg(left).arg(PAGE_BYTES_MAX);
            };
            let answer = self.run("reading the feed", &script::READ_FEED, prefix, write).await?;
            let mut reply = Reply::of(answer)?;
            let next = reply.number()?;
            while reply.left() > 0 {
                let mut row = reply.array()?;
                let row = LogRow::read(row.number()?, row)?;
                events.extend(row.stored().filter(|event| event.position.minor >= first));
            }
            if next == 0 {
                break;
            }
            first = next;
        }
        events.truncate(limit);
        Ok(events)
    }

    /// Log lines of a run with numbers over `after`.
    pub(super) async fn lines(
        &self,
        run_id: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LogLine>, StoreError> {
        let (mut lines, mut after) = (Vec::new(), after);
        while lines.len() < limit {
            let count = (limit - lines.len()).min(LINES_MAX);
            let mut command = redis::cmd("LRANGE");
            let last = after.saturating_add(super::count(count)) - 1;
            // Lines are kept without gaps, from the first.
            command.arg(self.key(run_id, "lines")).arg(after).arg(last);
            let mut reply = Reply::of(self.call("reading log lines", &command).await?)?;
            let found = reply.left();
            while reply.left() > 0 {
                lines.push(decode_line(run_id, &reply.word()?)?);
            }
            if found < count {
                break;
            }
            after += super::count(found);
        }
        Ok(lines)
    }

    /// The jobs with all of their payloads.
    pub(super) async fn satisfy(&self, jobs: Vec<Needy>) -> Result<Vec<Claimed>, StoreError> {
        let satisfied = stream::iter(jobs).map(|job| self.satisfy_one(job));
        let satisfied: Vec<Option<Claimed>> = satisfied.buffered(NEEDY_MAX).try_collect().await?;
        Ok(satisfied.into_iter().flatten().collect())
    }

    async fn satisfy_one(&self, mut job: Needy) -> Result<Option<Claimed>, StoreError> {
        while let Some(seq) = job.lacks() {
            let run_id = job.run_id();
            let prefix = self.partitions.prefix_of(run_id);
            let write = |command: &mut Cmd| {
                command.arg(Text(run_id)).arg(seq).arg(1).arg(1);
            };
            let doing = "reading the inputs of jobs";
            let mut rows = Reply::of(self.run(doing, &script::READ_EVENTS, prefix, write).await?)?;
            if rows.left() == 0 {
                break;
            }
            let mut row = rows.array()?;
            let (last, _at) = (row.number()?, row.word()?);
            job.take_stored(last, &row.word()?)?;
            if job.lacks() == Some(seq) {
                return Err(fault::unreadable(format_args!(
                    "no event {seq} of a run that needs it"
                )));
            }
        }
        Ok(job.satisfied())
    }

    /// A key of a run.
    pub(super) fn key(&self, run_id: RunId, what: &str) -> String {
        let mut buffer = Uuid::encode_buffer();
        format!("{}{what}:{}", self.partitions.prefix_of(run_id), encode_run(run_id, &mut buffer))
    }
}

/// What is kept of a log line but for its number and its time.
pub(super) fn encode_line(line: &NewLogLine) -> String {
    format!("{};{};{};{}", line.attempt, line.level.as_str(), line.step, line.text)
}

/// A line as it is kept: `NUMBER;TIME;ATTEMPT;LEVEL;STEP;TEXT`. No name of a step has a `;`.
fn decode_line(run_id: RunId, text: &str) -> Result<LogLine, StoreError> {
    let mut parts = text.splitn(6, ';');
    let mut part = || parts.next().ok_or_else(|| fault::unreadable("half a log line"));
    let (number, at) = (parse(part()?)?, Timestamp(parse(part()?)?));
    let (attempt, level, step) = (parse(part()?)?, part()?, part()?.into());
    let level = LogLevel::parse(level)
        .ok_or_else(|| fault::unreadable(format_args!("a log line of the level `{level}`")))?;
    let line = NewLogLine { run_id, step, attempt, level, text: part()?.to_owned() };
    Ok(LogLine { number, at, line })
}
