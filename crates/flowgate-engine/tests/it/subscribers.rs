//! Subscribers on a store in memory: who is active, what is kept, and what becomes of failures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::event::StoredEvent;
use flowgate_core::ids::{Position, RunId};
use flowgate_core::payload::Payload;
use flowgate_core::retry::RetryPolicy;
use flowgate_engine::subscriber::{
    CheckpointEvery, Delivery, OnFailure, Projection, ResetTo, Saga, StartFrom, SubscribeOptions,
    Subscriber, SubscriberAdmin, SubscriberContext, SubscriptionHandle, SubscriptionState,
    read_projection,
};
use flowgate_engine::{Engine, EngineError, HandlerError, StepContext, Workers};
use flowgate_store::control::TermRef;
use flowgate_store::{Store, whole_log};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::recorder::Counts;
use crate::world::{World, config, eventually, payload, store};

const CHAIN: &str = "
flow: chain
steps:
  one: { run: { worker: work }, emits: [done] }
  two: { subscribes: [done], run: { worker: work } }
";

pub(crate) fn workers() -> Workers {
    let mut workers = Workers::new();
    workers.register("work", async |_: Value, step: StepContext| {
        if step.step() == "one" {
            step.emit("done", &1)?;
        }
        Ok::<_, HandlerError>(())
    });
    workers
}

async fn world(store: Arc<dyn Store>) -> World {
    World::with(store, CHAIN, vec![(workers(), config("starter"))]).await
}

fn engine(store: &Arc<dyn Store>, name: &str) -> Engine {
    Engine::start(Arc::clone(store), Workers::new(), config(name)).unwrap()
}

/// Keeps what it was given.
#[derive(Clone, Default)]
pub(crate) struct Keeper {
    seen: Arc<Mutex<Vec<(RunId, u64)>>>,
    fails: Arc<Mutex<BTreeMap<u64, u32>>>,
    gate: Option<Arc<Semaphore>>,
}

impl Keeper {
    /// Waits for a permit before each event.
    fn gated() -> (Self, Arc<Semaphore>) {
        let gate = Arc::new(Semaphore::new(0));
        (Self { gate: Some(Arc::clone(&gate)), ..Self::default() }, gate)
    }

    /// Fails the events with this number of their run this often.
    fn failing(seq: u64, times: u32) -> Self {
        let keeper = Self::default();
        keeper.fails.lock().insert(seq, times);
        keeper
    }

    pub(crate) fn seen(&self) -> Vec<(RunId, u64)> {
        self.seen.lock().clone()
    }
}

#[async_trait]
impl Subscriber for Keeper {
    async fn handle(
        &mut self,
        delivery: &Delivery,
        _: &SubscriberContext,
    ) -> Result<(), HandlerError> {
        if let Some(gate) = &self.gate {
            gate.acquire().await?.forget();
        }
        let event = &delivery.event;
        if let Some(times) = self.fails.lock().get_mut(&event.seq)
            && *times > 0
        {
            *times -= 1;
            return Err(HandlerError::retryable("not this one"));
        }
        self.seen.lock().push((event.run_id, event.seq));
        Ok(())
    }
}

/// Counts events by type, and the runs.
pub(crate) fn tally() -> Projection<BTreeMap<String, u64>> {
    Projection::new(|counts: &mut BTreeMap<String, u64>, stored: &StoredEvent| {
        *counts.entry(stored.event.kind().to_owned()).or_default() += 1;
        *counts.entry(stored.run_id.to_string()).or_default() += stored.seq;
        Ok(())
    })
}

/// The fold of the whole feed, as the projection keeps it.
pub(crate) async fn fold_of(store: &dyn Store) -> String {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for feed in 0..store.feeds() {
        let mut after = Position::START;
        loop {
            let page = store.read_feed(feed, after, 500).await.unwrap();
            let Some(last) = page.last() else { break };
            after = last.position;
            for stored in &page {
                *counts.entry(stored.event.kind().to_owned()).or_default() += 1;
                *counts.entry(stored.run_id.to_string()).or_default() += stored.seq;
            }
        }
    }
    serde_json::to_string(&counts).unwrap()
}

pub(crate) async fn state_of(store: &dyn Store, id: &str) -> Option<String> {
    let key = format!("{id}/0").into();
    let record = store.read_records("checkpoint", &[key]).await.unwrap().remove(0)?;
    let value: Value = record.value.read().unwrap();
    value.get("state").map(ToString::to_string)
}

async fn all_events(store: &dyn Store) -> Vec<(RunId, u64)> {
    let mut seen = Vec::new();
    let mut after = Position::START;
    loop {
        let page = store.read_feed(0, after, 500).await.unwrap();
        let Some(last) = page.last() else { return seen };
        after = last.position;
        seen.extend(page.iter().map(|event| (event.run_id, event.seq)));
    }
}

fn coordinated() -> SubscribeOptions {
    SubscribeOptions { lease: Duration::from_secs(3), ..SubscribeOptions::coordinated() }
}

fn state(handle: &SubscriptionHandle) -> SubscriptionState {
    handle.state().borrow().clone()
}

async fn becomes(handle: &SubscriptionHandle, wanted: SubscriptionState) {
    let mut states = handle.state();
    let waited = states.wait_for(|state| *state == wanted);
    timeout(Duration::from_mins(1), waited).await.expect("in a minute").unwrap();
}

async fn reason(handle: &SubscriptionHandle) -> String {
    let mut states = handle.state();
    let failed = states.wait_for(|state| matches!(state, SubscriptionState::Failed { .. }));
    let failed = timeout(Duration::from_mins(1), failed).await.expect("in a minute").unwrap();
    let SubscriptionState::Failed { reason } = failed.clone() else { unreachable!() };
    reason.to_string()
}

fn quick_retries(attempts_max: u32) -> RetryPolicy {
    RetryPolicy { attempts_max, delay_min: Duration::from_millis(10), ..RetryPolicy::DEFAULT }
}

#[tokio::test(start_paused = true)]
async fn of_two_coordinated_subscribers_one_is_active_and_the_other_gets_no_event() {
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let (a, b) = (engine(&store, "a"), engine(&store, "b"));
    let (first, second) = (Keeper::default(), Keeper::default());
    let active = a.subscribe("p", first.clone(), coordinated()).await.unwrap();
    assert_eq!(state(&active), SubscriptionState::Active);
    let standby = b.subscribe("p", second.clone(), coordinated()).await.unwrap();
    assert_eq!(state(&standby), SubscriptionState::Standby);
    for number in 0..10 {
        world.run(number).await;
    }
    standby.wait_until_caught_up().await.unwrap();
    assert_eq!(first.seen(), all_events(&*store).await);
    assert_eq!(second.seen(), []);
    assert_eq!((active.partitions(), standby.partitions()), (vec![0], vec![]));
    assert!(standby.lag().await.unwrap().is_caught_up);
    let terms = store.list_terms("subscriber/p/").await.unwrap();
    assert_eq!((terms.len(), terms[0].term.number), (1, 1));
    for engine in [a, b] {
        engine.shutdown().await;
    }
    assert_eq!(state(&active), SubscriptionState::Stopped);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn different_subscribers_of_one_instance_are_all_active() {
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let (users, orders) = (Keeper::default(), Keeper::default());
    let engine = world.engine();
    let one = engine.subscribe("users", users.clone(), coordinated()).await.unwrap();
    let other = engine.subscribe("orders", orders.clone(), coordinated()).await.unwrap();
    world.run(1).await;
    one.wait_until_caught_up().await.unwrap();
    other.wait_until_caught_up().await.unwrap();
    assert_eq!(users.seen(), all_events(&*store).await);
    assert_eq!(orders.seen(), users.seen());
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn when_the_active_one_is_gone_the_other_goes_on_within_the_lease_and_a_second() {
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let mut engines = vec![engine(&store, "0")];
    engines[0].subscribe("p", tally(), coordinated()).await.unwrap();
    for number in 1..6 {
        let next = engine(&store, &number.to_string());
        let standby = next.subscribe("p", tally(), coordinated()).await.unwrap();
        assert_eq!(state(&standby), SubscriptionState::Standby);
        for input in 0..5 {
            world.run(input).await;
        }
        engines.push(next);
        // Without a word, as if its process had ended.
        drop(engines.remove(0));
        let gone = Instant::now();
        becomes(&standby, SubscriptionState::Active).await;
        let took = gone.elapsed();
        assert!(took <= Duration::from_secs(4), "{took:?}");
        world.run(number).await;
        standby.wait_until_caught_up().await.unwrap();
        assert_eq!(state_of(&*store, "p").await.unwrap(), fold_of(&*store).await);
    }
    let numbers: Vec<u64> = (store.past_terms("subscriber/p/0", 100).await.unwrap().iter())
        .map(|term| term.term.number)
        .collect();
    assert_eq!(numbers, [6, 5, 4, 3, 2, 1]);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn whoever_unsubscribes_hands_over_at_once() {
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let (a, b) = (engine(&store, "a"), engine(&store, "b"));
    let options = || SubscribeOptions { lease: Duration::from_mins(1), ..coordinated() };
    let active = a.subscribe("p", tally(), options()).await.unwrap();
    let standby = b.subscribe("p", tally(), options()).await.unwrap();
    world.run(1).await;
    let began = Instant::now();
    active.unsubscribe().await;
    assert_eq!(state(&active), SubscriptionState::Stopped);
    becomes(&standby, SubscriptionState::Active).await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    // So does whoever shuts down.
    let back = a.subscribe("p", tally(), options()).await.unwrap();
    let began = Instant::now();
    b.shutdown().await;
    becomes(&back, SubscriptionState::Active).await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    back.wait_until_caught_up().await.unwrap();
    assert_eq!(state_of(&*store, "p").await.unwrap(), fold_of(&*store).await);
    a.shutdown().await;
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_checkpoint_of_one_who_lost_its_term_is_refused() {
    let counts = Counts::default();
    let _recorded = counts.record();
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let (a, b) = (engine(&store, "a"), engine(&store, "b"));
    let (keeper, gate) = Keeper::gated();
    let options = SubscribeOptions {
        lease: Duration::from_mins(1),
        checkpoint: CheckpointEvery::Event,
        ..coordinated()
    };
    let old = a.subscribe("p", keeper.clone(), options.clone()).await.unwrap();
    world.run(1).await;
    gate.add_permits(2);
    eventually("two are handled", || async { keeper.seen().len() == 2 }).await;
    // Its term ends behind its back, and it does not know before the next renewal.
    let term = TermRef { name: "subscriber/p/0".into(), number: 1 };
    store.release_term(&term).await.unwrap();
    let fresh = Keeper::default();
    let new = b.subscribe("p", fresh.clone(), options).await.unwrap();
    assert_eq!(state(&new), SubscriptionState::Active);
    new.wait_until_caught_up().await.unwrap();
    let after = store.read_records("checkpoint", &["p/0".into()]).await.unwrap();
    gate.add_permits(100);
    becomes(&old, SubscriptionState::Standby).await;
    assert_eq!(counts.sum("flowgate_subscriber_checkpoints_refused_total{subscriber=p"), 1);
    assert_eq!(store.read_records("checkpoint", &["p/0".into()]).await.unwrap(), after);
    assert_eq!(keeper.seen().len(), 3, "it stopped at its refused checkpoint");
    assert_eq!(fresh.seen(), all_events(&*store).await[2..]);
    for engine in [a, b] {
        engine.shutdown().await;
    }
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_term_drops_the_handler_in_the_middle() {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    #[derive(Clone)]
    struct Endless(Arc<AtomicBool>);
    #[async_trait]
    impl Subscriber for Endless {
        async fn handle(
            &mut self,
            _: &Delivery,
            _: &SubscriberContext,
        ) -> Result<(), HandlerError> {
            let _dropped = Dropped(Arc::clone(&self.0));
            std::future::pending().await
        }
    }
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let a = engine(&store, "a");
    let dropped = Arc::new(AtomicBool::new(false));
    a.subscribe("p", Endless(Arc::clone(&dropped)), coordinated()).await.unwrap();
    world.run(1).await;
    let term = TermRef { name: "subscriber/p/0".into(), number: 1 };
    store.release_term(&term).await.unwrap();
    let began = Instant::now();
    eventually("it is dropped", || async { dropped.load(Ordering::SeqCst) }).await;
    // At the next renewal.
    assert!(began.elapsed() <= Duration::from_millis(1_100), "{:?}", began.elapsed());
    drop(a);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_outlives_its_engine() {
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let options = SubscribeOptions::default;
    for round in 1..4_usize {
        let a = engine(&store, "a");
        let keeper = Keeper::default();
        let handle = a.subscribe("p", keeper.clone(), options()).await.unwrap();
        world.run(round).await;
        handle.wait_until_caught_up().await.unwrap();
        let all = all_events(&*store).await;
        let share = all.len() / round;
        assert_eq!(keeper.seen(), all[share * (round - 1)..]);
        a.shutdown().await;
    }
    assert!(store.list_terms("subscriber/").await.unwrap().is_empty(), "one alone needs no term");
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn two_single_instances_of_one_id_are_noticed() {
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let (a, b) = (engine(&store, "a"), engine(&store, "b"));
    let one = a.subscribe("p", Keeper::default(), SubscribeOptions::default()).await.unwrap();
    let other = b.subscribe("p", Keeper::default(), SubscribeOptions::default()).await.unwrap();
    world.run(1).await;
    let failed = async |handle: &SubscriptionHandle| reason(handle).await;
    tokio::select! {
        reason = failed(&one) => assert!(reason.contains("coordinated"), "{reason}"),
        reason = failed(&other) => assert!(reason.contains("coordinated"), "{reason}"),
    }
    for engine in [a, b] {
        engine.shutdown().await;
    }
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_subscriber_holds_back_nobody() {
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let (slow, gate) = Keeper::gated();
    let quick = Keeper::default();
    let engine = world.engine();
    let held_up = engine.subscribe("slow", slow.clone(), coordinated()).await.unwrap();
    let handle = engine.subscribe("quick", quick.clone(), coordinated()).await.unwrap();
    // More than the slow one has room for.
    for number in 0..150 {
        world.run(number).await;
    }
    handle.wait_until_caught_up().await.unwrap();
    let all = all_events(&*store).await;
    assert!(all.len() > 600);
    assert_eq!(quick.seen(), all);
    assert_eq!(slow.seen(), []);
    let lag = held_up.lag().await.unwrap();
    assert!(!lag.is_caught_up && lag.behind > Duration::ZERO, "{lag:?}");
    gate.add_permits(all.len());
    held_up.wait_until_caught_up().await.unwrap();
    assert_eq!(slow.seen(), all);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_event_that_fails_is_tried_again_in_its_order() {
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let keeper = Keeper::failing(2, 3);
    let options = SubscribeOptions { retry: quick_retries(4), ..coordinated() };
    let handle = world.engine().subscribe("p", keeper.clone(), options).await.unwrap();
    world.run(1).await;
    handle.wait_until_caught_up().await.unwrap();
    assert_eq!(keeper.seen(), all_events(&*store).await);
    assert_eq!(SubscriberAdmin::new(&*store).dead("p").await.unwrap(), []);
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_fails_for_good_is_put_aside_and_can_be_tried_again() {
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let keeper = Keeper::failing(2, 5);
    let options = SubscribeOptions { retry: quick_retries(3), ..coordinated() };
    let handle = world.engine().subscribe("p", keeper.clone(), options).await.unwrap();
    let run_id = world.run(1).await.row.run.run_id;
    handle.wait_until_caught_up().await.unwrap();
    let all = all_events(&*store).await;
    let without: Vec<_> = all.iter().copied().filter(|(_, seq)| *seq != 2).collect();
    assert_eq!(keeper.seen(), without, "the others went on");
    assert_eq!(state(&handle), SubscriptionState::Active);
    let admin = SubscriberAdmin::new(&*store);
    let dead = admin.dead("p").await.unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0].run_id, dead[0].seq, dead[0].attempts), (run_id, 2, 3));
    assert_eq!(&*dead[0].error, "not this one");
    assert_eq!(admin.show("p").await.unwrap().unwrap().dead, 1);
    // Twice more it fails, and then it does not: within the next three attempts.
    assert_eq!(admin.retry_dead("p", Some(RunId::derived("no", "run"))).await.unwrap(), 0);
    assert_eq!(admin.retry_dead("p", Some(run_id)).await.unwrap(), 1);
    eventually("it is handled", || async { keeper.seen().len() == all.len() }).await;
    eventually("it is gone", || async { admin.dead("p").await.unwrap().is_empty() }).await;
    assert_eq!(keeper.seen().last(), Some(&(run_id, 2)));
    // One that fails again stays, with all its attempts.
    keeper.fails.lock().insert(1, 100);
    world.run(2).await;
    handle.wait_until_caught_up().await.unwrap();
    assert_eq!(admin.retry_dead("p", None).await.unwrap(), 1);
    eventually("it failed again", || async {
        let dead = admin.dead("p").await.unwrap();
        dead.len() == 1 && dead[0].attempts == 6 && !dead[0].is_asked
    })
    .await;
    let missing = admin.retry_dead("nobody", None).await;
    assert!(matches!(missing, Err(EngineError::NoSubscriber(_))), "{missing:?}");
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_closed_stops_at_the_event_everywhere_until_told_to_go_on() {
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let (a, b) = (engine(&store, "a"), engine(&store, "b"));
    let keeper = Keeper::failing(2, 2);
    let options = SubscribeOptions {
        retry: quick_retries(2),
        on_failure: OnFailure::FailClosed,
        ..coordinated()
    };
    let one = a.subscribe("p", keeper.clone(), options.clone()).await.unwrap();
    let other = b.subscribe("p", keeper.clone(), options).await.unwrap();
    let run_id = world.run(1).await.row.run.run_id;
    assert_eq!(reason(&one).await, "not this one");
    assert_eq!(reason(&other).await, "not this one");
    let all = all_events(&*store).await;
    assert_eq!(keeper.seen(), all[..1], "nothing after it was handled");
    assert!(other.wait_until_caught_up().await.is_err());
    let admin = SubscriberAdmin::new(&*store);
    let info = admin.show("p").await.unwrap().unwrap();
    let failed = info.partitions[0].failed.clone().unwrap();
    assert_eq!((failed.event, failed.attempts), (Some((run_id, 2)), 2));
    assert_eq!(info.partitions[0].handled, 1);
    assert_eq!(admin.dead("p").await.unwrap(), []);
    assert_eq!(admin.retry_dead("p", None).await.unwrap(), 0);
    eventually("all are handled", || async { keeper.seen() == all }).await;
    eventually("one is active", || async {
        let states = [state(&one), state(&other)];
        states.contains(&SubscriptionState::Active) && states.contains(&SubscriptionState::Standby)
    })
    .await;
    for engine in [a, b] {
        engine.shutdown().await;
    }
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_or_hangs_fails_its_attempt() {
    #[derive(Clone)]
    struct Unwell(Arc<AtomicU32>);
    #[async_trait]
    impl Subscriber for Unwell {
        async fn handle(
            &mut self,
            delivery: &Delivery,
            _: &SubscriberContext,
        ) -> Result<(), HandlerError> {
            match (delivery.event.seq, delivery.attempt) {
                (1, 1) => panic!("it is unwell"),
                (1, 2) => std::future::pending().await,
                _ => {
                    self.0.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                }
            }
        }
    }
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let count = Arc::new(AtomicU32::new(0));
    let options = SubscribeOptions { retry: quick_retries(3), ..coordinated() };
    let handle = world.engine().subscribe("p", Unwell(Arc::clone(&count)), options).await.unwrap();
    world.run(1).await;
    handle.wait_until_caught_up().await.unwrap();
    assert_eq!(
        usize::try_from(count.load(Ordering::SeqCst)).unwrap(),
        all_events(&*store).await.len()
    );
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn partitions_spread_over_instances_and_come_back() {
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let mut engines: Vec<Engine> = ["a", "b", "c"].map(|name| engine(&store, name)).into();
    let options = || SubscribeOptions { partitions: 6, ..coordinated() };
    let keepers: Vec<Keeper> = (0..3).map(|_| Keeper::default()).collect();
    let mut handles = Vec::new();
    for (engine, keeper) in engines.iter().zip(&keepers) {
        handles.push(engine.subscribe("p", keeper.clone(), options()).await.unwrap());
        let share = 6_usize.div_ceil(handles.len());
        eventually("each has its share", || async {
            let shares: Vec<usize> = handles.iter().map(|h| h.partitions().len()).collect();
            shares.iter().sum::<usize>() == 6 && shares.iter().all(|count| *count == share)
        })
        .await;
    }
    for number in 0..60 {
        world.run(number).await;
    }
    handles[0].wait_until_caught_up().await.unwrap();
    let seen: Vec<Vec<(RunId, u64)>> = keepers.iter().map(Keeper::seen).collect();
    assert!(seen.iter().all(|seen| seen.len() > 50), "each has its part");
    let mut together: Vec<(RunId, u64)> = seen.concat();
    together.sort_unstable();
    let mut all = all_events(&*store).await;
    all.sort_unstable();
    assert_eq!(together, all, "each event once, on one of them");
    for seen in &seen {
        let mut last: BTreeMap<RunId, u64> = BTreeMap::new();
        for (run_id, seq) in seen {
            assert_eq!(
                last.insert(*run_id, *seq).unwrap_or(0) + 1,
                *seq,
                "in the order of its run"
            );
        }
    }
    handles[1].unsubscribe().await;
    drop(engines.pop());
    eventually("the one that is left has all", || async { handles[0].partitions().len() == 6 })
        .await;
    let info = SubscriberAdmin::new(&*store).show("p").await.unwrap().unwrap();
    assert_eq!(info.members.len(), 1, "{:?}", info.members);
    assert!(info.partitions.iter().all(|partition| partition.term.is_some()));
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_number_of_partitions_is_fixed_and_names_are_checked() {
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let options = |partitions| SubscribeOptions { partitions, ..coordinated() };
    let engine = world.engine();
    engine.subscribe("p", Keeper::default(), options(2)).await.unwrap();
    let other = engine.subscribe("p", Keeper::default(), options(3)).await.unwrap_err();
    assert!(other.to_string().contains("2 partitions"), "{other}");
    let name = engine.subscribe("p/1", Keeper::default(), options(1)).await.unwrap_err();
    assert!(matches!(name, EngineError::Invalid(_)), "{name}");
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_reset_goes_on_from_the_start_the_end_or_a_position() {
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let keeper = Keeper::default();
    let handle = world.engine().subscribe("p", keeper.clone(), coordinated()).await.unwrap();
    world.run(1).await;
    handle.wait_until_caught_up().await.unwrap();
    let all = all_events(&*store).await;
    let admin = SubscriberAdmin::new(&*store);
    admin.reset("p", &ResetTo::Start).await.unwrap();
    eventually("all come again", || async { keeper.seen().len() == 2 * all.len() }).await;
    assert_eq!(keeper.seen()[all.len()..], all);
    let second = store.read_feed(0, Position::START, 2).await.unwrap()[1].position;
    admin.reset("p", &ResetTo::Positions(vec![second])).await.unwrap();
    eventually("the last come again", || async { keeper.seen().len() == 3 * all.len() - 2 }).await;
    handle.unsubscribe().await;
    world.run(2).await;
    admin.reset("p", &ResetTo::End).await.unwrap();
    let handle = world.engine().subscribe("p", keeper.clone(), coordinated()).await.unwrap();
    let before = keeper.seen().len();
    let last = world.run(3).await.row.run.run_id;
    handle.wait_until_caught_up().await.unwrap();
    assert!(keeper.seen()[before..].iter().all(|(run_id, _)| *run_id == last));
    let wrong = admin.reset("p", &ResetTo::Positions(vec![])).await;
    assert!(matches!(wrong, Err(EngineError::Invalid(_))), "{wrong:?}");
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_begins_now_sees_nothing_from_before() {
    let store = store();
    let world = world(Arc::clone(&store)).await;
    world.run(1).await;
    let keeper = Keeper::default();
    let options = SubscribeOptions { from: StartFrom::Now, ..coordinated() };
    let handle = world.engine().subscribe("p", keeper.clone(), options).await.unwrap();
    handle.wait_until_caught_up().await.unwrap();
    let run_id = world.run(2).await.row.run.run_id;
    handle.wait_until_caught_up().await.unwrap();
    assert!(!keeper.seen().is_empty());
    assert!(keeper.seen().iter().all(|(seen, _)| *seen == run_id));
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_projection_is_rebuilt_beside_the_old_one_and_then_switched() {
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let engine = world.engine();
    let handle = engine.subscribe("p", tally(), coordinated()).await.unwrap();
    for number in 0..20 {
        world.run(number).await;
    }
    handle.wait_until_caught_up().await.unwrap();
    // Somebody has written into it.
    let admin = SubscriberAdmin::new(&*store);
    handle.unsubscribe().await;
    let record =
        store.read_records("checkpoint", &["p/0".into()]).await.unwrap().remove(0).unwrap();
    let mut value: Value = record.value.read().unwrap();
    value["state"] = json!({ "wrong": 1 });
    let write = flowgate_store::control::RecordWrite {
        kind: "checkpoint",
        key: "p/0".into(),
        expect: flowgate_store::control::Expect::Version(record.version),
        value: Some(payload(&value)),
        keep: None,
    };
    drop(store.write_records(vec![write], None).await.unwrap());
    let handle = engine.subscribe("p", tally(), coordinated()).await.unwrap();
    world.run(21).await;
    handle.wait_until_caught_up().await.unwrap();
    assert_ne!(state_of(&*store, "p").await.unwrap(), fold_of(&*store).await);
    engine.rebuild("p", tally(), coordinated()).await.unwrap();
    assert_eq!(state_of(&*store, "p").await.unwrap(), fold_of(&*store).await);
    // The active one goes on from there.
    world.run(22).await;
    handle.wait_until_caught_up().await.unwrap();
    assert_eq!(state_of(&*store, "p").await.unwrap(), fold_of(&*store).await);
    assert_eq!(state(&handle), SubscriptionState::Active);
    assert_eq!(admin.list().await.unwrap().len(), 1, "nothing is left of the one beside");
    let read: Vec<Option<BTreeMap<String, u64>>> = read_projection(&*store, "p").await.unwrap();
    assert_eq!(serde_json::to_string(&read[0]).unwrap(), fold_of(&*store).await);
    let wrong = admin.reset("p", &ResetTo::End).await;
    assert!(matches!(wrong, Err(EngineError::Invalid(_))), "{wrong:?}");
    world.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_fold_that_fails_changes_nothing() {
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let half = Projection::new(|counts: &mut BTreeMap<u64, u64>, stored: &StoredEvent| {
        *counts.entry(stored.seq).or_default() += 1;
        if stored.seq == 2 { Err(HandlerError::fatal("half done")) } else { Ok(()) }
    });
    let handle = world.engine().subscribe("p", half, coordinated()).await.unwrap();
    let run_id = world.run(1).await.row.run.run_id;
    handle.wait_until_caught_up().await.unwrap();
    let count = whole_log(&*store, run_id).await.unwrap().len() as u64;
    let expected: BTreeMap<u64, u64> =
        (1..=count).filter(|seq| *seq != 2).map(|seq| (seq, 1)).collect();
    let read: Vec<Option<BTreeMap<u64, u64>>> = read_projection(&*store, "p").await.unwrap();
    assert_eq!(read, [Some(expected)]);
    world.shutdown().await;
}

const ORDER: &str = "
flow: order
steps:
  wait: { wait: { signal: paid, timeout: 1h }, emits: [paid] }
";

#[tokio::test(start_paused = true)]
async fn a_saga_starts_once_whatever_is_delivered_again() {
    let store = store();
    let world = world(Arc::clone(&store)).await;
    let follow_up = flowgate_core::flow::Flow::parse(
        "flow: follow-up\nsteps:\n  one: { run: { worker: work }, emits: [done] }\n",
    )
    .unwrap();
    world.engine().register(&follow_up, None).await.unwrap();
    let order = flowgate_core::flow::Flow::parse(ORDER).unwrap();
    world.engine().register(&order, None).await.unwrap();
    let waiting = world.engine().start_run("order", request(0)).await.unwrap().run_id;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let saga = Saga::new(move |delivery: Delivery, actions| {
        let calls = Arc::clone(&counted);
        async move {
            let is_end = delivery.event.event.kind() == "run.completed";
            let flow = "follow-up";
            if is_end && delivery.event.seq > 6 {
                // What it starts may say something else each time.
                let call = calls.fetch_add(1, Ordering::SeqCst);
                actions.start(flow, payload(call)).await?;
                actions.start(flow, payload(0)).await?;
                if call == 0 {
                    return Err(HandlerError::retryable("after it has acted"));
                }
                actions.signal(waiting, "paid", Payload::null()).await?;
            }
            Ok(())
        }
    });
    let options = SubscribeOptions { retry: quick_retries(2), ..coordinated() };
    let handle = world.engine().subscribe("p", saga, options).await.unwrap();
    world.run(1).await;
    world.engine().wait(waiting).await.unwrap();
    handle.wait_until_caught_up().await.unwrap();
    let query = flowgate_store::RunQuery {
        flow: Some("follow-up".into()),
        limit: 100,
        ..flowgate_store::RunQuery::default()
    };
    assert_eq!(store.count_runs(&query).await.unwrap(), 2);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    assert_eq!(SubscriberAdmin::new(&*store).dead("p").await.unwrap(), []);
    world.shutdown().await;
}

fn request(input: u32) -> flowgate_engine::StartRequest {
    flowgate_engine::StartRequest::new(payload(input))
}
