//! One open run at a time, of a flow or for each value of a key.
//!
//! The run that counts is named by a record of kind `singleton`, with the key `FLOW/KEY`. A start
//! finds it open and gives that run, or writes a new run id in its place and starts exactly that
//! run. Who finds a record whose run is not there yet starts that same run: one start of the two
//! wins, and the other gives the run that won.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::flow::{Flow, Singleton};
use flowgate_core::ids::RunId;
use flowgate_core::limits;
use flowgate_core::payload::Payload;
use flowgate_store::control::{Expect, Record, RecordQuery, RecordWrite, RecordsOutcome};
use flowgate_store::{Store, StoreError};
use serde::{Deserialize, Serialize};

use crate::error::EngineError;

/// The kind of the records.
const KIND: &str = "singleton";
/// Records that are looked at in one go for runs that have ended.
const PAGE: usize = 100;
/// How long a record may name a run that is not there: whoever wrote it is about to start it.
const UNSTARTED_KEPT: Duration = Duration::from_hours(24);

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Claim {
    run_id: RunId,
}

/// What a start may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// This run is open.
    Open(RunId),
    /// Start this run.
    Start(RunId),
}

/// The key of the run that a start of `flow` would share; none if the flow is no singleton.
pub(crate) fn key(
    flow: &Flow,
    asked: Option<&Arc<str>>,
    input: &Payload,
) -> Result<Option<Arc<str>>, EngineError> {
    let value: String = match (asked, &flow.singleton) {
        (None, None) => return Ok(None),
        (Some(asked), _) => {
            if asked.is_empty() || asked.len() > limits::KEY_BYTES_MAX || asked.contains('\0') {
                let max = limits::KEY_BYTES_MAX;
                return Err(EngineError::Invalid(format!(
                    "a singleton key has 1 to {max} bytes and no NUL"
                )));
            }
            asked.to_string()
        }
        (None, Some(Singleton::Flow)) => String::new(),
        (None, Some(Singleton::Value(path))) => path.text_in(&input.value()),
    };
    Ok(Some(format!("{}/{value}", flow.name).into()))
}

/// Whether the run of `key` is open, or `candidate` or an earlier one is to be started.
pub(crate) async fn turn(
    store: &dyn Store,
    key: &Arc<str>,
    candidate: RunId,
) -> Result<Turn, StoreError> {
    loop {
        let found = store.read_records(KIND, &[Arc::clone(key)]).await?.into_iter().next();
        let expect = match found.flatten() {
            None => Expect::Absent,
            Some(record) => {
                let run_id = read(&record)?;
                match store.read_run(run_id).await? {
                    None => return Ok(Turn::Start(run_id)),
                    Some(detail) if !detail.row.run.status.is_terminal() => {
                        return Ok(Turn::Open(run_id));
                    }
                    Some(_) => Expect::Version(record.version),
                }
            }
        };
        let value = Some(Payload::of(&Claim { run_id: candidate }).expect("a claim is small"));
        let write = RecordWrite { kind: KIND, key: Arc::clone(key), expect, value, keep: None };
        match store.write_records(vec![write], None).await? {
            RecordsOutcome::Written(_) => return Ok(Turn::Start(candidate)),
            RecordsOutcome::Changed(_) => {}
            RecordsOutcome::TermLost | RecordsOutcome::TooLarge(_) => {
                unreachable!("a claim is small and under no term")
            }
        }
    }
}

fn read(record: &Record) -> Result<RunId, StoreError> {
    let claim: Claim = record.value.read().map_err(|error| StoreError::Corrupt {
        message: format!("the singleton `{}` cannot be read: {error}", record.key),
        source: None,
    })?;
    Ok(claim.run_id)
}

/// Removes records of runs that have ended, a page after `after`; where the next page begins.
pub(crate) async fn tidy(
    store: &dyn Store,
    after: Option<Arc<str>>,
) -> Result<Option<Arc<str>>, StoreError> {
    let query =
        RecordQuery { kind: KIND, prefix: "".into(), after, is_descending: false, limit: PAGE };
    let page = store.list_records(&query).await?;
    let now = store.now().await?;
    let mut writes = Vec::new();
    for record in &page {
        let is_over = match store.read_run(read(record)?).await? {
            Some(detail) => detail.row.run.status.is_terminal(),
            None => now.since(record.written_at) > UNSTARTED_KEPT,
        };
        if is_over {
            let (key, expect) = (Arc::clone(&record.key), Expect::Version(record.version));
            writes.push(RecordWrite { kind: KIND, key, expect, value: None, keep: None });
        }
    }
    for write in writes {
        // A start that was quicker has written its own.
        drop(store.write_records(vec![write], None).await?);
    }
    Ok((page.len() == PAGE).then(|| page.last().map(|record| Arc::clone(&record.key))).flatten())
}
