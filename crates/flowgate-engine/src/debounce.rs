//! Starts that are debounced: they wait for more of their kind, and become one run with them.
//!
//! A burst is three records, which change together or not at all:
//!
//! | kind | key | |
//! |---|---|---|
//! | `debounce` | `FLOW/KEY` | the burst that the next start of the key joins |
//! | `debounce_input` | the run | the input of the last start |
//! | `debounce_due` | time and run | when whoever leads looks at the burst |
//!
//! - A start writes the first two with the version of the burst that it has read, and is answered
//!   when they are written. Whatever else comes to the burst in between makes it start over.
//! - Whoever leads removes the first when the burst is due, which seals it: no start changes it any
//!   more. Then it starts the run by the id that the burst has had from the beginning, so it does
//!   not matter who does, and how often; see [`crate::debouncer`].
//! - Only the first start of a burst writes its entry by time. Later ones make it due later, and
//!   whoever leads finds that out when it looks.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::debounce::{Burst, DueBurst, LastStart, Window, due_key, due_of_key};
use flowgate_core::decide::Start;
use flowgate_core::flow::{Flow, Span};
use flowgate_core::ids::RunId;
use flowgate_core::limits;
use flowgate_core::payload::Payload;
use flowgate_core::time::Timestamp;
use flowgate_store::control::{Expect, Record, RecordQuery, RecordWrite, RecordsOutcome};
use flowgate_store::{Store, StoreError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, MutexGuard};

use crate::backoff::Backoff;
use crate::error::EngineError;
use crate::instance::Instance;
use crate::supervisor::Started;

/// The kind of the records of open bursts.
pub(crate) const BURST: &str = "debounce";
/// The kind of the records of their last inputs.
pub(crate) const INPUT: &str = "debounce_input";
/// The kind of the list of bursts by time.
pub(crate) const DUE: &str = "debounce_due";
/// The topic by which the leader is told of a new burst.
pub(crate) const TOPIC: &str = "debounce";
/// How often a start is written again because others were faster.
const TRIES_MAX: u32 = 50;
/// Keys whose starts take turns share this many turns.
const TURNS: usize = 64;
/// Pages of the list by time that are looked through for a run.
const FIND_PAGES_MAX: usize = 20;

/// Whether a start waits for more of its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StartDebounce {
    /// As its flow says.
    #[default]
    OfFlow,
    /// It does not, whatever its flow says.
    Never,
    /// It does, whatever its flow says.
    By {
        /// Starts of the flow with the same key count together.
        key: Arc<str>,
        /// How long there must be no start before the run begins.
        window: Duration,
        /// How long after the first start the run begins at the latest.
        max: Option<Duration>,
    },
}

/// A run that is to begin when no more starts come.
#[derive(Clone, Debug, PartialEq)]
pub struct Debounced {
    /// Its id.
    pub run_id: RunId,
    /// Its flow.
    pub flow: Arc<str>,
    /// When it begins, unless more starts come.
    pub due_at: Timestamp,
    /// How many starts came.
    pub starts: u64,
    /// Why it could not be begun the last time; it is tried again.
    pub error: Option<String>,
}

/// Starts of one key take turns in an instance, so that they need not contend in the store.
#[derive(Debug)]
pub(crate) struct Turns([Mutex<()>; TURNS]);

impl Default for Turns {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Turns {
    async fn take(&self, key: &str) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let turns = u64::try_from(TURNS).expect("they are few");
        let at = usize::try_from(hasher.finish() % turns).expect("they are few");
        self.0[at].lock().await
    }
}

/// The key and the window of the burst that a start of `flow` joins; none if it is not debounced.
pub(crate) fn key(
    flow: &Flow,
    asked: &StartDebounce,
    input: &Payload,
) -> Result<Option<(Arc<str>, Window)>, EngineError> {
    let (value, window) = match (asked, &flow.debounce) {
        (StartDebounce::Never, _) | (StartDebounce::OfFlow, None) => return Ok(None),
        (StartDebounce::OfFlow, Some(debounce)) => {
            let path = debounce.path.as_ref();
            let value = path.map_or_else(String::new, |path| path.text_in(&input.value()));
            (value, debounce.window)
        }
        (StartDebounce::By { key, window, max }, _) => {
            if key.is_empty() || key.len() > limits::KEY_BYTES_MAX || key.contains('\0') {
                let max = limits::KEY_BYTES_MAX;
                let message = format!("a debounce key has 1 to {max} bytes and no NUL");
                return Err(EngineError::Invalid(message));
            }
            let window = Window { quiet: *window, max: *max };
            check_window(window)?;
            (key.to_string(), window)
        }
    };
    Ok(Some((format!("{}/{value}", flow.name).into(), window)))
}

fn check_window(Window { quiet, max }: Window) -> Result<(), EngineError> {
    let longest = limits::DURATION_MAX;
    let is_wrong = |span: Duration| span < Duration::from_millis(1) || span > longest;
    if is_wrong(quiet) || max.is_some_and(is_wrong) {
        return Err(EngineError::Invalid(format!(
            "the window of a debounced start, and its max, are from 1ms to {}",
            Span(longest)
        )));
    }
    if let Some(max) = max.filter(|max| *max < quiet) {
        return Err(EngineError::Invalid(format!(
            "the max of a debounced start, {}, is shorter than its window of {}",
            Span(max),
            Span(quiet)
        )));
    }
    Ok(())
}

/// Has a start join the burst of its key, or begin one.
pub(crate) async fn put_off(
    instance: &Instance,
    flow: &Flow,
    start: Start,
    (key, window): (&Arc<str>, Window),
) -> Result<Started, EngineError> {
    let store = &*instance.store;
    let Start { run_id, input, tags, priority, key: _, due: _, gate: _, instance: _, pool: _ } =
        start;
    let last = LastStart { revision: flow.revision.clone(), tags, priority };
    let _turn = instance.bursts.take(key).await;
    let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(100));
    while backoff.tries() < TRIES_MAX {
        let found = store.read_records(BURST, &[Arc::clone(key)]).await?;
        let time = (window, store.now().await?);
        let (expect, burst) = match found.into_iter().flatten().next() {
            None => {
                (Expect::Absent, Burst::begin(run_id, Arc::clone(&flow.name), last.clone(), time))
            }
            Some(record) => {
                let burst: Burst = read(&record)?;
                (Expect::Version(record.version), burst.join(last.clone(), time))
            }
        };
        let existing = expect != Expect::Absent;
        let mut writes = vec![
            write(BURST, Arc::clone(key), expect, Some(&burst)),
            RecordWrite { value: Some(input.clone()), ..input_write(burst.run_id) },
        ];
        if !existing {
            let (at, due) =
                (due_key(burst.due_at, run_id), DueBurst::Open { key: Arc::clone(key) });
            writes.push(write(DUE, at, Expect::Absent, Some(&due)));
        }
        match store.write_records(writes, None).await? {
            RecordsOutcome::Written(_) => {
                if !existing && let Err(error) = store.tell(TOPIC).await {
                    tracing::debug!(%error, "the leader was not told; it looks by itself");
                }
                let debounced_until = Some(burst.due_at);
                return Ok(Started { run_id: burst.run_id, existing, debounced_until, run: None });
            }
            RecordsOutcome::Changed(_) => backoff.wait().await,
            RecordsOutcome::TooLarge(_) | RecordsOutcome::TermLost => {
                unreachable!("a burst and an input are within the limits and under no term")
            }
        }
    }
    Err(EngineError::Contended)
}

/// The runs that are to begin and whose ids begin with `prefix`, at most two.
pub async fn find(store: &dyn Store, prefix: &str) -> Result<Vec<Debounced>, StoreError> {
    let mut found = Vec::new();
    let mut after = None;
    for _ in 0..FIND_PAGES_MAX {
        let page = list_due(store, after).await?;
        let is_last = page.len() < limits::PAGE_MAX;
        after = page.last().map(|record| Arc::clone(&record.key));
        for record in page {
            let Some((_, run_id)) = due_of_key(&record.key) else { continue };
            if run_id.to_string().starts_with(prefix) {
                found.extend(of_due(store, run_id, read(&record)?).await?);
            }
        }
        if is_last || found.len() > 1 {
            break;
        }
    }
    found.truncate(2);
    Ok(found)
}

async fn of_due(
    store: &dyn Store,
    run_id: RunId,
    due: DueBurst,
) -> Result<Option<Debounced>, StoreError> {
    let (burst, error) = match due {
        DueBurst::Sealed { burst, error } => (burst, error),
        DueBurst::Open { key } => {
            let open = store.read_records(BURST, &[key]).await?.into_iter().flatten().next();
            match open.map(|record| read::<Burst>(&record)).transpose()? {
                Some(burst) if burst.run_id == run_id => (burst, None),
                // It was sealed in between.
                Some(_) | None => return Ok(None),
            }
        }
    };
    let Burst { run_id, flow, due_at, starts, .. } = burst;
    Ok(Some(Debounced { run_id, flow, due_at, starts, error }))
}

/// The list of bursts by time: what comes after `after`, a page of it.
pub(crate) async fn list_due(
    store: &dyn Store,
    after: Option<Arc<str>>,
) -> Result<Vec<Record>, StoreError> {
    let (prefix, limit) = ("".into(), limits::PAGE_MAX);
    let query = RecordQuery { kind: DUE, prefix, after, is_descending: false, limit };
    store.list_records(&query).await
}

/// Removes the input of a burst, unless it is given a value.
pub(crate) fn input_write(run_id: RunId) -> RecordWrite {
    write(INPUT, run_id.to_string().into(), Expect::Anything, None::<&()>)
}

pub(crate) fn write(
    kind: &'static str,
    key: Arc<str>,
    expect: Expect,
    value: Option<&impl Serialize>,
) -> RecordWrite {
    let value = value.map(|value| Payload::of(value).expect("a burst without its input is small"));
    RecordWrite { kind, key, expect, value, keep: None }
}

pub(crate) fn read<T: DeserializeOwned>(record: &Record) -> Result<T, StoreError> {
    record.value.read().map_err(|error| StoreError::Corrupt {
        message: format!("the debounced start `{}` cannot be read", record.key),
        source: Some(error.into()),
    })
}
