//! Subscribers of several instances on Redis and PostgreSQL, each behind a proxy that breaks its
//! connections.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_core::flow::Flow;
use flowgate_core::ids::Position;
use flowgate_engine::subscriber::{
    Delivery, PgHandler, PgSubscriber, SubscribeOptions, SubscriberAdmin, SubscriptionHandle,
    SubscriptionState,
};
use flowgate_engine::{Engine, EngineConfig, HandlerError, StartRequest, Workers, instance_id};
use flowgate_store::postgres::tokio_postgres::Transaction;
use flowgate_store::{Control, PostgresOptions, PostgresStore, Queues, Store, open_shared};
use flowgate_testbed::FaultProxy;
use tokio::time::{Instant, timeout};

use crate::shared::{behind_proxy, variable};
use crate::subscribers::{fold_of, state_of, tally, workers};
use crate::world::{eventually, payload};

const LEASE: Duration = Duration::from_secs(2);
const FLOW: &str = "
flow: chain
steps:
  one: { run: { worker: work }, emits: [done] }
  two: { subscribes: [done], run: { worker: work } }
";

/// A store that nobody else uses, on a private server.
struct Place {
    server: String,
    rest: String,
}

impl Place {
    fn postgres() -> Self {
        let server = variable("FLOWGATE_TEST_POSTGRES");
        Self { server, rest: format!("?schema=subscribers_{:016x}", fastrand::u64(..)) }
    }

    fn redis() -> Self {
        let server = variable("FLOWGATE_TEST_REDIS");
        Self { server, rest: format!("?prefix=subscribers-{:016x}", fastrand::u64(..)) }
    }

    async fn open(&self) -> Arc<dyn Store> {
        open_shared(&format!("{}{}", self.server, self.rest)).await.expect("opening the store")
    }

    /// An instance whose connections go through a proxy of its own.
    async fn instance(&self) -> Instance {
        let (proxy, server) = behind_proxy(&self.server);
        let store =
            open_shared(&format!("{server}{}", self.rest)).await.expect("opening the store");
        let config =
            EngineConfig { queues: Queues::Only(Vec::new()), ..EngineConfig::new(instance_id()) };
        let engine = Engine::start(store, Workers::new(), config).expect("starting");
        let options = SubscribeOptions { lease: LEASE, ..SubscribeOptions::coordinated() };
        let handle = engine.subscribe("p", tally(), options).await.expect("subscribing");
        Instance { proxy, engine: Some(engine), handle }
    }
}

/// An engine that executes nothing.
fn idle(store: Arc<dyn Store>) -> Engine {
    let queues = Queues::Only(Vec::new());
    let config = EngineConfig { queues, ..EngineConfig::new(instance_id()) };
    Engine::start(store, Workers::new(), config).expect("starting")
}

fn options(lease: Duration) -> SubscribeOptions {
    SubscribeOptions { lease, ..SubscribeOptions::coordinated() }
}

struct Instance {
    proxy: FaultProxy,
    engine: Option<Engine>,
    handle: SubscriptionHandle,
}

impl Instance {
    async fn becomes(&self, wanted: SubscriptionState) {
        let mut states = self.handle.state();
        let waited = states.wait_for(|state| *state == wanted);
        timeout(Duration::from_secs(30), waited).await.expect("in time").expect("it goes on");
    }
}

/// Runs that another instance executes all the time.
struct Traffic {
    engine: Engine,
    flow: Flow,
}

impl Traffic {
    async fn new(place: &Place) -> Self {
        let flow = Flow::parse(FLOW).expect("a flow");
        let config = EngineConfig::new(instance_id());
        let engine = Engine::start(place.open().await, workers(), config).expect("starting");
        engine.register(&flow, None).await.expect("registering");
        Self { engine, flow }
    }

    async fn runs(&self, count: usize) {
        let run = |number| self.engine.run_to_end(&self.flow, StartRequest::new(payload(number)));
        for ended in futures_util::future::join_all((0..count).map(run)).await {
            ended.expect("a run");
        }
    }
}

/// The active one goes away in several ways; each time the other takes over in time, and what is
/// kept is the fold of the feed.
async fn takes_over(place: &Place) {
    let traffic = Traffic::new(place).await;
    let store = place.open().await;
    let mut active = place.instance().await;
    active.becomes(SubscriptionState::Active).await;
    for round in 0..6 {
        let standby = place.instance().await;
        assert_eq!(*standby.handle.state().borrow(), SubscriptionState::Standby, "round {round}");
        traffic.runs(10).await;
        let gone = Instant::now();
        match round % 3 {
            // Without a word, as if its process had ended.
            0 => drop(active.engine.take()),
            // Its connections break, and none can be made.
            1 => active.proxy.cut(),
            // Its connections stay, and nothing comes through.
            _ => active.proxy.half_open(),
        }
        let more = traffic.runs(20);
        let ((), ()) = tokio::join!(standby.becomes(SubscriptionState::Active), more);
        let took = gone.elapsed();
        assert!(took <= LEASE + Duration::from_secs(1), "round {round}: {took:?}");
        if round % 3 > 0 {
            active.becomes(SubscriptionState::Standby).await;
            active.proxy.pass();
        }
        standby.handle.wait_until_caught_up().await.expect("it catches up");
        let state = state_of(&*store, "p").await.expect("there is a state");
        assert_eq!(state, fold_of(&*store).await, "round {round}");
        active = standby;
    }
    let info =
        SubscriberAdmin::new(&*store).show("p").await.expect("reading").expect("it is there");
    assert_eq!(info.dead, 0);
    active.engine.expect("it is there").shutdown().await;
    traffic.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_instance_takes_over_within_the_lease_and_a_second_on_redis() {
    takes_over(&Place::redis()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_instance_takes_over_within_the_lease_and_a_second_on_postgres() {
    takes_over(&Place::postgres()).await;
}

async fn postgres(url: &str) -> Arc<PostgresStore> {
    let options = PostgresOptions::new(url).expect("a URL");
    Arc::new(PostgresStore::open(options).await.expect("opening the store"))
}

/// The one number that a statement answers.
async fn number(store: &PostgresStore, sql: &str) -> i64 {
    let mut connection = store.connect().await.expect("connecting");
    let transaction = connection.begin().await.expect("beginning");
    transaction.sql().query_one(sql, &[]).await.expect("asking").get(0)
}

async fn execute(store: &PostgresStore, sql: &str) {
    let mut connection = store.connect().await.expect("connecting");
    let transaction = connection.begin().await.expect("beginning");
    transaction.sql().batch_execute(sql).await.expect("executing");
    drop(transaction.commit_with_records(&[], None).await.expect("committing"));
}

/// Writes each event down.
struct Effects(String);

#[async_trait]
impl PgHandler for Effects {
    async fn handle(&self, delivery: &Delivery, sql: &Transaction<'_>) -> Result<(), HandlerError> {
        let (run_id, seq) = (delivery.event.run_id, delivery.event.seq);
        let insert = format!("INSERT INTO {} VALUES ('{run_id}', {seq})", self.0);
        sql.batch_execute(&insert).await?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_in_the_transaction_of_the_checkpoint_is_there_exactly_once_on_postgres() {
    let place = Place::postgres();
    let traffic = Traffic::new(&place).await;
    let store = postgres(&format!("{}{}", place.server, place.rest)).await;
    let table = format!("effects_{:016x}", fastrand::u64(..));
    execute(&store, &format!("CREATE TABLE {table} (run text, seq bigint)")).await;
    let mut instances = Vec::new();
    for _ in 0..2 {
        let (proxy, server) = behind_proxy(&place.server);
        let behind = postgres(&format!("{server}{}", place.rest)).await;
        let engine = idle(Arc::clone(&behind) as Arc<dyn Store>);
        let subscriber = PgSubscriber::new(behind, Effects(table.clone()));
        let handle = engine.subscribe("effects", subscriber, options(LEASE)).await.unwrap();
        instances.push((proxy, engine, handle));
    }
    for round in 0..8_u64 {
        let mut proxies = instances.iter().map(|(proxy, _, _)| proxy);
        match round % 4 {
            // What was done is not known to be.
            0 => proxies.for_each(|proxy| proxy.swallow_replies(1 + round)),
            1 => proxies.for_each(FaultProxy::cut),
            2 => proxies.for_each(FaultProxy::pass),
            _ => proxies.next().unwrap().half_open(),
        }
        traffic.runs(10).await;
    }
    for (proxy, _, _) in &instances {
        proxy.pass();
    }
    let caught_up = instances[0].2.wait_until_caught_up();
    timeout(Duration::from_secs(40), caught_up).await.expect("in time").unwrap();
    assert!(instances.iter().all(|(proxy, _, _)| proxy.effects().is_any()), "nothing was broken");
    let mut events = 0;
    let mut after = Position::START;
    loop {
        let page = store.read_feed(0, after, 500).await.unwrap();
        let Some(last) = page.last() else { break };
        after = last.position;
        events += i64::try_from(page.len()).unwrap();
    }
    assert!(events > 400, "{events}");
    let there = number(&store, &format!("SELECT count(*) FROM {table}")).await;
    let distinct =
        number(&store, &format!("SELECT count(*) FROM (SELECT DISTINCT * FROM {table}) d")).await;
    assert_eq!((there, distinct), (events, events));
    let dead = SubscriberAdmin::new(&*store).dead("effects").await.unwrap();
    assert_eq!(dead, []);
    for (_, engine, _) in instances {
        engine.shutdown().await;
    }
    traffic.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_advisory_lock_of_the_seed_goes_with_the_term_and_its_end_stops_the_subscriber() {
    let place = Place::postgres();
    let url = format!("{}{}", place.server, place.rest);
    let store = postgres(&url).await;
    let schema = place.rest.split_once('=').expect("a schema").1;
    let lease = Duration::from_mins(1);
    let (one, other) = (idle(place.open().await), idle(place.open().await));
    let active = one.subscribe("p", tally(), options(lease)).await.unwrap();
    let standby = other.subscribe("p", tally(), options(lease)).await.unwrap();
    assert_eq!(*active.state().borrow(), SubscriptionState::Active);
    assert_eq!(*standby.state().borrow(), SubscriptionState::Standby);
    // The formula of the seed, in its own words.
    let lock = format!(
        "locktype = 'advisory' AND granted AND objsubid = 2 AND \
         classid = ('x' || substr(md5('{schema}/subscriber/p/0'), 1, 8))::bit(32)::bigint::oid AND \
         objid = ('x' || substr(md5('{schema}/subscriber/p/0'), 9, 8))::bit(32)::bigint::oid"
    );
    assert_eq!(number(&store, &format!("SELECT count(*) FROM pg_locks WHERE {lock}")).await, 1);
    let ended = Instant::now();
    let end = format!("SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE {lock}");
    assert_eq!(number(&store, &end).await, 1);
    // Long before the lease is over: somebody holds it again, under a later term.
    let again = async {
        loop {
            let terms = store.list_terms("subscriber/p/").await.unwrap();
            let locks =
                number(&store, &format!("SELECT count(*) FROM pg_locks WHERE {lock}")).await;
            if terms[0].term.number > 1 && locks == 1 {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), again).await.expect("it does not wait for the lease");
    assert!(ended.elapsed() < Duration::from_secs(10));
    // Whoever has the lock says so a moment later.
    let is_active = async || {
        let states = [active.state().borrow().clone(), standby.state().borrow().clone()];
        states.contains(&SubscriptionState::Active)
    };
    eventually("one of them is active", is_active).await;
    one.shutdown().await;
    other.shutdown().await;
    assert_eq!(number(&store, &format!("SELECT count(*) FROM pg_locks WHERE {lock}")).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_cannot_be_read_stops_the_subscriber_and_is_not_skipped() {
    let place = Place::postgres();
    let traffic = Traffic::new(&place).await;
    let store = postgres(&format!("{}{}", place.server, place.rest)).await;
    traffic.runs(5).await;
    let engine = idle(place.open().await);
    let handle = engine.subscribe("p", tally(), options(LEASE)).await.unwrap();
    handle.wait_until_caught_up().await.unwrap();
    let before = state_of(&*store, "p").await;
    handle.unsubscribe().await;
    traffic.runs(5).await;
    let schema = place.rest.split_once('=').expect("a schema").1;
    let last = format!(
        "(xid, ordinal) = (SELECT xid, ordinal FROM {schema}.log \
         ORDER BY xid DESC, ordinal DESC LIMIT 1)"
    );
    let spoil = format!(
        "CREATE TABLE {schema}.spoilt AS SELECT * FROM {schema}.log WHERE {last}; \
         UPDATE {schema}.log SET events = '[{{\"type\": \"no.such\", \"data\": {{}}}}]' WHERE {last}"
    );
    execute(&store, &spoil).await;
    let handle = engine.subscribe("p", tally(), options(LEASE)).await.unwrap();
    let mut states = handle.state();
    let failed = states.wait_for(|state| matches!(state, SubscriptionState::Failed { .. }));
    let failed = timeout(Duration::from_secs(30), failed).await.expect("in time").unwrap().clone();
    assert!(format!("{failed:?}").contains("cannot be read"), "{failed:?}");
    let info = SubscriberAdmin::new(&*store).show("p").await.unwrap().unwrap();
    assert!(info.partitions[0].failed.is_some() && info.dead == 0);
    // Repaired, it goes on where it stopped.
    let repair = format!(
        "UPDATE {schema}.log l SET events = s.events FROM {schema}.spoilt s \
         WHERE (l.xid, l.ordinal) = (s.xid, s.ordinal)"
    );
    execute(&store, &repair).await;
    assert_eq!(SubscriberAdmin::new(&*store).retry_dead("p", None).await.unwrap(), 0);
    let mut states = handle.state();
    let active = states.wait_for(|state| *state == SubscriptionState::Active);
    timeout(Duration::from_secs(30), active).await.expect("in time").unwrap();
    handle.wait_until_caught_up().await.unwrap();
    assert_ne!(state_of(&*store, "p").await, before);
    assert_eq!(state_of(&*store, "p").await.unwrap(), fold_of(&*store).await);
    engine.shutdown().await;
    traffic.engine.shutdown().await;
}
