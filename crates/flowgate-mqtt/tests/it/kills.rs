//! Brokers and bridges that end while messages come. Real processes are killed in the tests of the
//! binary.

use std::collections::BTreeSet;
use std::sync::Arc;

use flowgate_engine::Engine;
use flowgate_mqtt::Bridge;
use flowgate_store::{MemoryStore, Store};
use flowgate_testbed::mqtt::Publisher;
use flowgate_testbed::{Mosquitto, PrivateServer};

use crate::world::{bridge, dead, engine, eventually, runs, settings};

const MESSAGES: usize = 2_000;
/// Messages that the publisher holds together. One is let go when the broker has answered all of
/// the next batch too: a broker that is killed may have lost what it answered in its last moment.
const BATCH: usize = 100;
/// The batches in which the broker is killed.
const BROKER_KILLS: [usize; 3] = [3, 9, 15];
/// The batches in which a bridge ends.
const BRIDGE_ENDS: [usize; 5] = [1, 5, 9, 12, 17];

/// The numbers of the messages of a batch.
fn numbers(batch: usize) -> std::ops::Range<usize> {
    batch * BATCH..(batch + 1) * BATCH
}

/// Two bridges of a group, of which each ends now and then.
struct Bridges<'a> {
    engine: &'a Engine,
    bridges: [Bridge; 2],
    ended: usize,
}

impl<'a> Bridges<'a> {
    async fn new(engine: &'a Engine, broker: &Mosquitto) -> Self {
        let bridges = [
            bridge(engine, broker, &settings(broker, "one")).await,
            bridge(engine, broker, &settings(broker, "two")).await,
        ];
        Self { engine, bridges, ended: 0 }
    }

    /// Ends one where it stands, and begins it again.
    fn end_one(&mut self, broker: &Mosquitto) {
        let which = self.ended % 2;
        self.ended += 1;
        let settings = settings(broker, ["one", "two"][which]);
        // The old one goes away without a word, as soon as the new one is there.
        self.bridges[which] = Bridge::start(self.engine, &settings).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_and_each_has_one_run_whoever_ends() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut broker = Mosquitto::start().unwrap();
    let engine = engine(&store).await;
    let publisher = Publisher::new(&broker);
    let mut bridges = Bridges::new(&engine, &broker).await;
    for batch in 0..MESSAGES / BATCH {
        let kills_broker = BROKER_KILLS.contains(&batch);
        publisher
            .numbers(numbers(batch), async || {
                if BRIDGE_ENDS.contains(&batch) {
                    bridges.end_one(&broker);
                }
                if kills_broker {
                    broker.kill().unwrap();
                    broker.restart().unwrap();
                }
            })
            .await;
        if kills_broker {
            // It holds these two, so it publishes them again.
            publisher.numbers(numbers(batch - 1), async || ()).await;
            publisher.numbers(numbers(batch), async || ()).await;
        }
    }
    assert_eq!(bridges.ended, 5);
    eventually("a run of each message", async || runs(&*store).await.len() >= MESSAGES).await;
    for bridge in bridges.bridges {
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
