//! One subscription of this instance: which partitions it has, and who works on them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::ids::is_identifier;
use flowgate_store::control::{
    Expect, RecordQuery, RecordWrite, RecordsOutcome, Term, TermAsk, TermOutcome,
};
use flowgate_store::{HeldSession, SessionLock, StoreError};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::handle::{Shared, SubscriptionHandle, SubscriptionState, checkpoints};
use super::options::{InstanceMode, SubscribeOptions};
use super::partition::{Ended, Partition};
use super::share::share;
use super::stored::{self, CHECKPOINT, MEMBER, MemberRecord, SUBSCRIBER, SubscriberRecord};
use super::terms::HeldTerm;
use super::{Subscriber, admin};
use crate::backoff::{Backoff, jittered};
use crate::clock;
use crate::error::EngineError;
use crate::executor::worker::with_causes;
use crate::instance::Instance;
use crate::supervisor::WeakEngine;

/// How long somebody who stands by goes without looking, before jitter: a name that is free is
/// taken within a second.
const LOOK_MAX: Duration = Duration::from_millis(700);
/// How long the last words of a subscription may take.
const GOODBYE_MAX: Duration = Duration::from_secs(1);
/// Members that are counted.
const MEMBERS_MAX: usize = 1_000;
/// What follows the id of a subscriber that is rebuilt beside the one in use.
pub(super) const REBUILD: &str = "@rebuild";

/// How often a lock is asked for again whose session was just ended, and how long between.
const SESSION_TRIES: u32 = 10;
const SESSION_PAUSE: Duration = Duration::from_millis(30);

/// The lock of a session, where there is one.
type Session = Option<Box<dyn HeldSession>>;

/// Makes a fresh copy of the subscriber for a take-over.
pub(super) type Make = Arc<dyn Fn() -> Box<dyn Subscriber> + Send + Sync>;

/// What a subscription is made of.
pub(crate) struct Given {
    pub(crate) engine: WeakEngine,
    pub(crate) instance: Arc<Instance>,
    make: Make,
}

impl Given {
    pub(crate) fn new<S: Subscriber + Clone>(
        engine: WeakEngine,
        instance: Arc<Instance>,
        subscriber: S,
    ) -> Self {
        let prototype = Mutex::new(subscriber);
        let make: Make = Arc::new(move || Box::new(prototype.lock().clone()));
        Self { engine, instance, make }
    }
}

/// Begins a subscription. When it returns, its state says whether it is active here.
pub(crate) async fn subscribe(
    given: Given,
    id: &str,
    options: SubscribeOptions,
) -> Result<SubscriptionHandle, EngineError> {
    if !is_identifier(id) {
        return Err(EngineError::Invalid(format!("`{id}` cannot name a subscriber")));
    }
    begin(given, id.into(), options).await
}

async fn begin(
    given: Given,
    id: Arc<str>,
    options: SubscribeOptions,
) -> Result<SubscriptionHandle, EngineError> {
    options.validate()?;
    let Given { engine, instance, make } = given;
    let until_closed = instance.stopping.clone();
    let agreed = agree(&instance, &id, &options, (make)().kind());
    until_closed.run_until_cancelled(agreed).await.ok_or(EngineError::Closed)??;
    let shared = Arc::new(Shared {
        id,
        options,
        state: watch::Sender::new(SubscriptionState::Standby),
        progress: watch::Sender::new(0),
        active: Mutex::default(),
        stop: CancellationToken::new(),
        abort: CancellationToken::new(),
        done: CancellationToken::new(),
    });
    let holder = format!("{}/{:016x}", instance.config.instance, fastrand::u64(..)).into();
    let mut manager = Manager {
        shared: Arc::clone(&shared),
        instance: Arc::clone(&instance),
        engine,
        make,
        holder,
        running: BTreeMap::new(),
        standing: BTreeMap::new(),
        tasks: JoinSet::new(),
        member_due: clock::now(),
        members: 1,
        refused: None,
    };
    let first = until_closed.run_until_cancelled(manager.round());
    if let Some(Err(error)) = first.await {
        tracing::warn!(subscriber = %shared.id, %error, "standing by; the store did not answer");
    }
    instance.subscriptions.tasks.spawn(manager.run());
    Ok(SubscriptionHandle { shared, instance })
}

/// Agrees with the other instances on what the subscriber is, and lets it go on where it had failed.
async fn agree(
    instance: &Instance,
    id: &Arc<str>,
    options: &SubscribeOptions,
    kind: &str,
) -> Result<(), EngineError> {
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
    loop {
        match agree_once(instance, id, options, kind).await {
            Err(EngineError::Store(error)) if error.is_transient() => backoff.wait().await,
            Err(EngineError::Contended) => backoff.wait().await,
            agreed => return agreed,
        }
    }
}

async fn agree_once(
    instance: &Instance,
    id: &Arc<str>,
    options: &SubscribeOptions,
    kind: &str,
) -> Result<(), EngineError> {
    let store = &*instance.store;
    let SubscribeOptions { mode, partitions, on_failure, .. } = *options;
    let wanted = SubscriberRecord { kind: kind.into(), mode, partitions, on_failure };
    let found = store.read_records(SUBSCRIBER, &[Arc::clone(id)]).await?.into_iter().next();
    let expect = match found.flatten() {
        None => Expect::Absent,
        Some(record) => {
            let before: SubscriberRecord = stored::read(SUBSCRIBER, &record)?;
            if before.partitions != partitions {
                let count = before.partitions;
                let message = format!(
                    "the subscriber `{id}` has {count} partitions in the store, and was asked for \
                     with {partitions}; ask for {count}, or take another id"
                );
                return Err(EngineError::Invalid(message));
            }
            if before == wanted {
                return admin::clear_failures(store, id, partitions).await;
            }
            Expect::Version(record.version)
        }
    };
    let write = stored::write(SUBSCRIBER, Arc::clone(id), expect, &wanted)
        .expect("the record of a subscriber is small");
    match store.write_records(vec![write], None).await? {
        RecordsOutcome::Written(_) => admin::clear_failures(store, id, partitions).await,
        // Somebody else wrote it.
        RecordsOutcome::Changed(_) | RecordsOutcome::TermLost | RecordsOutcome::TooLarge(_) => {
            Err(EngineError::Contended)
        }
    }
}

/// A partition that is worked on here.
struct Running {
    stop: CancellationToken,
    held: Option<Arc<HeldTerm>>,
}

/// Why a partition is left alone, and how often it had been set then.
struct Standing {
    reason: Arc<str>,
    /// Where only this instance must leave it alone: until it is set anew.
    resets: Option<u64>,
}

struct Manager {
    shared: Arc<Shared>,
    instance: Arc<Instance>,
    engine: WeakEngine,
    make: Make,
    holder: Arc<str>,
    running: BTreeMap<u16, Running>,
    standing: BTreeMap<u16, Standing>,
    tasks: JoinSet<(u16, Ended)>,
    member_due: Instant,
    members: usize,
    /// Why no partition can be taken here at all.
    refused: Option<Arc<str>>,
}

impl Manager {
    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let instance = Arc::clone(&self.instance);
        tokio::select! {
            biased;
            () = instance.giving_up.cancelled() => {}
            () = shared.abort.cancelled() => {}
            () = self.serve() => {}
        }
        self.tasks.shutdown().await;
        for (_, running) in std::mem::take(&mut self.running) {
            if let Some(held) = &running.held {
                self.instance.terms.forget(held);
            }
        }
        shared.active.lock().clear();
        shared.state.send_replace(SubscriptionState::Stopped);
        self.gauge();
        shared.done.cancel();
    }

    async fn serve(&mut self) {
        let topic = stored::topic(&self.shared.id);
        let instance = Arc::clone(&self.instance);
        let shared = Arc::clone(&self.shared);
        loop {
            let pause = jittered(self.pause());
            let waited = async {
                if instance.store.wait_told(&topic, pause).await.is_err() {
                    tokio::time::sleep(pause).await;
                }
            };
            tokio::select! {
                biased;
                () = shared.stop.cancelled() => break,
                () = instance.stopping.cancelled() => break,
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    self.ended(ended).await;
                }
                () = waited => {}
            }
            if let Err(error) = self.round().await {
                let id = &shared.id;
                tracing::debug!(subscriber = %id, %error, "the store did not answer; trying on");
            }
        }
        for running in self.running.values() {
            running.stop.cancel();
        }
        while let Some(ended) = self.tasks.join_next().await {
            self.ended(ended).await;
        }
        self.leave().await;
    }

    fn pause(&self) -> Duration {
        let Shared { options, .. } = &*self.shared;
        if self.running.len() == usize::from(options.partitions) {
            options.lease / 3
        } else {
            LOOK_MAX.min(options.lease / 3)
        }
    }

    /// Looks at what is free, takes its share of it, and gives back what is over it.
    async fn round(&mut self) -> Result<(), StoreError> {
        self.look_at_standing().await?;
        match self.shared.options.mode {
            InstanceMode::SingleInstance => self.take_all(),
            InstanceMode::Coordinated => self.take_share().await?,
        }
        self.tell_state();
        Ok(())
    }

    /// Partitions that stood still may go on.
    async fn look_at_standing(&mut self) -> Result<(), StoreError> {
        if self.standing.is_empty() {
            return Ok(());
        }
        let Shared { id, options, .. } = &*self.shared;
        let found = checkpoints(&*self.instance.store, id, options.partitions).await?;
        self.standing.retain(|number, standing| {
            let checkpoint = found[usize::from(*number)].as_ref();
            match (standing.resets, checkpoint) {
                (_, None) => false,
                (Some(resets), Some(checkpoint)) => checkpoint.resets == resets,
                (None, Some(checkpoint)) => checkpoint.failed.is_some(),
            }
        });
        Ok(())
    }

    fn take_all(&mut self) {
        for number in 0..self.shared.options.partitions {
            if !self.running.contains_key(&number) && !self.standing.contains_key(&number) {
                self.start(number, None, None);
            }
        }
    }

    async fn take_share(&mut self) -> Result<(), StoreError> {
        let instance = Arc::clone(&self.instance);
        let store = &*instance.store;
        let partitions = self.shared.options.partitions;
        self.be_member().await?;
        let share = share(partitions, self.members);
        let surplus = self.running.len().saturating_sub(share);
        for running in self.running.values().rev().take(surplus) {
            running.stop.cancel();
        }
        if self.running.len() + self.standing.len() >= usize::from(partitions) {
            return Ok(());
        }
        let terms = store.list_terms(&format!("subscriber/{}/", self.shared.id)).await?;
        let now = store.now().await?;
        let is_free = |number: &u16| {
            let name = stored::term_name(&self.shared.id, *number);
            let is_held = |term: &Term| term.released_at.is_none() && term.expires_at > now;
            !terms.iter().any(|term| term.term.name == name && is_held(term))
        };
        let mut free: Vec<u16> = (0..partitions)
            .filter(|number| !self.running.contains_key(number))
            .filter(|number| !self.standing.contains_key(number))
            .filter(is_free)
            .collect();
        // Several who look at the same time take different ones.
        fastrand::shuffle(&mut free);
        for number in free {
            if self.running.len() < share {
                self.take(number).await?;
            }
        }
        Ok(())
    }

    /// Takes a partition, unless it stands still or somebody is faster.
    async fn take(&mut self, number: u16) -> Result<(), StoreError> {
        let instance = Arc::clone(&self.instance);
        let store = &*instance.store;
        let Shared { id, options, .. } = &*self.shared;
        let key = stored::checkpoint_key(id, number);
        let found = store.read_records(CHECKPOINT, &[key]).await?.into_iter().next().flatten();
        if let Some(record) = found {
            let checkpoint: stored::CheckpointRecord = stored::read(CHECKPOINT, &record)?;
            if let Some(failed) = checkpoint.failed {
                let standing = Standing { reason: failed.error, resets: None };
                self.standing.insert(number, standing);
                return Ok(());
            }
        }
        let asked = clock::now();
        let ask = TermAsk {
            name: stored::term_name(id, number),
            holder: Arc::clone(&self.holder),
            span: options.lease,
            renews: None,
        };
        let TermOutcome::Held(term) = store.take_term(&ask).await? else { return Ok(()) };
        let span = options.lease;
        let held = instance.terms.keep(term.term, Arc::clone(&self.holder), span, asked);
        match self.session(&ask.name).await {
            Ok(Some(session)) => {
                self.refused = None;
                self.start(number, Some(held), session);
            }
            Ok(None) => {
                tracing::warn!(
                    subscriber = %self.shared.id, partition = number,
                    "the advisory lock that goes with its term is held by a session that is not \
                     flowgate's, or of another name with the same key; standing by"
                );
                self.give_up(&held).await;
            }
            Err(error) => {
                self.give_up(&held).await;
                if error.is_transient() {
                    return Err(error);
                }
                self.refused = Some(stored::fit(&with_causes(&error)));
            }
        }
        Ok(())
    }

    /// The lock of a session that goes with a term, where the store has such; none if somebody
    /// else keeps it.
    ///
    /// Whoever had the term before may be a process that does not move: its session ends here.
    async fn session(&self, name: &str) -> Result<Option<Session>, StoreError> {
        let store = &*self.instance.store;
        let mut is_ended = false;
        for _ in 0..SESSION_TRIES {
            match store.lock_session(name).await? {
                SessionLock::Unneeded => return Ok(Some(None)),
                SessionLock::Held(session) => return Ok(Some(Some(session))),
                SessionLock::Elsewhere if is_ended => {}
                SessionLock::Elsewhere => is_ended = store.end_session(name).await?,
            }
            if !is_ended {
                return Ok(None);
            }
            tokio::time::sleep(SESSION_PAUSE).await;
        }
        Ok(None)
    }

    fn start(&mut self, number: u16, held: Option<Arc<HeldTerm>>, session: Session) {
        let stop = CancellationToken::new();
        let partition = Partition {
            shared: Arc::clone(&self.shared),
            instance: Arc::clone(&self.instance),
            engine: self.engine.clone(),
            make: Arc::clone(&self.make),
            number,
            held: held.clone(),
            session,
            writer: Arc::clone(&self.holder),
            stop: stop.clone(),
        };
        self.shared.active.lock().insert(number);
        self.running.insert(number, Running { stop, held });
        self.tasks.spawn(async move { (number, partition.run().await) });
        tracing::info!(subscriber = %self.shared.id, partition = number, "active");
    }

    async fn ended(&mut self, ended: Result<(u16, Ended), tokio::task::JoinError>) {
        let Ok((number, ended)) = ended else {
            // A bug in a partition's task: its term ends by itself, and so does this subscription.
            tracing::error!(subscriber = %self.shared.id, "a subscriber's task panicked");
            self.shared.abort.cancel();
            return;
        };
        let running = self.running.remove(&number);
        self.shared.active.lock().remove(&number);
        tracing::info!(subscriber = %self.shared.id, partition = number, ?ended, "not active");
        match ended {
            Ended::Lost | Ended::Stopped => {}
            Ended::Failed(reason) => {
                self.standing.insert(number, Standing { reason, resets: None });
            }
            Ended::Refused { reason, resets } => {
                self.standing.insert(number, Standing { reason, resets: Some(resets) });
            }
        }
        if let Some(held) = running.and_then(|running| running.held) {
            self.give_up(&held).await;
        }
        self.tell_state();
    }

    /// Lets another instance have a partition at once.
    async fn give_up(&self, held: &Arc<HeldTerm>) {
        self.instance.terms.forget(held);
        let topic = stored::topic(&self.shared.id);
        let goodbye = async {
            self.instance.store.release_term(&held.term).await?;
            self.instance.store.tell(&topic).await
        };
        if !matches!(tokio::time::timeout(GOODBYE_MAX, goodbye).await, Ok(Ok(()))) {
            tracing::debug!(term = %held.term.name, "not released; it ends by itself");
        }
    }

    fn member_key(&self) -> Arc<str> {
        format!("{}/{}", self.shared.id, self.holder).into()
    }

    /// Says that this instance wants its share, and counts who else does.
    async fn be_member(&mut self) -> Result<(), StoreError> {
        let Shared { id, options, .. } = &*self.shared;
        let store = &*self.instance.store;
        let now = clock::now();
        if now >= self.member_due {
            let member = MemberRecord {
                instance: self.instance.config.instance.clone(),
                mode: options.mode,
            };
            let write = stored::write(MEMBER, self.member_key(), Expect::Anything, &member);
            let write = write.expect("the record of a member is small");
            let write = RecordWrite { keep: Some(options.lease), ..write };
            // Without a term and an expectation it is always written.
            drop(store.write_records(vec![write], None).await?);
            self.member_due = now + options.lease / 3;
        }
        if options.partitions == 1 {
            return Ok(());
        }
        let query = RecordQuery {
            kind: MEMBER,
            prefix: format!("{id}/").into(),
            after: None,
            is_descending: false,
            limit: MEMBERS_MAX,
        };
        let members = store.list_records(&query).await?;
        let now = store.now().await?;
        let is_alive = |at: Option<_>| at.is_none_or(|at| at > now);
        self.members = members.iter().filter(|record| is_alive(record.expires_at)).count().max(1);
        Ok(())
    }

    async fn leave(&self) {
        if self.shared.options.mode == InstanceMode::SingleInstance {
            return;
        }
        let removal = stored::removal(MEMBER, self.member_key(), Expect::Anything);
        let topic = stored::topic(&self.shared.id);
        let goodbye = async {
            drop(self.instance.store.write_records(vec![removal], None).await?);
            self.instance.store.tell(&topic).await
        };
        if !matches!(tokio::time::timeout(GOODBYE_MAX, goodbye).await, Ok(Ok(()))) {
            tracing::debug!(subscriber = %self.shared.id, "the store did not hear it leave");
        }
    }

    fn tell_state(&self) {
        let standing = self.standing.values().next().map(|standing| &standing.reason);
        let state = match standing.or(self.refused.as_ref()) {
            Some(reason) => SubscriptionState::Failed { reason: Arc::clone(reason) },
            None if self.running.is_empty() => SubscriptionState::Standby,
            None => SubscriptionState::Active,
        };
        self.shared.state.send_if_modified(|before| {
            let is_new = *before != state;
            if is_new {
                if let SubscriptionState::Failed { reason } = &state {
                    tracing::error!(subscriber = %self.shared.id, %reason, "stands still");
                }
                *before = state;
            }
            is_new
        });
        self.gauge();
    }

    fn gauge(&self) {
        let now = match &*self.shared.state.borrow() {
            SubscriptionState::Standby => "standby",
            SubscriptionState::Active => "active",
            SubscriptionState::Failed { .. } => "failed",
            SubscriptionState::Stopped => "stopped",
        };
        for state in ["standby", "active", "failed"] {
            let labels = [
                ("instance", self.instance.config.instance.to_string()),
                ("subscriber", self.shared.id.to_string()),
                ("state", state.to_owned()),
            ];
            let value = if state == now { 1.0 } else { 0.0 };
            metrics::gauge!("flowgate_subscriber_state", &labels).set(value);
        }
    }
}

/// Folds all events anew beside the subscriber in use; when it has caught up, its checkpoint and
/// state replace those in use, all at once.
pub(crate) async fn rebuild(
    given: Given,
    id: &str,
    options: SubscribeOptions,
) -> Result<(), EngineError> {
    if !is_identifier(id) {
        return Err(EngineError::Invalid(format!("`{id}` cannot name a subscriber")));
    }
    options.validate()?;
    let (instance, partitions) = (Arc::clone(&given.instance), options.partitions);
    let kind = (given.make)().kind();
    let id_text: Arc<str> = id.into();
    let agreed = agree(&instance, &id_text, &options, kind);
    instance.stopping.run_until_cancelled(agreed).await.ok_or(EngineError::Closed)??;
    let beside: Arc<str> = format!("{id}{REBUILD}").into();
    // What an earlier one left may be the fold of another rule.
    admin::forget(&*instance.store, &beside, partitions).await?;
    let built = begin(given, Arc::clone(&beside), options).await?;
    let caught_up = built.wait_until_caught_up().await;
    built.unsubscribe().await;
    caught_up?;
    admin::switch(&*instance.store, &beside, id, partitions).await?;
    Ok(())
}
