//! Listing and counting runs over the partitions.

use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use futures_util::future::try_join_all;
use redis::Cmd;

use super::RedisStore;
use super::commit::{Text, flow_index, tag_index};
use super::rows::decode_row;
use super::script::{self, Reply};
use crate::{RunCursor, RunQuery, RunRow, StoreError};

/// Runs that one call of the script may count.
const COUNT_MAX: usize = 1_000_000;

/// What a partition is asked for.
struct Question<'a> {
    query: &'a RunQuery,
    indexes: Vec<String>,
    /// Between commas, where the indexes do not say it.
    statuses: String,
}

impl<'a> Question<'a> {
    fn new(query: &'a RunQuery) -> Self {
        if let ([RunStatus::Held], Some(flow), true) =
            (query.statuses.as_slice(), &query.flow, query.tags.is_empty())
        {
            let indexes = vec![format!("held:{flow}")];
            return Self { query, indexes, statuses: String::new() };
        }
        let mut indexes: Vec<String> = query.flow.iter().map(|flow| flow_index(flow)).collect();
        indexes.extend(query.tags.iter().map(|(name, value)| tag_index(name, value)));
        let is_wanted = |status| query.statuses.contains(&status);
        let mut statuses = String::new();
        if !RunStatus::ALL.into_iter().all(is_wanted) && !query.statuses.is_empty() {
            if let Some(index) = status_index(&query.statuses) {
                indexes.push(index.to_owned());
            } else {
                if query.statuses.iter().all(|status| RunStatus::OPEN.contains(status)) {
                    indexes.push("open".to_owned());
                }
                let names: Vec<&str> = query.statuses.iter().map(|s| s.as_str()).collect();
                statuses = format!(",{},", names.join(","));
            }
        }
        if indexes.is_empty() {
            indexes.push("runs".to_owned());
        }
        Self { query, indexes, statuses }
    }

    fn write(&self, command: &mut Cmd, what: &str, limit: usize, after: Option<&RunCursor>) {
        command.arg(what).arg(limit);
        command.arg(self.query.since.map(|at| at.0.to_string()).unwrap_or_default());
        command.arg(self.query.until.map(|at| at.0.to_string()).unwrap_or_default());
        match after {
            Some(after) => command.arg(after.started_at.0).arg(Text(after.run_id)),
            None => command.arg("").arg(""),
        };
        command.arg(&self.statuses).arg(self.indexes.len());
        for index in &self.indexes {
            command.arg(index);
        }
    }
}

/// The index that holds just the runs with these statuses.
fn status_index(statuses: &[RunStatus]) -> Option<&'static str> {
    let is_wanted = |status| statuses.contains(&status);
    match RunStatus::ALL.map(is_wanted) {
        [true, true, true, false, false, false] => Some("open"),
        [false, false, false, false, true, false] => Some("failed"),
        [false, false, false, false, false, true] => Some("cancelled"),
        _ => None,
    }
}

impl RedisStore {
    /// Runs that match, the latest started first.
    pub(super) async fn list(&self, query: &RunQuery) -> Result<Vec<RunRow>, StoreError> {
        let limit = query.limit.min(PAGE_MAX);
        let question = Question::new(query);
        let pages = self.partitions.all().map(|(_, prefix)| self.page(prefix, &question, limit));
        let mut rows: Vec<RunRow> = try_join_all(pages).await?.into_iter().flatten().collect();
        rows.sort_by(|one, other| {
            (other.started_at, other.run.run_id).cmp(&(one.started_at, one.run.run_id))
        });
        rows.truncate(limit);
        Ok(rows)
    }

    async fn page(
        &self,
        prefix: &str,
        question: &Question<'_>,
        limit: usize,
    ) -> Result<Vec<RunRow>, StoreError> {
        let mut rows = Vec::new();
        let mut after = question.query.after;
        while rows.len() < limit {
            let left = limit - rows.len();
            let write = |command: &mut Cmd| question.write(command, "list", left, after.as_ref());
            let answer = self.run("listing runs", &script::LIST_RUNS, prefix, write).await?;
            let mut reply = Reply::of(answer)?;
            after = read_cursor(&mut reply)?;
            let _matches: u64 = reply.number()?;
            while reply.left() > 0 {
                rows.extend(decode_row(reply.array()?)?);
            }
            if after.is_none() {
                break;
            }
        }
        Ok(rows)
    }

    /// How many runs match.
    pub(super) async fn count(&self, query: &RunQuery) -> Result<u64, StoreError> {
        let question = Question::new(query);
        let counts = self.partitions.all().map(|(_, prefix)| async {
            match Terms::of(&question) {
                Some(terms) => self.count_by_size(prefix, query, &terms).await,
                None => self.count_one_by_one(prefix, &question).await,
            }
        });
        Ok(try_join_all(counts).await?.into_iter().sum())
    }

    async fn count_by_size(
        &self,
        prefix: &str,
        query: &RunQuery,
        terms: &Terms,
    ) -> Result<u64, StoreError> {
        let write = |command: &mut Cmd| {
            let time = |at: Option<Timestamp>, open: &str, any: &str| {
                at.map_or_else(|| any.to_owned(), |at| format!("{open}{}", at.0))
            };
            command.arg(time(query.since, "", "-inf")).arg(time(query.until, "(", "+inf"));
            command.arg(terms.plus.len() + terms.minus.len());
            for index in terms.plus.iter().chain(&terms.minus) {
                command.arg(index);
            }
        };
        let answer = self.run("counting runs", &script::COUNT_RUNS, prefix, write).await?;
        let mut reply = Reply::of(answer)?;
        let mut sum = |count: usize| {
            (0..count).try_fold(0_u64, |sum, _| Ok::<_, StoreError>(sum + reply.number::<u64>()?))
        };
        let plus = sum(terms.plus.len())?;
        Ok(plus.saturating_sub(sum(terms.minus.len())?))
    }

    async fn count_one_by_one(
        &self,
        prefix: &str,
        question: &Question<'_>,
    ) -> Result<u64, StoreError> {
        let mut count = 0;
        let mut after = None;
        loop {
            let write =
                |command: &mut Cmd| question.write(command, "count", COUNT_MAX, after.as_ref());
            let answer = self.run("counting runs", &script::LIST_RUNS, prefix, write).await?;
            let mut reply = Reply::of(answer)?;
            after = read_cursor(&mut reply)?;
            count += reply.number::<u64>()?;
            if after.is_none() {
                return Ok(count);
            }
        }
    }
}

/// A count as a sum of sizes of indexes.
struct Terms {
    plus: Vec<String>,
    minus: Vec<String>,
}

impl Terms {
    /// None where runs must be looked at one by one.
    fn of(question: &Question<'_>) -> Option<Self> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        if question.statuses.is_empty() {
            let [index] = question.indexes.as_slice() else { return None };
            return Some(Self { plus: vec![index.clone()], minus: Vec::new() });
        }
        if question.indexes != ["runs"] {
            return None;
        }
        let is_wanted = |status| question.query.statuses.contains(&status);
        let [held, running, waiting, completed, failed, cancelled] = RunStatus::ALL.map(is_wanted);
        if running != waiting || running != held {
            return None;
        }
        let parts = [(running, "open"), (failed, "failed"), (cancelled, "cancelled")];
        let of = |wanted: bool| -> Vec<&str> {
            parts.iter().filter(|(is, _)| *is == wanted).map(|(_, name)| *name).collect()
        };
        Some(if completed {
            Self { plus: owned(&["runs"]), minus: owned(&of(false)) }
        } else {
            Self { plus: owned(&of(true)), minus: Vec::new() }
        })
    }
}

fn read_cursor(reply: &mut Reply) -> Result<Option<RunCursor>, StoreError> {
    let (started_at, run_id) = (reply.word()?, reply.word()?);
    if started_at.is_empty() {
        return Ok(None);
    }
    let started_at = Timestamp(script::parse(&started_at)?);
    Ok(Some(RunCursor { started_at, run_id: script::parse(&run_id)? }))
}
