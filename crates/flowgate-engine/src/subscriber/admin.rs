//! Looking at subscribers and steering them, from any process that reaches the store.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::ids::{InstanceId, Position, RunId};
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::time::Timestamp;
use flowgate_store::control::{
    Expect, RECORD_WRITES_MAX, Record, RecordQuery, RecordWrite, RecordsOutcome, Term,
};
use flowgate_store::{Store, StoreError};

use super::handle::{Lag, checkpoints, feed_ends, lag};
use super::options::{InstanceMode, OnFailure};
use super::share::partition_of;
use super::stored::{
    self, CHECKPOINT, CheckpointRecord, DEAD, DeadRecord, MEMBER, MemberRecord, RETRY, SUBSCRIBER,
    SubscriberRecord,
};
use crate::error::EngineError;

/// All states of a subscriber's partitions together must fit into one write.
const TOO_LARGE: &str = "the states of its partitions are too large to be written at once";
/// How often a write is tried that others come before.
const TRIES_MAX: u32 = 20;

/// What can be asked about subscribers, and of them.
#[derive(Clone, Copy, Debug)]
pub struct SubscriberAdmin<'a> {
    store: &'a dyn Store,
}

/// A subscriber.
#[derive(Clone, Debug)]
pub struct SubscriberInfo {
    /// Its id.
    pub id: Arc<str>,
    /// What it is.
    pub kind: Arc<str>,
    /// How instances share it.
    pub mode: InstanceMode,
    /// What becomes of an event that failed for good.
    pub on_failure: OnFailure,
    /// Its partitions, in order.
    pub partitions: Vec<PartitionInfo>,
    /// Who wants to be active.
    pub members: Vec<MemberInfo>,
    /// How far it is behind.
    pub lag: Lag,
    /// Events that were put aside; those that wait to be tried again among them.
    pub dead: u64,
}

/// A partition of a subscriber.
#[derive(Clone, Debug)]
pub struct PartitionInfo {
    /// Its number.
    pub number: u16,
    /// How far it is in each feed; none if it has not begun.
    pub positions: Option<Vec<Position>>,
    /// Events that were handled or put aside.
    pub handled: u64,
    /// When its checkpoint was written.
    pub written_at: Option<Timestamp>,
    /// The term that somebody holds.
    pub term: Option<Term>,
    /// Why it stands still.
    pub failed: Option<Failed>,
}

/// Why a partition stands still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The event: its run and its number there; none if it could not begin or read.
    pub event: Option<(RunId, u64)>,
    /// What went wrong.
    pub error: Arc<str>,
    /// How often it was tried.
    pub attempts: u32,
    /// Where.
    pub instance: InstanceId,
}

/// An instance that wants to be active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// The instance.
    pub instance: InstanceId,
    /// How many partitions it has.
    pub partitions: usize,
}

/// An event that was put aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its run.
    pub run_id: RunId,
    /// Its number in the run.
    pub seq: u64,
    /// Its type.
    pub r#type: Arc<str>,
    /// What went wrong last.
    pub error: Arc<str>,
    /// How often it was tried.
    pub attempts: u32,
    /// When it was put aside.
    pub died_at: Timestamp,
    /// Whether it waits to be tried again.
    pub is_asked: bool,
}

/// Where a subscriber is to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResetTo {
    /// With the first event that is kept.
    Start,
    /// With what is committed from now on.
    End,
    /// After these positions, one for each feed.
    Positions(Vec<Position>),
}

impl<'a> SubscriberAdmin<'a> {
    /// The subscribers of `store`.
    pub fn new(store: &'a dyn Store) -> Self {
        Self { store }
    }

    /// All of them, in the order of their ids.
    pub async fn list(&self) -> Result<Vec<SubscriberInfo>, EngineError> {
        let mut infos = Vec::new();
        for record in all(self.store, SUBSCRIBER, "").await? {
            infos.push(self.info(&record).await?);
        }
        Ok(infos)
    }

    /// One of them.
    pub async fn show(&self, id: &str) -> Result<Option<SubscriberInfo>, EngineError> {
        let found = self.store.read_records(SUBSCRIBER, &[id.into()]).await?;
        match found.into_iter().next().flatten() {
            None => Ok(None),
            Some(record) => Ok(Some(self.info(&record).await?)),
        }
    }

    async fn info(&self, record: &Record) -> Result<SubscriberInfo, StoreError> {
        let store = self.store;
        let id = Arc::clone(&record.key);
        let SubscriberRecord { kind, mode, partitions, on_failure } =
            stored::read(SUBSCRIBER, record)?;
        let now = store.now().await?;
        let mut terms = store.list_terms(&format!("subscriber/{id}/")).await?;
        terms.retain(|term| term.released_at.is_none() && term.expires_at > now);
        let keys: Vec<Arc<str>> =
            (0..partitions).map(|number| stored::checkpoint_key(&id, number)).collect();
        let found = store.read_records(CHECKPOINT, &keys).await?;
        let mut infos = Vec::new();
        for (number, record) in (0..).zip(&found) {
            let term = terms.iter().find(|term| term.term.name == stored::term_name(&id, number));
            infos.push(partition(number, record.as_ref(), term)?);
        }
        let mut members = Vec::new();
        for record in all(store, MEMBER, &format!("{id}/")).await? {
            if record.expires_at.is_none_or(|at| at > now) {
                let member: MemberRecord = stored::read(MEMBER, &record)?;
                let holder = record.key.strip_prefix(&format!("{id}/")).unwrap_or_default();
                let partitions = terms.iter().filter(|term| *term.holder == *holder).count();
                members.push(MemberInfo { instance: member.instance, partitions });
            }
        }
        let dead = all(store, DEAD, &format!("{id}/")).await?.len()
            + all(store, RETRY, &format!("{id}/")).await?.len();
        let lag = lag(store, &least(&infos)).await?;
        let dead = dead as u64;
        Ok(SubscriberInfo { id, kind, mode, on_failure, partitions: infos, members, lag, dead })
    }

    /// The events that a subscriber has put aside, in the order of their runs.
    pub async fn dead(&self, id: &str) -> Result<Vec<DeadLetter>, EngineError> {
        let mut letters = Vec::new();
        for (kind, is_asked) in [(DEAD, false), (RETRY, true)] {
            for record in all(self.store, kind, &format!("{id}/")).await? {
                let dead: DeadRecord = stored::read(kind, &record)?;
                letters.push(DeadLetter {
                    run_id: dead.run,
                    seq: dead.seq,
                    r#type: dead.r#type,
                    error: dead.error,
                    attempts: dead.attempts,
                    died_at: record.written_at,
                    is_asked,
                });
            }
        }
        letters.sort_by_key(|letter| (letter.run_id, letter.seq));
        Ok(letters)
    }

    /// Sets all partitions of a subscriber. Whoever is active begins anew there, without a state;
    /// what it was doing is not written any more.
    ///
    /// A projection can only be set to the start: its state is the fold of all that is before.
    pub async fn reset(&self, id: &str, to: &ResetTo) -> Result<(), EngineError> {
        let subscriber = self.known(id).await?;
        if &*subscriber.kind == "projection" && *to != ResetTo::Start {
            let message =
                "a projection is the fold of all events: it can only be reset to the start";
            return Err(EngineError::Invalid(message.to_owned()));
        }
        let feeds = usize::from(self.store.feeds());
        let positions = match to {
            ResetTo::Start => vec![Position::START; feeds],
            ResetTo::End => feed_ends(self.store).await?,
            ResetTo::Positions(positions) if positions.len() == feeds => positions.clone(),
            ResetTo::Positions(positions) => {
                let count = positions.len();
                let message =
                    format!("there are {count} positions, and the store has {feeds} feeds");
                return Err(EngineError::Invalid(message));
            }
        };
        set(self.store, id, subscriber.partitions, |before| {
            let resets = before.map_or(0, |before| before.resets) + 1;
            let positions = positions.clone();
            let writer = "reset".into();
            let handled = 0;
            Some(CheckpointRecord { positions, handled, resets, writer, state: None, failed: None })
        })
        .await?;
        Ok(self.store.tell(&stored::topic(id)).await?)
    }

    /// Lets a subscriber try what it has put aside once more, or only what is of `run_id`; and lets
    /// one that stands still try on. Returns how many events it will try.
    pub async fn retry_dead(&self, id: &str, run_id: Option<RunId>) -> Result<u64, EngineError> {
        let subscriber = self.known(id).await?;
        let prefix = match run_id {
            Some(run_id) => format!("{id}/{run_id}/"),
            None => format!("{id}/"),
        };
        let mut count = 0;
        for records in all(self.store, DEAD, &prefix).await?.chunks(RECORD_WRITES_MAX / 4) {
            for record in records {
                let dead: DeadRecord = stored::read(DEAD, record)?;
                let partition = partition_of(dead.run, subscriber.partitions);
                let key = stored::retry_key(id, partition, dead.run, dead.seq);
                let expect = Expect::Version(record.version);
                let asked = RecordWrite {
                    kind: RETRY,
                    key,
                    expect: Expect::Anything,
                    value: Some(record.value.clone()),
                    keep: None,
                };
                let removal = stored::removal(DEAD, Arc::clone(&record.key), expect);
                match self.store.write_records(vec![removal, asked], None).await? {
                    RecordsOutcome::Written(_) => count += 1,
                    // Somebody else asked for it.
                    RecordsOutcome::Changed(_)
                    | RecordsOutcome::TermLost
                    | RecordsOutcome::TooLarge(_) => {}
                }
            }
        }
        clear_failures(self.store, id, subscriber.partitions).await?;
        self.store.tell(&stored::topic(id)).await?;
        Ok(count)
    }

    async fn known(&self, id: &str) -> Result<SubscriberRecord, EngineError> {
        let found = self.store.read_records(SUBSCRIBER, &[id.into()]).await?;
        let Some(record) = found.into_iter().next().flatten() else {
            return Err(EngineError::NoSubscriber(id.into()));
        };
        Ok(stored::read(SUBSCRIBER, &record)?)
    }
}

fn partition(
    number: u16,
    record: Option<&Record>,
    term: Option<&Term>,
) -> Result<PartitionInfo, StoreError> {
    let checkpoint: Option<CheckpointRecord> =
        record.map(|record| stored::read(CHECKPOINT, record)).transpose()?;
    let failed = checkpoint.as_ref().and_then(|checkpoint| checkpoint.failed.clone());
    Ok(PartitionInfo {
        number,
        handled: checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.handled),
        positions: checkpoint.map(|checkpoint| checkpoint.positions),
        written_at: record.map(|record| record.written_at),
        term: term.cloned(),
        failed: failed.map(|failed| Failed {
            event: failed.run.zip(failed.seq),
            error: failed.error,
            attempts: failed.attempts,
            instance: failed.instance,
        }),
    })
}

fn least(partitions: &[PartitionInfo]) -> Vec<Position> {
    let all: Option<Vec<&Vec<Position>>> =
        partitions.iter().map(|partition| partition.positions.as_ref()).collect();
    let Some([first, rest @ ..]) = all.as_deref() else { return Vec::new() };
    let mut least = (*first).clone();
    for positions in rest {
        for (least, position) in least.iter_mut().zip(*positions) {
            *least = (*least).min(*position);
        }
    }
    least
}

/// All records of a kind with a prefix, read in pages.
async fn all(
    store: &dyn Store,
    kind: &'static str,
    prefix: &str,
) -> Result<Vec<Record>, StoreError> {
    let mut query = RecordQuery {
        kind,
        prefix: prefix.into(),
        after: None,
        is_descending: false,
        limit: PAGE_MAX,
    };
    let mut records: Vec<Record> = Vec::new();
    loop {
        let page = store.list_records(&query).await?;
        let is_last = page.len() < query.limit;
        query.after = page.last().map(|record| Arc::clone(&record.key));
        records.extend(page);
        if is_last {
            return Ok(records);
        }
    }
}

/// Changes the checkpoints of all partitions; those that `change` makes nothing of stay.
async fn set(
    store: &dyn Store,
    id: &str,
    partitions: u16,
    change: impl Fn(Option<CheckpointRecord>) -> Option<CheckpointRecord>,
) -> Result<(), EngineError> {
    for number in 0..partitions {
        let key = stored::checkpoint_key(id, number);
        let mut tries = 0;
        loop {
            let found = store.read_records(CHECKPOINT, &[Arc::clone(&key)]).await?;
            let found = found.into_iter().next().flatten();
            let expect = found.as_ref().map_or(Expect::Absent, |r| Expect::Version(r.version));
            let before = found.map(|record| stored::read(CHECKPOINT, &record)).transpose()?;
            let Some(after) = change(before) else { break };
            let write = stored::write(CHECKPOINT, Arc::clone(&key), expect, &after)
                .expect("it was a checkpoint before, or is smaller");
            match store.write_records(vec![write], None).await? {
                RecordsOutcome::Written(_) => break,
                RecordsOutcome::Changed(_) | RecordsOutcome::TermLost if tries < TRIES_MAX => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(u64::from(fastrand::u8(1..10)))).await;
                }
                RecordsOutcome::Changed(_) | RecordsOutcome::TermLost => {
                    return Err(EngineError::Contended);
                }
                RecordsOutcome::TooLarge(_) => {
                    return Err(EngineError::Invalid(TOO_LARGE.to_owned()));
                }
            }
        }
    }
    Ok(())
}

/// Lets partitions that stand still go on.
pub(super) async fn clear_failures(
    store: &dyn Store,
    id: &str,
    partitions: u16,
) -> Result<(), EngineError> {
    let found = checkpoints(store, id, partitions).await?;
    let has_failed = |found: &Option<CheckpointRecord>| {
        found.as_ref().is_some_and(|checkpoint| checkpoint.failed.is_some())
    };
    if !found.iter().any(has_failed) {
        return Ok(());
    }
    set(store, id, partitions, |before| {
        let before = before.filter(|before| before.failed.is_some())?;
        Some(CheckpointRecord { failed: None, ..before })
    })
    .await?;
    Ok(store.tell(&stored::topic(id)).await?)
}

/// Removes what is kept of a subscriber that nobody uses.
pub(super) async fn forget(store: &dyn Store, id: &str, partitions: u16) -> Result<(), StoreError> {
    let mut writes = vec![stored::removal(SUBSCRIBER, id.into(), Expect::Anything)];
    for number in 0..partitions {
        let key = stored::checkpoint_key(id, number);
        writes.push(stored::removal(CHECKPOINT, key, Expect::Anything));
    }
    // Without a term and an expectation it is always written.
    store.write_records(writes, None).await.map(drop)
}

/// Puts the checkpoints and states of `beside` in the place of those of `id`, all at once.
pub(super) async fn switch(
    store: &dyn Store,
    beside: &str,
    id: &str,
    partitions: u16,
) -> Result<(), EngineError> {
    let before = checkpoints(store, id, partitions).await?;
    let built = checkpoints(store, beside, partitions).await?;
    let mut writes = vec![stored::removal(SUBSCRIBER, beside.into(), Expect::Anything)];
    for (number, (before, built)) in (0..).zip(before.into_iter().zip(built)) {
        let built = built.ok_or(EngineError::Contended)?;
        // Whoever is active writes over the version that it knows, and learns of the switch.
        let resets = before.map_or(0, |before| before.resets) + 1;
        let switched = CheckpointRecord { resets, ..built };
        let key = stored::checkpoint_key(id, number);
        let write = stored::write(CHECKPOINT, key, Expect::Anything, &switched)
            .expect("it is as large as the one that was built");
        writes.push(write);
        let key = stored::checkpoint_key(beside, number);
        writes.push(stored::removal(CHECKPOINT, key, Expect::Anything));
    }
    match store.write_records(writes, None).await? {
        RecordsOutcome::Written(_) => Ok(store.tell(&stored::topic(id)).await?),
        RecordsOutcome::Changed(_) | RecordsOutcome::TermLost => Err(EngineError::Contended),
        RecordsOutcome::TooLarge(_) => Err(EngineError::Invalid(TOO_LARGE.to_owned())),
    }
}
