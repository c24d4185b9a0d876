//! Dead letters: failed runs that nobody has dealt with.
//!
//! What became of one is a record of kind `dead`, with the run's id as its key: somebody tried it
//! again, as another run, or dropped it. A failed run without such a record is a dead letter.
//!
//! The run that tries a dead letter again has an id that is derived from it. So two who retry it at
//! the same time, or one who does so again after a crash, start one run.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::event::ErrorKind;
use flowgate_core::ids::RunId;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::payload::Payload;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_core::view::gist;
use flowgate_store::control::{Expect, RecordWrite, RecordsOutcome};
use flowgate_store::{RunCursor, RunQuery, RunRow, Store, StoreError};
use serde::{Deserialize, Serialize};

use crate::deploys::is_probe;

/// The kind of the records.
const KIND: &str = "dead";
/// How much longer than its run a fate is kept.
const KEPT_LONGER: Duration = Duration::from_hours(24);

/// What became of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fate", rename_all = "snake_case")]
pub enum Fate {
    /// It was tried again.
    Retried {
        /// As this run.
        run_id: RunId,
    },
    /// Nobody needs it any more.
    Dropped {},
}

/// Which dead letters.
#[derive(Clone, Debug, Default)]
pub struct DeadFilter {
    /// Of this flow.
    pub flow: Option<Arc<str>>,
    /// Whose failed step is this one.
    pub step: Option<Arc<str>>,
    /// Whose kind of failure or message, without its numbers and ids, holds this, whatever its case.
    pub reason: Option<String>,
    /// Started since.
    pub since: Option<Timestamp>,
    /// With all of these tags.
    pub tags: Vec<(Arc<str>, Arc<str>)>,
}

/// A failed run that nobody has dealt with.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// The run.
    pub row: RunRow,
    /// Why it failed.
    pub reason: DeadReason,
}

/// Why a run failed, in what it has in common with others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct DeadReason {
    /// The flow.
    pub flow: Arc<str>,
    /// The step that failed.
    pub step: Arc<str>,
    /// The kind of failure.
    pub kind: &'static str,
    /// Its message, without numbers and ids.
    pub message: String,
}

fn reason_of(row: &RunRow) -> DeadReason {
    let flow = Arc::clone(&row.run.flow);
    match &row.run.failure {
        Some(failure) => DeadReason {
            flow,
            step: Arc::clone(&failure.step),
            kind: kind_name(failure.error.kind),
            message: gist(&failure.error.message),
        },
        None => DeadReason { flow, step: "".into(), kind: "unknown", message: String::new() },
    }
}

fn kind_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Failed => "failed",
        ErrorKind::Final => "final",
        ErrorKind::TimedOut => "timed_out",
        ErrorKind::Invalid => "invalid",
        ErrorKind::Panicked => "panicked",
        ErrorKind::Lost => "lost",
        ErrorKind::WaitTimedOut => "wait_timed_out",
    }
}

impl DeadFilter {
    fn takes(&self, reason: &DeadReason) -> bool {
        let is_step = self.step.as_ref().is_none_or(|step| reason.step == *step);
        let is_reason = self.reason.as_ref().is_none_or(|wanted| {
            let (wanted, message) = (gist(wanted).to_lowercase(), reason.message.to_lowercase());
            reason.kind == wanted || message.contains(&wanted)
        });
        is_step && is_reason
    }
}

/// One page of failed runs that match, the latest first, without those that have a fate and those
/// with which a deployment tried a revision; where the next page begins.
pub async fn dead_letters(
    store: &dyn Store,
    filter: &DeadFilter,
    after: Option<RunCursor>,
) -> Result<(Vec<DeadLetter>, Option<RunCursor>), StoreError> {
    let query = RunQuery {
        flow: filter.flow.clone(),
        statuses: vec![RunStatus::Failed],
        since: filter.since,
        tags: filter.tags.clone(),
        after,
        limit: PAGE_MAX,
        ..RunQuery::default()
    };
    let rows = store.list_runs(&query).await?;
    let next = rows.last().filter(|_| rows.len() == PAGE_MAX);
    let next = next.map(|row| RunCursor { started_at: row.started_at, run_id: row.run.run_id });
    let keys: Vec<Arc<str>> = rows.iter().map(|row| row.run.run_id.to_string().into()).collect();
    let fates = store.read_records(KIND, &keys).await?;
    let letters = (rows.into_iter().zip(fates))
        .filter(|(row, fate)| fate.is_none() && !is_probe(&row.run))
        .map(|(row, _)| DeadLetter { reason: reason_of(&row), row })
        .filter(|letter| filter.takes(&letter.reason));
    Ok((letters.collect(), next))
}

/// What became of a failed run; none if nobody has dealt with it.
pub async fn fate_of(
    store: &dyn Store,
    run_id: RunId,
) -> Result<Option<(Fate, Timestamp)>, StoreError> {
    let key: Arc<str> = run_id.to_string().into();
    let Some(record) = store.read_records(KIND, &[key]).await?.into_iter().next().flatten() else {
        return Ok(None);
    };
    let fate = record.value.read().map_err(|error| StoreError::Corrupt {
        message: format!("what became of run {run_id} cannot be read: {error}"),
        source: None,
    })?;
    Ok(Some((fate, record.written_at)))
}

/// Drops a dead letter; false if somebody has dealt with it. Its run stays as it is.
///
/// `kept` is how long runs are kept: what became of this one is kept a little longer.
pub async fn drop_dead_letter(
    store: &dyn Store,
    run_id: RunId,
    kept: Duration,
) -> Result<bool, StoreError> {
    note(store, run_id, Fate::Dropped {}, kept).await
}

pub(crate) async fn note(
    store: &dyn Store,
    run_id: RunId,
    fate: Fate,
    kept: Duration,
) -> Result<bool, StoreError> {
    let key = run_id.to_string().into();
    let value = Some(Payload::of(&fate).expect("a fate is small"));
    let keep = Some(kept.saturating_add(KEPT_LONGER));
    let write = RecordWrite { kind: KIND, key, expect: Expect::Absent, value, keep };
    match store.write_records(vec![write], None).await? {
        RecordsOutcome::Written(_) => Ok(true),
        RecordsOutcome::Changed(_) => Ok(false),
        RecordsOutcome::TermLost | RecordsOutcome::TooLarge(_) => {
            unreachable!("a fate is small and under no term")
        }
    }
}

/// The run that tries a dead letter again.
pub(crate) fn retry_id(run_id: RunId) -> RunId {
    // No flow has a name with a space.
    RunId::derived("retry of", &run_id.to_string())
}
