//! `/hooks`, on every store; rows B42 to B47 of the catalogue of bad input are here.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use flowgate_core::event::Event;
use flowgate_core::ids::RunId;
use flowgate_core::payload::Payload;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_engine::{EngineConfig, Secrets, instance_id};
use flowgate_server::HostOptions;
use flowgate_server::webhooks::signature::Key;
use flowgate_server::webhooks::{Effect, TOLERANCE_DEFAULT, Webhook, WebhookSecret};
use flowgate_store::control::{Expect, RecordQuery, RecordWrite, RecordsOutcome};
use flowgate_store::{Clock, MemoryStore, RunQuery, Store};
use serde_json::{Value, json};

use crate::stores;
use crate::world::{ONE_STEP, World};

/// Two signals end it.
const TWICE: &str = "flow: twice\nsteps:\n  first: { wait: { signal: go } }\n  \
                     second: { subscribes: ['step:first'], wait: { signal: go } }\n";
const OLD: &str = "whsec_b2xkb2xkb2xkb2xkb2xkb2xk";
const NEW: &str = "whsec_bmV3bmV3bmV3bmV3bmV3bmV3";

/// A message as it is sent.
#[derive(Clone)]
struct Message {
    path: String,
    headers: Vec<(&'static str, String)>,
    body: String,
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

fn signed(path: &str, secret: &str, id: &str, timestamp: &str, body: &str) -> Message {
    let key = Key::parse(secret).expect("it is a secret");
    let signature = key.sign(id.as_bytes(), timestamp.as_bytes(), body.as_bytes());
    let headers = vec![
        ("webhook-id", id.to_owned()),
        ("webhook-timestamp", timestamp.to_owned()),
        ("webhook-signature", signature),
    ];
    Message { path: path.to_owned(), headers, body: body.to_owned() }
}

fn good(path: &str, id: &str) -> Message {
    signed(path, NEW, id, &now().to_string(), r#"{"n":1}"#)
}

impl Message {
    fn with(&self, name: &'static str, value: impl Into<String>) -> Self {
        let mut headers = self.without(name).headers;
        headers.push((name, value.into()));
        Self { headers, ..self.clone() }
    }

    fn without(&self, name: &str) -> Self {
        let headers = self.headers.iter().filter(|(other, _)| *other != name).cloned().collect();
        Self { headers, ..self.clone() }
    }

    async fn send(&self, world: &World) -> (u16, Value) {
        let mut request = Request::post(format!("/api/v1/hooks{}", self.path));
        for (name, value) in [("host", "localhost".to_owned())].iter().chain(&self.headers) {
            request = request.header(*name, value);
        }
        let request = request.body(Body::from(self.body.clone())).expect("it is a request");
        let (status, answer) = world.ask(request).await;
        (status.as_u16(), answer)
    }

    async fn is_refused(&self, world: &World, status: u16, code: &str) {
        let (got, answer) = self.send(world).await;
        let expected = (status, &json!(code));
        assert_eq!((got, &answer["error"]["code"]), expected, "{:?} {answer}", self.headers);
    }
}

/// An instance with a webhook of each kind, whose secret is in `folder`.
async fn world(store: Arc<dyn Store>, folder: &Path) -> World {
    std::fs::write(folder.join("HOOK"), NEW).expect("the folder can be written");
    let config = EngineConfig {
        secrets: Secrets::new(std::collections::BTreeMap::new(), Some(folder.to_owned())),
        ..EngineConfig::new(instance_id())
    };
    let hook = |effect| Webhook {
        effect,
        secrets: vec![WebhookSecret::Named("HOOK".into()), WebhookSecret::Named("GONE".into())],
        tolerance: TOLERANCE_DEFAULT,
    };
    let webhooks = [
        ("start".to_owned(), hook(Effect::Start("one".to_owned()))),
        ("approve".to_owned(), hook(Effect::Signal("go".to_owned()))),
    ];
    let options = HostOptions { webhooks: webhooks.into(), ..HostOptions::default() };
    World::on(store, config, options, &[ONE_STEP, TWICE]).await
}

async fn runs(world: &World) -> u64 {
    world.engine.store().count_runs(&RunQuery::default()).await.expect("the store is there")
}

async fn records(world: &World) -> usize {
    let (prefix, limit) = ("".into(), 100);
    let query = RecordQuery { kind: "webhook", prefix, after: None, is_descending: false, limit };
    world.engine.store().list_records(&query).await.expect("the store is there").len()
}

async fn signals(world: &World, run_id: RunId) -> usize {
    let events = world.engine.store().read_events(run_id, 0, 1_000).await;
    let events = events.expect("the store is there");
    events.iter().filter(|stored| matches!(stored.event, Event::SignalReceived { .. })).count()
}

async fn start_twice(world: &World) -> RunId {
    let (_, started) = world.post("/runs", r#"{"flow":"twice"}"#).await;
    started["run_id"].as_str().expect("it has an id").parse().expect("it is an id")
}

/// What is not signed by an active secret, just now and just so, is refused and changes nothing.
async fn refused(world: &World) {
    for path in ["/start", "/approve/latest"] {
        let good = good(path, "m-refused");
        // B42
        for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
            good.without(name).is_refused(world, 401, "signature_missing").await;
        }
        // B43
        let mut double = good.clone();
        double.headers.push(("webhook-id", "m-other".to_owned()));
        double.is_refused(world, 401, "signature_invalid").await;
        let wrong = signed(path, OLD, "m-refused", &now().to_string(), &good.body);
        wrong.is_refused(world, 401, "signature_invalid").await;
        let signature = wrong.headers[2].1.clone();
        let many = vec![signature.clone(); 1_000].join(" ");
        for signatures in ["", "v1,", "v1,????", "v1,AAAA", &signature[..30], "hello", &many] {
            let message = good.with("webhook-signature", signatures);
            message.is_refused(world, 401, "signature_invalid").await;
        }
        // B44
        for seconds in [now() - 360, now() + 360] {
            let message = signed(path, NEW, "m-refused", &seconds.to_string(), &good.body);
            message.is_refused(world, 401, "timestamp").await;
        }
        for timestamp in ["abc", "9223372036854775808", "-1", ""] {
            let message = signed(path, NEW, "m-refused", timestamp, &good.body);
            message.is_refused(world, 401, "timestamp").await;
        }
        // B46
        for body in [r#"{"n": 1}"#, r#"{"n":2}"#, ""] {
            let message = Message { body: body.to_owned(), ..good.clone() };
            message.is_refused(world, 401, "signature_invalid").await;
        }
        good.with("webhook-id", "m-another").is_refused(world, 401, "signature_invalid").await;
        let large = signed(path, NEW, "m-refused", &now().to_string(), &"1".repeat(2 << 20));
        large.is_refused(world, 413, "body_too_large").await;
        let broken = signed(path, NEW, "m-refused", &now().to_string(), "{");
        broken.is_refused(world, 400, "json_syntax").await;
    }
    for path in ["/nowhere", "/nowhere/latest", "/approve", "/start/latest"] {
        good(path, "m-refused").is_refused(world, 404, "webhook_not_found").await;
    }
    assert_eq!((runs(world).await, records(world).await), (0, 0));
}

/// B45: a message that is sent again, also at the same time, starts one run.
async fn started_once(world: &World) {
    let before = runs(world).await;
    let message = good("/start", "m-start");
    let all = futures_util::future::join_all((0..8).map(|_| message.send(world))).await;
    let new = all.iter().filter(|(status, _)| *status == 201).count();
    assert_eq!(new, 1, "{all:?}");
    let run_id = &all[0].1["run_id"];
    assert!(all.iter().all(|(status, answer)| *status < 300 && answer["run_id"] == *run_id));
    let later = signed("/start", NEW, "m-start", &(now() + 1).to_string(), &message.body);
    let (status, again) = later.send(world).await;
    assert_eq!((status, &again["run_id"], &again["existed"]), (200, run_id, &json!(true)));
    let other = signed("/start", NEW, "m-start", &now().to_string(), r#"{"n":2}"#);
    other.is_refused(world, 409, "idempotency_conflict").await;
    assert_eq!(runs(world).await, before + 1);
}

/// A message that is sent again, also at the same time or to another run, sends one signal.
async fn signalled_once(world: &World) {
    let (run_id, other_id) = (start_twice(world).await, start_twice(world).await);
    let message = good(&format!("/approve/{run_id}"), "m-signal");
    let all = futures_util::future::join_all((0..8).map(|_| message.send(world))).await;
    let taken = all.iter().filter(|(_, answer)| answer["existed"] == json!(false)).count();
    assert_eq!(taken, 1, "{all:?}");
    assert!(all.iter().all(|(status, _)| matches!(status, 200 | 409)), "{all:?}");
    let (status, again) = message.send(world).await;
    let expected = (200, &json!(run_id.to_string()), &json!(true));
    assert_eq!((status, &again["run_id"], &again["existed"]), expected);
    let moved = Message { path: format!("/approve/{other_id}"), ..message };
    let (status, again) = moved.send(world).await;
    assert_eq!((status, &again["run_id"]), (200, &json!(run_id.to_string())));
    assert_eq!((signals(world, run_id).await, signals(world, other_id).await), (1, 0));
    let (status, _) = good(&format!("/approve/{run_id}"), "m-signal-2").send(world).await;
    assert_eq!((status, signals(world, run_id).await), (200, 2));
    let ended = world.engine.wait(run_id).await.expect("it ends");
    assert_eq!(ended.row.run.status, RunStatus::Completed);
    // What was refused may be sent again, and is refused again.
    let late = good(&format!("/approve/{run_id}"), "m-late");
    late.is_refused(world, 409, "run_terminal").await;
    late.is_refused(world, 409, "run_terminal").await;
}

/// B47: a secret counts as long as it is there.
async fn rotated(world: &World, folder: &Path) {
    let by = |secret: &str, id: &str| signed("/start", secret, id, &now().to_string(), "{}");
    by(OLD, "m-r1").is_refused(world, 401, "signature_invalid").await;
    std::fs::write(folder.join("GONE"), OLD).expect("the folder can be written");
    assert_eq!(by(OLD, "m-r1").send(world).await.0, 201);
    assert_eq!(by(NEW, "m-r2").send(world).await.0, 201);
    std::fs::remove_file(folder.join("GONE")).expect("it is there");
    by(OLD, "m-r3").is_refused(world, 401, "signature_invalid").await;
    assert_eq!(by(NEW, "m-r4").send(world).await.0, 201);
    std::fs::remove_file(folder.join("HOOK")).expect("it is there");
    by(NEW, "m-r5").is_refused(world, 401, "signature_invalid").await;
}

async fn all_holds(store: Arc<dyn Store>) {
    let folder = tempfile::tempdir().expect("there is room");
    let world = world(store, folder.path()).await;
    refused(&world).await;
    started_once(&world).await;
    signalled_once(&world).await;
    rotated(&world, folder.path()).await;
    world.engine.shutdown().await;
}

#[tokio::test]
async fn a_signed_message_counts_once_and_no_other_counts_in_memory() {
    all_holds(Arc::new(MemoryStore::new())).await;
}

#[tokio::test]
async fn a_signed_message_counts_once_and_no_other_counts_on_sqlite() {
    let folder = tempfile::tempdir().expect("there is room");
    all_holds(stores::sqlite(folder.path()).await).await;
}

#[tokio::test]
async fn a_signed_message_counts_once_and_no_other_counts_on_redis() {
    all_holds(stores::redis().await).await;
}

#[tokio::test]
async fn a_signed_message_counts_once_and_no_other_counts_on_postgres() {
    all_holds(stores::postgres().await).await;
}

/// Somebody took the message and died before, or after, the signal was sent.
#[tokio::test(start_paused = true)]
async fn a_message_that_somebody_died_over_is_taken_once_by_the_next() {
    for is_sent in [false, true] {
        let clock = Clock::tokio(Timestamp(1_700_000_000_000));
        let folder = tempfile::tempdir().expect("there is room");
        let world = world(Arc::new(MemoryStore::with_clock(clock)), folder.path()).await;
        let run_id = start_twice(&world).await;
        let begun = json!({ "run_id": run_id, "is_done": false });
        let write = RecordWrite {
            kind: "webhook",
            key: "approve/m-died".into(),
            expect: Expect::Absent,
            value: Some(Payload::of(&begun).expect("it is JSON")),
            keep: None,
        };
        let written = world.engine.store().write_records(vec![write], None).await;
        assert!(matches!(written, Ok(RecordsOutcome::Written(_))), "{written:?}");
        let message = good(&format!("/approve/{run_id}"), "m-died");
        if is_sent {
            let data = Payload::parse(&message.body).expect("it is JSON");
            world.engine.signal(run_id, "go", data).await.expect("it waits for it");
        }
        message.is_refused(&world, 409, "conflict").await;
        tokio::time::advance(Duration::from_secs(31)).await;
        let (status, answer) = message.send(&world).await;
        assert_eq!((status, &answer["existed"]), (200, &json!(is_sent)), "{answer}");
        let (status, answer) = message.send(&world).await;
        assert_eq!((status, &answer["existed"]), (200, &json!(true)), "{answer}");
        assert_eq!(signals(&world, run_id).await, 1);
        world.engine.shutdown().await;
    }
}
