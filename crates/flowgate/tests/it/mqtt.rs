//! Messages that come from a broker and go to it, with real processes that are killed and flows that
//! are replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use flowgate_testbed::mqtt::{INPUT, Listener, Message, Publisher};
use flowgate_testbed::{Mosquitto, PrivateServer};
use serde_json::Value;

use crate::sandbox::{Done, Running, Sandbox, eventually, repository, until};
use crate::shared::Place;

/// Messages that the publisher holds together. One is let go when the broker has answered all of
/// the next batch too: a broker that is killed may have lost what it answered in its last moment.
const BATCH: usize = 100;
const OUTPUT: &str = "redforge/ingest/output";

/// A run of it is over at once, whoever starts it.
const TAKE: &str = "{ flow: ingest, steps: { take: {} } }";

fn numbers(batch: usize) -> Range<usize> {
    batch * BATCH..(batch + 1) * BATCH
}

/// A folder with a flow and the settings of a broker, and processes that listen to it.
struct Edge<'a> {
    sandbox: Sandbox,
    store: &'a str,
}

impl<'a> Edge<'a> {
    fn new(broker: &Mosquitto, store: &'a str, flow: &str) -> Self {
        let sandbox = Sandbox::new();
        std::fs::create_dir(sandbox.path("flows")).unwrap();
        sandbox.write("flows/ingest.yaml", flow);
        let settings = format!(
            "[mqtt]\nurl = \"{}\"\nclient_id = \"env:CLIENT\"\nin_flight = 32\n\n\
             [mqtt.subscriptions.ingest]\ntopic = \"{INPUT}\"\nflow = \"ingest\"\n\
             tags = {{ id = \"property:message-id\" }}\n",
            broker.url()
        );
        sandbox.write("flowgate.toml", &settings);
        Self { sandbox, store }
    }

    /// Starts a process that is this client of the broker.
    fn consumer(&self, client: &str) -> Running {
        let args = ["worker", "start", "flows", "--listen", "127.0.0.1:0", "--store", self.store];
        self.sandbox.spawn_with(&[("CLIENT", client)], &args)
    }

    fn flowgate(&self, args: &[&str]) -> Done {
        let args = [args, &["--store", self.store]].concat();
        self.sandbox.flowgate_with(&[("CLIENT", "none")], &args)
    }

    /// How many runs there are, in these statuses if any are named.
    fn count(&self, statuses: &[&str]) -> u64 {
        let mut args = vec!["runs", "list", "--limit", "1", "--json"];
        args.extend(statuses.iter().flat_map(|status| ["--status", status]));
        let listed = self.flowgate(&args);
        // A process that owns its store may have been killed a moment ago.
        if listed.code == Some(0) { listed.json()["total"].as_u64().unwrap() } else { 0 }
    }

    /// All runs, by pages.
    fn runs(&self) -> Vec<Value> {
        let (mut runs, mut after) = (Vec::new(), None::<String>);
        loop {
            let mut args = vec!["runs", "list", "--limit", "1000", "--json"];
            args.extend(after.iter().flat_map(|cursor| ["--after", cursor]));
            let page = self.flowgate(&args).exits(0).json();
            runs.extend(page["items"].as_array().unwrap().iter().cloned());
            after = page["next"].as_str().map(ToOwned::to_owned);
            if after.is_none() {
                return runs;
            }
        }
    }
}

/// Processes that are killed while 2,000 messages come, and so is their broker.
async fn consumers_are_killed(store: &str, clients: &[&str]) {
    const MESSAGES: usize = 2_000;
    const BROKER_KILLS: [usize; 3] = [3, 9, 15];
    const CONSUMER_KILLS: [usize; 5] = [1, 5, 9, 12, 17];
    let mut broker = Mosquitto::start().unwrap();
    let edge = Edge::new(&broker, store, TAKE);
    let publisher = Publisher::new(&broker);
    let mut consumers: Vec<Running> = clients.iter().map(|client| edge.consumer(client)).collect();
    for batch in 0..MESSAGES / BATCH {
        let kills_broker = BROKER_KILLS.contains(&batch);
        publisher
            .numbers(numbers(batch), async || {
                if let Some(kill) = CONSUMER_KILLS.iter().position(|killed| *killed == batch) {
                    let which = kill % clients.len();
                    assert!(consumers[which].is_alive());
                    consumers.remove(which).kill();
                    consumers.insert(which, edge.consumer(clients[which]));
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
    let expected = u64::try_from(MESSAGES).unwrap();
    until("a run of each message", || edge.count(&["completed"]) >= expected);
    let runs = edge.runs();
    assert_eq!(runs.len(), MESSAGES, "one run of each message id");
    let ids: BTreeSet<_> = runs.iter().map(|run| run["tags"]["id"].as_str().unwrap()).collect();
    let expected: Vec<_> = (0..MESSAGES).map(|number| number.to_string()).collect();
    assert_eq!(ids, expected.iter().map(String::as_str).collect(), "none is lost");
    let dead = edge.flowgate(&["dead", "messages", "--json"]).exits(0).json();
    assert_eq!(dead["items"].as_array().unwrap().len(), 0, "{dead:#}");
    for consumer in consumers {
        consumer.signal("TERM");
        consumer.end().exits(0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_and_each_has_one_run_whoever_is_killed_on_sqlite() {
    consumers_are_killed("sqlite:flowgate.db", &["one"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_and_each_has_one_run_whoever_is_killed_on_redis() {
    consumers_are_killed(&Place::on_redis().url, &["one", "two"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_and_each_has_one_run_whoever_is_killed_on_postgres() {
    consumers_are_killed(&Place::on_postgres().url, &["one", "two"]).await;
}

/// A flow that publishes what it gets.
fn passing_on(version: u8) -> String {
    format!(
        "flow: ingest
description: version {version}
steps:
  take:
    run: {{ mqtt: {{ topic: {OUTPUT} }} }}
    timeout: 10s
    retry: {{ attempts: 20, backoff: {{ initial: 50ms, max: 500ms }} }}
"
    )
}

const DEPLOY: &str =
    "{ strategy: blue-green, drain_timeout: 20s, verify_timeout: 500ms, replay_rate: unlimited }";

/// What has come out, by the numbers of the messages: the ids under which each did.
#[derive(Default)]
struct Outputs(BTreeMap<u64, BTreeSet<String>>);

impl Outputs {
    fn take(&mut self, listener: &mut Listener) -> usize {
        while let Some(message) = listener.try_next() {
            let payload: Value = serde_json::from_slice(&message.payload).unwrap();
            let properties = message.properties.unwrap().user_properties;
            let id = properties.into_iter().find(|(name, _)| name == "message-id").unwrap().1;
            self.0.entry(payload["n"].as_u64().unwrap()).or_default().insert(id);
        }
        self.0.len()
    }
}

/// In by MQTT, through a flow that is replaced meanwhile, and out by MQTT.
async fn messages_pass_through_a_deployment(store: &str, clients: &[&str]) {
    const MESSAGES: usize = 200;
    let mut broker = Mosquitto::start().unwrap();
    let edge = Edge::new(&broker, store, &passing_on(1));
    edge.sandbox.write("next.yaml", &passing_on(2));
    edge.sandbox.write("deploy.yaml", DEPLOY);
    let consumers: Vec<Running> = clients.iter().map(|client| edge.consumer(client)).collect();
    for consumer in &consumers {
        consumer.stderr.wait_for("ready in");
    }
    let mut listener = Listener::new(&broker, OUTPUT).await;
    let mut outputs = Outputs::default();
    let publisher = Publisher::new(&broker);
    publisher.numbers(0..50, async || ()).await;
    until("the first are out", || outputs.take(&mut listener) >= 50);
    let start = ["deploy", "start", "next.yaml", "--deploy", "deploy.yaml", "--store", edge.store];
    let deploying = edge.sandbox.spawn_with(&[("CLIENT", "none")], &start);
    publisher.numbers(50..100, async || ()).await;
    // A broker that is killed may lose what it answered last: that is out by now.
    until("the first half is out", || outputs.take(&mut listener) >= 100);
    broker.kill().unwrap();
    broker.restart().unwrap();
    publisher.numbers(100..150, async || ()).await;
    deploying.end().exits(0);
    publisher.numbers(150..MESSAGES, async || ()).await;
    until("all are out", || outputs.take(&mut listener) >= MESSAGES);
    until("all have ended", || edge.count(&["completed"]) >= 200);
    for (number, ids) in outputs.0 {
        assert_eq!(ids.len(), 1, "after deduplication message {number} is there once: {ids:?}");
    }
    let runs = edge.runs();
    assert_eq!(runs.len(), MESSAGES, "one run of each message id");
    let revisions: BTreeSet<_> = runs.iter().map(|run| run["revision"].to_string()).collect();
    assert_eq!(revisions.len(), 2, "some before the deployment and some after it: {revisions:?}");
    for consumer in consumers {
        consumer.signal("TERM");
        consumer.end().exits(0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_comes_out_once_through_a_deployment_and_a_kill_on_sqlite() {
    messages_pass_through_a_deployment("sqlite:flowgate.db", &["one"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_comes_out_once_through_a_deployment_and_a_kill_on_redis() {
    messages_pass_through_a_deployment(&Place::on_redis().url, &["one", "two"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_comes_out_once_through_a_deployment_and_a_kill_on_postgres() {
    messages_pass_through_a_deployment(&Place::on_postgres().url, &["one", "two"]).await;
}

#[test]
fn a_step_that_publishes_waits_for_an_instance_with_a_broker_and_says_so() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("flows")).unwrap();
    sandbox.write("flows/ingest.yaml", &passing_on(1));
    let alone = sandbox.flowgate(&["run", "flows/ingest.yaml", "--input", "1"]).exits(1);
    assert!(alone.stderr.contains("the settings name no broker"), "{alone:#?}");
    assert!(alone.stderr.contains("set `[mqtt]` and go on with `flowgate run --resume"));
    let dev = sandbox.dev(&["flows"]);
    dev.stderr.wait_for("step `take` of flow `ingest` publishes, and the settings name no broker");
    let why = eventually("it says what is missing", || {
        let why = sandbox.flowgate(&["why", "latest"]).exits(0).stdout;
        why.contains("for an instance with an MQTT broker").then_some(why)
    });
    assert!(why.contains("in the queue `mqtt`"), "{why}");
    dev.interrupt().exits(130);
    let broker = Mosquitto::start().unwrap();
    let settings = format!("[mqtt]\nurl = \"{}\"\nclient_id = \"one\"\n", broker.url());
    sandbox.write("flowgate.toml", &settings);
    let dev = sandbox.dev(&["flows"]);
    eventually("it is published", || {
        let shown = sandbox.flowgate(&["runs", "list", "--status", "completed", "--json"]).json();
        (shown["total"] == 1).then_some(())
    });
    let logs = sandbox.flowgate(&["runs", "logs", "latest"]).exits(0).stdout;
    assert!(logs.contains("nobody subscribes to `redforge/ingest/output`"), "{logs}");
    dev.interrupt().exits(130);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_messages_and_letters_are_there_after_a_restart() {
    let broker = Mosquitto::start().unwrap();
    let fails =
        "{ flow: ingest, steps: { take: { run: { shell: exit 3 }, retry: { attempts: 1 } } } }";
    let edge = Edge::new(&broker, "sqlite:flowgate.db", fails);
    let consumer = edge.consumer("one");
    let publisher = Publisher::new(&broker);
    publisher.publish(&Message { payload: b"{oops", ..Message::new(INPUT) }).await;
    publisher.number(7).await;
    until("the run has failed", || edge.count(&["failed"]) == 1);
    consumer.kill();
    let consumer = edge.consumer("one");
    consumer.stderr.wait_for("ready in");
    let messages = edge.flowgate(&["dead", "messages", "--json"]).exits(0).json();
    assert_eq!(messages["items"][0]["reason"], "not_json", "{messages:#}");
    let letters = edge.flowgate(&["dead", "list", "--json"]).exits(0).json();
    assert_eq!(letters["items"].as_array().unwrap().len(), 1, "{letters:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_edge_example_takes_messages_and_publishes_them() {
    let broker = Mosquitto::start().unwrap();
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("flows")).unwrap();
    for file in ["flowgate.toml", "flows/ingest.yaml", "flows/query.yaml"] {
        std::fs::copy(repository().join("examples/edge").join(file), sandbox.path(file)).unwrap();
    }
    let url = broker.url();
    let variables = [
        ("MQTT_URL", &*url),
        ("MQTT_USER", "flowgate"),
        ("MQTT_PASSWORD", "canary"),
        ("INSTANCE_ID", "blue"),
    ];
    let dev = sandbox.spawn_with(&variables, &["dev", "flows"]);
    let mut listener = Listener::new(&broker, "redforge/+/output").await;
    let publisher = Publisher::new(&broker);
    let send = async |topic: &str, payload: &str| {
        let message = Message { payload: payload.as_bytes(), ..Message::new(topic) };
        publisher.publish(&Message { id: Some(payload), ..message }).await;
    };
    send("redforge/ingest/input", r#"{"document": "a page"}"#).await;
    let out = listener.next().await;
    assert_eq!(
        (&out.topic[..], &out.payload[..]),
        (&b"redforge/ingest/output"[..], &b"\"a page\""[..])
    );
    send("redforge/query/input", r#"{"question": "why?"}"#).await;
    let out = listener.next().await;
    assert_eq!(&out.topic[..], b"redforge/query/output");
    assert_eq!(&out.payload[..], br#"{"question": "why?"}"#);

    // The gate takes the place of the topic of held messages.
    sandbox.flowgate(&["hold", "on", "ingest"]).exits(0);
    send("redforge/ingest/input", r#"{"document": "held"}"#).await;
    send("redforge/query/input", r#"{"question": "is it open?"}"#).await;
    let out = listener.next().await;
    assert_eq!(&out.topic[..], b"redforge/query/output", "the other flow goes on");
    sandbox.flowgate(&["hold", "off", "ingest", "--wait"]).exits(0);
    assert_eq!(&listener.next().await.payload[..], br#""held""#);
    dev.interrupt().exits(130);
}
