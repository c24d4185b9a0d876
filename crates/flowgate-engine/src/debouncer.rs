//! Beginning the runs of bursts that are due, in the term of a leader.
//!
//! ```text
//!   the first of the list by time
//!     -> the burst is due later   its entry moves to then
//!     -> sealed                   the burst goes from its key into its entry, all or nothing
//!     -> started                  by the run id that the burst has had from its first start on
//!     -> gone                     entry and input
//! ```
//!
//! - A leader that dies before the burst is sealed has done nothing: starts go on joining it.
//! - One that dies after it leaves a sealed entry: its successor starts the same run with the same
//!   input, which does nothing where it had been done.
//! - One that lost its term cannot seal and cannot remove anything.
//! - A start whose write comes after the seal finds no burst, and begins the next one.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::commit::Due;
use flowgate_core::debounce::{Burst, DueBurst, due_key, due_of_key};
use flowgate_core::decide::Start;
use flowgate_core::ids::RunId;
use flowgate_core::payload::Payload;
use flowgate_core::time::Timestamp;
use flowgate_store::StoreError;
use flowgate_store::control::{Expect, Record, RecordWrite, RecordsOutcome};
use futures_util::StreamExt;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::clock;
use crate::debounce::{self, BURST, DUE, INPUT, TOPIC, input_write, read, write};
use crate::degradation::Pause;
use crate::error::{EngineError, FlowError};
use crate::instance::Instance;
use crate::leadership::Reign;
use crate::supervisor::WeakEngine;
use crate::text::fit;

/// How long a new burst may go unnoticed if its hint is lost.
const LOOK_MAX: Duration = Duration::from_secs(3);
/// Bursts that are worked on at a time.
const AT_ONCE: usize = 32;
/// When a burst is tried again that could not be started.
const RETRY: Duration = Duration::from_mins(1);
/// Bytes of the error of a burst that could not be started.
const ERROR_BYTES_MAX: usize = 500;

/// Why a round ended early.
enum Trouble {
    /// The term is over.
    Lost,
    /// Something failed that may work later.
    Failed(EngineError),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.into())
    }
}

struct Debouncer {
    instance: Arc<Instance>,
    engine: WeakEngine,
    reign: Arc<Reign>,
}

/// An entry of the list by time.
struct Entry {
    key: Arc<str>,
    version: u64,
    run_id: RunId,
}

/// Begins the runs of bursts that come due, until the term is over.
pub(crate) async fn run(instance: Arc<Instance>, engine: WeakEngine, reign: Arc<Reign>) {
    let debouncer = Debouncer { instance, engine, reign };
    let new_backoff = || Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
    let mut backoff = new_backoff();
    loop {
        match debouncer.round().await {
            Ok(wake_at) => {
                backoff = new_backoff();
                debouncer.wait(wake_at).await;
            }
            Err(Trouble::Lost) => return,
            Err(Trouble::Failed(error)) => {
                if backoff.tries() == 0 {
                    tracing::debug!(%error, "debounced runs could not be begun; trying again");
                }
                backoff.wait().await;
            }
        }
    }
}

impl Debouncer {
    /// Does what is due; when to look again.
    async fn round(&self) -> Result<Instant, Trouble> {
        let began = clock::now();
        let store = &*self.instance.store;
        let page = debounce::list_due(store, None).await?;
        let now = store.now().await?;
        match self.instance.strain.pauses() {
            Pause::Everything => return Ok(began + LOOK_MAX),
            // What is debounced was promised.
            Pause::Nothing | Pause::CatchUp => {}
        }
        let due_at = |record: &Record| due_of_key(&record.key).map(|(at, _)| at);
        let next_at = page.iter().filter_map(due_at).find(|at| *at > now);
        let is_due = |record: &Record| due_at(record).is_some_and(|at| at <= now);
        let due: Vec<Record> = page.into_iter().filter(is_due).collect();
        let is_idle = due.is_empty();
        let mut done = futures_util::stream::iter(due)
            .map(|record| self.attend(record, now))
            .buffer_unordered(AT_ONCE);
        let mut trouble = None;
        while let Some(attended) = done.next().await {
            match attended {
                Ok(()) => {}
                Err(Trouble::Lost) => return Err(Trouble::Lost),
                Err(failed) => trouble = Some(failed),
            }
        }
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        if !is_idle {
            // Entries have moved, or starts were quicker, or there is another page: the list says.
            return Ok(began);
        }
        Ok(began + next_at.map_or(LOOK_MAX, |at| at.since(now).min(LOOK_MAX)))
    }

    /// Waits until a time, or until somebody tells of a burst.
    async fn wait(&self, until: Instant) {
        let wait = until.saturating_duration_since(clock::now());
        if wait.is_zero() {
            return;
        }
        let told = async {
            if self.instance.store.wait_told(TOPIC, wait).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = told => {}
            () = tokio::time::sleep_until(until) => {}
        }
    }

    /// Does what is to be done about one entry.
    async fn attend(&self, record: Record, now: Timestamp) -> Result<(), Trouble> {
        let (_, run_id) = due_of_key(&record.key).expect("only such entries are looked at");
        let due: DueBurst = read(&record)?;
        let entry = Entry { key: record.key, version: record.version, run_id };
        match due {
            DueBurst::Sealed { burst, .. } => self.start(entry, burst, now).await,
            DueBurst::Open { key } => match self.seal(entry, key, now).await? {
                Some((entry, burst)) => self.start(entry, burst, now).await,
                None => Ok(()),
            },
        }
    }

    /// Takes an open burst from its key if it is due; none if there is nothing to start now.
    async fn seal(
        &self,
        entry: Entry,
        key: Arc<str>,
        now: Timestamp,
    ) -> Result<Option<(Entry, Burst)>, Trouble> {
        let found = self.instance.store.read_records(BURST, &[Arc::clone(&key)]).await?;
        let expect = Expect::Version(entry.version);
        let found = found.into_iter().flatten().next();
        let found =
            found.map(|record| Ok::<_, StoreError>((record.version, read::<Burst>(&record)?)));
        let (version, burst) = match found.transpose()? {
            Some((version, burst)) if burst.run_id == entry.run_id => (version, burst),
            Some(_) | None => {
                // Both are written together, so somebody else has written into the store.
                tracing::warn!(run_id = %entry.run_id, %key, "a debounced start is not there");
                let gone = write(DUE, entry.key, expect, None::<&()>);
                self.write(vec![gone, input_write(entry.run_id)]).await?;
                return Ok(None);
            }
        };
        if burst.due_at > now {
            let later = due_key(burst.due_at, burst.run_id);
            self.write(vec![
                write(DUE, entry.key, expect, None::<&()>),
                write(DUE, later, Expect::Absent, Some(&DueBurst::Open { key })),
            ])
            .await?;
            return Ok(None);
        }
        let sealed = DueBurst::Sealed { burst: burst.clone(), error: None };
        let written = self
            .write(vec![
                write(DUE, Arc::clone(&entry.key), expect, Some(&sealed)),
                write(BURST, key, Expect::Version(version), None::<&()>),
            ])
            .await?;
        // If a start was quicker, the burst is due later: it is looked at again.
        Ok(written.map(|version| (Entry { version, ..entry }, burst)))
    }

    /// Starts the run of a sealed burst, and forgets the burst.
    async fn start(&self, entry: Entry, burst: Burst, now: Timestamp) -> Result<(), Trouble> {
        if !self.reign.is_held() {
            return Err(Trouble::Lost);
        }
        let keys = [entry.run_id.to_string().into()];
        let input = self.instance.store.read_records(INPUT, &keys).await?;
        let started = match input.into_iter().flatten().next() {
            Some(record) => self.begin(&burst, record.value).await,
            None => Err(EngineError::Invalid("its input is not in the store".to_owned())),
        };
        let expect = Expect::Version(entry.version);
        let writes = match started {
            // If it is there already, whoever led before has started it.
            Ok(()) | Err(EngineError::KeyConflict { .. }) => {
                vec![write(DUE, entry.key, expect, None::<&()>), input_write(entry.run_id)]
            }
            Err(
                error @ (EngineError::Store(_)
                | EngineError::Contended
                | EngineError::Overloaded { .. }
                | EngineError::Closed
                | EngineError::Flow(FlowError::Store(_))),
            ) => return Err(Trouble::Failed(error)),
            Err(error) => {
                tracing::warn!(run_id = %entry.run_id, %error, "a debounced run was not begun");
                let later = due_key(now.plus(RETRY), entry.run_id);
                let error = Some(fit(&error.to_string(), ERROR_BYTES_MAX).into_owned());
                let sealed = DueBurst::Sealed { burst, error };
                vec![
                    write(DUE, entry.key, expect, None::<&()>),
                    write(DUE, later, Expect::Absent, Some(&sealed)),
                ]
            }
        };
        self.write(writes).await.map(drop)
    }

    async fn begin(&self, burst: &Burst, input: Payload) -> Result<(), EngineError> {
        let engine = self.engine.upgrade().ok_or(EngineError::Closed)?;
        let Instance { flows, store, workers, .. } = &*self.instance;
        let gate = self.instance.gates.stamp(&burst.flow);
        let pinned = (&burst.flow, &burst.last.revision);
        let flow = flows.load(&**store, workers, pinned).await.map_err(EngineError::Flow)?;
        let (run_id, tags, priority) = (burst.run_id, burst.last.tags.clone(), burst.last.priority);
        let (key, due, instance, pool) = (None, Due::Now, None, None);
        let start = Start { run_id, input, key, tags, priority, due, gate, instance, pool };
        engine.begin(flow, start).await.map(drop)
    }

    /// Writes under the term; the version of the first record, unless somebody changed one.
    async fn write(&self, writes: Vec<RecordWrite>) -> Result<Option<u64>, Trouble> {
        if !self.reign.is_held() {
            return Err(Trouble::Lost);
        }
        match self.instance.store.write_records(writes, Some(&self.reign.term)).await? {
            RecordsOutcome::Written(versions) => Ok(versions.first().copied()),
            RecordsOutcome::Changed(_) => Ok(None),
            RecordsOutcome::TermLost => Err(Trouble::Lost),
            RecordsOutcome::TooLarge(_) => unreachable!("bursts are small"),
        }
    }
}
