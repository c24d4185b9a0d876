//! Brokers and consumers that are killed while messages come.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use flowgate_engine::{Engine, instance_id};
use flowgate_mqtt::Bridge;
use flowgate_store::{MemoryStore, SqliteOptions, SqliteStore, Store, open_shared};
use flowgate_testbed::{Mosquitto, PrivateServer};
use futures_util::StreamExt;
use futures_util::stream;

use crate::world::{Publisher, bridge, dead, engine, eventually, runs, settings};

const MESSAGES: usize = 2_000;
/// Messages that the publisher holds together. One is let go when the broker has answered all of
/// the next batch too: a broker that is killed may have lost what it answered in its last moment.
const BATCH: usize = 100;
/// Messages that are on their way to the broker at the same time.
const AT_ONCE: usize = 16;
/// The batches in which the broker is killed.
const BROKER_KILLS: [usize; 3] = [3, 9, 15];
/// The batches in which a consumer is killed.
const CONSUMER_KILLS: [usize; 5] = [1, 5, 9, 12, 17];

/// Publishes a batch; when half of it is answered, somebody is killed.
async fn publish(publisher: &Publisher, batch: usize, at_half: impl AsyncFnOnce()) {
    let answered = AtomicUsize::new(0);
    let numbers = batch * BATCH..(batch + 1) * BATCH;
    let all = stream::iter(numbers).for_each_concurrent(AT_ONCE, async |number| {
        publisher.number(number).await;
        answered.fetch_add(1, Ordering::SeqCst);
    });
    let half = async {
        let is_half = async || answered.load(Ordering::SeqCst) >= BATCH / 2;
        eventually("half of a batch is answered", is_half).await;
        at_half().await;
    };
    tokio::join!(all, half);
}

/// Two instances of a group, of which each is killed now and then.
struct Consumers<'a> {
    engine: &'a Engine,
    bridges: [Bridge; 2],
    killed: usize,
}

impl<'a> Consumers<'a> {
    async fn new(engine: &'a Engine, broker: &Mosquitto) -> Self {
        let bridges = [
            bridge(engine, broker, &settings(broker, "one")).await,
            bridge(engine, broker, &settings(broker, "two")).await,
        ];
        Self { engine, bridges, killed: 0 }
    }

    /// Ends one where it stands, and begins it again.
    fn kill_one(&mut self, broker: &Mosquitto) {
        let which = self.killed % 2;
        self.killed += 1;
        let settings = settings(broker, ["one", "two"][which]);
        // The old one goes away without a word, as soon as the new one is there.
        self.bridges[which] = Bridge::start(self.engine, &settings).unwrap();
    }
}

async fn check(store: Arc<dyn Store>) {
    let mut broker = Mosquitto::start().unwrap();
    let engine = engine(&store).await;
    let publisher = Publisher::new(&broker);
    let mut consumers = Consumers::new(&engine, &broker).await;
    let mut broker_kills = 0;
    for batch in 0..MESSAGES / BATCH {
        let kills_broker = BROKER_KILLS.contains(&batch);
        publish(&publisher, batch, async || {
            if CONSUMER_KILLS.contains(&batch) {
                consumers.kill_one(&broker);
            }
            if kills_broker {
                broker.kill().unwrap();
                broker.restart().unwrap();
                broker_kills += 1;
            }
        })
        .await;
        if kills_broker {
            // It holds these two, so it publishes them again.
            publish(&publisher, batch - 1, async || ()).await;
            publish(&publisher, batch, async || ()).await;
        }
    }
    assert_eq!((broker_kills, consumers.killed), (3, 5));
    eventually("a run of each message", async || runs(&*store).await.len() >= MESSAGES).await;
    for bridge in consumers.bridges {
        bridge.stop().await;
    }
    engine.shutdown().await;

    let runs = runs(&*store).await;
    let keys: BTreeSet<_> = runs.iter().filter_map(|run| run.key.as_deref()).collect();
    let expected: Vec<_> = (0..MESSAGES).map(|number| format!("mqtt/ingest/{number}")).collect();
    assert_eq!(runs.len(), MESSAGES, "one run of each message id");
    assert_eq!(keys, expected.iter().map(String::as_str).collect(), "none is lost");
    assert_eq!(dead(&*store).await, []);
}

async fn sqlite(folder: &Path) -> Arc<dyn Store> {
    let options = SqliteOptions::new(instance_id());
    Arc::new(SqliteStore::open(folder.join("flowgate.db"), options).await.unwrap())
}

#[expect(clippy::disallowed_methods, reason = "the services tell the tests where they are")]
async fn shared(variable: &str, place: &str) -> Arc<dyn Store> {
    let server = std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run `cargo xtask services with cargo nextest run`")
    });
    open_shared(&format!("{server}?{place}=mqtt_{:016x}", fastrand::u64(..))).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_and_each_has_one_run_whoever_is_killed_on_memory() {
    check(Arc::new(MemoryStore::new())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_and_each_has_one_run_whoever_is_killed_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    check(sqlite(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_and_each_has_one_run_whoever_is_killed_on_redis() {
    check(shared("FLOWGATE_TEST_REDIS", "prefix").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_and_each_has_one_run_whoever_is_killed_on_postgres() {
    check(shared("FLOWGATE_TEST_POSTGRES", "schema").await).await;
}
