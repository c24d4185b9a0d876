//! The gates of flows: what this instance knows of them, how they are set, and how what they held
//! goes on.
//!
//! A start names the generation of the gate that this instance knows last. If the gate has moved the
//! store refuses it and says where the gate is now, so nobody reads a gate before a start. What else
//! a gate says, where starts go, is read once for each generation.
//!
//! What was held is released in the term of the leader, the oldest first, and the gate opens when
//! the store sees that nothing is held any more:
//!
//! ```text
//!   open ──hold──► holding ──let go──► replaying ──nothing is held──► open
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::commit::Commit;
use flowgate_core::decide;
use flowgate_core::gate::{Gate, GateStamp, GateState, HOLD_MAX};
use flowgate_core::ids::RunId;
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::{Run, RunStatus};
use flowgate_core::time::Timestamp;
use flowgate_store::control::{GATE, GateOutcome, RecordQuery, gate_of};
use flowgate_store::{CommitOutcome, Refusal, RunCursor, RunQuery, StoreError};
use futures_util::{StreamExt, TryStreamExt};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::backoff::{Backoff, jittered};
use crate::deploys::refused::Refusals;
use crate::error::EngineError;
use crate::instance::{Applied, Instance};
use crate::leadership::Reign;
use crate::supervisor::{Engine, WeakEngine};
use crate::{clock, deploys};

/// The topic by which the leader is told that a gate was set.
pub(crate) const TOPIC: &str = "gates";
/// How long a gate that was set may go unnoticed by the leader if its hint is lost.
const RELOAD_MAX: Duration = Duration::from_secs(3);
/// How long a count of what a flow holds is good for; what is held here since is added.
const COUNTED_FOR: Duration = Duration::from_secs(1);
/// Held runs that are released by one call, and that are read at a time for it.
const RELEASES_MAX: usize = 500;
const READS_MAX: usize = 16;
/// Records that are kept of held runs while they are let go; those of the rest are read again.
const RECORDS_MAX: usize = 10_000;
/// Held runs that are let go while what starts waits.
const FEW_MAX: usize = 500;
/// How often a gate is set again because somebody else has set it.
const TRIES_MAX: usize = 20;
/// How long a start waits for a gate that opens before it is held, and how often it looks.
const OPENING_MAX: Duration = Duration::from_secs(1);
const OPENING_LOOK: Duration = Duration::from_millis(5);
/// How often the last few are let go before what came meanwhile is taken for more than a few.
const OPEN_TRIES_MAX: usize = 5;
/// Pauses between releases at a rate.
const PACE: Duration = Duration::from_millis(100);

/// What an instance knows of the gates.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    known: RwLock<HashMap<Arc<str>, Known>>,
    rooms: RwLock<HashMap<Arc<str>, Room>>,
    /// Of the starts that wait for a gate, one asks how it is.
    turns: Mutex<HashMap<Arc<str>, Arc<tokio::sync::Mutex<()>>>>,
    refusals: Refusals,
}

/// What an instance knows of a gate.
#[derive(Clone, Debug, Default)]
struct Known {
    stamp: GateStamp,
    /// The gate of that generation, once a start had to know where it goes.
    gate: Option<Arc<Gate>>,
}

/// How much a flow holds, as far as this instance knows.
#[derive(Clone, Debug)]
struct Room {
    generation: u64,
    is_opening: bool,
    held: u64,
    max: u64,
    counted_at: Instant,
    /// The deployment that holds it.
    deployment: Option<Arc<str>>,
}

impl Gates {
    /// The gate as a start should name it.
    pub(crate) fn stamp(&self, flow: &str) -> GateStamp {
        self.known.read().get(flow).map(|known| known.stamp).unwrap_or_default()
    }

    /// The gate as it is known since this generation.
    fn found(&self, flow: &str, generation: u64) -> Option<Arc<Gate>> {
        let known = self.known.read();
        known.get(flow).filter(|known| known.stamp.generation >= generation)?.gate.clone()
    }

    fn find(&self, flow: &str, generation: u64, gate: &Arc<Gate>) {
        if let Some(known) = self.known.write().get_mut(flow)
            && known.stamp.generation == generation
        {
            known.gate = Some(Arc::clone(gate));
        }
    }

    fn note(&self, flow: &Arc<str>, gate: GateStamp) {
        let mut known = self.known.write();
        let last = known.entry(Arc::clone(flow)).or_default();
        if gate.generation > last.stamp.generation {
            *last = Known { stamp: gate, gate: None };
        }
    }
}

impl Instance {
    /// A gate is at this generation: another revision may be active since.
    pub(crate) fn note_gate(&self, flow: &Arc<str>, gate: GateStamp) {
        self.flows.forget_active(flow);
        self.gates.rooms.write().remove(flow);
        self.gates.note(flow, gate);
    }
}

/// The gate as a start meets it that knows its stamp; none if it was never set.
pub(crate) async fn met(
    instance: &Instance,
    flow: &Arc<str>,
    stamp: GateStamp,
) -> Result<Option<Arc<Gate>>, EngineError> {
    if stamp.generation == 0 {
        return Ok(None);
    }
    if let Some(gate) = instance.gates.found(flow, stamp.generation) {
        return Ok(Some(gate));
    }
    let gate = Arc::new(read(instance, flow).await?);
    instance.gates.find(flow, stamp.generation, &gate);
    Ok(Some(gate))
}

/// Has a start wait for a gate that opens, and refuses one that the flow has no room to hold.
///
/// Each instance counts once a second and adds what it has held since, so several of them together
/// may hold a little more. A gate that has moved is not looked at: the store refuses the start.
pub(crate) async fn enter(
    instance: &Instance,
    flow: &Arc<str>,
    stamp: GateStamp,
) -> Result<(), EngineError> {
    let now = clock::now();
    let is_good = |room: &Room| {
        room.generation == stamp.generation
            && now.saturating_duration_since(room.counted_at) < COUNTED_FOR
    };
    let known = instance.gates.rooms.read().get(flow).filter(|room| is_good(room)).cloned();
    let mut room = if let Some(room) = known {
        room
    } else {
        let Gate { generation, hold_max: max, is_opening, deployment, .. } =
            read(instance, flow).await?;
        if generation != stamp.generation {
            return Ok(());
        }
        let held = instance.store.count_runs(&held_of(flow)).await?;
        Room { generation, is_opening, held, max, counted_at: now, deployment }
    };
    if room.is_opening {
        instance.gates.rooms.write().insert(Arc::clone(flow), room.clone());
        if wait_while_opening(instance, flow, stamp).await? {
            return Ok(());
        }
    }
    let (max, is_full) = (room.max, room.held >= room.max);
    room.held += u64::from(!is_full);
    let deployment = room.deployment.clone();
    instance.gates.rooms.write().insert(Arc::clone(flow), room);
    if is_full {
        return Err(EngineError::HoldFull { flow: Arc::clone(flow), max, deployment });
    }
    Ok(())
}

/// Counts a start that is refused, if there is a report of a deployment to have it.
pub(crate) async fn note_refused(
    instance: &Instance,
    refusal: &EngineError,
) -> Result<(), EngineError> {
    if let EngineError::HoldFull { flow, deployment: Some(deployment), .. } = refusal {
        let (store, by) = (&*instance.store, &instance.config.instance);
        instance.gates.refusals.note(store, (flow, deployment), by).await?;
    }
    Ok(())
}

/// Waits until a gate that opens has moved; false if that takes too long. One start of an instance
/// asks, and the others wait for it.
async fn wait_while_opening(
    instance: &Instance,
    flow: &Arc<str>,
    stamp: GateStamp,
) -> Result<bool, EngineError> {
    let until = clock::now() + OPENING_MAX;
    let turn = Arc::clone(instance.gates.turns.lock().entry(Arc::clone(flow)).or_default());
    let _turn = turn.lock().await;
    loop {
        if instance.gates.stamp(flow).generation > stamp.generation {
            return Ok(true);
        }
        let gate = read(instance, flow).await?;
        if gate.generation != stamp.generation {
            instance.note_gate(flow, gate.stamp());
            return Ok(true);
        }
        if clock::now() >= until {
            return Ok(false);
        }
        tokio::time::sleep(jittered(OPENING_LOOK)).await;
    }
}

/// The gate of a flow, as the store has it.
pub(crate) async fn read(instance: &Instance, flow: &Arc<str>) -> Result<Gate, EngineError> {
    let found = instance.store.read_records(GATE, std::slice::from_ref(flow)).await?;
    Ok(gate_of(found.first().and_then(Option::as_ref))?)
}

pub(crate) fn held_of(flow: &Arc<str>) -> RunQuery {
    let (flow, statuses) = (Some(Arc::clone(flow)), vec![RunStatus::Held]);
    RunQuery { flow, statuses, limit: PAGE_MAX, ..RunQuery::default() }
}

/// A run that is held.
#[derive(Clone, Debug)]
pub(crate) struct HeldRun {
    run_id: RunId,
    accepted_at: Timestamp,
    /// As it was listed, if it is one of the oldest.
    run: Option<Arc<Run>>,
}

/// The held runs of a flow, the oldest first.
pub(crate) async fn held(
    instance: &Instance,
    flow: &Arc<str>,
) -> Result<Vec<HeldRun>, EngineError> {
    let mut query = held_of(flow);
    let mut found: Vec<HeldRun> = Vec::new();
    loop {
        let page = instance.store.list_runs(&query).await?;
        found.extend(page.iter().map(|row| HeldRun {
            run_id: row.run.run_id,
            accepted_at: row.started_at,
            run: Some(Arc::clone(&row.run)),
        }));
        // The latest come first, and are needed last.
        let newer = found.len().saturating_sub(RECORDS_MAX);
        found[newer.saturating_sub(PAGE_MAX)..newer].iter_mut().for_each(|held| held.run = None);
        match page.last() {
            Some(last) if page.len() == PAGE_MAX => {
                let (started_at, run_id) = (last.started_at, last.run.run_id);
                query.after = Some(RunCursor { started_at, run_id });
            }
            Some(_) | None => break,
        }
    }
    found.reverse();
    Ok(found)
}

/// How a flow is to be held.
#[derive(Clone, Debug, Default)]
pub struct HoldRequest {
    /// Why, in the words of whoever asks.
    pub reason: Option<Arc<str>>,
    /// How many starts are held at most; [`HOLD_MAX`] if none.
    pub hold_max: Option<u64>,
    /// How long until it lets go by itself.
    pub deadline: Option<Duration>,
}

/// How a flow's gate stands.
#[derive(Clone, Debug, PartialEq)]
pub struct GateStanding {
    /// The flow.
    pub flow: Arc<str>,
    /// The gate.
    pub gate: Gate,
    /// When it was set; none if it never was.
    pub set_at: Option<Timestamp>,
    /// How many runs it holds.
    pub held: u64,
    /// When the first of them was accepted.
    pub oldest_at: Option<Timestamp>,
}

impl Engine {
    /// How the gate of a flow stands.
    pub async fn gate(&self, flow: &str) -> Result<GateStanding, EngineError> {
        let (instance, flow): (_, Arc<str>) = (self.instance(), flow.into());
        let found = instance.store.read_records(GATE, std::slice::from_ref(&flow)).await?;
        let record = found.first().and_then(Option::as_ref);
        let gate = gate_of(record)?;
        let set_at = record.map(|record| record.written_at);
        let waiting = held(instance, &flow).await?;
        let held = u64::try_from(waiting.len()).expect("what fits in memory can be counted");
        let oldest_at = waiting.first().map(|first| first.accepted_at);
        Ok(GateStanding { flow, gate, set_at, held, oldest_at })
    }

    /// The gates that were ever set, in the order of their flows.
    pub async fn gates(&self) -> Result<Vec<GateStanding>, EngineError> {
        let mut standings = Vec::new();
        for (flow, _) in all(self.instance()).await? {
            standings.push(self.gate(&flow).await?);
        }
        Ok(standings)
    }

    /// Holds the starts of a flow from now on: when this returns, none begins a run any more.
    pub async fn hold(&self, flow: &str, request: HoldRequest) -> Result<Gate, EngineError> {
        let flow = Arc::clone(&self.active_flow(flow).await?.name);
        let now = self.store().now().await?;
        let gate = self.set_gate_by(&flow, |gate| {
            let is_taken = match gate.state {
                GateState::Open => false,
                // What lets go can be held again, unless a deployment has it let go.
                GateState::Replaying => gate.deployment.is_some(),
                GateState::Draining | GateState::Holding => true,
            };
            if is_taken {
                return gate.clone();
            }
            Gate {
                reason: request.reason.clone(),
                hold_max: request.hold_max.unwrap_or(HOLD_MAX),
                deadline: request.deadline.map(|after| now.plus(after)),
                replay_rate: None,
                deployment: None,
                ..gate.then(GateState::Holding)
            }
        });
        let gate = gate.await?;
        if gate.deadline.is_some() {
            self.store().tell(TOPIC).await?;
        }
        Ok(gate)
    }

    /// Lets what a flow holds go on, at most `rate` runs a second, and opens its gate when nothing
    /// is held any more. The leader does so from now on.
    pub async fn let_go(&self, flow: &str, rate: Option<u32>) -> Result<Gate, EngineError> {
        let flow: Arc<str> = flow.into();
        let gate = read(self.instance(), &flow).await?;
        if gate.deployment.is_some() && gate.state.is_closed() {
            return Err(EngineError::GateClosed { flow });
        }
        let gate = self.set_gate_by(&flow, |gate| match gate.state {
            GateState::Open => gate.clone(),
            GateState::Draining | GateState::Holding | GateState::Replaying => {
                Gate { replay_rate: rate, deadline: None, ..gate.then(GateState::Replaying) }
            }
        });
        let gate = gate.await?;
        self.store().tell(TOPIC).await?;
        Ok(gate)
    }

    /// Lets go what a deployment holds that has ended.
    async fn take_over(&self, flow: &Arc<str>) -> Result<(), EngineError> {
        let change = |gate: &Gate| match gate.state {
            GateState::Open => gate.clone(),
            GateState::Draining | GateState::Holding | GateState::Replaying => {
                Gate { deployment: None, ..gate.then(GateState::Replaying) }
            }
        };
        self.set_gate_by(flow, change).await?;
        Ok(self.store().tell(TOPIC).await?)
    }

    /// Sets a gate to what `change` makes of it.
    pub(crate) async fn set_gate_by(
        &self,
        flow: &Arc<str>,
        change: impl Fn(&Gate) -> Gate,
    ) -> Result<Gate, EngineError> {
        let instance = self.instance();
        for _ in 0..TRIES_MAX {
            let gate = change(&read(instance, flow).await?);
            if gate.generation == 0 {
                return Ok(gate);
            }
            match instance.store.set_gate(flow, &gate, false).await? {
                GateOutcome::Set => {
                    instance.note_gate(flow, gate.stamp());
                    return Ok(gate);
                }
                GateOutcome::Changed | GateOutcome::HoldsRuns => {}
            }
        }
        Err(EngineError::Contended)
    }
}

/// The gates that were ever set.
async fn all(instance: &Instance) -> Result<Vec<(Arc<str>, Gate)>, EngineError> {
    let (mut gates, mut after) = (Vec::new(), None);
    loop {
        let (prefix, limit) = ("".into(), PAGE_MAX);
        let query = RecordQuery { kind: GATE, prefix, after, is_descending: false, limit };
        let page = instance.store.list_records(&query).await?;
        for record in &page {
            gates.push((Arc::clone(&record.key), gate_of(Some(record))?));
        }
        match page.last() {
            Some(last) if page.len() == PAGE_MAX => after = Some(Arc::clone(&last.key)),
            Some(_) | None => return Ok(gates),
        }
    }
}

/// Lets go what is to be let go, until the term is over.
pub(crate) async fn run(instance: Arc<Instance>, engine: WeakEngine, reign: Arc<Reign>) {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
    while reign.is_held() {
        match round(&instance, &engine, &reign).await {
            Ok(wait_max) => {
                backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
                // A hint that is lost costs no more than the wait.
                drop(instance.store.wait_told(TOPIC, wait_max).await);
            }
            Err(error) => {
                // A store that does not answer is told of once, by whoever judges that.
                if backoff.tries() == 0 && !error.is_transient() {
                    tracing::warn!(%error, "what is held could not be let go; trying again");
                }
                backoff.wait().await;
            }
        }
    }
}

/// Does what is to be done now; how long it takes at most until there is more.
async fn round(
    instance: &Arc<Instance>,
    engine: &WeakEngine,
    reign: &Reign,
) -> Result<Duration, EngineError> {
    let mut wait_max = RELOAD_MAX;
    let mut now = None;
    for (flow, gate) in all(instance).await? {
        if let Some(deployment) = &gate.deployment {
            if gate.state.is_closed()
                && !deploys::is_open(&*instance.store, &flow, deployment).await?
            {
                tracing::warn!(%flow, %deployment, "a deployment has ended and left its gate closed");
                let engine = engine.upgrade().ok_or(EngineError::Closed)?;
                engine.take_over(&flow).await?;
            }
            continue;
        }
        match (gate.state, gate.deadline) {
            (GateState::Replaying, _) => replay(instance, reign, &flow, &gate).await?,
            (GateState::Holding | GateState::Draining, Some(deadline)) => {
                let now = match now {
                    Some(now) => now,
                    None => *now.insert(instance.store.now().await?),
                };
                wait_max = wait_max.min(deadline.since(now));
                if now >= deadline {
                    tracing::warn!(%flow, "the deadline of the hold is over; it lets go");
                    let engine = engine.upgrade().ok_or(EngineError::Closed)?;
                    engine.let_go(&flow, gate.replay_rate).await?;
                }
            }
            (GateState::Holding | GateState::Draining, None) | (GateState::Open, _) => {}
        }
    }
    Ok(wait_max)
}

/// Releases what a flow holds, the oldest first, and opens its gate when nothing is left.
async fn replay(
    instance: &Arc<Instance>,
    reign: &Reign,
    flow: &Arc<str>,
    gate: &Gate,
) -> Result<(), EngineError> {
    let mut gate = gate.clone();
    let mut pace = Pace::new(gate.replay_rate);
    // Those that were listed and wait, and how many are held in all, as far as is known.
    let (mut waiting, mut known) = (VecDeque::new(), None);
    while reign.is_held() {
        if waiting.is_empty() {
            waiting = held(instance, flow).await?.into();
            if waiting.len() <= few(gate.replay_rate) {
                open(instance, flow, &gate, None).await?;
                gate = read(instance, flow).await?;
                if gate.state != GateState::Replaying || gate.deployment.is_some() {
                    return Ok(());
                }
                continue;
            }
        }
        let mut count = pace.next().await;
        if gate.replay_rate.is_some() {
            // What came meanwhile is let go besides, or under a load it would never end.
            let all = instance.store.count_runs(&held_of(flow)).await?;
            let all = usize::try_from(all).unwrap_or(usize::MAX);
            count += all.saturating_sub(known.unwrap_or(all));
            known = Some(all.saturating_sub(count));
        }
        release_of(instance, flow, &mut waiting, count).await?;
        if read(instance, flow).await?.generation != gate.generation {
            return Ok(());
        }
    }
    Ok(())
}

/// Lets so many go on of those that wait, and of those that came since they were listed; how many
/// did. They are listed once at most: what comes while this goes on is for the next call.
pub(crate) async fn release_of(
    instance: &Arc<Instance>,
    flow: &Arc<str>,
    waiting: &mut VecDeque<HeldRun>,
    count: usize,
) -> Result<u64, EngineError> {
    let (mut left, mut released, mut is_listed) = (count, 0, false);
    while left > 0 {
        if waiting.is_empty() && !is_listed {
            *waiting = held(instance, flow).await?.into();
            is_listed = true;
        }
        let some = take(instance, waiting, left.min(RELEASES_MAX)).await?;
        if some.is_empty() {
            break;
        }
        released += release(instance, flow, &some).await?;
        left -= some.len();
    }
    Ok(released)
}

/// Takes the oldest of those that wait. Where they part between some that were accepted at the same
/// time, those are put in their order first.
async fn take(
    instance: &Instance,
    waiting: &mut VecDeque<HeldRun>,
    count: usize,
) -> Result<Vec<HeldRun>, StoreError> {
    let count = count.min(waiting.len());
    let ends =
        count.checked_sub(1).and_then(|last| Some((waiting.get(last)?, waiting.get(count)?)));
    if let Some((last, next)) = ends
        && last.accepted_at == next.accepted_at
    {
        let at = last.accepted_at;
        let from = waiting.partition_point(|held| held.accepted_at < at);
        let to = waiting.partition_point(|held| held.accepted_at <= at);
        let same: Vec<HeldRun> = waiting.range(from..to).cloned().collect();
        for (held, ordered) in waiting.range_mut(from..to).zip(in_order(instance, &same).await?) {
            *held = ordered;
        }
    }
    Ok(waiting.drain(..count).collect())
}

/// How many are few enough to be let go while what starts waits.
pub(crate) fn few(rate: Option<u32>) -> usize {
    rate.map_or(FEW_MAX, |rate| usize::try_from(rate / 10).unwrap_or(1).clamp(1, FEW_MAX))
}

/// Lets the last few go on that a flow holds, and opens its gate, which is `gate` or was; how many
/// went on. Whoever starts meanwhile waits, so nothing new is held, as a rule.
pub(crate) async fn open(
    instance: &Arc<Instance>,
    flow: &Arc<str>,
    gate: &Gate,
    deployment: Option<Arc<str>>,
) -> Result<u64, EngineError> {
    let store = &instance.store;
    let opening = Gate { is_opening: true, ..gate.then(GateState::Replaying) };
    let opening = if gate.is_opening { gate.clone() } else { opening };
    if store.set_gate(flow, &opening, false).await? != GateOutcome::Set {
        return Ok(0);
    }
    instance.note_gate(flow, opening.stamp());
    let open = Gate { reason: None, deployment, ..opening.then(GateState::Open) };
    let mut released = 0;
    for _ in 0..OPEN_TRIES_MAX {
        released += release_of(instance, flow, &mut VecDeque::new(), usize::MAX).await?;
        match store.set_gate(flow, &open, true).await? {
            GateOutcome::HoldsRuns => {}
            // Somebody holds it anew.
            GateOutcome::Changed => return Ok(released),
            GateOutcome::Set => {
                instance.note_gate(flow, open.stamp());
                tracing::info!(%flow, "nothing is held any more; the gate is open");
                return Ok(released);
            }
        }
    }
    Ok(released)
}

/// How many runs are released at a time, and when.
struct Pace {
    rate: Option<u32>,
    ticks: Option<tokio::time::Interval>,
    /// What the rate has allowed and was not used, in tenths of a run.
    saved: u32,
}

impl Pace {
    fn new(rate: Option<u32>) -> Self {
        let ticks = rate.map(|_| tokio::time::interval(PACE));
        Self { rate, ticks, saved: 0 }
    }

    /// How many may be released now.
    async fn next(&mut self) -> usize {
        let (Some(rate), Some(ticks)) = (self.rate, &mut self.ticks) else { return RELEASES_MAX };
        loop {
            ticks.tick().await;
            self.saved += rate.max(1);
            let count = self.saved / 10;
            if count > 0 {
                self.saved %= 10;
                return usize::try_from(count).unwrap_or(RELEASES_MAX).min(RELEASES_MAX);
            }
        }
    }
}

/// Lets these runs go on, in their order; those that are not held any more stay as they are.
pub(crate) async fn release(
    instance: &Arc<Instance>,
    flow: &Arc<str>,
    runs: &[HeldRun],
) -> Result<u64, EngineError> {
    let Instance { flows, store, workers, .. } = &**instance;
    let active = flows.active(&**store, workers, flow).await.map_err(EngineError::Flow)?;
    let active = active.ok_or_else(|| EngineError::NoFlow(Arc::clone(flow)))?;
    let gate = read(instance, flow).await?;
    let read = async |held: HeldRun| {
        if let Some(run) = held.run {
            return Ok(Some((run, held.accepted_at)));
        }
        let found = store.read_run(held.run_id).await?;
        Ok::<_, StoreError>(found.map(|detail| (detail.row.run, detail.row.started_at)))
    };
    let reads = futures_util::stream::iter(in_order(instance, runs).await?);
    let mut reads = std::pin::pin!(reads.map(read).buffered(READS_MAX));
    let mut commits: Vec<Commit> = Vec::new();
    while let Some(read) = reads.next().await {
        let Some((run, accepted_at)) = read? else { continue };
        let commit_id = instance.commit_ids.next();
        // One that is not held any more was cancelled, or released by a leader before this one.
        let to = match gate.canary_of(run.run_id) {
            None => Arc::clone(&active),
            Some(canary) => {
                let loaded = flows.load(&**store, workers, (flow, canary)).await;
                loaded.map_err(EngineError::Flow)?
            }
        };
        let to = (&to.flow, gate.pool_of(&to.flow.revision));
        if let Ok(commit) = decide::release(to, &run, accepted_at, commit_id) {
            commits.push(commit);
        }
    }
    commit_all(instance, commits).await
}

/// The runs in the order in which they were accepted: of those with the same time, their places in
/// the feed tell.
async fn in_order(instance: &Instance, runs: &[HeldRun]) -> Result<Vec<HeldRun>, StoreError> {
    let mut ordered = Vec::with_capacity(runs.len());
    for same in runs.chunk_by(|one, other| one.accepted_at == other.accepted_at) {
        if same.len() == 1 {
            ordered.extend_from_slice(same);
            continue;
        }
        let place = async |held: &HeldRun| {
            let first = instance.store.read_events(held.run_id, 0, 1).await?;
            Ok::<_, StoreError>(first.first().map(|event| event.position))
        };
        let places = futures_util::stream::iter(same).map(place).buffered(READS_MAX);
        let places: Vec<_> = places.try_collect().await?;
        let mut placed: Vec<_> = places.into_iter().zip(same).collect();
        placed.sort_by_key(|(place, held)| (*place, held.run_id));
        ordered.extend(placed.into_iter().map(|(_, held)| held.clone()));
    }
    Ok(ordered)
}

/// Sends commits that nobody on this instance waits for; how many of them are applied. Whoever was
/// quicker about a run has decided about it.
pub(crate) async fn commit_all(
    instance: &Arc<Instance>,
    commits: Vec<Commit>,
) -> Result<u64, EngineError> {
    if commits.is_empty() {
        return Ok(0);
    }
    let mut applied = 0;
    let outcomes = instance.store.commit(commits.clone(), None).await?;
    for (commit, outcome) in commits.into_iter().zip(outcomes) {
        match outcome {
            CommitOutcome::Applied { .. } => {
                applied += 1;
                tell(instance, commit);
            }
            CommitOutcome::Refused(Refusal::RunVersion) => {}
            CommitOutcome::Refused(refusal) => {
                let Commit { run_id, record, .. } = commit;
                tracing::warn!(%run_id, flow = %record.flow, ?refusal, "a run was not let go");
            }
        }
    }
    Ok(applied)
}

/// Tells whoever listens on this instance of a commit that did not go through its committer.
fn tell(instance: &Instance, commit: Commit) {
    let Commit { run_id, events, record, .. } = commit;
    instance.metrics.commits.applied.increment(1);
    let Run { status, .. } = &*record;
    if let Some(ended) = instance.metrics.runs_ended.of(*status) {
        ended.increment(1);
        instance.ends.ended(&record);
    }
    let applied = Applied { run_id, run: record, at: clock::wall(), events };
    // Nobody may be listening.
    drop(instance.live.send(Arc::new(applied)));
}
